"""Whether the memory suffices, now and at max_connections: `pgsweep memory budget`.

Measured now: shared memory, page tables, private memory of each process, and what else the host uses. From
these, for any number of connections n:

    low   n connections as those of today: mean private memory, mean page tables; all shared memory there
    high  each has used all of the pool, is as large as the 95th percentile of today, and holds the assumed
          number of sorts and hashes at once, each as large as work_mem allows, and full temp_buffers;
          autovacuum's workers are all at work

Page tables: 8 bytes for each page of shared memory touched, 4 kB or huge, besides what a process has for
itself. Page cache is what is left: the rest takes memory from it, so it is not a need of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.commands import on_server
from pgsweep.errors import ClusterError, MissingAbility, NeedsRoot
from pgsweep.host.hugepages import read_huge_pages
from pgsweep.host.pages import PAGE_BYTES
from pgsweep.host.pagetables import own_tables, page_tables_of
from pgsweep.host.postmaster import user_of
from pgsweep.host.procfile import PROC
from pgsweep.host.yama import who_may
from pgsweep.memory.budget_notes import next_start, of_this_session, own_work_mem, saved_by_huge_pages
from pgsweep.memory.budget_parts import (
    Processes,
    Shared,
    allowed_parts,
    connections_of,
    part,
    touched_at_most,
)
from pgsweep.memory.budget_verdict import MOST_CONNECTIONS, Asked, judged
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.memory.processes import ASSUMED, MEMORY_LIMIT, LocalServer, look
from pgsweep.pg.catalog.memory_settings import MemorySettings, read_memory_settings
from pgsweep.pg.catalog.standbys import order_of_change
from pgsweep.pg.session.connect import connect, same_server
from pgsweep.pg.session.refusals import explained
from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import Missing
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.memory import MemoryProcess, MemoryResult
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count

ELSEWHERE: Final = "everything else"
"""The part of the budget that is not the server's."""

BUFFER_OVERHEAD: Final = 1 + 188 / BLOCK_BYTES
"""A buffer with its descriptor, its entries in the lookup table and in the checkpointer's arrays."""

_SAMPLE = 8
"""The number of connections whose mappings are read: they are alike."""


def measure_own_tables(processes: Sequence[MemoryProcess], proc: Path = PROC) -> int:
    """Return the page tables of a process without those for shared memory: the mean of a few `own_tables`.

    Args:
        processes: of one kind.
    """
    found = [
        own_tables(process.pid, process.page_tables_bytes, process.shared_touched_bytes or 0, proc)
        for process in processes[:_SAMPLE]
    ]
    return round(sum(found) / len(found)) if found else 0


def budget(
    local: LocalServer,
    *,
    max_connections: int | None = None,
    plan_nodes: int = 2,
    work_mem_bytes: int | None = None,
    shared_buffers_bytes: int | None = None,
    shared_per_connection_bytes: float | None = None,
    ram_bytes: int | None = None,
) -> BudgetResult:
    """Return the budget of a server.

    Args:
        local: the server.
        max_connections: how many connections the budget is for; the setting by default.
        plan_nodes: sorts and hashes that a connection is assumed to hold at once, at the high end.
        work_mem_bytes: for this work_mem; the setting by default.
        shared_buffers_bytes: for this shared_buffers; the setting by default.
        shared_per_connection_bytes: by how much the shared memory grows with each connection allowed; a
            server of the same release is asked by default, which takes some seconds.
        ram_bytes: for this much memory; what the server may use by default.

    Raises:
        MissingAbility: private memory may not be read, or how much memory there is is not known.
    """
    with explained():
        settings = read_memory_settings(local.connection)
        wanted = max_connections or settings.max_connections
        order = order_of_change(local.connection, "max_connections", settings.max_connections, wanted)
    if work_mem_bytes is not None:
        settings = dataclasses.replace(settings, work_mem=work_mem_bytes)
    grown = 0
    if shared_buffers_bytes is not None:
        grown = round((shared_buffers_bytes - settings.shared_buffers) * BUFFER_OVERHEAD)
        settings = dataclasses.replace(settings, shared_buffers=shared_buffers_bytes)
    seen = _measured(local, ram_bytes)
    connections = max_connections or settings.max_connections
    slope, asked = shared_per_connection_bytes, None
    if slope is None:
        slope, asked = _shared_per_connection(local, seen, settings, connections)
    result = estimate_budget(
        seen,
        settings,
        local.server.version_num,
        connections=connections,
        plan_nodes=plan_nodes,
        own_tables_bytes=measure_own_tables(connections_of(seen)),
        shared_per_connection_bytes=slope or 0.0,
        shared_growth_bytes=grown,
    )
    notes = ([] if order is None else [order]) + next_start(local, asked=max_connections is not None)
    notes += of_this_session(local, settings, asked=work_mem_bytes is not None)
    if ram_bytes is not None:
        why = "none is assumed: what --ram names is the server's own"
        result = assumed_elsewhere(result, why)
    if notes:
        result = msgspec.structs.replace(result, reasons=[*result.reasons, *notes])
    if asked is not None:
        result = _with_huge_pages(result, asked)
    if slope is not None:
        return result
    unknown = Missing(
        what="how much shared memory another max_connections takes",
        why="no PostgreSQL of the server's version could be asked here; it is taken to be as now",
    )
    return msgspec.structs.replace(result, missing=[*result.missing, unknown])


