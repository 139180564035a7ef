"""The experiments of the lab: as text, as a page, as rows."""

from __future__ import annotations

from pgsweep.records.lab import LabListed, LabListResult
from pgsweep.ui.numbers import seconds
from pgsweep.ui.section import Cell, Page, Section
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.view import View, rows_of
from pgsweep.units import format_plain

_HEAD = ["name", "asks", "scale", "takes (assumed)", "needs", "here"]


def list_text(result: LabListResult, terminal: Terminal) -> str:
    """Return one line for each experiment."""
    columns = [Column(word, left=index in (0, 1, 4, 5)) for index, word in enumerate(_HEAD)]
    text = table(columns, [_cells(each) for each in result.experiments], terminal)
    every = seconds(sum(each.seconds for each in result.experiments if each.state != "not here"))
    return (
        f"{text}\n\nscale: what the article's sizes are divided by; --scale changes it.\n"
        f"pgsweep lab run --all takes about {every} here (assumed).\n"
    )


def list_page(result: LabListResult) -> Page:
    """Return the experiments as one table."""
    rows = [[Cell(text) for text in _cells(each)] for each in result.experiments]
    lead = "The scale is what the article's sizes are divided by."
    section = Section("Experiments", "experiments", lead, [], [], [], _HEAD, rows, words=True)
    ready = sum(each.state == "runs" for each in result.experiments)
    return Page(f"{ready} of {len(result.experiments)} experiments can run here", lead, [section])


def _cells(each: LabListed) -> list[str]:
    state = each.state if not each.why else f"{each.state}: {each.why}"
    needs = ", ".join(each.needs)
    return [each.name, each.question, format_plain(each.scale), seconds(each.seconds), needs, state]


VIEW = View(
    LabListResult,
    text=list_text,
    page=list_page,
    rows=lambda result: rows_of(LabListed, result.experiments),
)
