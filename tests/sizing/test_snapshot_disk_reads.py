"""`predict --ram` and `advise` from snapshots: of a simulated pool, and of a server in a small memory."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest

from benchmarks.calibration.synthetic import SyntheticRelation, SyntheticSpec, simulate
from pgsweep.advice.ask import advise
from pgsweep.host.server_memory import disk_read_bytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.predict import predict
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.prediction import VIEW
from pgsweep.units import BLOCK_BYTES
from tests.fix_cli import run
from tests.fix_process import needs_cgroup, needs_root
from tests.fix_shop import shop_under_load

MB = 1 << 20
POOL_BYTES = 4 * MB
SIZES = [POOL_BYTES // 2, POOL_BYTES, 2 * POOL_BYTES, 16 * MB]
MEMORY_BYTES = 24 * MB


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give evidence by SQL of 31 MB of pages in a pool of 4 MB; nothing is known of its host."""
    folder = tmp_path_factory.mktemp("rates")
    relation = SyntheticRelation(
        pages=4000, law="zipf", exponent=0.9, share=1.0, accesses=1.0, gap_seconds=0.0
    )
    spec = SyntheticSpec(
        seed=2,
        version=18,
        pool_blocks=POOL_BYTES // BLOCK_BYTES,
        passes=60.0,
        snapshots=40,
        relations=(relation,),
    )
    simulate(spec, folder)
    return folder / "sql.evidence"


@pytest.fixture(scope="module")
def predicted(evidence: Path) -> PredictResult:
    return predict(evidence, sizes_bytes=[*SIZES, 22 * MB], memory_bytes=MEMORY_BYTES)


def test_without_a_memory_the_reason_says_to_name_it(evidence: Path) -> None:
    result = predict(evidence, sizes_bytes=SIZES)
    assert result.points
    assert result.memory is None
    assert any(
        "what comes from disk is not predicted: the evidence does not say how much memory" in reason.text
        and "--ram" in reason.text
        for reason in result.verdict.reasons
    )


def test_what_comes_from_disk_has_its_interval_at_each_size(predicted: PredictResult) -> None:
    memory = predicted.memory
    assert memory is not None
    assert (memory.memory_bytes, memory.memory_from, memory.other_assumed) == (MEMORY_BYTES, "asked", True)
    assert [point.shared_buffers_bytes for point in memory.points] == SIZES
    assert any("22 MB leave no page cache in 24 MB" in reason for reason in memory.reasons)
    misses = {point.shared_buffers_bytes: point for point in predicted.points}
    per_second = predicted.observed.accesses / predicted.observed.seconds
    for point in memory.points:
        missed = misses[point.shared_buffers_bytes]
        assert point.disk_reads_low <= point.disk_reads_per_second <= point.disk_reads_high
        assert 0 < point.disk_reads_per_second < missed.miss_ratio * per_second
        assert point.page_cache_hit_ratio is not None
        assert point.page_cache_hit_low <= point.page_cache_hit_ratio <= point.page_cache_hit_high
        assert point.disk_bytes_low <= point.disk_bytes_per_second <= point.disk_bytes_high
        assert 0 <= point.held_twice_bytes <= point.shared_buffers_bytes
        assert point.page_cache_low_bytes < point.page_cache_bytes < MEMORY_BYTES
    # Nothing of the host was seen: the intervals are wide, and the reasons say what is assumed.
    assert any("the server's host was not examined" in reason for reason in memory.reasons)
    assert memory.throughput is not None
    assert memory.throughput.points == []
    assert "the processors of the server's host were not looked at" in memory.throughput.reasons[0]
    assert sum(one.points[1].disk_reads_per_second for one in memory.relations) == pytest.approx(
        memory.points[1].disk_reads_per_second
    )
    text = VIEW.text(predicted, Terminal(width=100, unicode=False))
    assert "cached files (assumed)" in " ".join(text.split())


