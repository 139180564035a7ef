"""The curve as SVG, drawn here so that a page can be read without scripts and without a network.

Every kind of number has its own mark and its own words besides its colour: predicted from snapshots (round
marks, solid line), predicted from a trace (triangles, dashed line), measured (diamonds, no line). The colours
are those of Okabe and Ito, which colour-blind people can distinguish; the style sheet holds them, for light,
dark and paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from pgsweep.ui.kit.numbers import format_bytes, percent, points
from pgsweep.ui.kit.plot import Frame, hits, open_svg, ratio_grid, size_grid, spread, text_svg
from pgsweep.ui.kit.scales import RatioAxis, SizeAxis
from pgsweep.ui.kit.series import Kind, Series


def curve_svg(series: Sequence[Series], *, today_bytes: int | None, title: str, tips: dict[int, str]) -> str:
    """Return the curves with their intervals and points as one SVG element.

    Args:
        series: what to draw; later ones lie on top.
        today_bytes: the size at which the server was observed, marked by a line.
        title: what the chart shows, for screen readers.
        tips: for every size in bytes the text to show when it is pointed at.
    """
    frame = Frame()
    sizes = [size for one in series for size in one.sizes_bytes] + ([today_bytes] if today_bytes else [])
    x_axis = SizeAxis.around(sizes, margin=0.03)
    y_axis = RatioAxis.up_to(max(value for one in series for value in (*one.ratios, *one.highs)))

    out = [open_svg(frame, title)]
    out += ratio_grid(frame, y_axis, "misses, percent of page accesses")
    out += size_grid(frame, x_axis, label="shared_buffers, logarithmic")
    if today_bytes:
        out += _today(frame, x_axis, today_bytes)
    out += [_band(frame, x_axis, y_axis, one) for one in series if one.lows]
    for one in series:
        if one.is_curve and len(one.sizes_bytes) > 1:
            places = _places(frame, x_axis, y_axis, one.sizes_bytes, one.ratios)
            out.append(f'<path class="line k-{one.kind}" d="M{" L".join(places)}"/>')
    out += _labels(frame, x_axis, y_axis, series)
    for one in series:
        for size, ratio in zip(one.sizes_bytes, one.ratios, strict=True):
            out.append(_mark(one.kind, frame.x(x_axis.at(size)), frame.y(y_axis.at(ratio))))
    out += hits(frame, x_axis, tips)
    out.append("</svg>")
    return "\n".join(out)


def error_svg(series: Sequence[Series], *, standard_errors: Mapping[int, float], title: str) -> str:
    """Return the predictions' errors and intervals around the measured values, which lie on the zero line.

    Args:
        series: the predicted curves, and the measured points at all of their sizes.
        standard_errors: of the measured values, by size in bytes, where they are known.
        title: what the chart shows, for screen readers.
    """
    frame = Frame(height=250, top=40, bottom=54)
    curves = [one for one in series if one.is_curve]
    measured = {
        size: ratio
        for one in series
        if not one.is_curve
        for size, ratio in zip(one.sizes_bytes, one.ratios, strict=True)
    }
    x_axis = SizeAxis.around(list(measured), margin=0.03)
    farthest = max(
        (
            abs(value - measured[size])
            for one in curves
            for values in (one.ratios, one.lows, one.highs)
            for size, value in zip(one.sizes_bytes, values, strict=True)
        ),
        default=0.0,
    )
    y_axis = RatioAxis.about_zero(max(farthest, 5e-4))

    out = [open_svg(frame, title)]
    out += ratio_grid(frame, y_axis, "predicted minus measured, percentage points", zero=True)
    out += size_grid(frame, x_axis, label="shared_buffers, logarithmic")
    for size, standard_error in standard_errors.items():
        x = frame.x(x_axis.at(size))
        top, bottom = (frame.y(y_axis.at(s * standard_error)) for s in (1, -1))
        out.append(
            f'<rect class="truth" x="{x - 16:.1f}" y="{top:.1f}" width="32" height="{bottom - top:.1f}"/>'
        )
    ends: list[tuple[float, str, Kind]] = [(frame.y(y_axis.at(0.0)), "measured", "measured")]
    for index, one in enumerate(curves):
        shift = 9.0 * (index - (len(curves) - 1) / 2)
        for size, ratio, low, high in zip(one.sizes_bytes, one.ratios, one.lows, one.highs, strict=True):
            x, truth = frame.x(x_axis.at(size)) + shift, measured[size]
            top, bottom = (frame.y(y_axis.at(value - truth)) for value in (high, low))
            tip = (
                f"{format_bytes(size)}, {one.label}: error {points(ratio - truth)}, "
                f"interval {points(low - truth)} to {points(high - truth)} percentage points"
            )
            out.append(f'<g class="bar k-{one.kind}"><title>{escape(tip)}</title>')
            out.append(f'<path class="interval" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>')
            out.append(
                f'<path class="cap" d="M{x - 4:.1f} {top:.1f}h8M{x - 4:.1f} {bottom:.1f}h8"/>'
                + _mark(one.kind, x, frame.y(y_axis.at(ratio - truth)))
                + "</g>"
            )
        end = one.ratios[-1] - measured[one.sizes_bytes[-1]]
        ends.append((frame.y(y_axis.at(end)), one.label, one.kind))
    out += _end_labels(frame, ends)
    out.append("</svg>")
    return "\n".join(out)


def _today(frame: Frame, axis: SizeAxis, today_bytes: int) -> list[str]:
    x = frame.x(axis.at(today_bytes))
    return [
        f'<path class="today" d="M{x:.1f} {frame.top - 14:g}V{frame.base:g}"/>',
        text_svg("today-label", x + 6, frame.top - 6, f"observed at {format_bytes(today_bytes)}"),
    ]


def _places(
    frame: Frame, x_axis: SizeAxis, y_axis: RatioAxis, sizes: Sequence[int], values: Sequence[float]
) -> list[str]:
    return [
        f"{frame.x(x_axis.at(size)):.1f} {frame.y(y_axis.at(value)):.1f}"
        for size, value in zip(sizes, values, strict=True)
    ]


def _band(frame: Frame, x_axis: SizeAxis, y_axis: RatioAxis, one: Series) -> str:
    if len(one.sizes_bytes) == 1:
        x = frame.x(x_axis.at(one.sizes_bytes[0]))
        top, bottom = frame.y(y_axis.at(one.highs[0])), frame.y(y_axis.at(one.lows[0]))
        return f'<path class="interval k-{one.kind}" d="M{x:.1f} {top:.1f}V{bottom:.1f}"/>'
    upper = _places(frame, x_axis, y_axis, one.sizes_bytes, one.highs)
    lower = _places(frame, x_axis, y_axis, one.sizes_bytes, one.lows)
    return f'<path class="band k-{one.kind}" d="M{" L".join([*upper, *reversed(lower)])}Z"/>'


def _mark(kind: Kind, x: float, y: float) -> str:
    if kind == "snapshots":
        return f'<circle class="mark k-{kind}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
    if kind == "trace":
        return f'<path class="mark k-{kind}" d="M{x:.1f} {y - 5.5:.1f}l5 9h-10Z"/>'
    return f'<path class="mark k-{kind}" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z"/>'


def _labels(frame: Frame, x_axis: SizeAxis, y_axis: RatioAxis, series: Sequence[Series]) -> list[str]:
    """Write each series' name at its right end; a lone measured point is named beside itself."""
    ends: list[tuple[float, str, Kind]] = []
    out = []
    for one in series:
        y = frame.y(y_axis.at(one.ratios[-1]))
        if not one.is_curve and len(one.sizes_bytes) == 1:
            x = frame.x(x_axis.at(one.sizes_bytes[0]))
            text = f"{one.label} {percent(one.ratios[0])}"
            out.append(text_svg(f"label k-{one.kind}", x + 12, y - 10, text))
        else:
            ends.append((y, one.label, one.kind))
    return out + _end_labels(frame, ends)


def _end_labels(frame: Frame, ends: Sequence[tuple[float, str, Kind]]) -> list[str]:
    """Write labels at the right edge, pushed apart where they would overlap, led to by thin lines."""
    out: list[str] = []
    ordered = sorted(ends, key=lambda end: end[0])
    placed = spread([y for y, _, _ in ordered], frame.base - 4)
    for (y, text, kind), at in zip(ordered, placed, strict=True):
        out.append(f'<path class="leader" d="M{frame.end - 8:g} {y:.1f}L{frame.end + 12:g} {at:.1f}"/>')
        out.append(_mark(kind, frame.end + 20, at))
        out.append(text_svg(f"label k-{kind}", frame.end + 30, at + 4, text))
    return out
