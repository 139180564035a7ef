"""What relations can miss whose pages are visited one after the other, and so stay or go together.

The law of visits holds for pages that come at random times. Where the counts of neighbours rise and fall
together (a queue through which rows move, a loop that the pool holds), it says little of other sizes. What
such a relation can miss is bounded all the same: in a larger pool no more than today, and in a smaller one
no less than today and no more than its pages are visited. So it widens the interval by what it can do, and
the other relations are predicted as always.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.ensemble import LoadCurves

Floats = NDArray[np.float64]

_HOT_VISITS: Final = 5.0
"""Visits in a clock pass, by the fitted rates, from which on a page stays however they come."""

_MORE_VISITS: Final = 3.0
"""Visits that lie together look like fewer: so many for each one that the rates show. Of a relation that
grows each page is visited for a while and then no more, which the rates show as it is."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """By how much the miss ratio may differ because pages stay or go together, at each of the sizes.

    Attributes:
        below: minus the curve; 0 or less.
        above: likewise, 0 or more.
    """

    below: Floats
    above: Floats


def bounds_of(curves: LoadCurves, sizes_blocks: Sequence[int], groups: Sequence[int]) -> Bounds:
    """Return by how much the misses of these groups may be off, relative to the accesses of the database.

    Args:
        curves: of the load, with a change or without.
        sizes_blocks: of the pool.
        groups: positions among the load's groups.
    """
    chosen = np.asarray(groups, dtype=np.int64)
    below, above = np.zeros(len(sizes_blocks)), np.zeros(len(sizes_blocks))
    if not len(chosen):
        return Bounds(below=below, above=above)
    load, best = curves.load, curves.best
    pool, rate = load.pool, load.pool.sampling_rate
    _, today = best.curve.by_group(best.pages, pool.blocks)
    for number, size in enumerate(sizes_blocks):
        passes, misses = best.curve.by_group(best.pages, round(size * rate))
        least, most = np.minimum(misses, today), np.maximum(misses, today)
        if size > load.server.pool_blocks:
            least = np.minimum([side.flow.extensions for side in best.curve.sides], misses)
        elif size < load.server.pool_blocks:
            most = np.maximum(most, _visits(curves, passes))
        else:
            least = most = misses
        below[number] = float((least - misses)[chosen].sum())
        above[number] = float((most - misses)[chosen].sum())
    scale = load.agreement / rate / max(curves.accesses_per_second, 1e-9)
    return Bounds(below=below * scale, above=above * scale)


def _visits(curves: LoadCurves, passes: float) -> Floats:
    """Return the most misses of each group per second.

    Pages that are in constant use miss nothing, and an access that was counted misses once at most.

    Args:
        curves: of the load.
        passes: time of a clock pass of the pool relative to today's.
    """
    best = curves.best
    found = []
    for pages, side, growth in zip(best.pages, best.curve.sides, curves.growth.tolist(), strict=True):
        cold = side.own * passes < _HOT_VISITS
        visits = float((pages * side.own)[cold].sum()) / best.curve.pass_seconds
        counted = max(side.flow.accesses - side.flow.scan_accesses, 0.0)
        found.append(min(visits if growth > 0 else _MORE_VISITS * visits, counted))
    return np.array(found)
