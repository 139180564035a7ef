"""The memory of a server's processes: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.plain import shown
from pgsweep.records.memory import MemoryProcess, MemoryResult
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, counted, format_bytes, format_seconds, known_bytes
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Column, Measured, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed

_ROWS_SHOWN = 30
_QUERY_SHOWN = 60
SHARED_WORDS = {
    "segment": "what the kernel has allocated of it",
    "pss": "at least: what present processes touched; root may see it whole",
    "huge pages": "in huge pages, set aside whole",
    "size": "at most: its size; root may see how much of it is there",
    "": "its size may not be read",
}


def memory_text(result: MemoryResult, terminal: Terminal) -> str:
    """Return the cost of a connection, the totals, the processes, and what could not be looked at."""
    rows = list(result.processes)
    hidden = max(0, len(rows) - _ROWS_SHOWN) if terminal.interactive else 0
    rows = rows[: len(rows) - hidden]
    processes = len(result.processes) + result.hidden
    head = f"Measured: memory of {counted(processes, 'process', 'processes')}"
    cost = "\n".join(terminal.wrap(line) for line in cost_lines(result))
    parts = [f"{head}; took {format_seconds(result.seconds)}.", cost]
    parts += ["\n".join(totals_lines(result)), _table(rows).text(terminal)]
    if hidden + result.hidden:
        how = "" if result.hidden else "; all of them: --json, --csv, or through a pipe"
        parts.append(f"... and {counted(hidden + result.hidden, 'process', 'processes')} more{how}")
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def cost_lines(result: MemoryResult) -> list[str]:
    """Return what a connection costs, and what RSS would say."""
    cost = result.cost
    if cost is None:
        if result.connections == 0:
            return ["There are no connections but pgsweep's, so the cost of a connection is not known."]
        return ["The cost of a connection is not known: private memory may not be read."]
    without = f"; {count(result.pgsweep_sessions)} of pgsweep are left out"
    many = f"{count(cost.connections)} connection{'s' if cost.connections > 1 else ''}"
    lines = [
        f"A connection costs {format_bytes(cost.mean_bytes)} on average: private memory "
        f"{format_bytes(cost.private_mean_bytes)}, page tables {format_bytes(cost.page_tables_mean_bytes)}.",
        f"95% of {many} cost at most {format_bytes(cost.p95_bytes)}, "
        f"the worst {format_bytes(cost.worst_bytes)} (process {cost.worst_pid})"
        f"{without if result.pgsweep_sessions > 1 else ''}.",
    ]
    again, neither = "shared memory", "no page tables"
    if result.huge_pages:
        again, neither = "program files", "neither page tables nor huge pages"
    lines.append(
        f"RSS says {format_bytes(cost.rss_mean_bytes)}, which misleads: it counts {again} again for each "
        f"process that touched it, and {neither}."
    )
    return lines


def shared_words(method: str) -> str:
    """Return what the size of the shared memory is, by how it was found."""
    return SHARED_WORDS.get(method, SHARED_WORDS[""])


def totals_lines(result: MemoryResult) -> list[str]:
    """Return what the server costs the host, as a sum, beside the sum of RSS."""
    totals = result.totals
    size = totals.shared_memory_size_bytes
    note = shared_words(totals.shared_memory_method)
    if size is not None and totals.shared_memory_method != "size":
        note += f", of {format_bytes(size)}"
    rows = [
        ("shared memory, once", totals.shared_memory_bytes, note),
        ("private memory", totals.private_bytes, "of all processes"),
        ("page tables", totals.page_tables_bytes, "of all processes"),
        ("together", totals.real_bytes, "what the server costs the host, without page cache"),
    ]
    if totals.swap_bytes:
        rows.append(("swapped out", totals.swap_bytes, "not in memory now"))
    times = ""
    if totals.real_bytes:
        times = f"{count(totals.rss_bytes / totals.real_bytes)} times as much"
    rows.append(("sum of RSS", totals.rss_bytes, times))
    width = max(len(known_bytes(value)) for _, value, _ in rows)
    return [f"{name:<20} {known_bytes(value):>{width}}  {why}".rstrip() for name, value, why in rows]


def process_name(process: MemoryProcess) -> str:
    """Return who a process is: `client backend` with its user, or the kind of a background process."""
    if process.own:
        return "(pgsweep)"
    return shown(process.user) if process.user and process.kind == "client backend" else process.kind


def _table(rows: Sequence[MemoryProcess]) -> Table[MemoryProcess]:
    columns: list[Column[MemoryProcess]] = [
        Column("process", lambda row: str(row.pid)),
        Column("user or kind", process_name, left=True),
        Column("database", lambda row: shown(row.database or ""), left=True, rank=5),
        Column("application", lambda row: shown(row.application or ""), left=True, rank=6),
        Column("state", lambda row: row.state or "", left=True, rank=7),
        Column("cost", lambda row: known_bytes(row.cost_bytes), note=lambda row: row.why or ""),
        Column("private\nmemory", lambda row: known_bytes(row.private_bytes), rank=1),
        Column("page\ntables", lambda row: known_bytes(row.page_tables_bytes), rank=1),
        Column("shared\ntouched", lambda row: known_bytes(row.shared_touched_bytes), rank=2),
        Column("RSS", lambda row: known_bytes(row.rss_bytes), rank=3),
    ]
    if any(row.huge_pages_bytes for row in rows):
        columns.insert(-1, Column("huge\npages", lambda row: known_bytes(row.huge_pages_bytes), rank=4))
    if any(row.query for row in rows):
        columns += [
            Column("query", lambda row: shown(_shortened(row.query)), left=True, rank=8, only="text"),
            Column("query", lambda row: shown(row.query or ""), left=True, only="page"),
        ]
    return Table(columns, rows)


def _shortened(query: str | None) -> str:
    text = query or ""
    return text if len(text) <= _QUERY_SHOWN else text[: _QUERY_SHOWN - 3] + "..."


def memory_page(result: MemoryResult) -> Page:
    """Return the cost of a connection, the sum, and the processes."""
    cost = result.cost
    title = (
        "The memory of every process"
        if cost is None
        else f"A connection costs {format_bytes(cost.mean_bytes)}, not the "
        f"{format_bytes(cost.rss_mean_bytes)} of RSS"
    )
    totals = result.totals
    facts = [
        Fact(known_bytes(totals.shared_memory_bytes), "shared memory, once", Measured),
        Fact(known_bytes(totals.private_bytes), "private memory of all processes", Measured),
        Fact(known_bytes(totals.page_tables_bytes), "page tables of all processes", Measured),
        Fact(known_bytes(totals.real_bytes), "together", Measured),
        Fact(known_bytes(totals.rss_bytes), "sum of RSS, which misleads", Measured),
    ]
    notes = [f"Shared memory: {shared_words(totals.shared_memory_method)}."]
    notes += [f"Not seen: {entry.what}: {entry.why}." for entry in result.missing]
    if result.hidden:
        notes.append(f"{counted(result.hidden, 'more process was', 'more processes were')} left out.")
    table = _table(result.processes)
    section = Section("Processes", "processes", facts=facts, table=table, notes=notes)
    return Page(title, " ".join(cost_lines(result)), [section])


VIEW = View(MemoryResult, memory_text, memory_page, listed(MemoryProcess, "processes"))
