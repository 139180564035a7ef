"""Loads that move and loads that go round are recognized in a trace; their intervals include the truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.traces.accesses import Trace
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.steadiness import Steadiness
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.verdict import RELIABLE, ROUGH
from tests.fix_ids import from_ids, server

Pages = NDArray[np.uint32]

PER_SECOND = 10_000
BEFORE, TRACED = 300_000, 100_000
"""Accesses: what warms the pools, then 10 s of trace."""

POPULATION = 30_000
COLD = 100_000
RULES = _native.Rules(18)


def traced(pages: Pages, population: int = POPULATION) -> Trace:
    """Return the last accesses as a trace of a relation of which not all pages are visited."""
    _, dense = np.unique(pages[-TRACED:], return_inverse=True)
    trace = from_ids(dense.astype(np.uint32), np.arange(TRACED) / PER_SECOND)
    return replace(trace, group_pages=np.array([float(population)]), group_names=("accounts",))


def steadiness_of(pages: Pages) -> Steadiness:
    return count_visits(traced(pages)).steadiness


def beside_cold(seed: int, share: float) -> Pages:
    """The hot set that moves, and this share of the accesses to many other pages, most of them seen once."""
    random = np.random.default_rng(seed)
    pages = moving(seed, 20)
    cold = POPULATION + random.integers(0, COLD, len(pages))
    return np.where(random.random(len(pages)) < share, cold, pages).astype(np.uint32)


def predicted(
    pages: Pages, sizes: list[int], population: int = POPULATION
) -> tuple[Estimate, NDArray[np.float64]]:
    """Return the prediction from the trace, and what a pool that has seen everything misses meanwhile."""
    windows = np.array([len(pages) - TRACED, len(pages)], dtype=np.uint64)
    truth = _native.replay(pages, sizes, RULES, windows=windows)
    found = TraceCurve(traced(pages, population), server(sizes[0])).at(sizes)
    return found, truth["misses"][:, 0] / truth["accesses"][0]


def steady(seed: int, exponent: float = 0.9) -> Pages:
    random = np.random.default_rng(seed)
    weights = np.arange(1, POPULATION + 1) ** -exponent
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(BEFORE + TRACED))
    return np.random.default_rng(7).permutation(POPULATION)[drawn].astype(np.uint32)


def moving(seed: int, accesses_a_page: int) -> Pages:
    """A hot set of some 1,000 pages that moves on by one after so many accesses."""
    random = np.random.default_rng(seed)
    at = np.arange(BEFORE + TRACED) // accesses_a_page
    return ((at + random.exponential(250, len(at)).astype(np.int64)) % POPULATION).astype(np.uint32)


def going_round(pages: int, sessions: int = 4) -> Pages:
    """Sessions that each read their part of some pages again and again, not equally fast."""
    random = np.random.default_rng(3)
    session = random.integers(0, sessions, BEFORE + TRACED)
    step = np.zeros(len(session), dtype=np.int64)
    for one in range(sessions):
        mine = session == one
        step[mine] = np.arange(np.count_nonzero(mine))
    return (session * (pages // sessions) + step % (pages // sessions)).astype(np.uint32)


def in_clusters(seed: int) -> Pages:
    """Rows that are read four times within half a second, and then for long no more."""
    random = np.random.default_rng(seed)
    rows = (BEFORE + TRACED) // 4
    at = np.sort(random.random(rows)) * (BEFORE + TRACED) / PER_SECOND
    times = at[:, None] + np.cumsum(random.exponential(0.1, (rows, 4)), axis=1)
    page = np.repeat(random.integers(0, POPULATION, rows), 4)
    return page[np.argsort(times.ravel())].astype(np.uint32)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.1])
def test_visits_at_random_times_are_steady_whatever_the_popularity(exponent: float) -> None:
    found = steadiness_of(steady(1, exponent))
    assert found.steady
    assert found.in_turn_share < 0.01


def test_a_steady_load_has_the_interval_that_it_had() -> None:
    found, _ = predicted(steady(2), [1_000, 8_000])
    assert found.level == RELIABLE
    assert np.all(found.high - found.low < 0.02)


def test_a_load_that_moves_is_named_and_its_interval_reaches_its_first_visits() -> None:
    pages = moving(1, 20)
    assert steadiness_of(pages).together > 0.5
    found, truth = predicted(pages, [500, 2_000, 6_000, 12_000])
    assert found.level == ROUGH
    assert found.reasons[0].code == "visits-move" and "record for longer" in found.reasons[0].text
    # A pool that keeps pages for longer than the trace still misses each new page of the hot set.
    assert np.all(truth > 0.04)
    assert np.all((found.low <= truth) & (truth <= found.high))
    # Where the trace itself decides what stays, the interval is as narrow as ever.
    assert found.high[0] - found.low[0] < 0.02


def test_pages_that_are_visited_once_do_not_hide_a_load_that_moves() -> None:
    pages = beside_cold(1, 0.8)
    assert count_visits(traced(pages, POPULATION + COLD)).steadiness.together > 0.2
    found, truth = predicted(pages, [1_000, 8_000, 20_000], POPULATION + COLD)
    assert found.level == ROUGH
    assert found.reasons[0].code == "visits-move"
    assert np.all((found.low <= truth) & (truth <= found.high))


def test_a_little_of_a_load_that_moves_widens_the_interval_to_that_side() -> None:
    pages = beside_cold(1, 0.9)
    steadiness = count_visits(traced(pages, POPULATION + COLD)).steadiness
    assert 0 < steadiness.drift < 0.15 and not steadiness.together
    found, truth = predicted(pages, [1_000, 20_000, 40_000], POPULATION + COLD)
    assert np.all((found.low <= truth) & (truth <= found.high))


def test_the_interval_is_that_of_another_stretch_and_holds_that_of_the_recorded_one() -> None:
    """A load that reads more widely now and then, more often in one stretch than in another."""
    random = np.random.default_rng(3)
    calm, wide = steady(2, 1.1), random.integers(0, POPULATION, BEFORE + TRACED)
    often = np.repeat(random.random(400) < 0.25, 1_000)
    varied, _ = predicted(np.where(often, wide, calm).astype(np.uint32), [1_000, 8_000])
    even, _ = predicted(calm, [1_000, 8_000])
    for found in (varied, even):
        assert found.of_stretch is not None
        assert np.all((found.low <= found.of_stretch[0]) & (found.of_stretch[1] <= found.high))
    assert varied.level == ROUGH
    assert "another-stretch" in {reason.code for reason in varied.reasons}
    assert even.level == RELIABLE


def test_what_is_visited_several_times_and_then_no_more_is_named_as_well() -> None:
    pages = in_clusters(1)
    assert steadiness_of(pages).together > 0.15
    found, truth = predicted(pages, [500, 20_000])
    assert found.level == ROUGH and found.reasons[0].code == "visits-move"
    assert np.all((found.low <= truth) & (truth <= found.high))


def test_a_loop_is_named_and_its_interval_holds_the_states_that_it_can_be_in() -> None:
    pages = going_round(8_000)
    found = steadiness_of(pages)
    assert found.in_turn_share > 0.9 and not found.seldom.any()
    sizes = [1_000, 5_000, 6_500, 7_400, 9_000]
    prediction, truth = predicted(pages, sizes)
    assert prediction.level == ROUGH
    assert "as a loop does, most of them of accounts" in prediction.reasons[0].text
    assert np.all((prediction.low <= truth) & (truth <= prediction.high))
    # Where all of it fits or hardly any of it, nothing depends on the beginning.
    narrow = prediction.high - prediction.low < 0.02
    assert narrow[0] and narrow[-1]


def test_a_loop_that_takes_longer_than_the_trace_shows_by_what_is_not_visited_twice() -> None:
    found = count_visits(traced(going_round(120_000), population=200_000)).steadiness
    assert found.in_turn_share > 0.9 and found.seldom.all()
    assert not found.together


def test_pages_that_the_trace_only_saw_in_the_pool_count_as_never_visited() -> None:
    population = 300_000
    trace = traced(np.random.default_rng(4).integers(0, population, TRACED).astype(np.uint32), population)
    only_seen = population - len(trace.page_group) - 1_000
    named = replace(
        trace,
        page_group=np.append(trace.page_group, np.zeros(only_seen, dtype=np.int64)),
        new_page=np.append(trace.new_page, np.zeros(only_seen, dtype=bool)),
    )
    assert count_visits(trace).steadiness.steady
    assert count_visits(named).steadiness.steady


def test_few_regular_visits_among_many_others_are_left_alone() -> None:
    pages = steady(3)
    pages[:: len(pages) // 800] = POPULATION + np.arange(len(pages[:: len(pages) // 800])) % 20
    assert steadiness_of(pages).steady
