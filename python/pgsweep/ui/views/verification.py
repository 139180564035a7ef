"""Whether a prediction was right: as text, as a page, as rows."""

from __future__ import annotations

from typing import Final

from pgsweep.records.verification import VerifiedValue, VerifyResult, WorkloadChange
from pgsweep.ui.kit.numbers import count, factor, format_bytes, percent
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import MEASURED, PREDICTED, Column, Table
from pgsweep.ui.kit.terminal import Paint, Terminal
from pgsweep.ui.kit.view import View, listed
from pgsweep.units import Z90, format_percent

_LEAST_MARGIN: Final = 0.01
"""Errors smaller than this share of the measured value are not shown."""

_PAINTS: Final[dict[str, Paint]] = {
    "as predicted": "green",
    "not as predicted": "red",
    "workload changed": "yellow",
    "not known": "yellow",
}
_TITLES: Final = {
    "as predicted": "As predicted",
    "not as predicted": "Not as predicted",
    "workload changed": "The workload changed",
    "not known": "Not known whether the prediction was right",
}


def verify_text(result: VerifyResult, terminal: Terminal) -> str:
    """Return the verdict, the values, and how much the load differs."""
    head = terminal.paint(_TITLES[result.verdict], "bold", _PAINTS[result.verdict])
    lines = [f"{head}: {_sizes(result)}.", *terminal.bullets(result.reasons)]
    parts = ["\n".join(lines)]
    if result.values:
        parts.append(_values(result).text(terminal))
    parts.append(_load(result).text(terminal))
    details = [one.detail for one in result.workload if one.detail and one.changed]
    if details:
        parts.append("\n".join(f"  - {detail}" for detail in details))
    return "\n\n".join(parts) + "\n"


def _sizes(result: VerifyResult) -> str:
    before, after = format_bytes(result.shared_buffers_before), format_bytes(result.shared_buffers_after)
    if before == after:
        return f"shared_buffers {before} as before"
    return f"shared_buffers from {before} to {after}"


def _word(value: VerifiedValue) -> str:
    """Return where the measured value lies, or why that says nothing."""
    if value.verdict in ("not known", "workload changed"):
        return value.verdict
    return "within" if value.within else "outside"


def _shown(value: VerifiedValue, number: float) -> str:
    if value.unit == "ratio":
        return percent(number)
    if value.unit == "bytes per access":
        return f"{format_bytes(number)} an access"
    return factor(number)


def _ends(value: VerifiedValue, low: float, high: float) -> str:
    if value.unit == "bytes per access":
        return f"{format_bytes(low)} to {format_bytes(high)}"
    return f"{_shown(value, low)} to {_shown(value, high)}"


def _measured(value: VerifiedValue) -> str:
    """Return what was measured, with the bounds of 90% where its error may decide the verdict."""
    shown, margin = _shown(value, value.measured), Z90 * value.measured_error
    if value.measured <= 0 or margin < _LEAST_MARGIN * value.measured:
        return shown
    return f"{shown} ({_ends(value, max(0.0, value.measured - margin), value.measured + margin)})"


def _values(result: VerifyResult) -> Table[VerifiedValue]:
    columns: list[Column[VerifiedValue]] = [
        Column("", lambda value: value.name, left=True, page="value"),
        Column(
            "before\nmeasured",
            lambda value: "" if value.before is None else _shown(value, value.before),
            page="before",
            group=MEASURED,
        ),
        Column("predicted", lambda value: _shown(value, value.predicted), group=PREDICTED),
        Column("90% interval", lambda value: _ends(value, value.low, value.high), group=PREDICTED),
        Column("after\nmeasured", _measured, page="after", group=MEASURED),
        Column("", _word, left=True, page="interval"),
    ]
    return Table(columns, result.values)


def _load(result: VerifyResult) -> Table[WorkloadChange]:
    columns: list[Column[WorkloadChange]] = [
        Column("the load", lambda one: one.name, left=True),
        Column("before\nmeasured", lambda one: _amount(one, one.before), page="before", group=MEASURED),
        Column("after\nmeasured", lambda one: _amount(one, one.after), page="after", group=MEASURED),
        Column("change", _change, group=MEASURED),
        Column("usual", _usual, group=MEASURED),
        Column("", lambda one: "changed" if one.changed else "", left=True, only="text"),
        Column("", lambda one: "changed" if one.changed else "as before", left=True, only="page"),
        Column("most", lambda one: one.detail, left=True, only="page"),
    ]
    return Table(columns, result.workload)


def _change(one: WorkloadChange) -> str:
    """Return by how much it is more or less than before; of the mix, which share of the accesses moved."""
    if one.before is None or one.after is None or one.difference == 0:
        return format_percent(one.difference, 1)
    if one.before == 0:
        return "from none"
    ratio = one.after / one.before
    return f"{count(ratio)} times" if ratio > 2 else format_percent(ratio - 1, 1, sign=True)


def _usual(one: WorkloadChange) -> str:
    """Return what counts as the same load, of what `_change` says; `usual` is a share of the larger value."""
    if one.before is None:
        return f"up to {format_percent(one.usual)}"
    if one.usual >= 1:
        return "any"
    more = one.usual / (1 - one.usual)
    return f"{format_percent(-one.usual, sign=True)} to {format_percent(more, sign=True)}"


def _amount(one: WorkloadChange, number: float | None) -> str:
    if number is None:
        return ""
    return format_bytes(number) if one.name.startswith("size") else count(number)


def verify_page(result: VerifyResult) -> Page:
    """Return the verdict as the headline, and two tables."""
    first = Section("Predicted and measured", "values", table=_values(result))
    second = Section("The load", "load", table=_load(result))
    title = f"{_TITLES[result.verdict]}: {_sizes(result)}"
    return Page(title, ". ".join(result.reasons), [first, second], explains_kinds=True)


VIEW = View(VerifyResult, verify_text, verify_page, listed(VerifiedValue, "values"))
