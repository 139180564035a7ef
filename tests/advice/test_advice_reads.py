"""Bounds of what comes from disk, where only misses are known, against a simulation of both caches."""

from __future__ import annotations

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.advice.reads import LEAST_OF_ONE_CACHE, MOST_OF_ONE_CACHE

BLOCKS, PER_SECOND, COUNTED = 10_000, 20_000, 150_000
RULES = _native.Rules(18)


@pytest.mark.parametrize("exponent", [0.7, 1.2])
def test_disk_reads_lie_between_the_bounds(exponent: float) -> None:
    random = np.random.default_rng(5)
    weights = np.arange(1, BLOCKS + 1) ** -exponent
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(400_000))
    pages = random.permutation(BLOCKS)[drawn].astype(np.uint32)
    late = len(pages) - COUNTED

    def missed(pool: int) -> np.ndarray:
        return np.flatnonzero(_native.replay_outcomes(pages, pool, RULES)["outcomes"] == 1)

    def misses(pool: int) -> float:
        return float((missed(pool) >= late).sum()) / COUNTED

    for pool, cache in ((250, 4_000), (1_000, 4_000), (2_000, 2_000), (4_000, 1_000)):
        reads = missed(pool)
        seconds = reads / PER_SECOND
        seen = _native.access_files(
            pages[reads],
            np.array([0, BLOCKS], np.uint32),
            capacity_pages=cache * 2,
            readahead_pages=32,
            gathered=np.searchsorted(seconds, np.arange(0, seconds[-1], 2.0)).astype(np.uint64),
        )
        disk = float((seen["missing_pages"][reads >= late] > 0).sum()) / COUNTED
        one = misses(max(pool, cache))
        low = max(misses(pool + cache), one * LEAST_OF_ONE_CACHE)
        high = min(misses(pool), one * MOST_OF_ONE_CACHE)
        assert low <= disk <= high * 1.001, (pool, cache)
