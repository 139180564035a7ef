"""Who uses a server: users, databases, statements and backends, gathered for intervals of one minute.

What executes is read with each sample, from pg_stat_activity: a session that executes something at a sample
is taken to have done so since the last. Reads, hits and calls come from pg_stat_statements where the session
may use it, and memory from what `memory` reads. Of each kind the 20 with the largest shares are kept by name,
the rest as `other`.

Each of the two statements may take half a percent of one backend's time; where it would take more, it runs
more rarely.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Final

from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError
from pgsweep.pg.catalog.consumers import Statement, Statements, read_active
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.session.connect import Connection
from pgsweep.records.cache import Missing
from pgsweep.records.memory import MemoryProcess
from pgsweep.records.rollup import FOLDED
from pgsweep.records.top import TopSample
from pgsweep.ui.kit.names import relation_name

INTERVAL_SECONDS: Final = 60.0
KEPT: Final = 20
"""How many of each kind are kept by name."""

KINDS: Final = ("user", "database", "statement", "backend")
COUNTED: Final = "counted"
"""Kind of the rows with what pg_stat_database counts: they are a chart of their own."""

POOLED: Final = "relation"
"""Kind of the rows with what relations have in the pool, in `memory_byte_seconds`: a chart of its own too."""

COLUMNS: Final = (
    "active_seconds",
    "read_wait_seconds",
    "calls",
    "execution_seconds",
    "hits",
    "reads",
    "temporary_blocks",
    "memory_byte_seconds",
)
"""What is kept of each; all are sums."""

_RANKED: Final = ("reads", "active_seconds", "read_wait_seconds", "memory_byte_seconds")
"""The columns whose shares decide who is kept by name."""

_SHARE: Final = 0.005
_COSTS_KEPT: Final = 5
_LONGEST_STEP_SECONDS: Final = 60.0
_AGAIN_SECONDS: Final = 600.0
"""Seconds until pg_stat_statements is tried again after it could not be used."""

_MOST_TEXTS: Final = 500
_SESSIONS: Final = "what others execute"
_EVICTED: Final = "statements that were given up"
HIDDEN: Final = "(not visible)"
_DROPPED: Final = "(dropped)"
_NOBODY: Final = "(autovacuum)"

Key = tuple[str, str, str, str]
"""Kind, user, database, id."""

Values = dict[str, float]
OTHER_ID: Final = "other"


def counted_key(database: str) -> Key:
    """Return the key of what the server itself counts of a database, whoever executed it."""
    return (COUNTED, "", database, "")


def pooled(sample: TopSample, seconds: float) -> dict[Key, Values]:
    """Return what the relations of a sample have in the pool for some seconds, and what all others have."""
    rows: dict[Key, Values] = {}
    left = sample.pool.used_bytes
    for relation in sample.relations:
        # How many the folded catalogs are changes all the time.
        folded = relation.kind == FOLDED
        name = f"({FOLDED})" if folded else relation_name(relation, relation.database)
        key = (POOLED, "", relation.database, f"public.{name}" if name == OTHER_ID else name)
        row = rows.setdefault(key, {"memory_byte_seconds": 0.0})
        row["memory_byte_seconds"] += relation.shared_buffers_bytes * seconds
        left -= relation.shared_buffers_bytes
    return {**rows, (POOLED, "", "", OTHER_ID): {"memory_byte_seconds": max(0, left) * seconds}}


def total_key() -> Key:
    """Return the key of the sum over all."""
    return ("total", "", "", "")


class Consumers:
    """Gathers what the consumers of one server use, by a session that others use too.

    Args:
        connection: the session.
        texts: the normalised texts of statements are wanted.
    """

    def __init__(self, connection: Connection, *, texts: bool) -> None:
        self._connection = connection
        self._wants_texts = texts
        self._rows: dict[Key, Values] = {}
        self._began = self._sampled = time.monotonic()
        self._costs: dict[str, deque[float]] = {}
        self._due: dict[str, float] = {}
        self._statements: Statements | None = None
        self._last: dict[tuple[int, int, int | None], Statement] | None = None
        self._evicted: int | None = None
        self._memory: dict[Key, float] | None = None
        self._grant: str | None = None
        self.missing: list[Missing] = []
        self.texts: dict[int, str] = {}

    def sample(self) -> None:
        """Add what is executed now."""
        if self._last is None:
            self._read_statements()  # what they have so far is where the first interval begins
        if not self._may("activity", 0.0):
            return
        begin = time.monotonic()
        try:
            found = read_active(self._connection)
        except ConnectionFailed:
            raise
        except PgsweepError as error:
            self._lacks("activity", error)
            return
        now = time.monotonic()
        self._spent("activity", now - begin)
        step = min(now - self._sampled, _LONGEST_STEP_SECONDS)
        self._sampled = now
        for active in found:
            user, database = active.user or _NOBODY, active.database or ""
            unknown = _NOBODY if active.user is None else HIDDEN
            query = unknown if active.query_id is None else str(active.query_id)
            waited = step if active.reads else 0.0
            values = {"active_seconds": step, "read_wait_seconds": waited}
            for key in _keys(user, database, query, str(active.pid)):
                self._add(key, values)
        self._add(total_key(), {"active_seconds": 0.0, "read_wait_seconds": 0.0})

    def remember_memory(self, processes: list[MemoryProcess]) -> None:
        """Take over the memory of the server's processes, as it was read last."""
        memory: dict[Key, float] = {}
        for process in processes:
            if process.kind != "client backend" or process.own or process.cost_bytes is None:
                continue
            user, database = process.user or HIDDEN, process.database or ""
            for key in _keys(user, database, None, str(process.server_pid)):
                memory[key] = memory.get(key, 0.0) + process.cost_bytes
        self._memory = memory

    def remember_hidden(self, sessions: int) -> None:
        """Set the number of sessions whose activity the server does not show."""
        self.missing = [missing for missing in self.missing if missing.what != _SESSIONS]
        if sessions:
            if self._grant is None:
                self._grant = grant_to_session(self._connection, "pg_monitor")
            why = f"of {sessions} sessions: the role is not a member of pg_monitor, or they track no activity"
            self.missing.append(Missing(what=_SESSIONS, why=why, enable=self._grant))

    def interval(self) -> tuple[float, dict[Key, Values]] | None:
        """Return the length and the consumers of the interval that is over; None before its end."""
        now = time.monotonic()
        seconds = now - self._began
        if seconds < INTERVAL_SECONDS:
            return None
        self._read_statements()
        if self._memory is not None:
            self._add(total_key(), {"memory_byte_seconds": 0.0})
            for key, size_bytes in self._memory.items():
                self._add(key, {"memory_byte_seconds": size_bytes * seconds})
        rows, self._rows = self._rows, {}
        self._began = now
        kept = largest(rows)
        if self._wants_texts:
            self._read_texts(kept)
        return seconds, kept

    def _read_statements(self) -> None:
        if not self._may("pg_stat_statements", INTERVAL_SECONDS / 2):
            return
        begin = time.monotonic()
        try:
            if self._statements is None:
                self._statements = Statements(self._connection)
            found, (evicted, most) = self._statements.read(), self._statements.evicted()
        except ConnectionFailed:
            raise
        except PgsweepError as error:
            self._statements = self._last = None
            self._lacks("pg_stat_statements", error)
            return
        self._spent("pg_stat_statements", time.monotonic() - begin)
        self.missing = [
            missing for missing in self.missing if missing.what not in ("pg_stat_statements", _EVICTED)
        ]
        if self._evicted is not None and evicted > self._evicted:
            times = evicted - self._evicted
            why = f"pg_stat_statements was full {times} times since it was read last: users and statements "
            why += f"have used more than is shown; pg_stat_statements.max is {most}"
            self.missing.append(Missing(what=_EVICTED, why=why))
        self._evicted = evicted
        # Names change while the counters go on: by oid nothing is counted twice.
        now = {(s.user_oid, s.database_oid, s.query_id): s for s in found}
        for key, last in (self._last or {}).items():
            if key in now:
                user, database = now[key].user or last.user, now[key].database or last.database
                now[key] = now[key]._replace(user=user, database=database)
        if self._last is not None:
            self._add(total_key(), dict.fromkeys(Statement._fields[3:7], 0.0) | {"temporary_blocks": 0.0})
            for key, statement in now.items():
                values = gained(self._last.get(key), statement)
                if values:
                    query = HIDDEN if key[2] is None else str(key[2])
                    user, database = statement.user or _DROPPED, statement.database or _DROPPED
                    for each in _keys(user, database, query, None):
                        self._add(each, values)
        self._last = now

    def _read_texts(self, kept: Mapping[Key, Values]) -> None:
        ids = {
            int(query)
            for kind, _, _, query in kept
            if kind == "statement" and query.removeprefix("-").isdigit()
        }
        if self._statements is None or not (wanted := ids - self.texts.keys()):
            return
        try:
            found = self._statements.texts(wanted)
        except ConnectionFailed:
            raise
        except PgsweepError:
            return  # the ids are shown
        if len(self.texts) + len(found) > _MOST_TEXTS:
            self.texts = {}
        self.texts = {**self.texts, **found}

    def _add(self, key: Key, values: Values) -> None:
        row = self._rows.setdefault(key, {})
        for name, value in values.items():
            row[name] = row.get(name, 0.0) + value

    def _may(self, name: str, pause: float) -> bool:
        """Return whether a statement is due: after the pause, and at the share of time that it may take."""
        costs = self._costs.get(name)
        least = max(pause, min(costs) / _SHARE) if costs else 0.0
        return time.monotonic() >= self._due.get(name, 0.0) + least

    def _spent(self, name: str, seconds: float) -> None:
        self._costs.setdefault(name, deque(maxlen=_COSTS_KEPT)).append(seconds)
        self._due[name] = time.monotonic()

    def _lacks(self, name: str, error: PgsweepError) -> None:
        self._due[name] = time.monotonic() + _AGAIN_SECONDS
        self._costs.pop(name, None)
        why = error.message + (f" ({error.cause})" if error.cause else "")
        enable = error.hint if isinstance(error, MissingAbility) else None
        self.missing = [missing for missing in self.missing if missing.what != name]
        self.missing.append(Missing(what=name, why=why, enable=enable))


