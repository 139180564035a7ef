"""What one statement brings into each cache, as sections of the report."""

from __future__ import annotations

from pgsweep.records.footprint import FootprintResult
from pgsweep.ui.cache_text import format_seconds
from pgsweep.ui.footprint_text import grouped
from pgsweep.ui.names import shown
from pgsweep.ui.numbers import count, format_bytes, known_bytes, server_name
from pgsweep.ui.section import Cell, Fact, Group, Measured, Section


def footprint_title(result: FootprintResult) -> tuple[str, str]:
    """Return the page's headline and what stands beneath it."""
    into = sum(row.runs[0].shared_buffers_in_bytes for row in result.relations)
    title = f"One statement brought {format_bytes(into)} into shared_buffers"
    if result.sees_page_cache:
        cached = sum(row.runs[0].page_cache_in_bytes or 0 for row in result.relations)
        title += f" and {format_bytes(cached)} into the page cache"
    state = "Both caches were emptied before." if result.cold else "The caches were as they were."
    return title, f"{server_name(result.server_version)}, {shown(result.statement)}. {state}"


def footprint_sections(result: FootprintResult) -> list[Section]:
    """Return the runs with their plan, and the relations."""
    facts = [
        Fact(format_seconds(run.execution_seconds), "first run" if number == 0 else "again", Measured)
        for number, run in enumerate(result.runs)
    ]
    head = ["run", "execution", "rows", "blocks hit", "blocks read", "dirtied", "temporary, written"]
    rows = [
        [
            Cell(str(number + 1)),
            Cell(format_seconds(run.execution_seconds)),
            Cell(count(run.rows)),
            Cell(count(run.shared_hit_blocks + run.planning_hit_blocks)),
            Cell(count(run.shared_read_blocks + run.planning_read_blocks)),
            Cell(count(run.shared_dirtied_blocks)),
            Cell(count(run.temp_written_blocks)),
        ]
        for number, run in enumerate(result.runs)
    ]
    runs = Section("Runs", "runs", "", facts, [], [], head, rows, notes=result.plan)
    return [runs, _relations_section(result)]


def _relations_section(result: FootprintResult) -> Section:
    sees = result.sees_page_cache
    head = ["relation", "kind", "size", "was in shared_buffers"] + ["was in page cache"] * sees
    groups = [Group("", len(head))]
    columns: list[tuple[int, str]] = []
    for number in range(len(result.runs)):
        fields = [
            ("shared_buffers_in_bytes", "into shared_buffers"),
            ("shared_buffers_out_bytes", "out of them"),
            ("page_cache_in_bytes", "into page cache"),
            ("page_cache_out_bytes", "out of it"),
        ]
        # What left is worth a column only where something did.
        kept = [
            (name, text)
            for name, text in fields[: 4 if sees else 2]
            if "_in_" in name or any(getattr(row.runs[number], name) for row in result.relations)
        ]
        groups.append(Group(f"run {number + 1}", len(kept), Measured))
        head += [text for _, text in kept]
        columns += [(number, name) for name, _ in kept]
    rows = []
    for label, kind, members in grouped(result):
        before = ["size_bytes", "shared_buffers_before_bytes"] + ["page_cache_before_bytes"] * sees
        cells = [Cell(label), Cell(kind)]
        cells += [Cell(_sum([getattr(row, name) for row in members])) for name in before]
        cells += [
            Cell(_sum([getattr(row.runs[number], name) for row in members])) for number, name in columns
        ]
        rows.append(cells)
    return Section("What entered and left", "relations", "", [], [], groups, head, rows)


def _sum(values: list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return known_bytes(sum(known) if len(known) == len(values) else None)
