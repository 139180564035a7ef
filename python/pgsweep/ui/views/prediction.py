"""A predicted curve: as text, as a page, as rows."""

from __future__ import annotations

import textwrap
from typing import Final, NamedTuple

from pgsweep.plain import shown
from pgsweep.records.prediction import CurvePoint, Level, NoEviction, PredictResult, Verdict
from pgsweep.ui.kit.chart import chart
from pgsweep.ui.kit.numbers import count, format_bytes, percent, seconds
from pgsweep.ui.kit.section import VERDICTS, Fact, Page, Section
from pgsweep.ui.kit.series import SOURCES, predict_series
from pgsweep.ui.kit.svg import curve_svg
from pgsweep.ui.kit.table import HERE, PREDICTED, Column, Measured, Predicted, Table
from pgsweep.ui.kit.terminal import Paint, Terminal
from pgsweep.ui.kit.view import Rows, View
from pgsweep.ui.views.prediction_memory import (
    budget_section,
    memory_columns,
    memory_headline,
    memory_line,
    memory_section,
    memory_text,
    memory_values,
    picture_section,
)
from pgsweep.ui.views.relation_reads import relations_section
from pgsweep.ui.views.what_if import what_if_columns, what_if_section, what_if_text, what_if_values
from pgsweep.units import format_estimate

_MARKS: dict[Level, tuple[str, Paint]] = {
    "reliable": ("✓ ", "green"),
    "rough": ("≈ ", "yellow"),
    "refused": ("✗ ", "red"),
}

_CAPTION = (
    "Line with round or triangular marks: predicted. Band: its 90% interval. Diamond: measured on the server."
)


_LEAST_SHOWN: Final = 0.00005
"""Below it a ratio is shown as 0.00%; a chart of such ratios would be empty lines above its axis."""


def predict_text(result: PredictResult, terminal: Terminal) -> str:
    """Return the curve as a table and a chart, and the verdict."""
    observed = result.observed
    today = observed.shared_buffers_bytes or None
    source = SOURCES.get(result.source, result.source)
    head = [f"Predicted from {source}, {seconds(observed.seconds)} long."]
    if today:
        head.append(
            f"Measured there: shared_buffers {format_bytes(today)}, {count(observed.accesses)} accesses, "
            f"miss ratio {percent(observed.miss_ratio)}."
        )
    else:
        head.append(f"It holds {count(observed.accesses)} accesses.")
    if result.no_eviction is not None:
        head.append(_room(result.no_eviction))

    table = _table(result)
    parts = ["\n".join(head)]
    if table.rows:
        parts.append(table.text(terminal))
    if scans := _scans(result):
        wide = min(terminal.width, 100)
        parts.append("\n".join(textwrap.fill(text, wide, subsequent_indent="  ") for text in scans))
    if len(result.points) > 1 and any(
        max(point.high, observed.miss_ratio) >= _LEAST_SHOWN for point in result.points
    ):
        parts.append(chart(predict_series(result), terminal, today_bytes=today))
    if result.memory is not None and terminal.tables:
        parts.append(memory_text(result.memory, today, terminal))
    elif result.memory is not None:
        parts.append(memory_line(result, terminal))
    if result.what_if:
        parts.append(what_if_text(result, terminal))
    parts.append(verdict_text(result.verdict, terminal))
    if result.changed is not None:
        parts.append(verdict_text(result.changed.verdict, terminal, before="With the what-ifs: "))
    return "\n\n".join(parts) + "\n"


def _table(result: PredictResult) -> Table[_Row]:
    per_second = result.observed.accesses_per_second
    rows = [_Row(format_bytes(size), point) for size, point in _sizes(result)]
    columns: list[Column[_Row]] = [
        Column("shared_buffers", lambda row: row.size),
        Column("miss ratio\npredicted", _Row.ratio, group=PREDICTED),
        Column("90% interval", _Row.interval, group=PREDICTED),
    ]
    if per_second:
        columns.append(Column("misses/s\nat this load", lambda row: row.rate(per_second), group=PREDICTED))
    here = [size == result.observed.shared_buffers_bytes > 0 for size, _ in _sizes(result)]
    remarks = [f"{HERE}today" if one else "" for one in here]
    marked = here.index(True) if True in here else None
    return Table(columns, rows, marked, remarks, by_size=True)


class _Row(NamedTuple):
    """One size."""

    size: str
    point: CurvePoint | None

    def ratio(self) -> str:
        return "not known" if self.point is None else percent(self.point.miss_ratio)

    def interval(self) -> str:
        point = self.point
        return "" if point is None else f"{percent(point.low, sign=False)} to {percent(point.high)}"

    def rate(self, per_second: float) -> str:
        return "" if self.point is None else count(self.point.miss_ratio * per_second)


def _sizes(result: PredictResult) -> list[tuple[int, CurvePoint | None]]:
    """Return the sizes asked for in ascending order, with None where nothing is known."""
    unknown = result.unknown_bytes + (result.no_eviction.unknown_bytes if result.no_eviction else [])
    found: list[tuple[int, CurvePoint | None]] = [(p.shared_buffers_bytes, p) for p in result.points]
    return sorted([*found, *((size, None) for size in unknown)], key=lambda entry: entry[0])


def _scans(result: PredictResult) -> list[str]:
    """Return of each relation that is scanned in a sentence where its scans go through a ring.

    One that would go through a ring only below all sizes shown is left out: that says nothing of any of them.
    """
    found = []
    smallest = min((size for size, _ in _sizes(result)), default=None)
    for scan in result.scans:
        if smallest is None or scan.ring_below_bytes <= smallest:
            continue
        size, limit = format_bytes(scan.relation_bytes), format_bytes(scan.ring_below_bytes)
        share = percent(scan.access_share)
        found.append(
            f"Scans of {shown(scan.name)} ({size}, {share} of the accesses) go through a ring below {limit} "
            "of shared_buffers; from there on they displace other pages."
        )
    return found


