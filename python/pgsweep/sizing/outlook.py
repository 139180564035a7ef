"""Whether evidence that is still being recorded will be refused, and whether a longer recording helps.

Where a width of the intervals is asked for, evidence is not enough before they are as narrow, from half to
twice today's size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pgsweep.errors import PgsweepError
from pgsweep.evidence.outlook import Refusal
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.observed import observe
from pgsweep.sizing.snapshots.model import snapshot_model
from pgsweep.units import format_bytes, format_percent

_LASTING: Final = frozenset(
    {
        "counters-off",
        "counters-contradict",
        "in-order",
        "one-after-the-other",
        "scans-not-known",
        "other-databases",
    }
)
"""Reasons that lie in the load or the server. All others are of a recording that is too short, or of a load
that may settle."""


def refusal_of(evidence: Path, until: float | None = None) -> Refusal | None:
    """Return why snapshots recorded so far would give no prediction; None where they would.

    The curve is computed at half of today's size, at that size and at twice of it, without what comes from
    disk: a tenth to a few seconds of a processor.

    Args:
        evidence: a folder that may be incomplete.
        until: half the width that the intervals may have, as a ratio; None takes any that is shown.
    """
    try:
        observation = observe(evidence)
        if observation is None:
            return None
        observation.check_whole()
        pool = observation.server.pool_blocks
        found = snapshot_model(observation).at((max(pool // 2, 1), pool, 2 * pool)).record()
        verdict = found.verdict
    except PgsweepError:
        # Too little to say anything, or it cannot be read yet.
        return None
    if verdict.level != "refused":
        return None if until is None else _too_wide(found, until)
    # The gravest comes first; those after it may be of a lower level, and refuse nothing.
    reason = verdict.reasons[0]
    return Refusal(why=reason.text, lasting=reason.code in _LASTING)


def _too_wide(found: PredictResult, until: float) -> Refusal | None:
    """Return that an interval is wider than asked for; None where none is."""
    if found.unknown_bytes:
        sizes = ", ".join(map(format_bytes, found.unknown_bytes))
        return Refusal(why=f"the interval at {sizes} is too wide to be shown", lasting=False)
    widest = max(found.points, key=lambda point: point.high - point.low)
    half = (widest.high - widest.low) / 2
    if half <= until:
        return None
    return Refusal(
        why=f"the interval at {format_bytes(widest.shared_buffers_bytes)} is ±{format_percent(half, 2)}, "
        f"not ±{format_percent(until, 2)}",
        lasting=False,
    )
