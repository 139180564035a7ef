"""Saved heat as text: what was written, how much of it is resident, what a restore did; all measured."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from pgsweep.plain import relation_label, shown
from pgsweep.records.cache import Missing
from pgsweep.records.heat import (
    HeatRelation,
    HeatSource,
    HeatState,
)
from pgsweep.records.rollup import SYSTEM_SCHEMAS
from pgsweep.ui.kit.numbers import count, counted, format_bytes, known_bytes, percent, server_name
from pgsweep.ui.kit.section import Fact, Section
from pgsweep.ui.kit.table import Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.units import format_time

_NAMED_APART = 5
_GOOD = ("same blocks", "same size", "by share", "resized")


def source_text(source: HeatSource, version: str) -> str:
    """Return which file a result is about, and what it holds."""
    text = (
        f"{shown(source.path)}: saved {shown(format_time(source.at))}, {server_name(source.server_version)}, "
    )
    text += f"{format_bytes(source.pool_bytes)} of a pool of {format_bytes(source.shared_buffers_bytes)}"
    if source.page_cache_bytes is not None:
        text += f", {format_bytes(source.page_cache_bytes)} of the page cache"
    return text + ("" if version == source.server_version else f"; here {server_name(version)}")


def state_text(state: HeatState, before: HeatState | None = None) -> str:
    """Return how much is resident, and the usage counts beside those that were saved."""
    was = "" if before is None else f" (before: {percent(before.resident)})"
    lines = []
    if state.worth is not None:
        then = "" if before is None or before.worth is None else f" (before: {percent(before.worth)})"
        lines.append(f"worth having (usage_count 2 and more): {percent(state.worth)} is resident{then}")
    lines.append(
        f"resident now: {known_bytes(state.resident_bytes)} of {known_bytes(state.target_bytes)}, "
        f"{percent(state.resident)}{was}; weighted by heat {percent(state.resident_hot)}"
    )
    if state.page_cache is not None:
        lines.append(
            f"of what was in the page cache, {percent(state.page_cache)} is there; "
            f"{percent(state.either)} is in one cache or the other"
        )
    if state.matched < 1:
        lines.append(f"of what was saved, {percent(state.matched)} could be matched with something here")
    lines.append(f"usage_count saved    {levels(state.usage_saved)}")
    lines.append(
        f"usage_count now      {levels(state.usage_now)}; "
        f"{percent(state.usage_reached)} have at least their saved usage count"
    )
    return "\n".join(lines)


def levels(counts: Sequence[int]) -> str:
    """Return how many blocks have usage_count 0 to 5."""
    return ", ".join(f"{level}: {count(number)}" for level, number in enumerate(counts))


def relations_text(relations: Sequence[HeatRelation], terminal: Terminal) -> str:
    """Return a table of the relations that there are, largest first, and all system catalogs at its end."""
    own, catalogs = _parted(relations)
    rows = own[: terminal.rows]
    table = _table(rows, catalogs)
    if not table.rows:
        return ""
    text = table.text(terminal)
    if len(own) > len(rows):
        rest = known_bytes(sum(row.saved_bytes for row in own[len(rows) :]))
        text += f"\n... and {counted(len(own) - len(rows), 'row')} more, {rest} saved: --top, --json, --csv"
    return text


def _parted(relations: Sequence[HeatRelation]) -> tuple[list[HeatRelation], list[HeatRelation]]:
    """Return the relations with blocks to look for in the pool, and the system catalogs among them apart."""
    found = [row for row in relations if row.match in _GOOD and row.target_bytes]
    own = [row for row in found if row.table_schema not in SYSTEM_SCHEMAS]
    return own, [row for row in found if row.table_schema in SYSTEM_SCHEMAS]


def _table(own: Sequence[HeatRelation], catalogs: Sequence[HeatRelation]) -> Table[list[str]]:
    names = ("relation", "kind", "match", "saved", "resident now", "share", "by heat")
    ranks = (0, 3, 5, 4, 1, 2, 6)
    columns: list[Column[list[str]]] = [
        Column(name, itemgetter(at), left=at < 3, rank=rank)
        for at, (name, rank) in enumerate(zip(names, ranks, strict=True))
    ]
    return Table(columns, [*(_cells(row) for row in own), *_together(catalogs)])


def _together(catalogs: Sequence[HeatRelation]) -> list[list[str]]:
    if not catalogs:
        return []
    wanted = sum(row.target_bytes for row in catalogs)
    there = sum(row.resident_bytes for row in catalogs)
    name = f"(system catalogs: {counted(len(catalogs), 'file')})"
    saved = known_bytes(sum(row.saved_bytes for row in catalogs))
    return [[name, "", "", saved, known_bytes(there), percent(there / wanted if wanted else None), ""]]


def _cells(row: HeatRelation) -> list[str]:
    return [
        _name(row),
        row.kind,
        row.match,
        known_bytes(row.saved_bytes),
        known_bytes(row.resident_bytes),
        percent(row.resident_bytes / row.target_bytes if row.target_bytes else None),
        percent(row.resident_hot if row.target_bytes else None),
    ]


def lost_lines(relations: Sequence[HeatRelation], terminal: Terminal) -> list[str]:
    """Return one line for each relation that has no place here or could not be read."""
    mark = terminal.paint("not matched:", "yellow")
    lines = [
        f"{mark} {_name(row)}: {row.match}, {known_bytes(row.saved_bytes)}"
        for row in relations
        if row.match not in _GOOD and row.saved_bytes
    ]
    lines += [f"{terminal.paint('not read:', 'yellow')} {text}" for text in _unread(relations)]
    if terminal.rows is not None and len(lines) > terminal.rows:
        lines = [*lines[: terminal.rows], f"... and {count(len(lines) - terminal.rows)} more: --top, --json"]
    return ["\n".join(lines)] if lines else []


def _unread(relations: Sequence[HeatRelation]) -> list[str]:
    """Return what could not be read and why; the files of a database that share a cause, in one line."""
    together: dict[tuple[str, str], list[HeatRelation]] = {}
    for row in relations:
        if row.error is not None:
            together.setdefault((row.database, row.error), []).append(row)
    lines = []
    for (database, why), rows in together.items():
        many = f"{shown(database)}: {count(len(rows))} files"
        names = many if len(rows) > _NAMED_APART else ", ".join(map(_name, rows))
        lines.append(f"{names}: {shown(why)}")
    return lines


def state_facts(state: HeatState) -> list[Fact]:
    """Return the shares as figures of a page."""
    worth = [Fact(percent(state.worth), "of what is worth having is in the pool", Measured)]
    facts = [
        *(worth if state.worth is not None else []),
        Fact(percent(state.resident), "of the saved blocks are in the pool", Measured),
        Fact(percent(state.resident_hot), "weighted by heat", Measured),
        Fact(percent(state.usage_reached), "have at least their saved usage count", Measured),
    ]
    if state.either is not None:
        facts.append(Fact(percent(state.either), "in one cache or the other", Measured))
    return facts


def relations_page(
    relations: Sequence[HeatRelation], facts: Sequence[Fact], missing: Sequence[Missing]
) -> Section:
    """Return every relation with its result."""
    own, catalogs = _parted(relations)
    lost = [row for row in relations if row.match not in _GOOD and row.saved_bytes]
    notes = [f"Not matched: {_name(row)}: {row.match}." for row in lost]
    notes += [f"Not read: {text}." for text in _unread(relations)]
    notes += [f"Not seen: {entry.what}: {entry.why}." for entry in missing]
    return Section("Relations", "relations", facts=facts, table=_table(own, catalogs), notes=notes)


def _name(row: HeatRelation) -> str:
    """Return a readable name; a TOAST relation, whose own name is a number, is named by its table."""
    name = relation_label(row.schema, row.relation, row.table_schema, row.table)
    fork = "" if row.fork == "main" else f" ({row.fork})"
    return shown(f"{row.database}: {name}" if row.database else name) + fork
