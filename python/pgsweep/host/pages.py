"""The kernel's pages: how many a block has, and what their size makes of page tables.

Pages have 4 kB on x86-64, and 4, 16 or 64 kB on arm64, as the kernel was built (arch/arm64/Kconfig). A block
of 8 kB is then two pages, or a part of one.
"""

from __future__ import annotations

import mmap
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE

ENTRY_BYTES: Final = 8
"""Of a page table, on x86-64 and arm64."""


def pages_of_block(block_bytes: int) -> int:
    """Return how many pages are counted for a block that is in the page cache, whole.

    A block that is a part of a page counts as one page, as the native module counts it.

    Args:
        block_bytes: size of a block.
    """
    return max(1, block_bytes // PAGE_BYTES)


def counted_bytes(block_bytes: int) -> int:
    """Return how many bytes of a block each page stands for that is counted for it.

    Args:
        block_bytes: size of a block.
    """
    return min(PAGE_BYTES, block_bytes)


def table_spans(page_bytes: int) -> tuple[int, int, int]:
    """Return how many bytes a page table of the last level maps, and tables of the two levels above.

    A page table takes one page, and its entries have 8 bytes: tables of 4 kB map 2 MB, 1 GB and 512 GB
    (Linux's Documentation/mm/page_tables.rst).

    Args:
        page_bytes: size of the kernel's pages.
    """
    entries = page_bytes // ENTRY_BYTES
    last = entries * page_bytes
    return last, last * entries, last * entries**2
