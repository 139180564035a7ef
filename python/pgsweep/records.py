"""The typed results that features return and `ui` shows: they are the JSON schema.

Base units everywhere: bytes, seconds, blocks, ratios between 0 and 1. A record whose name ends in `Result`
carries a `schema` field; within one schema number fields are only ever added.
"""

from __future__ import annotations

import msgspec


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """What made a result: versions, machine and command line (without passwords)."""

    pgsweep_version: str
    native_build: str
    created_at: str
    command: str
    kernel: str
    architecture: str
    cpus: int
    memory_bytes: int
    python_version: str


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence itself shows: measured, not predicted."""

    shared_buffers_bytes: int
    miss_ratio: float
    accesses: int
    seconds: float


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted miss ratio at one size, with its 90 % interval."""

    shared_buffers_bytes: int
    miss_ratio: float
    low: float
    high: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the prediction may be used, and every reason for caution, in words."""

    usable: bool
    reasons: list[str]


class PredictResult(msgspec.Struct, frozen=True, kw_only=True):
    """A curve of miss ratios over sizes of shared_buffers."""

    schema: str = "pgsweep.predict/1"
    source: str
    observed: Observed
    points: list[CurvePoint]
    verdict: Verdict
    provenance: Provenance | None = None


class RecordResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording gathered."""

    schema: str = "pgsweep.record/1"
    path: str
    source: str
    seconds: float
    shared_buffers_bytes: int
    snapshots: int
    accesses: int
    lost_events: int
    bytes_written: int
    ended_by: str
    expected_overhead_ratio: float | None
    measured_overhead_ratio: float | None
    warnings: list[str]
    provenance: Provenance | None = None


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would be done to the server: a statement, a system call, a setting."""

    what: str
    when: str
    text: str


class RecordPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a recording would do, step by step; nothing of it was done."""

    schema: str = "pgsweep.plan/1"
    source: str
    server: str
    output: str
    steps: list[PlanStep]


class ExportResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace written in another format."""

    schema: str = "pgsweep.export/1"
    path: str
    mapping_path: str
    accesses: int
    objects: int
    bytes_written: int
    warnings: list[str]


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted miss ratio with its 90 % interval."""

    miss_ratio: float
    low: float
    high: float


class DemoRow(msgspec.Struct, frozen=True, kw_only=True):
    """One size of one workload: measured beside both predictions.

    `measured_standard_error` tells how well the truth itself is known, `measured_settled` whether the pool
    had come to rest before it was counted.
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
    """One size: a real server's miss ratio of the traced accesses, the simulator's, and the prediction."""

    shared_buffers_bytes: int
    measured_miss_ratio: float
    simulated_miss_ratio: float
    predicted: Interval
    accesses: int


class ProveResult(msgspec.Struct, frozen=True, kw_only=True):
    """A trace replayed through a real server at several sizes; errors are ratios, not percent."""

    schema: str = "pgsweep.prove/1"
    evidence: str
    observed_shared_buffers_bytes: int
    server_version: str
    machine: str
    seconds: float
    notes: list[str]
    rows: list[ProveRow]
    mean_abs_error: float
    max_abs_error: float
    simulator_max_abs_error: float
    within_interval_ratio: float
    verdict: Verdict | None = None
    provenance: Provenance | None = None
