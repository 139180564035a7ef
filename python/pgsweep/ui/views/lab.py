"""Experiments and grids: every cell with its runs, published beside measured here, and the verdicts."""

from __future__ import annotations

from html import escape
from typing import Final

from pgsweep.records.lab import LabCell, LabClaim, LabExperiment, LabResult
from pgsweep.ui.kit.numbers import NONE, count, figure, percent, seconds, server_name
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Cell, Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View
from pgsweep.ui.views.lab_charts import plot_svg
from pgsweep.ui.views.lab_figures import unit_text, value_text

_CAPTIONS = {
    "boxes": "Each dot is a run; boxes hold the middle half of the runs, lines in them are medians.",
    "bars": "Each dot is a run; the bar is the median.",
    "lines": "Each dot is a run; the line joins the medians.",
}
_LABEL_WIDTH, _PLOT_WIDTH, _ROW_HEIGHT, _CHART_WIDTH = 380, 380, 24, 880


def lab_text(result: LabResult, terminal: Terminal) -> str:
    """Return the verdicts, then one line for each cell."""
    title, lead = _title(result)
    parts = [f"{terminal.paint(title, 'bold')}\n{lead}"]
    if result.experiment is not None:
        parts.append(_experiment_text(result.experiment, terminal))
    parts.append(_table(result).text(terminal))
    parts.append("\n".join([_effort(result), *control_notes(result)]))
    if result.notes:
        parts.append("\n".join(f"note: {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def _experiment_text(experiment: LabExperiment, terminal: Terminal) -> str:
    about = [*_about(experiment), "", "Each conclusion as a ratio:"]
    return "\n".join([*about, Table(_CLAIMS, experiment.claims).text(terminal)])


def lab_page(result: LabResult) -> Page:
    """Return the conclusions, the cells with a chart for each unit, and the effort."""
    title, lead = _title(result)
    sections = []
    if result.experiment is not None:
        sections.append(_claims_section(result.experiment))
    facts = [
        Fact(f"{result.runs_done} of {result.runs_planned}", "runs done"),
        Fact(percent(result.noise_ratio), "spread of a cell's runs, median over the cells", Measured),
    ]
    sections.append(
        Section(
            title="Cells",
            ident="cells",
            lead="Medians over runs. Intervals are of 95% (bootstrap over runs, BCa), from 5 runs on.",
            facts=facts,
            figures=_figures(result),
            table=_table(result),
            notes=[_effort(result), *control_notes(result)],
        )
    )
    settings = (
        ", ".join(f"{name} = {value}" for name, value in result.settings.items()) or "the server's defaults"
    )
    conditions = "; ".join(f"{name}: {value}" for name, value in result.conditions.items())
    made = [
        ("server", server_name(result.server_version)),
        ("host", result.machine),
        ("settings", settings),
        ("conditions", conditions),
        ("seed", str(result.seed)),
        ("every run", result.samples),
    ]
    return Page(title, lead, sections, notes=result.notes, made=made)


def _claims_section(experiment: LabExperiment) -> Section:
    return Section(
        title="Does it hold here?",
        ident="claims",
        lead="Each is a figure or the ratio of two, below it its 95% interval (with fewer than 5 runs the "
        "smallest and the largest that runs give). It holds where all of that is within the bounds.",
        table=Table(_CLAIMS, experiment.claims),
        notes=_about(experiment),
    )


def _about(experiment: LabExperiment) -> list[str]:
    """Return where the experiment comes from, what was scaled, and what else is to be known."""
    if not experiment.published_on:
        beyond = [f"Note: {experiment.beyond}."] if experiment.beyond else []
        return ["Not from an article: a question of this project.", f"Here: {experiment.model}.", *beyond]
    beyond = [f"Beyond the article: {experiment.beyond}."] if experiment.beyond else []
    return [f"Published on: {experiment.published_on}.", f"Here: {experiment.model}.", *beyond]


def _title(result: LabResult) -> tuple[str, str]:
    lead = (
        f"{server_name(result.server_version)}, {result.machine}. Measured on a private server; "
        "its writes are not synchronised to disk unless a setting says so."
    )
    if result.experiment is None:
        return f"{result.name}: {count(len(result.cells))} cells", lead
    return f"{result.name}: {result.experiment.question} {held_text(result.experiment)} here", lead


def held_text(experiment: LabExperiment) -> str:
    """Return how many conclusions hold, as `3 of 4 conclusions hold`."""
    holding = sum(claim.verdict == "holds" for claim in experiment.claims)
    every = len(experiment.claims)
    return f"{holding} of {every} conclusion{'s' * (every != 1)} {'hold' if holding != 1 else 'holds'}"


def _here(claim: LabClaim) -> Cell:
    interval = ""
    if claim.low is not None and claim.high is not None and claim.low != claim.high:
        interval = f"{figure(claim.low)} to {figure(claim.high)}"
    return Cell(figure(claim.here), interval)


_CLAIMS: Final[list[Column[LabClaim]]] = [
    Column("conclusion", lambda claim: claim.text, left=True),
    Column("expected", lambda claim: claim.expected),
    Column("published", lambda claim: figure(claim.published)),
    Column("here", _here),
    Column("verdict", lambda claim: Cell(claim.verdict, claim.reason), left=True),
]


def _factors(result: LabResult) -> list[str]:
    """Return the names of all factors, in the order in which cells have them; the figure last."""
    names = dict.fromkeys(name for cell in result.cells for name in cell.factors)
    return [name for name in names if name != "figure"] + [name for name in names if name == "figure"]


def _table(result: LabResult) -> Table[LabCell]:
    def factor(name: str) -> Column[LabCell]:
        return Column(name, lambda cell: cell.factors.get(name, ""), left=True)

    columns = [factor(name) for name in _factors(result)]
    if result.experiment is not None:
        columns.append(Column("published", lambda cell: value_text(cell.published, cell.unit)))
    columns += [
        Column("here", lambda cell: value_text(cell.median, cell.unit)),
        Column("95% interval", _interval),
        Column("unit", lambda cell: unit_text(cell.unit)),
        Column("runs", lambda cell: str(len(cell.runs))),
        Column("remark", _remark, left=True),
    ]
    return Table(columns, result.cells)


def _interval(cell: LabCell) -> str:
    if cell.low is None or cell.high is None:
        return NONE
    return f"{value_text(cell.low, cell.unit)} to {value_text(cell.high, cell.unit)}"


def _remark(cell: LabCell) -> str:
    remarks = [f"failed: {failure.splitlines()[0]}" for failure in cell.failures[:1]]
    if cell.unsteady:
        remarks.append(f"{cell.unsteady} not steady")
    if not cell.runs and not cell.failures:
        remarks.append("not measured")
    return ", ".join(remarks)


def _effort(result: LabResult) -> str:
    text = (
        f"{result.runs_done} of {result.runs_planned} runs; "
        f"set-up of the runs {seconds(result.setup_seconds)}, "
        f"warm-up and measuring {seconds(result.measure_seconds)}"
    )
    if result.overhead_ratio is None:
        return f"{text}; nothing was run now. Every run: {result.samples}"
    return (
        f"{text}; the lab itself took {percent(result.overhead_ratio)} of the time of this call. "
        f"Every run: {result.samples}"
    )


def control_notes(result: LabResult) -> list[str]:
    """Return the machine's own noise in words."""
    return [
        f"machine noise, {each.what}: {each.runs} control runs between the runs, the same work each time, "
        f"took {value_text(each.median_seconds, 'seconds')}; eight in ten took "
        f"{value_text(each.low_seconds, 'seconds')} to {value_text(each.high_seconds, 'seconds')} "
        f"({percent(each.spread_ratio)} of the median)"
        for each in result.controls
    ]


def _figures(result: LabResult) -> list[tuple[str, str]]:
    """Return the pictures that the experiment asks for, or else one of all runs for each unit."""
    if result.experiment is not None and result.experiment.plots:
        drawn = [(plot.kind, plot_svg(plot, result.cells)) for plot in result.experiment.plots]
        return [(svg, _CAPTIONS[kind]) for kind, svg in drawn if svg]
    found = []
    for unit in dict.fromkeys(cell.unit for cell in result.cells):
        cells = [cell for cell in result.cells if cell.unit == unit and cell.runs]
        if cells:
            found.append(
                (runs_svg(cells, unit), "Each dot is a run; the line is the median. All begin at zero.")
            )
    return found


def runs_svg(cells: list[LabCell], unit: str) -> str:
    """Return one line for each cell: its runs as dots, its median as a line, on an axis from zero."""
    most = max(max(cell.runs) for cell in cells) or 1.0
    height = _ROW_HEIGHT * (len(cells) + 1)
    out = [
        f'<svg class="plot" viewBox="0 0 {_CHART_WIDTH} {height}" role="img" '
        f'aria-label="{escape(f"runs of each cell, {unit}")}" xmlns="http://www.w3.org/2000/svg">',
        f'<text class="axis-title" x="{_LABEL_WIDTH}" y="14">{escape(unit_text(unit) or unit)}</text>',
    ]
    for number, cell in enumerate(cells, 1):
        y = _ROW_HEIGHT * number + 8
        label = ", ".join(cell.factors.values())
        shown = label if len(label) <= 58 else f"{label[:57]}…"
        out.append(f'<text x="{_LABEL_WIDTH - 12}" y="{y + 4}" text-anchor="end">{escape(shown)}</text>')
        out.append(f'<path class="grid" d="M{_LABEL_WIDTH} {y}h{_PLOT_WIDTH}"/>')
        places = [_LABEL_WIDTH + run / most * _PLOT_WIDTH for run in cell.runs]
        out += [f'<circle class="mark k-snapshots" cx="{x:.1f}" cy="{y}" r="3.5"/>' for x in places]
        median = cell.median or 0.0
        x = _LABEL_WIDTH + median / most * _PLOT_WIDTH
        out.append(f'<path class="base" d="M{x:.1f} {y - 8}v16"/>')
        end, value = _LABEL_WIDTH + _PLOT_WIDTH + 12, escape(value_text(median, unit))
        out.append(f'<text class="tick" x="{end}" y="{y + 4}">{value}</text>')
    out.append("</svg>")
    return "\n".join(out)


def _rows(result: LabResult) -> Rows:
    names = _factors(result)
    head = [*names, "unit", "published", "median", "low", "high", "runs", "failures"]
    lines = [
        [
            *(cell.factors.get(name, "") for name in names),
            *(cell.unit, cell.published, cell.median, cell.low, cell.high),
            *runs_of(cell),
        ]
        for cell in result.cells
    ]
    return Rows(head, lines)


def runs_of(cell: LabCell) -> tuple[str, str]:
    """Return the runs of a cell and its failures, each as one field."""
    return " ".join(f"{run:.6g}" for run in cell.runs), "; ".join(cell.failures)


VIEW = View(LabResult, text=lab_text, page=lab_page, rows=_rows)
