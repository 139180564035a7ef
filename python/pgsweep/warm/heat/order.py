"""In which order saved blocks come back: the hottest first, over all databases; no more than the pool holds.

A device reads neighbouring blocks many times as fast as scattered ones. So only the hottest few come one by
one; the rest comes by regions of the files, the region with most heat first. Blocks that are copied from the
page cache need no device: there all come one by one that were accessed again after they were read.

A pure function of what was saved and what is resident. A block that is read gets usage_count 1, and each
later access of pg_prewarm adds one, up to 5 (bufmgr.c, `BufferAlloc` and `PinBuffer`; with the read streams
of 17 and 18 too): so counts come back by touching, in as many passes as they lack.

In a pool with room for all, the passes come after the reading, but for one that sets the hottest above the
rest. In a full one the clock sweep takes what was read first, at usage_count 1, to make room for what is read
last: there each portion is touched as soon as it is read, and has its counts before the hand comes round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pgsweep.warm.block_ranges import BlockRange, Call, Stretches
from pgsweep.warm.heat.file import NOT_IN_POOL, joined
from pgsweep.warm.heat.match import Target

Part = Literal["all", "reads", "touches"]

REGION_BLOCKS = 1024
"""8 MB of a file: long enough that a device reads it at its full rate."""

_CROWDED = 0.25
"""A pool that lacks room for less than this share of what is to be read is not called crowded: what the
queries of a starting server have read is mostly what is to be read anyway, and they touch the hottest."""

_CATALOG_BLOCKS = 100
"""What sessions read of a database's catalogs before they read what is asked of them, about. In a pool
of some megabytes they take the buffers of what was read first, unless it was touched meanwhile."""

_SINGLY = 0.2
"""The hottest blocks that come one by one are this share of all at most, where a device reads them."""

_HOT = 2
"""The usage count of a block that was accessed again after it was read, at least."""


@dataclass(frozen=True, slots=True)
class HeatCall(Call):
    """A call that reads blocks, or one that only touches them.

    Attributes:
        ahead: what the operating system is asked for before: the same blocks, or with those between them that
            shall be in the page cache anyway.
    """

    touches: bool = False
    ahead: Sequence[BlockRange] = ()


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """What to do with saved blocks; arrays are parallel, the hottest first.

    Attributes:
        target: index into the targets.
        usage_count: as saved.
        usage_now: NOT_IN_POOL where it is to be read.
        page_cached: saved as in the page cache too.
        singly: how many at the beginning come one by one, the rest by regions.
        left_out: number of blocks that find no room, the coldest; they are not in the arrays.
        crowded: what is to be read, catalogs included, takes more room than is unused, so something must
            leave the pool.
    """

    targets: Sequence[Target]
    target: NDArray[np.int32]
    block: NDArray[np.int64]
    usage_count: NDArray[np.uint8]
    usage_now: NDArray[np.uint8]
    page_cached: NDArray[np.bool_]
    singly: int
    left_out: int
    crowded: bool

    @property
    def wanted(self) -> NDArray[np.bool_]:
        """Which blocks are to be read."""
        wanted: NDArray[np.bool_] = self.usage_now == NOT_IN_POOL
        return wanted

    def lacking(self) -> NDArray[np.int64]:
        """Return how many more accesses each block needs to reach its saved usage count, once it is read."""
        now = np.where(self.wanted, 1, self.usage_now).astype(np.int64)
        lacking: NDArray[np.int64] = np.maximum(self.usage_count.astype(np.int64) - now, 0)
        return lacking


def order_blocks(
    targets: Sequence[Target],
    usage_now: Sequence[NDArray[np.uint8]],
    capacity: int,
    unused: int | None,
    *,
    all_hot_singly: bool = False,
) -> RestoreOrder:
    """Order the blocks that were in the pool.

    Args:
        targets: saved forks, found on this server.
        usage_now: of each target, the usage counts of its blocks; NOT_IN_POOL where a block is not resident.
        capacity: blocks at most, those that are resident already among them.
        unused: buffers of the pool that hold nothing; None where that is not known.
        all_hot_singly: the blocks are copied from the page cache.
    """
    pooled = [target.pooled for target in targets]
    lengths = [int(np.count_nonzero(mask)) for mask in pooled]
    of_target = np.repeat(np.arange(len(targets), dtype=np.int32), lengths)
    block = joined([t.block[mask] for t, mask in zip(targets, pooled, strict=True)], np.int64)
    level = joined([t.usage_count[mask] for t, mask in zip(targets, pooled, strict=True)], np.uint8)
    now = joined([u[mask] for u, mask in zip(usage_now, pooled, strict=True)], np.uint8)
    cached = joined([t.page_cache[mask] for t, mask in zip(targets, pooled, strict=True)], np.bool_)
    rank = _rank(targets)[of_target]
    hottest = np.lexsort((block, rank, 5 - level.astype(np.int64)))
    kept = hottest[:capacity]
    singly = _single_blocks(level[kept], all_hot=all_hot_singly)
    rest = kept[singly:]
    kept = np.r_[kept[:singly], rest[_by_region(rank[rest], block[rest], level[rest])]]
    reading = int(np.count_nonzero(now[kept] == NOT_IN_POOL))
    catalogs = _CATALOG_BLOCKS * len({target.database for target in targets})
    return RestoreOrder(
        targets=targets,
        target=of_target[kept],
        block=block[kept],
        usage_count=level[kept],
        usage_now=now[kept],
        page_cached=cached[kept],
        singly=singly,
        left_out=len(hottest) - len(kept),
        crowded=unused is None or unused < (1 - _CROWDED) * reading + catalogs,
    )


def _single_blocks(level: NDArray[np.uint8], *, all_hot: bool) -> int:
    """Return how many of the blocks, the hottest first, come one by one: whole levels of usage count."""
    if all_hot:
        return int(np.count_nonzero(level >= _HOT))
    edges = [int(np.count_nonzero(level >= lowest)) for lowest in range(1, 6)]
    return max([edge for edge in edges if edge <= _SINGLY * len(level)], default=0)


def _by_region(
    rank: NDArray[np.int64], block: NDArray[np.int64], level: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Return the order of blocks by regions of their files, the one with most heat first."""
    _, number = np.unique(rank << 32 | block // REGION_BLOCKS, return_inverse=True)
    warmth = np.bincount(number, weights=level + 1.0) if len(number) else np.zeros(0)
    return np.lexsort((block, number, -warmth[number]))


@dataclass(frozen=True, slots=True)
class RestoreSums:
    """The totals of a restore.

    Attributes:
        read_blocks: into the pool.
        ranges: stretches that these make.
        touches: accesses that only raise a usage count.
        first_touches: those of them that come between the reads, where the pool is not crowded.
    """

    read_blocks: int = 0
    ranges: int = 0
    touches: int = 0
    first_touches: int = 0


def sums_of(order: RestoreOrder, *, heat: bool) -> RestoreSums:
    """Return the totals of `restore_calls` without making the calls."""
    wanted = np.flatnonzero(order.wanted)
    apart = (np.diff(order.block[wanted]) != 1) | (np.diff(order.target[wanted]) != 0)
    ranges = int(np.count_nonzero(apart)) + 1 if len(wanted) else 0
    if not heat:
        return RestoreSums(len(wanted), ranges)
    lacking = order.lacking()
    first = int(np.count_nonzero(lacking[: order.singly]))
    return RestoreSums(len(wanted), ranges, int(lacking.sum()), first)


def restore_calls(
    order: RestoreOrder,
    call_blocks: int,
    *,
    part: Part = "all",
    heat: bool = True,
    uncached: Sequence[NDArray[np.int64]] | None = None,
    pages_read: bool = False,
) -> Iterator[HeatCall]:
    """Yield the calls that bring the blocks back, in their order.

    Args:
        order: of the blocks.
        call_blocks: how many a call has at most.
        part: all of them; or those that read, and the first touches; or those that only touch.
        heat: bring their usage counts back too.
        uncached: of each target, the blocks that shall come into the page cache too, ascending: what lies
            between others is then asked for with them.
        pages_read: what was saved of the page cache is there already; the operating system is asked for
            the other blocks only.
    """
    forks = [_piece(target, 0, 0) for target in order.targets]
    databases = np.unique([target.database for target in order.targets], return_inverse=True)[1]
    number = 0
    for chosen, touches, regions in _passes(order, call_blocks, part, heat=heat):
        for rows in _portions(chosen, databases[order.target[chosen]], call_blocks):
            pieces = Stretches(forks, *_stretches(order.target[rows], order.block[rows]))
            ahead: Sequence[BlockRange] = () if touches else pieces
            if pages_read and not touches:
                left = rows[~order.page_cached[rows]]
                ahead = ()
                if len(left):
                    ahead = Stretches(forks, *_stretches(order.target[left], order.block[left]))
            elif regions and uncached is not None:
                ahead = _with_neighbours(order, rows, forks, uncached)
            yield HeatCall(number, pieces[0].database, pieces, touches, ahead)
            number += 1


def _portions(
    rows: NDArray[np.int64], database: NDArray[np.int64], call_blocks: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of each call: as many as it may have, of one database."""
    edges = [0, *(1 + np.flatnonzero(np.diff(database))).tolist(), len(rows)]
    for begin, end in pairwise(edges):
        for first in range(begin, end, call_blocks):
            yield rows[first : min(end, first + call_blocks)]


def _passes(
    order: RestoreOrder, call_blocks: int, part: Part, *, heat: bool
) -> Iterator[tuple[NDArray[np.int64], bool, bool]]:
    """Yield rows, whether they are only touched, and whether they are read by regions."""
    lacking = order.lacking() if heat else np.zeros(len(order.block), dtype=np.int64)
    rows = np.arange(len(order.block))
    crowded = order.crowded and heat and part == "all"
    for begin in range(0, len(rows), call_blocks if crowded else max(1, len(rows))):
        portion = rows[begin : begin + call_blocks] if crowded else rows
        singles = portion[portion < order.singly]
        if part != "touches":
            yield singles[order.wanted[singles]], False, False
            # One touch more than the rest get, so that the clock hand evicts blocks of the rest first.
            yield singles[lacking[singles] > 0], True, False
            lacking[singles] -= part == "all"
            rest = portion[portion >= order.singly]
            yield rest[order.wanted[rest]], False, True
        if part != "reads":
            for turn in range(1, 6):
                yield portion[lacking[portion] >= turn], True, False


def _with_neighbours(
    order: RestoreOrder,
    rows: NDArray[np.int64],
    forks: Sequence[BlockRange],
    uncached: Sequence[NDArray[np.int64]],
) -> Stretches:
    """Return the stretches of rows, those of a region together with what lies between them."""
    number, block = order.target[rows], order.block[rows]
    edges = [0, *(1 + np.flatnonzero(np.diff(number) | np.diff(block // REGION_BLOCKS))).tolist(), len(rows)]
    numbers, blocks = [], []
    for begin, end in pairwise(edges):
        between = uncached[number[begin]]
        first, last = np.searchsorted(between, [block[begin], block[end - 1] + 1])
        blocks.append(np.union1d(block[begin:end], between[first:last]))
        numbers.append(np.full(len(blocks[-1]), number[begin]))
    return Stretches(forks, *_stretches(np.concatenate(numbers), np.concatenate(blocks)))


def page_cache_pieces(
    targets: Sequence[Target], cached_now: Sequence[NDArray[np.bool_] | None]
) -> Iterator[BlockRange]:
    """Yield what is to be read into the page cache: what was there, and is not.

    What is read into the pool passes through it anyway; that is not cut out here, so that long stretches do
    not become short ones: it is found there and costs nothing.

    Args:
        targets: saved forks, found on this server.
        cached_now: of each target, which blocks are in the page cache; None where that is not seen.
    """
    for number in np.argsort(_rank(targets), kind="stable").tolist():
        target, cached = targets[number], cached_now[number]
        blocks = target.block[target.page_cache if cached is None else target.page_cache & ~cached]
        for first, length in _runs(blocks):
            yield _piece(target, int(blocks[first]), length)


def _rank(targets: Sequence[Target]) -> NDArray[np.int64]:
    """Return each target's place among equally hot ones: by database, indexes first, then as files lie."""
    keys = [
        (target.database, "index" not in target.part.kind, target.fork[:3], target.fork[3])
        for target in targets
    ]
    rank = np.zeros(len(keys), dtype=np.int64)
    rank[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    return rank


def _stretches(
    number: NDArray[np.int32], block: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return the stretches that blocks make, in their order: number of the target, first block, length."""
    apart = (np.diff(block) != 1) | (np.diff(number) != 0)
    starts = np.r_[0, 1 + np.flatnonzero(apart)]
    return number[starts], block[starts], np.diff(np.r_[starts, len(block)])


def _runs(blocks: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return where each stretch of consecutive numbers begins, and how long it is."""
    if len(blocks) == 0:
        return []
    starts = np.r_[0, 1 + np.flatnonzero(np.diff(blocks) != 1)]
    return list(zip(starts.tolist(), np.diff(np.r_[starts, len(blocks)]).tolist(), strict=True))


def _piece(target: Target, first: int, blocks: int) -> BlockRange:
    part = target.part
    return BlockRange(
        database=target.database,
        oid=target.oid,
        schema=part.schema,
        relation=part.relation,
        kind=part.kind,
        fork=part.fork,
        first_block=first,
        blocks=blocks,
    )
