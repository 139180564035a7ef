"""Loops are found by the order in which pages come, where they lie, and by their counts; others are not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from pgsweep.sizing.snapshots.observations import Group, Observations
from pgsweep.sizing.snapshots.sequences import common_variation, ordered_pages, visited_at_random

LOOP, OTHERS = 300, 700
"""Pages of the two groups."""

BUFFERS = 200
BEFORE = 30
"""Rows of visits before the first snapshot."""


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
    hands: list[int] = []
    for number, come in enumerate(loads):
        for one in come:
            if one not in held:
                held[hand % BUFFERS] = one
                hand += 1
        hands.append(hand)
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
        hand_buffers=np.array(hands, np.int64),
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
    share = ordered_pages(observed(mixed(loop, random)), np.zeros(2))
    assert share[0] > 0.9
    assert share[1] == 0


def test_a_loop_is_found_in_runs_where_many_pages_come_between_snapshots() -> None:
    loop = [[(100 * number + k) % LOOP for k in range(100)] for number in range(9)]
    assert ordered_pages(observed(loop), np.zeros(2))[0] == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("length", [1, 8])
def test_pages_and_ranges_at_random_are_no_loop(length: int) -> None:
    random = np.random.default_rng(length)
    rows = [
        [(int(first) + k) % LOOP for first in random.integers(0, LOOP, 24 // length) for k in range(length)]
        for _ in range(30)
    ]
    assert ordered_pages(observed(mixed(rows, random)), np.zeros(2)).tolist() == [0, 0]


RANGE = 70


def long_ranges(random: np.random.Generator) -> list[list[int]]:
    """Return ranges at random places of the second group, one or two before each snapshot."""
    begins = [random.integers(0, OTHERS - RANGE, random.integers(1, 3)).tolist() for _ in range(60)]
    return [[LOOP + first + k for first in row for k in range(RANGE)] for row in begins]


PASS_LOADS = 40.0


def by_loads(seen: Observations) -> Observations:
    """Return what is known where the hand was lost: how many pages were loaded until each snapshot."""
    loads = seen.hand_buffers * PASS_LOADS / seen.pool_buffers
    return dataclasses.replace(seen, hand_buffers=np.zeros(0, np.int64), loads=loads)


def test_long_ranges_at_random_places_are_no_loop() -> None:
    seen = observed(long_ranges(np.random.default_rng(5)))
    assert ordered_pages(seen, np.zeros(2))[1] == 0
    assert ordered_pages(by_loads(seen), np.zeros(2), PASS_LOADS)[1] == 0
    assert ordered_pages(by_loads(seen), np.zeros(2), PASS_LOADS / 100)[1] > 0.5, "snapshots too far apart"


def test_long_ranges_are_taken_for_a_loop_where_nothing_tells_them_apart() -> None:
    """Without the hand nobody knows what came and went between two snapshots."""
    seen = observed(long_ranges(np.random.default_rng(5)))
    unseen = dataclasses.replace(seen, hand_buffers=np.zeros(0, np.int64))
    assert ordered_pages(unseen, np.zeros(2))[1] > 0.5


@pytest.mark.parametrize("sessions", [1, 3])
def test_sessions_that_each_read_on_are_loops(sessions: int) -> None:
    """Each from a place of its own, so that their pages lie in several windows."""
    loop = [
        [LOOP + (one * 240 + 70 * number + k) % OTHERS for one in range(sessions) for k in range(70)]
        for number in range(60)
    ]
    assert ordered_pages(observed(loop), np.zeros(2))[1] > 0.5
    assert ordered_pages(by_loads(observed(loop)), np.zeros(2), PASS_LOADS)[1] > 0.5


def test_one_window_among_many_snapshots_is_no_loop() -> None:
    random = np.random.default_rng(4)
    rows = [random.integers(0, LOOP, 25).tolist() for _ in range(20)]
    rows[7] = list(range(100, 125))
    assert ordered_pages(observed(mixed(rows, random)), np.zeros(2))[0] == 0


def counted(visits: Sequence[Sequence[int]], pages: int = LOOP) -> Observations:
    """Return snapshots of pages that are all in the pool, whose counts visits raise and a clock pass lowers.

    Args:
        visits: the pages that are visited before each snapshot; a third of a clock pass lies between two.
            The first rows bring the counts to what the load makes of them, and no snapshot is taken then.
    """
    random = np.random.default_rng(0)
    count = random.integers(0, 6, pages)
    third = np.arange(pages) % 3
    usage = []
    for number, visited in enumerate(visits):
        np.add.at(count, np.asarray(visited), 1)
        count = np.clip(count - (third == number % 3), 0, 5)
        if number >= BEFORE:
            usage.append(count.copy())
    snapshots = len(usage)
    return Observations(
        groups=(Group(name="a", relations=(0,), pages=pages),),
        snapshots=snapshots,
        page_group=np.zeros(pages, np.int32),
        page=np.tile(np.arange(pages), snapshots),
        snapshot=np.repeat(np.arange(snapshots), pages),
        usage_count=np.concatenate(usage),
        buffer=np.tile(np.arange(pages), snapshots),
        hand_buffers=np.zeros(0, np.int64),
        pool_buffers=pages,
    )


def test_a_loop_that_fits_is_found_by_the_counts_of_neighbours() -> None:
    """A quarter of it is read between two snapshots, each page four times."""
    loop = [[(75 * number + k) % LOOP for k in range(75) for _ in range(4)] for number in range(60)]
    assert common_variation(counted(loop))[0] > 0.3


def test_a_short_window_that_moves_through_many_pages_is_found() -> None:
    """It holds a seventieth of them, a fifth of a sixteenth."""
    pages, window = 20_000, 280
    rows = [[(400 * number + k) % pages for k in range(window) for _ in range(4)] for number in range(70)]
    assert common_variation(counted(rows, pages))[0] > 0.3


MANY = 20_000


def by_thirds(rows: Sequence[Sequence[int]]) -> Observations:
    """Return snapshots of many pages of which it is known how many passes lie between them."""
    seen = counted(rows, MANY)
    return dataclasses.replace(seen, loads=np.arange(seen.snapshots) * PASS_LOADS / 3)


def test_long_ranges_of_what_the_pool_holds_are_no_loop() -> None:
    """In a look of some minutes at gigabytes few ranges come, and raise the counts of neighbours together."""
    begins = np.random.default_rng(6).integers(0, MANY - 600, (BEFORE + 14, 4))
    seen = by_thirds([[first + k for first in row for k in range(600)] for row in begins.tolist()])
    assert common_variation(seen)[0] > 0.2
    assert visited_at_random(seen, PASS_LOADS).tolist() == [True]
    loop = [[(1200 * number + k) % MANY for k in range(1200)] for number in range(BEFORE + 30)]
    assert visited_at_random(by_thirds(loop), PASS_LOADS).tolist() == [False]


def test_a_few_ranges_among_other_visits_do_not_say_how_those_come() -> None:
    random = np.random.default_rng(7)
    rows = [
        [
            *(first + k for first in random.integers(0, MANY - 100, 4).tolist() for k in range(100)),
            *random.integers(0, MANY, 1500).tolist(),
        ]
        for _ in range(BEFORE + 14)
    ]
    assert visited_at_random(by_thirds(rows), PASS_LOADS).tolist() == [False]


def test_short_ranges_at_random_places_are_no_loop() -> None:
    random = np.random.default_rng(4)
    begins = random.integers(0, 19_900, (70, 60))
    rows = [[first + k for first in row for k in range(32)] for row in begins.tolist()]
    assert common_variation(counted(rows, 20_000))[0] < 0.1


def test_a_small_relation_takes_nothing_from_its_neighbour() -> None:
    seen = counted([[(75 * number + k) % LOOP for k in range(75) for _ in range(4)] for number in range(60)])
    alone = common_variation(seen)[0]
    few = Group(name="few", relations=(1,), pages=5)
    both = dataclasses.replace(
        seen,
        groups=(few, *seen.groups),
        page_group=np.concatenate([np.zeros(5, np.int32), seen.page_group + 1]).astype(np.int32),
        page=seen.page + 5,
    )
    assert common_variation(both).tolist() == [0, pytest.approx(alone)]


@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_neighbours_visited_at_random_have_little_in_common(skew: float) -> None:
    """Also where popular pages lie side by side: what a page has all the time is not what moves."""
    random = np.random.default_rng(2)
    weights = 1.0 / (1 + np.arange(LOOP)) ** skew
    rows = [random.choice(LOOP, 150, p=weights / weights.sum()).tolist() for _ in range(70)]
    assert common_variation(counted(rows))[0] < 0.03


def test_a_load_that_comes_and_goes_everywhere_is_no_loop() -> None:
    random = np.random.default_rng(3)
    rows = [random.integers(0, LOOP, 40 + 200 * (number % 5 == 0)).tolist() for number in range(70)]
    assert common_variation(counted(rows))[0] < 0.03


def test_few_snapshots_or_pages_show_nothing() -> None:
    loop = [[(75 * number + k) % LOOP for k in range(75)] for number in range(60)]
    assert common_variation(counted(loop[: BEFORE + 3])).tolist() == [0]
    assert common_variation(counted([[k % 40 for k in row] for row in loop], 40)).tolist() == [0]
