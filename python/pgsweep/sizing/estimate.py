"""The result of both methods: a curve with its interval, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.records import reasons
from pgsweep.records.prediction import Level
from pgsweep.records.reasons import Reason
from pgsweep.sizing.verdict import BRIEF_PASS_SECONDS, HALF_WIDTH, UNSEEN_PASSES, Doubt, judged
from pgsweep.units import BLOCK_BYTES

if TYPE_CHECKING:
    from pgsweep.sizing.snapshots.ensemble import LoadCurves

Floats = NDArray[np.float64]

_UNKNOWN_WIDTH: Final = HALF_WIDTH.refused or 0.0
"""Half an interval; where it is wider the miss ratio is unknown, and none is shown."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted curve.

    Attributes:
        sizes_blocks: sizes asked for.
        miss_ratio: at each, with `low` and `high` bounding 90%.
        pass_seconds: time of a clock pass at today's size.
        level: how far the curve may be trusted; where it is refused its numbers are for tests only.
        reasons: every reason for caution, the gravest first.
        unseen_blocks: of the sizes, those at which what decides takes too short a time for snapshots.
        in_order_blocks: of the sizes, those whose interval is wide because pages stay or go together, which
            no longer recording shows.
        replayed_today: what replay from the pool's own contents gives at today's size, where `miss_ratio` is
            the counted one.
        too_small_blocks: of the sizes, those that hold little more than what is kept in the pool.
        off_today: by how much today's size comes out wrong, where that enters the interval.
        accesses_per_second: of the database; nan where the evidence says it elsewhere.
        is_bounded: of a trace of few clock passes: at large sizes the intervals hold all rates that agree.
        fitted: what the curve was made of, where that are rates.
        of_stretch: of a trace, `low` and `high` of the stretch that was recorded itself, shape (2, sizes);
            those above are of another stretch of the same load. None where nothing tells them apart.
    """

    sizes_blocks: tuple[int, ...]
    miss_ratio: Floats
    low: Floats
    high: Floats
    pass_seconds: float
    level: Level
    reasons: list[Reason] = field(default_factory=list)
    unseen_blocks: tuple[int, ...] = ()
    in_order_blocks: tuple[int, ...] = ()
    replayed_today: float | None = None
    too_small_blocks: tuple[int, ...] = ()
    off_today: float = 0.0
    accesses_per_second: float = float("nan")
    is_bounded: bool = False
    fitted: LoadCurves | None = None
    of_stretch: Floats | None = None

    @property
    def usable(self) -> bool:
        """Whether the curve may be shown."""
        return self.level != "refused"


def refused(*doubts: Doubt) -> Estimate:
    """Return an estimate that holds nothing but the reasons why there is none."""
    none = np.zeros(0)
    level, said = judged(doubts)
    return Estimate(
        sizes_blocks=(),
        miss_ratio=none,
        low=none,
        high=none,
        pass_seconds=float("nan"),
        level=level,
        reasons=said,
    )


def without_unknown(found: Estimate) -> tuple[Estimate, list[int]]:
    """Return the curve without the sizes of which the evidence says too little, and these sizes in blocks.

    Where none is left the curve is refused.
    """
    wide = (found.high - found.low) / 2 > _UNKNOWN_WIDTH
    unseen = np.isin(found.sizes_blocks, found.unseen_blocks)
    left_out = wide | unseen
    if found.level == "refused" or not left_out.any():
        return found, []
    none_left: Level = "refused" if left_out.all() else "reliable"
    doubts = [Doubt(found.level, reason) for reason in found.reasons]
    in_order = np.isin(found.sizes_blocks, found.in_order_blocks)
    for ordered, chosen in ((False, wide & ~unseen & ~in_order), (True, wide & ~unseen & in_order)):
        if chosen.any():
            reason = reasons.size_not_known(_bytes(found, chosen), _UNKNOWN_WIDTH, in_order=ordered)
            doubts.append(Doubt("refused" if left_out.all() else "rough", reason))
    if unseen.any():
        reason = reasons.size_not_shown(_bytes(found, unseen), BRIEF_PASS_SECONDS, UNSEEN_PASSES)
        doubts.append(Doubt(none_left, reason))
    level, said = judged(doubts)
    kept = replace(_with_sizes(found, ~left_out), level=level, reasons=said)
    return kept, [size for size, without in zip(found.sizes_blocks, left_out, strict=True) if without]


def without_too_small(found: Estimate) -> Estimate:
    """Return the curve without the sizes that hold little more than what is kept in the pool."""
    kept = ~np.isin(found.sizes_blocks, found.too_small_blocks)
    if kept.all():
        return found
    return replace(_with_sizes(found, kept), level=found.level if kept.any() else "refused")


def _with_sizes(found: Estimate, kept: NDArray[np.bool_]) -> Estimate:
    return replace(
        found,
        sizes_blocks=tuple(size for size, one in zip(found.sizes_blocks, kept, strict=True) if one),
        miss_ratio=found.miss_ratio[kept],
        low=found.low[kept],
        high=found.high[kept],
        of_stretch=None if found.of_stretch is None else found.of_stretch[:, kept],
    )


def _bytes(found: Estimate, chosen: NDArray[np.bool_]) -> list[int]:
    return [size * BLOCK_BYTES for size, one in zip(found.sizes_blocks, chosen, strict=True) if one]
