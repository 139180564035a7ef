"""The curve with what-ifs beside that of today: a part of a prediction's text, page and rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Final

from pgsweep.records.prediction import (
    ChangedPrediction,
    CurvePoint,
    DiskPoint,
    PredictResult,
    ThroughputPoint,
    WhatIf,
)
from pgsweep.ui.numbers import count, factor, factors, format_bytes, percent
from pgsweep.ui.section import VERDICTS, Cell, Fact, Group, Predicted, Section
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal

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
    lines = ["What if (assumed):"]
    for one in result.what_if:
        lines += textwrap.wrap(
            _sentence(one), min(terminal.width, 100), initial_indent="  - ", subsequent_indent="    "
        )
    changed = result.changed
    if changed is None:
        return "\n".join(lines)
    columns = [
        Column("shared_buffers"),
        Column("miss ratio\ntoday"),
        Column("miss ratio\nwhat if"),
        Column("90% interval"),
        Column("misses/s\ntoday"),
        Column("misses/s\nwhat if"),
    ]
    disk = _disk(result)
    if disk:
        columns += [Column("disk reads/s\ntoday"), Column("disk reads/s\nwhat if"), Column("90% interval")]
    columns.append(Column("", left=True))
    today = result.observed.shared_buffers_bytes
    rows, marked = [], None
    for index, (size, cells) in enumerate(_cells(result, changed)):
        here = size == today
        marked = index if here else marked
        rows.append([*cells, terminal.pick("◀", "<") + " today" if here else ""])
    parts = ["\n".join(lines), _load(result, changed)]
    if rows:
        parts.append(table(columns, rows, terminal, marked=marked))
    loop = [[format_bytes(size), *cells] for size, cells in _throughput(changed)]
    if loop:
        heads = [Column("shared_buffers"), Column("throughput\nof today's"), Column("90% interval")]
        parts.append(table(heads, loop, terminal))
    width = min(terminal.width, 100)
    parts += ["\n".join(textwrap.wrap(reason, width)) for reason in _reasons(result, changed)]
    return "\n\n".join(parts)


def what_if_verdict_title(changed: ChangedPrediction) -> str:
    """Return the verdict of the changed curve, in words."""
    return f"With the what-ifs: {VERDICTS[changed.verdict.level]}"


def what_if_section(result: PredictResult) -> Section:
    """Return the same as a section of the page."""
    changed = result.changed
    disk = _disk(result)
    head = ["shared_buffers", "miss ratio today, %", "with what-ifs, %", "90% interval, %"]
    head += ["misses per second today", "with what-ifs"]
    head += ["disk reads per second today", "with what-ifs", "90% interval"] if disk else []
    cells = [] if changed is None else _cells(result, changed)
    loop = {} if changed is None else dict(_throughput(changed))
    if loop:
        head += ["throughput with what-ifs, of today's", "90% interval"]
        cells = [(size, [*row, *loop.get(size, ["", ""])]) for size, row in cells]
    today = result.observed.shared_buffers_bytes
    places = [index for index, (size, _) in enumerate(cells) if size == today]
    notes = [_sentence(one) for one in result.what_if]
    if changed is not None:
        notes += [what_if_verdict_title(changed), *changed.verdict.sentences, *_reasons(result, changed)]
    facts = []
    if changed is not None:
        facts.append(Fact(f"{count(changed.accesses_per_second)}/s", "page accesses, assumed", Predicted))
    return Section(
        title="What if",
        ident="what-if",
        lead="; ".join(one.text for one in result.what_if),
        facts=facts,
        figures=[],
        groups=[Group(""), Group("predicted", len(head) - 1, Predicted)],
        head=head,
        rows=[[Cell(text) for text in row] for _, row in cells],
        marked=places[0] if places else None,
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
    loop = {point.shared_buffers_bytes: point for point in _loop(changed)}

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


def _loop(changed: ChangedPrediction) -> list[ThroughputPoint]:
    memory = changed.memory
    return [] if memory is None or memory.throughput is None else memory.throughput.points


def _throughput(changed: ChangedPrediction) -> list[tuple[int, list[str]]]:
    """Return the cells of the throughput by size, of that of today's size, memory and load."""
    return [
        (point.shared_buffers_bytes, [factor(point.ratio), factors(point.low, point.high)])
        for point in _loop(changed)
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
    observed = result.observed
    now = observed.accesses / observed.seconds if observed.seconds > 0 else 0.0
    return f"Accesses per second: {count(now)} measured, {count(changed.accesses_per_second)} assumed."


def _disk(result: PredictResult) -> bool:
    return result.changed is not None and result.changed.memory is not None


def _cells(result: PredictResult, changed: ChangedPrediction) -> list[tuple[int, list[str]]]:
    """Return the cells of each size, ascending."""
    observed = result.observed
    per_second = observed.accesses / observed.seconds if observed.seconds > 0 else 0.0
    now = {point.shared_buffers_bytes: point for point in result.points}
    then = {point.shared_buffers_bytes: point for point in changed.points}
    behind_now = {} if result.memory is None else {p.shared_buffers_bytes: p for p in result.memory.points}
    behind = {} if changed.memory is None else {p.shared_buffers_bytes: p for p in changed.memory.points}
    found = []
    for size in sorted({*now, *then, *changed.unknown_bytes}):
        before, after = now.get(size), then.get(size)
        cells = [format_bytes(size), _ratio(before), _ratio(after), _interval(after)]
        cells.append("" if before is None else count(before.miss_ratio * per_second))
        cells.append("" if after is None else count(after.miss_ratio * changed.accesses_per_second))
        if _disk(result):
            cells += [_reads(behind_now.get(size)), _reads(behind.get(size)), _bounds(behind.get(size))]
        found.append((size, cells))
    return found


def _ratio(point: CurvePoint | None) -> str:
    return "not known" if point is None else percent(point.miss_ratio)


def _interval(point: CurvePoint | None) -> str:
    return "" if point is None else f"{percent(point.low, sign=False)} to {percent(point.high)}"


def _reads(point: DiskPoint | None) -> str:
    return "" if point is None else count(point.disk_reads_per_second)


def _bounds(point: DiskPoint | None) -> str:
    return "" if point is None else f"{count(point.disk_reads_low)} to {count(point.disk_reads_high)}"
