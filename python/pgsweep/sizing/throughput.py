"""Transactions per second at each size, as a ratio to today's, from a trace of the server's host.

A transaction needs processor time, waits for reads, and is delayed by what else there is. All three are
known for today from counters over the recording:

    processor time    of the server's processes (/proc/PID/stat), divided by the transactions
    reads             blk_read_time of pg_stat_database (track_io_timing), less the copies from the page cache
    the rest          what makes the closed loop's throughput the measured one; taken as the same at each size

At another size the reads wait longer or shorter as disk reads do, and each miss more or less is a copy more
or less. The closed loop of the sessions then gives the throughput (closed_loop.py). Only the ratio is shown.
It is refused where the rest dominates, where others use the processors, and where what is needed was not
measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.records.prediction import MemoryPrediction, Observed, Throughput, ThroughputPoint
from pgsweep.sizing.closed_loop import delay_for, throughput

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgsweep.evidence.exported import TraceTables
    from pgsweep.records.prediction import CurvePoint

_MOST_REST: Final = 0.5
"""Of the time that transactions are at work: from here on the rest dominates."""

_MOST_OTHERS: Final = 0.5
"""Of the processors' time: from here on others saturate them."""

_FEWEST_READS: Final = 10.0
"""Disk reads per second below which their cost is not known."""

_FEWEST_TRANSACTIONS: Final = 100
_MOST_SESSIONS: Final = 10_000
_MARGIN: Final = 0.02
"""What the model itself may be off, at least: assumed."""


class _Refused(Exception):
    """There is no prediction; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The closed loop of today, measured.

    Attributes:
        sessions: connected, on average.
        transactions_per_second: of all of them.
        active_seconds: of a transaction, from the client's request to the answer.
        demand_seconds: processor time of a transaction.
        processors: that the server may use: all, less what others use.
        read_seconds: of waiting for reads in one second, page cache and disk.
        copy_seconds: of one read from the page cache.
    """

    sessions: float
    transactions_per_second: float
    active_seconds: float
    demand_seconds: float
    processors: int
    read_seconds: float
    copy_seconds: float


def predict_throughput(
    evidence: TraceTables, observed: Observed, curve: list[CurvePoint], memory: MemoryPrediction
) -> Throughput:
    """Return the throughput at each size that has disk reads, or why there is none.

    Args:
        evidence: a trace.
        observed: measured by it.
        curve: the miss ratios.
        memory: the disk reads.
    """
    try:
        return _predict(measure_loop(evidence), observed, curve, memory)
    except _Refused as refused:
        return Throughput(points=[], reasons=[f"throughput is not predicted: {refused}"])


def measure_loop(evidence: TraceTables) -> Loop:
    """Return the loop that the counters show.

    Raises:
        _Refused: they do not show one.
    """
    meta = evidence.meta
    if meta.settings.get("track_io_timing") != "on":
        raise _Refused(
            "how long sessions wait for reads was not measured (ALTER SYSTEM SET track_io_timing = on; a "
            "reload, then record again)"
        )
    copy = meta.host.get("copy_nanoseconds", "")
    processors = meta.host.get("processors", "")
    if not (copy.isdecimal() and len(copy) < 9 and processors.isdecimal() and 0 < int(processors) < 10_000):
        raise _Refused("the evidence was recorded by an earlier pgsweep, which measured no processor times")
    rate = _rates(evidence.table("counters"))
    host = {name: rate("host", "", f"{name}_cpu_seconds") for name in ("server", "host")}
    base = {
        name: rate("database", meta.database, name)
        for name in ("xact_commit", "xact_rollback", "active_time", "session_time", "blk_read_time")
    }
    server, busy = host["server"], host["host"]
    if server is None or busy is None or base["active_time"] is None or base["session_time"] is None:
        raise _Refused("the processor time of the server or the time of its sessions was not measured")
    commits = (base["xact_commit"] or 0.0) + (base["xact_rollback"] or 0.0)
    if commits * meta.seconds < _FEWEST_TRANSACTIONS:
        raise _Refused("too few transactions ended while it was observed")
    active = base["active_time"] / 1000
    sessions = max(base["session_time"] / 1000, active)
    others = max(0.0, busy - server)
    count = int(processors)
    if others > _MOST_OTHERS * count:
        raise _Refused(f"others use {others / count:.0%} of the processors")
    if sessions > _MOST_SESSIONS or active <= 0:
        raise _Refused("the sessions' times cannot be")
    return Loop(
        sessions=sessions,
        transactions_per_second=commits,
        active_seconds=active / commits,
        demand_seconds=min(server, count) / commits,
        processors=max(1, round(count - others)),
        read_seconds=(base["blk_read_time"] or 0.0) / 1000,
        copy_seconds=int(copy) / 1e9,
    )


