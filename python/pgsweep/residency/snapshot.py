"""Both caches of one database at one time, block by block, so that two times can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import MissingAbility
from pgsweep.host.datafiles import DataFiles, Fork, find_data_files
from pgsweep.records.cache import Missing
from pgsweep.residency.access import Access
from pgsweep.residency.page_cache import not_all_seen, read_pages, read_totals
from pgsweep.residency.pool import PoolReader

Blocks = NDArray[np.int64]


@dataclass(slots=True)
class CacheSnapshot:
    """Blocks by fork.

    Attributes:
        pool: numbers of the blocks in the buffer pool, ascending.
        cached_pages: of every block of the file, how many of the operating system's pages are resident; no
            entry where none is. Nothing at all where the page cache cannot be seen.
        size_bytes: of the files, where they can be seen.
        counted_bytes: bytes of a block that each page stands for.
    """

    pool: dict[Fork, Blocks]
    counted_bytes: int
    cached_pages: dict[Fork, NDArray[np.uint8]] | None = None
    size_bytes: dict[Fork, int] = field(default_factory=dict)

    def forks(self) -> set[Fork]:
        """Return the forks that have anything in a cache."""
        return set(self.pool) | set(self.cached_pages or {})


@dataclass(frozen=True, slots=True)
class Change:
    """What one fork gained and lost between two cache snapshots; blocks ascending.

    Attributes:
        page_cache_in_bytes: gained by halves of blocks too; None if the page cache cannot be read, as
            are the following.
    """

    pool_in: Blocks
    pool_out: Blocks
    page_cache_in: Blocks | None
    page_cache_in_bytes: int | None
    page_cache_out_bytes: int | None


class CacheSnapshotter:
    """Takes cache snapshots of the session's database and of the shared catalogs."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._databases = (0, access.server.database_oid)
        self._reader = PoolReader(access)

    def take(self) -> CacheSnapshot:
        """Look at both caches now."""
        pool = self._reader.read()
        here = np.isin(pool.db, self._databases)
        names = np.stack(
            [pool.spc[here], pool.db[here], pool.rel[here], pool.fork[here].astype(np.uint32)], axis=1
        )
        block = pool.block[here].astype(np.int64)
        order = np.lexsort((block, names[:, 3], names[:, 2], names[:, 1], names[:, 0]))
        names, block = names[order], block[order]
        edges = 1 + np.flatnonzero(np.any(names[1:] != names[:-1], axis=1))
        forks: dict[Fork, Blocks] = {}
        if len(block):
            for first, part in zip([0, *edges.tolist()], np.split(block, edges), strict=True):
                spc, db, rel, fork = names[first].tolist()
                forks[spc, db, rel, fork] = part
        snapshot = CacheSnapshot(pool=forks, counted_bytes=self._access.counted_bytes)
        if self._access.sees_page_cache:
            self._add_page_cache(snapshot)
        return snapshot

    def _add_page_cache(self, snapshot: CacheSnapshot) -> None:
        found = fork_pages(self._access, self._databases)
        if isinstance(found, ForkPages):
            snapshot.cached_pages, snapshot.size_bytes = found.cached_pages, found.size_bytes


@dataclass(frozen=True, slots=True)
class ForkPages:
    """The page cache by fork.

    Attributes:
        cached_pages: of every block of the file, how many of the operating system's pages are resident; no
            entry where none is.
        size_bytes: of the files.
    """

    cached_pages: dict[Fork, NDArray[np.uint8]]
    size_bytes: dict[Fork, int]


def visible_pages(access: Access) -> tuple[ForkPages | None, list[Missing]]:
    """Return the page cache by fork, or None and the reason where it cannot be seen after all."""
    if not access.sees_page_cache:
        return None, []
    found = fork_pages(access)
    return (found, []) if isinstance(found, ForkPages) else (None, [found])


