from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.cache.footprint import footprint
from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError, UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.footprint import FootprintRelation, FootprintResult
from pgsweep.testbed.cold import DATABASE, empty_caches, private_server
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.footprint import footprint_text, grouped
from tests.fix_cli import run
from tests.fix_process import wait_until

BLOCK = 8192
SETUP = """
CREATE TABLE t (id int PRIMARY KEY, k int, filler text);
INSERT INTO t SELECT g, g % 1000, repeat('x', 700) FROM generate_series(1, 20000) g;
CREATE INDEX t_k ON t (k);
VACUUM ANALYZE t;
"""


@pytest.fixture(scope="module")
def tables() -> Iterator[Callable[[Cluster], str]]:
    """Gives the database with `t` of a cluster, which the tests of this module share: none may change it."""
    made: dict[str, Cluster] = {}

    def conninfo_of(server: Cluster) -> str:
        conninfo = server.conninfo("steps")
        if conninfo not in made:
            made[conninfo] = server
            with psycopg.connect(server.conninfo(), autocommit=True) as connection:
                connection.execute("CREATE DATABASE steps")
            with psycopg.connect(conninfo, autocommit=True) as inside:
                inside.execute("CREATE EXTENSION pg_buffercache")
                for statement in SETUP.strip().split(";\n"):
                    inside.execute(statement.encode())
        return conninfo

    yield conninfo_of
    for server in made.values():
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE steps WITH (FORCE)")


@pytest.fixture
def table(server: Cluster, tables: Callable[[Cluster], str]) -> str:
    return tables(server)


def row_of(result: FootprintResult, relation: str) -> FootprintRelation:
    return next(row for row in result.relations if row.relation == relation)


@pytest.mark.parametrize("source", ["peek", "sql"])
def test_a_cold_statement_brings_in_what_the_server_says(tmp_path: Path, source: str) -> None:
    setup = tmp_path / "setup.sql"
    setup.write_text(SETUP)
    with private_server(setup, settings={"shared_buffers": "64MB", "track_io_timing": "on"}) as cluster:
        result = footprint(
            cluster.conninfo(DATABASE),
            "SELECT sum(length(filler)) FROM t WHERE id BETWEEN 1 AND 5000",
            source=source,  # type: ignore[arg-type]
            empty_caches=lambda: empty_caches(cluster),
        )
        with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
            pooled = {
                block
                for (block,) in connection.execute(
                    "SELECT relblocknumber FROM pg_buffercache"
                    " WHERE relfilenode = pg_relation_filenode('t') AND relforknumber = 0"
                )
            }
    first, again = result.runs
    assert result.cold
    assert first.rows == again.rows == 1
    assert first.shared_read_seconds is not None
    assert again.shared_read_seconds is not None
    assert 0 == again.shared_read_seconds < first.shared_read_seconds < first.execution_seconds
    own = [row for row in result.relations if row.schema == "public"]
    gained = sum(row.runs[0].shared_buffers_in_bytes for row in own) // BLOCK
    # What is read for the statement is what enters; on a private server nobody else reads. Planning reads
    # the metapages of indexes, and system catalogs.
    assert 0 <= gained - first.shared_read_blocks <= first.planning_read_blocks
    assert first.shared_read_blocks > 400
    assert again.shared_read_blocks + again.planning_read_blocks == 0
    assert sum(row.runs[1].shared_buffers_in_bytes for row in result.relations) == 0
    heap = row_of(result, "t")
    assert heap.shared_buffers_before_bytes == 0
    assert heap.page_cache_before_bytes == 0
    listed = [
        b for begin, count in heap.runs[0].shared_buffers_in_blocks for b in range(begin, begin + count)
    ]
    assert set(listed) == pooled
    # The operating system reads ahead, so at least what was asked for is there.
    assert heap.runs[0].page_cache_in_bytes is not None
    assert heap.runs[0].page_cache_in_bytes >= len(listed) * BLOCK
    assert row_of(result, "t_pkey").runs[0].shared_buffers_in_bytes > 0
    assert result.notes == []
    assert "Index Scan using t_pkey" in "\n".join(result.plan)


def test_a_statement_that_would_write_is_refused(table: str) -> None:
    for statement in ("DELETE FROM t", "WITH d AS (DELETE FROM t RETURNING 1) SELECT count(*) FROM d"):
        with pytest.raises(UsageError, match="would write") as caught:
            footprint(table, statement)
        assert "--allow-writes" in str(caught.value.hint)
    with psycopg.connect(table) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (20000,)


def test_what_is_written_is_rolled_back(table: str) -> None:
    statement = "INSERT INTO t SELECT g, g, repeat('y', 700) FROM generate_series(20001, 24000) g"
    result = footprint(table, statement, allow_writes=True, runs=1)
    assert row_of(result, "t").runs[0].shared_buffers_in_bytes >= 4000 // 11 * BLOCK
    assert any("rolled back" in note for note in result.notes)
    with psycopg.connect(table) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (20000,)


