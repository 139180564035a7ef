"""Transactions per second at each size, as a ratio to today's, from evidence of the server's host.

A transaction needs processor time, waits for reads, and is delayed by what else there is. All three are
known for today from counters over the recording:

    processor time    of the server's processes (/proc/PID/stat), divided by the transactions
    reads             blk_read_time of pg_stat_database (track_io_timing), less the copies from the page cache
    the rest          what makes the closed loop's throughput the measured one; taken as the same at each size

At another size what the disk costs grows or shrinks with the reads that wait for the device in the
simulation, and with the blocks read from disk: the device takes longer for a read that brings others with it,
and those are not all there when they are asked for. What is likely lies in the middle of the two
(benchmarks/advise): the geometric mean. That goes for the waiting and for the time of a processor that a read
from disk takes, which is tens of times that of a copy: the request, two switches between processes, the
interrupt, a page to be found for it. Each miss more or less is a copy more or less.

Where sessions write, a smaller page cache makes the waiting grow too: pages that are written again and again
go to the device more often, and reads wait behind them; at most as much as the page cache is smaller, for the
share of the evicted pages that were dirty.

The closed loop of the sessions then gives the throughput (closed_loop.py). How much longer a read waits
where more of them are in flight was measured on the device (disk_curve.py); today's waiting, as measured, is
that at today's depth. Where it was not measured a read is taken to wait as long at each depth.

For another number of sessions the loop has that many. Where the latency by depth was not measured, reads wait
at best as long as today, at worst as at a device that serves one after the other, and likely the geometric
mean of both.
Locks, WAL and the network delay a transaction at most as many times longer as there are more sessions.

Only the ratio is shown. For the interval, each of what is not known exactly is set to its ends by itself, and
the deviations that follow are added in quadrature, since their causes are independent: the disk reads at the
size and those of today, what a read takes of the processors, how the cost grows, what writing adds, the
latency by depth, and the model itself.

It is refused where the rest dominates, where others use the processors, and where what is needed was not
measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import numpy as np

from pgsweep.evidence.disk_latency import latencies_of
from pgsweep.evidence.schema import STATISTICS_RESET
from pgsweep.records.prediction import DiskLatency, MemoryPrediction, Observed, Throughput, ThroughputPoint
from pgsweep.sizing.closed_loop import Station, delay_for, flow, station_for, throughput
from pgsweep.sizing.disk_curve import CURVE_ENDS, Load, curves_of
from pgsweep.sizing.inference.totals import gained, series_of
from pgsweep.units import BLOCK_BYTES, format_bytes, format_percent, format_plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.store import EvidenceMeta
    from pgsweep.records.prediction import CurvePoint, DiskPoint

_MOST_REST: Final = 0.5
"""The share of the time of active transactions from which on the rest dominates."""

_SAME: Final = 0.01
"""By how much less or more a memory may be to be taken as the one recorded."""

_MOST_OTHERS: Final = 0.5
"""The share of the processors' time from which on others saturate them."""

_FEWEST_READS: Final = 10.0
"""Disk reads per second below which their cost is not known."""

_FEWEST_TRANSACTIONS: Final = 100
_MOST_SESSIONS: Final = 10_000
_OF_DATABASE: Final = ("xact_commit", "xact_rollback", "active_time", "session_time", "blk_read_time")
_MARGIN: Final = 0.03
"""The error of the model itself: what is left of it in benchmarks/advise."""

_COLD_READ_SECONDS: Final = 30e-6
"""Processor time of a disk read where it was not measured: assumed."""

_BEYOND_READER: Final = (1.0, 1.25, 1.75)
"""What a disk read takes of the processors, as multiples of what its reader takes: at least, likely, at most.
The interrupt at its end, and reclaim of the page whose room it takes, come on top. Assumed."""


Growth: TypeAlias = Literal["blocks", "likely", "reads"]


@dataclass(frozen=True, kw_only=True)
class Then:
    """Another memory, or another number of sessions, each of which does what one of today does.

    Attributes:
        sessions_factor: this many times the sessions.
        curve: the miss ratios.
        memory: the disk reads, of this many times the accesses.
    """

    sessions_factor: float
    curve: list[CurvePoint]
    memory: MemoryPrediction


