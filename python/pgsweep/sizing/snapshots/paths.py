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

import threading
from functools import lru_cache
from math import factorial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.clock import COUNTS, USUAL, Clock
from pgsweep.sizing.snapshots.observations import Observations
from pgsweep.sizing.snapshots.rates import GRID, Rates

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

STEPS: Final = 8
"""Steps of a clock pass."""

_COUNTS: Final = COUNTS
_STATES: Final = 1 + _COUNTS * STEPS
_NOT_YET: Final = -1
_MOST_SNAPSHOTS: Final = 24
_MOST_PAGES: Final = 10_000
"""Pages of a group; of a larger group a random sample is used."""

_FORGOTTEN_PASSES: Final = 60
_NEAR: Final = 0.9
"""Clock passes between snapshots, below which the hand has not yet visited what was loaded in between."""

_ENOUGH_LOADS: Final = 200
_AGES, _ROUNDS = 5, 2
_LATER_RATES, _HALVINGS = (0.0, 0.1, 0.4, 0.8, 1.6, 3.2), 3
"""Visits in a clock pass of pages that were just loaded, and how often what lies between is tried."""

_YOUNG, _OLD, _ENOUGH_YOUNG = 0.03, 0.15, 40
"""Passes since a page was loaded, and how many pages it takes to know a mean."""

_MOST_KEPT: Final = 48
"""Matrices of numbers of steps."""

