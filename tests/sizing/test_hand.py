"""The clock hand followed through snapshots that do not show it, and what that is worth."""

from __future__ import annotations

import numpy as np
import pytest

from pgsweep.sizing.snapshots.hand import follow_hand
from tests.fix_pool import Seen, record, truth, zipf_pages

PAGES, BUFFERS = 32_000, 4_000
SIZES = [BUFFERS // 8, BUFFERS // 2, BUFFERS, BUFFERS * 4]


@pytest.fixture(scope="module")
def short() -> tuple[Seen, np.ndarray]:
    """Give a recording of two clock passes, and the truth."""
    accesses = zipf_pages(PAGES, 0.9, 1_200_000, 3, uniform=0.1)
    seen = record(accesses, 1_191_000, pages=PAGES, buffers=BUFFERS, snapshots=30)
    return seen, truth(accesses, 800_000, SIZES)


def test_the_hand_is_followed_to_a_few_buffers(short: tuple[Seen, np.ndarray]) -> None:
    seen, _ = short
    assert 1 < seen.passes < 4
    found = follow_hand(seen.snapshots, seen.snapshots["block"].astype(np.int64), BUFFERS)
    assert found is not None and found.known.all()
    hands = found.buffers
    assert np.abs((hands - seen.hands + BUFFERS / 2) % BUFFERS - BUFFERS / 2).max() < 10
    assert np.abs((hands - hands[0]) - (seen.hands - seen.hands[0])).max() < 10


def test_buffers_that_change_elsewhere_do_not_mislead(short: tuple[Seen, np.ndarray]) -> None:
    """A ring puts other pages into its own buffers, wherever they lie."""
    seen, _ = short
    pages = seen.snapshots["block"].astype(np.int64)
    ring = np.random.default_rng(1).choice(BUFFERS, 90, replace=False)
    inside = np.isin(seen.snapshots["frame"] - 1, ring)
    pages[inside] = PAGES + np.arange(int(inside.sum()))
    found = follow_hand(seen.snapshots, pages, BUFFERS)
    assert found is not None
    moved, true = (hands[found.known] - hands[found.known][0] for hands in (found.buffers, seen.hands))
    assert np.abs(moved - true).max() < 0.02 * BUFFERS


def test_snapshots_more_than_a_pass_apart_show_no_hand() -> None:
    accesses = zipf_pages(PAGES, 0.6, 1_000_000, 3)
    seen = record(accesses, 600_000, pages=PAGES, buffers=BUFFERS, snapshots=12)
    assert seen.passes > 15
    assert follow_hand(seen.snapshots, seen.snapshots["block"].astype(np.int64), BUFFERS) is None


def test_two_passes_by_sql_suffice_to_be_near(short: tuple[Seen, np.ndarray]) -> None:
    """Taken for independent, these snapshots were off by tens of points."""
    seen, true = short
    found = seen.predict(SIZES)
    assert np.abs(found.miss_ratio - true).max() < 0.03, (found.miss_ratio, true)


def test_a_bursty_load_keeps_its_hand() -> None:
    """Some snapshots lie more than a pass apart: others tell where it was, and the loads how often round."""
    accesses = zipf_pages(PAGES, 0.9, 1_600_000, 3, uniform=0.1)
    whole = record(accesses, 1_560_000, pages=PAGES, buffers=BUFFERS, snapshots=90)
    kept = np.sort(np.concatenate([np.arange(0, 30), np.arange(30, 60, 15), np.arange(60, 90)]))
    rows = np.isin(whole.snapshots["snapshot"], kept)
    snapshots = {name: column[rows] for name, column in whole.snapshots.items()}
    pages = snapshots["block"].astype(np.int64)
    hands = whole.hands[kept]
    assert np.diff(hands).max() > BUFFERS, "the test wants a gap of more than a pass"
    found = follow_hand(snapshots, pages, BUFFERS, hands * 0.7)
    assert found is not None
    moved = (found.buffers[kept] - hands)[found.known[kept]]
    assert found.known[kept].mean() > 0.9
    assert np.abs(moved - moved[0]).max() < 0.02 * BUFFERS
    # Nothing tells how often it went round: paths begin anew there.
    unknown = follow_hand(snapshots, pages, BUFFERS)
    assert unknown is not None
    assert np.diff(unknown.buffers[kept[found.known[kept]]]).max() > 60 * BUFFERS
