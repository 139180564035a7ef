"""`pgsweep doctor` against real servers: what it says is so, and the commands that it names help."""

from __future__ import annotations

import csv
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep.cli.overview import COMMANDS
from pgsweep.doctor import examine
from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.host.abilities import HostChecks
from pgsweep.host.cgroup import MemoryLimit, limit_of
from pgsweep.host.hugepages import HugePages, SharedMemory, read_huge_pages, shared_memory
from pgsweep.host.postmaster import Search, find_postmaster, place_of, user_of
from pgsweep.host.yama import who_may
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.cluster import Cluster
from pgsweep.pg.connect import connect
from pgsweep.pg.provider import PROVIDERS, Wanted, read_provider
from pgsweep.pg.trust import missing_extension, require_extension
from pgsweep.records.doctor import Ability, DoctorResult
from pgsweep.ui.doctor import doctor_text
from pgsweep.ui.terminal import Terminal
from tests.fix_cli import run
from tests.fix_process import needs_cgroup, needs_root, wait_until
from tests.fix_standby import PRIMARY, standby_of

SECRET = "s3cret-word"
SERVER = ["connection", "version", "pg_monitor", "pg_buffercache", "pg_prewarm", "databases"]
SERVER += ["track_counts", "track_io_timing"]
HOST = ["same_host", "same_user", "peek", "page_cache", "trace", "huge_pages", "cgroup"]


def abilities(result: DoctorResult) -> dict[str, Ability]:
    return {ability.name: ability for ability in result.abilities}


