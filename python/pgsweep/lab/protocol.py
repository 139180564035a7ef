"""What the runner needs to know of an experiment or a grid: its jobs, its cells, and how a job is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pgsweep.errors import PgsweepError
from pgsweep.progress import Progress

Advance = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One figure that is measured; most attributes are those of `pgsweep.records.lab.LabCell`.

    Attributes:
        job: that measures it.
    """

    key: str
    job: str
    factors: Mapping[str, str]
    unit: str
    better: str = ""
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """What one job gave; its attributes are those of `pgsweep.records.lab.LabRun`."""

    values: Mapping[str, float]
    raw: Mapping[str, list[float]] = field(default_factory=dict)
    setup_seconds: float = 0.0
    warm_up_seconds: float = 0.0
    measure_seconds: float = 0.0
    steady: bool | None = None


class NothingRuns(PgsweepError):
    """No other job can be done either: the run ends, and the next one continues from here."""


@dataclass(frozen=True, slots=True)
class Disposable:
    """A server that its owner has named disposable.

    Attributes:
        conninfo: of a superuser's session.
        restart_command: for the shell; it returns when the server was restarted, or soon.
    """

    conninfo: str
    restart_command: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is run.

    Attributes:
        bindir: programs of the private server, and of clients; the wheel's where None.
        work_dir: of the data directories of private servers; beside the sockets where None.
        server: instead of a private one.
    """

    bindir: Path | None = None
    work_dir: Path | None = None
    server: Disposable | None = None


class Work(Protocol):
    """Does the jobs of a plan on its server."""

    def __call__(self, job: str, *, seed: int, advance: Advance) -> Done:
        """Do a job once and return its values; they must not depend on the job before.

        Raises:
            PgsweepError: it cannot be done; the others can.
        """


class Plan(Protocol):
    """An experiment or a grid.

    Attributes:
        name: short.
        settings: of the server, in all jobs.
        conditions: what else decides the figures, by name: two results must agree in it to be compared.
    """

    @property
    def name(self) -> str:
        """Return a short name."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings of the server that hold in all jobs."""

    @property
    def conditions(self) -> Mapping[str, str]:
        """Return what else decides the figures; two results must agree in it to be compared."""

    @property
    def jobs(self) -> Sequence[str]:
        """Return the names of the jobs, all different."""

    @property
    def cells(self) -> Sequence[CellPlan]:
        """Return the cells in the order in which they are shown."""

    def check(self, place: Place) -> None:
        """Look for what would make every job fail.

        Raises:
            PgsweepError: it is missing.
        """

    def opened(self, place: Place, progress: Progress) -> AbstractContextManager[Work]:
        """Make the private server and its tables; both are there until the context ends."""
