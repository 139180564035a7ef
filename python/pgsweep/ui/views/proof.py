"""A proof (a trace predicted, and replayed through a real server): as text, as a page, as rows."""

from __future__ import annotations

import textwrap

import msgspec

from pgsweep.records.proof import ProveResult, ProveRow
from pgsweep.ui.kit.chart import chart
from pgsweep.ui.kit.numbers import count, error_points, format_bytes, percent, points, seconds, server_name
from pgsweep.ui.kit.section import Fact, Page, Section, made_on
from pgsweep.ui.kit.series import prove_series, proven
from pgsweep.ui.kit.svg import curve_svg, error_svg
from pgsweep.ui.kit.table import HERE, MEASURED, Column, Group, Predicted, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View
from pgsweep.ui.views.prediction import verdict_text

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
    left_out = _left_out(result)
    if left_out:
        head += "\n" + textwrap.fill(left_out, min(terminal.width, 100) if terminal.interactive else 100)
    parts = [head, _table(result).text(terminal)]
    if len(result.rows) > 1:
        parts.append(chart(prove_series(result), terminal, today_bytes=today))
    inside, compared = _inside(result)
    of_prediction = "prediction: not compared with the replay at any size"
    if result.mean_abs_error is not None and result.max_abs_error is not None:
        of_prediction = (
            f"prediction: mean error {error_points(result.mean_abs_error)}, "
            f"worst {error_points(result.max_abs_error)} percentage points\n"
            f"measured within the predicted interval at {inside} of {compared} sizes"
        )
    parts.append(
        f"{of_prediction}\n"
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


def _table(result: ProveResult) -> Table[ProveRow]:
    predicted, simulated = Group("predicted from the trace", f"{Predicted} trace"), Group("simulated")
    columns: list[Column[ProveRow]] = [
        Column("shared_buffers", lambda row: format_bytes(row.shared_buffers_bytes)),
        Column("miss ratio\npredicted", lambda row: percent(row.predicted.miss_ratio), group=predicted),
        Column("90% interval", _interval, group=predicted),
        Column("measured", lambda row: percent(row.measured_miss_ratio), group=MEASURED, page="miss ratio"),
        Column("error,\npoints", _error, group=predicted),
        Column(
            "simulated", lambda row: percent(row.simulated_miss_ratio), group=simulated, page="miss ratio"
        ),
        Column("error, points", _simulators_error, group=simulated, only="page"),
    ]
    marked, remarks = None, []
    for index, row in enumerate(result.rows):
        words = []
        if row.shared_buffers_bytes == result.observed_shared_buffers_bytes:
            marked = index
            words.append(f"{HERE}observed here")
        if not row.comparable:
            words.append("not compared")
        elif not proven(row):
            words.append("outside the interval")
        remarks.append(", ".join(words))
    return Table(columns, result.rows, marked, remarks)


def _interval(row: ProveRow) -> str:
    return f"{percent(row.predicted.low, sign=False)} to {percent(row.predicted.high)}"


def _error(row: ProveRow) -> str:
    return points(row.predicted.miss_ratio - row.measured_miss_ratio) if row.comparable else "–"


def _simulators_error(row: ProveRow) -> str:
    return points(row.simulated_miss_ratio - row.measured_miss_ratio)


def _inside(result: ProveResult) -> tuple[int, int]:
    """Return at how many sizes the interval holds what was measured, and how many were compared."""
    compared = [row for row in result.rows if row.comparable]
    return sum(proven(row) for row in compared), len(compared)


def _left_out(result: ProveResult) -> str:
    """Return in a sentence at which sizes the replay shows nothing of the prediction; empty if at none."""
    sizes = [format_bytes(row.shared_buffers_bytes) for row in result.rows if not row.comparable]
    if not sizes:
        return ""
    return (
        f"Not compared with the prediction: {', '.join(sizes)}. Rings or dropped pages decide there, and a "
        "replay cannot repeat them; the replay checks the simulator alone."
    )


def _title(result: ProveResult) -> tuple[str, str]:
    if result.mean_abs_error is None or result.max_abs_error is None:
        title = (
            "Replayed on a real server: worst error of the simulator "
            f"{error_points(result.simulator_max_abs_error, 3)} percentage points"
        )
    else:
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
    left_out = _left_out(result)
    inside, compared = _inside(result)
    accesses = max((row.accesses for row in result.rows), default=0)
    facts = []
    if result.mean_abs_error is not None and result.max_abs_error is not None:
        worst = error_points(result.max_abs_error)
        facts += [
            Fact(error_points(result.mean_abs_error), f"mean error, percentage points; worst {worst}"),
            Fact(f"{inside} of {compared}", "measured values within the predicted 90% interval"),
        ]
    facts += [
        Fact(
            error_points(result.simulator_max_abs_error, 3), "worst error of the simulator, percentage points"
        ),
        Fact(count(accesses), "accesses counted at each size"),
    ]
    tips = {
        row.shared_buffers_bytes: f"{format_bytes(row.shared_buffers_bytes)}\n"
        f"measured {percent(row.measured_miss_ratio)}\n"
        f"predicted {percent(row.predicted.miss_ratio)}, {_interval(row)}"
        for row in result.rows
    }
    figures = []
    if result.rows:
        series = prove_series(result)
        title = "Miss ratio by shared_buffers, predicted from a trace and measured by replaying it"
        figures = [(curve_svg(series, today_bytes=today, title=title, tips=tips), _CAPTION)]
        if compared:
            of_compared = msgspec.structs.replace(result, rows=[r for r in result.rows if r.comparable])
            errors = error_svg(
                prove_series(of_compared), standard_errors={}, title="Errors of the prediction"
            )
            figures.append((errors, _ERROR_CAPTION))
    return Section(
        title="Predicted and measured",
        ident="proof",
        lead="The simulator began with the very pool that the server had: if it differed from the server by "
        "more than a few accesses, its rules would be wrong. Where both differ from a prediction that is "
        f"compared, the trace is too short for that size. {left_out}".rstrip(),
        facts=facts,
        figures=figures,
        table=_table(result),
    )


def _rows(result: ProveResult) -> Rows:
    head = ["shared_buffers_bytes", "measured_miss_ratio", "simulated_miss_ratio"]
    head += ["predicted_miss_ratio", "predicted_low", "predicted_high", "accesses", "comparable"]
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
                row.comparable,
            )
            for row in result.rows
        ],
    )


VIEW = View(ProveResult, text=prove_text, page=prove_page, rows=_rows)
