"""The 90% interval around a curve from snapshots: the uncertainty of pages, counters and the model.

What its constants say was fitted to simulated recordings of even seeds and tested on those of odd seeds
(benchmarks/calibration).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.consistency import NONE_DROPPED, Dropped
from pgsweep.units import Z90

Floats = NDArray[np.float64]

_CONFIDENCE: Final = 0.90

HALVES_WEIGHT: Final = 0.75
"""How much of the difference between the whole recording and its halves is added once more for larger sizes.

Pages that come rarely are found too rare, and the more so the shorter the recording is: an error that halves
when the length doubles is the difference between both lengths."""

_SHORT_PATHS, _SHORT_STATES = 0.022, 5.8
"""Error of the miss ratio for each doubling of the size in a recording of one clock pass; it falls with the
number of passes, and where only states are seen with its square."""

MODEL_ERROR_RATIO = 0.0004
MODEL_ERROR_PER_OCTAVE_DOWN = 0.001
MODEL_ERROR_PER_OCTAVE_UP = 0.0004
MODEL_ERROR_OF_SCANS = 0.08
"""What the model itself adds to the interval, in miss ratio."""

_REPLAY_DIFFERS: Final = 0.5
"""By which part of the change from today's size what misses in a standby's replay of WAL may differ from it.
It visits other pages than queries do, and snapshots show the visits of both (benchmarks/jobs)."""

_OWN_NOISE: Final = 0.5
"""How much of the error of a measured ratio holds for the recorded stretch itself at another size."""


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """A curve, and all that it might be as well; each at the same sizes.

    Attributes:
        point: the curve.
        bounds: of what is not seen, minus the curve.
        halves: curves from each half of the recording alone; none where they are too short.
        spread: curves from pages drawn again, minus the curve.
    """

    point: Floats
    bounds: list[Floats]
    halves: list[Floats]
    spread: Floats


@dataclass(frozen=True, kw_only=True)
class ErrorSources:
    """What widens an interval beside the differences in the ensemble.

    Attributes:
        noise: standard error of the measured miss ratio.
        short: by how much more the model errs for each doubling of the size, since the recording is short.
        scans: share of accesses that are those of sequential scans.
        ordered: share of the misses on pages that come in the order of their blocks.
        late: accesses for each first one of a visit that come so late that a smaller pool may have evicted
            the page.
        unexplained: share of the accesses that are misses which nothing explains.
        dropped: what relations did that were dropped, of which the model knows nothing.
        replayed: share of the misses that are those of a standby's replay of WAL, which are not counted.
    """

    noise: float
    short: float
    scans: float
    ordered: float = 0.0
    late: float = 0.0
    unexplained: float = 0.0
    dropped: Dropped = NONE_DROPPED
    replayed: float = 0.0


def short_error(passes: float, *, by_paths: bool) -> float:
    """Return by how much more the model errs for each doubling of the size, since the recording is short."""
    return _SHORT_PATHS / max(passes, 1.0) if by_paths else _SHORT_STATES / min(max(passes, 4.0), 1e9) ** 2


def corrected(point: Floats, halves: list[Floats], relative_size: Floats) -> Floats:
    """Return a curve without the error that comes from the recording's length."""
    if len(halves) < 2:
        return point
    missing = HALVES_WEIGHT * (point - np.mean(halves, axis=0))
    missing = np.clip(missing, -0.5 * point, 0.5 * (1 - point))
    order = np.argsort(relative_size)
    found = point.copy()
    least = float(np.interp(1.0, relative_size[order], point[order]))
    for at in order[relative_size[order] > 1].tolist():
        # The correction must not make a larger pool miss more than a smaller one unless the curve does.
        found[at] = min(max(float(point[at] + missing[at]), 0.0), max(least, float(point[at])))
        least = found[at]
    return found


