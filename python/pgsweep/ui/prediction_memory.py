"""What the page cache makes of the predicted misses: a part of a prediction's text, page and rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Final

from pgsweep.records.prediction import (
    CurvePoint,
    DiskPoint,
    MemoryPrediction,
    PredictResult,
    ThroughputPoint,
)
from pgsweep.ui.numbers import count, format_bytes, known_bytes, percent
from pgsweep.ui.section import Cell, Fact, Group, Measured, Predicted, Section
from pgsweep.ui.served import (
    CAPTION,
    THROUGHPUT_CAPTION,
    Loop,
    Served,
    served_svg,
    throughput_svg,
)
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal

_WHERE: Final = {"host": "the host's memory", "cgroup": "the memory cgroup's limit", "asked": "asked for"}
_FIELDS: Final = (
    "page_cache_bytes",
    "page_cache_hit_ratio",
    "page_cache_hit_low",
    "page_cache_hit_high",
    "disk_reads_per_second",
    "disk_reads_low",
    "disk_reads_high",
    "disk_bytes_per_second",
    "disk_bytes_low",
    "disk_bytes_high",
    "held_twice_bytes",
    "held_twice_low_bytes",
    "held_twice_high_bytes",
)
_LOOP_FIELDS: Final = ("throughput_ratio", "throughput_low", "throughput_high")


def memory_text(memory: MemoryPrediction, today: int | None, terminal: Terminal) -> str:
    """Return the table of disk reads by size, and what is to be known of it."""
    columns = [
        Column("shared_buffers"),
        Column("page cache\nleft"),
        Column("misses found\nthere"),
        Column("disk reads/s\npredicted"),
        Column("90% interval"),
        Column("held\ntwice"),
    ]
    loop = _throughput(memory)
    if loop:
        columns += [Column("throughput\npredicted"), Column("90% interval")]
    columns.append(Column("", left=True))
    rows, marked = [], None
    for index, point in enumerate(memory.points):
        here = point.shared_buffers_bytes == today
        marked = index if here else marked
        rows.append(
            [
                format_bytes(point.shared_buffers_bytes),
                format_bytes(point.page_cache_bytes),
                percent(point.page_cache_hit_ratio),
                count(point.disk_reads_per_second),
                f"{count(point.disk_reads_low)} to {count(point.disk_reads_high)}",
                known_bytes(point.held_twice_bytes),
                *_ratios(loop, point),
                terminal.pick("◀", "<") + " today" if here else "",
            ]
        )
    parts = [_lead(memory)]
    if rows:
        parts.append(table(columns, rows, terminal, marked=marked))
    lines = []
    for reason in _reasons(memory):
        lines += textwrap.wrap(
            reason, min(terminal.width, 100), initial_indent="  - ", subsequent_indent="    "
        )
    if lines:
        parts.append("On the page cache:\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _lead(memory: MemoryPrediction) -> str:
    return (
        f"Memory to share: {format_bytes(memory.memory_bytes)} ({_WHERE[memory.memory_from]}), of which "
        f"{format_bytes(memory.other_bytes)} are taken by other than shared memory and cached files "
        "(measured)."
    )


def _throughput(memory: MemoryPrediction) -> dict[int, ThroughputPoint]:
    """Return the throughput by size; none without a prediction."""
    points = [] if memory.throughput is None else memory.throughput.points
    return {point.shared_buffers_bytes: point for point in points}


def _ratios(loop: dict[int, ThroughputPoint], point: DiskPoint) -> list[str]:
    """Return the cells of the throughput: of today's, with its interval."""
    if not loop:
        return []
    found = loop.get(point.shared_buffers_bytes)
    if found is None:
        return ["", ""]
    return [f"{found.ratio:.2f} x", f"{found.low:.2f} to {found.high:.2f}"]


def _reasons(memory: MemoryPrediction) -> list[str]:
    return [*memory.reasons, *([] if memory.throughput is None else memory.throughput.reasons)]


def memory_headline(result: PredictResult) -> str | None:
    """Return in a sentence which size is better than today's for certain; None where nothing is known."""
    memory, today = result.memory, result.observed.shared_buffers_bytes
    if memory is None:
        return None
    now = next((point for point in memory.points if point.shared_buffers_bytes == today), None)
    if now is None:
        return None
    loop = _throughput(memory)
    if loop:
        best = max(loop.values(), key=lambda point: point.ratio)
        if best.low > 1:
            size = format_bytes(best.shared_buffers_bytes)
            return (
                f"{size} of shared_buffers instead of {format_bytes(today)}: "
                f"{best.ratio:.2f} times the throughput ({best.low:.2f} to {best.high:.2f}), as predicted"
            )
        return f"No size predicted is certain to give more throughput than today's {format_bytes(today)}"
    least = min(memory.points, key=lambda point: point.disk_reads_per_second)
    if least.disk_reads_high < now.disk_reads_low:
        return (
            f"{format_bytes(least.shared_buffers_bytes)} of shared_buffers instead of {format_bytes(today)}: "
            f"disk reads from {count(now.disk_reads_per_second)} to {count(least.disk_reads_per_second)} a "
            f"second ({count(least.disk_reads_low)} to {count(least.disk_reads_high)}), as predicted"
        )
    return f"No size predicted is certain to read less from disk than today's {format_bytes(today)}"


