"""The clock hand followed through snapshots that do not show it, and what that is worth."""

from __future__ import annotations

import numpy as np
import pytest

from pgsweep.sizing.inference.hand import follow_hand
from tests.fix_pool import Seen, record, truth, zipf_pages

PAGES, FRAMES = 32_000, 4_000
SIZES = [FRAMES // 8, FRAMES // 2, FRAMES, FRAMES * 4]


@pytest.fixture(scope="module")
def short() -> tuple[Seen, np.ndarray]:
    """Give a recording of two clock passes, and the truth."""
    accesses = zipf_pages(PAGES, 0.9, 1_200_000, 3, uniform=0.1)
    seen = record(accesses, 1_191_000, pages=PAGES, frames=FRAMES, snapshots=30)
    return seen, truth(accesses, 800_000, SIZES)


def test_the_hand_is_followed_to_a_few_buffers(short: tuple[Seen, np.ndarray]) -> None:
    seen, _ = short
    assert 1 < seen.passes < 4
    found = follow_hand(seen.snapshots, seen.snapshots["block"].astype(np.int64), FRAMES)
    assert found is not None
    assert np.abs((found - seen.hands + FRAMES / 2) % FRAMES - FRAMES / 2).max() < 10
    assert np.abs((found - found[0]) - (seen.hands - seen.hands[0])).max() < 10


def test_buffers_that_change_elsewhere_do_not_mislead(short: tuple[Seen, np.ndarray]) -> None:
    """A ring puts other pages into its own buffers, wherever they lie."""
    seen, _ = short
    pages = seen.snapshots["block"].astype(np.int64)
    ring = np.random.default_rng(1).choice(FRAMES, 90, replace=False)
    inside = np.isin(seen.snapshots["frame"] - 1, ring)
    pages[inside] = PAGES + np.arange(int(inside.sum()))
    found = follow_hand(seen.snapshots, pages, FRAMES)
    assert found is not None
    assert np.abs((found - found[0]) - (seen.hands - seen.hands[0])).max() < 0.02 * FRAMES


def test_snapshots_more_than_a_pass_apart_show_no_hand() -> None:
    accesses = zipf_pages(PAGES, 0.6, 1_000_000, 3)
    seen = record(accesses, 600_000, pages=PAGES, frames=FRAMES, snapshots=12)
    assert seen.passes > 15
    assert follow_hand(seen.snapshots, seen.snapshots["block"].astype(np.int64), FRAMES) is None


def test_two_passes_by_sql_suffice_to_be_near(short: tuple[Seen, np.ndarray]) -> None:
    """Taken for independent, these snapshots were off by tens of points."""
    seen, true = short
    found = seen.predict(SIZES)
    assert np.abs(found.miss_ratio - true).max() < 0.03, (found.miss_ratio, true)
