"""What the page cache makes of the predicted misses: a part of a prediction's text, page and rows."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Final

from pgsweep.records.prediction import (
    CurvePoint,
    DiskPoint,
    MemoryPrediction,
    MemoryUse,
    PredictResult,
    Throughput,
    ThroughputPoint,
    TimedReads,
)
from pgsweep.ui.kit.numbers import (
    NONE,
    count,
    counted,
    factor,
    factors,
    figure,
    format_bytes,
    known_bytes,
    millis,
    percent,
    rough_percent,
)
from pgsweep.ui.kit.section import Fact, Section
from pgsweep.ui.kit.table import HERE, PREDICTED, Column, Measured, Table, predicted
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.served import Loop, Served, served_section
from pgsweep.units import as_setting, format_estimate

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
    "shared_memory_bytes",
    "page_tables_bytes",
    "page_tables_most_bytes",
    "wait_ratio",
    "wait_low",
    "wait_high",
    "saved_seconds_per_gb",
    "saved_seconds_per_gb_low",
    "saved_seconds_per_gb_high",
)
_LOOP_FIELDS: Final = ("throughput_ratio", "throughput_low", "throughput_high")


def memory_text(memory: MemoryPrediction, today: int | None, terminal: Terminal) -> str:
    """Return the budget, the disk reads and what more memory saves, each by size, and what is to be known."""
    points = memory.points
    parts = ["\n".join(textwrap.wrap(_lead(memory), min(terminal.width, 100)))]
    if memory.use is not None:
        parts[0] += "\n" + _parts_text(memory.use)
    if points:
        parts += [_table(memory, today, one).text(terminal) for one in _columns(memory) if one]
    if points and memory.costs is not None:
        parts[-1] += "\n" + "\n".join(textwrap.wrap(_saved_words(memory), min(terminal.width, 100)))
    lines = terminal.bullets(_reasons(memory))
    if lines:
        parts.append("On the page cache:\n" + "\n".join(lines))
    return "\n\n".join(parts)


def memory_line(result: PredictResult, terminal: Terminal) -> str:
    """Return what follows from the page cache for the decision, and in one line what it does today."""
    memory, today = result.memory, result.observed.shared_buffers_bytes
    if memory is None:
        return ""
    decided = memory_headline(result)
    lines = [] if decided is None else textwrap.wrap(f"{decided}.", min(terminal.width, 100))
    now = next((point for point in memory.points if point.shared_buffers_bytes == today), None)
    said = f"Memory to share: {format_bytes(memory.memory_bytes)}"
    if now is not None:
        said = f"Page cache: {format_bytes(now.page_cache_bytes)}"
        if now.page_cache_hit_ratio is not None:
            found = format_estimate(
                now.page_cache_hit_ratio, now.page_cache_hit_low, now.page_cache_hit_high, rough_percent
            )
            said += f", finds {found} of misses"
        said += f"; {_estimated_reads(now)} disk reads/s"
    lines += textwrap.wrap(f"{said}. More: --memory", min(terminal.width, 100))
    return "\n".join(lines)


def _table(memory: MemoryPrediction, today: int | None, columns: list[Column[DiskPoint]]) -> Table[DiskPoint]:
    """Return the columns beside the sizes, with today's marked."""
    here = [point.shared_buffers_bytes == today for point in memory.points]
    size: Column[DiskPoint] = Column("shared_buffers", lambda point: format_bytes(point.shared_buffers_bytes))
    marked = here.index(True) if True in here else None
    remarks = [f"{HERE}today" if one else "" for one in here]
    return Table([size, *columns], memory.points, marked, remarks, by_size=True)


def _columns(memory: MemoryPrediction) -> tuple[list[Column[DiskPoint]], ...]:
    """Return what takes the memory, the disk reads, and what more memory saves, as far as predicted."""
    return _budget_columns(memory.points), _disk_columns(memory.points), _saved_columns(memory)


