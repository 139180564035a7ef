"""The parts of the relations' files that lie in the operating system's page cache.

Totals come first, which is cheap; only files that are cached in part, and have blocks in the buffer pool
too, are then checked page by page.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import page_cache
from pgsweep.host.datafiles import DataFiles
from pgsweep.host.postmaster import user_of
from pgsweep.host.yama import who_may
from pgsweep.records.cache import Missing


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Totals of segment files; arrays are parallel to the files.

    Attributes:
        size_bytes: -1 where the file has gone or could not be opened.
        cached_bytes: resident in the page cache.
        error: errno, 0 where all is well.
        method: `cachestat` or `mincore`.
    """

    files: DataFiles
    size_bytes: NDArray[np.int64]
    cached_bytes: NDArray[np.int64]
    error: NDArray[np.int32]
    method: str

    @property
    def refused(self) -> int:
        """How many files this user may not ask about (EPERM, EACCES)."""
        return int(np.isin(self.error, (1, 13)).sum())


@dataclass(frozen=True, slots=True)
class CachedPages:
    """Some files, block by block.

    Attributes:
        files: indices of the files, ascending.
        first_block: where each begins in `cached_pages`, and where the last ends.
        cached_pages: of each block, how many of the operating system's pages are resident.
    """

    files: NDArray[np.int64]
    first_block: NDArray[np.int64]
    cached_pages: NDArray[np.uint8]


def read_totals(files: DataFiles, block_bytes: int) -> CachedFiles:
    """Return the totals of every file."""
    found = page_cache(files.paths, maps=False, block_bytes=block_bytes)
    return CachedFiles(
        files, found["size_bytes"], found["cached_bytes"], found["error"], str(found["method"])
    )


def read_pages(files: DataFiles, chosen: NDArray[np.int64], block_bytes: int) -> CachedPages:
    """Return the cached pages of some files, block by block.

    Args:
        files: all of them.
        chosen: indices of those to check, ascending.
        block_bytes: PostgreSQL's block size.
    """
    found = page_cache([files.paths[index] for index in chosen], maps=True, block_bytes=block_bytes)
    return CachedPages(chosen, found["first_block"], found["cached_pages"])


_TABLESPACES = "SELECT spcname, pg_catalog.pg_tablespace_location(oid) FROM pg_catalog.pg_tablespace"


def not_all_seen(refused: int, postmaster_pid: int) -> Missing:
    """Return why the page cache is not shown: a sum over only the readable files would be wrong."""
    may = who_may(user=user_of(postmaster_pid))
    return Missing(
        what="page cache",
        why=f"{refused} files or folders are out of reach: not for this user, or a tablespace has no folder",
        enable="; ".join([may, f"as root already: {_TABLESPACES}"]),
    )
