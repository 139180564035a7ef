"""Grids: settings × workloads × cold or warm × clients, described by a TOML file.

See docs/guides/lab.md for the file. Every run restarts the server with the settings of its cell: a
private one, or one that its owner has named disposable (lab/disposable.py).
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.lab.disposable import check_names, opened_server
from pgsweep.lab.protocol import Advance, CellPlan, Done, Place, Work
from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.plain import shown
from pgsweep.progress import Progress
from pgsweep.regular import read_regular
from pgsweep.testbed.cold import drop_files, run_setup
from pgsweep.testbed.pgbench import (
    DATABASE,
    create_database,
    fill_tables,
    find_pgbench,
    run_transactions,
)
from pgsweep.testbed.server import Restart, Server
from pgsweep.testbed.steps import Measurement, measure_seconds, measure_statements
from pgsweep.testbed.workloads import Script, Workload
from pgsweep.toml_file import TomlFile
from pgsweep.units import format_plain, parse_bytes
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.warming import run as warm

Caches = Literal["cold", "prewarmed", "warm"]
Scalar = str | int | float | bool
_Natural = Annotated[int, Meta(ge=1)]
_MOST_BYTES: Final = 1 << 20
_EXAMPLE: Final = "see docs/guides/lab.md, or `pgsweep lab run --help`"


class GridWorkload(msgspec.Struct, forbid_unknown_fields=True):
    """One workload of the file: `builtin`, `script` or `sql`, for `seconds` or `transactions`."""

    name: str = ""
    builtin: str = ""
    script: str = ""
    sql: str = ""
    seconds: _Natural | None = None
    transactions: _Natural | None = None


class GridFile(msgspec.Struct, forbid_unknown_fields=True):
    """The file as it is written.

    Attributes:
        scale: of pgbench's tables; 0 for none.
        setup: a script for psql that makes other tables, once.
        memory: limit of the memory cgroup of server and page cache.
        warm_up_seconds: the longest warm-up of a cell whose caches are warm.
        settings: a list makes a dimension of the grid.
    """

    workload: Annotated[list[GridWorkload], Meta(min_length=1)]
    name: str = ""
    repetitions: _Natural = 5
    seed: int | None = None
    scale: Annotated[int, Meta(ge=0)] = 10
    setup: str = ""
    memory: str = ""
    caches: Annotated[list[Caches], Meta(min_length=1)] = msgspec.field(default_factory=lambda: ["warm"])
    clients: Annotated[list[_Natural], Meta(min_length=1)] = msgspec.field(default_factory=lambda: [1])
    warm_up_seconds: Annotated[float, Meta(gt=0)] = 60.0
    settings: dict[str, Scalar | list[Scalar]] = {}


@dataclass(frozen=True, slots=True)
class Task:
    """A workload with the text of its script.

    Attributes:
        kind: `builtin`, `script` or `sql`.
        text: the name of the builtin script, or the file's text.
    """

    name: str
    kind: str
    text: str
    seconds: int | None = None
    transactions: int | None = None

    @property
    def unit(self) -> str:
        """Return the unit of its values."""
        return "seconds" if self.kind == "sql" else "transactions/s"


@dataclass(frozen=True, slots=True)
class Variant:
    """The settings of a cell that differ between cells: as they are shown, and as the server gets them."""

    shown: Mapping[str, str]
    actual: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Cell:
    variant: Variant
    task: Task
    caches: Caches
    clients: int


@dataclass(frozen=True)
class Grid:
    """A grid, ready to run: a `Plan`.

    Attributes:
        published: figures of an article by the key of the cell.
        fixed_factors: those that all cells share and that are left out of their keys.
    """

    name: str
    settings: Mapping[str, str]
    variants: Sequence[Variant]
    tasks: Sequence[Task]
    caches: Sequence[Caches]
    clients: Sequence[int]
    scale: int
    setup: Path | None = None
    memory_bytes: int | None = None
    warm_up_seconds: float = 60.0
    published: Mapping[str, float] | None = None
    fixed_factors: Sequence[str] = ()

    @property
    def conditions(self) -> Mapping[str, str]:
        """Return what two results must agree in."""
        found = {"scale": str(self.scale), "memory": str(self.memory_bytes or "not limited")}
        if self.setup is not None:
            found["setup"] = _digest(_text_of(self.setup).decode(errors="surrogateescape"))
        for task in self.tasks:
            how = f"{task.seconds} s" if task.seconds else f"{task.transactions} transactions a client"
            text = task.text if task.kind == "builtin" else _digest(task.text)
            found[f"workload {task.name}"] = f"{task.kind} {text}" + (
                "" if task.kind == "sql" else f", {how}"
            )
        if "clients" in self.fixed_factors:
            found["clients"] = ", ".join(map(str, self.clients))
        if "warm" in self.caches:
            found["warm-up"] = f"at most {format_plain(self.warm_up_seconds)} s"
        return found

    @property
    def jobs(self) -> Sequence[str]:
        """Return the keys of the cells."""
        return list(self._cells)

    @property
    def cells(self) -> Sequence[CellPlan]:
        """Return one cell a job."""
        published = self.published or {}
        return [
            CellPlan(
                key,
                key,
                self._factors(cell),
                cell.task.unit,
                "lower" if cell.task.kind == "sql" else "higher",
                published.get(key),
            )
            for key, cell in self._cells.items()
        ]

    @property
    def _cells(self) -> dict[str, _Cell]:
        every = itertools.product(self.variants, self.tasks, self.caches, self.clients)
        cells = [_Cell(*parts) for parts in every]
        return {
            "; ".join(f"{name}={value}" for name, value in self._factors(cell).items()): cell
            for cell in cells
        }

    def _factors(self, cell: _Cell) -> dict[str, str]:
        factors = dict(cell.variant.shown)
        factors["workload"] = cell.task.name
        factors["caches"] = cell.caches
        factors["clients"] = str(cell.clients)
        return {name: value for name, value in factors.items() if name not in self.fixed_factors}

    @property
    def own_database(self) -> bool:
        """Whether it makes tables, for which a server that is not private gets a database of its own."""
        return self.scale > 0 or self.setup is not None

    @property
    def names(self) -> list[str]:
        """Return the settings that it changes."""
        return list(
            dict.fromkeys([*self.settings, *(name for each in self.variants for name in each.actual)])
        )

    def check(self, place: Place) -> None:
        """Look for pgbench, and refuse what cannot be done on a server that is not private.

        Raises:
            ClusterError: there is none.
            UsageError: the grid limits the memory, or changes what may not be changed there.
        """
        if place.server is not None:
            if self.memory_bytes is not None:
                raise UsageError(
                    "the grid limits the memory, and --dsn names a server",
                    cause="the memory cgroup is that of a private server",
                    hint="leave out `memory`, or --dsn",
                )
            check_names(self.names)
        if self.scale > 0 or any(task.kind != "sql" for task in self.tasks):
            find_pgbench(find_server(place.bindir))

    @contextmanager
    def opened(self, place: Place, progress: Progress) -> Iterator[Work]:
        """Make the private server and its tables, or those in the server that the place names."""
        if place.server is not None:
            with opened_server(
                place.server, place.bindir, own=self.own_database, progress=progress
            ) as server:
                progress.stage("making the tables")
                fill_tables(server, self.scale, timeout_seconds=3600.0)
                if self.setup is not None:
                    run_setup(server, self.setup, DATABASE)
                fixed = self.settings

                def restart(settings: Mapping[str, str], empty: bool) -> None:
                    server.restart({**fixed, **settings}, empty)

                yield _Worker(self, server, restart)
            return
        with Cluster.create(
            place.bindir,
            _with_room(self.settings, max(self.clients)),
            self.memory_bytes,
            work_dir=place.work_dir,
        ) as cluster:
            progress.stage("making the tables")
            create_database(cluster, self.scale, timeout_seconds=3600.0)
            if self.setup is not None:
                run_setup(cluster, self.setup, DATABASE)
            yield _Worker(self, cluster, _restarting(cluster))


class _Worker:
    """Does the runs of a grid on one server."""

    def __init__(self, grid: Grid, server: Server, restart: Restart) -> None:
        self._grid = grid
        self._cells = grid._cells
        self._server = server
        self._restart = restart

    def __call__(self, job: str, *, seed: int, advance: Advance) -> Done:
        cell, grid = self._cells[job], self._grid
        begin = time.monotonic()
        self._restart(cell.variant.actual, cell.caches != "warm")
        if cell.caches == "prewarmed":
            warm(self._server.conninfo(DATABASE), WarmOptions())
        setup_seconds = time.monotonic() - begin
        begin = time.monotonic()
        found = self._measured(cell, grid, seed, advance)
        elapsed = time.monotonic() - begin
        return Done(
            {job: sum(found.values) / len(found.values)},
            {job: found.values},
            setup_seconds=setup_seconds,
            warm_up_seconds=found.warm_up_seconds,
            measure_seconds=elapsed - found.warm_up_seconds,
            steady=found.steady,
        )

    def _measured(self, cell: _Cell, grid: Grid, seed: int, advance: Advance) -> Measurement:
        warm_up = grid.warm_up_seconds if cell.caches == "warm" else None
        task = cell.task
        if task.kind == "sql":
            return measure_statements(
                self._server,
                DATABASE,
                task.text,
                clients=cell.clients,
                warm_up_seconds=warm_up,
                advance=advance,
            )
        text = f"builtin:{task.text}" if task.kind == "builtin" else task.text
        workload = Workload("lab", task.name, (Script(text),), clients=cell.clients)
        if task.transactions is not None:
            tps = run_transactions(
                self._server, workload, task.transactions, seed=seed, scale=max(1, grid.scale)
            )
            return Measurement([tps])
        assert task.seconds is not None
        return measure_seconds(
            self._server,
            workload,
            task.seconds,
            seed=seed,
            scale=max(1, grid.scale),
            warm_up_seconds=warm_up,
            advance=advance,
        )


def _restarting(cluster: Cluster) -> Restart:
    """Return what restarts a private server."""
    base = dict(cluster.settings)

    def restart(settings: Mapping[str, str], empty: bool) -> None:
        cluster.stop()
        cluster.settings = {**base, **settings}
        if empty:
            drop_files(cluster)
        cluster.start()

    return restart


def read_grid(path: Path) -> tuple[Grid, GridFile]:
    """Return the grid that a file describes, and the file's own fields.

    Raises:
        UsageError: the file is not a grid, or what it asks for cannot be.
        PgsweepError: it cannot be read.
    """
    toml = TomlFile(path)
    file = toml.table(GridFile, toml.values)
    tasks = [_task(entry, path) for entry in file.workload]
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise UsageError(f"`{path}` is not a grid", cause="two workloads have one name", hint='name = "..."')
    if "warm" in file.caches and any(task.transactions is not None for task in tasks):
        raise UsageError(
            f"`{path}` is not a grid",
            cause='a workload of `transactions` ends before it is steady, so caches cannot be "warm"',
            hint='seconds = 10 instead of transactions, or caches = ["cold", "prewarmed"]',
        )
    setup = path.parent / file.setup if file.setup else None
    if setup is not None and not setup.is_file():
        raise UsageError(f"there is no file `{setup}`", cause=f"`{path}` names it as setup")
    fixed = {name: _written(value) for name, value in file.settings.items() if not isinstance(value, list)}
    varied = {
        name: [_written(v) for v in value] for name, value in file.settings.items() if isinstance(value, list)
    }
    if not all(varied.values()):
        raise UsageError(f"`{path}` is not a grid", cause="a list of settings is empty", hint=_EXAMPLE)
    variants = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    grid = Grid(
        name=shown(file.name or path.stem),
        settings=fixed,
        variants=[Variant(values, values) for values in variants],
        tasks=tasks,
        caches=list(dict.fromkeys(file.caches)),
        clients=list(dict.fromkeys(file.clients)),
        scale=file.scale,
        setup=setup,
        memory_bytes=parse_bytes(file.memory) if file.memory else None,
        warm_up_seconds=file.warm_up_seconds,
    )
    return grid, file


def _task(entry: GridWorkload, path: Path) -> Task:
    given = [(kind, value) for kind in ("builtin", "script", "sql") if (value := getattr(entry, kind))]
    if len(given) != 1:
        cause = "a [[workload]] needs one of builtin, script and sql"
        raise UsageError(f"`{path}` is not a grid", cause=cause, hint=_EXAMPLE)
    [(kind, value)] = given
    text = value if kind == "builtin" else _text_of(path.parent / value).decode(errors="surrogateescape")
    name = entry.name or Path(value).stem
    if entry.seconds is not None and entry.transactions is not None:
        cause = f"workload {name} has both seconds and transactions"
        raise UsageError(f"`{path}` is not a grid", cause=cause, hint="leave one of them out")
    if kind == "sql" and (entry.seconds or entry.transactions):
        cause = f"workload {name} is executed once a run, so it has neither seconds nor transactions"
        raise UsageError(
            f"`{path}` is not a grid", cause=cause, hint="leave them out, or use script instead of sql"
        )
    seconds = entry.seconds if entry.transactions is not None or entry.seconds else 10
    return Task(shown(name), kind, text, None if kind == "sql" else seconds, entry.transactions)


def _text_of(path: Path) -> bytes:
    try:
        return read_regular(path, _MOST_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file `{path}`") from error
    except OSError as error:
        raise PgsweepError(f"cannot read `{path}`: {error.strerror or error}") from error


def _written(value: Scalar) -> str:
    """Return a setting as postgresql.conf has it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _with_room(settings: Mapping[str, str], clients: int) -> dict[str, str]:
    """Return the settings with room for the clients, unless they say how many connections there are."""
    room = {"max_connections": str(clients + 20)} if clients > 80 else {}
    return {**room, **settings}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
