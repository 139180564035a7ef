"""Cumulative counters of a server, read without touching a catalog.

The statements call the statistics functions for oids that were looked up before, so a session that samples
counters causes no buffer accesses of its own that would show up in them.

What the numbers mean differs by version: pg_stat_io counts operations from 18 on and blocks before; other
sessions send their counters when idle or at the end of a transaction, at most every second (15 and later;
half a second before), long statements only at their end.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from pgsweep.pg.queries import load
from pgsweep.pg.session.connect import Connection, set_for_session

FRESH_STATISTICS: Final = {"stats_fetch_consistency": "none"}
"""From 15 on: every statement sees current values, not those of the transaction's first access."""

_ONE_MOMENT: Final = {"stats_fetch_consistency": "cache"}
"""From 15 on: all counters of a database are of one moment. With `none` each function reads them anew, and of
two that belong together one can have what a session just sent, and the other not. The server keeps a copy of
each object until the statement ends, which is too much for 100,000 relations."""


_ROUNDS = 5
_LONGEST_ROUND_SECONDS = 1.0
_MANY_ALLOCATIONS = 2000


class Counter(msgspec.Struct, frozen=True):
    """One cumulative value.

    Attributes:
        scope: database, relation, io, bgwriter or checkpointer.
        object: name of the database, oid of the relation, `backend type/object/context` of pg_stat_io, or
            nothing.
    """

    scope: str
    object: str
    name: str
    value: float


def of_databases(rows: Iterable[Counter], databases: Mapping[int, str]) -> list[Counter]:
    """Return counters of databases by name; those of databases that are not known are left out."""
    return [
        Counter("database", databases[int(row.object)], row.name, row.value)
        for row in rows
        if int(row.object) in databases
    ]


def of_writers(rows: Iterable[Counter]) -> list[Counter]:
    """Return the counters of background writer and checkpointer apart; the query has them in one row."""
    counters = []
    for row in rows:
        scope, mark, name = row.name.partition("checkpointer_")
        counters.append(Counter("checkpointer", "", name, row.value) if mark and not scope else row)
    return counters


class DatabaseCounters(NamedTuple):
    """What is counted of one database; `reads` are `fetched` less `hits`."""

    transactions: float
    fetched: float
    hits: float


class IoCounters(NamedTuple):
    """One row of pg_stat_io, of a kind of process, of objects and of use."""

    hits: float
    read_bytes: float
    evictions: float


class Cumulative(msgspec.Struct, frozen=True):
    """The server's counters at one moment.

    Attributes:
        databases: by oid; 0 is what belongs to all of them.
        io: rows of pg_stat_io by their names; None before 16, which does not have it.
        allocations: buffers given out.
        counted: whether the server counts what databases do (`track_counts`).
        checkpoints: timed and requested.
        at_us: when they were read, in microseconds since 2000-01-01 by the server's clock.
        since_us: since when they count, by the same; None where that is not known.
    """

    databases: dict[int, DatabaseCounters]
    io: dict[str, IoCounters] | None
    allocations: float
    counted: bool
    checkpoints: float = 0.0
    at_us: int = 0
    since_us: int | None = None


