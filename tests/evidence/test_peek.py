"""Peeks at the buffers from outside count what the server itself counts."""

from __future__ import annotations

import errno
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep._native import PoolReader, peek_relations, postmaster_start_time
from pgsweep.evidence.sampling import BlockSample
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import quiet_pair
from tests.fix_hugepages import available_pages
from tests.fix_process import NOBODY, run_restricted, wait_until

CLONE, CLONE3 = 56, 435

Key = tuple[int, int, int, int]
#: usage counts 0 to 5, dirty, pinned
Counts = tuple[int, ...]

BY_RELATION = """
SELECT reltablespace, reldatabase, relfilenode, relforknumber,
       count(*) FILTER (WHERE usagecount = 0), count(*) FILTER (WHERE usagecount = 1),
       count(*) FILTER (WHERE usagecount = 2), count(*) FILTER (WHERE usagecount = 3),
       count(*) FILTER (WHERE usagecount = 4), count(*) FILTER (WHERE usagecount = 5),
       count(*) FILTER (WHERE isdirty), count(*) FILTER (WHERE pinning_backends > 0)
FROM pg_buffercache WHERE relfilenode IS NOT NULL GROUP BY 1, 2, 3, 4
"""
BY_BLOCK = """
SELECT bufferid, reltablespace, reldatabase, relfilenode, relforknumber, relblocknumber, usagecount, isdirty,
       pinning_backends > 0
FROM pg_buffercache WHERE relfilenode IS NOT NULL ORDER BY bufferid
"""


def pid_of(cluster: Cluster) -> int:
    assert cluster.postmaster_pid is not None
    return cluster.postmaster_pid


def peek(cluster: Cluster, **options: Any) -> dict[Key, Counts]:
    return table_of(peek_relations(pid_of(cluster), cluster.version_num, **options))


def table_of(found: Any) -> dict[Key, Counts]:
    keys = zip(*(found[name].tolist() for name in ("spc", "db", "rel", "fork")), strict=True)
    counts = np.column_stack([found["usage_counts"], found["dirty"], found["pinned"]])
    table = dict(zip(keys, map(tuple, counts.tolist()), strict=True))
    assert len(table) == len(found["rel"]), "a relation comes twice"
    return table


def blocks(cluster: Cluster) -> list[tuple[Any, ...]]:
    pool = PoolReader(pid_of(cluster), cluster.version_num).read()
    names = ("frame", "spc", "db", "rel", "fork", "block", "usage_count", "dirty", "pinned")
    columns: list[Any] = [pool[name].tolist() for name in names]  # type: ignore[literal-required]
    return list(zip(*columns, strict=True))