class _Refused(Exception):
    """There is no prediction; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The closed loop of today, measured.

    Attributes:
        sessions: connected, on average.
        transactions_per_second: of all of them.
        active_seconds: of a transaction, from the client's request to the answer.
        demand_seconds: processor time of a transaction, what the recording cost it included.
        recording_seconds: of that, what the recording cost.
        processors: that the server may use: all, less what others use; a broken number.
        read_seconds: of waiting for reads in one second, page cache and disk.
        copy_seconds: of one read from the page cache.
        cold_read_seconds: processor time of the reader of one block from disk; None where not measured.
        dirty_share: of the pages that leave the pool, those that were written out for it.
        latencies: of the disk by depth; none where they were not measured.
        no_latencies: why not.
    """

    sessions: float
    transactions_per_second: float
    active_seconds: float
    demand_seconds: float
    recording_seconds: float
    processors: float
    read_seconds: float
    copy_seconds: float
    cold_read_seconds: float | None
    dirty_share: float
    latencies: list[DiskLatency]
    no_latencies: str


def predict_throughput(
    evidence: TraceTables,
    observed: Observed,
    curve: list[CurvePoint],
    memory: MemoryPrediction,
    then: Then | None = None,
) -> Throughput:
    """Return the throughput at each size that has disk reads, or why there is none.

    Args:
        evidence: a trace, or snapshots recorded on the server's host.
        observed: measured by it.
        curve: the miss ratios.
        memory: the disk reads.
        then: what differs; the throughput is with it, as a ratio to today's without.
    """
    try:
        _refuse_another_memory(evidence.meta, memory)
        return _predict(measure_loop(evidence), observed, curve, memory, then)
    except _Refused as refused:
        return Throughput(points=[], reasons=[f"throughput is not predicted: {refused}"])


def _refuse_another_memory(meta: EvidenceMeta, memory: MemoryPrediction) -> None:
    recorded, asked = meta.host.get("memory_bytes", ""), memory.memory_bytes
    if recorded.isdecimal() and len(recorded) < 16 and abs(asked - int(recorded)) > _SAME * asked:
        raise _Refused(
            f"sessions waited with {format_bytes(int(recorded))} of memory, not with {format_bytes(asked)}; "
            f"what another memory changes: --what-if 'ram {format_bytes(asked).replace(' ', '')}'"
        )


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
    copy = copy_of(meta)
    processors = meta.host.get("processors", "")
    if copy is None:
        raise _Refused(
            "what a copy from the page cache takes was not measured (record on the server's host, with "
            "--source peek or trace)"
        )
    if not (processors.isdecimal() and 0 < int(processors) < 10_000):
        raise _Refused("the evidence was recorded by an earlier pgsweep, which measured no processor times")
    counters = evidence.table("counters")
    counted = [series_of(counters, "database", meta.database, name) for name in _OF_DATABASE]
    if STATISTICS_RESET in meta.warnings or any((np.diff(values) < 0).any() for values in counted):
        raise _Refused(f"{STATISTICS_RESET}, so what was counted shortly before that is lost")
    rate = counter_rates(counters)
    host = {name: rate("host", "", f"{name}_cpu_seconds") for name in ("server", "host")}
    base = {name: rate("database", meta.database, name) for name in _OF_DATABASE}
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
        raise _Refused(f"others use {format_percent(others / count)} of the processors")
    if sessions > _MOST_SESSIONS or active <= 0:
        raise _Refused("the sessions' times cannot be")
    latencies, no_latencies = latencies_of(meta.host)
    return Loop(
        sessions=sessions,
        transactions_per_second=commits,
        active_seconds=active / commits,
        demand_seconds=min(server, count) / commits,
        recording_seconds=_recording_seconds(meta) / commits,
        processors=max(count - others, server),
        read_seconds=(base["blk_read_time"] or 0.0) / 1000,
        copy_seconds=copy,
        cold_read_seconds=_nanoseconds(meta.host, "cold_read_nanoseconds"),
        dirty_share=_dirty_share(rate),
        latencies=latencies,
        no_latencies=no_latencies,
    )


