"""What could not be looked at, as text."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.plain import shown
from pgsweep.records.cache import Missing
from pgsweep.ui.kit.terminal import Terminal


def missing_lines(missing: Sequence[Missing], terminal: Terminal) -> list[str]:
    """Return one line for each thing that could not be looked at."""
    if not missing:
        return []
    lines = []
    for entry in missing:
        line = f"{terminal.paint('not seen:', 'yellow')} {shown(entry.what)}: {shown(entry.why)}"
        lines.append(line + (f"; {shown(entry.enable)}" if entry.enable else ""))
    return ["\n".join(lines)]