def gained(before: Statement | None, now: Statement) -> Values:
    """Return what a statement's counters gained; all that they have where it is new or was reset."""
    if before is None or now.calls < before.calls:
        before = now._replace(calls=0.0, execution_seconds=0.0, hits=0.0, reads=0.0, temporary=0.0)
    values = {
        "calls": now.calls - before.calls,
        "execution_seconds": now.execution_seconds - before.execution_seconds,
        "hits": now.hits - before.hits,
        "reads": now.reads - before.reads,
        "temporary_blocks": now.temporary - before.temporary,
    }
    return {name: max(0.0, value) for name, value in values.items()} if any(values.values()) else {}


def _keys(user: str, database: str, query: str | None, pid: str | None) -> list[Key]:
    keys = [("user", user, "", ""), ("database", "", database, ""), total_key()]
    if query is not None:
        keys.append(("statement", user, database, query))
    if pid is not None:
        keys.append(("backend", user, database, pid))
    return keys


def largest(rows: Mapping[Key, Values]) -> dict[Key, Values]:
    """Return of each kind those with the largest shares of what is ranked, and the sum of all others."""
    found: dict[Key, Values] = {}
    for kind in (*KINDS, COUNTED, POOLED, "total"):
        own = {key: values for key, values in rows.items() if key[0] == kind}
        order = by_share({key: values for key, values in own.items() if key[3] != OTHER_ID})
        other: Values = dict(own.get((kind, "", "", OTHER_ID), {}))
        for number, key in enumerate(order):
            if number < KEPT:
                found[key] = own[key]
                continue
            for name, value in own[key].items():
                other[name] = other.get(name, 0.0) + value
        if other:
            found[kind, "", "", OTHER_ID] = other
    return found


def by_share(rows: Mapping[Key, Values]) -> list[Key]:
    """Return the keys, the largest sum of shares first."""
    sums = {name: sum(values.get(name, 0.0) for values in rows.values()) for name in _RANKED}
    weights = {
        key: sum(values.get(name, 0.0) / total for name, total in sums.items() if total > 0)
        for key, values in rows.items()
    }
    return sorted(rows, key=lambda key: (-weights[key], key))
