"""Which part of table and index lies in which cache, before and after pg_prewarm."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from pgsweep.cache.inspect import look
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.scaled import Protocol, Scaled, Step, kilobytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import empty_caches
from pgsweep.testbed.pgbench import DATABASE, create_database
from pgsweep.testbed.steps import run_sql
from pgsweep.testbed.workloads import ACCOUNTS_PER_SCALE

_LOOK_UP_EVERY: Final = 1300
"""Accounts between two that are looked up: about one look-up for each 20 pages of the table."""

_PGBENCH_RELATIONS: Final = ("pgbench_accounts", "pgbench_accounts_pkey")


def _settings(model: Scaled) -> Mapping[str, str]:
    return {"shared_buffers": kilobytes(model.size_bytes("shared_buffers")), "autovacuum": "off"}


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    with Cluster.create(place.bindir, _settings(model), work_dir=place.work_dir) as cluster:
        create_database(cluster, model.number("pgbench_scale"), timeout_seconds=3600.0)
        accounts = ACCOUNTS_PER_SCALE * model.number("pgbench_scale")

        def step(_job: str, _seed: int) -> Done:
            begin = time.monotonic()
            empty_caches(cluster)
            wanted = range(1, accounts, _LOOK_UP_EVERY)
            run_sql(
                cluster,
                DATABASE,
                "SET enable_seqscan = off",
                *(f"SELECT abalance FROM pgbench_accounts WHERE aid = {aid}" for aid in wanted),
            )
            values: dict[str, float] = {}
            setup_seconds = time.monotonic() - begin
            for when in ("before", "after"):
                if when == "after":
                    calls = [f"SELECT pg_prewarm('{relation}')" for relation in _PGBENCH_RELATIONS]
                    run_sql(cluster, DATABASE, *calls)
                values |= _residency_of(cluster, when)
            elapsed = time.monotonic() - begin
            return Done(values, setup_seconds=setup_seconds, measure_seconds=elapsed - setup_seconds)

        yield step


def _residency_of(cluster: Cluster, when: str) -> dict[str, float]:
    """Return which part of table and index lies in which cache."""
    with opened(cluster.conninfo(DATABASE)) as access:
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


PROTOCOL = Protocol(_settings, _opened, uses_pgbench=True)
