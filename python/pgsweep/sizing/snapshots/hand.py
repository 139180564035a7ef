"""The position of the clock hand at each snapshot, inferred from the buffers that it changed.

Only the hand lowers a usage count, and only where it stood is a page replaced by another (freelist.c,
StrategyGetBuffer). So the buffers that show either between two snapshots lie on one arc, from where the hand
was to where it is. Rings and dropped relations change buffers elsewhere, and a page that was used again hides
that the hand passed; so the arc is the one that explains most buffers, not the one that holds all changes.

Under a bursty load the hand goes round more than once between some snapshots. Such a pair shows no arc; the
arcs before and after it show where the hand stood, and the loads counted meanwhile how often it went round.
A snapshot is left out if no arc shows where the hand stood.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

_FEWEST_CHANGES: Final = 8
_LEAST_EVIDENCE: Final = 25.0
"""Log-likelihood that both the arc and what lies outside it must add; chance alone comes to half of it."""

_LARGEST_GAP: Final = 0.02
"""Share of the pool by which the end of an arc and the beginning of the next may differ."""

_FEWEST_KNOWN: Final = 6
_LEAST_KNOWN_SHARE: Final = 0.4
"""Share of the snapshots between which the hand moved; if fewer show it, its position counts as unknown."""

_FORGOTTEN_PASSES: Final = 64
"""Passes after which the old contents are gone; assumed where the number of passes is not known."""

_MOST_ROUNDS: Final = 3
_SURE: Final = 0.25
"""How far the passes that follow from the loads may be from a whole number."""

_COUNTS: Final = 6


class HandPositions(NamedTuple):
    """The positions of the hand, where snapshots show them.

    Attributes:
        known: by number of the snapshot, whether they do.
        buffers: how many buffers the hand had passed at those; in between, at others. Where it is not known
            how often the hand went round, so often that the likelihood of paths begins anew.
    """

    known: Booleans
    buffers: Integers


class _Arc(NamedTuple):
    begin: int
    length: int


def follow_hand(
    snapshots: Mapping[str, NDArray[Any]], pages: Integers, pool_buffers: int, loads: Floats | None = None
) -> HandPositions | None:
    """Return where the hand stood at the snapshots; None if too few show it.

    Args:
        snapshots: the evidence's table.
        pages: a number for the page of each row.
        pool_buffers: buffers of the whole pool.
        loads: pages loaded until each snapshot, in the order of their numbers.
    """
    numbers, row_snapshot = np.unique(snapshots["snapshot"], return_inverse=True)
    if len(numbers) < 3:
        return None
    arcs = _arcs(snapshots, row_snapshot, len(numbers), pages, pool_buffers)
    positions = _positions(arcs, pool_buffers)
    moving = np.array([arc is None or arc.length > 0 for arc in arcs])
    # Snapshots before and after all movement do not count: a load that had not begun, or was over.
    touched = np.concatenate([[False], moving]) | np.concatenate([moving, [False]])
    found = int((touched & (positions >= 0)).sum())
    if found < max(_LEAST_KNOWN_SHARE * int(touched.sum()), min(_FEWEST_KNOWN, int(touched.sum()))):
        return None
    at = np.flatnonzero(positions >= 0)
    steps = _advances(arcs, at, positions[at], pool_buffers, loads)
    if steps.sum() <= 0:
        return None
    passed = int(positions[at[0]]) + np.concatenate([[0], np.cumsum(steps)])
    every = np.arange(int(numbers[-1]) + 1)
    known = np.zeros(len(every), dtype=bool)
    known[numbers[at]] = True
    return HandPositions(known, np.rint(np.interp(every, numbers[at], passed)).astype(np.int64))


def _arcs(
    snapshots: Mapping[str, NDArray[Any]],
    row_snapshot: Integers,
    count: int,
    pages: Integers,
    pool_buffers: int,
) -> list[_Arc | None]:
    """Return the arc between each snapshot and the next; None where the hand may have gone all round."""
    order = np.argsort(row_snapshot, kind="stable")
    edges = np.searchsorted(row_snapshot[order], np.arange(count + 1))
    buffers = snapshots["frame"].astype(np.int64) - 1
    arcs: list[_Arc | None] = []
    before: tuple[Integers, Integers] | None = None
    for number in range(count):
        rows = order[edges[number] : edges[number + 1]]
        page = np.full(pool_buffers, -1)
        usage = np.zeros(pool_buffers, dtype=np.int64)
        page[buffers[rows]], usage[buffers[rows]] = pages[rows], snapshots["usage_count"][rows]
        if before is not None:
            known = (page >= 0) & (before[0] >= 0)
            passed = known & ((page != before[0]) | (usage < before[1]))
            arcs.append(_arc(known, passed, before[1]))
        before = page, usage
    return arcs


def _arc(known: Booleans, passed: Booleans, usage: Integers) -> _Arc | None:
    """Return the arc that explains best which buffers were passed; none if nothing lies outside of it.

    The likelihood of an arc is a sum over its buffers, so the best one is the circular subarray of the
    largest sum. How often a buffer shows that it was passed depends on its count: a page at 0 is replaced, of
    one at 5 that is used all the time nothing is seen.

    Args:
        usage: counts before.
    """
    size = len(known)
    if passed.sum() < _FEWEST_CHANGES:
        return _Arc(0, 0)
    inside, outside = np.full(_COUNTS, 0.5), 0.005
    begin = length = 0
    score = np.zeros(size)
    for _ in range(4):
        hit, missed = np.log(inside / outside), np.log((1 - inside) / (1 - outside))
        score = np.where(known, np.where(passed, hit[usage], missed[usage]), 0.0)
        begin, length = _largest_sum(score)
        if length == 0:
            return None
        within = np.zeros(size, dtype=bool)
        within[(begin + np.arange(length)) % size] = True
        there = known & within
        seen = np.bincount(usage[there], passed[there], _COUNTS)
        of = np.bincount(usage[there], minlength=_COUNTS)
        everywhere = (seen.sum() + 1) / (of.sum() + 2)
        inside = (seen + 2 * everywhere) / (of + 2)
        outside = float((passed & ~within).sum() + 1) / float((known & ~within).sum() + 2)
        if outside > 0.5 * everywhere:
            return None
        inside, outside = np.clip(inside, 0.001, 0.98), max(outside, 1e-4)
        inside = np.maximum(inside, outside)
    if -float(score[~within].sum()) < _LEAST_EVIDENCE:
        return None
    return _Arc(begin, length)


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


def _apart(one: int, other: int, size: int) -> int:
    """Return by how much one place lies behind another, between minus half and half of the pool."""
    return (other - one + size // 2) % size - size // 2


def _positions(arcs: list[_Arc | None], size: int) -> Integers:
    """Return the buffer at which the hand stood at each snapshot; -1 if no arc shows it, or two disagree."""
    tolerated = max(_LARGEST_GAP * size, 8.0)
    positions = np.full(len(arcs) + 1, -1)
    for at in range(len(arcs) + 1):
        before = arcs[at - 1] if at > 0 else None
        after = arcs[at] if at < len(arcs) else None
        ended = None if before is None or not before.length else (before.begin + before.length) % size
        begun = None if after is None or not after.length else after.begin
        if ended is not None and begun is not None and abs(_apart(ended, begun, size)) > tolerated:
            continue
        place = begun if begun is not None else ended
        if place is not None:
            positions[at] = place
    # Where the hand stood still it is where it was, and where it will be.
    for places in (range(1, len(positions)), range(len(positions) - 2, -1, -1)):
        for at in places:
            other = at - places.step
            arc = arcs[min(at, other)]
            if positions[at] < 0 and arc is not None and not arc.length:
                positions[at] = positions[other]
    return positions


def _advances(
    arcs: list[_Arc | None], at: Integers, positions: Integers, size: int, loads: Floats | None
) -> Integers:
    """Return by how many buffers the hand moved from each known position to the next.

    Args:
        at: the snapshots whose positions are known.
    """
    steps = np.diff(positions) % size
    direct = np.zeros(len(steps), dtype=bool)
    for place, (this, following) in enumerate(pairwise(at.tolist())):
        between = arcs[this:following]
        if all(arc is not None for arc in between) and following == this + 1:
            # Two arcs that meet overlap by a few buffers at times: then the hand stood still.
            arc = arcs[this]
            length = 0 if arc is None else arc.length
            direct[place] = True
            steps[place] = max(length + _apart(length % size, int(steps[place]), size), 0)
    if direct.all():
        return steps
    forgotten = steps + size * _FORGOTTEN_PASSES
    loaded = np.zeros(len(steps)) if loads is None else np.diff(loads[at])
    if loaded[direct].sum() <= 0 or steps[direct].sum() <= 0:
        return np.where(direct, steps, forgotten)
    passes = (loaded * float(steps[direct].sum() / loaded[direct].sum()) - steps) / size
    rounds = np.rint(passes)
    # Where no arc was seen the hand went round, or nearly.
    least = (steps < 0.5 * size).astype(np.int64)
    sure = (np.abs(passes - rounds) <= _SURE) & (rounds <= _MOST_ROUNDS) & (rounds >= least)
    return np.where(direct, steps, np.where(sure, steps + size * rounds.astype(np.int64), forgotten))
