"""Probes on a server's processes, and a table in a database of its own to trace."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from pgsweep._native import Tracer
from pgsweep.pg.private.cluster import Cluster

HIT, MISS, EXTEND = range(3)

can_trace = [
    pytest.mark.skipif(os.geteuid() != 0, reason="tracing needs root"),
    pytest.mark.skipif(
        not Path("/sys/bus/event_source/devices/uprobe").exists(), reason="this kernel has no uprobes"
    ),
]


class Trace:
    """A tracer, and the tables that it yielded once it is stopped."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        databases: tuple[int, ...] = (),
        ring_bytes: int = 64 << 20,
        attachment: str = "auto",
        buffer_states: bool = True,
    ) -> None:
        pid = cluster.postmaster_pid
        assert pid is not None
        self.tracer = Tracer(
            pid,
            cluster.version_num,
            databases=databases,
            ring_bytes=ring_bytes,
            attachment=attachment,
            buffer_states=buffer_states,
        )
        self.tables: dict[str, dict[str, NDArray[Any]]] = {}

    def stop(self) -> None:
        self.tracer.stop()
        batches: list[Any] = []
        while (batch := self.tracer.poll(0.0)) is not None:
            batches.append(batch)
        for table in ("accesses", "scans", "drops"):
            parts = [batch[table] for batch in batches]
            names = parts[0].keys() if parts else ()
            self.tables[table] = {name: np.concatenate([part[name] for part in parts]) for name in names}

    def of(self, pid: int, **wanted: int) -> dict[str, NDArray[Any]]:
        """Return the accesses of one process, restricted to the given values."""
        accesses = self.tables["accesses"]
        if not accesses:
            return {}
        mask = accesses["pid"] == pid
        for name, value in wanted.items():
            mask &= accesses[name] == value
        return {name: column[mask] for name, column in accesses.items()}


@contextmanager
def tracing(cluster: Cluster, **options: Any) -> Iterator[Trace]:
    trace = Trace(cluster, **options)
    try:
        yield trace
    finally:
        trace.stop()


@contextmanager
def database(cluster: Cluster, name: str) -> Iterator[psycopg.Connection[Any]]:
    """A database of one's own, and a session in it."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as owner:
        owner.execute(f"CREATE DATABASE {name}")
        try:
            with psycopg.connect(cluster.conninfo(name), autocommit=True) as connection:
                yield connection
        finally:
            owner.execute(f"DROP DATABASE {name} WITH (FORCE)")


def fill(connection: psycopg.Connection[Any], rows: int = 60_000) -> None:
    connection.execute(
        f"CREATE TABLE t AS SELECT i, repeat('x', 200) AS filler FROM generate_series(1, {rows}) AS i"
    )
    connection.execute("CREATE INDEX ON t (i)")
    connection.execute("VACUUM ANALYZE t")


def file_of(connection: psycopg.Connection[Any], relation: str) -> int:
    row = connection.execute("SELECT pg_relation_filenode(%s)", (relation,)).fetchone()
    assert row is not None
    return int(row[0])