def picture_section(result: PredictResult, memory: MemoryPrediction) -> Section | None:
    """Return what serves the page accesses at each size, and the throughput, as pictures."""
    observed, today = result.observed, result.observed.shared_buffers_bytes
    curve = {point.shared_buffers_bytes: point for point in result.points}
    per_second = observed.accesses / max(observed.seconds, 1e-9)
    points = [point for point in memory.points if point.shared_buffers_bytes in curve]
    served = [_served(curve[point.shared_buffers_bytes], point, per_second) for point in points]
    loop = [Loop(p.shared_buffers_bytes, p.ratio, p.low, p.high) for p in _throughput(memory).values()]
    marks = {today: "today"} if any(one.size_bytes == today for one in served) else {}
    measured = dict.fromkeys(marks, observed.miss_ratio)
    title = "What serves the page accesses at each size"
    figures = [
        (served_svg(served, measured=measured, marks=marks, title=title), CAPTION),
        (throughput_svg(loop, marks=marks, title="Throughput at each size"), THROUGHPUT_CAPTION),
    ]
    figures = [figure for figure in figures if figure[0]]
    if not figures:
        return None
    return Section("What serves the page accesses", "served", _lead(memory), [], figures, [], [], [])


def _served(point: CurvePoint, disk: DiskPoint, per_second: float) -> Served:
    return Served(
        size_bytes=point.shared_buffers_bytes,
        misses=point.miss_ratio,
        disk=disk.disk_reads_per_second / max(per_second, 1e-9),
        low=disk.disk_reads_low / max(per_second, 1e-9),
        high=disk.disk_reads_high / max(per_second, 1e-9),
    )


def memory_section(memory: MemoryPrediction, today: int | None) -> Section:
    """Return the same as a section of the page."""
    facts = [
        Fact(format_bytes(memory.other_bytes), "taken by other than shared memory and cached files", Measured)
    ]
    if memory.measured_disk_bytes_per_second is not None:
        read = format_bytes(round(memory.measured_disk_bytes_per_second))
        facts.append(Fact(f"{read}/s", "read from disk when observed", Measured))
    loop = _throughput(memory)
    rows, marked = [], None
    for index, point in enumerate(memory.points):
        here = point.shared_buffers_bytes == today
        marked = index if here else marked
        rows.append(
            [
                Cell(format_bytes(point.shared_buffers_bytes), "observed here" if here else ""),
                Cell(format_bytes(point.page_cache_bytes)),
                Cell(percent(point.page_cache_hit_ratio, sign=False), _hits(point)),
                Cell(count(point.disk_reads_per_second)),
                Cell(f"{count(point.disk_reads_low)} to {count(point.disk_reads_high)}"),
                Cell(known_bytes(point.held_twice_bytes), _twice(point)),
                *map(Cell, _ratios(loop, point)),
            ]
        )
    return Section(
        title="Disk reads by shared_buffers",
        ident="disk",
        lead=_lead(memory),
        facts=facts,
        figures=[],
        groups=[Group(""), Group("predicted", 7 if loop else 5, Predicted)],
        head=[
            "shared_buffers",
            "page cache left",
            "misses found there, %",
            "disk reads per second",
            "90% interval",
            "held twice",
            *(["throughput against today", "90% interval"] if loop else []),
        ],
        rows=rows,
        marked=marked,
        notes=_reasons(memory),
    )


def _hits(point: DiskPoint) -> str:
    return f"{percent(point.page_cache_hit_low, sign=False)} to {percent(point.page_cache_hit_high)}"


def _twice(point: DiskPoint) -> str:
    return f"{known_bytes(point.held_twice_low_bytes)} to {known_bytes(point.held_twice_high_bytes)}"


def memory_columns(memory: MemoryPrediction | None) -> tuple[str, ...]:
    """Return the names of the columns that rows of the prediction have besides."""
    return () if memory is None else tuple(f"predicted_{name}" for name in (*_FIELDS, *_LOOP_FIELDS))


def memory_values(memory: MemoryPrediction | None) -> Callable[[int], tuple[object, ...]]:
    """Return what gives the values of these columns by size; empty where the size leaves no page cache."""
    if memory is None:
        return lambda _: ()
    points = {point.shared_buffers_bytes: point for point in memory.points}
    loop = _throughput(memory)
    none: tuple[object, ...] = (None,) * (len(_FIELDS) + len(_LOOP_FIELDS))

    def values(size: int) -> tuple[object, ...]:
        point = points.get(size)
        if point is None:
            return none
        at = loop.get(size)
        ratios = (None,) * 3 if at is None else (at.ratio, at.low, at.high)
        return (*(getattr(point, name) for name in _FIELDS), *ratios)

    return values
