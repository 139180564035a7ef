"""The 90 % interval around a curve from snapshots: what pages, counters and the model leave open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CONFIDENCE: Final = 0.90

_SHORT_PATHS, _SHORT_STATES = 0.06, 16.0
"""Error of the miss ratio for each doubling of the size in a recording of one clock pass, from simulated
recordings; it falls with the number of passes, and where only states are seen with its square."""

MODEL_ERROR_RATIO = 0.002
MODEL_ERROR_PER_OCTAVE_DOWN = 0.004
MODEL_ERROR_PER_OCTAVE_UP = 0.002
MODEL_ERROR_OF_SCANS = 0.08
"""What the model itself adds to the interval, in miss ratio: found by comparing predictions with measured
truth on workloads outside the package (docs/concepts/prediction.md)."""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What widens an interval beside the spread of the pages.

    Attributes:
        noise: standard error of the measured miss ratio.
        short: by how much more the model errs for each doubling of the size, since the recording is short.
        scans: share of accesses that are those of sequential scans.
        halves: curves from each half of the recording alone, where they are long enough.
        ordered: share of the misses on pages that come in the order of their blocks.
    """

    noise: float
    short: float
    scans: float
    halves: list[Floats]
    ordered: float


def short_error(passes: float, *, by_paths: bool) -> float:
    """Return by how much more the model errs for each doubling of the size, since the recording is short."""
    return _SHORT_PATHS / max(passes, 1.0) if by_paths else _SHORT_STATES / max(passes, 4.0) ** 2


def interval(
    point: Floats, spread: Floats, bounds: list[Floats], relative_size: Floats, beside: Beside
) -> tuple[Floats, Floats]:
    """Return bounds of the 90 % interval: spread, what is not seen, and the model's own error, as squares."""
    tail = (1 - _CONFIDENCE) / 2
    unseen_below = np.maximum(-np.min(bounds, axis=0), 0)
    unseen_above = np.maximum(np.max(bounds, axis=0), 0)
    below = np.hypot(np.maximum(-np.quantile(spread, tail, axis=0), 0), unseen_below)
    above = np.hypot(np.maximum(np.quantile(spread, 1 - tail, axis=0), 0), unseen_above)
    octaves = np.log2(relative_size)
    up, down = np.maximum(octaves, 0), np.maximum(-octaves, 0)
    model = MODEL_ERROR_RATIO + down * MODEL_ERROR_PER_OCTAVE_DOWN + up * MODEL_ERROR_PER_OCTAVE_UP
    model = model + beside.scans * MODEL_ERROR_OF_SCANS * np.minimum(up + down, 1)
    # Nothing can be off by more than there is: towards zero misses the model's error fades.
    model = np.minimum(model, 0.35 * point + 0.0008)
    noise = np.minimum(1.64 * beside.noise, 0.5 * point)
    below, above = np.hypot(below, np.hypot(model, noise)), np.hypot(above, np.hypot(model, noise))
    # A page that comes less often than once in the recording is not told from one that never comes: what
    # larger pools would miss is found too small, hardly ever too large.
    rare = beside.short * up * np.sqrt(np.maximum(up, 1.0))
    above = np.hypot(above, np.minimum(rare, 1 - point))
    below = np.hypot(below, np.minimum(rare / 4, 0.5 * point))
    below = np.hypot(below, np.minimum(beside.short / 4 * down, 0.5 * point))
    above = np.hypot(above, beside.short / 4 * down)
    return np.clip(point - below, 0, 1), np.clip(point + above, 0, 1)
