"""A trace that is shorter than a clock pass: the pool at its beginning says what the visits do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.traces.accesses import PoolState, Trace
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.replays import Replayed
from pgsweep.sizing.traces.shared_replays import ReplayPlan
from pgsweep.sizing.traces.short import between
from tests.fix_ids import from_ids, server
from tests.fix_pool import truth, zipf_pages

BUFFERS, PAGES = 20_000, 60_000
WARM = 1_500_000
SIZES = [5_000, 10_000, 15_000, 20_000, 25_000, 30_000, 40_000]
RULES = _native.Rules(18)


def short_trace(accesses: NDArray[np.uint32], fillings: float) -> Trace:
    """Return the accesses after the pool is warm until a part of it has been replaced; all that is named."""
    begun = _native.replay_outcomes(accesses[:WARM], BUFFERS, RULES)
    ratio = truth(accesses, WARM, [BUFFERS])[0]
    part = accesses[WARM : WARM + int(fillings * BUFFERS / ratio)]
    held = begun["buffer_pages"]
    warm = _native.PoolContents(
        held, begun["buffer_usage_counts"], buffers=np.arange(BUFFERS, dtype=np.uint32), hand=begun["hand"]
    )
    missed = _native.replay_outcomes(part, BUFFERS, RULES, warm=warm)["outcomes"] == 1
    _, ids = np.unique(np.concatenate([part, held]), return_inverse=True)
    numbered = ids.astype(np.uint32)
    trace = from_ids(numbered[: len(part)], np.arange(len(part)) / 1e3)
    count = int(numbered.max()) + 1
    return replace(
        trace,
        page_group=np.zeros(count, dtype=np.int64),
        new_page=np.zeros(count, dtype=bool),
        group_pages=np.array([float(PAGES)]),
        missed=missed,
        start=PoolState(
            pages=numbered[len(part) :],
            usage_counts=begun["buffer_usage_counts"],
            buffers=np.arange(BUFFERS, dtype=np.uint32),
            hand=begun["hand"],
        ),
    )


@pytest.mark.parametrize(("exponent", "uniform"), [(0.7, 0.0), (0.9, 0.3)])
@pytest.mark.parametrize("fillings", [0.03, 0.2])
def test_the_truth_is_inside_though_no_page_comes_back(
    exponent: float, uniform: float, fillings: float
) -> None:
    accesses = zipf_pages(PAGES, exponent, 2 * WARM, 11, uniform=uniform)
    measured = truth(accesses, WARM, SIZES)
    trace = short_trace(accesses, fillings)
    found = TraceCurve(trace, server(BUFFERS)).at(SIZES)
    assert found.level == "rough"
    assert "short-trace" in [reason.code for reason in found.reasons]
    assert np.all((found.low <= measured) & (measured <= found.high))
    assert np.abs(found.miss_ratio - measured)[1:6].max() < 0.03
    near = slice(1, 6)
    assert (found.high - found.low)[near].max() < 0.12, "an interval that says nothing"
    # The visits alone know nothing of it.
    alone = TraceCurve(replace(trace, start=None), server(BUFFERS)).at(SIZES)
    if fillings < 0.1:
        assert np.abs(alone.miss_ratio - measured)[4:].max() > 0.1


def test_a_sample_of_the_pages_keeps_their_states() -> None:
    """A long trace of a large pool is short all the same: its smaller sizes are replayed by samples."""
    accesses = zipf_pages(PAGES, 0.9, 2 * WARM, 11, uniform=0.3)
    trace = short_trace(accesses, 0.2)
    whole = TraceCurve(trace, server(BUFFERS)).at([2_500, 5_000])
    plan = ReplayPlan(long_trace_accesses=1)
    sampled = TraceCurve(trace, server(BUFFERS), plan).at([2_500, 5_000])
    assert sampled.miss_ratio == pytest.approx(whole.miss_ratio, abs=0.03)


def test_few_clock_passes_narrow_the_intervals_of_large_pools() -> None:
    accesses = zipf_pages(PAGES, 0.9, 2 * WARM, 11, uniform=0.3)
    measured = truth(accesses, WARM, SIZES)
    trace = short_trace(accesses, 0.6)
    found = TraceCurve(trace, server(BUFFERS)).at(SIZES)
    assert np.all((found.low <= measured) & (measured <= found.high))
    assert np.abs(found.miss_ratio - measured).max() < 0.01
    alone = TraceCurve(replace(trace, start=None), server(BUFFERS)).at(SIZES)
    larger = slice(5, None)
    assert np.all((found.high - found.low)[larger] < 0.5 * (alone.high - alone.low)[larger])


def test_a_few_free_buffers_change_nothing() -> None:
    """In a pool of gigabytes some are always free, or being read into, when it is looked at."""
    accesses = zipf_pages(PAGES, 0.9, 2 * WARM, 11, uniform=0.3)
    trace = short_trace(accesses, 0.2)
    assert trace.start is not None
    kept = np.arange(BUFFERS) % 200 > 0
    start = replace(
        trace.start,
        pages=trace.start.pages[kept],
        usage_counts=trace.start.usage_counts[kept],
        buffers=trace.start.buffers[kept],
    )
    whole = TraceCurve(trace, server(BUFFERS)).at(SIZES)
    found = TraceCurve(replace(trace, start=start), server(BUFFERS)).at(SIZES)
    assert found.is_bounded
    assert np.abs(found.miss_ratio - whole.miss_ratio).max() < 0.01


def test_hardly_a_miss_says_nothing_of_smaller_pools() -> None:
    """What is in proportion to nothing would be nothing at every size."""
    accesses = zipf_pages(PAGES, 0.9, 2 * WARM, 11)
    trace = short_trace(accesses, 0.1)
    none = replace(trace, missed=np.zeros(len(trace.pages), dtype=bool))
    found = TraceCurve(none, server(BUFFERS)).at(SIZES)
    assert not found.is_bounded
    assert found.miss_ratio[0] > 0.1


def test_a_trace_of_many_clock_passes_is_replayed() -> None:
    accesses = zipf_pages(PAGES, 0.9, 2 * WARM, 11)
    found = TraceCurve(short_trace(accesses, 3.0), server(BUFFERS)).at(SIZES)
    assert not found.is_bounded
    assert "short-trace" not in [reason.code for reason in found.reasons]


def test_what_other_sizes_miss_bounds_what_a_short_trace_shows() -> None:
    """An order entry load: from 0 to 7.4% at 3 GB, where 2 GB missed 1.7% at most and 4 GB .3% at least."""
    shown = replayed(0.0377, 0.0, 0.074, another_stretch=0.01)
    found = between(shown, 0.003, 0.017)
    assert (found.low, found.ratio, found.high) == (0.003, 0.01, 0.017)
    assert found.another_stretch == pytest.approx(0.01 * 0.01 / 0.0377)
    inside = replayed(0.01, 0.008, 0.012)
    assert between(inside, 0.003, 0.017) == inside
    assert between(inside, 0.02, 0.03) == inside, "what contradicts the others is not changed"


def replayed(ratio: float, low: float, high: float, another_stretch: float = 0.0) -> Replayed:
    return Replayed(
        ratio=ratio,
        low=low,
        high=high,
        half_width=0.0,
        fresh=ratio,
        settled=ratio,
        another_stretch=another_stretch,
    )
