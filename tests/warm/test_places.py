"""Other tablespaces, a standby that is promoted, and one of a thousand relations that may not be read."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener
from pgsweep.warm.outcome import WorkState
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions, prepare
from pgsweep.warm.run.warming import run
from tests.fix_cli import run as pgsweep
from tests.fix_process import needs_root
from tests.fix_standby import PRIMARY, standby_of
from tests.fix_warm import (
    as_reader,
    carry_out,
    database_to_warm,
    drop_files,
    evict_all,
    piece_of,
    resident_blocks,
)

PUBLIC = Selection(schemas=["public"])


@pytest.fixture
def tablespace(server: Cluster) -> Iterator[str]:
    """A tablespace of the server."""
    folder = server.run_directory / "elsewhere"
    folder.mkdir()
    owner = server.data_directory.stat()
    os.chown(folder, owner.st_uid, owner.st_gid)
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLESPACE elsewhere LOCATION '{folder}'".encode())
        yield "elsewhere"
        connection.execute("DROP TABLESPACE elsewhere")
    folder.rmdir()


@pytest.fixture
def far(tablespace: str, fresh: str) -> str:
    """A database with a table and its index in another tablespace than its own."""
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute(f"SET default_tablespace = {tablespace}".encode())
        connection.execute("CREATE TABLE far (n int PRIMARY KEY, filler text)")
        connection.execute("INSERT INTO far SELECT g, repeat('f', 500) FROM generate_series(1, 3000) g")
        connection.execute("VACUUM ANALYZE far")
    return fresh


FAR = WarmOptions(selection=Selection(relations=["far"]))


def test_relations_in_another_tablespace_come_into_the_pool(far: str) -> None:
    evict_all(far)
    result = run(far, FAR)
    assert result.verified is not None
    assert result.verified.pool_bytes == result.asked_bytes > 0
    for name in ("far", "far_pkey"):
        assert resident_blocks(far, name) == piece_of(far, name).blocks


@needs_root
def test_relations_in_another_tablespace_come_into_the_page_cache(server: Cluster, far: str) -> None:
    evict_all(far)
    drop_files(server, far, "far", "far_pkey")
    result = run(far, WarmOptions(selection=FAR.selection, into="page-cache"))
    assert result.mode == "kernel"
    assert result.verified is not None
    assert (result.verified.page_cache_before_bytes or 0) < 0.3 * result.asked_bytes
    assert result.verified.page_cache_bytes == result.asked_bytes > 0
    assert {row.relation: row.page_cache_resident_bytes for row in result.relations} == {
        row.relation: row.size_bytes for row in result.relations
    }


class Promoting(NullListener):
    """Promotes a standby once a third is read."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self.promoted_at = 0
        self._thread: threading.Thread | None = None

    def state(self, state: object) -> None:
        assert isinstance(state, WorkState)
        if self._thread is None and state.done_bytes > state.total_bytes / 3:
            self.promoted_at = state.done_bytes
            self._thread = threading.Thread(target=self._promote)
            self._thread.start()

    def _promote(self) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(wait => true)")

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()


def test_a_standby_promoted_half_way_is_warmed_to_the_end() -> None:
    with Cluster.create(settings=PRIMARY) as primary, database_to_warm(primary) as at_primary:
        standby = standby_of(primary)
        with standby:
            conninfo = standby.conninfo("towarm")
            # Unlogged tables are empty on a standby, and may not be looked into.
            orders = piece_of(at_primary, "orders").blocks * 8192
            promoting = Promoting(conninfo)
            result = run(
                conninfo, WarmOptions(selection=PUBLIC, rate_bytes_per_second=orders / 2), listener=promoting
            )
            promoting.join()
            assert result.work is not None
            assert 0 < promoting.promoted_at < result.asked_bytes
            assert result.work.troubles == []
            assert result.work.again_bytes == 0
            assert result.work.read_bytes == result.work.asked_bytes == result.asked_bytes
            assert "scratch" not in {row.relation for row in result.relations}
            assert resident_blocks(conninfo, "orders") == piece_of(conninfo, "orders").blocks
            with psycopg.connect(conninfo, autocommit=True) as connection:
                assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
                connection.execute("INSERT INTO scratch VALUES (1)")


