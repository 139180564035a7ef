"""Transactions per second at each size, as a ratio to today's, from evidence of the server's host.

A transaction needs processor time, waits for reads, and is delayed by what else there is. All three are
known for today from counters over the recording (measured_loop.py). The rest is what makes the closed loop's
throughput the measured one, and is taken as the same at each size. What a miss, a read from disk and a block
that comes with it take is below. docs/concepts/prediction-throughput.md gives the reasons.

Only the ratio is shown. For its interval, each of what is not known exactly is set to its ends by itself, and
the deviations that follow are added in quadrature, since their causes are independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pgsweep.records.prediction import MemoryPrediction, Observed, Throughput, ThroughputPoint
from pgsweep.sizing.page_cache.memory_shares import is_another_memory
from pgsweep.sizing.throughput.disk_waits import DiskWaits
from pgsweep.sizing.throughput.measured_loop import MOST_SESSIONS, MeasuredLoop, Refused, measure_loop
from pgsweep.units import BLOCK_BYTES, format_bytes, format_percent, format_plain

if TYPE_CHECKING:
    from pgsweep.records.prediction import CurvePoint, DiskPoint
    from pgsweep.sizing.observed import Observation, Server

_MOST_REST: Final = 0.5
"""The share of the time of active transactions from which on the rest dominates."""

_FEWEST_READS: Final = 10.0
"""Disk reads per second below which their cost is not known."""

_MOST_UNKNOWN: Final = 0.2
"""The share of the time of active transactions that may be waiting for reads that are neither copies nor disk
reads."""

_MARGIN: Final = 0.03
"""The error of the model itself: what is left of it in benchmarks/advise."""

_BEYOND_READER: Final = (1.0, 1.25, 1.75)
"""What a disk read takes of the processors, as multiples of what its reader takes: at least, likely, at most.
The interrupt at its end, and reclaim of the page whose room it takes, come on top. Assumed."""


_MISS: Final = (1.0, 1.4, 1.9)
"""What a miss takes of the processors, as multiples of a copy from the page cache: at least, likely, at most.
Beside the copy the server searches for a buffer, empties it and enters the page. Assumed: in
benchmarks/advise it was 1.0 to 1.5 on one host and 1.6 on another."""

_BROUGHT: Final = (1.0, 3.0, 4.5)
"""What a block that is read ahead takes of the processors, as multiples of a copy: at least, likely, at most.
Its pages are found, entered and later reclaimed like those of any read. Assumed: in benchmarks/advise the
server's processor time shows 2.4, with a standard error of 0.8; the throughput 3.8, with one of 1.2."""

_AHEAD: Final = (0.2, 0.6, 1.0)
"""What a block that another read brings with it counts, of a read: at least, likely, at most. Assumed: the
read takes longer, and the device transfers as much as for another one. In benchmarks/advise the throughput
shows that such a block costs 0.4 of what a read costs on one host (standard error 0.04), and 1.0 on another
(0.2), what it takes of the processors included."""


_ONLY_COPIES: Final = (
    "almost nothing is read from disk today, so the time of such a read is not known: throughput is not "
    "predicted where blocks may be read from disk (sizes left out: {count})"
)


@dataclass(frozen=True, kw_only=True)
class ReadLoad:
    """What sessions read at each size.

    Attributes:
        curve: the miss ratios.
        memory: the disk reads, of `sessions_factor` times the accesses of today.
        sessions_factor: this many times the sessions of today, each of which does what one of today does.
    """

    curve: list[CurvePoint]
    memory: MemoryPrediction
    sessions_factor: float = 1.0

    def miss_ratios(self) -> dict[int, float]:
        """Return the miss ratio at each size."""
        return {point.shared_buffers_bytes: point.miss_ratio for point in self.curve}


def predict_throughput(
    observation: Observation, observed: Observed, now: ReadLoad, then: ReadLoad | None = None
) -> Throughput:
    """Return the throughput at each size that has disk reads, or why there is none.

    Args:
        observation: a trace, or snapshots recorded on the server's host.
        observed: measured by it.
        now: with the memory and the sessions that were observed.
        then: with others; the throughput is with it, as a ratio to today's with `now`.
    """
    try:
        _refuse_another_memory(observation.server, now.memory)
        return _predict(measure_loop(observation), observed, now, then)
    except Refused as refused:
        return Throughput(points=[], reasons=[f"throughput is not predicted: {refused}"])


