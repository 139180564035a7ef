"""How long pages were away bounds what a larger pool misses of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pgsweep.sizing.snapshots.absences import Absences
from pgsweep.sizing.snapshots.observations import Group, Observations

PAGES, SNAPSHOTS = 100, 60


def seen_at(there: Sequence[Sequence[int]], created: Sequence[int] = ()) -> Observations:
    """Return snapshots half a clock pass apart in which these pages are there, all at usage count 1."""
    snapshot = np.repeat(np.arange(len(there)), [len(pages) for pages in there])
    page = np.concatenate([np.array(pages, np.int64) for pages in there])
    return Observations(
        groups=(Group(name="a", relations=(0,), pages=PAGES),),
        snapshots=len(there),
        page_group=np.zeros(PAGES, dtype=np.int32),
        page=page,
        snapshot=snapshot,
        usage_count=np.ones(len(page), dtype=np.int64),
        buffer=np.arange(len(page)),
        hand_buffers=np.arange(len(there)) * 10,
        pool_buffers=20,
        created=np.isin(np.arange(PAGES), created),
    )


def loop(period: int, stay: int = 3) -> list[list[int]]:
    """Return which pages are there where each comes every so many snapshots, and stays for three."""
    return [
        [page for page in range(PAGES) if (at - page) % period < stay] for at in range(SNAPSHOTS)
    ]  # fmt: skip


def test_what_was_away_for_long_misses_in_a_larger_pool_too() -> None:
    """Each page is away for 8 to 9 passes: with passes twice as long it would be gone all the same."""
    absences = Absences.of(seen_at(loop(20)))
    again = np.isfinite(absences.most)
    assert absences.least[again].min() == pytest.approx(8.0)
    assert absences.most[again].max() == pytest.approx(9.0)
    assert absences.certain(0, 2.0, 2.0)[:2] == (1.0, 0.0)


def test_what_was_away_for_a_moment_does_not_miss_in_a_pool_that_is_much_larger() -> None:
    missed, hit, count = Absences.of(seen_at(loop(6))).certain(0, 30.0, 30.0)
    assert missed == 0.0
    assert hit == pytest.approx(
        1 - np.count_nonzero(~np.isfinite(Absences.of(seen_at(loop(6))).most)) / count
    )
    assert hit > 0.8


def test_between_both_nothing_is_certain() -> None:
    assert Absences.of(seen_at(loop(20))).certain(0, 8.0, 4.0)[:2] == (0.0, 0.0)


def test_blocks_that_are_created_were_not_away() -> None:
    """They come again all the same, as others do."""
    there = loop(20)
    every = Absences.of(seen_at(there))
    made = Absences.of(seen_at(there, created=range(PAGES)))
    again = int(np.count_nonzero(np.isfinite(every.most)))
    assert len(every.group) > again
    assert len(made.group) == again


def test_without_the_hand_nothing_is_known() -> None:
    seen = seen_at(loop(20))
    object.__setattr__(seen, "hand_buffers", np.zeros(0, dtype=np.int64))
    assert Absences.of(seen).certain(0, 2.0, 2.0) == (0.0, 0.0, 0)
