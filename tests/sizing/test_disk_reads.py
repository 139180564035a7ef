"""What is said of disk reads, against what the server and the kernel were measured to do."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.store import Evidence, EvidenceMeta, EvidenceWriter
from pgsweep.records.prediction import DiskPoint, MemoryPrediction
from pgsweep.sizing.page_cache.both_caches import SimulatedReads
from pgsweep.sizing.page_cache.disk_reads import SizeReads
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts, Share
from pgsweep.sizing.page_cache.trace_disk_reads import TraceDiskReads
from pgsweep.sizing.predict import predict
from pgsweep.units import format_bytes
from tests.fix_cli import run
from tests.fix_results import MB
from tests.fix_what_if import POOL, Load

LOAD, SECONDS = Load(), 6
COUNT = SECONDS * 10_000
SIZES_BYTES = [8 * MB, 16 * MB]
TODAY_BYTES = POOL * 8192
HOST = {
    "memory_bytes": str(76 * MB), "memory_other_bytes": str(40 * MB), "memory_shared_bytes": str(10 * MB),
    "memory_page_cache_bytes": str(26 * MB), "memory_page_tables_bytes": str(12 * MB),
    "server_processes": "28", "readahead_bytes": "131072", "folio_order": "0", "huge_pages": "off",
}  # fmt: skip


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return LOAD.write_trace(tmp_path_factory.mktemp("trace") / "x.evidence", COUNT, host=HOST)


def known(point: DiskPoint) -> float:
    assert point.page_cache_hit_ratio is not None
    return point.page_cache_hit_ratio


def simulated(misses: int, waited: float) -> SizeReads:
    none = np.zeros(0)
    best = SimulatedReads(
        misses=misses, disk_share=waited, disk_blocks=waited, twice_blocks=0, turnovers=2.0,
        group_misses=none, group_reads=none,
    )  # fmt: skip
    share = Share(
        page_cache_bytes=MB,
        low_bytes=MB,
        page_tables_bytes=0,
        page_tables_most_bytes=0,
        shared_memory_bytes=MB,
    )
    return SizeReads(share=share, best=best, others=[])


@given(
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.lists(st.floats(0, 4), min_size=1, max_size=2).map(tuple),
    st.floats(0, 2),
    st.booleans(),
)
def test_bounds_of_what_waits_for_the_disk(
    misses: int, waited: float, factors: tuple[float, ...], unexplained: float, fits: bool
) -> None:
    """Never outside 0 and 1, around the estimate and what was measured, and the wider the fewer misses."""
    share, low, high = simulated(misses, waited).disk_share(factors, unexplained, fits=fits)
    assert 0 <= low <= share <= high <= 1
    assert high >= min(1.0, share + unexplained)
    _, wider_low, wider_high = simulated(misses // 2, waited).disk_share(factors, unexplained, fits=fits)
    assert wider_low <= low + 1e-12
    assert wider_high >= high - 1e-12


def test_without_a_miss_nothing_is_known_of_where_the_next_one_is_served() -> None:
    assert simulated(0, 0.0).disk_share((1.0,), fits=False) == (0.0, 0.0, 1.0)
    assert simulated(0, 0.0).disk_share((1.0,), fits=True)[2] < 0.03, "the page cache holds all there is"
    for fits in (False, True):
        few = simulated(3, 1.0).disk_share((1.0,), fits=fits)
        assert few[1] < 0.6, "three of three"
    assert simulated(100_000, 0.0).disk_share((1.0,), fits=False)[2] < 0.03


@pytest.mark.parametrize(
    ("misses", "waited", "fits", "known"),
    [(0, 0.0, True, False), (3, 0.0, True, True), (3, 0.0, False, False), (11, 0.5, True, False),
     (300, 0.5, True, True), (300, 0.0, False, True)],
)  # fmt: skip
def test_a_share_of_a_handful_of_misses_is_not_known(
    misses: int, waited: float, fits: bool, known: bool
) -> None:
    """Unless the page cache holds all data, and each of them was found there."""
    assert simulated(misses, waited).is_known(fits=fits) == known


def test_where_all_fits_into_the_pool_its_misses_bound_the_disk_reads(trace: Path) -> None:
    """The few misses that there may be may all be disk reads, unless the page cache holds all data too."""
    most = {}
    for memory_bytes in (190 * MB, 240 * MB):
        found = predict(trace, sizes_bytes=[64 * MB], memory_bytes=memory_bytes)
        (point,), memory = found.points, found.memory
        assert memory is not None
        assert point.miss_ratio == 0
        assert memory.points[0].page_cache_hit_ratio is None, "of no misses"
        misses = point.high * found.observed.accesses_per_second
        assert misses > 1
        most[memory_bytes] = memory.points[0].disk_reads_high / misses
    assert most[190 * MB] == pytest.approx(1)
    assert most[240 * MB] < 0.03


def test_a_pool_that_misses_nothing_reads_no_more_from_disk_than_a_smaller_one() -> None:
    """At 8 MB no miss was simulated, so that each one that there may be was thought to come from disk."""
    evidence = Path(__file__).parents[1] / "answers" / "evidence" / "trace-drops-18"
    found = predict(evidence, sizes_bytes=[4 * MB, 8 * MB], memory_bytes=512 * MB)
    assert found.memory is not None
    small, large = found.memory.points
    assert small.page_cache_hit_ratio is not None
    assert large.page_cache_hit_ratio is None
    assert found.points[-1].high * found.observed.accesses_per_second > 5
    assert 0 < large.disk_reads_high <= small.disk_reads_high * 1.05 < 5
    assert large.disk_bytes_high <= small.disk_bytes_high * 1.05


def with_host(
    trace: Path,
    path: Path,
    *,
    counters: dict[str, float] | None = None,
    database: dict[str, float] | None = None,
    **changed: str,
) -> Path:
    """Write the trace once more, with other facts of the host, and with counters at both ends."""
    recorded = Evidence.open(trace)
    meta = msgspec.structs.replace(
        recorded.meta,
        host={**HOST, **changed},
        settings={**recorded.meta.settings, "track_io_timing": "on"},
    )
    objects = {"host": ("", counters), "database": (meta.database, database)}
    with EvidenceWriter(path, meta) as writer:
        writer.append("accesses", recorded.table("accesses"))
        writer.replace("relations", recorded.table("relations"))
        for sample, (scope, name, value) in enumerate(
            (scope, name, value)
            for scope, (_, counted) in objects.items()
            for name, gained in (counted or {}).items()
            for value in (1e6, 1e6 + gained)
        ):
            seconds = float(sample % 2 * SECONDS)
            row = (sample % 2, seconds, scope, objects[scope][0], name, value)
            names = ("sample", "seconds", "scope", "object", "name", "value")
            writer.append("counters", {key: [one] for key, one in zip(names, row, strict=True)})
        writer.close(meta)
    return path


def memory_of(path: Path, *, memory_bytes: int | None = None) -> MemoryPrediction:
    found = predict(path, sizes_bytes=SIZES_BYTES, memory_bytes=memory_bytes).memory
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plain(trace: Path) -> MemoryPrediction:
    """What is predicted where nothing was counted."""
    return memory_of(trace)


def test_the_throughput_with_another_memory_is_a_ratio_to_that_of_today(trace: Path, tmp_path: Path) -> None:
    """With `--ram` as with a what-if; advice compares sizes that have the same memory."""
    milliseconds = 1000.0 * SECONDS
    path = with_host(
        trace,
        tmp_path / "x",
        counters={"server_cpu_seconds": SECONDS, "host_cpu_seconds": SECONDS},
        database={
            "xact_commit": milliseconds,
            "active_time": 4 * milliseconds,
            "session_time": 4 * milliseconds,
            "blk_read_time": 2.5 * milliseconds,
            "blk_write_time": 0.0,
        },
        copy_nanoseconds="1000",
        processors="4",
        cold_read_nanoseconds="0",
    )
    more_bytes = 2 * int(HOST["memory_bytes"])
    plain, more = (memory_of(path, memory_bytes=size).throughput for size in (None, more_bytes))
    assert plain is not None and more is not None
    today = TODAY_BYTES
    ratios = {point.shared_buffers_bytes: point for point in plain.points}
    then = {point.shared_buffers_bytes: point for point in more.points}
    assert (ratios[today].ratio, ratios[today].low, ratios[today].high) == (1, 1, 1)
    assert 1 < then[today].low < then[today].ratio < then[today].high
    assert f"ratio to that of today's size with {format_bytes(more_bytes // 2)}" in more.reasons[0]
    changed = predict(path, sizes_bytes=SIZES_BYTES, what_if=[f"ram {more_bytes // 1024}kB"]).changed
    assert changed is not None and changed.memory is not None and changed.memory.throughput is not None
    for point in changed.memory.throughput.points:
        assert point.ratio == pytest.approx(then[point.shared_buffers_bytes].ratio)
    assert plain.against_same_memory == []
    against = {point.shared_buffers_bytes: point for point in more.by_size()}
    assert (against[today].low, against[today].ratio, against[today].high) == (1, 1, 1)
    for size, point in against.items():
        assert point.ratio * then[today].ratio == pytest.approx(then[size].ratio)
        # Most of what is not known of both is the same.
        assert point.high - point.low < then[size].high - then[size].low


def test_what_was_measured_stands_beside_what_is_simulated_and_widens_where_it_is_far(
    trace: Path, plain: MemoryPrediction, tmp_path: Path
) -> None:
    assert plain.measured_disk_bytes_per_second is None
    assert any("disk reads were not measured" in reason for reason in plain.reasons)
    near = memory_of(with_host(trace, tmp_path / "0", counters={"disk_read_bytes": 1e6}))
    simulated = near.simulated_disk_bytes_per_second
    assert simulated is not None and simulated > 1e5
    assert near.measured_disk_bytes_per_second == pytest.approx(1e6 / SECONDS)
    factors = (1.1, 3.0, 1 / 3)
    for number, factor in enumerate(factors, 1):
        counters = {"disk_read_bytes": simulated * SECONDS * factor}
        found = memory_of(with_host(trace, tmp_path / str(number), counters=counters))
        assert found.measured_disk_bytes_per_second == pytest.approx(simulated * factor)
        said = [reason for reason in found.reasons if "from disk (measured)" in reason]
        assert [one.endswith("; the interval includes that difference") for one in said] == [factor != 1.1]
        for before, after in zip(plain.points, found.points, strict=True):
            assert after.disk_reads_per_second == pytest.approx(before.disk_reads_per_second)
            wide = before.disk_reads_per_second * factor
            # No more than all misses can be read from disk.
            most = before.disk_reads_per_second / max(1 - known(before), 1e-9)
            assert after.disk_reads_low <= wide * (1 + 1e-9)
            assert after.disk_reads_high >= min(wide, most) * (1 - 1e-9)
            assert after.disk_reads_low <= before.disk_reads_low
            assert after.disk_reads_high >= before.disk_reads_high


def test_reads_of_the_cgroup_stand_in_where_those_of_the_processes_could_not_be_read(
    trace: Path, tmp_path: Path
) -> None:
    of_group = memory_of(with_host(trace, tmp_path / "group", counters={"cgroup_read_bytes": 2e6}))
    assert of_group.measured_disk_bytes_per_second == pytest.approx(2e6 / SECONDS)
    [said] = [reason for reason in of_group.reasons if "from disk (measured" in reason]
    assert "measured for all programs of its cgroup" in said
    counters = {"cgroup_read_bytes": 2e6, "disk_read_bytes": 1e6}
    both = memory_of(with_host(trace, tmp_path / "both", counters=counters))
    assert both.measured_disk_bytes_per_second == pytest.approx(1e6 / SECONDS)
    assert any("from disk (measured)" in reason for reason in both.reasons)


def test_what_was_held_twice_stands_beside_what_is_simulated_and_the_intervals_hold_it(
    trace: Path, plain: MemoryPrediction, tmp_path: Path
) -> None:
    assert plain.measured_twice_bytes is None
    assert not any("were in the page cache too" in reason for reason in plain.reasons)
    today = next(point for point in plain.points if point.shared_buffers_bytes == TODAY_BYTES)
    assert today.held_twice_bytes > MB // 4
    for number, measured in enumerate((today.held_twice_bytes // 2, TODAY_BYTES)):
        path = with_host(trace, tmp_path / str(number), data_twice_end_bytes=str(measured))
        found = memory_of(path)
        assert found.measured_twice_bytes == measured
        held = f"{format_bytes(measured)} of the pool were in the page cache too"
        assert any(held in reason for reason in found.reasons)
        now = next(point for point in found.points if point.shared_buffers_bytes == TODAY_BYTES)
        assert now.held_twice_bytes == today.held_twice_bytes
        assert now.held_twice_low_bytes - 8192 <= measured <= now.held_twice_high_bytes + 8192
        for point in found.points:
            assert 0 <= point.held_twice_low_bytes <= point.held_twice_bytes <= point.held_twice_high_bytes
            assert point.held_twice_high_bytes <= point.shared_buffers_bytes


def test_refaults_that_the_kernel_counts_are_compared_with_those_simulated(
    trace: Path, plain: MemoryPrediction, tmp_path: Path
) -> None:
    """A page cache of 26 MB hardly holds 42 MB of data, so that pages come back all the time."""
    few = memory_of(with_host(trace, tmp_path / "few", counters={"workingset_refault_file": 0.0}))
    [said] = [reason for reason in few.reasons if "the kernel refaulted" in reason]
    [seen] = re.findall(r"the simulation gives ([\d ]+),", said)
    simulated = int(seen.replace(" ", ""))
    assert said.startswith("the kernel refaulted 0 pages/s") and simulated > 100
    for before, after in zip(plain.points, few.points, strict=True):
        # The widening has an end: a quarter, however few were counted.
        quarter = before.disk_reads_per_second / 4
        assert after.disk_reads_low == pytest.approx(min(before.disk_reads_low, quarter), rel=0.2)
        assert after.disk_reads_high == pytest.approx(before.disk_reads_high)
    for factor, named in ((1.5, False), (0.7, False), (2.5, True)):
        counters = {"workingset_refault_file": simulated * SECONDS * factor}
        found = memory_of(with_host(trace, tmp_path / f"{factor:g}", counters=counters))
        assert any("the kernel refaulted" in reason for reason in found.reasons) == named
        highs = [
            after.disk_reads_high > before.disk_reads_high * 1.01
            for before, after in zip(plain.points, found.points, strict=True)
        ]
        assert any(highs) == named


def test_a_few_refaults_say_nothing(trace: Path, tmp_path: Path) -> None:
    """With 300 MB all data stay cached: none are simulated, and the 200 counted may be of other files."""
    host: dict[str, Any] = {"memory_bytes": str(300 * MB), "memory_page_cache_bytes": str(250 * MB)}
    for counted, named in ((200.0, False), (2000.0, True)):
        counters = {"workingset_refault_file": counted}
        found = memory_of(with_host(trace, tmp_path / f"{counted:g}", counters=counters, **host))
        assert any("the kernel refaulted" in reason for reason in found.reasons) == named


def test_the_interval_under_mglru_holds_the_two_lists(
    trace: Path, plain: MemoryPrediction, tmp_path: Path
) -> None:
    found = memory_of(with_host(trace, tmp_path / "x", mglru="on"))
    assert (plain.policy, found.policy) == ("two-lists", "mglru")
    assert any("multi-generational LRU is enabled" in reason for reason in found.reasons)
    assert not any("multi-generational" in reason for reason in plain.reasons)
    assert len(found.points) == len(plain.points) == len(SIZES_BYTES)
    for lists, bounded in zip(plain.points, found.points, strict=True):
        assert bounded.disk_reads_low <= lists.disk_reads_per_second <= bounded.disk_reads_high
        assert bounded.disk_bytes_low <= lists.disk_bytes_per_second <= bounded.disk_bytes_high
        assert bounded.page_cache_hit_low <= known(lists) <= bounded.page_cache_hit_high
        width = bounded.disk_reads_high - bounded.disk_reads_low
        assert width > lists.disk_reads_high - lists.disk_reads_low, "three rules are wider than one"


def test_less_memory_than_the_shared_memory_is_refused(trace: Path, tmp_path: Path) -> None:
    message = "the memory asked about, 9 MB, is less than the 10 MB of shared memory that the server has now"
    with pytest.raises(UsageError, match=message):
        predict(trace, memory_bytes=9 * MB)
    with pytest.raises(UsageError, match="is less than the 10 MB of shared memory"):
        predict(trace, what_if=["ram 9MB"])
    for command in ("predict", "advise"):
        done = run(command, str(trace), "--ram", "9MB")
        assert done.returncode == 2, done.stderr
        assert message in " ".join(done.stderr.split())
    # Snapshots without facts of the host: its pool alone does not fit.
    snapshots = LOAD.write_snapshots(tmp_path / "sql.evidence", 40_000, 10)
    for command in ("predict", "advise"):
        done = run(command, str(snapshots), "--ram", "7MB")
        assert done.returncode == 2, done.stderr
        assert "7 MB, is less than the 8 MB of shared memory" in " ".join(done.stderr.split())


def test_where_the_pool_leaves_nothing_today_smaller_ones_are_considered(trace: Path, tmp_path: Path) -> None:
    """8 of 47 MB are asked for by a pool that only half is touched of yet, 40 are taken."""
    path = with_host(trace, tmp_path / "x", memory_bytes=str(47 * MB), memory_shared_bytes=str(4 * MB),
                     memory_page_cache_bytes=str(3 * MB), memory_page_tables_bytes="0")  # fmt: skip
    found = predict(path, sizes_bytes=[2 * MB, TODAY_BYTES, 16 * MB]).memory
    assert found is not None
    smaller, today = found.points
    assert (smaller.shared_buffers_bytes, today.shared_buffers_bytes) == (2 * MB, TODAY_BYTES)
    assert smaller.page_cache_bytes > 4 * MB > today.page_cache_bytes == 47 * MB // 100
    [said] = [reason for reason in found.reasons if "smaller sizes are considered" in reason]
    assert said.startswith("today's shared_buffers of 8 MB leave no page cache in 47 MB")
    done = run("advise", str(path), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert said in result["remarks"]
    assert result["settings"][0]["action"] != "unknown"


def test_other_servers_are_counted_and_what_cannot_be_is_refused(trace: Path, tmp_path: Path) -> None:
    servers = [
        {"data_directory": "/srv/\x1b[31mpg", "port": 5433, "shared_memory_bytes": 5 * MB},
        {"data_directory": None, "port": None, "shared_memory_bytes": 3 * MB},
    ]
    path = with_host(trace, tmp_path / "x", other_servers=json.dumps(servers))
    [said] = [reason for reason in memory_of(path).reasons if "other PostgreSQL servers" in reason]
    assert said == "2 other PostgreSQL servers take 8 MB of the memory as shared memory (measured)"
    for wrong in ("{", "[1]", '[{"data_directory": "x", "port": 1, "shared_memory_bytes": -1}]'):
        with pytest.raises(EvidenceError, match="other_servers"):
            MemoryFacts.of(EvidenceMeta(source="trace", host={**HOST, "other_servers": wrong}))
    assert np.isfinite(memory_of(path).points[0].disk_reads_high)


def test_the_page_cache_of_a_kernel_with_larger_pages_is_not_simulated(trace: Path, tmp_path: Path) -> None:
    """A host with pages of 64 kB, as some kernels for arm64 have: the misses are predicted all the same."""
    path = with_host(trace, tmp_path / "x", page_bytes=str(64 << 10))
    result = predict(path, sizes_bytes=SIZES_BYTES, seed=1)
    assert result.memory is None
    assert [point.shared_buffers_bytes for point in result.points if point.miss_ratio > 0]
    (said,) = [one.text for one in result.verdict.reasons if one.code == "disk-reads-not-predicted"]
    assert "kernel's pages have 64 kB there" in said
    impossible = with_host(trace, tmp_path / "y", page_bytes="0")
    with pytest.raises(EvidenceError, match="page_bytes"):
        predict(impossible, sizes_bytes=SIZES_BYTES, seed=1)


def test_sizes_are_simulated_at_the_same_time_and_come_out_as_one_after_the_other(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = threading.Lock(), threading.Barrier(2, timeout=60)
    simulate = TraceDiskReads._simulate

    def met(self: TraceDiskReads, size_bytes: int, share: Share) -> SizeReads:
        together.wait()
        return simulate(self, size_bytes, share)

    def single(self: TraceDiskReads, size_bytes: int, share: Share) -> SizeReads:
        assert alone.acquire(blocking=False)
        try:
            return simulate(self, size_bytes, share)
        finally:
            alone.release()

    found = {}
    for processors, at in ((1, single), (2, met)):
        monkeypatch.setattr("os.cpu_count", lambda processors=processors: processors)
        monkeypatch.setattr(TraceDiskReads, "_simulate", at)
        found[processors] = memory_of(trace)
    assert len(found[1].points) == len(SIZES_BYTES) == 2
    assert found[1] == found[2]
