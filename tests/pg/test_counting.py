"""Sums of counters over time: never negative, never falling, and right, whatever happens to the server."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgsweep.cache.top.live import ServerCounters, not_counted
from pgsweep.pg.catalog.counters import CounterReader, Cumulative, DatabaseCounters, IoCounters
from pgsweep.pg.catalog.counting import Counting, Reading
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.residency.access import opened
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, promote, standby_of

BLOCK = 8192


class ModelServer:
    """What a server counts, and what is known of it: a model of pgstat.c.

    Attributes:
        done: all hits and reads of shared_buffers, of whatever database.
        unseen: those that no later reading can show: of a database that was dropped, before a reset.
    """

    def __init__(self, *, has_io: bool) -> None:
        self.has_io = has_io
        self.clock = self.started = self.since = 1
        self.databases: dict[int, list[float]] = {0: [0, 0, 0], 1: [0, 0, 0]}
        self.io: dict[str, list[float]] = {}
        self.oid = 1
        self.done = 0.0
        self.since_look: dict[int, float] = {}
        self.lost = 0.0
        self.resets = 0
        self.open: list[tuple[int, int, int]] = []

    def cumulative(self) -> Cumulative:
        self.since_look.clear()
        self.clock += 1
        return Cumulative(
            databases={oid: DatabaseCounters(*map(float, row)) for oid, row in self.databases.items()},
            io={name: IoCounters(*row) for name, row in self.io.items()} if self.has_io else None,
            allocations=0.0,
            counted=True,
            at_us=self.clock,
            since_us=self.since,
        )

    def work(self, oid: int, hits: int, reads: int, *, temporary: bool = False) -> None:
        kind = "temp relation" if temporary else "relation"
        row = self.io.setdefault(f"client backend/{kind}/normal", [0.0, 0.0, 0.0])
        row[0] += hits
        row[1] += reads * BLOCK
        if oid in self.databases:
            mine = self.databases[oid]
            mine[0] += 1
            mine[1] += hits + reads
            mine[2] += hits
        if self.has_io and temporary:
            return
        self.done += hits + reads
        self.since_look[oid] = self.since_look.get(oid, 0.0) + hits + reads

    def lose(self, oids: list[int]) -> None:
        for oid in oids:
            self.lost += self.since_look.pop(oid, 0.0)

    def reset(self) -> None:
        self.resets += 1
        self.lose(list(self.since_look))
        self.databases = {oid: [0, 0, 0] for oid in self.databases}
        self.io = {name: [0.0, 0.0, 0.0] for name in self.io}

    def restart(self, *, crashed: bool) -> None:
        self.clock += 1
        self.started = self.clock
        if crashed:
            self.reset()
            self.since = self.clock


OPERATIONS = st.tuples(
    st.sampled_from(
        ["work", "work", "temporary", "create", "drop", "reset", "reset one", "restart", "crash", "failover",
         "begin", "commit", "look", "look"]
    ),
    st.integers(0, 7),
    st.integers(0, 10_000),
    st.integers(0, 10_000),
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.booleans(), st.lists(OPERATIONS, max_size=60))
def test_sums_never_fall_and_are_right_in_a_model(has_io: bool, operations: list[Any]) -> None:
    server, counting = ModelServer(has_io=has_io), Counting()
    counting.begin(server.started)
    first = counting.add(server.cumulative(), at=0.0, hand_buffers=None, block_bytes=BLOCK)
    assert (first.hits, first.reads) == (0.0, 0.0)
    last: Reading = first
    unwatched = 0.0
    elsewhere = 0
    for number, (what, place, hits, reads) in enumerate([*operations, ("look", 0, 0, 0)], 1):
        oid = sorted(server.databases)[place % len(server.databases)]
        if what in ("work", "temporary"):
            server.work(oid, hits, reads, temporary=what == "temporary")
        elif what == "begin":
            server.open.append((oid, hits, reads))
        elif what == "commit" and server.open:
            # A long statement: all that it did is counted now.
            server.work(*server.open.pop())
        elif what == "create":
            server.oid += 1
            server.databases[server.oid] = [0, 0, 0]
        elif what == "drop" and oid > 1:
            server.lose([] if has_io else [oid])
            del server.databases[oid]
        elif what == "reset one" and not has_io:
            server.resets += 1
            server.lose([oid])
            server.databases[oid] = [0, 0, 0]
        elif what == "reset":
            server.reset()
        elif what in ("restart", "crash"):
            # What is done before the first session finds it is counted, too.
            server.restart(crashed=what == "crash")
            server.work(oid, hits, reads)
            counting.begin(server.started)
        elif what == "failover":
            # To one that ran already: nobody watches from the last reading to the first one after it.
            unwatched += sum(server.since_look.values())
            elsewhere -= 1
            server.started = server.since = elsewhere
            server.databases = {key: [hits, hits + reads, reads] for key in server.databases}
            server.io = {name: [float(hits), float(reads), 0.0] for name in server.io}
            counting.begin(server.started)
            now = counting.add(server.cumulative(), at=number, hand_buffers=None, block_bytes=BLOCK)
            assert (now.hits, now.reads) == (last.hits, last.reads), "of another server nothing is taken over"
        elif what == "look":
            now = counting.add(server.cumulative(), at=number, hand_buffers=None, block_bytes=BLOCK)
            assert now.hits >= last.hits
            assert now.reads >= last.reads
            assert now.transactions >= last.transactions
            last = now
    right = server.done - server.lost - unwatched
    # A reset that was outgrown before the next reading cannot be seen: then some of it is missing.
    found = last.hits + last.reads
    assert found == pytest.approx(right) if not server.resets else found <= right + 1e-6


def test_what_a_postmaster_counts_goes_on_with_the_next_one() -> None:
    """Bytes from disk, and the clock hand: they begin at 0 with each start of the server."""
    server, counting = ModelServer(has_io=True), Counting()

    def look() -> None:
        counting.begin(server.started)
        counting.add(server.cumulative(), at=0.0, hand_buffers=None, block_bytes=BLOCK)

    look()
    assert counting.of_postmaster("bytes", 500) == 0, "before it was watched"
    assert counting.of_postmaster("bytes", 700) == 200
    server.restart(crashed=True)
    look()
    assert counting.of_postmaster("bytes", 30) == 230
    server.started = 0  # a failover to one that ran already
    look()
    assert counting.of_postmaster("bytes", 9000) == 230


def make_table(conninfo: str) -> int:
    """Make a table, and return its blocks."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE TABLE page (id int, filler text) WITH (autovacuum_enabled = off)")
        connection.execute("INSERT INTO page SELECT g, repeat('x', 900) FROM generate_series(1, 4000) g")
        connection.execute("VACUUM ANALYZE page")
        row = connection.execute("SELECT pg_relation_size('page') / 8192").fetchone()
    assert row is not None
    return int(row[0])


