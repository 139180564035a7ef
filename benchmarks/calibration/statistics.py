"""Reduces outcomes to the figures that a method is judged by: errors, coverage, widths, by stratum."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.calibration.evaluate import Outcome, Point

SMALL_ERROR = 0.005
SILENT_ERROR = 0.03
WANTED_PASSES = 25.0
_SNAPSHOTS = ("sql",)

Pair = tuple[Outcome, Point]


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the keys of the bars, and by stratum what lies behind them."""
    found: dict[str, Any] = {}
    shown = [outcome for outcome in outcomes if outcome.level in {"reliable", "rough"}]
    for source in ("trace", "peek", "sql"):
        chosen = [
            outcome
            for outcome in shown
            if outcome.source == source and (source not in _SNAPSHOTS or outcome.passes >= WANTED_PASSES)
        ]
        figures = describe(pairs(chosen))
        found |= {f"{source}_{name}": value for name, value in figures.items()}
        found[f"{source}_predictions"] = sum(outcome.source == source for outcome in outcomes)
        found[f"{source}_shown"] = sum(outcome.source == source for outcome in shown)
    refused = [outcome for outcome in outcomes if outcome.level == "refused"]
    judged = [outcome for outcome in refused if any(point.settled for point in outcome.points)]
    needless = [outcome for outcome in judged if outcome.mean < SMALL_ERROR]
    settled = [point for outcome in shown for point in outcome.points if point.settled]
    withheld = [point for point in settled if not point.shown]
    silent = [outcome for outcome in outcomes if outcome.level == "reliable" and outcome.worst > SILENT_ERROR]
    now = [abs(outcome.today) for outcome in shown if outcome.today is not None]
    replayed = [abs(outcome.replayed_today) for outcome in shown if outcome.replayed_today is not None]
    return found | {
        "cases": len({(outcome.kind, outcome.case) for outcome in outcomes}),
        "refused": len(refused),
        "refused_unjudged": len(refused) - len(judged),
        "refused_needlessly": share(len(needless), len(outcomes)),
        "points_withheld": share(len(withheld), len(settled)),
        "points_withheld_needlessly": share(
            sum(abs(point.error) < SMALL_ERROR for point in withheld), len(settled)
        ),
        "failed": sum(outcome.level == "failed" for outcome in outcomes),
        "silent_failures": len(silent),
        "silent_failures_beyond_noise": sum(_beyond_noise(outcome) > SILENT_ERROR for outcome in silent),
        "today_worst": round(max(now, default=0.0), 6),
        "replayed_today_worst": round(max(replayed, default=0.0), 6),
        "unsettled_points": sum(not point.settled for outcome in shown for point in outcome.points),
        "doubtful_cases": len({outcome.case for outcome in outcomes if outcome.flags}),
        "strata": strata(shown),
    }


def share(part: int, whole: int) -> float | None:
    """Return part of whole, or nothing of nothing."""
    return round(part / whole, 4) if whole else None


def pairs(outcomes: Iterable[Outcome]) -> list[Pair]:
    """Return every point that is shown and whose truth had settled, with its outcome."""
    return [
        (outcome, point) for outcome in outcomes for point in outcome.points if point.settled and point.shown
    ]


def describe(chosen: Sequence[Pair]) -> dict[str, Any]:
    """Return mean and 95th percentile of the absolute error, coverage and mean width of points."""
    if not chosen:
        return {"mean": None, "p95": None, "worst": None, "inside": None, "width": None, "points": 0}
    errors = np.array([abs(point.error) for _, point in chosen])
    widths = np.array([point.high - point.low for _, point in chosen])
    inside = sum(point.inside for _, point in chosen)
    return {
        "mean": round(float(errors.mean()), 5),
        "p95": round(float(np.quantile(errors, 0.95)), 5),
        "worst": round(float(errors.max()), 5),
        "inside": round(inside / len(chosen), 4),
        "width": round(float(widths.mean()), 5),
        "points": len(chosen),
    }


def strata(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures by source, and within each source by passes, distance, share of scans and tag."""
    found: dict[str, Any] = {}
    for source in sorted({outcome.source for outcome in outcomes}):
        own = pairs(outcome for outcome in outcomes if outcome.source == source)
        found[source] = {
            "all": describe(own),
            "passes": _by(own, lambda outcome, _: passes_name(outcome.passes)),
            "distance": _by(own, lambda _, point: distance_name(point.factor)),
            "scans": _by(own, lambda outcome, _: scans_name(outcome.scan_share)),
            "tags": {
                tag: describe([(o, p) for o, p in own if tag in o.tags])
                for tag in sorted({tag for outcome, _ in own for tag in outcome.tags})
            },
        }
    return found


def _by(chosen: Sequence[Pair], name: Callable[[Outcome, Point], str]) -> dict[str, Any]:
    groups: dict[str, list[Pair]] = {}
    for outcome, point in chosen:
        groups.setdefault(name(outcome, point), []).append((outcome, point))
    return {group: describe(members) for group, members in sorted(groups.items())}


def passes_name(passes: float) -> str:
    """Return the stratum of a number of clock passes."""
    for least, name in ((100, "100 and more"), (25, "25 to 100"), (10, "10 to 25"), (4, "4 to 10")):
        if passes >= least:
            return name
    return "0 to 4"


def distance_name(factor: float) -> str:
    """Return the stratum of a size relative to the observed one."""
    octaves = round(float(np.log2(factor)))
    return f"{2.0**octaves:g}"


def scans_name(scan_share: float) -> str:
    """Return the stratum of the share of accesses by sequential scans."""
    for least, name in ((0.4, "0.4 and more"), (0.1, "0.1 to 0.4"), (0.01, "0.01 to 0.1")):
        if scan_share >= least:
            return name
    return "below 0.01"


def _beyond_noise(outcome: Outcome) -> float:
    """Return the largest error that twice the truth's own noise does not explain."""
    errors = [
        abs(point.error) - 2 * point.truth_noise for point in outcome.points if point.settled and point.shown
    ]
    return max(errors, default=0.0)
