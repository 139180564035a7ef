"""A result as one HTML file: nothing is loaded from anywhere, and the result itself lies within as JSON.

The page is made whole here; its script only adds conveniences (a crosshair, saving pictures and tables).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

import jinja2
import msgspec

from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import CacheResult
from pgsweep.records.common import Provenance
from pgsweep.records.doctor import DoctorResult
from pgsweep.records.footprint import FootprintResult
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.records.kernel import KernelResult
from pgsweep.records.memory import MemoryResult
from pgsweep.records.prediction import PredictResult, RecordResult
from pgsweep.records.proof import DemoResult, DemoRow, DemoWorkload, ProveResult
from pgsweep.ui.budget_text import budget_sections, budget_title
from pgsweep.ui.cache_page import cache_sections, cache_title
from pgsweep.ui.csv_text import to_csv
from pgsweep.ui.footprint_page import footprint_sections, footprint_title
from pgsweep.ui.hugepages_page import hugepages_sections, hugepages_title
from pgsweep.ui.kernel_text import kernel_sections, kernel_title
from pgsweep.ui.memory_page import memory_sections, memory_title
from pgsweep.ui.numbers import count, format_bytes, percent, points, seconds, server_name
from pgsweep.ui.report_doctor import doctor_sections, doctor_title
from pgsweep.ui.report_proof import prove_section, prove_title
from pgsweep.ui.results import Result
from pgsweep.ui.section import Cell, Fact, Group, Measured, Predicted, Section
from pgsweep.ui.series import (
    KINDS,
    SOURCES,
    interval_of,
    predict_series,
    verdict_remarks,
    within,
    workload_series,
)
from pgsweep.ui.svg import curve_svg, error_svg

_PREDICT_CAPTION = (
    "Line with round or triangular marks: predicted. Band: its 90 % interval. "
    "Diamond: measured on the server."
)
_ERROR_CAPTION = (
    "The same, less the measured value: bars are the 90 % intervals, which should cross the zero line "
    "nine times in ten. Grey: one standard error of the measured value, as is ± in the table."
)


def to_html(result: Result) -> str:
    """Return the whole page."""
    if isinstance(result, PredictResult):
        title, lead = _predict_title(result)
        sections, verdict = [_predict_section(result)], result.verdict
    elif isinstance(result, DemoResult):
        title, lead = _demo_title(result)
        sections, verdict = [_demo_section(workload) for workload in result.workloads], None
    elif isinstance(result, ProveResult):
        title, lead = prove_title(result)
        sections, verdict = [prove_section(result)], result.verdict
    elif isinstance(result, DoctorResult):
        title, lead = doctor_title(result)
        sections, verdict = doctor_sections(result), None
    elif isinstance(result, CacheResult):
        title, lead = cache_title(result)
        sections, verdict = cache_sections(result), None
    elif isinstance(result, FootprintResult):
        title, lead = footprint_title(result)
        sections, verdict = footprint_sections(result), None
    elif isinstance(result, MemoryResult):
        title, lead = memory_title(result)
        sections, verdict = memory_sections(result), None
    elif isinstance(result, BudgetResult):
        title, lead = budget_title(result)
        sections, verdict = budget_sections(result), None
    elif isinstance(result, KernelResult):
        title, lead = kernel_title(result)
        sections, verdict = kernel_sections(result), None
    elif isinstance(result, HugePagesResult):
        title, lead = hugepages_title(result)
        sections, verdict = hugepages_sections(result), None
    else:
        title, lead = f"Recorded: {result.path}", f"Source: {SOURCES.get(result.source, result.source)}."
        sections, verdict = [_record_section(result)], None
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            lead=lead,
            sections=sections,
            verdict=verdict,
            kinds=isinstance(result, PredictResult | DemoResult | ProveResult),
            provenance=_provenance_rows(result),
            notes=result.notes if isinstance(result, DemoResult | ProveResult | FootprintResult) else [],
            css=_static("report.css"),
            script=_static("report.js"),
            result_json=_embedded(msgspec.json.encode(result).decode()),
            csv_json=_embedded(json.dumps(to_csv(result))),
        )
    )


def _predict_title(result: PredictResult) -> tuple[str, str]:
    observed, points_ = result.observed, result.points
    lead = f"Predicted from {SOURCES.get(result.source, result.source)}, {seconds(observed.seconds)} long."
    if not points_:
        return "No prediction", lead
    first, last = points_[0], points_[-1]
    if observed.shared_buffers_bytes:
        far = last if last.shared_buffers_bytes > observed.shared_buffers_bytes else first
        title = (
            f"shared_buffers from {format_bytes(observed.shared_buffers_bytes)} to "
            f"{format_bytes(far.shared_buffers_bytes)}: misses from {percent(observed.miss_ratio)} "
            f"to {percent(far.miss_ratio)} of page accesses, as predicted"
        )
        return title, lead
    sizes = [format_bytes(point.shared_buffers_bytes) for point in (first, last)]
    return f"Predicted misses from {' to '.join(sizes)}", lead


def _predict_section(result: PredictResult) -> Section:
    observed = result.observed
    today = observed.shared_buffers_bytes or None
    per_second = observed.accesses / observed.seconds if observed.seconds > 0 else 0.0
    facts = []
    if today:
        facts.append(Fact(format_bytes(today), "shared_buffers when observed", Measured))
        facts.append(Fact(percent(observed.miss_ratio), "misses when observed", Measured))
    facts.append(Fact(count(observed.accesses), "page accesses observed", Measured))
    if per_second:
        facts.append(Fact(f"{count(per_second)}/s", "page accesses", Measured))
    groups = [Group(""), Group("predicted", 3 if per_second else 2, Predicted)]
    head = ["shared_buffers", "miss ratio, %", "90 % interval, %"]
    if per_second:
        head.append("misses per second at this load")
    rows, tips, marked = [], {}, None
    for index, point in enumerate(result.points):
        size, observed_here = format_bytes(point.shared_buffers_bytes), point.shared_buffers_bytes == today
        interval = f"{percent(point.low, sign=False)} to {percent(point.high, sign=False)}"
        row = [Cell(size, "observed here" if observed_here else "")]
        row += [Cell(percent(point.miss_ratio, sign=False)), Cell(interval)]
        if per_second:
            row.append(Cell(count(point.miss_ratio * per_second)))
        marked = index if observed_here else marked
        rows.append(row)
        tips[point.shared_buffers_bytes] = (
            f"{size}\npredicted {percent(point.miss_ratio)}\n90 % interval {interval} %"
        )
    title = "Predicted miss ratio at every size of shared_buffers"
    figure = curve_svg(predict_series(result), today_bytes=today, title=title, tips=tips) if rows else ""
    return Section(
        title="Miss ratio by shared_buffers",
        ident="curve",
        lead="",
        facts=facts,
        figures=[(figure, _PREDICT_CAPTION)] if figure else [],
        groups=groups,
        head=head,
        rows=rows,
        marked=marked,
    )


def _demo_title(result: DemoResult) -> tuple[str, str]:
    parts = []
    for kind, label in (("snapshots", "from snapshots"), ("trace", "from a trace")):
        errors = [
            abs(value.miss_ratio - row.measured_miss_ratio)
            for workload in result.workloads
            for row in workload.rows
            if (value := interval_of(row, "snapshots" if kind == "snapshots" else "trace")) is not None
        ]
        if errors:
            parts.append(f"{100 * sum(errors) / len(errors):.2f} {label}")
    title = "Predicted, then measured"
    if parts:
        title += f": mean error {' and '.join(parts)}, in percentage points"
    server, database = server_name(result.server_version), format_bytes(result.database_bytes)
    lead = (
        f"{server}, a database of {database} on {result.machine}. "
        "Each workload was observed at one size of shared_buffers; the server was then restarted at every "
        "size and its misses counted."
    )
    return title, lead


def _demo_section(workload: DemoWorkload) -> Section:
    today = workload.observed_shared_buffers_bytes
    facts = []
    for label, mean, most in (
        ("snapshots", workload.snapshots_mean_abs_error, workload.snapshots_max_abs_error),
        ("trace", workload.trace_mean_abs_error, workload.trace_max_abs_error),
    ):
        if mean is not None and most is not None:
            facts.append(
                Fact(f"{100 * mean:.2f}", f"mean error ({label}), percentage points; worst {100 * most:.2f}")
            )
    inside = [hit for row in workload.rows for kind in KINDS if (hit := within(row, kind)) is not None]
    if inside:
        facts.append(
            Fact(f"{sum(inside)} of {len(inside)}", "measured values within the predicted 90 % interval")
        )

    groups = [Group(""), Group("measured", 1, Measured)]
    groups += [
        Group("predicted from snapshots", 3, Predicted),
        Group("predicted from a trace", 3, "predicted trace"),
    ]
    head = ["shared_buffers", "miss ratio, %"]
    head += ["miss ratio, %", "90 % interval, %", "error, points"] * len(KINDS)
    rows, tips, marked = [], {}, None
    for index, row in enumerate(workload.rows):
        size, truth = format_bytes(row.shared_buffers_bytes), row.measured_miss_ratio
        observed_here = row.shared_buffers_bytes == today
        cells = [Cell(size, "observed here" if observed_here else "")]
        cells.append(Cell(percent(truth, sign=False), _truth_note(row)))
        tip = [size, f"measured {percent(truth)}"]
        for kind in KINDS:
            value = interval_of(row, kind)
            if value is None:
                cells += [Cell("–")] * 3
                continue
            interval = f"{percent(value.low, sign=False)} to {percent(value.high, sign=False)}"
            outside = "" if within(row, kind) else "measured lies outside"
            cells += [Cell(percent(value.miss_ratio, sign=False)), Cell(interval, outside)]
            cells.append(Cell(points(value.miss_ratio - truth)))
            tip.append(f"predicted ({kind}) {percent(value.miss_ratio)}, {interval} %")
        marked = index if observed_here else marked
        rows.append(cells)
        tips[row.shared_buffers_bytes] = "\n".join(tip)

    figures = []
    if workload.rows:
        title = f"Workload {workload.name}: miss ratio by shared_buffers, predicted and measured"
        curves = curve_svg(workload_series(workload), today_bytes=today, title=title, tips=tips)
        figures.append((curves, "Lines: predicted. Bands: their 90 % intervals. Diamonds: measured."))
        errors = error_svg(
            workload_series(workload),
            standard_errors={
                row.shared_buffers_bytes: row.measured_standard_error
                for row in workload.rows
                if row.measured_standard_error
            },
            title=f"Workload {workload.name}: errors of the predictions",
        )
        figures.append((errors, _ERROR_CAPTION))
    title = ", ".join(filter(None, [workload.title, f"observed at shared_buffers = {format_bytes(today)}"]))
    return Section(
        title=f"Workload {workload.name}",
        ident=f"workload-{workload.name}",
        lead=f"{title[:1].upper()}{title[1:]}.",
        notes=verdict_remarks(workload),
        facts=facts,
        figures=figures,
        groups=groups,
        head=head,
        rows=rows,
        marked=marked,
    )


def _truth_note(row: DemoRow) -> str:
    """Return how well the measured value itself is known."""
    notes = []
    if row.measured_standard_error is not None:
        notes.append(f"± {100 * row.measured_standard_error:.2f}")
    if row.measured_settled is False:
        notes.append("not settled")
    return ", ".join(notes)


def _record_section(result: RecordResult) -> Section:
    facts = [
        Fact(format_bytes(result.shared_buffers_bytes), "shared_buffers", Measured),
        Fact(count(result.accesses), "page accesses", Measured),
        Fact(count(result.snapshots), "snapshots", Measured),
        Fact(count(result.lost_events), "events lost", Measured),
    ]
    rows = [
        ["source", SOURCES.get(result.source, result.source)],
        ["time", seconds(result.seconds)],
        ["ended by", result.ended_by],
        ["written", format_bytes(result.bytes_written)],
    ]
    cells = [[Cell(text) for text in row] for row in rows]
    return Section(
        "Recording", "recording", "", facts, [], [], ["what", "value"], cells, notes=result.warnings
    )


def _provenance_rows(result: Result) -> list[tuple[str, str]]:
    made: Provenance | None = result.provenance
    rows = [("result", result.schema)]
    if isinstance(result, ProveResult):
        rows.append(("evidence", result.evidence))
    if isinstance(result, DemoResult | ProveResult):
        rows += [
            ("server", server_name(result.server_version)),
            ("host", result.machine),
            ("took", seconds(result.seconds)),
        ]
    if made is not None:
        native, memory = f"native module: {made.native_build} build", format_bytes(made.memory_bytes)
        rows += [
            ("command", made.command),
            ("made at", made.created_at),
            ("pgsweep", f"{made.pgsweep_version}, {native}, Python {made.python_version}"),
            ("machine", f"{made.kernel} {made.architecture}, {made.cpus} CPUs, {memory} of memory"),
        ]
    return rows


def _embedded(json_text: str) -> str:
    """Return JSON that may stand in a script element: no `<` in it, so nothing can end the element early."""
    return json_text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _static(name: str) -> str:
    return resources.files("pgsweep.ui").joinpath("static", name).read_text(encoding="utf-8")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("pgsweep.ui", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
