"""Which accesses may go through a ring, whose ring it is, and how large the scanned table was.

Whether a scan uses a ring depends on the size of the pool: a table of more than a quarter of it does
(heapam.c: initscan, the number of blocks of the main fork when the scan begins). So the size of every scanned
table at that time decides what a scan does to a pool of another size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import BULKREAD, STRATEGY_MASK
from pgsweep.evidence.schema import FLAG_SCAN, FLAG_STRATEGY_KNOWN
from pgsweep.sizing.rules import most_blocks_without_ring
from pgsweep.sizing.snapshots.observations import Table, file_keys

_NEVER_LARGE_BLOCKS = 4
"""A table of so few blocks never gets a ring: the smallest pool has 16 buffers, and a quarter of it is 4."""

ALWAYS_LARGE_BLOCKS = 2**32 - 1
_ALL_FORKS = 255


@dataclass(frozen=True, kw_only=True)
class ScanRing:
    """The rings of a trace.

    Attributes:
        strategy: of each access, as the simulator means it: BULKREAD for every scan that has a ring in some
        pool.
        access: positions of the accesses with a strategy, ascending.
        owner: which scan or command each of them belongs to.
        blocks: of each owner, the size of the table that it scans.
    """

    strategy: NDArray[np.uint8]
    access: NDArray[np.uint64]
    owner: NDArray[np.uint32]
    blocks: NDArray[np.uint32]


def scan_rings(
    accesses: Table,
    relations: Table,
    drops: Table | None,
    file: NDArray[np.int64],
    relation_file: NDArray[np.int64],
    pool_blocks: int,
) -> ScanRing:
    """Find the rings of a trace.

    Args:
        accesses, relations, drops: tables of the evidence.
        file: a number for the file of each access; `relation_file` the same for each relation.
        pool_blocks: size of the traced pool, 0 where it is not known.
    """
    scans = (accesses["flags"] & FLAG_SCAN) > 0
    strategy = np.where(scans, BULKREAD, accesses["strategy"] & STRATEGY_MASK).astype(np.uint8)
    at = np.flatnonzero(strategy > 0)
    if not len(at):
        none = np.zeros(0, dtype=np.uint32)
        return ScanRing(strategy=strategy, access=np.zeros(0, dtype=np.uint64), owner=none, blocks=none)
    scan = accesses["scan"][at].astype(np.int64)
    numbers = np.unique(file[at], return_inverse=True)[1]
    # Without a scan's id, a backend's accesses to one relation share a ring.
    fallback = (accesses["pid"][at].astype(np.int64) << 32) ^ numbers | (1 << 62)
    del numbers
    scan = _with_strays(scan, fallback, strategy[at] == BULKREAD)
    _, first, owner = np.unique(np.where(scan > 0, scan, fallback), return_index=True, return_inverse=True)
    owner = owner.ravel()
    blocks = _table_blocks(accesses, relations, drops, file, relation_file, at, first, owner)
    # What the server chose bounds the size that was pieced together.
    chosen = accesses["strategy"][at]
    sure = scans[at] & ((accesses["flags"][at] & FLAG_STRATEGY_KNOWN) > 0) & (pool_blocks > 0)
    ringed = np.zeros(len(blocks), dtype=bool)
    ringed[owner[sure & (chosen == BULKREAD)]] = True
    plain = np.zeros(len(blocks), dtype=bool)
    plain[owner[sure & (chosen == 0)]] = True
    largest = int(most_blocks_without_ring(pool_blocks))
    blocks = np.where(ringed, np.maximum(blocks, largest + 1), blocks)
    blocks = np.where(plain & ~ringed, np.minimum(blocks, largest), blocks)
    # pgstattuple and similar functions use a ring whatever the size.
    always = np.ones(len(blocks), dtype=bool)
    always[owner[scans[at] | (strategy[at] != BULKREAD)]] = False
    blocks = np.where(always, ALWAYS_LARGE_BLOCKS, blocks)
    tiny = (strategy[at] == BULKREAD) & (blocks[owner] <= _NEVER_LARGE_BLOCKS)
    strategy[at[tiny]] = 0
    kept = ~tiny
    used, owner = np.unique(owner[kept], return_inverse=True)
    return ScanRing(
        strategy=strategy,
        access=at[kept].astype(np.uint64),
        owner=owner.ravel().astype(np.uint32),
        # Blocks of the main fork: block.h, MaxBlockNumber.
        blocks=np.minimum(blocks[used], 2**32 - 1).astype(np.uint32),
    )


def _with_strays(
    scan: NDArray[np.int64], backend_and_file: NDArray[np.int64], bulk: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the scan of each access, with those that a scan makes away from its position.

    A scan reads some blocks again, through the same ring, when another session changed them meanwhile. Such
    an access belongs to the last scan of the table that its backend began, or to the first where it had none.
    """
    order = np.argsort(backend_and_file, kind="stable")
    key, found = backend_and_file[order], scan[order]
    positions = np.arange(len(order), dtype=np.int32)
    begins = np.append(True, key[1:] != key[:-1])
    del key
    ends = np.append(begins[1:], True)
    # The nearest row with a scan before each row and behind it, of the same backend and file.
    last = np.maximum.accumulate(np.where(found > 0, positions, -1))
    last = np.where(last >= np.maximum.accumulate(np.where(begins, positions, 0)), last, -1)
    following = np.minimum.accumulate(np.where(found > 0, positions, len(order))[::-1])[::-1]
    final = np.minimum.accumulate(np.where(ends, positions, len(order))[::-1])[::-1]
    nearest = np.where(last >= 0, last, np.where(following <= final, following, -1))
    stray = (found == 0) & bulk[order] & (nearest >= 0)
    joined = scan.copy()
    joined[order[stray]] = found[nearest[stray]]
    return joined


