"""Blocks that a relation gained during the recording say nothing of how pages are loaded or were before."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pgsweep.sizing.clock import USUAL
from pgsweep.sizing.snapshots.observations import Group, Observations, gather
from pgsweep.sizing.snapshots.paths import loaded_batch, path_likelihoods
from pgsweep.sizing.snapshots.rates import GRID, SINGLE
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots

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
    assert batch[4] == pytest.approx(0.5, abs=0.1)


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


def test_relations_without_a_group_of_their_own_are_named_by_what_they_have_in_the_pool() -> None:
    """Five of 10 blocks each; a doubt about them must say which they are."""

    def groups(seen: list[int]) -> tuple[Group, ...]:
        rels = np.repeat(np.arange(5), seen)
        rows = len(rels)
        columns = ("snapshot", "spc", "fork", "usage_count")
        snapshots: dict[str, Any] = {name: np.zeros(rows, np.int64) for name in columns}
        snapshots |= {"db": np.full(rows, 7), "rel": rels, "block": np.arange(rows), "frame": np.arange(rows)}
        relations: dict[str, Any] = {"spc": np.zeros(5, np.int64), "db": np.full(5, 7), "rel": np.arange(5)}
        for name, value in (("blocks_begin", 10), ("blocks_end", 10), ("fsm_blocks", 0), ("vm_blocks", 0)):
            relations[name] = np.full(5, value)
        relations["name"] = np.array([f"t{number}" for number in range(5)])
        used = UsedSnapshots(
            snapshots=snapshots,
            used_blocks=np.array([rows]),
            hand_buffers=np.zeros(0, np.int64),
            loads=None,
            warnings=(),
        )
        server: Any = SimpleNamespace(sampling_rate=1.0, database_oid=7, pool_blocks=100)
        return gather(used, relations, server, np.array([True, *[False] * 4]), USUAL).groups

    own, others, databases = groups([9, 1, 0, 5, 3])
    assert (own.label, databases.label) == ("t0", "other databases")
    assert (others.label, others.relations) == ("other relations (t3, t4, t1 and 1 more)", (1, 2, 3, 4))
    assert groups([9, 0, 0, 0, 0])[1].label == "other relations (4, none in the pool)"
