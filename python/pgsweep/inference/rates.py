"""From sightings to rates: how many pages are visited how often, and how many accesses a visit brings.

The law of one page (`pgsweep._native.clock_law`) says with which probability it is seen absent or at each
usage_count when it has x visits per lap of the hand. The nonparametric maximum-likelihood mixture over a
grid of x explains the counts of all pages of a group; the batch law of the group (probabilities that a
visit brings 1, 2, 3, 4, and 5 or more accesses) is fitted around it by simplex search on the likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native

Floats = NDArray[np.float64]

GRID: Floats = np.geomspace(1e-4, 400.0, 110)
"""Visits per lap. Pages above x = 5 are nearly always at usage_count 5, but the share of time at 4 is still
1/x."""

SINGLE: Floats = np.array([1.0, 0.0, 0.0, 0.0, 0.0])

_SEARCH_EVALUATIONS = 90
_ENOUGH_SIGHTINGS = 200
_ENOUGH_PAGES = 4000
_STEPS, _GAIN = 600, 1e-2


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What is known of the pages of a group.

    Attributes:
        batch: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses.
        pages: expected number of pages at each point of `GRID`.
    """

    batch: Floats
    pages: Floats

    def resident(self) -> float:
        """Return the expected number of resident pages."""
        return float(self.pages @ (1 - _native.clock_law(GRID, self.batch)[:, 0]))

    def loads_per_lap(self) -> float:
        """Return the expected number of loads in one lap of the hand."""
        return float((self.pages * GRID) @ _native.clock_law(GRID, self.batch)[:, 0])


def likelihoods(classes: Floats, batch: Floats) -> tuple[Floats, Floats]:
    """Return the likelihoods of classes at grid points, the largest of each row 1, and the log scales."""
    law = np.maximum(_native.clock_law(GRID, batch), 1e-300)
    logs = classes @ np.log(law).T
    scale = logs.max(axis=1)
    return np.ascontiguousarray(np.exp(logs - scale[:, None])), scale


def fit_weights(
    classes: Floats, pages: Floats, batch: Floats, *, steps: int = _STEPS
) -> tuple[Floats, float]:
    """Return the weights of the grid points (sum 1) for a given batch law, and the log-likelihood."""
    like, scale = likelihoods(classes, batch)
    weights, reached = _native.mixture_weights(like, pages, steps=steps, gain=_GAIN)
    return weights, reached + float(pages @ scale)


def fit_batch(classes: Floats, pages: Floats, random: np.random.Generator) -> Floats:
    """Return the batch law under which the classes are most likely.

    Too few sightings say nothing about batches: then every visit is taken as a single access. Of very many
    pages a random part is enough.
    """
    from scipy.optimize import minimize

    seen = float(pages[:-1].sum())
    if seen > _ENOUGH_PAGES:
        pages = random.binomial(np.rint(pages).astype(np.int64), _ENOUGH_PAGES / seen).astype(np.float64)
        classes, pages = classes[pages > 0], pages[pages > 0]

    sightings = float(pages @ classes[:, 1:].sum(axis=1))
    if sightings < _ENOUGH_SIGHTINGS:
        return SINGLE

    def batch_of(theta: Floats) -> Floats:
        odds = np.exp(np.append(0.0, theta) - max(0.0, float(theta.max())))
        return np.asarray(odds / odds.sum(), dtype=np.float64)

    def cost(theta: Floats) -> float:
        # A weak pull to the centre keeps probabilities that the data leave open from running away.
        return -fit_weights(classes, pages, batch_of(theta), steps=45)[1] + 0.02 * float(theta @ theta)

    start = np.array([-2.0, -3.0, -4.0, -4.0])
    found = minimize(
        cost,
        start,
        method="Nelder-Mead",
        options={"maxfev": _SEARCH_EVALUATIONS, "fatol": 1.0, "xatol": 0.05},
    )
    return batch_of(np.asarray(found.x, dtype=np.float64))


def resample(
    classes: Floats, pages: Floats, rates: Rates, replicates: int, random: np.random.Generator
) -> Floats:
    """Return `pages` of `Rates` refitted to pages drawn again with replacement, shape (replicates, grid)."""
    like, _ = likelihoods(classes, rates.batch)
    drawn = random.poisson(pages, size=(replicates, len(pages))).astype(np.float64)
    total = rates.pages.sum()
    start = np.maximum(rates.pages / max(total, 1e-300), 1e-9)
    weights = _native.mixture_weights_many(like, drawn, start / start.sum())
    return np.asarray(weights * drawn.sum(axis=1, keepdims=True))
