"""Where and how a result was made, added to it so that a report can be checked later."""

from __future__ import annotations

import datetime
import os
import platform
from typing import TypeVar

import msgspec

from pgsweep._native import __version__
from pgsweep.commands import this_command
from pgsweep.records.common import Provenance, Subject
from pgsweep.records.doctor import DoctorResult, DoctorServer

R = TypeVar("R", bound=msgspec.Struct)


def with_provenance(result: R, *, server: str | None = None, subject: Subject | None = None) -> R:
    """Return the result with the versions, the machine and the command line that made it.

    Args:
        result: a record with a field `provenance`.
        server: where the server is, in words; its version and database are those that the result names.
        subject: the server that the result is about, where the result does not name it.
    """
    made = _provenance()
    subject = subject or _subject_of(result, server, made.created_at)
    return msgspec.structs.replace(result, provenance=msgspec.structs.replace(made, subject=subject))


def _subject_of(result: msgspec.Struct, server: str | None, now: str) -> Subject:
    seen = getattr(result, "server", None)
    if isinstance(result, DoctorResult):
        # It knows where the session is, also where a service says so.
        server = result.target.rpartition(" at ")[2] or server
    if isinstance(seen, DoctorServer):
        return Subject(server=server, server_version=seen.version, database=seen.database, recorded_at=now)
    version = getattr(result, "server_version", None) or None
    return Subject(
        # Where no version is known there was no session.
        server=None if version is None else server,
        server_version=version,
        database=getattr(result, "database", None),
        recorded_at=getattr(result, "at", None) or now,
    )


def _provenance() -> Provenance:
    from pgsweep import _native
    from pgsweep.host.machine import memory_bytes

    now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    return Provenance(
        pgsweep_version=__version__,
        native_build=_native.build_profile(),
        created_at=now.isoformat().replace("+00:00", "Z"),
        command=this_command(),
        kernel=f"{platform.system()} {platform.release()}",
        architecture=platform.machine(),
        cpus=os.cpu_count() or 0,
        memory_bytes=memory_bytes(),
        python_version=platform.python_version(),
    )
