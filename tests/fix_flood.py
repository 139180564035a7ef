"""A database with a table to keep and a table to flood with, and the flood."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from pgsweep.pg.private.cluster import Cluster
from tests.fix_cluster import own_database

DATABASE = "floodable"
HOT_BLOCKS = 300
FLOOD_ROWS = 30_000
SETUP = (
    "CREATE EXTENSION pg_buffercache",
    "CREATE EXTENSION pg_prewarm",
    # One row a block, and 2.4 MB of a pool of 16 MB.
    "CREATE TABLE hot (id int PRIMARY KEY, f text) WITH (fillfactor = 10)",
    f"INSERT INTO hot SELECT g, repeat('h', 700) FROM generate_series(1, {HOT_BLOCKS}) g",
    "CREATE TABLE flood (id int PRIMARY KEY, f text)",
    f"INSERT INTO flood SELECT g, repeat('f', 900) FROM generate_series(1, {FLOOD_ROWS}) g",
    "VACUUM ANALYZE",
)


@contextmanager
def floodable(cluster: Cluster) -> Iterator[str]:
    """Make the database, and drop it; gives its conninfo."""
    with own_database(cluster, DATABASE) as conninfo:
        fill(conninfo)
        yield conninfo


def fill(conninfo: str) -> None:
    """Make the tables."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in SETUP:
            connection.execute(statement.encode())


@contextmanager
def flood(conninfo: str, allowed: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Read ranges of the large table by its index, which no ring confines: the hand keeps moving.

    Each range is an eighth of the pool, and is read once `allowed` says so.
    """
    stop = threading.Event()

    def read() -> None:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
            connection.execute("SET max_parallel_workers_per_gather = 0")
            first = 0
            while not stop.is_set():
                wanted = "SELECT count(f) FROM flood WHERE id BETWEEN %s AND %s"
                connection.execute(wanted, [first, first + 2000]).fetchone()
                first = (first + 2000) % FLOOD_ROWS
                time.sleep(0.15)
                while not allowed() and not stop.is_set():
                    time.sleep(0.01)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def resident(conninfo: str, name: str = "hot") -> set[int]:
    """Return the resident blocks of a relation's main fork."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT relblocknumber::int8 FROM pg_buffercache WHERE relforknumber = 0"
            " AND relfilenode = pg_relation_filenode(%s::regclass)"
            " AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [name],
        )
        return {block for (block,) in rows}
