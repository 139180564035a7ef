"""`pgsweep warm run` into a pool in use: what is pushed out meanwhile is found, and read once more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.cluster import Cluster
from pgsweep.pg.connect import connect
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.warm import warm_text
from pgsweep.warm.gather import Selection
from pgsweep.warm.prepare import Options
from pgsweep.warm.run import run

POOL_MB = 64


@pytest.fixture(params=[(56, 48), (45, 23)], ids=["large", "small"])
def full(bindir: Path | None, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server whose pool is nearly full of one table, `hot`, at usage_count 5; `mine` is still to come.

    What comes first takes the unused buffers, and is then the first that the clock sweep can take. Where but
    a little of `mine` needs others' buffers, reading that once more would only take other blocks of `mine`.
    """
    settings = {"shared_buffers": f"{POOL_MB}MB", "autovacuum": "off", "bgwriter_lru_maxpages": "0"}
    with Cluster.create(bindir, settings) as cluster:
        cluster.create_extensions("postgres", "pg_prewarm", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            for name, megabytes in zip(("hot", "mine"), request.param, strict=True):
                connection.execute(f"CREATE TABLE {name} (id int, filler text)".encode())
                connection.execute(f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN".encode())
                rows = f"SELECT g, repeat('x', 8000) FROM generate_series(1, {megabytes * 128}) AS g"
                connection.execute(f"INSERT INTO {name} {rows}".encode())
            connection.execute("VACUUM ANALYZE")
        cluster.restart()
        with connect(cluster.conninfo()) as connection:
            for _ in range(6):
                connection.execute("SELECT pg_prewarm('hot')")
        yield cluster.conninfo()


def test_what_a_full_pool_pushes_out_is_read_once_more(full: str) -> None:
    result = run(full, Options(selection=Selection(relations=["mine"])))
    work, verified = result.work, result.verified
    assert work is not None
    assert verified is not None
    assert work.read_bytes == work.asked_bytes == verified.pool_asked_bytes
    assert verified.pool_before_bytes == 0
    assert 0.1 * work.asked_bytes < work.pushed_out_bytes < 0.5 * work.asked_bytes
    assert verified.pool_bytes is not None
    assert verified.pool_bytes > 0.99 * verified.pool_asked_bytes
    assert "read and touched again" in warm_text(result, Terminal())
    assert "pushed out again" not in warm_text(result, Terminal())


def test_a_run_that_is_stopped_brings_nothing_back(full: str) -> None:
    stop = threading.Event()
    stop.set()
    result = run(full, Options(selection=Selection(relations=["mine"])), stop=stop)
    assert result.work is not None
    assert result.work.stopped
    assert result.work.pushed_out_bytes == 0
    assert result.verified is not None
    assert (result.verified.pool_bytes or 0) < result.verified.pool_asked_bytes
