"""What snapshots of the pool say about each page: at which usage_count it was seen, and how often.

Pages are gathered into groups that share a law of batches: one group for each relation that matters, one
for all other relations of the database, one for everything else in the pool (other databases, shared
catalogs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.clock import USUAL, Clock
from pgsweep.sizing.observed import Server
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots

Table = Mapping[str, NDArray[Any]]

_NAMED = 3
"""How many relations of a group of many are named."""

NEAR_PASSES = 0.9
"""Clock passes between snapshots, below which the hand has not yet visited what was loaded in between."""

ABSENT_AND_COUNTERS = 7
"""Columns of a class: absent, then usage_count 0 to 5."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """The pages of one relation, or of several that are too small for groups of their own.

    Attributes:
        name: the relation, or a word for the rest.
        relations: positions in the evidence's table of relations; empty for other databases.
        pages: how many pages there are, seen or not (blocks of all forks, scaled by the sampling rate).
        largest: of several, the names of those with the most pages in the pool.
    """

    name: str
    relations: tuple[int, ...]
    pages: float
    largest: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name, and which relations it stands for."""
        more = len(self.relations) - len(self.largest)
        if more <= 0 or len(self.relations) < 2:
            return f"{self.name} ({', '.join(self.largest)})" if self.largest else self.name
        said = f"{', '.join(self.largest)} and {more} more" if self.largest else f"{more}, none in the pool"
        return f"{self.name} ({said})"