@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ("SELEC 1", UsageError, "syntax error"),
        ("SELECT * FROM nothing_there", UsageError, "does not exist"),
        ("SELECT 1; DROP TABLE t", UsageError, "multiple commands"),
        ("VACUUM t", UsageError, "syntax error"),
        ("SELECT 1 / 0", PgsweepError, "division by zero"),
        ("SELECT pg_sleep(20)", PgsweepError, "statement timeout"),
    ],
)
def test_what_cannot_run_is_reported_in_words(
    table: str, statement: str, error: type[PgsweepError], words: str
) -> None:
    with pytest.raises(error) as caught:
        footprint(table, statement, timeout_seconds=0.5)
    assert words in str(caught.value.cause)
    assert ("database `steps`" in (caught.value.hint or "")) == ("nothing_there" in statement)
    with psycopg.connect(table) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (20000,)


def test_what_only_gives_way_comes_after_what_comes_in_and_most_of_it_in_one_row() -> None:
    """In a pool of 6 MB a scan of an index takes the place of a hundred small tables."""
    with Cluster.create(
        settings={"shared_buffers": "6MB", "autovacuum": "off", "enable_seqscan": "off"}
    ) as server:
        server.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE large AS SELECT g FROM generate_series(1, 400000) g")
            connection.execute("CREATE INDEX large_g ON large (g)")
            # VACUUM marks no page as all-visible before the commit of its rows is on disk, and commits are
            # asynchronous here.
            connection.execute("CHECKPOINT")
            connection.execute("VACUUM ANALYZE large")
            for number in range(100):
                connection.execute(f"CREATE TABLE small_{number} AS SELECT 1 AS g")
                connection.execute(f"SELECT * FROM small_{number}".encode())
        result = footprint(server.conninfo(), "SELECT count(*) FROM large WHERE g > 0", runs=1)
    labels = [row.label for row in grouped(result)]
    assert labels[0] == "large_g"
    assert len(labels) < 20
    [others] = [row.relations for row in grouped(result) if "gave way" in row.label]
    assert len(others) > 20
    assert sum(len(row.relations) for row in grouped(result)) == len(result.relations)
    out = [
        row.runs[0].shared_buffers_out_bytes for row in result.relations if row.relation.startswith("small")
    ]
    assert out == sorted(out, reverse=True)


def test_a_role_without_a_right_is_told_so(table: str) -> None:
    with psycopg.connect(table, autocommit=True) as connection:
        connection.execute("CREATE ROLE pauper LOGIN; GRANT pg_monitor TO pauper; CREATE SCHEMA locked")
        connection.execute('CREATE TABLE locked."Odd" (id int)')
        connection.execute("CREATE FUNCTION own() RETURNS int AS 'SELECT 1' LANGUAGE sql")
        connection.execute("REVOKE EXECUTE ON FUNCTION own FROM PUBLIC")
        poor = make_conninfo(table, user="pauper")
        joined = 'SELECT own() FROM t JOIN locked."Odd" USING (id)'
        try:
            with pytest.raises(MissingAbility) as caught:
                footprint(poor, joined)
            granted = re.findall(r"-c '(GRANT [^']*)'", caught.value.hint or "")
            for statement in granted:
                connection.execute(statement.encode())
            assert len(footprint(poor, joined, runs=1).runs) == 1
            with pytest.raises(MissingAbility, match="may not run") as writing:
                footprint(poor, "UPDATE t SET k = 0 WHERE id = 0", allow_writes=True)
            with pytest.raises(MissingAbility, match="may not run") as forbidden:
                footprint(poor, "SELECT pg_read_file('PG_VERSION')")
        finally:
            connection.execute("DROP SCHEMA locked CASCADE; DROP FUNCTION own; DROP OWNED BY pauper")
            connection.execute("DROP ROLE pauper")
    assert re.match("permission denied for (table t|schema locked|function own)$", str(caught.value.cause))
    assert "pauper" in caught.value.message
    assert granted == [
        "GRANT USAGE ON SCHEMA locked TO pauper",
        'GRANT SELECT ON locked."Odd" TO pauper',
        "GRANT SELECT ON public.t TO pauper",
        "GRANT EXECUTE ON FUNCTION public.own() TO pauper",
    ]
    assert "-c 'GRANT UPDATE ON public.t TO pauper'" in (writing.value.hint or "")
    assert (forbidden.value.hint or "").startswith("grant it what it lacks, or")


def test_a_server_that_stops_in_between(tmp_path: Path) -> None:
    setup = tmp_path / "setup.sql"
    setup.write_text(SETUP)
    with private_server(setup) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE ROLE stopper SUPERUSER LOGIN")
        with pytest.raises(ConnectionFailed):
            footprint(
                cluster.conninfo(DATABASE),
                "SELECT pg_terminate_backend(pg_backend_pid())",
            )


