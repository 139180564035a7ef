"""What work takes of the processors of the server's host, as facts of a recording.

`copy_nanoseconds` is what one read of 8 kB from the page cache takes. `pace_nanoseconds` shows how fast the
processors were while it was recorded: what such a read into one buffer took on average until the end, with
its standard error in `pace_error_nanoseconds`. `pace_by` names the interpreter, which is a part of that time.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.host.processor_pace import Pace, PaceTimer
from pgsweep.host.procfile import PROC

_COPY: Final = "copy_nanoseconds"
_PACE: Final = "pace_nanoseconds"
_PACE_ERROR: Final = "pace_error_nanoseconds"
PACE_BY: Final = "pace_by"
_INTERPRETER: Final = f"{platform.python_implementation()} {platform.python_version()}"


def program(postmaster_pid: int) -> Path:
    """Return the file that a server runs, whose reads from the page cache are timed."""
    return PROC / str(postmaster_pid) / "exe"


def pace_timer(postmaster_pid: int) -> PaceTimer:
    """Return what times the processors that a server may use."""
    processors: set[int] = set()
    with suppress(OSError):
        processors = os.sched_getaffinity(postmaster_pid)
    return PaceTimer(program(postmaster_pid), processors)


def copy_facts(seconds: float | None) -> dict[str, str]:
    """Return what a read from the page cache takes, as a fact; none where it is not known."""
    return {} if seconds is None else {_COPY: str(round(seconds * 1e9))}


def pace_facts(pace: Pace | None) -> dict[str, str]:
    """Return how fast the processors were, as facts; none where it is not known."""
    if pace is None:
        return {}
    return {
        _PACE: str(round(pace.seconds * 1e9)),
        _PACE_ERROR: str(round(pace.error_seconds * 1e9)),
        PACE_BY: _INTERPRETER,
    }


def copy_of(meta: EvidenceMeta) -> float | None:
    """Return the processor time of a copy of a block from the page cache; None where it was not measured."""
    return nanoseconds(meta.host, _COPY)


def pace_of(meta: EvidenceMeta) -> Pace | None:
    """Return how fast the processors were; None where it was not observed to the end."""
    seconds, error = nanoseconds(meta.host, _PACE), nanoseconds(meta.host, _PACE_ERROR)
    return None if not seconds or error is None else Pace(seconds, error)


def joined_host(newest: EvidenceMeta, metas: Sequence[EvidenceMeta]) -> dict[str, str]:
    """Return the facts of the newest of several recordings, with the pace over all of them.

    Args:
        newest: whose facts they are else.
        metas: of all; one that is still being recorded has no pace yet.
    """
    known = [(pace, meta) for meta in metas if (pace := pace_of(meta)) is not None]
    total = sum(meta.seconds for _, meta in known)
    of_pace = (_PACE, _PACE_ERROR, PACE_BY)
    others = {name: value for name, value in newest.host.items() if name not in of_pace}
    interpreters = {meta.host.get(PACE_BY, "") for _, meta in known}
    if total <= 0 or len(interpreters) > 1:
        return others
    parts = [(pace, meta.seconds / total) for pace, meta in known]
    mean = sum(pace.seconds * part for pace, part in parts)
    error = math.hypot(*(pace.error_seconds * part for pace, part in parts))
    return others | pace_facts(Pace(mean, error)) | {PACE_BY: interpreters.pop()}


def nanoseconds(host: Mapping[str, str], name: str) -> float | None:
    """Return a fact in seconds; None where it is not there or cannot be."""
    text = host.get(name, "")
    return int(text) / 1e9 if text.isdecimal() and len(text) < 9 else None
