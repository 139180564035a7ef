"""Warming: the plan and its outcome."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance
from pgsweep.records.heat import HeatSource


class WarmTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of one relation that could not be read, and why.

    Attributes:
        table_schema: with `table`, the table that a TOAST relation or its index serves; else empty.
    """

    database: str
    schema: str
    relation: str
    why: str
    blocks: int
    enable: str | None = None
    table_schema: str = ""
    table: str = ""


class WarmBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be brought into one cache.

    Attributes:
        cache: `pool` or `page cache`.
        holds_bytes: shared_buffers, or the memory available on the host or left by the limit of a memory
            cgroup; null where it is not known.
        holds_why: which of these; nothing for the pool.
        planned_bytes: never more than the budget.
    """

    cache: str
    holds_bytes: int | None
    holds_why: str = ""
    reserve_bytes: int
    reserve_why: str
    budget_bytes: int
    planned_bytes: int = 0


class WarmRate(msgspec.Struct, frozen=True, kw_only=True):
    """How fast blocks can be read, and how that is known: kind is `measured` or `assumed`."""

    bytes_per_second: float
    kind: str
    why: str
    sample_bytes: int = 0
    sample_seconds: float = 0.0


class WarmRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation, all its forks.

    Attributes:
        order: its place, from 1; relations that are not read come last.
        table_schema: of the table that a TOAST relation or its index serves; else empty.
        table: likewise its name.
        heat: accesses of a block by queries since statistics began, of a B-tree index those of its lowest
            level; null where nothing was counted. With `saved`, the usage of a block in the heat file:
            usage_count + 1 of its saved blocks, over all that it has now (main fork).
        saved: the heat is that of a heat file.
        size_bytes: of its files.
        pool_bytes: to be brought into the pool.
        page_cache_bytes: to be brought into the page cache only.
        left_out_bytes: does not fit.
        read_bytes: the server or the kernel said it read or found them; null where nothing was read yet.
        pool_resident_bytes: of pool_bytes, in the pool at the end; null where that was not looked at.
        page_cache_resident_bytes: of what was to be brought into either, in the page cache at the end.
    """

    order: int
    database: str
    schema: str
    relation: str
    kind: str
    heat: float | None
    why: str
    size_bytes: int
    pool_bytes: int
    page_cache_bytes: int
    left_out_bytes: int
    pool_resident_bytes: int | None = None
    page_cache_resident_bytes: int | None = None
    saved: bool = False
    read_bytes: int | None = None
    table_schema: str = ""
    table: str = ""


class WarmStatement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement or system call of a dry run, and the bytes it would read."""

    database: str
    text: str
    size_bytes: int


class WarmWork(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, measured.

    Attributes:
        asked_bytes: of the plan, or of what an earlier run left of it.
        read_bytes: the server or the kernel said it read or found them.
        again_bytes: read once more because the server lost its pool.
        pushed_out_bytes: what a pool in use had evicted by the end of the reading; the part that was read
            again counts in what lies in the caches now.
        brought_back_seconds: what that took.
        journal: the file that `--resume` goes on from, where not all was done.
    """

    connections: int
    mode: str
    asked_bytes: int
    read_bytes: int
    again_bytes: int
    pushed_out_bytes: int = 0
    brought_back_seconds: float = 0.0
    seconds: float
    bytes_per_second: float
    reconnects: int
    pauses: int
    paused_seconds: float
    stopped: bool
    other_warmers: int = 0
    journal: str | None = None
    troubles: list[WarmTrouble] = []


class WarmVerified(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the requested blocks that lies in the caches, read block by block: before and at the end.

    Attributes:
        source: how the pool was read: peek or sql; null where it could not be, as are its figures.
        gone_bytes: was read into the pool and no longer exists: its relations were dropped, truncated or
            rewritten meanwhile.
        page_cache_bytes: of all requested blocks, in the page cache (cachestat or mincore); null where it
            cannot be seen.
    """

    source: str | None
    pool_asked_bytes: int
    pool_before_bytes: int | None
    pool_bytes: int | None
    page_cache_asked_bytes: int
    page_cache_before_bytes: int | None
    page_cache_bytes: int | None
    gone_bytes: int = 0


class WarmResult(msgspec.Struct, frozen=True, kw_only=True):
    """What would be read, in which order and why; and, if it was read, the outcome.

    Attributes:
        action: plan, dry run or run.
        into: pool, page-cache or both.
        expected_seconds: at the rate, or at --rate where that is less; null where the rate is not known.
        heat_source: what the order is based on.
        heat_file: the heat file that it is based on first; null without one.
        statistics_since: when the statistics of the database began; null where that is not known.
        relations: in their order; then those that do not fit. With `--top` the first of them.
        relations_found: how many there were before `--top`; null without it.
        refused: relations that this role may not read, and on a standby those that are unlogged.
        statements: of a dry run.
    """

    schema: str = "pgsweep.warm/1"
    action: str
    server_version: str
    database: str
    at: str
    block_size_bytes: int
    into: str
    mode: str
    heat_source: str
    heat_file: HeatSource | None = None
    statistics_since: str | None = None
    budgets: list[WarmBudget]
    asked_bytes: int
    left_out_bytes: int
    rate: WarmRate | None
    expected_seconds: float | None
    relations: list[WarmRelation]
    relations_found: int | None = None
    refused: list[WarmTrouble] = []
    statements: list[WarmStatement] = []
    work: WarmWork | None = None
    verified: WarmVerified | None = None
    missing: list[Missing] = []
    provenance: Provenance | None = None