def test_others_at_work_are_noticed(table: str) -> None:
    # The statement itself reads one block, another session, which it waits for, reads hundreds.
    with psycopg.connect(table, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION dblink")
        connection.execute(
            "CREATE TABLE other AS SELECT g, repeat('o', 900) AS o FROM generate_series(1, 3000) g"
        )
        connection.execute(
            "CREATE TABLE filler AS SELECT g, repeat('o', 7000) AS o FROM generate_series(1, 9) g"
        )
        for _ in range(2):
            connection.execute("SELECT count(length(filler)) FROM t").fetchone()
        target = table.replace("'", "''")
        evict = "INSERT INTO filler SELECT g, repeat('p', 900) FROM generate_series(1, 30000) g"
        connection.execute(evict.encode())
    result = footprint(
        table, f"SELECT n FROM dblink('{target}', 'SELECT count(o) FROM other') AS x(n int)", runs=1
    )
    assert any("others brought in pages" in note for note in result.notes)


@pytest.mark.slow
def test_the_command_on_a_private_server(tmp_path: Path) -> None:
    setup, out = tmp_path / "setup.sql", tmp_path / "result.json"
    setup.write_text(SETUP)
    command = ["footprint", "SELECT count(*) FROM t", "--cold"]
    done = run(*command, "--setup", str(setup), "--shared-buffers", "32MB", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert "into shared" in done.stdout
    assert "cold" in done.stdout
    result = json.loads(out.read_text())
    assert result["schema"] == "pgsweep.footprint/1"
    assert result["shared_buffers_bytes"] == 32 << 20
    refused = run(*command, "-d", "mine")
    assert refused.returncode == 2
    assert "private server only" in refused.stderr
    broken = tmp_path / "broken.sql"
    broken.write_text("CREATE TABLE x (;\n")
    failed = run(*command, "--setup", str(broken))
    assert failed.returncode == 2
    assert "syntax error" in failed.stderr


def test_parameters_and_what_is_wrong_with_them(table: str) -> None:
    result = footprint(table, "SELECT * FROM t WHERE id = $1 AND id < $2", parameters=["42", "1000"], runs=1)
    assert result.runs[0].rows == 1
    assert "t_pkey" in "\n".join(result.plan)
    for given in ([], ["42"], ["42", "1000", "3"]):
        with pytest.raises(UsageError) as refused:
            footprint(table, "SELECT * FROM t WHERE id = $1 AND id < $2", parameters=given, runs=1)
        assert "--param" in (refused.value.hint or ""), given


def test_parameters_of_the_command_line(table: str) -> None:
    statement = "SELECT * FROM t WHERE id = $1 AND coalesce($2::text, 'none') = $3"
    words = ["footprint", statement, table, "--runs", "1", "--param", "42", "--param", "-"]
    found = run(*words, "--param", "none", "--null", "-", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["runs"][0]["rows"] == 1
    # Without --null it is a text like any other.
    found = run(*words, "--param", "none", "--json")
    assert json.loads(found.stdout)["runs"][0]["rows"] == 0
    replaced = run("footprint", "SELECT * FROM t WHERE id = ", table, "--param", "42")
    assert (replaced.returncode, "single quotes" in replaced.stderr) == (2, True), "by the shell"
    few = run(*words)
    assert few.returncode == 2
    assert (few.returncode, "_pg3_" in few.stderr) == (2, False), "it is not told by the driver's names"


def test_another_session_at_work_is_said(table: str) -> None:
    with psycopg.connect(table, autocommit=True) as busy:

        def sleep() -> None:
            with contextlib.suppress(psycopg.errors.QueryCanceled):
                busy.execute("SELECT pg_sleep(60)")

        sleeping = threading.Thread(target=sleep)
        sleeping.start()
        try:
            with psycopg.connect(table, autocommit=True) as watch:
                at_work = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)'"
                wait_until(lambda: watch.execute(at_work).fetchone() == (1,))
            result = footprint(table, "SELECT count(*) FROM t WHERE id = 7", runs=1)
        finally:
            busy.cancel_safe()
            sleeping.join()
    assert any("another session was at work" in note for note in result.notes), result.notes


def test_toast_is_named_by_its_table_and_that_of_catalogs_is_theirs(server: Cluster, table: str) -> None:
    with psycopg.connect(table, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS documents (body text)")
        connection.execute("ALTER TABLE documents ALTER body SET STORAGE EXTERNAL")
        connection.execute("INSERT INTO documents SELECT repeat('x', 20000) FROM generate_series(1, 20)")
        connection.execute("CHECKPOINT")
    try:
        result = footprint(
            table,
            "WITH d AS (INSERT INTO documents SELECT repeat('y', 20000) RETURNING 1) SELECT count(*) FROM d",
            allow_writes=True,
        )
        text = footprint_text(result, Terminal())
        assert "\ndocuments (TOAST) " in text
        assert "documents (TOAST)" in to_html(result)
        assert "pg_toast" not in text
        toast = next(row for row in result.relations if row.relation.startswith("pg_toast_"))
        assert (toast.table_schema, toast.table) == ("public", "documents")
    finally:
        with psycopg.connect(table, autocommit=True) as connection:
            connection.execute("DROP TABLE documents")
