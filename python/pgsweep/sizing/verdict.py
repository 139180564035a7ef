"""The verdict on a curve: doubts, and every threshold from which on one makes it rough or refuses it.

The values were chosen on simulated recordings of even seeds and tested on those of odd seeds
(benchmarks/calibration), unless a row says otherwise. docs/reference/verdict.md has the same table. The clock
passes are those for which `record` waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.evidence.schema import PASSES_OF_PATHS, PASSES_OF_STATES
from pgsweep.records.prediction import LEVELS, Level
from pgsweep.records.reasons import Reason, unique

RELIABLE: Final[Level] = "reliable"
ROUGH: Final[Level] = "rough"
REFUSED: Final[Level] = "refused"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A row of the table.

    Attributes:
        what: is compared, with its unit.
        rough: from here on a curve is at best rough.
        refused: from here on it is refused; None where this alone refuses nothing.
        evidence: for the values.
    """

    what: str
    rough: float
    refused: float | None
    evidence: str

    def level(self, value: float, chance: float = 0.0) -> Level | None:
        """Return the level that a value allows at best; None where it raises no doubt.

        Args:
            chance: by how much the value may be off by chance.
        """
        if self.refused is not None and value > self.refused + chance:
            return REFUSED
        return ROUGH if value > self.rough + chance else None


_CALIBRATED: Final = "benchmarks/calibration"

TODAY: Final = Threshold(
    "miss ratio predicted at today's size, away from the measured one beyond two standard errors",
    0.003,
    0.03,
    f"{_CALIBRATED}; an error of 3 points is what no reader would accept",
)
MISSES: Final = Threshold(
    "misses that relations have too many or too few, of all misses", 0.25, 0.8, _CALIBRATED
)
MISSES_OF_ACCESSES: Final = Threshold("the same, of all accesses", 0.002, 0.01, _CALIBRATED)
MISSES_RELATIVE: Final = Threshold(
    "the same, of all misses: refused where they are more of the accesses and of the misses",
    0.0,
    0.06,
    "benchmarks/jobs",
)
CONTENTS: Final = Threshold(
    "pages in the pool that the rates do not explain, of the pool", 0.05, 0.09, _CALIBRATED
)
OTHER_DATABASES: Final = Threshold("pages of other databases, of the pool", 0.1, 0.8, "assumed")
UNKNOWN_RELATIONS: Final = Threshold(
    "pages of relations that the catalog does not name, of the pool", 0.05, 0.3, "assumed"
)
SHIFT: Final = Threshold(
    "accesses that fall on another relation in the second half, of all accesses", 0.25, None, "assumed"
)
IN_ORDER: Final = Threshold(
    "misses on pages that come in the order of their blocks, of all misses, but for relations whose pages "
    "are known to stay or go together",
    0.05,
    0.2,
    _CALIBRATED,
)
TOGETHER: Final = Threshold(
    "what relations whose neighbouring pages rise and fall together may miss more or less, in miss ratio; "
    "refused where it leaves no size but today's",
    0.003,
    None,
    _CALIBRATED,
)
MANY_SCANS: Final = Threshold(
    "accesses of sequential scans, of all accesses; refused where what they find changes with the size",
    0.1,
    0.1,
    "assumed",
)
DRIFT_DEVIATIONS: Final = Threshold(
    "difference of the halves from the whole, in standard errors", 1.2, None, _CALIBRATED
)
DRIFT_MATTERS: Final = 0.002
"""A smaller difference of the halves from the whole, in miss ratio, raises no doubt."""

DRIFT_REFUSED: Final = 0.01
"""The product of the difference in standard errors and in miss ratio from which on a moving load is refused:
on simulated loads it separates those that move, with errors of up to tens of points, from others."""

HALF_WIDTH: Final = Threshold(
    "half an interval, in miss ratio; a wider one than the second value is not shown",
    0.015,
    0.04,
    "an error of 3 points is then more than three standard errors",
)
LEAST_SNAPSHOTS: Final = 4

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

FULL_SHARE: Final = 0.99
"""A pool with this share of its buffers in use counts as full: dropped relations leave some free."""

KEPT_ROOM: Final = 1.25
"""A pool that is smaller than this many times the relations kept in it is not predicted: what is left for the
rest would decide, and what is kept may not fit."""

TRACE_ACCESSES: Final = (10_000, 1_000)
"""Accesses of a trace below which a prediction is rough, and below which it is refused."""

TRACE_LOST: Final = Threshold("events lost, of all events of a trace", 0.001, 0.02, "assumed")
TRACE_RELATIONS: Final = Threshold(
    "misses of relations that a replay of today's size has too many or too few, of all accesses, beyond "
    "twice "
    "the noise",
    0.01,
    None,
    _CALIBRATED,
)
TRACE_WIDE: Final = Threshold(
    "what the order of sessions, scans that meet (half of it), scans seen once or another stretch of the "
    "load may change, in miss ratio",
    0.02,
    None,
    "assumed",
)
TRACE_DRIFT: Final = 0.01
"""By how much the miss ratio of the halves of a trace differs before it is said."""

TABLE: Final[Sequence[Threshold]] = (
    TODAY,
    MISSES,
    MISSES_OF_ACCESSES,
    MISSES_RELATIVE,
    CONTENTS,
    OTHER_DATABASES,
    UNKNOWN_RELATIONS,
    SHIFT,
    IN_ORDER,
    TOGETHER,
    MANY_SCANS,
    DRIFT_DEVIATIONS,
    HALF_WIDTH,
    Threshold("clock passes recorded, where the hand was seen, less than", *PASSES_OF_PATHS, _CALIBRATED),
    Threshold("clock passes recorded, where it was not, less than", *PASSES_OF_STATES, _CALIBRATED),
    Threshold("accesses of a trace, less than", *TRACE_ACCESSES, "assumed"),
    TRACE_LOST,
    TRACE_RELATIONS,
    TRACE_WIDE,
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason against a prediction.

    Attributes:
        level: what the prediction can be at best; `reliable` for a remark that changes nothing.
        reason: its code and its sentence.
    """

    level: Level
    reason: Reason


def judged(doubts: Sequence[Doubt]) -> tuple[Level, list[Reason]]:
    """Return the worst level among doubts, and their reasons, the gravest first."""
    ordered = sorted(doubts, key=lambda doubt: LEVELS.index(doubt.level), reverse=True)
    return (ordered[0].level if ordered else RELIABLE), unique(doubt.reason for doubt in ordered)
