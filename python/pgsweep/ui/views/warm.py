"""A plan to warm, and its outcome: as text, as a page, as rows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import TypeVar

from pgsweep.commands import on_server
from pgsweep.plain import relation_label, shown
from pgsweep.records.rollup import SYSTEM_SCHEMAS
from pgsweep.records.warm import WarmRelation, WarmResult, WarmTrouble, WarmVerified, WarmWork
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import (
    byte_rate,
    count,
    counted,
    format_bytes,
    format_seconds,
    known_bytes,
    seconds,
    times,
)
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed
from pgsweep.units import format_percent

R = TypeVar("R", WarmRelation, WarmTrouble)

_ROWS_SHOWN = 30
_TROUBLES_SHOWN = 10
_SYSTEM_CALLS = ("posix_fadvise(", "sendfile(")
PUSHED_OUT_SHARE = 0.05
"""A smaller share of what was read is taken by queries and catalogs, and is not reported."""

_FIRST_NORMAL_OBJECT_ID = 16384
_LEAST_WIDTH_OF_REASONS = 30
_CACHES = {"pool": "shared_buffers", "page-cache": "the page cache", "both": "both caches"}


def warm_text(result: WarmResult, terminal: Terminal) -> str:
    """Return the plan or its outcome; of a dry run the statements."""
    if result.action == "dry run":
        return _statements_text(result)
    # The first N are shown as they are: of a role that may read nothing else, all are catalogs.
    rows, catalogs = _parted(result.relations) if result.relations_found is None else (result.relations, [])
    cut = terminal.interactive and result.relations_found is None
    hidden = max(0, len(rows) - _ROWS_SHOWN) if cut else 0
    head = f"{format_bytes(result.asked_bytes)} into {_CACHES.get(result.into, shown(result.into))}"
    parts = [_wrapped([head, *_plan_lines(result)], terminal)]
    if result.work is not None:
        parts.append(_wrapped(_done(result), terminal))
    if rows:
        parts.append(_table_text(_table(result, rows[: len(rows) - hidden]), terminal))
    if result.relations_found is not None and result.relations_found > len(result.relations):
        left = result.relations_found - len(result.relations)
        parts.append(_wrapped([f"... and {counted(left, 'relation')} more; without --top: all"], terminal))
    elif hidden:
        more = f"... and {counted(hidden, 'relation')} more; all of them: --json, --csv, or through a pipe"
        parts.append(_wrapped([more], terminal))
    if catalogs:
        parts.append(_wrapped([_catalogs_line(catalogs)], terminal))
    parts += _trouble_lines(result, terminal)
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def _wrapped(lines: Iterable[str], terminal: Terminal) -> str:
    """Return sentences, one a line, on a terminal none wider than it."""
    if not terminal.interactive:
        return "\n".join(lines)
    return "\n".join(part for line in lines for part in textwrap.wrap(line, terminal.width))


def _plan_lines(result: WarmResult) -> list[str]:
    lines = [f"Order: {result.heat_source}."]
    for budget in result.budgets:
        holds = "" if budget.holds_bytes is None else f" of {format_bytes(budget.holds_bytes)}"
        holds += f" {budget.holds_why}" if budget.holds_why else ""
        reserve = ""
        if budget.reserve_bytes:
            reserve = f"; {format_bytes(budget.reserve_bytes)} not used: {budget.reserve_why}"
        lines.append(
            f"The {budget.cache}: {known_bytes(budget.planned_bytes)} planned, budget "
            f"{known_bytes(budget.budget_bytes)}{holds}{reserve}."
        )
    if result.left_out_bytes:
        lines.append(f"Does not fit: {format_bytes(result.left_out_bytes)}.")
        if result.heat_file is None:
            lines.append(
                "Statistics do not say which blocks of a relation are used, so each is read from its "
                f"beginning. A heat file does: `{on_server('pgsweep warm save', 'FILE')}`."
            )
    if not _parted(result.relations)[0] and _parted(result.refused)[0]:
        lines.append("Only system catalogs are planned: of all else the role may read nothing.")
    lines += _time_lines(result)
    return lines


def _time_lines(result: WarmResult) -> list[str]:
    rate = result.rate
    if rate is None or result.expected_seconds is None:
        return []
    sample = ""
    if rate.sample_bytes:
        sample = f" ({format_bytes(rate.sample_bytes)} in {format_seconds(rate.sample_seconds)})"
    return [
        f"Takes about {seconds(result.expected_seconds)}, at {format_bytes(rate.bytes_per_second)} a second, "
        f"{rate.kind}{sample}: {rate.why}."
    ]


def work_lines(work: WarmWork) -> list[str]:
    """Return what was done."""
    lines = [
        f"Read {known_bytes(work.read_bytes)} of {known_bytes(work.asked_bytes)} in "
        f"{format_seconds(work.seconds)}, {format_bytes(work.bytes_per_second)} a second, measured; "
        f"{counted(work.connections, 'session')}, mode {work.mode}."
    ]
    if work.again_bytes:
        lines.append(f"The server lost its pool meanwhile: {format_bytes(work.again_bytes)} were read again.")
    if work.brought_back_seconds:
        gone, took = format_bytes(work.pushed_out_bytes), format_seconds(work.brought_back_seconds)
        lines.append(
            f"The pool was in use and evicted {gone} meanwhile: all was read and touched again, {took}."
        )
    if work.reconnects:
        lines.append(f"{counted(work.reconnects, 'lost session was', 'lost sessions were')} opened again.")
    if work.pauses:
        lines.append(f"Paused {times(work.pauses)}, {format_seconds(work.paused_seconds)} altogether.")
    if work.other_warmers:
        lines.append("Another `pgsweep warm` was running on this server when this one began.")
    if work.stopped:
        rest = (
            "" if work.journal is None else f"; the remaining blocks are listed in the journal {work.journal}"
        )
        lines.append(f"It was stopped before all was read{rest}.")
    return lines


def verified_lines(verified: WarmVerified | None) -> list[str]:
    """Return what lies in the caches of what was asked for."""
    if verified is None:
        return []
    lines = []
    for name, asked, before, now in (
        ("shared_buffers", verified.pool_asked_bytes, verified.pool_before_bytes, verified.pool_bytes),
        (
            "the page cache",
            verified.page_cache_asked_bytes,
            verified.page_cache_before_bytes,
            verified.page_cache_bytes,
        ),
    ):
        if asked and now is not None:
            first = "" if before is None else f" ({known_bytes(before)} before)"
            lines.append(
                f"In {name} now, measured: {known_bytes(now)} of {format_bytes(asked)} asked for, "
                f"{format_percent(now / asked, 1)}{first}."
            )
    return lines


def pushed_out_lines(result: WarmResult) -> list[str]:
    """Return notes if what was read into shared_buffers is not there: it no longer exists, or was evicted."""
    work, verified = result.work, result.verified
    if work is None or verified is None or verified.pool_bytes is None:
        return []
    lines = []
    if verified.gone_bytes:
        lines.append(
            f"{format_bytes(verified.gone_bytes)} were read into shared_buffers and no longer exist: their "
            "relations were dropped, truncated or rewritten meanwhile."
        )
    missing = verified.pool_asked_bytes - verified.pool_bytes - verified.gone_bytes
    unread = work.asked_bytes - work.read_bytes
    if missing - unread > PUSHED_OUT_SHARE * verified.pool_asked_bytes:
        lines.append(
            f"{format_bytes(missing - unread)} were read into shared_buffers and evicted again: it was full, "
            "and buffers in use stay longer than those that were read once. "
            f"`{on_server('pgsweep cache')}` shows what it holds."
        )
    return lines


def _table(result: WarmResult, rows: Sequence[WarmRelation]) -> Table[tuple[int, WarmRelation]]:
    columns: list[Column[tuple[int, WarmRelation]]] = [
        Column("order", lambda at: str(at[0]), rank=4),
        Column("relation", lambda at: _name(at[1], result.database), left=True),
        Column("size", lambda at: format_bytes(at[1].size_bytes), rank=2),
        Column("to\nread" if result.work is None else "read", lambda at: known_bytes(_read(at[1])), rank=1),
        Column("left\nout", lambda at: known_bytes(at[1].left_out_bytes), rank=3),
    ]
    if result.work is None and any(row.page_cache_bytes for row in rows):
        columns += [
            Column("into shared_buffers", lambda at: known_bytes(at[1].pool_bytes), only="page"),
            Column("into the page cache", lambda at: known_bytes(at[1].page_cache_bytes), only="page"),
        ]
    if result.verified is not None and result.into != "page-cache":
        columns.append(Column("in\npool", lambda at: known_bytes(at[1].pool_resident_bytes), rank=5))
    if result.verified is not None:
        cached: Column[tuple[int, WarmRelation]]
        cached = Column("in page\ncache", lambda at: known_bytes(at[1].page_cache_resident_bytes), rank=6)
        columns.append(cached)
    columns.append(Column("why", lambda at: at[1].why, left=True, rank=7))
    return Table(columns, list(enumerate(rows, 1)))


def _table_text(table: Table[tuple[int, WarmRelation]], terminal: Terminal) -> str:
    """Return the relations; on a terminal the reasons are wrapped, or left out where it is narrow."""
    room = table.room(terminal)
    if not terminal.interactive or all(len(row.why) <= room for _, row in table.rows):
        return table.text(terminal)
    return table.text(terminal, wrap=0 if room < _LEAST_WIDTH_OF_REASONS else room)


def _read(row: WarmRelation) -> int:
    """Return what was read, or what is to be where nothing was yet."""
    return row.pool_bytes + row.page_cache_bytes if row.read_bytes is None else row.read_bytes


def _parted(rows: Sequence[R]) -> tuple[list[R], list[R]]:
    """Return the relations that users made, and the system's, which are many and small."""
    own = [row for row in rows if not _is_system(row)]
    return own, [row for row in rows if _is_system(row)]


