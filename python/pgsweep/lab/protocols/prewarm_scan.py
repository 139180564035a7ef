"""A full count before and after warming, each state of the caches made by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal

from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.held import held
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.cold import empty_caches
from pgsweep.testbed.steps import explain, run_sql
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.warming import run as warm

_STATES: Final[Mapping[str, Literal["pool", "page-cache"] | None]] = {
    "cold": None,
    "page cache warm": "page-cache",
    "pool warm": "pool",
}

_KINDS: Final = ("hit", "read", "dirtied", "written")


def _settings(model: Scaled) -> Mapping[str, str]:
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "autovacuum": "off",
        "max_parallel_workers_per_gather": "4",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    with Cluster.create(
        place.bindir, _settings(model), model.memory_bytes, work_dir=place.work_dir
    ) as cluster:
        cluster.create_extensions("postgres", "pg_prewarm", "pg_buffercache")

        def step(job: str, _seed: int) -> Done:
            begin = time.monotonic()
            run_sql(
                cluster,
                "postgres",
                "DROP TABLE IF EXISTS counted",
                "CREATE TABLE counted (n int)",
                f"INSERT INTO counted SELECT generate_series(1, {model.number(job)})",
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
    """Return which part of the table each cache held, then the seconds of a count and its blocks."""
    place = held(cluster, "postgres", "counted")
    values = {f"{name}: in shared_buffers before": place.pool}
    if place.page_cache is not None:
        values[f"{name}: in the page cache before"] = place.page_cache
    found = explain(cluster, "postgres", "SELECT count(*) FROM counted")
    blocks = {f"{name}: blocks {kind}": float(found[f"{kind}_blocks"]) for kind in _KINDS}
    return {**values, f"{name}: seconds": found["seconds"], **blocks}


PROTOCOL = Protocol(_settings, _opened)
