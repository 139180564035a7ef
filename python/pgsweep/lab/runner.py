"""Runs the jobs of a plan in an order drawn from a seed; each run is on disk before the next begins."""

from __future__ import annotations

import hashlib
import json
import os
import random
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from pgsweep._native import __version__
from pgsweep.host.machine import describe_machine
from pgsweep.lab.disposable import check_server, where
from pgsweep.lab.one import Clock, now, run_one
from pgsweep.lab.protocol import CellPlan, Place, Plan
from pgsweep.lab.statistics import median_interval, relative_spread
from pgsweep.lab.store import Header, Samples, opened_samples
from pgsweep.pg.private.bindir import find_server
from pgsweep.progress import NullListener, Progress
from pgsweep.records.lab import LabCell, LabControl, LabExperiment, LabResult, LabRun
from pgsweep.testbed.control import Control
from pgsweep.units import format_count, format_minutes, format_percent

NOISY_RATIO = 0.1
_STEAL_RATIO = 0.02
_CONTROL_EVERY_SECONDS = 4.0
"""A control run takes about 0.05 s; with this interval that is a small part of the time."""
_FEWEST_CONTROLS = 3


@dataclass(frozen=True, slots=True)
class Order:
    """How a plan is run.

    Attributes:
        samples: the file of samples.
        repetitions: of each job.
        seed: of the order and of pgbench; drawn where None.
        place: of the private servers.
        command: the command line, for the file of samples.
        executor: where cells of a grid are run beside each other (lab/parallel.py); None runs them here, one
            after the other.
    """

    samples: Path
    repetitions: int = 5
    seed: int | None = None
    place: Place = field(default_factory=Place)
    command: str = ""
    executor: Executor | str | None = None


def run_plan(plan: Plan, order: Order, progress: Progress | None = None) -> LabResult:
    """Run what is missing of a plan and return the result of all runs.

    A job that fails is noted and the others go on. A killed or interrupted run is resumed by the same call:
    what the file of samples has is not run again.

    Raises:
        PgsweepError: no job can run: there is no server, pgbench is missing, the tables cannot be made; or
            the file of samples cannot be written, or holds the runs of another plan.
    """
    progress = progress or NullListener()
    clock = Clock()
    plan.check(order.place)
    server = order.place.server
    version = find_server(order.place.bindir).version if server is None else check_server(server)
    conditions = dict(plan.conditions) | ({} if server is None else {"server": where(server)})
    header = Header(
        name=plan.name,
        plan=_digest(plan, conditions, order.repetitions),
        seed=secrets.randbelow(1 << 31) if order.seed is None else order.seed,
        repetitions=order.repetitions,
        conditions=conditions,
        settings=dict(plan.settings),
        server_version=version,
        machine=describe_machine(),
        pgsweep_version=__version__,
        command=order.command,
        at=now(),
    )
    clock.setup_seconds += time.monotonic() - clock.begin
    with opened_samples(order.samples, header) as samples:
        notes: list[str] = []
        if order.executor is None:
            _run_missing(plan, order, samples, progress, clock)
        else:
            notes = _run_beside(plan, order, order.executor, samples, progress, clock)
        result = result_of(
            samples.header, samples.runs, plan.cells, order.samples, planned=len(plan.jobs), clock=clock
        )
        return msgspec.structs.replace(result, notes=[*result.notes, *notes])


def result_of(
    header: Header,
    runs: Sequence[LabRun],
    cells: Sequence[CellPlan],
    samples: Path,
    *,
    planned: int,
    clock: Clock | None = None,
    experiment: LabExperiment | None = None,
) -> LabResult:
    """Return the result that the runs give."""
    clock = clock or Clock()
    elapsed = time.monotonic() - clock.begin
    overhead = elapsed - clock.setup_seconds - clock.measure_seconds
    shown = [_cell(cell, runs) for cell in cells]
    spreads = [spread for cell in shown if (spread := relative_spread(cell.runs)) is not None]
    worked = clock.measure_seconds > 0
    return LabResult(
        server_version=header.server_version,
        name=header.name,
        machine=header.machine,
        seed=header.seed,
        repetitions=header.repetitions,
        runs_done=len(runs),
        runs_planned=planned * header.repetitions,
        conditions=header.conditions,
        settings=header.settings,
        cells=shown,
        setup_seconds=sum(run.setup_seconds for run in runs),
        measure_seconds=sum(run.warm_up_seconds + run.measure_seconds for run in runs),
        overhead_seconds=overhead if worked else 0.0,
        overhead_ratio=overhead / elapsed if worked else None,
        noise_ratio=statistics.median(spreads) if spreads else None,
        samples=str(samples),
        controls=controls_of(runs),
        experiment=experiment,
        notes=_notes(runs, spreads),
    )


def controls_of(runs: Sequence[LabRun]) -> list[LabControl]:
    """Return the machine's own noise, as the control runs between the runs show it."""
    found = []
    kinds: list[tuple[Literal["processor", "disk"], list[float | None]]] = [
        ("processor", [run.control_processor_seconds for run in runs]),
        ("disk", [run.control_disk_seconds for run in runs]),
    ]
    for what, times in kinds:
        known = sorted(each for each in times if each)
        if len(known) < _FEWEST_CONTROLS:
            continue
        middle, tenth = statistics.median(known), len(known) // 10
        low, high = known[tenth], known[-1 - tenth]
        found.append(
            LabControl(
                what=what,
                runs=len(known),
                median_seconds=middle,
                low_seconds=low,
                high_seconds=high,
                spread_ratio=(high - low) / middle,
            )
        )
    return found


