"""A proof (a trace predicted, and replayed through a real server): as text, as a page, as rows."""

from __future__ import annotations

from pgsweep.records.proof import ProveResult
from pgsweep.ui.chart import chart
from pgsweep.ui.numbers import count, error_points, format_bytes, percent, points, seconds, server_name
from pgsweep.ui.prediction import verdict_text
from pgsweep.ui.section import Cell, Fact, Group, Measured, Page, Predicted, Section, made_on
from pgsweep.ui.series import prove_series, proven
from pgsweep.ui.svg import curve_svg, error_svg
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.view import Rows, View

_CAPTION = (
    "Line with triangular marks: predicted. Band: its 90% interval. Diamonds: the same accesses made on a "
    "real server, counted by it."
)
_ERROR_CAPTION = (
    "Predicted minus measured. Bars: the 90% intervals; nine in ten of them should cross the zero line."
)


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
        Column("90% interval"),
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
                points(row.predicted.miss_ratio - row.measured_miss_ratio),
                percent(row.simulated_miss_ratio),
                ", ".join(note),
            ]
        )
    parts = [head, table(columns, rows, terminal, marked=marked)]
    if len(result.rows) > 1:
        parts.append(chart(prove_series(result), terminal, today_bytes=today))
    inside = sum(proven(row) for row in result.rows)
    parts.append(
        f"prediction: mean error {error_points(result.mean_abs_error)}, "
        f"worst {error_points(result.max_abs_error)} "
        f"percentage points\n"
        f"measured within the predicted interval at {inside} of {len(result.rows)} sizes\n"
        f"simulator, from the same pool: worst error {error_points(result.simulator_max_abs_error, 3)} "
        "percentage points"
    )
    if result.verdict is not None:
        parts.append(verdict_text(result.verdict, terminal))
    if result.notes:
        parts.append("\n".join(f"note: {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def prove_page(result: ProveResult) -> Page:
    """Return the curve with the measured points, its errors, the table and the verdict."""
    title, lead = _title(result)
    return Page(
        title,
        lead,
        [_section(result)],
        verdict=result.verdict,
        notes=result.notes,
        explains_kinds=True,
        made=[
            ("evidence", result.evidence),
            *made_on(result.server_version, result.machine, result.seconds),
        ],
    )


def _title(result: ProveResult) -> tuple[str, str]:
    title = (
        f"Predicted, then replayed on a real server: mean error {error_points(result.mean_abs_error)}, "
        f"worst {error_points(result.max_abs_error)} percentage points"
    )
    lead = (
        f"{server_name(result.server_version)} on {result.machine}. A private server was "
        "restarted at every size of shared_buffers; it made the page accesses of the trace again, in their "
        f"order, and counted its misses. That took {seconds(result.seconds)}."
    )
    return title, lead


def _section(result: ProveResult) -> Section:
    today = result.observed_shared_buffers_bytes or None
    inside = sum(proven(row) for row in result.rows)
    accesses = max((row.accesses for row in result.rows), default=0)
    facts = [
        Fact(
            error_points(result.mean_abs_error),
            f"mean error, percentage points; worst {error_points(result.max_abs_error)}",
        ),
        Fact(f"{inside} of {len(result.rows)}", "measured values within the predicted 90% interval"),
        Fact(
            error_points(result.simulator_max_abs_error, 3), "worst error of the simulator, percentage points"
        ),
        Fact(count(accesses), "accesses counted at each size"),
    ]
    rows, tips, marked = [], {}, None
    for index, row in enumerate(result.rows):
        size, truth, value = format_bytes(row.shared_buffers_bytes), row.measured_miss_ratio, row.predicted
        interval = f"{percent(value.low, sign=False)} to {percent(value.high, sign=False)}"
        observed_here = row.shared_buffers_bytes == today
        marked = index if observed_here else marked
        rows.append(
            [
                Cell(size, "observed here" if observed_here else ""),
                Cell(percent(truth, sign=False)),
                Cell(percent(value.miss_ratio, sign=False)),
                Cell(interval, "" if proven(row) else "measured lies outside"),
                Cell(points(value.miss_ratio - truth)),
                Cell(percent(row.simulated_miss_ratio, sign=False)),
                Cell(points(row.simulated_miss_ratio - truth)),
            ]
        )
        tips[row.shared_buffers_bytes] = (
            f"{size}\nmeasured {percent(truth)}\npredicted {percent(value.miss_ratio)}, {interval}%"
        )
    figures = []
    if result.rows:
        series = prove_series(result)
        title = "Miss ratio by shared_buffers, predicted from a trace and measured by replaying it"
        figures = [
            (curve_svg(series, today_bytes=today, title=title, tips=tips), _CAPTION),
            (error_svg(series, standard_errors={}, title="Errors of the prediction"), _ERROR_CAPTION),
        ]
    return Section(
        title="Predicted and measured",
        ident="proof",
        lead="The simulator began with the very pool that the server had: if it differed from the server by "
        "more than a few accesses, its rules would be wrong. Where both differ from the prediction, the "
        "trace is too short for that size.",
        facts=facts,
        figures=figures,
        groups=[
            Group(""),
            Group("measured", 1, Measured),
            Group("predicted from the trace", 3, f"{Predicted} trace"),
            Group("simulated", 2),
        ],
        head=[
            "shared_buffers",
            "miss ratio, %",
            "miss ratio, %",
            "90% interval, %",
            "error, points",
            "miss ratio, %",
            "error, points",
        ],
        rows=rows,
        marked=marked,
    )


def _rows(result: ProveResult) -> Rows:
    head = ["shared_buffers_bytes", "measured_miss_ratio", "simulated_miss_ratio"]
    head += ["predicted_miss_ratio", "predicted_low", "predicted_high", "accesses"]
    return Rows(
        head,
        [
            (
                row.shared_buffers_bytes,
                row.measured_miss_ratio,
                row.simulated_miss_ratio,
                row.predicted.miss_ratio,
                row.predicted.low,
                row.predicted.high,
                row.accesses,
            )
            for row in result.rows
        ],
    )


VIEW = View(ProveResult, text=prove_text, page=prove_page, rows=_rows)
