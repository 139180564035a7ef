"""What reads cost at each size: misses, disk reads, and the time that sessions wait for both.

The disk reads are simulated: from a trace by replay (sizing/page_cache/disk_reads.py), from snapshots by
the fitted rates (sizing/page_cache/snapshot_disk_reads.py). Where that is not possible, only the pool's
misses are known, and the disk reads lie between bounds. With a pool of s blocks, a page cache of C and the
misses m(n) of a pool of n blocks:

    m(s + C)  <=  disk reads  <=  m(s)

because both caches together hold at most s + C blocks, and what is not missed is not read. Where accesses are
independent of each other the page cache serves nearly as a pool of its own size would: in 40 simulated
settings (Zipf 0.5 to 1.2, C from a quarter of s to 16 times s) disk reads were 0.82 to 1.08 times
m(max(s, C)) (tests/advice/test_advice_reads.py). This is assumed, with some room. Where the relations fit
into the page cache, nothing comes from disk.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pgsweep.advice.situation import Situation
from pgsweep.advice.summary import THROUGHPUT
from pgsweep.records.advice import Gain, ReadsPoint
from pgsweep.records.prediction import CurvePoint, MemoryPrediction, ReadCosts
from pgsweep.sizing.throughput.read_costs import Bounded, waiting

LEAST_OF_ONE_CACHE: Final = 0.75
MOST_OF_ONE_CACHE: Final = 1.15

Basis = Literal["simulated", "bounded", "unknown"]
WAITING: Final = "time waiting for reads"


def reads_by_size(situation: Situation) -> tuple[list[ReadsPoint], Basis]:
    """Return what reads cost at each candidate whose misses are known, and how the disk reads are known."""
    curve = {point.shared_buffers_bytes: point for point in situation.prediction.points}
    per_second = situation.prediction.observed.accesses_per_second
    memory = situation.prediction.memory
    if memory is not None:
        simulated = {point.shared_buffers_bytes: point for point in memory.points}
        found = []
        for size in situation.candidates:
            if size in curve and size in simulated:
                disk = simulated[size]
                bounds = (disk.disk_reads_per_second, disk.disk_reads_low, disk.disk_reads_high)
                point = _point(curve[size], per_second, bounds, situation.costs)
                found.append(_with_throughput(point, memory))
        return found, "simulated"
    basis: Basis = "unknown" if situation.facts is None else "bounded"
    points = []
    for size in situation.candidates:
        if size in curve:
            low, high = _bounds(size, curve, situation)
            bounds = ((low + high) / 2 * per_second, low * per_second, high * per_second)
            points.append(_point(curve[size], per_second, bounds, situation.costs))
    return points, basis


def _with_throughput(point: ReadsPoint, memory: MemoryPrediction) -> ReadsPoint:
    """Return the point with the throughput, as a ratio to today's size with the same memory."""
    loop = [] if memory.throughput is None else memory.throughput.by_size()
    at = next((one for one in loop if one.shared_buffers_bytes == point.shared_buffers_bytes), None)
    if at is None:
        return point
    return msgspec.structs.replace(
        point, throughput_ratio=at.ratio, throughput_low=at.low, throughput_high=at.high
    )


def _bounds(size: int, curve: dict[int, CurvePoint], situation: Situation) -> tuple[float, float]:
    """Return which share of the accesses reads from disk, at least and at most."""
    most = curve[size].high
    share = situation.share(size)
    if share is None:
        return 0.0, most
    if situation.data_bytes <= share.low_bytes and not situation.memory_assumed:
        return 0.0, 0.0
    together = _at(curve, size + share.page_cache_bytes)
    least = 0.0 if together is None else together.low
    alone = _at(curve, max(size, share.page_cache_bytes))
    if alone is not None:
        least = max(least, alone.low * LEAST_OF_ONE_CACHE)
    alone = _at(curve, max(size, share.low_bytes))
    if alone is not None:
        most = min(most, alone.high * MOST_OF_ONE_CACHE)
    return min(least, most), most


def _at(curve: dict[int, CurvePoint], size: int) -> CurvePoint | None:
    return curve.get(size // 8192 * 8192)


def _point(point: CurvePoint, per_second: float, disk: Bounded, costs: ReadCosts) -> ReadsPoint:
    value, low, high = disk
    misses = (point.miss_ratio * per_second, point.low * per_second, point.high * per_second)
    wait, wait_low, wait_high = waiting(disk, misses, costs)
    return ReadsPoint(
        shared_buffers_bytes=point.shared_buffers_bytes,
        misses_per_second=misses[0],
        misses_low=misses[1],
        misses_high=misses[2],
        disk_reads_per_second=value,
        disk_reads_low=low,
        disk_reads_high=high,
        wait_ratio=wait,
        wait_low=wait_low,
        wait_high=wait_high,
    )


def throughput_gain(then: ReadsPoint) -> Gain | None:
    """Return by how much a size raises the throughput; None where that is not predicted."""
    ratio, low, high = then.throughput_ratio, then.throughput_low, then.throughput_high
    if ratio is None or low is None or high is None:
        return None
    return Gain(of=THROUGHPUT, unit="ratio", value=ratio - 1, low=low - 1, high=high - 1)


def best_gain_of(today: ReadsPoint, then: ReadsPoint) -> Gain:
    """Return the throughput that a size wins where that is predicted, else the waiting that it saves."""
    return throughput_gain(then) or gain_of(today, then)


def gain_of(today: ReadsPoint, then: ReadsPoint) -> Gain:
    """Return which share of the time that sessions wait for reads a size saves, at least and at most.

    The ends are those of both intervals against each other, as if their errors were independent, so the
    interval is rather too wide.
    """

    def saved(now: float, later: float) -> float:
        return 0.0 if now == later else 1 - later / max(now, 1e-12)

    return Gain(
        of=WAITING,
        unit="ratio",
        value=max(-99.0, saved(today.wait_ratio, then.wait_ratio)),
        low=max(-99.0, saved(today.wait_low, then.wait_high)),
        high=max(-99.0, saved(today.wait_high, then.wait_low)),
    )
