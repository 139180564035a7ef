"""What comes from disk, by rates fitted to a simulated pool, against both caches simulated directly."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from typing import Any

import numpy as np
import pytest

from pgsweep import _native
from pgsweep.sizing.page_cache.both_caches import PageCache
from pgsweep.sizing.page_cache.rate_caches import RateCaches
from pgsweep.sizing.page_cache.residence import Classes, Residence
from pgsweep.sizing.snapshots.ensemble import LoadCurves
from tests.fix_pool import PER_SECOND, RULES, Pages, record, zipf_pages

BLOCKS, BUFFERS = 8_000, 1_000
BEGIN, COUNT = 400_000, 1_000_000
BLOCK_BYTES = 8192


def cache_of(blocks: int, readahead_bytes: int = 0) -> PageCache:
    return PageCache(capacity_bytes=blocks * BLOCK_BYTES, readahead_bytes=readahead_bytes, folio_order=0)


def truth(accesses: Pages, pool: int, cache: int) -> tuple[float, float]:
    """Return which part of the misses waits for the disk, and the disk reads for each access."""
    missed = np.flatnonzero(_native.replay_outcomes(accesses, pool, RULES)["outcomes"] == 1)
    seconds = missed / PER_SECOND
    seen = _native.access_files(
        accesses[missed],
        np.array([0, BLOCKS], np.uint32),
        capacity_pages=2 * cache,
        readahead_pages=0,
        gathered=np.searchsorted(seconds, np.arange(0, seconds[-1], 2.0)).astype(np.uint64),
    )
    late = missed >= BEGIN
    waited = seen["missing_pages"][late] > 0
    return float(waited.mean()), float(waited.sum()) / (len(accesses) - BEGIN)


def truth_of_lru(accesses: Pages, pool: int, cache: int) -> float:
    """Return which part of the misses waits for the disk, where each block stays for the same time."""
    missed = np.flatnonzero(_native.replay_outcomes(accesses, pool, RULES)["outcomes"] == 1)
    kept: OrderedDict[int, None] = OrderedDict()
    waited = counted = 0
    for at, page in zip(missed.tolist(), accesses[missed].tolist(), strict=True):
        found = page in kept
        if found:
            kept.move_to_end(page)
        else:
            kept[page] = None
            if len(kept) > cache:
                kept.popitem(last=False)
        if at >= BEGIN:
            counted, waited = counted + 1, waited + (not found)
    return waited / counted


@pytest.fixture(scope="module", params=[0.7, 1.0])
def load(request: pytest.FixtureRequest) -> tuple[Pages, LoadCurves]:
    """Give accesses, and what is fitted to snapshots of a pool under them."""
    accesses = zipf_pages(BLOCKS, request.param, COUNT, 3)
    seen = record(accesses, BEGIN, pages=BLOCKS, buffers=BUFFERS, snapshots=24)
    found = seen.predict([BUFFERS], hand_seen=True)
    assert found.fitted is not None
    return accesses, found.fitted


SIZES = [(500, 3_000), (1_000, 1_000), (1_000, 4_000), (2_000, 2_000), (4_000, 2_000)]


def caches(fitted: LoadCurves, seed: int = 0) -> RateCaches:
    return RateCaches(fitted, RULES, np.random.default_rng(seed))


def test_fitted_rates_predict_what_reaches_the_disk(load: tuple[Pages, LoadCurves]) -> None:
    accesses, fitted = load
    simulated = caches(fitted)
    for pool, cache in SIZES:
        share, reads = truth(accesses, pool, cache)
        (behind,) = simulated.at(pool, [cache_of(cache)])
        assert behind.disk_share == pytest.approx(share, abs=0.01), (pool, cache)
        missed = reads / share
        assert behind.disk_share * missed == pytest.approx(reads, abs=0.01)
        assert behind.turnovers > 1
        assert behind.disk_blocks == pytest.approx(behind.disk_share, rel=0.01), "no readahead"


def test_the_closed_form_is_lru_and_near_the_two_lists(load: tuple[Pages, LoadCurves]) -> None:
    accesses, fitted = load
    simulated = caches(fitted)
    for pool, cache in SIZES:
        closed, kept = simulated.closed_form(fitted.best, pool, cache * BLOCK_BYTES)
        assert closed == pytest.approx(truth_of_lru(accesses, pool, cache), abs=0.01), (pool, cache)
        (behind,) = simulated.at(pool, [cache_of(cache)])
        # The lists read less, the most where both caches are equally large.
        assert 0.88 * closed < behind.disk_share < closed * 1.01, (pool, cache)
        assert 0 < kept < COUNT / PER_SECOND
    assert simulated.closed_form(fitted.best, 1_000, BLOCKS * BLOCK_BYTES) == (0.0, float("inf"))


def test_a_sample_of_the_pages_gives_the_same(load: tuple[Pages, LoadCurves], monkeypatch: Any) -> None:
    _, fitted = load
    (whole,) = caches(fitted).at(2_000, [cache_of(4_000)])
    monkeypatch.setattr("pgsweep.sizing.page_cache.rate_caches._PAGES", BLOCKS // 2)
    (half,) = caches(fitted).at(2_000, [cache_of(4_000)])
    assert half.disk_share == pytest.approx(whole.disk_share, abs=0.015)
    assert half.twice_blocks == pytest.approx(whole.twice_blocks, rel=0.15)


def test_new_pages_drive_nothing_out_of_a_page_cache_that_has_room_for_them(
    load: tuple[Pages, LoadCurves],
) -> None:
    _, fitted = load
    grown = copy(fitted)
    vars(grown)["growth"] = np.full_like(fitted.growth, 500.0)
    (behind,) = caches(grown).at(4_000, [cache_of(1_000 * BLOCKS)])
    assert behind.misses > 100
    assert behind.disk_share == 0


def test_readahead_reads_more_blocks_than_are_waited_for(load: tuple[Pages, LoadCurves]) -> None:
    """With random places by 2, 8 and 28% where 10, 20 and 40% of the database are cached."""
    _, fitted = load
    (behind,) = caches(fitted).at(500, [cache_of(BLOCKS * 4 // 10, 128 << 10)])
    assert 1.1 < behind.disk_blocks / behind.disk_share < 1.6


def test_residences_have_the_clock_passes_of_the_law() -> None:
    """P(absent) = 1 / (1 + x E[V])."""
    rate = np.geomspace(0.01, 0.3, 8)
    batch = np.tile([0.5, 0.3, 0.1, 0.06, 0.04], (8, 1))
    classes = Classes(group=np.zeros(8, int), pages=np.full(8, 100.0), rate=rate, batch=batch)
    found = Residence(classes, 1.0)
    passes = (1 / found.states[:, 0] - 1) / rate
    # For very long a page is in the page cache, unless it has not left the pool since.
    stay = (found.cached(1e9), found.found(1e9))
    assert np.allclose(stay, 1.0, atol=1e-4)
    for kept in (5.0, 50.0):
        # All that was read within that time, however long it stayed: none was read twice in it.
        assert (found.cached(kept) <= found.miss_rate * kept + 1e-9).all()
        assert (found.found(kept) <= -np.expm1(-rate * kept) + 1e-9).all()
    assert np.allclose((found._passes[:, None] * found._share).sum(axis=0), passes, rtol=1e-3)


@pytest.mark.parametrize("pool", [4_000, BLOCKS])
def test_a_page_cache_with_room_for_all_keeps_what_the_pool_holds(
    load: tuple[Pages, LoadCurves], pool: int
) -> None:
    """Each page of the pool was read through it once, and nothing pushed it out."""
    accesses, fitted = load
    seen = _native.replay_outcomes(accesses, pool, RULES)
    truth = np.count_nonzero(seen["buffer_pages"] < BLOCKS)
    (behind,) = caches(fitted).at(pool, [cache_of(2 * BLOCKS)])
    assert behind.twice_blocks == pytest.approx(truth, rel=0.06)
    assert behind.disk_share < 0.001
