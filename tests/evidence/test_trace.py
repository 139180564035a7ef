"""Tracing a real server: the probes count what the server counts, and nothing outlives the process."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep._native import Tracer
from pgsweep.evidence.schema import FLAG_PINNED, FLAG_SCAN
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import own_server_files
from tests.fix_process import wait_until
from tests.fix_trace import EXTEND, HIT, MISS, can_trace, database, file_of, fill, tracing

pytestmark = can_trace


def counters(cluster: Cluster, session: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return hits and reads of a session's database, after the session has reported its own.

    The first time a session looks up what it needs for that: ask once before what is compared.
    """
    if cluster.version_num >= 150000:
        session.execute("SELECT pg_stat_force_next_flush()")
    else:
        # A session sends its counts when a statement ends half a second after it last did (pgstat.c,
        # PGSTAT_STAT_INTERVAL). Nothing shows whether it has.
        time.sleep(0.6)
        session.execute("SELECT 1")
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        if cluster.version_num < 150000:
            wait_for_collector(connection)
        row = connection.execute(
            "SELECT blks_hit, blks_read FROM pg_stat_database WHERE datname = %s", (session.info.dbname,)
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def wait_for_collector(connection: psycopg.Connection[Any]) -> None:
    """Wait until the statistics collector, which there is before 15, shows what it has been sent by now.

    It writes its files when a session asks for newer ones, and then has all that was sent before.
    """
    sent = connection.execute("SELECT clock_timestamp()").fetchone()
    wait_until(
        lambda: connection.execute("SELECT pg_stat_get_snapshot_timestamp() > %s", sent).fetchone() == (True,)
    )


@pytest.mark.parametrize("attachment", ["link", "perf_event"])
def test_hits_and_misses_are_those_that_the_server_counts(server: Cluster, attachment: str) -> None:
    with database(server, "counted") as connection:
        fill(connection)
        counters(server, connection)
        before = counters(server, connection)
        with tracing(server, attachment=attachment) as trace:
            for i in range(3000):
                connection.execute(
                    "SELECT filler FROM t WHERE i = %s", (1 + i * 7919 % 60_000,), prepare=True
                )
            after = counters(server, connection)
        assert trace.tracer.attachment() == attachment
        mine = trace.of(connection.info.backend_pid)
        hits, misses = (int(np.count_nonzero(mine["kind"] == kind)) for kind in (HIT, MISS))
    # Statistics count accesses by relation: those to shared catalogs belong to another row.
    shared = int(np.count_nonzero(mine["db"] == 0))
    assert misses > 200
    assert after[0] - before[0] == hits - shared
    assert after[1] - before[1] == misses
    assert trace.tracer.lost() == 0


@pytest.mark.parametrize("states", [True, False])
def test_states_of_buffers_are_read_only_where_they_are_asked_for(server: Cluster, states: bool) -> None:
    """A page that is accessed twice in a row was not pinned meanwhile; only its buffer's state shows that."""
    with database(server, "stated") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS i")
        connection.execute("PREPARE once AS SELECT i FROM t WHERE ctid = '(0,1)'")
        for _ in range(6):
            connection.execute("EXECUTE once")
        with tracing(server, buffer_states=states) as trace:
            for _ in range(200):
                connection.execute("EXECUTE once")
        mine = trace.of(connection.info.backend_pid, rel=file_of(connection, "t"), kind=HIT)
    pinned = int(np.count_nonzero(mine["flags"] & FLAG_PINNED))
    assert len(mine["kind"]) >= 200
    assert pinned < 5 if states else pinned > 150


def test_sessions_that_scan_side_by_side_are_counted_as_the_server_counts_them(server: Cluster) -> None:
    """Bitmap scans by four sessions in a pool too small for them: every access is there, and counted alike.

    Each scans its own part of the table: two that want one block at the same moment are the exception that
    docs/concepts/tracing.md describes.
    """
    with database(server, "beside") as connection:
        fill(connection, rows=160_000)
        counters(server, connection)
        before = counters(server, connection)
        with tracing(server) as trace, ExitStack() as closing:
            sessions = [
                closing.enter_context(psycopg.connect(server.conninfo("beside"), autocommit=True))
                for _ in range(4)
            ]

            def scan(number: int) -> None:
                session = sessions[number]
                session.execute("SET enable_indexscan = off; SET enable_seqscan = off")
                for i in range(300):
                    first = 1 + 40_000 * number + i * 7919 % 37_000
                    session.execute(
                        "SELECT count(filler) FROM t WHERE i BETWEEN %s AND %s", (first, first + 2000)
                    )

            threads = [threading.Thread(target=scan, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            pids = [session.info.backend_pid for session in sessions]
            for session in sessions:
                session.close()
            wait_until_gone(connection, pids)
            after = counters(server, connection)
        pids.append(connection.info.backend_pid)
        table = trace.tables["accesses"]
        own = np.isin(table["pid"], pids) & (table["db"] != 0)
        hits, misses = (int(np.count_nonzero(table["kind"][own] == kind)) for kind in (HIT, MISS))
    accesses, reads = sum(after) - sum(before), after[1] - before[1]
    assert reads > 5000
    assert hits + misses == accesses
    assert abs(misses - reads) <= 0.002 * reads
    assert trace.tracer.lost() == 0


def test_sessions_that_come_and_go_are_counted_from_their_first_access(bindir: Path | None) -> None:
    """A new process has not touched the buffers' descriptors, so that a probe cannot read them there."""
    with (
        Cluster.create(bindir, {"shared_buffers": "128MB", "autovacuum": "off"}) as cluster,
        database(cluster, "brief") as connection,
    ):
        fill(connection, rows=200_000)
        counters(cluster, connection)
        before = counters(cluster, connection)
        with tracing(cluster) as trace:
            pids = [connection.info.backend_pid]
            for i in range(30):
                with psycopg.connect(cluster.conninfo("brief"), autocommit=True) as session:
                    pids.append(session.info.backend_pid)
                    for j in range(20):
                        session.execute(
                            "SELECT filler FROM t WHERE i = %s", (1 + (20 * i + j) * 7919 % 200_000,)
                        )
            wait_until_gone(connection, pids[1:])
            after = counters(cluster, connection)
        table = trace.tables["accesses"]
        own = np.isin(table["pid"], pids) & (table["db"] != 0)
    assert np.count_nonzero(own) == sum(after) - sum(before)
    assert trace.tracer.lost() == 0


def wait_until_gone(connection: psycopg.Connection[Any], pids: list[int]) -> None:
    """Wait until sessions have ended, which is when they have sent all their counts; see `counters`."""
    there = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)"
    wait_until(lambda: connection.execute(there, (pids,)).fetchone() == (0,))


def test_the_hot_probes_sit_on_emulated_instructions(server: Cluster) -> None:
    with tracing(server) as trace:
        probes = {function: emulated for _, function, _, emulated in trace.tracer.probes()}
    assert probes["BufTableLookup"]
    assert probes["BufTableInsert"]
    assert probes["StrategyGetBuffer"]


def test_the_breakpoints_of_another_tracer_are_not_taken_for_code(server: Cluster) -> None:
    """Two clusters run the same file, and the probes of the first are live when the second is traced."""
    with (
        Cluster.create(server.bindir, {"shared_buffers": "16MB", "autovacuum": "off"}) as other,
        tracing(other) as first,
        tracing(server) as second,
    ):
        assert second.tracer.probes() == first.tracer.probes()


def test_another_cluster_of_the_same_binary_is_not_traced(server: Cluster) -> None:
    with (
        Cluster.create(server.bindir, {"shared_buffers": "16MB", "autovacuum": "off"}) as other,
        tracing(other) as trace,
        database(server, "elsewhere") as connection,
    ):
        fill(connection, 5000)
        unwanted_pid = connection.info.backend_pid
        with psycopg.connect(other.conninfo(), autocommit=True) as wanted:
            wanted.execute("SELECT count(*) FROM pg_class")
            pid = wanted.info.backend_pid
    pids = set(trace.tables["accesses"]["pid"].tolist())
    assert pid in pids
    assert unwanted_pid not in pids


def test_the_kernel_leaves_out_other_databases(server: Cluster) -> None:
    with database(server, "wanted") as connection, database(server, "unwanted") as other:
        row = connection.execute("SELECT oid FROM pg_database WHERE datname = 'wanted'").fetchone()
        assert row is not None
        with tracing(server, databases=(row[0],)) as trace:
            for session in (connection, other):
                fill(session, 2000)
    assert set(trace.tables["accesses"]["db"].tolist()) == {row[0]}


def test_prefetching_is_no_access(debian15: Cluster) -> None:
    with database(debian15, "prefetch") as connection:
        fill(connection)
        before = counters(debian15, connection)
        with tracing(debian15) as trace:
            connection.execute("SET effective_io_concurrency = 64")
            connection.execute("SET enable_seqscan = off")
            connection.execute("SET enable_indexscan = off")
            plan = connection.execute(
                "EXPLAIN SELECT count(filler) FROM t WHERE i % 3 = 0 AND i < 40000"
            ).fetchall()
            assert any("Bitmap Heap Scan" in line for (line,) in plan)
            connection.execute("SELECT count(filler) FROM t WHERE i % 3 = 0 AND i < 40000")
            after = counters(debian15, connection)
        mine = trace.of(connection.info.backend_pid)
        shared = int(np.count_nonzero(mine["db"] == 0))
    assert len(mine["kind"]) > 1000
    assert abs(sum(after) - sum(before) - (len(mine["kind"]) - shared)) <= 3


def test_strategies_of_scan_vacuum_and_load(server: Cluster) -> None:
    with database(server, "rings") as connection:
        fill(connection)
        connection.execute("SET max_parallel_workers_per_gather = 0")
        # The visibility map may allow an index-only scan, or not: it depends on what other sessions do.
        connection.execute("SET enable_indexonlyscan = off")
        connection.execute("DELETE FROM t WHERE i % 10 = 0")
        connection.execute("CHECKPOINT")
        table, index = file_of(connection, "t"), file_of(connection, "t_i_idx")
        pid = connection.info.backend_pid
        with tracing(server) as scan:
            connection.execute("SELECT count(*) FROM t")
        with tracing(server) as vacuum:
            connection.execute("VACUUM t")
        with tracing(server) as load:
            connection.execute("CREATE TABLE u AS SELECT * FROM t")
            copied = file_of(connection, "u")
    scanned = scan.of(pid, rel=table, fork=0)
    in_order = scanned["block"][(scanned["flags"] & FLAG_SCAN) != 0]
    assert len(in_order) > 1500
    assert np.all(np.diff(in_order.astype(np.int64)) == 1)
    assert set(scanned["strategy"][(scanned["flags"] & FLAG_SCAN) != 0].tolist()) == {1}
    assert scan.tables["scans"]["allow_strategy"].any()
    for relation in (table, index):
        vacuumed = vacuum.of(pid, rel=relation, fork=0)
        assert np.mean(vacuumed["strategy"] == 3) > 0.95
    assert not np.any(vacuum.of(pid, rel=table, fork=1)["strategy"])
    written = load.of(pid, rel=copied, fork=0)
    assert np.count_nonzero(written["kind"] == EXTEND) > 1000
    assert set(written["strategy"][written["kind"] == EXTEND].tolist()) == {2}
    read = load.of(pid, rel=table, fork=0)
    assert not np.any(read["strategy"] == 2)


def test_drop_and_truncate_are_noted(server: Cluster) -> None:
    with database(server, "drops") as connection:
        fill(connection, 3000)
        file = file_of(connection, "t")
        with tracing(server) as trace:
            connection.execute("DROP TABLE t")
    assert file in trace.tables["drops"]["rel"].tolist()


def test_lost_events_are_counted(server: Cluster) -> None:
    with database(server, "lossy") as connection:
        fill(connection)
        with tracing(server, ring_bytes=4096) as trace:
            connection.execute("SET enable_seqscan = off")
            connection.execute("SELECT count(filler) FROM t WHERE i > 0")
    counts = trace.tracer.counts()
    assert trace.tracer.lost() > 100
    assert trace.tracer.lost() + counts["events"] > 1500


def test_a_tracer_may_be_stopped_and_polled_by_several_threads_at_once(server: Cluster) -> None:
    with database(server, "stopped") as connection:
        fill(connection, 20_000)
        for _ in range(3):
            stopped_by_two(server, connection)


def stopped_by_two(server: Cluster, connection: psycopg.Connection[Any]) -> None:
    """Trace a statement; poll and stop by several threads at once; all rows are handed out, and no error."""
    tracer = Tracer(
        server.postmaster_pid or 0, server.version_num, databases=[], ring_bytes=1 << 20, attachment="auto"
    )
    errors: list[BaseException] = []
    rows: list[int] = []
    begin = threading.Barrier(4)

    def take(timeout_seconds: float) -> None:
        while (batch := tracer.poll(timeout_seconds)) is not None:
            rows.append(len(batch["accesses"]["kind"]))

    def run(action: Callable[[], object]) -> None:
        begin.wait()
        try:
            action()
        except BaseException as error:
            errors.append(error)

    actions: list[Callable[[], object]] = [lambda: take(0.2), tracer.stop, tracer.stop]
    threads = [threading.Thread(target=run, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    connection.execute("SELECT count(filler) FROM t")
    begin.wait()
    for thread in threads:
        thread.join()
    take(0.0)
    assert not errors
    counts = tracer.counts()
    assert sum(rows) == counts["hits"] + counts["misses"] + counts["extends"] > 0
    assert tracer.unread() == 0


def test_other_threads_run_while_a_tracer_is_dropped(server: Cluster) -> None:
    tracer: Tracer | None = Tracer(
        server.postmaster_pid or 0,
        server.version_num,
        databases=[],
        ring_bytes=1 << 20,
        attachment="perf_event",
    )
    ticks: list[float] = []
    end = threading.Event()

    def tick() -> None:
        while not end.is_set():
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    while not ticks:
        time.sleep(0.001)
    begin = time.monotonic()
    assert tracer is not None
    tracer = None
    took = time.monotonic() - begin
    end.set()
    thread.join()
    # Taking the probes away takes tens of milliseconds, in which the other thread must not stand still.
    during = [moment for moment in ticks if begin < moment < begin + took]
    assert len(during) > 100


def test_nothing_outlives_a_killed_tracer(server: Cluster) -> None:
    script = textwrap.dedent("""
        import sys
        from pgsweep._native import Tracer
        pid, version = map(int, sys.argv[1:3])
        tracer = Tracer(pid, version, databases=[], ring_bytes=1 << 20, attachment=sys.argv[3])
        print("live", flush=True)
        sys.stdin.read()
    """)
    with own_server_files(server.bindir) as bindir, Cluster.create(bindir) as cluster:
        for attachment in ("link", "perf_event"):
            assert breakpoints(cluster) == 0
            arguments = [str(cluster.postmaster_pid), str(cluster.version_num), attachment]
            with subprocess.Popen(
                [sys.executable, "-c", script, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == "live\n"
                assert breakpoints(cluster) > 2
                child.send_signal(signal.SIGKILL)
                child.wait()
            deadline = time.monotonic() + 10
            while breakpoints(cluster) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert breakpoints(cluster) == 0
            with psycopg.connect(cluster.conninfo()) as connection:
                connection.execute("SELECT count(*) FROM pg_class")


def breakpoints(cluster: Cluster) -> int:
    """Return how many bytes of the server's code differ from its file: each live probe is one."""
    pid = cluster.postmaster_pid
    different = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, permissions, offset, _, _, *path = line.split(maxsplit=5)
        if "x" not in permissions or not path or not path[0].endswith("/postgres"):
            continue
        begin, end = (int(address, 16) for address in addresses.split("-"))
        with Path(f"/proc/{pid}/mem").open("rb") as memory, Path(f"/proc/{pid}/exe").open("rb") as file:
            memory.seek(begin)
            file.seek(int(offset, 16))
            loaded, stored = (np.frombuffer(f.read(end - begin), np.uint8) for f in (memory, file))
        size = min(len(loaded), len(stored))
        different += int(np.count_nonzero(loaded[:size] != stored[:size]))
    return different
