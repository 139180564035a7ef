"""What the page cache makes of the pool's misses at each size: `pgsweep predict --ram`.

The pool's misses come from the curve; which part of them waits for the disk comes from a simulation of both
caches: of a trace in trace_disk_reads.py, of snapshots in snapshot_disk_reads.py. Its interval includes two
draws of the past, both ends of what is left for the page cache, the two bounds of the multi-generational LRU
where that runs, how well the simulated page cache agrees with the kernel (benchmarks/page_cache), and by how
much the simulation at today's size is off what the server was measured to read from disk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from pgsweep.errors import UsageError
from pgsweep.records.prediction import (
    CurvePoint,
    DiskPoint,
    MemoryPrediction,
    PredictResult,
    RelationCurve,
    RelationReads,
)
from pgsweep.sizing.page_cache.both_caches import SimulatedReads
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts, Share
from pgsweep.sizing.parallel import map_in_threads
from pgsweep.sizing.throughput.timed_reads import timed_reads
from pgsweep.units import BLOCK_BYTES, Z90, format_bytes, format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgsweep.sizing.observed import Observation

_KERNEL_ERROR: Final = 0.02
"""By how much a simulated hit ratio is off the kernel's at most; in 11 of the 12 settings of
benchmarks/page_cache it is .005."""

_TWICE_ERROR: Final = 0.03
"""By how much of itself what is held twice is off where the page cache has room for all: by 2.4% and 1.9%,
from snapshots and from a trace, where it was 153 MB."""

_FAR_OFF: Final = 1.3
_REFAULTS_OFF: Final = 2.0
_FEW_REFAULTS: Final = 300
"""With fewer refaults (pages), chance and other files decide."""

_MOST_WIDENED: Final = 4.0
"""The kernel counts the refaults of all files, so that their number alone does not widen without end."""

_FEW_TURNOVERS: Final = 1.0
_MOST_AT_ONCE: Final = 4
"""Sizes simulated at the same time, at most: one may take a gigabyte."""

_HANDFUL: Final = 30
"""Of fewer misses a share says little: it is known to 15 points or less well."""

_RELATIONS: Final = 20
"""The most relations that are named; the others are summed up."""

_OTHERS: Final = "other relations"


class NotPredicted(Exception):
    """What comes from disk is not predicted; the text says why."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What disk reads are predicted from, beside the accesses.

    Attributes:
        observation: for the names of relations and what was measured.
        result: the curve.
        facts: of the memory.
        memory_bytes: all there is to share; what the facts say by default.
        seed: of all draws.
        changed: the load or the memory is not the one that was recorded.
        recorded: the prediction without the change, where there is one: its simulation was compared with what
            was measured.
        kept_blocks: of the pool, held by what is kept in it.
        done: hears the share of the sizes that have been simulated.
    """

    observation: Observation
    result: PredictResult
    facts: MemoryFacts
    memory_bytes: int | None = None
    seed: int = 0
    changed: bool = False
    recorded: MemoryPrediction | None = None
    kept_blocks: int = 0
    done: Callable[[float], None] | None = None


def disk_bytes_per_second(observation: Observation) -> float | None:
    """Return what the server's processes were measured to read from disk; None where it was not."""
    found = observation.counters.grown("host", "disk_read_bytes")
    return None if found is None else found[0] / found[1]


@dataclass(frozen=True)
class Check:
    """What was measured today beside what the simulation gives.

    Attributes:
        said: a sentence with both.
        measured: what the interval of today's size should hold; None where they are not far apart.
        of: the `DiskPoint` fields that bound it: `disk_bytes` or `held_twice`.
        unit: after a size in bytes.
    """

    said: str
    measured: float | None = None
    of: Literal["disk_bytes", "held_twice"] = "disk_bytes"
    unit: str = ""

    def sentence(self, today: DiskPoint | None) -> str:
        """Return the sentence, and whether the interval of today's size holds what was measured."""
        if self.measured is None or today is None:
            return self.said
        low, high = (today.disk_bytes_low, today.disk_bytes_high)
        if self.of == "held_twice":
            low, high = (today.held_twice_low_bytes or 0, today.held_twice_high_bytes or 0)
        if low <= self.measured <= high:
            return f"{self.said}; the interval includes that difference"
        ends = f"{format_bytes(round(low))} to {format_bytes(round(high))}{self.unit}"
        return f"{self.said}; the interval, {ends}, does not include that difference"


