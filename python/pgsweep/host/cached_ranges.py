"""Which blocks of relations lie in the page cache, as ranges of blocks that follow each other.

A file of which nothing or all is cached is counted as one (cachestat(2)); of the others each page is looked
up (mincore(2)). Neither reads a page, nor counts as an access to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import page_cache
from pgsweep.errors import MissingAbility
from pgsweep.host.datafiles import DataFiles, find_data_files
from pgsweep.host.pages import pages_of_block
from pgsweep.units import format_bytes, format_count

MOST_BYTES: Final = 256 << 30
"""Of files that are cached in part: looking their pages up takes seconds from here on."""

MOST_RANGES: Final = 4_000_000
_REFUSED: Final = (1, 13)
"""EPERM and EACCES."""


@dataclass(frozen=True, kw_only=True)
class CachedRanges:
    """Ranges of blocks of which the page cache holds the same number of pages, at least one; parallel arrays.

    Attributes:
        spc, db, rel, fork: of the file.
        first_block: of the range.
        blocks: how many.
        pages: of each block, resident ones of the operating system.
    """

    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    fork: NDArray[np.uint8]
    first_block: NDArray[np.uint32]
    blocks: NDArray[np.uint32]
    pages: NDArray[np.uint8]


def cached_ranges(
    postmaster_pid: int, version_num: int, database_oid: int, *, block_bytes: int, segment_blocks: int
) -> CachedRanges:
    """Return what of a database and of the shared catalogs lies in the page cache.

    Args:
        postmaster_pid: of the server, on this host.
        version_num: of the server.
        database_oid: of the database.
        block_bytes: size of a block.
        segment_blocks: blocks in a segment file (`segment_size`).

    Raises:
        MissingAbility: not all files may be looked at, or there are too many pages; says which.
        OSError: the process has gone.
    """
    files = find_data_files(postmaster_pid, version_num, (0, database_oid))
    totals = page_cache(files.paths, maps=False, block_bytes=block_bytes)
    refused = int(np.isin(totals["error"], _REFUSED).sum()) + len(files.unreadable)
    if refused:
        raise MissingAbility(f"{format_count(refused)} files of relations may not be looked at")
    size, cached = totals["size_bytes"], totals["cached_bytes"]
    partly = np.flatnonzero((cached > 0) & (cached < size))
    looked_up = int(size[partly].sum())
    if looked_up > MOST_BYTES:
        raise MissingAbility(
            f"{format_bytes(looked_up)} of files are cached in part: looking up each page would take long"
        )
    maps = page_cache([files.paths[file] for file in partly], maps=True, block_bytes=block_bytes)
    whole = np.flatnonzero((cached > 0) & (cached >= size))
    file, first, blocks, pages = _ranges(partly, maps["first_block"], maps["cached_pages"])
    file = np.concatenate([whole, file])
    if len(file) > MOST_RANGES:
        raise MissingAbility(f"what is cached lies in {format_count(len(file))} pieces, too many to keep")
    first = np.concatenate([np.zeros(len(whole), np.int64), first])
    blocks = np.concatenate([-(-size[whole] // block_bytes), blocks])
    pages = np.concatenate([np.full(len(whole), pages_of_block(block_bytes), np.uint8), pages])
    return _named(files, file, segment_blocks, first, blocks, pages)


def _ranges(
    files: NDArray[np.int64], first_block: NDArray[np.int64], cached_pages: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Return the ranges of files that were looked up: file, first block in it, blocks, pages of each.

    Args:
        files: their indices.
        first_block: where each begins in `cached_pages`, and where the last ends.
        cached_pages: of each block.
    """
    count = len(cached_pages)
    begins = np.zeros(count + 1, dtype=bool)
    begins[1:count] = cached_pages[1:] != cached_pages[:-1]
    begins[first_block] = True
    begins[count] = False
    at = np.flatnonzero(begins)
    length = np.diff(at, append=count)
    kept = cached_pages[at] > 0 if count else np.zeros(0, dtype=bool)
    at, length = at[kept], length[kept]
    owner = np.searchsorted(first_block, at, side="right") - 1
    return files[owner], at - first_block[owner], length, cached_pages[at]


def _named(
    files: DataFiles,
    file: NDArray[np.int64],
    segment_blocks: int,
    first: NDArray[np.int64],
    blocks: NDArray[np.int64],
    pages: NDArray[np.uint8],
) -> CachedRanges:
    forks = np.array(files.forks, dtype=np.uint32).reshape(-1, 4)[file]
    segment = np.array(files.segments, dtype=np.int64)[file]
    return CachedRanges(
        spc=forks[:, 0],
        db=forks[:, 1],
        rel=forks[:, 2],
        fork=forks[:, 3].astype(np.uint8),
        first_block=(segment * segment_blocks + first).astype(np.uint32),
        blocks=blocks.astype(np.uint32),
        pages=pages,
    )
