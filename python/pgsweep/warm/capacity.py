"""How much each cache may be given: what it holds, less a reserve for which there is a reason."""

from __future__ import annotations

from pgsweep.errors import UsageError
from pgsweep.host.procfile import HostMemory
from pgsweep.records.warm import WarmBudget

_POOL_RESERVE_PART = 8
_POOL_RESERVE_MOST_BYTES = 256 << 20
_PAGE_CACHE_RESERVE_PART = 10


def pool_budget(shared_buffers_bytes: int, given_bytes: int | None) -> WarmBudget:
    """Return what may be brought into the buffer pool.

    The reserve is for what sessions bring meanwhile, above all scans in their rings: a ring has an eighth of
    the pool at most (GetAccessStrategyWithSize, freelist.c). Without it the last pages to come push out the
    first.

    Args:
        shared_buffers_bytes: what the pool holds.
        given_bytes: the user's own budget; None for all but the reserve.
    """
    reserve = min(shared_buffers_bytes // _POOL_RESERVE_PART, _POOL_RESERVE_MOST_BYTES)
    why = "kept free for what sessions bring meanwhile"
    if given_bytes is not None:
        # More than the pool holds would push out what came first.
        reserve, why = max(0, shared_buffers_bytes - given_bytes), "by --budget"
    return WarmBudget(
        cache="pool",
        holds_bytes=shared_buffers_bytes,
        reserve_bytes=reserve,
        reserve_why=why,
        budget_bytes=shared_buffers_bytes - reserve,
    )


def page_cache_budget(
    memory: HostMemory | None, shared_buffers_bytes: int, given_bytes: int | None
) -> WarmBudget:
    """Return what may be brought into the page cache.

    MemAvailable counts memory that shared_buffers will take when it is used: that part is not given away.

    Args:
        memory: of the server's host; None where that is not this one.
        shared_buffers_bytes: what the pool will take of it.
        given_bytes: the user's own budget.

    Raises:
        UsageError: the memory is not known, and there is no budget.
    """
    if memory is None or memory.available is None:
        if given_bytes is None:
            raise UsageError(
                "how much the page cache of the server's host holds is not known here",
                cause="pgsweep does not run on the server's host, or not as its user or root",
                hint="say how much to bring: --budget 8GB",
            )
        return WarmBudget(
            cache="page cache",
            holds_bytes=None,
            reserve_bytes=0,
            reserve_why="by --budget",
            budget_bytes=given_bytes,
        )
    untouched = 0 if memory.huge_pages >= shared_buffers_bytes else shared_buffers_bytes - memory.shmem
    reserve = max(0, untouched) + memory.available // _PAGE_CACHE_RESERVE_PART
    why = "kept free: a tenth, and what shared_buffers has not touched yet"
    budget = max(0, memory.available - reserve)
    if given_bytes is not None and given_bytes < budget:
        budget, why = given_bytes, "by --budget"
    return WarmBudget(
        cache="page cache",
        holds_bytes=memory.available,
        reserve_bytes=memory.available - budget,
        reserve_why=why,
        budget_bytes=budget,
    )