def assumed_elsewhere(result: BudgetResult, why: str) -> BudgetResult:
    """Return a budget in which what the kernel and other programs take is assumed, with the reason."""
    parts = [
        msgspec.structs.replace(part, kind="assumed", why=why) if part.name == ELSEWHERE else part
        for part in result.parts
    ]
    return msgspec.structs.replace(result, parts=parts)


def _with_memory(seen: MemoryResult, ram_bytes: int) -> MemoryResult:
    """Return the processes as they would be with another amount of memory, which they have for themselves."""
    host = msgspec.structs.replace(
        seen.host,
        memory_bytes=ram_bytes,
        available_bytes=max(0, ram_bytes - (seen.totals.real_bytes or 0)),
        limit_bytes=None,
        limit_used_bytes=None,
        limit_taken_bytes=None,
    )
    missing = [one for one in seen.missing if one.what != MEMORY_LIMIT]
    return msgspec.structs.replace(seen, host=host, missing=missing)


def _measured(local: LocalServer, ram_bytes: int | None) -> MemoryResult:
    """Return the processes, with another amount of memory where one is named.

    Raises:
        MissingAbility: private memory may not be read, or how much memory there is is not known.
    """
    seen = _seen(local)
    if seen.totals.private_bytes is None or seen.totals.real_bytes is None:
        raise NeedsRoot(
            "the private memory of the server's processes may not be read, so there is no budget",
            cause=seen.missing[0].why if seen.missing else None,
            hint=who_may(user=user_of(local.postmaster_pid)),
        )
    if ram_bytes is not None:
        return _with_memory(seen, ram_bytes)
    if seen.place is not None and seen.place.memory.limited == "unknown":
        raise MissingAbility(
            "how much memory the server may use is not known, so there is no budget",
            cause=seen.place.memory.why,
            hint="run it on the host, outside of containers, or name the memory: --ram 4GB",
        )
    return seen


def _seen(local: LocalServer) -> MemoryResult:
    """Return the processes; where there is no client, with a session that has just begun among them."""
    seen = look(local)
    if seen.connections:
        return seen
    with connect(same_server(local.connection)):
        return msgspec.structs.replace(look(local), pgsweep_sessions=seen.pgsweep_sessions)


_MORE_CONNECTIONS = 100


def _shared_per_connection(
    local: LocalServer, seen: MemoryResult, settings: MemorySettings, connections: int
) -> tuple[float | None, HugePagesResult | None]:
    """Return by how much the shared memory grows with each connection that max_connections allows.

    A server of the same release is asked, as `pgsweep hugepages --max-connections` does. None where there is
    none, or it cannot be made; that is an error only where the answer decides. What it says of huge pages is
    returned too, where it was asked about these connections.

    Raises:
        ClusterError: a server does not take this max_connections.
    """
    conninfo, other = same_server(local.connection), connections
    if other == settings.max_connections:
        other = min(other + _MORE_CONNECTIONS, MOST_CONNECTIONS)
    try:
        # Not the size of the mapping, which is rounded up to whole huge pages.
        now = examine(conninfo, pending=False).shared_memory_bytes or seen.totals.shared_memory_size_bytes
        found = examine(conninfo, settings={"max_connections": str(other)}, pending=False)
    except ClusterError:
        if connections != settings.max_connections:
            raise
        return None, None
    asked = found.shared_memory_bytes
    if now is None or asked is None or other == settings.max_connections:
        return None, None
    slope = max(0.0, (asked - now) / (other - settings.max_connections))
    return slope, found if other == connections else None


