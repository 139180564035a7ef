"""What of the pool's misses comes from disk: the pool in front of the page cache, at any size of both.

The pool is replayed into a drawn state (traces/warm_start.py), first over what came before the trace
(`earlier`), then over the trace. What it misses is read through the page cache (core/src/files.rs); what it
evicts and was dirty, and what extends a relation, is written into the page cache. The result is what share of
the misses of the trace went to disk.

Not modelled: what checkpoints write while the page stays in the pool, blocks that several reads ask for in
one call, and files that are not the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.host.page_cache_rules import STATISTICS_SECONDS
from pgsweep.sizing.clock import Clock
from pgsweep.sizing.page_cache.addresses import NOWHERE, Addresses
from pgsweep.sizing.page_cache.earlier import Earlier
from pgsweep.sizing.traces.accesses import EXTENSION, MISS, STRATEGY, UNCOUNTED, Trace
from pgsweep.sizing.traces.visits import Visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.units import BLOCK_BYTES

PAGE_BYTES: Final = 4096
PAGES_A_BLOCK: Final = BLOCK_BYTES // PAGE_BYTES
READ, WRITE, DROP = 0, 1, 2
_TURNOVERS: Final = 1.5
"""How many pages reach the page cache before the trace begins, for each that it has."""

_MOST_ROWS: Final = 30_000_000
_MOST_TIMES: Final = 100
_FOR_EVER_SECONDS: Final = 1e9

NO_PAGE: Final = 2**32 - 1
"""The outcome of an access that makes a page."""

LEAST_PAGES: Final = 4 << 9


@dataclass(frozen=True, kw_only=True)
class PageCache:
    """A page cache to simulate.

    Attributes:
        capacity_bytes: its size.
        readahead_bytes: of the device.
        folio_order: the largest folio of the file system.
        policy: `two-lists`, or `fifo` and `clock`, which bound the multi-generational LRU.
    """

    capacity_bytes: int
    readahead_bytes: int
    folio_order: int
    policy: str = "two-lists"


@dataclass(frozen=True, kw_only=True)
class SimulatedReads:
    """What the page cache makes of the pool's misses at one size.

    Attributes:
        misses: of the database, in the trace as simulated.
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
class _Operations:
    """What reaches the page cache.

    Attributes:
        blocks, kinds, streams: as `_native.access_files` takes them.
        seconds: when.
        measured: from which of them on they are the trace's.
        counted: which of those are reads of the database.
        resident: what the pool holds at the end.
    """

    blocks: NDArray[np.uint32]
    kinds: NDArray[np.uint8]
    streams: NDArray[np.uint32]
    seconds: NDArray[np.float64]
    measured: int
    counted: NDArray[np.bool_]
    resident: NDArray[np.uint32]


