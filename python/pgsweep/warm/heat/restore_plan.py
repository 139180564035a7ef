"""What a restore would do: which blocks, in which order, by which statements."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pgsweep.host.datafiles import find_data_files
from pgsweep.pg.catalog.agreement import MAX_USAGE_COUNT
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.session.refusals import explained
from pgsweep.records.heat import HeatRelation, HeatState, WarmRestoreResult
from pgsweep.residency.access import Access, PoolSource
from pgsweep.residency.pool import PoolReader
from pgsweep.warm.block_ranges import BlockRange, Call, calls_of
from pgsweep.warm.capacity import page_cache_budget_of, restore_blocks
from pgsweep.warm.files import FileReader, places_of
from pgsweep.warm.heat.check import PoolNow, cached_now, compare, source_of
from pgsweep.warm.heat.file import NOT_IN_POOL, SavedHeat
from pgsweep.warm.heat.match import ServerState, Target, find_targets, look_around
from pgsweep.warm.heat.order import (
    HeatCall,
    Part,
    RestoreOrder,
    RestoreSums,
    order_blocks,
    page_cache_pieces,
    restore_calls,
    sums_of,
)
from pgsweep.warm.heat.restore_rounds import much_is_gone
from pgsweep.warm.outcome import WorkOptions

Into = Literal["pool", "page-cache", "both"]

CALL_BLOCKS = 1024
"""8 MB: what is asked of the operating system at once, before it is read."""

PAGES_FIRST_BYTES = 8 << 30
"""What a device reads in some seconds, or in less than two minutes at 100 MB a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreOptions:
    """How to restore.

    Attributes:
        heat: bring usage counts back too, by touching.
        budget_bytes: of the pool, at most; None for all that it holds.
        connections: how many sessions read at once.
        rate_bytes_per_second: None for no limit.
        max_latency_seconds: pause while a block takes longer; None for never.
        wait_seconds: for a server that does not accept connections yet.
        started_after: wait for a server that was started after this time, of `time.monotonic()`.
        source: how to read the pool.
    """

    into: Into = "both"
    heat: bool = True
    budget_bytes: int | None = None
    connections: int = 2
    rate_bytes_per_second: float | None = None
    max_latency_seconds: float | None = None
    wait_seconds: float = 0.0
    started_after: float | None = None
    source: PoolSource = "auto"

    def work(self, block_bytes: int, *, pool: bool) -> WorkOptions:
        """Return the options for the executor."""
        return WorkOptions(
            block_bytes=block_bytes,
            connections=self.connections,
            rate_bytes_per_second=self.rate_bytes_per_second,
            max_latency_seconds=self.max_latency_seconds,
            pool=pool,
        )


@dataclass
class RestorePlan:
    """The plan of a restore, and the state in which the caches were found.

    What follows from that state is computed when it is first asked for: reading needs the order at once, the
    result needs the rest at the end.

    Attributes:
        pool: the buffers when the plan was made.
        pool_after_pages: after the page cache was read, where that came first: what queries have read
            meanwhile is not read again.
        unreadable: databases of which nothing can be read through the server, where that was asked before.
    """

    access: Access
    heat: SavedHeat
    options: RestoreOptions
    state: ServerState
    targets: list[Target]
    pool: Snapshot
    pool_after_pages: Snapshot | None = None
    unreadable: frozenset[str] = frozenset()

    @cached_property
    def now(self) -> PoolNow:
        """The pool by blocks."""
        return PoolNow(self.pool)

    @cached_property
    def order(self) -> RestoreOrder:
        """The blocks of the pool in the order in which they come back."""
        server, budget = self.access.server, self.options.budget_bytes
        pool, now = self.pool, self.now
        if self.pool_after_pages is not None:
            pool, now = self.pool_after_pages, PoolNow(self.pool_after_pages)
        targets = [_out_of_pool(t) if t.database in self.unreadable else t for t in self.targets]
        return order_blocks(
            targets,
            [now.usage_of(target) for target in targets],
            restore_blocks(
                server.shared_buffers_blocks, None if budget is None else budget // server.block_size_bytes
            ),
            server.shared_buffers_blocks - pool.used_buffers,
            all_hot_singly=self.pages_first,
        )

    @property
    def touches_at_once(self) -> bool:
        """Whether each portion is touched as it is read; else when all else is done."""
        return self.order.crowded

    @cached_property
    def sums(self) -> RestoreSums:
        """What is to be done in the pool; nothing where it is left alone."""
        if self.options.into == "page-cache":
            return RestoreSums()
        return sums_of(self.order, heat=self.options.heat)

    def calls(self, part: Part, *, pages_read: bool = False) -> Iterator[HeatCall]:
        """Return the calls that do it, or a part of them.

        Args:
            part: which.
            pages_read: `pages` are done.
        """
        size = min(CALL_BLOCKS, self._work(pool=True).call_blocks)
        return restore_calls(
            self.order,
            size,
            part=part,
            heat=self.options.heat,
            uncached=self._uncached() if self._pages_too and not pages_read else None,
            pages_read=pages_read,
        )

    @cached_property
    def pages(self) -> list[Call]:
        """The calls that read into the page cache alone."""
        if not self._pages_too:
            return []
        pieces = page_cache_pieces(self.targets, self._cached)
        if not self.on_this_host:
            pieces = (piece for piece in pieces if piece.database not in self.unreadable)
        return list(calls_of(_fitting(pieces, self.access), self._work(pool=False).call_blocks))

    @property
    def on_this_host(self) -> bool:
        """Whether the server's files can be read here."""
        return self.access.sees_page_cache and self.access.postmaster_pid is not None

    @cached_property
    def pages_first(self) -> bool:
        """Whether the page cache is read before the pool.

        Long stretches sent away cost the host a tenth of the processor time that single blocks do, so the
        queries of a starting server get most of it, and they soon find their blocks in the page cache. The
        blocks of the pool are copied from there then. A page cache that takes long to read comes after the
        pool, whose blocks are the hottest.
        """
        size = sum(call.blocks for call in self.pages) * self.access.server.block_size_bytes
        return self.on_this_host and 0 < size <= PAGES_FIRST_BYTES

    @cached_property
    def compared(self) -> tuple[HeatState, list[HeatRelation]]:
        """What was resident, altogether and of each relation."""
        pages = self.state.pages if self.heat.meta.sees_page_cache else None
        return compare(self.targets, self.now, pages, self.access)

    @property
    def _pages_too(self) -> bool:
        return self.options.into != "pool" and self.heat.meta.sees_page_cache

    @cached_property
    def _cached(self) -> list[NDArray[np.bool_] | None]:
        whole = self.access.pages_of_block
        return [cached_now(target, self.state.pages, whole) for target in self.targets]

    def _uncached(self) -> list[NDArray[np.int64]] | None:
        """Return the blocks of each target that are to come into the page cache, where that can be seen."""
        if self.state.pages is None:
            return None
        return [
            target.block[target.page_cache & ~there]
            for target, there in zip(self.targets, self._cached, strict=True)
            if there is not None
        ]

    def _work(self, *, pool: bool) -> WorkOptions:
        return self.options.work(self.access.server.block_size_bytes, pool=pool)


