"""How many huge pages a server needs, as sections of the report."""

from __future__ import annotations

from pgsweep.records.hugepages import HugePagesResult
from pgsweep.ui.hugepages_text import headline, methods_rows, server_line, tables_rows, transparent_line
from pgsweep.ui.names import shown
from pgsweep.ui.numbers import count, format_bytes, known_bytes
from pgsweep.ui.section import Cell, Fact, Measured, Predicted, Section


def hugepages_title(result: HugePagesResult) -> tuple[str, str]:
    """Return the page's headline and what stands beneath it."""
    used = {"on": "used now", "off": "not used now", "unknown": "not known whether used now"}
    return f"{headline(result)}; {used[result.status]}", f"{server_line(result)}."


def hugepages_sections(result: HugePagesResult) -> list[Section]:
    """Return the reasons with the number, the pools, the page tables, and what to do."""
    sections = [_number(result)]
    if result.pools:
        sections.append(_pools(result))
    if result.page_tables is not None:
        sections.append(_tables(result))
    steps = result.plan or result.steps
    if steps:
        rows = [[Cell(s.what), Cell(s.when), Cell(s.text, code=True)] for s in steps]
        title = "What would be written" if result.plan else "What to do"
        sections.append(Section(title, "steps", "", [], [], [], ["what", "when", "line"], rows, words=True))
    return sections


def _number(result: HugePagesResult) -> Section:
    facts = [Fact(known_bytes(result.shared_memory_bytes), "shared memory", Measured)]
    if result.settings:
        facts = [Fact(known_bytes(result.shared_memory_bytes), "shared memory, with these settings")]
    rows = [[Cell(name), Cell(number), Cell(remark)] for name, number, remark in methods_rows(result)]
    notes = [shown(reason) for reason in result.reasons]
    notes += [f"Not seen: {shown(entry.what)}: {shown(entry.why)}" for entry in result.missing]
    return Section(
        "How many", "number", "", facts, [], [], ["method", "huge pages", ""], rows, notes=notes, words=True
    )


def _pools(result: HugePagesResult) -> Section:
    head = ["size", "total", "free", "reserved", "surplus", "available", "needed"]
    rows = [
        [
            Cell(format_bytes(pool.page_size_bytes), "default" if pool.is_default else ""),
            *(Cell(count(v)) for v in (pool.total, pool.free, pool.reserved, pool.surplus, pool.available)),
            Cell("–" if pool.needed is None else count(pool.needed)),
        ]
        for pool in result.pools
    ]
    notes = [transparent_line(result)] if result.transparent else []
    return Section("What the kernel has", "pools", "", [], [], [], head, rows, notes=notes)


def _tables(result: HugePagesResult) -> Section:
    tables = result.page_tables
    assert tables is not None
    facts = [Fact(format_bytes(tables.now_bytes), "page tables now", Measured)]
    if result.status != "on":
        facts.append(Fact(format_bytes(tables.with_huge_pages_bytes), "with huge pages", Predicted))
    rows = [[Cell(text) for text in row] for row in tables_rows(result)]
    head = ["of", "in ordinary pages", "in huge pages", ""]
    return Section("Page tables", "page-tables", "", facts, [], [], head, rows, words=True)
