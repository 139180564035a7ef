"""The share of misses that reaches the disk, predicted from a short stretch, against a long simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.sizing.page_cache.addresses import NOWHERE, Addresses
from pgsweep.sizing.page_cache.both_caches import BothCaches, PageCache
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from tests.fix_ids import from_ids

BLOCKS = 20_000
PER_SECOND = 20_000
RULES = _native.Rules(18)
READAHEAD_BYTES = 128 << 10


def zipf(exponent: float, accesses: int) -> np.ndarray:
    random = np.random.default_rng(11)
    weights = np.arange(1, BLOCKS + 1) ** -exponent
    drawn = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(accesses))
    return random.permutation(BLOCKS)[drawn].astype(np.uint32)


def truth(pages: np.ndarray, pool: int, cache_pages: int, counted: int) -> float:
    """Return which part of the pool's misses in the last accesses waits for the disk."""
    outcomes = _native.replay_outcomes(pages, pool, RULES)["outcomes"]
    missed = np.flatnonzero(outcomes == 1)
    seconds = missed / PER_SECOND
    seen = _native.access_files(
        pages[missed],
        np.array([0, BLOCKS], np.uint32),
        capacity_pages=cache_pages,
        readahead_pages=READAHEAD_BYTES // 4096,
        gathered=np.searchsorted(seconds, np.arange(0, seconds[-1], 2.0)).astype(np.uint64),
    )
    late = missed >= len(pages) - counted
    return float((seen["missing_pages"][late] > 0).mean())


def cache_of(blocks: int, readahead_bytes: int = 0) -> PageCache:
    return PageCache(capacity_bytes=blocks * 8192, readahead_bytes=readahead_bytes, folio_order=0)


@pytest.mark.parametrize("exponent", [0.7, 1.0])
def test_a_short_stretch_predicts_what_reaches_the_disk(exponent: float) -> None:
    pages = zipf(exponent, 1_200_000)
    stretch = pages[-150_000:]
    named, dense = np.unique(stretch, return_inverse=True)
    trace = from_ids(dense.astype(np.uint32), np.arange(len(stretch)) / PER_SECOND)
    trace = replace(trace, group_pages=np.array([float(BLOCKS)]))
    addresses = Addresses(
        of_page=named.astype(np.uint32),
        begins=np.array([0, BLOCKS]),
        group=np.array([0]),
        files=np.array([0, BLOCKS], np.uint32),
    )
    visits = count_visits(trace)
    caches = BothCaches(
        trace,
        visits,
        WarmPools(trace, visits, RULES),
        addresses,
        np.zeros(1),
        RULES,
        [0],
    )
    for pool, cache in ((1_000, 5_000), (4_000, 4_000)):
        (found,) = caches.at(pool, [cache_of(cache, READAHEAD_BYTES)])
        true = truth(pages, pool, cache * 2, len(stretch))
        assert found.disk_share == pytest.approx(true, abs=0.02), (pool, cache)
        assert found.turnovers > 1
        assert 0 < found.twice_blocks < pool
    # A page cache with room for all keeps what was ever read, also what has not left the pool since.
    (found,) = caches.at(BLOCKS, [cache_of(2 * BLOCKS, READAHEAD_BYTES)])
    seen = _native.replay_outcomes(pages, BLOCKS, RULES)
    held = np.count_nonzero(seen["buffer_pages"] < BLOCKS)
    assert found.twice_blocks == pytest.approx(held, rel=0.06)


def test_what_the_pool_evicts_dirty_is_written_into_the_page_cache() -> None:
    """A page that was written out is found there when it is next needed."""
    pages = zipf(0.6, 100_000)
    named, dense = np.unique(pages, return_inverse=True)
    trace = from_ids(dense.astype(np.uint32), np.arange(len(pages)) / PER_SECOND)
    trace = replace(trace, group_pages=np.array([float(BLOCKS)]))
    addresses = Addresses(
        of_page=named.astype(np.uint32),
        begins=np.array([0, BLOCKS]),
        group=np.array([0]),
        files=np.array([0, BLOCKS], np.uint32),
    )
    visits = count_visits(trace)
    pools = WarmPools(trace, visits, RULES)
    shares = []
    for dirty in (0.0, 1.0):
        caches = BothCaches(trace, visits, pools, addresses, np.array([dirty]), RULES, [0])
        (found,) = caches.at(2_000, [replace(cache_of(3_000), policy="fifo")])
        shares.append(found.disk_share)
    assert shares[1] < shares[0] - 0.01


def test_a_sample_of_the_blocks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extents of neighbours stay together, and both caches are smaller by the same factor."""
    pages = zipf(0.8, 300_000)
    named, dense = np.unique(pages, return_inverse=True)
    trace = from_ids(dense.astype(np.uint32), np.arange(len(pages)) / PER_SECOND)
    trace = replace(trace, group_pages=np.array([float(BLOCKS)]))
    addresses = Addresses(
        of_page=named.astype(np.uint32),
        begins=np.array([0, BLOCKS]),
        group=np.array([0]),
        files=np.array([0, BLOCKS], np.uint32),
    )
    visits = count_visits(trace)
    pools = WarmPools(trace, visits, RULES)
    found = []
    for halvings in (0, 1):
        monkeypatch.setattr(
            "pgsweep.sizing.page_cache.both_caches.halvings_of", lambda *_, halvings=halvings: halvings
        )
        caches = BothCaches(trace, visits, pools, addresses, np.zeros(1), RULES, [0])
        found.append(caches.at(3_000, [cache_of(6_000)])[0])
    whole, half = found
    assert half.misses == pytest.approx(whole.misses / 2, rel=0.05)
    assert half.disk_share == pytest.approx(whole.disk_share, abs=0.015)
    assert half.twice_blocks == pytest.approx(whole.twice_blocks, rel=0.05)
    assert half.all_misses == pytest.approx(whole.all_misses, rel=0.05)
    assert half.turnovers == pytest.approx(whole.turnovers, rel=0.1)


def test_a_sample_keeps_neighbours_and_the_order_of_blocks() -> None:
    begins = np.array([0, 1000, 1000, 5000])
    addresses = Addresses(
        of_page=np.array([999, NOWHERE, *range(1000, 5000)], dtype=np.uint32),
        begins=begins,
        group=np.array([0, 1, 0]),
        files=np.array([0, 1000, 1000, 3000, 5000], np.uint32),
    )
    accesses = np.random.default_rng(1).integers(0, 9, 5000)
    assert addresses.sampled(accesses, 0, np.random.default_rng(0)) is addresses
    sample = addresses.sampled(accesses, 2, np.random.default_rng(0))
    assert sample.of_page[1] == NOWHERE
    kept = np.flatnonzero(sample.of_page[2:] != NOWHERE)
    assert (np.diff(sample.of_page[2:][kept].astype(np.int64)) == 1).all()
    assert len(kept) == pytest.approx(1000, abs=40)
    assert set(np.bincount(kept // 32, minlength=125).tolist()) == {0, 32}
    assert sample.blocks == sample.files[-1]
    assert sample.begins[1] == sample.begins[2] == sample.blocks - len(kept)
    share = accesses[1000:][kept].sum() / accesses[1000:].sum()
    assert share == pytest.approx(0.25, abs=0.01)