def _refuse_another_memory(server: Server, memory: MemoryPrediction) -> None:
    recorded, asked = server.host.get("memory_bytes", ""), memory.memory_bytes
    if recorded.isdecimal() and len(recorded) < 16 and is_another_memory(int(recorded), asked):
        raise Refused(
            f"sessions waited with {format_bytes(int(recorded))} of memory, not with {format_bytes(asked)}; "
            f"what another memory changes: --what-if 'ram {format_bytes(asked).replace(' ', '')}'"
        )


@dataclass(frozen=True)
class _Disk:
    """Disk reads in a second that a session waits for, and the blocks read from disk, readahead included."""

    reads: float
    blocks: float

    def times(self, factor: float) -> _Disk:
        return _Disk(self.reads * factor, self.blocks * factor)

    @property
    def ahead(self) -> float:
        """Blocks that reads for others brought."""
        return max(0.0, self.blocks - self.reads)


def _disk(point: DiskPoint) -> tuple[_Disk, _Disk, _Disk]:
    """Return the disk reads at a size: likely, at least, at most."""
    return (
        _Disk(point.disk_reads_per_second, point.disk_bytes_per_second / BLOCK_BYTES),
        _Disk(point.disk_reads_low, point.disk_bytes_low / BLOCK_BYTES),
        _Disk(point.disk_reads_high, point.disk_bytes_high / BLOCK_BYTES),
    )


def _today(today: DiskPoint, memory: MemoryPrediction) -> tuple[_Disk, _Disk, _Disk]:
    """Return today's disk reads, likely, at least and at most: as far off as the measured bytes show."""
    likely, low, high = _disk(today)
    measured, simulated = memory.measured_disk_bytes_per_second, memory.simulated_disk_bytes_per_second
    if not measured or not simulated:
        return likely, low, high
    off = abs(measured / simulated - 1)
    less, more = likely.times(1 - off), likely.times(1 + off)
    return (
        likely,
        _Disk(max(low.reads, less.reads), max(low.blocks, less.blocks)),
        _Disk(min(high.reads, more.reads), min(high.blocks, more.blocks)),
    )


def _grown(then: _Disk, now: _Disk, ahead: float) -> float:
    """Return how many times as long sessions wait for the disk.

    Args:
        ahead: what a block that is read ahead counts, of a read.
    """
    return (then.reads + ahead * then.ahead) / max(now.reads + ahead * now.ahead, 1e-9)


def _crowded(then_bytes: int, now_bytes: int, dirty_share: float, gone: float) -> float:
    """Return how many times as long reads wait at most, where another page cache holds what sessions write.

    Args:
        then_bytes: of the page cache.
        now_bytes: of today's.
        dirty_share: of the pages that leave the pool.
        gone: pages that leave the pool for each disk read, with the smaller page cache. At most all that are
            dirty are written, each once, beside the read; at least none are with the larger one.
    """
    less = max(now_bytes, 1) / max(then_bytes, 1)
    longer = 1 + dirty_share * min(max(less, 1 / less) - 1, gone)
    return longer if less >= 1 else 1 / longer


def _written(misses: float, dirty_share: float) -> tuple[float, float]:
    """Return how many times as many pages sessions write to make room, at two ends.

    At one end the same share of the pages that leave the pool is dirty. At the other as many as today are, or
    all that leave it: what sessions write may be just what no size keeps.

    Args:
        misses: how many times as many pages leave the pool.
        dirty_share: of those that leave it today.
    """
    return misses, min(1.0, misses / max(dirty_share, 1e-9))


