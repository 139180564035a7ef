"""Results as CSV: one header line that names the kind of each number, base units (bytes, ratios)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

import msgspec

from pgsweep.records import DemoResult, Interval, PredictResult, ProveResult
from pgsweep.ui.results import Result


def to_csv(result: Result) -> str:
    """Return the rows of the result as CSV with line feeds at the ends of its lines."""
    if isinstance(result, PredictResult):
        return _written(
            ("shared_buffers_bytes", "predicted_miss_ratio", "predicted_low", "predicted_high"),
            ((p.shared_buffers_bytes, p.miss_ratio, p.low, p.high) for p in result.points),
        )
    if isinstance(result, DemoResult):
        header = ["workload", "observed_shared_buffers_bytes", "shared_buffers_bytes", "measured_miss_ratio"]
        header.append("measured_standard_error")
        for source in ("snapshots", "trace"):
            header += [f"{source}_{name}" for name in ("miss_ratio", "low", "high")]
        return _written(
            header,
            (
                (
                    workload.name,
                    workload.observed_shared_buffers_bytes,
                    row.shared_buffers_bytes,
                    row.measured_miss_ratio,
                    "" if row.measured_standard_error is None else row.measured_standard_error,
                    *_interval(row.snapshots),
                    *_interval(row.trace),
                )
                for workload in result.workloads
                for row in workload.rows
            ),
        )
    if isinstance(result, ProveResult):
        header = ["shared_buffers_bytes", "measured_miss_ratio", "simulated_miss_ratio"]
        header += ["predicted_miss_ratio", "predicted_low", "predicted_high", "accesses"]
        return _written(
            header,
            (
                (
                    row.shared_buffers_bytes,
                    row.measured_miss_ratio,
                    row.simulated_miss_ratio,
                    *_interval(row.predicted),
                    row.accesses,
                )
                for row in result.rows
            ),
        )
    fields = msgspec.to_builtins(result)
    scalars = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    return _written(list(scalars), [list(scalars.values())])


def _interval(value: Interval | None) -> tuple[float | str, float | str, float | str]:
    return ("", "", "") if value is None else (value.miss_ratio, value.low, value.high)


def _written(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
