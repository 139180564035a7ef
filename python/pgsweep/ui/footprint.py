"""What one statement brings into each cache: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from pgsweep.plain import relation_label, shown
from pgsweep.records.footprint import FootprintChange, FootprintRelation, FootprintResult
from pgsweep.records.rollup import is_catalog
from pgsweep.ui.missing import missing_lines
from pgsweep.ui.numbers import count, format_bytes, format_seconds, known_bytes
from pgsweep.ui.section import Cell, Fact, Group, Measured, Page, Section
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.view import Rows, View

_LOSERS_SHOWN = 5
"""How many relations that only gave way to the statement have a row of their own."""


def footprint_text(result: FootprintResult, terminal: Terminal) -> str:
    """Return the runs, the relations, the plan and the notes."""
    state = "both caches emptied before" if result.cold else "caches as they were"
    head = f"Measured: shared_buffers {format_bytes(result.shared_buffers_bytes)}, {state}."
    parts = [f"{head}\n{shown(result.statement)}", _runs(result, terminal), _relations(result, terminal)]
    parts.append("plan of the first run (a node's blocks include its children's):\n" + "\n".join(result.plan))
    if result.notes:
        parts.append("\n".join(f"note: {note}" for note in result.notes))
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def _runs(result: FootprintResult, terminal: Terminal) -> str:
    columns = [
        Column("run", left=True),
        Column("planning"),
        Column("execution"),
        Column("rows"),
        Column("blocks\nhit"),
        Column("blocks\nread"),
        Column("into shared\nbuffers"),
    ]
    if result.sees_page_cache:
        columns.append(Column("into page\ncache"))
    timed = any(run.shared_read_seconds is not None for run in result.runs)
    if timed:
        columns.insert(3, Column("of it,\nreading"))
    rows = []
    for number, run in enumerate(result.runs):
        name = ("cold" if result.cold else "first") if number == 0 else "again"
        changes = [relation.runs[number] for relation in result.relations]
        cells = [
            name,
            format_seconds(run.planning_seconds),
            format_seconds(run.execution_seconds),
            count(run.rows),
            count(run.shared_hit_blocks + run.planning_hit_blocks),
            count(run.shared_read_blocks + run.planning_read_blocks),
            known_bytes(sum(change.shared_buffers_in_bytes for change in changes)),
        ]
        if result.sees_page_cache:
            cells.append(known_bytes(sum(change.page_cache_in_bytes or 0 for change in changes)))
        if timed:
            reading = run.shared_read_seconds
            cells.insert(3, "–" if reading is None else format_seconds(reading))
        rows.append(cells)
    return table(columns, rows, terminal)


def _relations(result: FootprintResult, terminal: Terminal) -> str:
    if not result.relations:
        return "Nothing entered or left either cache."
    columns = [
        Column("relation", left=True),
        Column("kind", left=True),
        Column("size"),
        Column("was in\nbuffers"),
        Column("into shared\nbuffers"),
        Column("out of\nthem"),
    ]
    if result.sees_page_cache:
        columns += [Column("was in\npage cache"), Column("into page\ncache"), Column("out of\nit")]
    if len(result.runs) > 1:
        columns.append(Column("again into\nbuffers"))
        if result.sees_page_cache:
            columns.append(Column("again into\npage cache"))
    rows = [[label, kind, *_cells(result, members)] for label, kind, members in grouped(result)]
    if len(rows) > 1:
        rows.append(["total", "", *_cells(result, result.relations)])
        return table(columns, rows, terminal, marked=len(rows) - 1)
    return table(columns, rows, terminal)


def grouped(result: FootprintResult) -> list[tuple[str, str, list[FootprintRelation]]]:
    """Return label, kind and relations of each row: those that brought nothing in, and lost least, together.

    The system catalogs together are the last.
    """
    own = [row for row in result.relations if not is_catalog(row)]
    system = [row for row in result.relations if is_catalog(row)]
    more = [row for row in own if not any(_brought_in(run) for run in row.runs)][_LOSERS_SHOWN:]
    if len(more) > 1:
        own = own[: -len(more)]
    rows = [(_label(row), row.kind, [row]) for row in own]
    if len(more) > 1:
        rows.append((f"(others that gave way: {count(len(more))})", "", more))
    return [*rows, (f"(system catalogs: {len(system)})", "", system)] if system else rows


def _brought_in(run: FootprintChange) -> int:
    return run.shared_buffers_in_bytes + (run.page_cache_in_bytes or 0)


def _label(row: FootprintRelation) -> str:
    if row.kind == "unknown":
        return shown(row.relation)
    return shown(relation_label(row.schema, row.relation, row.table_schema, row.table))


def _cells(result: FootprintResult, rows: list[FootprintRelation]) -> list[str]:
    first = [row.runs[0] for row in rows]
    sizes = [row.size_bytes for row in rows]
    cells = [
        "–" if None in sizes else known_bytes(sum(value or 0 for value in sizes)),
        known_bytes(sum(row.shared_buffers_before_bytes for row in rows)),
        known_bytes(sum(run.shared_buffers_in_bytes for run in first)),
        known_bytes(sum(run.shared_buffers_out_bytes for run in first)),
    ]
    if result.sees_page_cache:
        cells += [
            known_bytes(sum(row.page_cache_before_bytes or 0 for row in rows)),
            known_bytes(sum(run.page_cache_in_bytes or 0 for run in first)),
            known_bytes(sum(run.page_cache_out_bytes or 0 for run in first)),
        ]
    later = [run for row in rows for run in row.runs[1:]]
    if len(result.runs) > 1:
        cells.append(known_bytes(sum(run.shared_buffers_in_bytes for run in later)))
        if result.sees_page_cache:
            cells.append(known_bytes(sum(run.page_cache_in_bytes or 0 for run in later)))
    return cells


def footprint_page(result: FootprintResult) -> Page:
    """Return the runs with their plan, and the relations."""
    return Page(*_title(result), _sections(result), notes=result.notes)


def _title(result: FootprintResult) -> tuple[str, str]:
    into = sum(row.runs[0].shared_buffers_in_bytes for row in result.relations)
    title = f"One statement brought {format_bytes(into)} into shared_buffers"
    if result.sees_page_cache:
        cached = sum(row.runs[0].page_cache_in_bytes or 0 for row in result.relations)
        title += f" and {format_bytes(cached)} into the page cache"
    state = "Both caches were emptied before." if result.cold else "The caches were as they were."
    return title, f"{shown(result.statement)}. {state}"


def _sections(result: FootprintResult) -> list[Section]:
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
        # Columns of blocks that left are shown only if some did.
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
    return Section("What entered and left", "relations", "", [], [], groups, head, rows, worded=(0, 1))


def _sum(values: list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return known_bytes(sum(known) if len(known) == len(values) else None)


def _rows(result: FootprintResult) -> Rows:
    """Return one line a relation and run."""
    head = ["run", "schema", "relation", "kind", "size_bytes", "shared_buffers_before_bytes"]
    head += ["page_cache_before_bytes", "shared_buffers_in_bytes", "shared_buffers_out_bytes"]
    head += ["page_cache_in_bytes", "page_cache_out_bytes", "table_schema", "table"]
    lines = []
    for number in range(len(result.runs)):
        for row in result.relations:
            change = row.runs[number]
            cells = [number + 1, row.schema, row.relation, row.kind, row.size_bytes]
            cells += [row.shared_buffers_before_bytes, row.page_cache_before_bytes]
            cells += [change.shared_buffers_in_bytes, change.shared_buffers_out_bytes]
            cells += [change.page_cache_in_bytes, change.page_cache_out_bytes, row.table_schema, row.table]
            lines.append(cells)
    return Rows(head, lines)


VIEW = View(FootprintResult, text=footprint_text, page=footprint_page, rows=_rows)
