"""A recording (what it gathered, its plan, and what was exported of it): as text, as a page, as rows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import msgspec

from pgsweep.plain import cleaned, shown
from pgsweep.records.prediction import ExportResult, RecordPlan, RecordResult
from pgsweep.ui.kit.numbers import count, format_bytes, percent, seconds
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.series import SOURCES
from pgsweep.ui.kit.table import Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View


def record_text(result: RecordResult, terminal: Terminal) -> str:
    """Return what a recording gathered, as lines of name and value."""
    facts = [
        ("evidence", f"{result.path} ({format_bytes(result.bytes_written)})"),
        ("source", SOURCES.get(result.source, result.source)),
        *(("not possible", reason) for reason in result.passed_over),
        ("time", f"{seconds(result.seconds)}, {ending(result.ended_by)}"),
        ("shared_buffers", format_bytes(result.shared_buffers_bytes)),
    ]
    if result.snapshots:
        facts.append(("snapshots", count(result.snapshots)))
    if result.accesses:
        facts.append(("accesses", count(result.accesses)))
    if result.source == "trace":
        facts.append(("lost events", count(result.lost_events)))
    for name, value in (
        ("overhead, expected", result.expected_overhead_ratio),
        ("overhead, measured", result.measured_overhead_ratio),
    ):
        if value is not None:
            facts.append((name, percent(value)))
    return _facts(facts, result.warnings, terminal)


_ENDINGS = {
    "enough": "until there was enough data",
    "time": "as long as asked for",
    "limit": "until a limit was reached",
    "budget": "ended early: it took more than its budget",
    "still": "ended early: hardly anything was evicted",
    "unpredictable": "ended early: no prediction is possible from this load",
    "interrupt": "ended by interrupt",
    "server": "ended early: the server was stopped, restarted or crashed",
    "session": "ended early: an administrator ended the recorder's session",
    "dropped": "ended early: the database was dropped",
    "connection": "ended early: the connection to the server broke",
    "refused": "ended early: the server refused a statement",
    "cut": "cut short: the file ends before the script did",
    "cancelled": "ended early: a statement was cancelled",
    "disk": "ended early: no room on the disk",
}


def ending(ended_by: str) -> str:
    """Return in words why a recording ended."""
    return _ENDINGS.get(ended_by, f"ended by {ended_by}")


def export_text(result: ExportResult, terminal: Terminal) -> str:
    """Return what was written in another format, as lines of name and value."""
    facts = [
        ("trace", f"{result.path} ({format_bytes(result.bytes_written)})"),
        ("names", result.mapping_path),
        ("start", result.start_path),
        ("accesses", count(result.accesses)),
        (
            "counted",
            f"{count(result.counted)} of them, as by the database and by predict; the others are of new",
        ),
        ("", "pages, shared catalogs, other databases, or the replay of a standby"),
        ("objects", count(result.objects)),
    ]
    return _facts(facts, result.warnings, terminal)


def _facts(facts: Sequence[tuple[str, str]], warnings: Sequence[str], terminal: Terminal) -> str:
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {value}" for name, value in facts]
    lines += [terminal.paint("warning:", "yellow", "bold") + f" {warning}" for warning in warnings]
    return "\n".join(lines) + "\n"


def plan_text(plan: RecordPlan) -> str:
    """Return the steps of a plan as text that can be pasted: what is not SQL stands in comments."""
    parts = [
        f"-- Recording {shown(plan.server)} by {SOURCES.get(plan.source, plan.source)} "
        f"into {shown(plan.output)} would do:"
    ]
    parts += [f"-- {shown(step.what)}: {shown(step.when)}\n{cleaned(step.text)}" for step in plan.steps]
    return "\n\n".join(parts) + "\n"


def record_page(result: RecordResult) -> Page:
    """Return what a recording gathered."""
    source = SOURCES.get(result.source, result.source)
    return Page(f"Recorded: {result.path}", f"Source: {source}.", [_section(result)])


def _section(result: RecordResult) -> Section:
    facts = [
        Fact(format_bytes(result.shared_buffers_bytes), "shared_buffers", Measured),
        Fact(count(result.accesses), "page accesses", Measured),
        Fact(count(result.snapshots), "snapshots", Measured),
        Fact(count(result.lost_events), "events lost", Measured),
    ]
    rows = [
        ("source", SOURCES.get(result.source, result.source)),
        *(("not possible", reason) for reason in result.passed_over),
        ("time", seconds(result.seconds)),
        ("ended", ending(result.ended_by)),
        ("written", format_bytes(result.bytes_written)),
    ]
    columns: list[Column[tuple[str, str]]] = [
        Column("what", itemgetter(0), left=True),
        Column("value", itemgetter(1), left=True),
    ]
    return Section("Recording", "recording", facts=facts, table=Table(columns, rows), notes=result.warnings)


def _rows(result: RecordResult) -> Rows:
    """Return one line of all that is not nested."""
    fields = msgspec.to_builtins(result)
    scalars = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    return Rows(list(scalars), [list(scalars.values())])


VIEW = View(RecordResult, text=record_text, page=record_page, rows=_rows)
