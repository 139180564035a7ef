"""The closed loop of sessions, and the throughput at other sizes, against exact solutions."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep._native import drop_page_cache, page_cache
from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.host.processor_time import cold_read_seconds, copy_seconds, host_seconds, server_seconds
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.comparable import crowded, other_sessions
from pgsweep.sizing.observed import Counters, Observation, Server
from pgsweep.sizing.throughput.closed_loop import ClosedLoop
from pgsweep.sizing.throughput.measured_loop import others_share
from tests.fix_advice import GB
from tests.fix_throughput import Recorded, delay_for, exact, predicted, throughput


@pytest.mark.parametrize("processors", [1, 2, 8])
@pytest.mark.parametrize(("sessions", "delay"), [(1, 0.01), (4, 0.002), (50, 0.01), (200, 0.1)])
def test_mean_value_analysis_is_exact(sessions: int, delay: float, processors: int) -> None:
    found = throughput(sessions, delay_seconds=delay, demand_seconds=0.001, processors=processors)
    assert found == pytest.approx(exact(sessions, delay, 0.001, processors), rel=0.002)


def test_the_delay_that_gives_a_throughput() -> None:
    loop = {"sessions": 7.5, "demand_seconds": 0.002, "processors": 2}
    measured = throughput(delay_seconds=0.013, **loop)
    assert delay_for(measured, **loop) == pytest.approx(0.013, rel=1e-3)
    assert delay_for(1001.0, **loop) is None, "two processors allow 1000 a second"


def test_half_the_disk_reads_halve_the_waiting() -> None:
    found = predicted(Recorded(), {GB: 2000.0, 2 * GB: 1000.0, 4 * GB: 4000.0})
    assert found.disk_read_seconds == pytest.approx(0.001)
    ratios = {point.shared_buffers_bytes: point.ratio for point in found.points}
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    for size, waited in ((2 * GB, 0.001), (4 * GB, 0.004)):
        truth = exact(4, delay - 0.002 + waited, 0.001, 4) / 1000
        assert ratios[size] == pytest.approx(truth, rel=0.01)
    assert ratios[GB] == 1
    assert ratios[4 * GB] < 1 < ratios[2 * GB]


def test_a_block_that_is_read_ahead_counts_a_part_of_a_read() -> None:
    # Half of the reads; of 6000 blocks that came with them, or a fifth, 600 are left, or one for each.
    half = {GB: 2000.0, 2 * GB: 1000.0}
    found = predicted(Recorded(), half, blocks={GB: 8000.0, 2 * GB: 1600.0}).points[1]
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    # Each of the 5400 blocks takes three microseconds of the processors less.
    most, likely, least = (
        exact(4, delay + 0.002 * ((1000 + part * 600) / (2000 + part * 6000) - 1), 0.001 - 16.2e-6, 4) / 1000
        for part in (1.0, 0.6, 0.2)
    )
    assert found.ratio == pytest.approx(likely, rel=0.005)
    assert found.low < least < found.ratio < most < found.high
    alike = predicted(Recorded(), half).points[1]
    assert alike.high - alike.low < found.high - found.low


def test_a_miss_takes_more_of_the_processors_than_a_copy() -> None:
    # 10 accesses a transaction: 0.2 misses more or less, none of which are read from disk.
    same = {GB: 2000.0, 2 * GB: 2000.0, 4 * GB: 2000.0}
    found = predicted(
        Recorded(host={"copy_nanoseconds": "100000"}),
        same,
        misses={GB: 0.032, 2 * GB: 0.012, 4 * GB: 0.052},
        accesses=100_000,
    )
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    for point, more in zip(found.points[1:], (-0.2, 0.2), strict=True):
        likely, least = (exact(4, delay, 0.001 + more * 1e-4 * part, 4) / 1000 for part in (1.4, 1.0))
        assert point.ratio == pytest.approx(likely, rel=0.002)
        assert point.low < least < point.high


def test_clients_on_the_host_need_the_processors_as_often_as_there_are_transactions() -> None:
    # Of two processors, 1 ms of each transaction is the server's, 0.6 ms that of others.
    recorded = Recorded(host={"processors": "2"}, host_cpu_seconds=16.0)
    [_, found] = predicted(recorded, {GB: 2000.0, 2 * GB: 1000.0}).points
    ratios = []
    for demand, count in ((0.0016, 2.0), (0.001, 1.4)):
        loop = {"sessions": 4.0, "demand_seconds": demand, "processors": count}
        delay = delay_for(1000.0, **loop)
        assert delay is not None
        ratios.append(throughput(delay_seconds=delay - 0.001, **loop) / 1000)
    assert found.ratio == pytest.approx(ratios[0], rel=0.005)
    assert ratios[1] > ratios[0]
    assert found.high > ratios[1]


def test_what_sessions_write_waits_too_where_the_page_cache_is_smaller() -> None:
    alike = {GB: 2000.0, 2 * GB: 2000.0, 8 * GB: 2000.0}
    read_only = predicted(Recorded(), alike)
    since_16 = predicted(Recorded(io={"writes": 4_500.0, "evictions": 10_000.0}), alike)
    counted = {"buffers_backend": 4_000.0, "buffers_clean": 500.0, "buffers_alloc": 10_000.0}
    assert predicted(Recorded(bgwriter=counted), alike).points == since_16.points
    for one, other in zip(read_only.points[1:], since_16.points[1:], strict=True):
        assert one.ratio == pytest.approx(1.0)
        assert other.low < other.ratio < one.ratio
        assert one.low < other.high
        assert other.high - other.low > one.high - one.low
    # 14 GB of page cache become 13 and 7: what is written there is written to the device more often.
    ratios = [point.ratio for point in since_16.points]
    assert ratios == sorted(ratios, reverse=True)


def test_each_dirty_page_that_leaves_the_pool_is_written_once_at_most() -> None:
    # A page cache of a fourteenth. For each of 2000 reads 1.6 pages leave the pool, 0.72 of them dirty.
    alike = {GB: 2000.0, 14 * GB: 2000.0}
    [_, found] = predicted(Recorded(io={"writes": 4_500.0, "evictions": 10_000.0}), alike).points
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    likely, most = (
        exact(4, delay - 0.002 + 0.002 * longer, 0.001, 4) / 1000 for longer in (math.sqrt(1.72), 1.72)
    )
    assert found.ratio == pytest.approx(likely, rel=0.005)
    assert most - 0.05 < found.low < most


def test_a_read_beside_writes_takes_more_of_the_processors_too() -> None:
    # As above, and each of the two reads of a transaction takes 0.1 ms of a processor, and a quarter more.
    recorded = Recorded(
        io={"writes": 4_500.0, "evictions": 10_000.0}, host={"cold_read_nanoseconds": "100000"}
    )
    [_, found] = predicted(recorded, {GB: 2000.0, 14 * GB: 2000.0}).points
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    longer = math.sqrt(1.72)
    truth = exact(4, delay - 0.0018 + 0.0018 * longer, 0.001 + 0.00025 * (longer - 1), 4) / 1000
    assert found.ratio == pytest.approx(truth, rel=0.005)


@pytest.mark.parametrize(
    ("milliseconds", "busy", "waits"),
    [(500.0, 50e-6, 0.0), (2500.0, 100e-6, 150e-6)],
    ids=["processor", "throttled"],
)
def test_fewer_pages_that_leave_the_pool_are_fewer_writes(
    milliseconds: float, busy: float, waits: float
) -> None:
    """A write takes ten copies at most of the processors; what it takes besides is waiting."""
    # Half of 10 pages are dirty, one is written in two transactions. The misses are halved, and doubled.
    same, misses = {GB: 2000.0, 2 * GB: 2000.0, 4 * GB: 2000.0}, {GB: 0.032, 2 * GB: 0.016, 4 * GB: 0.064}
    copy = {"copy_nanoseconds": "20000"}
    since_16 = Recorded(host=copy, io={"writes": 5_000.0, "evictions": 10_000.0, "write_time": milliseconds})
    found = predicted(since_16, same, misses=misses).points
    counted = {"buffers_backend": 5_000.0, "buffers_alloc": 10_000.0}
    before = Recorded(host=copy, bgwriter=counted, blk_write_time=milliseconds)
    assert predicted(before, same, misses=misses).points == found
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    reads = 0.0020012 - 1.2 * 20e-6
    # As many as today may be dirty still, or half as many; twice as many, or those of today.
    for point, more, written, cached in ((found[1], -1.6, 0.75, 14 / 13), (found[2], 3.2, 1.5, 14 / 11)):
        longer = math.sqrt(1 + 0.5 * (cached - 1))
        demand = 0.001 + more * 28e-6 + (written - 1) * busy
        truth = exact(4, delay + reads * (longer - 1) + (written - 1) * waits, demand, 4) / 1000
        assert point.ratio == pytest.approx(truth, rel=0.005)
        assert point.low < point.ratio < point.high


def test_a_disk_read_takes_processor_time_too() -> None:
    measured = Recorded(host={"cold_read_nanoseconds": "100000"})
    found = predicted(measured, {GB: 2000.0, 2 * GB: 1000.0, 4 * GB: 4000.0})
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    for size, reads in ((2 * GB, 1), (4 * GB, 4)):
        point = next(one for one in found.points if one.shared_buffers_bytes == size)
        # Of the 2 ms of today's two reads 0.2 are of the processor; one read takes half as much again of it.
        truth = exact(4, delay - 0.0018 + 0.0009 * reads, 0.001 + 0.00015 * (reads - 2), 4) / 1000
        assert point.ratio == pytest.approx(truth, rel=0.01)
        assert point.low < point.ratio < point.high
    assert not any("microseconds are assumed" in reason for reason in found.reasons)
    assumed = predicted(Recorded(host={"cold_read_nanoseconds": ""}), {GB: 2000.0, 2 * GB: 1000.0})
    assert any("30 microseconds are assumed" in reason for reason in assumed.reasons)


def test_what_the_recording_cost_is_taken_off() -> None:
    # 0.2 ms of each transaction's 1 ms.
    recorded = Recorded(overhead={"events": 1e6, "event_cost_seconds": 2e-6})
    found = predicted(recorded, {GB: 2000.0, 2 * GB: 1000.0})
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    truth = exact(4, delay - 0.001, 0.0008, 4) / exact(4, delay, 0.0008, 4)
    assert found.points[1].ratio == pytest.approx(truth, rel=0.01)


def test_a_part_of_a_processor_lies_between() -> None:
    loop = {"delay_seconds": 0.001, "demand_seconds": 0.001}
    one, two = (throughput(6, processors=count, **loop) for count in (1, 2))
    assert throughput(6, processors=1.25, **loop) == pytest.approx(one + (two - one) / 4)
    assert throughput(6, processors=0.5, **loop) == pytest.approx(one / 2)


def test_the_interval_follows_that_of_the_disk_reads() -> None:
    found = predicted(Recorded(), {GB: 2000.0, 2 * GB: 1000.0}, width=0.1)
    (today, then) = found.points
    assert (today.low, today.high) == (1, 1)
    assert then.low < then.ratio < then.high
    assert math.isfinite(then.high)
    # Where today's were measured and the simulation agrees, only the other size's are in doubt.
    for measured, narrower in ((1000.0, True), (950.0, True), (800.0, False)):
        known = predicted(Recorded(), {GB: 2000.0, 2 * GB: 1000.0}, width=0.1, measured=measured).points[1]
        assert known.ratio == then.ratio
        assert (known.high - known.low < then.high - then.low) is narrower


def test_more_sessions_wait_in_a_queue_or_not() -> None:
    """Between reads that wait as long as today's and a device that serves one after the other."""
    now, twice = {GB: 2000.0}, {GB: 4000.0}
    [point] = predicted(Recorded(), now, sessions_factor=2.0, then=twice).points
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    without_queue = exact(8, delay, 0.001, 4) / 1000
    loop = ClosedLoop(delay_seconds=delay - 0.002, demand_seconds=0.001, processors=4)
    loop = loop.waiting(0.002, np.arange(1.0, 10.0), 4)
    one_by_one = loop.throughput(8) / loop.throughput(4)
    assert 1 < one_by_one < without_queue < 2
    assert point.ratio == pytest.approx(math.sqrt(one_by_one * without_queue), rel=0.01)
    assert point.low < one_by_one < without_queue < point.high
    # With a page cache that holds all, four processors are the limit.
    [point] = predicted(Recorded(), now, sessions_factor=50.0, then={GB: 0.0}).points
    assert point.ratio == pytest.approx(4, rel=0.06)
    [half] = predicted(Recorded(), now, sessions_factor=0.5, then={GB: 1000.0}).points
    assert half.low < half.ratio < half.high < 1