@dataclass(frozen=True, kw_only=True)
class Observations:
    """Every page that was ever seen resident, and when.

    Attributes:
        groups: the groups, `group` counts them.
        page_group: group of each page seen, shape (pages,).
        page: page of each observation, shape (observations,).
        snapshot: number of the snapshot, 0 to `snapshots` - 1, same shape.
        usage_count: 0 to 5, same shape.
        buffer: buffer of each observation, from 0, same shape.
        hand_buffers: how many buffers the hand had passed at each snapshot, shape (snapshots,), or empty.
        loads: pages loaded into the pool until each snapshot, shape (snapshots,), or empty.
        pool_buffers: buffers of the whole pool.
        unknown: mean number of pages of the database in a snapshot that belong to no known relation.
        clock: the policy of the pool.
        created: which pages were not there yet at the beginning, shape (pages,).
    """

    groups: tuple[Group, ...]
    snapshots: int
    page_group: NDArray[np.int32]
    page: NDArray[np.int64]
    snapshot: NDArray[np.int64]
    usage_count: NDArray[np.int64]
    buffer: NDArray[np.int64]
    hand_buffers: NDArray[np.int64]
    pool_buffers: int
    unknown: float = 0.0
    clock: Clock = USUAL
    created: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    loads: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        """Take all pages for old ones where nothing else is said."""
        if not len(self.created):
            object.__setattr__(self, "created", np.zeros(len(self.page_group), dtype=bool))

    @cached_property
    def appeared(self) -> NDArray[np.int64]:
        """Observations of pages that were not in the snapshot before, sorted by page and snapshot."""
        order = np.lexsort((self.snapshot, self.page))
        page, snapshot = self.page[order], self.snapshot[order]
        new = np.ones(len(page), dtype=bool)
        new[1:] = (page[1:] != page[:-1]) | (snapshot[1:] != snapshot[:-1] + 1)
        return order[new]

    @cached_property
    def loaded(self) -> list[NDArray[np.int64]]:
        """Of each group, observations of pages loaded since a snapshot from which the hand is not far yet."""
        appeared = self.appeared[self.snapshot[self.appeared] > 0]
        near = np.diff(self.hand_buffers) < NEAR_PASSES * self.pool_buffers
        new = appeared[near[self.snapshot[appeared] - 1] & ~self.created[self.page[appeared]]]
        group = self.page_group[self.page[new]]
        order = np.argsort(group, kind="stable")
        return np.split(new[order], np.searchsorted(group[order], np.arange(1, len(self.groups))))

    def classes(
        self, group: int, chosen: Sequence[int] | NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the distinct counts over the chosen snapshots and how many pages of the group show each.

        Returns:
            Counts of shape (classes, 7), absent and usage_count 0 to 5, each row summing to the number of
            chosen snapshots, and the number of pages of each. The last row are the pages never seen.
        """
        wanted = np.zeros(self.snapshots, dtype=bool)
        wanted[np.asarray(chosen)] = True
        members = np.flatnonzero(self.page_group == group)
        position = np.full(len(self.page_group), -1, dtype=np.int64)
        position[members] = np.arange(len(members))
        take = wanted[self.snapshot] & (position[self.page] >= 0)
        counts = np.bincount(
            position[self.page[take]] * 6 + self.usage_count[take], minlength=len(members) * 6
        ).reshape(-1, 6)
        # At most 1023 snapshots enter a class, so that six counts pack into one integer and sort fast.
        packed = (counts << (10 * np.arange(6))).sum(axis=1)
        distinct, pages = np.unique(packed[packed > 0], return_counts=True)
        seen = (distinct[:, None] >> (10 * np.arange(6))) & 1023
        rows = np.zeros((len(distinct) + 1, ABSENT_AND_COUNTERS))
        rows[:-1, 1:] = seen
        size = int(wanted.sum())
        rows[:, 0] = size - rows[:, 1:].sum(axis=1)
        never = max(self.groups[group].pages - pages.sum(), 0.0)
        return rows, np.append(pages.astype(np.float64), never)

    def resident(self) -> NDArray[np.float64]:
        """Return the mean number of pages of each group that a snapshot saw."""
        rows = np.bincount(self.page_group[self.page], minlength=len(self.groups))
        return np.asarray(rows / self.snapshots, dtype=np.float64)


def gather(
    used: UsedSnapshots, relations: Table, server: Server, important: NDArray[np.bool_], clock: Clock
) -> Observations:
    """Sort the rows of snapshots into pages and groups.

    Args:
        used: the snapshots.
        relations: the evidence's table.
        server: that was observed.
        important: for each relation, whether it gets a group of its own.
        clock: the policy of the pool.
    """
    snapshots, rate = used.snapshots, server.sampling_rate
    file_key, relation_key = file_keys(snapshots, relations)
    order = np.argsort(relation_key, kind="stable")
    found = np.searchsorted(relation_key[order], file_key)
    found = order[np.minimum(found, len(order) - 1)] if len(order) else np.zeros(len(file_key), np.int64)
    known = (relation_key[found] == file_key) if len(order) else np.zeros(len(file_key), bool)
    in_database = snapshots["db"] == server.database_oid

    own = np.flatnonzero(important)
    group_of_relation = np.full(max(len(relation_key), 1), len(own), dtype=np.int32)
    group_of_relation[own] = np.arange(len(own))
    group = np.where(
        known & in_database, group_of_relation[found], np.where(in_database, len(own), len(own) + 1)
    )

    _, first, page = np.unique(_page_keys(snapshots, file_key), return_index=True, return_inverse=True)
    page_group = group[first].astype(np.int32)
    seen = np.bincount(page_group, minlength=len(own) + 2)

    begin = relations["blocks_begin"][found] if len(order) else np.zeros(len(file_key), np.int64)
    created = known & (snapshots["fork"] == 0) & (snapshots["block"] >= begin)

    blocks = main_fork_blocks(relations) + relations["fsm_blocks"] + relations["vm_blocks"]
    small = np.flatnonzero(~important & (relations["db"] == server.database_oid))
    groups = [
        Group(name=str(relations["name"][i]), relations=(int(i),), pages=max(blocks[i] * rate, seen[g]))
        for g, i in enumerate(own)
    ]
    in_pool = np.bincount(found[known & (group == len(own))], minlength=len(important))[small]
    largest = small[np.argsort(-in_pool, kind="stable")][: min(_NAMED, np.count_nonzero(in_pool))]
    groups.append(
        Group(
            name="other relations",
            relations=tuple(int(i) for i in small),
            pages=max(float(blocks[small].sum()) * rate, seen[len(own)]),
            largest=tuple(str(relations["name"][i]) for i in largest),
        )
    )
    # How much else there is on the server is not known; pages never seen do not matter to the pool as it is.
    groups.append(Group(name="other databases", relations=(), pages=float(seen[len(own) + 1])))
    numbers, snapshot = np.unique(snapshots["snapshot"], return_inverse=True)
    hand_seen = len(used.hand_buffers) > numbers[-1]
    return Observations(
        groups=tuple(groups),
        snapshots=len(numbers),
        page_group=page_group,
        page=page.astype(np.int64).ravel(),
        snapshot=snapshot.astype(np.int64).ravel(),
        usage_count=snapshots["usage_count"].astype(np.int64),
        buffer=snapshots["frame"].astype(np.int64) - 1,
        hand_buffers=used.hand_buffers[numbers] if hand_seen else np.zeros(0, np.int64),
        pool_buffers=server.pool_blocks,
        unknown=float((in_database & ~known).sum()) / max(len(numbers), 1),
        clock=clock,
        created=created[first],
        loads=np.zeros(0) if used.loads is None or len(used.loads) != len(numbers) else used.loads,
    )


def main_fork_blocks(relations: Table) -> NDArray[np.int64]:
    """Return the blocks of the main fork of each relation: the larger of both ends of the recording."""
    return np.asarray(np.maximum(relations["blocks_begin"], relations["blocks_end"]), dtype=np.int64)


def page_numbers(snapshots: Table, relations: Table) -> NDArray[np.int64]:
    """Return a number for the page of each row of `snapshots`."""
    file_key, _ = file_keys(snapshots, relations)
    return _page_keys(snapshots, file_key)


def _page_keys(snapshots: Table, file_key: NDArray[np.int64]) -> NDArray[np.int64]:
    _, file_index = np.unique(file_key, return_inverse=True)
    block_key = (snapshots["fork"].astype(np.int64) << 32) | snapshots["block"].astype(np.int64)
    return np.asarray((file_index.astype(np.int64).ravel() << 34) | block_key, dtype=np.int64)


def file_keys(*tables: Mapping[str, Any]) -> list[NDArray[np.int64]]:
    """Return one number per row for (tablespace, database, relfilenode), the same in all tables."""
    columns = [np.concatenate([t[c].astype(np.int64) for t in tables]) for c in ("spc", "db", "rel")]
    spaces, space = np.unique(columns[0], return_inverse=True)
    databases, database = np.unique(columns[1], return_inverse=True)
    del spaces
    key = ((space.astype(np.int64) * len(databases) + database) << 32) | columns[2]
    return list(np.split(key, np.cumsum([len(t["rel"]) for t in tables])[:-1]))
