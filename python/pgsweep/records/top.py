"""The live screen."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing, PoolState
from pgsweep.records.common import Provenance


class TopRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation (all its forks) at one time, as in CacheRelation.

    Attributes:
        change_bytes_per_second: how fast its part of the pool grows or shrinks; null in the first sample.
        page_cache_bytes: as of the last reading of the page cache, which is older than the pool's; null where
            it cannot be seen, as are `both_bytes` and, at times, `size_bytes`.
        table_schema: with `table`, the table that an index or TOAST relation serves; else its own name.
    """

    database: str
    schema: str
    relation: str
    kind: str
    shared_buffers_bytes: int
    change_bytes_per_second: float | None
    usage_counts: list[int]
    dirty_bytes: int
    pinned_bytes: int
    size_bytes: int | None
    page_cache_bytes: int | None
    both_bytes: int | None
    table_schema: str = ""
    table: str = ""


class TopRates(msgspec.Struct, frozen=True, kw_only=True):
    """What the server's counters gained between two readings, by second; of all databases together.

    Attributes:
        seconds: between the readings.
        hit_ratio: hits divided by hits plus reads; null where there were neither, or they are not counted.
        hits_per_second: of shared_buffers, by all processes; before 16 of temporary tables too. Null before
            16 where `track_counts` is off; so is `reads_per_second`.
        allocations_per_second: buffers given out (buffers_alloc): for reads, for new pages.
        evictions_per_second: null before PostgreSQL 16, which does not count them.
        hand_buffers_per_second: how fast the clock hand moves; null where the server's memory is not read.
    """

    seconds: float
    hit_ratio: float | None
    hits_per_second: float | None
    reads_per_second: float | None
    allocations_per_second: float
    evictions_per_second: float | None
    transactions_per_second: float
    hand_buffers_per_second: float | None


class TopWait(msgspec.Struct, frozen=True, kw_only=True):
    """What some active backends do: wait for an event (`IO:DataFileRead`), or run."""

    event: str
    backends: int


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that has been open for more than a moment; times are the server's, UTC, ISO 8601.

    Attributes:
        since: when it began, or its statement where that began earlier.
        idle_since: since when it does nothing; null where it is at work.
    """

    pid: int
    since: str
    idle_since: str | None


class TopBackends(msgspec.Struct, frozen=True, kw_only=True):
    """Client backends without our own; `hidden` counts those whose state this role may not see.

    Attributes:
        uncounted: transactions of more than a moment; the server counts their hits and reads at their end.
    """

    total: int
    active: int
    idle: int
    idle_in_transaction: int
    hidden: int
    max_connections: int
    waits: list[TopWait]
    uncounted: list[OpenTransaction] = []


class TopPageCache(msgspec.Struct, frozen=True, kw_only=True):
    """All relations in the page cache, as read some seconds ago."""

    method: str
    size_bytes: int
    page_cache_bytes: int
    both_bytes: int
    neither_bytes: int
    age_seconds: float


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """Which relations are requested, and in which order.

    Attributes:
        sort: one of `pgsweep.cache.top.sample.SORTS`.
        filter: part of a name as shown, in either case; empty for all.
        limit: the largest number of relations; null for all.
        fold: all system catalogs, and what serves them, as one relation.
    """

    sort: str = "pool"
    reverse: bool = False
    filter: str = ""
    limit: int | None = None
    fold: bool = False


class TopSample(msgspec.Struct, frozen=True, kw_only=True):
    """Both caches and the load on them at one time: measured.

    Attributes:
        pool_source: peek (the server's memory was read) or sql (pg_buffercache).
        look_seconds: how long reading the pool took; time of a backend where the source is sql.
        backend_share: share of one backend's time that all of our statements took so far.
        interval_seconds: from one sample to the next.
        held_back: the interval is longer than requested, to limit the cost.
        page_cache: null where it cannot be seen, or has not been read yet.
        rates: null at the first reading.
        relations: those requested, in the requested order.
        relations_found: how many there were before `limit`.
    """

    schema: str = "pgsweep.top/1"
    server_version: str
    database: str
    block_size_bytes: int
    pool_source: str
    at: str
    look_seconds: float
    backend_share: float
    interval_seconds: float
    held_back: bool
    pool: PoolState
    page_cache: TopPageCache | None
    rates: TopRates | None
    backends: TopBackends
    relations: list[TopRelation]
    relations_found: int
    missing: list[Missing] = []
    provenance: Provenance | None = None
