"""A load as verify sees it, without a recording."""

from __future__ import annotations

import numpy as np

from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.workload_change import Load


def load(
    shares: dict[str, float],
    *,
    half: float = 0.0,
    accesses: float = 10.0,
    rows: float = 1.0,
    misses: dict[str, float] | None = None,
    halves: tuple[float, float] = (0.1, 0.1),
) -> Load:
    none = np.zeros(0)
    totals = Totals(
        seconds=10.0,
        hits=900.0,
        misses=100.0,
        relation_misses=none,
        relation_accesses=none,
        relation_scans=none,
        relation_scanned_blocks=none,
        relation_growth_blocks=none,
        first_half_miss_ratio=halves[0],
        second_half_miss_ratio=halves[1],
    )
    return Load(
        totals=totals,
        shares=shares,
        miss_ratios=misses or dict.fromkeys(shares, 0.1),
        half_difference=half,
        transactions_per_second=100.0,
        accesses_per_second=100.0 * accesses,
        accesses_per_transaction=accesses,
        rows_per_transaction=rows,
        data_bytes=100 << 20,
    )
