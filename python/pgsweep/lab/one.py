"""One run of one job: its seed, its times, the state of the machine, and the reason where it fails."""

from __future__ import annotations

import datetime
import os
import random
import re
import time
from dataclasses import dataclass, field
from typing import Final

from pgsweep.errors import PgsweepError
from pgsweep.host.machine import processor_seconds
from pgsweep.lab.protocol import Done, NothingRuns, Work
from pgsweep.progress import Progress
from pgsweep.records.lab import LabRun

_CTRL_C_SECONDS: Final = 0.05
_LOG_PREFIX: Final = re.compile(r"\d{4}-\d\d-\d\d [\d:.]+ \w+ \[\d+\] ")
"""The beginning of a line in the server's log. With the time in it two equal failures would differ."""


@dataclass(slots=True)
class Clock:
    """Where the time of the present run went."""

    begin: float = field(default_factory=time.monotonic)
    setup_seconds: float = 0.0
    measure_seconds: float = 0.0


def run_one(work: Work, job: str, repetition: int, seed: int, progress: Progress, clock: Clock) -> LabRun:
    """Do a job once and return the run; one that fails has the reason.

    Args:
        work: on a server that is there.
        job: which.
        repetition: from 1.
        seed: of the whole plan.
        progress: receives messages.
        clock: gets the times.

    Raises:
        NothingRuns: no other job can be done either.
    """
    load, before, begin = os.getloadavg()[0], processor_seconds(), time.monotonic()
    found, failure = Done({}), None
    try:
        drawn = random.Random(f"{seed}/{repetition}/{job}").randrange(1 << 31)  # noqa: S311
        found = work(job, seed=drawn, advance=progress.advance)
        clock.setup_seconds += found.setup_seconds
        clock.measure_seconds += found.warm_up_seconds + found.measure_seconds
    except NothingRuns:
        raise
    except PgsweepError as error:
        # Ctrl-C reaches pgbench as well: the run has not failed then, and must not be recorded as failed.
        time.sleep(_CTRL_C_SECONDS)
        failure = error.message if error.cause is None else f"{error.message}: {error.cause}"
        failure = _LOG_PREFIX.sub("", failure)
        clock.setup_seconds += time.monotonic() - begin
        progress.note(f"failed: {job}: {failure.splitlines()[0]}")
    after = processor_seconds()
    return LabRun(
        job=job,
        repetition=repetition,
        at=now(),
        values=dict(found.values),
        raw=dict(found.raw),
        setup_seconds=round(found.setup_seconds, 4),
        warm_up_seconds=round(found.warm_up_seconds, 4),
        measure_seconds=round(found.measure_seconds, 4),
        steady=found.steady,
        load_average=load,
        steal_ratio=_steal(before, after),
        failure=failure,
    )


def _steal(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    if before is None or after is None or after[0] <= before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


def now() -> str:
    """Return the time, UTC, ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