_LEAST: Final = 1e-7
"""Probability of what the model excludes: a buffer is pinned when the hand comes, a page is dropped."""


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
    hands = seen.hand_buffers[chosen]
    counts, buffers, weights, created = _paths(seen, group, chosen, random)
    since = (hands[None, :] - buffers) * STEPS // seen.pool_buffers
    states = np.where(counts >= 0, 1 + counts * STEPS + since % STEPS, 0)
    # A block that did not exist at the beginning was not absent: its path begins where it is first seen.
    states[created[:, None] & (np.maximum.accumulate(counts, axis=1) < 0)] = _NOT_YET
    # How many steps end in between depends on the buffer; where the page is in none, any will do.
    buffer = np.where(counts[:, :-1] >= 0, buffers[:, :-1], buffers[:, 1:])
    ends = [(at[None, :] - buffer) * STEPS // seen.pool_buffers for at in (hands[:-1], hands[1:])]
    ended = ends[1] - ends[0]
    first, which = _distinct(np.hstack([states - _NOT_YET, ended]))
    pages = np.asarray(np.bincount(which, weights), dtype=np.float64)
    states, ended = states[first], ended[first]
    chain = _Chain.of(batch, seen.clock)
    # After very many clock passes the chain is stationary.
    ended = np.minimum(ended, _FORGOTTEN_PASSES * STEPS)
    # A path is a sum of logarithms: of its first state, and of its transitions, of which there are few.
    coded = ended * _STATES * _STATES + states[:, :-1] * _STATES + states[:, 1:]
    coded = np.where(states[:, :-1] == _NOT_YET, _NOT_YET, coded) - _NOT_YET
    moves = np.flatnonzero(np.bincount(coded.ravel()))
    number = np.zeros(int(moves.max(initial=0)) + 1, dtype=np.int64)
    number[moves] = np.arange(len(moves))
    known = moves[moves > 0] + _NOT_YET
    tables = np.zeros((len(moves), len(GRID)))
    tables[len(moves) - len(known) :] = chain.logs(known // (_STATES * _STATES), known % (_STATES * _STATES))
    logs = np.where(states[:, :1] == _NOT_YET, 0.0, chain.resting[states[:, 0]])
    for move in number[coded].T:
        logs += tables[move]
    return np.exp(logs - logs.max(axis=1, keepdims=True)), pages


def _distinct(rows: Integers) -> tuple[Integers, Integers]:
    """Return where each distinct row stands first, in their order, and which of them each row is.

    Numbers of four bytes, the highest first, are ordered as the rows are, and compared at once.
    """
    packed = np.ascontiguousarray(rows.astype(">u4")).view(f"S{4 * rows.shape[1]}").ravel()
    _, first, which = np.unique(packed, return_index=True, return_inverse=True)
    return first, which


class _Chain:
    """What a page's state becomes in a number of steps, at each rate of the grid, for one batch law."""

    def __init__(self, batch: Floats, clock: Clock = USUAL) -> None:
        # The powers of two and, of the others, the last ones: two megabytes each.
        self._powers = [_one_step(batch, clock)]
        self._others: dict[int, Floats] = {}
        # Groups with the same law share a chain, and are fitted in several threads.
        self._growing = threading.Lock()
        self.resting = np.log(np.maximum(_at_rest(self._powers[0]), _LEAST * _LEAST))

    @classmethod
    def of(cls, batch: Floats, clock: Clock) -> _Chain:
        """Return the chain of a batch law; the last ones are kept: halves of a recording share theirs."""
        return _chain(batch.tobytes(), clock)

    def logs(self, steps: Integers, moves: Integers) -> Floats:
        """Return the logarithms of transition probabilities, shape (moves, grid).

        Args:
            steps: how many each move takes, ascending.
            moves: the state before times the number of states, plus the state after; as long as `steps`.
        """
        logs = np.empty((len(moves), len(GRID)))
        for number in np.unique(steps).tolist():
            here = slice(*np.searchsorted(steps, [number, number + 1]).tolist())
            if number >= _FORGOTTEN_PASSES * STEPS:
                logs[here] = self.resting[moves[here] % _STATES]
                continue
            with self._growing:
                moved = self._after(number)
            logs[here] = np.log(np.maximum(moved.reshape(len(GRID), -1)[:, moves[here]].T, _LEAST))
        return logs

    def _after(self, steps: int) -> Floats:
        """Return the matrix of a number of steps: that of its higher bits, times that of its lowest."""
        if not steps:
            return np.broadcast_to(np.eye(_STATES), self._powers[0].shape)
        last = steps & -steps
        while last >> len(self._powers):
            self._powers.append(self._powers[-1] @ self._powers[-1])
        power = self._powers[last.bit_length() - 1]
        if steps == last:
            return power
        if steps not in self._others:
            moved = self._after(steps - last) @ power
            if len(self._others) == _MOST_KEPT:
                self._others.clear()
            self._others[steps] = moved
        return self._others[steps]


@lru_cache(maxsize=4)
def _chain(batch: bytes, clock: Clock) -> _Chain:
    return _Chain(np.frombuffer(batch), clock)


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
        weights = rates.pages * GRID * rates.law(GRID[None, :])[0, :, 0]
        return _batch_of(counted, ages, GRID, weights / max(weights.sum(), 1e-300), first, seen.clock)[0]

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
    loads = rates.pages * GRID * rates.law(GRID[None, :])[0, :, 0]
    visits = float((loads / max(loads.sum(), 1e-300)) @ np.minimum(GRID, 4.0))
    each = float(rates.batch @ np.arange(1.0, 6.0))
    passed = float(age[old].mean() - age[young].mean())
    grown = float(count[old].mean() - count[young].mean())
    error = float(np.hypot(count[old].std() / old.sum() ** 0.5, count[young].std() / young.sum() ** 0.5))
    return max(grown - passed * visits * each - error, 0.0)


def _first_seen(seen: Observations, group: int) -> tuple[Integers, Floats]:
    """Return counts of pages loaded since the snapshot before, and the passes since each was loaded."""
    hands = seen.hand_buffers
    gaps = np.diff(hands)
    near = gaps < _NEAR * seen.pool_buffers
    new = seen.appeared[seen.page_group[seen.page[seen.appeared]] == group]
    new = new[(seen.snapshot[new] > 0) & ~seen.created[seen.page[new]]]
    new = new[near[seen.snapshot[new] - 1]]
    age = (hands[seen.snapshot[new]] - seen.buffer[new]) % seen.pool_buffers / seen.pool_buffers
    return seen.usage_count[new], age


def _paths(
    seen: Observations, group: int, chosen: Integers, random: np.random.Generator
) -> tuple[Integers, Integers, Floats, NDArray[np.bool_]]:
    """Return usage counts (-1: absent) and buffers (0 then) of pages, shape (pages, snapshots).

    Also return their weights, and which of them were created meanwhile. The last row are the pages never
    seen.
    """
    members = np.flatnonzero(seen.page_group == group)
    column = np.full(seen.snapshots, -1)
    column[chosen] = np.arange(len(chosen))
    row = np.full(len(seen.page_group), -1, dtype=np.int32)
    row[members] = np.arange(len(members))
    rows = row[seen.page]
    take = np.flatnonzero((rows >= 0) & (column >= 0)[seen.snapshot])
    place = (rows[take], column[seen.snapshot[take]])
    # Small numbers: most of the time here is that of memory.
    counts = np.full((len(members), len(chosen)), -1, dtype=np.int16)
    buffers = np.zeros(counts.shape, dtype=np.int32)
    counts[place], buffers[place] = seen.usage_count[take], seen.buffer[take]
    found = np.flatnonzero((counts >= 0).any(axis=1))
    weight = 1.0
    if len(found) > _MOST_PAGES:
        weight = len(found) / _MOST_PAGES
        found = random.choice(found, _MOST_PAGES, replace=False)
    never = max(seen.groups[group].pages - weight * len(found), 0.0)
    absent = np.full((1, len(chosen)), -1)
    return (
        np.vstack([counts[found], absent]),
        np.vstack([buffers[found], absent * 0]),
        np.append(np.full(len(found), weight), never),
        np.append(seen.created[members[found]], False),
    )


def _one_step(batch: Floats, clock: Clock = USUAL) -> Floats:
    """Return the chain over one step at each rate of the grid, shape (grid, states, states).

    A state stands for the middle of its step, so the hand comes half way between the last step and the first.
    """
    rates = GRID / STEPS
    visits, half = _visits(batch, rates, clock), _visits(batch, rates / 2, clock)
    state = 1 + np.arange(_COUNTS) * STEPS
    chain = np.zeros((len(GRID), _STATES, _STATES))
    chain[:, 0, 0] = np.exp(-rates)
    chain[:, 0, state] = _loads(batch, rates, clock)
    for since in range(STEPS - 1):
        chain[:, (state + since)[:, None], (state + since + 1)[None, :]] = visits
    last = state + STEPS - 1
    chain[:, last[:, None], state[None, :]] = half[:, :, 1:] @ half[:, :-1]
    # Evicted half way, it may be loaded again in the other half.
    chain[:, last[:, None], state[None, :]] += half[:, :, :1] * _loads(batch, rates / 2, clock)[:, None, :]
    chain[:, last, 0] = half[:, :, 0] * np.exp(-rates / 2)[:, None]
    return chain


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


def _at_rest(chain: Floats) -> Floats:
    """Return the law of the states long after the beginning, shape (states, grid)."""
    stays = np.eye(_STATES) - chain.transpose(0, 2, 1)
    # It follows from all states but one, and from their sum.
    stays[:, 0, :] = 1.0
    return np.ascontiguousarray(np.linalg.solve(stays, np.eye(_STATES)[:, :1])[:, :, 0].T)
