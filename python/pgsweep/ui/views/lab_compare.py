"""Two results of the lab side by side: as text, as a page, as rows."""

from __future__ import annotations

from pgsweep.records.lab import LabCompareResult, LabDifference
from pgsweep.ui.kit.numbers import figure
from pgsweep.ui.kit.section import Page, Section
from pgsweep.ui.kit.table import Column, Table
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.kit.view import View, listed


def compare_text(result: LabCompareResult, terminal: Terminal) -> str:
    """Return one line for each cell, and what must be known to read them."""
    parts = [terminal.paint(_title(result), "bold")]
    parts += ["\n".join(_differs(result))] if result.differs else []
    parts.append(_table(result).text(terminal))
    parts += ["\n".join(result.left_out)] if result.left_out else []
    parts += ["\n".join(f"warning: {line}" for line in result.warnings)] if result.warnings else []
    return "\n\n".join(parts) + "\n"


def compare_page(result: LabCompareResult) -> Page:
    """Return the cells as one table."""
    section = Section(
        title="Cells",
        ident="cells",
        lead=f"Medians over runs; the ratio is {result.second} over {result.first}, with its 95% interval.",
        table=_table(result),
        notes=[*_differs(result), *result.left_out],
    )
    return Page(
        _title(result),
        f"{result.name}: {result.first} and {result.second}.",
        [section],
        notes=result.warnings,
    )


def _table(result: LabCompareResult) -> Table[LabDifference]:
    columns: list[Column[LabDifference]] = [
        Column("cell", lambda cell: cell.key, left=True),
        Column(result.first, lambda cell: figure(cell.first_median)),
        Column(result.second, lambda cell: figure(cell.second_median)),
        Column("unit", lambda cell: cell.unit, left=True),
        Column("ratio", lambda cell: f"{cell.ratio:.3f}"),
        Column("95% interval", _interval),
        Column("verdict", _verdict, left=True),
    ]
    return Table(columns, result.cells)


def _interval(cell: LabDifference) -> str:
    return "–" if cell.low is None or cell.high is None else f"{cell.low:.3f} to {cell.high:.3f}"


def _verdict(cell: LabDifference) -> str:
    if cell.better and cell.verdict in ("higher", "lower"):
        return f"{cell.verdict}: {'better' if cell.verdict == cell.better else 'worse'}"
    return cell.verdict


def _title(result: LabCompareResult) -> str:
    shown = sum(cell.verdict in ("higher", "lower") for cell in result.cells)
    return f"{result.name}: {shown} of {len(result.cells)} cells differ"


def _differs(result: LabCompareResult) -> list[str]:
    return [f"{name}: {' and '.join(values)}" for name, values in result.differs.items()]


VIEW = View(LabCompareResult, text=compare_text, page=compare_page, rows=listed(LabDifference, "cells"))
