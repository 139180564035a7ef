"""Hosted services, by settings that only their servers have: nothing is told that a customer cannot do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.place import Place
from tests.fix_apply import recorded
from tests.fix_cli import run

FORBIDDEN = ("sysctl", "systemd", "ExecStartPre", "ALTER SYSTEM", "hugepagesz")


@pytest.fixture(scope="module")
def rds() -> Iterator[Cluster]:
    settings = {"shared_buffers": "16MB", "max_connections": "50", "rds.extensions": "pg_prewarm"}
    with Cluster.create(settings={**settings, "huge_pages": "try"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        yield cluster


@pytest.fixture(scope="module")
def aurora() -> Iterator[Cluster]:
    with Cluster.create(settings={"shared_buffers": "16MB", "allow_system_table_mods": "on"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute(
                "CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS $$SELECT '16.4.1'$$"
            )
        yield cluster


def place_in(evidence: Path) -> Place:
    import msgspec

    return msgspec.json.decode(json.loads((evidence / "meta.json").read_text())["host"]["place"], type=Place)


def test_no_command_speaks_of_what_a_customer_cannot_set(rds: Cluster, tmp_path: Path) -> None:
    for words in (["hugepages", rds.conninfo()], ["hugepages", rds.conninfo(), "--shared-buffers", "1GB"]):
        done = run(*words)
        assert done.returncode == 0, done.stderr
        assert not [word for word in FORBIDDEN if word in done.stdout]
        assert "Amazon RDS" in done.stdout
    recorded(rds, tmp_path)
    assert place_in(tmp_path / "e.evidence").provider == "Amazon RDS"
    # The evidence alone knows it too.
    for more in ((), ("-d", rds.conninfo())):
        for form in ("text", "alter-system", "postgresql.conf", "json"):
            done = run("advise", "e.evidence", *more, "--ram", "64GB", "--format", form, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            said = done.stdout.replace("not ALTER SYSTEM", "").replace("sysctl_writable", "")
            assert not [word for word in FORBIDDEN if word in said], (form, said)
            if form != "text":  # which is wrapped
                assert "aws rds modify-db-parameter-group" in said
        assert (
            "ParameterName=effective_cache_size,ParameterValue=" in json.loads(done.stdout)["set_elsewhere"]
        )


def test_behind_the_pool_of_aurora_there_is_no_page_cache(aurora: Cluster, tmp_path: Path) -> None:
    recorded(aurora, tmp_path)
    result = json.loads(run("advise", "e.evidence", "--ram", "16GB", "--json", cwd=tmp_path).stdout)
    found = {one["name"]: one for one in result["settings"]}
    for name in ("shared_buffers", "effective_cache_size"):
        assert (found[name]["action"], found[name]["value"]) == ("unknown", None)
        assert "Amazon Aurora" in found[name]["reason"]
    assert result["memory_bytes"] is None
    assert result["place"]["provider"] == "Amazon Aurora"


def test_the_psql_script_keeps_the_provider(rds: Cluster, tmp_path: Path) -> None:
    script = run("record", "--script", "--for", "2s", cwd=tmp_path)
    assert script.returncode == 0, script.stderr
    (tmp_path / "gather.sql").write_text(script.stdout)
    psql = rds.bindir / "psql"
    if not psql.exists():
        psql = Path("/usr/bin/psql")
    words = [str(psql), "-X", "-d", rds.conninfo(), "-f", "gather.sql", "-o", "gathered.txt"]
    with psycopg.connect(rds.conninfo(), autocommit=True) as session:
        session.execute("SELECT count(*) FROM pg_class")
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = run("import", "gathered.txt", "-o", "e.evidence", cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert place_in(tmp_path / "e.evidence").provider == "Amazon RDS"


def test_a_budget_over_sql_alone_marks_what_is_assumed(rds: Cluster) -> None:
    words = ["unshare", "--pid", "--fork", "--mount-proc"]
    from tests.fix_cli import PGSWEEP

    command = [*words, PGSWEEP, "memory", "budget", rds.conninfo()]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip("needs PID namespaces")
    assert done.returncode == 4
    done = subprocess.run([*command, "--ram", "16GB", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    kinds = {part["name"]: part["kind"] for part in result["parts"]}
    assert kinds.pop("shared memory") == ("measured" if rds.version_num >= 150000 else "assumed")
    assert set(kinds.values()) == {"assumed"}
    assert result["capacity_bytes"] == 16 << 30
    assert result["missing"][0]["what"] == "the server's processes"
    text = subprocess.run([*command, "--ram", "16GB"], capture_output=True, text=True, check=False).stdout
    assert "assumed" in text and "memory 16 GB" in text
