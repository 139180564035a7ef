"""The pictures of a result as one SVG file, one below the other, with the colours of the page on paper."""

from __future__ import annotations

import re
from html import escape
from importlib import resources
from typing import Final

from pgsweep.errors import UsageError
from pgsweep.ui.kit.view import Result
from pgsweep.ui.results import plain, view_of

_VIEW_BOX: Final = re.compile(r'<svg class="([^"]*)" viewBox="0 0 ([\d.]+) ([\d.]+)"')
_RULE: Final = re.compile(r"^svg [^{}\n]+\{[^{}]*\}$", re.MULTILINE)
_COLOURS: Final = re.compile(r"^:root \{[^{}]*\}$", re.MULTILINE)
_FULL_WIDTH: Final = "svg.plot "
_TITLE_HEIGHT: Final = 40.0
_MARGIN: Final = 24.0
_FONTS: Final = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Noto Sans', 'DejaVu Sans', sans-serif"


def to_svg(result: Result) -> str:
    """Return all pictures of the result's page.

    Raises:
        UsageError: it has none.
    """
    page = view_of(result.schema).page(plain(result))
    parts: list[str] = []
    width, y = 0.0, _MARGIN
    for section in page.sections:
        for number, (svg, _) in enumerate(section.figures):
            found = _VIEW_BOX.search(svg)
            if found is None:
                continue
            if number == 0:
                y += _TITLE_HEIGHT
                parts.append(
                    f'<text class="label" x="{_MARGIN:.0f}" y="{y - 16:.0f}">{escape(section.title)}</text>'
                )
            wide, high = float(found[2]), float(found[3])
            place = f'x="{_MARGIN:.0f}" y="{y:.0f}" width="{wide:.0f}" height="{high:.0f}"'
            head = f'<svg class="{found[1]}" {place} viewBox="0 0 {found[2]} {found[3]}"'
            parts.append(svg.replace(found[0], head, 1))
            width, y = max(width, wide), y + high + _MARGIN
    if not parts:
        raise UsageError(
            "this result has no figures", cause=f"its schema is {result.schema}", hint="-o FILE.html"
        )
    sheet = resources.files("pgsweep.ui").joinpath("static", "report.css").read_text(encoding="utf-8")
    rules = [rule for rule in _RULE.findall(sheet) if not rule.startswith(_FULL_WIDTH)]
    width += 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{y:.0f}" '
            f'viewBox="0 0 {width:.0f} {y:.0f}" font-family="{_FONTS}">',
            f"<title>{escape(page.title)}</title>",
            f"<style>{' '.join([*_COLOURS.findall(sheet)[:1], *rules])}</style>",
            f'<rect width="{width:.0f}" height="{y:.0f}" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )
