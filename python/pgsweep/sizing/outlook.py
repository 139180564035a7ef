"""Whether evidence that is still being recorded will be refused, and whether a longer recording helps."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pgsweep.errors import PgsweepError
from pgsweep.evidence.outlook import Refusal
from pgsweep.sizing.observed import observe
from pgsweep.sizing.snapshots.model import snapshot_model

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


def refusal_of(evidence: Path) -> Refusal | None:
    """Return why snapshots recorded so far would give no prediction; None where they would.

    The curve is computed at today's size alone, without what comes from disk: a tenth to a few seconds of a
    processor.

    Args:
        evidence: a folder that may be incomplete.
    """
    try:
        observation = observe(evidence)
        if observation is None:
            return None
        observation.check_whole()
        verdict = snapshot_model(observation).at((observation.server.pool_blocks,)).record().verdict
    except PgsweepError:
        # Too little to say anything, or it cannot be read yet.
        return None
    if verdict.level != "refused":
        return None
    # The gravest comes first; those after it may be of a lower level, and refuse nothing.
    reason = verdict.reasons[0]
    return Refusal(why=reason.text, lasting=reason.code in _LASTING)
