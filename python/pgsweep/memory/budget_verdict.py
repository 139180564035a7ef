"""What a budget says: whether the memory suffices, for how many connections, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pgsweep.pg.catalog.memory_settings import MemorySettings
from pgsweep.records.budget import BudgetPart, BudgetResult
from pgsweep.records.memory import MemoryResult
from pgsweep.units import format_bytes, format_count

SCARCE_RATIO: Final = 0.1
"""With less than this share of the memory left for cached files the verdict is `tight`."""

MOST_CONNECTIONS: Final = 2**18 - 1
"""MAX_BACKENDS, postmaster.h."""

_SMALLEST_WORK_MEM: Final = 64 << 10
_LARGEST_WORK_MEM: Final = (2**31 - 1) << 10
"""guc_tables.c: `work_mem` is 64 kB to MAX_KILOBYTES."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a budget is for, in bytes where it is memory.

    Attributes:
        capacity: the memory that there is.
        limit: of the memory cgroup, where that is the capacity.
        connections: how many there are to be.
        plan_nodes: sorts and hashes of each at once.
        like, full: what one more connection takes: as today's do, and with all that the settings allow.
    """

    capacity: int
    limit: int | None
    connections: int
    plan_nodes: int
    like: int
    full: int


def judged(
    seen: MemoryResult,
    settings: MemorySettings,
    parts: list[BudgetPart],
    asked: Asked,
    remarks: list[str],
) -> BudgetResult:
    """Return the budget with its verdict.

    Args:
        seen: all processes.
        settings: the server's.
        parts: the uses of the memory.
        asked: what it is for.
        remarks: what is said besides.
    """
    now, low, high = (
        sum(getattr(part, field) for part in parts) for field in ("now_bytes", "low_bytes", "high_bytes")
    )
    capacity, connections = asked.capacity, asked.connections
    possible, safe = (
        max(0, (capacity - (total - connections * one)) // max(1, one))
        for total, one in ((low, asked.like), (high, asked.full))
    )
    # The verdict is `fits` while a tenth is left for cached files.
    room = round(capacity * (1 - SCARCE_RATIO))
    fitting = (room - (high - connections * asked.full)) // max(1, asked.full)
    nodes = (connections + settings.parallel_workers) * asked.plan_nodes
    verdict, reasons = _verdict(seen, asked, (low, high), (possible, safe))
    held_back = [_slowed(seen, high - now)]
    reasons += _what_happens(seen, asked, (low, high))
    if (most := _connections_allowed(seen)) is not None and most < possible:
        safe, possible = min(safe, most), most
        if most < connections:
            held_back.append(
                f"no more than {format_count(most)} connections are allowed: each is a process "
                f"({'' if seen.place is None else seen.place.process_limit_name})"
            )
    against = [reason for reason in held_back if reason is not None]
    return BudgetResult(
        server_version=seen.server_version,
        database=seen.database,
        memory_bytes=seen.host.memory_bytes,
        capacity_bytes=capacity,
        limit_bytes=asked.limit,
        connections=seen.connections,
        max_connections=connections,
        plan_nodes=asked.plan_nodes,
        parts=parts,
        page_cache_bytes=(capacity - now, capacity - low, capacity - high),
        verdict="tight" if against and verdict == "fits" else verdict,
        reasons=[*reasons, *against, *remarks],
        safe_connections=safe,
        possible_connections=possible,
        work_mem_bytes=settings.work_mem,
        fitting_connections=min(max(0, fitting), MOST_CONNECTIONS),
        fitting_work_mem_bytes=_fitting_work_mem(
            room - (high - nodes * settings.largest_node), nodes, settings
        ),
        missing=seen.missing,
        place=seen.place,
    )


def _verdict(
    seen: MemoryResult, asked: Asked, needed: tuple[int, int], fit: tuple[int, int]
) -> tuple[str, list[str]]:
    """Return the verdict by the memory alone, and the reason.

    Args:
        seen: all processes.
        asked: what the budget is for.
        needed: bytes at both ends.
        fit: how many connections fit at both ends.
    """
    (low, high), capacity = needed, asked.capacity
    like = "as those of today" if seen.connections else "as one that has just begun"
    whose = "the memory cgroup's limit" if asked.limit is not None else "the host's memory"
    many = format_count(asked.connections)
    if low > capacity:
        return "will be killed", [
            f"{many} connections {like} need {format_bytes(low)}, {whose} is "
            f"{format_bytes(capacity)}: from {format_count(fit[0] + 1)} on processes are killed"
        ]
    if high > capacity:
        return "tight", [
            f"{many} connections {like} fit; if each takes what the settings allow they need "
            f"{format_bytes(high)}, {whose} is {format_bytes(capacity)}: {format_count(fit[1])} would fit"
        ]
    if capacity - high < SCARCE_RATIO * capacity:
        return "tight", [
            f"it fits, but leaves only {format_bytes(capacity - high)} for cached files at the high end"
        ]
    return "fits", [
        f"{many} connections that take what the settings allow need "
        f"{format_bytes(high)} of {format_bytes(capacity)}"
    ]


def _what_happens(seen: MemoryResult, asked: Asked, needed: tuple[int, int]) -> list[str]:
    """Return what the kernel does where the memory does not suffice at one of both ends."""
    low, high = needed
    memory = None if seen.place is None else seen.place.memory
    found = []
    if high > asked.capacity and memory is not None and memory.killed_together:
        found.append(
            "all processes of the server's cgroup are killed together there (memory.oom.group): the server "
            "stops, where otherwise a session ends and the server recovers"
        )
    swap = seen.host.swap_bytes
    if asked.limit is not None:
        swap = 0 if memory is None else memory.swap_bytes
    if swap and low > asked.capacity:
        found.append(f"before that {format_bytes(swap)} of swap are filled, which is slow")
    return found


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


def _fitting_work_mem(room_bytes: int, nodes: int, settings: MemorySettings) -> int | None:
    """Return the largest work_mem, in whole kB, that this many nodes may have; None if none is possible."""
    if nodes <= 0:
        return None
    found = int(room_bytes / nodes / max(1.0, settings.hash_mem_multiplier)) // 1024 * 1024
    return min(found, _LARGEST_WORK_MEM) if found >= _SMALLEST_WORK_MEM else None


def _connections_allowed(seen: MemoryResult) -> int | None:
    """Return how many connections a limit on processes allows, beside all that is there now."""
    room = None if seen.place is None else seen.place.process_room
    # Ours is one of the processes, and ends with this command.
    return None if room is None else (seen.connections or 0) + room + 1
