"""Settings written by ALTER SYSTEM on a real server, and put back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.advice.apply import apply, to_apply, undo
from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.evidence.sql import record_sql
from pgsweep.pg.alter_system import in_unit
from pgsweep.pg.cluster import Cluster
from tests.fix_advice import GB, advised, growing, pages, situation
from tests.fix_cli import run
from tests.fix_shop import shop_under_load
from tests.fix_standby import PRIMARY, standby_of

WANTED = {"effective_cache_size": "1GB", "max_connections": "70"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.create(None, {"shared_buffers": "16MB", "effective_cache_size": "3GB"}) as made:
        made.create_extensions("postgres", "pg_buffercache")
        yield made


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def session(cluster: Cluster) -> Iterator[psycopg.Connection[tuple[str, ...]]]:
    """Give a session; what ALTER SYSTEM has set is taken away at the end."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        yield connection
        connection.execute("ALTER SYSTEM RESET ALL")
        connection.execute("SELECT pg_reload_conf()")


def kept(cluster: Cluster) -> dict[str, str]:
    """Return what postgresql.auto.conf says."""
    text = (cluster.data_directory / "postgresql.auto.conf").read_text()
    lines = [line.partition(" = ") for line in text.splitlines() if not line.startswith("#")]
    return {name: value.strip("'") for name, _, value in lines}


def test_applied_and_put_back(cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]) -> None:
    session.execute("ALTER SYSTEM SET effective_cache_size = '2GB'")
    planned = apply(cluster.conninfo(), WANTED, dry_run=True)
    assert kept(cluster) == {"effective_cache_size": "2GB"}
    assert [change.statement for change in planned] == [
        "ALTER SYSTEM SET \"effective_cache_size\" = '1GB'",
        "ALTER SYSTEM SET \"max_connections\" = '70'",
    ]
    assert apply(cluster.conninfo(), WANTED) == planned
    assert kept(cluster) == WANTED
    assert [change.restart for change in planned] == [False, True]
    # A second one does not forget what was before the first.
    apply(cluster.conninfo(), {"effective_cache_size": "5GB"})
    changes, left = undo(cluster.conninfo())
    assert left == []
    assert {change.name: change.after for change in changes} == {
        "effective_cache_size": "2GB",
        "max_connections": None,
    }
    assert kept(cluster) == {"effective_cache_size": "2GB"}
    with pytest.raises(UsageError, match="nothing is known to undo"):
        undo(cluster.conninfo())


def test_what_others_changed_since_stays(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    apply(cluster.conninfo(), WANTED)
    session.execute("ALTER SYSTEM SET effective_cache_size = '7GB'")
    changes, left = undo(cluster.conninfo())
    assert [change.name for change in changes] == ["max_connections"]
    assert left == ["effective_cache_size"]
    assert kept(cluster) == {"effective_cache_size": "7GB"}


def test_a_value_that_the_server_refuses_can_be_undone(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    with pytest.raises(PgsweepError, match="the server refuses max_connections = none") as refused:
        apply(cluster.conninfo(), {"effective_cache_size": "1GB", "max_connections": "none"})
    assert "effective_cache_size is in postgresql.auto.conf already" in (refused.value.hint or "")
    assert kept(cluster) == {"effective_cache_size": "1GB"}
    changes, _ = undo(cluster.conninfo())
    assert [change.name for change in changes] == ["effective_cache_size"]
    assert kept(cluster) == {}


def test_not_by_any_role(cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]) -> None:
    session.execute("CREATE ROLE plain LOGIN")
    try:
        with pytest.raises(MissingAbility, match="may not change the server's settings"):
            apply(f"{cluster.conninfo()} user=plain", WANTED)
    finally:
        session.execute("DROP ROLE plain")
    assert kept(cluster) == {}


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


def test_an_idle_server_gets_no_advice(cluster: Cluster, tmp_path: Path) -> None:
    record_sql(cluster.conninfo(), tmp_path / "e.evidence", seconds=0.5)
    done = run("advise", "e.evidence", "--ram", "64GB", cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing happened in the database `postgres` while it was observed" in done.stderr
    assert "record again while the load runs" in done.stderr
    assert done.stdout == ""


def refused(folder: Path, conninfo: str) -> str:
    """Return what is said where --apply is refused, after checking that the advice is there all the same."""
    command = ["advise", "e.evidence", "-d", conninfo, "--ram", "64GB", "--apply", "--yes"]
    done = run(*command, "--json", cwd=folder)
    assert done.returncode == 4, done.stderr
    result = json.loads(done.stdout)
    wanted = {one["name"]: one["value"] for one in result["settings"] if one["action"] == "set"}
    assert wanted["effective_cache_size"].endswith("B")
    assert result["applied"] == []
    lines = run(*command, "--format", "postgresql.conf", cwd=folder)
    assert lines.returncode == 4
    assert f"effective_cache_size = '{wanted['effective_cache_size']}'" in lines.stdout
    return done.stderr


def test_where_it_is_disabled_the_advice_is_printed(tmp_path: Path) -> None:
    with Cluster.create(None, {"allow_alter_system": "off"}) as managed:
        with pytest.raises(MissingAbility, match="ALTER SYSTEM is disabled"):
            apply(managed.conninfo(), WANTED)
        managed.create_extensions("postgres", "pg_buffercache")
        recorded(managed, tmp_path)
        assert "allow_alter_system is off" in refused(tmp_path, managed.conninfo())


def test_on_a_standby_the_advice_is_printed(tmp_path: Path) -> None:
    """The evidence is its primary's: the two are one cluster."""
    with Cluster.create(settings=PRIMARY) as primary:
        primary.create_extensions("postgres", "pg_buffercache")
        recorded(primary, tmp_path)
        with standby_of(primary) as standby:
            with pytest.raises(MissingAbility, match="the server is a standby"):
                apply(standby.conninfo(), WANTED)
            assert "the server is a standby" in refused(tmp_path, standby.conninfo())


@pytest.mark.parametrize(
    ("setting", "where"),
    [
        (
            "rds.extensions",
            "aws rds modify-db-parameter-group --db-parameter-group-name GROUP --parameters "
            "ParameterName=effective_cache_size,ParameterValue=131072,ApplyMethod=immediate "
            "ParameterName=max_connections,ParameterValue=70,ApplyMethod=pending-reboot",
        ),
        ("cloudsql.iam_authentication", "--database-flags=effective_cache_size=131072,max_connections=70"),
        ("azure.extensions", "--name effective_cache_size --value 131072 && az "),
        ("supautils.reserved_roles", "--config effective_cache_size=1GB --config max_connections=70"),
        ("neon.tenant_id", "effective_cache_size = 1GB, max_connections = 70"),
    ],
)
def test_a_hosted_service_sets_it_elsewhere(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]], setting: str, where: str
) -> None:
    session.execute("CREATE ROLE master LOGIN")
    try:
        with pytest.raises(MissingAbility, match="does not allow ALTER SYSTEM") as said:
            apply(make_conninfo(cluster.conninfo(), user="master", options=f"-c {setting}=x"), WANTED)
    finally:
        session.execute("DROP ROLE master")
    assert where in (said.value.hint or "")
    assert kept(cluster) == {}