def _with_huge_pages(result: BudgetResult, asked: HugePagesResult) -> BudgetResult:
    """Return the budget with the huge pages that are missing for its connections, where it takes some."""
    pool = next((p for p in asked.pools if p.page_size_bytes == asked.huge_page_size_bytes), None)
    if pool is None or asked.target is None or asked.huge_pages == "off":
        return result
    if asked.huge_pages == "try" and not asked.own_pages:
        return result
    more = max(0, asked.target - (pool.total - pool.surplus))
    size, connections = format_bytes(asked.huge_page_size_bytes), format_count(result.max_connections)
    ends = "the server does not start" if asked.huge_pages == "on" else "the server takes ordinary pages"
    reasons = []
    command = on_server("pgsweep hugepages", f"--max-connections {result.max_connections}")
    if more:
        reasons.append(
            f"{format_count(more)} more huge pages of {size} are needed for {connections} connections, "
            f"{format_count(asked.huge_pages_needed or 0)} in all: without them {ends} (huge_pages is "
            f"{asked.huge_pages}); set them aside before the restart: {command}"
        )
    if asked.limit_binds:
        reasons.append(
            f"{asked.binding_limit} allows {format_count(asked.allowed_pages or 0)} huge pages of {size}, "
            f"{format_count(asked.huge_pages_needed or 0)} are needed for {connections} connections"
        )
    return msgspec.structs.replace(result, reasons=[*reasons, *result.reasons], missing_huge_pages=more)


def estimate_budget(
    seen: MemoryResult,
    settings: MemorySettings,
    version_num: int,
    *,
    connections: int,
    plan_nodes: int,
    own_tables_bytes: int,
    huge_page_bytes: int | None = None,
    shared_per_connection_bytes: float = 0.0,
    shared_growth_bytes: int = 0,
) -> BudgetResult:
    """Return the budget from what was seen.

    Args:
        seen: all processes.
        settings: the server's.
        version_num: as `server_version_num`.
        connections: how many connections the budget is for.
        plan_nodes: see `budget`.
        own_tables_bytes: see `measure_own_tables`.
        huge_page_bytes: size of the huge pages; the kernel's default by default.
        shared_per_connection_bytes: by how much the shared memory grows with each connection allowed.
        shared_growth_bytes: by how much it would grow with another shared_buffers, which `settings` has.
    """
    size = seen.totals.shared_memory_size_bytes or settings.shared_memory or settings.shared_buffers
    more = shared_per_connection_bytes * (connections - settings.max_connections)
    shared = Shared(
        pool=settings.shared_buffers,
        now=seen.totals.shared_memory_bytes or 0,
        size_now=size,
        size=max(0, size + shared_growth_bytes + round(more)),
        counted=_counts_shared(seen),
    )
    pool = read_huge_pages()
    huge_bytes = huge_page_bytes or (pool.size_bytes if pool else 2 << 20)
    processes = Processes(
        seen,
        own_tables=own_tables_bytes,
        page=huge_bytes if seen.huge_pages else PAGE_BYTES,
        touched=touched_at_most(settings.shared_buffers, shared.size),
    )
    elsewhere, capacity, limit = _elsewhere(seen, shared.now if shared.counted else 0)
    assumed = any(process.method == ASSUMED for process in seen.processes)
    group = " in the memory cgroup" if limit is not None else ""
    parts = [
        shared.part(assumed=assumed),
        *processes.parts(connections, assumed=assumed),
        *allowed_parts(settings, version_num, connections, plan_nodes),
        part(ELSEWHERE, [elsewhere] * 3, "measured", f"the kernel and other programs{group}"),
    ]
    like, full = processes.mean + processes.tables_mean, processes.p95 + processes.tables_full
    full += plan_nodes * settings.largest_node + settings.temp_buffers
    mapping = len(processes.others) + connections
    saved = saved_by_huge_pages(
        mapping * processes.tables_full,
        mapping * (own_tables_bytes + page_tables_of(processes.touched, huge_bytes)),
        capacity,
    )
    asked = Asked(
        capacity,
        limit,
        connections,
        plan_nodes,
        like=round(like + shared_per_connection_bytes),
        full=round(full + shared_per_connection_bytes),
    )
    return judged(seen, settings, parts, asked, [*saved, *own_work_mem(settings)])


def _counts_shared(seen: MemoryResult) -> bool:
    """Return whether shared memory takes part of the memory that there is: not in a cgroup, in huge pages."""
    host, place = seen.host, seen.place
    limited = host.limit_bytes is not None and host.limit_bytes < host.memory_bytes
    return not (seen.huge_pages and limited) or (place is not None and place.memory.counts_huge_pages)


def _elsewhere(seen: MemoryResult, own_shared_bytes: int) -> tuple[int, int, int | None]:
    """Return what others use, the memory in all, and the cgroup's limit if that is the smaller one."""
    host, totals = seen.host, seen.totals
    limit = host.limit_bytes
    if limit is not None and limit < host.memory_bytes:
        # The kernel's own, and other programs in the group and in those below it.
        ours = own_shared_bytes + (totals.private_bytes or 0) + totals.page_tables_bytes
        return max(0, (host.limit_taken_bytes or 0) - ours), limit, limit
    available = host.memory_bytes if host.available_bytes is None else host.available_bytes
    used = host.memory_bytes - available
    return max(0, used - (totals.real_bytes or 0)), host.memory_bytes, None
