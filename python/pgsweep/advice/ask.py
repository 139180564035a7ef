"""The question `pgsweep advise`: answered by what is kept beside the evidence, or by `gather`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pgsweep.commands import server_options
from pgsweep.evidence.kept import Question, Steps, answered
from pgsweep.records.advice import AdviceResult

if TYPE_CHECKING:
    from pgsweep.sizing.forecast import Watch


def advise(
    evidence: Path,
    *,
    conninfo: str | None = None,
    memory_bytes: int | None = None,
    loss: float | None = None,
    seed: int = 0,
    kept: bool = False,
    watch: Watch | None = None,
) -> AdviceResult:
    """Return which settings follow from evidence, each with its reason (`pgsweep advise`).

    Args:
        evidence: a folder that `record` wrote.
        conninfo: of the server that it was recorded on, for huge pages and connections; None to leave them.
        memory_bytes: what the pool and the page cache share; that of the evidence by default.
        loss: look for the least memory whose throughput is within this ratio of today's, and advise for that.
        seed: of all draws.
        kept: take the answer that is kept beside the evidence, and keep this one (evidence/kept.py); with a
            server only the prediction, as what is counted there changes.
        watch: hears how far the prediction is.

    Raises:
        EvidenceError: the evidence cannot be read, or holds no access.
        UsageError: it is not of a server, the server is another one, or the memory that is named is less than
            the server's shared memory.
        ConnectionFailed: the server cannot be reached.
    """

    def made(_steps: Steps | None = None) -> AdviceResult:
        from pgsweep.advice.gather import advise_from

        return advise_from(
            evidence, conninfo, memory_bytes=memory_bytes, loss=loss, seed=seed, kept=kept, watch=watch
        )

    if not kept or conninfo is not None or server_options():
        return made()  # what names a server is not kept
    question = Question(command="advise", memory_bytes=memory_bytes, loss=loss, seed=seed)
    return msgspec.structs.replace(
        answered(evidence, question, AdviceResult, made),
        evidence=str(evidence),  # it may have been moved
    )
