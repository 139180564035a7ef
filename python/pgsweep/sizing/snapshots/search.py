"""The least value of a function of a few parameters within bounds: a projected quasi-Newton search.

The directions are those of BFGS (Nocedal and Wright 2006, chapter 6), the bounds are kept by projection
(Bertsekas 1982). scipy's L-BFGS-B finds the same; to load scipy.optimize takes longer than to search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_STEP: Final = 1e-3
"""Of the differences that gradients are made of."""

_SUFFICIENT: Final = 1e-4
_HALVINGS: Final = 12


def least(
    cost: Callable[[Floats], float],
    start: Floats,
    low: Floats,
    high: Floats,
    *,
    evaluations: int,
    gain: float,
) -> Floats:
    """Return where the cost is least, as found from a start.

    Args:
        cost: of parameters, shape (n,).
        start: shape (n,), as are the bounds.
        low, high: bounds of each parameter.
        evaluations: of the cost, at most about so many.
        gain: the search ends when a step gains less than this part of the cost.
    """
    point: Floats = np.clip(start, low, high)
    now, used = cost(point), 1
    slope = _slope(cost, point, now, high)
    inverse = np.eye(len(point)) / max(float(np.abs(slope).sum()), 1.0)
    while used < evaluations:
        # What a bound holds does not move.
        free = ~(((point <= low) & (slope > 0)) | ((point >= high) & (slope < 0)))
        way = -np.where(np.outer(free, free), inverse, 0.0) @ slope
        if way @ slope >= 0:
            way = np.where(free, -slope, 0.0) / max(float(np.abs(slope).sum()), 1.0)
        for halved in range(_HALVINGS):
            other: Floats = np.clip(point + way / 2**halved, low, high)
            value, used = cost(other), used + 1
            if value <= now + _SUFFICIENT * float(slope @ (other - point)):
                break
        else:
            break
        before, gained = slope, now - value
        if gained <= gain * max(abs(now), 1.0):
            return other
        slope, used = _slope(cost, other, value, high), used + len(point)
        inverse = _updated(inverse, other - point, slope - before)
        point, now = other, value
    return point


def _slope(cost: Callable[[Floats], float], point: Floats, value: float, high: Floats) -> Floats:
    """Return the gradient by differences to one side, which stays within the bounds."""
    found = np.empty_like(point)
    for number in range(len(point)):
        other = point.copy()
        step = _STEP if point[number] + _STEP <= high[number] else -_STEP
        other[number] += step
        found[number] = (cost(other) - value) / step
    return found


def _updated(inverse: Floats, moved: Floats, turned: Floats) -> Floats:
    """Return the inverse of the second derivatives after a step; as it was where that is not convex."""
    along = float(moved @ turned)
    if along <= 1e-10:
        return inverse
    side = np.eye(len(moved)) - np.outer(moved, turned) / along
    return np.asarray(side @ inverse @ side.T + np.outer(moved, moved) / along)
