"""What of the pool's misses comes from disk: the pool in front of the page cache, at any size of both.

The pool is replayed into a drawn state (traces/warm_start.py), first over an assumed past of the trace
(core/src/past.rs), then over the trace. What it misses is read through the page cache, and what it evicts
dirty is written there (core/src/both_caches.rs). The result is which share of the misses of the trace went to
disk. Where both caches are large, that is done with a sample of the blocks, in caches smaller in proportion.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.host.page_cache_rules import STATISTICS_SECONDS
from pgsweep.sizing.clock import Clock
from pgsweep.sizing.page_cache.addresses import NOWHERE, Addresses
from pgsweep.sizing.traces.accesses import STRATEGY, Trace
from pgsweep.sizing.traces.sampled import halvings_of
from pgsweep.sizing.traces.visits import VISIT_GAP_SECONDS, Visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.units import BLOCK_BYTES

PAGE_BYTES: Final = 4096
PAGES_A_BLOCK: Final = BLOCK_BYTES // PAGE_BYTES
_TURNOVERS: Final = 1.5
"""How many pages reach the page cache before the trace begins, for each that it has."""

_MOST_ROWS: Final = 30_000_000
"""Accesses of the past, at most."""

_LEAST_CACHE: Final = 16
"""A page cache is sampled as far as a pool of a 16th of it would be (pgsweep.sizing.traces.sampled): down to
128 MB."""

_LONGEST_PASS_SECONDS: Final = 1e9
LEAST_PAGES: Final = 4 << 9


@dataclass(frozen=True, kw_only=True)
class PageCache:
    """A page cache to simulate.

    Attributes:
        capacity_bytes: its size.
        readahead_bytes: of the device.
        folio_order: the largest folio of the file system.
        policy: `two-lists`, or `fifo` and `clock`, which bound the multi-generational LRU.
        written: what the pool evicts dirty is written into it.
    """

    capacity_bytes: int
    readahead_bytes: int
    folio_order: int
    policy: str = "two-lists"
    written: bool = True

    def holding(
        self, capacity_pages: int, resident: NDArray[np.uint32], *, pages_each: float
    ) -> _native.FileCache:
        """Return it as it is at first.

        Args:
            capacity_pages: its size as it is simulated, in pages of 4 kB.
            resident: blocks that it holds, in the order in which they were read; of more than it has room for
                the first ones.
            pages_each: how many pages each of them stands for.
        """
        return _native.FileCache(
            capacity_pages,
            self.readahead_bytes // PAGE_BYTES,
            folio_order=self.folio_order,
            policy=self.policy,
            resident=resident[: capacity_pages // PAGES_A_BLOCK],
            writes=self.written,
            pages_each=pages_each,
        )


@dataclass(frozen=True, kw_only=True)
class SimulatedReads:
    """What the page cache makes of the pool's misses at one size.

    Attributes:
        misses: of the database that were simulated; of a sample, where blocks were sampled.
        disk_share: what part of them waited for the disk.
        disk_blocks: blocks read from disk for each of them, readahead included.
        twice_blocks: blocks of the pool that the page cache holds too, at the end.
        refaults_per_second: pages of 4 kB that came back to the page cache; None where that is not known.
        turnovers: how many pages had reached the page cache before the trace began, for each that it has.
        group_misses: of these misses, those of each group of pages, as the trace numbers them.
        group_reads: likewise those that waited for the disk.
    """

    misses: int
    disk_share: float
    disk_blocks: float
    twice_blocks: int
    refaults_per_second: float | None = None
    turnovers: float
    group_misses: NDArray[np.float64]
    group_reads: NDArray[np.float64]

    @property
    def all_misses(self) -> float:
        """Return the misses of all groups."""
        return float(self.group_misses.sum())


@dataclass(frozen=True, kw_only=True)
class _Sample:
    """One block of some, and what the trace does to them; both caches are smaller by the same factor.

    Attributes:
        factor: 1 where it is all blocks.
        addresses: of these blocks.
        past: of the trace.
    """

    factor: int
    addresses: Addresses
    space: _native.FileSpace
    past: _native.Past


class BothCaches:
    """Simulates both caches over one trace.

    Args:
        trace: the accesses.
        visits: counted from it.
        pools: draws states of the pool.
        addresses: of the pages.
        dirty: how likely a page of each fork is dirty when it is evicted.
        rules: of the server.
        seed: of all draws.
    """

    def __init__(
        self,
        trace: Trace,
        visits: Visits,
        pools: WarmPools,
        addresses: Addresses,
        dirty: NDArray[np.float64],
        rules: _native.Rules,
        seed: Sequence[int],
    ) -> None:
        self._trace = trace
        self._visits = visits
        self._pools = pools
        self._addresses = addresses
        self._dirty = dirty
        self._rules = rules
        self._seed = seed
        self._samples: dict[int, _Sample] = {}
        # Sizes are simulated at the same time.
        self._lock = threading.Lock()

    def _sample(self, halvings: int) -> _Sample:
        """Return a sample of the blocks, the same at all sizes."""
        with self._lock:
            if halvings not in self._samples:
                self._samples[halvings] = self._draw_sample(halvings)
            return self._samples[halvings]

    def _draw_sample(self, halvings: int) -> _Sample:
        trace, visits = self._trace, self._visits
        random = np.random.default_rng([*self._seed, halvings])
        accesses = np.zeros(self._addresses.blocks, dtype=np.int64)
        if halvings:
            of_row = self._addresses.of_page[trace.pages]
            accesses = np.bincount(of_row[of_row != NOWHERE], minlength=len(accesses))
        addresses = self._addresses.sampled(accesses, halvings, random)
        of_page = addresses.of_page
        blocks = of_page[trace.pages]
        # What nothing names cannot be read from a file: blocks of relations dropped before they were
        # accessed.
        rows = np.flatnonzero(blocks != NOWHERE)
        flags = trace.flags[rows]
        # Rings by position among the rows that are left.
        owned = np.flatnonzero((flags & STRATEGY) > 0)
        kept = np.searchsorted(trace.owner_access, rows[owned].astype(np.uint64))
        named = np.flatnonzero(of_page != NOWHERE)
        count = np.zeros(addresses.blocks, dtype=np.uint32)
        count[of_page[named]] = visits.of_page[named]
        new = np.zeros(addresses.blocks, dtype=bool)
        new[of_page[named]] = trace.new_page[named]
        forks = addresses.begins.astype(np.uint32)
        past = _native.Past(
            blocks[rows],
            flags,
            trace.seconds[rows],
            trace.backend[rows],
            owner_access=owned.astype(np.uint64),
            owner=trace.owner[kept],
            owner_blocks=-(-trace.owner_blocks // np.uint32(2**halvings)) if halvings else trace.owner_blocks,
            forks=forks,
            visits=count,
            new=new,
            rates=visits.grid,
            weights=visits.weights[addresses.group],
            duration_seconds=trace.duration_seconds,
            visit_gap_seconds=VISIT_GAP_SECONDS,
            seed=int(random.integers(1 << 63)),
        )
        space = _native.FileSpace(addresses.files, forks, self._dirty, gather_seconds=STATISTICS_SECONDS)
        return _Sample(factor=2**halvings, addresses=addresses, space=space, past=past)

    def at(self, pool_blocks: int, page_caches: list[PageCache]) -> list[SimulatedReads]:
        """Simulate a pool in front of page caches of any kind, and return what each makes of its misses.

        Args:
            pool_blocks: of the pool.
            page_caches: what the workload does before is as for the first.
        """
        random = np.random.default_rng([*self._seed, 1 << 16])
        smallest = min(one.capacity_bytes for one in page_caches) // BLOCK_BYTES
        sample = self._sample(halvings_of(min(pool_blocks, smallest // _LEAST_CACHE), len(self._trace.pages)))
        # A page cache larger than all files evicts nothing, however large it is.
        most = sample.addresses.blocks * PAGES_A_BLOCK + LEAST_PAGES
        pages = [
            int(np.clip(one.capacity_bytes // PAGE_BYTES // sample.factor, LEAST_PAGES, most))
            for one in page_caches
        ]
        warm = self._warm_pool(sample, pool_blocks, random)
        absent = self._absent(pool_blocks)
        resident = sample.past.residents(
            absent, pages[0] // PAGES_A_BLOCK, seed=int(random.integers(1 << 63))
        )
        found = sample.past.both_caches(
            sample.space,
            max(round(pool_blocks / sample.factor), 16),
            self._rules,
            [
                one.holding(capacity, resident, pages_each=sample.factor)
                for one, capacity in zip(page_caches, pages, strict=True)
            ],
            warm,
            turnovers=_TURNOVERS,
            most_accesses=_MOST_ROWS // sample.factor,
            seed=int(random.integers(1 << 63)),
        )
        return [
            self._reads(reads, capacity, sample.factor) for reads, capacity in zip(found, pages, strict=True)
        ]

    def _warm_pool(
        self, sample: _Sample, pool_blocks: int, random: np.random.Generator
    ) -> _native.PoolContents:
        """Draw a state of the pool; pages that the trace never names lie somewhere in its relations."""
        page, count = self._pools.draw_pages(pool_blocks, random)
        of_page = sample.addresses.of_page
        known = page < len(of_page)
        address = np.full(len(page), NOWHERE, dtype=np.uint32)
        address[known] = of_page[page[known]]
        free = np.ones(sample.addresses.blocks, dtype=bool)
        free[of_page[of_page != NOWHERE]] = False
        unseen = random.permutation(np.flatnonzero(free))
        strangers = np.flatnonzero(~known)[:: sample.factor][: len(unseen)]
        address[strangers] = unseen[: len(strangers)]
        there = np.flatnonzero(address != NOWHERE)[: round(pool_blocks / sample.factor)]
        return _native.PoolContents(address[there], count[there])

    def _absent(self, pool_blocks: int) -> NDArray[np.float64]:
        """Return how likely a page of each fork and rate is absent from the pool, shape (forks, rates)."""
        pass_seconds = min(self._pools.pass_seconds(pool_blocks), _LONGEST_PASS_SECONDS)
        clock = Clock.of(self._rules)
        batches, law = np.unique(self._visits.batches[self._addresses.group], axis=0, return_inverse=True)
        absent = [clock.law(pass_seconds * self._visits.grid, batch)[:, 0] for batch in batches]
        return np.stack(absent)[law.ravel()]

    def _reads(self, reads: _native.PageCacheReads, capacity_pages: int, factor: int) -> SimulatedReads:
        group = self._addresses.group
        misses, waited = int(reads["misses"].sum()), int(reads["waited"].sum())
        return SimulatedReads(
            misses=misses,
            disk_share=waited / max(misses, 1),
            disk_blocks=int(reads["disk_pages"].sum()) / PAGES_A_BLOCK / max(misses, 1),
            twice_blocks=reads["twice_blocks"] * factor,
            refaults_per_second=reads["refaulted_pages"] * factor / max(self._trace.duration_seconds, 1e-9),
            turnovers=reads["blocks_before"] * PAGES_A_BLOCK / capacity_pages,
            group_misses=np.bincount(group, weights=reads["misses"]).astype(np.float64) * factor,
            group_reads=np.bincount(group, weights=reads["waited"]).astype(np.float64) * factor,
        )


def dirty_shares(
    addresses: Addresses, pages: NDArray[np.uint32], dirty: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return which part of each fork's pages in the pool is dirty.

    Args:
        addresses: of the pages.
        pages: those in the pool when the trace began.
        dirty: which of them are.
    """
    at = addresses.of_page[pages]
    known = at != NOWHERE
    fork = addresses.fork_of(at[known])
    count = np.bincount(fork, minlength=len(addresses.group))
    found = np.bincount(fork, weights=dirty[known].astype(np.float64), minlength=len(addresses.group))
    return np.asarray(found / np.maximum(count, 1))