class BothCaches:
    """Simulates both caches over one trace.

    Args:
        trace: the accesses.
        visits: counted from it.
        pools: draws states of the pool.
        addresses: of the pages.
        dirty: how likely a page of each fork is dirty when it is evicted.
        rules: of the server.
        random: for all draws.
    """

    def __init__(
        self,
        trace: Trace,
        visits: Visits,
        pools: WarmPools,
        addresses: Addresses,
        dirty: NDArray[np.float64],
        rules: _native.Rules,
        random: np.random.Generator,
    ) -> None:
        self._trace = trace
        self._visits = visits
        self._pools = pools
        self._addresses = addresses
        self._dirty = dirty
        self._rules = rules
        self._random = random
        self._earlier = Earlier(trace, visits, addresses, random)
        # What nothing names cannot be read from a file: blocks of relations dropped before they were
        # accessed.
        self._named = np.flatnonzero(self._earlier.rows != NOWHERE)
        _, self._stream = np.unique(trace.backend, return_inverse=True)

    def at(self, pool_blocks: int, page_caches: list[PageCache]) -> list[SimulatedReads]:
        """Simulate a pool in front of page caches of any kind, and return what each makes of its misses.

        Args:
            pool_blocks: of the pool.
            page_caches: what the workload does before is as for the first.
        """
        # A page cache larger than all files evicts nothing, however large it is.
        most = self._addresses.blocks * PAGES_A_BLOCK + LEAST_PAGES
        pages = [int(np.clip(one.capacity_bytes // PAGE_BYTES, LEAST_PAGES, most)) for one in page_caches]
        operations = self._operations(pool_blocks, pages[0])
        resident = self._first_residents(pool_blocks, pages[0])
        return [
            self._read(operations, capacity, page_cache, resident)
            for capacity, page_cache in zip(pages, page_caches, strict=True)
        ]

    def _operations(self, pool_blocks: int, capacity_pages: int) -> _Operations:
        trace = self._trace
        rows = self._named
        flags = trace.flags[rows]
        # Rings by position among the rows that are left.
        owned = np.flatnonzero((flags & STRATEGY) > 0).astype(np.uint64)
        kept = np.searchsorted(trace.owner_access, rows[owned.astype(np.int64)])
        owner = trace.owner[kept]

        def replayed(addresses: NDArray[np.uint32], warm: _native.PoolContents) -> _native.ReplayOutcomes:
            return _native.replay_outcomes(
                addresses[rows],
                pool_blocks,
                self._rules,
                flags=flags,
                owner_access=owned if len(owned) else None,
                owner=owner if len(owned) else None,
                owner_blocks=trace.owner_blocks if len(owned) else None,
                warm=warm,
            )

        # Once for the pool alone, which also shows how often it takes to fill the page cache.
        seen = replayed(self._earlier.time(1), self._warm_pool(pool_blocks))
        brought = PAGES_A_BLOCK * np.count_nonzero(
            (seen["outcomes"] == MISS) | (seen["outcomes"] == EXTENSION)
        )
        wanted = np.ceil(_TURNOVERS * capacity_pages / np.maximum(brought, 1))
        times = int(np.clip(wanted, 1, np.clip(_MOST_ROWS // max(len(rows), 1), 1, _MOST_TIMES)))
        parts: list[tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64], float]] = []
        for number in range(times, -1, -1):
            addresses = self._earlier.time(number) if number else self._earlier.rows
            seen = replayed(addresses, _contents(seen, pool_blocks))
            before = (times - number) * trace.duration_seconds
            reached = reaching(addresses[rows], seen, self._addresses.blocks, self._dirty_share, self._random)
            parts.append((*reached, before))
        measured = sum(len(part[0]) for part in parts[:-1])
        at = np.concatenate([part[2] for part in parts])
        last = parts[-1]
        counted = (last[1] == READ) & ((flags[last[2]] & UNCOUNTED) == 0)
        seconds = np.concatenate([trace.seconds[rows[part[2]]] + part[3] for part in parts])
        buffers = seen["buffer_pages"]
        return _Operations(
            blocks=np.concatenate([part[0] for part in parts]),
            kinds=np.concatenate([part[1] for part in parts]),
            streams=self._stream[rows[at]].astype(np.uint32),
            seconds=seconds,
            measured=measured,
            counted=counted,
            resident=buffers[(buffers != NO_PAGE) & (buffers < self._addresses.blocks)],
        )

    def _dirty_share(self, blocks: NDArray[np.uint32]) -> NDArray[np.float64]:
        """Return how likely each of these is dirty when it is evicted."""
        return self._dirty[self._addresses.fork_of(blocks)]

    def _warm_pool(self, pool_blocks: int) -> _native.PoolContents:
        """Draw a state of the pool; pages that the trace never names lie somewhere in its relations."""
        page, count = self._pools.draw_pages(pool_blocks, self._random)
        of_page = self._addresses.of_page
        known = page < len(of_page)
        address = np.full(len(page), NOWHERE, dtype=np.uint32)
        address[known] = of_page[page[known]]
        free = np.ones(self._addresses.blocks, dtype=bool)
        free[of_page[of_page != NOWHERE]] = False
        unseen = self._random.permutation(np.flatnonzero(free))
        strangers = np.flatnonzero(~known)[: len(unseen)]
        address[strangers] = unseen[: len(strangers)]
        there = address != NOWHERE
        return _native.PoolContents(address[there], count[there])

    def _first_residents(self, pool_blocks: int, capacity_pages: int) -> NDArray[np.uint32]:
        """Draw what the page cache holds at first: a cache in which each page stays for the same time.

        What is visited at rate l and lies in the pool with probability p is read at rate l (1 - p), and is
        cached with probability 1 - exp(-l (1 - p) t), where t is such that the cache is full. A cache that
        this does not fill in any time keeps what was ever read: all that is visited, also what has lain in
        the pool since it was first read.
        """
        pass_seconds = min(self._pools.pass_seconds(pool_blocks), 1e9)
        rates = self._earlier.rates
        grid = self._visits.grid
        groups, number = np.unique(self._addresses.group, return_inverse=True)
        clock = Clock.of(self._rules)
        batches, law = np.unique(self._visits.batches[groups], axis=0, return_inverse=True)
        absent = np.stack([clock.law(pass_seconds * grid, batch)[:, 0] for batch in batches])[law.ravel()]
        fork = np.repeat(number.ravel(), np.diff(self._addresses.begins))
        point = np.minimum(np.searchsorted(grid, rates), len(grid) - 1)
        reads = rates * absent[fork, point]
        most = capacity_pages // PAGES_A_BLOCK
        low, high = 1e-6, _FOR_EVER_SECONDS
        for _ in range(50):
            middle = float(np.sqrt(low * high))
            if float(-np.expm1(-reads * middle).sum()) > most:
                high = middle
            else:
                low = middle
        kept_for_ever = float(-np.expm1(-reads * _FOR_EVER_SECONDS).sum()) <= most
        chance = rates > 0 if kept_for_ever else -np.expm1(-reads * low)
        cached = np.flatnonzero(self._random.random(len(reads)) < chance)
        return self._random.permutation(cached)[:most].astype(np.uint32)

    def _read(
        self,
        operations: _Operations,
        capacity_pages: int,
        page_cache: PageCache,
        resident: NDArray[np.uint32],
    ) -> SimulatedReads:
        most = float(operations.seconds[-1]) if len(operations.seconds) else 0.0
        gathered = np.searchsorted(operations.seconds, np.arange(0, most, STATISTICS_SECONDS))
        seen = _native.access_files(
            operations.blocks,
            self._addresses.files,
            capacity_pages=capacity_pages,
            readahead_pages=page_cache.readahead_bytes // PAGE_BYTES,
            operations=operations.kinds,
            streams=operations.streams,
            pages_per_block=PAGES_A_BLOCK,
            folio_order=page_cache.folio_order,
            policy=page_cache.policy,
            gathered=gathered.astype(np.uint64),
            resident=resident[: capacity_pages // PAGES_A_BLOCK],
            refaulted_from=operations.measured,
        )
        missing = seen["missing_pages"][operations.measured :]
        disk = seen["disk_pages"][operations.measured :]
        misses = int(operations.counted.sum())
        before = int(np.count_nonzero(operations.kinds[: operations.measured] != DROP)) * PAGES_A_BLOCK
        waited = missing[operations.counted] > 0
        fork = self._addresses.fork_of(operations.blocks[operations.measured :][operations.counted])
        group = self._addresses.group[fork]
        groups = int(self._addresses.group.max(initial=-1)) + 1
        return SimulatedReads(
            misses=misses,
            disk_share=float(waited.sum()) / max(misses, 1),
            disk_blocks=float(disk[operations.counted].sum()) / PAGES_A_BLOCK / max(misses, 1),
            twice_blocks=int((seen["cached_pages"][operations.resident] == PAGES_A_BLOCK).sum()),
            refaults_per_second=seen["refaulted_pages"] / max(self._trace.duration_seconds, 1e-9),
            turnovers=before / capacity_pages,
            group_misses=np.bincount(group, minlength=groups).astype(np.float64),
            group_reads=np.bincount(group[waited], minlength=groups).astype(np.float64),
        )


def reaching(
    blocks: NDArray[np.uint32],
    seen: _native.ReplayOutcomes,
    known_blocks: int,
    dirty_share: Callable[[NDArray[np.uint32]], NDArray[np.float64]],
    random: np.random.Generator,
) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
    """Return what reaches the page cache: block, kind and row of each, in order.

    Args:
        blocks: accessed, by row.
        seen: what the pool made of it.
        known_blocks: blocks from this number on are not written.
        dirty_share: returns how likely evicted blocks are dirty.
        random: for what is dirty.
    """
    outcomes, evicted = seen["outcomes"], seen["evicted_pages"]
    went = np.flatnonzero(evicted < known_blocks)
    written = went[random.random(len(went)) < dirty_share(evicted[went])]
    came = np.flatnonzero(outcomes > 0)
    kind = np.array([READ, READ, WRITE, DROP], dtype=np.uint8)[outcomes[came]]
    # A dirty page is written before the one that takes its buffer is read.
    order = np.argsort(np.concatenate([2 * written, 2 * came + 1]), kind="stable")
    row = np.concatenate([written, came])[order]
    block = np.concatenate([evicted[written], blocks[came]])[order]
    kinds = np.concatenate([np.full(len(written), WRITE, np.uint8), kind])[order]
    return block.astype(np.uint32), kinds, row


def _contents(seen: _native.ReplayOutcomes, pool_blocks: int) -> _native.PoolContents:
    """Return what a replay left, as a pool's contents."""
    there = np.flatnonzero(seen["buffer_pages"] != NO_PAGE)
    return _native.PoolContents(
        seen["buffer_pages"][there],
        seen["buffer_usage_counts"][there],
        buffers=there.astype(np.uint32),
        hand=seen["hand"] % pool_blocks,
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
