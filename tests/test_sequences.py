"""Loops are found by the order in which pages come, and by where they lie; ranges read at random are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pgsweep.sizing.inference.observations import Group, Observations
from pgsweep.sizing.inference.sequences import in_order

LOOP, OTHERS = 300, 700
"""Pages of the two groups."""

BUFFERS = 200


def observed(loads: Sequence[Sequence[int]]) -> Observations:
    """Return snapshots of a ring of buffers into which pages are loaded one after the other.

    Args:
        loads: the pages that come before each snapshot.
    """
    held = np.full(BUFFERS, -1, np.int64)
    hand = 0
    page: list[int] = []
    snapshot: list[int] = []
    buffer: list[int] = []
    for number, come in enumerate(loads):
        for one in come:
            if one not in held:
                held[hand % BUFFERS] = one
                hand += 1
        there = np.flatnonzero(held >= 0)
        page += held[there].tolist()
        snapshot += [number] * len(there)
        buffer += there.tolist()
    return Observations(
        groups=(Group(name="a", relations=(0,), pages=LOOP), Group(name="b", relations=(1,), pages=OTHERS)),
        snapshots=len(loads),
        page_group=np.repeat([0, 1], [LOOP, OTHERS]).astype(np.int32),
        page=np.array(page, np.int64),
        snapshot=np.array(snapshot, np.int64),
        usage_count=np.zeros(len(page), np.int64),
        buffer=np.array(buffer, np.int64),
        hand_buffers=np.zeros(0, np.int64),
        pool_buffers=BUFFERS,
    )


def mixed(own: Sequence[Sequence[int]], random: np.random.Generator) -> list[list[int]]:
    """Return the pages of the first group among twice as many of the second, at random."""
    found = []
    for pages in own:
        others = LOOP + random.integers(0, OTHERS, 2 * len(pages))
        place = np.sort(random.choice(3 * len(pages), len(pages), replace=False))
        row = np.insert(others, place - np.arange(len(pages)), pages)
        found.append(row.tolist())
    return found


def test_a_loop_is_found_in_snapshots_that_follow_closely() -> None:
    """Each has 25 new pages of the loop, fewer than a run needs."""
    random = np.random.default_rng(1)
    loop = [[(25 * number + k) % LOOP for k in range(25)] for number in range(20)]
    share = in_order(observed(mixed(loop, random)), np.zeros(2))
    assert share[0] > 0.9
    assert share[1] == 0


def test_a_loop_is_found_in_runs_where_many_pages_come_between_snapshots() -> None:
    loop = [[(100 * number + k) % LOOP for k in range(100)] for number in range(9)]
    assert in_order(observed(loop), np.zeros(2))[0] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("length", [1, 8])
def test_pages_and_ranges_at_random_are_no_loop(length: int) -> None:
    random = np.random.default_rng(length)
    rows = [
        [(int(first) + k) % LOOP for first in random.integers(0, LOOP, 24 // length) for k in range(length)]
        for _ in range(30)
    ]
    assert in_order(observed(mixed(rows, random)), np.zeros(2)).tolist() == [0, 0]


def test_one_window_among_many_snapshots_is_no_loop() -> None:
    random = np.random.default_rng(4)
    rows = [random.integers(0, LOOP, 25).tolist() for _ in range(20)]
    rows[7] = list(range(100, 125))
    assert in_order(observed(mixed(rows, random)), np.zeros(2))[0] == 0
