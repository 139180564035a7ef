"""Which blocks to keep, touch and read again: against a clock hand played step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pgsweep.warm.keep.choice import BlockHeat, choose, hottest, stretches, touches, visits


def swept(counts: NDArray[np.integer[Any]], hand: int, looks: int) -> NDArray[np.bool_]:
    """Return which frames still hold their page after so many looks of the hand (StrategyGetBuffer)."""
    counts, there = counts.astype(np.int64), np.ones(len(counts), dtype=np.bool_)
    for step in range(looks):
        frame = (hand + step) % len(counts)
        if there[frame] and counts[frame] == 0:
            there[frame] = False
        counts[frame] -= 1
    return there


@pytest.mark.parametrize("seed", range(20))
def test_what_was_touched_outlasts_the_hand_and_no_touch_is_too_many(seed: int) -> None:
    random = np.random.default_rng(seed)
    frames = int(random.integers(3, 60))
    looks = int(random.integers(0, 5 * frames))
    hand = int(random.integers(frames))
    counts = random.integers(0, 6, frames).astype(np.uint8)
    coming = visits(np.arange(frames), hand, looks, frames)
    given = touches(counts, coming)
    assert (counts + given <= 5).all()
    assert swept(counts + given, hand, looks).all()
    spared = np.where(given > 0, given - 1, 0)
    assert not swept(counts + spared, hand, looks)[given > 0].any()
    # Where the hand is not seen the worst is assumed.
    blind = touches(counts, visits(np.arange(frames), None, looks, frames))
    assert (blind >= given).all()
    assert swept(counts + blind, hand, looks).all()


def test_no_number_of_touches_holds_against_more_than_five_visits() -> None:
    counts = np.array([0, 5], dtype=np.uint8)
    assert touches(counts, visits(np.arange(2), 0, 100, 2)).tolist() == [5, 0]


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_keeps_to_the_budget_and_takes_the_hottest(seed: int) -> None:
    random = np.random.default_rng(seed)
    heats = [random.random(int(n)).astype(np.float32) for n in random.integers(0, 50, 4)]
    heats = [np.where(heat < 0.3, np.float32(0), heat) for heat in heats]
    before = [np.zeros(len(heat), dtype=np.bool_) for heat in heats]
    total = sum(len(heat) for heat in heats)
    for budget_blocks in (0, 1, total // 2, total, total + 5):
        chosen = choose(heats, before, budget_blocks)
        assert [len(mask) for mask in chosen] == [len(heat) for heat in heats]
        count = sum(int(mask.sum()) for mask in chosen)
        assert count <= budget_blocks
        if budget_blocks >= total:
            assert count == total
            continue
        taken = np.concatenate([heat[mask] for heat, mask in zip(heats, chosen, strict=True)])
        left = np.concatenate([heat[~mask] for heat, mask in zip(heats, chosen, strict=True)])
        assert (taken > 0).all()
        assert count == min(budget_blocks, sum(int((heat > 0).sum()) for heat in heats))
        assert not len(taken) or not len(left) or taken.min() >= left.max()


def test_a_kept_block_is_not_given_up_for_one_that_is_hardly_hotter() -> None:
    heat = np.array([1.0, 1.1, 1.5], dtype=np.float32)
    kept = [np.array([True, False, False])]
    assert choose([heat[:2]], [kept[0][:2]], 1)[0].tolist() == [True, False]
    assert choose([heat], kept, 1)[0].tolist() == [False, False, True]


def test_touches_of_ours_are_no_heat() -> None:
    ours, theirs = np.array([0, 1]), np.array([2])
    heat = BlockHeat(4)
    heat.see(np.arange(3), np.array([0, 0, 0], dtype=np.uint8), 0.0)
    for _ in range(5):
        heat.touched(ours, np.array([2, 2]))
        heat.see(np.arange(3), np.array([2, 2, 3], dtype=np.uint8), 60.0)
    assert heat.heat[ours].tolist() == [0.0, 0.0]
    assert heat.heat[theirs][0] == pytest.approx(3.0, abs=0.2)
    assert heat.heat[3] == 0.0
    # What has gone and came back was used by others.
    heat.see(np.array([2]), np.array([3], dtype=np.uint8), 1.0)
    heat.see(np.array([0, 2]), np.array([1, 3], dtype=np.uint8), 1.0)
    assert heat.heat[0] > 0
    heat.resize(6)
    assert len(heat.heat) == 6
    heat.resize(2)
    assert len(heat.heat) == 2


def test_the_hottest_of_the_missing_come_first() -> None:
    heats = [np.array([0, 3, 1], dtype=np.float32), np.array([2, 0], dtype=np.float32)]
    missing = [np.array([0, 1, 2]), np.array([0, 1])]
    assert [part.tolist() for part in hottest(heats, missing, 2)] == [[1], [0]]
    assert [part.tolist() for part in hottest(heats, missing, 4)] == [[0, 1, 2], [0]]
    assert [part.tolist() for part in hottest(heats, missing, 9)] == [[0, 1, 2], [0, 1]]
    assert [part.tolist() for part in hottest(heats, missing, 0)] == [[], []]


def test_stretches_are_the_blocks_as_often_as_wanted() -> None:
    blocks = np.array([1, 2, 3, 7, 9, 10])
    times = np.array([1, 3, 1, 2, 1, 1])
    found = stretches(blocks, times)
    listed = sorted(block for first, last in found for block in range(first, last + 1))
    assert listed == sorted(np.repeat(blocks, times).tolist())
    assert stretches(blocks) == [(1, 3), (7, 7), (9, 10)]
    assert stretches(blocks[:0]) == []
