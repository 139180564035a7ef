"""Results as text for a terminal or a pipe. Every number's kind is named: measured, predicted or assumed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import CacheResult
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.footprint import FootprintResult
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.kernel import KernelResult
from pgsweep.records.memory import MemoryResult
from pgsweep.records.prediction import ExportResult, PredictResult, RecordPlan, RecordResult, Verdict
from pgsweep.records.proof import DemoResult, DemoWorkload, Interval, ProveResult
from pgsweep.ui.budget_text import budget_text
from pgsweep.ui.cache_text import cache_text
from pgsweep.ui.chart import chart
from pgsweep.ui.doctor_text import doctor_text
from pgsweep.ui.footprint_text import footprint_text
from pgsweep.ui.hugepages_text import hugepages_text
from pgsweep.ui.kernel_text import kernel_text
from pgsweep.ui.memory_text import memory_text
from pgsweep.ui.numbers import count, format_bytes, percent, points, seconds, server_name
from pgsweep.ui.results import Result
from pgsweep.ui.series import (
    KINDS,
    SOURCES,
    predict_series,
    prove_series,
    proven,
    verdict_remarks,
    within,
    workload_series,
)
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal


def to_text(result: Result, terminal: Terminal) -> str:
    """Return the result as text with a line end after the last line."""
    if isinstance(result, PredictResult):
        return predict_text(result, terminal)
    if isinstance(result, DemoResult):
        return demo_text(result, terminal)
    if isinstance(result, ProveResult):
        return prove_text(result, terminal)
    if isinstance(result, DoctorResult):
        return doctor_text(result, terminal)
    if isinstance(result, CacheResult):
        return cache_text(result, terminal)
    if isinstance(result, FootprintResult):
        return footprint_text(result, terminal)
    if isinstance(result, MemoryResult):
        return memory_text(result, terminal)
    if isinstance(result, BudgetResult):
        return budget_text(result, terminal)
    if isinstance(result, KernelResult):
        return kernel_text(result, terminal)
    if isinstance(result, HugePagesResult):
        return hugepages_text(result, terminal)
    return record_text(result, terminal)


def predict_text(result: PredictResult, terminal: Terminal) -> str:
    """Return the curve as a table and a chart, and the verdict."""
    observed = result.observed
    today = observed.shared_buffers_bytes or None
    per_second = observed.accesses / observed.seconds if observed.seconds > 0 else 0.0
    source = SOURCES.get(result.source, result.source)
    head = [f"Predicted from {source}, {seconds(observed.seconds)} long."]
    if today:
        head.append(
            f"Measured there: shared_buffers {format_bytes(today)}, {count(observed.accesses)} accesses, "
            f"miss ratio {percent(observed.miss_ratio)}."
        )
    else:
        head.append(f"It holds {count(observed.accesses)} accesses.")

    columns = [Column("shared_buffers"), Column("miss ratio\npredicted"), Column("90 % interval")]
    if per_second:
        columns.append(Column("misses/s\nat this load"))
    columns.append(Column("", left=True))
    rows = []
    marked = None
    for index, point in enumerate(result.points):
        cells = [
            format_bytes(point.shared_buffers_bytes),
            percent(point.miss_ratio),
            f"{percent(point.low, sign=False)} to {percent(point.high)}",
        ]
        if per_second:
            cells.append(count(point.miss_ratio * per_second))
        if point.shared_buffers_bytes == today:
            marked = index
            cells.append(terminal.pick("◀", "<") + " today")
        else:
            cells.append("")
        rows.append(cells)

    parts = ["\n".join(head), table(columns, rows, terminal, marked=marked)]
    if len(result.points) > 1:
        parts.append(chart(predict_series(result), terminal, today_bytes=today))
    parts.append(verdict_text(result.verdict, terminal))
    return "\n\n".join(parts) + "\n"


def verdict_text(verdict: Verdict, terminal: Terminal) -> str:
    """Return the verdict in words, its reasons one a line."""
    if verdict.usable:
        title = terminal.paint(terminal.pick("✓ ", ""), "green") + "The prediction may be used"
    else:
        title = terminal.paint(terminal.pick("✗ ", ""), "red") + "The prediction should not be used"
    lines = [title + (":" if verdict.reasons else "")]
    for reason in verdict.reasons:
        lines += textwrap.wrap(
            reason, min(terminal.width, 100), initial_indent="  - ", subsequent_indent="    "
        )
    return "\n".join(lines)


def demo_text(result: DemoResult, terminal: Terminal) -> str:
    """Return every workload's table and chart, predicted beside measured, and the errors."""
    head = (
        f"{server_name(result.server_version)}, database of {format_bytes(result.database_bytes)}, "
        f"{result.machine}; took {seconds(result.seconds)}."
    )
    parts = [head, *(workload_text(workload, terminal) for workload in result.workloads)]
    if result.notes:
        parts.append("\n".join(f"note: {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def workload_text(workload: DemoWorkload, terminal: Terminal) -> str:
    """Return the table and the chart of one workload."""
    today = workload.observed_shared_buffers_bytes
    columns = [
        Column("shared_buffers"),
        Column("predicted\n(snapshots)"),
        Column("predicted\n(trace)"),
        Column("measured"),
        Column("error\n(snapshots)"),
        Column("error\n(trace)"),
        Column("", left=True),
    ]
    rows = []
    marked = None
    for index, row in enumerate(workload.rows):
        note = []
        if row.shared_buffers_bytes == today:
            marked = index
            note.append(terminal.pick("◀", "<") + " observed here")
        outside = [kind for kind in KINDS if within(row, kind) is False]
        if outside:
            note.append(f"outside the interval of {' and '.join(outside)}")
        rows.append(
            [
                format_bytes(row.shared_buffers_bytes),
                _ratio(row.snapshots),
                _ratio(row.trace),
                percent(row.measured_miss_ratio),
                _error(row.snapshots, row.measured_miss_ratio),
                _error(row.trace, row.measured_miss_ratio),
                ", ".join(note),
            ]
        )
    title = terminal.paint(f"Workload {workload.name}", "bold")
    if workload.title:
        title += f" ({workload.title})"
    parts = [
        f"{title}: miss ratios, errors in percentage points",
        table(columns, rows, terminal, marked=marked),
    ]
    if len(workload.rows) > 1:
        parts.append(chart(workload_series(workload), terminal, today_bytes=today))
    summary = []
    for name, mean, most in (
        ("snapshots", workload.snapshots_mean_abs_error, workload.snapshots_max_abs_error),
        ("trace", workload.trace_mean_abs_error, workload.trace_max_abs_error),
    ):
        if mean is not None and most is not None:
            summary.append(f"{name}: mean error {100 * mean:.2f}, worst {100 * most:.2f} percentage points")
    if summary:
        parts.append("\n".join(summary))
    remarks = verdict_remarks(workload)
    if remarks:
        parts.append("\n".join(f"- {remark}" for remark in remarks))
    return "\n\n".join(parts)


def prove_text(result: ProveResult, terminal: Terminal) -> str:
    """Return measured, simulated and predicted beside each other, the chart, the errors and the verdict."""
    today = result.observed_shared_buffers_bytes
    accesses = max((row.accesses for row in result.rows), default=0)
    head = (
        f"{result.evidence}, replayed: {count(accesses)} counted accesses at each size.\n"
        f"{server_name(result.server_version)}, {result.machine}; took {seconds(result.seconds)}."
    )
    columns = [
        Column("shared_buffers"),
        Column("miss ratio\npredicted"),
        Column("90 % interval"),
        Column("measured"),
        Column("error,\npoints"),
        Column("simulated"),
        Column("", left=True),
    ]
    rows = []
    marked = None
    for index, row in enumerate(result.rows):
        note = []
        if row.shared_buffers_bytes == today:
            marked = index
            note.append(terminal.pick("◀", "<") + " observed here")
        if not proven(row):
            note.append("outside the interval")
        rows.append(
            [
                format_bytes(row.shared_buffers_bytes),
                percent(row.predicted.miss_ratio),
                f"{percent(row.predicted.low, sign=False)} to {percent(row.predicted.high)}",
                percent(row.measured_miss_ratio),
                _error(row.predicted, row.measured_miss_ratio),
                percent(row.simulated_miss_ratio),
                ", ".join(note),
            ]
        )
    parts = [head, table(columns, rows, terminal, marked=marked)]
    if len(result.rows) > 1:
        parts.append(chart(prove_series(result), terminal, today_bytes=today))
    inside = sum(proven(row) for row in result.rows)
    parts.append(
        f"prediction: mean error {100 * result.mean_abs_error:.2f}, worst {100 * result.max_abs_error:.2f} "
        f"percentage points\n"
        f"measured within the predicted interval at {inside} of {len(result.rows)} sizes\n"
        f"simulator, from the same pool: worst error {100 * result.simulator_max_abs_error:.3f} "
        "percentage points"
    )
    if result.verdict is not None:
        parts.append(verdict_text(result.verdict, terminal))
    if result.notes:
        parts.append("\n".join(f"note: {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def record_text(result: RecordResult, terminal: Terminal) -> str:
    """Return what a recording gathered, as lines of name and value."""
    facts = [
        ("evidence", f"{result.path} ({format_bytes(result.bytes_written)})"),
        ("source", SOURCES.get(result.source, result.source)),
        ("time", f"{seconds(result.seconds)}, ended by {result.ended_by}"),
        ("shared_buffers", format_bytes(result.shared_buffers_bytes)),
    ]
    if result.snapshots:
        facts.append(("snapshots", count(result.snapshots)))
    if result.accesses:
        facts.append(("accesses", count(result.accesses)))
    if result.source == "trace":
        facts.append(("lost events", count(result.lost_events)))
    for name, value in (
        ("overhead, expected", result.expected_overhead_ratio),
        ("overhead, measured", result.measured_overhead_ratio),
    ):
        if value is not None:
            facts.append((name, percent(value)))
    return _facts(facts, result.warnings, terminal)


def export_text(result: ExportResult, terminal: Terminal) -> str:
    """Return what was written in another format, as lines of name and value."""
    facts = [
        ("trace", f"{result.path} ({format_bytes(result.bytes_written)})"),
        ("names", result.mapping_path),
        ("accesses", count(result.accesses)),
        ("objects", count(result.objects)),
    ]
    return _facts(facts, result.warnings, terminal)


def _facts(facts: Sequence[tuple[str, str]], warnings: Sequence[str], terminal: Terminal) -> str:
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {value}" for name, value in facts]
    lines += [terminal.paint("warning:", "yellow", "bold") + f" {warning}" for warning in warnings]
    return "\n".join(lines) + "\n"


def plan_text(plan: RecordPlan) -> str:
    """Return the steps of a plan as text that can be pasted: what is not SQL stands in comments."""
    parts = [
        f"-- Recording {plan.server} by {SOURCES.get(plan.source, plan.source)} into {plan.output} would do:"
    ]
    parts += [f"-- {step.what}: {step.when}\n{step.text}" for step in plan.steps]
    return "\n\n".join(parts) + "\n"


def _ratio(value: Interval | None) -> str:
    return percent(None if value is None else value.miss_ratio)


def _error(value: Interval | None, measured: float) -> str:
    return points(None if value is None else value.miss_ratio - measured)
