"""Keeping relations resident: progress, result and plan."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance


class WarmKeepRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One kept relation (its main fork).

    Shares are of its blocks that are to be kept: all, or the hottest where the budget is smaller.

    Attributes:
        size_bytes: at the end; 0 where it was dropped.
        kept_bytes: what is to be kept, at the end; 0 where it was dropped or may not be read.
        resident_share_after: null where nothing of it is to be kept at the end.
        resident_share_mean: over time; null where it was never observed, or has no block to keep.
        touched_blocks: accesses of ours that found the block resident.
        read_blocks: accesses of ours that brought the block in, from disk or page cache.
        trouble: why it was not kept all the time.
        table_schema: with `table`, the table that a TOAST relation or its index serves; else empty.
    """

    schema: str
    relation: str
    kind: str
    size_bytes: int
    kept_bytes: int
    resident_share_before: float | None
    resident_share_after: float | None
    resident_share_mean: float | None
    touched_blocks: int
    read_blocks: int
    trouble: str | None = None
    table_schema: str = ""
    table: str = ""


class WarmKeepSample(msgspec.Struct, frozen=True, kw_only=True):
    """What was done since the line of progress before this one.

    Attributes:
        at: UTC.
        seconds: since the line before.
        rounds: of reading the pool and touching blocks.
        relations: name and resident share; null where there is no block to keep.
        lost_blocks: blocks that were kept and resident, and were not resident in the next round.
        backend_share: share of one backend's time that our statements took.
        access_share: share of the server's buffer accesses that are ours; null where not known.
        lap_seconds: duration of a clock pass; null where the hand stands still.
        interval_seconds: between rounds, now.
    """

    at: str
    seconds: float
    rounds: int
    relations: list[tuple[str, float | None]]
    touched_blocks: int
    read_blocks: int
    lost_blocks: int
    backend_share: float
    access_share: float | None
    lap_seconds: float | None
    interval_seconds: float


class WarmKeepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What keeping relations resident did and cost: measured.

    Attributes:
        pool_source: how the pool was read: peek, which costs the server nothing, or sql.
        ended_by: `time`, `stop` (Ctrl-C or a signal), or `gone` (no relation is left).
        rounds: of reading the pool and touching blocks.
        replacing_blocks: of read_blocks, those for which the snapshot before showed no free buffer, so that
            each took the place of another; null in older results.
        statement_seconds: of all our statements. They include `touch_seconds` for touching and reading, by
            the server's clock, and `look_seconds` for reading the pool, by this process's clock.
        other_accesses: buffer accesses of all other sessions meanwhile; null where not known. Sessions
            report theirs late, so this is exact over minutes only.
        lost_blocks: blocks that were kept and resident, and were not resident in the next round.
        lap_seconds: the shortest clock pass that was measured; null where the hand stood still.
        reconnects: how often the connection was lost; until the next round nothing counts as resident.
        notes: remarks on the result, as sentences.
    """

    schema: str = "pgsweep.warm-keep/1"
    server_version: str
    database: str
    pool_source: str
    block_size_bytes: int
    shared_buffers_bytes: int
    budget_bytes: int
    ended_by: str
    seconds: float
    rounds: int
    touched_blocks: int
    read_blocks: int
    lost_blocks: int
    resident_share_before: float | None
    resident_share_after: float | None
    resident_share_mean: float | None
    statement_seconds: float
    look_seconds: float
    touch_seconds: float
    other_accesses: int | None
    lap_seconds: float | None
    interval_seconds: float
    reconnects: int
    relations: list[WarmKeepRelation]
    notes: list[str] = []
    missing: list[Missing] = []
    replacing_blocks: int | None = None
    provenance: Provenance | None = None


class WarmKeepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the first round would do: `--dry-run`; the pool was read once, and nothing else was done.

    Attributes:
        read_bytes: what is missing and would be read, at `rate_bytes_per_second` at most.
        touch_blocks: blocks that would be touched at once.
        statements: as they would be sent, in order; those of reading are of the first second.
    """

    schema: str = "pgsweep.warm-keep-plan/1"
    server_version: str
    database: str
    pool_source: str
    budget_bytes: int
    rate_bytes_per_second: int
    read_bytes: int
    touch_blocks: int
    relations: list[WarmKeepRelation]
    statements: list[str]
    notes: list[str] = []
    provenance: Provenance | None = None