def _is_system(row: WarmRelation | WarmTrouble) -> bool:
    # The name of a TOAST table has its table's oid; those below are made by initdb (transam.h).
    numbers = row.relation.split("_")
    of_system = row.schema == "pg_toast" and numbers[2:3] and int(numbers[2]) < _FIRST_NORMAL_OBJECT_ID
    return row.schema in SYSTEM_SCHEMAS or bool(of_system)


def _catalogs_line(rows: Sequence[WarmRelation]) -> str:
    """Return the system catalogs in one line."""
    read, out = sum(_read(row) for row in rows), sum(row.left_out_bytes for row in rows)
    line = f"System catalogs, between these in the same order: {counted(len(rows), 'relation')}, "
    line += f"{format_bytes(read)} " + ("to be read" if rows[0].read_bytes is None else "read")
    return f"{line}, {format_bytes(out)} left out." if out else f"{line}."


def _name(row: WarmRelation | WarmTrouble, home: str) -> str:
    name = relation_label(row.schema, row.relation, row.table_schema, row.table)
    return shown(name if row.database == home else f"{row.database}: {name}")


def _trouble_lines(result: WarmResult, terminal: Terminal) -> list[str]:
    troubles = [*result.refused, *(result.work.troubles if result.work is not None else [])]
    if not troubles:
        return []
    own, catalogs = _parted(troubles)
    own.sort(key=lambda trouble: -trouble.blocks)
    mark = terminal.paint("not read:", "yellow")
    lines = []
    for trouble in own[:_TROUBLES_SHOWN]:
        name = _name(trouble, result.database)
        size = format_bytes(trouble.blocks * result.block_size_bytes)
        line = f"{mark} {name}, {size}: {trouble.why}" if trouble.blocks else f"{mark} {name}: {trouble.why}"
        lines.append(line + (f"; {trouble.enable}" if trouble.enable else ""))
    if len(own) > _TROUBLES_SHOWN:
        lines.append(f"... and {count(len(own) - _TROUBLES_SHOWN)} more: --json lists them")
    if catalogs:
        size = format_bytes(sum(trouble.blocks for trouble in catalogs) * result.block_size_bytes)
        lines.append(f"{mark} {counted(len(catalogs), 'system catalog')}, {size}: --json lists them")
    return ["\n".join(lines)]


