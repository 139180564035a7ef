"""Traces of few clock passes: what the pool held at the beginning says about each page too.

In a pool of gigabytes a clock pass takes minutes to hours. Visits of a part of it, or of a few, say little of
pages that come once a pass. But the pool when the trace began holds what the passes before have made of each
page: given its rate, its state then and its visits since are independent. So both make the law of the rates,
and the least and the most misses over all rates that agree with them (pgsweep.sizing.look) are the curve at
sizes whose clock pass takes longer than half of the trace; smaller pools are replayed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.sizing.clock import Clock
from pgsweep.sizing.look import STATES, VISITS, Look, LookBounds
from pgsweep.sizing.traces.accesses import DROP, STRATEGY, PageStates, Trace
from pgsweep.sizing.traces.replays import Replayed
from pgsweep.sizing.verdict import FULL_SHARE

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Server
    from pgsweep.sizing.traces.visits import Visits

_MOST_PASSES: Final = 4.0
"""Clock passes from which on the visits alone say enough (benchmarks/large)."""

_PASS_REPLACES: Final = 0.5
"""The most of a pool that a clock pass replaces, but for loads that use hardly a page twice."""

_LEAST_MISSES: Final = 100
"""The bounds are in proportion to the misses counted: of hardly any they say that no size misses."""

_FEW_RINGED: Final = 0.05
"""Where more of the accesses go through rings, what they leave behind is not told apart."""


@dataclass(frozen=True)
class ShortTrace:
    """What a trace of few clock passes shows, with the pool at its beginning.

    Attributes:
        passes: how many clock passes it covers.
        states: of all pages when it began.
        bounds: of the misses at other sizes.
    """

    passes: float
    states: PageStates
    bounds: LookBounds

    def answers(self, blocks: int) -> bool:
        """Return whether a clock pass in a pool of that size takes longer than half of the trace."""
        return self.bounds.pass_scale(blocks) > self.passes / 2

    def at(self, blocks: int, measured: float, noise: float) -> Replayed:
        """Return the miss ratio at a size.

        Args:
            measured: at today's size.
            noise: half the width of its 90% interval, for another stretch of this length; at another size
                it is as large in proportion.
        """
        point, low, high = (float(bound[0]) for bound in self.bounds.interval([blocks]))
        return Replayed(
            ratio=min(point * measured, 1.0),
            low=low * measured,
            high=min(high * measured, 1.0),
            half_width=0.0,
            fresh=point * measured,
            settled=point * measured,
            # Where nothing is known of a size, the interval holds whatever another stretch gives.
            another_stretch=noise * point if math.isfinite(point) else 0.0,
        )


def between(one: Replayed, least: float, most: float) -> Replayed:
    """Return what a short trace shows at a size, no less and no more than what is known of other sizes.

    Args:
        one: at the size; where nothing is known of it, or it contradicts the others, it stays as it is.
        least: that a larger pool misses at least.
        most: that a smaller one misses at most.
    """
    low, high = max(one.low, least), min(one.high, most)
    if not (math.isfinite(one.ratio) and low <= high):
        return one
    ratio = one.ratio if low <= one.ratio <= high else (low + high) / 2
    another = one.another_stretch * (ratio / one.ratio if one.ratio > 0 else 1.0)
    return replace(one, ratio=ratio, low=low, high=high, fresh=ratio, settled=ratio, another_stretch=another)


def short_trace(trace: Trace, visits: Visits, server: Server) -> ShortTrace | None:
    """Return what a short trace shows; None of a longer one, or without the pool's contents."""
    start, pool = trace.start, server.pool_blocks
    accesses = (trace.flags & DROP) == 0
    ringed = np.count_nonzero(trace.flags & STRATEGY)
    if start is None or not pool or ringed > _FEW_RINGED * np.count_nonzero(accesses):
        return None
    replaced = np.count_nonzero(trace.missed) + np.count_nonzero(trace.new_page)
    if replaced >= _MOST_PASSES * _PASS_REPLACES * pool or len(start.pages) < FULL_SHARE * pool:
        return None
    if np.count_nonzero(trace.missed & trace.counted) < _LEAST_MISSES:
        return None
    states = np.zeros(len(trace.page_group), dtype=np.uint8)
    states[start.pages] = 1 + start.usage_counts
    # Groups without a page in the pool are left out: there may be many more of them.
    there, number = np.unique(trace.page_group[start.pages]), np.full(len(trace.group_pages), -1)
    number[there] = np.arange(len(there))
    group = number[trace.page_group]
    kept = ~trace.new_page & (group >= 0)
    cells = states.astype(np.int64) * VISITS + np.minimum(visits.of_page, VISITS - 1)
    counted = np.bincount((group * STATES * VISITS + cells)[kept], minlength=len(there) * STATES * VISITS)
    pages = counted.reshape(len(there), -1).astype(np.float64)
    named = np.bincount(group[group >= 0], minlength=len(there))
    pages[:, 0] += np.maximum(trace.group_pages[there] - named, 0.0)
    look = Look.of(pages, visits.batches[there], Clock.of(server.rules))
    bounds = LookBounds.of_visits(look, pool)
    passes = bounds.look.passes
    assert passes is not None
    if passes >= _MOST_PASSES:
        return None
    found = PageStates(states=states, pass_seconds=trace.duration_seconds / passes, clock=bounds.look.clock)
    return ShortTrace(passes, found, bounds)
