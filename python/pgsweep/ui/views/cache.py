"""What lies in which cache: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from pgsweep.plain import shown
from pgsweep.records.cache import CacheRelation, CacheResult, PoolState
from pgsweep.records.rollup import FOLDED, fold_catalogs, largest
from pgsweep.ui.kit.line import shortened_apart
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.names import relation_name
from pgsweep.ui.kit.numbers import count, counted, format_bytes, format_seconds, known_bytes, percent, share
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Column, Group, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View
from pgsweep.ui.views.cache_map import WORDS, legend, map_section, map_text

_BARS = 25
_PAGE = Terminal()
_HEAT = " ▁▂▃▄▅▆▇█"
_ROWS_SHOWN = 20


def cache_text(result: CacheResult, terminal: Terminal) -> str:
    """Return the map where one was asked for, pool, table, and what could not be looked at."""
    every = fold_catalogs(result.relations, result.by)
    rows = list(every) if result.top is not None else largest(every, result.by, _ROWS_SHOWN)
    hidden = max(0, (result.relations_found or len(every)) - len(rows))
    parts = [
        terminal.wrap(_head(result)),
        # What was asked for comes first.
        *([] if result.map is None else [map_text(result.map, terminal)]),
        pool_text(result.pool, terminal),
        _table(rows, result, terminal).text(terminal),
    ]
    if hidden:
        parts.append(f"... and {counted(hidden, 'row')} more; all of them: --all, --json or --csv")
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def _head(result: CacheResult) -> str:
    how = {"peek": "read in the server's memory", "sql": "from pg_buffercache"}.get(
        result.pool_source, shown(result.pool_source)
    )
    text = f"Measured: buffer pool {how}"
    if result.page_cache_method is not None:
        text += f", page cache by {result.page_cache_method}"
    return f"{text}; took {format_seconds(result.seconds)}."


def pool_text(pool: PoolState, terminal: Terminal) -> str:
    """Return the pool as a whole: its use, and the distribution of usage_count."""
    facts = [
        f"shared_buffers {format_bytes(pool.size_bytes)}",
        f"used {known_bytes(pool.used_bytes)}",
        f"unused {known_bytes(pool.unused_bytes)}",
        f"dirty {known_bytes(pool.dirty_bytes)}",
        f"pinned {known_bytes(pool.pinned_bytes)}",
    ]
    used = sum(pool.usage_counts)
    lines = [terminal.wrap(": ".join([facts[0], ", ".join(facts[1:])]))]
    if used:
        most = max(pool.usage_counts)
        for level, buffers in enumerate(pool.usage_counts):
            bar = terminal.pick("█", "#") * round(30 * buffers / most)
            name = "usage_count" if level == 0 else ""
            line = f"{name:<11} {level}  {count(buffers):>11} buffers {percent(buffers / used):>8}  {bar}"
            lines.append(line.rstrip())
    return "\n".join(lines)


def heat(usage_counts: Sequence[int], terminal: Terminal) -> str:
    """Return how a relation's buffers spread over usage_count 0 to 5, one character each.

    Where Unicode cannot be shown: digits, the tenths of the relation's buffers.
    """
    total, most = sum(usage_counts), max(usage_counts, default=0)
    if total == 0:
        return ""
    if terminal.unicode:
        return "".join(_HEAT[-(-8 * n // most)] if n else terminal.pick("·", ".") for n in usage_counts)
    return "".join(str(min(9, 10 * n // total)) if n else "." for n in usage_counts)


def _table(rows: Sequence[CacheRelation], result: CacheResult, terminal: Terminal) -> Table[CacheRelation]:
    """Return the relations and, as the last, the total."""
    pool_bytes = result.pool.size_bytes
    every = [*rows, result.total]
    names = [relation_name(row, result.database) for row in every]
    if terminal.interactive:
        names = shortened_apart(names, max(20, terminal.width // 3), terminal)
    name_of = {id(row): name for row, name in zip(every, names, strict=True)}
    pool, files = Group("buffer pool", Measured), Group("page cache", Measured)

    def of_size(part: Callable[[CacheRelation], int | None]) -> Callable[[CacheRelation], str]:
        return lambda row: _share(part(row), row.size_bytes)

    columns: list[Column[CacheRelation]] = [
        Column(result.by, lambda row: name_of[id(row)], left=True),
        Column("kind", _kind, left=True, rank=9),
        Column("size", lambda row: known_bytes(row.size_bytes), rank=2),
        Column("in shared\nbuffers", lambda row: known_bytes(row.shared_buffers_bytes), group=pool),
        Column("% of\npool", lambda row: _share(row.shared_buffers_bytes, pool_bytes), rank=5, group=pool),
        Column("% of\nsize", of_size(lambda row: row.shared_buffers_bytes), rank=7, group=pool),
    ]
    if result.page_cache_method is not None:
        columns += [
            Column("in page\ncache", lambda row: known_bytes(row.page_cache_bytes), rank=1, group=files),
            Column("% of\nsize", of_size(lambda row: row.page_cache_bytes), rank=8, group=files),
            Column("held\ntwice", lambda row: known_bytes(row.both_bytes), rank=3, group=files),
            Column("in\nneither", lambda row: known_bytes(row.neither_bytes), rank=2, group=files),
        ]
    columns += [
        Column("heat\n012345", lambda row: heat(row.usage_counts, terminal), left=True, rank=4),
        Column("dirty", lambda row: known_bytes(row.dirty_bytes), rank=6),
        Column("pinned", lambda row: known_bytes(row.pinned_bytes), rank=10),
    ]
    return Table(columns, every, marked=len(rows))


def _kind(row: CacheRelation) -> str:
    return "" if row.kind in ("total", FOLDED) else row.kind


def cache_page(result: CacheResult) -> Page:
    """Return the map where one was asked for, the pool, and the relations."""
    total = result.total
    title = f"{format_bytes(result.pool.used_bytes)} of {format_bytes(result.pool.size_bytes)} in use"
    title = f"shared_buffers: {title}"
    if total.page_cache_bytes is not None and total.both_bytes is not None:
        title += f"; {format_bytes(total.page_cache_bytes)} in the page cache"
        title += f", {format_bytes(total.both_bytes)} held twice"
    sections = [] if result.map is None else [map_section(result.map)]
    sections += [_pool_section(result.pool), _relations_section(result)]
    return Page(title, f"Measured in {format_seconds(result.seconds)}.", sections)


def _pool_section(pool: PoolState) -> Section:
    facts = [
        Fact(known_bytes(pool.size_bytes), "shared_buffers", Measured),
        Fact(known_bytes(pool.used_bytes), "in use", Measured),
        Fact(known_bytes(pool.dirty_bytes), "dirty", Measured),
        Fact(known_bytes(pool.pinned_bytes), "pinned", Measured),
    ]
    used = sum(pool.usage_counts) or 1
    columns: list[Column[tuple[int, int]]] = [
        Column("usage_count", lambda row: str(row[0])),
        Column("buffers", lambda row: count(row[1])),
        Column("% of those used", lambda row: percent(row[1] / used, sign=False)),
    ]
    table = Table(columns, list(enumerate(pool.usage_counts)))
    return Section("The buffer pool", "pool", facts=facts, table=table)


def _relations_section(result: CacheResult) -> Section:
    shown_rows = fold_catalogs(result.relations, result.by)
    figures = []
    if result.page_cache_method is not None:
        caption = (
            f"The {min(_BARS, len(shown_rows))} rows with most in the pool. Length: size. "
            "A block counts as held twice only when all of it is in the page cache. Heat: how the buffers "
            "spread over usage_count 0 to 5."
        )
        figures = [(_bars_svg(shown_rows[:_BARS], result.database), caption)]
    notes = [
        f"Not seen: {shown(entry.what)}: {shown(entry.why)}"
        + (f"; {shown(entry.enable)}" if entry.enable else "")
        for entry in result.missing
    ]
    return Section(
        title="Who is in which cache",
        ident="relations",
        figures=figures,
        table=_table(shown_rows, result, _PAGE),
        notes=notes,
    )


def _bars_svg(rows: Sequence[CacheRelation], home: str) -> str:
    """Return one bar a row: its bytes in the pool only, in both, in the page cache only, in neither."""
    left, width, step = 230, 880, 24
    longest = max((row.size_bytes or 0 for row in rows), default=0) or 1
    scale = (width - left - 90) / longest
    parts = [legend(left)]
    for index, row in enumerate(rows):
        y = 34 + index * step
        name = relation_name(row, home)
        short = name if len(name) <= 30 else name[:29] + "…"
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">')
        parts.append(f"<title>{escape(name)}</title>{escape(short)}</text>")
        x = float(left)
        for kind, value in _parts(row).items():
            if value > 0:
                tip = f"{name}: {format_bytes(value)} {WORDS[kind]}"
                parts.append(
                    f'<rect class="c-{kind}" x="{x:.1f}" y="{y}" width="{value * scale:.2f}" height="16">'
                    f"<title>{escape(tip)}</title></rect>"
                )
                x += value * scale
        parts.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 12}">{known_bytes(row.size_bytes)}</text>')
    height = 40 + step * len(rows)
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Where the bytes of each relation lie">{"".join(parts)}</svg>'
    )


def _parts(row: CacheRelation) -> dict[str, int]:
    both = row.both_bytes or 0
    pool_only = max(0, row.shared_buffers_bytes - both)
    neither = row.neither_bytes or 0
    # What is left is in the page cache; of a block in the pool that is resident by half, that half too.
    rest = max(0, (row.size_bytes or 0) - both - pool_only - neither)
    return {"pool_only": pool_only, "both": both, "page_cache_only": rest, "neither": neither}


def _share(part: int | None, whole: int | None) -> str:
    return "–" if part is None or not whole else share(part, whole)


def _rows(result: CacheResult) -> Rows:
    """Return one line a row of the table; usage_counts become six columns."""
    names = [name for name in CacheRelation.__struct_fields__ if name != "usage_counts"]
    return Rows(
        [*names, *(f"usage_count_{level}" for level in range(6))],
        [[*(getattr(row, name) for name in names), *row.usage_counts] for row in result.relations],
    )


VIEW = View(CacheResult, text=cache_text, page=cache_page, rows=_rows)
