"""Sizes that snapshots do not show: pools that the clock hand would pass too often or too fast for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.load import Flow
from pgsweep.sizing.snapshots.rates import GRID, Rates
from pgsweep.sizing.verdict import BRIEF_PASS_SECONDS, SEVERAL_ACCESSES, UNSEEN_PASSES

Floats = NDArray[np.float64]

_COUNTED_FOLLOWERS: Final = 0.5
"""Accesses of a visit beside the first, from which on those that were counted stand for those shown."""


def unseen_sizes(
    sizes_blocks: Sequence[int],
    misses: Floats,
    *,
    pool_blocks: int,
    misses_today: float,
    pass_seconds: float,
    followers: float,
) -> tuple[int, ...]:
    """Return the smaller sizes that snapshots do not show (`UNSEEN_PASSES`, `BRIEF_PASS_SECONDS`).

    A pass takes as long as it takes to load the pool's pages: it is shorter by the size and by the misses.

    Args:
        sizes_blocks: sizes.
        misses: at each; `misses_today` at the pool's own size, for each access of today.
        pool_blocks: the pool's own size.
        pass_seconds: of a clock pass of the pool.
        followers: accesses for each first one of a visit.
    """
    found = []
    for size, missed in zip(sizes_blocks, misses.tolist(), strict=True):
        passes = pool_blocks * missed / max(size * misses_today, 1e-12)
        brief = pass_seconds < BRIEF_PASS_SECONDS * passes and followers >= SEVERAL_ACCESSES
        if size < pool_blocks and (passes > UNSEEN_PASSES or brief):
            found.append(size)
    return tuple(found)


def followers_of(rates: Rates, flow: Flow, pass_seconds: float) -> float:
    """Return how many accesses each visit brings beside its first one: as counts show, and as were counted.

    Those that find the page pinned, or at the highest count, are only counted. A few more than counts show
    may as well be an error of the rates.
    """
    shown = float(rates.batch @ np.arange(len(rates.batch)))
    visits = float(rates.pages @ GRID)
    counted = (flow.accesses - flow.scan_accesses) * pass_seconds
    if not np.isfinite(counted) or visits <= 0:
        return shown
    more = counted / visits - 1
    return max(shown, more if more >= _COUNTED_FOLLOWERS else 0.0)
