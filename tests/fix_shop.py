"""A database under load: pgbench's tables, eight times shared_buffers, read by one client at a set pace."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from pgsweep.pg.private.cluster import Cluster

_READS_PER_SECOND = 2500
"""Enough to turn the pool over every second; at full speed it would take all of two processors."""
_SCALE = 8
_READS_PER_TRANSACTION = 10


def point_reads(reads_per_second: int, scale: int) -> list[str]:
    """Return the options by which pgbench reads rows at random at this pace."""
    script = Path(__file__).with_name("point_reads.sql")
    pace = reads_per_second // _READS_PER_TRANSACTION
    return ["-n", "-M", "prepared", "-s", str(scale), "-f", str(script), "-R", str(pace)]


@contextmanager
def shop_under_load(cluster: Cluster, seconds: int = 1200) -> Iterator[str]:
    """Make the database `shop`, have pgbench read it for so long at most, and drop it; gives its conninfo."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
    conninfo = cluster.conninfo("shop")
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
        pgbench = str(cluster.bindir / "pgbench")
        subprocess.run([pgbench, "-i", "-q", "-s", str(_SCALE), conninfo], check=True, capture_output=True)
        load = subprocess.Popen(
            [pgbench, *point_reads(_READS_PER_SECOND, _SCALE), "-T", str(seconds), conninfo],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield conninfo
        finally:
            load.terminate()
            load.wait()
    finally:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE shop WITH (FORCE)")
