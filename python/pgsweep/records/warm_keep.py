"""Keeping relations resident: what is going on, what came of it, what would be done."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance


class WarmKeepRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One kept relation (its main fork).

    Shares are of its blocks that are to be kept: all, or the hottest where the budget is smaller.

    Attributes:
        kept_bytes: that are to be kept, at the end.
        resident_share_mean: over time; null where it was never looked at, or has no block to keep.
        touched_blocks: accesses of ours that found the block resident.
        read_blocks: accesses of ours that brought the block in, from disk or page cache.
        trouble: why it was not kept all the time.
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


class WarmKeepMoment(msgspec.Struct, frozen=True, kw_only=True):
    """What went on since the moment before this one.

    Attributes:
        at: UTC.
        seconds: since the moment before.
        rounds: of looking and touching.
        relations: name and resident share; null where there is no block to keep.
        lost_blocks: that were kept and resident, and were not resident at the next look.
        backend_share: share of one backend's time that our statements took.
        access_share: share of the server's buffer accesses that are ours; null where not known.
        lap_seconds: one turn of the clock hand; null where it stands still.
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
        pool_source: how the pool was looked at: peek, which costs the server nothing, or sql.
        ended_by: `time`, `stop` (Ctrl-C or a signal), or `gone` (no relation is left).
        rounds: of looking and touching.
        statement_seconds: of all our statements; of it `touch_seconds` for touching and reading, by the
            server's clock, and `look_seconds` for looks at the pool, as this end saw them.
        other_accesses: buffer accesses of all other sessions meanwhile; null where not known. Sessions tell
            theirs late, so this is exact over minutes only.
        lost_blocks: that were kept and resident, and were not resident at the next look.
        lap_seconds: one turn of the clock hand, the shortest measured; null where it stood still.
        reconnects: how often the connection was lost; until the next look nothing counts as resident.
        notes: what else must be known, in words.
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
    provenance: Provenance | None = None


class WarmKeepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the first round would do: `--dry-run`; nothing was done but to look once.

    Attributes:
        read_bytes: that are missing and would be read, at `rate_bytes_per_second` at most.
        touch_blocks: that would be touched at once.
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
