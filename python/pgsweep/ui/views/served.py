"""Where page accesses are served from at each size: the pool, the page cache, or the disk; as one picture.

The disk is at the bottom, where it can be compared; the page cache lies on it; all above is the pool, which
serves nearly everything, so the axis ends a little above the misses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgsweep.ui.kit.numbers import factor, factors, format_bytes, percent
from pgsweep.ui.kit.plot import Frame, hits, open_svg, ratio_grid, size_grid, spread, text_svg
from pgsweep.ui.kit.scales import RatioAxis, SizeAxis
from pgsweep.ui.kit.section import Section

CAPTION = (
    "Of all page accesses, what is read from disk, what is found in the page cache, and, above both, what is "
    "found in shared_buffers, up to 100%. Bars: 90% interval of the disk reads. Diamond: misses measured."
)
BOUNDED_CAPTION = (
    "Of all page accesses, what is not found in shared_buffers, and above that what is. How much of it is "
    "read from disk is only bounded. Bars: at least and at most. Diamond: misses measured."
)

THROUGHPUT_CAPTION = (
    "Transactions per second against today's, for as many sessions. Band: 90% interval. At today's size it "
    "was measured."
)


@dataclass(frozen=True)
class Served:
    """Shares of the page accesses at one size.

    Attributes:
        misses: not found in the pool.
        disk: read from disk, a part of these; None where only its interval is known.
        low: of the disk's, the least.
        high: the most.
    """

    size_bytes: int
    misses: float
    disk: float | None
    low: float
    high: float


def served_svg(
    points: Sequence[Served], *, measured: Mapping[int, float], marks: Mapping[int, str], title: str
) -> str:
    """Return the picture as one SVG element; nothing for fewer than two sizes.

    Args:
        points: by size, ascending.
        measured: misses that were counted, by size.
        marks: sizes to be marked by a line, and the words at it.
        title: what the chart shows, for screen readers.
    """
    if len(points) < 2:
        return ""
    frame = Frame()
    x_axis = SizeAxis.around([point.size_bytes for point in points])
    y_axis = RatioAxis.up_to(max(max(point.misses, point.high) for point in points) * 1.15)
    xs = [frame.x(x_axis.at(point.size_bytes)) for point in points]

    def area(css_class: str, lower: Sequence[float], upper: Sequence[float]) -> str:
        top = [f"{x:.1f} {frame.y(y_axis.at(value)):.1f}" for x, value in zip(xs, upper, strict=True)]
        base = [f"{x:.1f} {frame.y(y_axis.at(value)):.1f}" for x, value in zip(xs, lower, strict=True)]
        return f'<path class="served {css_class}" d="M{" L".join([*top, *reversed(base)])}Z"/>'

    none = [0.0] * len(points)
    misses = [point.misses for point in points]
    known = all(point.disk is not None for point in points)
    disk = [point.disk or 0.0 for point in points] if known else none
    out = [open_svg(frame, title)]
    out.append(area("s-pool", misses, [y_axis.high] * len(points)))
    out.append(area("s-page_cache" if known else "s-either", disk, misses))
    if known:
        out.append(area("s-disk", none, disk))
    out += ratio_grid(frame, y_axis, "percent of page accesses")
    out += size_grid(frame, x_axis, label="shared_buffers, logarithmic")
    out += marked_sizes(frame, x_axis, marks)
    for x, point in zip(xs, points, strict=True):
        top, bottom = (frame.y(y_axis.at(value)) for value in (point.high, point.low))
        out.append(f'<path class="interval s-line" d="M{x:.1f} {top:.1f}V{bottom:.1f}m-4 0h8"/>')
        out.append(f'<path class="cap s-line" d="M{x - 4:.1f} {top:.1f}h8"/>')
    for size, value in measured.items():
        x, y = frame.x(x_axis.at(size)), frame.y(y_axis.at(value))
        out.append(f'<path class="mark k-measured" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z"/>')
    last = points[-1]
    heights = [("in shared_buffers", (last.misses + y_axis.high) / 2, "s-pool")]
    if known:
        heights.append(("in the page cache", (last.misses + disk[-1]) / 2, "s-page_cache"))
        heights.append(("from disk", disk[-1] / 2, "s-disk"))
    else:
        heights.append(("page cache or disk", last.misses / 2, "s-either"))
    out += _ends(frame, [(frame.y(y_axis.at(value)), text, kind) for text, value, kind in heights])
    tips = {point.size_bytes: _tip(point, marks) for point in points}
    out += hits(frame, x_axis, tips)
    out.append("</svg>")
    return "\n".join(out)


def _tip(point: Served, marks: Mapping[int, str]) -> str:
    lines = [format_bytes(point.size_bytes)]
    if point.size_bytes in marks:
        lines[0] += f" ({marks[point.size_bytes]})"
    lines.append(f"in shared_buffers {percent(1 - point.misses)}")
    if point.disk is not None:
        lines.append(f"in the page cache {percent(point.misses - point.disk)}")
        lines.append(f"from disk {percent(point.disk)}")
    lines.append(f"from disk {percent(point.low)} to {percent(point.high)} (90% interval)")
    return "\n".join(lines)


@dataclass(frozen=True)
class Loop:
    """Throughput at one size, divided by today's."""

    size_bytes: int
    ratio: float
    low: float
    high: float


