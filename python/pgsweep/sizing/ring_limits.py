"""Up to which size of the pool the scans of a relation go through a ring.

The rule is in rules.py. A curve can jump where it ceases to hold for a table that is scanned.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgsweep.records.prediction import ScannedRelation
from pgsweep.sizing.rules import least_pool_without_ring
from pgsweep.sizing.sizes import whole_megabytes
from pgsweep.sizing.snapshots.observations import Table
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.traces.accesses import BULKREAD, STRATEGY, Trace
from pgsweep.sizing.traces.rings import ALWAYS_LARGE_BLOCKS
from pgsweep.units import BLOCK_BYTES

Floats = NDArray[np.float64]

_LEAST_SHARE = 0.01
"""Scans with fewer of the accesses are not named."""

_MOST = 5


def sizes_with_ring_limits(
    sizes_blocks: tuple[int, ...], scans: Sequence[ScannedRelation]
) -> tuple[int, ...]:
    """Return sizes with those among them from which on scans use no ring."""
    limits = {whole_megabytes(one.ring_below_bytes // BLOCK_BYTES) for one in scans}
    between = {size for size in limits if min(sizes_blocks) < size < max(sizes_blocks)}
    return tuple(sorted({*sizes_blocks, *between}))


def snapshot_ring_limits(totals: Totals, relations: Table, database_oid: int) -> list[ScannedRelation]:
    """Return the relations that are scanned, those with the most accesses by scans first.

    Args:
        relations: table of the evidence.
    """
    accesses = totals.accesses / max(totals.seconds, 1e-9)
    here = relations["db"] == database_oid
    share = np.where(here, totals.relation_scanned_blocks, 0.0) / max(accesses, 1e-9)
    return _most_scanned(relations["name"].tolist(), relations["blocks_end"], share)


def trace_ring_limits(trace: Trace) -> list[ScannedRelation]:
    """Return the relations that are scanned, as `snapshot_ring_limits` does; each with its largest size."""
    rows, blocks = trace.owner_access, trace.owner_blocks[trace.owner]
    mine = ((trace.flags[rows] & STRATEGY) == BULKREAD) & trace.counted[rows] & (blocks < ALWAYS_LARGE_BLOCKS)
    group = trace.page_group[trace.pages[rows[mine]]]
    largest = np.zeros(len(trace.group_names), dtype=np.int64)
    np.maximum.at(largest, group, blocks[mine].astype(np.int64))
    scanned = np.bincount(group, minlength=len(largest)).astype(np.float64)
    # The last group is of all relations without a name.
    return _most_scanned(
        trace.group_names[:-1], largest[:-1], scanned[:-1] / max(int(trace.counted.sum()), 1)
    )


def _most_scanned(names: Sequence[str], blocks: NDArray[np.int64], share: Floats) -> list[ScannedRelation]:
    return [
        ScannedRelation(
            name=str(names[at]),
            relation_bytes=int(blocks[at]) * BLOCK_BYTES,
            access_share=float(share[at]),
            ring_below_bytes=least_pool_without_ring(int(blocks[at])) * BLOCK_BYTES,
        )
        for at in np.argsort(-share, kind="stable")[:_MOST].tolist()
        if share[at] >= _LEAST_SHARE and blocks[at] > 0
    ]
