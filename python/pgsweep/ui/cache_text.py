"""Who is in which cache, as text. Everything here was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsweep.records.cache import CacheMap, CacheRelation, CacheResult, Missing, PoolState
from pgsweep.rollup import SYSTEM_SCHEMAS, merged
from pgsweep.ui.names import relation_name, shown
from pgsweep.ui.numbers import count, format_bytes, known_bytes, percent, server_name
from pgsweep.ui.table import Column, table, table_width
from pgsweep.ui.terminal import Terminal

_HEAT = " ▁▂▃▄▅▆▇█"
_ROWS_SHOWN = 30


@dataclass(frozen=True)
class _Field:
    """A column of the table; those of the highest rank give way first on a narrow terminal."""

    column: Column
    rank: int
    cells: list[str]


def cache_text(result: CacheResult, terminal: Terminal) -> str:
    """Return pool, table, map, and what could not be looked at."""
    rows = without_catalogs(result)
    hidden = max(0, len(rows) - _ROWS_SHOWN) if terminal.interactive else 0
    rows = rows[: len(rows) - hidden]
    parts = [
        _head(result),
        pool_text(result.pool, terminal),
        _table([*rows, result.total], result, terminal),
    ]
    if hidden:
        parts.append(f"... and {count(hidden)} rows more; all of them: --json, --csv, or through a pipe")
    if result.map is not None:
        parts.append(map_text(result.map, terminal))
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def without_catalogs(result: CacheResult) -> list[CacheRelation]:
    """Return the rows with all system catalogs, and what serves them, put together at the end."""
    if result.by in ("schema", "database"):
        return list(result.relations)
    own = [row for row in result.relations if not _is_catalog(row)]
    catalogs = [row for row in result.relations if _is_catalog(row)]
    if len(catalogs) < 2 or not own:
        return list(result.relations)
    relations = sum(row.relations for row in catalogs)
    return [*own, merged(catalogs, relation=f"(system catalogs: {count(relations)} relations)", kind="")]


def _is_catalog(row: CacheRelation) -> bool:
    return (row.table_schema or row.schema) in SYSTEM_SCHEMAS


def _head(result: CacheResult) -> str:
    how = {"peek": "read in the server's memory", "sql": "from pg_buffercache"}[result.pool_source]
    text = f"{server_name(result.server_version)}, measured: buffer pool {how}"
    if result.page_cache_method is not None:
        text += f", page cache by {result.page_cache_method}"
    return f"{text}; took {format_seconds(result.seconds)}."


def format_seconds(value: float) -> str:
    """Return a short time: `12 ms`, `1.3 s`."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def pool_text(pool: PoolState, terminal: Terminal) -> str:
    """Return the pool as a whole: its use, and the distribution of usage_count."""
    facts = [
        f"shared_buffers {format_bytes(pool.size_bytes)}",
        f"used {format_bytes(pool.used_bytes)}",
        f"unused {format_bytes(pool.unused_bytes)}",
        f"dirty {format_bytes(pool.dirty_bytes)}",
        f"pinned {format_bytes(pool.pinned_bytes)}",
    ]
    used = sum(pool.usage_counts)
    lines = [": ".join([facts[0], ", ".join(facts[1:])])]
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


def _table(rows: Sequence[CacheRelation], result: CacheResult, terminal: Terminal) -> str:
    fields = _fields(rows, result, terminal)
    while (
        terminal.interactive
        and len(fields) > 3
        and table_width([(field.column, field.cells) for field in fields]) > terminal.width
    ):
        fields.remove(max(fields, key=lambda field: field.rank))
    cells = [[field.cells[index] for field in fields] for index in range(len(rows))]
    return table([field.column for field in fields], cells, terminal, marked=len(rows) - 1)


def _fields(rows: Sequence[CacheRelation], result: CacheResult, terminal: Terminal) -> list[_Field]:
    pool_bytes = result.pool.size_bytes

    def share(part: int | None, whole: int | None) -> str:
        return "–" if part is None or not whole else f"{100 * part / whole:.1f}"

    def column(header: str, rank: int, cells: list[str], *, left: bool = False) -> _Field:
        return _Field(Column(header, left=left), rank, cells)

    names = [relation_name(row, result.database) for row in rows]
    fields = [
        column(result.by, 0, names, left=True),
        column("kind", 8, [row.kind if row.kind != "total" else "" for row in rows], left=True),
        column("size", 2, [known_bytes(row.size_bytes) for row in rows]),
        column("in shared\nbuffers", 0, [known_bytes(row.shared_buffers_bytes) for row in rows]),
        column("% of\npool", 3, [share(row.shared_buffers_bytes, pool_bytes) for row in rows]),
        column("% of\nsize", 6, [share(row.shared_buffers_bytes, row.size_bytes) for row in rows]),
    ]
    if result.page_cache_method is not None:
        fields += [
            column("in page\ncache", 1, [known_bytes(row.page_cache_bytes) for row in rows]),
            column("% of\nsize", 7, [share(row.page_cache_bytes, row.size_bytes) for row in rows]),
            column("held\ntwice", 1, [known_bytes(row.both_bytes) for row in rows]),
            column("in\nneither", 5, [known_bytes(row.neither_bytes) for row in rows]),
        ]
    fields += [
        column("heat\n012345", 2, [heat(row.usage_counts, terminal) for row in rows], left=True),
        column("dirty", 4, [known_bytes(row.dirty_bytes) for row in rows]),
        column("pinned", 9, [known_bytes(row.pinned_bytes) for row in rows]),
    ]
    return fields


MAP_KINDS = ("both", "pool_only", "page_cache_only", "neither")


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
    name = shown(f"{block_map.schema}.{block_map.relation}")
    lines = [f"{name}: {count(block_map.blocks)} blocks, the first on the left"]
    width = max(10, terminal.width - 2)
    lines += ["".join(strip[begin : begin + width]) for begin in range(0, len(strip), width)]
    lines.append("blocks: " + ", ".join(legend))
    return "\n".join(lines)


def missing_lines(missing: Sequence[Missing], terminal: Terminal) -> list[str]:
    """Return one line for each thing that could not be looked at."""
    if not missing:
        return []
    lines = []
    for entry in missing:
        line = f"{terminal.paint('not seen:', 'yellow')} {shown(entry.what)}: {shown(entry.why)}"
        lines.append(line + (f"; {shown(entry.enable)}" if entry.enable else ""))
    return ["\n".join(lines)]
