"""Fit rates to snapshots close together, by the likelihood of a page's whole path, not of single states.

Snapshots within a few clock passes of each other show one residence several times. If they are taken for
independent, a page that was loaded once looks like a warm one. Where the clock hand is seen (evidence of
source `peek`), what happens between two snapshots is a Markov chain whose state is fully observed: a page is
absent, or resident at a usage_count and a number of steps of a clock pass after the hand's last visit to its
buffer. That number follows from the buffer's number and the hand. The likelihood of a path is the product of
its transition probabilities, exact except for the length of the step: visits come at random and raise the
count, the hand lowers it when it comes and evicts at 0, and a visit to an absent page loads it right behind
the hand.
"""

from __future__ import annotations

from math import factorial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.clock import COUNTS, Clock
from pgsweep.sizing.snapshots.observations import Observations
from pgsweep.sizing.snapshots.rates import GRID, Rates

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STEPS: Final = 8
"""Steps of a clock pass."""

_COUNTS: Final = COUNTS
_MOST_SNAPSHOTS: Final = 24
_MOST_PAGES: Final = 10_000
"""Pages of a group; of a larger group a random sample is used."""

_ENOUGH_LOADS: Final = 200
_AGES: Final = 5
"""Parts of equal size into which loaded pages are divided by their age."""

_ROUNDS: Final = 2
"""A batch law is used for later visits too, and is then estimated again."""

_LATER_RATES, _HALVINGS = (0.0, 0.1, 0.4, 0.8, 1.6, 3.2), 3
"""Visits in a clock pass of pages that were just loaded, and how often what lies beside the best is tried."""

_YOUNG, _OLD, _ENOUGH_YOUNG = 0.03, 0.15, 40
"""Passes since a page was loaded, and how many pages it takes to know a mean."""


