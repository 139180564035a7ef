"""`pgsweep doctor` against real servers: what it says is so, and the commands that it names help."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep.cli.overview import COMMANDS
from pgsweep.doctor import examine
from pgsweep.errors import ConnectionFailed
from pgsweep.host.postmaster import Search
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.doctor import Ability, DoctorResult, Runnable
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.doctor import doctor_text
from tests.fix_cli import run
from tests.fix_doctor import abilities, tcp
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, standby_of

SECRET = "s3cret-word"


SERVER = ["connection", "version", "pg_monitor", "pg_buffercache", "pg_prewarm", "databases", "tables"]


SERVER += ["track_counts", "track_io_timing"]


HOST = ["same_host", "same_user", "peek", "page_cache", "trace", "huge_pages", "cgroup"]


def execute(ability: Ability, cluster: Cluster) -> None:
    """Run the command that an ability names, as a user would paste it."""
    assert ability.enable is not None
    assert SECRET not in ability.enable
    env = {"PATH": f"{cluster.bindir}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ability.enable], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{ability.enable}\n{done.stderr}"


def test_a_server_of_ours_has_it_all(server: Cluster) -> None:
    result = examine(server.conninfo())
    found = abilities(result)
    assert list(found) == SERVER + HOST
    assert result.server is not None
    assert result.server.version_num == server.version_num
    assert (result.server.database, result.server.role, result.server.superuser) == (
        "postgres",
        "postgres",
        True,
    )
    assert result.server.shared_buffers_bytes == 16 << 20
    assert not result.server.in_recovery
    with psycopg.connect(server.conninfo()) as connection:
        row = connection.execute("SELECT count(*) FROM pg_class WHERE relkind NOT IN ('v', 'c')").fetchone()
    assert row == (result.server.relations,)
    assert result.host.postmaster_pid == server.postmaster_pid
    for name in [*SERVER[:8], "same_host", "same_user", "peek", "page_cache", "cgroup"]:
        assert found[name].available is True, found[name]
        assert found[name].enable is None, found[name]
    assert found["track_io_timing"].available is False
    assert "2 048 buffers" in found["peek"].why
    if os.geteuid() == 0:
        assert found["trace"].available is True, found["trace"]
    else:
        assert found["trace"].available is False
        assert (found["trace"].enable or "").startswith("sudo pgsweep doctor ")


WARM = ["warm run", "warm restore", "warm save", "warm check", "warm keep"]


POOL = ["cache", "footprint", "top", "serve", *WARM]
"""Commands that look at the buffer pool."""


USED_BY = {
    "connection": ["record", *POOL, "warm plan", "load", "memory", "memory budget", "hugepages"],
    "pg_monitor": ["record --source sql", *POOL, "memory", "memory budget", "hugepages"],
    "pg_buffercache": ["record --source sql", *POOL],
    "pg_prewarm": ["warm plan", "warm run", "warm restore", "warm keep"],
    "databases": ["cache", "top", "serve", "warm plan", *WARM[:4]],
    "tables": ["warm plan", "warm run", "warm restore", "warm keep"],
    "track_counts": ["record", "top", "serve", "warm plan", "warm run", "warm keep"],
    "track_io_timing": [],
    "same_host": [
        "record --source trace",
        "record --source peek",
        "advise",
        "verify",
        *POOL,
        "warm plan",
        "memory",
        "memory budget",
        "memory kernel",
        "hugepages",
    ],
    "peek": ["record --source peek", *POOL],
    "page_cache": ["cache", "footprint", "top", "serve", "warm plan", *WARM[:4]],
    "trace": ["record --source trace"],
    "huge_pages": [],
    "cgroup": [],
}


USED_BY |= {"version": USED_BY["connection"], "same_user": USED_BY["same_host"]}


def test_each_ability_names_the_commands_that_use_it(server: Cluster) -> None:
    """Also where it is missing; every command that needs a server is named by at least one of them."""
    result = examine(server.conninfo())
    assert {name: ability.needed_for for name, ability in abilities(result).items()} == USED_BY
    known = {part for line in result.commands for part in line.command.split(", ")}
    without_server = set(result.commands[-1].command.split(", "))
    named = {words.partition(" --")[0] for used in USED_BY.values() for words in used}
    assert known - without_server <= named <= known
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE empty")
        connection.execute("CREATE ROLE nobody_special LOGIN")
        try:
            lacking = examine(make_conninfo(server.conninfo("empty"), user="nobody_special"))
        finally:
            connection.execute("DROP DATABASE empty WITH (FORCE)")
            connection.execute("DROP ROLE nobody_special")
    missing = abilities(lacking)
    for name in ("pg_monitor", "pg_buffercache", "pg_prewarm", "track_io_timing"):
        assert missing[name].available is False
        assert missing[name].needed_for == USED_BY[name]
    said = " ".join(doctor_text(lacking, Terminal(width=80)).split())
    assert "needed for: warm plan, warm run, warm restore, warm keep" in said


def test_the_commands_that_it_names_help(server: Cluster) -> None:
    """A role that may nothing, in a database without extensions; both with names that must be quoted."""
    role, database = 'o\'Brien "x"', 'my "own"; $db'
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        connection.execute("CREATE DATABASE closed")
        connection.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
        try:
            conninfo = make_conninfo(server.conninfo(database), user=role)
            first = abilities(examine(conninfo))
            for name in ("pg_monitor", "pg_buffercache", "pg_prewarm", "databases"):
                assert first[name].available is False
            assert "closed" in first["databases"].why
            assert "does not exist in database" in first["pg_buffercache"].why
            for name in ("pg_buffercache", "pg_prewarm", "databases"):
                execute(first[name], server)
            second = abilities(examine(conninfo))
            assert second["pg_prewarm"].available is True
            assert second["databases"].available is True
            # The extension is there now, but the role may not read it yet.
            assert second["pg_buffercache"].available is False
            assert "not a member of pg_monitor" in second["pg_buffercache"].why
            assert second["pg_buffercache"].enable == first["pg_monitor"].enable
            execute(second["pg_monitor"], server)
            third = abilities(examine(conninfo))
            assert third["pg_monitor"].available is True
            assert third["pg_buffercache"].available is True
            assert third["same_host"].available is True
        finally:
            connection.execute("DROP DATABASE IF EXISTS closed")
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))


def test_an_extension_older_than_the_server(wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE aged")
        try:
            with psycopg.connect(wheel18.conninfo("aged"), autocommit=True) as inside:
                inside.execute("CREATE EXTENSION pg_buffercache VERSION '1.3'")
            found = abilities(examine(wheel18.conninfo("aged")))["pg_buffercache"]
            assert found.available is True
            assert found.why.startswith("version 1.3 ")
            execute(found, wheel18)
            assert abilities(examine(wheel18.conninfo("aged")))["pg_buffercache"].enable is None
        finally:
            connection.execute("DROP DATABASE aged WITH (FORCE)")


def test_settings_are_switched_on_by_the_command(own: Cluster) -> None:
    own.restart({"track_counts": "off"})
    first = abilities(examine(tcp(own)))
    for name in ("track_counts", "track_io_timing"):
        assert first[name].available is False
        execute(first[name], own)
    own.restart()
    second = abilities(examine(tcp(own)))
    assert [second[name].available for name in ("track_counts", "track_io_timing")] == [True, True]


def test_a_stopped_server(tmp_path: Path) -> None:
    with Cluster.create(settings={"shared_buffers": "4MB"}) as cluster:
        conninfo = make_conninfo(cluster.conninfo(), password=SECRET)
        cluster.stop()
        with pytest.raises(ConnectionFailed):
            examine(conninfo)
        done = run("doctor", conninfo, "--json", "-o", "x.txt", cwd=tmp_path)
    assert done.returncode == 3
    assert SECRET not in done.stdout + done.stderr + (tmp_path / "x.txt").read_text()
    result = json.loads(done.stdout)
    assert result["server"] is None
    assert result["target"].startswith("database postgres at /")
    found = {ability["name"]: ability for ability in result["abilities"]}
    assert list(found) == ["connection", *HOST]
    states = {line["command"]: line["state"] for line in result["commands"]}
    assert (states["advise, verify"], states["memory kernel"], states["serve"]) == ("in part", "works", "not")
    assert found["connection"]["available"] is False
    assert "no server listens there" in found["connection"]["why"]
    assert {found[name]["available"] for name in HOST} <= {None, False}
    assert result["host"]["memory_bytes"] > 0


def test_a_server_that_refuses_the_session_is_reached(wheel18: Cluster) -> None:
    for wrong in ({"user": "nobody_special"}, {"dbname": "absent"}):
        done = run("doctor", make_conninfo(wheel18.conninfo(), **wrong), "--json")
        assert done.returncode == 3
        found = json.loads(done.stdout)
        available = {ability["name"]: ability["available"] for ability in found["abilities"]}
        assert (available["connection"], available["session"]) == (True, False)
        assert not [line for line in found["commands"] if "not reached" in line["why"]]


def test_a_standby_in_recovery() -> None:
    with Cluster.create(settings=PRIMARY) as primary, standby_of(primary) as standby:
        with psycopg.connect(standby.conninfo(), autocommit=True) as connection:
            receives = "SELECT FROM pg_stat_wal_receiver WHERE sender_port > 0"
            wait_until(lambda: connection.execute(receives).rowcount > 0, why=standby.log_tail)
        result = examine(standby.conninfo())
        assert result.server is not None
        assert result.server.in_recovery
        found = abilities(result)
        assert found["peek"].available is True
        missing = found["pg_buffercache"]
        assert missing.available is False
        assert "standby" in missing.why
        assert f"psql -h {primary.socket_directory} " in (missing.enable or "")
        execute(missing, primary)
        wait_until(
            lambda: abilities(examine(standby.conninfo()))["pg_buffercache"].available is True,
            why=standby.log_tail,
        )
        # A setting is the standby's own.
        assert str(standby.socket_directory) in (found["track_io_timing"].enable or "")
        assert "in recovery" in doctor_text(result, Terminal())
        assert commands(result)["load"] == "not"


def test_a_service(wheel18: Cluster, tmp_path: Path) -> None:
    services = tmp_path / "services"
    services.write_text(
        f"[mine]\nhost={wheel18.socket_directory}\nuser=postgres\npassword={SECRET}\ndbname=postgres\n"
    )
    env = {"PGSERVICEFILE": str(services), "PGSERVICE": "mine"}
    by_environment = run("doctor", env=env)
    by_name = run("doctor", "service=mine", env={"PGSERVICEFILE": str(services)})
    for done in (by_environment, by_name):
        assert done.returncode == 0, done.stderr
        assert f"at {wheel18.socket_directory}, port 5432; database postgres" in done.stdout.replace(
            "\n", " "
        )
        assert SECRET not in done.stdout + done.stderr
    unheard = run("doctor", "service=unheard", env={"PGSERVICEFILE": str(services)})
    assert unheard.returncode == 3
    assert "No session: service unheard" in unheard.stdout


def test_a_server_too_old_or_too_new(wheel18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsweep.versions.NEWEST_TESTED_MAJOR", 17)
    found = abilities(examine(wheel18.conninfo()))
    assert found["version"].available is None
    assert found["pg_buffercache"].available is True
    monkeypatch.setattr("pgsweep.pg.session.connect.OLDEST_VERSION_NUM", 190000)
    found = abilities(examine(wheel18.conninfo()))
    assert found["connection"].available is True
    assert found["version"].available is False
    assert list(found) == ["connection", "version", *HOST]


def test_every_form_of_the_result(wheel18: Cluster, tmp_path: Path) -> None:
    done = run("doctor", wheel18.conninfo(), "-o", "x.html", "-o", "x.csv", "-o", "x.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "yes      pg_buffercache" in done.stdout
    back = run("report", "--from", "x.html", "--json", cwd=tmp_path)
    assert back.stdout == (tmp_path / "x.json").read_text()
    assert json.loads(back.stdout)["schema"] == "pgsweep.doctor/1"
    rows = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
    assert [row["ability"] for row in rows[: len(SERVER + HOST)]] == SERVER + HOST
    lines = [(row["ability"], row["available"]) for row in rows if row["area"] == "command"]
    whole = json.loads((tmp_path / "x.json").read_text())
    assert lines == [(line["command"], line["state"]) for line in whole["commands"]]
    page = (tmp_path / "x.html").read_text()
    assert "On the server" in page
    assert "vm.nr_hugepages" in page or "lies in huge pages" in page or "with huge_pages = on" in page


def test_a_mistake_is_still_a_mistake() -> None:
    done = run("doctor", "nonsense=1")
    assert done.returncode == 2
    assert done.stdout == ""


def commands(result: DoctorResult) -> dict[str, str]:
    return {line.command: line.state for line in result.commands}


def test_it_ends_with_what_can_be_run(wheel18: Cluster) -> None:
    result = examine(wheel18.conninfo())
    found, able = commands(result), abilities(result)
    assert found["record"] == found["memory kernel"] == "works"
    assert found["warm keep"] == ("works" if able["pg_prewarm"].available else "not")
    assert (found["cache"] == "works") == (able["page_cache"].available is True)
    assert found["advise, verify"] == found["load"] == "works"
    # Every command has a line, and those of a group count as the group.
    named = {part.split()[0] for command in found for part in command.split(", ")}
    assert named == set(COMMANDS) - {"doctor"}
    text = doctor_text(result, Terminal(width=80))
    last = text.split("What you can run")[1]
    for name in (
        "record",
        "cache",
        "top",
        "footprint",
        "warm plan",
        "warm keep",
        "memory budget",
        "hugepages",
    ):
        assert re.search(rf"(works|in part|not) +{name}\b", last), name
    assert text.count("What you can run") == 1


def test_what_works_in_another_way_needs_no_ability(wheel18: Cluster) -> None:
    """pg_buffercache was "needed for: cache, top" above "✓ works  cache": the memory was read instead."""
    missing = Ability(
        name="pg_buffercache",
        area="server",
        available=False,
        why="not there",
        enable=None,
        needed_for=["record --source sql", "cache", "top", "warm keep"],
    )
    works = [Runnable(command=name, state="works", why="") for name in ("cache", "top")]
    other = Runnable(command="warm keep", state="not", why="")
    result = msgspec.structs.replace(
        examine(wheel18.conninfo()), abilities=[missing], commands=[*works, other]
    )
    assert "needed for: record --source sql, warm keep\n" in doctor_text(result, Terminal(width=80))
    # What lacks another ability does not lack this one, where the server's memory is read instead.
    peek = Ability(name="peek", area="host", available=True, why="", enable=None, needed_for=["warm keep"])
    read = msgspec.structs.replace(result, abilities=[missing, peek])
    assert "needed for: record --source sql\n" in doctor_text(read, Terminal(width=80))


def test_without_the_host_and_without_extensions_little_can_be_run(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
        try:
            monkeypatch.setattr("pgsweep.doctor.search", lambda *_: Search(None, ()))
            result = examine(wheel18.conninfo("bare"))
        finally:
            connection.execute("DROP DATABASE bare WITH (FORCE)")
    found = commands(result)
    assert {found[name] for name in ("record", "cache", "top", "warm plan", "warm keep", "memory")} == {"not"}
    assert found["hugepages"] == found["serve"] == found["advise, verify"] == "in part"
    # Of a server elsewhere this host's kernel says nothing.
    assert found["memory kernel"] == "not"
