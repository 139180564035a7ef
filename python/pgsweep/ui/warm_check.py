"""How much of saved heat is resident: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from pgsweep.records.heat import HeatRelation, WarmCheckResult
from pgsweep.ui.heat import (
    lost_lines,
    relations_page,
    relations_text,
    source_text,
    state_facts,
    state_text,
)
from pgsweep.ui.missing import missing_lines
from pgsweep.ui.numbers import percent
from pgsweep.ui.section import Page
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.view import View, rows_of


def check_text(result: WarmCheckResult, terminal: Terminal) -> str:
    """Return how much is resident, whole and by relation."""
    parts = [
        source_text(result.source, result.server_version),
        state_text(result.state),
        relations_text(result.relations, terminal),
        *lost_lines(result.relations, terminal),
        *missing_lines(result.missing, terminal),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def check_page(result: WarmCheckResult) -> Page:
    """Return the shares, and every relation."""
    title = f"{percent(result.state.resident)} of the saved working set is resident"
    lead = source_text(result.source, result.server_version) + "."
    return Page(title, lead, [relations_page(result.relations, state_facts(result.state), result.missing)])


VIEW = View(
    WarmCheckResult,
    text=check_text,
    page=check_page,
    rows=lambda result: rows_of(HeatRelation, result.relations),
)
