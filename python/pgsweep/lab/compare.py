"""Two results side by side: what differs, by how much, and how certain that is."""

from __future__ import annotations

import statistics

from pgsweep.errors import UsageError
from pgsweep.lab.runner import NOISY_RATIO
from pgsweep.lab.statistics import FEWEST_RUNS, ratio_interval
from pgsweep.records.lab import LabCell, LabCompareResult, LabDifference, LabResult
from pgsweep.units import format_percent


def compare(
    first: LabResult, second: LabResult, *, names: tuple[str, str] = ("first", "second")
) -> LabCompareResult:
    """Return the cells of two results side by side.

    Args:
        first: a result.
        second: another of the same grid or experiment: settings, server and machine may differ.
        names: of the results, as they are shown.

    Raises:
        UsageError: they did not measure the same thing.
    """
    _check_comparable(first, second, names)
    mine = {cell.key: cell for cell in first.cells if cell.runs}
    other = {cell.key: cell for cell in second.cells if cell.runs}
    both = [key for key in mine if key in other]
    if not both:
        raise UsageError(
            "these results cannot be compared",
            cause="no cell with a value is in both: "
            f"{names[0]} has {_some(mine)}; {names[1]} has {_some(other)}",
            hint="compare two runs of the same grid; a setting outside of its lists may differ",
        )
    cells = [_difference(mine[key], other[key]) for key in both]
    return LabCompareResult(
        name=first.name,
        first=names[0],
        second=names[1],
        cells=cells,
        differs=_differs(first, second),
        left_out=[f"only in {names[0]}: {key}" for key in mine if key not in other]
        + [f"only in {names[1]}: {key}" for key in other if key not in mine],
        warnings=_warnings(first, second, names, cells),
    )


def _check_comparable(first: LabResult, second: LabResult, names: tuple[str, str]) -> None:
    if (first.experiment is None) != (second.experiment is None) or (
        first.experiment is not None and first.name != second.name
    ):
        raise UsageError(
            "these results cannot be compared",
            cause=f"{names[0]} is of {first.name}, {names[1]} of {second.name}",
            hint="compare two results of one experiment, or of one grid",
        )
    keys = [*first.conditions, *(key for key in second.conditions if key not in first.conditions)]
    wrong = [key for key in keys if first.conditions.get(key) != second.conditions.get(key)]
    if wrong:
        parts = [
            f"{key}: {first.conditions.get(key, 'none')} and {second.conditions.get(key, 'none')}"
            for key in wrong
        ]
        raise UsageError(
            "these results cannot be compared",
            cause="what was measured differs: " + "; ".join(parts),
            hint="run one of them again with the other's workload, scale and memory",
        )


def _difference(first: LabCell, second: LabCell) -> LabDifference:
    before, after = statistics.median(first.runs), statistics.median(second.runs)
    interval = ratio_interval(second.runs, first.runs)
    few = min(len(first.runs), len(second.runs)) < FEWEST_RUNS
    if interval is None:
        verdict = "too few runs" if few else "no difference shown"
    elif interval[0] > 1:
        verdict = "higher"
    else:
        verdict = "lower" if interval[1] < 1 else "no difference shown"
    return LabDifference(
        key=first.key,
        unit=first.unit,
        better=first.better,
        first_median=before,
        second_median=after,
        first_runs=len(first.runs),
        second_runs=len(second.runs),
        ratio=after / before if before else float(after == before),
        low=interval and interval[0],
        high=interval and interval[1],
        verdict=verdict,
    )


def _differs(first: LabResult, second: LabResult) -> dict[str, list[str]]:
    pairs = {
        "PostgreSQL": (first.server_version, second.server_version),
        "machine": (first.machine, second.machine),
    }
    for key in dict.fromkeys([*first.settings, *second.settings]):
        pairs[key] = (first.settings.get(key, "default"), second.settings.get(key, "default"))
    return {key: list(pair) for key, pair in pairs.items() if pair[0] != pair[1]}


def _warnings(
    first: LabResult, second: LabResult, names: tuple[str, str], cells: list[LabDifference]
) -> list[str]:
    found = []
    for name, result in zip(names, (first, second), strict=True):
        if (result.noise_ratio or 0) > NOISY_RATIO:
            found.append(
                f"{name} is noisy: its runs of a cell differ by {format_percent(result.noise_ratio or 0)}"
            )
        if result.runs_done < result.runs_planned:
            found.append(f"{name} is not complete: {result.runs_done} of {result.runs_planned} runs")
        unsteady = sum(cell.unsteady for cell in result.cells)
        if unsteady:
            found.append(f"{name}: {unsteady} runs were not steady when their warm-up reached its limit")
    found += _slower(first, second, names)
    if first.machine != second.machine:
        found.append("the machines differ: a difference may be theirs")
    if any(cell.verdict == "too few runs" for cell in cells):
        found.append(f"with fewer than {FEWEST_RUNS} runs of a cell there is no interval, and no verdict")
    if len(cells) >= 10:
        found.append(
            f"{len(cells)} cells are compared: of those that do not differ one in twenty seems to, by chance"
        )
    return found


def _slower(first: LabResult, second: LabResult, names: tuple[str, str]) -> list[str]:
    """Return how the machine itself differed, where its control runs show it."""
    found = []
    before = {control.what: control for control in first.controls}
    for control in second.controls:
        other = before.get(control.what)
        if other is None:
            continue
        apart = control.low_seconds > other.high_seconds or control.high_seconds < other.low_seconds
        if apart:
            found.append(
                f"the machine was not the same: the control runs ({control.what}) of {names[1]} took "
                f"{control.median_seconds / other.median_seconds:.2f} times what those of {names[0]} took"
            )
    return found


def _some(cells: dict[str, LabCell]) -> str:
    return ", ".join(list(cells)[:2]) or "none"
