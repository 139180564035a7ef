"""The practices of loading compared: as text, as a page, as rows. Everything here was measured."""

from __future__ import annotations

from pgsweep.records.load import LoadCompareResult, LoadPractice
from pgsweep.ui.numbers import count, format_bytes, seconds
from pgsweep.ui.section import Cell, Page, Section
from pgsweep.ui.table import Column, table
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.view import Rows, View

_HEAD = ["practice", "seconds", "rows/s", "against COPY", "remark"]


def _cells(practice: LoadPractice) -> list[str]:
    middle = sorted(practice.seconds)[len(practice.seconds) // 2]
    return [
        practice.practice,
        seconds(middle),
        count(practice.rows_per_second),
        f"{practice.ratio_to_copy:.2f}",
        practice.remark,
    ]


def _title(result: LoadCompareResult) -> str:
    return (
        f"{result.table}: {count(result.sample_rows)} rows of the file "
        f"({format_bytes(result.sample_bytes)}), "
        f"{result.rounds} rounds, medians; measured on a copy of the table"
    )


def compare_text(result: LoadCompareResult, terminal: Terminal) -> str:
    """Return one line for each practice."""
    columns = [
        Column(_HEAD[0], left=True),
        *(Column(word) for word in _HEAD[1:4]),
        Column(_HEAD[4], left=True),
    ]
    lines = [_title(result), "", table(columns, [_cells(entry) for entry in result.practices], terminal)]
    lines += [f"left out: {line}" for line in result.left_out]
    return "\n".join(lines) + "\n"


def compare_page(result: LoadCompareResult) -> Page:
    """Return the practices as one table."""
    rows = [[Cell(text) for text in _cells(practice)] for practice in result.practices]
    section = Section(
        "Practices",
        "practices",
        "Above 1: faster than COPY into the table as it stands.",
        [],
        [],
        [],
        _HEAD,
        rows,
        notes=result.left_out,
        worded=[4],
    )
    best = max(result.practices, key=lambda practice: practice.ratio_to_copy, default=None)
    title = "Nothing was measured" if best is None else f"Fastest here: {best.practice}"
    return Page(title, _title(result) + ".", [section])


def _rows(result: LoadCompareResult) -> Rows:
    names = ("practice", "rows", "rows_per_second", "ratio_to_copy", "remark")
    return Rows(names, [[getattr(practice, name) for name in names] for practice in result.practices])


VIEW = View(LoadCompareResult, text=compare_text, page=compare_page, rows=_rows)
