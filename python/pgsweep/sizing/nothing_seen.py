"""Why evidence allows no prediction: nothing was accessed, or what was recorded of it is not there.

A database in which nothing happened, a recording that was cut short before its first part, and a part that
was removed or damaged later look the same in the tables that are left: the error says which it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.commands import recording
from pgsweep.errors import EvidenceError
from pgsweep.evidence.schema import needed_tables
from pgsweep.evidence.store import Evidence
from pgsweep.plain import shell_word

if TYPE_CHECKING:
    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.joined import JoinedEvidence

_ENDINGS: Final = {
    "": ": it was killed, or the host went down",
    "disk": " because the disk was full or failed",
    "interrupt": " by an interrupt",
    "error": " by an error",
}


def check_observed(evidence: Evidence) -> None:
    """Check that evidence has rows in the tables that a prediction from its source begins with.

    Raises:
        EvidenceError: it has not, because the recording was cut short or a part is missing or damaged.
    """
    meta = evidence.meta
    for table in needed_tables(meta.source):
        if evidence.rows(table):
            continue
        if table in evidence.damaged:
            raise _damaged(evidence, evidence.damaged[table])
        if not meta.complete:
            raise _cut(evidence, f"no {table.replace('_', ' ')} had been written")
        # Older evidence does not say how many parts it had. The trace of an idle server has no access.
        if table != "accesses" or meta.accesses_per_second:
            raise _damaged(evidence, f"{table}: part-00000.parquet is missing")


def nothing_seen(evidence: TraceTables | JoinedEvidence) -> EvidenceError:
    """Return the error for evidence without an access of its database."""
    meta = evidence.meta
    cause = "the load ran in another database, or not at that time"
    if isinstance(evidence, Evidence):
        for table in needed_tables(meta.source):
            if table in evidence.damaged:
                return _damaged(evidence, evidence.damaged[table])
        if not meta.complete:
            if meta.source != "trace" and _counter_samples(evidence) < 2:
                title = "holds too little for a prediction"
                return _cut(evidence, "no second sample of the counters had been written", title)
            if not evidence.being_written:
                cause = "the load ran in another database, or after the recording was cut short"
    return EvidenceError(
        f"nothing happened in the database `{meta.database}` while it was observed",
        cause=cause,
        hint="record again while the load runs, with -d naming its database",
    )


def _counter_samples(evidence: Evidence) -> int:
    counters = evidence.table("counters", ["scope", "seconds"])
    return len(np.unique(counters["seconds"][counters["scope"] != "pool"]))


def _damaged(evidence: Evidence, which: str) -> EvidenceError:
    return EvidenceError(
        f"`{evidence.path}` is damaged, and what is left allows no prediction",
        cause=which,
        hint="copy the folder again from where it was recorded, or record again: "
        + recording(f"--source {evidence.meta.source}"),
    )


def _cut(evidence: Evidence, what: str, title: str = "holds no observation") -> EvidenceError:
    if evidence.being_written:
        return EvidenceError(
            f"`{evidence.path}` {title}",
            cause=f"{what} yet: the recording is still under way",
            hint="try again when it has ended",
        )
    ending = _ENDINGS.get(evidence.meta.ended_by, f" ({evidence.meta.ended_by})")
    return EvidenceError(
        f"`{evidence.path}` {title}",
        cause=f"{what} when the recording ended{ending}",
        hint=f"record again, under another name or after: rm -r {shell_word(str(evidence.path))}",
    )