def _budget_columns(points: list[DiskPoint]) -> list[Column[DiskPoint]]:
    """Return what takes the memory; none for results of earlier versions."""
    if any(point.shared_memory_bytes is None for point in points):
        return []
    return [
        _predicted("shared\nmemory", lambda point: known_bytes(point.shared_memory_bytes), 4),
        _predicted("page tables\nfor it", lambda point: known_bytes(point.page_tables_bytes), 3),
        _predicted("at most, no\nhuge pages", lambda point: known_bytes(point.page_tables_most_bytes), 5),
        _predicted("page cache\nleft", lambda point: format_bytes(point.page_cache_bytes)),
        _predicted("at least", lambda point: format_bytes(point.page_cache_low_bytes), 2),
    ]


def _disk_columns(points: list[DiskPoint]) -> list[Column[DiskPoint]]:
    left = _predicted("page cache\nleft", lambda point: format_bytes(point.page_cache_bytes), 5)
    return [
        *([] if _budget_columns(points) else [left]),
        *predicted("misses found in\nthe page cache", _hits, 3, 6),
        *predicted("disk reads/s\npredicted", _reads, 0, 2),
        *predicted("held\ntwice", _twice, 4, 7),
    ]


def _saved_columns(memory: MemoryPrediction) -> list[Column[DiskPoint]]:
    """Return the waiting, what each added gigabyte saves of it, and the throughput, as far as predicted."""
    loop = _throughput(memory)
    columns: list[Column[DiskPoint]] = []
    if memory.costs is not None:
        columns += predicted("waiting for\nreads, ms/s", _waits, 5, 6)
        columns += predicted("saved, ms/s\nper GB", _saved, 0, 2)
    if loop:
        columns += predicted("throughput\npredicted", lambda point: _ratios(loop, point), 3, 4)
    return columns


def _predicted(header: str, cell: Callable[[DiskPoint], str], rank: int = 0) -> Column[DiskPoint]:
    return Column(header, cell, rank=rank, group=PREDICTED)


def _bounded(value: float | None, low: float | None, high: float | None) -> tuple[str, str]:
    """Return the cells of seconds per second and their interval; empty where they are not predicted."""
    return ("", "") if value is None else (millis(value), f"{millis(low)} to {millis(high)}")


def _waits(point: DiskPoint) -> tuple[str, str]:
    return _bounded(point.wait_ratio, point.wait_low, point.wait_high)


def _saved(point: DiskPoint) -> tuple[str, str]:
    return _bounded(
        point.saved_seconds_per_gb, point.saved_seconds_per_gb_low, point.saved_seconds_per_gb_high
    )


def _saved_words(memory: MemoryPrediction) -> str:
    """Return what is saved, and what reads take; nothing for results of earlier versions."""
    costs = memory.costs
    if costs is None:
        return ""
    copy = f"{figure(costs.copy_seconds * 1e6)} µs"
    others = f"a copy from the page cache {copy} ({costs.copy_kind})"
    if costs.copy_kind == "mean":
        others = f"a miss today {copy} on average (measured)"
    return (
        "Saved: by how many milliseconds per second all sessions together wait less for reads, per gigabyte "
        "up to the next size; below 0 they wait longer. A read from disk takes "
        f"{figure(costs.disk_read_seconds * 1e6)} µs ({costs.disk_read_kind}), {others}."
    )


def _parts(use: MemoryUse) -> list[tuple[str, str]]:
    """Return what the memory was used for when it was recorded: sizes, and of what."""
    tables = "page tables of the server's processes"
    if use.huge_pages:
        tables += ", with huge pages"
    elif use.page_tables_saved_bytes:
        tables += f"; huge pages would save {format_bytes(use.page_tables_saved_bytes)}"
    rest = "other programs and the kernel"
    if use.private_bytes is None:
        rest = "private memory of the server's processes, other programs, the kernel"
    found = [(use.shared_memory_bytes, "shared memory touched"), (use.page_tables_bytes, tables)]
    if use.private_bytes is not None:
        found.append(
            (
                use.private_bytes,
                f"private memory of the server's {counted(use.processes, 'process', 'processes')}",
            )
        )
    found += [(use.rest_bytes, rest), (use.page_cache_bytes, "page cache, and free for it")]
    return [(known_bytes(size), words) for size, words in found]


