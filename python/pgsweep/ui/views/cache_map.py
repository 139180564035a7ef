"""Where a relation's blocks lie, block by block: as text, and as a part of a page."""

from __future__ import annotations

from html import escape

from pgsweep.plain import relation_label, shown
from pgsweep.records.cache import CacheMap
from pgsweep.ui.kit.numbers import count, counted
from pgsweep.ui.kit.section import Fact, Section
from pgsweep.ui.kit.table import Measured
from pgsweep.ui.kit.terminal import Terminal

MAP_KINDS = ("both", "pool_only", "page_cache_only", "neither")
WORDS = {
    "pool_only": "in shared_buffers only",
    "both": "in both",
    "page_cache_only": "in the page cache only",
    "neither": "in neither",
}


def map_name(block_map: CacheMap) -> str:
    """Return the relation's readable name."""
    return shown(
        relation_label(block_map.schema, block_map.relation, block_map.table_schema, block_map.table)
    )


def map_text(block_map: CacheMap, terminal: Terminal) -> str:
    """Return a strip of a relation's blocks; each cell shows where most of its blocks lie."""
    marks = dict(zip(MAP_KINDS, terminal.pick("█▓░·", "#=-."), strict=True))
    colours = dict(zip(MAP_KINDS, ("yellow", "red", "blue", "dim"), strict=True))
    strip = []
    counts = {kind: getattr(block_map, kind) for kind in MAP_KINDS}
    for cell in range(len(block_map.both)):
        kind = max(MAP_KINDS, key=lambda name: counts[name][cell])
        strip.append(terminal.paint(marks[kind], colours[kind]))  # type: ignore[arg-type]
    words = {
        "both": "in both",
        "pool_only": "pool only",
        "page_cache_only": "page cache only",
        "neither": "neither",
    }
    legend = [
        f"{terminal.paint(marks[kind], colours[kind])} {words[kind]} {count(sum(counts[kind]))}"  # type: ignore[arg-type]
        for kind in MAP_KINDS
    ]
    name = map_name(block_map)
    cells = len(strip)
    each = block_map.blocks / cells if cells else 0.0
    lines = [
        f"{name}: {counted(block_map.blocks, 'block')}, the first on the left, "
        + ("one a character" if each <= 1 else f"about {each:.0f} a character")
    ]
    width = max(10, terminal.width - 2)
    lines += ["".join(strip[begin : begin + width]) for begin in range(0, len(strip), width)]
    lines.append("blocks: " + ", ".join(legend))
    return "\n".join(lines)


def map_section(block_map: CacheMap) -> Section:
    """Return the strip as a part of a page, each cell with its counts."""
    cells = len(block_map.both)
    width, columns = 880, 128
    side = width / columns
    parts = []
    for cell in range(cells):
        counts = {kind: getattr(block_map, kind)[cell] for kind in MAP_KINDS}
        kind = max(MAP_KINDS, key=lambda name: counts[name])
        first = cell * block_map.blocks // cells
        tip = f"from block {count(first)}: " + ", ".join(f"{count(counts[k])} {WORDS[k]}" for k in MAP_KINDS)
        x, y = cell % columns * side, cell // columns * side + 30
        parts.append(
            f'<rect class="c-{kind}" x="{x:.2f}" y="{y:.2f}" width="{side - 0.6:.2f}" '
            f'height="{side - 0.6:.2f}"><title>{escape(tip)}</title></rect>'
        )
    height = 30 + side * (-(-cells // columns))
    svg = (
        f'<svg class="plot" viewBox="0 0 {width} {height:.0f}" role="img" '
        f'aria-label="Where the blocks lie">{legend(0)}{"".join(parts)}</svg>'
    )
    facts = [
        Fact(count(sum(getattr(block_map, kind))), f"blocks {WORDS[kind]}", Measured) for kind in MAP_KINDS
    ]
    per_cell = -(-block_map.blocks // cells) if cells else 0
    caption = f"Blocks in order, line by line, {per_cell} a cell; the colour says where most of them lie."
    name = map_name(block_map)
    lead = f"{counted(block_map.blocks, 'block')} of the main fork."
    return Section(f"Blocks of {name}", "map", lead, facts, [(svg, caption)])


def legend(left: float) -> str:
    """Return the words for the colours, as SVG that begins `left` from the edge."""
    parts, x = [], left
    for kind, words in WORDS.items():
        parts.append(f'<rect class="c-{kind}" x="{x}" y="6" width="12" height="12"></rect>')
        parts.append(f'<text x="{x + 17}" y="16">{words}</text>')
        x += 30 + 7 * len(words)
    return "".join(parts)