def test_where_hardly_anything_is_read_the_processors_are_the_limit() -> None:
    recorded = Recorded(blk_read_time=12.0, active_time=12_000.0)
    [point] = predicted(recorded, {GB: 1.0}, sessions_factor=3.0, then={GB: 3.0}).points
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    assert point.ratio == pytest.approx(exact(12, delay, 0.001, 4) / 1000, rel=0.03)
    assert "almost nothing" in predicted(recorded, {GB: 1.0}, sessions_factor=3.0, then={GB: 90.0}).reasons[0]
    locked = predicted(Recorded(blk_read_time=2_000.0), {GB: 2000.0}, sessions_factor=2.0, then={GB: 4000.0})
    assert locked.points == []
    assert "locks, WAL, the network" in locked.reasons[0]


def test_more_memory_is_compared_with_the_memory_of_today() -> None:
    [point] = predicted(Recorded(), {GB: 2000.0}, then={GB: 1000.0}).points
    same = predicted(Recorded(), {GB: 2000.0, 2 * GB: 1000.0}).points[1]
    assert point.ratio == pytest.approx(same.ratio, rel=0.01)
    assert point.ratio > 1.1


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (Recorded(timing="off"), "track_io_timing = on"),
        (Recorded(host={"copy_nanoseconds": ""}), "what a copy from the page cache takes was not measured"),
        (Recorded(host={"memory_bytes": str(8 * GB)}), "--what-if 'ram 16GB'"),
        (Recorded(host_cpu_seconds=40.0), "others use 75% of the processors"),
        (Recorded(xact_commit=10.0), "too few transactions"),
        (Recorded(blk_read_time=2_000.0), "locks, WAL, the network"),
        (Recorded(blk_read_time=1.0), "no longer than copies"),
        (Recorded(active_time=-1.0), "statistics were reset"),
    ],
)
def test_refusals(recorded: Recorded, words: str) -> None:
    found = predicted(recorded, {GB: 2000.0, 2 * GB: 1000.0})
    assert found.points == []
    assert words in found.reasons[0]


