"""Page tables against connections, and transactions a second, with huge pages and without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pgsweep.errors import ClusterError
from pgsweep.host.hugepages import read_pools, shared_memory
from pgsweep.host.procmem import read_family
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.huge import huge_pages_for
from pgsweep.testbed.pgbench import DATABASE, create_database
from pgsweep.testbed.steps import make_spread_table, measure_seconds, open_sessions, run_sql
from pgsweep.testbed.workloads import Script, Workload

_MOST_TABLES: Final = 100
"""One script for each table; pgbench takes up to 128."""

_FILLED: Final = 0.92
"""The part of the pool that the tables fill; the connections touch all of it."""

_TOO_FEW: Final = "all huge pages as shared_buffers"


def _settings(model: Scaled) -> Mapping[str, str]:
    most = max(_connections(model, "1900"), _clients(model))
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "max_connections": str(most + 20),
        "autovacuum": "off",
        "max_parallel_workers_per_gather": "0",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    settings = _settings(model)
    tables = min(_MOST_TABLES, model.number("tables", least=5))
    pages = max(1, round(model.size_bytes("shared_buffers") / 8192 * _FILLED / tables))
    with (
        huge_pages_for(place.bindir, settings) as huge_pages,
        Cluster.create(place.bindir, settings, work_dir=place.work_dir) as cluster,
    ):
        create_database(cluster, 0)
        for number in range(tables):
            make_spread_table(cluster, DATABASE, f"t{number}", pages, fillfactor=50)
        base = dict(cluster.settings)
        ladder = next(c.each["connections"] for c in model.experiment.cell if "connections" in c.each)
        workload = _upserts(tables, pages, _clients(model))

        def step(job: str, seed: int) -> Done:
            begin = time.monotonic()
            if job == _TOO_FEW:
                values = _too_few(cluster, base, huge_pages)
                return Done(values, measure_seconds=time.monotonic() - begin)
            _start(cluster, {**base, **huge_pages(job.removeprefix("huge pages "))})
            reading = [f"SELECT count(*) FROM t{number}" for number in range(tables)]
            run_sql(cluster, DATABASE, *reading)
            setup_seconds = time.monotonic() - begin
            values = {}
            for shown in ladder:
                count = _connections(model, shown)
                tables_bytes, predicted = _page_tables(cluster, count, reading)
                values[f"{job}, {shown} connections: page tables"] = tables_bytes
                if predicted is not None:
                    values[f"{job}, {shown} connections: predicted"] = predicted
            found = measure_seconds(
                cluster,
                workload,
                int(model.parameter("measured_seconds")),
                seed=seed,
                scale=1,
                warm_up_seconds=model.parameter("warm_up_seconds"),
                advance=lambda _: None,
            )
            values[f"{job}: transactions a second"] = sum(found.values) / len(found.values)
            elapsed = time.monotonic() - begin - found.warm_up_seconds
            return Done(
                values,
                {f"{job}: transactions a second": found.values},
                setup_seconds=setup_seconds,
                warm_up_seconds=found.warm_up_seconds,
                measure_seconds=elapsed - setup_seconds,
                steady=found.steady,
            )

        yield step


def _connections(model: Scaled, shown: str) -> int:
    """Return one of the article's numbers of connections, scaled."""
    return max(1, round(int(shown) / model.scale))


def _clients(model: Scaled) -> int:
    return model.number("clients", least=4)


def _upserts(tables: int, rows: int, clients: int) -> Workload:
    """Return upserts by primary key, table and key drawn at random."""
    text = (
        "\\set id random(1, {rows})\n"
        "INSERT INTO t{number} (id, v) VALUES (:id, 1) ON CONFLICT (id) DO UPDATE SET v = t{number}.v + 1;\n"
    )
    return Workload(
        "upserts",
        "upserts of tables and keys drawn at random",
        tuple(Script(text.format(rows=rows, number=number)) for number in range(tables)),
        clients=clients,
        needs_pgbench_tables=False,
    )


def _start(cluster: Cluster, settings: dict[str, str]) -> None:
    cluster.stop()
    cluster.settings = settings
    cluster.start()


def _page_tables(cluster: Cluster, count: int, reading: list[str]) -> tuple[float, float | None]:
    """Return the page tables of connections that have touched all tables, and what one fresh one predicts."""
    with open_sessions(cluster, DATABASE, 1, "SELECT 1"):
        found = examine(cluster.conninfo(DATABASE), connections=count)
        predicted = None
        if found.page_tables is not None:
            huge = found.status == "on"
            tables = found.page_tables
            predicted = tables.connections_huge_bytes if huge else tables.connections_ordinary_bytes
    with open_sessions(cluster, DATABASE, count, *reading) as sessions:
        pids = {session.info.backend_pid for session in sessions}
        assert cluster.postmaster_pid is not None
        family = read_family(cluster.postmaster_pid)
        return float(sum(each.page_tables for each in family if each.pid in pids)), predicted


def _too_few(
    cluster: Cluster, base: dict[str, str], huge_pages: Callable[[str], dict[str, str]]
) -> dict[str, float]:
    """Try to start with as much shared_buffers as there are huge pages: by `on`, then by `try`."""
    huge_pages("on")  # says why there are none
    cluster.stop()  # it may hold them
    pool = next(pool for pool in read_pools() if pool.is_default)
    all_pages = {"shared_buffers": kilobytes(pool.available * pool.size_bytes)}
    values = {}
    for setting in ("on", "try"):
        name = f"huge_pages={setting}, all huge pages as shared_buffers"
        try:
            _start(cluster, {**base, **all_pages, "huge_pages": setting})
            assert cluster.postmaster_pid is not None
            segment = shared_memory(cluster.postmaster_pid)
            values[f"{name}: starts"] = 1.0
            values[f"{name}: has huge pages"] = float(segment is not None and segment.huge)
        except ClusterError:
            values[f"{name}: starts"] = values[f"{name}: has huge pages"] = 0.0
    return values


PROTOCOL = Protocol(_settings, _opened, uses_pgbench=True)
