"""What relations can miss whose pages are visited one after the other, and so stay or go together.

The law of visits holds for pages that come at random times. Where the counts of neighbours rise and fall
together (a queue through which rows move, a loop that the pool holds), it says little of other sizes. What
such a relation can miss is bounded all the same: in a larger pool no more than today, and in a smaller one
no less than today and no more than its pages are visited. For how long pages were away bounds it further.

So it widens the interval by what it can do, and the other relations are predicted as always. These have the
room that it leaves. How many pages it holds in another pool is not known: in a larger one between as many as
today and as many more as a clock pass is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.absences import Absences
from pgsweep.sizing.snapshots.ensemble import LoadCurves

Floats = NDArray[np.float64]

_HOT_VISITS: Final = 5.0
"""Visits in a clock pass, by the fitted rates, from which on a page stays however they come."""

_MORE_VISITS: Final = 3.0
"""Visits that lie together look like fewer: so many for each one that the rates show. Of a relation that
grows each page is visited for a while and then no more, which the rates show as it is."""


_MAINLY: Final = 0.7
"""Part of an interval from which on, as widths add up as squares, the rest is less."""

_UNSURE: Final = 1.15
"""By what factor the time of a clock pass may be off."""

_ROUNDS: Final = 3
"""What certainly misses bounds the time of a clock pass, which bounds what certainly misses."""


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
    absences = Absences.of(load.seen)
    for number, size in enumerate(sizes_blocks):
        passes, misses = best.curve.by_group(best.pages, round(size * rate))
        least, most = np.minimum(misses, today), np.maximum(misses, today)
        if size > load.server.pool_blocks:
            least, most = _in_larger(curves, absences, chosen, passes, misses, today)
        elif size < load.server.pool_blocks:
            most = np.maximum(most, _visits(curves, passes))
        else:
            least = most = misses
        below[number] = float((least - misses)[chosen].sum())
        above[number] = float((most - misses)[chosen].sum())
        moved = []
        for more in _other_room(curves, round(size * rate), passes, chosen):
            _, shifted = best.curve.by_group(best.pages, round(size * rate) - more)
            moved.append(float(np.delete(shifted - misses, chosen).sum()))
        # Both are hardly ever at their ends at once.
        below[number] = -np.hypot(below[number], min(*moved, 0.0))
        above[number] = np.hypot(above[number], max(*moved, 0.0))
    scale = load.agreement / rate / max(curves.accesses_per_second, 1e-9)
    return Bounds(below=below * scale, above=above * scale)


def _other_room(curves: LoadCurves, size: int, passes: float, groups: NDArray[np.int64]) -> tuple[int, ...]:
    """Return by how many pages more than the curve has it these groups may fill a pool; fewer are negative.

    What they hold today beyond their rates the curve has in every pool: it may be as much more as a pass is
    longer. And pages of which the rates make many that come seldom may come for a while and then no more: a
    larger pool then holds as many as today.

    Args:
        curves: of the load.
        size: of the pool, of the blocks that were sampled.
        passes: time of a clock pass relative to today's.
        groups: whose pages stay or go together.
    """
    best, seen = curves.best, curves.load.seen.resident()
    unexplained = sum(float(seen[group]) - best.rates[group].resident() for group in groups.tolist())
    found = [unexplained * (passes - 1)]
    if size > curves.load.pool.blocks:
        there = [best.curve.resident_of(group, best.pages[group], size, passes) for group in groups.tolist()]
        found.append(min(float(seen[groups].sum()) - unexplained - sum(there), 0.0))
    return tuple(round(float(np.clip(more, -size / 2, size / 2))) for more in found)


def widened_sizes(sizes_blocks: Sequence[int], low: Floats, high: Floats, bounds: Bounds) -> tuple[int, ...]:
    """Return the sizes whose interval is wide mainly because of what stays or goes together.

    Args:
        sizes_blocks: of the pool.
        low, high: the interval at these sizes, and at others.
        bounds: likewise.
    """
    mainly = bounds.above - bounds.below > _MAINLY * (high - low)
    return tuple(size for size, one in zip(sizes_blocks, mainly.tolist(), strict=False) if one)


def _in_larger(
    curves: LoadCurves,
    absences: Absences,
    groups: NDArray[np.int64],
    passes: float,
    misses: Floats,
    today: Floats,
) -> tuple[Floats, Floats]:
    """Return the least and the most misses of each group per second in a pool larger than today's.

    Args:
        curves: of the load.
        absences: of its pages.
        groups: whose pages stay or go together.
        passes: time of a clock pass of that pool relative to today's, by the rates.
        misses: in that pool, by the rates.
        today: misses today.
    """
    extensions = np.array([side.flow.extensions for side in curves.best.curve.sides])
    least, most = np.minimum(extensions, misses), np.maximum(misses, today)
    if curves.change is not None:
        return least, most
    rest = float(np.delete(misses, groups).sum())
    for _ in range(_ROUNDS):
        # The fewer pages come the longer a pass takes; but less so, as more of them are used meanwhile.
        longest, shortest = (
            passes * float(misses.sum()) / max(rest + float(own[groups].sum()), 1e-9) for own in (least, most)
        )
        for group in groups.tolist():
            flow = curves.load.pool.flows[group]
            missed, hit, count = absences.certain(group, _UNSURE * longest, shortest / _UNSURE)
            reads = max(today[group] - extensions[group], 0.0)
            # What rings brought and took between two snapshots was not seen to come.
            shown = min(count / max(reads * curves.load.pool.seconds, 1e-9), 1.0)
            least[group] = min(extensions[group] + missed * shown * reads, today[group])
            if flow.vacuumed <= 0 and flow.scans <= 0:
                most[group] = max(today[group] - hit * shown * reads, least[group])
    return np.minimum(least, misses), np.maximum(most, misses)


def _visits(curves: LoadCurves, passes: float) -> Floats:
    """Return the most misses of each group per second.

    Pages that are in constant use miss nothing, and an access that was counted misses once at most.

    Args:
        curves: of the load.
        passes: time of a clock pass of the pool relative to today's.
    """
    best = curves.best
    found = []
    each = zip(best.pages, best.curve.sides, curves.growth.tolist(), strict=True)
    for number, (pages, side, growth) in enumerate(each):
        cold = side.own * passes < _HOT_VISITS
        visits = float((pages * side.own)[cold].sum()) / best.curve.pass_seconds
        # Where more misses were counted than the rates explain, there are more visits as well.
        more = max(best.curve.factor(number, pages), 1.0 if growth > 0 else _MORE_VISITS)
        counted = max(side.flow.accesses - side.flow.scan_accesses, 0.0)
        found.append(min(more * visits, counted))
    return np.array(found)
