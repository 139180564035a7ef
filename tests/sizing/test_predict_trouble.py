"""When things go wrong while a server is recorded, a verdict says so: never a number that looks right."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.predict import judge, predict
from tests.fix_cli import run
from tests.fix_hugepages import available_pages
from tests.fix_recording import WhenRecording
from tests.fix_shop import point_reads
from tests.fix_standby import PRIMARY, standby_of

SMALL = {"shared_buffers": "4MB", "max_connections": "20", "autovacuum": "off"}
DATABASES = ("bench", "other")


@pytest.fixture(scope="module")
def busy() -> Iterator[Cluster]:
    """A server whose pool is small, with two databases larger than it."""
    with Cluster.create(None, SMALL) as cluster:
        fill(cluster, *DATABASES)
        yield cluster


def fill(cluster: Cluster, *databases: str) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        for name in databases:
            connection.execute(f"CREATE DATABASE {name}".encode())
            with psycopg.connect(cluster.conninfo(name), autocommit=True) as inside:
                inside.execute("CREATE EXTENSION pg_buffercache")
            pgbench = str(cluster.binaries.program("pgbench"))
            subprocess.run([pgbench, "-iqs", "1", cluster.conninfo(name)], check=True, capture_output=True)


@contextmanager
def reads(cluster: Cluster, *databases: str, script: Path | None = None) -> Iterator[None]:
    """Have a session for each database read rows at random, or run a script, until the block ends."""
    # At a pace that leaves room for the tests beside this one and turns the pool over several times a second.
    work = point_reads(3000, 1) if script is None else ["-n", "-R", "40", "-f", str(script)]
    with ExitStack() as ends:
        for name in databases:
            load = subprocess.Popen(
                [str(cluster.binaries.program("pgbench")), *work, "-T", "600", cluster.conninfo(name)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            ends.callback(load.wait)
            ends.callback(load.kill)
        # The pool must have been full before anything is recorded.
        with psycopg.connect(cluster.conninfo(databases[0]), autocommit=True) as connection:
            free = "SELECT count(*) FROM pg_buffercache WHERE relfilenode IS NULL"
            while connection.execute(free).fetchone() not in {(number,) for number in range(6)}:
                assert load.poll() is None, "the load ended"
        yield


def judged(path: Path) -> PredictResult:
    """Return the prediction; whatever is shown is a ratio inside its interval."""
    found = predict(path)
    for point in found.points:
        assert 0 <= point.low <= point.miss_ratio <= point.high <= 1
    return found


def reasons(found: PredictResult) -> str:
    return "\n".join(found.verdict.sentences)


def test_statistics_reset_during_the_recording(busy: Cluster, tmp_path: Path) -> None:
    def reset() -> None:
        with psycopg.connect(busy.conninfo("bench"), autocommit=True) as connection:
            connection.execute("SELECT pg_stat_reset()")

    doing = WhenRecording(reset, after_seconds=2)
    with reads(busy, "bench"):
        record_sql(busy.conninfo("bench"), tmp_path / "before.evidence", seconds=3)
        record_sql(busy.conninfo("bench"), tmp_path / "a.evidence", seconds=5, progress=doing)
    doing.join()
    found = judged(tmp_path / "a.evidence")
    assert found.verdict.level != "reliable"
    assert "statistics were reset" in reasons(found)
    before = judged(tmp_path / "before.evidence")
    assert found.observed.miss_ratio == pytest.approx(before.observed.miss_ratio, abs=0.1)


def test_counters_that_are_switched_off(busy: Cluster, tmp_path: Path) -> None:
    def switch(how: str) -> None:
        with psycopg.connect(busy.conninfo(), autocommit=True) as connection:
            connection.execute(f"ALTER DATABASE bench {how}".encode())

    switch("SET track_counts = off")
    try:
        with reads(busy, "bench"):
            result = record_sql(busy.conninfo("bench"), tmp_path / "a.evidence", seconds=2)
    finally:
        switch("RESET track_counts")
    assert any("track_counts is off" in warning for warning in result.warnings)
    found = judged(tmp_path / "a.evidence")
    assert found.points == []
    assert found.verdict.level == "refused"
    assert "track_counts is off" in reasons(found)


def test_a_role_that_sees_the_pool_and_no_more(busy: Cluster, tmp_path: Path) -> None:
    """The counters that are used are open to everybody; the rest of the statistics is not missed."""
    with psycopg.connect(busy.conninfo("bench"), autocommit=True) as connection:
        connection.execute("CREATE ROLE narrow LOGIN")
        connection.execute("GRANT SELECT ON pg_buffercache TO narrow")
        connection.execute("GRANT EXECUTE ON FUNCTION pg_buffercache_pages() TO narrow")
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        try:
            with reads(busy, "bench"):
                narrow = make_conninfo(busy.conninfo("bench"), user="narrow")
                record_sql(narrow, tmp_path / "a.evidence", seconds=3)
            advice = run("advise", "a.evidence", "-d", narrow, "--ram", "64GB", "--json", cwd=tmp_path)
        finally:
            connection.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
            connection.execute("DROP OWNED BY narrow")
            connection.execute("DROP ROLE narrow")
    meta = Evidence.open(tmp_path / "a.evidence").meta
    assert "shared_preload_libraries" not in meta.settings
    assert meta.system_identifier == ""
    assert advice.returncode == 0, advice.stderr
    assert "does not have the cluster's system identifier" in " ".join(json.loads(advice.stdout)["remarks"])
    found = judge(tmp_path / "a.evidence")
    assert found.observed.accesses > 100
    assert 0.05 < found.observed.miss_ratio < 0.95
    # Also where the recording is too short to be shown: three seconds of a busy machine are few snapshots.
    today = dict(zip(found.estimate.sizes_blocks, found.estimate.miss_ratio, strict=True))[512]
    assert today == pytest.approx(found.observed.miss_ratio, abs=0.01)


def test_relations_that_come_and_go_all_the_time(busy: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "churn.sql"
    script.write_text(
        "\\set aid random(1, 100000)\n"
        "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
        "CREATE TABLE passing AS SELECT g, repeat('x', 700) AS filler FROM generate_series(1, 1500) AS g;\n"
        "SELECT count(filler) FROM passing;\n"
        "DROP TABLE passing;\n"
    )
    with reads(busy, "bench", script=script):
        record_sql(busy.conninfo("bench"), tmp_path / "a.evidence", seconds=5)
    found = judged(tmp_path / "a.evidence")
    assert found.verdict.level != "reliable"
    # Each drop frees buffers: on a slow machine the reads in between may never fill them all again.
    filling = {"still-filling", "never-full"}
    assert "dropped" in reasons(found) or filling & {one.code for one in found.verdict.reasons}, found.verdict


def test_a_pool_of_which_half_is_another_databases(busy: Cluster, tmp_path: Path) -> None:
    with reads(busy, *DATABASES):
        record_sql(busy.conninfo("bench"), tmp_path / "a.evidence", seconds=4)
    found = judged(tmp_path / "a.evidence")
    assert found.verdict.level != "reliable"
    assert "of the pool holds pages of other databases" in reasons(found)


def test_a_standby(tmp_path: Path) -> None:
    with Cluster.create(settings=PRIMARY) as primary:
        fill(primary, "bench")
        with standby_of(primary) as standby, reads(standby, "bench"):
            record_sql(standby.conninfo("bench"), tmp_path / "a.evidence", seconds=3)
    found = judged(tmp_path / "a.evidence")
    assert found.verdict.level != "reliable"
    assert "the server is a standby" in reasons(found)


@pytest.mark.parametrize("how", ["restart", "stop"])
def test_a_server_that_goes_away(how: str, tmp_path: Path) -> None:
    with Cluster.create(None, SMALL) as cluster:
        fill(cluster, "bench")
        ending = cluster.restart if how == "restart" else cluster.stop
        with reads(cluster, "bench"):
            doing = WhenRecording(ending, after_seconds=3)
            record_sql(cluster.conninfo("bench"), tmp_path / "a.evidence", seconds=60, progress=doing)
            doing.join()
    found = judged(tmp_path / "a.evidence")
    assert found.verdict.level != "reliable"
    assert [one.code for one in found.verdict.reasons].count("server-went-away") == 1
    assert reasons(found).count("the evidence ends there") == 1, "said once"
    assert found.observed.seconds < 20


def test_huge_pages_hide_nothing_from_memory(tmp_path: Path) -> None:
    with available_pages(40), Cluster.create(None, {**SMALL, "huge_pages": "on"}) as cluster:
        fill(cluster, "bench")
        with reads(cluster, "bench"):
            both = threading.Thread(
                target=record_sql,
                args=(cluster.conninfo("bench"), tmp_path / "sql.evidence"),
                kwargs={"seconds": 4},
            )
            both.start()
            record_peek(cluster.conninfo("bench"), tmp_path / "peek.evidence", seconds=4)
            both.join()
    sql, peek = (judged(tmp_path / f"{source}.evidence") for source in ("sql", "peek"))
    assert peek.observed.miss_ratio == pytest.approx(sql.observed.miss_ratio, abs=0.05)
    assert len(Evidence.open(tmp_path / "peek.evidence").table("snapshots")["frame"]) > 1000
