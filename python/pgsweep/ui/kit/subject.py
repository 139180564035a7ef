"""The line at the head of every result: which server, which database, when."""

from __future__ import annotations

from typing import Final

from pgsweep.plain import shown
from pgsweep.records.common import Subject
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.kernel import KernelResult
from pgsweep.ui.kit.numbers import server_name
from pgsweep.ui.kit.view import Result
from pgsweep.units import format_time

_RECORDED: Final = frozenset(
    f"pgsweep.{name}/1" for name in ("record", "predict", "advise", "verify", "prove", "demo", "export")
)
"""Schemas of the results that rest on evidence."""


def subject_line(result: Result) -> str:
    """Return `PostgreSQL 18.1 at db1, port 5432; database shop; recorded 2026-01-02 03:04:05 UTC`.

    Where nothing was recorded it is `checked at` that time. What is not known is left out; nothing at all
    where the result is about no server.
    """
    when = "recorded" if result.schema in _RECORDED else "checked at"
    subject = _subject(result)
    if subject.server_version is None and subject.server is None:
        # The settings of a host's kernel are a result without a server.
        if isinstance(result, KernelResult) and subject.recorded_at:
            return f"This host; {when} {shown(format_time(subject.recorded_at))}"
        return ""
    what = "server" if subject.server_version is None else server_name(shown(subject.server_version))
    parts = [what if subject.server is None else f"{what} at {shown(subject.server)}"]
    if subject.database:
        parts.append(f"database {shown(subject.database)}")
    if subject.recorded_at:
        parts.append(f"{when} {shown(format_time(subject.recorded_at))}")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def _subject(result: Result) -> Subject:
    """Return what the result says of its server; older results say it in their own fields."""
    made = result.provenance
    if made is not None and made.subject is not None:
        return made.subject
    if isinstance(result, DoctorResult) and result.server is not None:
        server = result.target.rpartition(" at ")[2] or None
        version, database = result.server.version, result.server.database
        return Subject(server=server, server_version=version, database=database)
    return Subject(
        server_version=getattr(result, "server_version", None) or None,
        database=getattr(result, "database", None),
        recorded_at=getattr(result, "at", None) or (made.created_at if made is not None else None),
    )
