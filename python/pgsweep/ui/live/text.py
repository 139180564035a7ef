"""The page of `pgsweep top`: the same lines for the live screen and for `--once`.

Nothing is said by colour alone. Names of other people's relations are shown escaped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from pgsweep.commands import on_server
from pgsweep.plain import shown
from pgsweep.records.rollup import FOLDED
from pgsweep.records.top import TopBackends, TopRates, TopRelation, TopSample, TopView
from pgsweep.ui.kit.line import Line, Span, cut, padded, painted, shortened_apart, spaced
from pgsweep.ui.kit.names import relation_name
from pgsweep.ui.kit.numbers import (
    byte_rate,
    count,
    counted,
    format_bytes,
    format_seconds,
    known_bytes,
    rough_percent,
    rough_seconds,
    share,
)
from pgsweep.ui.kit.subject import subject_line
from pgsweep.ui.kit.table import text_width
from pgsweep.ui.kit.terminal import Paint, Terminal
from pgsweep.ui.views.cache import heat
from pgsweep.units import format_percent, format_plain

KEYS = {
    "pool": ("p", "Pool"),
    "change": ("c", "Change"),
    "hot": ("u", "Usage 4-5"),
    "dirty": ("d", "Dirty"),
    "page-cache": ("f", "File cache"),
    "twice": ("t", "Twice"),
    "name": ("n", "Name"),
}
"""The key and the word of each order that relations can have."""

_LABEL = 10
_BARS = " ▁▂▃▄▅▆▇█"
_ASCII_BARS = " .:-=+*%#"
_WIDEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Trend:
    """The last values of what is drawn as a small chart, oldest first."""

    reads: Sequence[float] = field(default_factory=tuple)
    evictions: Sequence[float] = field(default_factory=tuple)


def page_head(sample: TopSample, terminal: Terminal, trend: Trend | None = None) -> list[Line]:
    """Return the pool, the page cache, the rates and the backends, one line each or two."""
    trend = trend or Trend()
    lines = [*_pool(sample, terminal), _files(sample, terminal)]
    lines += _rates(sample.rates, sample, terminal, trend)
    lines.append(_backends(sample.backends))
    return [cut(line, terminal) for line in lines]


def _label(text: str) -> Span:
    return (f"{text:<{_LABEL}}", ("bold", "cyan"))


def _value(text: str) -> Span:
    return (text, ("bold",))


def _words(text: str) -> Span:
    return (text, ())


def _pool(sample: TopSample, terminal: Terminal) -> list[Line]:
    pool = sample.pool
    size = max(1, pool.size_bytes)
    words = (
        f" {rough_percent(pool.used_bytes / size)} of {format_bytes(pool.size_bytes)} used, "
        f"dirty {known_bytes(pool.dirty_bytes)}, pinned {known_bytes(pool.pinned_bytes)}"
    )
    room = max(8, min(60, terminal.width - _LABEL - 2 - text_width(words)))
    dirty = round(room * pool.dirty_bytes / size)
    used = max(dirty, round(room * pool.used_bytes / size))
    bar: Line = [
        ("[", ("dim",)),
        (terminal.pick("▓", "d") * dirty, ("yellow",)),
        (terminal.pick("█", "#") * (used - dirty), ("green",)),
        (terminal.pick("░", ".") * (room - used), ("dim",)),
        ("]", ("dim",)),
    ]
    first = [_label("pool"), *bar, _words(words)]
    counts, total = pool.usage_counts, max(1, sum(pool.usage_counts))
    second: Line = [_label("usage")]
    times = 2 if terminal.width >= 90 else 1
    for level, buffers in enumerate(counts):
        mark = _level(buffers / max(1, *counts), terminal)
        colour: Paint = "red" if level >= 4 else "yellow" if level >= 2 else "blue"
        part = f" {format_percent(buffers / total)}"
        second += [(f"{level} ", ("dim",)), (mark * times, (colour,)), _value(f"{part:<{times + 5}}")]
    rates = sample.rates
    if rates is not None and rates.hand_buffers_per_second is not None:
        second.append(_words(f"pass {_pass(pool.size_bytes // sample.block_size_bytes, rates)}"))
    return [first, second]


def _pass(buffers: int, rates: TopRates) -> str:
    speed = rates.hand_buffers_per_second or 0.0
    if speed <= 0:
        return "–"
    return rough_seconds(buffers / speed)


def _files(sample: TopSample, terminal: Terminal) -> Line:
    cache = sample.page_cache
    if cache is None:
        seen = any(entry.what == "page cache" for entry in sample.missing)
        return [
            _label("files"),
            _words("page cache not seen from here" if seen else "looking at the page cache"),
        ]
    pool = max(1, sample.pool.used_bytes)
    twice = rough_percent(min(1.0, cache.both_bytes / pool))
    wide = terminal.width >= 90
    return [
        _label("files"),
        _value(format_bytes(cache.size_bytes)),
        _words(", page cache "),
        _value(known_bytes(cache.page_cache_bytes)),
        _words(", held twice " if wide else ", twice "),
        _value(f"{known_bytes(cache.both_bytes)} ({twice} of pool)"),
        _words(", neither "),
        _value(known_bytes(cache.neither_bytes)),
        (f", {rough_seconds(cache.age_seconds)} ago" if wide else "", ("dim",)),
    ]


def _rates(rates: TopRates | None, sample: TopSample, terminal: Terminal, trend: Trend) -> list[Line]:
    if rates is None:
        return [
            [_label("hits"), _words("rates come with the second reading")],
            [_label("evicted"), _words("–")],
        ]
    width = max(8, min(40, terminal.width - 62))
    ratio = "–" if rates.hit_ratio is None else f"{format_percent(rates.hit_ratio, 2)}"
    reads, hits = rates.reads_per_second, rates.hits_per_second
    first: Line
    if reads is None or hits is None:
        first = [_label("hits"), _words("not counted: track_counts is off")]
    else:
        first = [
            _label("hits"),
            _value(f"{ratio:<9}"),
            _words(f"{'of ' + count(round(hits + reads)) + '/s':<15}"),
            _words("reads "),
            _value(f"{count(round(reads)) + '/s':<10}"),
            _words(f"{byte_rate(reads * sample.block_size_bytes):<10} "),
            (_chart(trend.reads, width, terminal), ("cyan",)),
        ]
    evicted = "–" if rates.evictions_per_second is None else f"{count(round(rates.evictions_per_second))}/s"
    second: Line = [
        _label("evicted"),
        _value(f"{evicted:<9}"),
        _words("allocated "),
        _value(f"{count(round(rates.allocations_per_second)) + '/s':<10}"),
        _words("transactions "),
        _value(f"{count(round(rates.transactions_per_second)) + '/s':<9}"),
        (f" over {rates.seconds:.1f} s", ("dim",)),
    ]
    if uncounted := [one for one in sample.backends.uncounted if one.idle_since is None]:
        # The server counts what a transaction did when it is over.
        second.append((f", without {len(uncounted)} still running", ("yellow",)))
    return [first, second]


def _backends(backends: TopBackends) -> Line:
    line: Line = [_label("backends"), _value(count(backends.total))]
    if backends.max_connections:
        line.append(_words(f" of {count(backends.max_connections)}"))
    line += [
        _words(": "),
        _value(f"{count(backends.active)} active"),
        _words(f", {count(backends.idle)} idle"),
    ]
    if backends.idle_in_transaction:
        line += [_words(", "), (f"{count(backends.idle_in_transaction)} idle in transaction", ("yellow",))]
    if backends.hidden:
        line.append((f", {backends.hidden} not visible", ("dim",)))
    if backends.waits:
        waits = ", ".join(f"{shown(wait.event)} {wait.backends}" for wait in backends.waits)
        line += [("  ", ()), (waits, ("yellow",))]
    return line


@dataclass(frozen=True)
class _Column:
    """One column of the table; those of the highest rank give way first on a narrow screen."""

    header: str
    rank: int
    cells: list[str]
    sort: str | None = None
    left: bool = False


def relation_table(
    sample: TopSample,
    terminal: Terminal,
    *,
    sort: str,
    reverse: bool,
    limited: bool = True,
    wanted: str = "",
) -> list[Line]:
    """Return the header and one line a relation.

    Args:
        sample: the relations in their order.
        terminal: how wide.
        sort: whose header is marked.
        reverse: the order is the other way round.
        limited: cut it to the width of the terminal; else everything is shown.
        wanted: the filter, which is named where it leaves nothing.
    """
    columns = _columns(sample, terminal)
    arrow = terminal.pick("▲", "^") if reverse != (sort == "name") else terminal.pick("▼", "v")
    headers = [c.header + (arrow if c.sort == sort else "") for c in columns]
    widths = [
        max(
            text_width(header),
            *(text_width(cell) for cell in c.cells),
            c.sort is not None and len(c.header) + 1,
        )
        if c.cells
        else len(c.header) + 1
        for header, c in zip(headers, columns, strict=True)
    ]
    keep = list(range(len(columns)))
    if limited:
        least = 26
        while len(keep) > 3 and least + sum(widths[i] + 1 for i in keep[1:]) > terminal.width:
            keep.remove(max(keep[1:], key=lambda i: columns[i].rank if columns[i].sort != sort else 0))
        widths[0] = max(8, terminal.width - sum(widths[i] + 1 for i in keep[1:]))
        if terminal.width > 100:
            # On a wide screen the numbers stay near the names.
            longest = max([text_width(cell) for cell in columns[0].cells], default=0)
            widths[0] = min(widths[0], max(longest, _WIDEST_NAME))
    if limited:
        names = shortened_apart(columns[0].cells, widths[0], terminal)
        columns[0] = dataclasses.replace(columns[0], cells=names)
    lines: list[Line] = [[(padded(headers[i], widths[i], left=columns[i].left), ("bold",)) for i in keep]]
    for index in range(len(sample.relations)):
        line: Line = []
        for i in keep:
            column = columns[i]
            cell = column.cells[index]
            line.append((padded(cell, widths[i], left=column.left), _paint(column, cell, sort)))
        lines.append(line)
    if wanted and not sample.relations_found:
        lines.append([_words(f"no relation in either cache has `{shown(wanted)}` in its name")])
    cells = [spaced(line) for line in lines]
    return [cut(line, terminal) for line in cells] if limited else cells


def _paint(column: _Column, cell: str, sort: str) -> tuple[Paint, ...]:
    if cell in ("–", "0", "·"):
        return ("dim",)
    if column.sort == "change":
        return ("green",) if cell.startswith("+") else ("red",)
    if column.sort == sort:
        return ("bold",)
    return ()


def _columns(sample: TopSample, terminal: Terminal) -> list[_Column]:
    rows = sample.relations
    pool = max(1, sample.pool.size_bytes)

    def cells(value_of: object) -> list[str]:
        assert callable(value_of)
        return [str(value_of(row)) for row in rows]

    columns = [
        _Column("relation", 0, cells(lambda r: _name(r, sample.database)), "name", left=True),
        _Column("kind", 9, cells(lambda r: "" if r.kind == FOLDED else r.kind), left=True),
        _Column("size", 7, cells(lambda r: known_bytes(r.size_bytes))),
        _Column("in pool", 0, cells(lambda r: known_bytes(r.shared_buffers_bytes)), "pool"),
        _Column("%pool", 4, cells(lambda r: share(r.shared_buffers_bytes, pool))),
        _Column("change/s", 1, cells(_change), "change"),
        _Column("4-5", 2, cells(_hot_share), "hot"),
        _Column(
            "012345", 5, cells(lambda r: heat(r.usage_counts, terminal) or terminal.pick("·", ".")), left=True
        ),
        _Column("dirty", 3, cells(lambda r: known_bytes(r.dirty_bytes)), "dirty"),
    ]
    if sample.page_cache is not None:
        columns += [
            _Column("files", 6, cells(lambda r: known_bytes(r.page_cache_bytes)), "page-cache"),
            _Column("twice", 6, cells(lambda r: known_bytes(r.both_bytes)), "twice"),
        ]
    return columns


def _name(row: TopRelation, home: str) -> str:
    """Return the name; system catalogs without their schema, which `pg_` says already."""
    if row.schema == "pg_catalog":
        row = msgspec.structs.replace(row, schema="")
    return relation_name(row, home)


def _change(row: TopRelation) -> str:
    value = row.change_bytes_per_second
    if value is None:
        return "–"
    if abs(value) < 0.5:
        return "0"
    return f"{'+' if value > 0 else '-'}{format_bytes(abs(value))}"


def _hot_share(row: TopRelation) -> str:
    total = sum(row.usage_counts)
    return rough_percent(sum(row.usage_counts[4:]) / total) if total else "–"


def _level(ratio: float, terminal: Terminal) -> str:
    bars = _BARS if terminal.unicode else _ASCII_BARS
    return bars[-(-int(ratio * 1000) * 8 // 1000)] if ratio > 0 else terminal.pick("·", ".")


def _chart(values: Sequence[float], width: int, terminal: Terminal) -> str:
    last = list(values)[-width:]
    most = max(last, default=0.0)
    return "".join(_level(value / most if most > 0 else 0.0, terminal) for value in last)


def cost_line(sample: TopSample, asked_seconds: float) -> str:
    """Return what looking costs the server, and why it happens less often than asked for."""
    share = f"{format_percent(sample.backend_share, 1)} of one backend so far"
    took = format_seconds(sample.look_seconds)
    if sample.pool_source == "peek":
        text = f"cost: counters {share}; the pool none (read in {took})"
    else:
        text = f"cost: {share}; a sample by SQL takes {took}"
    if sample.held_back:
        asked = format_plain(asked_seconds)
        text = f"every {sample.interval_seconds:.1f} s, not {asked} s, to stay cheap; {text}"
    return text


def missing_line(sample: TopSample, index: int) -> str:
    """Return one line for one thing that could not be looked at."""
    entry = sample.missing[index]
    text = f"not seen: {shown(entry.what)}: {shown(entry.why)}"
    return text + (f"; {shown(entry.enable)}" if entry.enable else "")


def once_text(sample: TopSample, terminal: Terminal, view: TopView) -> str:
    """Return the page as text, as `--once` prints it; only on a terminal is it cut to its width."""
    head = terminal.wrap(f"{subject_line(sample)}; read by {sample.pool_source}")
    lines: list[Line] = [[_value(line)] for line in head.split("\n")]
    lines += page_head(sample, terminal)
    lines.append([])
    lines += relation_table(
        sample,
        terminal,
        sort=view.sort,
        reverse=view.reverse,
        limited=terminal.interactive,
        wanted=view.filter,
    )
    left = sample.relations_found - len(sample.relations)
    if left:
        all_of_them = on_server("pgsweep cache")
        lines.append([_words(f"... and {counted(left, 'relation')} more; all of them: `{all_of_them}`")])
    lines.append([])
    lines.append([(cost_line(sample, sample.interval_seconds), ("dim",))])
    lines += [[_words(missing_line(sample, index))] for index in range(len(sample.missing))]
    return "".join(painted(line, terminal).rstrip() + "\n" for line in lines)
