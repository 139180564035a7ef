"""How many huge pages a server needs and what they save: as text, as a page, as rows."""

from __future__ import annotations

import textwrap
from operator import itemgetter
from typing import Any

import msgspec

from pgsweep.plain import shown
from pgsweep.records.hugepages import HugePagePool, HugePagesResult, PageTables
from pgsweep.records.prediction import PlanStep
from pgsweep.ui.kit.missing import missing_lines
from pgsweep.ui.kit.numbers import count, counted, format_bytes, known_bytes
from pgsweep.ui.kit.section import Fact, Page, Section
from pgsweep.ui.kit.table import Cell, Column, Measured, Predicted, Table
from pgsweep.ui.kit.terminal import Paint, Terminal
from pgsweep.ui.kit.view import Rows, View

_WORDS: dict[str, tuple[str, Paint]] = {
    "on": ("used now: yes", "green"),
    "off": ("used now: no", "red"),
    "unknown": ("used now: unknown", "yellow"),
}


def headline(result: HugePagesResult) -> str:
    """Return the answer in one sentence."""
    size = format_bytes(result.huge_page_size_bytes)
    if result.huge_pages_needed is None:
        return f"How many huge pages of {size} are needed is not known"
    text = f"{count(result.huge_pages_needed)} huge pages of {size} are needed"
    if result.methods.exact is None:
        text += " (estimated)"
    if result.own_pages:
        text += f", the server has {count(result.own_pages)} now"
        finds = f"{text}, its next start finds {count(result.after_stop or 0)} set aside"
        return finds if result.too_few else text
    if result.available is not None:
        text += f", {count(result.available)} are available"
    return text


def server_line(result: HugePagesResult) -> str:
    """Return which server and which settings, in one sentence."""
    if not result.server_version:
        return "As its log says"
    facts = [f"shared_buffers {format_bytes(result.shared_buffers_bytes)}"]
    facts.append(f"shared memory in all {known_bytes(result.shared_memory_bytes)}")
    facts.append(f"huge_pages = {result.huge_pages}")
    if result.settings:
        facts.append("if " + ", ".join(f"{shown(k)} = {shown(v)}" for k, v in result.settings.items()))
    return ", ".join(facts)


def methods_rows(result: HugePagesResult) -> list[tuple[str, str, str]]:
    """Return method, number and remark of each method that has a number."""
    methods = result.methods
    rows = []
    if methods.exact is not None:
        rows.append(("exact", count(methods.exact), "from the size that the server requests"))
    for name, number, remark in (
        ("the server's own", methods.server, "shared_memory_size_in_huge_pages"),
        ("VmPeak", methods.vmpeak, "counts code and private memory too"),
    ):
        if number is not None:
            more = "" if methods.exact is None else number - methods.exact
            over = f"; {count(more)} too many" if isinstance(more, int) and more > 0 else ""
            rows.append((name, count(number), remark + over))
    return rows


def tables_rows(result: HugePagesResult) -> list[tuple[str, str, str, str]]:
    """Return for whom, and the page tables in ordinary and in huge pages, and how that is known."""
    tables = result.page_tables
    if tables is None:
        return []
    on = result.status == "on"
    return [
        (
            f"{counted(tables.processes, 'process', 'processes')}, now",
            known_bytes(tables.without_huge_pages_bytes),
            known_bytes(tables.with_huge_pages_bytes),
            "huge pages measured, ordinary predicted" if on else "ordinary measured, huge pages predicted",
        ),
        (
            counted(tables.connections, "connection"),
            known_bytes(tables.connections_ordinary_bytes),
            known_bytes(tables.connections_huge_bytes),
            "predicted, once each has touched all shared memory",
        ),
    ]


def hugepages_text(result: HugePagesResult, terminal: Terminal) -> str:
    """Return the answer, the reasons, the kernel's pools, page tables, and what to do."""
    width = min(terminal.width, 110)
    word, paint = _WORDS.get(result.status, _WORDS["unknown"])
    head = [terminal.paint(headline(result), "bold"), *textwrap.wrap(server_line(result), width)]
    head.append(terminal.paint(word, paint))
    for reason in result.reasons:
        head += textwrap.wrap(f"- {shown(reason)}", width, subsequent_indent="  ", break_long_words=False)
    parts = ["\n".join(head)]
    if result.change is not None:
        parts.append(_change(result, terminal))
    tables: list[Table[Any]] = [_methods(result), _pools(result), _tables(result)]
    parts += [table.text(terminal) for table in tables if table.rows]
    if result.transparent:
        parts.append("\n".join(textwrap.wrap(transparent_line(result), width)))
    if result.plan:
        parts.append(_steps("would be written:", result.plan, terminal))
    elif result.steps and result.change is None:
        parts.append(_steps("what to do:", result.steps, terminal))
    parts += missing_lines(result.missing, terminal)
    return "\n\n".join(parts) + "\n"


def transparent_line(result: HugePagesResult) -> str:
    """Return what transparent huge pages have to do with it."""
    modes = ", ".join(f"{name} = {shown(value)}" for name, value in result.transparent.items())
    text = f"transparent huge pages: {modes}."
    if result.transparent.get("shmem_enabled") in {"always", "within_size", "force"}:
        return text + " The kernel may use them for shared memory, but does not guarantee it."
    return text + " They are for private memory; shared memory does not get them."


