"""The page cache by row of a directory, at one time."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.cache.top.directory import Directory
from pgsweep.errors import MissingAbility
from pgsweep.host.datafiles import find_data_files
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.records.cache import Missing
from pgsweep.records.top import TopPageCache
from pgsweep.residency.access import Access
from pgsweep.residency.join import join
from pgsweep.residency.page_cache import not_all_seen, read_totals
from pgsweep.residency.pool import PoolReader


@dataclass(frozen=True, slots=True)
class PageCacheByRelation:
    """Bytes by row: of the files, in the page cache, in both caches.

    Attributes:
        at: `time.monotonic()` of the look.
    """

    method: str
    size: NDArray[np.int64]
    page_cache: NDArray[np.int64]
    both: NDArray[np.int64]
    neither_bytes: int
    at: float

    def record(self, now: float) -> TopPageCache:
        """Return the sums."""
        return TopPageCache(
            method=self.method,
            size_bytes=int(self.size.sum()),
            page_cache_bytes=int(self.page_cache.sum()),
            both_bytes=int(self.both.sum()),
            neither_bytes=self.neither_bytes,
            age_seconds=max(0.0, now - self.at),
        )


def look_at_files(
    access: Access, pool: Snapshot | None, directory: Directory
) -> PageCacheByRelation | Missing:
    """Look at the page cache of all relations; what may not be seen is an answer too.

    Args:
        access: the server, on this host.
        pool: what lies in the pool now; read from the server's memory where there is none.
        directory: the rows.
    """
    assert access.postmaster_pid is not None
    block_bytes = access.server.block_size_bytes
    try:
        files = find_data_files(access.postmaster_pid, access.server.version_num)
    except MissingAbility as error:
        return Missing(what="page cache", why=error.message, enable=error.hint)
    cached = read_totals(files, block_bytes)
    if cached.refused or files.unreadable:
        return not_all_seen(cached.refused + len(files.unreadable), access.postmaster_pid)
    caches = join(pool or PoolReader(access).read(), cached, block_bytes, access.segment_blocks)
    assert caches.size_bytes is not None
    assert caches.page_cache_bytes is not None
    assert caches.both_bytes is not None
    assert caches.neither_bytes is not None
    names = np.array([fork[:3] for fork in caches.forks], dtype=np.uint32).reshape(-1, 3)
    rows, _ = directory.find(names[:, 0], names[:, 1], names[:, 2])
    count = len(directory.rows)

    def by_row(values: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, rows, values)
        return total

    return PageCacheByRelation(
        method=cached.method,
        size=by_row(caches.size_bytes),
        page_cache=by_row(caches.page_cache_bytes),
        both=by_row(caches.both_bytes),
        neither_bytes=int(caches.neither_bytes.sum()),
        at=time.monotonic(),
    )