def _rates(counters: dict[str, np.ndarray]) -> Callable[[str, str, str], float | None]:
    """Return what gives the growth per second of a counter; None where it is not there or fell."""
    scopes, objects, names = counters["scope"], counters["object"], counters["name"]
    seconds, values = counters["seconds"], counters["value"]

    def rate(scope: str, named: str, name: str) -> float | None:
        kind = scopes == scope
        rows = np.flatnonzero(kind & (objects == named) & (names == name))
        if not len(rows):
            return None
        begin, end = float(seconds[kind].min()), float(seconds[kind].max())
        # A counter that is not in the first sample was 0 there.
        first = float(values[rows[0]]) if seconds[rows[0]] == begin else 0.0
        grown = float(values[rows[-1]]) - first
        return grown / (end - begin) if end > begin and grown >= 0 else None

    return rate


def _predict(loop: Loop, observed: Observed, curve: list[CurvePoint], memory: MemoryPrediction) -> Throughput:
    size = observed.shared_buffers_bytes
    today = next((point for point in memory.points if point.shared_buffers_bytes == size), None)
    if today is None:
        raise _Refused("today's size is not among those predicted (--sizes)")
    if today.disk_reads_per_second < _FEWEST_READS:
        raise _Refused("next to nothing is read from disk today, so what such a read takes is not known")
    misses = {point.shared_buffers_bytes: point.miss_ratio for point in curve}
    accesses = observed.accesses / max(observed.seconds, 1e-9) / loop.transactions_per_second
    copies = max(0.0, misses[size] * accesses - today.disk_reads_per_second / loop.transactions_per_second)
    reads = loop.read_seconds / loop.transactions_per_second - copies * loop.copy_seconds
    if reads <= 0:
        raise _Refused("sessions wait for reads no longer than copies from the page cache take")
    delay = delay_for(
        loop.transactions_per_second,
        sessions=loop.sessions,
        demand_seconds=loop.demand_seconds,
        processors=loop.processors,
    )
    if delay is None:
        raise _Refused("the processors alone would not allow the throughput that was measured")
    think = max(0.0, loop.sessions / loop.transactions_per_second - loop.active_seconds)
    rest = delay - think - reads
    if rest > _MOST_REST * loop.active_seconds:
        raise _Refused(
            f"of the time that statements take, {rest / loop.active_seconds:.0%} are neither processor time "
            "nor reads, but locks, WAL, the network or waiting for a processor"
        )

    def ratio(disk: float, now: float, miss: float) -> float:
        # With the processors' part unchanged but for the copies; where reads seem to take more than all, they
        # take all that is no processor time.
        waited = min(reads, delay)
        changed = delay - waited + waited * disk / max(now, 1e-9)
        demand = loop.demand_seconds + (miss - misses[size]) * accesses * loop.copy_seconds
        found = throughput(
            loop.sessions,
            delay_seconds=changed,
            demand_seconds=max(demand, loop.demand_seconds / 10),
            processors=loop.processors,
        )
        return found / loop.transactions_per_second

    points = []
    for point in memory.points:
        at = point.shared_buffers_bytes
        if at == size:
            points.append(ThroughputPoint(shared_buffers_bytes=at, ratio=1.0, low=1.0, high=1.0))
            continue
        value = ratio(point.disk_reads_per_second, today.disk_reads_per_second, misses[at])
        low = ratio(point.disk_reads_high, today.disk_reads_low, misses[at])
        high = ratio(point.disk_reads_low, today.disk_reads_high, misses[at])
        points.append(
            ThroughputPoint(
                shared_buffers_bytes=at,
                ratio=value,
                low=min(low, value) * (1 - _MARGIN),
                high=max(high, value) * (1 + _MARGIN),
            )
        )
    return Throughput(
        transactions_per_second=loop.transactions_per_second,
        sessions=loop.sessions,
        processor_seconds=loop.demand_seconds,
        disk_read_seconds=reads * loop.transactions_per_second / today.disk_reads_per_second,
        copy_seconds=loop.copy_seconds,
        points=points,
        reasons=[
            "throughput is for as many sessions as today, each with the pauses of today; it includes what "
            "the recording itself cost"
        ],
    )
