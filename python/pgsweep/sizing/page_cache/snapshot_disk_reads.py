"""What the page cache makes of the pool's misses at each size, from snapshots: `pgsweep predict --ram`.

Both caches are simulated under a load that is drawn from the fitted rates
(pgsweep.sizing.page_cache.rate_caches). The interval includes what that of a trace includes, and besides: the
closed form of the same load, rates from each half of the recording and from pages drawn again, rates that a
short recording cannot show, writing or not, and, where the host was not examined, what else its memory, its
readahead and its lists may be.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.sizing.page_cache.both_caches import PageCache
from pgsweep.sizing.page_cache.disk_reads import (
    Check,
    DiskReads,
    Inputs,
    Measured,
    NotPredicted,
    SizeReads,
)
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts, Share
from pgsweep.sizing.throughput.read_times import read_times
from pgsweep.units import BLOCK_BYTES, Z90, format_bytes, format_hours, format_percent, format_plain

if TYPE_CHECKING:
    from pgsweep.sizing.page_cache.rate_caches import RateCaches
    from pgsweep.sizing.snapshots.ensemble import LoadCurves

_FAR_APART: Final = 0.05
"""Share of the misses, from which on the closed form and the simulation are said to differ."""

_HARDLY_ANY: Final = 0.01
"""A share of the misses that is said as less than this."""

_DIRTY: Final = 0.02
_FAR_AHEAD_BYTES: Final = 8 << 20
_LARGE_ORDER: Final = 9
"""How far ahead devices are set to read at most, and the largest folio, where neither is known."""

_UNBOUNDED: Final = 1 << 60
_RARELY_TOO_LARGE: Final = 0.25
"""Pages that are visited rarely are hardly ever found too frequent (interval.py)."""


def memory_facts(
    measured: MemoryFacts | None, fitted: LoadCurves | None, memory_bytes: int | None, pool_bytes: int
) -> MemoryFacts:
    """Return what is known of the memory, or supposed where only its size is.

    Args:
        measured: what the evidence says of it; None where that is nothing.
        fitted: the rates that the curve was made of; None where nothing was evicted.
        memory_bytes: all there is to share today, where it is named.
        pool_bytes: shared_buffers of today.

    Raises:
        NotPredicted: too little is known.
    """
    if measured is not None and measured.not_simulated:
        raise NotPredicted(measured.not_simulated)
    if measured is None and memory_bytes is None:
        raise NotPredicted(
            "the evidence does not say how much memory the server's host has; name it with --ram"
        )
    if fitted is None:
        raise NotPredicted("nothing was evicted, so how often pages are used is not known")
    if fitted.best.classes().pages.sum() <= 0:
        raise NotPredicted("nothing is left of the load")
    if measured is None:
        assert memory_bytes is not None
        return MemoryFacts.supposed(memory_bytes, pool_bytes)
    return measured


def disk_share_today(inputs: Inputs, fitted: LoadCurves | None) -> float | None:
    """Return which share of today's misses comes from disk; None where the time of reads says nothing of it.

    Args:
        inputs: of a changed load or memory.
        fitted: the load as it is; None where that is not known.
    """
    recorded = inputs.recorded
    if recorded is None or read_times(inputs.observation) is None:
        return None
    size = inputs.result.observed.shared_buffers_bytes
    today = [point for point in recorded.points if point.shared_buffers_bytes == size]
    found = today[0].page_cache_hit_ratio if today else None
    if found is not None and recorded.memory_bytes == inputs.facts.memory_bytes:
        return 1 - found
    if fitted is None:
        return None
    as_is = replace(inputs, memory_bytes=None, changed=False, recorded=None)
    return SnapshotDiskReads(as_is, fitted).share_today()


class SnapshotDiskReads(DiskReads):
    """Draws a load from fitted rates.

    Args:
        inputs: what else is known.
        fitted: the rates.
        share_today: of the misses that come from disk today, where the load or the memory is changed.
    """

    def __init__(self, inputs: Inputs, fitted: LoadCurves, share_today: float | None = None) -> None:
        super().__init__(inputs)
        self._share_today = share_today
        self._fitted = fitted
        self._rules = self._observation.server.rules
        facts = inputs.facts
        self._miss_ratios = {point.shared_buffers_bytes: point.miss_ratio for point in self._result.points}
        self._policies: tuple[str, ...] = ("clock", "fifo", "two-lists") if facts.mglru else ("two-lists",)
        if facts.assumed:
            self._policies = ("two-lists", "clock", "fifo")
        self._writes = float(np.max(fitted.dirty, initial=0.0)) > _DIRTY
        # Sizes are simulated at the same time.
        self._lock = threading.Lock()
        self._apart: tuple[float, str] = (0.0, "")
        self._longest_seconds = 0.0

    def _caches(self, number: int) -> RateCaches:
        from pgsweep.sizing.page_cache.rate_caches import RateCaches

        return RateCaches(self._fitted, self._rules, np.random.default_rng([self._inputs.seed, number]))

    def _name(self, size_bytes: int) -> str | None:
        # The miss ratio of a size depends on the others that are asked for.
        changed = self._fitted.change is not None
        return None if changed else f"{self._fitted.name} {self._miss_ratios.get(size_bytes)}"

    def _reads(self, size_bytes: int, share: Share) -> SizeReads:
        found = super()._reads(size_bytes, share)
        with self._lock:
            self._apart = max(self._apart, found.apart, key=lambda one: abs(one[0]))
            self._longest_seconds = max(self._longest_seconds, found.kept_seconds)
        return found

    def _simulate(self, size_bytes: int, share: Share) -> SizeReads:
        blocks, facts = max(size_bytes // BLOCK_BYTES, 16), self._facts
        likely = PageCache(
            capacity_bytes=share.page_cache_bytes,
            readahead_bytes=facts.readahead_bytes,
            folio_order=facts.folio_order,
            policy=self._policies[0],
        )
        plain = replace(likely, readahead_bytes=0, folio_order=0)
        others = [replace(likely, policy=policy) for policy in self._policies[1:]]
        small, large = (replace(likely, capacity_bytes=size) for size in (share.low_bytes, share.most_bytes))
        if facts.assumed:
            small = replace(small, readahead_bytes=_FAR_AHEAD_BYTES, folio_order=_LARGE_ORDER)
            large = replace(large, readahead_bytes=0)
        others += [small, large]
        caches = self._caches(0)
        if np.isinf(caches.closed_form(self._fitted.best, blocks, small.capacity_bytes)[1]):
            # All fits at the least that it may be: no rule, draw or write makes a difference then. More pages
            # may be made than there is room for in the hours that are simulated where misses are rare.
            (best,) = caches.at(blocks, [replace(small, capacity_bytes=_UNBOUNDED)])
            return SizeReads(share=share, best=best, others=[])
        if self._writes:
            others.append(replace(likely, written=False))
        # The closed form knows no writes.
        best, reference, *rest = caches.at(blocks, [likely, replace(plain, written=False), *others])
        rest += self._caches(1).at(blocks, [likely])
        below, above, closed, kept = self._rate_errors(caches, blocks, size_bytes, share)
        apart = closed - reference.disk_share
        # The best estimate, off by as much as the closed form is.
        off = min(max(best.disk_share + apart, 0.0), 1.0)
        each = best.disk_blocks / best.disk_share if best.disk_share > 0 else 1.0
        rest.append(replace(best, disk_share=off, disk_blocks=off * each))
        said = (
            f"at {format_bytes(size_bytes)} of shared_buffers {format_percent(reference.disk_share)} of "
            f"the misses come from disk in the simulation, {format_percent(closed)} by the closed form; "
            "the intervals include that difference"
        )
        return SizeReads(
            share=share,
            best=best,
            others=rest,
            below=below,
            above=above,
            apart=(apart, said),
            kept_seconds=kept if np.isfinite(kept) else 0.0,
        )

    def _rate_errors(
        self, caches: RateCaches, blocks: int, size_bytes: int, share: Share
    ) -> tuple[float, float, float, float]:
        """Return by how much the share may be off since rates are, below and above; and the closed form."""
        fitted, capacity = self._fitted, share.page_cache_bytes
        closed, kept = caches.closed_form(fitted.best, blocks, capacity)
        halves = [caches.closed_form(half, blocks, capacity)[0] for half in fitted.halves]
        below = above = 0.0
        if len(halves) == 2:
            chance = Z90 * abs(halves[0] - halves[1]) / 2
            below = above = float(np.hypot(chance, abs(closed - float(np.mean(halves)))))
        centre, drawn = fitted.drawn
        middle = caches.closed_form(centre, blocks, capacity)[0]
        spread = [caches.closed_form(one, blocks, capacity)[0] - middle for one in drawn]
        deviation = Z90 * float(np.sqrt(np.mean(np.square(spread))))
        # The larger a pool of the size of both caches is, the less is known about what it would miss.
        doublings = max(0.0, float(np.log2((size_bytes + capacity) / max(self._today_bytes, 1))))
        rare = fitted.short * doublings * float(np.sqrt(max(doublings, 1.0)))
        rare = min(rare / max(self._miss_ratios.get(size_bytes, 1.0), 1e-9), 1.0)
        if not np.isfinite(kept):
            # All fits into the page cache, however often it is used.
            rare = 0.0
        return (
            float(np.hypot(np.hypot(below, deviation), rare * _RARELY_TOO_LARGE)),
            float(np.hypot(np.hypot(above, deviation), rare)),
            closed,
            kept,
        )

    def _group_names(self) -> list[str]:
        names = self._observation.relation_names
        return [names[group.relations[0]] for group in self._fitted.load.groups[:-2]]

    def share_today(self) -> float:
        """Return which share of the misses comes from disk at today's size and memory, as simulated."""
        return self._today({}).disk_share

    def _measured(self, found: dict[int, SizeReads], checks: list[Check]) -> Measured:
        if self._inputs.changed and self._inputs.recorded is None:
            said_why = (
                "today's memory was not given (--ram), so the simulation is not checked against today's reads"
            )
            checks.append(Check(said_why))
            return Measured()
        said: list[Check] = []
        measured = super()._measured(found, said)
        times = read_times(self._observation)
        if times is None:
            checks += said
            return measured
        least, most = times.disk_share
        ceiling, known = self._most_disk_share(measured.bytes_per_second), ""
        if ceiling < most:
            least, most = min(least, ceiling), ceiling
            known = ", and no more blocks come from disk than that"
        share = self._today(found).disk_share if self._share_today is None else self._share_today
        whose = ", as sessions wait for it" if times.waits else ""
        between = f"between {format_percent(least)} and {format_percent(most)}"
        if most < _HARDLY_ANY:
            between = f"less than {format_percent(_HARDLY_ANY)}"
        text = (
            f"a miss takes {format_plain(round(times.mean_seconds * 1e6, 1))} µs today "
            f"(measured{whose}){known}: so {between} of the misses come from disk; the simulation "
            f"gives {format_percent(share)}"
        )
        if measured.bytes_per_second is not None:
            checks += [*said, Check(text)]
            return measured
        nearest = float(np.clip(share, least, most))
        if nearest != share:
            text += "; the intervals include that difference"
        checks.append(Check(text))
        factor = nearest / share if share > 0 else 1.0
        return Measured(factor=factor, unexplained=max(0.0, nearest - share))

    def _most_disk_share(self, bytes_per_second: float | None) -> float:
        """Return the largest share of the misses that can come from disk, where so much was read there."""
        if bytes_per_second is None or self._misses_today <= 0:
            return 1.0
        return min(1.0, bytes_per_second / BLOCK_BYTES / self._misses_today)

    def _remarks(self) -> list[str]:
        remarks = []
        if abs(self._apart[0]) > _FAR_APART:
            remarks.append(self._apart[1])
        observed_seconds = self._fitted.load.totals.seconds
        if self._longest_seconds > observed_seconds:
            remarks.append(
                f"the page cache keeps what it has read for up to {format_hours(self._longest_seconds)}, and "
                f"{format_hours(observed_seconds)} were observed: rates of rarely used pages are extrapolated"
            )
        remarks.append(
            "snapshots do not show which blocks are read one after the other: what readahead brings along is "
            "known roughly"
        )
        if self._writes:
            fitted = self._fitted
            pages = np.array([float(own.sum()) for own in fitted.best.pages])
            dirty = float(fitted.dirty @ pages) / max(float(pages.sum()), 1e-9)
            remarks.append(
                f"{format_percent(dirty)} of the pages to be evicted are dirty (measured) and are written "
                "into the page cache; the intervals cover the case that none are"
            )
        if self._facts.assumed:
            remarks.append(
                f"the server's host was not examined: {format_bytes(self._facts.other_bytes)} for other uses "
                f"and a readahead of {format_bytes(self._facts.readahead_bytes)} are assumed; the intervals "
                "cover a quarter to twice of these uses, readahead from none to 8 MB, and the "
                "multi-generational LRU"
            )
        return remarks