class Measured(NamedTuple):
    """What comes from disk today, measured beside simulated.

    Attributes:
        bytes_per_second: measured; None where it was not, as `simulated_bytes_per_second` then.
        factor: by which the simulation is off.
        unexplained: share of the misses that was measured to come from disk, and that the simulation does not
            give: a factor says nothing where it gives none.
    """

    bytes_per_second: float | None = None
    simulated_bytes_per_second: float | None = None
    factor: float = 1.0
    unexplained: float = 0.0


class _Misfit(NamedTuple):
    """By how much the simulation may be off at any size, since it is today: `SizeReads.disk_share`."""

    factors: tuple[float, ...]
    unexplained: float
    twice_factor: float


@dataclass(frozen=True, kw_only=True)
class SizeReads:
    """What was simulated at one size: the best estimate, and the others within its uncertainty.

    Attributes:
        below, above: by how much the share of misses that wait for the disk may be off besides, to 90%.
        apart: by how much the closed form differs, and that in a sentence.
        kept_seconds: for how long the page cache keeps what it has read, by the closed form.
    """

    share: Share
    best: SimulatedReads
    others: list[SimulatedReads]
    below: float = 0.0
    above: float = 0.0
    apart: tuple[float, str] = (0.0, "")
    kept_seconds: float = 0.0

    def disk_share(
        self, factors: tuple[float, ...], unexplained: float = 0.0, *, fits: bool
    ) -> tuple[float, float, float]:
        """Return which share of the misses waits for the disk, and its bounds.

        Where hardly any miss was simulated, the few that there may be come from either.

        Args:
            factors: by which it may be off at least.
            unexplained: share of the misses by which it may be too small besides (`Measured`).
            fits: all data fit into the page cache, so that chance has no part in finding them there.
        """
        share, low, high = self.bounds("disk_share")
        least, most = (0.0, 0.0) if fits and share == 0 else _chance(share, self.best.misses)
        low = max(0.0, low - float(np.linalg.norm([_KERNEL_ERROR, share - least, self.below])))
        high = min(1.0, high + float(np.linalg.norm([_KERNEL_ERROR, most - share, self.above])))
        return (
            share,
            min(low, *(share * factor for factor in factors)),
            max(high, *(min(1.0, share * factor) for factor in factors), min(1.0, share + unexplained)),
        )

    def is_known(self, *, fits: bool) -> bool:
        """Return whether enough misses were simulated for a share of them; `fits` as for `disk_share`."""
        misses = self.best.misses
        return misses >= _HANDFUL or (fits and misses > 0 and self.best.disk_share == 0)

    def bounds(self, name: str) -> tuple[float, float, float]:
        """Return a value, and its bounds."""
        values = [float(getattr(one, name)) for one in (self.best, *self.others)]
        return values[0], min(values), max(values)


def _chance(share: float, count: float) -> tuple[float, float]:
    """Return the bounds of a share that was seen among so many, to 90%: 0 and 1 where there were none.

    Wilson's interval; the one of a normal distribution has no width where all or none were seen.
    """
    square = Z90**2
    centre = share * count + square / 2
    half = Z90 * float(np.sqrt(share * (1 - share) * count + square / 4))
    return max(0.0, (centre - half) / (count + square)), min(1.0, (centre + half) / (count + square))


