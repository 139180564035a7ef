"""The closed loop of sessions, and the throughput at other sizes, against exact solutions."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pgsweep.evidence.store import EvidenceMeta
from pgsweep.host.processor_time import copy_seconds, host_seconds, server_seconds
from pgsweep.pg.cluster import Cluster
from pgsweep.records.prediction import CurvePoint, MemoryPrediction, Observed, Throughput
from pgsweep.sizing.closed_loop import delay_for, throughput
from pgsweep.sizing.throughput import predict_throughput
from tests.fix_advice import GB, _disk_point


def exact(sessions: int, delay: float, demand: float, processors: int) -> float:
    """Return the throughput by the steady state of the birth and death process of sessions at work."""
    weights = [1.0]
    for at_work in range(1, sessions + 1):
        arrive = (sessions - at_work + 1) / delay
        leave = min(at_work, processors) / demand
        weights.append(weights[-1] * arrive / leave)
    total = sum(weights)
    return sum(weight / total * min(n, processors) / demand for n, weight in enumerate(weights))


@pytest.mark.parametrize("processors", [1, 2, 8])
@pytest.mark.parametrize(("sessions", "delay"), [(1, 0.01), (4, 0.002), (50, 0.01), (200, 0.1)])
def test_mean_value_analysis_is_exact(sessions: int, delay: float, processors: int) -> None:
    found = throughput(sessions, delay_seconds=delay, demand_seconds=0.001, processors=processors)
    assert found == pytest.approx(exact(sessions, delay, 0.001, processors), rel=0.002)


def test_the_delay_that_gives_a_throughput() -> None:
    loop = {"sessions": 7.5, "demand_seconds": 0.002, "processors": 2}
    measured = throughput(delay_seconds=0.013, **loop)  # type: ignore[arg-type]
    assert delay_for(measured, **loop) == pytest.approx(0.013, rel=1e-3)  # type: ignore[arg-type]
    assert delay_for(1001.0, **loop) is None, "two processors allow 1000 a second"  # type: ignore[arg-type]


class Recorded:
    """Counters of ten seconds with 4 sessions; the rest of the evidence is not needed."""

    def __init__(self, *, host: dict[str, str] | None = None, timing: str = "on", **changed: float) -> None:
        # 1000 transactions a second: 1 ms of processor, 2 ms of reads, 4 sessions that never pause.
        growth = {
            "xact_commit": 10_000.0,
            "active_time": 40_000.0,
            "session_time": 40_000.0,
            "blk_read_time": 20_000.0 + 12_000 * 0.001,
        }
        times = {"server_cpu_seconds": 10.0, "host_cpu_seconds": 11.0}
        rows: list[tuple[str, str, str, float, float]] = []
        for scope, named, values in (("database", "shop", growth), ("host", "", times)):
            for name, grown in values.items():
                rows.append((scope, named, name, 0.0, 5.0))
                rows.append((scope, named, name, 10.0, 5.0 + changed.get(name, grown)))
        self._table = {
            name: np.array([row[index] for row in rows])
            for index, name in enumerate(("scope", "object", "name", "seconds", "value"))
        }
        self.meta = EvidenceMeta(
            source="trace",
            seconds=10.0,
            database="shop",
            settings={"track_io_timing": timing},
            host={"copy_nanoseconds": "1000", "processors": "4", **(host or {})},
        )

    def table(self, name: str) -> dict[str, Any]:
        assert name == "counters"
        return self._table


def predicted(recorded: Recorded, reads: dict[int, float], width: float = 0.0) -> Throughput:
    # 2000 disk reads a second today, and 1200 copies.
    memory = MemoryPrediction(
        memory_bytes=16 * GB,
        memory_from="host",
        other_bytes=GB,
        measured_disk_bytes_per_second=None,
        policy="two-lists",
        points=[_disk_point(size, count, width) for size, count in reads.items()],
        reasons=[],
    )
    curve = [CurvePoint(shared_buffers_bytes=size, miss_ratio=0.032, low=0.03, high=0.034) for size in reads]
    observed = Observed(shared_buffers_bytes=GB, miss_ratio=0.032, accesses=1_000_000, seconds=10.0)
    return predict_throughput(recorded, observed, curve, memory)  # type: ignore[arg-type]


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


def test_the_interval_follows_that_of_the_disk_reads() -> None:
    found = predicted(Recorded(), {GB: 2000.0, 2 * GB: 1000.0}, width=0.1)
    (today, then) = found.points
    assert (today.low, today.high) == (1, 1)
    assert then.low < then.ratio < then.high
    assert math.isfinite(then.high)


@pytest.mark.parametrize(
    ("recorded", "words"),
    [
        (Recorded(timing="off"), "track_io_timing = on"),
        (Recorded(host={"copy_nanoseconds": ""}), "an earlier pgsweep"),
        (Recorded(host_cpu_seconds=40.0), "others use 75% of the processors"),
        (Recorded(xact_commit=10.0), "too few transactions"),
        (Recorded(blk_read_time=2_000.0), "locks, WAL, the network"),
        (Recorded(blk_read_time=1.0), "no longer than copies"),
        (Recorded(active_time=-1.0), "was not measured"),
    ],
)
def test_refusals(recorded: Recorded, words: str) -> None:
    found = predicted(recorded, {GB: 2000.0, 2 * GB: 1000.0})
    assert found.points == []
    assert words in found.reasons[0]


def test_what_is_not_read_from_disk_has_no_price() -> None:
    assert "next to nothing" in predicted(Recorded(), {GB: 1.0, 2 * GB: 0.5}).reasons[0]
    assert "today's size" in predicted(Recorded(), {2 * GB: 0.5}).reasons[0]


def test_times_of_a_real_server(wheel18: Cluster) -> None:
    pid = wheel18.postmaster_pid
    assert pid is not None
    first, host = server_seconds(pid), host_seconds()
    assert first is not None
    assert host is not None
    assert 0 < first < host
    second = server_seconds(pid)
    assert second is not None
    assert second >= first
    copy = copy_seconds(wheel18.bindir / "postgres")
    assert copy is not None
    assert 1e-7 < copy < 1e-4
    assert copy_seconds(Path("/nonexistent")) is None
    assert os.sysconf("SC_CLK_TCK") > 0
