"""The server that evidence is about."""

from __future__ import annotations

from pathlib import Path

from pgsweep.errors import EvidenceError
from pgsweep.evidence.meta import read_meta, start_folder
from pgsweep.records.common import Subject


def subject_of(evidence: Path) -> Subject | None:
    """Return which server evidence was recorded on, and when; None where the file does not say.

    Args:
        evidence: a folder of evidence, or a trace that was exported from one. A foreign trace names no
            server.
    """
    folder = start_folder(evidence) if evidence.is_file() else evidence
    try:
        meta = read_meta(folder)
    except EvidenceError:
        return None
    return Subject(
        server=meta.host.get("server"),
        server_version=meta.server_version or None,
        database=meta.database or None,
        recorded_at=meta.started_at or None,
    )
