"""Predicted beside measured."""

from __future__ import annotations

import msgspec

from pgsweep.records.common import Provenance
from pgsweep.records.prediction import Verdict


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted miss ratio with its 90% interval."""

    miss_ratio: float
    low: float
    high: float


class DemoRow(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one workload: measured beside both predictions.

    `measured_standard_error` is the standard error of the measured value, `measured_settled` whether the pool
    had reached a steady state before counting began.
    """

    shared_buffers_bytes: int
    measured_miss_ratio: float
    trace: Interval | None
    snapshots: Interval | None
    measured_standard_error: float | None = None
    measured_settled: bool | None = None
    measured_accesses: int | None = None
    measured_seconds: float | None = None


class DemoWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """One workload of the demo with its errors (as ratios, not percent)."""

    name: str
    observed_shared_buffers_bytes: int
    rows: list[DemoRow]
    trace_mean_abs_error: float | None
    trace_max_abs_error: float | None
    snapshots_mean_abs_error: float | None
    snapshots_max_abs_error: float | None
    title: str = ""
    trace_within_interval_ratio: float | None = None
    snapshots_within_interval_ratio: float | None = None
    trace_verdict: Verdict | None = None
    snapshots_verdict: Verdict | None = None
    trace_evidence: str | None = None
    snapshots_evidence: str | None = None


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo: where it ran, and every workload."""

    schema: str = "pgsweep.demo/1"
    server_version: str
    database_bytes: int
    machine: str
    seconds: float
    notes: list[str]
    workloads: list[DemoWorkload]
    provenance: Provenance | None = None


class ProveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One size: a real server's miss ratio of the traced accesses, the simulator's, and the prediction.

    `as_predicted_miss_ratio` is the simulator's with rings and drops, which the server cannot be made to
    repeat. It divides a difference between measured and predicted into its causes: measured and simulated
    differ if the rules are wrong, simulated and this value by rings and drops, this value and predicted by
    the state at the beginning.

    `comparable` is false where rings and drops change the simulator's miss ratio by more than half a
    percentage point: there the server did something else than was predicted, and shows nothing of the
    prediction.
    """

    shared_buffers_bytes: int
    measured_miss_ratio: float
    simulated_miss_ratio: float
    predicted: Interval
    accesses: int
    as_predicted_miss_ratio: float | None = None
    comparable: bool = True


class ProveResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace replayed through a real server at several sizes; errors are ratios, not percent.

    Errors of the prediction, and the share of intervals that hold what was measured, are those of the rows
    that are comparable; null where no row is.
    """

    schema: str = "pgsweep.prove/1"
    evidence: str
    observed_shared_buffers_bytes: int
    server_version: str
    machine: str
    seconds: float
    notes: list[str]
    rows: list[ProveRow]
    mean_abs_error: float | None
    max_abs_error: float | None
    simulator_max_abs_error: float
    within_interval_ratio: float | None
    verdict: Verdict | None = None
    provenance: Provenance | None = None
