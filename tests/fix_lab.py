"""The published experiments at their smallest, run once for all tests: `every`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from pgsweep.host.hugepages import read_pools
from pgsweep.lab import catalog
from pgsweep.lab import every as lab_every
from pgsweep.lab.catalog import Experiment, experiments
from pgsweep.records.lab import LabAllResult
from tests.fix_hugepages import locked_pages

SMALLEST_SCALE = 500
KEPT: Mapping[str, Mapping[str, Sequence[str]]] = {
    "tpcb": {"shared_buffers": ["4GB"]},
    "prewarm-scan": {"table": ["fits"]},
    "two-caches": {"shared_buffers": ["128MB"]},
    "footprint": {"statement": ["seq scan", "rows inserted"]},
    # In a pool as small as here it is not looked into between the rounds.
    "log-flood": {"flood": ["inserts, hot data in use", "inserts, hot data kept"], "rounds": []},
    "huge-pages": {"connections": ["56", "1900"]},
    "keep": {"memory": ["page cache ample"], "phase": ["flood, kept"]},
}
"""Of experiments with many runs: the values of factors that are kept."""

QUICK = {"transactions": 5, "measured_seconds": 1, "warm_up_seconds": 1, "longest_pause_seconds": 0.01}


def part_of(experiment: Experiment, kept: Mapping[str, Sequence[str]]) -> Experiment:
    """Return an experiment with fewer cells, and with the conclusions that are about these."""
    cells = []
    for cell in experiment.cell:
        each = {
            name: [value for value in values if value in kept.get(name, values)]
            for name, values in cell.each.items()
        }
        if all(each.values()):
            cells.append(msgspec.structs.replace(cell, each=each))
    plans = [plan for cell in cells for plan in cell.plans(experiment.name)]
    keys = {plan.key for plan in plans}
    sizes = {
        name: {key: value[key] for key in value if key in kept.get(name, value)}
        if isinstance(value, dict)
        else value
        for name, value in experiment.sizes.items()
    }
    return msgspec.structs.replace(
        experiment,
        cell=cells,
        claim=[claim for claim in experiment.claim if claim.over in keys and claim.under in {"", *keys}],
        plot=[
            plot
            for plot in experiment.plot
            if any(plot.where.items() <= plan.factors.items() and plot.x in plan.factors for plan in plans)
        ],
        sizes=sizes,
        parameters={name: QUICK.get(name, value) for name, value in experiment.parameters.items()},
        repetitions=1,
    )


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabAllResult, Path]]:
    """Every experiment at its smallest, and the folder with the runs; its parts stay in place meanwhile."""
    folder = tmp_path_factory.mktemp("lab") / "samples"
    parts = {name: part_of(each, KEPT.get(name, {})) for name, each in experiments().items()}
    with ExitStack() as closing:
        pages = closing.enter_context(ExitStack())
        patch = closing.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(catalog, "experiments", lambda: parts)
        patch.setattr(lab_every, "experiments", lambda: parts)
        if os.geteuid() == 0 and any(pool.is_default for pool in read_pools()):
            pages.enter_context(locked_pages())  # no other test changes the number of huge pages meanwhile
        result = lab_every.run_every(folder, scale=SMALLEST_SCALE, seed=3)
        pages.close()
        yield result, folder
