"""The curves as one SVG file that needs no style sheet: transactions a second and hit ratio, by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

_WIDTH, _HEIGHT = 880.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 190.0, 34.0, 44.0
_COLOURS = {"restore": "#0072B2", "waiting": "#009E73", "autoprewarm": "#D55E00", "cold": "#666666"}
"""Those of Okabe and Ito, which colour-blind people can tell apart."""
_DASHES = {"restore": "", "waiting": "10 3", "autoprewarm": "7 4", "cold": "2 4"}
_WORDS = {
    "restore": "warm restore",
    "waiting": "warm restore, loaded",
    "autoprewarm": "autoprewarm",
    "cold": "no warming",
}


_FIRST_HITS = 0.7
"""Where the axis of the hit ratio begins: what a pool of this workload starts with lies above."""


def draw(runs: Sequence[dict[str, Any]], wanted_tps: float) -> str:
    """Return the picture: each run as a thin line, the median of an arm's runs as a thick one.

    Args:
        runs: fields of `bench.Run`.
        wanted_tps: what counts as warm, drawn as a line.
    """
    end = max(run["seconds"][-1] for run in runs)
    top = 10_000 * (1 + int(max(max(run["tps"]) for run in runs) // 10_000))
    tps = _Panel(0, end, 0, top, range(0, top + 1, 10_000))
    hits = _Panel(_HEIGHT, end, _FIRST_HITS, 1.0, [0.7, 0.8, 0.9, 1.0])
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {2 * _HEIGHT:g}" '
        'font-family="sans-serif" font-size="12" role="img" '
        'aria-label="Transactions a second and hit ratio after a cold start">',
        f'<rect width="{_WIDTH:g}" height="{2 * _HEIGHT:g}" fill="white"/>',
        *tps.frame("transactions a second"),
        *tps.curves(runs, "seconds", "tps"),
    ]
    y = tps.y(wanted_tps)
    out.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#999" stroke-dasharray="1 3"/>')
    # Within the axes, where no curve begins: the legend stands to the right of them.
    out.append(f'<text x="{_LEFT + 6}" y="{y - 4:.1f}" fill="#666">95% of steady</text>')
    out += hits.frame("hit ratio of the workload's accesses (from 0.7)")
    out += hits.curves(runs, "hit_seconds", "hit_ratios")
    return "\n".join([*out, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Panel:
    """One pair of axes.

    Attributes:
        shift: down the picture.
        end: of the horizontal axis, in seconds; it begins at 0.
        bottom: of the vertical axis, as top.
    """

    shift: float
    end: float
    bottom: float
    top: float
    ticks: Sequence[float]

    def x(self, seconds: float) -> float:
        return _LEFT + seconds / self.end * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.bottom) / (self.top - self.bottom)
        return self.shift + _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def frame(self, title: str) -> list[str]:
        right = _WIDTH - _RIGHT
        out = [f'<text x="{_LEFT}" y="{self.shift + 20:g}" font-weight="bold">{escape(title)}</text>']
        for value in self.ticks:
            y = self.y(value)
            text = f"{value:.1f}" if self.top <= 1 else f"{value:,.0f}".replace(",", " ")
            out.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#e0e0e0"/>')
            out.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{text}</text>')
        foot = self.shift + _HEIGHT - _BOTTOM
        out += [
            f'<text x="{self.x(second):.1f}" y="{foot + 16:.1f}" text-anchor="middle">{second}</text>'
            for second in range(0, int(self.end) + 1, 5)
        ]
        out.append(
            f'<text x="{right}" y="{foot + 34:.1f}" text-anchor="end">seconds since the server was '
            "started</text>"
        )
        return out

    def curves(self, runs: Sequence[dict[str, Any]], at: str, values: str) -> list[str]:
        out = []
        for place, (arm, word) in enumerate(_WORDS.items()):
            style = f'fill="none" stroke="{_COLOURS[arm]}" stroke-dasharray="{_DASHES[arm]}"'
            chosen = [(run[at], run[values]) for run in runs if run["arm"] == arm]
            if len(chosen) > 1:
                out += [self._line(curve, f'{style} stroke-width="0.8" opacity="0.45"') for curve in chosen]
            out.append(self._line(_median(chosen, self.end), f'{style} stroke-width="2.4"'))
            y, right = self.shift + _TOP + 14 + 20 * place, _WIDTH - _RIGHT
            out.append(f'<path d="M{right + 10} {y:.1f}h26" stroke-width="2" {style}/>')
            out.append(f'<text x="{right + 42}" y="{y + 4:.1f}">{word}</text>')
        return out

    def _line(self, curve: tuple[Sequence[float], Sequence[float]], style: str) -> str:
        points = (f"{self.x(at):.1f},{self.y(value):.1f}" for at, value in zip(*curve, strict=True))
        return f'<polyline points="{" ".join(points)}" {style}/>'


def _median(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]], end: float
) -> tuple[list[float], list[float]]:
    """Return the median of curves at every half second of the time that all of them cover."""
    first, last = max(at[0] for at, _ in curves), min(at[-1] for at, _ in curves)
    seconds = [float(at) for at in np.arange(0, end, 0.5) if first <= at <= last]
    return seconds, np.median([np.interp(seconds, *curve) for curve in curves], axis=0).tolist()
