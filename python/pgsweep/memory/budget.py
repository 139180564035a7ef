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

from pgsweep.errors import ClusterError, MissingAbility
from pgsweep.host.hugepages import read_huge_pages
from pgsweep.host.pages import PAGE_BYTES
from pgsweep.host.pagetables import own_tables, page_tables_of
from pgsweep.host.postmaster import user_of
from pgsweep.host.procfile import PROC
from pgsweep.host.yama import who_may
from pgsweep.memory.budget_notes import next_start, of_this_session, own_work_mem, saved_by_huge_pages
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.memory.processes import ASSUMED, CLIENT, MEMORY_LIMIT, LocalServer, look
from pgsweep.pg.connect import connect, same_server
from pgsweep.pg.memory_settings import MemorySettings, read_memory_settings
from pgsweep.pg.refusals import explained
from pgsweep.pg.standbys import order_of_change
from pgsweep.records.budget import BudgetPart, BudgetResult
from pgsweep.records.cache import Missing
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.memory import MemoryProcess, MemoryResult
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count

ELSEWHERE: Final = "everything else"
"""The part of the budget that is not the server's."""

SCARCE_RATIO: Final = 0.1
"""With less than this share of the memory left for cached files the verdict is `tight`."""

_BACKEND_BYTES_PER_BUFFER = 64 + 52
BUFFER_OVERHEAD: Final = 1 + 188 / BLOCK_BYTES
"""A buffer with its descriptor, its entries in the lookup table and in the checkpointer's arrays."""

_SAMPLE = 8
"""The number of connections whose mappings are read: they are alike."""


def touched_at_most(shared_buffers_bytes: int, segment_bytes: int) -> int:
    """Return how much of the shared memory a backend touches that has used every page of the pool.

    The pool, and for each buffer its descriptor (64 bytes) and its place in the lookup table (52); the rest
    belongs to the checkpointer, to other backends or to nobody yet (buf_init.c, buf_table.c).
    """
    return min(
        segment_bytes, shared_buffers_bytes + shared_buffers_bytes // BLOCK_BYTES * _BACKEND_BYTES_PER_BUFFER
    )