def test_a_reset_of_the_statistics_is_no_slower_server() -> None:
    """Counters that begin again are summed; of what a transaction takes nothing is said then."""
    recorded = Recorded(io={"writes": 0.0}, xact_commit=-5.0)
    found = predicted(recorded, {GB: 2000.0, 2 * GB: 1000.0})
    assert found.points == []
    assert "statistics were reset during the recording" in found.reasons[0]
    table = recorded.table("counters")
    rows = {"scope": "io", "object": "who", "name": "writes"}
    times, values = [0.0, 5.0, 10.0], [900.0, 1000.0, 50.0]
    added = {name: [rows[name]] * 3 for name in rows} | {"seconds": times, "value": values}
    longer = {name: np.concatenate([table[name], added[name]]) for name in table}
    counters = Counters(longer, Server.of(recorded.meta))
    assert counters.rate("io", "who", "writes") == pytest.approx(15.0)
    assert counters.rate("io", "who", "reads") is None
    fell = Observation(Recorded(server_cpu_seconds=-1.0)).counters  # type: ignore[arg-type]
    assert fell.rate("host", "", "server_cpu_seconds") is None, "a process that ended takes its time with it"


def test_what_sessions_report_late_is_made_up_for_by_what_a_trace_saw() -> None:
    """Ten seconds, in which the statistics have 9 times 1000 accesses and 900 transactions."""
    rows = [("blks_hit", 7_000.0), ("blks_read", 2_000.0), ("xact_commit", 900.0)]
    counters = {
        "scope": np.array(["database"] * 6 + ["host"] * 2),
        "object": np.array(["shop"] * 6 + [""] * 2),
        "name": np.array([name for name, _ in rows] * 2 + ["server_cpu_seconds"] * 2),
        "seconds": np.array([0.0] * 3 + [10.0] * 3 + [0.0, 10.0]),
        "value": np.array([50.0] * 3 + [50.0 + value for _, value in rows] + [1.0, 6.0]),
    }

    def seen(per_second: float, database: str = "shop") -> Counters:
        meta = EvidenceMeta(source="trace", database=database, seconds=10.0, accesses_per_second=per_second)
        return Counters(counters, Server.of(meta))

    assert seen(1000.0).statistics_factor == pytest.approx(1000 / 900)
    assert seen(800.0).statistics_factor == pytest.approx(800 / 900)
    rate = seen(1000.0).rate
    assert rate("database", "shop", "xact_commit") == pytest.approx(100.0)
    assert rate("host", "", "server_cpu_seconds") == pytest.approx(0.5), "which nobody reports late"
    for unknown in (0.0, math.nan, math.inf, -1000.0):
        assert seen(unknown).statistics_factor == 1.0
    assert seen(1100.0).statistics_factor == 1.0, "two seconds late is no session"
    assert seen(1000.0, database="").statistics_factor == 1.0


