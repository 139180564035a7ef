"""The demonstration, workload by workload: as text, as a page, as rows."""

from __future__ import annotations

from typing import Final

from pgsweep.records.proof import DemoResult, DemoRow, DemoWorkload, Interval
from pgsweep.ui.kit.chart import chart
from pgsweep.ui.kit.numbers import error_points, format_bytes, percent, points, seconds, server_name
from pgsweep.ui.kit.section import Fact, Page, Section, made_on
from pgsweep.ui.kit.series import KINDS, PredictedKind, interval_of, verdict_remarks, within, workload_series
from pgsweep.ui.kit.svg import curve_svg, error_svg
from pgsweep.ui.kit.table import HERE, MEASURED, Column, Group, Predicted, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View

_ERROR_CAPTION = (
    "The same, minus the measured value: bars are the 90% intervals, which should cross the zero line "
    "nine times in ten. Grey: one standard error of the measured value, as is ± in the table."
)


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
    title = terminal.paint(f"Workload {workload.name}", "bold")
    if workload.title:
        title += f" ({workload.title})"
    parts = [
        f"{title}: miss ratios, errors in percentage points",
        _table(workload).text(terminal),
    ]
    if len(workload.rows) > 1:
        parts.append(chart(workload_series(workload), terminal, today_bytes=today))
    summary = []
    for name, mean, most in (
        ("snapshots", workload.snapshots_mean_abs_error, workload.snapshots_max_abs_error),
        ("trace", workload.trace_mean_abs_error, workload.trace_max_abs_error),
    ):
        if mean is not None and most is not None:
            errors = f"mean error {error_points(mean)}, worst {error_points(most)}"
            summary.append(f"{name}: {errors} percentage points")
    if summary:
        parts.append("\n".join(summary))
    remarks = verdict_remarks(workload)
    if remarks:
        parts.append("\n".join(f"- {remark}" for remark in remarks))
    return "\n\n".join(parts)


def _table(workload: DemoWorkload) -> Table[DemoRow]:
    columns: list[Column[DemoRow]] = [
        Column("shared_buffers", lambda row: format_bytes(row.shared_buffers_bytes)),
        *(column for kind in KINDS for column in _predicted(kind)),
        Column(
            "measured",
            lambda row: percent(row.measured_miss_ratio),
            group=MEASURED,
            page="miss ratio",
            note=_noise,
        ),
        *(_error(kind) for kind in KINDS),
    ]
    here = [row.shared_buffers_bytes == workload.observed_shared_buffers_bytes for row in workload.rows]
    remarks = []
    for row, observed in zip(workload.rows, here, strict=True):
        outside = [kind for kind in KINDS if within(row, kind) is False]
        words = [f"{HERE}observed here"] if observed else []
        words += [f"outside the interval of {' and '.join(outside)}"] if outside else []
        remarks.append(", ".join(words))
    return Table(columns, workload.rows, here.index(True) if True in here else None, remarks)


_GROUPS: Final[dict[PredictedKind, Group]] = {
    "snapshots": Group("predicted from snapshots", Predicted),
    "trace": Group("predicted from a trace", f"{Predicted} trace"),
}


def _predicted(kind: PredictedKind) -> list[Column[DemoRow]]:
    def ratio(row: DemoRow) -> str:
        value = interval_of(row, kind)
        return percent(None if value is None else value.miss_ratio)

    def interval(row: DemoRow) -> str:
        value = interval_of(row, kind)
        return "–" if value is None else f"{percent(value.low, sign=False)} to {percent(value.high)}"

    return [
        Column(f"predicted\n({kind})", ratio, group=_GROUPS[kind], page="miss ratio"),
        Column("90% interval", interval, group=_GROUPS[kind], only="page"),
    ]


def _error(kind: PredictedKind) -> Column[DemoRow]:
    def error(row: DemoRow) -> str:
        value = interval_of(row, kind)
        return points(None if value is None else value.miss_ratio - row.measured_miss_ratio)

    return Column(f"error\n({kind})", error, group=_GROUPS[kind], page="error, points")


def demo_page(result: DemoResult) -> Page:
    """Return a part for each workload: predicted beside measured, and the errors."""
    title, lead = _title(result)
    return Page(
        title,
        lead,
        [_section(workload) for workload in result.workloads],
        notes=result.notes,
        explains_kinds=True,
        made=made_on(result.server_version, result.machine, result.seconds),
    )


def _title(result: DemoResult) -> tuple[str, str]:
    parts = []
    for kind, label in (("snapshots", "from snapshots"), ("trace", "from a trace")):
        errors = [
            abs(value.miss_ratio - row.measured_miss_ratio)
            for workload in result.workloads
            for row in workload.rows
            if (value := interval_of(row, "snapshots" if kind == "snapshots" else "trace")) is not None
        ]
        if errors:
            parts.append(f"{error_points(sum(errors) / len(errors))} {label}")
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


def _section(workload: DemoWorkload) -> Section:
    today = workload.observed_shared_buffers_bytes
    facts = []
    for label, mean, most in (
        ("snapshots", workload.snapshots_mean_abs_error, workload.snapshots_max_abs_error),
        ("trace", workload.trace_mean_abs_error, workload.trace_max_abs_error),
    ):
        if mean is not None and most is not None:
            facts.append(
                Fact(
                    error_points(mean),
                    f"mean error ({label}), percentage points; worst {error_points(most)}",
                )
            )
    inside = [hit for row in workload.rows for kind in KINDS if (hit := within(row, kind)) is not None]
    if inside:
        facts.append(
            Fact(f"{sum(inside)} of {len(inside)}", "measured values within the predicted 90% interval")
        )

    tips = {}
    for row in workload.rows:
        tip = [format_bytes(row.shared_buffers_bytes), f"measured {percent(row.measured_miss_ratio)}"]
        for kind in KINDS:
            if (value := interval_of(row, kind)) is not None:
                interval = f"{percent(value.low, sign=False)} to {percent(value.high)}"
                tip.append(f"predicted ({kind}) {percent(value.miss_ratio)}, {interval}")
        tips[row.shared_buffers_bytes] = "\n".join(tip)
    figures = []
    if workload.rows:
        title = f"Workload {workload.name}: miss ratio by shared_buffers, predicted and measured"
        curves = curve_svg(workload_series(workload), today_bytes=today, title=title, tips=tips)
        figures.append((curves, "Lines: predicted. Bands: their 90% intervals. Diamonds: measured."))
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
        table=_table(workload),
    )


def _noise(row: DemoRow) -> str:
    """Return how well the measured value itself is known."""
    notes = []
    if row.measured_standard_error is not None:
        notes.append(f"± {error_points(row.measured_standard_error)}")
    if row.measured_settled is False:
        notes.append("not settled")
    return ", ".join(notes)


def _rows(result: DemoResult) -> Rows:
    head = ["workload", "observed_shared_buffers_bytes", "shared_buffers_bytes", "measured_miss_ratio"]
    head.append("measured_standard_error")
    for source in KINDS:
        head += [f"{source}_{name}" for name in ("miss_ratio", "low", "high")]
    return Rows(
        head,
        [
            (
                workload.name,
                workload.observed_shared_buffers_bytes,
                row.shared_buffers_bytes,
                row.measured_miss_ratio,
                row.measured_standard_error,
                *_interval(row.snapshots),
                *_interval(row.trace),
            )
            for workload in result.workloads
            for row in workload.rows
        ],
    )


def _interval(value: Interval | None) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if value is None else (value.miss_ratio, value.low, value.high)


VIEW = View(DemoResult, text=demo_text, page=demo_page, rows=_rows)