SCANS = 40
SLACK = 6_000
"""Accesses of catalogs that an operation of the test takes at most, with those of CREATE DATABASE."""


class Watching:
    """Sums of a server, over its restarts."""

    def __init__(self, conninfo: str) -> None:
        self.counting = Counting()
        self.conninfo = conninfo
        self.last: Reading | None = None
        self.stack = contextlib.ExitStack()
        self.reopen(conninfo)

    def reopen(self, conninfo: str) -> None:
        self.stack.close()
        access = self.stack.enter_context(opened(conninfo, "sql", pool_needed=False))
        self.session = access.connection
        self.counters = ServerCounters(access, self.counting)
        self.look()

    def look(self) -> float:
        now = self.counters.read(at=0.0, hand_buffers=None)
        if self.last is not None:
            assert now.hits >= self.last.hits
            assert now.reads >= self.last.reads
            assert now.transactions >= self.last.transactions
        self.last = now
        return now.hits + now.reads

    def gained(self, work: Callable[[], None], least: float) -> None:
        """Check what work adds: as much as it takes, and little more."""
        # A session sends its last counters after its client has gone.
        others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        wait_until(lambda: self.session.execute(others).fetchone() == (1,))
        if self.session.info.server_version < 150000:
            time.sleep(1.2)  # the collector's file may be half a second old (PGSTAT_STAT_INTERVAL, pgstat.c)
        before = self.look()
        work()
        wait_until(lambda: self.look() - before >= least)
        assert self.look() - before <= least + SLACK


def scanned(conninfo: str, begin: str = "", end: str = "") -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        if begin:
            connection.execute(begin.encode())
        connection.execute("SET max_parallel_workers_per_gather = 0")
        for _ in range(SCANS):
            connection.execute("SELECT count(*) FROM page")
        if end:
            connection.execute(end.encode())


@pytest.fixture
def watched(bindir: Path | None) -> Iterator[Cluster]:
    with Cluster.create(bindir, {**PRIMARY, "autovacuum": "off", "shared_buffers": "16MB"}) as cluster:
        yield cluster