def _assumed(loop: MeasuredLoop, factor: float) -> list[str]:
    found = []
    if not loop.writes_timed:
        found.append(
            "how long sessions write was not measured (track_io_timing is off): what they wait for it is "
            "taken as the same at each size"
        )
    if loop.cold_read_seconds is None:
        found.append(
            "what a read from disk takes of a processor was not measured: 30 microseconds are assumed"
        )
    if not loop.latencies and factor != 1:
        found.append(
            "the latency of the disk by depth was not measured "
            f"({loop.no_latencies}): the interval goes from reads that wait as long as today to a device "
            "that serves one after the other"
        )
    elif not loop.latencies:
        found.append(
            "a read from disk is assumed to take equally long at each depth, too optimistic where more are "
            f"in flight than today: the latency by depth was not measured ({loop.no_latencies})"
        )
    return found


@dataclass(frozen=True)
class _Causes:
    """A throughput, and what it is with each of what is not known exactly at its ends.

    Attributes:
        likely: the throughput.
        ends: by cause, of which the first are the disk reads at the size; one end or two.
    """

    likely: float
    ends: list[list[float]]

    def point(self, size_bytes: int) -> ThroughputPoint:
        """Return the throughput at a size, with its interval: the deviations in quadrature."""
        below = (max(0.0, self.likely - min(values)) for values in self.ends)
        above = (max(0.0, max(values) - self.likely) for values in self.ends)
        return ThroughputPoint(
            shared_buffers_bytes=size_bytes,
            ratio=self.likely,
            low=max(0.0, self.likely - math.hypot(*below)),
            high=self.likely + math.hypot(*above),
        )

    def relative_to(self, base: _Causes) -> _Causes:
        """Return the throughput divided by that at another size, where each cause is at the same end.

        The disk reads of the two may be off in opposite directions, and so may the model.
        """
        together = [
            [one / max(other, 1e-9) for one, other in zip(values, others, strict=True)]
            for values, others in zip(self.ends[1:-1], base.ends[1:-1], strict=True)
        ]
        apart = [[one / base.likely for one in self.ends[end]] for end in (0, -1)]
        apart.append([self.likely / max(one, 1e-9) for one in base.ends[0]])
        return _Causes(self.likely / base.likely, [*apart, *together])


@dataclass(frozen=True, kw_only=True)
class _Balance:
    """What a transaction of today spends its time on.

    Attributes:
        point: the disk reads at today's size.
        disk: likewise, likely, at least and at most.
        accesses: of pages.
        misses: among them.
        read_seconds: of waiting for reads from disk.
        delay_seconds: outside the processors, this and the pauses of the session included.
        rest_seconds: of that, what is neither reads nor pauses.
        few: almost nothing is read from disk, so the time of such a read is not known.
    """

    point: DiskPoint
    disk: tuple[_Disk, _Disk, _Disk]
    accesses: float
    misses: float
    read_seconds: float
    delay_seconds: float
    rest_seconds: float
    few: bool


def _balance(loop: MeasuredLoop, observed: Observed, now: ReadLoad, today: DiskPoint) -> _Balance:
    """Return what a transaction of today spends its time on.

    Raises:
        Refused: too much of it has no known cause.
    """
    few = today.disk_reads_per_second < _FEWEST_READS
    accesses = observed.accesses_per_second / loop.transactions_per_second
    misses = now.miss_ratios()[today.shared_buffers_bytes] * accesses
    copies = max(0.0, misses - today.disk_reads_per_second / loop.transactions_per_second)
    reads = loop.read_seconds / loop.transactions_per_second - copies * loop.copy_seconds
    if few:
        reads = max(reads, 0.0)
        if reads > _MOST_UNKNOWN * loop.active_seconds:
            raise Refused(
                f"sessions wait for reads for {format_percent(reads / loop.active_seconds)} of the time that "
                "statements take, though almost nothing is read from disk"
            )
    elif reads <= 0:
        raise Refused("sessions wait for reads no longer than copies from the page cache take")
    delay = loop.delay_seconds()
    if delay is None:
        raise Refused("the processors alone would not allow the throughput that was measured")
    think = max(0.0, loop.sessions / loop.transactions_per_second - loop.active_seconds)
    rest = delay - think - reads
    if rest > _MOST_REST * loop.active_seconds:
        raise Refused(
            f"of the time that statements take, {format_percent(rest / loop.active_seconds)} are neither "
            "processor time nor reads, but locks, WAL, the network or waiting for a processor"
        )
    return _Balance(
        point=today,
        disk=_today(today, now.memory),
        accesses=accesses,
        misses=misses,
        read_seconds=reads,
        delay_seconds=delay,
        rest_seconds=rest,
        few=few,
    )


