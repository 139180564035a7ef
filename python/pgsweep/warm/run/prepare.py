"""What a run is to do: options, and the plan of each cache made of what the server has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from pgsweep.errors import MissingAbility
from pgsweep.host.datafiles import find_data_files
from pgsweep.host.postmaster import find_postmaster
from pgsweep.pg.catalog.backends import spared_connections
from pgsweep.pg.catalog.server import ServerProcess, read_pool_start_us, read_postmaster
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.retry import PATIENCE_SECONDS
from pgsweep.records.cache import Missing
from pgsweep.records.warm import WarmBudget
from pgsweep.residency.access import PoolSource
from pgsweep.units import format_count, format_time
from pgsweep.warm.block_ranges import BlockRange, Call, calls_of
from pgsweep.warm.capacity import page_cache_budget_of, pool_budget
from pgsweep.warm.files import FileReader
from pgsweep.warm.heat.saved import HeatWeights
from pgsweep.warm.outcome import WorkOptions
from pgsweep.warm.run.gather import Gathered, Selection, gather, require_readable
from pgsweep.warm.run.journal import Into, RunKey, read_journal
from pgsweep.warm.run.journal_place import check_server, run_key
from pgsweep.warm.run.ranking import Plan, beyond, make_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmOptions:
    """What to warm, and how.

    Attributes:
        heat: of a heat file; the order rests on it before it rests on statistics.
        budget_bytes: None for what the cache holds, less a reserve.
        mode: of pg_prewarm where the page cache is warmed through the server; `kernel` past it; None for the
            better of what is possible.
        connections: how many sessions read at once, if the server can spare them. On two processors a fourth
            made nothing faster, and a server of 15 busier: its buffers begin anywhere in a page, so sessions
            that take buffers side by side meet in the same pages.
        wait_seconds: for a server that goes away meanwhile.
    """

    selection: Selection = field(default_factory=Selection)
    heat: HeatWeights | None = None
    into: Into = "pool"
    budget_bytes: int | None = None
    mode: Literal["read", "prefetch", "kernel"] | None = None
    connections: int = 3
    rate_bytes_per_second: float | None = None
    max_latency_seconds: float | None = None
    source: PoolSource = "auto"
    wait_seconds: float = PATIENCE_SECONDS

    def work(self, block_bytes: int, *, pool: bool) -> WorkOptions:
        """Return the options for the executor."""
        return WorkOptions(
            block_bytes=block_bytes,
            connections=self.connections,
            rate_bytes_per_second=self.rate_bytes_per_second,
            max_latency_seconds=self.max_latency_seconds,
            pool=pool,
            patience_seconds=self.wait_seconds,
        )


@dataclass(slots=True)
class Planned:
    """What is to be done.

    Attributes:
        files: reads past the server, where that is possible.
        mode: how the page cache is warmed: kernel, read or prefetch.
        started_us: since when the pool is in use.
        run: which run it is.
        resumed: it is what an earlier run left, in the order of that run.
    """

    conninfo: str
    options: WarmOptions
    found: Gathered
    budgets: list[WarmBudget]
    pool: list[BlockRange]
    page_cache: list[BlockRange]
    left_out: list[BlockRange]
    files: FileReader | None
    mode: str
    started_us: int
    missing: list[Missing]
    run: RunKey
    resumed: bool

    @property
    def block_bytes(self) -> int:
        """PostgreSQL's block size."""
        return self.found.server.block_size_bytes

    @property
    def asked_bytes(self) -> int:
        """What is to be read."""
        return sum(piece.blocks for piece in (*self.pool, *self.page_cache)) * self.block_bytes

    def calls(self) -> tuple[list[Call], list[Call]]:
        """Return the calls into the pool, and those into the page cache."""
        size = self.options.work(self.block_bytes, pool=True).call_blocks
        pool = list(calls_of(self.pool, size))
        return pool, list(calls_of(self.page_cache, size, first_number=len(pool)))