def recorded(**options: Any) -> Observation:
    return Observation(Recorded(**options))  # type: ignore[arg-type]


def test_a_throughput_beside_other_programs_is_not_compared() -> None:
    before, alike = recorded(), recorded(host_cpu_seconds=13.0)
    beside = recorded(host_cpu_seconds=30.0)
    assert [others_share(one) for one in (before, alike, beside)] == pytest.approx([0.0, 0.075, 0.5])
    assert crowded(before, alike) is None
    assert crowded(beside, beside) is None
    reason = crowded(before, beside)
    assert reason is not None
    assert "used 0% of the processors before, and 50% now" in reason
    assert others_share(recorded(host={"processors": ""})) is None


def test_a_throughput_of_other_sessions_is_not_compared() -> None:
    """A transaction of four sessions takes 4 ms, without a pause."""
    before, alike = recorded(), recorded(session_time=42_000.0)
    for other in (before, alike, recorded(xact_commit=20_000.0)):
        assert other_sessions(before, other) is None
    half = other_sessions(before, recorded(session_time=20_000.0, active_time=20_000.0))
    assert half is not None
    assert "was 4 before, and is 2 now" in half
    paced = other_sessions(before, recorded(active_time=20_000.0))
    assert paced is not None
    assert "for each transaction a session paused 0 ms before, and 2 ms now" in paced
    assert other_sessions(before, recorded(xact_commit=0.0)) is None


