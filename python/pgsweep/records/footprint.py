"""What one statement brings into each cache."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance


class FootprintRun(msgspec.Struct, frozen=True, kw_only=True):
    """One execution as the server itself reports it: EXPLAIN (ANALYZE, BUFFERS).

    `shared_read_seconds` is the time spent on reads; null where track_io_timing is off.
    """

    planning_seconds: float
    execution_seconds: float
    rows: int
    shared_hit_blocks: int
    shared_read_blocks: int
    shared_dirtied_blocks: int
    shared_written_blocks: int
    temp_read_blocks: int
    temp_written_blocks: int
    planning_hit_blocks: int
    planning_read_blocks: int
    shared_read_seconds: float | None = None


class FootprintChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one run brought into each cache of a relation and pushed out; null where it cannot be seen.

    Blocks are stretches of the main fork: [first, how many].
    """

    shared_buffers_in_bytes: int
    shared_buffers_out_bytes: int
    page_cache_in_bytes: int | None
    page_cache_out_bytes: int | None
    shared_buffers_in_blocks: list[tuple[int, int]]
    page_cache_in_blocks: list[tuple[int, int]] | None


class FootprintRelation(msgspec.Struct, frozen=True, kw_only=True):
    """One relation (all its forks): what lay in the caches before, and what each run changed.

    Attributes:
        table_schema: with `table`, the table that an index or TOAST relation serves; else its own name.
    """

    schema: str
    relation: str
    kind: str
    size_bytes: int | None
    shared_buffers_before_bytes: int
    page_cache_before_bytes: int | None
    runs: list[FootprintChange]
    table_schema: str = ""
    table: str = ""


class FootprintResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one statement brings into each cache: measured.

    Attributes:
        cold: both caches were emptied before (a private server).
        runs: the first run and its repetitions, in order.
        relations: those that changed, most bytes first.
        plan: of the first run, as EXPLAIN prints it.
        notes: remarks on the result, as sentences.
    """

    schema: str = "pgsweep.footprint/1"
    server_version: str
    database: str
    statement: str
    cold: bool
    pool_source: str
    sees_page_cache: bool
    shared_buffers_bytes: int
    runs: list[FootprintRun]
    relations: list[FootprintRelation]
    plan: list[str]
    notes: list[str] = []
    missing: list[Missing] = []
    provenance: Provenance | None = None
