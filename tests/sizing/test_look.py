"""One look at a pool bounds what pools of other sizes would miss; no time of a clock pass is needed."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep.sizing import look
from pgsweep.sizing.clock import USUAL
from pgsweep.sizing.estimate import without_unknown
from pgsweep.sizing.look import Look, LookBounds
from tests.fix_pool import Seen, record, truth, zipf_pages

SINGLE = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
BUFFERS, PAGES = 20_000, 60_000
SIZES = [10_000, 15_000, 20_000, 25_000, 30_000, 40_000]
WARM = 1_500_000


def load(exponent: float, uniform: float) -> NDArray[np.uint32]:
    return zipf_pages(PAGES, exponent, 2 * WARM, 11, uniform=uniform)


def watched(accesses: NDArray[np.uint32], passes: float, *, snapshots: int) -> Seen:
    misses = truth(accesses, WARM, [BUFFERS])[0]
    end = WARM + int(passes * BUFFERS / misses / 3)
    return record(accesses[:end], WARM, pages=PAGES, buffers=BUFFERS, snapshots=snapshots)


@pytest.mark.parametrize(("exponent", "uniform"), [(0.7, 0.0), (0.9, 0.3), (1.1, 0.05)])
def test_the_truth_lies_within_the_bounds(exponent: float, uniform: float) -> None:
    accesses = load(exponent, uniform)
    seen = watched(accesses, 0.01, snapshots=1)
    pages = np.bincount(seen.snapshots["usage_count"], minlength=6).astype(np.float64)
    bounds = LookBounds(
        Look(pages=np.array([[PAGES - pages.sum(), *pages]]), batches=[SINGLE], clock=USUAL), BUFFERS
    )
    assert bounds.misfit < 1, "the law explains the look"
    point, low, high = bounds.interval(SIZES)
    measured = truth(accesses, WARM, SIZES)
    relative = measured / measured[SIZES.index(BUFFERS)]
    assert np.all((low <= relative + 0.005) & (relative <= high + 0.005))
    near = slice(1, 5)
    assert np.abs(point - relative)[near].max() < 0.04
    assert (high - low)[near].max() < 0.35, "an interval that says nothing"
    assert point[SIZES.index(BUFFERS)] == 1.0


def test_a_pool_for_all_pages_misses_at_most_what_one_for_nearly_all_does() -> None:
    accesses = load(0.9, 0.3)
    seen = watched(accesses, 0.01, snapshots=1)
    pages = np.bincount(seen.snapshots["usage_count"], minlength=6).astype(np.float64)
    bounds = LookBounds(
        Look(pages=np.array([[PAGES - pages.sum(), *pages]]), batches=[SINGLE], clock=USUAL), BUFFERS
    )
    nearly, enough = bounds.at(int(0.9 * PAGES)), bounds.at(2 * PAGES)
    assert nearly is not None
    assert enough == (0.0, nearly[1])
    assert nearly[1] < 0.2


def test_a_pool_that_no_mixture_fills_misses_no_more_than_a_smaller_one() -> None:
    """Most pages of one relation are never visited, such as those of a log that is only appended to."""
    looked_up, log = np.zeros(28), np.zeros(28)
    looked_up[:28:4] = [28_195, 1102, 1133, 443, 71, 57, 30]
    looked_up[1:28:4] = [1023, 99, 114, 70, 27, 30, 31]
    looked_up[3:28:4] = [9, 6, 5, 10, 12, 33, 131]
    log[[0, 22, 27]] = [8576, 64, 709]
    pages = np.array([looked_up, log])
    bounds = LookBounds(Look(pages=pages, batches=[SINGLE, SINGLE], clock=USUAL, passes=0.65), BUFFERS)
    found = [bounds.at(blocks) for blocks in (BUFFERS, 3 * BUFFERS, int(pages.sum()) - 100, 1 << 17)]
    most = [one[1] for one in found if one is not None]
    assert len(most) == 4
    assert max(most[1:]) < 0.1 * most[0]


def test_programs_that_are_not_solved_had_nothing_less(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watched(load(0.9, 0.3), 0.01, snapshots=1)
    pages = np.bincount(seen.snapshots["usage_count"], minlength=6).astype(np.float64)
    seven = Look(pages=np.array([[PAGES - pages.sum(), *pages]]), batches=[SINGLE], clock=USUAL)
    found = [LookBounds(seven, BUFFERS).at(blocks) for blocks in SIZES[::4]]
    monkeypatch.setattr(look, "_floor", lambda *_: -np.inf)
    assert [LookBounds(seven, BUFFERS).at(blocks) for blocks in SIZES[::4]] == found


def test_what_no_mixture_explains_widens_the_bounds() -> None:
    # All pages at usage_count 3: no law of visits at random leaves them so.
    odd = Look(pages=np.array([[40_000.0, 0, 0, 0, 20_000, 0, 0]]), batches=[SINGLE], clock=USUAL)
    assert LookBounds(odd, BUFFERS).misfit > 5


def test_a_recording_of_less_than_a_pass_is_rough_and_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    accesses = load(0.9, 0.3)
    seen = watched(accesses, 0.3, snapshots=6)
    assert seen.passes < 0.5
    model = seen.model(hand_seen=True)
    found = model.estimate(SIZES)
    assert found.level == "rough"
    assert "one-look" in [reason.code for reason in found.reasons]
    measured = truth(accesses, WARM, SIZES)
    assert np.all((found.low <= measured + 0.003) & (measured <= found.high + 0.003))
    assert np.abs(found.miss_ratio - measured)[1:5].max() < 0.02
    assert found.high[1] - found.low[1] < 0.065
    # The curve and the advice ask for many of the same sizes: each takes its linear programs once.
    monkeypatch.setattr(look, "_least", None)
    some = model.estimate(SIZES[1:4])
    assert some.miss_ratio.tolist() == found.miss_ratio[1:4].tolist()


def test_a_size_that_no_mixture_fills_is_not_known_from_one_look() -> None:
    tiny = BUFFERS // 200
    model = watched(load(0.9, 0.3), 0.3, snapshots=6).model(hand_seen=True)
    for found in (model.estimate([tiny, BUFFERS]), model.changed([]).estimate([tiny, BUFFERS])):
        assert (found.low[0], found.high[0]) == (0, 1)
        assert without_unknown(found)[1] == [tiny]
