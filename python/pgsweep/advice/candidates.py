"""The sizes of shared_buffers that are considered, and those at which the curve is needed for them."""

from __future__ import annotations

from typing import Final

from pgsweep.advice.situation import MB, rounded_down
from pgsweep.errors import UsageError
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.sizes import SMALLEST_BYTES
from pgsweep.units import BLOCK_BYTES

_FACTORS: Final = (0.25, 0.5, 2, 4, 8, 16, 64)
MOST_OF_MEMORY: Final = 0.8
"""What is left serves sessions, the kernel and the server's own reads of files that bypass the pool."""

_OF_MEMORY: Final = (1 / 16, 1 / 8, 0.25, 0.4, 0.5, 0.65, MOST_OF_MEMORY)

LEAST_ADVISED_BYTES: Final = 8 * MB
_NEAR: Final = 1.1


def candidates(
    today_bytes: int, memory_bytes: int | None, facts: MemoryFacts | None, often_used_bytes: int = 0
) -> list[int]:
    """Return the sizes to consider, today's among them, in ascending order.

    Args:
        today_bytes: shared_buffers now.
        memory_bytes: what pool and page cache share; None where it is not known.
        facts: how the memory is used; None where it is not known.
        often_used_bytes: the size of the buffers with usage counts of 4 and 5, which a rule of thumb uses.
    """
    found = {today_bytes}
    wanted = [rounded_down(round(today_bytes * factor)) for factor in _FACTORS]
    # The sizes that rules of thumb give are considered exactly as they are.
    fixed = {max(often_used_bytes, SMALLEST_BYTES)} if often_used_bytes else set()
    if memory_bytes is not None:
        fixed |= {rounded_down(round(memory_bytes * share)) for share in (0.25, 0.4)}
        wanted += [rounded_down(round(memory_bytes * share)) for share in _OF_MEMORY]
    for size in sorted(fixed) + sorted(wanted):
        least = SMALLEST_BYTES if size in fixed else LEAST_ADVISED_BYTES
        if size < least or not _possible(size, today_bytes, memory_bytes, facts):
            continue
        if size in fixed or all(max(size, one) / min(size, one) > _NEAR for one in found):
            found.add(size)
    return sorted(found)


def _possible(size: int, today: int, memory: int | None, facts: MemoryFacts | None) -> bool:
    if memory is None or facts is None:
        return size <= today * 8
    if size > memory * MOST_OF_MEMORY:
        return False
    try:
        facts.share(memory, size, today)
    except UsageError:
        return False
    return True


def sizes_for_bounds(
    sizes: list[int], today_bytes: int, memory_bytes: int | None, facts: MemoryFacts | None
) -> list[int]:
    """Return the sizes at which misses bound the disk reads at `sizes` (reads.py), these included."""
    found = set(sizes)
    if memory_bytes is not None and facts is not None:
        for size in sizes:
            try:
                share = facts.share(memory_bytes, size, today_bytes)
            except UsageError:
                continue
            found |= {size + share.page_cache_bytes, share.page_cache_bytes, share.low_bytes}
    return sorted({size // BLOCK_BYTES * BLOCK_BYTES for size in found if size >= SMALLEST_BYTES})