def test_the_advice_for_a_hosted_server_is_printed(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]], tmp_path: Path
) -> None:
    recorded(cluster, tmp_path)
    session.execute("CREATE ROLE master LOGIN IN ROLE pg_monitor")
    try:
        said = refused(
            tmp_path, make_conninfo(cluster.conninfo(), user="master", options="-c rds.extensions=x")
        )
    finally:
        session.execute("DROP ROLE master")
    assert "Amazon RDS does not allow ALTER SYSTEM" in said
    assert "ParameterName=effective_cache_size,ParameterValue=" in said


def test_values_in_the_units_of_the_settings() -> None:
    assert in_unit("4GB", "8kB") == "524288"
    assert in_unit("1536kB", "kB") == "1536"
    assert in_unit("1GB", "MB") == "1024"
    assert in_unit("131072", "8kB") == "131072", "it is in that unit already"
    assert (in_unit("70", None), in_unit("try", None), in_unit("30s", "ms")) == ("70", "try", "30s")


def test_what_is_to_be_applied() -> None:
    assert to_apply(advised(growing())) == {"shared_buffers": "4GB", "effective_cache_size": "15104MB"}
    with pytest.raises(UsageError, match="nothing to apply"):
        to_apply(advised(situation({GB: 0.2}, {GB: 9_000.0}, settings={})))
    on = replace(growing(), huge_pages=pages(saved=GB), settings={**growing().settings, "huge_pages": "on"})
    with pytest.raises(UsageError, match="needs 2200 before the next start"):
        to_apply(advised(on))


def test_where_huge_pages_cannot_be_counted_nothing_larger_is_applied() -> None:
    """With huge_pages on a server does not start if they do not suffice."""
    unseen = replace(growing(), settings={**growing().settings, "huge_pages": "on"})
    with pytest.raises(UsageError, match="huge pages for the next start is not known") as refused:
        to_apply(advised(unseen))
    assert "shared_buffers = 4GB takes more" in (refused.value.cause or "")
    assert "sudo pgsweep hugepages --shared-buffers 4GB" in (refused.value.hint or "")
    # What takes no shared memory may be applied.
    known = situation({GB: 0.2}, {GB: 9_000.0}, settings={**growing().settings, "huge_pages": "on"})
    assert list(to_apply(advised(known))) == ["effective_cache_size"]


def test_on_the_command_line(cluster: Cluster, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    with shop_under_load(cluster) as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        done = run("record", conninfo, "--source", "sql", "--for", "3s", "-o", "e.evidence", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        command = ["advise", "e.evidence", "-d", conninfo, "--ram", "64GB", "--apply"]
        asked = run(*command, cwd=tmp_path, env=env)
        assert asked.returncode == 2
        assert "no terminal to ask on" in asked.stderr
        dry = run(*command, "--dry-run", cwd=tmp_path, env=env)
        assert dry.returncode == 0, dry.stderr
        assert 'ALTER SYSTEM SET "effective_cache_size"' in dry.stderr
        assert kept(cluster) == {}
        done = run(*command, "--yes", "--json", cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        applied = json.loads(done.stdout)["applied"]
        assert "effective_cache_size" in [one["name"] for one in applied]
        assert kept(cluster) == {one["name"]: one["after"] for one in applied}
        back = run("advise", "--undo", "--yes", "-d", conninfo, cwd=tmp_path, env=env)
    assert back.returncode == 0, back.stderr
    assert "previous settings written and reloaded" in back.stderr
    assert kept(cluster) == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--apply", "--undo"], "contradict each other"),
        (["--dry-run"], "--dry-run goes with"),
        ([".", "--apply", "--yes"], "--apply needs the server"),
    ],
)
def test_mistakes(arguments: list[str], words: str) -> None:
    done = run("advise", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