def measure_own_tables(processes: Sequence[MemoryProcess], proc: Path = PROC) -> int:
    """Return the page tables of a process without those for shared memory: the mean of a few `own_tables`.

    Args:
        processes: of one kind.
        proc: the proc file system to read (a captured tree in tests).
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
        ConnectionFailed: the server has gone.
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
    seen = _seen(local)
    if seen.totals.private_bytes is None or seen.totals.real_bytes is None:
        raise MissingAbility(
            "the private memory of the server's processes may not be read, so there is no budget",
            cause=seen.missing[0].why if seen.missing else None,
            hint=who_may("pgsweep memory budget ...", user=user_of(local.postmaster_pid)),
        )
    if ram_bytes is not None:
        seen = _with_memory(seen, ram_bytes)
    elif seen.place is not None and seen.place.memory.limited == "unknown":
        raise MissingAbility(
            "how much memory the server may use is not known, so there is no budget",
            cause=seen.place.memory.why,
            hint="run it on the host, outside of containers, or name the memory: --ram 4GB",
        )
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


def _seen(local: LocalServer) -> MemoryResult:
    """Return the processes; where there is no client, with a session that has just begun among them."""
    seen = look(local)
    if seen.connections:
        return seen
    with connect(same_server(local.connection)):
        return msgspec.structs.replace(look(local), pgsweep_sessions=seen.pgsweep_sessions)


_MORE_CONNECTIONS = 100
_MOST_CONNECTIONS = 2**18 - 1
"""MAX_BACKENDS, postmaster.h."""


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
        other = min(other + _MORE_CONNECTIONS, _MOST_CONNECTIONS)
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
    if more:
        reasons.append(
            f"{format_count(more)} more huge pages of {size} are needed for {connections} connections, "
            f"{format_count(asked.huge_pages_needed or 0)} in all: without them {ends} (huge_pages is "
            f"{asked.huge_pages}); set them aside before the restart: pgsweep hugepages --max-connections "
            f"{result.max_connections}"
        )
    if asked.limit_binds:
        reasons.append(
            f"{asked.binding_limit} allows {format_count(asked.allowed_pages or 0)} huge pages of {size}, "
            f"{format_count(asked.huge_pages_needed or 0)} are needed for {connections} connections"
        )
    return msgspec.structs.replace(result, reasons=[*reasons, *result.reasons], missing_huge_pages=more)


def connections_of(seen: MemoryResult) -> list[MemoryProcess]:
    """Return the client backends without those of pgsweep; where there is no other, the smallest of these.

    One that has read catalogs and statistics is larger than one that has just begun.
    """
    clients = [p for p in seen.processes if p.kind == CLIENT and not p.own]
    return clients or sorted((p for p in seen.processes if p.own), key=lambda p: p.cost_bytes or 0)[:1]


def _part(name: str, sizes: tuple[int, int, int], kind: str, why: str) -> BudgetPart:
    """Return a use of the memory: its bytes now, and at both ends."""
    now, low, high = sizes
    return BudgetPart(name=name, now_bytes=now, low_bytes=low, high_bytes=high, kind=kind, why=why)


def _allowed_parts(
    settings: MemorySettings, version_num: int, connections: int, plan_nodes: int
) -> list[BudgetPart]:
    """Return what the settings allow besides, which counts at the high end."""
    node, vacuum, workers = settings.largest_node, settings.vacuum(version_num), settings.autovacuum_workers

    def allowed(name: str, size_bytes: int, why: str) -> BudgetPart:
        return _part(name, (0, 0, size_bytes), "assumed", why)

    return [
        allowed(
            "work_mem",
            (connections + settings.parallel_workers) * plan_nodes * node,
            f"{plan_nodes} sorts or hashes of {format_bytes(node)} (work_mem x hash_mem_multiplier) in each "
            f"connection and {settings.parallel_workers} parallel workers; what is in use now is included in "
            "connections",
        ),
        allowed(
            "temp_buffers",
            connections * settings.temp_buffers,
            f"{format_bytes(settings.temp_buffers)} in each connection that uses temporary tables",
        ),
        allowed("autovacuum", workers * vacuum, f"{workers} workers of {format_bytes(vacuum)}"),
        allowed(
            "maintenance",
            settings.maintenance_work_mem,
            f"one CREATE INDEX or the like of {format_bytes(settings.maintenance_work_mem)} "
            "(maintenance_work_mem, which its parallel workers share)",
        ),
    ]


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
    sample = connections_of(seen)
    others = [p for p in seen.processes if p.kind != CLIENT]
    n = max(1, len(sample))
    mean = sum(p.private_bytes or 0 for p in sample) // n
    p95 = sorted(p.private_bytes or 0 for p in sample)[-(-95 * n // 100) - 1] if sample else 0
    size = seen.totals.shared_memory_size_bytes or settings.shared_memory or settings.shared_buffers
    size_now = size
    grown = shared_growth_bytes + round(
        shared_per_connection_bytes * (connections - settings.max_connections)
    )
    size = max(0, size + grown)
    touched = touched_at_most(settings.shared_buffers, size)
    shared_now = seen.totals.shared_memory_bytes or 0
    pool = read_huge_pages()
    huge_bytes = huge_page_bytes or (pool.size_bytes if pool else 2 << 20)
    page_bytes = huge_bytes if seen.huge_pages else PAGE_BYTES
    tables_mean = sum(p.page_tables_bytes for p in sample) // n
    tables_full = own_tables_bytes + page_tables_of(touched, page_bytes)
    # Connections of today may have more for themselves than a fresh one.
    tables_full = max(tables_full, tables_mean)
    tables_others = sum(p.page_tables_bytes for p in others)
    tables_others_full = len(others) * tables_full
    private_others = sum(p.private_bytes or 0 for p in others)
    node = settings.largest_node
    counted = _counts_shared(seen)
    elsewhere, capacity, limit = _elsewhere(seen, shared_now if counted else 0)
    own = [p for p in seen.processes if p.own]
    at = "" if seen.connections else " (a session that has just begun, as there is no client)"
    at += f"; {seen.pgsweep_sessions} of pgsweep are left out" if seen.pgsweep_sessions > 1 else ""
    each = f"private memory, {format_bytes(mean)} each on average today, 95% below {format_bytes(p95)}{at}"
    tables = f"{format_bytes(tables_mean)} a connection today"
    there = f"{format_bytes(shared_now)} of it are there now"
    measured, predicted = "measured", "predicted"
    if any(process.method == ASSUMED for process in seen.processes):
        measured = predicted = ASSUMED
        each, tables = (
            f"{format_bytes(mean)} of private memory each",
            f"{format_bytes(tables_mean)} a connection",
        )
        there = "all of it is taken to be there"
    parts = [
        _part(
            "shared memory",
            (shared_now if counted else 0, size if counted else 0, size if counted else 0),
            measured if size == size_now else predicted,
            f"shared_buffers {format_bytes(settings.shared_buffers)} and "
            f"{format_bytes(size - settings.shared_buffers)} around it"
            + ("" if size == size_now else f", {format_bytes(size_now)} in all now")
            + (f"; {there}" if counted else "; in huge pages, which the memory cgroup does not count"),
        ),
        _part(
            "page tables",
            (
                seen.totals.page_tables_bytes - sum(p.page_tables_bytes for p in own),
                tables_others + connections * tables_mean,
                tables_others_full + connections * tables_full,
            ),
            predicted,
            f"{tables}, {format_bytes(tables_full)} once it has "
            f"used all of the pool, in pages of {format_bytes(page_bytes)}",
        ),
        _part(
            "connections",
            (
                sum(p.private_bytes or 0 for p in sample) if seen.connections else 0,
                connections * mean,
                connections * p95,
            ),
            predicted,
            each,
        ),
        _part(
            "background processes",
            (private_others, private_others, private_others),
            measured,
            f"private memory of {len(others)} process{'es' if len(others) != 1 else ''}",
        ),
        *_allowed_parts(settings, version_num, connections, plan_nodes),
        *_logical_decoding(settings),
        _part(
            ELSEWHERE,
            (elsewhere, elsewhere, elsewhere),
            "measured",
            "the kernel and other programs" + (" in the memory cgroup" if limit is not None else ""),
        ),
    ]
    return _judged(
        seen,
        parts,
        capacity=capacity,
        limit=limit,
        connections=connections,
        plan_nodes=plan_nodes,
        each=(
            round(mean + tables_mean + shared_per_connection_bytes),
            round(
                p95 + tables_full + plan_nodes * node + settings.temp_buffers + shared_per_connection_bytes
            ),
        ),
        nodes=(connections + settings.parallel_workers) * plan_nodes,
        settings=settings,
        remarks=[
            *saved_by_huge_pages(
                (len(others) + connections) * tables_full,
                (len(others) + connections) * (own_tables_bytes + page_tables_of(touched, huge_bytes)),
                capacity,
            ),
            *own_work_mem(settings),
        ],
    )


def _logical_decoding(settings: MemorySettings) -> list[BudgetPart]:
    """Return what the logical replication slots take that decode large transactions (reorderbuffer.c)."""
    slots, each = settings.logical_slots, settings.logical_decoding_work_mem
    if not slots:
        return []
    why = f"{format_bytes(each)} (logical_decoding_work_mem) for each of {slots} logical replication slots"
    part = BudgetPart(
        name="logical decoding", now_bytes=0, low_bytes=0, high_bytes=slots * each, kind="assumed", why=why
    )
    return [part]


_SMALLEST_WORK_MEM: Final = 64 << 10
_LARGEST_WORK_MEM: Final = (2**31 - 1) << 10
"""guc_tables.c: `work_mem` is 64 kB to MAX_KILOBYTES."""


def _fitting_work_mem(room_bytes: int, nodes: int, settings: MemorySettings) -> int | None:
    """Return the largest work_mem, in whole kB, that this many nodes may have; None if none is possible."""
    if nodes <= 0:
        return None
    found = int(room_bytes / nodes / max(1.0, settings.hash_mem_multiplier)) // 1024 * 1024
    return min(found, _LARGEST_WORK_MEM) if found >= _SMALLEST_WORK_MEM else None


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


def _slowed(seen: MemoryResult, more_bytes: int) -> str | None:
    """Return what a memory.high does where so much more is taken: nothing is killed, but all have to wait."""
    memory = None if seen.place is None else seen.place.memory
    if memory is None or memory.high_bytes is None or memory.high_available_bytes is None:
        return None
    if more_bytes <= memory.high_available_bytes:
        return None
    return (
        f"{format_bytes(memory.high_available_bytes)} are left below the memory.high of "
        f"{format_bytes(memory.high_bytes)} of a memory cgroup: above it all its processes are slowed down"
    )


def _judged(
    seen: MemoryResult,
    parts: list[BudgetPart],
    *,
    capacity: int,
    limit: int | None,
    connections: int,
    plan_nodes: int,
    each: tuple[int, int],
    nodes: int,
    settings: MemorySettings,
    remarks: list[str],
) -> BudgetResult:
    now, low, high = (
        sum(getattr(part, field) for part in parts) for field in ("now_bytes", "low_bytes", "high_bytes")
    )
    possible, safe = (
        max(0, (capacity - (total - connections * one)) // max(1, one))
        for total, one in ((low, each[0]), (high, each[1]))
    )
    # The verdict is `fits` while a tenth is left for cached files.
    room = round(capacity * (1 - SCARCE_RATIO))
    fitting = (room - (high - connections * each[1])) // max(1, each[1])
    fitting = min(max(0, fitting), _MOST_CONNECTIONS)
    work_mem = _fitting_work_mem(room - (high - nodes * settings.largest_node), nodes, settings)
    like = "as those of today" if seen.connections else "as one that has just begun"
    whose = "the memory cgroup's limit" if limit is not None else "the host's memory"
    reasons = []
    if low > capacity:
        verdict = "will be killed"
        reasons.append(
            f"{format_count(connections)} connections {like} need {format_bytes(low)}, {whose} is "
            f"{format_bytes(capacity)}: from {format_count(possible + 1)} on processes are killed"
        )
    elif high > capacity:
        verdict = "tight"
        reasons.append(
            f"{format_count(connections)} connections {like} fit; if each takes what the settings allow they "
            f"need {format_bytes(high)}, {whose} is {format_bytes(capacity)}: {format_count(safe)} would fit"
        )
    elif capacity - high < SCARCE_RATIO * capacity:
        verdict = "tight"
        reasons.append(
            f"it fits, but leaves only {format_bytes(capacity - high)} for cached files at the high end"
        )
    else:
        verdict = "fits"
        reasons.append(
            f"{format_count(connections)} connections that take what the settings allow need "
            f"{format_bytes(high)} of {format_bytes(capacity)}"
        )
    if (slowed := _slowed(seen, high - now)) is not None:
        verdict = "tight" if verdict == "fits" else verdict
        reasons.append(slowed)
    if high > capacity and seen.place is not None and seen.place.memory.killed_together:
        reasons.append(
            "all processes of the server's cgroup are killed together there (memory.oom.group): the server "
            "stops, where otherwise a session ends and the server recovers"
        )
    swap = seen.host.swap_bytes
    if limit is not None:
        swap = 0 if seen.place is None else seen.place.memory.swap_bytes
    if swap and low > capacity:
        reasons.append(f"before that {format_bytes(swap)} of swap are filled, which is slow")
    if (most := _connections_allowed(seen)) is not None and most < possible:
        safe, possible = min(safe, most), most
        if most < connections:
            verdict = "tight" if verdict == "fits" else verdict
            reasons.append(
                f"no more than {format_count(most)} connections are allowed: each is a process "
                f"({'' if seen.place is None else seen.place.process_limit_name})"
            )
    return BudgetResult(
        server_version=seen.server_version,
        database=seen.database,
        memory_bytes=seen.host.memory_bytes,
        capacity_bytes=capacity,
        limit_bytes=limit,
        connections=seen.connections,
        max_connections=connections,
        plan_nodes=plan_nodes,
        parts=parts,
        page_cache_bytes=(capacity - now, capacity - low, capacity - high),
        verdict=verdict,
        reasons=reasons + remarks,
        safe_connections=safe,
        possible_connections=possible,
        work_mem_bytes=settings.work_mem,
        fitting_connections=fitting,
        fitting_work_mem_bytes=work_mem,
        missing=seen.missing,
        place=seen.place,
    )


def _connections_allowed(seen: MemoryResult) -> int | None:
    """Return how many connections a limit on processes allows, beside all that is there now."""
    room = None if seen.place is None else seen.place.process_room
    # Ours is one of the processes, and ends with this command.
    return None if room is None else (seen.connections or 0) + room + 1
