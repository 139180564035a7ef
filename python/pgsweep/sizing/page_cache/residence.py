"""What a page cache makes of the pool's misses, in closed form, from rates of visits.

A page that is loaded stays for V clock passes, each of T, and is loaded again when it is next visited,
after a time Exp(l): the gap between its misses is G = V T + Exp(l). A page cache in which each page stays for
T2 after it was last read has it when it is missed again with probability

    h = P(G <= T2) = sum over v of P(V = v) (1 - exp(-l max(0, T2 - v T)))

and at any time with probability E[min(G, T2)] / E[G]. T2 is such that these add up to what the cache holds.
That is LRU, without readahead and writes; Linux's two lists read 1 to 4% less from disk in simulations. So it
is not the prediction but its cross-check (pgsweep.sizing.page_cache.rate_caches).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native

Floats = NDArray[np.float64]

MOST_VISITS: Final = 12.0
"""Visits in a clock pass from which on a page never leaves: it would have to be without a visit for six
clock passes, e^-72."""

_CAP: Final = 5
_EXACT_PASSES: Final = 24
_LATER_PASSES: Final = 60
_MOST_PASSES: Final = 100_000
_BISECTIONS: Final = 24


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Pages that are visited at the same rate.

    Attributes:
        group: of each class.
        pages: how many pages it has.
        rate: visits per second of each of them.
        batch: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses, shape (classes, 5).
    """

    group: NDArray[np.int64]
    pages: Floats
    rate: Floats
    batch: Floats

    def states(self, pass_seconds: float) -> Floats:
        """Return the probabilities that a page is absent or at usage_count 0 to 5, shape (classes, 7)."""
        visits = np.minimum(self.rate * pass_seconds, MOST_VISITS)
        found = np.empty((len(visits), 2 + _CAP))
        laws, of = np.unique(self.batch, axis=0, return_inverse=True)
        for number, law in enumerate(laws):
            here = of.ravel() == number
            found[here] = _native.clock_law(np.ascontiguousarray(visits[here]), np.ascontiguousarray(law))
        return found


class Residence:
    """How long pages of some classes stay in a pool, and what a page cache behind it holds of them.

    Args:
        classes: the pages.
        pass_seconds: time of a clock pass of the pool.
    """

    def __init__(self, classes: Classes, pass_seconds: float) -> None:
        self._classes = classes
        self._pass_seconds = pass_seconds
        self.states = classes.states(pass_seconds)
        self.miss_rate: Floats = classes.rate * self.states[:, 0]
        """Loads of a page per second."""

        self._passes, self._share = self._residences()
        # How likely a residence has the passes of each number and more.
        more = np.cumsum(self._share[::-1], axis=0)[::-1]
        self._longer = np.concatenate([more, np.zeros_like(more[:1])])

    def _residences(self) -> tuple[Floats, Floats]:
        """Return numbers of clock passes and how likely a residence has each, shapes (n,), (n, classes)."""
        visits = np.minimum(self._classes.rate * self._pass_seconds, MOST_VISITS)
        # Rows, not columns, are of the classes: there are many, and they lie side by side in memory.
        batch = np.ascontiguousarray(self._classes.batch.T)
        added = accesses_in_a_pass(visits, batch)
        # Row c: at usage_count c just before the accesses of a pass. A load sets it to those of its visit.
        state = np.concatenate([np.zeros_like(batch[:1]), batch])
        ended = np.empty((_EXACT_PASSES, len(visits)))
        left = before = np.ones(len(visits))
        for number in range(_EXACT_PASSES):
            after = np.zeros_like(state)
            for more in range(_CAP):
                after[more:_CAP] += state[: _CAP - more] * added[more]
            after[_CAP] = state.sum(axis=0) - after[:_CAP].sum(axis=0)
            ended[number] = after[0]
            state = np.zeros_like(after)
            state[:_CAP] = after[1:]
            before, left = left, state.sum(axis=0)
        # By then the counts of those that are left keep their shares, and in each pass the same part goes.
        stays = np.clip(left / np.maximum(before, 1e-300), 0.0, 1.0)
        edges = np.unique(np.round(np.geomspace(1, _MOST_PASSES, _LATER_PASSES)))
        edges = np.append(0.0, edges)
        there = left[None, :] * stays[None, :] ** edges[:, None]
        passes = np.concatenate(
            [np.arange(1.0, _EXACT_PASSES + 1), _EXACT_PASSES + (edges[1:] + edges[:-1] + 1) / 2]
        )
        shares = np.concatenate([ended, there[:-1] - there[1:]])
        # What stays for longer than can matter.
        return np.append(passes, _EXACT_PASSES + _MOST_PASSES), np.concatenate([shares, there[-1:]])

    def cached(self, kept_seconds: float) -> Floats:
        """Return how likely a page of each class is cached, where each is kept for that long after a read."""
        stay, share = self._left_before(kept_seconds)
        rate = self._classes.rate[None, :]
        until = stay - np.expm1(rate * (stay - kept_seconds)) / rate
        later = kept_seconds * self._longer[len(stay)]
        return np.asarray(np.minimum(self.miss_rate * ((share * until).sum(axis=0) + later), 1.0))

    def found(self, kept_seconds: float) -> Floats:
        """Return how likely a page of each class is cached when it is missed."""
        stay, share = self._left_before(kept_seconds)
        found = -(share * np.expm1(self._classes.rate[None, :] * (stay - kept_seconds))).sum(axis=0)
        return np.asarray(found, dtype=np.float64)

    def _left_before(self, seconds: float) -> tuple[Floats, Floats]:
        """Return residences that end before, in seconds, shape (n, 1), and how likely each is."""
        stay = self._passes * self._pass_seconds
        ended = int(np.searchsorted(stay, seconds))
        return stay[:ended, None], self._share[:ended]

    def kept_seconds(self, cache_blocks: float) -> float:
        """Return for how long a page cache of that size keeps what was read; infinite where all fits."""
        pages = self._classes.pages
        low, high = 1e-6, 1e12
        if float(self.cached(high) @ pages) <= cache_blocks:
            return float("inf")
        for _ in range(_BISECTIONS):
            middle = float(np.sqrt(low * high))
            if float(self.cached(middle) @ pages) > cache_blocks:
                high = middle
            else:
                low = middle
        return low


def accesses_in_a_pass(visits: Floats, batch: Floats) -> Floats:
    """Return P(0), ..., P(4) accesses, where visits are Poisson and bring batches (Panjer's recursion).

    Args:
        visits: expected in the clock pass, by class.
        batch: as in `Classes`, but of shape (5, classes).

    Returns:
        Shape (5, classes).
    """
    found = np.zeros((_CAP, len(visits)))
    found[0] = np.exp(-visits)
    for number in range(1, _CAP):
        for size in range(1, number + 1):
            found[number] += size * batch[size - 1] * found[number - size]
        found[number] *= visits / number
    return found
