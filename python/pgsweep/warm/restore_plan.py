"""What a restore would do: which blocks, in which order, by which statements."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pgsweep.caches.access import Access, PoolSource
from pgsweep.caches.pool import PoolReader
from pgsweep.host.datafiles import find_data_files
from pgsweep.host.procfile import read_host_memory
from pgsweep.pg.buffercache import Snapshot
from pgsweep.pg.connect import explained
from pgsweep.records.heat import HeatRelation, HeatState, WarmRestoreResult
from pgsweep.warm.capacity import page_cache_budget
from pgsweep.warm.check import PoolNow, cached_now, compare, source_of
from pgsweep.warm.files import FileReader, places_of
from pgsweep.warm.heat import Heat
from pgsweep.warm.match import Sight, Target, find_targets, look_around
from pgsweep.warm.order import (
    HeatCall,
    RestoreOrder,
    RestoreSums,
    capacity_blocks,
    order_blocks,
    page_cache_pieces,
    restore_calls,
    sums_of,
)
from pgsweep.warm.pieces import Call, Piece, calls_of
from pgsweep.warm.session import statement_text
from pgsweep.warm.work import WorkOptions

Into = Literal["pool", "page-cache", "both"]

CALL_BLOCKS = 1024
"""8 MB: what is asked of the operating system at once, before it is read."""


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
        source: how to look at the pool.
    """

    into: Into = "both"
    heat: bool = True
    budget_bytes: int | None = None
    connections: int = 4
    rate_bytes_per_second: float | None = None
    max_latency_seconds: float | None = None
    wait_seconds: float = 0.0
    source: PoolSource = "auto"

    def work(self, block_bytes: int, *, pool: bool) -> WorkOptions:
        """Return them as the executor wants them."""
        return WorkOptions(
            block_bytes=block_bytes,
            connections=self.connections,
            rate_bytes_per_second=self.rate_bytes_per_second,
            max_latency_seconds=self.max_latency_seconds,
            pool=pool,
        )


@dataclass(slots=True)
class RestorePlan:
    """What is to be done, and what was found.

    Attributes:
        sums: what is to be done in the pool; nothing where it is left alone.
        calls: make the calls that do it: those that read, those that touch, or both.
        pages: into the page cache alone.
        touches_at_once: each portion as it is read; else when all else is done, as no query waits for it.
        started: when the server was, where that may be asked.
    """

    access: Access
    heat: Heat
    sight: Sight
    targets: list[Target]
    order: RestoreOrder
    sums: RestoreSums
    calls: Callable[[bool, bool], Iterator[HeatCall]]
    pages: list[Call]
    before: HeatState
    relations: list[HeatRelation]
    touches_at_once: bool
    started: datetime.datetime | None

    def all_calls(self) -> Iterator[HeatCall]:
        """Return the calls in the order in which they are sent."""
        if self.touches_at_once:
            yield from self.calls(bool(self.sums.read_blocks), bool(self.sums.touches))
            return
        if self.sums.read_blocks:
            yield from self.calls(True, False)
        if self.sums.touches:
            yield from self.calls(False, True)

    def compare(self) -> tuple[HeatState, list[HeatRelation]]:
        """Return what is resident now."""
        with explained():
            pool = PoolReader(self.access).read()
        return _compared(self.access, self.heat, self.sight, self.targets, pool)


def plan_restore(
    access: Access, heat: Heat, options: RestoreOptions, *, note: Callable[[str], None] | None = None
) -> RestorePlan:
    """Return what is to be read, in order.

    Raises:
        ConnectionFailed: the server has gone.
    """
    server = access.server
    block_bytes = server.block_size_bytes
    sight = look_around(access, heat)
    targets = find_targets(heat, sight, block_bytes)
    with explained():
        pool = PoolReader(access).read()
    before, relations = _compared(access, heat, sight, targets, pool)
    now = PoolNow(pool)
    budget = None if options.budget_bytes is None else options.budget_bytes // block_bytes
    order = order_blocks(
        targets,
        [now.usage_of(target) for target in targets],
        capacity_blocks(server.shared_buffers_blocks, budget),
        server.shared_buffers_blocks - pool.used_frames,
    )
    fills_pool, fills_page_cache = options.into != "page-cache", options.into != "pool"
    whole = block_bytes // access.page_bytes
    cached = [cached_now(target, sight.pages, whole) for target in targets]
    uncached = None
    pages: list[Call] = []
    if fills_page_cache and heat.meta.sees_page_cache:
        pieces = page_cache_pieces(targets, cached)
        pages = list(calls_of(_fitting(pieces, access), options.work(block_bytes, pool=False).call_blocks))
        if sight.pages is not None:
            uncached = [
                target.block[target.page_cache & ~there]
                for target, there in zip(targets, cached, strict=True)
                if there is not None
            ]
    size = min(CALL_BLOCKS, options.work(block_bytes, pool=True).call_blocks)

    def calls(reads: bool, touches: bool) -> Iterator[HeatCall]:
        return restore_calls(order, size, reads=reads, heat=touches, uncached=uncached)

    sums = sums_of(order, heat=options.heat) if fills_pool else RestoreSums(0, 0, 0)
    if note is not None and access.pool_source == "sql":
        note(access.cost_note() + ", before and after")
    return RestorePlan(
        access,
        heat,
        sight,
        targets,
        order,
        sums,
        calls,
        pages,
        before,
        relations,
        order.crowded,
        sight.started,
    )


