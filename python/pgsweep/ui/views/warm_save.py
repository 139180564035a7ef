"""A heat file that was written: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from pgsweep.plain import shown
from pgsweep.records.heat import WarmSaveResult
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, counted, format_bytes, known_bytes, seconds
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View
from pgsweep.ui.views.heat import levels


def save_text(result: WarmSaveResult, terminal: Terminal) -> str:
    """Return what was written, and what not."""
    if result.skipped is not None:
        return f"not saved: {result.skipped}\n"
    how = {"peek": "read in the server's memory", "sql": "from pg_buffercache"}.get(
        result.pool_source, shown(result.pool_source)
    )
    cached = result.page_cache_blocks
    both = result.pool_blocks + (cached or 0)
    pooled = format_bytes(result.pool_blocks * result.block_size_bytes)
    lines = [
        f"{shown(result.path)}: {pooled} of the buffer pool ({how}), "
        + (
            "the page cache was not seen"
            if cached is None
            else f"{format_bytes(cached * result.block_size_bytes)} of the page cache"
        ),
        f"{counted(result.relations, 'relation')} in {counted(result.databases, 'database')}; "
        f"{format_bytes(result.size_bytes)}, {result.size_bytes / max(1, both):.2f} bytes a resident block; "
        f"took {seconds(result.seconds)}",
        "usage_count " + levels(result.usage_counts),
    ]
    if result.nameless_blocks:
        lines.append(
            f"left out: {counted(result.nameless_blocks, 'block')} of the pool, as no catalog that may be "
            "read names their relation"
        )
    if result.kept:
        lines.append(f"kept: {len(result.kept)} older, the oldest {shown(result.kept[-1])}")
    return "\n".join([*lines, *missing_lines(result.missing, terminal)]) + "\n"


def save_page(result: WarmSaveResult) -> Page:
    """Return the figures and the usage counts."""
    block_bytes = result.block_size_bytes
    cached = result.page_cache_blocks
    facts = [
        Fact(format_bytes(result.pool_blocks * block_bytes), "of the buffer pool", Measured),
        Fact(known_bytes(None if cached is None else cached * block_bytes), "of the page cache", Measured),
        Fact(format_bytes(result.size_bytes), "size of the file", Measured),
    ]
    columns: list[Column[tuple[int, int]]] = [
        Column("usage_count", lambda row: str(row[0])),
        Column("blocks", lambda row: count(row[1])),
    ]
    table = Table(columns, list(enumerate(result.usage_counts)))
    section = Section("Saved heat", "heat", facts=facts, table=table)
    title = f"Saved to {shown(result.path)}" if result.skipped is None else "Nothing was saved"
    return Page(title, result.skipped or f"Saved at {result.at}.", [section])


def _rows(result: WarmSaveResult) -> Rows:
    names = ("path", "at", "size_bytes", "pool_blocks", "page_cache_blocks", "nameless_blocks", "relations")
    return Rows(names, [[getattr(result, name) for name in names]])


VIEW = View(WarmSaveResult, text=save_text, page=save_page, rows=_rows)
