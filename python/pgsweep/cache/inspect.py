"""What lies in which cache: `pgsweep cache`.

    with opened("dbname=shop") as access:
        result = look(access)

Names are read first, then the pool, then the page cache; names of files that were made in between are looked
up again. What it costs: by peek nothing to the server; by SQL one pass of pg_buffercache in one backend; for
the page cache a system call a file, and a byte of our memory a block for files cached in part. A read-only
session in each database reads its catalog.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable

import numpy as np

from pgsweep.cache.blockmap import draw_map
from pgsweep.errors import MissingAbility
from pgsweep.host.datafiles import find_data_files
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.records.cache import CacheResult, Missing, PoolState
from pgsweep.records.rollup import fold_catalogs, largest, merged, roll_up
from pgsweep.residency.access import Access
from pgsweep.residency.join import join
from pgsweep.residency.names import name_the_new, read_names
from pgsweep.residency.page_cache import CachedFiles, not_all_seen, read_totals
from pgsweep.residency.pool import PoolReader
from pgsweep.residency.rows import relation_rows


def look(
    access: Access,
    *,
    by: str = "relation",
    every_database: bool = True,
    top: int | None = None,
    map_of: str | None = None,
    map_cells: int = 64,
) -> CacheResult:
    """Look at both caches once.

    Args:
        access: the server.
        by: what a row is, one of `pgsweep.records.rollup.BY`.
        every_database: relations of all databases that may be entered, not only of the session's.
        top: how many rows, besides one for all system catalogs; None for all, each catalog by itself.
        map_of: a relation of the session's database, written as `regclass` reads it, whose blocks are drawn.
        map_cells: the largest number of stretches.

    Raises:
        UsageError: there is no such relation, or no such way to group.
    """
    started, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    server = access.server
    wanted = [database.oid for database in access.databases] if every_database else []
    names = read_names(access, wanted, sizes=not access.sees_page_cache)
    pool = PoolReader(access).read()
    missing = [*access.missing, *names.missing]
    files, refused = _files(access, None if every_database else (0, server.database_oid))
    missing += refused
    caches = join(pool, files, server.block_size_bytes, access.segment_blocks)
    name_the_new(access, names, caches.forks)
    relations = relation_rows(caches, names, server.block_size_bytes)
    if not every_database:
        relations = [r for r in relations if r.database in ("", server.database)]
    rows = roll_up(relations, by)
    return CacheResult(
        server_version=server.version,
        database=server.database,
        block_size_bytes=server.block_size_bytes,
        by=by,
        pool_source=access.pool_source,
        page_cache_method=None if files is None else files.method,
        at=at.isoformat(timespec="milliseconds"),
        seconds=time.monotonic() - started,
        pool=pool_state(pool, server.shared_buffers_blocks, server.block_size_bytes),
        total=merged(relations, relation="total", kind="total"),
        relations=rows if top is None else largest(rows, by, top),
        top=top,
        relations_found=len(fold_catalogs(rows, by)),
        map=None if map_of is None else draw_map(access, pool, map_of, map_cells),
        missing=missing,
    )


def pool_state(pool: Snapshot, buffers: int, block_bytes: int) -> PoolState:
    """Return the pool as a whole."""
    return PoolState(
        size_bytes=buffers * block_bytes,
        used_bytes=pool.used_buffers * block_bytes,
        unused_bytes=(buffers - pool.used_buffers) * block_bytes,
        dirty_bytes=int(np.count_nonzero(pool.dirty)) * block_bytes,
        pinned_bytes=int(np.count_nonzero(pool.pinned)) * block_bytes,
        usage_counts=np.bincount(pool.usage_count, minlength=6).tolist(),
    )


def _files(access: Access, databases: Iterable[int] | None) -> tuple[CachedFiles | None, list[Missing]]:
    """Return what is in the page cache, or nothing and the reason where not all of it may be seen."""
    if not access.sees_page_cache:
        return None, []
    assert access.postmaster_pid is not None
    try:
        found = find_data_files(access.postmaster_pid, access.server.version_num, databases)
    except MissingAbility as error:
        return None, [Missing(what="page cache", why=error.message, enable=error.hint)]
    cached = read_totals(found, access.server.block_size_bytes)
    if cached.refused or found.unreadable:
        return None, [not_all_seen(cached.refused + len(found.unreadable), access.postmaster_pid)]
    return cached, []
