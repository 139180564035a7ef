"""A database with one table larger than the pool of the shared clusters, and a load of random reads on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import own_database
from tests.fix_process import wait_until

_READS_PER_ROUND = 20
_READ = "SELECT sum((SELECT octet_length(filler) FROM page WHERE id = i)) FROM unnest(%s::int[]) AS i"
"""Reads rows by the index, one after the other: a statement for each would take ten times the processor."""


@pytest.fixture
def database(server: Cluster) -> Iterator[str]:
    """A database of our own with a table larger than the pool (16 MB)."""
    name = 'app "x"; drop'
    with (
        own_database(server, name) as conninfo,
        psycopg.connect(server.conninfo(), autocommit=True) as connection,
    ):
        with psycopg.connect(conninfo, autocommit=True) as inside:
            make_page(inside)
        # A backend reports its last counts when it ends, which is some time after its client left.
        while connection.execute("SELECT FROM pg_stat_activity WHERE datname = %s", (name,)).fetchone():
            time.sleep(0.05)
        yield name


def make_page(connection: psycopg.Connection[Any]) -> None:
    """Make the table, and what shows the pool."""
    connection.execute("CREATE EXTENSION pg_buffercache")
    connection.execute("CREATE TABLE page (id int PRIMARY KEY, filler text, long text)")
    connection.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
    connection.execute("INSERT INTO page SELECT g, repeat('x', 1800), '' FROM generate_series(1, 12000) g")
    connection.execute("VACUUM ANALYZE page")


def wait_for_pages(server: Cluster, database: str) -> None:
    """Wait until the table has most of the pool, as it is when it is read for a while."""
    of_table = """
        SELECT count(*) > 0.6 * (SELECT setting::int FROM pg_settings WHERE name = 'shared_buffers')
        FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('page')
          AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
    """
    with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
        wait_until(lambda: connection.execute(of_table).fetchone() == (True,))


@contextmanager
def load_running(
    server: Cluster, database: str, *, sessions: int = 2, pause_seconds: float = 0.009, exponent: float = 2.0
) -> Iterator[None]:
    """Have sessions read random rows until the block ends.

    Args:
        server, database: where; the table is that of `database`.
        sessions: how many read at once.
        pause_seconds: after every 20 reads. Without one the sessions would take all processors of a small
            machine, from the recording and from the tests beside it; with this one two sessions make about
            4000 reads a second, which turn the pool over every few seconds, and take hardly any of it.
        exponent: the larger it is, the hotter are the hottest rows; with 1 all are alike.
    """
    over = threading.Event()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
                while not over.wait(pause_seconds):
                    rows = (12000 * rng.random(_READS_PER_ROUND) ** exponent).astype(int) + 1
                    connection.execute(_READ, [rows.tolist()], prepare=True)
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
