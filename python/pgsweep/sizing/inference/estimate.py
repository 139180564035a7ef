"""The result of both methods: a curve with its interval, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.records.prediction import LEVELS, Level
from pgsweep.units import BLOCK_BYTES, format_bytes

Floats = NDArray[np.float64]

RELIABLE: Final[Level] = "reliable"
ROUGH: Final[Level] = "rough"
REFUSED: Final[Level] = "refused"


UNKNOWN_WIDTH: Final = 0.04
"""Half an interval; where it is wider the miss ratio is unknown, and none is shown."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason against a prediction.

    Attributes:
        level: what the prediction can be at best; `reliable` for a remark that changes nothing.
        reason: a sentence.
    """

    level: Level
    reason: str


def judged(doubts: Sequence[Doubt]) -> tuple[Level, list[str]]:
    """Return the worst level among doubts, and their reasons, the gravest first."""
    ordered = sorted(doubts, key=lambda doubt: LEVELS.index(doubt.level), reverse=True)
    reasons = list(dict.fromkeys(doubt.reason for doubt in ordered))
    return (ordered[0].level if ordered else "reliable"), reasons


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted curve.

    Attributes:
        sizes_blocks: sizes asked for.
        miss_ratio: at each, with `low` and `high` bounding 90 %.
        pass_seconds: time of a clock pass at today's size.
        level: how far the curve may be trusted; where it is refused its numbers are for tests only.
        reasons: every reason for caution, the gravest first.
    """

    sizes_blocks: tuple[int, ...]
    miss_ratio: Floats
    low: Floats
    high: Floats
    pass_seconds: float
    level: Level
    reasons: list[str] = field(default_factory=list)

    @property
    def usable(self) -> bool:
        """Whether the curve may be shown."""
        return self.level != "refused"


def refused(*doubts: Doubt) -> Estimate:
    """Return an estimate that holds nothing but the reasons why there is none."""
    none = np.zeros(0)
    level, reasons = judged(doubts)
    return Estimate(
        sizes_blocks=(),
        miss_ratio=none,
        low=none,
        high=none,
        pass_seconds=float("nan"),
        level=level,
        reasons=reasons,
    )


def without_unknown(found: Estimate) -> tuple[Estimate, list[int]]:
    """Return the curve without the sizes of which the evidence says too little, and these sizes in blocks.

    Where none is left the curve is refused.
    """
    wide = (found.high - found.low) / 2 > UNKNOWN_WIDTH
    if found.level == "refused" or not wide.any():
        return found, []
    unknown = [size for size, is_wide in zip(found.sizes_blocks, wide, strict=True) if is_wide]
    names = " and ".join(format_bytes(size * BLOCK_BYTES) for size in unknown)
    doubt = Doubt(
        "refused" if wide.all() else "rough",
        f"at {names if len(unknown) <= 2 else f'{len(unknown)} sizes'} the miss ratio is not known to "
        f"± {UNKNOWN_WIDTH:.0%}: record for longer, or ask for sizes nearer to today's",
    )
    level, reasons = judged([doubt, *(Doubt(found.level, reason) for reason in found.reasons)])
    kept = replace(
        found,
        sizes_blocks=tuple(size for size in found.sizes_blocks if size not in unknown),
        miss_ratio=found.miss_ratio[~wide],
        low=found.low[~wide],
        high=found.high[~wide],
        level=level,
        reasons=reasons,
    )
    return kept, unknown
