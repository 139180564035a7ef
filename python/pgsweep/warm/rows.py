"""The rows of a plan: one a relation, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pgsweep.records.warm import WarmRelation
from pgsweep.warm.files import Owner
from pgsweep.warm.pieces import Piece
from pgsweep.warm.verify import Resident


def relation_rows(
    pool: Sequence[Piece],
    page_cache: Sequence[Piece],
    left_out: Sequence[Piece],
    block_bytes: int,
    resident: Resident | None,
) -> list[WarmRelation]:
    """Return one row a relation, all its forks; those of which nothing is read come last."""
    sums: dict[Owner, list[int]] = {}
    first: dict[Owner, Piece] = {}
    for column, pieces in enumerate((pool, page_cache, left_out)):
        for piece in pieces:
            owner = (piece.database, piece.oid)
            first.setdefault(owner, piece)
            sums.setdefault(owner, [0, 0, 0])[column] += piece.blocks * block_bytes
    rows = []
    for number, (owner, piece) in enumerate(first.items(), 1):
        into_pool, into_page_cache, out = sums[owner]
        row = WarmRelation(
            order=number,
            database=piece.database,
            schema=piece.schema,
            relation=piece.relation,
            kind=piece.kind,
            heat=piece.heat,
            why=piece.why or "",
            size_bytes=into_pool + into_page_cache + out,
            pool_bytes=into_pool,
            page_cache_bytes=into_page_cache,
            left_out_bytes=out,
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