def throughput_svg(points: Sequence[Loop], *, marks: Mapping[int, str], title: str) -> str:
    """Return the throughput by size with its interval as one SVG element; nothing for fewer than two sizes.

    Args:
        points: by size, ascending.
        marks: sizes to be marked by a line, and the words at it.
        title: what the chart shows, for screen readers.
    """
    if len(points) < 2:
        return ""
    frame = Frame(height=300)
    x_axis = SizeAxis.around([point.size_bytes for point in points], margin=0.03)
    y_axis = RatioAxis.up_to(max(point.high for point in points))
    out = [open_svg(frame, title)]
    out += ratio_grid(frame, y_axis, "throughput, percent of today's")
    out += size_grid(frame, x_axis, label="shared_buffers, logarithmic")
    out += marked_sizes(frame, x_axis, marks)
    today = frame.y(y_axis.at(1.0))
    out.append(f'<path class="base" d="M{frame.left:g} {today:.1f}H{frame.end:g}"/>')
    places = [(frame.x(x_axis.at(one.size_bytes)), one) for one in points]
    upper = [f"{x:.1f} {frame.y(y_axis.at(one.high)):.1f}" for x, one in places]
    lower = [f"{x:.1f} {frame.y(y_axis.at(one.low)):.1f}" for x, one in places]
    out.append(f'<path class="band k-trace" d="M{" L".join([*upper, *reversed(lower)])}Z"/>')
    line = [f"{x:.1f} {frame.y(y_axis.at(one.ratio)):.1f}" for x, one in places]
    out.append(f'<path class="line k-trace" d="M{" L".join(line)}"/>')
    for x, one in places:
        y = frame.y(y_axis.at(one.ratio))
        out.append(f'<path class="mark k-trace" d="M{x:.1f} {y - 5.5:.1f}l5 9h-10Z"/>')
    out += _ends(frame, [(frame.y(y_axis.at(points[-1].ratio)), "predicted", "k-trace")])
    tips = {
        one.size_bytes: f"{format_bytes(one.size_bytes)}\nthroughput {factor(one.ratio, 'times')} today's\n"
        f"90% interval {factors(one.low, one.high)}"
        for one in points
    }
    out += hits(frame, x_axis, tips)
    out.append("</svg>")
    return "\n".join(out)


def served_section(
    points: Sequence[Served], loop: Sequence[Loop], marks: Mapping[int, str], lead: str, *, measured: float
) -> Section | None:
    """Return both pictures as a part of a page; None where there is none.

    Args:
        points: by size, ascending.
        loop: the throughput at these, where it is predicted.
        marks: sizes to be marked, and the words at them; the first is today's.
        lead: the sentence below the title.
        measured: misses that were counted today.
    """
    today = next(iter(marks))
    marks = {size: word for size, word in marks.items() if any(one.size_bytes == size for one in points)}
    counted = {today: measured} if today in marks else {}
    title = "What serves the page accesses at each size"
    caption = BOUNDED_CAPTION if any(one.disk is None for one in points) else CAPTION
    figures = [
        (served_svg(points, measured=counted, marks=marks, title=title), caption),
        (throughput_svg(loop, marks=marks, title="Throughput at each size"), THROUGHPUT_CAPTION),
    ]
    figures = [figure for figure in figures if figure[0]]
    if not figures:
        return None
    return Section("What serves the page accesses", "served", lead, figures=figures)


def marked_sizes(frame: Frame, axis: SizeAxis, marks: Mapping[int, str]) -> list[str]:
    """Return a line at each marked size, with its words above."""
    out = []
    for number, (size, words) in enumerate(sorted(marks.items())):
        x = frame.x(axis.at(size))
        lift = 14 * (number % 2)
        out.append(f'<path class="today" d="M{x:.1f} {frame.top - 8 - lift:g}V{frame.base:g}"/>')
        label = f"{words}: {format_bytes(size)}"
        out.append(text_svg("today-label", x + 6, frame.top - 2 - lift, label))
    return out


def _ends(frame: Frame, ends: Sequence[tuple[float, str, str]]) -> list[str]:
    """Write the names of areas or lines at the right edge, each beside its colour."""
    out = []
    ordered = sorted(ends)
    for (y, text, kind), at in zip(ordered, spread([y for y, _, _ in ordered], frame.base - 4), strict=True):
        out.append(f'<path class="leader" d="M{frame.end:g} {y:.1f}L{frame.end + 12:g} {at:.1f}"/>')
        out.append(
            f'<rect class="served {kind}" x="{frame.end + 15:g}" y="{at - 5:.1f}" width="10" height="10"/>'
        )
        out.append(text_svg("label", frame.end + 30, at + 4, text))
    return out