@dataclass(frozen=True, kw_only=True)
class _Supposed:
    """What is not known exactly, at values that it may have.

    Attributes:
        then: disk reads at the size, per second; `now` those of today.
        miss, beyond, ahead, brought: as `_MISS`, `_BEYOND_READER`, `_AHEAD` and `_BROUGHT`.
        writes: how many times as long reads wait behind writes.
        written: how many times as many pages sessions write.
        delayed: how many times as long the rest takes.
        curve: of the latency by depth; the likely one by default.
        waits: with the time of other programs as the clients', or with it apart.
    """

    then: _Disk
    now: _Disk
    writes: float
    written: float
    waits: DiskWaits
    miss: float = _MISS[1]
    beyond: float = _BEYOND_READER[1]
    ahead: float = _AHEAD[1]
    brought: float = _BROUGHT[1]
    delayed: float = 1.0
    curve: int | None = None


class _Sizes:
    """The throughput at each size.

    Args:
        loop: of today.
        balance: of a transaction of today.
        load: what sessions read at each size.
    """

    def __init__(self, loop: MeasuredLoop, balance: _Balance, load: ReadLoad) -> None:
        self._loop = loop
        self._balance = balance
        self._factor = load.sessions_factor
        self._misses = load.miss_ratios()
        sessions, now = loop.sessions * load.sessions_factor, balance.disk[0].reads
        clients = loop.with_clients()
        delay = clients.delay_seconds()
        self._apart = DiskWaits(loop, balance.read_seconds, balance.delay_seconds, now, sessions)
        self.waits = (
            self._apart if delay is None else DiskWaits(clients, balance.read_seconds, delay, now, sessions)
        )
        self._rest = max(balance.rest_seconds, 0.0)
        self._write_wait = min(loop.write_wait_seconds / loop.transactions_per_second, self._rest)

    def at(self, point: DiskPoint) -> _Causes:
        """Return the throughput at a size, and at the ends of what is not known exactly."""
        balance = self._balance
        then, low, high = (one.times(1 / self._factor) for one in _disk(point))
        now, now_low, now_high = balance.disk
        missed = self._misses[point.shared_buffers_bytes] * balance.accesses
        smaller = point.page_cache_bytes <= balance.point.page_cache_bytes
        gone, beside = (missed, then.reads) if smaller else (balance.misses, now.reads)
        crowded = _crowded(
            point.page_cache_bytes,
            balance.point.page_cache_bytes,
            self._loop.dirty_share,
            gone * self._loop.transactions_per_second / max(beside, 1e-9),
        )
        writing = _written(missed / max(balance.misses, 1e-9), self._loop.dirty_share)
        likely = _Supposed(
            then=then, now=now, writes=math.sqrt(crowded), written=sum(writing) / 2, waits=self.waits
        )

        def ends(name: str, values: Iterable[Any]) -> list[float]:
            return [self._ratio(replace(likely, **{name: value}), missed) for value in values]

        ratio = self._ratio(likely, missed)
        return _Causes(
            ratio,
            [
                ends("then", (low, high)),
                ends("now", (now_low, now_high)),
                ends("miss", _MISS[::2]),
                ends("beyond", _BEYOND_READER[::2]),
                ends("ahead", _AHEAD[::2]),
                ends("brought", _BROUGHT[::2]),
                ends("writes", (1.0, crowded)),
                ends("written", writing),
                *(ends("curve", pair) for pair in self.waits.curve_ends),
                ends("delayed", (1.0, self._factor)),
                ends("waits", (self._apart,)),
                [ratio * (1 - _MARGIN), ratio * (1 + _MARGIN)],
            ],
        )

    def _ratio(self, supposed: _Supposed, missed: float) -> float:
        """Return the throughput divided by that of today, where a transaction misses so many pages."""
        loop, waits, then, now = self._loop, supposed.waits, supposed.then, supposed.now
        demand = waits.unrecorded + (missed - self._balance.misses) * loop.copy_seconds * supposed.miss
        demand += (supposed.written - 1) * loop.write_seconds / loop.transactions_per_second
        grown = 1.0
        if not self._balance.few:
            grown = _grown(then, now, supposed.ahead)
            more = (then.reads * supposed.writes - now.reads) * waits.cold_seconds * supposed.beyond
            more += (then.ahead - now.ahead) * loop.copy_seconds * supposed.brought
            demand += more / loop.transactions_per_second
        return waits.ratio(
            waits.waited(now.reads),
            grown * supposed.writes,
            max(demand, waits.unrecorded / 10),
            supposed.curve,
            self._rest * (supposed.delayed - 1) + (supposed.written - 1) * self._write_wait,
        )


