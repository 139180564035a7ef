"""Find whether pages came into the pool in the order of their blocks, as loops and long ranges load them.

Pages that are loaded one after the other lie in buffers one after the other, behind the clock hand. Where a
relation is read again and again from end to end by other means than a sequential scan, all pages that are new
in a snapshot stand in the order of their blocks. Such pages do not come at random times, as the law of a
page assumes: pages that are loaded together stay or are evicted together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.inference.observations import Observations

Floats = NDArray[np.float64]

_SHORTEST_RUN: Final = 64
"""Shorter ranges are read at random times by index scans."""

_LEAST_SHARE: Final = 0.75
_STEP, _LOOK_BACK = 3, 8
"""A page follows another if it is one of the next three, and among the next eight to come: several sessions
may read at once, and some of the pages were there already."""


def in_order(seen: Observations, appended: Floats) -> Floats:
    """Return which share of each group's new pages came in long runs of ascending blocks.

    Args:
        seen: the snapshots.
        appended: blocks by which each group grew meanwhile, which come in order and are not read.
    """
    new = np.zeros(len(seen.groups))
    ordered = np.zeros(len(seen.groups))
    order = np.lexsort((seen.buffer, seen.snapshot))
    edges = np.searchsorted(seen.snapshot[order], np.arange(seen.snapshots + 1))
    before = np.zeros(len(seen.page_group), dtype=bool)
    for number in range(seen.snapshots):
        page = seen.page[order[edges[number] : edges[number + 1]]]
        if number:
            fresh = page[~before[page]]
            group = seen.page_group[fresh]
            for own in np.unique(group).tolist():
                mine = fresh[group == own]
                new[own] += len(mine)
                ordered[own] += _in_runs(mine)
        before[:] = False
        before[page] = True
    return np.asarray(np.maximum(ordered - appended, 0.0) / np.maximum(new - appended, 1.0))


def _in_runs(pages: NDArray[np.int64]) -> int:
    """Return how many pages stand in long runs; numbers of pages ascend with their blocks."""
    if len(pages) < _SHORTEST_RUN:
        return 0
    follows = np.zeros(len(pages), dtype=bool)
    for back in range(1, _LOOK_BACK + 1):
        ahead = pages[back:] - pages[:-back]
        follows[back:] |= (ahead >= 1) & (ahead <= _STEP)
    # Some lie among them that came another time.
    sums = np.concatenate([[0], np.cumsum(follows)])
    dense = np.flatnonzero(sums[_SHORTEST_RUN:] - sums[:-_SHORTEST_RUN] >= _LEAST_SHARE * _SHORTEST_RUN)
    inside = np.zeros(len(pages) + 1, dtype=np.int64)
    np.add.at(inside, dense, 1)
    np.add.at(inside, dense + _SHORTEST_RUN, -1)
    return int((np.cumsum(inside)[:-1] > 0).sum())
