"""Blocks and page tables on kernels whose pages have 16 or 64 kB."""

from __future__ import annotations

import numpy as np
import pytest

from pgsweep.host import pages
from pgsweep.residency.snapshot import CacheSnapshot, compare

KB, MB, GB, TB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


@pytest.mark.parametrize(
    ("page_bytes", "block_bytes", "counted", "each_bytes"),
    [
        (4 * KB, 8 * KB, 2, 4 * KB),
        (4 * KB, 32 * KB, 8, 4 * KB),
        (4 * KB, 1 * KB, 1, 1 * KB),
        (16 * KB, 8 * KB, 1, 8 * KB),
        (16 * KB, 32 * KB, 2, 16 * KB),
        (64 * KB, 8 * KB, 1, 8 * KB),
    ],
)
def test_pages_of_a_block_make_up_the_block(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int, block_bytes: int, counted: int, each_bytes: int
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", page_bytes)
    assert pages.pages_of_block(block_bytes) == counted
    assert pages.counted_bytes(block_bytes) == each_bytes
    assert counted * each_bytes == block_bytes


def test_page_tables_map_what_the_kernel_documents() -> None:
    # The sizes of PMD and PUD of arm64 (Documentation/arch/arm64/memory.rst, hugetlbpage.rst).
    assert pages.table_spans(4 * KB) == (2 * MB, 1 * GB, 512 * GB)
    assert pages.table_spans(16 * KB) == (32 * MB, 64 * GB, 128 * TB)
    assert pages.table_spans(64 * KB) == (512 * MB, 4 * TB, 32 << 50)


def test_a_block_in_a_large_page_is_gained_and_lost_whole() -> None:
    fork = (1663, 5, 16384, 0)
    before = CacheSnapshot({}, 8 * KB, {fork: np.array([1, 0, 1], dtype=np.uint8)})
    after = CacheSnapshot({}, 8 * KB, {fork: np.array([1, 1, 0], dtype=np.uint8)})
    change = compare(before, after)[fork]
    assert change.page_cache_in is not None
    assert change.page_cache_in.tolist() == [1]
    assert (change.page_cache_in_bytes, change.page_cache_out_bytes) == (8 * KB, 8 * KB)
