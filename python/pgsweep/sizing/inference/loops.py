"""Simulate pages that scans visit repeatedly, without a ring.

Such visits come at nearly equal distances, and the law of random visits does not hold for them: a page stays
for good if the clock pass takes longer than the distance of two scans, and is gone at every scan if the pass
takes less than half of it. So single pages are followed: the scans before the trace are drawn from the gaps
seen in it, visits outside scans are random ones at the page's own rate, and the hand comes once a clock pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.inference.clock import Clock

if TYPE_CHECKING:
    from pgsweep.sizing.inference.visits import Scanned

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_PASSES_OF_MEMORY = 14
"""A page is evicted by the sixth pass after its last visit, so that older things hardly matter."""

_MOST_SCANS = 32
"""Scans followed into the past; more than these keep a page at the highest count."""

_LONGEST_GAP = 1e3
_DOUBT = 0.2
"""The number of observed gaps that weigh as much as the chance of a longer one."""

_CHUNK_PAGES = 20_000


def states_before(
    first_seconds: Floats,
    scanned: Scanned,
    rates: Floats,
    batch: Floats,
    pass_seconds: Floats,
    duration_seconds: float,
    random: np.random.Generator,
    clock: Clock,
) -> Ints:
    """Draw the state of pages when the trace begins: 0 for absent, or 1 + usage_count.

    Args:
        first_seconds: when a scan first visits each page in the trace.
        scanned: the gaps between its visits.
        rates: visits per second of each page, outside scans.
        batch: how many accesses those bring: probabilities of 1 to 5.
        pass_seconds: seconds of a clock pass, for each page.
        duration_seconds: of the trace.
        clock: the policy of the pool.
    """
    states = np.zeros(len(first_seconds), dtype=np.int64)
    for begin in range(0, len(first_seconds), _CHUNK_PAGES):
        part = slice(begin, begin + _CHUNK_PAGES)
        times = _scans_before(first_seconds[part], scanned, duration_seconds, random)
        states[part] = _follow(times, rates[part], batch, pass_seconds[part], random, clock)
    return states


def _scans_before(
    first_seconds: Floats, scanned: Scanned, duration_seconds: float, random: np.random.Generator
) -> Floats:
    """Draw when each page was scanned before the trace: times below 0, ascending, shape (pages, scans).

    The gap into which the beginning of the trace falls is one of those seen that are long enough. How far
    the few observed gaps are relied on follows from their number: the gap may also be longer than all
    observed ones, by an unknown amount; it always is where none was observed.
    """
    pages = len(first_seconds)
    gaps = scanned.gaps_seconds
    unseen = random.random((pages, _MOST_SCANS)) < _DOUBT / (max(scanned.rounds, 1.0) - 1 + _DOUBT)
    # At least this long was no scan: until the first one, or from the only one to the end.
    quiet = np.maximum(first_seconds, duration_seconds - first_seconds if scanned.rounds < 2 else 0.0)
    long = quiet[:, None] / np.maximum(random.random((pages, _MOST_SCANS)), 1 / _LONGEST_GAP)
    if len(gaps):
        drawn = gaps[random.integers(0, len(gaps), (pages, _MOST_SCANS))]
        enough = np.searchsorted(gaps, first_seconds)
        picked = enough + (random.random(pages) * (len(gaps) - enough)).astype(np.int64)
        fits = enough < len(gaps)
        drawn[:, 0] = np.where(fits, gaps[np.minimum(picked, len(gaps) - 1)], first_seconds)
        # Once the first gap is known to be an ordinary one there is no reason to doubt the others.
        if scanned.rounds >= 2:
            unseen[:, 1:] = False
        drawn = np.where(unseen, np.maximum(long, drawn), drawn)
    else:
        drawn = long
    return np.asarray((first_seconds[:, None] - np.cumsum(drawn, axis=1))[:, ::-1])


def _follow(
    scans: Floats,
    rates: Floats,
    batch: Floats,
    pass_seconds: Floats,
    random: np.random.Generator,
    clock: Clock,
) -> Ints:
    """Follow pages through scans, other visits and passes of the hand; return their states at time 0."""
    pages = len(rates)
    sizes = np.cumsum(batch)
    now = np.maximum(-_PASSES_OF_MEMORY * pass_seconds, scans[:, 0] - 1e-9)
    # If the drawn scans do not reach back so far, they raise the count more than a clock pass lowers it.
    crowded = now > -_PASSES_OF_MEMORY * pass_seconds
    count = np.where(crowded, clock.usage_cap, -1)
    scans = np.hstack([scans, np.full((pages, 1), np.inf)])
    over = _scans_until(now, scans, np.arange(pages), np.zeros(pages, dtype=np.int64))
    going = np.flatnonzero(now < 0)
    for _ in range(4 * _PASSES_OF_MEMORY):
        if not len(going):
            break
        at, rate, one_pass, held = now[going], rates[going], pass_seconds[going], count[going]
        absent = held < 0
        following = np.minimum(scans[going, over[going]], 0.0)
        visit = at + random.exponential(1.0, len(going)) / rate
        arrival = np.minimum(visit, following)
        accesses = _batches(np.ones(len(going), dtype=np.int64), sizes, random, 1)
        more = np.where(following <= visit, 0, accesses - 1)
        loaded = np.minimum(clock.admission + more, clock.usage_cap)
        # Present: to the next pass, or to the beginning of the trace.
        until = np.minimum(at + one_pass, 0.0)
        over_until = _scans_until(until, scans, going, over[going])
        inside = over_until - over[going]
        others = random.poisson(np.minimum(rate * (until - at), 50.0))
        raised = np.minimum(held + inside + _batches(others, sizes, random, clock.usage_cap), clock.usage_cap)
        passed = at + one_pass < 0
        present = np.where(passed, raised - 1, raised)
        count[going] = np.where(absent, np.where(arrival < 0, loaded, -1), present)
        now[going] = np.where(absent, np.minimum(arrival, 0.0), until)
        over[going] = _scans_until(now[going], scans, going, np.where(absent, over[going], over_until))
        going = going[now[going] < 0]
    return count + 1


def _scans_until(times: Floats, scans: Floats, pages: Ints, over: Ints) -> Ints:
    """Return how many scans of each page have come until its time.

    Args:
        times: for each of `pages`.
        scans: ascending, with a last column that no time reaches.
        pages: the rows of `scans`.
        over: how many are known to have come.
    """
    over = over.copy()
    at = np.arange(len(pages))
    while len(at):
        at = at[scans[pages[at], over[at]] <= times[at]]
        over[at] += 1
    return over


def _batches(visits: Ints, sizes: Floats, random: np.random.Generator, most: int) -> Ints:
    """Draw the number of accesses of a number of visits, as far as it matters: of `most` visits at most."""
    total = np.zeros(len(visits), dtype=np.int64)
    for number in range(most):
        more = np.flatnonzero(visits > number)
        drawn = random.random(len(more))
        # Of four thresholds a search is slower than all comparisons.
        total[more] += 1 + sum((drawn > size).astype(np.int64) for size in sizes[:-1].tolist())
    return total
