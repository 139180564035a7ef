"""Sizes of shared_buffers to predict: which are possible, and which are taken where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pgsweep.errors import UsageError
from pgsweep.units import BLOCK_BYTES, format_bytes

if TYPE_CHECKING:
    from pgsweep.sizing.what_if.grammar import Asked

SMALLEST_BYTES = 16 * BLOCK_BYTES
"""The server's own minimum: shared_buffers >= 16 blocks = 128 kB (guc_tables.c, `NBuffers`)."""

LARGEST_BYTES = (2**30 - 1) * BLOCK_BYTES
"""The server's own maximum: shared_buffers <= INT_MAX / 2 blocks, a little under 8 TB (guc_tables.c)."""

MOST_SIZES = 1000

DEFAULT_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


def check_size(size_bytes: int, text: str | None = None) -> int:
    """Return a size in bytes, and refuse one that no server can have.

    Args:
        size_bytes: of shared_buffers.
        text: as it was written.

    Raises:
        UsageError: it is too small or too large.
    """
    named = format_bytes(size_bytes) if text is None else text
    if size_bytes < SMALLEST_BYTES:
        raise UsageError(
            f"`{named}` is too small for shared_buffers",
            cause="PostgreSQL accepts 16 blocks at least, which is 128 kB",
            hint="name sizes of 128kB or more; a number without a unit is bytes",
        )
    if size_bytes > LARGEST_BYTES:
        raise UsageError(
            f"`{named}` is too large for shared_buffers",
            cause=f"PostgreSQL accepts 1073741823 blocks at most, which is {format_bytes(LARGEST_BYTES)}",
            hint="name smaller sizes, for example --sizes 1GB,2GB,4GB",
        )
    return size_bytes


@dataclass(frozen=True, kw_only=True)
class SizesAsked:
    """Sizes of the pool that were asked for, in blocks.

    Attributes:
        named: None where nobody named any, so that others may be added.
        of_what_ifs: besides these.
    """

    named: tuple[int, ...] | None = None
    of_what_ifs: tuple[int, ...] = ()

    @classmethod
    def of(cls, sizes_bytes: Sequence[int] | None, asked: Sequence[Asked] = ()) -> Self:
        """Check sizes in bytes, and those of what-ifs.

        Raises:
            UsageError: one is too small or too large, or there are none or too many.
        """
        from pgsweep.sizing.what_if.grammar import SharedBuffers

        if sizes_bytes is not None and not sizes_bytes:
            raise UsageError("no size is given", hint="for example: --sizes 64MB,128MB,1GB")
        named = None if sizes_bytes is None else tuple(_blocks(size) for size in sizes_bytes)
        if named is not None and len(named) > MOST_SIZES:
            raise UsageError(
                f"{len(named)} sizes are too many, {MOST_SIZES} are possible",
                hint="give fewer, for example --sizes 64MB,128MB,1GB",
            )
        more = tuple(_blocks(one.size_bytes) for one in asked if isinstance(one, SharedBuffers))
        return cls(named=named, of_what_ifs=more)

    def or_else(self, usual_blocks: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes, with the usual ones where none was named."""
        found = tuple(usual_blocks) if self.named is None else self.named
        return tuple(sorted({*found, *self.of_what_ifs})) if self.of_what_ifs else found

    def or_around(self, pool_blocks: int) -> tuple[int, ...]:
        """Return the sizes, with some around today's where none was named."""
        largest = LARGEST_BYTES // BLOCK_BYTES
        around = {min(max(round(pool_blocks * factor), 16), largest) for factor in DEFAULT_FACTORS}
        return self.or_else(sorted(around))


def _blocks(size_bytes: int) -> int:
    return round(check_size(size_bytes) / BLOCK_BYTES)


def whole_megabytes(blocks: int) -> int:
    """Return a size rounded up to whole megabytes, as people set it; below one, the blocks themselves."""
    megabyte = (1 << 20) // BLOCK_BYTES
    return blocks if blocks < megabyte else -(-blocks // megabyte) * megabyte
