"""The load as snapshots and counters show it: pages in groups, and what the server counted of each group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.clock import Clock
from pgsweep.sizing.observed import Server
from pgsweep.sizing.rules import most_blocks_without_ring
from pgsweep.sizing.snapshots.hand import follow_hand
from pgsweep.sizing.snapshots.observations import (
    Group,
    Observations,
    Table,
    gather,
    main_fork_blocks,
    page_numbers,
)
from pgsweep.sizing.snapshots.scan_counts import measured_scans
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots

Floats = NDArray[np.float64]

_OWN_GROUP_SHARE: Final = 0.002
"""Share of the accesses or misses from which on a relation gets a group of its own."""

_ABOUT_TO_GO: Final = 1
"""Pages with at most this usage count show how much is dirty when it is evicted."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What the server's counters say about a group, per second.

    Attributes:
        misses: reads that the server counted.
        accesses: to blocks, as counted; infinite where they are not known.
        extensions: new blocks, where the server counts each as a read (before 16), else 0.
        scans: full sequential scans.
        scanned_blocks: size of the relation that they scan.
        participants: processes that take part in a scan, each with a ring of its own.
        vacuumed: blocks that VACUUM visits, at most.
        vacuums: by hand and by autovacuum.
    """

    misses: float
    accesses: float = float("inf")
    extensions: float = 0.0
    scans: float = 0.0
    scanned_blocks: float = 0.0
    participants: float = 1.0
    vacuumed: float = 0.0
    vacuums: float = 0.0

    @property
    def scan_accesses(self) -> float:
        """Accesses of scans, per second."""
        return self.scans * self.scanned_blocks

    def ringed(self, blocks: float) -> bool:
        """Return whether scans of the relation go through a ring in a pool of that many blocks."""
        return self.scanned_blocks > most_blocks_without_ring(blocks)


@dataclass(frozen=True, kw_only=True)
class SampledPool:
    """The pool under observation, as far as its blocks were sampled.

    Attributes:
        blocks: its size.
        seconds: for how long misses were counted.
        flows: of each group.
        ring_blocks: buffers of a scan's ring in a pool of that many blocks.
        vacuum_ring_blocks: the same of a VACUUM's.
        sampling_rate: share of blocks that were taken.
        extensions_are_reads: a new block counts as a miss (before 16).
    """

    blocks: int
    seconds: float
    flows: list[Flow]
    ring_blocks: Callable[[int], int] = lambda _: 0
    vacuum_ring_blocks: Callable[[int], int] = lambda _: 0
    sampling_rate: float = 1.0
    extensions_are_reads: bool = False


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load that was observed.

    Attributes:
        server: that it was observed on.
        totals: of its counters.
        relations: of the evidence.
        seen: its pages, sorted into groups.
        pool: with the flows of these groups.
        dirty: by group, which part of the pages that are about to be evicted is dirty.
    """

    server: Server
    totals: Totals
    relations: Table
    seen: Observations
    pool: SampledPool
    dirty: Floats

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups of pages."""
        return self.seen.groups

    @property
    def accesses_per_second(self) -> float:
        """Accesses of the database."""
        return self.totals.accesses / self.totals.seconds

    @property
    def temporary_ratio(self) -> float:
        """Share of the accesses that miss whatever the size of the pool, since they do not use it."""
        return self.totals.temporary_misses / self.totals.accesses

    @property
    def group_misses(self) -> Floats:
        """Reads of each group per second, new blocks left out."""
        return np.array([flow.misses - flow.extensions for flow in self.pool.flows])

    def weighted_by_misses(self, shares: Floats) -> float:
        """Return the mean of a property of the groups, each weighted by its misses."""
        missed = self.group_misses
        return float((shares * missed).sum() / max(float(missed.sum()), 1e-9))

    @property
    def growth(self) -> Floats:
        """New blocks of each group per second, not only of the sample."""
        grown = self.totals.relation_growth_blocks
        return np.array([float(grown[list(group.relations)].sum()) for group in self.groups])

    @property
    def agreement(self) -> float:
        """By what the misses of all groups are multiplied, such that they are those of the database.

        Counters of relations miss what was dropped and lag behind those of the database. A difference that
        such reasons do not explain is among the doubts.
        """
        counted = sum(flow.misses for flow in self.pool.flows) / self.pool.sampling_rate
        misses = self.totals.misses - self.totals.temporary_misses
        return misses / self.totals.seconds / counted if counted > 0 else 0.0

    @property
    def replayed_misses(self) -> float:
        """Return the misses per second of the process that replays WAL on a standby.

        The server counts them nowhere, but the buffers that they take (buffers_alloc) it counts.
        """
        totals = self.totals
        if self.server.settings.get("in_hot_standby") != "on" or totals.allocations <= 0:
            return 0.0
        return max(totals.allocations - totals.misses / max(totals.seconds, 1e-9), 0.0)

    @property
    def loads_per_second(self) -> float:
        """Sampled pages that are loaded into buffers that the clock hand gave.

        The server counts these buffers (StrategyGetBuffer, freelist.c), those of rings left out and those of
        all databases included. Without the counter it is the misses of this database, less what scans read in
        rings.
        """
        pool, totals = self.pool, self.totals
        if totals.allocations > 0:
            return totals.allocations * pool.sampling_rate
        loads = sum(
            flow.misses - (min(flow.scan_accesses, flow.misses) if flow.ringed(pool.blocks) else 0.0)
            for flow in pool.flows
        )
        new = 0.0 if pool.extensions_are_reads else float(totals.relation_growth_blocks.sum())
        return loads + new * pool.sampling_rate


def observed_load(
    used: UsedSnapshots,
    relations: Table,
    totals: Totals,
    server: Server,
    rules: _native.Rules,
    *,
    apart: Iterable[int] = (),
) -> Load:
    """Return the load that snapshots and counters show.

    Args:
        used: the snapshots.
        relations: of the evidence.
        totals: of its counters.
        server: that was observed.
        rules: of its pool.
        apart: rows of relations that get groups of their own in any case.

    Raises:
        ValueError: no snapshot, or not a single access or miss was counted.
    """
    if totals.accesses <= 0 or not len(used.snapshots["snapshot"]):
        raise ValueError("nothing was observed")
    share = np.maximum(
        totals.relation_accesses / max(totals.relation_accesses.sum(), 1e-9),
        totals.relation_misses / max(totals.relation_misses.sum(), 1e-9),
    )
    important = (share > _OWN_GROUP_SHARE) & (relations["db"] == server.database_oid)
    important[list(apart)] = True
    used = _with_hand(used, relations, server.pool_blocks)
    seen = gather(used, relations, server, important, Clock.of(rules))
    scanned = measured_scans(
        totals.relation_scanned_blocks,
        totals.relation_accesses,
        main_fork_blocks(relations),
        pool_blocks=server.pool_blocks,
        through_rings=totals.ring_accesses,
    )
    totals = replace(totals, relation_scanned_blocks=scanned)
    rate = server.sampling_rate
    return Load(
        server=server,
        totals=totals,
        relations=relations,
        seen=seen,
        pool=SampledPool(
            blocks=round(server.pool_blocks * rate),
            seconds=totals.seconds,
            flows=[_flow(group, relations, totals, server) for group in seen.groups],
            ring_blocks=lambda blocks: round(rules.ring_buffers(1, round(blocks / rate)) * rate),
            vacuum_ring_blocks=lambda blocks: round(rules.ring_buffers(3, round(blocks / rate)) * rate),
            sampling_rate=rate,
            extensions_are_reads=server.extensions_are_reads,
        ),
        dirty=_dirty_by_group(seen, used.snapshots),
    )


def _with_hand(used: UsedSnapshots, relations: Table, pool_blocks: int) -> UsedSnapshots:
    """Return the snapshots with the position of the hand, where it was not seen and their buffers show it."""
    if len(used.hand_buffers):
        return used
    pages = page_numbers(used.snapshots, relations)
    followed = follow_hand(used.snapshots, pages, pool_blocks, used.loads)
    if followed is None:
        return used
    kept = followed.known[used.snapshots["snapshot"]]
    rows = {name: column[kept] for name, column in used.snapshots.items()}
    return replace(used, snapshots=rows, hand_buffers=followed.buffers)


def _flow(group: Group, relations: Table, totals: Totals, server: Server) -> Flow:
    members = list(group.relations)
    if not members:
        return Flow(misses=0.0)
    growth = float(totals.relation_growth_blocks[members].sum()) if server.extensions_are_reads else 0.0
    misses = float(totals.relation_misses[members].sum())
    alone = len(members) == 1
    blocks = float(relations["blocks_end"][members[0]]) if alone else 0.0
    scanned = float(totals.relation_scanned_blocks[members[0]]) if blocks > 0 else 0.0
    rate = server.sampling_rate
    return Flow(
        misses=misses * rate,
        accesses=float(totals.relation_accesses[members].sum()) * rate,
        extensions=min(growth, misses) * rate,
        scans=scanned / blocks if blocks > 0 else 0.0,
        scanned_blocks=blocks * rate,
        participants=max(float(totals.relation_scans[members[0]]) * blocks / scanned, 1.0)
        if scanned > 0
        else 1.0,
        vacuumed=float(totals.relation_vacuumed_blocks[members].sum()) * rate,
        vacuums=float(totals.relation_vacuums[members].sum()) if alone else 0.0,
    )


def _dirty_by_group(seen: Observations, snapshots: Table) -> Floats:
    """Return which part of each group's pages of low usage count is dirty.

    Args:
        seen: the observations.
        snapshots: the rows that they were made of.
    """
    if "dirty" not in snapshots:
        return np.zeros(len(seen.groups))
    low, dirty = seen.usage_count <= _ABOUT_TO_GO, snapshots["dirty"]
    group = seen.page_group[seen.page[low]]
    count = np.bincount(group, minlength=len(seen.groups))
    found = np.bincount(group, weights=dirty[low].astype(np.float64), minlength=len(seen.groups))
    return np.asarray(found / np.maximum(count, 1))
