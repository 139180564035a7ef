"""What one look at a pool allows at other sizes: the least and the most misses over all mixtures of rates.

In a pool of hundreds of thousands of buffers a clock pass takes minutes to hours, and no recording is long.
But each page is in one of seven states, absent or at usage_count 0 to 5, whose probabilities at x visits per
clock pass are known (`Clock.law`). So one look gives seven numbers for each group of pages, with errors of
parts in a thousand. Many mixtures of rates agree with them, and the likeliest of them says too little of
pages that come once in many passes. The bounds here are over all of them: linear programs, without a
prior.

A pool of another size has another time of a clock pass, f times today's: a page of x visits in a pass then
has x·f. For each f the misses are linear in the mixture, and so are the resident pages, which must fill the
size. Divided by today's misses they are a ratio of two linear functions, which is made linear by a variable
that scales the mixture (Charnes and Cooper, 1962).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.clock import Clock
from pgsweep.sizing.snapshots.fit import Fit
from pgsweep.sizing.snapshots.load import Load
from pgsweep.sizing.snapshots.observations import ABSENT_AND_COUNTERS, Observations
from pgsweep.sizing.snapshots.rates import Rates
from pgsweep.units import Z90

Floats = NDArray[np.float64]

_GRID: Final[Floats] = np.geomspace(1e-4, 100.0, 90)
"""Visits per clock pass."""

_PASS_SCALES: Final[Floats] = np.geomspace(0.05, 30.0, 500)
"""Times of a clock pass relative to today's, in steps of 1.3%; what lies between two widens the bounds."""

_MOST_STEPS: Final = 24
"""Intervals of the time of a pass in which a size is sought, at most; fewer are wider, as are the bounds."""

_DEVIATIONS: Final = 2.0
_MODEL_ERROR: Final = 0.003
"""How far a number of pages may be from that of the mixture: in standard errors, and of itself."""

_SLACK: Final = 0.3
"""How much more than the least misfit is allowed where no mixture comes within the tolerance."""

_MOST_GROUPS: Final = 4
"""Groups with a mixture of their own, at most: those with most pages; the others share one."""


_TRUTH_BELOW, _TRUTH_ABOVE = 0.36, 0.67
"""Where between its bounds the truth lies at smaller and at larger sizes, on average over simulated pools:
rates are smoother than the mixtures at either end (benchmarks/large)."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a pool.

    Attributes:
        pages: how many pages of each group are absent and at usage_count 0 to 5, shape (groups, 7).
        batches: of each group: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses.
        clock: the policy of the pool.
    """

    pages: Floats
    batches: list[Floats]
    clock: Clock

    @classmethod
    def of(cls, seen: Observations, rates: list[Rates]) -> Look:
        """Return what the snapshots of less than one clock pass show on average."""
        counts = np.bincount(
            seen.page_group[seen.page] * (ABSENT_AND_COUNTERS - 1) + seen.usage_count,
            minlength=len(seen.groups) * (ABSENT_AND_COUNTERS - 1),
        ).reshape(len(seen.groups), -1)
        there = counts / seen.snapshots
        all_pages = np.array([group.pages for group in seen.groups])
        absent = np.maximum(all_pages - there.sum(axis=1), 0.0)
        pages = np.column_stack([absent, there])
        order = np.argsort(-there.sum(axis=1), kind="stable")
        own = [number for number in order[:_MOST_GROUPS].tolist() if there[number].sum() > 0]
        rest = [number for number in order.tolist() if number not in own and there[number].sum() > 0]
        rows, batches = [pages[number] for number in own], [rates[number].batch for number in own]
        if rest:
            rows.append(pages[rest].sum(axis=0))
            weights = there[rest].sum(axis=1)
            batches.append(np.average([rates[number].batch for number in rest], axis=0, weights=weights))
        return cls(pages=np.array(rows), batches=batches, clock=seen.clock)