def test_what_is_not_read_from_disk_has_no_price() -> None:
    assert "almost nothing" in predicted(Recorded(), {GB: 1.0, 2 * GB: 90.0}).reasons[0]
    assert "though almost nothing is read" in predicted(Recorded(), {GB: 1.0, 2 * GB: 0.5}).reasons[0]
    assert "today's size" in predicted(Recorded(), {2 * GB: 0.5}).reasons[0]


def test_where_all_misses_are_copies_a_size_that_has_fewer_takes_less_of_the_processors() -> None:
    # Of 1 ms of processor time half are ten misses that the page cache holds; at 2 GB there is none, at 4 GB
    # pages may come from disk.
    recorded = Recorded(blk_read_time=5_000.0, active_time=12_000.0, host={"copy_nanoseconds": "50000"})
    misses = {GB: 0.1, 2 * GB: 0.0, 4 * GB: 0.0}
    found = predicted(recorded, {GB: 1.0, 2 * GB: 0.0, 4 * GB: 20.0}, misses=misses)
    assert [point.shared_buffers_bytes for point in found.points] == [GB, 2 * GB]
    assert any("(sizes left out: 1)" in reason for reason in found.reasons)
    delay = delay_for(1000.0, sessions=4, demand_seconds=0.001, processors=4)
    assert delay is not None
    likely, least = (exact(4, delay, 0.001 - 0.0005 * part, 4) / 1000 for part in (1.4, 1.0))
    [_, point] = found.points
    assert point.ratio == pytest.approx(likely, rel=0.005)
    assert point.low < least < point.ratio < point.high


