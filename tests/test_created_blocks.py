"""Blocks that a relation gained during the recording say nothing of how pages are loaded or were before."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pgsweep.sizing.snapshots.observations import Group, Observations
from pgsweep.sizing.snapshots.paths import loaded_batch, path_likelihoods
from pgsweep.sizing.snapshots.rates import GRID, SINGLE

LOADED, CREATED = 250, 250
BUFFERS = 10_000


def observed() -> Observations:
    """Return two snapshots; in the second are pages loaded by one access, and new ones filled row by row."""
    pages = 1 + LOADED + CREATED
    count = np.concatenate([[3, 3], np.full(LOADED, 1), np.full(CREATED, 5)])
    return Observations(
        groups=(Group(name="t", relations=(0,), pages=pages),),
        snapshots=2,
        page_group=np.zeros(pages, np.int32),
        page=np.concatenate([[0], np.arange(pages)]),
        snapshot=np.concatenate([[0], np.ones(pages, np.int64)]),
        usage_count=count,
        buffer=np.concatenate([[9_000], 9_000 - np.arange(pages)]),
        hand_buffers=np.array([0, 1_000]),
        pool_buffers=BUFFERS,
        created=np.arange(pages) > LOADED,
    )


def test_new_blocks_are_not_loaded_with_five_accesses() -> None:
    seen = observed()
    assert loaded_batch(seen, 0) == pytest.approx(SINGLE)
    taken_for_old = dataclasses.replace(seen, created=np.zeros(len(seen.page_group), bool))
    batch = loaded_batch(taken_for_old, 0)
    assert batch is not None
    assert batch[4] == pytest.approx(0.5, abs=0.01)


def test_the_path_of_a_new_block_begins_where_it_is_first_seen() -> None:
    """One look at the end excludes no rate; a page that was absent before is hardly one of the hottest."""
    seen = observed()
    random = np.random.default_rng(0)
    like, pages = path_likelihoods(seen, 0, np.arange(2), SINGLE, random)
    hot = int(np.searchsorted(GRID, 50.0))
    certain = like[:, hot] == 1.0
    assert pages[certain].sum() >= CREATED
    old = dataclasses.replace(seen, created=np.zeros(len(seen.page_group), bool))
    like, pages = path_likelihoods(old, 0, np.arange(2), SINGLE, random)
    assert pages[like[:, hot] > 1e-3].sum() <= 1