class LookBounds:
    """The least and the most misses at other sizes, relative to today's.

    Args:
        look: at the pool.
        pool_blocks: its size.
    """

    def __init__(self, look: Look, pool_blocks: int) -> None:
        self._pool = float(pool_blocks)
        scaled = (_PASS_SCALES[:, None] * _GRID).ravel()
        absent, today, rows, seen = [], [], [], []
        for number, (pages, batch) in enumerate(zip(look.pages, look.batches, strict=True)):
            law = look.clock.law(_GRID, batch)
            tolerance = _DEVIATIONS * np.sqrt(pages + 1) + _MODEL_ERROR * pages
            block = np.zeros((len(look.batches), len(_GRID), law.shape[1]))
            block[number] = law
            rows.append(block.reshape(-1, law.shape[1]).T / tolerance[:, None])
            seen.append(pages / tolerance)
            today.append(_GRID * law[:, 0])
            absent.append(look.clock.law(scaled, batch)[:, 0].reshape(len(_PASS_SCALES), -1))
        self._rows, self._seen = np.vstack(rows), np.concatenate(seen)
        absent_all = np.hstack(absent)
        self._resident = (1 - absent_all) / self._pool
        self._misses = absent_all * np.tile(_GRID, len(look.batches)) / self._pool
        self._today_misses = np.concatenate(today) / self._pool
        self.misfit = self._least_misfit()
        allowed = max(1.0, self.misfit + _SLACK)
        self._within = np.vstack([self._rows, -self._rows])
        self._bounds = np.concatenate([self._seen + allowed, allowed - self._seen])
        self._fewest = lru_cache(maxsize=None)(lambda at: self._content(self._resident[at]))
        self._most = lru_cache(maxsize=None)(lambda at: -self._content(-self._resident[at]))

    def at(self, blocks: int) -> tuple[float, float] | None:
        """Return the least and the most misses in a pool of that many blocks; None if no mixture fills it."""
        share, last = blocks / self._pool, len(_PASS_SCALES) - 1
        # The longer a pass is, the more pages are resident, whatever the mixture.
        first = bisect_left(range(last), share, key=self._most)
        end = bisect_right(range(last), share, key=self._fewest)
        edges = np.unique(np.linspace(max(first - 1, 0), end, _MOST_STEPS + 1).round().astype(np.int64))
        least, most = np.inf, -np.inf
        for begin, after in pairwise(edges.tolist()):
            # Between two times of a pass the contents grow and the misses fall.
            fills = np.vstack(
                [np.append(self._resident[begin], -share), np.append(-self._resident[after], share)]
            )
            low = self._ratio(self._misses[after], fills)
            high = self._ratio(-self._misses[begin], fills)
            if low is not None and high is not None:
                least, most = min(least, low), max(most, -high)
        return (least, most) if most >= least else None

    def interval(self, sizes_blocks: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        """Return the likely misses at each size, the least and the most, relative to today's.

        Where no mixture fills a size nothing is known: from none to all that there may be.
        """
        rows = []
        for blocks in sizes_blocks:
            least, most = self.at(blocks) or (0.0, np.inf)
            share = _TRUTH_BELOW if blocks < self._pool else _TRUTH_ABOVE
            rows.append((1.0 if blocks == self._pool else least + share * (most - least), least, most))
        point, low, high = np.array(rows).T
        return point, low, high

    def _least_misfit(self) -> float:
        """Return by how many times the tolerance the best mixture is off."""
        slack = -np.ones((len(self._rows), 1))
        both = np.vstack([np.hstack([self._rows, slack]), np.hstack([-self._rows, slack])])
        cost = np.append(np.zeros(self._rows.shape[1]), 1.0)
        return _least(cost, both, np.concatenate([self._seen, -self._seen])) or 0.0

    def _content(self, resident: Floats) -> float:
        """Return the least of a linear function of the mixtures that agree with the look."""
        return _least(resident, self._within, self._bounds) or 0.0

    def _ratio(self, cost: Floats, fills: Floats) -> float | None:
        """Return the least value of a linear function of the mixture, divided by today's misses."""
        rows = np.vstack([np.column_stack([self._within, -self._bounds]), fills])
        one = np.append(self._today_misses, 0.0)[None, :]
        return _least(np.append(cost, 0.0), rows, np.zeros(len(rows)), one)


def one_look(
    load: Load, fit: Fit, sizes_blocks: Sequence[int], changed: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return the miss ratio at each size by the states of the pages alone, and its interval.

    Args:
        load: that was observed.
        fit: of it, for the batches of accesses.
        sizes_blocks: of the pool.
        changed: the curve of a changed load by the fitted rates; its bounds are as far away, in proportion,
            as those of the load as it is.
    """
    rate, totals = load.pool.sampling_rate, load.totals
    bounds = LookBounds(Look.of(load.seen, fit.rates), load.pool.blocks)
    relative = bounds.interval([round(size * rate) for size in sizes_blocks])
    today = totals.miss_ratio - load.temporary_ratio
    point, low, high = (load.temporary_ratio + today * ratio for ratio in relative)
    low, high = low - Z90 * totals.miss_ratio_error, high + Z90 * totals.miss_ratio_error
    if changed is not None:
        low, high = (changed * bound / np.maximum(point, 1e-9) for bound in (low, high))
        point = changed
    return np.minimum(point, 1.0), np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)


def _least(cost: Floats, rows: Floats, bounds: Floats, one: Floats | None = None) -> float | None:
    """Return the least cost where rows are within bounds and `one` is 1; None where nothing is."""
    from scipy.optimize import linprog

    equal = None if one is None else np.ones(1)
    found = linprog(cost, A_ub=rows, b_ub=bounds, A_eq=one, b_eq=equal, bounds=(0, None), method="highs")
    return float(found.fun) if found.status == 0 else None
