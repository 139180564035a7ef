"""What one statement brings into each cache, as text. Everything here was measured."""

from __future__ import annotations

from pgsweep.records.footprint import FootprintRelation, FootprintResult
from pgsweep.rollup import SYSTEM_SCHEMAS
from pgsweep.ui.cache_text import format_seconds, missing_lines
from pgsweep.ui.names import shown
from pgsweep.ui.numbers import count, format_bytes, known_bytes, server_name
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal


def footprint_text(result: FootprintResult, terminal: Terminal) -> str:
    """Return the runs, the relations, the plan and the notes."""
    state = "both caches emptied before" if result.cold else "caches as they were"
    head = (
        f"{server_name(result.server_version)}, shared_buffers {format_bytes(result.shared_buffers_bytes)}, "
        f"{state}; measured."
    )
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
    """Return label, kind and relations of each row: the system catalogs together are the last."""
    own = [row for row in result.relations if row.schema not in SYSTEM_SCHEMAS]
    system = [row for row in result.relations if row.schema in SYSTEM_SCHEMAS]
    rows = [(relation_label(row), row.kind, [row]) for row in own]
    return [*rows, (f"(system catalogs: {len(system)})", "", system)] if system else rows


def relation_label(row: FootprintRelation) -> str:
    """Return `schema.relation`, without `public`."""
    return shown(row.relation if row.schema in ("", "public") else f"{row.schema}.{row.relation}")


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
