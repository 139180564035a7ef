"""The curve in the terminal: braille dots where Unicode can be shown, letters where it cannot.

Points that were computed are drawn as marks; the lines between them only guide the eye.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgsweep.ui.kit.numbers import format_bytes
from pgsweep.ui.kit.scales import RatioAxis, SizeAxis, interpolate
from pgsweep.ui.kit.series import Kind, Series
from pgsweep.ui.kit.terminal import Paint, Terminal

_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of each dot of a braille cell by column and row (Unicode chapter 21.1)."""


_MARKS: dict[Kind, tuple[str, str]] = {"snapshots": ("●", "o"), "trace": ("▲", "^"), "measured": ("◆", "x")}
_PAINTS: dict[Kind, Paint] = {"snapshots": "blue", "trace": "yellow", "measured": "bold"}


def chart(
    series: Sequence[Series],
    terminal: Terminal,
    *,
    today_bytes: int | None = None,
    height: int = 14,
    most_columns: int = 100,
) -> str:
    """Return the chart of miss ratios over sizes as lines of text, with a legend.

    Args:
        series: what to draw; later ones lie on top.
        terminal: what can be shown.
        today_bytes: today's shared_buffers, marked by a vertical line.
        height: rows of the plot itself.
        most_columns: the chart is no wider than this, nor than the terminal.
    """
    sizes = [size for one in series for size in one.sizes_bytes] + ([today_bytes] if today_bytes else [])
    tops = [value for one in series for value in (*one.ratios, *one.highs)]
    y_axis = RatioAxis.up_to(max(tops, default=0.0))
    labels = {round((1 - y_axis.at(t)) * (height - 1)): f"{y_axis.label(t)}%" for t in y_axis.ticks()}
    gutter = max(len(label) for label in labels.values()) + 1
    columns = min(terminal.width, most_columns) - gutter - 5
    plot = _Plot(SizeAxis.around(sizes), y_axis, columns, height, terminal)

    for one in series:
        plot.band(one)
    if today_bytes:
        plot.vertical(today_bytes)
    for one in series:
        if one.is_curve:
            plot.line(one)
    for one in series:
        plot.marks(one)

    out = ["miss ratio"]
    for row in range(height):
        label = labels.get(row, "")
        rule = terminal.pick("┤" if label else "│", "+" if label else "|")
        out.append((f"{label:>{gutter}} {rule}" + plot.row(row)).rstrip())
    out += plot.bottom(gutter, today_bytes)
    most = min(terminal.width, most_columns)
    out += _legend(series, terminal, gutter, most=most, today=today_bytes is not None)
    return "\n".join(out)


def _legend(
    series: Sequence[Series], terminal: Terminal, gutter: int, *, most: int, today: bool
) -> list[str]:
    parts: list[tuple[str, str, Paint | None]] = [
        (terminal.pick(*_MARKS[one.kind]), one.label, _PAINTS[one.kind]) for one in series
    ]
    if any(one.lows for one in series):
        parts.append((terminal.pick("░", ":"), "90% interval", None))
    if today:
        parts.append((terminal.pick("┊", "|"), "today", None))
    lines: list[str] = []
    free = 0
    for mark, label, paint in parts:
        width = 3 + len(mark) + 1 + len(label)
        if free < width:
            lines.append(" " * (gutter - 1))
            free = most - gutter + 1
        lines[-1] += "   " + (terminal.paint(mark, paint) if paint else mark) + " " + label
        free -= width
    return lines


