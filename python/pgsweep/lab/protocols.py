"""The steps of the published experiments, on private servers; each is chosen by the name in its file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pgsweep.cache.footprint import footprint
from pgsweep.cache.inspect import look
from pgsweep.lab.catalog import Experiment
from pgsweep.lab.grid import Grid, Task, Variant
from pgsweep.lab.protocol import Advance, CellPlan, Done, Place, Plan, Work
from pgsweep.pg.bindir import find_server
from pgsweep.pg.cluster import Cluster
from pgsweep.progress import Progress
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import DATABASE as COLD_DATABASE
from pgsweep.testbed.cold import empty_caches, private_server
from pgsweep.testbed.pgbench import DATABASE as PGBENCH
from pgsweep.testbed.pgbench import create_database, find_pgbench
from pgsweep.testbed.steps import explain, run_sql
from pgsweep.testbed.workloads import ACCOUNTS_PER_SCALE
from pgsweep.units import format_plain, parse_bytes
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.run import run as warm

_LOOK_UP_EVERY: Final = 1300
"""Accounts: about one look-up for each 20 pages of the table, as a server after some work has."""

_PGBENCH_RELATIONS: Final = ("pgbench_accounts", "pgbench_accounts_pkey")


Step = Callable[[str], Done]
"""Does a job."""


@dataclass(frozen=True)
class Steps:
    """An experiment at a scale: a `Plan` whose jobs are steps on a server that is made for each job."""

    experiment: Experiment
    scale: float

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return self.experiment.name

    @property
    def settings(self) -> Mapping[str, str]:
        """Return the settings: those that the protocol needs, scaled."""
        return _SETTINGS[self.experiment.protocol](self)

    @property
    def conditions(self) -> Mapping[str, str]:
        """Return scale and parameters."""
        return {
            "scale": format_plain(self.scale),
            **{k: str(v) for k, v in self.experiment.parameters.items()},
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
        if self.experiment.protocol == "residency":
            find_pgbench(find_server(place.bindir))

    @contextmanager
    def opened(self, place: Place, progress: Progress) -> Iterator[Work]:
        """Make the private server and its tables."""
        progress.stage("making the tables")
        with _PROTOCOLS[self.experiment.protocol](self, place) as step:

            def work(job: str, *, seed: int, advance: Advance) -> Done:
                del seed, advance  # steps draw nothing, and do not know how long they take
                return step(job)

            yield work

    def size_bytes(self, name: str) -> int:
        """Return one of the article's sizes, scaled, in whole blocks of 8 kB."""
        value = self.experiment.sizes[name]
        assert isinstance(value, str)
        return _scaled_bytes(value, self.scale)

    def number(self, name: str) -> int:
        """Return one of the article's numbers, scaled."""
        value = self.experiment.sizes[name]
        assert isinstance(value, int | float)
        return max(1, round(value / self.scale))


def plan_of(experiment: Experiment, scale: float) -> Plan:
    """Return an experiment at a scale as a plan."""
    return _tpcb(experiment, scale) if experiment.protocol == "tpcb" else Steps(experiment, scale)


def _tpcb(experiment: Experiment, scale: float) -> Grid:
    """Return the grid of pgbench's own workload over scaled sizes, named by the article's."""
    sizes = experiment.sizes["shared_buffers"]
    assert isinstance(sizes, dict)
    steps = Steps(experiment, scale)
    clients = max(2, steps.number("clients"))
    transactions = int(experiment.parameters["transactions"])
    published = {cell.key: cell.published for cell in experiment.cell if cell.published is not None}
    return Grid(
        name=experiment.name,
        settings={"autovacuum": "off", "max_connections": str(clients + 20)},
        variants=[
            Variant({"shared_buffers": shown}, {"shared_buffers": f"{_scaled_bytes(shown, scale) // 1024}kB"})
            for shown in sizes
        ],
        tasks=[Task("tpcb", "builtin", "tpcb-like", transactions=transactions)],
        caches=["cold", "prewarmed"],
        clients=[clients],
        scale=steps.number("pgbench_scale"),
        memory_bytes=steps.size_bytes("memory"),
        published=published,
        fixed_factors=("workload", "clients"),
    )