def path_likelihoods(
    seen: Observations, group: int, chosen: Integers, batch: Floats, random: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the likelihoods of the paths of a group's pages, and how many pages each of them stands for.

    Args:
        seen: with buffers and the hand.
        chosen: snapshots, ascending; of many only some are used.
        batch: probabilities that a visit brings 1, 2, 3, 4, and 5 or more accesses.
        random: draws the pages where there are very many.

    Returns:
        Shape (paths, grid), the largest of each row 1; and shape (paths,).
    """
    if len(chosen) > _MOST_SNAPSHOTS:
        chosen = chosen[np.linspace(0, len(chosen) - 1, _MOST_SNAPSHOTS).round().astype(np.int64)]
    visits, turns = _one_step(batch, seen.clock)
    return _native.path_likelihoods(
        *_paths(seen, group, chosen, random),
        hands=seen.hand_buffers[chosen],
        pool=seen.pool_buffers,
        visits=visits,
        turns=turns,
    )


def loaded_batch(seen: Observations, group: int, rates: Rates | None = None) -> Floats | None:
    """Return the batch law from the usage counts at which pages are first seen, or None if few are.

    A page that was absent and is there in the next snapshot has had the accesses of the visit that loaded it,
    and those of later visits, the more of them the longer ago it was loaded. How often these come `rates`
    say; without, that rate is taken which explains counts and ages best. Where such a page does not begin at
    1, its usage count is no number of accesses.
    """
    if seen.clock.admission != 1:
        return None
    count, age = _first_seen(seen, group)
    if len(count) < _ENOUGH_LOADS:
        return None
    parts = np.array_split(np.argsort(age, kind="stable"), _AGES)
    counted = [np.bincount(count[part], minlength=_COUNTS)[1:] / len(part) for part in parts]
    ages = [float(age[part].mean()) for part in parts]
    first = np.mean(counted, axis=0)
    if rates is not None:
        return _batch_of(counted, ages, GRID, _loaded(rates), first, seen.clock)[0]

    def at(rate: float) -> tuple[float, Floats]:
        batch, off = _batch_of(counted, ages, np.array([rate]), np.ones(1), first, seen.clock)
        return off, batch

    tried = {rate: at(rate) for rate in _LATER_RATES}
    for _ in range(_HALVINGS):
        best = min(tried, key=lambda rate: tried[rate][0])
        known = sorted(tried)
        place = known.index(best)
        for beside in known[max(place - 1, 0) : place + 2]:
            between = (best + beside) / 2
            tried.setdefault(between, at(between))
    return min(tried.values(), key=lambda one: one[0])[1]


def _loaded(rates: Rates) -> Floats:
    """Return which share of the pages that are loaded has each rate of the grid."""
    loads = rates.pages * GRID * rates.law(GRID[None, :])[0, :, 0]
    return np.asarray(loads / max(loads.sum(), 1e-300))


def _batch_of(
    counted: list[Floats], ages: list[float], rates: Floats, weights: Floats, first: Floats, clock: Clock
) -> tuple[Floats, float]:
    """Return the batch law where later visits come at these rates, and by how much it misses the counts.

    Args:
        counted: shares of the pages at each count from 1 on, by age.
        ages: in clock passes.
        rates, weights: visits in a clock pass, and which share of the pages has them.
        first: a law to begin with.
        clock: the policy of the pool.
    """
    batch, wanted = first, np.concatenate(counted)
    # Later visits have batches of the same law.
    for _ in range(_ROUNDS):
        later = [
            np.einsum("g,gkc->ck", weights, _visits(batch, rates * age, clock)[:, 1:, 1:]) for age in ages
        ]
        law = np.vstack(later)
        batch = nonnegative(law, wanted)
        batch = batch / batch.sum()
    off = law @ batch - wanted
    return batch, float(off @ off)


def nonnegative(matrix: Floats, wanted: Floats) -> Floats:
    """Return the x without negative parts whose `matrix @ x` is nearest to what is wanted, for a few columns.

    It solves the least squares of those columns where it is not 0 (Lawson and Hanson 1974, chapter 23), so
    each choice of columns is tried; scipy.optimize takes longer to load.
    """
    columns = matrix.shape[1]
    best, least = np.zeros(columns), float(wanted @ wanted)
    for chosen in range(1, 2**columns):
        some = (chosen >> np.arange(columns)) & 1 == 1
        found = np.linalg.lstsq(matrix[:, some], wanted, rcond=None)[0]
        off = matrix[:, some] @ found - wanted
        if (found >= 0).all() and float(off @ off) < least:
            best, least = np.zeros(columns), float(off @ off)
            best[some] = found
    return best


def late_accesses(seen: Observations, group: int, rates: Rates) -> float:
    """Return how many accesses of a visit come late, for each first one: long after the page was loaded.

    A page lies right behind the hand when it is loaded, so its place shows how long ago that was. Where a
    visit's accesses come together, pages just loaded have as many as those loaded a while ago, later visits
    aside; a smaller pool, whose passes are shorter, evicts pages between accesses that come late.
    """
    count, age = _first_seen(seen, group)
    young, old = age < _YOUNG, age >= _OLD
    if young.sum() < _ENOUGH_YOUNG or old.sum() < _ENOUGH_YOUNG:
        return 0.0
    visits = float(_loaded(rates) @ np.minimum(GRID, 4.0))
    each = float(rates.batch @ np.arange(1.0, 6.0))
    passed = float(age[old].mean() - age[young].mean())
    grown = float(count[old].mean() - count[young].mean())
    error = float(np.hypot(count[old].std() / old.sum() ** 0.5, count[young].std() / young.sum() ** 0.5))
    return max(grown - passed * visits * each - error, 0.0)


def whole_batch(seen: Observations, group: int, rates: Rates) -> Floats | None:
    """Return the batch law from pages that were loaded long before the last snapshot, or None if few were.

    It has the accesses of a visit that come late, and only later visits that `rates` know are taken away. It
    holds for recordings of less than one clock pass, in which the hand passes no page that was loaded
    meanwhile, and as for `loaded_batch` only where a page begins at 1.
    """
    if seen.clock.admission != 1:
        return None
    last = seen.snapshots - 1
    before = np.zeros(len(seen.page_group), dtype=bool)
    before[seen.page[seen.snapshot == 0]] = True
    new = np.flatnonzero((seen.snapshot == last) & ~before[seen.page] & ~seen.created[seen.page])
    new = new[seen.page_group[seen.page[new]] == group]
    if len(new) < _ENOUGH_LOADS:
        return None
    age = (seen.hand_buffers[last] - seen.buffer[new]) % seen.pool_buffers / seen.pool_buffers
    oldest = np.argsort(age, kind="stable")[-(len(new) // _AGES) :]
    counted = np.bincount(seen.usage_count[new[oldest]], minlength=_COUNTS)[1:] / len(oldest)
    return _batch_of([counted], [float(age[oldest].mean())], GRID, _loaded(rates), counted, seen.clock)[0]


def _first_seen(seen: Observations, group: int) -> tuple[Integers, Floats]:
    """Return counts of pages loaded since the snapshot before, and the passes since each was loaded."""
    new = seen.loaded[group]
    age = (seen.hand_buffers[seen.snapshot[new]] - seen.buffer[new]) % seen.pool_buffers / seen.pool_buffers
    return seen.usage_count[new], age


def _paths(
    seen: Observations, group: int, chosen: Integers, random: np.random.Generator
) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.bool_], Floats]:
    """Return usage counts (-1: absent) and buffers (0 then) of pages, shape (pages, snapshots).

    Also return which of them were created meanwhile, and their weights. The last row are the pages never
    seen.
    """
    column = np.full(seen.snapshots, -1)
    column[chosen] = np.arange(len(chosen))
    take = np.flatnonzero((seen.page_group == group)[seen.page] & (column >= 0)[seen.snapshot])
    there = np.zeros(len(seen.page_group), dtype=bool)
    there[seen.page[take]] = True
    found = np.flatnonzero(there)
    weight = 1.0
    if len(found) > _MOST_PAGES:
        weight = len(found) / _MOST_PAGES
        found = random.choice(found, _MOST_PAGES, replace=False)
    row = np.full(len(there), -1)
    row[found] = np.arange(len(found))
    rows = row[seen.page[take]]
    take, rows = take[rows >= 0], rows[rows >= 0]
    place = (rows, column[seen.snapshot[take]])
    counts = np.full((len(found) + 1, len(chosen)), -1, dtype=np.int16)
    buffers = np.zeros(counts.shape, dtype=np.int32)
    counts[place], buffers[place] = seen.usage_count[take], seen.buffer[take]
    never = max(seen.groups[group].pages - weight * len(found), 0.0)
    created = np.append(seen.created[found], False)
    return counts, buffers, created, np.append(np.full(len(found), weight), never)


def _one_step(batch: Floats, clock: Clock) -> tuple[Floats, Floats]:
    """Return what happens in a step at each rate of the grid.

    A state stands for the middle of its step, so the hand comes half way between the last step and the first.

    Returns:
        From each usage count to each by visits, shape (grid, 6, 6). From absent, and each count in the last
        step, to absent and each count in the first one, shape (grid, 7, 7).
    """
    rates = GRID / STEPS
    half = _visits(batch, rates / 2, clock)
    turns = np.empty((len(GRID), 1 + _COUNTS, 1 + _COUNTS))
    turns[:, 0, 0] = np.exp(-rates)
    turns[:, 0, 1:] = _loads(batch, rates, clock)
    turns[:, 1:, 0] = half[:, :, 0] * np.exp(-rates / 2)[:, None]
    # Evicted half way, it may be loaded again in the other half.
    again = half[:, :, :1] * _loads(batch, rates / 2, clock)[:, None, :]
    turns[:, 1:, 1:] = half[:, :, 1:] @ half[:, :-1] + again
    return _visits(batch, rates, clock), turns


def _loads(batch: Floats, means: Floats, clock: Clock) -> Floats:
    """Return with which probability an absent page is loaded and then stands at each count, shape (means, 6).

    Loaded at a random time, it may be visited again in what is left of the time.
    """
    loaded = np.einsum("k,gkd->gd", clock.loaded(batch), _visits(batch, means / 2, clock))
    return np.asarray(loaded * (1 - np.exp(-means))[:, None])


def _visits(batch: Floats, means: Floats, clock: Clock) -> Floats:
    """Return the transition probabilities of usage_count under visits of these means, shape (means, 6, 6)."""
    one = np.zeros((_COUNTS, _COUNTS))
    for count in range(_COUNTS):
        for more, share in enumerate(batch, start=1):
            one[count, min(count + more, clock.usage_cap)] += share
    law = np.zeros((len(means), _COUNTS, _COUNTS))
    power, rest = np.eye(_COUNTS), np.ones(len(means))
    # After five visits a count is at its cap, whatever it was.
    for number in range(_COUNTS - 1):
        mass = np.exp(-means) * means**number / factorial(number)
        law += mass[:, None, None] * power
        rest -= mass
        power = power @ one
    law[:, :, clock.usage_cap] += np.maximum(rest, 0.0)[:, None]
    return law
