"""The least memory whose throughput is near today's: the search, against loads whose answer is known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pgsweep.advice.least import for_least, least_memory, least_words, pool_sizes, sessions_to_come
from pgsweep.errors import UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import DiskPoint, PredictResult, ReadCosts, Throughput, ThroughputPoint
from tests.fix_advice import GB, MB, facts, growing
from tests.fix_cli import run
from tests.fix_memory import KB, budget_of, seen
from tests.fix_shop import shop_under_load

TODAY = GB


class Load:
    """A throughput that grows with the memory until all data fits; `width` is that of its interval.

    Args:
        needed: with this much memory nothing is read from disk.
        width: of the interval, to either side, where something is.
        pool: shared_buffers must have this much of it.
    """

    def __init__(self, needed: int, *, width: float = 0.0, pool: int = 0) -> None:
        self.needed, self.width, self.pool = needed, width, pool
        self.asked: list[int] = []

    def ratio(self, memory: int) -> float:
        return min(1.0, memory / self.needed)

    def __call__(self, memory: int, sizes: Sequence[int]) -> PredictResult:
        self.asked.append(memory)
        known = growing().prediction
        assert known.memory is not None
        points = []
        for size in sizes:
            ratio = self.ratio(memory) / self.ratio(16 * GB) * (1.0 if size >= self.pool else 0.5)
            width = self.width if memory != 16 * GB else 0.0
            points.append(
                ThroughputPoint(shared_buffers_bytes=size, ratio=ratio, low=ratio - width, high=ratio + width)
            )
        memory_result = msgspec.structs.replace(
            known.memory, throughput=Throughput(points=points, reasons=[])
        )
        return msgspec.structs.replace(known, memory=memory_result)


@pytest.mark.parametrize("needed", [2 * GB, 5 * GB, 11 * GB])
def test_the_memory_that_suffices_is_found_within_a_step(needed: int) -> None:
    found = least_memory(Load(needed), facts(), TODAY, loss=0.02)
    assert found.memory_bytes is not None
    assert found.reclaim_bytes == 16 * GB - found.memory_bytes
    # Not less than 98% of what is needed, and not more than the next step above it.
    assert 0.98 * needed <= found.memory_bytes <= needed * 1.16
    assert found.throughput_low is not None
    assert found.throughput_low >= 0.98
    # Today's size does it: nothing is restarted for another.
    decision = for_least(found, TODAY)
    assert decision is not None
    assert (decision.size_bytes, decision.advice.action) == (TODAY, "leave")
    assert "can be reclaimed" in least_words(found)[0]


def test_a_wide_interval_leaves_more_memory() -> None:
    narrow, wide = (least_memory(Load(5 * GB, width=width), facts(), TODAY) for width in (0.001, 0.019))
    assert narrow.memory_bytes is not None
    assert wide.memory_bytes is not None
    assert wide.low_bytes is not None
    assert narrow.memory_bytes <= wide.memory_bytes
    assert wide.low_bytes <= narrow.memory_bytes
    unknown = least_memory(Load(5 * GB, width=0.05), facts(), TODAY)
    assert (unknown.memory_bytes, unknown.reclaim_bytes) == (16 * GB, 0)
    assert "nothing can be reclaimed for certain" in least_words(unknown)[0]
    assert for_least(unknown, TODAY) is None


def test_another_pool_is_set_where_today_s_does_not_do() -> None:
    found = least_memory(Load(5 * GB, pool=2 * GB), facts(), TODAY)
    assert found.shared_buffers_bytes is not None
    assert found.shared_buffers_bytes >= 2 * GB
    decision = for_least(found, TODAY)
    assert decision is not None
    assert decision.advice.action == "set"


def test_more_memory_that_would_pay() -> None:
    found = least_memory(Load(20 * GB), facts(), TODAY)
    assert (found.reclaim_bytes, found.pays_bytes) == (0, 4 * GB)
    assert found.pays_ratio == pytest.approx(1.25)
    assert any("4 GB more would pay" in text for text in least_words(found)[1])
    assert least_memory(Load(5 * GB), facts(), TODAY).pays_bytes is None


def test_sessions_that_may_come_are_set_aside() -> None:
    without = least_memory(Load(5 * GB), facts(), TODAY)
    found = least_memory(Load(5 * GB), facts(), TODAY, sessions_bytes=GB)
    assert without.memory_bytes is not None
    assert found.memory_bytes == without.memory_bytes + GB
    assert sessions_to_come(None) == 0
    # Ten connections with 2 MB and 200 kB of page tables each; 100 are allowed.
    assert sessions_to_come(budget_of(seen())) == 90 * (2 * MB + 200 * KB)


def test_without_a_throughput_what_sessions_wait_decides() -> None:
    """A tenth of a millisecond a read: 200 reads a second more are 2% of a session."""

    def predict(memory: int, sizes: Sequence[int]) -> PredictResult:
        known = growing().prediction
        assert known.memory is not None
        reads = 200.0 if memory < 3 * GB else 100.0
        old = known.memory.points[0]
        points: list[DiskPoint] = [
            msgspec.structs.replace(
                old,
                shared_buffers_bytes=size,
                disk_reads_per_second=reads,
                disk_reads_low=reads - 1,
                disk_reads_high=reads + 1 if memory >= 3 * GB else 350.0,
            )
            for size in sizes
        ]
        costs = ReadCosts(
            disk_read_seconds=1e-4, disk_read_kind="measured", copy_seconds=1e-6, copy_kind="measured"
        )
        memory_result = msgspec.structs.replace(known.memory, points=points, costs=costs, throughput=None)
        return msgspec.structs.replace(known, memory=memory_result)

    found = least_memory(predict, facts(), TODAY)
    assert found.by == "waiting"
    assert found.memory_bytes is not None
    assert found.low_bytes is not None
    assert 3 * GB <= found.memory_bytes <= 3 * GB * 1.16
    assert found.low_bytes < 3 * GB
    assert "one session that is always at work" in found.assumed[0]


def test_nothing_is_said_where_nothing_is_predicted() -> None:
    def refuses(memory: int, sizes: Sequence[int]) -> PredictResult:
        raise UsageError("it is not possible")

    found = least_memory(refuses, facts(), TODAY)
    assert (found.memory_bytes, found.reason) == (None, "it is not possible")
    assert least_words(found)[0] == "The least memory is not known: it is not possible"


def test_memory_below_what_is_shared_now_is_not_considered() -> None:
    load = Load(MB)
    found = least_memory(load, replace(facts(), shared_bytes=2 * GB), TODAY)
    assert min(load.asked) >= 2 * GB
    assert found.memory_bytes is not None
    assert found.memory_bytes >= 2 * GB
    assert pool_sizes(GB, 128 * MB)[-1] <= 0.8 * GB


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--loss", "2%"], "--loss goes with --least"),
        (["--least", "--ram", "4GB"], "--ram names the memory, and --least looks for it"),
        (["--least", "--loss", "200%"], "`200%` is not a share"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    done = run("advise", "absent.evidence", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.slow
@pytest.mark.one_server
@pytest.mark.skipif(os.geteuid() != 0, reason="tracing and memory cgroups need root")
def test_most_of_a_memory_that_nobody_uses_can_be_reclaimed(tmp_path: Path) -> None:
    """600 MB for 120 MB of data: they suffice with room, and less than the data does not."""
    try:
        cluster = Cluster.create(None, {"shared_buffers": "16MB"}, memory_limit_bytes=600 << 20)
    except Exception as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    with cluster, shop_under_load(cluster) as conninfo:
        done = run("record", conninfo, "--source", "trace", "--for", "4s", "-o", "t.evidence", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    words = ("advise", "t.evidence", "--least", "--format", "cnpg", "-o", "least.json")
    done = run(*words, cwd=tmp_path, timeout_seconds=400)
    assert done.returncode == 0, done.stderr
    least = json.loads((tmp_path / "least.json").read_text())["least"]
    assert least["memory_bytes"] is not None, least["reason"]
    assert 120 * MB < least["memory_bytes"] < 400 * MB
    assert least["low_bytes"] <= least["memory_bytes"]
    assert f'memory: "{least["memory_bytes"] // MB}Mi"' in done.stdout
