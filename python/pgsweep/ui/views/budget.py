"""The memory budget: as text, as a page, as rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from pgsweep.plain import sentence
from pgsweep.records.budget import BudgetPart, BudgetResult
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, counted, format_bytes, known_bytes
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Column, Measured, Predicted, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed

_PAINTS = {"fits": "green", "tight": "yellow", "will be killed": "red"}
_MARKS = {
    "shared memory": ("█", "S"),
    "page tables": ("▓", "T"),
    "connections": ("▒", "C"),
    "background processes": ("▒", "C"),
    "work_mem": ("▚", "W"),
    "temp_buffers": ("▚", "W"),
    "autovacuum": ("▚", "W"),
    "maintenance": ("▚", "W"),
    "everything else": ("░", "e"),
}
_OTHER = _MARKS["everything else"]
_NUMBERS_WIDTH = 62
"""Columns of a terminal that the table takes without the reasons."""
_LEAST_WIDTH_OF_REASONS = 30
_LEGEND = (
    ("shared memory", "shared memory"),
    ("page tables", "page tables"),
    ("connections", "processes"),
    ("work_mem", "work_mem and the like"),
    ("everything else", "everything else"),
)


def budget_text(result: BudgetResult, terminal: Terminal) -> str:
    """Return the bars, the parts, and the verdict."""
    whose = "limit of the memory cgroup" if result.limit_bytes is not None else "memory of the host"
    if _is_named(result):
        whose = "memory"  # as it was named
    head = (
        f"{counted(result.connections, 'connection')} now, "
        f"max_connections {count(result.max_connections)}; {whose} {format_bytes(result.capacity_bytes)}."
    )
    paint = _PAINTS.get(result.verdict, "bold")
    verdict = [f"Verdict: {terminal.paint(result.verdict, 'bold', paint)}"]  # type: ignore[arg-type]
    width = max(40, min(terminal.width, 110))
    for reason in result.reasons:
        verdict += textwrap.wrap(sentence(reason), width)
    fit = (
        f"The memory suffices for {count(result.possible_connections)} connections {_like(result)}, or for "
        f"{count(result.safe_connections)} that take all that the settings allow."
    )
    verdict += textwrap.wrap(fit, max(width, 100 if not terminal.interactive else 0))
    verdict += textwrap.wrap(_what_fits(result), width)
    parts = [head, bars(result, terminal), _table_text(result, terminal), "\n".join(verdict)]
    return "\n\n".join(parts + missing_lines(result.missing, terminal)) + "\n"


def _is_named(result: BudgetResult) -> bool:
    """Return whether the memory was named (--ram): then what others take of it is assumed."""
    return any(part.name == "everything else" and part.kind == "assumed" for part in result.parts)


def _like(result: BudgetResult) -> str:
    return "like today's" if result.connections else "like one that has just begun"


def _what_fits(result: BudgetResult) -> str:
    """Return which work_mem and which max_connections would fit, in one sentence."""
    if result.fitting_connections is None:
        return ""
    many, mem = count(result.max_connections), format_bytes(result.work_mem_bytes)
    if result.fitting_connections > 0:
        fitting, also = count(result.fitting_connections), ", or"
        text = f"A tenth is left for cached files (fits) up to {fitting} connections with work_mem {mem}"
    else:
        also = "; it would be"
        text = f"With work_mem {mem} no number of connections would be judged fits"
    if result.fitting_work_mem_bytes is not None:
        most = format_bytes(result.fitting_work_mem_bytes)
        return f"{text}{also} up to work_mem {most} with {many} connections."
    if result.plan_nodes > 0:
        text += f"; no work_mem makes {many} connections fit"
    return text + "."


def bars(result: BudgetResult, terminal: Terminal) -> str:
    """Return the memory as a bar: now, and at max_connections at both ends."""
    rows: list[tuple[str, Callable[[BudgetPart], int]]] = [
        ("now", lambda part: part.now_bytes),
        ("low", lambda part: part.low_bytes),
        ("high", lambda part: part.high_bytes),
    ]
    width = max(20, min(terminal.width, 90) - 30)
    lines = []
    for index, (name, value) in enumerate(rows):
        lines.append(
            f"{name:<5} {_bar(result, value, width, terminal)} {_left(result.page_cache_bytes[index])}"
        )
    legend = [f"{terminal.pick(*_MARKS[name])} {words}" for name, words in _LEGEND]
    words = " " * 6 + ", ".join([*legend, f"{terminal.pick('·', '.')} left for cached files"])
    wide = terminal.width if terminal.interactive else len(words)
    return "\n".join([*lines, *textwrap.wrap(words, wide, subsequent_indent=" " * 6)])


def _bar(result: BudgetResult, value: Callable[[BudgetPart], int], width: int, terminal: Terminal) -> str:
    bar, done = "", 0
    for part in result.parts:
        done += value(part)
        cells = min(width, round(width * done / max(result.capacity_bytes, 1))) - len(bar)
        bar += terminal.pick(*_MARKS.get(part.name, _OTHER)) * max(0, cells)
    return bar + terminal.pick("·", ".") * (width - len(bar))


def _left(value: int) -> str:
    return f"{format_bytes(value)} left" if value >= 0 else f"{format_bytes(-value)} too much"


def _table_text(result: BudgetResult, terminal: Terminal) -> str:
    """Return the parts with their reasons: beside them, or below the table where a terminal is narrow."""
    narrow = terminal.interactive and terminal.width < _NUMBERS_WIDTH + _LEAST_WIDTH_OF_REASONS
    width = max(_LEAST_WIDTH_OF_REASONS, min(terminal.width, 130) - _NUMBERS_WIDTH)
    table = _table(result)
    many = count(result.max_connections)
    caption = f"low: {many} connections {_like(result)}; high: each takes what the settings allow"
    lines = [table.text(terminal, wrap=0 if narrow else width)]
    lines += textwrap.wrap(caption, min(100, terminal.width) if terminal.interactive else 100)
    if narrow:
        for part in result.parts:
            reason = f"{part.name}: {part.why}"
            lines += textwrap.wrap(reason, terminal.width, subsequent_indent="    ")
    return "\n".join(lines)


def _table(result: BudgetResult) -> Table[BudgetPart]:
    measured = not any(part.now_bytes for part in result.parts if part.kind == "assumed")
    columns: list[Column[BudgetPart]] = [
        Column("", lambda part: part.name, left=True, page="memory"),
        Column("now\nmeasured" if measured else "now", lambda part: known_bytes(part.now_bytes)),
        Column("low", lambda part: known_bytes(part.low_bytes)),
        Column("high", lambda part: known_bytes(part.high_bytes)),
        Column("", lambda part: part.kind, left=True, page="kind"),
        Column("", lambda part: part.why, left=True, page="why"),
    ]
    now, low, high = (
        sum(getattr(part, f"{name}_bytes") for part in result.parts) for name in ("now", "low", "high")
    )
    together = BudgetPart(name="together", now_bytes=now, low_bytes=low, high_bytes=high, kind="", why="")
    return Table(columns, [*result.parts, together], marked=len(result.parts))


def budget_page(result: BudgetResult) -> Page:
    """Return the parts as one table, below the verdict."""
    title = f"{count(result.max_connections)} connections: {result.verdict}"
    reasons = [sentence(reason) for reason in result.reasons]
    lead = " ".join([*reasons, _what_fits(result)]).strip()
    memory = format_bytes(result.capacity_bytes)
    facts = [
        Fact(memory, "memory asked for") if _is_named(result) else Fact(memory, "memory there is", Measured),
        Fact(count(result.possible_connections), f"connections fit, {_like(result)}", Predicted),
        Fact(count(result.safe_connections), "fit if each takes what the settings allow", Predicted),
    ]
    return Page(title, lead, [Section("Budget", "budget", facts=facts, table=_table(result))])


VIEW = View(BudgetResult, budget_text, budget_page, listed(BudgetPart, "parts"))
