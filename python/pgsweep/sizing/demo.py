"""Run all steps on a private PostgreSQL: workload, record, predict, and compare with the measured truth.

For each workload: run it at today's size (64 MB) until the pool has settled; record it by snapshots, then by
trace, one after the other because tracing slows the server; predict the miss ratio at other sizes from each;
then restart the server at each of these sizes and measure. The prediction never sees a measurement at another
size. In the large demo the load is paced while it is recorded, so that the clock hand does not come round
once, as in a pool of gigabytes in production.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgsweep.errors import ClusterError, MissingAbility
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.trace import record_trace
from pgsweep.host.machine import describe_machine, memory_bytes
from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import CurvePoint, PredictResult
from pgsweep.records.proof import DemoResult, DemoRow, DemoWorkload, Interval
from pgsweep.sizing.accuracy import Accuracy, interval_of
from pgsweep.sizing.predict import predict
from pgsweep.testbed.filling import PoolContent
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database, prepare
from pgsweep.testbed.replay_server import can_try
from pgsweep.testbed.truth import Patience, SettledWorkload, Truth, measure
from pgsweep.testbed.workloads import LARGE, MIX, WORKLOADS, Workload
from pgsweep.units import format_bytes, format_count, format_minutes

_MIB = 1024**2
# The tables, their index, and as much WAL as the cluster keeps (max_wal_size), per unit of scale and in all.
_BYTES_PER_SCALE = 18 * _MIB
_ROOM_BESIDE_BYTES = 1536 * _MIB
# How long the steps take on a machine with two busy CPUs, for the time left: restart, filling, settling,
# counting.
_CREATE_SECONDS_PER_SCALE = 0.2
_SETTLE_SECONDS = 12.0
_PREDICT_SECONDS = 10.0
_MEASURE_SECONDS = 14.0


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """What the demo does.

    Attributes:
        workloads: one after the other; those that change tables last.
        scale: pgbench's.
        observed_bytes: shared_buffers while recording.
        sizes_bytes: ascending; where it is predicted and measured.
        snapshots_seconds: length of the recording by snapshots.
        trace_seconds: length of the recording by trace.
        patience: when a pool counts as settled.
        recorded_per_second: transactions begun per second while recording; None for as many as possible.
        measure_seconds_per_mib: how much longer it takes to count at a larger size, for the time left.
    """

    workloads: tuple[Workload, ...] = (MIX,)
    scale: int = 50
    observed_bytes: int = 64 * _MIB
    sizes_bytes: tuple[int, ...] = tuple(size * _MIB for size in (8, 32, 64, 128, 256))
    snapshots_seconds: float = 35.0
    trace_seconds: float = 15.0
    patience: Patience = field(default_factory=Patience)
    recorded_per_second: float | None = None
    measure_seconds_per_mib: float = 0.07


DEFAULT_PLAN = DemoPlan()
EVERYTHING = DemoPlan(
    workloads=WORKLOADS, sizes_bytes=tuple(size * _MIB for size in (8, 16, 32, 64, 128, 256, 512))
)
LARGE_PLAN = DemoPlan(
    workloads=(LARGE,),
    scale=400,
    observed_bytes=2048 * _MIB,
    sizes_bytes=tuple(size * _MIB for size in (1024, 1536, 2048, 3072, 4096)),
    snapshots_seconds=60.0,
    trace_seconds=60.0,
    # After one turnover the usage counts are still those of the filling; after a few, those of the load.
    patience=Patience(turnovers=4.0, settle_limit_seconds=300.0),
    recorded_per_second=20.0,
    measure_seconds_per_mib=0.012,
)


class _Steps:
    """Numbers the stages and reports the time left over all of them."""

    def __init__(self, progress: Progress, expected_seconds: Sequence[float]) -> None:
        self._progress = progress
        self._expected = list(expected_seconds)
        self._number = 0

    def begin(self, title: str) -> None:
        expected = self._expected[self._number]
        left = sum(self._expected[self._number :])
        self._number += 1
        minutes, seconds = divmod(round(left), 60)
        text = f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
        self._progress.stage(f"{title} (step {self._number} of {len(self._expected)}, {text} left)", expected)

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        """Ignore the parts of a step, so that features can be given this as their progress."""

    def advance(self, done_seconds: float) -> None:
        self._progress.advance(done_seconds)

    def note(self, text: str) -> None:
        self._progress.note(text)


def run_demo(
    *,
    everything: bool = False,
    large: bool = False,
    bindir: Path | None = None,
    work_dir: Path | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
    seed: int = 1,
    plan: DemoPlan | None = None,
) -> DemoResult:
    """Run the demo.

    The private server is removed in any case; evidence that was complete stays in `output`.

    Args:
        everything: all three workloads at seven sizes instead of the mix at five.
        large: a pool of 2 GB before a database of 6 GB, recorded for a part of a clock pass.
        bindir: the server's bin folder; the wheel's PostgreSQL 18 by default.
        work_dir: where the data directory is made; in the place for temporary files by default.
        output: where the evidence is kept, as WORKLOAD-snapshots.evidence and WORKLOAD-trace.evidence; not at
            all by default.
        progress: called with every step and with the time left.
        seed: of everything random; two runs still differ, as clients and clocks do.
        plan: instead of the two usual ones.

    Raises:
        ClusterError: no server, no room or memory, or the workload failed.
        EvidenceError: the evidence cannot be written.
    """
    chosen = plan or (LARGE_PLAN if large else EVERYTHING if everything else DEFAULT_PLAN)
    started = time.monotonic()
    binaries = find_server(bindir)
    _check_room(work_dir, chosen)
    steps = _Steps(progress or NullListener(), _expected_seconds(chosen))
    notes: list[str] = []
    settings = {
        "shared_buffers": f"{chosen.observed_bytes // 1024}kB",
        # Its times cannot be foreseen, and one run of it at one size only would be taken for the size's
        # effect.
        "autovacuum": "off",
    }
    steps.begin(f"making PostgreSQL {binaries.major} with pgbench's tables at scale {chosen.scale}")
    with Cluster.create(bindir, settings, work_dir=work_dir) as cluster:
        create_database(cluster, chosen.scale)
        database_bytes = cluster.database_bytes(DATABASE)
        folder = output or cluster.run_directory / "evidence"
        folder.mkdir(parents=True, exist_ok=True)
        workloads = [
            _Demonstration(cluster, workload, chosen, folder, steps, notes, seed).run(kept=output is not None)
            for workload in chosen.workloads
        ]
    return DemoResult(
        server_version=binaries.version,
        database_bytes=database_bytes,
        machine=describe_machine(),
        seconds=time.monotonic() - started,
        notes=notes,
        workloads=workloads,
    )


class _Demonstration:
    """One workload: recorded, predicted, measured."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        plan: DemoPlan,
        folder: Path,
        steps: _Steps,
        notes: list[str],
        seed: int,
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._plan = plan
        self._steps = steps
        self._notes = notes
        self._seed = seed
        self._snapshots = folder / f"{workload.name}-snapshots.evidence"
        self._trace = folder / f"{workload.name}-trace.evidence"

    def run(self, *, kept: bool) -> DemoWorkload:
        """Do all steps of the workload."""
        plan, name = self._plan, self._workload.name
        traced = self._record()
        self._steps.begin(f"{name}: predicting from the evidence")
        from_snapshots = predict(self._snapshots, sizes_bytes=plan.sizes_bytes)
        from_trace = predict(self._trace, sizes_bytes=plan.sizes_bytes) if traced else None
        truths = self._measure()
        rows = [
            DemoRow(
                shared_buffers_bytes=truth.shared_buffers_bytes,
                measured_miss_ratio=truth.miss_ratio,
                trace=_interval(from_trace, truth.shared_buffers_bytes),
                snapshots=_interval(from_snapshots, truth.shared_buffers_bytes),
                measured_standard_error=truth.standard_error,
                measured_settled=truth.settled,
                measured_accesses=truth.accesses,
                measured_seconds=truth.seconds,
            )
            for truth in truths
        ]
        trace = _accuracy(rows, lambda row: row.trace)
        snapshots = _accuracy(rows, lambda row: row.snapshots)
        return DemoWorkload(
            name=name,
            title=self._workload.title,
            observed_shared_buffers_bytes=plan.observed_bytes,
            rows=rows,
            trace_mean_abs_error=trace.mean,
            trace_max_abs_error=trace.largest,
            trace_within_interval_ratio=trace.within,
            snapshots_mean_abs_error=snapshots.mean,
            snapshots_max_abs_error=snapshots.largest,
            snapshots_within_interval_ratio=snapshots.within,
            trace_verdict=from_trace.verdict if from_trace else None,
            snapshots_verdict=from_snapshots.verdict,
            trace_evidence=str(self._trace) if kept and traced else None,
            snapshots_evidence=str(self._snapshots) if kept else None,
        )

    def _record(self) -> bool:
        """Record both kinds of evidence at today's size; returns whether there is a trace."""
        plan, name, size = self._plan, self._workload.name, format_bytes(self._plan.observed_bytes)
        self._steps.begin(f"{name}: {self._workload.title}, at {size} until steady")
        prepare(self._cluster, self._workload)
        with SettledWorkload(
            self._cluster,
            self._workload,
            plan.observed_bytes,
            seed=self._seed,
            patience=plan.patience,
            progress=self._steps,
        ) as running:
            if not running.settle():
                self._note(f"{name}: the pool had not settled when it was recorded")
            if plan.recorded_per_second is None:
                return self._record_both(running)
        with RunningWorkload(
            self._cluster, self._workload, seed=self._seed, rate_per_second=plan.recorded_per_second
        ) as paced:
            return self._record_both(paced)

    def _record_both(self, running: SettledWorkload | RunningWorkload) -> bool:
        """Record by snapshots, then by trace; returns whether there is a trace."""
        plan, name = self._plan, self._workload.name
        self._steps.begin(f"{name}: recording by snapshots")
        record_sql(
            self._cluster.conninfo(DATABASE),
            self._snapshots,
            seconds=plan.snapshots_seconds,
            rng_seed=self._seed,
            progress=self._steps,
            overwrite=True,
        )
        running.check()
        self._steps.begin(f"{name}: recording by trace")
        traced = self._record_trace()
        running.check()
        return traced

    def _record_trace(self) -> bool:
        try:
            result = record_trace(
                self._cluster.conninfo(DATABASE),
                self._trace,
                seconds=self._plan.trace_seconds,
                progress=self._steps,
                overwrite=True,
            )
        except MissingAbility as error:
            advice = f"; {error.hint}" if error.hint else ""
            self._note(f"no trace, predictions are from snapshots only: {error.message}{advice}")
            return False
        if result.lost_events:
            self._note(
                f"{self._workload.name}: {format_count(result.lost_events)} events of the trace were lost"
            )
        return True

    def _measure(self) -> list[Truth]:
        """Measure the truth at each size, ascending, so that each pool can begin with the one before."""
        truths: list[Truth] = []
        content = PoolContent()
        for number, size in enumerate(self._plan.sizes_bytes, start=1):
            shown = format_bytes(size)
            self._steps.begin(f"{self._workload.name}: measuring the truth at {shown}")
            truth, content = measure(
                self._cluster,
                self._workload,
                size,
                seed=self._seed + number,
                carried=content,
                patience=self._plan.patience,
                progress=self._steps,
            )
            if not truth.settled:
                waited = format_minutes(truth.settle_seconds)
                self._note(f"{self._workload.name}: at {shown} the pool had not settled after {waited}")
            truths.append(truth)
        return truths

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self._steps.note(text)


