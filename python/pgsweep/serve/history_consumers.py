"""The consumers in the history: a table beside the samples, with levels of its own.

One minute for a day, a quarter of an hour for a month, six hours for two years. A coarser step is made once,
when it is over, of the finer ones; of each kind it keeps again the largest by name. All columns are sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Final

from pgsweep.records.serve import ServeConsumer
from pgsweep.serve.consumers import (
    COLUMNS,
    KINDS,
    OTHER_ID,
    Key,
    Values,
    by_share,
    largest,
    total_key,
)
from pgsweep.serve.storage import Session

OverTime = tuple[list[float], list[float | None], dict[tuple[str, str], list[Values | None]]]

LEVELS: Final = {60: 86_400, 900: 30 * 86_400, 21_600: 730 * 86_400}
"""Seconds of a level's step, and for how many seconds it is kept."""

_GRACE_SECONDS: Final = 120
"""A step is made that long after its end: what belongs to it may come late."""

_MOST_STEPS: Final = 200
_COVERED: Final = "covered_seconds"
ALL: Final = (_COVERED, *COLUMNS)
"""Columns of the table with values."""

_PUT: Final = (
    f'INSERT INTO main.consumers (level, server, at, kind, "user", database, id, {", ".join(ALL)}) '  # noqa: S608
    f"VALUES (?, ?, ?, ?, ?, ?, ?, {', '.join('?' * len(ALL))}) "
    'ON CONFLICT (level, server, at, kind, "user", database, id) DO UPDATE SET '
    + ", ".join(f"{name} = excluded.{name}" for name in ALL)
)


def write(session: Session, server: int, at: float, seconds: float, rows: dict[Key, Values]) -> None:
    """Keep one interval."""
    rows = {**rows, total_key(): {**rows.get(total_key(), {}), _COVERED: seconds}}
    _insert(session, 60, server, int(at), rows)


def _insert(session: Session, level: int, server: int, at: int, rows: dict[Key, Values]) -> None:
    session.execute_many(
        _PUT,
        [[level, server, at, *key, *(values.get(name) for name in ALL)] for key, values in rows.items()],
    )


def roll_up(session: Session, now: float, *, drop: bool = True) -> None:
    """Make the steps of coarser levels that are over, and drop what is too old."""
    servers = [row[0] for row in session.execute("SELECT id FROM main.servers")]
    for finer, step in itertools.pairwise(LEVELS):
        for server in servers:
            done = _newest(session, step, server, now + step)
            over = int(now - _GRACE_SECONDS) // step * step
            steps = session.execute(
                "SELECT DISTINCT ((at - 1) / ? + 1) * ? FROM main.consumers "
                "WHERE level = ? AND server = ? AND at > ? AND at <= ? ORDER BY 1 LIMIT ?",
                [step, step, finer, server, done, over, _MOST_STEPS],
            )
            for (at,) in steps:
                rows = _summed(session, server, [(finer, at - step, at)])
                _insert(session, step, server, at, largest(rows))
    for step, kept in LEVELS.items() if drop else ():
        session.execute("DELETE FROM main.consumers WHERE level = ? AND at < ?", [step, int(now) - kept])


def _newest(session: Session, level: int, server: int, until: float) -> int:
    found = session.execute(
        "SELECT max(at) FROM main.consumers WHERE level = ? AND server = ? AND at <= ?",
        [level, server, int(until)],
    )[0][0]
    return 0 if found is None else int(found)


def _summed(session: Session, server: int, parts: Iterable[tuple[int, float, float]]) -> dict[Key, Values]:
    """Return the sums over parts: level, after, until."""
    found: dict[Key, Values] = {}
    sums = ", ".join(f"sum({name})" for name in ALL)
    for level, after, until in parts:
        for kind, user, database, number, *values in session.execute(
            f'SELECT kind, "user", database, id, {sums} FROM main.consumers '  # noqa: S608
            'WHERE level = ? AND server = ? AND at > ? AND at <= ? GROUP BY kind, "user", database, id',
            [level, server, math.floor(after), math.floor(until)],
        ):
            row = found.setdefault((kind, user, database, number), {})
            for name, value in zip(ALL, values, strict=True):
                if value is not None:
                    row[name] = row.get(name, 0.0) + value
    return found


