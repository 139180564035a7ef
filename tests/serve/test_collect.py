"""What a collector makes of two samples, and what a server's processes read from disks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from pgsweep.cache.top.live import Live
from pgsweep.cache.top.sample import first_rows
from pgsweep.host.reads import DiskReads
from pgsweep.pg.catalog.counting import Reading
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import CurvePoint, Observed, PredictResult, Verdict
from pgsweep.records.top import OpenTransaction
from pgsweep.residency.access import opened
from pgsweep.serve.board import Board, avoidable
from pgsweep.serve.collect import Collector, add_totals, columns_of, gained
from pgsweep.serve.config import ServeConfig, ServerConfig
from pgsweep.serve.history import History, Sample, sqlite_store
from pgsweep.serve.metrics import sweep_period
from pgsweep.serve.served_by import LONGEST_SECONDS, ServedBy, Split
from pgsweep.units import iso_time
from tests.fix_process import wait_until

FIRST = Reading(
    at=100.0, hits=1000, reads=50, transactions=7, allocations=60, evictions=None, hand_buffers=4096
)


def later(**changes: float | None) -> Reading:
    values = {name: getattr(FIRST, name) for name in Reading.__slots__}
    return Reading(**{**values, "at": 110.0, **changes})


def test_counters_are_subtracted() -> None:
    values = gained(FIRST, 0, later(hits=3000, reads=90, hand_buffers=8192), 819_200)
    assert values["covered_seconds"] == 10.0
    assert (values["hits"], values["reads"], values["hand_buffers"]) == (2000, 40, 4096)
    assert values["disk_read_bytes"] == 819_200
    assert "evictions" not in values, "not counted before PostgreSQL 16"
    assert sweep_period(values, 8192) == 20.0


def test_nothing_is_made_of_what_is_not_seen() -> None:
    assert gained(None, None, FIRST, None) == {}
    assert "hits" not in gained(FIRST, 0, later(counted=False), 0), "track_counts is off"
    values = gained(FIRST, None, later(hits=1001, hand_buffers=None), None)
    assert "disk_read_bytes" not in values
    assert "hand_buffers" not in values
    assert sweep_period(values, 8192) is None


def at_work(pid: int = 7, since: float = 5.0, *, idle_since: float | None = None) -> OpenTransaction:
    idle = None if idle_since is None else iso_time(idle_since)
    return OpenTransaction(pid, iso_time(since) or "", idle)


def test_reads_are_split_over_the_whole_of_a_statement() -> None:
    """20 s of cold reads: the kernel counts them at once, the server at the end."""
    served = ServedBy()
    served.begin([])
    for _ in range(2):
        assert served.add(10.0, 100.0, 12_500.0, [at_work()]) is None
    assert served.pending == 200.0
    assert served.add(10.0, 25_300.0, 43.0, []) == Split(seconds=30.0, page_cache=457.0, disk=25_043.0)
    assert served.pending == 0.0


def test_what_served_reads_is_not_known_where_it_cannot_be() -> None:
    served = ServedBy()
    served.begin([at_work()])
    unknown = Split(seconds=10.0, unsplit=100.0)
    assert served.add(10.0, 100.0, 50.0, []) == unknown, "its reads of before are among these"
    assert served.add(10.0, 100.0, 50.0, []) == Split(seconds=10.0, page_cache=50.0, disk=50.0)
    assert served.add(10.0, 100.0, 50.0, None) == unknown, "sessions are hidden"
    assert served.add(10.0, 100.0, 50.0, []) == unknown
    waiting = LONGEST_SECONDS - 10.0
    assert served.add(waiting, 7.0, 5.0, [at_work()]) is None
    assert served.add(10.0, 7.0, 5.0, [at_work()]) == Split(seconds=LONGEST_SECONDS, unsplit=14.0)
    assert served.add(10.0, 7.0, 5.0, [at_work()]) == Split(seconds=10.0, unsplit=7.0), "at once from then on"


def test_a_transaction_that_is_idle_all_the_time_hinders_nothing() -> None:
    served = ServedBy()
    idle = at_work(idle_since=6.0)
    served.begin([idle])
    assert served.add(10.0, 100.0, 30.0, [idle]) == Split(seconds=10.0, page_cache=70.0, disk=30.0)
    assert served.add(5.0, 100.0, 30.0, [idle]) is None, "too short: a session may not have sent its counters"
    assert served.add(5.0, 100.0, 30.0, [at_work(idle_since=9.0)]) == Split(seconds=10.0, unsplit=200.0)


STATEMENTS = st.lists(
    st.tuples(
        st.floats(0.5, 300.0),  # begins
        st.floats(0.001, 60.0),  # takes
        st.integers(1, 10_000),  # blocks
        st.floats(0.0, 1.0),  # of these from disk
        st.floats(0.0, 1.0),  # when in its time they are read
    ),
    max_size=12,
)


@given(STATEMENTS, st.sampled_from([(), (1.0,), (0.0,)]), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_splits_add_up_in_a_model(
    statements: list[tuple[float, float, int, float, float]],
    all_from: tuple[float, ...],
    apart: float,
    late: float,
) -> None:
    """Statements of any length, at any time: also between the looks at counters, sessions and the disk."""
    made = [(begin, begin + takes, blocks, *(all_from or (share,)), begin + when * takes)
            for begin, takes, blocks, share, when in statements]  # fmt: skip
    served, found, before = ServedBy(), [], (0.0, 0.0)
    served.begin([])
    for number in range(1, 60):
        counters = 10.0 * number
        sessions = counters + apart
        disk = sessions + late
        reads = float(sum(blocks for _, end, blocks, _, _ in made if end <= counters))
        from_disk = sum(share * blocks for _, _, blocks, share, at in made if at <= disk)
        is_open = [at_work(pid, begin) for pid, (begin, end, *_) in enumerate(made)
                   if begin <= sessions - 1.5 and sessions < end]  # fmt: skip
        split = served.add(10.0, reads - before[0], from_disk - before[1], is_open)
        before = reads, from_disk
        found += [] if split is None else [split]
        parts = sum(one.page_cache + one.disk + one.unsplit for one in found)
        assert parts + served.pending == pytest.approx(reads)
        assert sum(one.disk for one in found) <= from_disk + 1e-6
    assert all(one.page_cache >= 0 and one.disk >= 0 and one.unsplit >= 0 for one in found)
    assert sum(one.seconds for one in found) == 590.0
    if all(one.unsplit == 0 for one in found):
        assert sum(one.disk for one in found) == pytest.approx(before[1])


def test_totals_by_what_served_them_add_up_and_do_not_fall() -> None:
    """Also over a session that was lost: its reads are counted, and what served them is not known."""
    totals: dict[str, float] = {}
    split = columns_of(Split(seconds=10.0, page_cache=30.0, disk=10.0))
    add_totals(totals, later(reads=50), None, split, 0.0)
    assert (totals["page_cache_reads"], totals["disk_reads"], totals["outside_pool_reads"]) == (30, 10, 10)
    add_totals(totals, later(reads=80), None, {}, 30.0)
    assert totals["outside_pool_reads"] == 10
    add_totals(totals, later(reads=180), None, {}, 0.0)
    assert totals["outside_pool_reads"] == 140


def test_what_twice_the_size_would_save() -> None:
    points = [
        CurvePoint(shared_buffers_bytes=size << 20, miss_ratio=ratio, low=0.0, high=1.0)
        for size, ratio in ((16, 0.4), (32, 0.1))
    ]
    observed = Observed(shared_buffers_bytes=16 << 20, miss_ratio=0.4, accesses=1, seconds=1.0)
    verdict = Verdict(level="reliable", reasons=[])
    result = PredictResult(source="peek", observed=observed, points=points, verdict=verdict)
    assert avoidable(result, 1000.0) == pytest.approx(750.0)
    assert avoidable(result, None) is None
    assert avoidable(None, 1000.0) is None


def test_the_first_relations_are_those_of_the_whole_order() -> None:
    """A selection, then the order of what was selected: as if all were sorted, also where many are equal."""
    rng = np.random.default_rng(7)
    for count in (0, 1, 30, 400):
        chosen = np.arange(count)
        keys = (chosen, -rng.integers(0, 3, count), -rng.integers(0, 4, count), -rng.integers(0, 5, count))
        whole = np.lexsort(keys).tolist()
        for limit in (None, 0, 1, 7, 20, 500):
            for reverse in (False, True):
                found = first_rows(keys, limit, reverse=reverse).tolist()
                wanted = whole[::-1] if reverse else whole
                assert (found[::-1] if reverse else found)[:limit] == wanted[:limit]


def test_one_reading_that_was_slow_by_chance_does_not_delay_the_next(wheel18: Cluster) -> None:
    """Only where all of the last readings were slow are they further apart than asked for."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    with opened(wheel18.conninfo()) as access:
        live = Live(access)
        first = live.look().reading
        live._counters_costs.extend([0.0, 5.0])
        time.sleep(1.0)  # the pace at which counters are read is what is tested
        second = live.look().reading
        assert second.at > first.at
        live._counters_costs.extend([5.0] * 5)
        time.sleep(1.0)
        assert live.look().reading.at == second.at


