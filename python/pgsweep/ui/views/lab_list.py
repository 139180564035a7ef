"""The experiments of the lab: as text, as a page, as rows."""

from __future__ import annotations

from typing import Final

from pgsweep.records.lab import LabListed, LabListResult
from pgsweep.ui.kit.numbers import seconds
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import Column, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed
from pgsweep.units import format_plain

_COLUMNS: Final[list[Column[LabListed]]] = [
    Column("name", lambda each: each.name, left=True),
    Column("asks", lambda each: each.question, left=True),
    Column("scale", lambda each: format_plain(each.scale)),
    Column("takes (assumed)", lambda each: seconds(each.seconds)),
    Column("needs", lambda each: ", ".join(each.needs), left=True),
    Column("here", lambda each: f"{each.state}: {each.why}" if each.why else each.state, left=True),
]


def list_text(result: LabListResult, terminal: Terminal) -> str:
    """Return one line for each experiment."""
    text = Table(_COLUMNS, result.experiments).text(terminal)
    every = seconds(sum(each.seconds for each in result.experiments if each.state != "not here"))
    return (
        f"{text}\n\nscale: what the article's sizes are divided by; --scale changes it.\n"
        f"pgsweep lab run --all takes about {every} here (assumed).\n"
    )


def list_page(result: LabListResult) -> Page:
    """Return the experiments as one table."""
    lead = "The scale is what the article's sizes are divided by."
    section = Section("Experiments", "experiments", lead, table=Table(_COLUMNS, result.experiments))
    ready = sum(each.state == "runs" for each in result.experiments)
    return Page(f"{ready} of {len(result.experiments)} experiments can run here", lead, [section])


VIEW = View(LabListResult, list_text, list_page, listed(LabListed, "experiments"))
