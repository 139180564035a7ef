"""Record evidence by whichever source a server allows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.plan import plan_peek, plan_sql, plan_trace
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.trace import record_trace
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import RecordPlan, RecordResult

Source = Literal["auto", "peek", "sql", "trace"]

_TRACE_SECONDS: Final = 40.0
"""Length of a trace where none was asked for: it has no measure of its own for when it suffices."""


def record(
    conninfo: str,
    output: Path,
    *,
    source: Source = "auto",
    seconds: float | None = None,
    max_events: int | None = None,
    max_bytes: int | None = None,
    rng_seed: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> RecordResult:
    """Record evidence of a running server into a folder, and return what was recorded.

    Args:
        conninfo: as libpq understands it; its database is the one whose accesses are observed.
        output: the folder to write.
        source: `peek`, `sql` or `trace`; `auto` takes the gentlest that the server allows, and the result
            says in `passed_over` which it does not, and why.
        seconds: length of the observation; None ends it when it suffices, a trace after 40 s.
        max_events: end a trace after that many accesses.
        max_bytes: end a trace when the evidence has about this size.
        rng_seed: of the times of snapshots and of the sample of blocks, for recordings that shall be joined;
            None draws one.
        progress: called with the expected cost before it is spent, and with the time passed.
        stop: set it to end early with valid evidence.

    Raises:
        UsageError: a limit of traces for another source.
        ConnectionFailed: the server cannot be reached, or went away before anything was seen.
        MissingAbility: the source is not possible; for `auto`, none is.
        EvidenceError: the evidence cannot be written.
    """
    if source != "trace" and (max_events is not None or max_bytes is not None):
        raise UsageError(
            "--max-events and --max-bytes end a trace, not snapshots",
            hint="add `--source trace`, or leave them out",
        )
    heard = progress or NullListener()
    by_name: dict[str, Callable[[], RecordResult]] = {
        "peek": lambda: record_peek(
            conninfo, output, seconds=seconds, rng_seed=rng_seed, progress=heard, stop=stop
        ),
        "sql": lambda: record_sql(
            conninfo, output, seconds=seconds, rng_seed=rng_seed, progress=heard, stop=stop
        ),
        "trace": lambda: record_trace(
            conninfo,
            output,
            seconds=_TRACE_SECONDS if seconds is None else seconds,
            max_events=max_events,
            max_bytes=max_bytes,
            progress=heard,
            stop=stop,
        ),
    }
    if source != "auto":
        return by_name[source]()
    passed_over: list[str] = []
    # A trace costs the server some speed, so `auto` takes it only where nothing gentler is possible.
    candidates = ["peek", "sql", *(["trace"] if os.geteuid() == 0 else [])]
    for candidate in candidates:
        try:
            result = by_name[candidate]()
        except MissingAbility as refused:
            if candidate == candidates[-1] or output.exists():
                raise
            passed_over.append(_refusal(candidate, refused))
            heard.note(f"not possible by {passed_over[-1]}")
        else:
            return msgspec.structs.replace(result, passed_over=passed_over)
    raise AssertionError("the last candidate returns or raises")


def plan_record(conninfo: str, output: Path, *, source: Source = "auto") -> RecordPlan:
    """Return the statements and system calls of a recording, which is not made.

    Args:
        conninfo: as for `record`.
        output: likewise.
        source: likewise; `auto` tries `peek` and `sql`.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the source is not possible.
    """
    if source == "trace":
        return plan_trace(conninfo, output)
    if source != "auto":
        return (plan_peek if source == "peek" else plan_sql)(conninfo, output)
    try:
        return plan_peek(conninfo, output)
    except MissingAbility as refused:
        return msgspec.structs.replace(plan_sql(conninfo, output), passed_over=[_refusal("peek", refused)])


def _refusal(source: str, refused: MissingAbility) -> str:
    """Return which source is not possible, and why, as a sentence goes on."""
    cause = f" ({refused.cause})" if refused.cause else ""
    return f"{source}: {refused.message}{cause}"
