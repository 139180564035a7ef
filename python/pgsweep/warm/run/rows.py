"""The rows of a plan: one a relation, in the order in which they are read, and what was read of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from pgsweep.records.warm import WarmRelation
from pgsweep.warm.block_ranges import BlockRange, Call
from pgsweep.warm.files import Owner
from pgsweep.warm.run.verify import Resident
from pgsweep.warm.session import Read


class ReadBlocks:
    """The number of blocks read of each relation, counted call by call; the pool may lose them again."""

    def __init__(self) -> None:
        self._pool: Counter[Owner] = Counter()
        self._page_cache: Counter[Owner] = Counter()

    def add(self, call: Call, read: Read, *, pool: bool) -> None:
        """Count a call that is done."""
        counted = self._pool if pool else self._page_cache
        counted.update(_blocks(call.pieces))
        counted.subtract(_blocks([piece for piece, _, _ in read.failed]))

    def pool_lost(self) -> None:
        """Count what lay in the pool anew."""
        self._pool.clear()

    def into_pool(self, owner: Owner) -> int:
        """Return the blocks of a relation that were read into the pool."""
        return self._pool[owner]

    def of(self, owner: Owner) -> int:
        """Return the blocks that were read of a relation."""
        return self._pool[owner] + self._page_cache[owner]


def _blocks(pieces: Sequence[BlockRange]) -> Counter[Owner]:
    blocks: Counter[Owner] = Counter()
    for piece in pieces:
        blocks[piece.database, piece.oid] += piece.blocks
    return blocks


def relation_rows(
    pool: Sequence[BlockRange],
    page_cache: Sequence[BlockRange],
    left_out: Sequence[BlockRange],
    block_bytes: int,
    *,
    tables: Mapping[Owner, tuple[str, str]],
    blocks: Mapping[Owner, int],
    resident: Resident | None = None,
    read: ReadBlocks | None = None,
) -> list[WarmRelation]:
    """Return one row a relation, all its forks; relations without blocks to read come last.

    Args:
        pool, page_cache: what was planned for each.
        left_out: what does not fit.
        block_bytes: PostgreSQL's block size.
        tables: schema and name of the table that a TOAST relation or its index serves.
        blocks: of each relation, also those that an earlier run has read.
        resident: what is in the caches, where that was looked at.
        read: what was read, where anything was to be.
    """
    sums: dict[Owner, list[int]] = {}
    first: dict[Owner, BlockRange] = {}
    for column, pieces in enumerate((pool, page_cache, left_out)):
        for piece in pieces:
            owner = (piece.database, piece.oid)
            first.setdefault(owner, piece)
            sums.setdefault(owner, [0, 0, 0])[column] += piece.blocks * block_bytes
    rows = []
    for number, (owner, piece) in enumerate(first.items(), 1):
        into_pool, into_page_cache, out = sums[owner]
        table_schema, table = tables.get(owner, ("", ""))
        row = WarmRelation(
            order=number,
            database=piece.database,
            schema=piece.schema,
            relation=piece.relation,
            kind=piece.kind,
            table_schema=table_schema,
            table=table,
            heat=piece.heat,
            saved=piece.saved,
            why=piece.why or "",
            size_bytes=max(into_pool + into_page_cache + out, blocks.get(owner, 0) * block_bytes),
            pool_bytes=into_pool,
            page_cache_bytes=into_page_cache,
            left_out_bytes=out,
            read_bytes=None if read is None else read.of(owner) * block_bytes,
        )
        if resident is not None:
            row = msgspec.structs.replace(
                row,
                pool_resident_bytes=None if resident.pool is None else resident.pool.get(owner, 0),
                page_cache_resident_bytes=None
                if resident.page_cache is None
                else resident.page_cache.get(owner, 0),
            )
        rows.append(row)
    return rows
