"""The budget of each cache: what it holds, less a reserve whose reason is stated."""

from __future__ import annotations

import os

from pgsweep.errors import UsageError
from pgsweep.host.limits import MemoryRoom, page_cache_room
from pgsweep.host.place import look_at_memory
from pgsweep.host.procfile import HostMemory, read_host_memory
from pgsweep.records.warm import WarmBudget
from pgsweep.units import format_bytes

_POOL_RESERVE_PART = 8
_POOL_RESERVE_MOST_BYTES = 256 << 20
_PAGE_CACHE_RESERVE_PART = 10
_RESTORE_RESERVE_PART = 128


def pool_budget(shared_buffers_bytes: int, given_bytes: int | None) -> WarmBudget:
    """Return what may be brought into the buffer pool.

    The reserve is for what sessions bring meanwhile, above all scans in their rings: a ring has an eighth of
    the pool at most (GetAccessStrategyWithSize, freelist.c). Without the reserve the pages read last evict
    those read first.

    Args:
        shared_buffers_bytes: what the pool holds.
        given_bytes: the user's own budget; None for everything except the reserve.
    """
    reserve = min(shared_buffers_bytes // _POOL_RESERVE_PART, _POOL_RESERVE_MOST_BYTES)
    why = "kept free for what sessions bring meanwhile"
    if given_bytes is not None:
        # More than the pool holds would evict what was read first.
        reserve, why = max(0, shared_buffers_bytes - given_bytes), "by --budget"
    return WarmBudget(
        cache="pool",
        holds_bytes=shared_buffers_bytes,
        reserve_bytes=reserve,
        reserve_why=why,
        budget_bytes=shared_buffers_bytes - reserve,
    )


def restore_blocks(shared_buffers_blocks: int, budget_blocks: int | None = None) -> int:
    """Return how many blocks a restore may use of a pool: nearly all, as the saved blocks fitted in before.

    One buffer in 128 is left unused: for catalogs that our own sessions read, and for pins.
    """
    room = shared_buffers_blocks - -(-shared_buffers_blocks // _RESTORE_RESERVE_PART)
    return room if budget_blocks is None else min(room, budget_blocks)


def page_cache_budget_of(
    postmaster: int | None, shared_buffers_bytes: int, given_bytes: int | None, *, past_server: bool
) -> WarmBudget:
    """Return what may be brought into the page cache of a server's host now.

    Args:
        postmaster: process of a server on this host; None for one elsewhere.
        shared_buffers_bytes, given_bytes: as in `page_cache_budget`.
        past_server: this process reads the server's files itself.

    Raises:
        UsageError: the server is elsewhere, and there is no budget.
    """
    if postmaster is None:
        return page_cache_budget(None, shared_buffers_bytes, given_bytes)
    memory = look_at_memory(postmaster)
    if memory.limited == "unknown":
        return page_cache_budget(None, shared_buffers_bytes, given_bytes, why=memory.why)
    return page_cache_budget(
        read_host_memory(),
        shared_buffers_bytes,
        given_bytes,
        server=page_cache_room(postmaster),
        reader=page_cache_room(os.getpid()) if past_server else None,
    )


def page_cache_budget(
    memory: HostMemory | None,
    shared_buffers_bytes: int,
    given_bytes: int | None,
    *,
    server: MemoryRoom | None = None,
    reader: MemoryRoom | None = None,
    why: str | None = None,
) -> WarmBudget:
    """Return what may be brought into the page cache: what the host or a memory cgroup leaves for it.

    MemAvailable counts memory that shared_buffers will take when it is used: that part is subtracted.
    The same holds for the server's memory cgroup. What is read past the server is charged to the cgroup of
    the process that reads; what the server reads again later is charged to its own. Neither is exceeded.

    Args:
        memory: of the server's host; None where that is not this one.
        shared_buffers_bytes: what the pool will take of it.
        given_bytes: the user's own budget.
        server: the room in the server's memory cgroup; None without a limit.
        reader: likewise in the one of the process that reads past the server; None where none does.
        why: why the memory is not known, where the server is here.

    Raises:
        UsageError: the memory is not known, and there is no budget.
    """
    if memory is None or memory.available is None:
        if given_bytes is None:
            raise UsageError(
                "how much the page cache of the server's host holds is not known here",
                cause=why or "pgsweep does not run on the server's host, or not as its user or root",
                hint="say how much to bring: --budget 8GB",
            )
        return WarmBudget(
            cache="page cache",
            holds_bytes=None,
            reserve_bytes=0,
            reserve_why="by --budget",
            budget_bytes=given_bytes,
        )
    pool = 0 if memory.huge_pages >= shared_buffers_bytes else shared_buffers_bytes
    rooms = [(memory.available, max(0, pool - memory.shmem), "available on the host")]
    if server is not None:
        untouched = max(0, pool - server.shmem_bytes)
        rooms.append((server.available_bytes, untouched, _limited(server, "the server is in")))
    if reader is not None:
        rooms.append((reader.available_bytes, 0, _limited(reader, "pgsweep is in")))
    budget, holds, holds_why = min(
        (max(0, available - untouched - available // _PAGE_CACHE_RESERVE_PART), available, where)
        for available, untouched, where in rooms
    )
    reserved = "kept free: a tenth, and what shared_buffers has not touched yet"
    if given_bytes is not None and given_bytes < budget:
        budget, reserved = given_bytes, "by --budget"
    return WarmBudget(
        cache="page cache",
        holds_bytes=holds,
        holds_why=holds_why,
        reserve_bytes=holds - budget,
        reserve_why=reserved,
        budget_bytes=budget,
    )


def _limited(room: MemoryRoom, whose: str) -> str:
    return f"left by the limit of {format_bytes(room.limit_bytes)} of the memory cgroup {whose}, {room.path}"