def _sessions(factor: float) -> str:
    """Return for how many sessions the throughput is, and what is assumed of more."""
    if factor == 1:
        return "throughput is for as many sessions as today, each with the pauses of today"
    return (
        f"throughput is for {format_plain(factor)} times the sessions, each with the pauses of today; disk "
        "reads per second are for that many times the accesses, which the server may not reach"
    )


def _predictable(today: DiskPoint, now: ReadLoad, then: ReadLoad | None) -> tuple[list[DiskPoint], int]:
    """Return the sizes whose throughput can be predicted, and how many others there are.

    Raises:
        Refused: there is none.
    """
    points = now.memory.points if then is None else then.memory.points
    if today.disk_reads_per_second >= _FEWEST_READS:
        return points, 0
    # Where hardly anything is read from disk then either, that is no part of the time.
    factor = 1.0 if then is None else then.sessions_factor
    alike = [
        one
        for one in points
        if one.disk_reads_high / factor < _FEWEST_READS or (then is None and one is today)
    ]
    if all(one is today for one in alike):
        raise Refused("almost nothing is read from disk today, so the time of such a read is not known")
    return alike, len(points) - len(alike)


def _predict(loop: MeasuredLoop, observed: Observed, now: ReadLoad, then: ReadLoad | None) -> Throughput:
    load = now if then is None else then
    factor, size = load.sessions_factor, observed.shared_buffers_bytes
    if loop.sessions * factor > MOST_SESSIONS:
        raise Refused(f"more than {MOST_SESSIONS} sessions are not computed")
    today = next((point for point in now.memory.points if point.shared_buffers_bytes == size), None)
    if today is None:
        raise Refused("today's size is not among those predicted (--sizes)")
    points, left_out = _predictable(today, now, then)
    balance = _balance(loop, observed, now, today)
    sizes = _Sizes(loop, balance, load)
    found = {
        point.shared_buffers_bytes: sizes.at(point)
        for point in points
        if then is not None or point.shared_buffers_bytes != size
    }
    same = ThroughputPoint(shared_buffers_bytes=size, ratio=1.0, low=1.0, high=1.0)
    base = None if then is None else found.get(size)
    read_seconds = balance.read_seconds * loop.transactions_per_second
    return Throughput(
        transactions_per_second=loop.transactions_per_second,
        sessions=loop.sessions,
        processor_seconds=loop.demand_seconds,
        disk_read_seconds=None if balance.few else read_seconds / today.disk_reads_per_second,
        copy_seconds=loop.copy_seconds,
        disk_depth=sizes.waits.depth,
        disk_latencies=loop.latencies,
        disk_most_reads_per_second=sizes.waits.most_reads_per_second,
        points=[
            found[one].point(one) if (one := point.shared_buffers_bytes) in found else same
            for point in points
        ],
        against_same_memory=[]
        if base is None
        else [same if one == size else each.relative_to(base).point(one) for one, each in found.items()],
        reasons=[
            _sessions(factor),
            *([_ONLY_COPIES.format(count=left_out)] if left_out else []),
            *_assumed(loop, factor),
        ],
    )
