"""What lies in which cache."""

from __future__ import annotations

import msgspec

from pgsweep.records.common import Provenance


class Missing(msgspec.Struct, frozen=True, kw_only=True):
    """What could not be read, why, and the command that would allow it, if there is one."""

    what: str
    why: str
    enable: str | None = None


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """The buffer pool as a whole; `usage_counts` are used buffers at usage_count 0 to 5."""

    size_bytes: int
    used_bytes: int
    unused_bytes: int
    dirty_bytes: int
    pinned_bytes: int
    usage_counts: list[int]


class CacheRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation (all its forks), or several combined, in both caches.

    Attributes:
        database: empty for shared catalogs.
        kind: table, index, TOAST table, materialized view, sequence; `unknown` for buffers whose relation no
            catalog names; otherwise what was combined.
        size_bytes: of its files; null where it could not be read.
        page_cache_bytes: resident in the operating system's page cache; null where that cannot be seen, as
            are the next two.
        both_bytes: blocks that lie in the buffer pool and, whole, in the page cache too.
        neither_bytes: what would come from disk.
        usage_counts: buffers at usage_count 0 to 5.
        table_schema: with `table`, the table that an index or TOAST relation serves; else its own name.
        root_schema: with `root`, the topmost partitioned table of a partition; else the table's name.
        relations: how many relations the row stands for.
    """

    database: str
    schema: str
    relation: str
    kind: str
    size_bytes: int | None
    shared_buffers_bytes: int
    page_cache_bytes: int | None
    both_bytes: int | None
    neither_bytes: int | None
    dirty_bytes: int
    pinned_bytes: int
    usage_counts: list[int]
    table_schema: str = ""
    table: str = ""
    root_schema: str = ""
    root: str = ""
    relations: int = 1


class CacheMap(msgspec.Struct, frozen=True, kw_only=True):
    """Where a relation's blocks lie, in order: each cell counts the blocks of one stretch of the main fork.

    A block that is resident only in half counts as not resident.

    Attributes:
        table_schema: with `table`, the table that a TOAST relation or its index serves; else empty.
    """

    database: str
    schema: str
    relation: str
    blocks: int
    pool_only: list[int]
    page_cache_only: list[int]
    both: list[int]
    neither: list[int]
    table_schema: str = ""
    table: str = ""


class CacheResult(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in which cache: measured, at one time.

    Attributes:
        by: what a row is: relation, table, index, schema, partition-root or database.
        relations: in descending order of bytes in the pool, then in the page cache.
        total: all of them, also those that `top` leaves out.
        top: how many rows were asked for, besides one for all system catalogs; null for all.
        relations_found: how many rows there were before `top`, all system catalogs together being one.
        pool_source: peek (the server's memory was read) or sql (pg_buffercache).
        page_cache_method: cachestat or mincore; null where the page cache cannot be seen.
        missing: what could not be read.
    """

    schema: str = "pgsweep.cache/1"
    server_version: str
    database: str
    block_size_bytes: int
    by: str
    pool_source: str
    page_cache_method: str | None
    at: str
    seconds: float
    pool: PoolState
    total: CacheRelation
    relations: list[CacheRelation]
    map: CacheMap | None = None
    top: int | None = None
    relations_found: int | None = None
    missing: list[Missing] = []
    provenance: Provenance | None = None
