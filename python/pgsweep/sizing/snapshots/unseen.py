"""Sizes that snapshots do not show: pools that the clock hand would pass too often or too fast for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.ensemble import LoadCurves
from pgsweep.sizing.snapshots.load import Flow
from pgsweep.sizing.snapshots.rates import GRID, Rates
from pgsweep.sizing.verdict import BRIEF_PASS_SECONDS, SEVERAL_ACCESSES, UNSEEN_PASSES

Floats = NDArray[np.float64]

_COUNTED_FOLLOWERS: Final = 0.5
"""Accesses of a visit beside the first, from which on those that were counted stand for those shown."""


def unseen_sizes(
    curves: LoadCurves, sizes_blocks: Sequence[int], most: Floats, ratio_today: float
) -> tuple[int, ...]:
    """Return the smaller sizes that snapshots do not show (`UNSEEN_PASSES`, `BRIEF_PASS_SECONDS`).

    A pass takes as long as it takes to load the pool's pages: it is shorter by the size and by the misses.

    Args:
        curves: of the load, with a change or without.
        sizes_blocks: sizes.
        most: the most that may miss at each: misses that are predicted too few would hide themselves.
        ratio_today: miss ratio at the pool's own size, without the change.
    """
    load, fit, pool = curves.load, curves.fit, curves.load.server.pool_blocks
    misses = most
    if curves.change is not None:
        # As many misses for each of today's accesses: that is how fast the hand goes.
        misses = misses * curves.accesses_per_second / load.accesses_per_second
    each = zip(fit.rates, load.pool.flows, strict=True)
    followers = load.weighted_by_misses(
        np.array([followers_of(own, flow, fit.pass_seconds) for own, flow in each])
    )
    found = []
    for size, missed in zip(sizes_blocks, misses.tolist(), strict=True):
        passes = pool * missed / max(size * ratio_today, 1e-12)
        brief = fit.pass_seconds < BRIEF_PASS_SECONDS * passes and followers >= SEVERAL_ACCESSES
        if size < pool and (passes > UNSEEN_PASSES or brief):
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
