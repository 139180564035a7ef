"""Record evidence by whichever source a server allows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.evidence.dry_run import plan_peek, plan_sql, plan_trace
from pgsweep.evidence.outlook import Judge
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.trace import record_trace
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import RecordPlan, RecordResult

Source = Literal["auto", "peek", "sql", "trace"]
T = TypeVar("T")

_TRACE_SECONDS: Final = 40.0
"""Default length of a trace, which has no measure of its own for when it is long enough."""


def record(
    conninfo: str,
    output: Path,
    *,
    source: Source = "auto",
    seconds: float | None = None,
    max_events: int | None = None,
    max_bytes: int | None = None,
    time_reads: bool = False,
    budget: float | None = None,
    rng_seed: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    judge: Judge | None = None,
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
        time_reads: time how long reads of the server take, by probes; a trace does so anyway.
        budget: share of all processors of this host that the recording may take. `auto` then takes a trace
            first, where one is expected to take no more (budget.py).
        rng_seed: of the times of snapshots and of the sample of blocks, for recordings that shall be joined;
            None draws one.
        progress: called with the expected cost before it is spent, and with the time passed.
        stop: set it to end early with valid evidence.
        judge: of snapshots, whether a prediction will be refused; the recording ends early where that lies in
            the load, and does not suffice before it will not.

    Raises:
        UsageError: a limit of traces for another source, or times of reads by SQL.
        ConnectionFailed: the server cannot be reached, or went away before anything was seen.
        MissingAbility: the source is not possible; for `auto`, none is.
        EvidenceError: the evidence cannot be written.
    """
    if source != "trace" and (max_events is not None or max_bytes is not None):
        raise UsageError(
            "--max-events and --max-bytes end a trace, not snapshots",
            hint="add `--source trace`, or leave them out",
        )
    _refuse_times_by_sql(source, time_reads=time_reads)
    heard = progress or NullListener()
    common: dict[str, Any] = {"budget": budget, "progress": heard, "stop": stop}
    snapshots = common | {"seconds": seconds, "rng_seed": rng_seed, "judge": judge}
    trace_seconds = _TRACE_SECONDS if seconds is None else seconds
    trace = common | {"seconds": trace_seconds, "max_events": max_events, "max_bytes": max_bytes}
    by_name: dict[str, Callable[[], RecordResult]] = {
        "peek": lambda: record_peek(conninfo, output, time_reads=time_reads, **snapshots),
        "sql": lambda: record_sql(conninfo, output, **snapshots),
        "trace": lambda: record_trace(conninfo, output, **trace),
    }
    if source != "auto":
        return by_name[source]()
    decides = judge is not None and judge.decides
    possible = _possible(time_reads=time_reads, snapshots=decides, budget=budget)
    result, passed_over = _gentlest(by_name, possible, heard, output=output)
    return msgspec.structs.replace(result, passed_over=passed_over)


def _possible(*, time_reads: bool, snapshots: bool = False, budget: float | None = None) -> list[str]:
    """Return the sources that may be taken, in the order in which they are tried.

    Args:
        time_reads: only those that can.
        snapshots: only those that take snapshots.
        budget: that bounds what each takes; then the one that says most comes first, else the gentlest.
    """
    trace = ["trace"] if os.geteuid() == 0 and not snapshots else []
    of_snapshots = ["peek", *([] if time_reads else ["sql"])]
    return [*of_snapshots, *trace] if budget is None else [*trace, *of_snapshots]


def _gentlest(
    by_name: Mapping[str, Callable[[], T]], candidates: Sequence[str], heard: Progress, *, output: Path | None
) -> tuple[T, list[str]]:
    """Return what the gentlest source that is possible gives, and which are not possible, and why.

    A source that has written to `output` is the last one.
    A trace costs the server some speed, so it is taken only where nothing gentler is possible.

    Raises:
        MissingAbility: none is.
    """
    passed_over: list[str] = []
    for candidate in candidates:
        try:
            return by_name[candidate](), passed_over
        except MissingAbility as refused:
            if candidate == candidates[-1] or (output is not None and output.exists()):
                raise
            passed_over.append(_refusal(candidate, refused))
            heard.note(f"not possible by {passed_over[-1]}")
    raise AssertionError("the last candidate returns or raises")


def _refuse_times_by_sql(source: Source, *, time_reads: bool) -> None:
    if time_reads and source == "sql":
        raise UsageError(
            "--time-reads takes probes on the server's host, and --source sql has none",
            hint="use --source peek as root; or set track_io_timing = on, which gives the mean",
        )


def plan_record(
    conninfo: str,
    output: Path,
    *,
    source: Source = "auto",
    time_reads: bool = False,
    budget: float | None = None,
) -> RecordPlan:
    """Return the statements and system calls of a recording, which is not made.

    Args:
        conninfo, output, source, time_reads, budget: as for `record`. The load is not counted, so a trace is
            in the plan also where it would be expected to take more than the budget.

    Raises:
        UsageError: times of reads by SQL.
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the source is not possible.
    """
    _refuse_times_by_sql(source, time_reads=time_reads)
    by_name: dict[str, Callable[[], RecordPlan]] = {
        "peek": lambda: plan_peek(conninfo, output, time_reads=time_reads),
        "sql": lambda: plan_sql(conninfo, output),
        "trace": lambda: plan_trace(conninfo, output),
    }
    if source != "auto":
        return by_name[source]()
    possible = _possible(time_reads=time_reads, budget=budget)
    plan, passed_over = _gentlest(by_name, possible, NullListener(), output=None)
    return msgspec.structs.replace(plan, passed_over=passed_over)


def _refusal(source: str, refused: MissingAbility) -> str:
    """Return which source is not possible, and why, as a part of a sentence."""
    cause = f" ({refused.cause})" if refused.cause else ""
    return f"{source}: {refused.message}{cause}"