def execute(ability: Ability, cluster: Cluster) -> None:
    """Run the command that an ability names, as a user would paste it."""
    assert ability.enable is not None
    assert SECRET not in ability.enable
    env = {"PATH": f"{cluster.bindir}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ability.enable], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{ability.enable}\n{done.stderr}"


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    """A server whose settings and roles may be changed, and that can be reached by TCP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"shared_buffers": "8MB", "listen_addresses": "127.0.0.1", "port": str(port)}
    with Cluster.create(settings=settings) as cluster:
        yield cluster


def tcp(cluster: Cluster, **parts: str) -> str:
    given = {"host": "127.0.0.1", "port": cluster.settings["port"], "user": "postgres", "dbname": "postgres"}
    return make_conninfo("", **{**given, **parts})


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
    for name in [*SERVER[:7], "same_host", "same_user", "peek", "page_cache", "cgroup"]:
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
    "track_counts": ["record", "top", "serve", "warm plan", "warm run", "warm keep"],
    "track_io_timing": ["footprint", "predict", "advise", "verify", "serve"],
    "same_host": [
        "record --source trace",
        "record --source peek",
        "advise",
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


def test_tracing_elsewhere_than_on_x86_64_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsweep.host.abilities.platform.machine", lambda: "aarch64")
    monkeypatch.setattr("pgsweep.host.abilities.platform.system", lambda: "Linux")
    [trace] = [
        ability for ability in HostChecks(None, "pgsweep doctor").abilities() if ability.name == "trace"
    ]
    assert trace.available is False
    assert trace.why.startswith(
        "this is Linux aarch64; tracing needs Linux on x86-64: where probes go is found"
    )
    monkeypatch.setattr("pgsweep.host.abilities.platform.system", lambda: "Darwin")
    [trace] = [
        ability for ability in HostChecks(None, "pgsweep doctor").abilities() if ability.name == "trace"
    ]
    assert trace.why == "this is Darwin aarch64; tracing needs Linux on x86-64"


def test_huge_pages_are_counted(server: Cluster) -> None:
    """By the server's own count from 15 on, by the size of its mapping before."""
    result = examine(server.conninfo())
    pages = abilities(result)["huge_pages"]
    if result.host.huge_page_bytes != 2 << 20 or pages.available:
        pytest.skip("needs a kernel with ordinary pages and huge ones of 2 MB")
    # 16 MB of buffers, and what else 30 connections need.
    needed = int(pages.why.partition(" huge pages would hold it")[0].rpartition(" ")[2])
    assert 8 < needed < 20
    if server.version_num >= 150000:
        with psycopg.connect(server.conninfo()) as connection:
            row = connection.execute(
                "SELECT current_setting('shared_memory_size_in_huge_pages')::int"
            ).fetchone()
        assert row == (needed,)
    taken = (result.host.huge_pages_total or 0) - (result.host.huge_pages_free or 0)
    if (result.host.huge_pages_free or 0) < needed:
        assert pages.enable == f"sudo sysctl -w vm.nr_hugepages={needed + taken}"


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


def test_a_hosted_server(own: Cluster) -> None:
    """Its administrator is not a superuser, and its settings are elsewhere."""
    with psycopg.connect(tcp(own), autocommit=True) as connection:
        connection.execute("CREATE ROLE rds_superuser")
        connection.execute("CREATE ROLE master LOGIN IN ROLE rds_superuser")
        connection.execute("CREATE ROLE app LOGIN")
        connection.execute("ALTER SYSTEM RESET ALL")
        connection.execute("SELECT pg_reload_conf()")
    own.restart()
    found = abilities(examine(tcp(own, user="app")))
    assert " -U master " in (found["pg_monitor"].enable or "")
    assert found["track_io_timing"].enable is None
    assert "provider" in found["track_io_timing"].why


def as_somebody_else(conninfo: str) -> DoctorResult:
    """Return what a user without any right on this host reads; everything is imported before the change."""
    script = textwrap.dedent("""
        import os, sys
        import encodings.idna, pwd
        from pgsweep.doctor import examine
        from pgsweep.ui.results import to_json
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        print(to_json(examine(sys.argv[1])))
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, conninfo], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    from pgsweep.ui.results import from_json

    result = from_json(done.stdout.encode(), "-")
    assert isinstance(result, DoctorResult)
    return result


@needs_root
def test_a_server_that_may_not_be_looked_into(own: Cluster) -> None:
    """By TCP as another user: it may be this host's server or not, and nothing is guessed."""
    result = as_somebody_else(tcp(own))
    found = abilities(result)
    assert found["connection"].available is True
    assert found["same_host"].available is None
    assert str(own.postmaster_pid) in found["same_host"].why
    assert found["same_host"].enable == (
        f"sudo pgsweep doctor -h 127.0.0.1 -p {own.settings['port']} -U postgres -d postgres"
    )
    assert found["same_user"].available is False
    assert "54321" in found["same_user"].why
    for name in ("peek", "page_cache", "trace", "cgroup"):
        assert found[name].available is False, found[name]
        assert (found[name].enable or "").startswith("sudo pgsweep doctor ")
    assert result.host.postmaster_pid is None
    text = doctor_text(result, Terminal(width=80, unicode=False))
    assert all(ord(letter) < 128 for letter in text)
    assert "unknown  same host" in text


def test_a_server_on_another_host(wheel18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    # The start time that the server says fits no process here, as with a server on another host.
    monkeypatch.setattr("pgsweep.host.postmaster.postmaster_start_time", lambda _pid: -1)
    found = abilities(examine(wheel18.conninfo()))
    for name in ("same_host", "same_user", "peek", "page_cache", "trace", "cgroup"):
        assert found[name].available is False, found[name]
    assert all(found[name].enable is None for name in ("peek", "page_cache", "trace", "cgroup"))


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
    monkeypatch.setattr("pgsweep.pg.connect.OLDEST_VERSION_NUM", 190000)
    found = abilities(examine(wheel18.conninfo()))
    assert found["connection"].available is True
    assert found["version"].available is False
    assert list(found) == ["connection", "version", *HOST]


@needs_cgroup
def test_the_memory_limit_is_the_servers() -> None:
    limit_bytes = 512 << 20
    with Cluster.create(settings={"shared_buffers": "8MB"}, memory_limit_bytes=limit_bytes) as cluster:
        result = examine(cluster.conninfo())
    assert result.host.memory_limit_bytes == limit_bytes
    assert 0 < (result.host.memory_limit_used_bytes or 0) <= limit_bytes
    assert "limited to 512 MB" in abilities(result)["cgroup"].why


def captured(folder: Path, version: int) -> Path:
    """Make a proc file system and the memory cgroups of a process 7 in /a/b, limited in /a only."""
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    no_limit = "9223372036854771712" if version == 1 else "max"
    top = folder / "cgroup"
    for group, limit in (("", no_limit), ("a", "1048576"), ("a/b", no_limit)):
        (top / group).mkdir()
        (top / group / names[0]).write_text(limit + "\n")
        (top / group / names[1]).write_text("4096\n")
    proc = folder / "proc"
    for process in ("self", "7", "8"):
        (proc / process).mkdir(parents=True)
    kind = "cgroup - cgroup cgroup rw,memory" if version == 1 else "cgroup2 - cgroup2 cgroup2 rw"
    (proc / "self/mountinfo").write_text(f"30 20 0:25 / {top} rw {kind.partition(' ')[2]}\n")
    controller = "4:memory" if version == 1 else "0:"
    (proc / "7/cgroup").write_text(f"{controller}:/a/b\n")
    (proc / "8/cgroup").write_text(f"{controller}:/../elsewhere\n")
    return proc


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_above_the_servers_group(tmp_path: Path, version: int) -> None:
    proc = captured(tmp_path, version)
    assert limit_of(7, proc) == MemoryLimit(tmp_path / "cgroup/a", 1048576, 4096)
    (tmp_path / "cgroup/a" / ("memory.limit_in_bytes" if version == 1 else "memory.max")).unlink()
    assert limit_of(7, proc) == MemoryLimit(tmp_path / "cgroup/a/b", None, 4096)
    assert limit_of(8, proc) is None
    assert limit_of(9, proc) is None


def test_huge_pages_of_a_captured_kernel(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1024 kB\nHugePages_Total:  20\nHugePages_Free:   12\nHugePages_Rsvd:    5\n"
        "Hugepagesize: 2048 kB\n"
    )
    assert read_huge_pages(tmp_path) == HugePages(20, 7, 2 << 20)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_text(
        "560000000000-560000001000 r-xp 00000000 fe:00 11 /usr/lib/postgresql/16/bin/postgres\n"
        "7f0000000000-7f0000200000 rw-s 00000000 00:01 12 /dev/zero (deleted)\n"
        "7f1000000000-7f1000e00000 rw-s 00000000 00:0f 13 /anon_hugepage (deleted)\n"
        "7f2000000000-7f2010000000 rw-p 00000000 00:00 0 \n"
    )
    assert shared_memory(7, tmp_path) == SharedMemory(14 << 20, huge=True)
    assert shared_memory(8, tmp_path) is None
    (tmp_path / "meminfo").write_text("MemTotal: 1024 kB\n")
    assert read_huge_pages(tmp_path) is None


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


HOSTED = {
    "rds": "rds.extensions",
    "cloudsql": "cloudsql.iam_authentication",
    "alloydb": "alloydb.iam_authentication",
    "azure": "azure.extensions",
    "supabase": "supautils.reserved_roles",
    "neon": "neon.tenant_id",
}
"""A setting that makes a server of ours look like one of that provider's."""


@pytest.fixture(scope="module")
def hosted(wheel18: Cluster) -> Iterator[dict[str, str]]:
    """A database without extensions, seen as each provider's; Aurora is known by a function of its own."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        for name in ("hosted", "aurora"):
            connection.execute(f"CREATE DATABASE {name}".encode())
        with psycopg.connect(wheel18.conninfo("aurora"), autocommit=True) as aurora:
            aurora.execute(
                "CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql RETURN 'x'::text"
            )
        seen = {
            key: make_conninfo(wheel18.conninfo("hosted"), options=f"-c {name}=x")
            for key, name in HOSTED.items()
        }
        try:
            yield {**seen, "aurora": wheel18.conninfo("aurora")}
        finally:
            for name in ("hosted", "aurora"):
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.mark.parametrize("key", sorted(PROVIDERS))
def test_nothing_is_proposed_for_the_host_of_a_provider(
    key: str, hosted: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # No process here is the server's, and its address is another host's.
    monkeypatch.setattr("pgsweep.doctor.search", lambda *_: Search(None, ()))
    monkeypatch.setattr("pgsweep.host.abilities._LOOPBACK", ())
    result = examine(hosted[key])
    assert result.server is not None
    assert result.server.provider == PROVIDERS[key].name
    found = abilities(result)
    for ability in result.abilities:
        assert not re.search(r"\b(ssh|sysctl|apt-get|ALTER SYSTEM)\b", ability.enable or ""), ability
        assert "apt-get" not in ability.why
    assert "provider's" in found["same_host"].why
    assert found["same_host"].enable is None
    if result.host.huge_page_bytes:
        assert found["huge_pages"].enable is None


def test_another_host_is_reached_by_ssh(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsweep.doctor.search", lambda *_: Search(None, ()))
    monkeypatch.setattr("pgsweep.host.abilities._LOOPBACK", ())
    result = examine(f"{tcp(own)} sslmode=disable")
    assert (abilities(result)["same_host"].enable or "").startswith("ssh 127.0.0.1 pgsweep doctor ")


@pytest.mark.parametrize("key", sorted(PROVIDERS))
def test_an_extension_of_a_hosted_service_is_allowed_first(key: str, hosted: dict[str, str]) -> None:
    """The server lists what the provider's list does not allow yet (Azure, Supabase, RDS)."""
    first = PROVIDERS[key].before_creating("pg_prewarm")
    assert (first is None) == (key in {"cloudsql", "alloydb", "neon"})
    found = abilities(examine(hosted[key]))["pg_prewarm"]
    assert "CREATE EXTENSION pg_prewarm" in (found.enable or "")
    with connect(hosted[key]) as session, pytest.raises(MissingAbility) as refused:
        require_extension(session, "pg_prewarm", instead="something else")
    hint = str(refused.value.hint)
    assert "CREATE EXTENSION pg_prewarm" in hint
    if first is not None:
        assert found.why.endswith(f"{PROVIDERS[key].name}: {first}")
        assert hint.startswith(f"{first}; as ")
    # One that the server does not have at all.
    with connect(hosted[key]) as session:
        absent = missing_extension(session, "pg_absent", installed=False, instead="something else")
    assert PROVIDERS[key].name in absent.message
    assert absent.hint == PROVIDERS[key].extensions.format(name="pg_absent") + "; or something else"


def test_the_package_of_an_own_server_has_its_version(server: Cluster) -> None:
    with connect(server.conninfo()) as session:
        absent = missing_extension(session, "pg_absent", installed=False)
    assert f"`postgresql-{server.version_num // 10000}`" in (absent.hint or "")


def test_the_administrator_of_neon_and_of_supabase(own: Cluster) -> None:
    """Neither is a superuser, and the superuser that there is, is the provider's."""
    with psycopg.connect(tcp(own), autocommit=True) as connection:
        # What the test of another hosted server may have made.
        connection.execute("DROP ROLE IF EXISTS master")
        connection.execute("CREATE ROLE neon_superuser; CREATE ROLE owner_of_it LOGIN IN ROLE neon_superuser")
        connection.execute("CREATE ROLE plain LOGIN; CREATE ROLE supabase_admin LOGIN SUPERUSER")
        try:
            neon = make_conninfo(tcp(own, user="plain"), options="-c neon.tenant_id=x")
            found = abilities(examine(neon))
            assert " -U owner_of_it " in (found["pg_monitor"].enable or "")
        finally:
            connection.execute("DROP ROLE owner_of_it; DROP ROLE neon_superuser")
    with psycopg.connect(tcp(own, user="supabase_admin"), autocommit=True) as provider:
        provider.execute("ALTER ROLE postgres RENAME TO first; CREATE ROLE postgres LOGIN CREATEROLE")
        try:
            supabase = make_conninfo(tcp(own, user="plain"), options="-c supautils.reserved_roles=x")
            found = abilities(examine(supabase))
            assert " -U postgres " in (found["pg_monitor"].enable or "")
            with connect(supabase) as session:
                said = as_superuser(session, ["SELECT 1"])
            assert said.startswith("as the administrator: psql ")
            assert " -U postgres " in said
        finally:
            provider.execute("DROP ROLE postgres; ALTER ROLE first RENAME TO postgres; DROP ROLE plain")
    with psycopg.connect(tcp(own), autocommit=True) as connection:
        connection.execute("DROP ROLE supabase_admin")


@pytest.mark.parametrize(
    ("setting", "name", "where"),
    [
        ("rds.extensions", "Amazon RDS", "ParameterName=track_io_timing,ParameterValue=on"),
        ("cloudsql.iam_authentication", "Google Cloud SQL", "--database-flags=track_io_timing=on"),
        ("alloydb.iam_authentication", "Google AlloyDB", "gcloud alloydb instances update"),
        ("azure.extensions", "Azure Database for PostgreSQL", "--name track_io_timing --value on"),
        ("supautils.reserved_roles", "Supabase", "--config track_io_timing=on"),
        ("neon.tenant_id", "Neon", "by the project's settings"),
    ],
)
def test_a_hosted_service_is_known_by_its_settings(
    setting: str, name: str, where: str, wheel18: Cluster
) -> None:
    conninfo = make_conninfo(wheel18.conninfo(), options=f"-c {setting}=x")
    result = examine(conninfo)
    assert result.server is not None
    assert result.server.provider == name
    timing = abilities(result)["track_io_timing"]
    assert where in timing.why
    assert timing.enable is None
    assert f"hosted by {name}" in doctor_text(result, Terminal(width=200))


def test_every_provider_says_where(wheel18: Cluster) -> None:
    with psycopg.connect(wheel18.conninfo()) as connection:
        assert read_provider(connection) is None
    for provider in PROVIDERS.values():
        said = provider.settings({"work_mem": Wanted("4MB", "4096")})
        said += provider.extensions.format(name="pg_prewarm")
        assert "{" not in said
        assert "pg_prewarm" in said


@needs_root
def test_peer_authentication_is_minded(wheel18: Cluster) -> None:
    """Over the socket `psql -U postgres` is refused to all but the system user postgres."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE small LOGIN")
        try:
            found = abilities(examine(make_conninfo(wheel18.conninfo(), user="small")))
        finally:
            connection.execute("DROP ROLE small")
    assert (found["pg_monitor"].enable or "").startswith("runuser -u postgres -- psql -h /")


@needs_root
def test_a_session_of_roots_is_one_of_the_servers_user(wheel18: Cluster) -> None:
    """So a command that names the role of the session is refused to root all the same."""
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE lacking")
        try:
            found = abilities(examine(wheel18.conninfo("lacking")))["pg_prewarm"]
            with connect(wheel18.conninfo("lacking")) as session, pytest.raises(MissingAbility) as refused:
                require_extension(session, "pg_prewarm", instead="something else")
        finally:
            connection.execute("DROP DATABASE lacking WITH (FORCE)")
    options = f"-h {wheel18.socket_directory} -p 5432 -U postgres -d lacking"
    command = f"runuser -u postgres -- psql {options} -c 'CREATE EXTENSION pg_prewarm'"
    assert found.enable == command
    assert refused.value.hint == f"as a superuser: {command}"


def test_a_running_server_is_named_with_its_port_and_folder(wheel18: Cluster) -> None:
    assert wheel18.postmaster_pid is not None
    place = place_of(wheel18.postmaster_pid)
    assert place == f"port 5432, socket in {wheel18.socket_directory}"
    done = run("doctor", "-h", "/nowhere", env={"COLUMNS": "400"})
    assert done.returncode == 3
    assert str(wheel18.socket_directory) in done.stdout


@needs_root
def test_sockets_are_seen_by_users_who_may_not_look_into_the_server(wheel18: Cluster) -> None:
    script = textwrap.dedent("""
        import os
        from pgsweep.host.abilities import HostChecks
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        print(HostChecks(None, "pgsweep doctor").abilities()[0].why)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    said = f"port 5432, socket in {wheel18.socket_directory}"
    assert f"{wheel18.postmaster_pid} of user postgres" in done.stdout
    assert said not in done.stdout.partition("servers listen here on ")[0]
    assert said in done.stdout.partition("servers listen here on ")[2]


def test_yama_is_minded_by_doctor_and_by_the_search(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the server's own user: his memory is refused to him (stubbed), and he is sent to root."""
    assert own.postmaster_pid is not None
    monkeypatch.setattr("pgsweep.host.yama.ptrace_scope", lambda *_: 1)

    def refuse(_pid: int) -> int:
        raise PermissionError

    monkeypatch.setattr("pgsweep.host.postmaster.postmaster_start_time", refuse)
    monkeypatch.setattr("pgsweep.host.abilities.user_name", lambda _uid: user_of(own.postmaster_pid or 0))
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    monkeypatch.setattr("pgsweep.host.abilities.os.geteuid", lambda: 54321)
    found = abilities(examine(tcp(own)))
    assert "only root may" in found["same_user"].why
    assert (found["same_user"].enable or "").startswith("sudo pgsweep doctor ")
    with pytest.raises(MissingAbility) as refused:
        find_postmaster(own.postmaster_pid, 0)
    assert "only root may" in (refused.value.cause or "")
    assert "sudo pgsweep ..." in (refused.value.hint or "")


def test_yama_is_said_where_the_servers_user_would_be_refused(tmp_path: Path) -> None:
    assert who_may("pgsweep cache", tmp_path).endswith("sudo -u postgres pgsweep cache")
    assert who_may("pgsweep cache", tmp_path, user="pg").endswith("sudo -u pg pgsweep cache")
    scope = tmp_path / "sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    for number, words in (("1\n", "only root may"), ("3\n", "nobody may")):
        scope.write_text(number)
        said = who_may("pgsweep cache", tmp_path)
        assert "sudo pgsweep cache" in said
        assert words in said
        assert "sudo -u postgres" not in said
