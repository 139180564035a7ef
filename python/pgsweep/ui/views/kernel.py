"""The kernel's settings: as text, as a page, as rows."""

from __future__ import annotations

import textwrap

from pgsweep.plain import sentence
from pgsweep.records.kernel import KernelResult, KernelSetting
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import Cell, Column, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed

CERTAINTY = {
    "documented": "documented",
    "experience": "experience: widely advised, not measured here",
}


def kernel_text(result: KernelResult, terminal: Terminal) -> str:
    """Return each setting with its judgement, and the lines that would change those that are not good."""
    parts = [f"{result.machine}. Read, not changed."]
    parts += [_setting(setting, terminal) for setting in result.settings]
    commands = [setting.command for setting in result.settings if setting.command is not None]
    if commands:
        where = "as root"
        if result.place is not None and result.place.contained:
            where = "on the host of the container, for all that runs there, as root"
        lines = [f"Until the next boot, {where} (for good: /etc/sysctl.d):"]
        parts.append("\n".join([*lines, *(f"    {command}" for command in commands)]))
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def _setting(setting: KernelSetting, terminal: Terminal) -> str:
    mark = terminal.paint(terminal.pick("✓", "+"), "green")
    if not setting.good:
        mark = terminal.paint("!", "yellow")
    head = f"{setting.name} = {setting.value}"
    if setting.recommendation is not None:
        head += f"; recommended: {setting.recommendation}"
    width = max(40, min(terminal.width, 110)) - 4
    # Assignments are for pasting: they stay whole.
    first, *more = textwrap.wrap(head, width + 2, break_long_words=False, break_on_hyphens=False)
    more = textwrap.wrap(" ".join(more), width, break_long_words=False, break_on_hyphens=False)
    reason = textwrap.wrap(sentence(setting.reason), width)
    source = textwrap.wrap(f"{setting.source} ({CERTAINTY.get(setting.certainty, setting.certainty)})", width)
    return "\n".join([f"{mark} {first}", *(f"    {line}" for line in [*more, *reason, *source])])


def kernel_page(result: KernelResult) -> Page:
    """Return the settings as one table."""
    good = sum(setting.good for setting in result.settings)
    title = f"{good} of {len(result.settings)} kernel settings are as recommended"
    columns: list[Column[KernelSetting]] = [
        Column("setting", lambda one: one.name, left=True),
        Column("now", lambda one: one.value, left=True),
        Column("recommended", _recommended, left=True),
        Column(
            "why, and who says so",
            lambda one: one.reason,
            left=True,
            note=lambda one: f"{one.source} ({one.certainty})",
        ),
    ]
    table = Table(columns, result.settings)
    section = Section("Kernel settings", "kernel", "Read, not changed.", table=table)
    return Page(title, f"{result.machine}.", [section])


def _recommended(one: KernelSetting) -> Cell:
    if one.command:
        return Cell(one.command, code=True)
    return Cell("as it is" if one.good else one.recommendation or "")


VIEW = View(KernelResult, kernel_text, kernel_page, listed(KernelSetting, "settings"))