def _parts_text(use: MemoryUse) -> str:
    parts = _parts(use)
    width = max(len(size) for size, _ in parts)
    head = f"When it was recorded, {format_bytes(use.memory_bytes)} were used for (measured):"
    return "\n".join([head, *(f"  {size:>{width}}  {words}" for size, words in parts)])


def _lead(memory: MemoryPrediction) -> str:
    kind = "assumed" if memory.other_assumed else "measured"
    asked = memory.memory_from == "asked"
    size = as_setting(memory.memory_bytes) if asked else format_bytes(memory.memory_bytes)
    return (
        f"Memory to share: {size} ({_WHERE[memory.memory_from]}). "
        f"{format_bytes(memory.other_bytes)} of it are neither shared memory nor cached files ({kind})."
    )


def _throughput(memory: MemoryPrediction) -> dict[int, ThroughputPoint]:
    """Return the throughput by size; none without a prediction."""
    points = [] if memory.throughput is None else memory.throughput.points
    return {point.shared_buffers_bytes: point for point in points}


def _ratios(loop: dict[int, ThroughputPoint], point: DiskPoint) -> tuple[str, str]:
    """Return the cells of the throughput: of today's, with its interval."""
    found = loop.get(point.shared_buffers_bytes)
    if found is None:
        return "", ""
    return factor(found.ratio), factors(found.low, found.high)


def _reasons(memory: MemoryPrediction) -> list[str]:
    loop = memory.throughput
    return [
        *memory.reasons,
        *_timed_words(memory.timed_reads),
        *([] if loop is None else [*loop.reasons, *_depth_words(loop)]),
    ]


def _timed_words(timed: TimedReads | None) -> list[str]:
    """Return how long single reads took; nothing where they were not timed."""
    if timed is None:
        return []
    shares = (("50%", timed.median_seconds), ("90%", timed.p90_seconds), ("99%", timed.p99_seconds))
    within = ", ".join(f"{share} no longer than {figure(seconds * 1e6)}" for share, seconds in shares)
    return [
        f"sessions waited {figure(timed.mean_seconds * 1e6)} µs for a read on average, from the page cache "
        f"or the disk; {within} (measured, {counted(timed.reads, 'read')} in {figure(timed.seconds)} s)"
    ]


def _depth_words(loop: Throughput) -> list[str]:
    """Return how long reads take by the number of them in flight; nothing where it was not measured."""
    if loop.disk_depth is None or not loop.disk_latencies:
        return []
    latencies = ", ".join(f"{count(one.depth)}: {figure(one.seconds * 1e6)}" for one in loop.disk_latencies)
    limit = loop.disk_most_reads_per_second
    levels = "" if limit is None else f"; the disk serves {count(limit)} reads/s at most"
    return [
        f"{figure(loop.disk_depth)} sessions wait for the disk at once today; besides them a read of 8 kB "
        f"took, in µs by the number of such reads in flight (measured), {latencies}{levels}"
    ]


def memory_headline(result: PredictResult) -> str | None:
    """Return in a sentence which size is better than today's for certain; None where nothing is known."""
    memory, today = result.memory, result.observed.shared_buffers_bytes
    if memory is None:
        return None
    now = next((point for point in memory.points if point.shared_buffers_bytes == today), None)
    if now is None:
        return None
    loop = [] if memory.throughput is None else memory.throughput.by_size()
    if loop:
        best = max(loop, key=lambda point: point.ratio)
        if best.low > 1:
            size = format_bytes(best.shared_buffers_bytes)
            return (
                f"{size} of shared_buffers instead of {format_bytes(today)}: "
                f"{factor(best.ratio, 'times')} the throughput ({factors(best.low, best.high)}), as predicted"
            )
        return _uncertain(result, "throughput")
    least = min(memory.points, key=lambda point: point.disk_reads_per_second)
    if least.disk_reads_high < now.disk_reads_low:
        return (
            f"{format_bytes(least.shared_buffers_bytes)} of shared_buffers instead of {format_bytes(today)}: "
            f"disk reads from {_estimated_reads(now)} to {_estimated_reads(least)} a second, as predicted"
        )
    return _uncertain(result, "disk reads")


