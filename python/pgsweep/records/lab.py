"""Experiments and grids of settings: what can be run, every run, the summary, two of them compared."""

from __future__ import annotations

from typing import Literal

import msgspec

from pgsweep.records.common import Provenance

LabVerdict = Literal["holds", "does not hold here", "cannot tell"]


class LabRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run: a line of the file of samples.

    Attributes:
        job: what was run, the same in all repetitions.
        repetition: from 1.
        at: when it ended, UTC, ISO 8601.
        values: by the key of a cell, its value.
        raw: by the same key, what the value was made of: one number a second, a client or an execution; of
            many transactions the hundredths; of blocks the first of each stretch, then how many they are.
        setup_seconds: of restarting, emptying and filling caches.
        warm_up_seconds: until the workload was steady.
        measure_seconds: of measuring.
        steady: whether the warm-up ended because the values were steady; null where there was none.
        load_average: of the machine over the last minute, before the run.
        control_processor_seconds: what a fixed computation took before the run; null where the control run
            before was a short while ago.
        control_disk_seconds: what writing and reading a file took then.
        steal_ratio: part of the processors' time that the hypervisor took for others; null where not known.
        failure: why there are no values.
    """

    job: str
    repetition: int
    at: str
    values: dict[str, float] = {}
    raw: dict[str, list[float]] = {}
    setup_seconds: float = 0.0
    warm_up_seconds: float = 0.0
    measure_seconds: float = 0.0
    steady: bool | None = None
    load_average: float | None = None
    control_processor_seconds: float | None = None
    control_disk_seconds: float | None = None
    steal_ratio: float | None = None
    failure: str | None = None


class LabCell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a grid, or one figure of an experiment, measured; its replicates are runs.

    Attributes:
        key: names it within the result.
        factors: what makes the cell, by name: `shared_buffers`, `workload`, `caches`, `clients`.
        better: `higher`, `lower`, or empty if neither is.
        runs: the value of each, in the order of the repetitions.
        low: lower end of the 95% interval of the median; null where there are fewer than 5 runs.
        published: the figure of the article.
        failures: why runs have no value.
        unsteady: runs whose warm-up ended at its limit.
    """

    key: str
    factors: dict[str, str]
    unit: str
    better: str
    runs: list[float]
    median: float | None
    low: float | None = None
    high: float | None = None
    published: float | None = None
    failures: list[str] = []
    unsteady: int = 0


class LabClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A conclusion of the article as a ratio of two cells, and whether it holds.

    Attributes:
        expected: the bound in words.
        published: the ratio of the article's figures.
        here: the ratio of the medians.
        low: lower end of its 95% interval; with fewer than 5 runs on a side the smallest ratio of two runs.
        high: upper end, or the largest ratio of two runs.
    """

    text: str
    over: str
    under: str
    expected: str
    published: float | None
    here: float | None
    low: float | None
    high: float | None
    verdict: LabVerdict
    reason: str = ""


class LabControl(msgspec.Struct, frozen=True, kw_only=True):
    """The machine's own noise: the same small work between the runs, again and again.

    Attributes:
        what: `processor` or `disk`.
        runs: how many control runs there were.
        median_seconds: of what one took.
        low_seconds: a tenth took less.
        high_seconds: a tenth took more.
        spread_ratio: (high - low) / median.
    """

    what: Literal["processor", "disk"]
    runs: int
    median_seconds: float
    low_seconds: float
    high_seconds: float
    spread_ratio: float


class LabPlot(msgspec.Struct, frozen=True, kw_only=True):
    """A picture of some of the cells.

    Attributes:
        kind: `boxes` show every run, `bars` and `lines` the medians and the runs as dots.
        x: the factor along the axis; sizes are on a logarithmic one.
        where: only cells with these values of their factors.
        colour: the factor that is shown by colours; nothing for one colour.
        log: the values are on a logarithmic axis.
    """

    kind: Literal["boxes", "bars", "lines"]
    title: str
    x: str
    where: dict[str, str] = {}
    colour: str = ""
    log: bool = False


class LabExperiment(msgspec.Struct, frozen=True, kw_only=True):
    """What an experiment is about, and its conclusion.

    Attributes:
        scale: by what the article's sizes were divided.
        published_on: version and machine of the article; empty if no article asks this.
        model: what was scaled, in words.
        beyond: what is shown here and not in the article, and other remarks.
    """

    number: int
    question: str
    published_on: str
    scale: float
    model: str
    claims: list[LabClaim]
    verdict: LabVerdict
    beyond: str = ""
    plots: list[LabPlot] = []


class LabResult(msgspec.Struct, frozen=True, kw_only=True):
    """`pgsweep lab run`: every cell with its runs; all of it was measured.

    Attributes:
        conditions: what two results must have in common to be compared, by name.
        settings: those of all cells.
        overhead_seconds: of the lab itself, outside of set-up, warm-up and measuring; of the present run.
        overhead_ratio: part of the present run's time; null where nothing was run.
        noise_ratio: the median over the cells of (largest - smallest run) / median run.
        controls: the machine's own noise, by control runs; empty if there were too few.
        samples: the file with every run.
    """

    schema: str = "pgsweep.lab/1"
    server_version: str
    name: str
    machine: str
    seed: int
    repetitions: int
    runs_done: int
    runs_planned: int
    conditions: dict[str, str]
    settings: dict[str, str]
    cells: list[LabCell]
    setup_seconds: float
    measure_seconds: float
    overhead_seconds: float
    overhead_ratio: float | None
    noise_ratio: float | None
    samples: str
    controls: list[LabControl] = []
    experiment: LabExperiment | None = None
    notes: list[str] = []
    provenance: Provenance | None = None


class LabSkipped(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment that could not be run here.

    Attributes:
        why: the reason, and what to do about it.
    """

    number: int
    name: str
    question: str
    why: str


class LabAllResult(msgspec.Struct, frozen=True, kw_only=True):
    """`pgsweep lab run --all`: the result of every experiment, and those that were skipped.

    Attributes:
        seconds: of this call; what an earlier one had done is not in it.
        samples: the folder with every run.
    """

    schema: str = "pgsweep.lab-all/1"
    server_version: str
    machine: str
    results: list[LabResult]
    skipped: list[LabSkipped]
    seconds: float
    samples: str
    provenance: Provenance | None = None


class LabDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of two results.

    Attributes:
        ratio: second over first, of the medians.
        low: lower end of its 95% interval (bootstrap over runs, BCa); null with fewer than 5 runs on a side.
        verdict: `higher`, `lower`, `no difference shown`, `too few runs`.
    """

    key: str
    unit: str
    better: str
    first_median: float
    second_median: float
    first_runs: int
    second_runs: int
    ratio: float
    low: float | None
    high: float | None
    verdict: str


class LabCompareResult(msgspec.Struct, frozen=True, kw_only=True):
    """`pgsweep lab compare`: two results side by side.

    Attributes:
        differs: what differs between them besides the figures, by name: first and second.
        left_out: cells that only one of them has.
    """

    schema: str = "pgsweep.lab-compare/1"
    name: str
    first: str
    second: str
    cells: list[LabDifference]
    differs: dict[str, list[str]]
    left_out: list[str] = []
    warnings: list[str] = []
    provenance: Provenance | None = None


class LabListed(msgspec.Struct, frozen=True, kw_only=True):
    """One experiment.

    Attributes:
        scale: the default: by what the article's sizes are divided.
        seconds: how long it takes at that scale on two processors; assumed, not measured.
        state: `runs`, `in part` or `not here`.
        why: what is missing; empty if it runs.
    """

    number: int
    name: str
    question: str
    scale: float
    seconds: float
    needs: list[str]
    state: str
    why: str = ""


class LabListResult(msgspec.Struct, frozen=True, kw_only=True):
    """`pgsweep lab list`: the experiments, and which of them can run here."""

    schema: str = "pgsweep.lab-list/1"
    experiments: list[LabListed]
    provenance: Provenance | None = None
