"""Replays of one trace through pools of any size, and how far each may be off.

What a replay gives is the miss ratio of this stretch of the workload at the other size, had the pool been in
the state that the workload makes of it. Its interval covers what is not known of that: the state at the
beginning, the order in which sessions come, what rings left behind, when the server vacuums. How another
stretch would differ is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.traces.accesses import (
    DROP,
    EXTEND,
    EXTENSION,
    MISS,
    STRATEGY,
    UNCOUNTED,
    VACUUM,
    Trace,
)
from pgsweep.sizing.traces.order import reorder_sessions
from pgsweep.sizing.traces.sampled import PARTS
from pgsweep.sizing.traces.spread import Stretch, find_events
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.units import Z90

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

UPTIME_SECONDS = 60.0
"""What rings leave behind takes seconds to days to gather. A prediction is for a server that has run for so
long; where that matters the interval includes the beginning and the end too."""

_SETTLING_SECONDS = 3600.0
_REPLAYED_ROWS = 20_000_000
_MOST_PASSES = 60
"""How far pools are followed until nothing changes any more."""

_DRAWS = 3
_ORDERS = 2
_LONG_TRACE_ROWS = 20_000_000

_FLOOR, _FLOOR_SHARE = 0.0005, 0.005
"""What two runs of the same transactions differ by at least: a fixed part, and a share of the ratio."""

_MEETING_SHARE = 0.25
"""Where sessions read for one another: the part that differs between two runs of the same transactions."""

_FIRST_VISIT_SHARE = 0.1
"""Of first visits that hit or miss by the draw: the part by which their number may be wrong."""

_UNSEEN_SHARE = 1 / 3
"""In a pool that keeps pages for longer than the trace lasts, a page that the trace has not visited yet is
there only if it was visited before the trace. The draw says how many are; of the others, at most those can
miss that the trace still visits for the first time towards its end. This part of them is allowed for."""

_SMALL_DRIFT = 3.0
"""Of first visits, how many may be those of a load that moves, for each one that shows it."""

_LEAST_LATELY = 0.1
"""The last third of a trace stands for the whole where it has this share of the accesses."""

_IN_OR_OUT = 1 / 6
"""The variance of the number of vacuums in a stretch: the same changes call for the same vacuums, but where
the stretch begins and ends one may lie inside or outside."""


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of the replay at one size.

    Attributes:
        ratio: misses / accesses.
        low, high: bounds of its 90% interval.
        half_width: of the interval around the ratio, before it is made to hold what follows.
        meetings: by how much it may be off because scans of a table meet more often or less often.
        fresh, settled: the ratio just after a restart and long after it, where rings leave pages behind.
        unknown_scans: by how much it may be off because a table was scanned once, so that it is not
            known whether its pages were still there.
        another_stretch: by how much another stretch of this length may differ (no part of the interval).
        vacuums: by how much less may miss because VACUUM keeps what its rings left, long after a restart.
        unsteady: by how much the interval is wider because visits do not come at random times.
        sampling: by how much it may be off because pages were sampled.
    """

    ratio: float
    low: float
    high: float
    half_width: float
    meetings: float = 0.0
    fresh: float
    settled: float
    unknown_scans: float = 0.0
    another_stretch: float
    vacuums: float = 0.0
    unsteady: float = 0.0
    sampling: float = 0.0

    @property
    def moves(self) -> bool:
        """Return whether the ratio depends on how long the server has run."""
        return abs(self.settled - self.fresh) > max(self.half_width, 0.003)