def plan_restore(
    access: Access, heat: SavedHeat, options: RestoreOptions, *, note: Callable[[str], None] | None = None
) -> RestorePlan:
    """Return what is to be read, in order.

    Raises:
        ConnectionFailed: the server has gone.
    """
    state = look_around(access, heat)
    targets = find_targets(heat, state, access.server.block_size_bytes)
    with explained():
        pool = PoolReader(access).read()
    if note is not None and access.pool_source == "sql":
        note(access.cost_note() + ", before and after each round")
    return RestorePlan(access, heat, options, state, targets, pool)


def touches_left(plan: RestorePlan, access: Access) -> tuple[Iterator[HeatCall], int] | None:
    """Return the calls that touch what lacks accesses now, and how many accesses these are.

    Nothing where the server's own queries have pushed out some of what was read: there the clock hand is at
    work, which lowers counts as fast as touching raises them, and the queries touch what they need. Tried
    under load (benchmarks/restore), touching then slowed the queries for some seconds and kept no more of the
    blocks resident.

    Args:
        plan: its reading is done.
        access: a session that lives.
    """
    with explained():
        now = PoolNow(PoolReader(access).read())
    found = [now.usage_of(target) for target in plan.targets]
    wanted = len(plan.order.block)
    resident = sum(
        int(np.count_nonzero(target.pooled & (level != NOT_IN_POOL)))
        for target, level in zip(plan.targets, found, strict=True)
    )
    if much_is_gone(wanted - resident, wanted):
        return None
    levels = [np.where(level == NOT_IN_POOL, MAX_USAGE_COUNT, level) for level in found]
    order = order_blocks(plan.targets, levels, wanted, access.server.shared_buffers_blocks)
    return restore_calls(order, CALL_BLOCKS, part="touches"), sums_of(order, heat=True).touches


def _out_of_pool(target: Target) -> Target:
    """Return a target with the same blocks, none of which is to come into the pool."""
    return replace(target, usage_count=np.full_like(target.usage_count, NOT_IN_POOL))


def _fitting(pieces: Iterator[BlockRange], access: Access) -> Iterator[BlockRange]:
    """Yield as many pieces as the host and the memory cgroups have room for, where the host is this one."""
    block_bytes = access.server.block_size_bytes
    room: float = float("inf")
    if access.postmaster_pid is not None:
        size = access.server.shared_buffers_blocks * block_bytes
        budget = page_cache_budget_of(access.postmaster_pid, size, None, past_server=access.sees_page_cache)
        room = budget.budget_bytes
    for piece in pieces:
        room -= piece.blocks * block_bytes
        if room < 0:
            return
        yield piece


def result_of(plan: RestorePlan, path: Path, at: datetime.datetime) -> WarmRestoreResult:
    """Return the plan as a result in which nothing is done yet."""
    server = plan.access.server
    before, relations = plan.compared
    block_bytes = server.block_size_bytes
    return WarmRestoreResult(
        source=source_of(path, plan.heat),
        server_version=server.version,
        database=server.database,
        dry_run=True,
        same_cluster=plan.state.same_cluster,
        at=at.isoformat(timespec="milliseconds"),
        seconds=0.0,
        to_pool_bytes=plan.sums.read_blocks * block_bytes,
        to_page_cache_bytes=sum(call.blocks for call in plan.pages) * block_bytes,
        left_out_bytes=plan.order.left_out * block_bytes,
        touches=plan.sums.touches,
        ranges=plan.sums.ranges + sum(len(call.pieces) for call in plan.pages),
        connections=plan.options.connections,
        before=before,
        after=None,
        relations=relations,
        missing=plan.state.missing,
    )


def server_files(plan: RestorePlan) -> FileReader | None:
    """Return the server's files, where they are on this host."""
    access = plan.access
    if not plan.on_this_host or access.postmaster_pid is None:
        return None
    return FileReader(
        find_data_files(access.postmaster_pid, access.server.version_num),
        places_of((target.database, target.oid, target.fork[:3]) for target in plan.targets),
        access.server.block_size_bytes,
        access.segment_blocks,
    )