def _dirty_share(rate: Callable[[str, str, str], float | None]) -> float:
    """Return which share of the pages that leave the pool was written for it, by sessions or the writer.

    From pg_stat_io on 16 and later; before, each read and each new page takes the place of one.
    """
    normal = ("client backend/relation/normal", "background writer/relation/normal")
    written = sum(rate("io", who, "writes") or 0.0 for who in normal)
    gone = rate("io", normal[0], "evictions") or 0.0
    if not gone:
        written = sum(rate("bgwriter", "", name) or 0.0 for name in ("buffers_backend", "buffers_clean"))
        gone = rate("bgwriter", "", "buffers_alloc") or 0.0
    return min(written / gone, 1.0) if gone else 0.0


def others_share(evidence: TraceTables) -> float | None:
    """Return which share of the processors other programs used; None where it was not measured."""
    processors = evidence.meta.host.get("processors", "")
    rate = counter_rates(evidence.table("counters"))
    server, busy = (rate("host", "", f"{name}_cpu_seconds") for name in ("server", "host"))
    if server is None or busy is None or not processors.isdecimal() or not 0 < int(processors) < 10_000:
        return None
    return max(0.0, busy - server) / int(processors)


def copy_of(meta: EvidenceMeta) -> float | None:
    """Return the processor time of a copy of a block from the page cache, as the recording measured it."""
    return _nanoseconds(meta.host, "copy_nanoseconds")


def _recording_seconds(meta: EvidenceMeta) -> float:
    """Return the processor time that the probes took of the server in one second; 0 where it is not known."""
    known = meta.overhead.get("event_cost_seconds", 0.0) * meta.overhead.get("events", 0.0)
    return float(known / max(meta.seconds, 1e-9))


def _nanoseconds(host: dict[str, str], name: str) -> float | None:
    """Return a fact in seconds; None where it is not there or cannot be."""
    text = host.get(name, "")
    return int(text) / 1e9 if text.isdecimal() and len(text) < 9 else None


@dataclass(frozen=True)
class _Disk:
    """Disk reads in a second that a session waits for, and the blocks read from disk, readahead included."""

    reads: float
    blocks: float

    def times(self, factor: float) -> _Disk:
        return _Disk(self.reads * factor, self.blocks * factor)


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


def _grown(then: _Disk, now: _Disk) -> dict[Growth, float]:
    """Return how much more the disk costs than now: as its blocks do, as its reads do, and likely."""
    blocks, reads = then.blocks / max(now.blocks, 1e-9), then.reads / max(now.reads, 1e-9)
    return {"blocks": blocks, "likely": math.sqrt(blocks * reads), "reads": reads}


def _crowded(then_bytes: int, now_bytes: int, dirty_share: float) -> float:
    """Return how much longer reads wait at most, where another page cache holds what sessions write."""
    less = max(now_bytes, 1) / max(then_bytes, 1)
    return 1 + dirty_share * (less - 1) if less >= 1 else 1 / (1 + dirty_share * (1 / less - 1))


def _assumed(loop: Loop, factor: float) -> list[str]:
    found = []
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
            "a read from disk is assumed to take as long at each depth, which is too good where more are in "
            f"flight than today: the latency by depth was not measured ({loop.no_latencies})"
        )
    return found


def counter_rates(counters: dict[str, np.ndarray]) -> Callable[[str, str, str], float | None]:
    """Return what gives the growth per second of a counter; None where it is not there."""

    def rate(scope: str, named: str, name: str) -> float | None:
        values = series_of(counters, scope, named, name)
        if not len(values):
            return None
        seconds = counters["seconds"][counters["scope"] == scope]
        span = float(seconds.max() - seconds.min())
        # What is read of the host is no counter that is reset, but a sum over processes, of which some end.
        grown = float(values[-1] - values[0]) if scope == "host" else gained(values)
        return grown / span if span > 0 and grown >= 0 else None

    return rate