class Replay:
    """Replays of one trace, counted as the server counts.

    Args:
        trace: what is replayed.
        pool_blocks: the pool that it was taken on.
        rules: of the server.
        extensions_are_reads: whether a new block counts as a read.
        random: for the other orders of the accesses.
        halvings: one page of 2^halvings is in the trace, numbered by popularity.
    """

    def __init__(
        self,
        trace: Trace,
        pool_blocks: int,
        rules: _native.Rules,
        random: np.random.Generator,
        *,
        extensions_are_reads: bool,
        halvings: int = 0,
    ) -> None:
        self.trace = trace
        self._pool_blocks = pool_blocks
        self._rules = rules
        self._extensions_are_reads = extensions_are_reads
        self.counted, self._new_reads = _counted(trace, extensions_are_reads)
        self.measured_misses = self.counted & (trace.missed | self._new_reads)
        self.stretch = Stretch(trace, self.counted)
        self._events = find_events(trace)
        self._scanning = np.zeros(len(trace.pages), dtype=bool)
        self._scanning[trace.owner_access.astype(np.int64)] = True
        first = np.full(len(trace.page_group), -1)
        # Of several rows of a page the last one stays.
        first[trace.pages[::-1]] = np.arange(len(trace.pages))[::-1]
        first = first[(first >= 0) & ~trace.new_page]
        self._first = first[self.counted[first]]
        self._random = random
        self._halvings = halvings

    @cached_property
    def _vacuumed(self) -> NDArray[np.int64]:
        """The rows of VACUUMs, but for those of a few pages."""
        vacuums = np.flatnonzero((self._events.kind & STRATEGY) == VACUUM)
        return self.trace.owner_access.astype(np.int64)[np.isin(self._events.of_owned, vacuums)]

    @property
    def most_vacuumed(self) -> int:
        """The group that VACUUM visits most."""
        return int(np.bincount(self.trace.page_group[self.trace.pages[self._vacuumed]]).argmax())

    @cached_property
    def _orders(self) -> list[Trace]:
        count = 1 if len(self.trace.pages) > _LONG_TRACE_ROWS else _ORDERS
        found = (reorder_sessions(self.trace, self._random) for _ in range(count))
        return [one for one in found if one is not None]

    def ratio(self, misses: Rows) -> float:
        """Return misses / accesses."""
        return float(np.count_nonzero(misses)) / max(self.stretch.total, 1.0)

    def by_group(self, misses: Rows) -> Floats:
        """Return the misses of each group."""
        groups = self.trace.page_group[self.trace.pages[misses]]
        return np.bincount(groups, minlength=len(self.trace.group_pages)).astype(np.float64)

    def at(self, blocks: int, pools: WarmPools, random: np.random.Generator) -> Replayed:
        """Replay into drawn states of a pool of that size."""
        total = max(self.stretch.total, 1.0)
        lingering = pools.lingering(blocks)
        passes = self._passes(pools, UPTIME_SECONDS) if lingering else 1
        draws = 1 if len(self.trace.pages) > _LONG_TRACE_ROWS else _DRAWS
        states = [self._warm(blocks, pools, random, passes) for _ in range(draws)]
        rows = [self.misses(state, blocks) for state in states]
        ratios = [self.ratio(misses) for misses in rows]
        ratio = float(np.mean(ratios))
        missed_first = float(np.mean([np.count_nonzero(misses[self._first]) for misses in rows]))
        undecided = min(missed_first, len(self._first) - missed_first) / total
        sampling = Z90 * self._sampling_deviation(rows[0])
        half = np.sqrt(
            self._order_width(states[0], blocks, rows[0]) ** 2
            + (Z90 * self._state_deviation(ratios, missed_first)) ** 2
            + (_FIRST_VISIT_SHARE * undecided) ** 2
            + Z90**2 * self._vacuum_variance(rows[0])
            + sampling**2
        )
        unseen = self._unseen(blocks, pools, rows[0])
        meetings = self.stretch.meetings(rows[0])
        fresh = settled = ratio
        if lingering:
            fresh = self.ratio(self.misses(self._warm(blocks, pools, random, 0), blocks))
            everything = dict.fromkeys(lingering, 1.0)
            pass_seconds = pools.pass_seconds(blocks, gathered=everything)
            passes = self._passes(pools, min(2 * pass_seconds, _SETTLING_SECONDS))
            settled = self.ratio(self.misses(self._warm(blocks, pools, random, passes, everything), blocks))
        fewer, more = self._unknown_scans(blocks, pools, rows[0])
        vacuums = self._kept_by_vacuum(blocks, pools, rows[0])
        low = min(ratio, fresh, settled) - half - (meetings if blocks < self._pool_blocks else 0.0)
        high = max(ratio, fresh, settled) + float(np.hypot(half, unseen))
        unsteady = 0.0
        if not pools.steadiness.steady:
            moved, least, most = self._unsteady_bounds(blocks, pools, rows[0], random)
            unsteady = max(low - (least - half), (most + half) - high, 0.0)
            ratio, low, high = moved, min(low, least - half), max(high, most + half)
        return Replayed(
            ratio=ratio,
            low=float(max(low - fewer - vacuums, 0.0)),
            high=high + more + (meetings if blocks > self._pool_blocks else 0.0),
            half_width=float(half),
            meetings=meetings,
            fresh=fresh,
            settled=settled,
            unknown_scans=max(fewer, more),
            another_stretch=self.stretch.deviation(rows[0]),
            vacuums=vacuums,
            unsteady=float(unsteady),
            sampling=sampling,
        )

    def replay_start(self, blocks: int) -> tuple[Replayed, Rows]:
        """Replay into the pool as it was when the trace began; also return which accesses miss."""
        start = self.trace.start
        assert start is not None
        contents = _native.PoolContents(
            start.pages, start.usage_counts, buffers=start.buffers, hand=start.hand % blocks
        )
        misses = self.misses(contents, blocks)
        ratio, half = self.ratio(misses), self._order_width(contents, blocks, misses)
        found = Replayed(
            ratio=ratio,
            low=ratio - half,
            high=ratio + half,
            half_width=half,
            fresh=ratio,
            settled=ratio,
            another_stretch=self.stretch.deviation(misses),
        )
        return found, misses

    def misses(self, warm: _native.PoolContents, blocks: int, trace: Trace | None = None) -> Rows:
        """Return which accesses miss in a replay from a state; of another trace where one is given."""
        if trace is None:
            counted, new_reads = self.counted, self._new_reads
        else:
            counted, new_reads = _counted(trace, self._extensions_are_reads)
        outcome = self._replay(blocks, warm, trace=trace)["outcomes"]
        return np.asarray(((outcome == MISS) | ((outcome == EXTENSION) & new_reads)) & counted)

    def _order_width(self, state: _native.PoolContents, blocks: int, misses: Rows) -> float:
        """Return half the width of the 90% interval for the order in which sessions come."""
        ratio = self.ratio(misses)
        others = [self.ratio(self.misses(state, blocks, one)) - ratio for one in self._orders]
        spread = float(np.sqrt(np.mean(np.square(others)))) if others else 0.0
        order = Z90 * np.hypot(spread, _FLOOR + _FLOOR_SHARE * ratio)
        return float(np.hypot(order, _MEETING_SHARE * self.stretch.meetings(misses)))

    def _state_deviation(self, ratios: list[float], missed_first: float) -> float:
        """Return the standard deviation between the mean of the states drawn and the one that is there.

        As the draws differ, and no less than first visits that hit or miss each for itself.
        """
        many = max(len(self._first), 1)
        each = np.sqrt(missed_first * (many - missed_first) / many) / max(self.stretch.total, 1.0)
        drawn = np.std(ratios, ddof=1) if len(ratios) > 1 else 0.0
        return float(max(drawn, each) * np.sqrt(1 + 1 / len(ratios)))

    def _vacuum_variance(self, misses: Rows) -> float:
        """Return the variance that vacuums add, whose times the server chooses."""
        events = self._events
        vacuums = np.flatnonzero((events.kind & STRATEGY) == VACUUM)
        if not len(vacuums):
            return 0.0
        inside = events.of_owned >= 0
        rows, event = self.trace.owner_access.astype(np.int64)[inside], events.of_owned[inside]
        weight = misses[rows].astype(np.float64) - self.ratio(misses) * self.counted[rows]
        effect = np.bincount(event, weights=weight, minlength=events.count)
        variance = 0.0
        for kind in np.unique(events.kind[vacuums]):
            variance += float(effect[events.kind == kind].mean()) ** 2 * _IN_OR_OUT
        return variance / max(self.stretch.total, 1.0) ** 2

    def _sampling_deviation(self, misses: Rows) -> float:
        """Return the standard deviation that other pages would add, had they been drawn."""
        if not self._halvings:
            return 0.0
        parts = np.bincount(self.trace.pages[misses] % PARTS, minlength=PARTS)
        left_out = 1 - 0.5**self._halvings
        return float(np.sqrt(PARTS * parts.var(ddof=1) * left_out)) / max(self.stretch.total, 1.0)

    def _unseen(self, blocks: int, pools: WarmPools, misses: Rows) -> float:
        """Return by how much more may miss in a pool that keeps pages for longer than the trace lasts."""
        trace = self.trace
        late = trace.seconds >= trace.duration_seconds * 2 / 3
        outside = self.counted & ~self._scanning
        first = self._first[late[self._first] & outside[self._first]]
        most = len(first) / max(int(np.count_nonzero(self.counted & late)), 1)
        now = np.count_nonzero(misses & outside) / max(self.stretch.total, 1.0)
        kept = min(pools.pass_seconds(blocks) / max(trace.duration_seconds, 1e-3), 1.0)
        return _UNSEEN_SHARE * kept * max(most - now, 0.0)

    def _unsteady_bounds(
        self, blocks: int, pools: WarmPools, misses: Rows, random: np.random.Generator
    ) -> tuple[float, float, float]:
        """Return the ratio and its ends where visits do not come at random times.

        The state drawn for the beginning then holds too many of the pages that the trace will visit, or
        others than a loop leaves behind. So the trace is replayed into a pool that holds nothing of use as
        well, and the last third of either replay stands for the whole: what the pool holds then was decided
        by the trace itself, but for pages that stay for longer.

        Args:
            misses: from the state drawn.
        """
        ratio = self.ratio(misses)
        if not np.isfinite(pools.pass_seconds(blocks)):
            return ratio, ratio, ratio
        steadiness, total = pools.steadiness, max(self.stretch.total, 1.0)
        without = self.misses(pools.draw_strangers(blocks, random), blocks)
        without = np.where(self._scanning, misses, without)
        point, ends = ratio, [ratio]
        if steadiness.together > 0:
            later = self._later(misses, without, self.counted)
            point += steadiness.together * max(later[1] - ratio, 0.0)
            ends += later
        elif steadiness.drift > 0:
            # Too little to move the curve by: to the side that it moves to, and no further than it shows.
            later = self._later(misses, without, self.counted)
            ends.append(ratio + min(_SMALL_DRIFT * steadiness.drift, 1.0) * max(later[1] - ratio, 0.0))
        if steadiness.in_turn.any():
            later = self._later(misses, without, steadiness.in_turn[self.trace.pages] & self.counted)
            point += sum(later) / 2 - ratio
            ends += later
        seldom = self._first[steadiness.seldom[self.trace.pages[self._first]]]
        if len(seldom):
            # A round that takes a third of the trace or more: no pool keeps it but one that holds all of it.
            missed = np.count_nonzero(misses[seldom])
            ends.append(ratio + (len(seldom) - missed) / total)
            if blocks >= np.count_nonzero(steadiness.seldom):
                ends.append(ratio - missed / total)
        low, high = min(ends), max(ends)
        noise = min(float(np.sqrt(2)) * self.stretch.deviation(without), high - low)
        return float(np.clip(point, low, high)), low - noise, high + noise

    def _later(self, misses: Rows, without: Rows, rows: Rows) -> list[float]:
        """Return the ratio if some rows miss as they do in the last third of two replays.

        It differs by no more than what does not come out the same in both: where all does, the beginning
        decides nothing, and the last third is no better than the whole.

        Args:
            misses, without: of the replays; what the other rows do is taken from the first.
            rows: whose misses are taken from the last third.
        """
        total = max(self.stretch.total, 1.0)
        late = rows & (self.trace.seconds >= self.trace.duration_seconds * 2 / 3)
        lately, ratio = int(np.count_nonzero(late)), self.ratio(misses)
        if lately < _LEAST_LATELY * np.count_nonzero(rows):
            return [ratio, ratio]
        share = np.count_nonzero(rows) / max(lately, 1)
        others = np.count_nonzero(misses & ~rows)
        most = np.count_nonzero((misses != without) & rows) / total
        found = [(others + np.count_nonzero(one & late) * share) / total for one in (misses, without)]
        return [float(np.clip(one, ratio - most, ratio + most)) for one in found]

    def _unknown_scans(self, blocks: int, pools: WarmPools, misses: Rows) -> tuple[float, float]:
        """Return by how much less and more may miss where a table was scanned once and uses no ring."""
        once = [scanned for scanned in pools.loops(blocks).values() if scanned.rounds < 1.5]
        # What has not been read for a pass or two is gone, whenever the scan before was.
        pass_seconds = pools.pass_seconds(blocks)
        once = [one for one in once if 2 * pass_seconds > float(np.median(one.first_seconds))]
        if not once:
            return 0.0, 0.0
        pages = np.zeros(len(self.trace.page_group), dtype=bool)
        for scanned in once:
            pages[scanned.pages[pools.visits_outside_scans(scanned.pages) == 0]] = True
        rows = self._first[pages[self.trace.pages[self._first]]]
        missed = np.count_nonzero(misses[rows])
        total = max(self.stretch.total, 1.0)
        return missed / total, (len(rows) - missed) / total

    def _kept_by_vacuum(self, blocks: int, pools: WarmPools, misses: Rows) -> float:
        """Return by how much less misses once all pages are there that VACUUM visits again and again.

        Each leaves its ring in the pool, and the next one keeps what it finds there before the hand has
        passed it. How much has gathered before the trace is not known.
        """
        trace, rows = self.trace, self._vacuumed
        rows = rows[np.argsort(trace.pages[rows], kind="stable")]
        page, seconds = trace.pages[rows], trace.seconds[rows]
        again = np.flatnonzero(page[1:] == page[:-1]) + 1
        soon = seconds[again] - seconds[again - 1] < pools.pass_seconds(blocks)
        kept = np.zeros(len(trace.page_group), dtype=bool)
        kept[page[again[soon]]] = True
        kept[page[again[~soon]]] = False
        return float(np.count_nonzero(misses & kept[trace.pages])) / max(self.stretch.total, 1.0)

    def _warm(
        self,
        blocks: int,
        pools: WarmPools,
        random: np.random.Generator,
        passes: int,
        gathered: Mapping[int, float] | None = None,
    ) -> _native.PoolContents:
        """Draw a state; scanned pages as they stand after the trace's scans have gone over it several times.

        Before each time all other pages are drawn again: the same accesses over and over would need fewer
        pages than the workload does.

        Args:
            passes: how often the trace, up to where scans stand as at its beginning, goes over the state.
            gathered: what pages scanned through rings are there at first.
        """
        drawn = pools.draw_pages(blocks, random, gathered=gathered or {})
        contents = _native.PoolContents(*drawn)
        row = pools.repeated_row
        if row is None or blocks > pools.most_buffers:
            return contents
        lingering = pools.lingering(blocks)
        for number in range(passes):
            later = self._replay(blocks, contents, until=row)
            if number or gathered:
                shares = pools.shares(later)
                there = {group: shares[group] for group in lingering}
                drawn = pools.draw_pages(blocks, random, gathered=there)
            contents = pools.with_scanned_of(drawn, later, blocks, random)
        return contents

    def _passes(self, pools: WarmPools, seconds: float) -> int:
        """Return how often the repeated part of the trace fills a time, at least once."""
        row = pools.repeated_row
        if row is None:
            return 1
        most = int(np.clip(_REPLAYED_ROWS // max(row, 1), 2, _MOST_PASSES))
        return int(np.clip(np.ceil(seconds / max(float(self.trace.seconds[row - 1]), 1e-3)), 1, most))

    def _replay(
        self,
        blocks: int,
        warm: _native.PoolContents,
        until: int | None = None,
        trace: Trace | None = None,
    ) -> _native.ReplayOutcomes:
        """Replay the trace, its rows before `until`, or another."""
        trace = trace or self.trace
        owned = len(trace.owner_access)
        if until is not None:
            owned = int(np.searchsorted(trace.owner_access, until))
        return _native.replay_outcomes(
            trace.pages[:until],
            blocks,
            self._rules,
            flags=trace.flags[:until],
            owner_access=trace.owner_access[:owned] if owned else None,
            owner=trace.owner[:owned] if owned else None,
            owner_blocks=trace.owner_blocks if owned else None,
            warm=warm,
        )


def _counted(trace: Trace, extensions_are_reads: bool) -> tuple[Rows, Rows]:
    """Return which rows the server counts as accesses, and which of them are new blocks that it reads."""
    extends = (trace.flags & EXTEND) > 0
    new_reads = extends if extensions_are_reads else np.zeros(len(extends), dtype=bool)
    apart = (trace.flags & (DROP | UNCOUNTED)) > 0
    return trace.counted & ~apart & (~extends | new_reads), new_reads
