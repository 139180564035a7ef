"""What pages, metrics and exports read of the history, from whichever store it is in."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from pgsweep.records.serve import (
    ServeConsumers,
    ServeCurve,
    ServeDatabase,
    ServeDatabases,
    ServeGap,
    ServeSeries,
    ServeShare,
    ServeShares,
    ServeVerification,
)
from pgsweep.serve import history_consumers
from pgsweep.serve.consumers import COUNTED, KEPT, OTHER_ID, POOLED
from pgsweep.serve.history import COLUMNS, LEVELS
from pgsweep.serve.storage import Session, Store

_MOST_POINTS: Final = 2000
_MOST_CURVES: Final = 500
"""A curve has some kilobytes: those of a year would take a hundred megabytes."""

_BATCH: Final = 50_000


def level_for(begin: float, end: float, now: float) -> int:
    """Return the finest level that still has the beginning, and no more points than a page can show."""
    for step, kept in LEVELS.items():
        if (end - begin) / step <= _MOST_POINTS and begin >= now - kept - step:
            return step
    return list(LEVELS)[-1]


def read_series(store: Store, server: str, begin: float, end: float) -> ServeSeries:
    """Return a part of a server's history, at the level that suits its length.

    Raises:
        PgsweepError: it cannot be read.
    """
    step = level_for(begin, end, time.time())
    with store.reading() as session:
        rows = session.execute(
            f"SELECT at, {_columns(session)} FROM main.samples JOIN main.servers ON id = server "  # noqa: S608
            "WHERE level = ? AND name = ? AND at >= ? AND at <= ? ORDER BY at",
            [step, server, math.ceil(begin), math.floor(end)],
        )
        gaps = session.execute(
            "SELECT began, ended, why FROM main.gaps JOIN main.servers ON id = server "
            "WHERE name = ? AND ended >= ? AND began <= ? ORDER BY began",
            [server, float(begin), float(end)],
        )
    return ServeSeries(
        server=server,
        begin=begin,
        end=end,
        step_seconds=step,
        at=[float(row[0]) for row in rows],
        columns={name: [row[number] for row in rows] for number, name in enumerate(COLUMNS, 1)},
        gaps=[ServeGap(begin=row[0], end=row[1], why=row[2]) for row in gaps],
    )


def read_curves(store: Store, server: str, begin: float, end: float) -> list[ServeCurve]:
    """Return the curves of a server that were kept, one an hour, oldest first; of many, every n-th.

    Raises:
        PgsweepError: the history cannot be read.
    """
    of_range = (
        'FROM main.curves JOIN main.servers ON id = server WHERE name = ? AND "window" = 3600 '
        "AND at >= ? AND at <= ?"
    )
    values = [server, math.ceil(begin), math.floor(end)]
    with store.reading() as session:
        [(count,)] = session.execute(f"SELECT count(*) {of_range}", values)
        step = max(1, math.ceil(count / _MOST_CURVES))
        rows = session.execute(
            "SELECT curve FROM (SELECT curve, at, row_number() OVER (ORDER BY at DESC) - 1 AS number "  # noqa: S608
            f"{of_range}) AS kept WHERE number = number / ? * ? ORDER BY at",
            [*values, step, step],
        )
    return [msgspec.json.decode(row[0], type=ServeCurve) for row in rows]


def read_verification(store: Store, server: str) -> ServeVerification | None:
    """Return the last verification of a server; None where there is none.

    Raises:
        PgsweepError: the history cannot be read.
    """
    with store.reading() as session:
        if not session.columns("verifications"):
            return None
        rows = session.execute(
            "SELECT result FROM main.verifications JOIN main.servers ON id = server "
            "WHERE name = ? ORDER BY at DESC LIMIT 1",
            [server],
        )
    return msgspec.json.decode(rows[0][0], type=ServeVerification) if rows else None


def read_consumers(store: Store, server: str, begin: float, end: float) -> ServeConsumers:
    """Return who used a server over a range.

    Raises:
        PgsweepError: the history cannot be read.
    """
    with store.reading() as session:
        covered, total, found = history_consumers.read(session, server, begin, end, time.time())
    return ServeConsumers(
        server=server, begin=begin, end=end, covered_seconds=covered, totals=total, consumers=found
    )


def read_databases(store: Store, server: str, begin: float, end: float) -> ServeDatabases:
    """Return hits and reads of each database over a range, those with most reads first.

    Raises:
        PgsweepError: the history cannot be read.
    """
    at, seconds, found = _over_time(store, server, begin, end, COUNTED)
    databases = [
        ServeDatabase(
            name=name,
            hits=[None if row is None else row.get("hits", 0.0) for row in rows],
            reads=[None if row is None else row.get("reads", 0.0) for row in rows],
        )
        for (name, _), rows in found.items()
    ]
    databases.sort(key=lambda one: (-sum(filter(None, one.reads)), one.name))
    return ServeDatabases(server=server, begin=begin, end=end, at=at, seconds=seconds, databases=databases)


def read_shares(store: Store, server: str, begin: float, end: float) -> ServeShares:
    """Return what each relation had in the pool over a range: the largest, then all others together.

    Raises:
        PgsweepError: the history cannot be read.
    """
    at, seconds, found = _over_time(store, server, begin, end, POOLED)
    named: list[ServeShare] = []
    for (database, name), rows in found.items():
        held = [
            row["memory_byte_seconds"] / covered if row and covered else None
            for row, covered in zip(rows, seconds, strict=True)
        ]
        other = name == OTHER_ID
        named.append(ServeShare(database=database, relation="" if other else name, pool_bytes=held))
    named.sort(key=lambda one: (not one.relation, -sum(filter(None, one.pool_bytes)), one.relation))
    rest = named[KEPT:] if len(named) > KEPT else []
    columns = list(zip(*(one.pool_bytes for one in rest), strict=True))
    others = [None if set(values) == {None} else sum(filter(None, values)) for values in columns]
    kept = named[:KEPT] + ([ServeShare(database="", relation="", pool_bytes=others)] if rest else [])
    return ServeShares(server=server, begin=begin, end=end, at=at, relations=kept)


def _over_time(store: Store, server: str, begin: float, end: float, kind: str) -> history_consumers.OverTime:
    with store.reading() as session:
        return history_consumers.read_over_time(session, server, begin, end, time.time(), kind)


def sample_rows(store: Store) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all samples in batches: server, step, time, and all columns.

    Raises:
        PgsweepError: the history cannot be read.
    """
    with store.reading() as session:
        columns = _columns(session)
    for step in LEVELS:
        yield from _rows(
            store,
            f"SELECT name, level, at, {columns} FROM main.samples JOIN main.servers ON id = server "  # noqa: S608
            "WHERE level = ? ORDER BY name, at",
            [step],
        )