def _change(result: HugePagesResult, terminal: Terminal) -> str:
    change = result.change
    assert change is not None
    size = format_bytes(change.page_size_bytes)
    lines = [
        terminal.paint(
            f"huge pages of {size}: {count(change.before)} before, {count(change.after)} now", "green"
        )
        + (" (memory was compacted)" if change.compacted else ""),
        *(f"written: {file}" for file in change.files),
        "restart the server: it takes huge pages only when it starts; with huge_pages = on it does not start "
        "without them",
        f"put back what was before: {change.undo_command}",
    ]
    return "\n".join(lines)


def _steps(title: str, steps: list[PlanStep], terminal: Terminal) -> str:
    lines = [title]
    for step in steps:
        lines.append(f"  {step.what}, {step.when}:")
        lines.append("      " + terminal.paint(step.text, "cyan"))
    return "\n".join(lines)


def hugepages_page(result: HugePagesResult) -> Page:
    """Return the number, the kernel's pools and the page tables."""
    used = {"on": "used now", "off": "not used now", "unknown": "not known whether used now"}
    answer = f"{headline(result)}; {used.get(result.status, used['unknown'])}"
    sections = [_number(result)]
    if result.pools:
        notes = [transparent_line(result)] if result.transparent else []
        sections.append(Section("What the kernel has", "pools", table=_pools(result), notes=notes))
    if result.page_tables is not None:
        sections.append(_tables_section(result, result.page_tables))
    steps = result.plan or result.steps
    if steps:
        columns: list[Column[PlanStep]] = [
            Column("what", lambda step: step.what, left=True),
            Column("when", lambda step: step.when, left=True),
            Column("line", lambda step: Cell(step.text, code=True), left=True),
        ]
        title = "What would be written" if result.plan else "What to do"
        sections.append(Section(title, "steps", table=Table(columns, steps)))
    return Page(answer, f"{server_line(result)}.", sections)


def _number(result: HugePagesResult) -> Section:
    facts = [Fact(known_bytes(result.shared_memory_bytes), "shared memory", Measured)]
    if result.settings:
        facts = [Fact(known_bytes(result.shared_memory_bytes), "shared memory, with these settings")]
    notes = [shown(reason) for reason in result.reasons]
    notes += [f"Not seen: {shown(entry.what)}: {shown(entry.why)}" for entry in result.missing]
    return Section("How many", "number", facts=facts, table=_methods(result), notes=notes)


def _methods(result: HugePagesResult) -> Table[tuple[str, str, str]]:
    columns: list[Column[tuple[str, str, str]]] = [
        Column("method", itemgetter(0), left=True),
        Column("huge pages", itemgetter(1)),
        Column("", itemgetter(2), left=True),
    ]
    return Table(columns, methods_rows(result))


def _pools(result: HugePagesResult) -> Table[HugePagePool]:
    columns: list[Column[HugePagePool]] = [
        Column(
            "huge pages of",
            lambda pool: Cell(format_bytes(pool.page_size_bytes), "default" if pool.is_default else ""),
            left=True,
        ),
        Column("total", lambda pool: count(pool.total)),
        Column("free", lambda pool: count(pool.free)),
        Column("reserved", lambda pool: count(pool.reserved)),
        Column("surplus", lambda pool: count(pool.surplus), only="page"),
        Column("available", lambda pool: count(pool.available)),
        Column("needed", lambda pool: "–" if pool.needed is None else count(pool.needed)),
    ]
    return Table(columns, result.pools)


def _tables(result: HugePagesResult) -> Table[tuple[str, str, str, str]]:
    columns: list[Column[tuple[str, str, str, str]]] = [
        Column("page tables of", itemgetter(0), left=True),
        Column("ordinary\npages", itemgetter(1)),
        Column("huge\npages", itemgetter(2)),
        Column("", itemgetter(3), left=True),
    ]
    return Table(columns, tables_rows(result))


def _tables_section(result: HugePagesResult, tables: PageTables) -> Section:
    facts = [Fact(format_bytes(tables.now_bytes), "page tables now", Measured)]
    if result.status != "on":
        facts.append(Fact(format_bytes(tables.with_huge_pages_bytes), "with huge pages", Predicted))
    return Section("Page tables", "page-tables", facts=facts, table=_tables(result))


def _rows(result: HugePagesResult) -> Rows:
    """Return one line; what is nested becomes columns, reasons are parted by semicolons."""
    fields = msgspec.to_builtins(result)
    line = {name: value for name, value in fields.items() if not isinstance(value, list | dict)}
    for name in ("methods", "page_tables"):
        line.update({f"{name}_{key}": value for key, value in (fields[name] or {}).items()})
    line["reasons"] = "; ".join(result.reasons)
    names = [name for name in line if name not in ("page_tables", "change", "place", "provenance")]
    return Rows(names, [[line[name] for name in names]])


VIEW = View(HugePagesResult, text=hugepages_text, page=hugepages_page, rows=_rows)
