"""The part of the HTML report that shows a proof: a trace predicted, and replayed through a real server."""

from __future__ import annotations

from pgsweep.records.proof import ProveResult
from pgsweep.ui.numbers import count, format_bytes, percent, points, seconds, server_name
from pgsweep.ui.section import Cell, Fact, Group, Measured, Predicted, Section
from pgsweep.ui.series import prove_series, proven
from pgsweep.ui.svg import curve_svg, error_svg

_CAPTION = (
    "Line with triangular marks: predicted. Band: its 90 % interval. Diamonds: the same accesses made on a "
    "real server, counted by it."
)
_ERROR_CAPTION = (
    "Predicted less measured: bars are the 90 % intervals, nine in ten of which should cross the zero line."
)


def prove_title(result: ProveResult) -> tuple[str, str]:
    """Return the headline and the sentence below it."""
    title = (
        f"Predicted, then replayed on a real server: mean error {100 * result.mean_abs_error:.2f}, "
        f"worst {100 * result.max_abs_error:.2f} percentage points"
    )
    lead = (
        f"{server_name(result.server_version)} on {result.machine}. A private server was "
        "restarted at every size of shared_buffers; it made the page accesses of the trace again, in their "
        f"order, and counted its misses. That took {seconds(result.seconds)}."
    )
    return title, lead


def prove_section(result: ProveResult) -> Section:
    """Return the curve with the measured points, its errors, and the table of all sizes."""
    today = result.observed_shared_buffers_bytes or None
    inside = sum(proven(row) for row in result.rows)
    accesses = max((row.accesses for row in result.rows), default=0)
    facts = [
        Fact(
            f"{100 * result.mean_abs_error:.2f}",
            f"mean error, percentage points; worst {100 * result.max_abs_error:.2f}",
        ),
        Fact(f"{inside} of {len(result.rows)}", "measured values within the predicted 90 % interval"),
        Fact(
            f"{100 * result.simulator_max_abs_error:.3f}", "worst error of the simulator, percentage points"
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
            f"{size}\nmeasured {percent(truth)}\npredicted {percent(value.miss_ratio)}, {interval} %"
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
            "90 % interval, %",
            "error, points",
            "miss ratio, %",
            "error, points",
        ],
        rows=rows,
        marked=marked,
    )
