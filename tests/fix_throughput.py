"""Counters of a closed loop of sessions, and the exact throughput of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from pgsweep.evidence.store import EvidenceMeta
from pgsweep.records.prediction import CurvePoint, MemoryPrediction, Observed, Throughput
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.throughput.closed_loop import ClosedLoop
from pgsweep.sizing.throughput.prediction import ReadLoad, predict_throughput
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


def throughput(sessions: float, **loop: float) -> float:
    """Return what a closed loop brings through."""
    return ClosedLoop(**loop).throughput(sessions)  # type: ignore[arg-type]


def delay_for(measured: float, *, sessions: float, demand_seconds: float, processors: float) -> float | None:
    """Return the delay with which a closed loop reaches a throughput."""
    loop = ClosedLoop(delay_seconds=0.0, demand_seconds=demand_seconds, processors=processors)
    return loop.delay_for(measured, sessions)


class Recorded:
    """Counters of ten seconds with 4 sessions; the rest of the evidence is not needed."""

    def __init__(
        self,
        *,
        host: dict[str, str] | None = None,
        timing: str = "on",
        overhead: dict[str, float] | None = None,
        io: dict[str, float] | None = None,
        bgwriter: dict[str, float] | None = None,
        **changed: float,
    ) -> None:
        # 1000 transactions a second: 1 ms of processor, 2 ms of reads, 4 sessions that never pause.
        growth = {
            "xact_commit": 10_000.0,
            "active_time": 40_000.0,
            "session_time": 40_000.0,
            "blk_read_time": 20_000.0 + 12_000 * 0.001,
            "blk_write_time": 0.0,
        }
        times = {"server_cpu_seconds": 10.0, "host_cpu_seconds": 10.0}
        rows: list[tuple[str, str, str, float, float]] = []
        counted = (
            ("database", "shop", growth),
            ("host", "", times),
            ("io", "client backend/relation/normal", io or {}),
            ("bgwriter", "", bgwriter or {}),
        )
        for scope, named, values in counted:
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
            overhead=overhead or {},
            host={
                "copy_nanoseconds": "1000",
                "processors": "4",
                "cold_read_nanoseconds": "0",
                **(host or {}),
            },
        )

    def table(self, name: str) -> dict[str, Any]:
        assert name in {"counters", "read_times"}
        # None of its reads was timed one by one.
        return self._table if name == "counters" else {"reads": np.zeros(0)}


def predicted(
    recorded: Recorded,
    reads: dict[int, float],
    width: float = 0.0,
    *,
    measured: float | None = None,
    blocks: dict[int, float] | None = None,
    sessions_factor: float = 1.0,
    then: dict[int, float] | None = None,
    misses: dict[int, float] | None = None,
    accesses: int = 1_000_000,
) -> Throughput:
    """Return the throughput; `then` are the disk reads with more sessions or another memory."""

    # 2000 disk reads a second today, and 1200 copies.
    def memory(reads: dict[int, float]) -> MemoryPrediction:
        return MemoryPrediction(
            memory_bytes=16 * GB,
            memory_from="host",
            other_bytes=GB,
            measured_disk_bytes_per_second=measured,
            simulated_disk_bytes_per_second=None if measured is None else 1000.0,
            policy="two-lists",
            points=[
                _disk_point(size, count, width, count if blocks is None else blocks[size])
                for size, count in reads.items()
            ],
            reasons=[],
        )

    def point(size: int) -> CurvePoint:
        miss = 0.032 if misses is None else misses[size]
        return CurvePoint(shared_buffers_bytes=size, miss_ratio=miss, low=miss - 0.002, high=miss + 0.002)

    curve = [point(size) for size in reads]
    observed = Observed(shared_buffers_bytes=GB, miss_ratio=0.032, accesses=accesses, seconds=10.0)
    now = ReadLoad(curve=curve, memory=memory(reads))
    other = None
    if then is not None:
        other = ReadLoad(curve=curve, memory=memory(then), sessions_factor=sessions_factor)
    return predict_throughput(Observation(recorded), observed, now, other)  # type: ignore[arg-type]