def test_what_fits_into_the_page_cache_is_not_read(evidence: Path) -> None:
    memory = predict(evidence, sizes_bytes=SIZES[:2], memory_bytes=1 << 30).memory
    assert memory is not None
    for point in memory.points:
        assert point.disk_reads_per_second == 0
        assert point.page_cache_hit_low > 0.9


def test_advice_rests_on_the_simulation(evidence: Path) -> None:
    result = advise(evidence, memory_bytes=64 * MB)
    assert result.disk_reads_from == "simulated"
    assert result.costs_kind == "assumed"
    assert not any("bounded" in remark for remark in result.remarks)
    assert advise(evidence).disk_reads_from == "unknown"


@pytest.mark.slow
@needs_root
@needs_cgroup
def test_disk_reads_are_those_that_the_kernel_counts(tmp_path: Path) -> None:
    """120 MB of data in a memory of 96 MB: today's disk reads for each access, by /proc/PID/io."""
    settings = {"shared_buffers": "8MB", "track_io_timing": "on", "autovacuum": "off", "huge_pages": "off"}
    with Cluster.create(None, settings, memory_limit_bytes=96 * MB) as cluster:
        pid = cluster.postmaster_pid
        assert pid is not None
        with shop_under_load(cluster) as conninfo, psycopg.connect(conninfo, autocommit=True) as session:

            def counted() -> tuple[int, int]:
                session.execute("SELECT pg_stat_clear_snapshot()")
                row = session.execute(
                    "SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = 'shop'"
                ).fetchone()
                read = disk_read_bytes(pid)
                assert row is not None
                assert read is not None
                return row[0], read

            # Both caches are full of what pgbench loaded; the pages that are read come in its place.
            begin = counted()
            while counted()[1] - begin[1] < 128 * MB:
                time.sleep(0.2)
            # On a busy machine the load may come in bursts, and the prediction is refused.
            for attempt in range(3):
                path = tmp_path / f"{attempt}.evidence"
                before = counted()
                done = run("record", conninfo, "--source", "peek", "--for", "8s", "-o", str(path))
                after = counted()
                assert done.returncode == 0, done.stderr
                result = predict(path)
                if result.points:
                    break
    measured = (after[1] - before[1]) / BLOCK_BYTES / (after[0] - before[0])
    assert result.memory is not None, result.verdict
    [today] = [point for point in result.memory.points if point.shared_buffers_bytes == 8 * MB]
    accesses = result.observed.accesses / result.observed.seconds
    low, high = (bound / BLOCK_BYTES / accesses for bound in (today.disk_bytes_low, today.disk_bytes_high))
    # One in ten lies outside, and on a busy machine the load changes between snapshots and counters.
    assert 0.7 * low <= measured <= 1.4 * high, (low, measured, high)
    assert high < 3 * low, "an interval that says nothing"
    assert any("a miss takes" in reason for reason in result.memory.reasons)
    loop = result.memory.throughput
    assert loop is not None
    if loop.points:
        assert [one.ratio for one in loop.points if one.shared_buffers_bytes == 8 * MB] == [1.0]
        assert loop.processor_seconds is not None
        assert 10e-6 < loop.processor_seconds < 0.1
    else:  # beside other tests the processors are taken, and a statement's time is mostly waiting for one
        assert "of the processors" in loop.reasons[0] or "of the time that statements take" in loop.reasons[0]
    advice = advise(path)
    assert (advice.disk_reads_from, advice.costs_kind) == ("simulated", "measured")


def test_pages_that_are_made_while_misses_are_waited_for_are_no_others() -> None:
    """Where misses are rare hours are simulated; what a table grows by in them drove out what was there."""
    seen = Path(__file__).parents[1] / "answers" / "evidence" / "sql-other-load-15"
    memory = predict(seen, sizes_bytes=[8 * MB, 16 * MB]).memory
    assert memory is not None
    for point in memory.points:
        assert point.page_cache_low_bytes > 16 * MB, "all data fit"
        assert point.page_cache_hit_ratio in (None, 1)
        assert point.disk_reads_per_second == 0