def fork_pages(access: Access, databases: Iterable[int] | None = None) -> ForkPages | Missing:
    """Look at the page cache block by block; what may not be seen whole is not seen at all.

    Args:
        access: a server on this host.
        databases: 0 is the shared catalogs; None is all.
    """
    assert access.postmaster_pid is not None
    try:
        files = find_data_files(access.postmaster_pid, access.server.version_num, databases)
    except MissingAbility as error:
        return Missing(what="page cache", why=error.message, enable=error.hint)
    block_bytes = access.server.block_size_bytes
    totals = read_totals(files, block_bytes)
    if totals.refused or files.unreadable:
        return not_all_seen(totals.refused + len(files.unreadable), access.postmaster_pid)
    partly = np.flatnonzero((totals.cached_bytes > 0) & (totals.cached_bytes < totals.size_bytes))
    pages = read_pages(files, partly, block_bytes)
    maps = {
        int(file): pages.cached_pages[pages.first_block[at] : pages.first_block[at + 1]]
        for at, file in enumerate(pages.files)
    }
    found = ForkPages({}, {})
    for fork, members in _by_fork(files):
        size = int(np.maximum(totals.size_bytes[members], 0).sum())
        found.size_bytes[fork] = size
        if not totals.cached_bytes[members].any():
            continue
        whole = np.zeros(-(-size // block_bytes), dtype=np.uint8)
        for file in members:
            first = files.segments[file] * access.segment_blocks
            blocks = max(0, int(totals.size_bytes[file])) // block_bytes
            part = maps.get(file)
            if part is None and totals.cached_bytes[file] > 0:
                part = np.full(blocks, access.pages_of_block, dtype=np.uint8)
            if part is not None:
                end = min(len(whole), first + len(part))
                whole[first:end] = part[: max(0, end - first)]
        found.cached_pages[fork] = whole
    return found


def _by_fork(files: DataFiles) -> Iterator[tuple[Fork, list[int]]]:
    members: dict[Fork, list[int]] = {}
    for index, fork in enumerate(files.forks):
        members.setdefault(fork, []).append(index)
    return iter(members.items())


def compare(before: CacheSnapshot, after: CacheSnapshot) -> dict[Fork, Change]:
    """Return what every fork gained and lost; forks with neither are left out."""
    changes = {}
    nothing = np.zeros(0, dtype=np.int64)
    for fork in before.forks() | after.forks():
        old, new = before.pool.get(fork, nothing), after.pool.get(fork, nothing)
        pool_in = np.setdiff1d(new, old, assume_unique=True)
        pool_out = np.setdiff1d(old, new, assume_unique=True)
        cached: tuple[Blocks | None, int | None, int | None] = (None, None, None)
        if before.cached_pages is not None and after.cached_pages is not None:
            none = np.zeros(0, dtype=np.uint8)
            cached = _page_cache_change(
                before.cached_pages.get(fork, none), after.cached_pages.get(fork, none), after.counted_bytes
            )
        if len(pool_in) or len(pool_out) or cached[1] or cached[2]:
            changes[fork] = Change(pool_in, pool_out, *cached)
    return changes


def _page_cache_change(
    old: NDArray[np.uint8], new: NDArray[np.uint8], counted_bytes: int
) -> tuple[Blocks, int, int]:
    length = max(len(old), len(new))
    change = np.zeros(length, dtype=np.int8)
    change[: len(new)] += new.astype(np.int8)
    change[: len(old)] -= old.astype(np.int8)
    gained = change > 0
    return (
        np.flatnonzero(gained),
        int(change[gained].sum()) * counted_bytes,
        -int(change[change < 0].sum()) * counted_bytes,
    )


def ranges(blocks: Blocks) -> list[tuple[int, int]]:
    """Return ascending block numbers as stretches (first, how many)."""
    if len(blocks) == 0:
        return []
    starts = np.flatnonzero(np.r_[True, np.diff(blocks) != 1])
    lengths = np.diff(np.r_[starts, len(blocks)])
    return list(zip(blocks[starts].tolist(), lengths.tolist(), strict=True))
