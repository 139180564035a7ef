"""Who is in which cache, as sections of the report: bars for relations, a strip for one relation's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pgsweep.records.cache import CacheMap, CacheRelation, CacheResult, PoolState
from pgsweep.ui.cache_text import MAP_KINDS, format_seconds, heat, without_catalogs
from pgsweep.ui.names import relation_name, shown
from pgsweep.ui.numbers import count, format_bytes, known_bytes, percent, server_name
from pgsweep.ui.section import Cell, Fact, Group, Measured, Section
from pgsweep.ui.terminal import Terminal

_BARS = 25
_PAGE = Terminal()
_WORDS = {
    "pool_only": "in shared_buffers only",
    "both": "in both",
    "page_cache_only": "in the page cache only",
    "neither": "in neither",
}


def cache_title(result: CacheResult) -> tuple[str, str]:
    """Return the page's headline and what stands beneath it."""
    total = result.total
    title = f"{format_bytes(result.pool.used_bytes)} of {format_bytes(result.pool.size_bytes)} in use"
    title = f"shared_buffers: {title}"
    if total.page_cache_bytes is not None and total.both_bytes is not None:
        title += f"; {format_bytes(total.page_cache_bytes)} in the page cache"
        title += f", {format_bytes(total.both_bytes)} held twice"
    lead = (
        f"{server_name(result.server_version)}, measured at {result.at} in {format_seconds(result.seconds)}."
    )
    return title, lead


def cache_sections(result: CacheResult) -> list[Section]:
    """Return the pool, the relations, and the map where one was asked for."""
    sections = [_pool_section(result.pool), _relations_section(result)]
    if result.map is not None:
        sections.append(_map_section(result.map))
    return sections


def _pool_section(pool: PoolState) -> Section:
    facts = [
        Fact(format_bytes(pool.size_bytes), "shared_buffers", Measured),
        Fact(format_bytes(pool.used_bytes), "in use", Measured),
        Fact(format_bytes(pool.dirty_bytes), "dirty", Measured),
        Fact(format_bytes(pool.pinned_bytes), "pinned", Measured),
    ]
    used = sum(pool.usage_counts) or 1
    rows = [
        [Cell(str(level)), Cell(count(buffers)), Cell(percent(buffers / used, sign=False))]
        for level, buffers in enumerate(pool.usage_counts)
    ]
    return Section(
        "The buffer pool", "pool", "", facts, [], [], ["usage_count", "buffers", "% of those used"], rows
    )


def _relations_section(result: CacheResult) -> Section:
    shown_rows = without_catalogs(result)
    rows = [*shown_rows, result.total]
    sees = result.page_cache_method is not None
    head = [result.by, "kind", "size", "in shared_buffers", "% of pool", "% of size"]
    groups = [Group("", 3), Group("buffer pool", 3, Measured)]
    if sees:
        head += ["in page cache", "% of size", "held twice", "in neither"]
        groups.append(Group("page cache", 4, Measured))
    head += ["heat 0 to 5", "dirty", "pinned"]
    groups.append(Group("", 3))
    cells = []
    for row in rows:
        line = [
            Cell(relation_name(row, result.database)),
            Cell("" if row.kind == "total" else row.kind),
            Cell(known_bytes(row.size_bytes)),
            Cell(known_bytes(row.shared_buffers_bytes)),
            Cell(_share(row.shared_buffers_bytes, result.pool.size_bytes)),
            Cell(_share(row.shared_buffers_bytes, row.size_bytes)),
        ]
        if sees:
            line += [
                Cell(known_bytes(row.page_cache_bytes)),
                Cell(_share(row.page_cache_bytes, row.size_bytes)),
                Cell(known_bytes(row.both_bytes)),
                Cell(known_bytes(row.neither_bytes)),
            ]
        line.append(Cell(heat(row.usage_counts, _PAGE)))
        line += [Cell(known_bytes(row.dirty_bytes)), Cell(known_bytes(row.pinned_bytes))]
        cells.append(line)
    figures = []
    if sees:
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
        "Who is in which cache",
        "relations",
        "",
        [],
        figures,
        groups,
        head,
        cells,
        marked=len(cells) - 1,
        notes=notes,
    )


def _bars_svg(rows: Sequence[CacheRelation], home: str) -> str:
    """Return one bar a row: its bytes in the pool only, in both, in the page cache only, in neither."""
    left, width, step = 230, 880, 24
    longest = max((row.size_bytes or 0 for row in rows), default=0) or 1
    scale = (width - left - 90) / longest
    parts = [_legend(left)]
    for index, row in enumerate(rows):
        y = 34 + index * step
        name = relation_name(row, home)
        short = name if len(name) <= 34 else name[:33] + "…"
        parts.append(f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">')
        parts.append(f"<title>{escape(name)}</title>{escape(short)}</text>")
        x = float(left)
        for kind, value in _parts(row).items():
            if value > 0:
                tip = f"{name}: {format_bytes(value)} {_WORDS[kind]}"
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


def _map_section(block_map: CacheMap) -> Section:
    cells = len(block_map.both)
    width, columns = 880, 128
    side = width / columns
    parts = []
    for cell in range(cells):
        counts = {kind: getattr(block_map, kind)[cell] for kind in MAP_KINDS}
        kind = max(MAP_KINDS, key=lambda name: counts[name])
        first = cell * block_map.blocks // cells
        tip = f"from block {first}: " + ", ".join(f"{counts[k]} {_WORDS[k]}" for k in MAP_KINDS)
        x, y = cell % columns * side, cell // columns * side + 30
        parts.append(
            f'<rect class="c-{kind}" x="{x:.2f}" y="{y:.2f}" width="{side - 0.6:.2f}" '
            f'height="{side - 0.6:.2f}"><title>{escape(tip)}</title></rect>'
        )
    height = 30 + side * (-(-cells // columns))
    svg = (
        f'<svg class="plot" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="Where the blocks lie">{_legend(0)}{"".join(parts)}</svg>'
    )
    facts = [
        Fact(count(sum(getattr(block_map, kind))), f"blocks {_WORDS[kind]}", Measured) for kind in MAP_KINDS
    ]
    per_cell = -(-block_map.blocks // cells) if cells else 0
    caption = f"Blocks in order, line by line, {per_cell} a cell; the colour says where most of them lie."
    name = shown(f"{block_map.schema}.{block_map.relation}")
    lead = f"{count(block_map.blocks)} blocks of the main fork."
    return Section(f"Blocks of {name}", "map", lead, facts, [(svg, caption)], [], [], [])


def _legend(left: float) -> str:
    parts, x = [], left
    for kind, words in _WORDS.items():
        parts.append(f'<rect class="c-{kind}" x="{x}" y="6" width="12" height="12"></rect>')
        parts.append(f'<text x="{x + 17}" y="16">{words}</text>')
        x += 30 + 7 * len(words)
    return "".join(parts)


def _share(part: int | None, whole: int | None) -> str:
    return "–" if part is None or not whole else f"{100 * part / whole:.1f}"