def statement(conninfo: str, text: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(text.encode())


def test_sums_of_a_server_never_fall_and_are_right(watched: Cluster) -> None:
    """Databases that come and go, resets, temporary tables, long transactions, in any order."""
    blocks = make_table(watched.conninfo())
    watching = Watching(watched.conninfo())
    choice = random.Random(43)
    work = blocks * SCANS
    made: list[str] = []
    operations = ["create", "create", "drop", "reset", "reset all", "scan", "temporary", "long"]
    choice.shuffle(operations)
    with contextlib.closing(watching.stack):
        for number, operation in enumerate(operations):
            if operation == "create":
                name = f"shop{number}"
                statement(watched.conninfo(), f"CREATE DATABASE {name} TEMPLATE template0")
                make_table(watched.conninfo(name))
                watching.look()
                watching.gained(partial(scanned, watched.conninfo(name)), work)
                made.append(name)
            elif operation == "drop" and made:
                before = watching.look()
                statement(watched.conninfo(), f"DROP DATABASE {made.pop()}")
                assert watching.look() - before < SLACK
            elif operation == "reset":
                statement(watched.conninfo(), "SELECT pg_stat_reset()")
            elif operation == "reset all":
                statement(watched.conninfo(), "SELECT pg_stat_reset_shared('bgwriter')")
                if watched.version_num >= 160000:
                    statement(watched.conninfo(), "SELECT pg_stat_reset_shared('io')")
            elif operation == "temporary" and watched.version_num >= 160000:
                begin = "CREATE TEMPORARY TABLE page AS SELECT * FROM public.page"
                watching.gained(partial(scanned, watched.conninfo(), begin), 0)
            elif operation == "long":
                watching.gained(lambda: scanned(watched.conninfo(), "BEGIN", "COMMIT"), work)
            watching.gained(lambda: scanned(watched.conninfo()), work)


def test_sums_go_on_over_a_restart_a_crash_and_a_failover(watched: Cluster) -> None:
    """What is done before the server is watched again is counted; nothing is taken from another server."""
    work = make_table(watched.conninfo()) * SCANS
    with contextlib.ExitStack() as stack:
        watching = Watching(watched.conninfo())
        stack.callback(watching.stack.close)
        watching.gained(lambda: scanned(watched.conninfo()), work)
        # A session that is lost loses nothing.
        before = watching.look()
        scanned(watched.conninfo())
        watching.reopen(watched.conninfo())
        wait_until(lambda: watching.look() - before >= work)
        for immediately in (False, True):
            before = watching.look()
            watched.stop(immediately=immediately)
            watched.start()
            # The cold reads, before it is watched again.
            scanned(watched.conninfo())
            watching.reopen(watched.conninfo())
            least = before + work
            wait_until(partial(lambda least: watching.look() >= least, least))
            assert watching.look() <= least + SLACK
            watching.gained(lambda: scanned(watched.conninfo()), work)
        standby = stack.enter_context(contextlib.closing(standby_of(watched)))
        scanned(standby.conninfo())
        before = watching.look()
        watched.stop(immediately=True)
        promote(standby)
        watching.reopen(standby.conninfo())
        assert watching.look() - before < SLACK
        watching.gained(lambda: scanned(standby.conninfo()), work)
        watched.start()


def test_before_16_what_is_not_counted_is_said(server: Cluster) -> None:
    """`track_counts = off`: the hits are absent, not 0; and temporary tables are among them."""
    with contextlib.ExitStack() as stack:
        access = stack.enter_context(opened(server.conninfo(), "sql", pool_needed=False))
        counters = ServerCounters(access)
        reading = counters.read(at=0.0, hand_buffers=None)
        assert reading.counted
        words = [entry.what for entry in not_counted(access.server, reading)]
        assert words == ([] if server.version_num >= 160000 else ["what temporary tables use"])
        access.connection.execute("SET track_counts = off")
        reading = counters.read(at=1.0, hand_buffers=None)
        assert reading.counted == (server.version_num >= 160000)
        if not reading.counted:
            [entry] = not_counted(access.server, reading)
            assert "track_counts is off" in entry.why


def test_counters_that_are_not_wanted_are_not_made(wheel18: Cluster) -> None:
    """Of 100,000 relations there are 1.3 million, of which a plan to warm needs a third."""
    with connect(wheel18.conninfo()) as connection:
        oids = [oid for (oid,) in connection.execute("SELECT oid::int8 FROM pg_catalog.pg_class LIMIT 50")]
        reader = CounterReader(connection, {}, oids)
        every = list(reader.each_relation())
        some = list(reader.each_relation(oids[:7], {"blks_hit", "scans"}))
    assert reader.statements == 2
    assert {counter.object for counter in every} == set(map(str, oids))
    assert len({counter.name for counter in every}) > 10
    wanted = [
        (counter.object, counter.name)
        for counter in every
        if counter.name in ("blks_hit", "scans") and int(counter.object) in oids[:7]
    ]
    assert [(counter.object, counter.name) for counter in some] == wanted
    assert len(wanted) == 14
