"""What a look at a pool allows at other sizes: the least and the most misses over all mixtures of rates.

In a pool of hundreds of thousands of buffers a clock pass takes minutes to hours, and no recording is long.
But each page is in one of seven states, absent or at usage_count 0 to 5, whose probabilities at x visits per
clock pass are known (`Clock.law`). So one look gives seven numbers for each group of pages, with errors of
parts in a thousand. Many mixtures of rates agree with them, and the likeliest of them says too little of
pages that come once in many passes. The bounds here are over all of them: linear programs, without a
prior.

Where accesses were traced after the look, each page is also known to have been visited never, once, twice or
more often, which at a given rate does not depend on its state. So seven numbers become 28, also of pages
that were absent.

A pool of another size has another time of a clock pass, f times today's: a page of x visits in a pass then
has x·f. For each f the misses are linear in the mixture, and so are the resident pages, which must fill the
size. Divided by today's misses they are a ratio of two linear functions, which is made linear by a variable
that scales the mixture (Charnes and Cooper, 1962).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.clock import COUNTS, Clock

Floats = NDArray[np.float64]

_GRID: Final[Floats] = np.geomspace(1e-4, 100.0, 90)
"""Visits per clock pass."""

_VISITED_GRID: Final[Floats] = np.concatenate([_GRID, np.geomspace(130.0, 2e4, 20)])
"""With visits: those of the most popular pages are many, however short a part of a pass is."""

_PASS_SCALES: Final[Floats] = np.geomspace(0.05, 30.0, 500)
"""Times of a clock pass relative to today's, in steps of 1.3%; what lies between two widens the bounds."""

_MOST_STEPS: Final = 24
"""Intervals of the time of a pass in which a size is sought, at most; fewer are wider, as are the bounds."""

_DEVIATIONS: Final = 2.0
_MODEL_ERROR: Final = 0.003
"""How far a number of pages may be from that of the mixture: in standard errors, and of itself."""

_SLACK: Final = 0.3
"""How much more than the least misfit is allowed where no mixture comes within the tolerance."""

_NEARLY_ALL: Final = 0.9
"""Of all pages: rounding and the model's error make mixtures that fill a larger pool rare."""

_MOST_GROUPS: Final = 4
"""Groups with a mixture of their own, at most: those with most pages; the others share one."""


_NO_MISS: Final = 1e-12
"""Of the misses of pages that are never absent: less than this is the solver's rounding."""

_TRUTH: Final = ((0.36, 0.67), (0.51, 0.52))
"""Where between its bounds the truth lies at smaller and at larger sizes, without and with visits, on average
over simulated pools: rates are smoother than the mixtures at either end (benchmarks/large)."""

STATES: Final = COUNTS + 1
"""Absent, and usage_count 0 to 5."""

VISITS: Final = 4
"""None, one, two, more."""

