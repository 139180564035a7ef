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


def held_conditions(result: WarmCheckResult) -> list[str]:
    """Return each condition of --fail-if that holds, with the value as a percentage like all others."""
    lines = []
    for text in result.conditions:
        name = text.split("<")[0].split(">")[0].split("=")[0].split("!")[0].strip()
        value = getattr(result.state, name, None)
        known = f": {name} is {percent(value)}" if isinstance(value, float) else ""
        lines.append(f"{text} holds{known}")
    return lines


def check_text(result: WarmCheckResult, terminal: Terminal) -> str:
    """Return how much is resident, whole and by relation."""
    parts = [
        source_text(result.source, result.server_version),
        state_text(result.state),
        "\n".join(f"{terminal.paint('fails:', 'red')} {line}" for line in held_conditions(result)),
        relations_text(result.relations, terminal),
        *lost_lines(result.relations, terminal),
        *missing_lines(result.missing, terminal),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def check_page(result: WarmCheckResult) -> Page:
    """Return the shares, and every relation."""
    title = f"{percent(result.state.resident)} of the saved working set is resident"
    lead = source_text(result.source, result.server_version) + "."
    lead += "".join(f" Fails: {line}." for line in held_conditions(result))
    return Page(title, lead, [relations_page(result.relations, state_facts(result.state), result.missing)])


VIEW = View(
    WarmCheckResult,
    text=check_text,
    page=check_page,
    rows=lambda result: rows_of(HeatRelation, result.relations),
)
