"""A recording, and what is predicted from it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from pgsweep.records.common import Provenance

Level = Literal["reliable", "rough", "refused"]
LEVELS: Final[tuple[Level, ...]] = ("reliable", "rough", "refused")
"""From the best to the worst."""


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
    """How far the prediction may be trusted, and every reason, in words.

    Attributes:
        level: `reliable`; `rough`, where the interval or the method asks for caution; `refused`, where there
            is no prediction at all, and so no point of a curve.
        reasons: sentences; those that decided the level come first.
    """

    level: Level
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