def _room(found: NoEviction) -> str:
    """Return in a sentence what follows where nothing was evicted."""
    used, known = format_bytes(found.used_bytes), format_bytes(found.known_from_bytes)
    if found.filling_bytes:
        return f"Nothing was evicted yet: the pool is still filling, and {used} of it held pages at most."
    if not found.removable_bytes:
        return f"Nothing was evicted: the {used} in use fit. Of smaller sizes nothing is known."
    return (
        f"Nothing was evicted: {used} held pages at most. At least "
        f"{format_bytes(found.removable_bytes)} can be taken away without a further miss; below {known} "
        "nothing is known."
    )


def verdict_text(verdict: Verdict, terminal: Terminal, *, before: str = "") -> str:
    """Return the verdict in words, its reasons one a line.

    Args:
        before: said before it.
    """
    mark, colour = _MARKS[verdict.level]
    title = terminal.paint(terminal.pick(mark, ""), colour) + before + VERDICTS[verdict.level]
    lines = [title + (":" if verdict.reasons else "")]
    lines += terminal.bullets(verdict.sentences)
    return "\n".join(lines)


def predict_page(result: PredictResult) -> Page:
    """Return the curve, its table and the verdict."""
    title, lead = _title(result)
    sections = [_section(result)]
    if result.memory is not None:
        picture = picture_section(result, result.memory)
        sections = [picture, *sections] if picture is not None else sections
        sections.append(memory_section(result.memory, result.observed.shared_buffers_bytes or None))
        budget = budget_section(result.memory, result.observed.shared_buffers_bytes or None)
        sections += [] if budget is None else [budget]
        gains = relations_section(result.memory.relations, [result.observed.shared_buffers_bytes])
        sections += [] if gains is None else [gains]
    if result.what_if:
        sections.append(what_if_section(result))
    return Page(title, lead, sections, verdict=result.verdict, explains_kinds=True)


def _title(result: PredictResult) -> tuple[str, str]:
    observed, points_ = result.observed, result.points
    lead = f"Predicted from {SOURCES.get(result.source, result.source)}, {seconds(observed.seconds)} long."
    room = result.no_eviction
    if room is not None:
        used = f"{format_bytes(room.used_bytes)} of {format_bytes(observed.shared_buffers_bytes)} in use"
        away = format_bytes(room.removable_bytes)
        title = f"{used}: {away} can be taken away" if room.removable_bytes else f"{used}, nothing evicted"
        return title, f"{lead} {_room(room)}"
    if not points_:
        return VERDICTS["refused"], lead
    decided = memory_headline(result)
    if decided is not None:
        return decided, lead
    first, last = points_[0], points_[-1]
    if observed.shared_buffers_bytes:
        far = last if last.shared_buffers_bytes > observed.shared_buffers_bytes else first
        title = (
            f"shared_buffers from {format_bytes(observed.shared_buffers_bytes)} to "
            f"{format_bytes(far.shared_buffers_bytes)}: misses from {percent(observed.miss_ratio)} "
            f"to {format_estimate(far.miss_ratio, far.low, far.high, percent)} of page accesses, as predicted"
        )
        return title, lead
    sizes = [format_bytes(point.shared_buffers_bytes) for point in (first, last)]
    return f"Predicted misses from {' to '.join(sizes)}", lead


def _section(result: PredictResult) -> Section:
    observed = result.observed
    today = observed.shared_buffers_bytes or None
    per_second = observed.accesses / observed.seconds if observed.seconds > 0 else 0.0
    facts = []
    if today:
        facts.append(Fact(format_bytes(today), "shared_buffers when observed", Measured))
        facts.append(Fact(percent(observed.miss_ratio), "misses when observed", Measured))
    facts.append(Fact(count(observed.accesses), "page accesses observed", Measured))
    if per_second:
        facts.append(Fact(f"{count(per_second)}/s", "page accesses", Measured))
    if result.no_eviction is not None:
        facts.append(Fact(format_bytes(result.no_eviction.used_bytes), "in use at most", Measured))
        if result.no_eviction.removable_bytes:
            removable = format_bytes(result.no_eviction.removable_bytes)
            facts.append(Fact(removable, "can be taken away without a further miss", Predicted))
    tips = {
        point.shared_buffers_bytes: f"{format_bytes(point.shared_buffers_bytes)}\n"
        f"predicted {percent(point.miss_ratio)}\n90% interval {_Row('', point).interval()}"
        for point in result.points
    }
    title = "Predicted miss ratio at every size of shared_buffers"
    figure = (
        curve_svg(predict_series(result), today_bytes=today, title=title, tips=tips) if result.points else ""
    )
    return Section(
        title="Miss ratio by shared_buffers",
        ident="curve",
        lead=" ".join(_scans(result)),
        facts=facts,
        figures=[(figure, _CAPTION)] if figure else [],
        table=_table(result),
    )


def _rows(result: PredictResult) -> Rows:
    behind, changed = memory_values(result.memory), what_if_values(result)
    return Rows(
        (
            "shared_buffers_bytes",
            "predicted_miss_ratio",
            "predicted_low",
            "predicted_high",
            *memory_columns(result.memory),
            *what_if_columns(result),
        ),
        [
            (
                p.shared_buffers_bytes,
                p.miss_ratio,
                p.low,
                p.high,
                *behind(p.shared_buffers_bytes),
                *changed(p.shared_buffers_bytes),
            )
            for p in result.points
        ],
    )


VIEW = View(PredictResult, text=predict_text, page=predict_page, rows=_rows)