class _Plot:
    """A grid of character cells with braille dots over them."""

    def __init__(
        self, x_axis: SizeAxis, y_axis: RatioAxis, columns: int, rows: int, terminal: Terminal
    ) -> None:
        self._x, self._y, self._columns, self._rows, self._terminal = x_axis, y_axis, columns, rows, terminal
        self._cells = [[" "] * columns for _ in range(rows)]
        self._paints: list[list[Paint | None]] = [[None] * columns for _ in range(rows)]
        self._dots = [[0] * columns for _ in range(rows)]

    def _column(self, size_bytes: float) -> int:
        return round(self._x.at(size_bytes) * (self._columns - 1))

    def _height(self, ratio: float) -> float:
        """Return the row, counted from the top, with its fraction."""
        return (1 - self._y.at(ratio)) * (self._rows - 1)

    def _values_at(self, one: Series, values: Sequence[float], position: float) -> float | None:
        return interpolate([self._x.at(size) for size in one.sizes_bytes], values, position)

    def band(self, one: Series) -> None:
        """Shade the cells that the interval covers."""
        if not one.lows:
            return
        for column in range(self._columns):
            position = column / max(1, self._columns - 1)
            low, high = (self._values_at(one, values, position) for values in (one.lows, one.highs))
            if low is None or high is None:
                continue
            for row in range(round(self._height(high)), round(self._height(low)) + 1):
                self._put(column, row, self._terminal.pick("░", ":"), "dim")

    def vertical(self, size_bytes: int) -> None:
        """Draw the line of today's size behind the curves."""
        for row in range(self._rows):
            self._put(self._column(size_bytes), row, self._terminal.pick("┊", "|"), "dim")

    def line(self, one: Series) -> None:
        """Join the points by straight segments."""
        per_cell = 2 if self._terminal.unicode else 1
        last: float | None = None
        for step in range(self._columns * per_cell):
            column = step // per_cell
            position = (step + 0.5 * (per_cell - 1)) / (self._columns * per_cell - 1)
            ratio = self._values_at(one, one.ratios, min(1.0, position))
            if ratio is None:
                last = None
                continue
            height = self._height(ratio)
            if not self._terminal.unicode:
                self._put(column, round(height), ".", _PAINTS[one.kind])
                continue
            dot = round((height + 0.5) * 4 - 0.5)
            start = dot if last is None else round((last + 0.5) * 4 - 0.5)
            for level in range(min(start, dot), max(start, dot) + 1):
                row, bit = divmod(min(level, self._rows * 4 - 1), 4)
                self._dots[row][column] |= _BRAILLE[step % 2][bit]
                self._paints[row][column] = _PAINTS[one.kind]
            last = height

    def marks(self, one: Series) -> None:
        """Draw the points that were computed or measured."""
        for size, ratio in zip(one.sizes_bytes, one.ratios, strict=True):
            column, row = self._column(size), round(self._height(ratio))
            self._dots[row][column] = 0
            self._put(column, row, self._terminal.pick(*_MARKS[one.kind]), _PAINTS[one.kind])

    def _put(self, column: int, row: int, character: str, paint: Paint | None) -> None:
        if 0 <= row < self._rows and 0 <= column < self._columns:
            self._cells[row][column] = character
            self._paints[row][column] = paint

    def row(self, row: int) -> str:
        """Return one row of the plot, in colours where there are any."""
        out = []
        for cell, dots, paint in zip(self._cells[row], self._dots[row], self._paints[row], strict=True):
            character = chr(0x2800 + dots) if dots else cell
            out.append(self._terminal.paint(character, paint) if paint and character != " " else character)
        return "".join(out)

    def bottom(self, gutter: int, today_bytes: int | None) -> list[str]:
        """Return the size axis: its rule, its values, and today's size beneath."""
        rule = [self._terminal.pick("─", "-")] * self._columns
        values = [" "] * (self._columns + 8)
        free = 0
        for size in self._x.ticks(max(2, self._columns // 9)):
            column, text = self._column(size), format_bytes(size)
            start = min(max(0, column - len(text) // 2), self._columns - len(text) + 2)
            if start < free:
                continue
            rule[column] = self._terminal.pick("┬", "+")
            values[start : start + len(text)] = text
            free = start + len(text) + 1
        corner = self._terminal.pick("└", "+")
        out = [" " * (gutter + 1) + corner + "".join(rule), (" " * (gutter + 2) + "".join(values)).rstrip()]
        if today_bytes:
            text = self._terminal.pick("▲", "^") + f" today {format_bytes(today_bytes)}"
            start = self._column(today_bytes)
            if start + len(text) > self._columns + 2:
                text = f"today {format_bytes(today_bytes)} " + self._terminal.pick("▲", "^")
                start = max(0, start - len(text) + 1)
            out.append(" " * (gutter + 2 + start) + text)
        return out
