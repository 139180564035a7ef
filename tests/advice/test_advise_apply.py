"""Settings written by ALTER SYSTEM on a real server, and put back."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.advice.apply import apply, to_apply, undo
from pgsweep.doctor import examine as doctor
from pgsweep.errors import MissingAbility, PgsweepError, UsageError
from pgsweep.evidence.sql import record_sql
from pgsweep.files import state_folder
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.server_identity import ServerIdentity, differences
from pgsweep.units import in_unit
from tests.fix_advice import GB, advised, growing, pages, situation
from tests.fix_apply import kept, recorded
from tests.fix_cli import run
from tests.fix_doctor import abilities
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, copy_of, promote, standby_of

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
    changes, left, file, _, others = undo(cluster.conninfo())
    assert (left, file, others) == ([], None, [])
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
    changes, left, *_ = undo(cluster.conninfo())
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
    # Exactly what was changed is kept, and no more.
    assert list(saved()[0]["before"]) == ["effective_cache_size"]
    assert [change.name for change in undo(cluster.conninfo()).changes] == ["effective_cache_size"]
    assert kept(cluster) == {}
    assert saved() == []


def saved() -> list[dict[str, Any]]:
    """Return what the files of what was before say."""
    folder = state_folder()
    assert folder is not None
    return [json.loads(file.read_bytes()) for file in sorted(folder.glob("*.json"))]


def test_where_nothing_was_changed_nothing_is_kept(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    with pytest.raises(PgsweepError, match="the server refuses max_connections = none") as refused:
        apply(cluster.conninfo(), {"max_connections": "none", "effective_cache_size": "1GB"})
    assert refused.value.hint is None
    assert saved() == []
    session.execute("ALTER SYSTEM SET effective_cache_size = '1GB'")
    apply(cluster.conninfo(), {"effective_cache_size": "1GB"})
    assert saved() == [], "it has this value already"
    # An earlier file stays as it was.
    apply(cluster.conninfo(), {"work_mem": "5MB"})
    before = saved()
    with pytest.raises(PgsweepError, match="refuses"):
        apply(cluster.conninfo(), {"max_connections": "none"})
    assert saved() == before


def test_a_value_of_somebody_else_in_between_is_what_was_before(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    apply(cluster.conninfo(), {"work_mem": "5MB"})
    session.execute("ALTER SYSTEM SET work_mem = '6MB'")
    apply(cluster.conninfo(), {"work_mem": "7MB"})
    undo(cluster.conninfo())
    assert kept(cluster) == {"work_mem": "6MB"}


def test_an_undo_that_has_nothing_to_do_keeps_its_file(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]], tmp_path: Path
) -> None:
    apply(cluster.conninfo(), {"work_mem": "5MB"})
    session.execute("ALTER SYSTEM RESET work_mem")
    for agreed in (["--yes"], []):
        # Where nothing is to be undone nobody has to agree.
        done = run(
            "advise", "--undo", *agreed, "-d", cluster.conninfo(),
            env={"XDG_STATE_HOME": str(tmp_path / "state")},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "there is nothing to undo here" in done.stderr
    assert f"data directory {cluster.data_directory}" in done.stderr
    assert len(saved()) == 1


def test_several_at_once_keep_what_was_before_all(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    session.execute("ALTER SYSTEM SET work_mem = '4MB'")
    values = [f"{number}MB" for number in range(5, 13)]
    threads = [
        threading.Thread(target=apply, args=[cluster.conninfo(), {"work_mem": value}]) for value in values
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(cluster)["work_mem"] in values
    assert [change.after for change in undo(cluster.conninfo()).changes] == ["4MB"]


def test_a_server_that_cannot_write_its_file_is_reported_as_such(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    folder = cluster.data_directory
    mode = folder.stat().st_mode
    folder.chmod(0o500)
    try:
        with pytest.raises(PgsweepError, match=r"cannot write postgresql\.auto\.conf in its data directory"):
            apply(cluster.conninfo(), {"work_mem": "5MB"})
    finally:
        folder.chmod(mode)
    assert saved() == []


def refused_on(server: Cluster) -> UsageError:
    """Return how an undo is refused, after checking that it changes nothing and keeps the file."""
    there, files = kept(server), saved()
    with pytest.raises(UsageError, match="nothing is known to undo") as said:
        undo(server.conninfo())
    assert kept(server) == there
    assert saved() == files
    return said.value


def test_a_copy_of_the_server_does_not_take_its_undo() -> None:
    with Cluster.create(None, {"effective_cache_size": "3GB"}) as original:
        apply(original.conninfo(), {"work_mem": "5MB"})
        with copy_of(original) as copy:
            assert kept(copy)["work_mem"] == "5MB", "it was copied with the files"
            said = refused_on(copy)
            assert f"its data directory is {original.data_directory}" in str(said.cause)
            folder = state_folder()
            assert folder is not None
            [file] = folder.glob("*.json")
            assert f"--undo-from {file}" in str(said.hint)
            # Each has what was before for itself.
            apply(copy.conninfo(), {"work_mem": "6MB"})
            assert len(saved()) == 2
            assert [change.after for change in undo(copy.conninfo()).changes] == ["5MB"]
            # What the copy got with the files can be put back there as well, and the original keeps its own.
            assert undo(copy.conninfo(), file=file).file == file
            assert "work_mem" not in kept(copy)
        assert kept(original)["work_mem"] == "5MB"
        # The original under another port.
        original.restart({"port": "5999"})
        moved = make_conninfo(original.conninfo(), port="5999")
        assert [change.name for change in undo(moved).changes] == ["work_mem"]
        assert "work_mem" not in kept(original)
        assert saved() == []


def test_a_promoted_standby_does_not_take_the_undo_of_its_primary() -> None:
    with Cluster.create(settings=PRIMARY) as primary:
        apply(primary.conninfo(), {"work_mem": "5MB"})
        with standby_of(primary) as standby:
            promote(standby)
            said = refused_on(standby)
            assert "its timeline is 1, here it is 2" in str(said.cause)
        assert [change.name for change in undo(primary.conninfo()).changes] == ["work_mem"]


def test_a_copy_in_the_place_of_the_server_is_known_by_its_age() -> None:
    """As behind a tunnel: path, port and address are the same."""
    with Cluster.create(None, {"effective_cache_size": "3GB"}) as server:
        apply(server.conninfo(), {"work_mem": "5MB"})
        data, aside = server.data_directory, server.data_directory.with_name("aside")
        server.stop()
        data.rename(aside)
        made = int((aside / "PG_VERSION").stat().st_ctime)
        wait_until(lambda: int(time.time()) > made)  # the server says it in seconds
        subprocess.run(["cp", "--archive", aside, data], check=True)
        server.start()
        assert "the one here was copied at" in str(refused_on(server).cause)
        server.stop()
        subprocess.run(["rm", "-r", data], check=True)
        aside.rename(data)
        server.start()
        assert [change.name for change in undo(server.conninfo()).changes] == ["work_mem"]


def test_a_file_of_an_earlier_version_is_named() -> None:
    with Cluster.create(None, {"effective_cache_size": "3GB"}) as server:
        apply(server.conninfo(), {"work_mem": "5MB"})
        folder = state_folder()
        assert folder is not None
        [file] = folder.glob("*.json")
        old = json.loads(file.read_bytes())
        identifier = old.pop("server")["system_identifier"]
        file.unlink()
        file = folder / f"advise-{identifier}.json"
        file.write_text(json.dumps({**old, "schema": "pgsweep.advise-undo/1"}))
        assert "an earlier version of pgsweep wrote it" in str(refused_on(server).cause)
        assert [change.name for change in undo(server.conninfo(), file=file).changes] == ["work_mem"]
        assert file.exists()


def test_servers_are_told_apart() -> None:
    one = ServerIdentity(
        system_identifier="7", data_directory="/d", born_seconds=9, host_name="a", timeline="0000000A"
    )
    assert differences(one, one) == []
    unknown = ServerIdentity(
        system_identifier="7", data_directory=None, born_seconds=None, host_name=None, timeline=None
    )
    assert differences(one, unknown) == differences(unknown, one) == []
    assert differences(one, msgspec.structs.replace(one, host_name="b")) == ["its host is a, here it is b"]
    assert differences(one, msgspec.structs.replace(one, timeline="0000000B")) == [
        "its timeline is 10, here it is 11"
    ]


def test_a_file_of_another_cluster_is_refused(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]], tmp_path: Path
) -> None:
    apply(cluster.conninfo(), {"work_mem": "5MB"})
    folder = state_folder()
    assert folder is not None
    [file] = folder.glob("*.json")
    with Cluster.create(None) as other, pytest.raises(UsageError, match="is of another cluster"):
        undo(other.conninfo(), file=file)
    with pytest.raises(UsageError, match="there is no file"):
        undo(cluster.conninfo(), file=folder / "none.json")
    assert "--undo-from goes with --undo" in run("advise", "--undo-from", str(file)).stderr


def test_not_by_any_role(cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]) -> None:
    session.execute("CREATE ROLE plain LOGIN")
    try:
        with pytest.raises(MissingAbility, match="may not change the server's settings"):
            apply(f"{cluster.conninfo()} user=plain", WANTED)
    finally:
        session.execute("DROP ROLE plain")
    assert kept(cluster) == {}


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
    # Where a provider keeps the settings, as a comment.
    assert "effective_cache_size = " in lines.stdout and wanted["effective_cache_size"] in lines.stdout
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
    assert "pgsweep hugepages --shared-buffers 4GB" in (refused.value.hint or "")
    # What takes no shared memory may be applied.
    known = situation({GB: 0.2}, {GB: 9_000.0}, settings={**growing().settings, "huge_pages": "on"})
    assert list(to_apply(advised(known))) == ["effective_cache_size"]


def test_on_the_command_line(cluster: Cluster, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    recorded(cluster, tmp_path)
    command = ["advise", "e.evidence", "-d", cluster.conninfo(), "--ram", "64GB", "--apply"]
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
    back = run("advise", "--undo", "--yes", "-d", cluster.conninfo(), cwd=tmp_path, env=env)
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


def test_a_role_that_was_granted_these_parameters_sets_them_and_no_others(
    cluster: Cluster, session: psycopg.Connection[tuple[str, ...]]
) -> None:
    session.execute("CREATE ROLE tuner LOGIN")
    conninfo = make_conninfo(cluster.conninfo(), user="tuner")
    try:
        with pytest.raises(MissingAbility) as refused:
            apply(conninfo, WANTED)
        grants = re.findall(r"'(GRANT [^']* TO [^']*tuner[^']*)'", refused.value.hint or "")
        assert sum("ALTER SYSTEM ON PARAMETER" in grant for grant in grants) == len(WANTED) < len(grants)
        for grant in grants:
            session.execute(grant.encode())
        apply(conninfo, WANTED)
        assert kept(cluster) == {**WANTED}
        with pytest.raises(MissingAbility):
            apply(conninfo, {"work_mem": "5MB"})
        undo(conninfo)
        assert kept(cluster) == {}
        session.execute("ALTER SYSTEM SET track_io_timing = off")
        session.execute("SELECT pg_reload_conf()")
        commands = []
        for _ in range(2):
            found = abilities(doctor(conninfo))["track_io_timing"]
            commands.append(found.enable or "")
            session.execute("GRANT ALTER SYSTEM ON PARAMETER track_io_timing TO tuner")
        assert ["-U tuner" in command for command in commands] == [False, True]
    finally:
        session.execute("DROP OWNED BY tuner")
        session.execute("DROP ROLE tuner")
