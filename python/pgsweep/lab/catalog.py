"""The experiments: one TOML file each in lab/experiments, and what is needed to run them here."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from pgsweep.errors import UsageError
from pgsweep.host import cgroup
from pgsweep.host.hugepages import read_pools
from pgsweep.lab.grid import Scalar
from pgsweep.lab.protocol import CellPlan
from pgsweep.lab.statistics import ratio_range
from pgsweep.records.lab import LabCell, LabClaim, LabExperiment, LabListed, LabListResult, LabVerdict
from pgsweep.units import format_plain

_MEMORY_CGROUP: Final = "memory cgroup"
_HUGE_PAGES: Final = "huge pages"


class CellOf(msgspec.Struct, forbid_unknown_fields=True):
    """One figure; `job` is the experiment's name where it has one job only."""

    key: str
    unit: str
    job: str = ""
    better: str = ""
    published: float | None = None


class ClaimOf(msgspec.Struct, forbid_unknown_fields=True):
    """A conclusion: the ratio of two cells (or of one to 1) lies within bounds."""

    text: str
    over: str
    under: str = ""
    at_least: float | None = None
    at_most: float | None = None
    published: float | None = None


class Experiment(msgspec.Struct, forbid_unknown_fields=True):
    """One file.

    Attributes:
        number: the order in which they are listed.
        published_on: version and machine of the article.
        model: what is scaled, in words; `{scale}` is replaced.
        scale: the default.
        largest_scale: above it the sizes are too small to judge a conclusion by.
        seconds: what it takes at that scale on two processors; assumed.
        protocol: name of the steps, which lab/plan.py knows.
        needs: without which it cannot run; `huge pages` only leaves out cells.
        sizes: the article's, in bytes or numbers, which the scale divides.
        parameters: what the scale does not change.
    """

    number: int
    name: str
    question: str
    published_on: str
    model: str
    protocol: str
    scale: float
    largest_scale: float
    seconds: float
    claim: list[ClaimOf]
    cell: list[CellOf]
    repetitions: int = 3
    beyond: str = ""
    needs: list[str] = msgspec.field(default_factory=list)
    sizes: dict[str, str | float | dict[str, str]] = msgspec.field(default_factory=dict)
    parameters: dict[str, Scalar] = msgspec.field(default_factory=dict)

    @property
    def cells(self) -> list[CellPlan]:
        """Return the cells."""
        return [
            CellPlan(
                cell.key, cell.job or self.name, {"figure": cell.key}, cell.unit, cell.better, cell.published
            )
            for cell in self.cell
        ]


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


def missing_needs(experiment: Experiment) -> list[str]:
    """Return what an experiment needs and this host does not have, each with the reason and what to do."""
    checks: dict[str, Callable[[], str]] = {_MEMORY_CGROUP: _no_cgroup, _HUGE_PAGES: _no_huge_pages}
    return [why for need in experiment.needs if (why := checks[need]())]


def list_experiments() -> LabListResult:
    """Return the experiments, and which of them can run here (`pgsweep lab list`)."""
    listed = []
    for each in experiments().values():
        missing = missing_needs(each)
        state = "runs"
        if missing:
            state = "in part" if each.needs == [_HUGE_PAGES] else "not here"
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


def conclude(experiment: Experiment, scale: float, cells: Sequence[LabCell]) -> LabExperiment:
    """Return the article's conclusions beside what was measured."""
    by_key = {cell.key: cell for cell in cells}
    claims = [_claim(claim, by_key) for claim in experiment.claim]
    if scale > experiment.largest_scale:
        reason = (
            f"the sizes are too small at this scale: --scale {format_plain(experiment.largest_scale)} or less"
        )
        claims = [msgspec.structs.replace(each, verdict="cannot tell", reason=reason) for each in claims]
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
    )


def _claim(claim: ClaimOf, cells: dict[str, LabCell]) -> LabClaim:
    over = cells[claim.over].runs
    under = cells[claim.under].runs if claim.under else [1.0]
    bounds = ratio_range(over, under)
    low, high = claim.at_least, claim.at_most
    verdict: LabVerdict = "cannot tell"
    reason = ""
    if bounds is None:
        lacking = claim.over if not over else claim.under
        reason = next(iter(cells[lacking].failures), f"{lacking}: not measured")
    elif _is_time(cells[claim.over]) and min(len(over), len(cells[claim.under or claim.over].runs)) < 2:
        reason = "one run of a time says too little: --repeat 3"
    elif (low is None or bounds[0] >= low) and (high is None or bounds[1] <= high):
        verdict = "holds"
    elif (low is not None and bounds[1] < low) or (high is not None and bounds[0] > high):
        verdict = "does not hold here"
    else:
        reason = "the runs are on both sides of the bound"
    return LabClaim(
        text=claim.text,
        over=claim.over,
        under=claim.under,
        expected=_expected(low, high),
        published=_published(claim, cells),
        here=None if bounds is None else statistics.median(over) / statistics.median(under),
        low=bounds and bounds[0],
        high=bounds and bounds[1],
        verdict=verdict,
        reason=reason,
    )


def _is_time(cell: LabCell) -> bool:
    """Return whether a cell differs from run to run, as times do and bytes hardly."""
    return cell.unit in ("seconds", "transactions/s")


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
    if any(pool.is_default and pool.available > 0 for pool in read_pools()):
        return ""
    return "no huge pages are free, so their part is left out: `sudo sysctl vm.nr_hugepages=...`"
