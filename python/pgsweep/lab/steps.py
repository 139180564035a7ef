"""Experiments as plans: the steps that the file of an experiment names, at a scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from pgsweep.lab.catalog import Experiment
from pgsweep.lab.grid import Grid, Task, Variant
from pgsweep.lab.protocol import Advance, CellPlan, Done, Place, Plan, Work
from pgsweep.lab.protocols.scaled import Protocol, Scaled, kilobytes
from pgsweep.pg.private.bindir import find_server
from pgsweep.progress import Progress
from pgsweep.testbed.pgbench import find_pgbench
from pgsweep.units import format_plain


@dataclass(frozen=True)
class Steps:
    """An experiment at a scale: a `Plan` whose jobs are steps on private servers."""

    experiment: Experiment
    scale: float

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return self.experiment.name

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings: those that the protocol needs, scaled."""
        return self._protocol.settings(self._model)

    @property
    def conditions(self) -> Mapping[str, str]:
        """Return scale, sizes and parameters."""
        experiment = self.experiment
        given = {
            name: ", ".join(size) if isinstance(size, dict) else str(size)
            for name, size in experiment.sizes.items()
        }
        if "memory" in given:
            given["memory"] = f"{self._model.memory_bytes} bytes"
        return {
            "scale": format_plain(self.scale),
            **given,
            **{name: str(value) for name, value in experiment.parameters.items()},
        }

    @property
    def jobs(self) -> Sequence[str]:
        """Return the jobs that the cells name."""
        return list(dict.fromkeys(cell.job for cell in self.cells))

    @property
    def cells(self) -> Sequence[CellPlan]:
        """Return the cells of the file."""
        return self.experiment.cells

    def check(self, place: Place) -> None:
        """Look for pgbench where it is needed.

        Raises:
            ClusterError: there is none.
        """
        if self._protocol.uses_pgbench:
            find_pgbench(find_server(place.bindir))

    @contextmanager
    def opened(self, place: Place, progress: Progress) -> Iterator[Work]:
        """Make the private server and its tables."""
        progress.stage("making the tables")
        with self._protocol.opened(self._model, place) as step:

            def work(job: str, *, seed: int, advance: Advance) -> Done:
                del advance  # steps do not know how long they take
                return step(job, seed)

            yield work

    @property
    def _protocol(self) -> Protocol:
        return _steps_of(self.experiment.protocol)

    @property
    def _model(self) -> Scaled:
        return Scaled(self.experiment, self.scale)


def _steps_of(name: str) -> Protocol:
    """Return the steps of that name: `PROTOCOL` of a module of lab/protocols, which nothing else names."""
    module = import_module(f"pgsweep.lab.protocols.{name.replace('-', '_')}")
    steps: Protocol = module.PROTOCOL
    return steps


def plan_of(experiment: Experiment, scale: float) -> Plan:
    """Return an experiment at a scale as a plan."""
    if experiment.protocol == "tpcb":
        return _tpcb(Scaled(experiment, scale))
    return Steps(experiment, scale)


def _tpcb(model: Scaled) -> Grid:
    """Return the grid of pgbench's own workload over scaled sizes, named by the article's."""
    sizes = model.experiment.sizes["shared_buffers"]
    assert isinstance(sizes, dict)
    clients = max(2, model.number("clients"))
    transactions = int(model.experiment.parameters["transactions"])
    published = {cell.key: cell.published for cell in model.experiment.cells if cell.published is not None}
    return Grid(
        name=model.experiment.name,
        settings={"autovacuum": "off", "max_connections": str(clients + 20)},
        variants=[
            Variant({"shared_buffers": shown}, {"shared_buffers": kilobytes(model.scaled_bytes(shown))})
            for shown in sizes
        ],
        tasks=[Task("tpcb", "builtin", "tpcb-like", transactions=transactions)],
        caches=["cold", "prewarmed"],
        clients=[clients],
        scale=model.number("pgbench_scale"),
        memory_bytes=model.memory_bytes,
        published=published,
        fixed_factors=("workload", "clients"),
    )