def _estimated_reads(point: DiskPoint) -> str:
    return format_estimate(point.disk_reads_per_second, point.disk_reads_low, point.disk_reads_high)


def _uncertain(result: PredictResult, what: str) -> str:
    """Return which size misses least for certain, where nothing behind the pool changes for certain."""
    observed = result.observed
    less = [point for point in result.points if point.high < observed.miss_ratio]
    if not less:
        return f"No certain change in misses or {what} at any size predicted"

    def shown(ratio: float) -> str:
        return rough_percent(ratio).replace(".0%", "%")

    least = shown(min(point.miss_ratio for point in less))
    best = min((p for p in less if shown(p.miss_ratio) == least), key=lambda p: p.shared_buffers_bytes)
    misses = format_estimate(best.miss_ratio, best.low, best.high, shown)
    return (
        f"{format_bytes(best.shared_buffers_bytes)} would miss {misses} instead of "
        f"{shown(observed.miss_ratio)}. No certain change in {what}"
    )


def picture_section(result: PredictResult, memory: MemoryPrediction) -> Section | None:
    """Return what serves the page accesses at each size, and the throughput, as pictures."""
    observed, today = result.observed, result.observed.shared_buffers_bytes
    curve = {point.shared_buffers_bytes: point for point in result.points}
    per_second = observed.accesses_per_second
    points = [point for point in memory.points if point.shared_buffers_bytes in curve]
    served = [_served(curve[point.shared_buffers_bytes], point, per_second) for point in points]
    loop = [Loop(p.shared_buffers_bytes, p.ratio, p.low, p.high) for p in _throughput(memory).values()]
    return served_section(served, loop, {today: "today"}, _lead(memory), measured=observed.miss_ratio)


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
    other = "neither shared memory nor cached files"
    facts = [
        Fact(format_bytes(memory.other_bytes), f"{other}, assumed")
        if memory.other_assumed
        else Fact(format_bytes(memory.other_bytes), other, Measured)
    ]
    if memory.measured_disk_bytes_per_second is not None:
        read = format_bytes(round(memory.measured_disk_bytes_per_second))
        facts.append(Fact(f"{read}/s", "read from disk when observed", Measured))
    if memory.measured_twice_bytes is not None:
        twice = "held twice when the recording ended"
        facts.append(Fact(known_bytes(memory.measured_twice_bytes), twice, Measured))
    _, disk, saved = _columns(memory)
    return Section(
        title="Disk reads by shared_buffers",
        ident="disk",
        lead=_lead(memory),
        facts=facts,
        table=_table(memory, today, [*disk, *saved]),
        notes=[*([_saved_words(memory)] if memory.costs is not None else []), *_reasons(memory)],
    )


def budget_section(memory: MemoryPrediction, today: int | None) -> Section | None:
    """Return what takes the memory at each size; None for results of earlier versions."""
    columns, use = _budget_columns(memory.points), memory.use
    if not columns or use is None:
        return None
    return Section(
        title="Memory by shared_buffers",
        ident="memory",
        lead=(
            f"{format_bytes(use.memory_bytes)} when it was recorded. At each size the page cache gets what "
            f"the others leave of {format_bytes(memory.memory_bytes)}. The least is where every process has "
            "touched all of the shared memory, and cached files of other programs stay."
        ),
        facts=[Fact(size, words, Measured) for size, words in _parts(use)],
        table=_table(memory, today, columns),
    )


def _hits(point: DiskPoint) -> tuple[str, str]:
    if point.page_cache_hit_ratio is None:
        return NONE, ""
    low, high = percent(point.page_cache_hit_low, sign=False), percent(point.page_cache_hit_high)
    return percent(point.page_cache_hit_ratio), f"{low} to {high}"


def _reads(point: DiskPoint) -> tuple[str, str]:
    interval = f"{count(point.disk_reads_low)} to {count(point.disk_reads_high)}"
    return count(point.disk_reads_per_second), interval


def _twice(point: DiskPoint) -> tuple[str, str]:
    interval = f"{known_bytes(point.held_twice_low_bytes)} to {known_bytes(point.held_twice_high_bytes)}"
    return known_bytes(point.held_twice_bytes), interval


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
