"""The practices of loading compared: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from typing import Final

from pgsweep.records.load import LoadCompareResult, LoadPractice
from pgsweep.ui.kit.numbers import count, counted, format_bytes, seconds
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import Column, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import Rows, View

_COLUMNS: Final[list[Column[LoadPractice]]] = [
    Column("practice", lambda one: one.practice, left=True),
    Column("seconds", lambda one: seconds(sorted(one.seconds)[len(one.seconds) // 2])),
    Column("rows/s", lambda one: count(one.rows_per_second)),
    Column("against COPY", lambda one: f"{one.ratio_to_copy:.2f}"),
    Column("remark", lambda one: one.remark, left=True),
]


def _title(result: LoadCompareResult) -> str:
    return (
        f"{result.table}: {counted(result.sample_rows, 'row')} of the file "
        f"({format_bytes(result.sample_bytes)}), "
        f"{counted(result.rounds, 'round')}, medians; measured on a copy of the table"
    )


def compare_text(result: LoadCompareResult, terminal: Terminal) -> str:
    """Return one line for each practice."""
    lines = [_title(result), "", Table(_COLUMNS, result.practices).text(terminal)]
    lines += [f"left out: {line}" for line in result.left_out]
    return "\n".join(lines) + "\n"


def compare_page(result: LoadCompareResult) -> Page:
    """Return the practices as one table."""
    lead = "Above 1: faster than COPY into the table as it stands."
    table = Table(_COLUMNS, result.practices)
    section = Section("Practices", "practices", lead, table=table, notes=result.left_out)
    best = max(result.practices, key=lambda practice: practice.ratio_to_copy, default=None)
    title = "Nothing was measured" if best is None else f"Fastest here: {best.practice}"
    return Page(title, _title(result) + ".", [section])


def _rows(result: LoadCompareResult) -> Rows:
    names = ("practice", "rows", "rows_per_second", "ratio_to_copy", "remark")
    return Rows(names, [[getattr(practice, name) for name in names] for practice in result.practices])


VIEW = View(LoadCompareResult, text=compare_text, page=compare_page, rows=_rows)
