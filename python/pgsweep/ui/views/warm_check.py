"""How much of saved heat is resident: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

import re

from pgsweep.plain import sentence
from pgsweep.records.heat import HeatRelation, WarmCheckResult
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import percent
from pgsweep.ui.kit.section import Page
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed
from pgsweep.ui.views.heat import (
    lost_lines,
    relations_page,
    relations_text,
    source_text,
    state_facts,
    state_text,
)


def held_conditions(result: WarmCheckResult) -> list[str]:
    """Return each condition of --fail-if that holds, with the measured value."""
    lines = []
    for text in result.conditions:
        name = re.split(r"[\s<>=!]", text, maxsplit=1)[0]
        value = getattr(result.state, name, None)
        known = percent(value) if isinstance(value, float) else "not known"
        lines.append(f"--fail-if {text} holds: {name} is {known}")
    return lines


def check_text(result: WarmCheckResult, terminal: Terminal) -> str:
    """Return how much is resident, whole and by relation."""
    parts = [
        source_text(result.source, result.server_version),
        state_text(result.state),
        "\n".join(terminal.paint(line, "red") for line in held_conditions(result)),
        relations_text(result.relations, terminal),
        *lost_lines(result.relations, terminal),
        *missing_lines(result.missing, terminal),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def check_page(result: WarmCheckResult) -> Page:
    """Return the shares, and every relation."""
    worth = result.state.worth
    share = percent(result.state.resident if worth is None else worth)
    title = f"{share} of the saved working set{'' if worth is None else ' worth having'} is resident"
    lead = source_text(result.source, result.server_version) + "."
    lead += "".join(f" {sentence(line)}" for line in held_conditions(result))
    return Page(title, lead, [relations_page(result.relations, state_facts(result.state), result.missing)])


VIEW = View(WarmCheckResult, check_text, check_page, listed(HeatRelation, "relations"))