_PASSES: Final = (0.01, 6.0)
"""How many clock passes visits may have been counted for."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at a pool, and what was visited in some time after it.

    Attributes:
        pages: how many pages of each group are absent and at usage_count 0 to 5, shape (groups, 7); with
            visits how many of these were visited never, once, twice and more often, shape (groups, 28).
        batches: of each group: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses.
        clock: the policy of the pool.
        passes: for how many clock passes visits were counted; None where none were.
    """

    pages: Floats
    batches: list[Floats]
    clock: Clock
    passes: float | None = None

    @classmethod
    def of(cls, pages: Floats, batches: Sequence[Floats] | Floats, clock: Clock) -> Look:
        """Return a look at many groups: those with most pages in the pool stay apart.

        Args:
            pages: as above, of any number of groups.
            batches: of each.
            clock: the policy of the pool.
        """
        there = pages[:, pages.shape[1] // STATES :].sum(axis=1)
        order = [number for number in np.argsort(-there, kind="stable").tolist() if there[number] > 0]
        own, rest = order[:_MOST_GROUPS], order[_MOST_GROUPS:]
        rows, laws = [pages[number] for number in own], [batches[number] for number in own]
        if rest:
            rows.append(pages[rest].sum(axis=0))
            laws.append(np.average([batches[number] for number in rest], axis=0, weights=there[rest]))
        return cls(pages=np.array(rows), batches=laws, clock=clock)

    def law(self, group: int, visits_per_pass: Floats) -> Floats:
        """Return the probabilities of what is counted in `pages` at each rate."""
        states = self.clock.law(visits_per_pass, self.batches[group])
        if self.passes is None:
            return states
        mean = visits_per_pass * self.passes
        few = np.exp(-mean)[:, None] * np.column_stack([np.ones_like(mean), mean, mean**2 / 2])
        visits = np.column_stack([few, np.maximum(1 - few.sum(axis=1), 0.0)])
        return np.asarray((states[:, :, None] * visits[:, None, :]).reshape(len(mean), -1))

    def absent(self, group: int, visits_per_pass: Floats) -> Floats:
        """Return how likely a page is absent at each rate."""
        return self.clock.law(visits_per_pass, self.batches[group])[:, 0]


class LookBounds:
    """The least and the most misses at other sizes, relative to today's.

    Args:
        look: at the pool.
        pool_blocks: its size.

    Attributes:
        misfit: by how many times the tolerance the best mixture is off.
    """

    def __init__(self, look: Look, pool_blocks: int) -> None:
        self.look = look
        self._grid = _GRID if look.passes is None else _VISITED_GRID
        self._pool = float(pool_blocks)
        rows, seen, groups = [], [], len(look.batches)
        for number, pages in enumerate(look.pages):
            law = look.law(number, self._grid)
            tolerance = _DEVIATIONS * np.sqrt(pages + 1) + _MODEL_ERROR * pages
            block = np.zeros((groups, len(self._grid), law.shape[1]))
            block[number] = law
            rows.append(block.reshape(-1, law.shape[1]).T / tolerance[:, None])
            seen.append(pages / tolerance)
        self._rows, self._seen = np.vstack(rows), np.concatenate(seen)
        self.misfit = self._least_misfit()
        allowed = max(1.0, self.misfit + _SLACK)
        self._within = np.vstack([self._rows, -self._rows])
        self._bounds = np.concatenate([self._seen + allowed, allowed - self._seen])
        self._fewest = lru_cache(maxsize=None)(lambda at: self._content(self._resident[at]))
        self._most = lru_cache(maxsize=None)(lambda at: -self._content(-self._resident[at]))
        self._known = lru_cache(maxsize=None)(self._computed)

    @classmethod
    def of_visits(cls, look: Look, pool_blocks: int) -> LookBounds:
        """Return the bounds by visits that were counted for an unknown part of a clock pass.

        That is taken which makes a mixture agree best with what was seen.
        """
        from scipy.optimize import minimize_scalar

        def misfit(logarithm: float) -> float:
            return cls(replace(look, passes=float(np.exp(logarithm))), pool_blocks).misfit

        found = minimize_scalar(
            misfit, bounds=np.log(_PASSES).tolist(), method="bounded", options={"xatol": 0.02}
        )
        return cls(replace(look, passes=float(np.exp(found.x))), pool_blocks)

    @cached_property
    def _absent(self) -> Floats:
        """How likely a page is absent, shape (pass scales, groups × rates)."""
        scaled = (_PASS_SCALES[:, None] * self._grid).ravel()
        absent = [self.look.absent(number, scaled) for number in range(len(self.look.batches))]
        return np.hstack([one.reshape(len(_PASS_SCALES), -1) for one in absent])

    @cached_property
    def _resident(self) -> Floats:
        return (1 - self._absent) / self._pool

    @cached_property
    def _misses(self) -> Floats:
        return self._absent * np.tile(self._grid, len(self.look.batches)) / self._pool

    @cached_property
    def _today_misses(self) -> Floats:
        absent = [
            self._grid * self.look.absent(number, self._grid) for number in range(len(self.look.batches))
        ]
        return np.concatenate(absent) / self._pool

    def _scales(self, blocks: int) -> tuple[int, int]:
        """Return the first and the last of the times of a pass at which a mixture may fill that many blocks.

        The longer a pass is, the more pages are resident, whatever the mixture.
        """
        share, last = blocks / self._pool, len(_PASS_SCALES) - 1
        first = bisect_left(range(last), share, key=self._most)
        return max(first - 1, 0), bisect_right(range(last), share, key=self._fewest)

    def pass_scale(self, blocks: int) -> float:
        """Return the time of a pass in a pool of that many blocks, relative to today's."""
        return float(np.sqrt(np.prod(_PASS_SCALES[list(self._scales(blocks))])))

    def at(self, blocks: int) -> tuple[float, float] | None:
        """Return the least and the most misses in a pool of that many blocks; None if no mixture fills it.

        A larger one than today's that none fills misses no more than one of nearly its size.
        """
        return self._known(blocks)

    def _computed(self, blocks: int) -> tuple[float, float] | None:
        pages = self.look.pages.sum()
        if blocks >= pages:
            # All of them fit: no more misses than in a pool that holds nearly all.
            nearly = self.at(int(_NEARLY_ALL * pages))
            return None if nearly is None else (0.0, nearly[1])
        share = blocks / self._pool
        edges = np.unique(np.linspace(*self._scales(blocks), _MOST_STEPS + 1).round().astype(np.int64))
        low, high = [], []
        for begin, after in pairwise(edges.tolist()):
            # Between two times of a pass the contents grow and the misses fall.
            fills = np.vstack(
                [np.append(self._resident[begin], -share), np.append(-self._resident[after], share)]
            )
            low.append((self._misses[after], fills))
            high.append((-self._misses[begin], fills))
        # The fewest misses are found where passes are long, the most where they are short.
        least, most = self._least_ratio(low[::-1]), -self._least_ratio(high)
        if np.inf > most >= least:
            return least, most
        smaller = self.at(max(int(_NEARLY_ALL * blocks), int(self._pool))) if blocks > self._pool else None
        return None if smaller is None else (0.0, smaller[1])

    def interval(self, sizes_blocks: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        """Return the likely misses at each size, the least and the most, relative to today's.

        Where no mixture fills a size nothing is known: from none to all that there may be.
        """
        rows = []
        for blocks in sizes_blocks:
            least, most = self.at(blocks) or (0.0, np.inf)
            share = _TRUTH[self.look.passes is not None][blocks > self._pool]
            rows.append((1.0 if blocks == self._pool else least + share * (most - least), least, most))
        point, low, high = np.array(rows).T
        return point, low, high

    def _least_misfit(self) -> float:
        """Return by how many times the tolerance the best mixture is off."""
        slack = -np.ones((len(self._rows), 1))
        both = np.vstack([np.hstack([self._rows, slack]), np.hstack([-self._rows, slack])])
        cost = np.append(np.zeros(self._rows.shape[1]), 1.0)
        return _least(cost, both, np.concatenate([self._seen, -self._seen]))[0]

    def _content(self, resident: Floats) -> float:
        """Return the least of a linear function of the mixtures that agree with the look."""
        return _least(resident, self._within, self._bounds)[0]

    def _least_ratio(self, programs: Sequence[tuple[Floats, Floats]]) -> float:
        """Return the least that one of some linear functions of the mixture is, divided by today's misses.

        The multipliers of a program that was solved bound the next ones from below (weak duality). Most of
        them cannot have less than the least so far, and are not solved.

        Args:
            programs: each function, and the rows by which a mixture fills the size.

        Returns:
            Infinite where no mixture does.
        """
        agrees = np.column_stack([self._within, -self._bounds])
        today = np.append(self._today_misses, 0.0)
        least, known = np.inf, list[tuple[Floats, Floats]]()
        for function, fills in programs:
            cost = np.append(function, 0.0)
            if any(_floor(cost + within + filling @ fills, today) >= least for within, filling in known):
                continue
            rows = np.vstack([agrees, fills])
            value, multipliers = _least(cost, rows, np.zeros(len(rows)), today[None, :])
            if multipliers is not None:
                known.append((multipliers[: len(agrees)] @ agrees, multipliers[len(agrees) :]))
                least = min(least, value)
        return least


def _floor(reduced: Floats, one: Floats) -> float:
    """Return what a cost is at least where `one` is 1, by its reduced costs."""
    counts = one > _NO_MISS
    if np.any(reduced[~counts] < -_NO_MISS):
        return -np.inf
    return float(np.min(reduced[counts] / one[counts]))


def _least(
    cost: Floats, rows: Floats, bounds: Floats, one: Floats | None = None
) -> tuple[float, Floats | None]:
    """Return the least cost where rows are within bounds and `one` is 1, and the multipliers of the rows.

    Where nothing is so it is 0, without any.
    """
    from scipy.optimize import linprog

    equal = None if one is None else np.ones(1)
    found = linprog(cost, A_ub=rows, b_ub=bounds, A_eq=one, b_eq=equal, bounds=(0, None), method="highs")
    if found.status != 0:
        return 0.0, None
    return float(found.fun), np.maximum(-found.ineqlin.marginals, 0.0)
