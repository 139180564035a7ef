"""All experiments in one report: the verdicts together, then each experiment's conclusions and cells."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from operator import itemgetter

from pgsweep.records.lab import LabAllResult, LabResult
from pgsweep.ui.kit.numbers import count, seconds, server_name
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import Column, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View
from pgsweep.ui.views.lab import held_text, lab_page, lab_text, runs_of
from pgsweep.units import format_plain

_HEAD = ("experiment", "asks", "scale", "verdicts", "the others", "runs")


def all_text(result: LabAllResult, terminal: Terminal) -> str:
    """Return the verdicts of all experiments, then each of them as it is shown alone."""
    title, lead = _title(result)
    parts = [f"{terminal.paint(title, 'bold')}\n{lead}", _overview(result, named=False).text(terminal)]
    parts += [lab_text(each, terminal).rstrip("\n") for each in result.results]
    return "\n\n".join(parts) + "\n"


def all_page(result: LabAllResult) -> Page:
    """Return the verdicts as one table, then the sections of each experiment."""
    title, lead = _title(result)
    sections = [
        Section(
            title="Verdicts",
            ident="verdicts",
            lead="A conclusion is a ratio of two figures. It holds where its 95% interval (with fewer than "
            "5 runs every ratio of two runs) is within its bounds.",
            table=_overview(result, named=True),
        )
    ]
    notes = []
    for each in result.results:
        page = lab_page(each)
        sections += [
            replace(section, ident=f"{each.name}-{section.ident}", title=f"{each.name}: {section.title}")
            for section in page.sections
        ]
        notes += [f"{each.name}: {note}" for note in page.notes]
    made = [
        ("server", server_name(result.server_version)),
        ("host", result.machine),
        ("took", seconds(result.seconds)),
        ("every run", result.samples),
    ]
    return Page(title, lead, sections, notes=notes, made=made)


def _title(result: LabAllResult) -> tuple[str, str]:
    claims = Counter(
        claim.verdict for each in result.results if each.experiment for claim in each.experiment.claims
    )
    wrong = claims["does not hold here"]
    title = (
        f"{count(len(result.results))} experiments run here: {claims['holds']} of "
        f"{claims.total()} conclusions hold here, {wrong} {'does' if wrong == 1 else 'do'} not, "
        f"{claims['cannot tell']} cannot be judged"
    )
    lead = f"{server_name(result.server_version)}, {result.machine}. Each on private servers of its own."
    if result.skipped:
        lead += f" Skipped: {len(result.skipped)}."
    return title, lead


def _overview(result: LabAllResult, *, named: bool) -> Table[list[str]]:
    """Return a row for each experiment; `named` quotes the conclusions that do not hold or are not judged."""
    rows = [
        (each.experiment.number, _row(each, named=named))
        for each in result.results
        if each.experiment is not None
    ]
    rows += [
        (each.number, [each.name, each.question, "", f"skipped: {each.why}", "", ""])
        for each in result.skipped
    ]
    columns: list[Column[list[str]]] = [
        Column(word, itemgetter(at), left=at not in (2, 5)) for at, word in enumerate(_HEAD)
    ]
    return Table(columns, [row for _, row in sorted(rows, key=lambda row: row[0])])


def _row(result: LabResult, *, named: bool) -> list[str]:
    experiment = result.experiment
    assert experiment is not None
    others = [claim for claim in experiment.claims if claim.verdict != "holds"]
    counts = Counter(claim.verdict for claim in others)
    texts = [f"{claim.verdict}: {claim.text}" for claim in others]
    shown = "; ".join(texts) if named else ", ".join(f"{verdict}: {n}" for verdict, n in counts.items())
    return [
        result.name,
        experiment.question,
        format_plain(experiment.scale),
        held_text(experiment),
        shown,
        f"{result.runs_done} of {result.runs_planned}",
    ]


def _rows(result: LabAllResult) -> Rows:
    head = ["experiment", "cell", "unit", "published", "median", "low", "high", "runs", "failures"]
    lines = [
        [
            each.name,
            *(cell.key, cell.unit, cell.published, cell.median, cell.low, cell.high),
            *runs_of(cell),
        ]
        for each in result.results
        for cell in each.cells
    ]
    return Rows(head, lines)


VIEW = View(LabAllResult, text=all_text, page=all_page, rows=_rows)
