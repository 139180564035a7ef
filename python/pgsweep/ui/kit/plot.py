"""What every chart over sizes shares: the rectangle, the axes, labels that do not overlap, and tips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from pgsweep.ui.kit.numbers import format_bytes
from pgsweep.ui.kit.scales import RatioAxis, SizeAxis


@dataclass(frozen=True)
class Frame:
    """The chart and, within it, the rectangle of the plot; in SVG units, y downwards."""

    width: float = 880
    height: float = 400
    left: float = 62
    right: float = 184
    top: float = 46
    bottom: float = 54

    @property
    def plot_width(self) -> float:
        """Width of the plot's rectangle."""
        return self.width - self.left - self.right

    @property
    def plot_height(self) -> float:
        """Height of the plot's rectangle."""
        return self.height - self.top - self.bottom

    @property
    def base(self) -> float:
        """The lower edge of the plot's rectangle."""
        return self.height - self.bottom

    @property
    def end(self) -> float:
        """The right edge of the plot's rectangle."""
        return self.width - self.right

    def x(self, position: float) -> float:
        """Return the x of a position from 0 to 1 on the size axis."""
        return self.left + position * self.plot_width

    def y(self, position: float) -> float:
        """Return the y of a position from 0 to 1 on the ratio axis."""
        return self.base - position * self.plot_height


def open_svg(frame: Frame, title: str) -> str:
    """Return the beginning of the element.

    Args:
        frame: of the chart.
        title: what it shows, for screen readers.
    """
    return (
        f'<svg class="plot" viewBox="0 0 {frame.width:g} {frame.height:g}" role="img" '
        f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
    )


def ratio_grid(frame: Frame, axis: RatioAxis, label: str, *, zero: bool = False) -> list[str]:
    """Return the lines across and their values in percent.

    Args:
        frame: of the chart.
        axis: of the ratios.
        label: of the axis.
        zero: values are differences and have a sign.
    """
    out = [text_svg("axis-title", frame.left - 44, frame.top - 20, label)]
    for tick in axis.ticks():
        y = frame.y(axis.at(tick))
        text = axis.label(tick)
        if zero:
            sign = "" if abs(tick) < axis.step / 2 else "+" if tick > 0 else "−"
            text = sign + axis.label(abs(tick))
        else:
            text += " %"
        kind = "base" if abs(tick) < axis.step / 2 else "grid"
        out.append(f'<path class="{kind}" d="M{frame.left:g} {y:.1f}H{frame.end:g}"/>')
        out.append(text_svg("tick", frame.left - 10, y + 4, text, "end"))
    return out


def size_grid(frame: Frame, axis: SizeAxis, label: str) -> list[str]:
    """Return the marks of the sizes at the lower edge, and the label of the axis."""
    out = []
    for size in axis.ticks(9):
        x = frame.x(axis.at(size))
        out.append(f'<path class="notch" d="M{x:.1f} {frame.base:g}v5"/>')
        out.append(text_svg("tick", x, frame.base + 20, format_bytes(size), "middle"))
    out.append(text_svg("axis-title", frame.end, frame.base + 42, label, "end"))
    return out


def text_svg(css_class: str, x: float, y: float, text: str, anchor: str = "start") -> str:
    """Return a text at a place."""
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def spread(heights: Sequence[float], lowest: float, *, gap: float = 19.0) -> list[float]:
    """Return where labels of ascending heights are written: pushed apart where they would overlap.

    Args:
        heights: ascending, y downwards.
        lowest: none is written below.
        gap: between two of them.
    """
    placed: list[float] = []
    for y in heights:
        placed.append(max(y, placed[-1] + gap) if placed else y)
    overflow = bool(placed) and placed[-1] > lowest
    for index in range(len(placed) - 1, -1, -1):
        limit = placed[index + 1] - gap if index + 1 < len(placed) else lowest
        placed[index] = min(placed[index], limit) if overflow else placed[index]
    return placed


def hits(frame: Frame, axis: SizeAxis, tips: Mapping[int, str]) -> list[str]:
    """Return invisible columns, one a size, that show their text when pointed at or focused."""
    sizes = sorted(tips)
    xs = [frame.x(axis.at(size)) for size in sizes]
    edges = [frame.left, *((a + b) / 2 for a, b in pairwise(xs)), frame.end]
    out = []
    for index, size in enumerate(sizes):
        left, right = edges[index], edges[index + 1]
        out.append(
            f'<rect class="hit" tabindex="0" x="{left:.1f}" y="{frame.top:g}" width="{right - left:.1f}" '
            f'height="{frame.plot_height:g}" data-x="{xs[index]:.1f}">'
            f"<title>{escape(tips[size])}</title></rect>"
        )
    return out