def interval(
    ensemble: Ensemble, relative_size: Floats, sources: ErrorSources
) -> tuple[Floats, Floats, Floats]:
    """Return the curve, corrected, and the bounds of its 90% interval.

    The spread, what is not seen, and the model's own error add up as squares.

    Args:
        ensemble: not corrected.
        relative_size: sizes divided by that of the pool under observation.
        sources: of other errors.
    """
    point, halves, bounds = ensemble.point, ensemble.halves, ensemble.bounds
    tail = (1 - _CONFIDENCE) / 2
    drawn_below = -np.quantile(ensemble.spread, tail, axis=0)
    drawn_above = np.quantile(ensemble.spread, 1 - tail, axis=0)
    unseen_below = np.maximum(-np.min(bounds, axis=0), 0)
    unseen_above = np.maximum(np.max(bounds, axis=0), 0)
    below = np.hypot(np.maximum(drawn_below, 0), unseen_below)
    above = np.hypot(np.maximum(drawn_above, 0), unseen_above)
    octaves = np.log2(relative_size)
    up, down = np.maximum(octaves, 0), np.maximum(-octaves, 0)
    if len(halves) == 2:
        # Halves of one load differ by chance, twice as much as two whole recordings do.
        chance = Z90 * np.abs(halves[0] - halves[1]) / 2
        length = np.abs(point - np.mean(halves, axis=0))
        below, above = np.hypot(below, chance), np.hypot(above, chance)
        below, above = np.hypot(below, length), np.hypot(above, length)
    model = model_error(point, relative_size, sources.scans + sources.ordered)
    noise = np.minimum(_OWN_NOISE * Z90 * sources.noise, 0.5 * point)
    below, above = np.hypot(below, np.hypot(model, noise)), np.hypot(above, np.hypot(model, noise))
    wrong = np.minimum(sources.unexplained * np.minimum(up + down, 1.0), 0.5 * point)
    below, above = np.hypot(below, wrong), np.hypot(above, wrong)
    # At another size a dropped relation may miss nothing, and at a smaller one whenever it hits today.
    gone = sources.dropped.misses * np.minimum(up + down, 1.0)
    below = np.hypot(below, np.minimum(gone, point))
    above = np.hypot(above, np.minimum(gone + sources.dropped.hits * np.minimum(down, 1.0), 1 - point))
    if sources.replayed > 0:
        order = np.argsort(relative_size)
        change = np.abs(point - np.interp(1.0, relative_size[order], point[order]))
        replayed = _REPLAY_DIFFERS * sources.replayed * change
        below, above = np.hypot(below, replayed), np.hypot(above, replayed)
    # A page that comes less often than once in the recording looks like one that never comes: what
    # larger pools would miss is found too small, hardly ever too large.
    rare = sources.short * up * np.sqrt(np.maximum(up, 1.0))
    above = np.hypot(above, np.minimum(rare, 1 - point))
    below = np.hypot(below, np.minimum(rare / 4, 0.5 * point))
    below = np.hypot(below, np.minimum(sources.short / 4 * down, 0.5 * point))
    above = np.hypot(above, sources.short / 4 * down)
    # Where the accesses of a visit come late, a smaller pool may miss each of them.
    above = np.hypot(above, np.minimum(sources.late * point * np.minimum(down / 2, 1.0), 1 - point))
    centre = corrected(point, halves, relative_size)
    return centre, np.clip(centre - below, 0, 1), np.clip(centre + above, 0, 1)


def model_error(point: Floats, relative_size: Floats, scans: float = 0.0) -> Floats:
    """Return by how much the model itself may be off at each size.

    Args:
        point: the curve.
        relative_size: sizes divided by that of the pool under observation.
        scans: share of what scans do, or what comes in the order of its blocks.
    """
    octaves = np.log2(relative_size)
    up, down = np.maximum(octaves, 0), np.maximum(-octaves, 0)
    found = MODEL_ERROR_RATIO + down * MODEL_ERROR_PER_OCTAVE_DOWN + up * MODEL_ERROR_PER_OCTAVE_UP
    found = found + scans * MODEL_ERROR_OF_SCANS * np.minimum(up + down, 1)
    # Nothing can be off by more than there is: towards zero misses the model's error fades.
    return np.asarray(np.minimum(found, 0.35 * point + 0.0008))


def bounded_by_today(
    relative_size: Floats, point: Floats, low: Floats, high: Floats
) -> tuple[Floats, Floats]:
    """Return the bounds such that a larger pool misses no more than today's, and a smaller one no less.

    A curve may rise all the same, where a larger pool lets in what goes through a ring today: the bounds
    always hold the curve. A size of which nothing is known, from 0 to 1, stays so.

    Args:
        relative_size: sizes divided by that of the pool under observation, which is one of them.
        point, low, high: the curve at these sizes, and its bounds.
    """
    today = int(np.flatnonzero(relative_size == 1.0)[0])
    known = (low > 0) | (high < 1)
    least = np.where(known & (relative_size < 1), np.minimum(low[today], point), 0.0)
    most = np.where(known & (relative_size > 1), np.maximum(high[today], point), 1.0)
    return np.maximum(low, least), np.minimum(high, most)
