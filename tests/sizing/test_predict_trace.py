"""A short trace predicts large pools: the warm start is drawn, not replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.sizing.traces.accesses import MISS, PoolState, Trace
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.foreign import replay_cold
from pgsweep.sizing.traces.shared_replays import ReplayPlan
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.sizing.verdict import RELIABLE, ROUGH
from tests.fix_ids import from_ids, server

ACCESSES_PER_SECOND = 50_000


def zipf(pages: int, exponent: float, accesses: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    weights = np.arange(1, pages + 1) ** -exponent
    order = np.random.default_rng(7).permutation(pages)
    return order[np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(accesses))].astype(
        np.uint32
    )


def as_trace(pages: np.ndarray, population: int) -> Trace:
    seconds = np.arange(len(pages)) / ACCESSES_PER_SECOND
    _, dense = np.unique(pages, return_inverse=True)
    trace = from_ids(dense.astype(np.uint32), seconds)
    return Trace(
        **{
            **{name: getattr(trace, name) for name in trace.__dataclass_fields__},
            "group_pages": np.array([float(population)]),
        }
    )


@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_ten_seconds_predict_a_pool_that_turns_over_in_minutes(exponent: float) -> None:
    population = 100_000
    long = zipf(population, exponent, 12_000_000, 1)
    sizes = [1_000, 4_000, 16_000, 50_000]
    truth = _native.replay(
        long, sizes, _native.Rules(18), windows=np.array([8_000_000, 12_000_000], dtype=np.uint64)
    )
    measured = truth["misses"][:, 0] / truth["accesses"][0]
    short = as_trace(long[8_000_000:8_500_000], population)
    found = TraceCurve(short, server(4_000)).at(sizes)
    assert found.usable
    assert found.miss_ratio == pytest.approx(measured, abs=0.006)
    assert np.all(found.low <= found.miss_ratio) and np.all(found.miss_ratio <= found.high)


POOL, BEGIN = 1_000, 400_000


def latest() -> tuple[np.ndarray, Trace]:
    """Return accesses to the newest pages most, one new page for each 60, and a trace from a row on."""
    newest = np.arange(BEGIN + 100_000) // 60 + 6_000
    age = np.random.default_rng(3).exponential(400, len(newest)).astype(np.int64)
    pages = np.maximum(newest - age, 0).astype(np.uint32)
    before = _native.replay_outcomes(pages[:BEGIN], POOL, _native.Rules(18))
    known, dense = np.unique(pages[BEGIN:], return_inverse=True)
    held = before["buffer_pages"].astype(np.int64)
    number = {page: at for at, page in enumerate([*known.tolist(), *np.setdiff1d(held, known).tolist()])}
    trace = from_ids(dense.astype(np.uint32), np.arange(len(dense)) / ACCESSES_PER_SECOND)
    return pages, replace(
        trace,
        page_group=np.zeros(len(number), np.int64),
        group_pages=np.array([float(newest[-1] + 1)]),
        new_page=np.append(known > newest[BEGIN - 1], np.zeros(len(number) - len(known), bool)),
        missed=_native.replay_outcomes(pages, POOL, _native.Rules(18))["outcomes"][BEGIN:] == MISS,
        start=PoolState(
            pages=np.array([number[page] for page in held.tolist()], np.uint32),
            usage_counts=before["buffer_usage_counts"],
            buffers=np.arange(POOL, dtype=np.uint32),
            hand=before["hand"] % POOL,
        ),
    )


def test_what_the_pool_held_says_what_a_pool_of_another_size_holds() -> None:
    """Pages that a load is about to leave are visited a few times only, and were there all the same."""
    pages, trace = latest()
    assert trace.start is not None
    random = np.random.default_rng(1)
    pools = WarmPools(trace, count_visits(trace), _native.Rules(18), start_blocks=POOL)
    larger, smaller, same = (pools.draw_pages(size, random)[0] for size in (2 * POOL, POOL // 2, POOL))
    assert np.isin(trace.start.pages, larger).all()
    assert np.isin(smaller, trace.start.pages).all()
    assert not np.isin(trace.start.pages, same).all(), "it is compared with what was there"
    assert len(larger) == pytest.approx(2 * POOL, rel=0.15)

    sizes = [POOL // 2, 2 * POOL, 3 * POOL]
    windows = np.array([BEGIN, len(pages)], dtype=np.uint64)
    truth = _native.replay(pages, sizes, _native.Rules(18), windows=windows)
    measured = truth["misses"][:, 0] / truth["accesses"][0]
    seen, unknown = (
        np.abs(TraceCurve(one, server(POOL)).at(sizes).miss_ratio - measured)
        for one in (trace, replace(trace, start=None))
    )
    assert np.all(seen < unknown)


def test_accesses_close_together_are_one_visit() -> None:
    pages = np.array([0, 0, 1, 0, 0, 1], dtype=np.uint32)
    seconds = np.array([0.0, 0.001, 0.002, 5.0, 5.001, 5.002])
    visits = count_visits(from_ids(pages, seconds))
    assert visits.of_page.tolist() == [2, 2]
    assert visits.batches[0] == pytest.approx([3 / 5, 2 / 5, 0, 0, 0])


def test_a_trace_without_an_access_is_refused() -> None:
    with pytest.raises(ValueError, match="no access"):
        TraceCurve(from_ids(np.zeros(0, dtype=np.uint32), np.zeros(0)), server(100))


def test_a_relation_that_only_grew_and_one_visited_beyond_all_others_can_be_drawn() -> None:
    """New pages have no past; no weight may lie where one page was visited a hundred thousand times."""
    random = np.random.default_rng(5)
    hot = np.zeros(100_000, dtype=np.uint32)
    cold = random.integers(1, 2_000, 50_000).astype(np.uint32)
    new = np.arange(2_000, 2_300, dtype=np.uint32)
    pages = random.permutation(np.concatenate([hot, cold, new]))
    _, pages = np.unique(pages, return_inverse=True)
    trace = from_ids(pages.astype(np.uint32), np.arange(len(pages)) / 1e4)
    parts = {name: getattr(trace, name) for name in trace.__dataclass_fields__}
    parts["page_group"] = (np.arange(len(trace.page_group)) >= 2_000).astype(np.int64)
    parts["new_page"] = parts["page_group"] == 1
    parts["group_pages"] = np.array([5_000.0, 300.0])
    pools = WarmPools(Trace(**parts), count_visits(Trace(**parts)), _native.Rules(18))
    drawn, counts = pools.draw_pages(1_000, random)
    assert 0 in drawn and len(np.unique(drawn)) == len(drawn) <= 1_000
    assert counts.min() >= 0 and counts.max() <= 5
    assert not np.isin(drawn, np.arange(2_000, 2_300)).any()


def test_a_foreign_trace_is_replayed_from_an_empty_pool() -> None:
    """Its first accesses count as misses; that they need not miss in an old server is in the lower bound."""
    objects, rounds = 400, 500
    loop = np.tile(np.arange(objects, dtype=np.uint32), rounds)
    found = replay_cold(loop, objects, [100, objects], version=18, plan=ReplayPlan())
    first = 1 / rounds
    assert found.sizes_blocks == (100, objects)
    # A loop over four times the pool finds nothing; where all of it fits only the first round misses.
    assert found.miss_ratio[0] > 0.95
    assert found.miss_ratio[1] == pytest.approx(first)
    assert found.low[1] == 0.0
    assert found.high[1] >= first
    assert found.low[0] <= found.miss_ratio[0] - first
    assert found.level == RELIABLE
    assert "0.20% of the accesses are first ones" in found.reasons[0].text
    assert np.isnan(found.pass_seconds)


def test_a_foreign_trace_of_many_first_accesses_is_rough() -> None:
    random = np.random.default_rng(1)
    pages = random.integers(0, 1000, 20_000).astype(np.uint32)
    found = replay_cold(pages, 1000, [250, 500, 2000], version=15, plan=ReplayPlan())
    assert found.level == ROUGH
    # Of uniform accesses a pool that is full misses what it cannot hold: between the bounds at each size.
    for blocks, low, high in zip(found.sizes_blocks, found.low, found.high, strict=True):
        assert low <= max(1 - blocks / 1000, 0.0) <= high
    assert np.all(np.diff(found.miss_ratio) < 0)
    with pytest.raises(ValueError, match="no access"):
        replay_cold(pages[:0], 0, [250], version=15, plan=ReplayPlan())