@contextmanager
def _residency(plan: Steps, place: Place) -> Iterator[Step]:
    with Cluster.create(place.bindir, plan.settings, work_dir=place.work_dir) as cluster:
        create_database(cluster, plan.number("pgbench_scale"), timeout_seconds=3600.0)
        accounts = ACCOUNTS_PER_SCALE * plan.number("pgbench_scale")

        def step(_job: str) -> Done:
            begin = time.monotonic()
            empty_caches(cluster)
            wanted = range(1, accounts, _LOOK_UP_EVERY)
            run_sql(
                cluster,
                PGBENCH,
                "SET enable_seqscan = off",
                *(f"SELECT abalance FROM pgbench_accounts WHERE aid = {aid}" for aid in wanted),
            )
            values: dict[str, float] = {}
            setup_seconds = time.monotonic() - begin
            for when in ("before", "after"):
                if when == "after":
                    calls = [f"SELECT pg_prewarm('{relation}')" for relation in _PGBENCH_RELATIONS]
                    run_sql(cluster, PGBENCH, *calls)
                values |= _residency_of(cluster, when)
            elapsed = time.monotonic() - begin
            return Done(values, setup_seconds=setup_seconds, measure_seconds=elapsed - setup_seconds)

        yield step


def _residency_of(cluster: Cluster, when: str) -> dict[str, float]:
    """Return which part of table and index lies in which cache."""
    with opened(cluster.conninfo(PGBENCH)) as access:
        found = look(access, every_database=False)
    values: dict[str, float] = {}
    for row in found.relations:
        if row.relation not in _PGBENCH_RELATIONS or not row.size_bytes:
            continue
        name = "table" if row.relation == _PGBENCH_RELATIONS[0] else "index"
        values[f"{name} {when}: of shared_buffers"] = row.shared_buffers_bytes / found.pool.size_bytes
        values[f"{name} {when}: in shared_buffers"] = row.shared_buffers_bytes / row.size_bytes
        if row.page_cache_bytes is not None and row.both_bytes is not None:
            values[f"{name} {when}: in the page cache"] = row.page_cache_bytes / row.size_bytes
            values[f"{name} {when}: in both"] = row.both_bytes / row.size_bytes
    used = max(1, sum(found.pool.usage_counts))
    for usage, buffers in enumerate(found.pool.usage_counts):
        values[f"{when}: buffers at usage_count {usage}"] = buffers / used
    return values


_VISITS: Final = """
CREATE TABLE visits (id int PRIMARY KEY, name text, grade int, code int);
INSERT INTO visits
SELECT g, 'name ' || hashint4(g) % {names} || repeat('.', 26), g % 10, g / 6
FROM generate_series(1, {rows}) AS g;
CREATE INDEX visits_name ON visits (name);
CREATE INDEX visits_code ON visits (code);
VACUUM ANALYZE visits;
"""


def _visits_statements(rows: int) -> dict[str, str]:
    """Return the article's six statements, for a table of so many rows."""
    first, width = rows // 10, rows // 10
    ors = " OR ".join(f"id = {max(1, int(rows * part))}" for part in (0.1, 0.25, 0.4, 0.55, 0.7, 0.9))
    half = rows // 2
    return {
        "seq scan": "SELECT count(id) FROM visits WHERE grade = 3",
        "index range": f"SELECT count(name) FROM visits WHERE id BETWEEN {first} AND {first + width}",
        "another range": f"SELECT count(name) FROM visits WHERE id BETWEEN {half} AND {half + width}",
        "text equality": "SELECT * FROM visits WHERE name = 'name 4711' || repeat('.', 26)",
        "non-unique index": f"SELECT * FROM visits WHERE code = {rows // 80}",
        "six ORs": f"SELECT * FROM visits WHERE {ors}",
    }


