"""Tables of plain text: units in the headers, numbers flush right, nothing cut off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsweep.ui.terminal import Terminal


@dataclass(frozen=True)
class Column:
    """One column: its header (line breaks make several lines) and the side its text is flush with."""

    header: str
    left: bool = False


@dataclass(frozen=True)
class Field:
    """A column with its cells; of several the highest rank gives way first on a narrow terminal."""

    header: str
    rank: int
    cells: Sequence[str]
    left: bool = False

    @property
    def column(self) -> Column:
        """The column alone."""
        return Column(self.header, self.left)


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    terminal: Terminal,
    *,
    marked: int | None = None,
) -> str:
    """Return the table as lines of text, without a line end after the last.

    Args:
        columns: the columns, in order.
        rows: the cells as they shall be read; as many a row as there are columns.
        terminal: what can be shown; rules and bold letters only where a person reads.
        marked: the index of a row to set off (today's size); its last cell should say why, as words.
    """
    headers = [column.header.split("\n") for column in columns]
    depth = max(len(lines) for lines in headers)
    head = [[""] * (depth - len(lines)) + lines for lines in headers]
    widths = [_width(column, [row[index] for row in rows]) for index, column in enumerate(columns)]

    def line(cells: Sequence[str]) -> str:
        padded = []
        for cell, width, column in zip(cells, widths, columns, strict=True):
            space = " " * (width - text_width(cell))
            padded.append(cell + space if column.left else space + cell)
        return "  ".join(padded).rstrip()

    out = [terminal.paint(line([lines[level] for lines in head]), "bold") for level in range(depth)]
    if terminal.interactive:
        out.append(terminal.paint("  ".join(terminal.pick("─", "-") * width for width in widths), "dim"))
    for index, row in enumerate(rows):
        text = line(row)
        out.append(terminal.paint(text, "bold", "cyan") if index == marked else text)
    return "\n".join(out)


def one_beyond(rows: list[list[str]], marked: int | None) -> list[list[str]]:
    """Return the rows with one for all sizes at the end that say the same, as they hold all that is used.

    Args:
        rows: a size, and what is said of it; where there is no number nothing is known of any.
        marked: the row that stays one of its own.
    """
    first = len(rows) - 1
    known = any(letter.isdigit() for cell in rows[-1][1:] for letter in cell) if rows else False
    while first > 0 and first - 1 != marked and rows[first - 1][1:] == rows[-1][1:] and known:
        first -= 1
    if first >= len(rows) - 1 or first == marked:
        return rows
    return [*rows[:first], [f"{rows[first][0]} to {rows[-1][0]}", *rows[-1][1:]]]


def fitted_table(
    fields: Sequence[Field], terminal: Terminal, *, marked: int | None = None, by_size: bool = False
) -> str:
    """Return the table; on a terminal that is too narrow without the columns that matter least.

    Args:
        fields: the columns with their cells, in order; the three that matter most always stay.
        terminal: what can be shown; only an interactive one limits the width.
        marked: as for `table`.
        by_size: the rows are those of sizes, ascending; those at the end that say the same are one.
    """
    kept = list(fields)
    while terminal.interactive and len(kept) > 3 and table_width(kept) > terminal.width:
        kept.remove(max(kept, key=lambda field: field.rank))
    rows = [list(cells) for cells in zip(*(field.cells for field in kept), strict=True)]
    if by_size:
        rows = one_beyond(rows, marked)
    return table([field.column for field in kept], rows, terminal, marked=marked)


def table_width(fields: Sequence[Field]) -> int:
    """Return how many columns of a terminal the table takes."""
    return sum(_width(field.column, field.cells) for field in fields) + 2 * (len(fields) - 1)


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes: letters of East Asia take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _width(column: Column, cells: Sequence[str]) -> int:
    return max(text_width(text) for text in [*column.header.split("\n"), *cells])
