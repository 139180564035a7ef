"""Which relations are in use only in a small part, according to the statistics.

A block that is brought into memory spares one read if it is used, and none otherwise. Statistics count by
relation, so they do not show which blocks of an index are used; but they show how many at most: each block of
an index was read once before it was used, or was made by an insertion. An index of which fewer than half may
be in use spares less for its room than what is used whole.

That holds where only queries and insertions bring blocks into the pool. Replay of WAL brings some too, which
nobody counts, so it does not hold on a standby.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgsweep.pg.catalog.server import Relation, ScannedIndex

PARTLY = 0.5
"""A relation is used in part where less than this share of its blocks may be in use."""

_SMALL_BYTES = 2 << 20
"""Smaller relations are left alone: they take little room, and with wal_level=minimal the transaction that
makes one reads it whole at its end without counting (smgrDoPendingSyncs, storage.c; wal_skip_threshold)."""

_SMALLEST_ENTRY_BYTES = 20
"""Of a B-tree: an index tuple of 16 bytes and its line pointer of 4 (access/itup.h, storage/itemid.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The statistics of one relation, as `CounterReader` reads them, zero where nothing was counted."""

    blks_read: float = 0.0
    blks_hit: float = 0.0
    scans: float = 0.0
    tup_fetched: float = 0.0
    tup_inserted: float = 0.0
    tup_updated: float = 0.0

    @property
    def accesses(self) -> float:
        """Blocks that were asked for."""
        return self.blks_read + self.blks_hit


def accesses_by_queries(
    relations: Sequence[Relation],
    counted: Mapping[int, Counted],
    scanned: Mapping[int, ScannedIndex],
    block_bytes: int,
) -> dict[int, float]:
    """Return by oid the accesses of each relation that are spread over its blocks.

    Of a B-tree those are the accesses of its lowest level. Those of the levels above go to a few blocks,
    which the first queries bring in. Of a table they are the rows that indexes led to, and the sequential
    scans but those that built its indexes: loading it and VACUUM count accesses too, and spare nothing.

    Args:
        relations: tables and their indexes.
        counted: their statistics.
        scanned: the indexes that queries have used.
        block_bytes: PostgreSQL's block size.
    """
    # A table and its TOAST table have one `table_oid`, and so have the indexes of both.
    builds, led_to = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for relation in relations:
        if relation.kind == "i":
            builds[relation.table_oid, relation.schema] += 1
            # What an index scan fetches is counted for the index, other fetches for the table (pgstat.h).
            led_to[relation.table_oid, relation.schema] += int(counted[relation.oid].tup_fetched)
    found = {}
    for relation in relations:
        now, blocks = counted[relation.oid], relation.main_blocks
        if relation.kind == "i":
            is_btree = relation.oid in scanned and scanned[relation.oid].is_btree
            found[relation.oid] = now.accesses / (fewest_levels(blocks, block_bytes) if is_btree else 1)
        else:
            key = (relation.table_oid, relation.schema)
            scans = max(0.0, now.scans - builds[key])
            fetched = now.tup_fetched + led_to[key]
            found[relation.oid] = min(now.accesses, fetched + scans * blocks)
    return found


def used_at_most(
    relations: Sequence[Relation],
    counted: Mapping[int, Counted],
    scanned: Mapping[int, ScannedIndex],
    block_bytes: int,
) -> dict[int, float]:
    """Return the largest share of its blocks that may be in use, by oid, where it is less than `PARTLY`.

    A table has the share of that of its indexes which is used most, if it is read by them alone: by no index
    that statistics do not limit, and by no more sequential scans than building the indexes took.

    Args:
        relations: tables and their indexes.
        counted: their statistics.
        scanned: the indexes that queries have used.
        block_bytes: PostgreSQL's block size.
    """
    shares: dict[int, float] = {}
    of_table: dict[int, list[int]] = {}
    for relation in relations:
        if relation.kind != "i":
            continue
        of_table.setdefault(relation.table_oid, []).append(relation.oid)
        index = scanned.get(relation.oid)
        if index is None:
            continue
        if relation.main_blocks * block_bytes <= _SMALL_BYTES:
            shares[relation.oid] = 1.0
            continue
        now, table = counted[relation.oid], counted.get(relation.table_oid)
        # A query reads a block of each level; what is left are accesses of insertions. Each insertion makes
        # one new block at most, which is then not read.
        levels = fewest_levels(relation.main_blocks, block_bytes) if index.is_btree else 1
        made = max(0.0, now.accesses - levels * index.scans)
        if table is not None:
            made = min(made, table.tup_inserted + table.tup_updated)
        shares[relation.oid] = min(1.0, (now.blks_read + made) / relation.main_blocks)
    for relation in relations:
        indexes = of_table.get(relation.oid, [])
        read_by = [shares[index] for index in indexes if index in shares]
        if read_by and counted[relation.oid].scans <= len(indexes):
            shares[relation.oid] = max(read_by)
    return {oid: share for oid, share in shares.items() if share < PARTLY}


def fewest_levels(blocks: int, block_bytes: int) -> int:
    """Return how many levels a B-tree of that many blocks has at least: a query reads one block of each."""
    most = block_bytes // _SMALLEST_ENTRY_BYTES
    levels, reached = 1, 1
    while reached < blocks - 1:  # without the metapage
        reached = 1 + most * reached
        levels += 1
    return levels