def _run_beside(
    plan: Plan,
    order: Order,
    executor: Executor | str,
    samples: Samples,
    progress: Progress,
    clock: Clock,
) -> list[str]:
    """Run what is missing on an executor and return notes for the result."""
    from pgsweep.lab.parallel import run_cells

    done = {(run.job, run.repetition) for run in samples.runs}
    missing: dict[str, list[int]] = {}
    for job, repetition in _ordered(plan.jobs, order.repetitions, samples.header.seed):
        if (job, repetition) not in done:
            missing.setdefault(job, []).append(repetition)
    if done:
        progress.note(
            f"resumed: {len(done)} of {len(plan.jobs) * order.repetitions} runs are in {order.samples}"
        )
    begin = time.monotonic()
    notes = run_cells(plan, order.place, missing, samples, executor, progress)
    clock.measure_seconds += time.monotonic() - begin
    return notes


def _run_missing(plan: Plan, order: Order, samples: Samples, progress: Progress, clock: Clock) -> None:
    seed = samples.header.seed
    done = {(run.job, run.repetition) for run in samples.runs}
    jobs = [job for job in _ordered(plan.jobs, order.repetitions, seed) if job not in done]
    total = len(plan.jobs) * order.repetitions
    if not jobs:
        progress.note(f"all {format_count(total)} runs are in {order.samples}; nothing is run again")
        return
    if done:
        progress.note(f"resumed: {len(done)} of {total} runs are in {order.samples}")
    progress.stage("making the server and its tables")
    begin = time.monotonic()
    with plan.opened(order.place, progress) as work, Control(order.place.work_dir) as control:
        clock.setup_seconds += time.monotonic() - begin
        taken: list[float] = []
        next_control = 0.0
        for number, (job, repetition) in enumerate(jobs, total - len(jobs) + 1):
            expected = statistics.fmean(taken) if taken else None
            left = (
                "" if expected is None else f", about {format_minutes(expected * (total - number + 1))} left"
            )
            progress.stage(f"run {number} of {total}{left}: {job}", expected)
            begin = time.monotonic()
            times = None
            if begin >= next_control:
                times = control.run()
                next_control = time.monotonic() + _CONTROL_EVERY_SECONDS
                clock.setup_seconds += time.monotonic() - begin
            found = run_one(work, job, repetition, seed, progress, clock)
            if times is not None:
                found = msgspec.structs.replace(
                    found,
                    control_processor_seconds=round(times.processor_seconds, 6),
                    control_disk_seconds=round(times.disk_seconds, 6),
                )
            samples.add(found)
            taken.append(time.monotonic() - begin)
        begin = time.monotonic()
    clock.setup_seconds += time.monotonic() - begin


def _ordered(jobs: Sequence[str], repetitions: int, seed: int) -> list[tuple[str, int]]:
    """Return every run; each repetition has all jobs, in an order of its own.

    So what changes with time (other work on the machine, a table that grows) affects all jobs alike.
    """
    found = []
    for repetition in range(1, repetitions + 1):
        block = list(jobs)
        random.Random(f"{seed}/{repetition}").shuffle(block)  # noqa: S311
        found += [(job, repetition) for job in block]
    return found


def _cell(cell: CellPlan, runs: Sequence[LabRun]) -> LabCell:
    mine = sorted((run for run in runs if cell.key in run.values), key=lambda run: run.repetition)
    values = [run.values[cell.key] for run in mine]
    failed = [run.failure.splitlines()[0] for run in runs if run.failure and run.job == cell.job]
    interval = median_interval(values)
    return LabCell(
        key=cell.key,
        factors=dict(cell.factors),
        unit=cell.unit,
        better=cell.better,
        runs=values,
        median=statistics.median(values) if values else None,
        low=interval and interval[0],
        high=interval and interval[1],
        published=cell.published,
        failures=list(dict.fromkeys(failed)),
        unsteady=sum(run.steady is False for run in mine),
    )


def _notes(runs: Sequence[LabRun], spreads: Sequence[float]) -> list[str]:
    notes = []
    processors = os.cpu_count() or 1
    if spreads and statistics.median(spreads) > NOISY_RATIO:
        notes.append(
            f"noisy: the runs of a cell differ by {format_percent(statistics.median(spreads))} (median over "
            "the cells): small differences are not shown; repeat more often, or on a machine without other "
            "work"
        )
    busy = [run.load_average for run in runs if (run.load_average or 0) > processors + 1]
    if busy:
        notes.append(
            f"busy: the load average was above {processors} before {len(busy)} of {len(runs)} runs, "
            f"at most {max(value or 0 for value in busy):.0f}"
        )
    stolen = [run.steal_ratio for run in runs if (run.steal_ratio or 0) > _STEAL_RATIO]
    if stolen:
        notes.append(
            f"the hypervisor took more than {format_percent(_STEAL_RATIO)} of the processors' time in "
            f"{len(stolen)} of {len(runs)} runs"
        )
    unsteady = sum(run.steady is False for run in runs)
    if unsteady:
        notes.append(f"{unsteady} of {len(runs)} runs were not steady when their warm-up reached its limit")
    return notes


def _digest(plan: Plan, conditions: Mapping[str, str], repetitions: int) -> str:
    """Return a digest of what decides the figures."""
    text = json.dumps(
        [plan.name, dict(conditions), dict(plan.settings), list(plan.jobs), repetitions], sort_keys=True
    )
    return hashlib.sha256(text.encode()).hexdigest()
