"""What both ways of reading evidence come to: a curve with its interval, and a verdict in words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RELIABLE, ROUGH, REFUSED = "reliable", "rough", "refused"
"""The levels of a verdict."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted curve.

    Attributes:
        sizes_blocks: sizes asked for.
        miss_ratio: at each, with `low` and `high` bounding 90 %.
        lap_seconds: lap of the hand at today's size.
        level: `reliable`, `rough` (to be read with its interval) or `refused` (nothing may be concluded).
        reasons: every reason for caution.
    """

    sizes_blocks: tuple[int, ...]
    miss_ratio: Floats
    low: Floats
    high: Floats
    lap_seconds: float
    level: str
    reasons: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Return whether anything may be concluded."""
        return self.level != REFUSED
