"""Where the blocks of one relation lie, in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pgsweep.commands import on_server
from pgsweep.errors import UsageError
from pgsweep.host.datafiles import MAIN_FORK, find_data_files
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.catalog.server import RelationPlace, find_relation
from pgsweep.records.cache import CacheMap
from pgsweep.residency.access import Access
from pgsweep.residency.page_cache import read_pages


def draw_map(access: Access, pool: Snapshot, name: str, cells: int) -> CacheMap:
    """Return where the blocks of a relation's main fork lie.

    Args:
        access: the server; where the page cache cannot be seen, blocks are in the pool or in neither.
        pool: the used buffers.
        name: as `regclass` reads it, in the session's database.
        cells: into how many stretches of blocks at most.

    Raises:
        UsageError: there is no such relation, or it has no storage of its own.
    """
    place = find_relation(access.connection, name)
    if place is None:
        raise UsageError(
            f"`{name}` has no blocks of its own",
            cause="it is a view, a partitioned table or a foreign table",
            hint=f"name one of its partitions or indexes: `{on_server('pgsweep cache', '--by relation')}` "
            "lists them",
        )
    resident = _resident(access, place)
    mine = (pool.rel == place.filenode) & (pool.db == place.database_oid) & (pool.fork == MAIN_FORK)
    mine &= pool.spc == place.tablespace_oid
    in_pool = pool.block[mine].astype(np.int64)
    blocks = max(place.blocks, len(resident), 1 + int(in_pool.max(initial=-1)))
    pooled = np.zeros(blocks, dtype=np.bool_)
    pooled[in_pool] = True
    cached = np.zeros(blocks, dtype=np.bool_)
    cached[: len(resident)] = resident
    if blocks == 0:
        edges = np.zeros(1, dtype=np.int64)
    else:
        edges = np.arange(min(cells, blocks)) * blocks // min(cells, blocks)

    def per_cell(mask: NDArray[np.bool_]) -> list[int]:
        return [] if blocks == 0 else np.add.reduceat(mask.astype(np.int64), edges).tolist()

    return CacheMap(
        database=access.server.database,
        schema=place.schema,
        relation=place.name,
        blocks=blocks,
        pool_only=per_cell(pooled & ~cached),
        page_cache_only=per_cell(~pooled & cached),
        both=per_cell(pooled & cached),
        neither=per_cell(~pooled & ~cached),
        table_schema=place.table[0],
        table=place.table[1],
    )


def _resident(access: Access, place: RelationPlace) -> NDArray[np.bool_]:
    """Return which blocks of the main fork are in the page cache, whole."""
    if not access.sees_page_cache or access.postmaster_pid is None:
        return np.zeros(0, dtype=np.bool_)
    files = find_data_files(access.postmaster_pid, access.server.version_num, [place.database_oid])
    fork = (place.tablespace_oid, place.database_oid, place.filenode, MAIN_FORK)
    chosen = np.array([index for index, found in enumerate(files.forks) if found == fork], dtype=np.int64)
    if len(chosen) == 0:
        return np.zeros(0, dtype=np.bool_)
    pages = read_pages(files, chosen, access.server.block_size_bytes)
    whole: NDArray[np.bool_] = pages.cached_pages == access.pages_of_block
    return whole
