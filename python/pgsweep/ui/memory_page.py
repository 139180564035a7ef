"""The memory of a server's processes as sections of the report."""

from __future__ import annotations

from pgsweep.records.memory import MemoryResult
from pgsweep.ui.memory_text import SHARED_WORDS, cost_lines, process_name
from pgsweep.ui.names import shown
from pgsweep.ui.numbers import format_bytes, known_bytes, server_name
from pgsweep.ui.section import Cell, Fact, Measured, Section


def memory_title(result: MemoryResult) -> tuple[str, str]:
    """Return the page's headline and what stands beneath it."""
    cost = result.cost
    title = (
        "The memory of every process"
        if cost is None
        else f"A connection costs {format_bytes(cost.mean_bytes)}, not the "
        f"{format_bytes(cost.rss_mean_bytes)} of RSS"
    )
    return title, f"{server_name(result.server_version)}. " + " ".join(cost_lines(result))


def memory_sections(result: MemoryResult) -> list[Section]:
    """Return the sum, and the processes."""
    totals = result.totals
    facts = [
        Fact(known_bytes(totals.shared_memory_bytes), "shared memory, once", Measured),
        Fact(known_bytes(totals.private_bytes), "private memory of all processes", Measured),
        Fact(known_bytes(totals.page_tables_bytes), "page tables of all processes", Measured),
        Fact(known_bytes(totals.real_bytes), "together", Measured),
        Fact(known_bytes(totals.rss_bytes), "sum of RSS, which misleads", Measured),
    ]
    head = ["process", "user or kind", "database", "application", "state", "cost", "private memory"]
    head += ["page tables", "shared memory touched", "huge pages", "RSS", "query"]
    rows = [
        [
            Cell(str(row.pid)),
            Cell(process_name(row)),
            Cell(shown(row.database or "")),
            Cell(shown(row.application or "")),
            Cell(row.state or ""),
            Cell(known_bytes(row.cost_bytes), row.why or ""),
            Cell(known_bytes(row.private_bytes)),
            Cell(known_bytes(row.page_tables_bytes)),
            Cell(known_bytes(row.shared_touched_bytes)),
            Cell(known_bytes(row.huge_pages_bytes)),
            Cell(known_bytes(row.rss_bytes)),
            Cell(shown(row.query or "")),
        ]
        for row in result.processes
    ]
    notes = [f"Shared memory: {SHARED_WORDS[totals.shared_memory_method]}."]
    notes += [f"Not seen: {entry.what}: {entry.why}." for entry in result.missing]
    if result.hidden:
        notes.append(f"{result.hidden} processes more were left out.")
    return [Section("Processes", "processes", "", facts, [], [], head, rows, notes=notes)]
