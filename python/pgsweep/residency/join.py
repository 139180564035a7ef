"""The two caches put together, block by block.

A block of the buffer pool is 8 kB, a page of the page cache usually 4 kB, so a block may be resident by half.
"Held twice" counts only blocks that are resident whole; "in neither" counts single pages, so that pool,
page cache and neither, less what overlaps, make the relation's size to the byte.

The two are read one after the other: on a busy server a block that moves in between may be counted in both or
in none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.host.datafiles import Fork
from pgsweep.host.pages import counted_bytes, pages_of_block
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.residency.page_cache import CachedFiles, CachedPages, read_pages

USAGE_COUNTS = 6


@dataclass(frozen=True, slots=True)
class ForkCaches:
    """Both caches by fork; arrays are parallel to `forks`.

    Attributes:
        usage_counts: buffers at usage_count 0 to 5, shape (forks, 6).
        size_bytes: this and the following are None if the page cache cannot be read.
    """

    forks: list[Fork]
    usage_counts: NDArray[np.int64]
    dirty_blocks: NDArray[np.int64]
    pinned_blocks: NDArray[np.int64]
    size_bytes: NDArray[np.int64] | None = None
    page_cache_bytes: NDArray[np.int64] | None = None
    both_bytes: NDArray[np.int64] | None = None
    neither_bytes: NDArray[np.int64] | None = None


def join(pool: Snapshot, cached: CachedFiles | None, block_bytes: int, segment_blocks: int) -> ForkCaches:
    """Put pool and page cache together.

    Args:
        pool: the used buffers.
        cached: totals of the files; None if they cannot be read.
        block_bytes: PostgreSQL's block size.
        segment_blocks: blocks in a segment file (`segment_size`).
    """
    forks, fork_of_buffer = forks_of(pool)
    of_file = np.zeros(0, dtype=np.int64)
    if cached is not None:
        number = {fork: index for index, fork in enumerate(forks)}
        of_file = np.array(
            [number.setdefault(fork, len(number)) for fork in cached.files.forks], dtype=np.int64
        )
        forks = list(number)
    count = len(forks)
    usage = np.bincount(
        fork_of_buffer * USAGE_COUNTS + np.minimum(pool.usage_count, USAGE_COUNTS - 1),
        minlength=count * USAGE_COUNTS,
    )
    caches = ForkCaches(
        forks=forks,
        usage_counts=usage.reshape(count, USAGE_COUNTS),
        dirty_blocks=np.bincount(fork_of_buffer[pool.dirty], minlength=count),
        pinned_blocks=np.bincount(fork_of_buffer[pool.pinned], minlength=count),
    )
    if cached is None:
        return caches
    both, neither = _overlap(cached, of_file, count, fork_of_buffer, pool.block, block_bytes, segment_blocks)
    there = cached.size_bytes >= 0

    def by_fork(values: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, of_file[there], values[there])
        return total

    return ForkCaches(
        forks=forks,
        usage_counts=caches.usage_counts,
        dirty_blocks=caches.dirty_blocks,
        pinned_blocks=caches.pinned_blocks,
        size_bytes=by_fork(cached.size_bytes),
        page_cache_bytes=by_fork(cached.cached_bytes),
        both_bytes=by_fork(both),
        neither_bytes=by_fork(neither),
    )


def forks_of(pool: Snapshot) -> tuple[list[Fork], NDArray[np.int64]]:
    """Return the forks that have buffers, and for each buffer the number of its fork."""
    places, place = np.unique(
        pool.spc.astype(np.uint64) << np.uint64(32) | pool.db.astype(np.uint64), return_inverse=True
    )
    names, number = np.unique(
        place.astype(np.uint64) << np.uint64(34)
        | pool.rel.astype(np.uint64) << np.uint64(2)
        | pool.fork.astype(np.uint64),
        return_inverse=True,
    )
    forks = []
    for name in names.tolist():
        spc_db = int(places[name >> 34])
        forks.append((spc_db >> 32, spc_db & 0xFFFFFFFF, name >> 2 & 0xFFFFFFFF, name & 3))
    return forks, number.astype(np.int64)


def _overlap(
    cached: CachedFiles,
    of_file: NDArray[np.int64],
    forks: int,
    fork_of_buffer: NDArray[np.int64],
    block: NDArray[np.uint32],
    block_bytes: int,
    segment_blocks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, by file, bytes held twice and bytes in neither cache."""
    file, block_in_file, lies = locate(
        cached, of_file, forks, fork_of_buffer, block, block_bytes, segment_blocks
    )
    files = len(cached.size_bytes)
    pooled = np.bincount(file[lies], minlength=files)
    size, resident = np.maximum(cached.size_bytes, 0), cached.cached_bytes
    whole = resident >= size
    # Bytes that lie in both, and blocks that do so whole: equal where the file is cached whole or not at all.
    both_blocks = np.where(whole, pooled, 0)
    shared_bytes = both_blocks * block_bytes
    chosen = np.flatnonzero(~whole & (resident > 0) & (pooled > 0))
    if len(chosen):
        pages = read_pages(cached.files, chosen, block_bytes)
        of_interest = lies & np.isin(file, chosen)
        resident_pages, found = _pages_of(pages, file[of_interest], block_in_file[of_interest])
        in_files = file[of_interest][found]
        full = resident_pages == pages_of_block(block_bytes)
        np.add.at(both_blocks, in_files, full)
        np.add.at(shared_bytes, in_files, resident_pages.astype(np.int64) * counted_bytes(block_bytes))
    neither = size - resident - (pooled * block_bytes - shared_bytes)
    return both_blocks * block_bytes, np.maximum(neither, 0)


def locate(
    cached: CachedFiles,
    of_file: NDArray[np.int64],
    forks: int,
    fork: NDArray[np.int64],
    block: NDArray[np.uint32],
    block_bytes: int,
    segment_blocks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the file of each block, its place there, and whether the file has it.

    A new block may be in the pool before it is in the file, and a truncated one a little longer.
    """
    first_file = np.full(forks, -1, dtype=np.int64)
    # Backwards, so that the first segment of each fork is written last.
    first_file[of_file[::-1]] = np.arange(len(of_file))[::-1]
    segments = np.bincount(of_file, minlength=forks)
    segment, block_in_file = np.divmod(block.astype(np.int64), segment_blocks)
    lies = (first_file[fork] >= 0) & (segment < segments[fork])
    file = np.where(lies, first_file[fork] + segment, 0)
    if len(of_file) == 0:
        return file, block_in_file, lies
    numbers = np.array(cached.files.segments, dtype=np.int64)
    lies &= (numbers[file] == segment) & ((block_in_file + 1) * block_bytes <= cached.size_bytes[file])
    return file, block_in_file, lies


def _pages_of(
    pages: CachedPages, file: NDArray[np.int64], block_in_file: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the resident pages of blocks, for those found, and which were found (files may shrink)."""
    position = np.searchsorted(pages.files, file)
    at = pages.first_block[position] + block_in_file
    found = at < pages.first_block[position + 1]
    return pages.cached_pages[at[found]], found
