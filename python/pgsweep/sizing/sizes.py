"""Sizes of shared_buffers to predict: which are possible, and which are taken where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pgsweep.errors import UsageError
from pgsweep.units import BLOCK_BYTES, format_bytes

if TYPE_CHECKING:
    from pgsweep.sizing.ring_limits import RingLimit
    from pgsweep.sizing.what_if.grammar import Asked

SMALLEST_BYTES = 128 * 1024
"""shared_buffers has a minimum of 16 blocks (guc_tables.c)."""

LARGEST_BYTES = (2**30 - 1) * BLOCK_BYTES
"""shared_buffers is at most INT_MAX / 2 blocks (guc_tables.c)."""

MOST_SIZES = 1000

DEFAULT_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def check_sizes(sizes_bytes: Sequence[int]) -> None:
    """Refuse sizes that no server can have, and too many.

    Raises:
        UsageError: one is too small or too large, or there are none or too many.
    """
    if not sizes_bytes:
        raise UsageError("no size is given", hint="for example: --sizes 64MB,128MB,1GB")
    for size in sizes_bytes:
        if size < SMALLEST_BYTES:
            raise UsageError(
                f"{format_bytes(size)} is smaller than the least shared_buffers, 128 kB",
                hint="give sizes of 128kB or more, for example --sizes 64MB,128MB,1GB",
            )
        if size > LARGEST_BYTES:
            raise UsageError(
                f"{size} bytes are more than the largest shared_buffers, {format_bytes(LARGEST_BYTES)}",
                hint="give smaller sizes, for example --sizes 64MB,128MB,1GB",
            )
    if len(sizes_bytes) > MOST_SIZES:
        raise UsageError(
            f"{len(sizes_bytes)} sizes are too many, {MOST_SIZES} are possible",
            hint="give fewer, for example --sizes 64MB,128MB,1GB",
        )


def blocks_of(
    sizes_bytes: Sequence[int] | None, pool_blocks: int, asked: Sequence[Asked] = ()
) -> tuple[int, ...]:
    """Return the sizes in blocks: those named, or some around today's, and those of what-ifs."""
    from pgsweep.sizing.what_if.grammar import SharedBuffers

    largest = LARGEST_BYTES // BLOCK_BYTES
    more = [one.size_bytes for one in asked if isinstance(one, SharedBuffers)]
    if more:
        check_sizes(more)
    added = [round(size / BLOCK_BYTES) for size in more]
    if sizes_bytes is not None:
        found = tuple(round(size / BLOCK_BYTES) for size in sizes_bytes)
        return tuple(sorted({*found, *added})) if added else found
    around = (min(max(round(pool_blocks * factor), 16), largest) for factor in DEFAULT_FACTORS)
    return tuple(sorted({*around, *added}))


def with_ring_limits(sizes_blocks: tuple[int, ...], scans: list[RingLimit]) -> tuple[int, ...]:
    """Return sizes with those among them from which on scans use no ring."""
    limits = {whole_megabytes(one.ring_below_blocks) for one in scans}
    between = {size for size in limits if min(sizes_blocks) < size < max(sizes_blocks)}
    return tuple(sorted({*sizes_blocks, *between}))


def whole_megabytes(blocks: int) -> int:
    """Return whole megabytes, as people set sizes; below a megabyte the blocks themselves."""
    megabyte = (1 << 20) // BLOCK_BYTES
    return blocks if blocks < megabyte else -(-blocks // megabyte) * megabyte