def test_unlogged_tables_of_a_standby_are_named(tmp_path: Path) -> None:
    why = "it is unlogged, and unlogged relations cannot be read during recovery"
    with Cluster.create(settings=PRIMARY) as primary, database_to_warm(primary) as at_primary:
        with psycopg.connect(at_primary, autocommit=True) as connection:
            connection.execute("CREATE INDEX scratch_index ON scratch (n)")
        with standby_of(primary) as standby:
            conninfo = standby.conninfo("towarm")

            def warm(*words: str) -> subprocess.CompletedProcess[str]:
                return pgsweep("warm", *words, "-d", conninfo, cwd=tmp_path)

            done = warm("run", "--relations", "scratch,orders")
            assert done.returncode == 0, done.stderr
            assert re.findall("^not read: .*", done.stdout, re.MULTILINE) == [f"not read: scratch: {why}"]
            assert (
                f"-- not read: scratch: {why}\n" in warm("run", "--relations", "scratch,orders", "-n").stdout
            )
            for words in (("run", "--relations", "scratch"), ("run", "--relations", "scratch_index")):
                none = warm(*words)
                assert none.returncode == 4
                assert f"`{words[-1]}` cannot be read on a standby\ncause: {why}\nhint: " in none.stderr
            none = warm("keep", "scratch", "--for", "1s")
            assert none.returncode == 4
            assert f"`scratch` cannot be kept\ncause: {why}\nhint: keep it on the primary\n" in none.stderr
            kept = warm("keep", "scratch", "secret", "--for", "200ms")
            assert kept.returncode == 0, kept.stderr
            assert re.search(f"^scratch .* {why}$", kept.stdout, re.MULTILINE)
            assert f"note: scratch: {why}\n" in kept.stdout
            assert warm("keep", "scratch", "secret", "--dry-run").returncode == 0


THOUSAND = 1000


@pytest.fixture
def many(fresh: str) -> str:
    """A database with a thousand tables of a page each, all but one of which its reader may read."""
    with psycopg.connect(fresh, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA many")
        for begin in range(0, THOUSAND, 100):  # not all locks in one transaction
            connection.execute(
                f"DO $$ BEGIN FOR i IN {begin} .. {begin + 99} LOOP"
                " EXECUTE 'CREATE TABLE many.t' || i || ' AS SELECT 1 AS n';"
                " END LOOP; END $$".encode()
            )
        connection.execute("GRANT USAGE ON SCHEMA many TO fresh_reader")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA many TO fresh_reader")
    return fresh


MANY = WarmOptions(selection=Selection(schemas=["many"]))


def test_one_of_a_thousand_may_not_be_read(many: str) -> None:
    with psycopg.connect(many, autocommit=True) as connection:
        connection.execute("REVOKE SELECT ON many.t500 FROM fresh_reader")
    result = run(as_reader(many), MANY)
    assert [trouble.relation for trouble in result.refused] == ["t500"]
    assert result.refused[0].enable == "GRANT SELECT ON many.t500 TO fresh_reader"
    assert result.work is not None
    assert result.work.troubles == []
    assert result.work.read_bytes == result.asked_bytes
    assert len({row.relation for row in result.relations}) == THOUSAND - 1


def test_one_of_a_thousand_is_forbidden_after_the_plan(many: str) -> None:
    pieces = prepare(as_reader(many), MANY).pool
    with psycopg.connect(many, autocommit=True) as connection:
        connection.execute("REVOKE SELECT ON many.t500 FROM fresh_reader; DROP TABLE many.t7")
    outcome = carry_out(as_reader(many), pieces)
    assert {trouble.relation for trouble in outcome.troubles} == {"t500", "t7"}
    assert outcome.read_blocks == outcome.asked_blocks - sum(trouble.blocks for trouble in outcome.troubles)
