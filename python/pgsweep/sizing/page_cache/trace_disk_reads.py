"""What the page cache makes of the pool's misses at each size, from a trace: both caches are replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pgsweep.sizing.page_cache.addresses import lay_out
from pgsweep.sizing.page_cache.both_caches import BothCaches, PageCache, dirty_shares
from pgsweep.sizing.page_cache.disk_reads import DiskReads, Inputs, SizeReads
from pgsweep.units import BLOCK_BYTES

if TYPE_CHECKING:
    from pgsweep.sizing.page_cache.memory_shares import Share
    from pgsweep.sizing.traces.warm_start import WarmPools


class TraceDiskReads(DiskReads):
    """Replays a trace.

    Args:
        inputs: what else is known.
        pools: of the trace.

    Raises:
        UsageError: there are more blocks than can be simulated.
    """

    def __init__(self, inputs: Inputs, pools: WarmPools) -> None:
        super().__init__(inputs)
        self._pools = pools
        self._trace = trace = pools.trace
        self._rules = self._observation.server.rules
        snapshot = self._observation.table("snapshots")
        first = snapshot["snapshot"] == 0
        snapshot = {name: column[first] for name, column in snapshot.items()}
        accesses = self._observation.table("accesses")
        self._addresses = lay_out(accesses, snapshot, self._observation.relations, trace)
        in_pool = np.zeros(0, np.uint32) if trace.start is None else trace.start.pages
        self._dirty = dirty_shares(self._addresses, in_pool, snapshot["dirty"][: len(in_pool)])
        self._caches = self._both(0), self._both(1)
        # The two lists keep what comes back, and hit more often than CLOCK; the tiers of MGLRU may too.
        self._policies = ("clock", "fifo", "two-lists") if inputs.facts.mglru else ("two-lists",)

    def _group_names(self) -> list[str]:
        return self._observation.relation_names

    def _both(self, number: int) -> BothCaches:
        return BothCaches(
            self._trace,
            self._pools.visits,
            self._pools,
            self._addresses,
            self._dirty,
            self._rules,
            [self._inputs.seed, number],
        )

    def _simulate(self, size_bytes: int, share: Share) -> SizeReads:
        blocks = max(size_bytes // BLOCK_BYTES - self._inputs.kept_blocks, 16)
        likely = PageCache(
            capacity_bytes=share.page_cache_bytes,
            readahead_bytes=self._facts.readahead_bytes,
            folio_order=self._facts.folio_order,
        )
        caches = [replace(likely, policy=policy) for policy in self._policies]
        small = [replace(one, capacity_bytes=share.low_bytes) for one in caches]
        first, second = self._caches
        best, *others = first.at(blocks, [*caches, *small])
        others += second.at(blocks, caches)
        return SizeReads(share=share, best=best, others=others)
