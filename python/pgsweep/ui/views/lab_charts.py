"""Box plots, bars and lines of the lab's cells, as SVG; every run is shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from operator import itemgetter
from typing import Final

from pgsweep.errors import UsageError
from pgsweep.records.lab import LabCell, LabPlot
from pgsweep.ui.kit.numbers import figure
from pgsweep.ui.kit.plot import text_svg
from pgsweep.ui.kit.scales import round_steps
from pgsweep.ui.views.lab_figures import value_text
from pgsweep.units import parse_bytes

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 880.0, 400.0, 86.0, 24.0, 58.0, 76.0
_PLOT_WIDTH, _BASE = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM
_COLOURS: Final = ("k-snapshots", "k-trace", "k-measured")
_LONGEST_LABEL: Final = 26
_TURNED_FROM: Final = 14
"""Labels of at least this many letters are turned where they would overlap."""

_TURNED_HEIGHT: Final = 50.0

_LEAST_LOG: Final = 1e-12
"""The smallest value on a logarithmic axis."""

_LEAST_DECADES: Final = 0.3
_FEW_TICKS_BELOW: Final = 8.0
"""Below this ratio of the largest value to the smallest on a logarithmic axis there are about two lines."""

_MOST_DECADES: Final = 15
_MOST_DIGITS: Final = 15


@dataclass(frozen=True)
class _Axis:
    """Values to heights."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool

    def y(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return _BASE - min(1.0, max(0.0, part)) * (_BASE - _TOP)


def plot_svg(plot: LabPlot, cells: Sequence[LabCell]) -> str:
    """Return the picture as one SVG element, or None if none of its cells has a run."""
    chosen = [
        cell
        for cell in cells
        if cell.runs
        and plot.x in cell.factors
        and all(cell.factors.get(name) == value for name, value in plot.where.items())
        and not (plot.log and min(cell.runs) < _LEAST_LOG)
    ]
    if not chosen:
        return ""
    unit = chosen[0].unit
    chosen = [cell for cell in chosen if cell.unit == unit]
    colours = list(dict.fromkeys(cell.factors.get(plot.colour, "") for cell in chosen))[: len(_COLOURS)]
    names = list(dict.fromkeys(cell.factors[plot.x] for cell in chosen))
    places, step = _places(names, bars=plot.kind == "bars")
    axis = _axis([run for cell in chosen for run in cell.runs], unit, log=plot.log)
    turned = _turned(places)
    height = _HEIGHT + (_TURNED_HEIGHT if turned else 0)
    out = [
        f'<svg class="plot" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" '
        f'aria-label="{escape(plot.title)}" xmlns="http://www.w3.org/2000/svg">',
        text_svg("axis-title", _LEFT - 62, 20, plot.title + (", logarithmic" if plot.log else "")),
        *_grid(axis, unit),
        *_labels(places, turned=turned),
        text_svg("axis-title", _WIDTH - _RIGHT, height - 6, plot.x, "end"),
        *(_legend(plot.colour, colours) if plot.colour else []),
    ]
    for number, colour in enumerate(colours):
        mine = [cell for cell in chosen if cell.factors.get(plot.colour, "") == colour]
        shift = step * (number - (len(colours) - 1) / 2)
        placed = [
            (places[cell.factors[plot.x]] + (0 if plot.kind == "lines" else shift), cell) for cell in mine
        ]
        out += _series(plot, axis, placed, step, _COLOURS[number])
    out.append("</svg>")
    return "\n".join(out)


def _series(
    plot: LabPlot, axis: _Axis, placed: Sequence[tuple[float, LabCell]], step: float, colour: str
) -> list[str]:
    out = []
    if plot.kind == "lines" and len(placed) > 1:
        points = [
            f"{x:.1f} {axis.y(statistics.median(cell.runs)):.1f}"
            for x, cell in sorted(placed, key=itemgetter(0))
        ]
        out.append(f'<path class="line {colour}" d="M{" L".join(points)}"/>')
    for x, cell in placed:
        median = statistics.median(cell.runs)
        tip = f"{cell.key}: median {value_text(median, cell.unit)} of {len(cell.runs)}"
        out.append(f"<g><title>{escape(tip)}</title>")
        if plot.kind == "boxes":
            out += _box(axis, x, cell.runs, step * 0.8, colour)
        elif plot.kind == "bars":
            y = axis.y(median)
            out.append(
                f'<rect class="fill {colour}" x="{x - step * 0.42:.1f}" y="{y:.1f}" '
                f'width="{step * 0.84:.1f}" height="{max(0.0, _BASE - y):.1f}"/>'
            )
        if plot.kind != "boxes":
            out += [
                f'<circle class="dot {colour}" cx="{x:.1f}" cy="{axis.y(run):.1f}" r="2.5"/>'
                for run in cell.runs
            ]
        out.append("</g>")
    return out


def _box(axis: _Axis, x: float, runs: Sequence[float], width: float, colour: str) -> list[str]:
    """Return a box from the first to the third quartile, whiskers to the ends, and every run as a dot."""
    low, middle, high = _quartiles(runs)
    top, bottom = axis.y(high), axis.y(low)
    left = x - width / 2
    return [
        f'<path class="whisker {colour}" d="M{x:.1f} {axis.y(max(runs)):.1f}V{axis.y(min(runs)):.1f}"/>',
        f'<rect class="box {colour}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
        f'height="{max(1.0, bottom - top):.1f}"/>',
        f'<path class="middle {colour}" d="M{left:.1f} {axis.y(middle):.1f}h{width:.1f}"/>',
        *(f'<circle class="dot {colour}" cx="{x:.1f}" cy="{axis.y(run):.1f}" r="1.8"/>' for run in runs),
    ]


def _quartiles(runs: Sequence[float]) -> tuple[float, float, float]:
    if len(runs) < 2:
        return runs[0], runs[0], runs[0]
    low, middle, high = statistics.quantiles(runs, n=4, method="inclusive")
    return low, middle, high


def _places(names: Sequence[str], *, bars: bool) -> tuple[dict[str, float], float]:
    """Return the x of each name, and how wide one of its marks may be.

    Sizes are placed by their logarithm, numbers by their value, all else side by side; bars always so.
    """
    sizes = None if bars else _sizes(names)
    if sizes is None or len(names) < 2:
        room = _PLOT_WIDTH / max(1, len(names))
        return {name: _LEFT + room * (index + 0.5) for index, name in enumerate(names)}, min(44.0, room / 3.2)
    low, high = min(sizes), max(sizes)
    if low == high:
        return _places(names, bars=True)
    places = {
        name: _LEFT + 24 + (size - low) / (high - low) * (_PLOT_WIDTH - 48)
        for name, size in zip(names, sizes, strict=True)
    }
    ordered = sorted(places.values())
    nearest = min(after - before for before, after in pairwise(ordered))
    return places, max(3.0, min(18.0, nearest / 2.3))


def _sizes(names: Sequence[str]) -> list[float] | None:
    """Return numbers as they are, sizes by their logarithm; None where a name is neither."""
    if all(name.isdecimal() and len(name) < _MOST_DIGITS for name in names):
        return [float(name) for name in names]
    try:
        sizes = [parse_bytes(name) for name in names]
    except UsageError:
        return None
    return [math.log2(size) for size in sizes] if min(sizes) > 0 else None


def _axis(values: Sequence[float], unit: str, *, log: bool) -> _Axis:
    if not log:
        most = max(*values, _LEAST_LOG)
        power = 1024.0 ** max(0, math.floor(math.log(most, 1024))) if unit == "bytes" else 1.0
        step, count = round_steps(most / power, 3, 7)
        ticks = [power * step * index for index in range(count + 1)]
        return _Axis(0.0, ticks[-1], ticks, log=False)
    low, high = min(values), max(values)
    if math.log10(high / low) < _LEAST_DECADES:
        low, high = low / 1.5, high * 1.5
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors: tuple[float, ...] = (1, 2, 5) if last - first <= 3 else (1,)
    if high / low < _FEW_TICKS_BELOW:
        factors = (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [
        factor * 10.0**power
        for power in range(first, min(last, first + _MOST_DECADES) + 1)
        for factor in factors
        if low * 0.8 <= factor * 10.0**power <= high * 1.25
    ]
    return _Axis(min([low * 0.9, *ticks]), max([high * 1.1, *ticks]), ticks, log=True)


def _grid(axis: _Axis, unit: str) -> list[str]:
    out = []
    for tick in axis.ticks:
        y = axis.y(tick)
        kind = "base" if tick == 0 else "grid"
        out.append(f'<path class="{kind}" d="M{_LEFT:.0f} {y:.1f}h{_PLOT_WIDTH:.0f}"/>')
        shown = f"{figure(100 * tick)}%" if unit == "ratio" else value_text(tick, unit)
        out.append(text_svg("tick", _LEFT - 10, y + 4, shown, "end"))
    return out


def _turned(places: dict[str, float]) -> bool:
    """Return whether the labels do not fit side by side."""
    ordered = sorted(places.values())
    room = min((after - before for before, after in pairwise(ordered)), default=_PLOT_WIDTH)
    longest = max(len(name) for name in places)
    return longest * 7 > room and longest >= _TURNED_FROM


def _labels(places: dict[str, float], *, turned: bool) -> list[str]:
    out = []
    ordered = sorted(places.items(), key=lambda place: place[1])
    written = -math.inf
    for name, x in ordered:
        out.append(f'<path class="notch" d="M{x:.1f} {_BASE:.0f}v5"/>')
        shown = name if len(name) <= _LONGEST_LABEL else f"{name[: _LONGEST_LABEL - 1]}…"
        if turned:
            out.append(
                f'<text class="tick" text-anchor="end" transform="translate({x + 4:.1f} {_BASE + 14:.0f}) '
                f'rotate(-36)"><title>{escape(name)}</title>{escape(shown)}</text>'
            )
        elif x - written > 7 * len(shown) + 8:
            out.append(text_svg("tick", x, _BASE + 20, shown, "middle"))
            written = x
    return out


def _legend(factor: str, colours: Sequence[str]) -> list[str]:
    """Return the colours with their values, at the upper right."""
    out = []
    x = _WIDTH - _RIGHT
    for number in range(len(colours) - 1, -1, -1):
        x -= 7.8 * len(colours[number])
        out.append(text_svg("label", x, 40, colours[number]))
        x -= 16
        out.append(f'<rect class="fill {_COLOURS[number]}" x="{x:.1f}" y="30" width="11" height="11"/>')
        x -= 18
    out.append(text_svg("axis-title", x, 40, factor, "end"))
    return out
