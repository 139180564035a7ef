"""Intervals of medians and of their ratios: bootstrap over runs, bias-corrected and accelerated (BCa).

The run is the replicate: the seconds within a run depend on each other and are not resampled. With fewer than
five runs the bootstrap has too few different resamples for an interval of 95%, and none is given.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

FEWEST_RUNS: Final = 5
_RESAMPLES: Final = 4999
_LEVEL: Final = 0.95


def median_interval(runs: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the median; None where there are too few runs."""
    return _interval([runs], lambda x, axis: np.median(x, axis=axis))


def ratio_interval(over: Sequence[float], under: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% interval of the ratio of two medians; None where there are too few runs."""
    if min(under, default=0.0) <= 0:
        return None
    return _interval([over, under], lambda x, y, axis: np.median(x, axis=axis) / np.median(y, axis=axis))


def ratio_bounds(over: Sequence[float], under: Sequence[float] | None) -> tuple[float, float] | None:
    """Return between what the ratio of two medians lies; of one median without the other.

    That is the 95% interval, or with fewer than five runs on a side the smallest and the largest ratio of
    two runs; None where there are none, or one is zero.
    """
    if not over or (under is not None and min(under, default=0.0) <= 0):
        return None
    interval = median_interval(over) if under is None else ratio_interval(over, under)
    if interval is not None:
        return interval
    below = under or [1.0]
    return min(over) / max(below), max(over) / min(below)


def relative_spread(runs: Sequence[float]) -> float | None:
    """Return (largest - smallest) / median; None for fewer than two runs, or around zero."""
    if len(runs) < 2 or statistics.median(runs) <= 0:
        return None
    return (max(runs) - min(runs)) / statistics.median(runs)


def _interval(
    samples: Sequence[Sequence[float]], statistic: Callable[..., Any]
) -> tuple[float, float] | None:
    if min(len(runs) for runs in samples) < FEWEST_RUNS:
        return None
    from scipy.stats import bootstrap

    data = tuple(np.asarray(runs, dtype=float) for runs in samples)
    if all(np.ptp(runs) == 0 for runs in data):
        value = float(statistic(*data, axis=-1))
        return value, value
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # BCa has no acceleration where leaving out any run gives the same median; the percentiles remain.
        warnings.simplefilter("ignore")
        for method in ("BCa", "percentile"):
            found = bootstrap(
                data,
                statistic,
                n_resamples=_RESAMPLES,
                confidence_level=_LEVEL,
                method=method,
                vectorized=True,
                random_state=np.random.default_rng(1),
            ).confidence_interval
            if math.isfinite(found.low) and math.isfinite(found.high):
                return float(found.low), float(found.high)
    return None
