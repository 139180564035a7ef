"""The curves as one SVG file that needs no style sheet: transactions a second and hit ratio, by time."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 880.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 150.0, 34.0, 44.0
_COLOURS = {"restore": "#0072B2", "autoprewarm": "#D55E00", "cold": "#666666"}
"""Those of Okabe and Ito, which colour-blind people can tell apart."""
_DASHES = {"restore": "", "autoprewarm": "7 4", "cold": "2 4"}
_WORDS = {"restore": "warm restore", "autoprewarm": "autoprewarm", "cold": "no warming"}


def draw(runs: Sequence[dict[str, Any]], wanted_tps: float) -> str:
    """Return the picture of all runs.

    Args:
        runs: fields of `bench.Run`.
        wanted_tps: what counts as warm, drawn as a line.
    """
    end = max(run["seconds"][-1] for run in runs)
    top = 1.05 * max(max(run["tps"]) for run in runs)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {2 * _HEIGHT:g}" '
        'font-family="sans-serif" font-size="12" role="img" '
        'aria-label="Transactions a second and hit ratio after a cold start">',
        f'<rect width="{_WIDTH:g}" height="{2 * _HEIGHT:g}" fill="white"/>',
    ]
    out += _panel(0, end, top, "transactions a second", runs, ("seconds", "tps"))
    y = _y(0, wanted_tps / top)
    out.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#999" stroke-dasharray="1 3"/>')
    out.append(f'<text x="{_WIDTH - _RIGHT + 6}" y="{y + 4:.1f}" fill="#666">95 % of steady</text>')
    out += _panel(
        _HEIGHT, end, 1.0, "hit ratio of the workload's accesses", runs, ("hit_seconds", "hit_ratios")
    )
    return "\n".join([*out, "</svg>", ""])


def _panel(
    shift: float,
    end: float,
    top: float,
    title: str,
    runs: Sequence[dict[str, Any]],
    names: tuple[str, str],
) -> list[str]:
    right = _WIDTH - _RIGHT
    out = [f'<text x="{_LEFT}" y="{shift + 20:g}" font-weight="bold">{escape(title)}</text>']
    for part in range(6):
        y = _y(shift, part / 5)
        value = top * part / 5
        text = f"{value:.1f}" if top <= 1 else f"{value:,.0f}".replace(",", " ")
        out.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e0e0e0"/>')
        out.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{text}</text>')
    for second in range(0, int(end) + 1, 5):
        x = _x(second / end)
        out.append(f'<text x="{x:.1f}" y="{_y(shift, 0) + 16:.1f}" text-anchor="middle">{second}</text>')
    out.append(
        f'<text x="{right}" y="{_y(shift, 0) + 34:.1f}" text-anchor="end">seconds since the server was '
        "started</text>"
    )
    named: set[str] = set()
    for run in runs:
        points = " ".join(
            f"{_x(at / end):.1f},{_y(shift, value / top):.1f}"
            for at, value in zip(run[names[0]], run[names[1]], strict=True)
        )
        arm = run["arm"]
        style = f'stroke="{_COLOURS[arm]}" stroke-dasharray="{_DASHES[arm]}"'
        out.append(f'<polyline points="{points}" fill="none" stroke-width="1.6" {style}/>')
        if arm not in named:
            y = shift + _TOP + 14 + 20 * len(named)
            out.append(f'<path d="M{right + 10} {y:.1f}h26" stroke-width="2" {style}/>')
            out.append(f'<text x="{right + 42}" y="{y + 4:.1f}">{_WORDS[arm]}</text>')
            named.add(arm)
    return out


def _x(position: float) -> float:
    return _LEFT + position * (_WIDTH - _LEFT - _RIGHT)


def _y(shift: float, position: float) -> float:
    return shift + _HEIGHT - _BOTTOM - position * (_HEIGHT - _TOP - _BOTTOM)
