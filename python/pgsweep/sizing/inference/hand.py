"""Where the clock hand stood at each snapshot, from what it left behind.

Only the hand lowers a usage count, and only where it stood is a page replaced by another (freelist.c,
StrategyGetBuffer). So the buffers that show either between two snapshots lie on one arc, from where the hand
was to where it is. Rings and dropped relations change buffers elsewhere, and a page that was used again hides
that the hand passed; so the arc is the one that explains most buffers, not the one that holds all changes.
Snapshots must lie less than a clock pass apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LONGEST_ARC: Final = 0.85
"""Of the pool; a longer one may be a whole pass and more."""

_FEWEST_CHANGES: Final = 8
_LARGEST_GAP: Final = 0.02
"""Of the pool: where one arc ends the next begins."""


def follow_hand(snapshots: Mapping[str, NDArray[Any]], pages: Integers, pool_frames: int) -> Integers | None:
    """Return by number of the snapshot how many buffers the hand had passed, or nothing where it is not seen.

    Args:
        snapshots: the evidence's table.
        pages: a number for the page of each row.
        pool_frames: buffers of the whole pool.
    """
    numbers, row_snapshot = np.unique(snapshots["snapshot"], return_inverse=True)
    if len(numbers) < 3:
        return None
    order = np.argsort(row_snapshot, kind="stable")
    edges = np.searchsorted(row_snapshot[order], np.arange(len(numbers) + 1))
    frames = snapshots["frame"].astype(np.int64) - 1
    begins, lengths = np.zeros(len(numbers) - 1), np.zeros(len(numbers) - 1)
    before: tuple[Integers, Integers] | None = None
    for number in range(len(numbers)):
        rows = order[edges[number] : edges[number + 1]]
        page = np.full(pool_frames, -1)
        count = np.zeros(pool_frames, dtype=np.int64)
        page[frames[rows]], count[frames[rows]] = pages[rows], snapshots["usage_count"][rows]
        if before is not None:
            known = (page >= 0) & (before[0] >= 0)
            passed = known & ((page != before[0]) | (count < before[1]))
            arc = _arc(known, passed)
            if arc is None:
                return None
            begins[number - 1], lengths[number - 1] = arc
        before = page, count
    moved = lengths > 0
    if moved.sum() < 2 or not _joined(begins[moved], lengths[moved], pool_frames):
        return None
    first = int(begins[moved][0])
    hands = np.zeros(int(numbers[-1]) + 1, dtype=np.int64)
    hands[numbers] = first + np.concatenate([[0], np.cumsum(_advances(begins, lengths, pool_frames))])
    return hands


def _arc(known: NDArray[np.bool_], passed: NDArray[np.bool_]) -> tuple[int, int] | None:
    """Return begin and length of the arc that explains best which buffers were passed; none if too long.

    The likelihood of an arc is a sum over its buffers, so the best one is the circular subarray of the
    largest sum.
    """
    size = len(known)
    if passed.sum() < _FEWEST_CHANGES:
        return 0, 0
    inside, outside = 0.5, 0.005
    begin = length = 0
    for _ in range(3):
        score = np.where(passed, np.log(inside / outside), np.log((1 - inside) / (1 - outside)))
        begin, length = _largest_sum(np.where(known, score, 0.0))
        if length > _LONGEST_ARC * size:
            return None
        within = np.zeros(size, dtype=bool)
        within[(begin + np.arange(length)) % size] = True
        inside = float((passed & within).sum() + 1) / float((known & within).sum() + 2)
        outside = float((passed & ~within).sum() + 1) / float((known & ~within).sum() + 2)
        if outside > 0.5 * inside:
            return None
        inside, outside = min(inside, 0.98), max(outside, 1e-4)
    return begin, length


def _largest_sum(score: Floats) -> tuple[int, int]:
    """Return begin and length of the circular run with the largest sum."""
    size = len(score)
    begin, end, best = _largest_run(score)
    # A run across the end is the complement of the one with the smallest sum.
    hole_begin, hole_end, least = _largest_run(-score)
    if float(score.sum()) + least > best:
        return hole_end % size, size - (hole_end - hole_begin)
    return begin, end - begin


def _largest_run(score: Floats) -> tuple[int, int, float]:
    """Return begin, end and sum of the run with the largest sum."""
    sums = np.concatenate([[0.0], np.cumsum(score)])
    lowest = np.minimum.accumulate(sums[:-1])
    end = int(np.argmax(sums[1:] - lowest)) + 1
    begin = int(np.argmin(sums[:end]))
    return begin, end, float(sums[end] - sums[begin])


def _joined(begins: Floats, lengths: Floats, size: int) -> bool:
    """Return whether each arc begins about where the one before ended."""
    gaps = (begins[1:] - begins[:-1] - lengths[:-1] + size / 2) % size - size / 2
    return bool(np.quantile(np.abs(gaps), 0.9) <= max(_LARGEST_GAP * size, 8.0))


def _advances(begins: Floats, lengths: Floats, size: int) -> Integers:
    """Return by how many buffers the hand moved between snapshots, such that errors do not add up."""
    steps = lengths.copy()
    moved = np.flatnonzero(lengths > 0)
    for this, following in pairwise(moved.tolist()):
        gap = (begins[following] - begins[this] - lengths[this] + size / 2) % size - size / 2
        steps[this] = max(lengths[this] + gap, 0.0)
    return np.asarray(np.rint(steps), dtype=np.int64)