@contextmanager
def busy_table(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    """A table with dirty buffers at several usage counts, one of them pinned by an open cursor.

    Yields:
        a session that has just read pg_buffercache, so that reading it again changes no buffer.
    """
    with (
        psycopg.connect(cluster.conninfo(), autocommit=True) as connection,
        psycopg.connect(cluster.conninfo()) as other,
    ):
        connection.execute("DROP TABLE IF EXISTS peeked")
        connection.execute(
            "CREATE TABLE peeked AS SELECT i, repeat('x', 900) t FROM generate_series(1, 4000) i"
        )
        connection.execute("CREATE INDEX ON peeked (i)")
        for last in (300, 900, 2000):
            connection.execute("SELECT count(*) FROM peeked WHERE i <= %s", (last,))
        other.execute("DECLARE held CURSOR FOR SELECT * FROM peeked")
        other.execute("FETCH 1 FROM held")
        for _ in range(3):
            connection.execute(BY_RELATION).fetchall()
            connection.execute(BY_BLOCK).fetchall()
        try:
            yield connection
        finally:
            other.rollback()
            connection.execute("DROP TABLE peeked")


def test_a_sample_is_what_its_rule_takes_and_counts_the_whole_pool(server: Cluster) -> None:
    """So that of a pool of hundreds of gigabytes no more is kept in memory."""
    sample = BlockSample.draw(0.2, 3)
    reader = PoolReader(pid_of(server), server.version_num)

    def read(offsets: tuple[int, ...] | None) -> tuple[list[tuple[int, ...]], int, int]:
        pool = reader.read(modulus=sample.modulus, offsets=offsets)
        columns = (pool[name].tolist() for name in ("rel", "block", "frame", "fork", "usage_count"))
        return list(zip(*columns, strict=True)), pool["used"], pool["zero"]

    with busy_table(server):
        (part, *counts), (whole, used, zero) = quiet_pair(lambda: read(sample.offsets), lambda: read(None))
    rel, block = np.array(whole)[:, :2].T
    assert part == [row for row, kept in zip(whole, sample.contains(rel, block), strict=True) if kept]
    assert 0 < len(part) < len(whole) / 2
    assert counts == [used, zero] == [len(whole), sum(row[4] == 0 for row in whole)]
    assert read(())[0] == []


@pytest.mark.parametrize("options", [{}, {"threads": 1}, {"threads": 3}])
def test_relations_are_counted_as_pg_buffercache_counts_them(
    server: Cluster, options: dict[str, Any]
) -> None:
    with busy_table(server) as connection:
        seen, said = quiet_pair(
            lambda: peek(server, **options),
            lambda: {row[:4]: row[4:] for row in connection.execute(BY_RELATION).fetchall()},
        )
    assert seen == said
    totals = np.sum(list(seen.values()), axis=0)
    assert totals[6] > 0, "nothing was dirty"
    assert totals[7] > 0, "the cursor pins nothing"
    assert np.count_nonzero(totals[:6]) > 2, "usage counts do not differ"


def test_blocks_are_those_of_pg_buffercache(server: Cluster) -> None:
    with busy_table(server) as connection:
        seen, said = quiet_pair(
            lambda: blocks(server), lambda: [tuple(row) for row in connection.execute(BY_BLOCK).fetchall()]
        )
    assert seen == said


def test_both_readings_agree(server: Cluster) -> None:
    seen, counted = quiet_pair(lambda: peek(server), lambda: Counter(row[1:5] for row in blocks(server)))
    assert {key: sum(counts[:6]) for key, counts in seen.items()} == counted


def test_size_and_hand_come_with_it(server: Cluster) -> None:
    found = peek_relations(pid_of(server), server.version_num)
    with psycopg.connect(server.conninfo()) as connection:
        row = connection.execute(
            "SELECT setting::int FROM pg_settings WHERE name = 'shared_buffers'"
        ).fetchone()
    assert row == (found["buffers"],)
    assert found["usage_counts"].sum() <= found["buffers"]
    assert 0 < found["end_ns"] - found["begin_ns"] < 10**9
    assert found["hand"] is not None
    assert 0 <= found["hand"][0] < found["buffers"]


def test_the_smallest_pool() -> None:
    with Cluster.create(None, {"shared_buffers": "128kB", "max_connections": "10"}) as cluster:
        psycopg.connect(cluster.conninfo()).close()
        found = peek_relations(pid_of(cluster), cluster.version_num, threads=8)
        assert found["buffers"] == 16
        assert 0 < found["usage_counts"].sum() <= 16


def test_a_pool_in_huge_pages() -> None:
    settings = {"shared_buffers": "64MB", "huge_pages": "on", "max_connections": "10"}
    with available_pages(100), Cluster.create(None, settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        maps = Path(f"/proc/{pid_of(cluster)}/smaps").read_text()
        assert "/anon_hugepage" in maps, "the server does without"
        with busy_table(cluster) as connection:
            seen, said = quiet_pair(
                lambda: peek(cluster),
                lambda: {row[:4]: row[4:] for row in connection.execute(BY_RELATION).fetchall()},
            )
        assert seen == said


@pytest.mark.parametrize("version_num", [110_022, 200_000])
def test_an_unknown_version_is_refused_in_words(wheel18: Cluster, version_num: int) -> None:
    with pytest.raises(RuntimeError) as caught:
        peek_relations(pid_of(wheel18), version_num)
    what, hint = caught.value.args
    assert f"and this is {version_num // 10_000}" in what
    assert "pg_buffercache" in hint


def test_another_user_is_refused(wheel18: Cluster) -> None:
    said = run_restricted(
        """
        try:
            _native.peek_relations(int(sys.argv[1]), int(sys.argv[2]))
        except OSError as error:
            print(errno.errorcode[error.errno])
        """,
        pid_of(wheel18),
        wheel18.version_num,
        user=NOBODY,
    )
    assert said in {"EACCES", "EPERM"}


def test_the_servers_own_user_may_look(wheel18: Cluster) -> None:
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    if yama.exists() and yama.read_text().strip() != "0":
        pytest.skip("Yama forbids it here: sysctl kernel.yama.ptrace_scope")
    owner = Path(f"/proc/{pid_of(wheel18)}").stat()
    if owner.st_uid == 0:
        pytest.skip("the server runs as root")
    said = run_restricted(
        "print(_native.peek_relations(int(sys.argv[1]), int(sys.argv[2]))['buffers'])",
        pid_of(wheel18),
        wheel18.version_num,
        user=(owner.st_uid, owner.st_gid),
    )
    assert said == "2048"


class Peeking:
    """Peeks again and again in a thread, and keeps the errors."""

    def __init__(self, cluster: Cluster) -> None:
        self.peeks = 0
        self.errors: list[Exception] = []
        self._pid, self._version = pid_of(cluster), cluster.version_num
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Peeking:
        self._thread.start()
        while self.peeks == 0:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.is_set():
            try:
                peek_relations(self._pid, self._version)
            except Exception as error:
                self.errors.append(error)
            self.peeks += 1


def test_a_server_that_ends_meanwhile_is_an_os_error() -> None:
    with Cluster.create(None, {"shared_buffers": "256MB"}) as cluster:
        with Peeking(cluster) as peeking:
            cluster.stop(immediately=True)
        assert peeking.errors
        for error in peeking.errors:
            assert isinstance(error, OSError), repr(error)
            assert error.errno is not None


def readable(cluster: Cluster) -> bool:
    try:
        psycopg.connect(cluster.conninfo()).close()
        return bool(peek(cluster))
    except (psycopg.OperationalError, OSError):
        return False


def test_a_server_that_restarts_after_a_crash_is_readable_again() -> None:
    with Cluster.create(None, {"shared_buffers": "256MB"}) as cluster:
        with Peeking(cluster) as peeking:
            with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
                subprocess.run(["kill", "-9", str(connection.info.backend_pid)], check=True)
            # The postmaster lets sessions in until it has noticed the crash: a session proves nothing.
            crashed = "all server processes terminated; reinitializing"
            wait_until(lambda: crashed in cluster.log_path.read_text())
            wait_until(lambda: readable(cluster))
        for error in peeking.errors:
            assert isinstance(error, OSError), repr(error)
        assert peek(cluster)


def test_threads_that_the_system_refuses_are_done_without() -> None:
    """As at a limit of tasks (pids.max, RLIMIT_NPROC), where clone(2) fails with EAGAIN."""
    with Cluster.create(None, {"shared_buffers": "256MB"}) as cluster:
        said = run_restricted(
            """
            found = _native.peek_relations(int(sys.argv[1]), int(sys.argv[2]), threads=4)
            print(found["buffers"], found["usage_counts"].sum() > 0)
            """,
            pid_of(cluster),
            cluster.version_num,
            refuse=(CLONE, CLONE3),
            errno=errno.EAGAIN,
        )
    assert said == "32768 True"


def test_a_reader_is_bound_to_its_process() -> None:
    with Cluster.create(None, {"shared_buffers": "16MB"}) as cluster:
        pid, version_num = pid_of(cluster), cluster.version_num
        started = postmaster_start_time(pid)
        reader = PoolReader(pid, version_num, start_time=started)
        assert reader.read()["buffers"] == 2048
        with pytest.raises(OSError, match="is another server now") as caught:
            PoolReader(pid, version_num, start_time=started + 1)
        assert caught.value.errno == errno.ESRCH
        cluster.stop(immediately=True)
        for look in (reader.read, reader.relations):
            with pytest.raises(OSError, match="the server ended") as caught:
                look()
            assert caught.value.errno == errno.ESRCH
    with pytest.raises(OSError, match=f"there is no process {pid}") as caught:
        PoolReader(pid, version_num)
    assert caught.value.errno == errno.ESRCH


def test_the_hand_of_a_small_fast_pool_never_goes_backwards() -> None:
    """Three sessions turn a pool of 32 buffers; the server folds its two counters into one all the time."""
    settings = {"shared_buffers": "256kB", "max_connections": "10", "autovacuum": "off"}
    with Cluster.create(None, settings) as cluster, ExitStack() as closing:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE t AS SELECT i, repeat('x', 900) t FROM generate_series(1, 8000) i"
            )
            connection.execute("CREATE INDEX ON t (i)")
        end = threading.Event()

        def turn(session: psycopg.Connection[Any], number: int) -> None:
            session.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
            while not end.is_set():
                session.execute("SELECT sum(length(t)) FROM t WHERE i > %s", (number * 100,))

        sessions = [
            closing.enter_context(psycopg.connect(cluster.conninfo(), autocommit=True)) for _ in range(3)
        ]
        threads = [threading.Thread(target=turn, args=(s, number)) for number, s in enumerate(sessions)]
        for thread in threads:
            thread.start()
        reader = PoolReader(pid_of(cluster), cluster.version_num)
        positions: list[int] = []
        unsettled = 0
        try:
            while len(positions) < 60_000:
                pool = reader.read()
                if pool["hand"] is None:
                    assert not pool["hand_settled"]
                    unsettled += 1
                    continue
                assert pool["hand_settled"]
                positions.append(pool["hand"][1] * pool["buffers"] + pool["hand"][0])
        finally:
            end.set()
            for thread in threads:
                thread.join()
    assert np.all(np.diff(positions) >= 0)
    assert positions[-1] - positions[0] > 1000 * 32, "the hand was not fast"
    assert unsettled <= len(positions) // 100
