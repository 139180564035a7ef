"""Whether what lies in a server's memory is the buffer pool that the server says it has.

The layout of buffer descriptors is known by version (probe/src/descriptor.rs), and each descriptor shows its
own number, so that a pool of another layout is refused there. Between two layouts whose numbers lie at the
same place (the state's bits in another order, for one) only the server's own numbers decide: how many buffers
there are, and how many hold a page. Where it may not be asked for the latter, there must be some: this very
session has just read catalogs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pgsweep.pg.catalog.server import Server
from pgsweep.units import format_count

if TYPE_CHECKING:
    from pgsweep._native import PoolTable

MAX_USAGE_COUNT: Final = 5
"""BM_MAX_USAGE_COUNT (src/include/storage/buf_internals.h)."""

_LAST_FORK: Final = 3
_SLACK_BUFFERS: Final = 64
_SLACK_SHARE: Final = 0.01


def disagreement(
    pool: PoolTable, server: Server, counted_before: int | None, counted_after: int | None
) -> str | None:
    """Return why a pool cannot be that server's; None if it can.

    Args:
        pool: as it lies in the memory, or a sample of it.
        server: what the session says of it.
        counted_before: used buffers as the server counts them, before the pool was read; None where it was
            not asked.
        counted_after: the same afterwards.
    """
    if pool["buffers"] != server.shared_buffers_blocks:
        return (
            f"the pool has {format_count(pool['buffers'])} buffers there, shared_buffers is "
            f"{format_count(server.shared_buffers_blocks)}"
        )
    found = pool["used"]
    if not found:
        return "not a single buffer holds a page there"
    counts, forks = pool["usage_count"].max(initial=0), pool["fork"].max(initial=0)
    if counts > MAX_USAGE_COUNT or forks > _LAST_FORK:
        return "a usage count or a fork number is impossible"
    if counted_before is not None and counted_after is not None:
        slack = _SLACK_BUFFERS + _SLACK_SHARE * server.shared_buffers_blocks
        least, most = sorted((counted_before, counted_after))
        if not least - slack <= found <= most + slack:
            return (
                f"{format_count(found)} buffers hold a page there, the server counts "
                f"{format_count(counted_after)}"
            )
    return None
