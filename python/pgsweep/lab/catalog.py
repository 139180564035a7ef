"""The experiments: one TOML file each in lab/experiments, and what is needed to run them here."""

from __future__ import annotations

import difflib
import itertools
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from pgsweep.errors import UsageError
from pgsweep.host import cgroup
from pgsweep.host.hugepages import pool_file, read_pools
from pgsweep.lab.grid import Scalar
from pgsweep.lab.protocol import CellPlan
from pgsweep.lab.statistics import FEWEST_RUNS, ratio_bounds
from pgsweep.records.lab import (
    LabCell,
    LabClaim,
    LabControl,
    LabExperiment,
    LabListed,
    LabListResult,
    LabPlot,
    LabVerdict,
)
from pgsweep.units import format_percent, format_plain

_NOISY_RATIO: Final = 0.1

_LEAST_TIME: Final = 0.15
"""The part of the time at the default scale that starting and stopping servers takes."""

_MEMORY_CGROUP: Final = "memory cgroup"
_HUGE_PAGES: Final = "huge pages"


class CellOf(msgspec.Struct, forbid_unknown_fields=True):
    """One figure, or one for each combination of values.

    Attributes:
        key: with `{name}` where a value of `each` is to be put.
        job: likewise; the experiment's name where it has one job only.
        each: values by name; each combination makes a cell, and the names are its factors.
        figure: what is measured, where `each` makes several; the key by default.
        published_by: the article's figures by the values of `each`, joined by commas.
    """

    key: str
    unit: str
    job: str = ""
    better: str = ""
    published: float | None = None
    each: dict[str, list[str]] = {}
    figure: str = ""
    published_by: dict[str, float] = {}

    def plans(self, job: str) -> list[CellPlan]:
        """Return the cells; `job` is the one of those that name none."""
        return [
            CellPlan(
                _filled(self.key, values),
                _filled(self.job or job, values),
                {**values, "figure": self.figure or _filled(self.key, values)},
                self.unit,
                self.better,
                self.published_by.get(", ".join(values.values()), self.published),
            )
            for values in self._combinations()
        ]

    def _combinations(self) -> list[dict[str, str]]:
        return [
            dict(zip(self.each, values, strict=True)) for values in itertools.product(*self.each.values())
        ]


