"""What `pgsweep lab run` was asked for, an experiment or a grid, and its result."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.lab.catalog import Experiment, conclude, find_experiment, missing_needs
from pgsweep.lab.disposable import announce
from pgsweep.lab.grid import Grid, read_grid
from pgsweep.lab.protocol import Disposable, Place, Plan
from pgsweep.lab.runner import Order, run_plan
from pgsweep.lab.steps import plan_of
from pgsweep.progress import Progress
from pgsweep.records.lab import LabResult
from pgsweep.units import format_plain


@dataclass(frozen=True)
class Chosen:
    """What is going to be run.

    Attributes:
        repetitions: unless others are asked for.
        seed: that the grid's file names.
        experiment: where it is one.
    """

    plan: Plan
    repetitions: int
    seed: int | None = None
    experiment: Experiment | None = None
    scale: float = 1.0

    @property
    def seconds(self) -> float | None:
        """Return about how long it takes; assumed, and None where nothing is known."""
        return None if self.experiment is None else self.experiment.seconds_at(self.scale)

    def announced(self, server: Disposable, repetitions: int | None = None) -> list[str]:
        """Return what running it will do to a server that is named disposable, a line each.

        Raises:
            UsageError: it is an experiment, or cannot be run on such a server.
            PgsweepError: the server is refused.
        """
        if not isinstance(self.plan, Grid) or self.experiment is not None:
            raise UsageError(
                "experiments make their own servers, so --dsn cannot be used",
                hint="--dsn goes with a grid: pgsweep lab run my-grid.toml --dsn ...",
            )
        grid = self.plan
        grid.check(Place(server=server))
        tables = [f"pgbench's tables, about {format_plain(15 * grid.scale)} MB"] if grid.scale else []
        tables += [f"what {grid.setup.name} makes"] if grid.setup is not None else []
        return announce(
            server,
            grid.names,
            restarts=len(grid.jobs) * (repetitions or self.repetitions) + 1,
            cold=any(each != "warm" for each in grid.caches),
            own=grid.own_database,
            tables=" and ".join(tables),
        )

    def run(
        self,
        *,
        samples: Path,
        repetitions: int | None = None,
        seed: int | None = None,
        place: Place | None = None,
        command: str = "",
        progress: Progress | None = None,
        executor: Executor | str | None = None,
    ) -> LabResult:
        """Run what is missing in the file of samples and return the result of all runs.

        Args:
            samples: the file; made where it is not there.
            repetitions: of each job.
            seed: of the order and of pgbench.
            place: of the private servers.
            command: the command line, for the file of samples.
            progress: receives messages.
            executor: runs cells of a grid beside each other: an executor of `concurrent.futures`,
                `processes:N`, or the address of a dask scheduler.

        Raises:
            UsageError: an experiment has an executor, or a server that is named disposable.
            PgsweepError: see `pgsweep.lab.runner.run_plan`.
        """
        place = place or Place()
        if executor is not None and (self.experiment is not None or place.server is not None):
            raise UsageError(
                "--executor goes with a grid on private servers",
                cause="an experiment needs the machine to itself, and a server named by --dsn is only one",
                hint="pgsweep lab run my-grid.toml --executor processes:2",
            )
        order = Order(
            samples,
            repetitions or self.repetitions,
            self.seed if seed is None else seed,
            place,
            command,
            executor,
        )
        result = run_plan(self.plan, order, progress)
        if self.experiment is None:
            return result
        return msgspec.structs.replace(
            result, experiment=conclude(self.experiment, self.scale, result.cells, result.controls)
        )


def prepare(what: str, *, scale: float | None = None) -> Chosen:
    """Return what is asked for, checked as far as that is possible without a server.

    Args:
        what: the name of an experiment, or the path of a grid's file, which ends in .toml.
        scale: of an experiment: what the article's sizes are divided by.

    Raises:
        UsageError: there is no such experiment, or the file is not a grid.
        MissingAbility: the experiment needs what this host does not have.
    """
    if what.endswith(".toml"):
        if scale is not None:
            raise UsageError(
                "a grid has no scale", cause="it names its own sizes", hint="leave out --scale and --full"
            )
        grid, file = read_grid(Path(what))
        return Chosen(grid, file.repetitions, file.seed)
    experiment = find_experiment(what)
    missing = missing_needs(experiment)
    if missing:
        raise MissingAbility(
            f"the experiment {what} cannot run here", cause="; ".join(missing), hint="pgsweep lab list"
        )
    chosen = experiment.scale if scale is None else scale
    return Chosen(plan_of(experiment, chosen), experiment.repetitions, None, experiment, chosen)


def run_lab(
    what: str,
    samples: Path,
    *,
    scale: float | None = None,
    repetitions: int | None = None,
    executor: Executor | str | None = None,
) -> LabResult:
    """Run an experiment or a grid and return its result (`pgsweep lab run`).

    Args:
        what: the name of an experiment, or the path of a grid's file, which ends in .toml.
        samples: where every run is kept; a file that is there is resumed.
        scale: of an experiment: what the article's sizes are divided by.
        repetitions: of each run.
        executor: runs cells of a grid beside each other: an executor of `concurrent.futures`,
            `processes:N`, or the address of a dask scheduler.
    """
    return prepare(what, scale=scale).run(samples=samples, repetitions=repetitions, executor=executor)
