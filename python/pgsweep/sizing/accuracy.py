"""How far predictions were from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pgsweep.records.prediction import CurvePoint
from pgsweep.records.proof import Interval


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors of several predictions; None without any.

    Attributes:
        mean: absolute error; `largest` of them.
        within: the share of what was measured that lies in its interval.
    """

    mean: float | None = None
    largest: float | None = None
    within: float | None = None

    @classmethod
    def of(cls, compared: Sequence[tuple[float, Interval]]) -> Self:
        """Compare measured miss ratios with what was predicted for them."""
        if not compared:
            return cls()
        errors = [abs(measured - predicted.miss_ratio) for measured, predicted in compared]
        within = [predicted.low <= measured <= predicted.high for measured, predicted in compared]
        return cls(sum(errors) / len(errors), max(errors), sum(within) / len(within))


def interval_of(point: CurvePoint) -> Interval:
    """Return what is predicted at a size."""
    return Interval(miss_ratio=point.miss_ratio, low=point.low, high=point.high)
