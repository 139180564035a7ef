"""A database with one table larger than the pool of the shared clusters, and a load of random reads on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import psycopg
import pytest
from psycopg import sql

from pgsweep.pg.cluster import Cluster

_READS_PER_ROUND = 20


@pytest.fixture
def database(server: Cluster) -> Iterator[str]:
    """A database of our own with a table larger than the pool (16 MB)."""
    name = 'app "x"; drop'
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        with psycopg.connect(server.conninfo(name), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
            inside.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
            inside.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            inside.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g"
            )
            inside.execute("VACUUM ANALYZE page")
        # A backend reports its last counts when it ends, which is some time after its client left.
        while connection.execute("SELECT FROM pg_stat_activity WHERE datname = %s", (name,)).fetchone():
            time.sleep(0.05)
        yield name
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def load_running(
    server: Cluster, database: str, *, sessions: int = 2, pause_seconds: float = 0.015
) -> Iterator[None]:
    """Have sessions read random rows until the block ends.

    Args:
        server, database: where; the table is that of `database`.
        sessions: how many read at once.
        pause_seconds: after every 20 reads. Without one the sessions would take all processors of a small
            machine, from the recording and from the tests beside it; with this one two sessions make about
            2000 reads a second, which turn the pool over every few seconds.
    """
    over = threading.Event()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
                while not over.wait(pause_seconds):
                    for draw in rng.random(_READS_PER_ROUND):
                        row = int(12000 * draw**2) + 1
                        connection.execute(
                            "SELECT length(filler) FROM page WHERE id = %s", [row], prepare=True
                        )
        except psycopg.OperationalError:
            return

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(sessions)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