@contextmanager
def _footprint(plan: Steps, place: Place) -> Iterator[Step]:
    rows = plan.number("rows")
    statements = _visits_statements(rows)
    with tempfile.TemporaryDirectory() as folder:
        setup = Path(folder) / "setup.sql"
        setup.write_text(_VISITS.format(rows=rows, names=max(10, rows // 62)))
        with private_server(
            setup, settings=plan.settings, bindir=place.bindir, work_dir=place.work_dir
        ) as cluster:

            def step(job: str) -> Done:
                begin = time.monotonic()
                found = footprint(
                    cluster.conninfo(COLD_DATABASE),
                    statements[job],
                    empty_caches=lambda: empty_caches(cluster),
                )
                own = [row for row in found.relations if row.schema == "public"]
                values = {
                    f"{job}: into shared_buffers": float(
                        sum(row.runs[0].shared_buffers_in_bytes for row in own)
                    ),
                    f"{job}: cold": found.runs[0].execution_seconds,
                    f"{job}: again": found.runs[1].execution_seconds,
                }
                if found.sees_page_cache:
                    brought = sum(row.runs[0].page_cache_in_bytes or 0 for row in own)
                    values[f"{job}: into the page cache"] = float(brought)
                return Done(values, measure_seconds=time.monotonic() - begin)

            yield step


_STATES: Final[Mapping[str, Literal["pool", "page-cache"] | None]] = {
    "cold": None,
    "page cache warm": "page-cache",
    "pool warm": "pool",
}


@contextmanager
def _prewarm_scan(plan: Steps, place: Place) -> Iterator[Step]:
    with Cluster.create(
        place.bindir, plan.settings, plan.size_bytes("memory"), work_dir=place.work_dir
    ) as cluster:
        cluster.create_extensions("postgres", "pg_prewarm", "pg_buffercache")

        def step(job: str) -> Done:
            begin = time.monotonic()
            run_sql(
                cluster,
                "postgres",
                "DROP TABLE IF EXISTS counted",
                "CREATE TABLE counted (n int)",
                f"INSERT INTO counted SELECT generate_series(1, {plan.number(job)})",
                "CHECKPOINT",
            )
            setup_seconds = time.monotonic() - begin
            values = _counted(cluster, f"{job}, first")
            run_sql(cluster, "postgres", "CHECKPOINT")
            for state, into in _STATES.items():
                empty_caches(cluster)
                if into is not None:
                    options = WarmOptions(selection=Selection(relations=["counted"]), into=into, mode="read")
                    warm(cluster.conninfo(), options)
                values |= _counted(cluster, f"{job}, {state}")
            values |= _counted(cluster, f"{job}, again")
            elapsed = time.monotonic() - begin
            return Done(values, setup_seconds=setup_seconds, measure_seconds=elapsed - setup_seconds)

        yield step


def _counted(cluster: Cluster, name: str) -> dict[str, float]:
    """Return the seconds of a count, and the blocks that it read and wrote."""
    found = explain(cluster, "postgres", "SELECT count(*) FROM counted")
    blocks = {f"{name}: blocks {kind}": float(found[f"{kind}_blocks"]) for kind in ("hit", "read", "written")}
    return {f"{name}: seconds": found["seconds"], **blocks}


def _scaled_bytes(text: str, scale: float) -> int:
    return max(16, round(parse_bytes(text) / scale / 8192)) * 8192


def _kilobytes(size_bytes: int) -> str:
    return f"{size_bytes // 1024}kB"


_PROTOCOLS: Final = {"residency": _residency, "footprint": _footprint, "prewarm-scan": _prewarm_scan}
_SETTINGS: Final = {
    "residency": lambda plan: {
        "shared_buffers": _kilobytes(plan.size_bytes("shared_buffers")),
        "autovacuum": "off",
    },
    "footprint": lambda plan: {
        "shared_buffers": _kilobytes(plan.size_bytes("shared_buffers")),
        "max_parallel_workers_per_gather": "0",
    },
    "prewarm-scan": lambda plan: {
        "shared_buffers": _kilobytes(plan.size_bytes("shared_buffers")),
        "autovacuum": "off",
        "max_parallel_workers_per_gather": "4",
    },
}