_FAMILY = """
import os, sys
if not os.fork():
    with open(sys.argv[1], "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while file.read(1 << 20):
            pass
    os._exit(0)
os.wait()
print("read", flush=True)
sys.stdin.read()
"""


def test_reads_of_children_that_have_ended_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(8 << 20))
        os.fsync(file.fileno())
    with subprocess.Popen(
        [sys.executable, "-c", _FAMILY, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as family:
        assert family.stdout is not None
        assert family.stdin is not None
        reads = DiskReads(family.pid)
        before = reads.read_bytes()
        assert family.stdout.readline() == "read\n"
        found = reads.read_bytes()
        assert before is not None
        assert found is not None
        family.stdin.close()
    if found == before:
        pytest.skip("this file system does not read from a disk")
    assert found >= 8 << 20
    assert DiskReads(2**22 - 7).read_bytes() is None


def test_looks_between_two_readings_of_the_counters_lose_nothing(wheel18: Cluster, tmp_path: Path) -> None:
    """The rates shown stay those of the last reading, and sums count every reading once."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
    server = ServerConfig(key="one", name="one", conninfo=wheel18.conninfo())
    config = ServeConfig(servers=[server], host="", port=1, history=tmp_path, evidence=tmp_path)
    board = Board(config, ["here"], lambda: None)
    kept = History(sqlite_store(tmp_path / "history.sqlite"), most_bytes=1 << 30)
    collector = Collector(server, board, kept, interval_seconds=1.0, source="auto")
    with collector._opened() as live:
        assert isinstance(live, Live)
        collector._show(live.look())
        for counted in (True, False, False, True):
            time.sleep(1.0)  # counters are read once a second
            live._counters_costs.clear()
            if not counted:
                live._counters_costs.extend([60.0] * 5)
            collector._show(live.look())
            assert board.summary("one").reads_per_second is not None
    rows = []
    while not kept._waiting.empty():
        rows.append(kept._waiting.get())
    assert len(rows) == 2
    assert board.servers["one"].totals["hits"] == sum(
        row.values["hits"] for row in rows if isinstance(row, Sample)
    )


def test_what_is_read_after_the_look_at_sessions_is_not_the_page_cache_s() -> None:
    served = ServedBy()
    served.begin([])
    assert served.add(10.0, 5.0, 900.0, []) == Split(seconds=10.0, disk=5.0), "a statement begins meanwhile"
    assert served.add(10.0, 5.0, 5.0, [at_work()]) is None
    assert served.add(10.0, 1000.0, 100.0, []) == Split(seconds=20.0, page_cache=5.0, disk=1000.0)
    # What the kernel read and no block needs, as a backup reads, is not there for ever.
    assert served.add(10.0, 0.0, 5000.0, []) == Split(seconds=10.0)
    assert served.add(10.0, 100.0, 0.0, []) == Split(seconds=10.0, disk=100.0)
    assert served.add(10.0, 100.0, 0.0, []) == Split(seconds=10.0, page_cache=100.0)


_LONG = """DO $$ BEGIN PERFORM count(*) FROM long_read; PERFORM pg_sleep(6); END $$"""


@pytest.mark.parametrize("straddles", [False, True])
def test_a_long_statement_is_split_when_it_is_over(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, straddles: bool
) -> None:
    """Interval by interval its blocks, which are counted at its end, would all be the page cache's.

    Args:
        straddles: it reads after a look at sessions, and before the disk's bytes are read.
    """
    monkeypatch.setattr("pgsweep.serve.served_by.SHORTEST_SECONDS", 2.0)
    monkeypatch.setattr("pgsweep.cache.top.live._COUNTERS_SECONDS", 0.1)
    rows = "SELECT repeat('x', 900) FROM generate_series(1, 40000)"
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        connection.execute("DROP TABLE IF EXISTS long_read")
        connection.execute(f"CREATE TABLE long_read AS {rows}")
        connection.execute("VACUUM ANALYZE long_read")
        connection.execute("CHECKPOINT")
        place = "SELECT pg_relation_filepath('long_read'), pg_relation_size('long_read') / 8192"
        [(path, blocks)] = connection.execute(place).fetchall()
        connection.execute("SELECT pg_buffercache_evict(bufferid) FROM pg_buffercache WHERE relfilenode > 0")
    with (wheel18.data_directory / path).open("rb") as file:
        os.fsync(file.fileno())  # only clean pages are dropped
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    server = ServerConfig(key="one", name="one", conninfo=wheel18.conninfo())
    config = ServeConfig(servers=[server], host="", port=1, history=tmp_path, evidence=tmp_path)
    board = Board(config, ["here"], lambda: None)
    kept = History(sqlite_store(tmp_path / "history.sqlite"), most_bytes=1 << 30)
    collector = Collector(server, board, kept, interval_seconds=1.0, source="auto")
    totals = board.servers["one"].totals

    def work() -> None:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as session:
            session.execute(_LONG)

    worker = threading.Thread(target=work)
    with collector._opened() as live:
        assert isinstance(live, Live)

        def look(meanwhile: Callable[[], None] = lambda: None) -> bool:
            """Look, and return whether the statement is at work and seen to be."""
            time.sleep(0.15)
            live._counters_costs.clear()
            before = dict(totals)
            sample = live.look()
            meanwhile()
            collector._show(sample)
            assert all(totals[name] >= value for name, value in before.items())
            return any(one.idle_since is None for one in sample.head.backends.uncounted)

        def begin_to_read() -> None:
            worker.start()
            with psycopg.connect(wheel18.conninfo(), autocommit=True) as session:
                asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
                wait_until(lambda: session.execute(asleep).fetchone() == (1,))

        look()
        wait_until(lambda: not look() and collector._served_by._seconds == 0.0)
        time.sleep(2.0)  # so that the next look ends an interval
        begun = dict(totals)
        look(begin_to_read if straddles else worker.start)
        wait_until(look)
        while look():
            assert totals["disk_reads"] + totals["page_cache_reads"] < blocks
        worker.join()
        wait_until(lambda: not look() and totals["reads"] - begun["reads"] >= blocks)
        wait_until(lambda: not look() and collector._served_by.pending == 0)
    whole = totals["page_cache_reads"] + totals["disk_reads"] + totals["outside_pool_reads"]
    assert whole == pytest.approx(totals["reads"])
    assert totals["outside_pool_reads"] - begun["outside_pool_reads"] < blocks / 10
    disk = totals["disk_read_bytes"] - begun["disk_read_bytes"]
    if disk < blocks * 8192 / 2:
        pytest.skip("this file system does not read from a disk")
    assert totals["disk_reads"] - begun["disk_reads"] > 0.9 * blocks
    assert totals["page_cache_reads"] - begun["page_cache_reads"] < 0.1 * blocks


def test_where_sessions_are_hidden_it_is_said_that_reads_are_not_split(
    wheel18: Cluster, tmp_path: Path
) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE sees_little LOGIN")
        try:
            conninfo = make_conninfo(wheel18.conninfo(), user="sees_little")
            server = ServerConfig(key="one", name="one", conninfo=conninfo)
            config = ServeConfig(servers=[server], host="", port=1, history=tmp_path, evidence=tmp_path)
            board = Board(config, ["here"], lambda: None)
            kept = History(sqlite_store(tmp_path / "history.sqlite"), most_bytes=1 << 30)
            collector = Collector(server, board, kept, interval_seconds=1.0, source="auto")
            with collector._opened() as live:
                for _ in range(2):
                    time.sleep(1.1)  # counters are read once a second
                    sample = live.look()
                    assert sample is not None
                    collector._show(sample)
        finally:
            connection.execute("DROP ROLE sees_little")
    totals = board.servers["one"].totals
    assert "reads" in totals
    assert totals["outside_pool_reads"] == totals["reads"]
    if "disk_read_bytes" in totals:
        [entry] = [each for each in board.summary("one").missing if "page cache or a disk" in each.what]
        assert "hidden" in entry.why
