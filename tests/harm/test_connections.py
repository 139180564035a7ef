"""Connections are the applications': few are taken, and fewer still where the server is in trouble."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ConnectionFailed
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session import unanswered
from pgsweep.pg.session.connect import connect
from tests.fix_cli import launch, run
from tests.fix_process import wait_until
from tests.fix_serve import serving

MOST: Final = 20
PIECES: Final = ("--columns", "id", "--piece", "8kB")
FREE: Final = MOST - 3
"""Less superuser_reserved_connections."""

_OURS: Final = """\
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND usename <> 'app' AND pid <> pg_backend_pid()"""
"""Sessions of the command: those of the application may take a while to end on a busy machine."""


@pytest.fixture
def crowded(bindir: Path | None) -> Iterator[Cluster]:
    """A server of few connections, with a table that takes some calls to read."""
    settings = {"max_connections": str(MOST), "shared_buffers": "32MB", "autovacuum": "off"}
    with Cluster.create(bindir, settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute("CREATE TABLE page AS SELECT repeat('x', 900) FROM generate_series(1, 20000)")
            session.execute("CREATE TABLE target (id int)")
            session.execute("CREATE ROLE app LOGIN")
        yield cluster


@contextmanager
def entered(cluster: Cluster) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        yield session


def waiting(session: psycopg.Connection[Any]) -> int:
    """Return how many processes wait for a lock on a relation."""
    row = session.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def locked(session: psycopg.Connection[Any]) -> Iterator[None]:
    """Let no session begin, as VACUUM FULL of this catalog does for a while."""
    with session.transaction():
        session.execute("LOCK TABLE pg_catalog.pg_authid IN ACCESS EXCLUSIVE MODE")
        yield


@pytest.mark.slow
def test_applications_find_half_of_the_connections_free(crowded: Cluster, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("".join(f"{number}\n" for number in range(100_000)))
    at = crowded.conninfo()
    commands = (
        ("warm", "run", at, "--connections", "64", "--rate", "8MB", "--relations", "page"),
        ("load", "rows.csv", "target", "-d", at, "--yes", "--jobs", "64", *PIECES),
    )
    with entered(crowded) as watcher:
        for command in commands:
            most = 0
            with launch(*command, "--json", cwd=tmp_path, env={"XDG_STATE_HOME": str(tmp_path)}) as process:
                while process.poll() is None:
                    row = watcher.execute(_OURS).fetchone()
                    assert row is not None
                    most = max(most, row[0])
                    psycopg.connect(make_conninfo(at, user="app")).close()
                    time.sleep(0.01)
                said, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            result = json.loads(said)
            used = result["work"]["connections"] if command[0] == "warm" else result["plan"]["jobs"]
            # The watcher's is taken, and maybe one that has just ended.
            assert FREE // 2 - 2 <= used <= (FREE - 1) // 2, used
            assert used <= most <= (FREE + 1) // 2, most


@pytest.mark.slow
@pytest.mark.one_server
def test_a_server_on_which_no_session_begins_is_left_two_connections(crowded: Cluster) -> None:
    at = make_conninfo(crowded.conninfo(), connect_timeout="2")
    with entered(crowded) as owner:
        with locked(owner):
            for _ in range(5):
                with pytest.raises(ConnectionFailed, match="began no session"):
                    connect(at)
            assert waiting(owner) == 2
        # It is answered again only after the server has ended what was left there.
        with pytest.raises(ConnectionFailed, match="began no session"):
            connect(at)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unanswered, "_seconds", 0.0)
            connect(at).close()


@pytest.mark.slow
@pytest.mark.one_server
def test_serve_leaves_few_connections_to_a_server_on_which_no_session_begins(
    crowded: Cluster, tmp_path: Path
) -> None:
    at = make_conninfo(crowded.conninfo(), connect_timeout="2")
    with entered(crowded) as owner, locked(owner), serving(tmp_path, at):
        wait_until(lambda: waiting(owner) == 2)
        # Each attempt takes 2 s, and the pauses are of 0.5, 1 and 2 s.
        for _ in range(100):
            assert waiting(owner) <= 3
            time.sleep(0.2)


def test_the_plan_says_which_statements_of_others_fail(wheel18: Cluster, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("".join(f"{number},x\n" for number in range(1000)))
    with entered(wheel18) as owner:
        owner.execute("CREATE TABLE upserted (id int PRIMARY KEY, note text)")
    try:
        command = ("load", "rows.csv", "upserted", "-d", wheel18.conninfo(), "--plan", "--indexes", "drop")
        assert "ON CONFLICT" in run(*command, cwd=tmp_path).stdout
    finally:
        with entered(wheel18) as owner:
            owner.execute("DROP TABLE upserted")