def consumer_rows(store: Store) -> Iterator[list[tuple[Any, ...]]]:
    """Yield all consumers in batches: server, step, time, kind, user, database, id, and all columns.

    Raises:
        PgsweepError: the history cannot be read.
    """
    with store.reading() as session:
        if not session.columns("consumers"):
            return
    for step in history_consumers.LEVELS:
        yield from _rows(
            store,
            'SELECT name, level, at, kind, "user", database, consumers.id, '  # noqa: S608
            f"{', '.join(history_consumers.ALL)} "
            "FROM main.consumers JOIN main.servers ON servers.id = server "
            "WHERE level = ? ORDER BY name, at, kind",
            [step],
        )


def curve_rows(store: Store) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the points of the curves that were kept in batches: server, time, window, size, ratio, bounds.

    Raises:
        PgsweepError: the history cannot be read.
    """
    for rows in _rows(
        store,
        "SELECT name, at, curve FROM main.curves JOIN main.servers ON id = server ORDER BY name, at",
        [],
    ):
        points: list[tuple[Any, ...]] = []
        for name, at, data in rows:
            curve = msgspec.json.decode(data, type=ServeCurve)
            if curve.result is not None:
                points += [
                    (name, at, curve.window_seconds, curve.result.verdict.level, point.shared_buffers_bytes,
                     point.miss_ratio, point.low, point.high, curve.advised_bytes)
                    for point in curve.result.points
                ]  # fmt: skip
        if points:
            yield points


def _columns(session: Session) -> str:
    """Return all columns of the samples; those that an older history lacks are null."""
    known = session.columns("samples")
    return ", ".join(name if name in known else f"NULL AS {name}" for name in COLUMNS)


def _rows(store: Store, text: str, values: Sequence[Any]) -> Iterator[list[tuple[Any, ...]]]:
    with store.reading() as session:
        yield from session.batches(text, values, _BATCH)