class PlotOf(LabPlot, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A picture."""


class ClaimOf(msgspec.Struct, forbid_unknown_fields=True):
    """A conclusion: the ratio of two cells (or of one to 1) lies within bounds.

    Attributes:
        otherwise: the reason, where one is known, if it does not hold here.
    """

    text: str
    over: str
    under: str = ""
    at_least: float | None = None
    at_most: float | None = None
    published: float | None = None
    otherwise: str = ""


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """One file.

    Attributes:
        number: the order in which they are listed.
        published_on: version and machine of the article; nothing where the question is this project's own.
        model: what is scaled, in words; `{scale}` is replaced.
        scale: the default.
        largest_scale: above it the sizes are too small to judge a conclusion by.
        seconds: what it takes at that scale on two processors; assumed.
        protocol: name of the steps: the module of lab/protocols, with `-` for `_`.
        needs: without which it cannot run; `huge pages` only leaves out cells.
        sizes: the article's, in bytes or numbers, which the scale divides.
        parameters: what the scale does not change.
    """

    number: int
    name: str
    question: str
    model: str
    protocol: str
    scale: float
    largest_scale: float
    seconds: float
    claim: list[ClaimOf]
    cell: list[CellOf]
    published_on: str = ""
    plot: list[PlotOf] = msgspec.field(default_factory=list)
    repetitions: int = 3
    beyond: str = ""
    needs: list[str] = msgspec.field(default_factory=list)
    sizes: dict[str, str | float | dict[str, str]] = msgspec.field(default_factory=dict)
    parameters: dict[str, Scalar] = msgspec.field(default_factory=dict)

    def seconds_at(self, scale: float) -> float:
        """Return about how long it takes at a scale; assumed: most of the time goes with the sizes."""
        return self.seconds * max(_LEAST_TIME, self.scale / scale)

    @property
    def cells(self) -> list[CellPlan]:
        """Return the cells."""
        return [plan for cell in self.cell for plan in cell.plans(self.name)]


@cache
def experiments() -> dict[str, Experiment]:
    """Return the experiments by name, in the order of their numbers."""
    folder = resources.files("pgsweep.lab").joinpath("experiments")
    found = [
        msgspec.toml.decode(file.read_bytes(), type=Experiment)
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    ]
    return {each.name: each for each in sorted(found, key=lambda each: each.number)}


def find_experiment(name: str) -> Experiment:
    """Return the experiment of a name.

    Raises:
        UsageError: there is none.
    """
    known = experiments()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        raise UsageError(
            f"there is no experiment `{name}`" + (f"; did you mean `{near[0]}`?" if near else ""),
            cause="a grid is named by a file that ends in .toml",
            hint="pgsweep lab list",
        )
    return known[name]


def missing_needs(experiment: Experiment, *, for_all: bool = False) -> list[str]:
    """Return what an experiment needs and this host does not have, each with the reason and what to do.

    Args:
        experiment: which.
        for_all: also what is needed for a part of it only.
    """
    checks: dict[str, Callable[[], str]] = {_MEMORY_CGROUP: _no_cgroup, _HUGE_PAGES: _no_huge_pages}
    needs = [need for need in experiment.needs if for_all or need != _HUGE_PAGES]
    return [why for need in needs if (why := checks[need]())]


def list_experiments() -> LabListResult:
    """Return the experiments, and which of them can run here (`pgsweep lab list`)."""
    listed = []
    for each in experiments().values():
        missing = missing_needs(each, for_all=True)
        state = "runs"
        if missing:
            state = "not here" if missing_needs(each) else "in part"
        listed.append(
            LabListed(
                number=each.number,
                name=each.name,
                question=each.question,
                scale=each.scale,
                seconds=each.seconds,
                needs=each.needs,
                state=state,
                why="; ".join(missing),
            )
        )
    return LabListResult(experiments=listed)


def conclude(
    experiment: Experiment, scale: float, cells: Sequence[LabCell], controls: Sequence[LabControl] = ()
) -> LabExperiment:
    """Return the article's conclusions beside what was measured.

    Args:
        experiment: with its conclusions.
        scale: at which it was run.
        cells: what was measured.
        controls: the machine's own noise, because of which some cannot be judged.
    """
    by_key = {cell.key: cell for cell in cells}
    claims = [_claim(claim, by_key, controls) for claim in experiment.claim]
    if scale > experiment.largest_scale:
        reason = (
            f"the sizes are too small at this scale: --scale {format_plain(experiment.largest_scale)} or less"
        )
        # What was not measured has another reason already.
        claims = [
            each if each.here is None else msgspec.structs.replace(each, verdict="cannot tell", reason=reason)
            for each in claims
        ]
    verdicts = [claim.verdict for claim in claims]
    verdict: LabVerdict = "holds"
    if "does not hold here" in verdicts:
        verdict = "does not hold here"
    elif "cannot tell" in verdicts:
        verdict = "cannot tell"
    return LabExperiment(
        number=experiment.number,
        question=experiment.question,
        published_on=experiment.published_on,
        scale=scale,
        model=experiment.model.replace("{scale}", format_plain(scale)),
        claims=claims,
        verdict=verdict,
        beyond=experiment.beyond,
        plots=[msgspec.convert(plot, LabPlot, from_attributes=True) for plot in experiment.plot],
    )


def _claim(claim: ClaimOf, cells: dict[str, LabCell], controls: Sequence[LabControl]) -> LabClaim:
    over = cells[claim.over].runs
    under = cells[claim.under].runs if claim.under else None
    bounds = ratio_bounds(over, under)
    low, high = claim.at_least, claim.at_most
    fewest = min(len(over), len(over if under is None else under))
    verdict: LabVerdict = "cannot tell"
    reason = ""
    if bounds is None:
        lacking = claim.over if not over else claim.under
        reason = next(iter(cells[lacking].failures), f"{lacking}: not measured")
    elif _is_time(cells[claim.over]) and fewest < 2:
        reason = "one run is not enough to judge a time by: --repeat 3"
    elif (low is None or bounds[0] >= low) and (high is None or bounds[1] <= high):
        verdict = "holds"
    elif (low is not None and bounds[1] < low) or (high is not None and bounds[0] > high):
        verdict, reason = "does not hold here", claim.otherwise
    else:
        reason = "the bound is within what the runs allow"
        if fewest < FEWEST_RUNS:
            reason += f", and they are few: --repeat {FEWEST_RUNS}"
        noisy = [each for each in controls if each.spread_ratio > _NOISY_RATIO]
        if noisy and _is_time(cells[claim.over]):
            worst = max(noisy, key=lambda each: each.spread_ratio)
            reason += f"; the machine is noisy (its control runs, {worst.what}, differ by "
            reason += f"{format_percent(worst.spread_ratio)})"
        if claim.otherwise:
            reason += f"; likely reason: {claim.otherwise}"
    return LabClaim(
        text=claim.text,
        over=claim.over,
        under=claim.under,
        expected=_expected(low, high),
        published=_published(claim, cells),
        here=None if bounds is None else statistics.median(over) / statistics.median(under or [1.0]),
        low=bounds and bounds[0],
        high=bounds and bounds[1],
        verdict=verdict,
        reason=reason,
    )


def _is_time(cell: LabCell) -> bool:
    """Return whether a cell differs from run to run, as times do and bytes hardly."""
    return cell.unit in ("seconds", "transactions/s", "rows/s", "blocks/s")


def _published(claim: ClaimOf, cells: dict[str, LabCell]) -> float | None:
    if claim.published is not None:
        return claim.published
    over = cells[claim.over].published
    under = cells[claim.under].published if claim.under else 1.0
    return over / under if over is not None and under else None


def _expected(low: float | None, high: float | None) -> str:
    if low is None:
        return "" if high is None else f"at most {format_plain(high)}"
    return f"at least {format_plain(low)}" if high is None else f"{format_plain(low)} to {format_plain(high)}"


def _no_cgroup() -> str:
    if cgroup.find_parent() is not None:
        return ""
    delegated = "systemd-run --user --scope -p Delegate=yes"
    return f"no memory cgroup can be made here: run as root, or under `{delegated}`"


def _no_huge_pages() -> str:
    pool = next((pool for pool in read_pools() if pool.is_default), None)
    if pool is None:
        return "this kernel has no huge pages, so their part is left out"
    if pool.available > 0 or os.access(pool_file(pool.size_bytes), os.W_OK):
        return ""
    return "no huge pages are free, so their part is left out: run as root, or `sysctl vm.nr_hugepages=...`"


def _filled(template: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template
