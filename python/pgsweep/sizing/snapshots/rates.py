"""Rates: how many pages are visited how often, and how many accesses a visit brings; fitted to observations.

The law of one page (`law_of`, by `pgsweep._native.clock_law`) says with which probability a page with λ
visits per clock pass is seen absent or at each usage_count. The nonparametric maximum-likelihood mixture over
a grid of λ explains the counts of all pages of a group; the batch law of the group (probabilities that a
visit brings 1, 2, 3, 4, and 5 or more accesses) is searched for around it, by the likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.clock import USUAL, Clock
from pgsweep.sizing.snapshots.search import least

Floats = NDArray[np.float64]

GRID: Floats = np.geomspace(1e-4, 400.0, 110)
"""Visits per clock pass. Pages above λ = 5 are nearly always at usage_count 5, but the share of time at 4 is
still 1/λ."""

SINGLE: Floats = np.array([1.0, 0.0, 0.0, 0.0, 0.0])

_SEARCH_EVALUATIONS = 160
_SEARCH_STEPS = 45
_START_MEANS = (1.02, 1.3, 1.8, 2.7, 4.2)
_HALF_STEP: float = float(np.log(GRID[1] / GRID[0])) / 2
_LEAST_GAIN = 4.0
"""Log-likelihood that a law of four more parameters must gain."""

_ENOUGH_OBSERVATIONS = 200
_ENOUGH_PAGES = 4000
STEPS: Final = 600
_GAIN: Final = 0.05

_MANY_ROWS: Final = 2000
_ALIKE: Final = 0.05
"""Of more rows, those are taken together by which the logarithm of a page's rate is known so equally. The
spread of the curve stays what it is, as far as some hundred draws can show (benchmarks/answers)."""

_COLD_BELOW, _HOT_FROM = 0.8, 2.0
_BLEND: Floats = (
    np.rint(4 * np.clip(np.log(GRID / _COLD_BELOW) / np.log(_HOT_FROM / _COLD_BELOW), 0.0, 1.0)) / 4
)
"""How much of the hot batch law holds at each grid point: pages of one relation need not share a law, a row
that is read all day is not visited as a page is that a scan passes by."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The fitted rates and batch laws of a group's pages.

    Attributes:
        pages: expected number of pages at each point of `GRID`.
        batch: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses, for pages that come and
            go.
        hot_batch: the same for pages that hardly ever leave, whose counters do not show it.
        clock: the server's policy.
    """

    pages: Floats
    batch: Floats
    hot_batch: Floats
    clock: Clock = USUAL

    def law(self, visits_per_pass: Floats) -> Floats:
        """Return the law of pages of each grid point at other rates: absent, usage_count 0 to 5.

        Args:
            visits_per_pass: shape (any, grid).

        Returns:
            Shape (any, grid, 7).
        """
        return law_of(visits_per_pass, self.batch, self.hot_batch, self.clock)

    def batches(self) -> Floats:
        """Return the batch law of pages at each grid point, shape (grid, 5)."""
        return (1 - _BLEND)[:, None] * self.batch + _BLEND[:, None] * self.hot_batch

    def resident(self) -> float:
        """Return the expected number of resident pages."""
        return float(self.pages @ (1 - self.law(GRID[None, :])[0, :, 0]))

    def loads_per_pass(self) -> float:
        """Return the expected number of loads in one clock pass."""
        return float((self.pages * GRID) @ self.law(GRID[None, :])[0, :, 0])

    def accesses_per_pass(self) -> float:
        """Return the expected number of accesses that raise a counter, in one clock pass."""
        steps = np.arange(1.0, 6.0)
        each = (1 - _BLEND) * (self.batch @ steps) + _BLEND * (self.hot_batch @ steps)
        return float(self.pages @ (GRID * each))


def law_of(visits_per_pass: Floats, batch: Floats, hot_batch: Floats, clock: Clock = USUAL) -> Floats:
    """Return the law for pages at each grid point, shape (any, grid, 7), given rates of shape (any, grid)."""
    law = np.empty((*visits_per_pass.shape, 7))
    for share in np.unique(_BLEND):
        here = share == _BLEND
        rates = visits_per_pass[:, here]
        mixed = (1 - share) * batch + share * hot_batch
        law[:, here] = clock.law(np.ascontiguousarray(rates).ravel(), mixed).reshape(*rates.shape, 7)
    return law


def likelihoods(
    classes: Floats, batch: Floats, clock: Clock = USUAL, *, grid: Floats = GRID
) -> tuple[Floats, Floats]:
    """Return the likelihoods of classes at grid points, the largest of each row 1, and the log scales."""
    law = law_of(grid[None, :], batch, batch, clock)[0]
    logs = classes @ np.log(np.maximum(law, 1e-300)).T
    scale = logs.max(axis=1)
    return np.ascontiguousarray(np.exp(logs - scale[:, None])), scale


def cap_to_counters(rates: Rates, accesses_per_pass: float) -> Rates:
    """Make rates agree with the number of accesses that the server counted; that number is an upper bound.

    Counters of pages that are always at 4 or 5 show neither the size of their batches nor, above some rate,
    the rate. The server's count bounds both: accesses to a page that the backend already pins are counted
    as hits but raise nothing, so the count may be larger than what counters show, never smaller. First the
    batches of hot pages shrink to single accesses, then the highest rates are cut.
    """
    if rates.accesses_per_pass() <= accesses_per_pass:
        return rates
    single = replace(rates, hot_batch=SINGLE)
    least = single.accesses_per_pass()
    if least <= accesses_per_pass:
        keep = (accesses_per_pass - least) / max(rates.accesses_per_pass() - least, 1e-12)
        mixed = keep * rates.hot_batch + (1 - keep) * SINGLE
        return replace(rates, hot_batch=mixed)
    pages = rates.pages.copy()
    for top in range(len(GRID) - 1, int(np.searchsorted(GRID, _HOT_FROM)), -1):
        pages[top - 1] += pages[top]
        pages[top] = 0.0
        cut = replace(rates, pages=pages, hot_batch=SINGLE)
        if cut.accesses_per_pass() <= accesses_per_pass:
            return cut
    return replace(rates, pages=pages, hot_batch=SINGLE)


def fit_rates(
    like: Floats, pages: Floats, batch: Floats, clock: Clock = USUAL, *, steps: int = STEPS
) -> Rates:
    """Return the rates under which what pages showed is most likely; `like` and `pages` as for `resample`."""
    if pages.sum() <= 0:
        return Rates(batch=batch, hot_batch=batch, pages=np.zeros(len(GRID)), clock=clock)
    weights, _ = _native.mixture_weights(like, pages, steps=steps, gain=_GAIN)
    return Rates(batch=batch, hot_batch=batch, pages=weights * pages.sum(), clock=clock)


def fit_batch(classes: Floats, pages: Floats, random: np.random.Generator, clock: Clock = USUAL) -> Floats:
    """Return the batch law under which the classes are most likely.

    Too few observations say nothing about batches: then every visit is taken as a single access, as it is
    where another law explains them hardly better. Of very many pages a random part is enough. Where a
    page just read is at the cap already, as with one bit, batches leave no trace.
    """
    if clock.admission == clock.usage_cap:
        return SINGLE
    seen = float(pages[:-1].sum())
    if seen > _ENOUGH_PAGES:
        pages = random.binomial(np.rint(pages).astype(np.int64), _ENOUGH_PAGES / seen).astype(np.float64)
        classes, pages = classes[pages > 0], pages[pages > 0]

    observations = float(pages @ classes[:, 1:].sum(axis=1))
    if observations < _ENOUGH_OBSERVATIONS:
        return SINGLE

    def likely(batch: Floats, shift: float = 0.0) -> float:
        # Pages that are all visited equally often lie between two points of the grid: unless it may move,
        # the law that puts them on a point looks the likeliest.
        like, scale = likelihoods(classes, batch, clock, grid=GRID * np.exp(shift))
        reached: float = _native.mixture_weights(like, pages, steps=_SEARCH_STEPS, gain=_GAIN)[1]
        return reached + float(pages @ scale)

    def batch_of(theta: Floats) -> Floats:
        odds = np.exp(np.append(0.0, theta) - max(0.0, float(theta.max())))
        return np.asarray(odds / odds.sum(), dtype=np.float64)

    def cost(point: Floats) -> float:
        # A weak pull to the centre keeps probabilities that the data leave open from running away.
        return -likely(batch_of(point[:-1]), float(point[-1])) + 0.02 * float(point[:-1] @ point[:-1])

    # The search ends at the nearest maximum, so it begins at the best of several laws.
    starts = [_geometric(mean) for mean in _START_MEANS]
    start = starts[int(np.argmax([likely(batch) for batch in starts]))]
    found = least(
        cost,
        np.append(np.log(start[1:] / start[0]), 0.0),
        np.append(np.full(4, -7.0), -_HALF_STEP),
        np.append(np.full(4, 4.0), _HALF_STEP),
        evaluations=_SEARCH_EVALUATIONS,
        gain=2e-7,
    )
    batch = batch_of(found[:-1])
    single = max(likely(SINGLE, shift) for shift in np.linspace(-_HALF_STEP, _HALF_STEP, 5).tolist())
    return batch if likely(batch, float(found[-1])) > single + _LEAST_GAIN else SINGLE


def _geometric(mean: float) -> Floats:
    """Return the batch law of visits that go on with the same probability after each access."""
    ends = 1 / mean
    goes_on = (1 - ends) ** np.arange(5)
    return np.asarray(np.append(ends * goes_on[:4], goes_on[4]))


def resample(
    like: Floats, pages: Floats, rates: Rates, replicates: int, random: np.random.Generator
) -> Floats:
    """Return `pages` of `Rates` refitted to pages drawn again with replacement, shape (replicates, grid).

    Args:
        like: likelihoods of what pages showed, one row for each thing shown.
        pages: how many pages showed it.
    """
    if pages.sum() <= 0:
        return np.zeros((replicates, len(GRID)))
    if len(pages) > _MANY_ROWS:
        like, pages = _summed_up(like, pages, rates)
    drawn = random.poisson(pages, size=(replicates, len(pages))).astype(np.float64)
    total = rates.pages.sum()
    start = np.maximum(rates.pages / max(total, 1e-300), 1e-9)
    weights = _native.mixture_weights_many(like, drawn, start / start.sum())
    return np.asarray(weights * drawn.sum(axis=1, keepdims=True))


def _summed_up(like: Floats, pages: Floats, rates: Rates) -> tuple[Floats, Floats]:
    """Return likelihoods and pages with rows taken together that say nearly the same of a page's rate.

    Each row enters by its share of the mixture's likelihood, so that the rates fit those that are left as
    well as they fit all.
    """
    weights = np.maximum(rates.pages / rates.pages.sum(), 1e-9)
    log_rate = np.log(GRID)
    mixed, *moments = (like @ (weights[:, None] * log_rate[:, None] ** np.arange(3))).T
    mean, square = moments / mixed
    deviation = np.sqrt(np.maximum(square - mean**2, _ALIKE**2))
    cells = np.rint(np.column_stack([mean, np.log(deviation)]) / _ALIKE)
    _, which = np.unique(cells @ [1e4, 1.0], return_inverse=True)
    order = np.argsort(which, kind="stable")
    begins = np.flatnonzero(np.diff(which[order], prepend=-1))
    together = np.bincount(which, pages).astype(np.float64)
    found = np.add.reduceat(like[order] * (pages / mixed)[order, None], begins, axis=0)
    return found / np.maximum(together, 1e-300)[:, None], together
