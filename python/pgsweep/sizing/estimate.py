"""The result of both methods: a curve with its interval, and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.records.prediction import LEVELS, Level
from pgsweep.units import BLOCK_BYTES, format_bytes, format_percent, format_plain

if TYPE_CHECKING:
    from pgsweep.sizing.snapshots.fitted import Fitted

Floats = NDArray[np.float64]

RELIABLE: Final[Level] = "reliable"
ROUGH: Final[Level] = "rough"
REFUSED: Final[Level] = "refused"

UNKNOWN_WIDTH: Final = 0.04
"""Half an interval; where it is wider the miss ratio is unknown, and none is shown."""

UNSEEN_PASSES: Final = 32.0
"""Snapshots do not show the miss ratio of a pool that the clock hand would pass more often than this while it
passes the observed one once.

Pages that such a pool would evict are in constant use today: nearly all are at usage_count 5 whenever they
are seen, and which of them are used more than others does not show. In benchmarks/calibration the truth lay
inside the interval in two of three such points.
"""

BRIEF_PASS_SECONDS: Final = 0.2
SEVERAL_ACCESSES: Final = 0.05
"""Nor do they show it where a pass would take less time than that, and visits bring several accesses: for
each first one at least this many others, shown by usage counts or counted by the server.

Statements of one transaction access a page again after milliseconds to tenths of a second. Snapshots show
that a page was accessed several times, not how far apart, and a pool that is swept as fast may have evicted
it in between.
"""


KEPT_ROOM: Final = 1.25
"""A pool that is smaller than this many times the relations kept in it is not predicted: what is left for the
rest would decide, and what is kept may not fit."""


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
        miss_ratio: at each, with `low` and `high` bounding 90%.
        pass_seconds: time of a clock pass at today's size.
        level: how far the curve may be trusted; where it is refused its numbers are for tests only.
        reasons: every reason for caution, the gravest first.
        unseen_blocks: of the sizes, those at which what decides takes too short a time for snapshots.
        replayed_today: what replay from the pool's own contents gives at today's size, where `miss_ratio` is
            the counted one.
        too_small_blocks: of the sizes, those that hold little more than what is kept in the pool.
        off_today: by how much today's size comes out wrong, where that enters the interval.
        accesses_per_second: of the database; nan where the evidence says it elsewhere.
        changed: the curve of the same evidence under a changed load, where one was asked for.
        fitted: what the curve was made of, where that are rates.
    """

    sizes_blocks: tuple[int, ...]
    miss_ratio: Floats
    low: Floats
    high: Floats
    pass_seconds: float
    level: Level
    reasons: list[str] = field(default_factory=list)
    unseen_blocks: tuple[int, ...] = ()
    replayed_today: float | None = None
    too_small_blocks: tuple[int, ...] = ()
    off_today: float = 0.0
    accesses_per_second: float = float("nan")
    changed: Estimate | None = None
    fitted: Fitted | None = None

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
    unseen = np.isin(found.sizes_blocks, found.unseen_blocks)
    left_out = wide | unseen
    if found.level == "refused" or not left_out.any():
        return found, []
    none_left: Level = "refused" if left_out.all() else "reliable"
    doubts = [Doubt(found.level, reason) for reason in found.reasons]
    if (wide & ~unseen).any():
        doubts.append(
            Doubt(
                "refused" if left_out.all() else "rough",
                f"at {_named(found, wide & ~unseen)} the miss ratio is not known to ± "
                f"{format_percent(UNKNOWN_WIDTH)}: record for longer, or ask for sizes nearer to today's",
            )
        )
    if unseen.any():
        doubts.append(
            Doubt(
                none_left,
                f"at {_named(found, unseen)} the clock hand would pass the pool in less than "
                f"{format_plain(BRIEF_PASS_SECONDS)} s, or {format_plain(UNSEEN_PASSES)} times while it "
                "passes today's once: which pages would stay then, snapshots do not show; record with "
                "--source trace",
            )
        )
    level, reasons = judged(doubts)
    kept = replace(
        found,
        sizes_blocks=tuple(
            size for size, without in zip(found.sizes_blocks, left_out, strict=True) if not without
        ),
        miss_ratio=found.miss_ratio[~left_out],
        low=found.low[~left_out],
        high=found.high[~left_out],
        level=level,
        reasons=reasons,
    )
    return kept, [size for size, without in zip(found.sizes_blocks, left_out, strict=True) if without]


def without_too_small(found: Estimate) -> Estimate:
    """Return the curve without the sizes that hold little more than what is kept in the pool."""
    kept = ~np.isin(found.sizes_blocks, found.too_small_blocks)
    if kept.all():
        return found
    return replace(
        found,
        sizes_blocks=tuple(size for size, one in zip(found.sizes_blocks, kept, strict=True) if one),
        miss_ratio=found.miss_ratio[kept],
        low=found.low[kept],
        high=found.high[kept],
        level=found.level if kept.any() else "refused",
    )


def _named(found: Estimate, chosen: NDArray[np.bool_]) -> str:
    sizes = [
        format_bytes(size * BLOCK_BYTES) for size, one in zip(found.sizes_blocks, chosen, strict=True) if one
    ]
    if len(sizes) > 2:
        return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
    return " and ".join(sizes)
