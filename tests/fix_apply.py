"""What tests of `advise --apply` share."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg

from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster


def kept(cluster: Cluster) -> dict[str, str]:
    """Return what postgresql.auto.conf says."""
    text = (cluster.data_directory / "postgresql.auto.conf").read_text()
    lines = [line.partition(" = ") for line in text.splitlines() if not line.startswith("#")]
    return {name: value.strip("'") for name, _, value in lines}


def recorded(server: Cluster, folder: Path) -> None:
    """Record a server on which little happens: its planner can be advised, for a memory that is named."""
    ended = threading.Event()

    def read_a_little() -> None:
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            while not ended.wait(0.05):
                connection.execute("SELECT count(*) FROM pg_class")

    reader = threading.Thread(target=read_a_little)
    reader.start()
    try:
        record_sql(server.conninfo(), folder / "e.evidence", seconds=2)
    finally:
        ended.set()
        reader.join()