class _DiskWaits:
    """What waiting for the disk makes of the throughput.

    Args:
        loop: of today.
        read_seconds: that a transaction waits for reads from disk.
        delay_seconds: that it takes outside the processors, this included.
        now: the disk reads of today.
        sessions: that there are then.
    """

    def __init__(
        self, loop: Loop, read_seconds: float, delay_seconds: float, now: _Disk, sessions: float
    ) -> None:
        cold = loop.cold_read_seconds
        self.cold_seconds = _COLD_READ_SECONDS if cold is None else cold
        self.unrecorded = max(loop.demand_seconds - loop.recording_seconds, loop.demand_seconds / 2)
        self._loop = loop
        self._reads = read_seconds
        self._delay = delay_seconds
        waited = self.waited(now)
        self.depth = loop.transactions_per_second * waited
        found = curves_of(
            loop.latencies,
            Load(
                sessions=loop.sessions,
                waited_seconds=waited,
                rest_seconds=delay_seconds - waited,
                demand_seconds=loop.demand_seconds,
                processors=loop.processors,
            ),
            math.floor(max(sessions, loop.sessions)) + 1,
        )
        self._then_sessions = sessions
        self._curves = found.curves
        self._likely = [0]
        if sessions != loop.sessions and not loop.latencies:
            one_by_one = np.arange(1.0, math.floor(max(sessions, loop.sessions)) + 2)
            self._likely.append(len(self._curves))
            self._curves = [*self._curves, one_by_one]
        self.most_reads_per_second = found.most_reads_per_second
        self._known: dict[tuple[float, int], tuple[Station, float]] = {}

    @property
    def curve_ends(self) -> list[tuple[int, int]]:
        """The numbers of curves that are the two ends of what is not known exactly of the likely one, 0."""
        pairs = [pair for pair in CURVE_ENDS if any(self._curves[end] is not None for end in pair)]
        return pairs if len(self._likely) == 1 else [*pairs, (self._likely[0], self._likely[1])]

    def waited(self, now: _Disk) -> float:
        """Return the waiting of a transaction today, without the processor time in it.

        Where reads seem to take more than all, they take all that is not processor time.
        """
        busy = now.reads / self._loop.transactions_per_second * self.cold_seconds
        return min(max(0.0, self._reads - busy), self._delay)

    def ratio(
        self, waited: float, longer: float, demand: float, curve: int | None, delayed: float = 0.0
    ) -> float:
        """Return the throughput, divided by that of today.

        Args:
            waited: today.
            longer: by which factor a transaction waits longer, were the depth the same.
            demand: processor time of a transaction.
            curve: which of the curves; the likely one by default.
            delayed: seconds that a transaction is delayed longer.
        """
        loop = self._loop
        if curve is None:
            likely = [self.ratio(waited, longer, demand, one, delayed) for one in self._likely]
            return math.prod(likely) ** (1 / len(likely))
        slower = self._curves[curve]
        if slower is None:
            base, changed = (
                throughput(
                    sessions,
                    delay_seconds=seconds,
                    demand_seconds=processor,
                    processors=loop.processors,
                )
                for sessions, seconds, processor in (
                    (loop.sessions, self._delay, self.unrecorded),
                    (self._then_sessions, self._delay - waited + waited * longer + delayed, demand),
                )
            )
            return changed / base
        rest = self._delay - waited

        def through(sessions: float, station: Station, demand: float, delayed: float = 0.0) -> float:
            return flow(
                sessions,
                station,
                delay_seconds=rest + delayed,
                demand_seconds=demand,
                processors=loop.processors,
            ).throughput

        if (waited, curve) not in self._known:
            today = station_for(
                waited,
                slower,
                loop.sessions,
                delay_seconds=rest,
                demand_seconds=loop.demand_seconds,
                processors=loop.processors,
            )
            self._known[waited, curve] = today, through(loop.sessions, today, self.unrecorded)
        today, base = self._known[waited, curve]
        station = Station(seconds=today.seconds * longer, slower=slower)
        return through(self._then_sessions, station, demand, delayed) / base


def _sessions(factor: float) -> str:
    """Return for how many sessions the throughput is, and what is assumed of more."""
    if factor == 1:
        return "throughput is for as many sessions as today, each with the pauses of today"
    return (
        f"throughput is for {format_plain(factor)} times the sessions, each with the pauses of today; disk "
        "reads per second are for that many times the accesses, which the server may not reach"
    )


