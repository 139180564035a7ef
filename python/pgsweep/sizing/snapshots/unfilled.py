"""Predictions for a pool from which nothing was evicted: its contents fit, so the misses stay the same.

A buffer is taken from a page only where no buffer is free (StrategyGetBuffer, freelist.c). As long as some
are free each miss is the first access to its page since the server started, at every size that holds all
that was used; so the misses that were measured hold at all these sizes, and nothing is known of smaller ones.

Rings are the exception: a sequential scan of a large table goes through a ring (rules.py) and leaves no pages
behind. Where another size would change that, nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pgsweep.evidence.schema import NEVER_FULL
from pgsweep.records import reasons
from pgsweep.records.prediction import NoEviction
from pgsweep.records.reasons import Reason
from pgsweep.records.trace_reasons import changed_from_nothing_evicted
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.model import Prediction
from pgsweep.sizing.observed import Server, Table
from pgsweep.sizing.rules import least_pool_without_ring, most_blocks_without_ring
from pgsweep.sizing.sizes import whole_megabytes
from pgsweep.sizing.snapshots.observations import main_fork_blocks
from pgsweep.sizing.snapshots.recording import Recording
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots
from pgsweep.sizing.verdict import FULL_SHARE
from pgsweep.sizing.what_if.grammar import Asked
from pgsweep.units import BLOCK_BYTES

_FEWEST_SNAPSHOTS = 4
_FEWEST_MOVES = 10
_GROWING_SHARE = 0.01
_FEW_BLOCKS = 16
_GROWTH_SECONDS = 3600.0
"""A pool that still grows a little is given room for that long."""

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
    used: UsedSnapshots, counters: Table, relations: Table, totals: Totals, server: Server
) -> Unfilled | None:
    """Return what is known of a pool from which nothing was evicted; None where something was."""
    used_blocks, pool_blocks = used.used_blocks, server.pool_blocks
    if not len(used_blocks):
        return None
    most = int(used_blocks.max())
    never_full = most < FULL_SHARE * pool_blocks
    hand = used.hand_buffers
    moved = int(hand[-1] - hand[0]) if len(hand) > 1 else None
    if not never_full and (moved is None or moved >= _FEWEST_MOVES):
        return None

    said: list[Reason] = []
    usable = True
    evicted = _evictions(counters)
    if moved is not None and server.server_version_num < _NO_FREE_LIST_FROM:
        evicted = max(evicted, moved)
    at_least, below, scans = _rings(relations, totals, server)
    known_from = max(most, at_least, _FEW_BLOCKS)
    size = _bytes(pool_blocks)
    grown = _grown(used_blocks) if never_full else 0
    room = round(grown / max(totals.seconds / 2, 1e-9) * _GROWTH_SECONDS)
    filling = grown if grown > _GROWING_SHARE * most or most + room >= pool_blocks else 0
    if filling:
        # What it will hold is more than it has held, by nobody knows how much.
        usable, known_from = False, pool_blocks
        said.append(reasons.still_filling(_bytes(most), size, _bytes(filling)))
    elif never_full:
        said.append(reasons.never_full(len(used_blocks), _bytes(most), size))
        if grown:
            known_from = max(known_from, most + room)
            said.append(reasons.still_grows(_bytes(grown), totals.seconds / 2, _GROWTH_SECONDS))
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


@dataclass(frozen=True, kw_only=True)
class NothingEvicted:
    """The model of such a pool: what was measured holds at each size that is known.

    Attributes:
        recording: of snapshots.
        contents: what is known of the pool.
        other_load: it is asked about another load than was recorded.
    """

    recording: Recording
    contents: Unfilled
    other_load: bool = False

    def changed(self, asked: Sequence[Asked]) -> NothingEvicted:
        """Return the model of another load, of which nothing is known."""
        del asked
        return replace(self, other_load=True)

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return the measured miss ratio at each of the sizes that is known, between those of both halves."""
        found, totals = self.contents, self.recording.totals
        if any_size:
            sizes_blocks = tuple(sorted({*sizes_blocks, whole_megabytes(found.known_from_blocks)}))
        known = tuple(size for size in sizes_blocks if found.knows(size))
        ratios = (totals.miss_ratio, totals.first_half_miss_ratio, totals.second_half_miss_ratio)
        estimate = Estimate(
            sizes_blocks=known,
            miss_ratio=np.full(len(known), totals.miss_ratio),
            low=np.full(len(known), min(ratios)),
            high=np.full(len(known), max(ratios)),
            pass_seconds=float("inf"),
            level="reliable" if found.usable else "refused",
            reasons=list(found.reasons),
        )
        if self.other_load:
            estimate = replace(
                estimate,
                accesses_per_second=round(totals.accesses) / max(totals.seconds, 1e-9),
                level="refused",
                reasons=[changed_from_nothing_evicted(), *estimate.reasons],
            )
        unknown = [size * BLOCK_BYTES for size in sizes_blocks if size not in known]
        made = self.recording.prediction(estimate, model=self, no_eviction=self._record(unknown))
        return replace(made, warnings=[one for one in made.warnings if one != NEVER_FULL])

    def _record(self, unknown_bytes: list[int]) -> NoEviction:
        found, pool_blocks = self.contents, self.recording.server.pool_blocks
        below = found.known_below_blocks
        removable = max(pool_blocks - found.known_from_blocks, 0) if found.usable else 0
        return NoEviction(
            used_bytes=_bytes(found.used_blocks),
            removable_bytes=_bytes(removable),
            known_from_bytes=_bytes(found.known_from_blocks),
            known_below_bytes=None if below is None else _bytes(below),
            filling_bytes=_bytes(found.filling_blocks),
            unknown_bytes=unknown_bytes,
        )


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


def _rings(relations: Table, totals: Totals, server: Server) -> tuple[int, int | None, list[Reason]]:
    """Return the sizes between which every scan that was seen uses a ring, or not, as it does today."""
    blocks = main_fork_blocks(relations)
    here = relations["db"] == server.database_oid
    scanned = np.flatnonzero((totals.relation_scans > 0) & here & (blocks > 0))
    at_least, below = 0, None
    said = []
    is_ringed = blocks[scanned] > most_blocks_without_ring(server.pool_blocks)
    plain, ringed = scanned[~is_ringed], scanned[is_ringed]
    if len(plain):
        at_least = least_pool_without_ring(int(blocks[plain].max()))
    if len(ringed):
        smallest = ringed[np.argmin(blocks[ringed])]
        below = least_pool_without_ring(int(blocks[smallest]))
        said.append(reasons.rings_end(relations["name"][smallest], _bytes(below)))
    return at_least, below, said


def _grown(used_blocks: NDArray[np.int64]) -> int:
    """Return by how much the contents grew in the second half of the snapshots; a few blocks are none."""
    grown = int(used_blocks[-1] - used_blocks[(len(used_blocks) - 1) // 2])
    return grown if grown > _FEW_BLOCKS else 0