def _statements_text(result: WarmResult) -> str:
    lines = [
        f"-- {format_bytes(result.asked_bytes)} ({count(result.asked_bytes)} bytes) in "
        f"{counted(len(result.statements), 'statement')}, "
        f"mode {result.mode}"
    ]
    for statement in result.statements:
        lines.append(f"-- database {shown(statement.database)}, {count(statement.size_bytes)} bytes")
        lines.append(pasted(statement.text))
    lines += [f"-- {line}" for part in _trouble_lines(result, Terminal()) for line in part.split("\n")]
    return "\n".join(line for line in lines if line) + "\n"


def pasted(text: str) -> str:
    """Return statements as they can be pasted into psql; system calls, which are no SQL, as comments."""
    if text.startswith(_SYSTEM_CALLS):
        return "\n".join(f"-- {shown(line)}" for line in text.split("\n"))
    return f"{text};" if text else ""


def warm_page(result: WarmResult) -> Page:
    """Return the plan and its outcome."""
    return Page(_title(result), " ".join([*_plan_lines(result), *_done(result)]), [_section(result)])


def _title(result: WarmResult) -> str:
    size, cache = format_bytes(result.asked_bytes), _CACHES.get(result.into, shown(result.into))
    if result.work is None:
        return f"{size} to be read into {cache}"
    return f"{format_bytes(result.work.read_bytes)} of {size} read into {cache}"


def _done(result: WarmResult) -> list[str]:
    if result.work is None:
        return []
    return [*work_lines(result.work), *verified_lines(result.verified), *pushed_out_lines(result)]


def _section(result: WarmResult) -> Section:
    facts = [Fact(format_bytes(result.asked_bytes), "asked for")]
    if result.rate is not None and result.expected_seconds is not None:
        facts.append(Fact(seconds(result.expected_seconds), f"expected; the rate is {result.rate.kind}"))
    if result.left_out_bytes:
        facts.append(Fact(format_bytes(result.left_out_bytes), "does not fit"))
    if result.work is not None:
        facts.append(Fact(byte_rate(result.work.bytes_per_second), "read", Measured))
    if result.verified is not None:
        facts.append(Fact(known_bytes(result.verified.pool_bytes), "in shared_buffers of it", Measured))
        facts.append(Fact(known_bytes(result.verified.page_cache_bytes), "in the page cache of it", Measured))
    own, catalogs = _parted(result.relations)
    troubles = [*result.refused, *(result.work.troubles if result.work is not None else [])]
    notes = [_catalogs_line(catalogs)] if catalogs else []
    notes += [f"Not read: {_name(entry, result.database)}: {entry.why}." for entry in troubles]
    notes += [f"Not seen: {entry.what}: {entry.why}." for entry in result.missing]
    return Section("Relations", "relations", facts=facts, table=_table(result, own), notes=notes)


VIEW = View(WarmResult, warm_text, warm_page, listed(WarmRelation, "relations"))
