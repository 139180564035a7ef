"""The heat of a server's caches: saved, restored on another, compared with what is there now."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance


class HeatRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One fork of a relation as it was saved, and the result of restoring it.

    Attributes:
        match: `same blocks`: it lies in the same file; `same size`: on another cluster, in another file with
            as many blocks, of which the same are taken; it is not known whether they hold the same rows; `by
            share`: it was rewritten since, so that its blocks have other numbers; `resized`: the same file,
            cut short since; or why there is nothing to compare with: `dropped`, `empty`, `database missing`,
            `not entered`.
        saved_bytes: in the pool when it was saved.
        target_bytes: what of it is looked for here: less where it shrank.
        resident_bytes: of these, in the pool now.
        resident_hot: the same weighted by usage count + 1.
        page_cache_saved_bytes: in the page cache when it was saved; null where that was not looked at.
        page_cache_resident_bytes: of what is looked for here, in the page cache now; null where that cannot
            be seen.
        table_schema: with `table`, the table that an index or TOAST relation serves; else its own name.
        error: why the server would not read it, where it did not, and what would allow it.
    """

    database: str
    schema: str
    relation: str
    table_schema: str
    table: str
    kind: str
    fork: str
    match: str
    saved_bytes: int
    target_bytes: int
    resident_bytes: int = 0
    resident_hot: float = 0.0
    page_cache_saved_bytes: int | None = None
    page_cache_resident_bytes: int | None = None
    error: str | None = None


class HeatState(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the saved working set is resident: measured, at one time.

    Attributes:
        saved_bytes: in the pool when it was saved.
        target_bytes: what is looked for here: without relations and blocks that no longer exist.
        resident: share of what is looked for that is in the pool now.
        resident_hot: the same, each block weighted by its saved usage count + 1.
        worth: the same of the blocks worth having, those saved with a usage count of 2 or more: a block at 0
            or 1 is the next that a busy pool evicts. Of all, where none had that; null in older results.
        either: share of what was saved in either cache, and is looked for, that is in either now; null where
            the page cache is not seen, now or then.
        page_cache: the same share of the page cache.
        matched: share of what was saved that has a counterpart here.
        usage_saved: blocks looked for, at saved usage_count 0 to 5.
        usage_now: of these, those resident now, at usage_count 0 to 5.
        usage_reached: share of these resident at their saved usage_count or above.
    """

    saved_bytes: int
    target_bytes: int
    resident_bytes: int
    resident: float
    resident_hot: float
    either: float | None
    page_cache: float | None
    matched: float
    usage_saved: list[int]
    usage_now: list[int]
    usage_reached: float
    worth: float | None = None


class HeatSource(msgspec.Struct, frozen=True, kw_only=True):
    """The heat file that a result is about."""

    path: str
    at: str
    server_version: str
    pool_bytes: int
    page_cache_bytes: int | None
    shared_buffers_bytes: int


class WarmSaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """A heat file that was written.

    Attributes:
        database: the session's; null in older results, and where there was no session.
        pool_blocks: blocks of the pool in the file, all databases.
        page_cache_blocks: blocks in the page cache; null where it cannot be seen.
        nameless_blocks: blocks of the pool left out, as no catalog that may be read names their relation.
        usage_counts: blocks of the pool in the file at usage_count 0 to 5.
        relations: how many relations have blocks in the file.
        kept: older files beside it, the youngest first.
        skipped: why nothing was written, where it was not.
    """

    schema: str = "pgsweep.warm-save/1"
    path: str
    at: str
    seconds: float
    server_version: str
    pool_source: str
    size_bytes: int
    block_size_bytes: int
    shared_buffers_bytes: int
    pool_blocks: int
    page_cache_blocks: int | None
    nameless_blocks: int
    usage_counts: list[int]
    relations: int
    databases: int
    kept: list[str] = []
    skipped: str | None = None
    missing: list[Missing] = []
    database: str | None = None
    provenance: Provenance | None = None


class WarmCheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a saved working set is resident now.

    Attributes:
        relations: in descending order of bytes saved.
        conditions: those of `--fail-if` that hold.
    """

    schema: str = "pgsweep.warm-check/1"
    source: HeatSource
    server_version: str
    database: str
    pool_source: str
    at: str
    seconds: float
    state: HeatState
    relations: list[HeatRelation]
    conditions: list[str] = []
    missing: list[Missing] = []
    provenance: Provenance | None = None


class WarmRestoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that was carried out, or would be.

    Attributes:
        same_cluster: the file comes from this cluster, or from one that this cluster is a physical copy of.
        to_pool_bytes: what is read into the pool: no more than it holds, and what is not there yet.
        to_page_cache_bytes: what is read into the page cache alone.
        left_out_bytes: what was in the pool and finds no room in this one; the coldest.
        touches: accesses that only raise a usage count, as planned; queries leave fewer.
        touches_left_out: queries pushed out some of what was read, so touching would not have lasted.
        rounds: how often missing blocks were read and touched; more than once only for a pool in use.
        pushed_out_bytes: what a pool in use had evicted again after the first round.
        before: null where the pool cannot be seen, as is `after`; `after` also where nothing was done.
        stopped: it was ended early.
        statements: what is sent to the server, with the first ranges as an example.
    """

    schema: str = "pgsweep.warm-restore/1"
    source: HeatSource
    server_version: str
    database: str
    dry_run: bool
    same_cluster: bool
    at: str
    seconds: float
    to_pool_bytes: int
    to_page_cache_bytes: int
    left_out_bytes: int
    touches: int
    ranges: int
    connections: int
    before: HeatState | None
    after: HeatState | None
    relations: list[HeatRelation]
    touches_left_out: bool = False
    rounds: int = 1
    pushed_out_bytes: int = 0
    restarts: int = 0
    stopped: bool = False
    statements: list[str] = []
    missing: list[Missing] = []
    provenance: Provenance | None = None
