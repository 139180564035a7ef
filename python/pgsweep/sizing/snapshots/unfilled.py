"""Predictions for a pool from which nothing was evicted: its contents fit, so the misses stay the same.

A buffer is taken from a page only where no buffer is free (StrategyGetBuffer, freelist.c). As long as some
are free each miss is the first access to its page since the server started, at every size that holds all
that was used; so the misses that were measured hold at all these sizes, and nothing is known of smaller ones.

Rings are the exception: a sequential scan of a table larger than a quarter of the pool goes through a ring
(initscan, heapam.c) and leaves no pages behind. Where another size would change that, nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.records import reasons
from pgsweep.records.reasons import Reason
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.snapshots.observations import Table
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.units import BLOCK_BYTES

FULL_SHARE = 0.99
"""A pool with this share of its buffers in use counts as full: dropped relations leave some free."""

_FEWEST_SNAPSHOTS = 4
_FEWEST_MOVES = 10
_GROWING_SHARE = 0.01
_FEW_BLOCKS = 16
_NO_FREE_LIST_FROM = 190000
"""From 19 on the hand moves to find free buffers as well (freelist.c), so its moves are no evictions."""


@dataclass(frozen=True, kw_only=True)
class Unfilled:
    """A pool from which nothing was evicted while it was observed.

    Attributes:
        used_blocks: most buffers that held pages at once.
        filling_blocks: by how much that grew in the second half of the recording, where it is much; else 0.
        known_from_blocks: smallest size that is known.
        known_below_blocks: smallest size above that is not known, if there is one.
        reasons: in words, what the answer rests on.
        usable: whether it may be relied upon.
    """

    used_blocks: int
    filling_blocks: int
    known_from_blocks: int
    known_below_blocks: int | None
    reasons: tuple[Reason, ...]
    usable: bool

    def knows(self, blocks: int) -> bool:
        """Return whether the misses at a size are known."""
        below = self.known_below_blocks
        return blocks >= self.known_from_blocks and (below is None or blocks < below)


def unfilled(
    used_blocks: NDArray[np.int64],
    hand_buffers: NDArray[np.int64],
    counters: Table,
    relations: Table,
    totals: Totals,
    *,
    database_oid: int,
    server_version_num: int,
    pool_blocks: int,
) -> Unfilled | None:
    """Return what is known of a pool from which nothing was evicted; None where something was.

    Args:
        used_blocks: buffers that held pages, at each snapshot.
        hand_buffers: how many buffers the clock hand had passed at each snapshot; empty where it is not seen.
    """
    if not len(used_blocks):
        return None
    most = int(used_blocks.max())
    never_full = most < FULL_SHARE * pool_blocks
    moved = int(hand_buffers[-1] - hand_buffers[0]) if len(hand_buffers) > 1 else None
    if not never_full and (moved is None or moved >= _FEWEST_MOVES):
        return None

    said: list[Reason] = []
    usable = True
    evicted = _evictions(counters)
    if moved is not None and server_version_num < _NO_FREE_LIST_FROM:
        evicted = max(evicted, moved)
    at_least, below, scans = _rings(relations, totals, database_oid, pool_blocks)
    known_from = max(most, at_least, _FEW_BLOCKS)
    size = _bytes(pool_blocks)
    filling = _filling(used_blocks) if never_full else 0
    if filling:
        # What it will hold is more than it has held, by nobody knows how much.
        usable, known_from = False, pool_blocks
        said.append(reasons.still_filling(_bytes(most), size, _bytes(filling)))
    elif never_full:
        said.append(reasons.never_full(len(used_blocks), _bytes(most), size))
    else:
        said.append(reasons.nothing_evicted())
    if filling:
        pass
    elif evicted > max(_FEW_BLOCKS, 0.001 * pool_blocks) and never_full:
        usable, known_from = False, pool_blocks
        said.append(reasons.full_for_a_time(evicted))
    else:
        said.append(reasons.smaller_not_known(_bytes(known_from) if known_from < pool_blocks else None))
    said += scans
    if len(used_blocks) < _FEWEST_SNAPSHOTS:
        usable = False
        said.append(reasons.few_snapshots_of_unfilled(len(used_blocks)))
    return Unfilled(
        used_blocks=most,
        filling_blocks=filling,
        known_from_blocks=known_from,
        known_below_blocks=below,
        reasons=tuple(said),
        usable=usable,
    )


def estimate_unfilled(found: Unfilled, totals: Totals, sizes_blocks: Sequence[int]) -> Estimate:
    """Return the measured miss ratio at each of the sizes that is known, between those of both halves."""
    known = tuple(size for size in sizes_blocks if found.knows(size))
    ratio = totals.misses / (totals.hits + totals.misses)
    halves = (ratio, totals.first_half_miss_ratio, totals.second_half_miss_ratio)
    return Estimate(
        sizes_blocks=known,
        miss_ratio=np.full(len(known), ratio),
        low=np.full(len(known), min(halves)),
        high=np.full(len(known), max(halves)),
        pass_seconds=float("inf"),
        level="reliable" if found.usable else "refused",
        reasons=list(found.reasons),
    )


def filled_up(used_blocks: NDArray[np.int64], pool_blocks: int) -> Reason | None:
    """Return a reason not to rely on snapshots where the pool was full in some of them and not in others."""
    short = int((used_blocks < FULL_SHARE * pool_blocks).sum())
    return None if short <= 0.1 * len(used_blocks) else reasons.filled_meanwhile(short, len(used_blocks))


def _bytes(blocks: int) -> int:
    return blocks * BLOCK_BYTES


def _evictions(counters: Table) -> int:
    """Return how many pages pg_stat_io says left their buffers for others, outside of rings; from 16 on."""
    rows = (counters["scope"] == "io") & (counters["name"] == "evictions")
    total = 0.0
    for what in np.unique(counters["object"][rows]):
        if str(what).endswith("/relation/normal"):
            values = counters["value"][rows & (counters["object"] == what)]
            total += max(float(values[-1] - values[0]), 0.0)
    return round(total)


def _rings(
    relations: Table, totals: Totals, database_oid: int, pool_blocks: int
) -> tuple[int, int | None, list[Reason]]:
    """Return the sizes between which every scan that was seen uses a ring, or not, as it does today."""
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"])
    scanned = np.flatnonzero((totals.relation_scans > 0) & (relations["db"] == database_oid) & (blocks > 0))
    at_least, below = 0, None
    said = []
    plain = scanned[blocks[scanned] <= pool_blocks // 4]
    if len(plain):
        largest = plain[np.argmax(blocks[plain])]
        at_least = 4 * int(blocks[largest])
    ringed = scanned[blocks[scanned] > pool_blocks // 4]
    if len(ringed):
        smallest = ringed[np.argmin(blocks[ringed])]
        below = 4 * int(blocks[smallest])
        said.append(reasons.rings_end(relations["name"][smallest], _bytes(below)))
    return at_least, below, said


def _filling(used_blocks: NDArray[np.int64]) -> int:
    """Return by how much the second half of the snapshots grew, where that is more than a little."""
    grown = int(used_blocks[-1] - used_blocks[(len(used_blocks) - 1) // 2])
    return grown if grown > max(_GROWING_SHARE * float(used_blocks.max()), _FEW_BLOCKS) else 0
