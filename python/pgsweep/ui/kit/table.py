"""Tables of plain text: units in the headers, numbers flush right, nothing cut off."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Final, Generic, Literal, TypeVar

from pgsweep.ui.kit.terminal import Terminal

HERE: Final = "◀ "
"""Begins a remark on a row that is pointed at on a terminal."""

Measured, Predicted = "measured", "predicted"
"""The kinds of numbers, as the page names them and the style sheet colours them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a value, and a word of remark where it needs one; `code` is to be copied."""

    text: str
    note: str = ""
    code: bool = False

    @property
    def joined(self) -> str:
        """Value and remark in one line."""
        return f"{self.text} ({self.note})" if self.note else self.text


@dataclass(frozen=True)
class Group:
    """Words over neighbouring columns of a page's table, and the kind of number beneath them."""

    text: str = ""
    kind: str = ""


MEASURED, PREDICTED, NO_GROUP = Group(Measured, Measured), Group(Predicted, Predicted), Group()


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a view, declared once for the terminal and for the page.

    Attributes:
        header: on the terminal; line breaks make several lines of it, and spaces on the page.
        cell: what a row has there, as it shall be read.
        left: words, flush left; else a number.
        rank: on a narrow terminal the highest gives way first; where all are 0 none does.
        group: what stands above it on the page.
        page: the header on the page, where there is room for more words.
        note: a remark below the cell on the page.
        only: `text` or `page` where it stands in one of them only.
    """

    header: str
    cell: Callable[[T], str | Cell]
    left: bool = False
    rank: int = 0
    group: Group = NO_GROUP
    page: str = ""
    note: Callable[[T], str] | None = None
    only: Literal["", "text", "page"] = ""

    @property
    def title(self) -> str:
        """The header on the page."""
        return self.page or self.header.replace("\n", " ")


def predicted(
    header: str, cells: Callable[[T], tuple[str, str]], rank: int = 0, rank_of_interval: int = 0
) -> list[Column[T]]:
    """Return the columns of a predicted value and its interval, which stands below the value on a page."""
    interval: Column[T] = Column(
        "90% interval", lambda row: cells(row)[1], rank=rank_of_interval, only="text"
    )
    value: Column[T] = Column(
        header, lambda row: cells(row)[0], rank=rank, group=PREDICTED, note=lambda row: cells(row)[1]
    )
    return [value, interval]


@dataclass(frozen=True)
class Table(Generic[T]):
    """A table: its columns and rows.

    Attributes:
        columns: in order.
        rows: what the columns take their cells from.
        marked: the index of a row to set off (today's size); its remark should say why, as words.
        remarks: one a row: the last column on a terminal, below the row's name on a page.
        by_size: the rows are those of sizes, ascending; on a terminal those at the end that say the same are
            one.
    """

    columns: Sequence[Column[T]]
    rows: Sequence[T]
    marked: int | None = None
    remarks: Sequence[str] = ()
    by_size: bool = False

    def fields(self) -> list[Field]:
        """Return the columns of a terminal with their cells."""
        return [
            Field(one.header, [_joined(one.cell(row)) for row in self.rows], one.left, one.rank)
            for one in self.columns
            if one.only != "page"
        ]

    def room(self, terminal: Terminal) -> int:
        """Return how much of the terminal's width is left for the last column."""
        return terminal.width - table_width(self.fields()[:-1]) - 2

    def text(self, terminal: Terminal, *, wrap: int | None = None) -> str:
        """Return it as lines, without a line end after the last; see `table` and `fitted`.

        Args:
            terminal: what can be shown.
            wrap: the width to which the last column's words are broken; with 0 they are left out.
        """
        fields, marked = self.fields(), self.marked
        if wrap == 0:
            del fields[-1]
        elif wrap is not None:
            words = [textwrap.wrap(cell, wrap) or [""] for cell in fields[-1].cells]
            for at, field in enumerate(fields[:-1]):
                pairs = zip(field.cells, words, strict=True)
                below = ([cell] + [""] * (len(lines) - 1) for cell, lines in pairs)
                fields[at] = replace(field, cells=[*chain(*below)])
            fields[-1] = replace(fields[-1], cells=[*chain(*words)])
            marked = None if marked is None else sum(map(len, words[:marked]))
        if any(self.remarks):
            marks = [remark.replace(HERE, terminal.pick(HERE, "< ")) for remark in self.remarks]
            fields.append(Field("", marks, left=True, rank=min(1, max(field.rank for field in fields))))
        kept = fitted(fields, terminal)
        return table(_one_beyond(kept, marked) if self.by_size else kept, terminal, marked=marked)

    @property
    def shown(self) -> list[Column[T]]:
        """The columns of a page."""
        return [one for one in self.columns if one.only != "text"]

    @property
    def cells(self) -> list[list[Cell]]:
        """The cells of a page, by row."""
        rows = [[_cell(one, row) for one in self.shown] for row in self.rows]
        for cells, remark in zip(rows, self.remarks, strict=False):
            if remark:
                cells[0] = replace(cells[0], note=remark.replace(HERE, ""))
        return rows

    @property
    def groups(self) -> list[tuple[Group, int]]:
        """The words over the columns of a page, each with how many columns; none where no column has one."""
        groups = [(group, len(list(same))) for group, same in groupby(self.shown, lambda one: one.group)]
        return groups if len(groups) > 1 or groups[0][0] != NO_GROUP else []


@dataclass(frozen=True)
class Field:
    """A column with its cells, as a terminal shows it."""

    header: str
    cells: Sequence[str]
    left: bool = False
    rank: int = 0


def _joined(cell: str | Cell) -> str:
    return cell if isinstance(cell, str) else cell.joined


def _cell(column: Column[T], row: T) -> Cell:
    cell = column.cell(row)
    if isinstance(cell, str):
        cell = Cell(cell)
    return replace(cell, note=column.note(row)) if column.note is not None else cell


def table(fields: Sequence[Field], terminal: Terminal, *, marked: int | None = None) -> str:
    """Return the table as lines of text, without a line end after the last.

    Args:
        fields: the columns with their cells, in order.
        terminal: what can be shown; rules and bold letters only where a person reads.
        marked: the index of a row to set off.
    """
    headers = [field.header.split("\n") for field in fields]
    depth = max(len(lines) for lines in headers)
    head = [[""] * (depth - len(lines)) + lines for lines in headers]
    widths = [_width(field) for field in fields]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, width, field in zip(cells, widths, fields, strict=True):
            space = " " * (width - text_width(cell))
            padded.append(cell + space if field.left else space + cell)
        return "  ".join(padded).rstrip()

    out = [terminal.paint(line([lines[level] for lines in head]), "bold") for level in range(depth)]
    if terminal.interactive:
        out.append(terminal.paint("  ".join(terminal.pick("─", "-") * width for width in widths), "dim"))
    for index, row in enumerate(zip(*(field.cells for field in fields), strict=True)):
        text = line(row)
        out.append(terminal.paint(text, "bold", "cyan") if index == marked else text)
    return "\n".join(out)


def fitted(fields: Sequence[Field], terminal: Terminal) -> list[Field]:
    """Return the columns that fit: of a terminal that is too narrow those that matter least give way.

    The three that matter most always stay; only an interactive terminal limits the width.
    """
    kept = list(fields)
    while terminal.interactive and len(kept) > 3 and table_width(kept) > terminal.width:
        least = max(kept, key=lambda field: field.rank)
        if least.rank == 0:
            break
        kept.remove(least)
    return kept


def _one_beyond(fields: list[Field], marked: int | None) -> list[Field]:
    """Return the columns with one row for all at the end that say the same, as they hold all that is used.

    Where no cell of these has a number nothing is known of any, and today's stays a row of its own.
    """
    rows = [tuple(cells) for cells in zip(*(field.cells for field in fields[1:]), strict=True)]
    first = len(rows) - 1
    known = any(letter.isdigit() for cell in rows[-1] for letter in cell) if rows else False
    while first > 0 and first - 1 != marked and rows[first - 1] == rows[-1] and known:
        first -= 1
    if first >= len(rows) - 1 or first == marked:
        return fields
    sizes = fields[0].cells
    together = [f"{sizes[first]} to {sizes[-1]}", *rows[-1]]
    return [
        replace(field, cells=[*field.cells[:first], cell])
        for field, cell in zip(fields, together, strict=True)
    ]


def table_width(fields: Sequence[Field]) -> int:
    """Return how many columns of a terminal the table takes."""
    return sum(map(_width, fields)) + 2 * (len(fields) - 1)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of East Asia take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _width(field: Field) -> int:
    return max(text_width(text) for text in [*field.header.split("\n"), *field.cells])