def _table_blocks(
    accesses: Table,
    relations: Table,
    drops: Table | None,
    file: NDArray[np.int64],
    relation_file: NDArray[np.int64],
    at: NDArray[np.int64],
    first: NDArray[np.int64],
    owner: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return for each owner the size of the table that it scans, when it began.

    That is the highest block of the main fork that anybody had accessed or made until then or that the scan
    itself accessed, and at least the size at the beginning of the trace; a truncation sets it back.
    """
    height = np.where(accesses["fork"] == 0, accesses["block"].astype(np.int64) + 1, 0)
    own = np.zeros(len(first), dtype=np.int64)
    np.maximum.at(own, owner, height[at])
    order = np.argsort(file, kind="stable")
    sorted_file = file[order]
    cuts: dict[int, list[tuple[int, int]]] = {}
    if drops is not None and len(drops["row"]):
        for key, row, block in zip(
            _file_of(drops, accesses, file), drops["row"].tolist(), drops["first_block"].tolist(), strict=True
        ):
            cuts.setdefault(int(key), []).append((row, block))
    blocks = own.copy()
    owner_file = file[at[first]]
    scanned = np.unique(owner_file)
    # Of the relations that are scanned only: a catalog may have very many.
    named = np.isin(relation_file, scanned)
    known = dict(zip(relation_file[named].tolist(), relations["blocks_begin"][named].tolist(), strict=True))
    for one in scanned:
        begin, end = np.searchsorted(sorted_file, [one, one + 1])
        rows = order[begin:end]
        base = int(known.get(int(one), 0))
        size = np.empty(len(rows), dtype=np.int64)
        done = 0
        for row, block in [*sorted(cuts.get(int(one), [])), (len(file), 0)]:
            until = int(np.searchsorted(rows, row))
            size[done:until] = np.maximum.accumulate(np.append(base, height[rows[done:until]]))[1:]
            done, base = until, block
        mine = np.flatnonzero(owner_file == one)
        blocks[mine] = np.maximum(blocks[mine], size[np.searchsorted(rows, at[first[mine]])])
    return blocks


def _file_of(drops: Table, accesses: Table, file: NDArray[np.int64]) -> list[int]:
    """Return the number of each dropped file as the accesses have it; -1 where they have none."""
    dropped, accessed = file_keys(drops, accesses)
    order = np.argsort(accessed, kind="stable")
    if not len(order):
        return [-1] * len(dropped)
    found = order[np.minimum(np.searchsorted(accessed[order], dropped), len(order) - 1)]
    forks = np.isin(drops["fork"], (0, _ALL_FORKS)) & (drops["rel"] > 0)
    numbers: list[int] = np.where((accessed[found] == dropped) & forks, file[found], -1).tolist()
    return numbers
