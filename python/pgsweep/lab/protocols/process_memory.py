"""What a connection costs: memory of backends that are fresh, and that have touched a part of the pool."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pgsweep.errors import ClusterError
from pgsweep.host import cgroup
from pgsweep.host.procmem import ProcessMemory, ProcessStatus, read_family, read_memory, read_status
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.scaled import NO_LIMIT_BYTES, Protocol, Scaled, Step, kilobytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.huge import huge_pages_for
from pgsweep.testbed.steps import make_spread_table, open_sessions, run_in, run_sql

_DATABASE: Final = "postgres"
_TOUCH: Final = "SELECT count(*) FROM touched"
_CATALOGS: Final = "SELECT count(*) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
_SETTLE_SECONDS: Final = 20.0


def _settings(model: Scaled) -> Mapping[str, str]:
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "max_connections": str(model.number("connections", least=2) + 20),
        "autovacuum": "off",
        "max_parallel_workers_per_gather": "0",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    settings = _settings(model)
    # The group is there for the kernel's own account of what connections cost.
    limit = NO_LIMIT_BYTES if cgroup.find_parent() is not None else None
    with (
        huge_pages_for(place.bindir, settings) as huge_pages,
        Cluster.create(place.bindir, settings, limit, work_dir=place.work_dir) as cluster,
    ):
        cluster.create_extensions(_DATABASE, "pg_prewarm")
        make_spread_table(cluster, _DATABASE, "touched", model.size_bytes("touched") // 8192)

        def step(job: str, _seed: int) -> Done:
            state = job.removeprefix("huge pages ")
            begin = time.monotonic()
            cluster.restart(huge_pages(state))
            run_sql(cluster, _DATABASE, "SELECT pg_prewarm('touched')")
            setup_seconds = time.monotonic() - begin
            values = _of_one(cluster) | _of_many(cluster, model.number("connections", least=2))
            elapsed = time.monotonic() - begin
            return Done(
                {f"{job}: {name}": value for name, value in values.items()},
                setup_seconds=setup_seconds,
                measure_seconds=elapsed - setup_seconds,
            )

        yield step


def _of_one(cluster: Cluster) -> dict[str, float]:
    """Return what /proc/PID/status says of a backend that is fresh, and that has touched the table."""
    with open_sessions(cluster, _DATABASE, 1, "SELECT 1") as [session]:
        fresh = _status(session.info.backend_pid)
        run_in(session, _TOUCH)
        after = _status(session.info.backend_pid)
    values: dict[str, float] = {
        "RSS, fresh": fresh.rss,
        "RSS, pool touched": after.rss,
        "VmPTE, pool touched": after.page_tables,
    }
    for name, part in (
        ("RssAnon", after.rss_anon),
        ("RssFile", after.rss_file),
        ("RssShmem", after.rss_shmem),
        ("HugetlbPages", after.huge_pages),
    ):
        if part is not None:
            values[f"{name}, pool touched"] = part
    return values


def _of_many(cluster: Cluster, count: int) -> dict[str, float]:
    """Return the medians of connections that have all touched the table, and what the kernel is charged."""
    with open_sessions(cluster, _DATABASE, count, _CATALOGS):
        pass  # what the server allocates once for that number of sessions is not counted
    before = _charged(cluster)
    with open_sessions(cluster, _DATABASE, count, _CATALOGS, _TOUCH) as sessions:
        pids = {session.info.backend_pid for session in sessions}
        family = read_family(_postmaster(cluster))
        memory = read_memory(family, rollup_budget_bytes=1 << 60)
        found = [each for each in memory if each.status.pid in pids]
        after = _charged(cluster, settle=False)
    values: dict[str, float] = {}
    for name, parts in (
        ("Pss_Anon, many connections", [each.private.anonymous for each in found]),
        ("Pss_Shmem, many connections", [each.private.shmem for each in found]),
        ("cost of a connection", [_cost(each) for each in found]),
    ):
        known = [part for part in parts if part is not None]
        if known:
            values[name] = statistics.median(known)
    if before is not None and after is not None:
        values["charged by the kernel"] = (after - before) / count
    return values


def _cost(process: ProcessMemory) -> int | None:
    """Return what would come back if it ended: private memory and page tables."""
    private = process.private.anonymous
    return None if private is None else private + process.status.page_tables


def _charged(cluster: Cluster, *, settle: bool = True) -> int | None:
    """Return what the server's cgroup is charged besides page cache and shared memory."""
    group = cluster.memory_cgroup
    if group is None:
        return None
    deadline = time.monotonic() + _SETTLE_SECONDS
    postmaster = _postmaster(cluster)
    while settle and time.monotonic() < deadline:
        if not any("[local]" in status.title for status in read_family(postmaster)):
            break
        time.sleep(0.05)
    return group.usage_bytes() - group.page_cache_bytes()


def _status(pid: int) -> ProcessStatus:
    found = read_status(pid)
    if found is None:
        raise ClusterError("a session ended while its memory was read", hint="see the server's log")
    return found


def _postmaster(cluster: Cluster) -> int:
    assert cluster.postmaster_pid is not None
    return cluster.postmaster_pid


PROTOCOL = Protocol(_settings, _opened)