def prepare(conninfo: str, options: WarmOptions, *, resume: Path | None = None) -> Planned:
    """Return what is to be read, from the server or from the journal of an earlier run.

    Raises:
        UsageError, ConnectionFailed, MissingAbility: as in run.
    """
    with connect(conninfo) as connection, explained():
        process = read_postmaster(connection)
        started_us = read_pool_start_us(connection)
        here = run_key(connection, options.selection, options.into)
        options = replace(options, connections=spared_connections(connection, options.connections))
    postmaster, missing = _postmaster(process)
    left = None if resume is None else read_journal(resume, started_us)
    if left is not None and resume is not None:
        check_server(left.header, here, started_us, resume)
        named = frozenset(piece.database for piece in (*left.pool, *left.page_cache))
        selection = Selection(every_database=True, databases=named)
        options = replace(options, into=left.header.into, selection=selection)
    kernel = options.into != "pool" and options.mode in (None, "kernel") and postmaster is not None
    if options.into != "pool" and options.mode == "kernel" and not kernel:
        raise MissingAbility(
            "the server's files cannot be reached from here",
            cause=missing[0].why,
            hint="run pgsweep on the server's host as its user or root, or leave the mode to it",
        )
    found = gather(
        conninfo,
        options.selection,
        heat=options.heat,
        through_server=not (kernel and options.into == "page-cache"),
    )
    if left is None:
        require_readable(found, conninfo)
    files = None
    if kernel:
        assert postmaster is not None
        databases = {place[1] for place in found.places.values()}
        data_files = find_data_files(postmaster, found.server.version_num, databases)
        segment_blocks = int(found.server.settings["segment_size"])
        files = FileReader(data_files, found.places, found.server.block_size_bytes, segment_blocks)
    if left is None:
        pool, page_cache, budgets = _planned(found, options, postmaster, past_server=kernel)
    else:
        pool, page_cache, budgets = Plan(left.pool), Plan(left.page_cache), []
        found.refused = []
    block_bytes = found.server.block_size_bytes
    planned_blocks = {"pool": pool.blocks, "page cache": page_cache.blocks}
    return Planned(
        conninfo=conninfo,
        options=options,
        found=found,
        budgets=[
            msgspec.structs.replace(b, planned_bytes=planned_blocks[b.cache] * block_bytes) for b in budgets
        ],
        pool=pool.ranges,
        page_cache=page_cache.ranges,
        left_out=page_cache.left_out if options.into != "pool" else pool.left_out,
        files=files,
        mode="kernel" if kernel else options.mode if options.mode in ("read", "prefetch") else "read",
        started_us=started_us,
        missing=found.missing,
        run=here if left is None or left.header.run is None else left.header.run,
        resumed=left is not None,
    )


def order_words(planned: Planned) -> str:
    """Return in words what the order rests on."""
    found, heat = planned.found, planned.options.heat
    if planned.resumed:
        return "as the run planned it that was stopped"
    counted = "the smallest first: nothing was counted yet (after a crash, or on a fresh standby)"
    if found.accesses:
        since = f" on {format_time(found.counted_since)}" if found.counted_since is not None else ""
        counted = f"accesses a block since statistics began{since} (pg_statio)"
    if heat is None:
        return counted
    at = format_time(heat.source.at)
    saved = f"saved heat of {at} ({heat.source.path}), usage a block"
    if found.saved == found.relations:
        return saved
    if found.saved == 0:
        return f"{heat.source.path}, saved {at}, holds none of these relations: {counted}"
    return (
        f"{saved}, for {format_count(found.saved)} of {format_count(found.relations)} relations; the "
        f"others after them: {counted}"
    )


def _planned(
    found: Gathered, options: WarmOptions, postmaster: int | None, *, past_server: bool
) -> tuple[Plan, Plan, list[WarmBudget]]:
    """Return the plan of each cache: what does not fit the pool goes, where wanted, to the page cache."""
    server = found.server
    pool_bytes = server.shared_buffers_blocks * server.block_size_bytes

    def page_cache_holds(given_bytes: int | None) -> WarmBudget:
        return page_cache_budget_of(postmaster, pool_bytes, given_bytes, past_server=past_server)

    budgets = []
    pool, page_cache = Plan(), Plan()
    given = options.budget_bytes
    if options.into != "page-cache":
        budget = pool_budget(pool_bytes, given)
        budgets.append(budget)
        pool = make_plan(found.pieces, budget.budget_bytes // server.block_size_bytes)
    if options.into == "both":
        # What goes to the pool passes through the page cache, and takes its room there too.
        read = pool.blocks * server.block_size_bytes
        rest = None if given is None else max(0, given - read)
        budget = page_cache_holds(rest)
        room = max(0, budget.budget_bytes - (read if rest is None else 0))
        budgets.append(budget)
        page_cache = beyond(pool, room // server.block_size_bytes)
    elif options.into == "page-cache":
        budget = page_cache_holds(given)
        budgets.append(budget)
        page_cache = make_plan(found.pieces, budget.budget_bytes // server.block_size_bytes)
    return pool, page_cache, budgets


def _postmaster(process: ServerProcess) -> tuple[int | None, list[Missing]]:
    """Return the server's process, where its files can be reached from here; else why not."""
    try:
        pid = find_postmaster(*process)
        find_data_files(pid, 0, databases=())
    except MissingAbility as error:
        return None, [Missing(what="the server's files", why=error.message, enable=error.hint)]
    return pid, []