def _predict(
    loop: Loop,
    observed: Observed,
    curve: list[CurvePoint],
    memory: MemoryPrediction,
    then: Then | None,
) -> Throughput:
    factor = 1.0 if then is None else then.sessions_factor
    if loop.sessions * factor > _MOST_SESSIONS:
        raise _Refused(f"more than {_MOST_SESSIONS} sessions are not computed")
    size = observed.shared_buffers_bytes
    today = next((point for point in memory.points if point.shared_buffers_bytes == size), None)
    if today is None:
        raise _Refused("today's size is not among those predicted (--sizes)")
    points = memory.points if then is None else then.memory.points
    few = today.disk_reads_per_second < _FEWEST_READS
    # Where hardly anything is read from disk with more sessions either, that is no part of the time.
    if few and (then is None or any(one.disk_reads_per_second / factor >= _FEWEST_READS for one in points)):
        raise _Refused("almost nothing is read from disk today, so the time of such a read is not known")
    misses = {point.shared_buffers_bytes: point.miss_ratio for point in curve}
    accesses = observed.accesses / max(observed.seconds, 1e-9) / loop.transactions_per_second
    copies = max(0.0, misses[size] * accesses - today.disk_reads_per_second / loop.transactions_per_second)
    reads = loop.read_seconds / loop.transactions_per_second - copies * loop.copy_seconds
    if few:
        reads = max(reads, 0.0)
    elif reads <= 0:
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
            f"of the time that statements take, {format_percent(rest / loop.active_seconds)} are neither "
            "processor time nor reads, but locks, WAL, the network or waiting for a processor"
        )

    now, now_low, now_high = _today(today, memory)
    disk = _DiskWaits(loop, reads, delay, now, loop.sessions * factor)
    after = misses if then is None else {one.shared_buffers_bytes: one.miss_ratio for one in then.curve}

    def ratio(
        now: _Disk,
        miss: float,
        beyond: float,
        grown: float,
        longer: float,
        curve: int | None,
        delayed: float,
    ) -> float:
        demand = disk.unrecorded + (miss - misses[size]) * accesses * loop.copy_seconds
        demand += (grown - 1) * now.blocks / loop.transactions_per_second * disk.cold_seconds * beyond
        least = max(demand, disk.unrecorded / 10)
        return disk.ratio(disk.waited(now), longer, least, curve, max(rest, 0.0) * (delayed - 1))

    least, usual, most = _BEYOND_READER

    def predicted(point: DiskPoint) -> ThroughputPoint:
        then, low, high = (one.times(1 / factor) for one in _disk(point))
        crowded = _crowded(point.page_cache_bytes, today.page_cache_bytes, loop.dirty_share)

        def value(
            then: _Disk = then,
            now: _Disk = now,
            beyond: float = usual,
            growth: Growth = "likely",
            writes: float = math.sqrt(crowded),
            curve: int | None = None,
            delayed: float = 1.0,
        ) -> float:
            miss = after[point.shared_buffers_bytes]
            grown = 1.0 if few else _grown(then, now)[growth]
            return ratio(now, miss, beyond, grown, grown * writes, curve, delayed)

        likely = value()
        ends = [
            [value(then=end) for end in (low, high)],
            [value(now=end) for end in (now_low, now_high)],
            [value(beyond=end) for end in (least, most)],
            [value(growth=end) for end in ("blocks", "reads")],
            [value(writes=end) for end in (1.0, crowded)],
            *([value(curve=end) for end in pair] for pair in disk.curve_ends),
            [value(delayed=end) for end in (1.0, factor)],
            [likely * (1 - _MARGIN), likely * (1 + _MARGIN)],
        ]
        return ThroughputPoint(
            shared_buffers_bytes=point.shared_buffers_bytes,
            ratio=likely,
            low=max(0.0, likely - math.hypot(*(max(0.0, likely - min(pair)) for pair in ends))),
            high=likely + math.hypot(*(max(0.0, max(pair) - likely) for pair in ends)),
        )

    ratios = [
        ThroughputPoint(shared_buffers_bytes=size, ratio=1.0, low=1.0, high=1.0)
        if then is None and point.shared_buffers_bytes == size
        else predicted(point)
        for point in points
    ]
    return Throughput(
        transactions_per_second=loop.transactions_per_second,
        sessions=loop.sessions,
        processor_seconds=loop.demand_seconds,
        disk_read_seconds=None if few else reads * loop.transactions_per_second / today.disk_reads_per_second,
        copy_seconds=loop.copy_seconds,
        disk_depth=disk.depth,
        disk_latencies=loop.latencies,
        disk_most_reads_per_second=disk.most_reads_per_second,
        points=ratios,
        reasons=[
            _sessions(factor),
            *_assumed(loop, factor),
        ],
    )
