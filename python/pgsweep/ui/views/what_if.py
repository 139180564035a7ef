"""The curve with what-ifs beside that of today: a part of a prediction's text, page and rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Final, Literal

from pgsweep.records.prediction import (
    ChangedPrediction,
    CurvePoint,
    DiskPoint,
    PredictResult,
    ThroughputPoint,
    WhatIf,
)
from pgsweep.ui.kit.numbers import count, factor, factors, format_bytes, percent
from pgsweep.ui.kit.section import VERDICTS, Fact, Section
from pgsweep.ui.kit.table import HERE, PREDICTED, Column, Predicted, Table
from pgsweep.ui.kit.terminal import Terminal

_FIELDS: Final = (
    "what_if_miss_ratio",
    "what_if_low",
    "what_if_high",
    "what_if_disk_reads_per_second",
    "what_if_disk_reads_low",
    "what_if_disk_reads_high",
    "what_if_throughput_ratio",
    "what_if_throughput_low",
    "what_if_throughput_high",
)


def what_if_text(result: PredictResult, terminal: Terminal) -> str:
    """Return what is assumed, and both curves side by side."""
    lines = ["What if (assumed):", *terminal.bullets(map(_sentence, result.what_if))]
    changed = result.changed
    if changed is None:
        return "\n".join(lines)
    parts = ["\n".join(lines), _load(result, changed)]
    table = _table(result, changed)
    if table.rows:
        parts.append(table.text(terminal))
    if loop := _loop(changed):
        sizes: list[Column[int]] = [Column("shared_buffers", format_bytes)]
        parts.append(Table([*sizes, *_throughput(changed, "text")], list(loop)).text(terminal))
    width = min(terminal.width, 100)
    parts += ["\n".join(textwrap.wrap(reason, width)) for reason in _reasons(result, changed)]
    return "\n\n".join(parts)


def what_if_section(result: PredictResult) -> Section:
    """Return the same as a section of the page."""
    changed = result.changed
    notes = [_sentence(one) for one in result.what_if]
    if changed is not None:
        title = f"With the what-ifs: {VERDICTS[changed.verdict.level]}"
        notes += [title, *changed.verdict.sentences, *_reasons(result, changed)]
    facts = []
    if changed is not None:
        facts.append(Fact(f"{count(changed.accesses_per_second)}/s", "page accesses, assumed", Predicted))
    return Section(
        title="What if",
        ident="what-if",
        lead="; ".join(one.text for one in result.what_if),
        facts=facts,
        table=None if changed is None else _table(result, changed),
        notes=notes,
    )


def what_if_columns(result: PredictResult) -> tuple[str, ...]:
    """Return the names of the columns that rows of the prediction have besides."""
    return () if result.changed is None else _FIELDS


def what_if_values(result: PredictResult) -> Callable[[int], tuple[object, ...]]:
    """Return what gives the values of these columns by size; empty where nothing is known."""
    changed = result.changed
    if changed is None:
        return lambda _: ()
    points = {point.shared_buffers_bytes: point for point in changed.points}
    disk = {} if changed.memory is None else {p.shared_buffers_bytes: p for p in changed.memory.points}
    loop = _loop(changed)

    def values(size: int) -> tuple[object, ...]:
        point, behind, speed = points.get(size), disk.get(size), loop.get(size)
        none = (None,) * 3
        ratios = none if point is None else (point.miss_ratio, point.low, point.high)
        reads = (
            none
            if behind is None
            else (behind.disk_reads_per_second, behind.disk_reads_low, behind.disk_reads_high)
        )
        return (*ratios, *reads, *(none if speed is None else (speed.ratio, speed.low, speed.high)))

    return values


def _loop(changed: ChangedPrediction) -> dict[int, ThroughputPoint]:
    memory = changed.memory
    points = [] if memory is None or memory.throughput is None else memory.throughput.points
    return {point.shared_buffers_bytes: point for point in points}


def _throughput(changed: ChangedPrediction, only: Literal["text", "page"]) -> list[Column[int]]:
    """Return the throughput by size, of that of today's size, memory and load."""
    loop = _loop(changed)

    def interval(size: int) -> str:
        return factors(loop[size].low, loop[size].high) if size in loop else ""

    return [
        Column(
            "throughput\nof today's",
            lambda size: factor(loop[size].ratio) if size in loop else "",
            group=PREDICTED,
            only=only,
        ),
        Column("90% interval", interval, group=PREDICTED, only=only),
    ]


def _reasons(result: PredictResult, changed: ChangedPrediction) -> list[str]:
    """Return what must be known of the disk reads and the throughput, without what is said of today's."""
    said = [] if result.memory is None else result.memory.reasons
    if changed.memory is None:
        return []
    loop = [] if changed.memory.throughput is None else changed.memory.throughput.reasons
    return list(dict.fromkeys([*(one for one in changed.memory.reasons if one not in said), *loop]))


def _sentence(one: WhatIf) -> str:
    return f"{one.text}: {one.assumption}"


def _load(result: PredictResult, changed: ChangedPrediction) -> str:
    measured, assumed = result.observed.accesses_per_second, changed.accesses_per_second
    return f"Accesses per second: {count(measured)} measured, {count(assumed)} assumed."


def _table(result: PredictResult, changed: ChangedPrediction) -> Table[int]:
    """Return both curves by size, ascending; on a page with the throughput."""
    observed = result.observed
    now = {point.shared_buffers_bytes: point for point in result.points}
    then = {point.shared_buffers_bytes: point for point in changed.points}

    def rate(points: dict[int, CurvePoint], per_second: float) -> Callable[[int], str]:
        return lambda size: count(points[size].miss_ratio * per_second) if size in points else ""

    columns: list[Column[int]] = [
        Column("shared_buffers", format_bytes),
        Column("miss ratio\ntoday", lambda size: _ratio(now.get(size)), group=PREDICTED),
        Column("miss ratio\nwhat if", lambda size: _ratio(then.get(size)), group=PREDICTED),
        Column("90% interval", lambda size: _interval(then.get(size)), group=PREDICTED),
        Column("misses/s\ntoday", rate(now, observed.accesses_per_second), group=PREDICTED),
        Column("misses/s\nwhat if", rate(then, changed.accesses_per_second), group=PREDICTED),
    ]
    if changed.memory is not None:
        before = {} if result.memory is None else {p.shared_buffers_bytes: p for p in result.memory.points}
        after = {p.shared_buffers_bytes: p for p in changed.memory.points}
        columns += [
            Column("disk reads/s\ntoday", lambda size: _reads(before.get(size)), group=PREDICTED),
            Column("disk reads/s\nwhat if", lambda size: _reads(after.get(size)), group=PREDICTED),
            Column("90% interval", lambda size: _bounds(after.get(size)), group=PREDICTED),
        ]
    columns += _throughput(changed, "page") if _loop(changed) else []
    sizes = sorted({*now, *then, *changed.unknown_bytes})
    today = observed.shared_buffers_bytes
    marked = sizes.index(today) if today in sizes else None
    return Table(columns, sizes, marked, [f"{HERE}today" if size == today else "" for size in sizes])


def _ratio(point: CurvePoint | None) -> str:
    return "not known" if point is None else percent(point.miss_ratio)


def _interval(point: CurvePoint | None) -> str:
    return "" if point is None else f"{percent(point.low, sign=False)} to {percent(point.high)}"


def _reads(point: DiskPoint | None) -> str:
    return "" if point is None else count(point.disk_reads_per_second)


def _bounds(point: DiskPoint | None) -> str:
    return "" if point is None else f"{count(point.disk_reads_low)} to {count(point.disk_reads_high)}"
