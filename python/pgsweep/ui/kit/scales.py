"""Axes: where a size or a ratio lies on a chart, and which values are written beside it.

Sizes are on a logarithmic axis to the base 2, because doubling is the step in which memory is bought and set.
Ratios are on a linear axis from zero, so that heights can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class SizeAxis:
    """Sizes in bytes from `low` to `high`, logarithmic; positions from 0 to 1."""

    low: float
    high: float

    @classmethod
    def around(cls, sizes_bytes: Sequence[int], *, margin: float = 0.0) -> SizeAxis:
        """Return the axis that holds all sizes, with a margin (share of the axis) at both ends.

        A single size gets an octave to each side.
        """
        low, high = float(min(sizes_bytes)), float(max(sizes_bytes))
        if low == high:
            low, high = low / 2, high * 2
        stretch = (high / low) ** margin
        return cls(low / stretch, high * stretch)

    def at(self, size_bytes: float) -> float:
        """Return the position of the size: 0 at the low end, 1 at the high end."""
        return math.log(size_bytes / self.low) / math.log(self.high / self.low)

    def ticks(self, most: int) -> list[int]:
        """Return at most `most` powers of two within the axis, evenly spaced, in bytes."""
        first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / max(1, most)))
        return [2**exponent for exponent in range(first, last + 1, step)]


@dataclass(frozen=True)
class RatioAxis:
    """Ratios from `low` to `high`, linear; positions from 0 to 1; `step` between the written values."""

    low: float
    high: float
    step: float

    @classmethod
    def up_to(cls, most: float) -> RatioAxis:
        """Return the axis from zero to a round number not below `most`, in three to seven round steps.

        Of the fitting steps the one that wastes least height is taken; no axis ends below 0.1%.
        """
        step, count = round_steps(max(most, 1e-3), 3, 7)
        return cls(0.0, count * step, step)

    @classmethod
    def about_zero(cls, farthest: float) -> RatioAxis:
        """Return the axis as far below zero as above it, for differences, in two or three steps each."""
        step, count = round_steps(max(farthest, 1e-4), 2, 3)
        return cls(-count * step, count * step, step)

    def at(self, ratio: float) -> float:
        """Return the position of the ratio, held within 0 and 1."""
        return min(1.0, max(0.0, (ratio - self.low) / (self.high - self.low)))

    def ticks(self) -> list[float]:
        """Return the written values, from low to high."""
        count = round((self.high - self.low) / self.step)
        return [self.low + index * self.step for index in range(count + 1)]

    def label(self, ratio: float) -> str:
        """Return the value in percent with as many digits as the step needs."""
        digits = max(0, -math.floor(math.log10(self.step * 100) + 1e-9))
        value = round(ratio * 100, digits)
        return f"{value + 0.0:.{digits}f}"


def round_steps(most: float, fewest: int, most_steps: int) -> tuple[float, int]:
    """Return the round step (1, 2 or 5 times a power of ten), and how many hold `most`."""
    power = 10.0 ** math.floor(math.log10(most))
    candidates = []
    for factor in (0.1, 0.2, 0.5, 1, 2, 5):
        count = math.ceil(most / (factor * power) - 1e-9)
        if fewest <= count <= most_steps:
            candidates.append((round(count * factor, 9), abs(count - 5), factor * power, count))
    _, _, step, count = min(candidates)
    return step, count


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """Return the value at x on the straight segments through the points (xs ascending), None outside."""
    if not xs or x < xs[0] - 1e-9 or x > xs[-1] + 1e-9:
        return None
    for (x0, x1), (y0, y1) in zip(pairwise(xs), pairwise(ys), strict=True):
        if x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * max(0.0, x - x0) / (x1 - x0)
    return ys[-1]
