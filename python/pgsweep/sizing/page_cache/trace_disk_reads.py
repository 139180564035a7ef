"""What the page cache makes of the pool's misses at each size, from a trace: both caches are replayed."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pgsweep.errors import UsageError
from pgsweep.sizing.page_cache.addresses import lay_out
from pgsweep.sizing.page_cache.both_caches import BothCaches, PageCache, dirty_shares
from pgsweep.sizing.page_cache.disk_reads import DiskReads, Inputs, NotPredicted, SizeReads
from pgsweep.units import BLOCK_BYTES

if TYPE_CHECKING:
    from pgsweep.sizing.page_cache.memory_shares import Share
    from pgsweep.sizing.traces.warm_start import WarmPools


class TraceDiskReads(DiskReads):
    """Replays a trace.

    Args:
        inputs: what else is known.
        pools: of the trace.
    """

    def __init__(self, inputs: Inputs, pools: WarmPools) -> None:
        super().__init__(inputs)
        self._pools = pools
        self._preparing = threading.Lock()
        # The two lists keep what comes back, and hit more often than CLOCK; the tiers of MGLRU may too.
        self._policies = ("clock", "fifo", "two-lists") if inputs.facts.mglru else ("two-lists",)

    def _group_names(self) -> list[str]:
        return self._observation.relation_names

    def _name(self, size_bytes: int) -> str | None:
        del size_bytes
        return str(self._inputs.kept_blocks)

    @cached_property
    def _caches(self) -> tuple[BothCaches, BothCaches]:
        """Both draws of the past, made where they are needed first.

        Raises:
            NotPredicted: there are more blocks than can be simulated.
            UsageError: the same, where a memory is asked for.
        """
        trace = self._pools.trace
        snapshot = self._observation.table("snapshots")
        first = snapshot["snapshot"] == 0
        snapshot = {name: column[first] for name, column in snapshot.items()}
        accesses = self._observation.table("accesses")
        try:
            addresses = lay_out(accesses, snapshot, self._observation.relations, trace)
        except UsageError as error:
            if self._inputs.memory_bytes is not None:
                raise
            raise NotPredicted(error.message) from error
        in_pool = np.zeros(0, np.uint32) if trace.start is None else trace.start.pages
        dirty = dirty_shares(addresses, in_pool, snapshot["dirty"][: len(in_pool)])
        rules, seed = self._observation.server.rules, self._inputs.seed
        first, second = (
            BothCaches(trace, self._pools.visits, self._pools, addresses, dirty, rules, [seed, number])
            for number in range(2)
        )
        return first, second

    def _simulate(self, size_bytes: int, share: Share) -> SizeReads:
        blocks = max(size_bytes // BLOCK_BYTES - self._inputs.kept_blocks, 16)
        likely = PageCache(
            capacity_bytes=share.page_cache_bytes,
            readahead_bytes=self._facts.readahead_bytes,
            folio_order=self._facts.folio_order,
        )
        caches = [replace(likely, policy=policy) for policy in self._policies]
        small = [replace(one, capacity_bytes=share.low_bytes) for one in caches]
        with self._preparing:
            first, second = self._caches
        best, *others = first.at(blocks, [*caches, *small])
        others += second.at(blocks, caches)
        return SizeReads(share=share, best=best, others=others)