class CounterReader:
    """Reads counters through one session.

    Args:
        connection: in autocommit mode.
        databases: names by oid; 0 stands for shared relations.
        relation_oids: relations of the session's database.

    Both may be set anew when the catalog has changed.
    """

    def __init__(
        self, connection: Connection, databases: dict[int, str], relation_oids: Iterable[int]
    ) -> None:
        self._connection = connection
        self._version_num = connection.info.server_version
        self.database_names = databases
        self.relation_oids = list(relation_oids)
        self.statements = 0
        if self._version_num >= 150000:
            set_for_session(connection, **(FRESH_STATISTICS if self.relation_oids else _ONE_MOMENT))

    def databases(self) -> list[Counter]:
        """Return the counters of all databases."""
        return of_databases(
            self._rows("count_databases", "database", list(self.database_names)), self.database_names
        )

    def relations(self, oids: list[int] | None = None) -> list[Counter]:
        """Return the counters of all relations that were named, or of these."""
        return list(self.each_relation(oids))

    def each_relation(
        self, oids: list[int] | None = None, names: Container[str] | None = None
    ) -> Iterator[Counter]:
        """Read the same now, and return an iterator over it: of 100,000 relations a list takes 200 MB.

        Args:
            oids: of these relations; of all that were named by default.
            names: these counters; all by default.
        """
        wanted = self.relation_oids if oids is None else oids
        return self._each("count_relations", "relation", wanted, set(map(str, wanted)), names)

    def writers(self) -> list[Counter]:
        """Return the counters of background writer and checkpointer."""
        return of_writers(self._rows("count_writers", "bgwriter", None))

    def io(self) -> list[Counter]:
        """Return pg_stat_io; nothing before 16."""
        return self._rows("count_io", "io", None) if self._version_num >= 160000 else []

    def cumulative(self) -> Cumulative:
        """Return the counters of the server as a whole, with those of every database that there is now."""
        rows = self._connection.execute(load("count_every_database", self._version_num), prepare=True)
        self.statements += 1
        databases, counted, at_us, since_us = {}, True, 0, None
        for oid, transactions, fetched, hits, counted, at_us, since_us in rows:  # noqa: B007 (the last will do)
            databases[oid] = DatabaseCounters(float(transactions), float(fetched), float(hits))
        writers = {counter.name: counter.value for counter in self.writers()}
        io: dict[str, dict[str, float]] = {}
        for counter in self.io():
            io.setdefault(counter.object, {})[counter.name] = counter.value
        return Cumulative(
            databases=databases,
            io={
                name: IoCounters(*(row.get(field, 0.0) for field in IoCounters._fields))
                for name, row in io.items()
            }
            if self._version_num >= 160000
            else None,
            allocations=writers.get("buffers_alloc", 0.0),
            counted=counted,
            checkpoints=writers.get("num_timed", 0.0) + writers.get("num_requested", 0.0),
            at_us=at_us,
            since_us=since_us,
        )

    def settle(self, round_seconds: float = 0.0) -> None:
        """Have this session's own counters sent now, so that what it did so far does not appear later.

        Every statement runs once before: planning one reads catalogs, running it again does not. The buffers
        that this took are reported by the background writer at the end of its round (BgBufferSync, bufmgr.c):
        on a server with little else to do that is waited for, so that they are not counted for the workload.

        Args:
            round_seconds: `bgwriter_delay`; 0 where allocations are of no interest.
        """
        self.databases()
        self.each_relation()
        self.writers()
        self.io()
        send_own(self._connection)
        before = self._allocations()
        for _ in range(_ROUNDS if round_seconds > 0 else 0):
            time.sleep(min(1.25 * round_seconds, _LONGEST_ROUND_SECONDS))
            now = self._allocations()
            # Many: others are at work, and ours do not matter.
            if now == before or now - before > _MANY_ALLOCATIONS:
                return
            before = now

    def _allocations(self) -> float:
        return sum(counter.value for counter in self.writers() if counter.name == "buffers_alloc")

    def _rows(self, query: str, scope: str, oids: list[int] | None) -> list[Counter]:
        return list(self._each(query, scope, oids))

    def _each(
        self,
        query: str,
        scope: str,
        oids: list[int] | None,
        known: Container[str] | None = None,
        wanted: Container[str] | None = None,
    ) -> Iterator[Counter]:
        """Execute a query now; return an iterator over counters: of `known` objects, with `wanted` names."""
        text = load(query, self._version_num)
        self.statements += 1
        cursor = self._connection.execute(text, None if oids is None else [oids], prepare=True)
        names = [column.name for column in cursor.description or []]
        labelled = names.index("object") if "object" in names else None
        columns = [
            (number, name)
            for number, name in enumerate(names)
            if number != labelled and (wanted is None or name in wanted)
        ]
        return (
            Counter(scope, label, name, float(row[number]))
            for row in cursor
            for label in ("" if labelled is None else str(row[labelled]),)
            if known is None or label in known
            for number, name in columns
            if row[number] is not None
        )


def send_own(connection: Connection) -> None:
    """Have a session's own counters sent now; else it does so once a second, or later."""
    version_num = connection.info.server_version
    if version_num < 150000:
        # pgstat_report_stat sends at most every 500 ms (PGSTAT_STAT_INTERVAL, pgstat.c of 14); the collector
        # then needs some time.
        time.sleep(0.6)
    connection.execute(load("settle", version_num))
    if version_num < 150000:
        time.sleep(0.1)