def _accuracy(rows: Sequence[DemoRow], choose: Callable[[DemoRow], Interval | None]) -> Accuracy:
    """Return how far one of the two predictions was off."""
    return Accuracy.of([(row.measured_miss_ratio, one) for row in rows if (one := choose(row)) is not None])


def _interval(result: PredictResult | None, size_bytes: int) -> Interval | None:
    """Return the prediction at a size."""
    points: Sequence[CurvePoint] = result.points if result else ()
    return next((interval_of(point) for point in points if point.shared_buffers_bytes == size_bytes), None)


def _expected_seconds(plan: DemoPlan) -> list[float]:
    expected = [3 + plan.scale * _CREATE_SECONDS_PER_SCALE]
    measures = [_MEASURE_SECONDS + size / _MIB * plan.measure_seconds_per_mib for size in plan.sizes_bytes]
    for _ in plan.workloads:
        expected += [_SETTLE_SECONDS, plan.snapshots_seconds, plan.trace_seconds, _PREDICT_SECONDS, *measures]
    return expected


def _check_room(work_dir: Path | None, plan: DemoPlan) -> None:
    """Refuse to begin what would fill the disk or the memory.

    Raises:
        ClusterError: too little room.
    """
    largest = max(plan.sizes_bytes)
    if not can_try(largest):
        raise ClusterError(
            f"the demo needs a server with {format_bytes(largest)} of shared_buffers",
            cause=f"this machine has {format_bytes(memory_bytes())} of memory",
            hint="pgsweep demo" if largest > max(DEFAULT_PLAN.sizes_bytes) else None,
        )
    place = work_dir or Path(tempfile.gettempdir())
    while not place.exists():
        place = place.parent
    needed = plan.scale * _BYTES_PER_SCALE + _ROOM_BESIDE_BYTES
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ClusterError(
            f"the demo needs {format_bytes(needed)} in {place}, {format_bytes(free)} are free",
            hint="free some room, or name another place: --work-dir DIR",
        )
