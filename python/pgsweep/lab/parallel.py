"""Run the cells of a grid in parallel: on worker processes here, or on any `concurrent.futures` executor.

Each cell is one task, with a private server of its own for all its repetitions. Its runs come back when all
are done, and only then stand in the file of samples; a cell whose worker dies is done again as a whole. So
none is lost and none is there twice. Cells that run on one machine at the same time disturb each other: the
result says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from pgsweep.host.machine import describe_machine
from pgsweep.lab.one import Clock, run_one
from pgsweep.lab.protocol import NothingRuns, Place, Plan
from pgsweep.lab.store import Samples
from pgsweep.pg.private.bindir import find_server
from pgsweep.progress import NullListener, Progress
from pgsweep.records.lab import LabRun
from pgsweep.workers import WorkerPool, is_loss

_MOST_LOSSES: Final = 3


@dataclass(frozen=True, slots=True)
class CellRuns:
    """What a worker gives back.

    Attributes:
        machine: on which it ran.
        server_version: of the private server there.
        runs: all that were wanted of the cell.
    """

    machine: str
    server_version: str
    runs: list[LabRun]


def run_cell(plan: Plan, place: Place, job: str, repetitions: Sequence[int], seed: int) -> CellRuns:
    """Make a private server, do the repetitions of one cell on it, and return its runs; runs in a worker."""
    with plan.opened(place, NullListener()) as work:
        runs = [run_one(work, job, number, seed, NullListener(), Clock()) for number in repetitions]
    return CellRuns(describe_machine(), find_server(place.bindir).version, runs)


def run_cells(
    plan: Plan,
    place: Place,
    missing: Mapping[str, Sequence[int]],
    samples: Samples,
    executor: Executor | str,
    progress: Progress,
) -> list[str]:
    """Run cells in parallel, and return notes for the result.

    Args:
        plan: a grid.
        place: of the private servers, on every worker.
        missing: repetitions by job.
        samples: each cell is added when it is done.
        executor: as `check_executor` takes it.
        progress: receives messages.

    Raises:
        MissingAbility: this executor is not available here, or was lost.
        NothingRuns: workers died repeatedly, or have another server.
    """
    pool = WorkerPool(executor)
    machines: set[str] = set()
    losses = 0
    left = dict(missing)
    ended = False
    try:
        futures: dict[Future[CellRuns], str] = {}
        while left:
            for job in left.keys() - set(futures.values()):
                future = pool.submit(run_cell, plan, place, job, tuple(left[job]), samples.header.seed)
                futures[future] = job
            progress.stage(
                f"{len(missing) - len(left)} of {len(missing)} cells are done: {len(left)} run or wait"
            )
            done = pool.first_done(futures)
            lost = []
            for future in done:
                job = futures.pop(future)
                error = pool.error_of(future)
                if error is not None and not is_loss(error):
                    raise error
                if error is not None:
                    lost.append(job)
                    continue
                found = future.result()
                _check_version(found, samples.header.server_version)
                machines.add(found.machine)
                for run in found.runs:
                    samples.add(run)
                    if run.failure:
                        progress.note(f"failed: {job}: {run.failure.splitlines()[0]}")
                del left[job]
            if lost and not any(pool.error_of(future) is None for future in done):
                losses += 1
            if losses > _MOST_LOSSES:
                raise NothingRuns(
                    f"the workers died repeatedly; the last cells were: {', '.join(sorted(lost)[:3])}",
                    cause="too little memory for all servers that ran at once, or another user ended them",
                    hint="fewer at a time: --executor processes:1; what is done is kept",
                )
            if lost:
                progress.note(f"a worker died; run again: {', '.join(sorted(lost)[:3])}")
                pool.renew()
        ended = True
    finally:
        pool.close(at_once=not ended)
    return _notes(machines, pool.workers)


def _check_version(found: CellRuns, version: str) -> None:
    if found.server_version != version:
        raise NothingRuns(
            f"a worker has PostgreSQL {found.server_version}, and this machine {version}",
            cause="the cells would not be comparable",
            hint="install the same on all machines, or name it: --pg-bindir DIR",
        )


def _notes(machines: set[str], workers: int) -> list[str]:
    notes = []
    if workers != 1:
        notes.append(
            "cells were run at the same time: those on one machine disturb each other, and each has less of "
            "its processors, memory and disk"
        )
    if len(machines) > 1:
        notes.append(f"cells were run on machines that differ: {'; '.join(sorted(machines))}")
    return notes
