"""Results as CSV: one header line that names the kind of each number, base units (bytes, ratios)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

import msgspec

from pgsweep.records.budget import BudgetPart, BudgetResult
from pgsweep.records.cache import CacheRelation, CacheResult
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.footprint import FootprintResult
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.kernel import KernelResult, KernelSetting
from pgsweep.records.memory import MemoryProcess, MemoryResult
from pgsweep.records.prediction import PredictResult
from pgsweep.records.proof import DemoResult, Interval, ProveResult
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
    if isinstance(result, DoctorResult):
        return _written(
            ("ability", "area", "available", "why", "enable", "needed_for"),
            (
                (
                    ability.name,
                    ability.area,
                    "" if ability.available is None else str(ability.available).lower(),
                    ability.why,
                    ability.enable or "",
                    ", ".join(ability.needed_for),
                )
                for ability in result.abilities
            ),
        )
    if isinstance(result, CacheResult):
        return _cache_csv(result)
    if isinstance(result, FootprintResult):
        return _footprint_csv(result)
    if isinstance(result, MemoryResult):
        return _records_csv(MemoryProcess.__struct_fields__, result.processes)
    if isinstance(result, BudgetResult):
        return _records_csv(BudgetPart.__struct_fields__, result.parts)
    if isinstance(result, KernelResult):
        return _records_csv(KernelSetting.__struct_fields__, result.settings)
    if isinstance(result, HugePagesResult):
        return _hugepages_csv(result)
    fields = msgspec.to_builtins(result)
    scalars = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    return _written(list(scalars), [list(scalars.values())])


def _cache_csv(result: CacheResult) -> str:
    """Return one line a row of the table; usage_counts become six columns."""
    names = [name for name in CacheRelation.__struct_fields__ if name != "usage_counts"]
    return _written(
        [*names, *(f"usage_count_{level}" for level in range(6))],
        (
            [*("" if (value := getattr(row, name)) is None else value for name in names), *row.usage_counts]
            for row in result.relations
        ),
    )


def _footprint_csv(result: FootprintResult) -> str:
    """Return one line a relation and run."""
    header = ["run", "schema", "relation", "kind", "size_bytes", "shared_buffers_before_bytes"]
    header += ["page_cache_before_bytes", "shared_buffers_in_bytes", "shared_buffers_out_bytes"]
    header += ["page_cache_in_bytes", "page_cache_out_bytes"]
    lines = []
    for number in range(len(result.runs)):
        for row in result.relations:
            change = row.runs[number]
            cells: list[object] = [number + 1, row.schema, row.relation, row.kind, row.size_bytes]
            cells += [row.shared_buffers_before_bytes, row.page_cache_before_bytes]
            cells += [change.shared_buffers_in_bytes, change.shared_buffers_out_bytes]
            cells += [change.page_cache_in_bytes, change.page_cache_out_bytes]
            lines.append(["" if cell is None else cell for cell in cells])
    return _written(header, lines)


def _records_csv(names: Sequence[str], rows: Iterable[msgspec.Struct]) -> str:
    """Return one line a record."""
    lines = (["" if (value := getattr(row, name)) is None else value for name in names] for row in rows)
    return _written(names, lines)


def _hugepages_csv(result: HugePagesResult) -> str:
    """Return one line; what is nested becomes columns, reasons are parted by semicolons."""
    fields = msgspec.to_builtins(result)
    line = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    for name in ("methods", "page_tables"):
        line.update({f"{name}_{key}": value for key, value in (fields[name] or {}).items()})
    line["reasons"] = "; ".join(result.reasons)
    names = [name for name in line if name not in ("page_tables", "change", "provenance")]
    return _written(names, [["" if line[name] is None else line[name] for name in names]])


def _interval(value: Interval | None) -> tuple[float | str, float | str, float | str]:
    return ("", "", "") if value is None else (value.miss_ratio, value.low, value.high)


def _written(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()
