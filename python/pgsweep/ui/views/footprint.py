"""What one statement brings into each cache: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgsweep.plain import relation_label, shown
from pgsweep.records.footprint import FootprintChange, FootprintRelation, FootprintResult, FootprintRun
from pgsweep.records.rollup import is_catalog
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, format_bytes, known_bytes, short_seconds
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Column, Group, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View

_LOSERS_SHOWN = 5
"""How many relations that only gave way to the statement have a row of their own."""


def footprint_text(result: FootprintResult, terminal: Terminal) -> str:
    """Return the runs, the relations, the plan and the notes."""
    state = "both caches emptied before" if result.cold else "caches as they were"
    head = f"Measured: shared_buffers {format_bytes(result.shared_buffers_bytes)}, {state}."
    parts = [f"{head}\n{shown(result.statement)}", _runs(result).text(terminal)]
    parts.append(
        _relations(result).text(terminal) if result.relations else "Nothing entered or left either cache."
    )
    parts.append("plan of the first run (a node's blocks include its children's):\n" + "\n".join(result.plan))
    if result.notes:
        parts.append("\n".join(f"note: {note}" for note in result.notes))
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def _runs(result: FootprintResult) -> Table[tuple[int, FootprintRun]]:
    """Return the runs with their numbers, from 0."""

    def into(number: int, name: str) -> str:
        return known_bytes(sum(getattr(relation.runs[number], name) or 0 for relation in result.relations))

    def name(number: int) -> str:
        return ("cold" if result.cold else "first") if number == 0 else "again"

    columns: list[Column[tuple[int, FootprintRun]]] = [
        Column("run", lambda at: name(at[0]), left=True),
        Column("planning", lambda at: short_seconds(at[1].planning_seconds)),
        Column("execution", lambda at: short_seconds(at[1].execution_seconds)),
        Column("rows", lambda at: count(at[1].rows)),
        Column("blocks\nhit", lambda at: count(at[1].shared_hit_blocks + at[1].planning_hit_blocks)),
        Column("blocks\nread", lambda at: count(at[1].shared_read_blocks + at[1].planning_read_blocks)),
        Column("dirtied", lambda at: count(at[1].shared_dirtied_blocks), only="page"),
        Column("temporary, written", lambda at: count(at[1].temp_written_blocks), only="page"),
        Column("into shared\nbuffers", lambda at: into(at[0], "shared_buffers_in_bytes")),
    ]
    if result.sees_page_cache:
        columns.append(Column("into page\ncache", lambda at: into(at[0], "page_cache_in_bytes")))
    if any(run.shared_read_seconds is not None for run in result.runs):
        columns.insert(3, Column("of it,\nreading", lambda at: _reading(at[1].shared_read_seconds)))
    return Table(columns, list(enumerate(result.runs)))


def _reading(took: float | None) -> str:
    return "–" if took is None else short_seconds(took)


class _Row(NamedTuple):
    """Relations that are shown together, and what they are called."""

    label: str
    kind: str
    relations: Sequence[FootprintRelation]

    def before(self, name: str) -> str:
        """Return a size of before the runs."""
        return _sum([getattr(relation, name) for relation in self.relations])

    def moved(self, runs: slice, name: str) -> str:
        """Return what these runs moved."""
        return _sum([getattr(run, name) or 0 for relation in self.relations for run in relation.runs[runs]])


def _relations(result: FootprintResult) -> Table[_Row]:
    sees, first, later = result.sees_page_cache, slice(1), slice(1, None)
    columns: list[Column[_Row]] = [
        Column("relation", lambda row: row.label, left=True),
        Column("kind", lambda row: row.kind, left=True),
        Column("size", lambda row: row.before("size_bytes")),
        Column("was in\nbuffers", lambda row: row.before("shared_buffers_before_bytes")),
        _moved("into shared\nbuffers", first, "shared_buffers_in_bytes"),
        _moved("out of\nthem", first, "shared_buffers_out_bytes"),
    ]
    if sees:
        columns += [
            Column("was in\npage cache", lambda row: row.before("page_cache_before_bytes")),
            _moved("into page\ncache", first, "page_cache_in_bytes"),
            _moved("out of\nit", first, "page_cache_out_bytes"),
        ]
    if len(result.runs) > 1:
        columns.append(_moved("again into\nbuffers", later, "shared_buffers_in_bytes"))
        columns += [_moved("again into\npage cache", later, "page_cache_in_bytes")] if sees else []
    for number in range(len(result.runs)):
        moved = {
            "shared_buffers_in_bytes": "into shared_buffers",
            "shared_buffers_out_bytes": "out of them",
            "page_cache_in_bytes": "into page cache",
            "page_cache_out_bytes": "out of it",
        }
        # Columns of blocks that left are shown only if some did.
        columns += [
            _moved(title, slice(number, number + 1), name, Group(f"run {number + 1}", Measured))
            for name, title in moved.items()
            if (sees or name.startswith("shared"))
            and ("_in_" in name or any(getattr(row.runs[number], name) for row in result.relations))
        ]
    rows = grouped(result)
    if len(rows) < 2:
        return Table(columns, rows)
    return Table(columns, [*rows, _Row("total", "", result.relations)], marked=len(rows))


def _moved(header: str, runs: slice, name: str, group: Group | None = None) -> Column[_Row]:
    """Return a column of what these runs moved; on a page each run has its own, below its group."""
    if group is None:
        return Column(header, lambda row: row.moved(runs, name), only="text")
    return Column(header, lambda row: row.moved(runs, name), group=group, only="page")


def grouped(result: FootprintResult) -> list[_Row]:
    """Return the rows: those that brought nothing in, and lost least, together; the system catalogs last."""
    own = [row for row in result.relations if not is_catalog(row)]
    system = [row for row in result.relations if is_catalog(row)]
    more = [row for row in own if not any(_brought_in(run) for run in row.runs)][_LOSERS_SHOWN:]
    if len(more) > 1:
        own = own[: -len(more)]
    rows = [_Row(_label(row), row.kind, [row]) for row in own]
    if len(more) > 1:
        rows.append(_Row(f"(others that gave way: {count(len(more))})", "", more))
    return [*rows, _Row(f"(system catalogs: {len(system)})", "", system)] if system else rows


def _brought_in(run: FootprintChange) -> int:
    return run.shared_buffers_in_bytes + (run.page_cache_in_bytes or 0)


def _label(row: FootprintRelation) -> str:
    if row.kind == "unknown":
        return shown(row.relation)
    return shown(relation_label(row.schema, row.relation, row.table_schema, row.table))


def footprint_page(result: FootprintResult) -> Page:
    """Return the runs with their plan, and the relations."""
    into = sum(row.runs[0].shared_buffers_in_bytes for row in result.relations)
    title = f"One statement brought {format_bytes(into)} into shared_buffers"
    if result.sees_page_cache:
        cached = sum(row.runs[0].page_cache_in_bytes or 0 for row in result.relations)
        title += f" and {format_bytes(cached)} into the page cache"
    state = "Both caches were emptied before." if result.cold else "The caches were as they were."
    lead = f"{shown(result.statement)}. {state}"
    facts = [
        Fact(short_seconds(run.execution_seconds), "first run" if number == 0 else "again", Measured)
        for number, run in enumerate(result.runs)
    ]
    sections = [
        Section("Runs", "runs", facts=facts, table=_runs(result), notes=result.plan),
        Section("What entered and left", "relations", table=_relations(result)),
    ]
    return Page(title, lead, sections, notes=result.notes)


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