def parts_of(begin: float, end: float, now: float, newest: dict[int, int]) -> list[tuple[int, float, float]]:
    """Return which level serves which part of a range: the coarser first, and what it lacks from the finer.

    Args:
        begin, end: of the range.
        now: the time.
        newest: by level, the end of its last step.
    """
    levels = list(LEVELS)
    chosen = next(
        (n for n, step in enumerate(levels) if (end - begin) / step <= 400 and begin >= now - LEVELS[step]),
        len(levels) - 1,
    )
    parts: list[tuple[int, float, float]] = []
    after = begin
    for level in reversed(levels[: chosen + 1]):
        until = end if level == levels[0] else min(end, newest.get(level, 0))
        if until > after:
            parts.append((level, after, until))
            after = until
    return parts


def read(
    session: Session, server: str, begin: float, end: float, now: float
) -> tuple[float, ServeConsumer | None, list[ServeConsumer]]:
    """Return the time covered, the sum of all, and of each kind the largest and `other`."""
    if not session.columns("consumers"):
        return 0.0, None, []
    ids = session.execute("SELECT id FROM main.servers WHERE name = ?", [server])
    if not ids:
        return 0.0, None, []
    number = ids[0][0]
    newest = {level: _newest(session, level, number, now + level) for level in LEVELS}
    rows = _summed(session, number, parts_of(begin, end, now, newest))
    total = rows.pop(total_key(), None)
    if total is None:
        return 0.0, None, []
    covered = total.get(_COVERED, 0.0)
    kept = largest(rows)
    ordered: list[ServeConsumer] = []
    for kind in KINDS:
        own = {key: values for key, values in kept.items() if key[0] == kind}
        named = by_share({key: values for key, values in own.items() if key[3] != OTHER_ID})
        rest = [key for key in own if key[3] == OTHER_ID]
        ordered += [_record(key, own[key], covered) for key in (*named, *rest)]
    return covered, _record(total_key(), total, covered), ordered


def read_over_time(
    session: Session, server: str, begin: float, end: float, now: float, kind: str
) -> OverTime:
    """Return what the history has of one kind, interval by interval.

    Returns:
        The ends of the intervals, their lengths in seconds, and by database and id the values of `COLUMNS`;
        None where nothing was counted.
    """
    at: list[float] = []
    seconds: list[float | None] = []
    found: dict[tuple[str, str], list[Values | None]] = {}
    if not session.columns("consumers"):
        return at, seconds, found
    for (number,) in session.execute("SELECT id FROM main.servers WHERE name = ?", [server]):
        newest = {level: _newest(session, level, number, now + level) for level in LEVELS}
        for level, after, until in parts_of(begin, end, now, newest):
            for time, which, database, name, covered, *values in session.execute(
                f"SELECT at, kind, database, id, {', '.join(ALL)} FROM main.consumers "  # noqa: S608
                "WHERE level = ? AND server = ? AND at > ? AND at <= ? AND kind IN (?, 'total') ORDER BY at",
                [level, number, math.floor(after), math.floor(until), kind],
            ):
                if not at or at[-1] != time:
                    at.append(float(time))
                    seconds.append(None)
                if which == kind:
                    row = found.setdefault((database, name), [])
                    row += [None] * (len(at) - 1 - len(row))
                    row.append({n: float(v) for n, v in zip(COLUMNS, values, strict=True) if v is not None})
                elif covered is not None:
                    seconds[-1] = float(covered)
    for row in found.values():
        row += [None] * (len(at) - len(row))
    return at, seconds, found


def _record(key: Key, values: Values, covered: float) -> ServeConsumer:
    memory = values.get("memory_byte_seconds")
    return ServeConsumer(
        kind=key[0],
        user=key[1],
        database=key[2],
        id=key[3],
        memory_bytes=None if memory is None or covered <= 0 else memory / covered,
        active_seconds=values.get("active_seconds"),
        read_wait_seconds=values.get("read_wait_seconds"),
        calls=values.get("calls"),
        execution_seconds=values.get("execution_seconds"),
        hits=values.get("hits"),
        reads=values.get("reads"),
        temporary_blocks=values.get("temporary_blocks"),
    )
