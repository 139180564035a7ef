"""Settings written by ALTER SYSTEM on a real server, and put back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from pgsweep.advice.apply import apply, to_apply, undo
from pgsweep.errors import MissingAbility, PgsweepError, UsageError
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
    with pytest.raises(PgsweepError, match="the server refuses max_connections = none"):
        apply(cluster.conninfo(), {"effective_cache_size": "1GB", "max_connections": "none"})
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


def test_not_where_it_is_disabled() -> None:
    with (
        Cluster.create(None, {"allow_alter_system": "off"}) as managed,
        pytest.raises(MissingAbility, match="ALTER SYSTEM is disabled"),
    ):
        apply(managed.conninfo(), WANTED)


def test_not_on_a_standby() -> None:
    with (
        Cluster.create(settings=PRIMARY) as primary,
        standby_of(primary) as standby,
        pytest.raises(MissingAbility, match="the server is a stand-by"),
    ):
        apply(standby.conninfo(), WANTED)


def test_what_is_to_be_applied() -> None:
    assert to_apply(advised(growing())) == {"shared_buffers": "4GB", "effective_cache_size": "15104MB"}
    with pytest.raises(UsageError, match="nothing to apply"):
        to_apply(advised(situation({GB: 0.2}, {GB: 9_000.0}, settings={})))
    on = replace(growing(), huge_pages=pages(saved=GB), settings={**growing().settings, "huge_pages": "on"})
    with pytest.raises(UsageError, match="needs 2200 before the next start"):
        to_apply(advised(on))


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
    assert "what was before is written again" in back.stderr
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