def test_a_server_that_is_limited_to_some_processors_queues_for_these() -> None:
    """2 of 8 processors by a cgroup's quota: what others use of the rest is not taken from it."""
    limited = Recorded(host={"processors": "8", "server_processors": "2.00"}, host_cpu_seconds=50.0)
    alone = Recorded(host={"processors": "2"})
    reads = {GB: 2000.0, 2 * GB: 1000.0}
    now, same = (predicted(one, reads).points[1] for one in (limited, alone))
    assert now.ratio == pytest.approx(same.ratio)
    free = predicted(Recorded(host={"processors": "8"}), reads).points[1]
    assert now.ratio < free.ratio
    for text in ("", "x", "0.00", "1e3", "-1"):
        assert (
            predicted(Recorded(host={"processors": "8", "server_processors": text}), reads).points[1] == free
        )


def test_times_of_a_real_server(wheel18: Cluster) -> None:
    pid = wheel18.postmaster_pid
    assert pid is not None
    with psycopg.connect(wheel18.conninfo()) as connection:
        connection.execute("SELECT sum(n) FROM pg_catalog.generate_series(1, 1000000) AS n")
        first, host = server_seconds(pid), host_seconds()
        second = server_seconds(pid)
    assert first is not None
    assert host is not None
    assert 0 < first < host
    assert second is not None
    assert second >= first
    copy = copy_seconds(wheel18.bindir / "postgres")
    assert copy is not None
    assert 1e-7 < copy < 1e-4
    assert copy_seconds(Path("/nonexistent")) is None


def test_a_read_from_disk_takes_more_of_a_processor_than_a_copy(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("first", "second")]
    for file in files:
        with file.open("wb") as made:
            made.write(os.urandom(8 << 20))
            os.fsync(made.fileno())
    paths = [str(file) for file in files]
    assert cold_read_seconds(paths) is None, "nothing is to be read from disk"
    drop_page_cache(files)
    cold, copy = cold_read_seconds(paths), copy_seconds(files[0])
    if cold is None:
        pytest.skip("the file system does not count what is read from disk, or holds it in memory")
    assert copy is not None
    assert 2 * copy < cold < 1e-3
    drop_page_cache([files[0]])  # what `copy_seconds` has read
    left = page_cache(paths, maps=False, block_bytes=8192)["cached_bytes"]
    assert int(left.sum()) == 0, "what was read is dropped again"
    assert cold_read_seconds([str(tmp_path / "none")]) is None
    assert os.sysconf("SC_CLK_TCK") > 0