def _compared(
    access: Access, heat: Heat, sight: Sight, targets: Sequence[Target], pool: Snapshot
) -> tuple[HeatState, list[HeatRelation]]:
    return compare(targets, pool, sight.pages if heat.meta.sees_page_cache else None, access)


def _fitting(pieces: Iterator[Piece], access: Access) -> Iterator[Piece]:
    """Yield as many pieces as the host has memory for, where the host is this one."""
    block_bytes = access.server.block_size_bytes
    room: float = float("inf")
    if access.postmaster_pid is not None:
        size = access.server.shared_buffers_blocks * block_bytes
        room = page_cache_budget(read_host_memory(), size, None).budget_bytes
    for piece in pieces:
        room -= piece.blocks * block_bytes
        if room < 0:
            return
        yield piece


def result_of(
    plan: RestorePlan, path: Path, options: RestoreOptions, at: datetime.datetime
) -> WarmRestoreResult:
    """Return the plan as a result of which nothing has been done yet."""
    server = plan.access.server
    block_bytes = server.block_size_bytes
    return WarmRestoreResult(
        source=source_of(path, plan.heat),
        server_version=server.version,
        database=server.database,
        dry_run=True,
        same_cluster=plan.sight.same_cluster,
        at=at.isoformat(timespec="milliseconds"),
        seconds=0.0,
        to_pool_bytes=plan.sums.read_blocks * block_bytes,
        to_page_cache_bytes=sum(call.blocks for call in plan.pages) * block_bytes,
        left_out_bytes=plan.order.left_out * block_bytes,
        touches=plan.sums.touches,
        ranges=plan.sums.ranges + sum(len(call.pieces) for call in plan.pages),
        connections=options.connections,
        before=plan.before,
        after=None,
        relations=plan.relations,
        missing=plan.sight.missing,
    )


def statements_of(plan: RestorePlan, files: FileReader | None) -> Iterator[str]:
    """Yield every statement and system call, with the bytes that it reads.

    Args:
        plan: what is to be done.
        files: the server's, where they are on this host.
    """
    server, connection = plan.access.server, plan.access.connection
    for call in plan.all_calls():
        size = call.blocks * server.block_size_bytes
        where = f"-- database {call.database or server.database}, {size} bytes"
        if call.touches:
            where += ", resident by then: raises usage counts"
        elif files is not None:
            yield _advice(call.ahead, files)
        elif len(call.ahead) > 1:
            yield f"{where}\n{statement_text(connection, call.ahead, 'prefetch')}"
        yield f"{where}\n{statement_text(connection, call.pieces, 'buffer')}"
    for read in plan.pages:
        if files is not None:
            yield _advice(read.pieces, files)
        else:
            size = read.blocks * server.block_size_bytes
            text = statement_text(connection, read.pieces, "read")
            yield f"-- database {read.database or server.database}, {size} bytes\n{text}"


def _advice(pieces: Sequence[Piece], files: FileReader) -> str:
    return "\n".join(
        f"posix_fadvise({path}, {offset}, {length}, POSIX_FADV_WILLNEED)"
        for piece in pieces
        for path, offset, length in files.stretches(piece)
    )


def server_files(plan: RestorePlan) -> FileReader | None:
    """Return the server's files, where they are on this host."""
    access = plan.access
    if not access.sees_page_cache or access.postmaster_pid is None:
        return None
    return FileReader(
        find_data_files(access.postmaster_pid, access.server.version_num),
        places_of((target.database, target.oid, target.fork[:3]) for target in plan.targets),
        access.server.block_size_bytes,
        access.segment_blocks,
    )