class DiskReads(ABC):
    """Predicts what comes from disk at each size, whatever the accesses are known from."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._observation = inputs.observation
        self._result = inputs.result
        self._facts = inputs.facts
        self._asked = inputs.memory_bytes
        self._memory_bytes = inputs.memory_bytes or inputs.facts.memory_bytes
        self._today_bytes = inputs.result.observed.shared_buffers_bytes
        sizes = (inputs.observation.relations[name] for name in ("blocks_end", "fsm_blocks", "vm_blocks"))
        self._data_bytes = sum(int(blocks.clip(0).sum()) for blocks in sizes) * BLOCK_BYTES
        self._simulated_today: SimulatedReads | None = None

    @abstractmethod
    def _simulate(self, size_bytes: int, share: Share) -> SizeReads:
        """Simulate one size; called for several at the same time."""

    @abstractmethod
    def _name(self, size_bytes: int) -> str | None:
        """Return what `_simulate` depends on beside the share and the evidence; None: it is not kept."""

    def _reads(self, size_bytes: int, share: Share) -> SizeReads:
        """Return what is simulated at one size, or known of it; called for several at the same time."""
        name, facts = self._name(size_bytes), self._facts
        if name is None:
            return self._simulate(size_bytes, share)
        kernel = (facts.readahead_bytes, facts.folio_order, facts.mglru, facts.assumed)
        return self._observation.steps.step(
            f"reads {self._inputs.seed} {name} {size_bytes} {share} {kernel}",
            SizeReads,
            lambda: self._simulate(size_bytes, share),
        )

    @abstractmethod
    def _group_names(self) -> list[str]:
        """Return the name of each group of pages that is a relation; they come first."""

    def _remarks(self) -> list[str]:
        """Return what else must be known."""
        return []

    def predict(self) -> MemoryPrediction:
        """Simulate all sizes."""
        reasons: list[str] = []
        shares: dict[int, Share] = {}
        for point in self._result.points:
            size = point.shared_buffers_bytes
            try:
                shares[size] = self._facts.share(self._memory_bytes, size, self._today_bytes)
            except UsageError as error:
                if size != self._today_bytes or self._asked is not None:
                    reasons.append(error.message)
                    continue
                shares[size] = self._facts.share_today(size)
        simulated_sizes = map_in_threads(
            self._reads,
            shares,
            shares.values(),
            most_threads=_MOST_AT_ONCE,
            done=self._inputs.done,
        )
        found = dict(zip(shares, simulated_sizes, strict=True))
        checks: list[Check] = []
        today = self._measured(found, checks)
        factors = (today.factor, self._refault_factor(found, checks))
        twice_factor, measured_twice = self._held_twice_factor(found, checks)
        misfit = _Misfit(factors, today.unexplained, twice_factor)
        points = [
            self._point(point, found[point.shared_buffers_bytes], misfit)
            for point in self._result.points
            if point.shared_buffers_bytes in found
        ]
        # At another size, or with another memory, the interval is not that of what was measured.
        as_recorded = self._asked in (None, self._facts.memory_bytes)
        here = [point for point in points if point.shared_buffers_bytes == self._today_bytes and as_recorded]
        reasons += [check.sentence(here[0] if here else None) for check in checks]
        short = [size for size, one in found.items() if one.best.turnovers < _FEW_TURNOVERS]
        if short:
            reasons.append(
                f"from {format_bytes(min(short))} of shared_buffers on, the page cache remembers longer than "
                "could be simulated: what it holds at first is estimated"
            )
        if self._facts.mglru:
            reasons.append(
                "the kernel's multi-generational LRU is enabled: the interval includes the three rules that "
                "bound it"
            )
        reasons += self._facts.remarks(self._today_bytes if self._asked is None else None)
        if self._facts.pages_out_idle:
            reasons.append(
                "the kernel pages out what was not accessed for a while (DAMON): more may be read from disk "
                "than predicted, and less be held twice"
            )
        reasons += self._remarks()
        if self._facts.other_files_bytes is None:
            reasons.append("cached files of others were not seen, and are left out")
        points = self._bounded(points, found, misfit)
        return MemoryPrediction(
            memory_bytes=self._memory_bytes,
            memory_from="asked" if self._asked else "cgroup" if self._facts.from_cgroup else "host",
            other_bytes=self._facts.other_bytes,
            measured_disk_bytes_per_second=today.bytes_per_second,
            simulated_disk_bytes_per_second=today.simulated_bytes_per_second,
            other_assumed=self._facts.assumed,
            policy="mglru" if self._facts.mglru else "two-lists",
            points=points,
            reasons=reasons,
            relations=self._relations(points, found),
            measured_twice_bytes=measured_twice,
            timed_reads=timed_reads(self._observation),
        )

    def _bounded(
        self,
        points: list[DiskPoint],
        found: dict[int, SizeReads],
        misfit: _Misfit,
    ) -> list[DiskPoint]:
        """Return the points; where hardly any miss was simulated, a smaller pool bounds the disk reads.

        Of a handful of misses all may wait for the disk. But before the same page cache a smaller pool has
        at least as many that do, and there they are known. No more is simulated where the bound is in order.
        """
        curve = {point.shared_buffers_bytes: point for point in self._result.points}
        many: int | None = None
        bounded: list[DiskPoint] = []
        for point in sorted(points, key=lambda one: one.shared_buffers_bytes):
            size = point.shared_buffers_bytes
            if many is None or found[size].best.misses >= _HANDFUL:
                many = size
            elif point.disk_reads_high > bounded[-1].disk_reads_high:
                smaller = self._reads(many, found[size].share)
                bound = self._point(curve[many], smaller, misfit)
                point = replace(
                    point,
                    disk_reads_high=min(point.disk_reads_high, bound.disk_reads_high),
                    disk_bytes_high=min(point.disk_bytes_high, bound.disk_bytes_high),
                )
            bounded.append(point)
        return bounded

    def _relations(self, points: list[DiskPoint], found: dict[int, SizeReads]) -> list[RelationCurve]:
        """Return what each relation reads: its part of the misses and of the disk reads, as simulated."""
        if not found:
            return []
        reads = np.sum([one.best.group_reads for one in found.values()], axis=0)
        names = self._group_names()
        largest = [int(group) for group in np.argsort(-reads, kind="stable")[:_RELATIONS] if reads[group]]
        named = [group for group in largest if group < len(names)]
        groups = [(names[group], np.array([group])) for group in named]
        rest = np.setdiff1d(np.arange(len(reads)), np.array(named, dtype=np.int64))
        if reads[rest].any():
            groups.append((_OTHERS, rest))
        misses = {point.shared_buffers_bytes: point.miss_ratio for point in self._result.points}
        observed = self._result.observed
        per_second = observed.accesses_per_second
        curves = []
        for name, members in groups:
            own = [
                _relation_reads(
                    point,
                    found[point.shared_buffers_bytes],
                    members,
                    misses[point.shared_buffers_bytes] * per_second,
                )
                for point in points
            ]
            curves.append(RelationCurve(name=name, points=own))
        return curves

    def _measured(self, found: dict[int, SizeReads], checks: list[Check]) -> Measured:
        """Return today's disk reads, measured and simulated."""
        known, whose = self._inputs.recorded, "measured"
        if known is None:
            measured = disk_bytes_per_second(self._observation)
            of_group = self._observation.counters.grown("host", "cgroup_read_bytes")
            if measured is None and of_group is not None:
                measured, whose = of_group[0] / of_group[1], "measured for all programs of its cgroup"
            simulated = None if measured is None else self._bytes_today(found)
        else:
            measured, simulated = known.measured_disk_bytes_per_second, known.simulated_disk_bytes_per_second
        if measured is None or simulated is None:
            checks.append(
                Check("the server's disk reads were not measured, so the simulation is not checked")
            )
            return Measured()
        said = (
            f"today the server reads {format_bytes(round(measured))}/s from disk ({whose}); "
            f"the simulation gives {format_bytes(round(simulated))}/s"
        )
        more = max(0.0, (measured - simulated) / BLOCK_BYTES)
        # Below one block a second neither says anything.
        factor = max(measured, BLOCK_BYTES) / max(simulated, BLOCK_BYTES)
        far = max(factor, 1 / factor) > _FAR_OFF
        checks.append(Check(said, measured if far else None, "disk_bytes", "/s"))
        misses = self._misses_today
        return Measured(measured, simulated, factor, more / misses if misses > 0 else 0.0)

    def _held_twice_factor(
        self, found: dict[int, SizeReads], checks: list[Check]
    ) -> tuple[float, int | None]:
        """Return by which factor what is held twice today is off what was measured, and that in bytes."""
        measured = self._facts.twice_bytes
        if measured is None or self._inputs.recorded is not None:
            return 1.0, None
        simulated = min(self._today(found).twice_blocks * BLOCK_BYTES, self._today_bytes)
        said = (
            f"when the recording ended, {format_bytes(measured)} of the pool were in the page cache too "
            f"(measured); the simulation gives {format_bytes(simulated)}"
        )
        checks.append(Check(said, measured, "held_twice"))
        return max(measured, BLOCK_BYTES) / max(simulated, BLOCK_BYTES), measured

    def _refault_factor(self, found: dict[int, SizeReads], checks: list[Check]) -> float:
        """Return by which factor today's refaults are off those that the kernel counted; 1 where not far."""
        counted = self._observation.counters.grown("host", "workingset_refault_file")
        if counted is None or self._inputs.recorded is not None:
            return 1.0
        today = self._today(found)
        if today.refaults_per_second is None:
            return 1.0
        pages, seconds = counted
        simulated = today.refaults_per_second * seconds
        factor = max(pages, 1) / max(simulated, 1)
        if max(pages, simulated) < _FEW_REFAULTS or max(factor, 1 / factor) < _REFAULTS_OFF:
            return 1.0
        said = (
            f"the kernel refaulted {format_count(round(pages / seconds))} pages/s; the simulation gives "
            f"{format_count(round(simulated / seconds))}, so the intervals are wider"
        )
        checks.append(Check(said))
        return float(np.clip(factor, 1 / _MOST_WIDENED, _MOST_WIDENED))

    def _bytes_today(self, found: dict[int, SizeReads]) -> float:
        """Return the bytes per second that are read from disk today, as simulated."""
        return self._today(found).disk_blocks * self._misses_today * BLOCK_BYTES

    @property
    def _misses_today(self) -> float:
        """The misses per second as observed."""
        observed = self._result.observed
        return observed.miss_ratio * observed.accesses / max(observed.seconds, 1e-9)

    def _today(self, found: dict[int, SizeReads]) -> SimulatedReads:
        """Return what is simulated at today's size and memory."""
        now = self._facts
        if self._simulated_today is None:
            share = now.share_today(self._today_bytes)
            today = found.get(self._today_bytes)
            if today is None or self._asked not in (None, now.memory_bytes):
                today = self._reads(self._today_bytes, share)
            self._simulated_today = today.best
        return self._simulated_today

    def _point(self, point: CurvePoint, found: SizeReads, misfit: _Misfit) -> DiskPoint:
        observed = self._result.observed
        per_second = observed.accesses_per_second
        fits = 0 < self._data_bytes <= found.share.low_bytes
        share, low, high = found.disk_share(misfit.factors, misfit.unexplained, fits=fits)
        blocks, fewest, most = found.bounds("disk_blocks")
        # Readahead comes with the reads that wait.
        each = [one.disk_blocks / one.disk_share for one in (found.best, *found.others) if one.disk_share > 0]
        if not self._facts.assumed:
            each = each[:1] if share > 0 else []
        fewest, most = min(fewest, low * min(each, default=1.0)), max(most, high * max(each, default=1.0))
        # A simulation of some of the pages has a few blocks more or less than the pool.
        pool = point.shared_buffers_bytes / BLOCK_BYTES
        twice, least_twice, most_twice = (min(bound, pool) for bound in found.bounds("twice_blocks"))
        room = min(pool, found.share.most_bytes / BLOCK_BYTES)
        margin = _TWICE_ERROR * twice
        least_twice = min(least_twice, twice * misfit.twice_factor) - margin
        most_twice = min(max(most_twice, twice * misfit.twice_factor) + margin, max(room, twice))
        return DiskPoint(
            shared_buffers_bytes=point.shared_buffers_bytes,
            page_cache_bytes=found.share.page_cache_bytes,
            page_cache_low_bytes=found.share.low_bytes,
            page_tables_bytes=found.share.page_tables_bytes,
            page_cache_hit_ratio=1 - share if found.is_known(fits=fits) else None,
            page_cache_hit_low=1 - high,
            page_cache_hit_high=1 - low,
            disk_reads_per_second=point.miss_ratio * per_second * share,
            disk_reads_low=point.low * per_second * low,
            disk_reads_high=point.high * per_second * high,
            disk_bytes_per_second=point.miss_ratio * per_second * blocks * BLOCK_BYTES,
            disk_bytes_low=point.low * per_second * fewest * BLOCK_BYTES,
            disk_bytes_high=point.high * per_second * most * BLOCK_BYTES,
            held_twice_bytes=round(twice) * BLOCK_BYTES,
            held_twice_low_bytes=round(least_twice) * BLOCK_BYTES,
            held_twice_high_bytes=round(most_twice) * BLOCK_BYTES,
            shared_memory_bytes=found.share.shared_memory_bytes,
            page_tables_most_bytes=found.share.page_tables_most_bytes,
        )


def _relation_reads(
    point: DiskPoint, found: SizeReads, members: NDArray[np.int64], misses_per_second: float
) -> RelationReads:
    """Return what some groups of pages read at one size.

    Their part of all disk reads has the interval of the simulations and of chance, and all have theirs.
    """

    def part(one: SimulatedReads) -> float:
        return float(one.group_reads[members].sum()) / max(float(one.group_reads.sum()), 1.0)

    share, parts = part(found.best), [part(one) for one in (found.best, *found.others)]
    least, most = _chance(share, float(found.best.group_reads.sum()))
    missed = float(found.best.group_misses[members].sum()) / max(found.best.all_misses, 1.0)
    return RelationReads(
        shared_buffers_bytes=point.shared_buffers_bytes,
        misses_per_second=misses_per_second * missed,
        disk_reads_per_second=point.disk_reads_per_second * share,
        disk_reads_low=point.disk_reads_low * max(0.0, min(parts) - (share - least)),
        disk_reads_high=point.disk_reads_high * min(1.0, max(parts) + (most - share)),
    )
