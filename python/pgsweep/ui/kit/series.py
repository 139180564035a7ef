"""What is drawn of a result: curves and points, each with its kind, the same for terminal and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pgsweep.records.prediction import PredictResult
from pgsweep.records.proof import DemoRow, DemoWorkload, Interval, ProveResult, ProveRow

Kind = Literal["snapshots", "trace", "measured"]
PredictedKind = Literal["snapshots", "trace"]
KINDS: tuple[PredictedKind, ...] = ("snapshots", "trace")

SOURCES = {
    "sql": "snapshots of pg_buffercache",
    "peek": "snapshots of the server's memory",
    "trace": "a trace of every page access",
    "import": "an imported trace",
}
"""What each source of evidence is called in a sentence."""


@dataclass(frozen=True)
class Series:
    """One curve, or one set of points, of miss ratios over sizes; measured ones have no interval."""

    kind: Kind
    label: str
    sizes_bytes: Sequence[int]
    ratios: Sequence[float]
    lows: Sequence[float] = field(default=())
    highs: Sequence[float] = field(default=())

    @property
    def is_curve(self) -> bool:
        """Whether the points belong to one curve: a prediction."""
        return self.kind != "measured"


def predict_series(result: PredictResult) -> list[Series]:
    """Return the predicted curve, and today's measured point where there is one."""
    observed = result.observed
    series = [
        Series(
            kind="snapshots" if result.source in {"sql", "peek"} else "trace",
            label="predicted",
            sizes_bytes=[p.shared_buffers_bytes for p in result.points],
            ratios=[p.miss_ratio for p in result.points],
            lows=[p.low for p in result.points],
            highs=[p.high for p in result.points],
        )
    ]
    if observed.shared_buffers_bytes:
        series.append(Series("measured", "measured", [observed.shared_buffers_bytes], [observed.miss_ratio]))
    return series


def workload_series(workload: DemoWorkload) -> list[Series]:
    """Return the predicted curves of a workload, and the measured points last (on top)."""
    series: list[Series] = []
    for kind in KINDS:
        found = [
            (row.shared_buffers_bytes, value)
            for row in workload.rows
            if (value := interval_of(row, kind)) is not None
        ]
        if found:
            series.append(
                Series(
                    kind=kind,
                    label=f"predicted ({kind})",
                    sizes_bytes=[size for size, _ in found],
                    ratios=[value.miss_ratio for _, value in found],
                    lows=[value.low for _, value in found],
                    highs=[value.high for _, value in found],
                )
            )
    series.append(
        Series(
            "measured",
            "measured",
            [row.shared_buffers_bytes for row in workload.rows],
            [row.measured_miss_ratio for row in workload.rows],
        )
    )
    return series


def prove_series(result: ProveResult) -> list[Series]:
    """Return the curve predicted from the trace, and what a real server measured (on top)."""
    sizes = [row.shared_buffers_bytes for row in result.rows]
    compared = [row for row in result.rows if row.comparable]
    measured = [row.measured_miss_ratio for row in compared]
    found = [
        Series(
            kind="trace",
            label="predicted",
            sizes_bytes=sizes,
            ratios=[row.predicted.miss_ratio for row in result.rows],
            lows=[row.predicted.low for row in result.rows],
            highs=[row.predicted.high for row in result.rows],
        ),
    ]
    if compared:
        found.append(Series("measured", "measured", [row.shared_buffers_bytes for row in compared], measured))
    return found


def verdict_remarks(workload: DemoWorkload) -> list[str]:
    """Return what the predictions' own verdicts say, each with the evidence that it is about."""
    remarks = []
    for kind, verdict in (("snapshots", workload.snapshots_verdict), ("trace", workload.trace_verdict)):
        if verdict is not None:
            if verdict.level != "reliable":
                remarks.append(f"prediction from {kind}: {verdict.level}")
            remarks += [f"prediction from {kind}: {reason}" for reason in verdict.sentences]
    return remarks


def interval_of(row: DemoRow, kind: PredictedKind) -> Interval | None:
    """Return the row's prediction from that kind of evidence, where there is one."""
    return row.snapshots if kind == "snapshots" else row.trace


def within(row: DemoRow, kind: PredictedKind) -> bool | None:
    """Return whether the measured value lies in the predicted interval, None where there is no prediction."""
    value = interval_of(row, kind)
    return None if value is None else value.low <= row.measured_miss_ratio <= value.high


def proven(row: ProveRow) -> bool:
    """Return whether the measured value lies in the predicted interval."""
    return row.predicted.low <= row.measured_miss_ratio <= row.predicted.high
