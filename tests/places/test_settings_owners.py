"""Who keeps the settings: --apply is refused where it would be in vain, and says what to change instead."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from pgsweep import doctor
from pgsweep.advice.apply import apply
from pgsweep.advice.owner import adapted
from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.host import patroni
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.catalog.manager import read_sources
from pgsweep.pg.catalog.next_start import read_next_start
from pgsweep.pg.private.cluster import Cluster
from tests.fix_advice import advised, growing
from tests.fix_apply import kept, recorded
from tests.fix_cli import run
from tests.fix_place import group_in, joined, memory_top, started_with
from tests.fix_process import busyness, needs_root, wait_until

WANTED = {"effective_cache_size": "3GB", "max_connections": "70"}
PATRONI = [
    "max_connections=60",
    "max_locks_per_transaction=64",
    "max_worker_processes=8",
    "wal_level=replica",
]
PATRONI += ["track_commit_timestamp=off", "cluster_name=shop"]
pytestmark = needs_root


@pytest.fixture
def own(tmp_path: Path, bindir: Path | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Cluster.create(bindir, {"shared_buffers": "16MB", "max_connections": "50"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        yield cluster


def show(cluster: Cluster, name: str) -> str:
    with psycopg.connect(cluster.conninfo()) as session:
        row = session.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def refused(cluster: Cluster, tmp_path: Path) -> MissingAbility:
    """Check that nothing is changed and nothing is left, and return what is said."""
    with pytest.raises(MissingAbility) as said:
        apply(cluster.conninfo(), WANTED)
    assert kept(cluster) == {}
    assert not list((tmp_path / "state").rglob("*.json"))
    return said.value


@pytest.mark.one_server
def test_the_command_line_goes_before_auto_conf(own: Cluster, tmp_path: Path) -> None:
    """As `docker run postgres -c effective_cache_size=1GB`."""
    with started_with(own, "-c", "effective_cache_size=1GB"):
        said = refused(own, tmp_path)
        assert "effective_cache_size is given on the command line" in said.message
        assert "-c effective_cache_size=3GB" in (said.hint or "")
        assert "ALTER SYSTEM SET max_connections = '70'" in (said.hint or "")
        # What is not given there is written.
        apply(own.conninfo(), {"max_connections": "70"})
        with psycopg.connect(own.conninfo(), autocommit=True) as session:
            session.execute("ALTER SYSTEM SET effective_cache_size = '3GB'")
            session.execute("SELECT pg_reload_conf()")
        assert show(own, "effective_cache_size") == "1GB", "it would have had no effect"


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("of", "by"),
    [("DATABASE postgres", "ALTER DATABASE"), ("ROLE postgres", "ALTER ROLE"), ("", "connection")],
)
def test_what_a_session_has_of_its_own_goes_before_alter_system(own: Cluster, of: str, by: str) -> None:
    """The server says that another value of the server changes nothing there."""
    target, mine = own.conninfo(), {"effective_cache_size": "1GB", "work_mem": "64MB"}
    with psycopg.connect(target, autocommit=True) as session:
        for name, value in mine.items() if of else ():
            session.execute(f"ALTER {of} SET {name} = '{value}'".encode())
        session.execute("ALTER SYSTEM SET effective_cache_size = '3GB'")
        session.execute("SELECT pg_reload_conf()")
    if not of:
        options = " ".join(f"-c {name}={value}" for name, value in mine.items())
        target = f"{target} options='{options}'"
    with psycopg.connect(target) as session:
        assert session.execute("SHOW effective_cache_size").fetchone() == ("1GB",)
        sources = read_sources(session, list(mine))
    setting = next(one for one in advised(growing()).settings if one.name == "effective_cache_size")
    assert setting.action == "set"
    result = adapted(advised(growing()), None, sources)
    setting = next(one for one in result.settings if one.name == "effective_cache_size")
    assert (setting.action, setting.value, setting.undo) == ("leave", None, "") and by in setting.reason
    assert next(one for one in result.settings if one.name == "shared_buffers").action == "set"
    budget = json.loads(run("memory", "budget", "-d", target, "--json").stdout)
    assert budget["work_mem_bytes"] == 64 << 20
    assert any("work_mem" in reason and by in reason for reason in budget["reasons"])


def program(folder: Path, name: str) -> Path:
    """Return a program that starts a server and waits for it, as Patroni does."""
    folder.chmod(0o755)
    file = folder / name
    file.write_text('#!/bin/sh\n"$@" &\nwait\n')
    file.chmod(0o755)
    return file


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that the server's user may enter."""
    made = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        yield made
    finally:
        for file in made.iterdir():
            file.unlink()
        made.rmdir()


@pytest.mark.one_server
def test_the_parent_is_patroni(own: Cluster, tmp_path: Path) -> None:
    with open_folder() as folder, started_with(own, by=program(folder, "patroni")):
        said = refused(own, tmp_path)
        assert said.message.startswith("Patroni keeps the settings")
        assert "patronictl edit-config --pg effective_cache_size=3GB --pg max_connections=70" in (
            said.hint or ""
        )
        place = json.loads(run("doctor", own.conninfo(), "--json").stdout)["place"]
        assert place["manager"] == "Patroni" and "patroni" in place["manager_because"]
        recorded(own, tmp_path)
        done = run(
            "advise",
            "e.evidence",
            "-d",
            own.conninfo(),
            "--ram",
            "64GB",
            "--format",
            "alter-system",
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert "ALTER SYSTEM SET" not in done.stdout
        assert "patronictl edit-config --pg effective_cache_size=" in " ".join(done.stdout.split()).replace(
            " -- ", " "
        )
    with open_folder() as folder, started_with(own, by=program(folder, "another")):
        apply(own.conninfo(), {"effective_cache_size": "3GB"})
    assert show(own, "effective_cache_size") == "3GB"


def test_an_answer_that_comes_by_drips_is_left() -> None:
    """A process of the server's user may call itself Patroni; each byte comes in time, the answer never."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            taken, _ = listening.accept()
            with taken, suppress(OSError):
                while not ended.wait(0.05):
                    taken.sendall(b"X")

        dripping = threading.Thread(target=drip)
        dripping.start()
        begin = time.monotonic()
        with pytest.raises(TimeoutError):
            patroni._asked("127.0.0.1", listening.getsockname()[1])
        assert time.monotonic() - begin < 10 * busyness()
        ended.set()
        dripping.join()


@pytest.mark.one_server
def test_patroni_is_known_by_its_command_line(own: Cluster, tmp_path: Path) -> None:
    with started_with(own, *(f"--{option}" for option in PATRONI)):
        said = refused(own, tmp_path)
    assert "as Patroni does" in (said.cause or "")


@pytest.mark.one_server
def test_patroni_is_known_by_what_it_writes(own: Cluster, tmp_path: Path) -> None:
    conf = own.data_directory / "postgresql.conf"
    text = conf.read_text()
    base = own.data_directory / "postgresql.base.conf"
    conf.write_text("# Do not edit this file manually!\n# It will be overwritten by Patroni!\n" + text)
    own.restart()
    assert "overwritten by Patroni" in (refused(own, tmp_path).cause or "")
    base.write_text("vacuum_cost_limit = 300\n")
    base.chmod(0o644)
    conf.write_text(f"include 'postgresql.base.conf'\n{text}")
    own.restart()
    assert "postgresql.base.conf" in (refused(own, tmp_path).cause or "")


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("line", "name", "where"),
    [
        (
            "cnpg.config_sha256 = 'abc'",
            "CloudNativePG",
            'spec.postgresql.parameters of the Cluster: effective_cache_size: "3GB"',
        ),
        (
            "wal_level = replica\narchive_mode = on\narchive_command = '/controller/manager wal-archive "
            "--log-destination /x %p'",
            "CloudNativePG",
            'max_connections: "70"',
        ),
    ],
)
def test_an_operator_is_known_by_its_settings(
    own: Cluster, tmp_path: Path, line: str, name: str, where: str
) -> None:
    with (own.data_directory / "postgresql.conf").open("a") as conf:
        conf.write(f"{line}\n")
    own.restart()
    said = refused(own, tmp_path)
    assert said.message.startswith(f"{name} keeps the settings")
    assert where in (said.hint or "")


def fails(cluster: Cluster) -> None:
    """Check that the server itself cannot write its postgresql.auto.conf."""
    with (
        psycopg.connect(cluster.conninfo(), autocommit=True) as session,
        pytest.raises(psycopg.DatabaseError),
    ):
        session.execute("ALTER SYSTEM SET effective_cache_size = '3GB'")


@pytest.mark.one_server
def test_auto_conf_is_read_only(own: Cluster, tmp_path: Path) -> None:
    file = own.data_directory / "postgresql.auto.conf"
    file.chmod(0o400)
    said = refused(own, tmp_path)
    assert "its mode is read-only" in said.message
    fails(own)
    recorded(own, tmp_path)
    words = ["advise", "e.evidence", "-d", own.conninfo(), "--ram", "64GB", "--apply", "--yes"]
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = run(*words, cwd=tmp_path, env=env)
    assert done.returncode == 4
    assert "ALTER SYSTEM SET" not in done.stderr and "written and reloaded" not in done.stderr
    assert not list((tmp_path / "state").rglob("*.json"))


@pytest.mark.one_server
def test_auto_conf_is_mounted(own: Cluster, tmp_path: Path) -> None:
    """As a file of a ConfigMap: a mounted file cannot be replaced, even where it may be written."""
    file = own.data_directory / "postgresql.auto.conf"
    for options, words in (("rw", "it is mounted by itself"), ("ro", "mounted read-only")):
        subprocess.run(["mount", "--bind", file, file], check=True)
        try:
            subprocess.run(["mount", "-o", f"remount,bind,{options}", file], check=True)
            assert words in refused(own, tmp_path).message
            fails(own)
        finally:
            subprocess.run(["umount", file], check=True)


def test_alter_system_is_not_allowed(own: Cluster, tmp_path: Path) -> None:
    if own.version_num < 170000:
        pytest.skip("servers from 17 on can forbid it")
    own.restart({"allow_alter_system": "off"})
    said = refused(own, tmp_path)
    assert "effective_cache_size = '3GB', max_connections = '70'" in (said.hint or "")
    fails(own)


def test_todays_settings_are_those_of_the_server(own: Cluster, tmp_path: Path) -> None:
    """Evidence keeps where its server ran; what has changed since is said, and is what is called today's."""
    recorded(own, tmp_path)
    place = json.loads(json.loads((tmp_path / "e.evidence/meta.json").read_text())["host"]["place"])
    assert place["kind"] in ("host", "systemd", "container", "pod", "lxc", "wsl")
    with psycopg.connect(own.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET effective_cache_size = '7GB'")
        session.execute("SELECT pg_reload_conf()")
    words = ["advise", "e.evidence", "--ram", "64GB", "--json"]
    [then, now] = [
        json.loads(run(*words, *more, cwd=tmp_path).stdout) for more in ((), ("-d", own.conninfo()))
    ]
    today = {
        name: next(one["today"] for one in result["settings"] if one["name"] == "effective_cache_size")
        for name, result in (("then", then), ("now", now))
    }
    assert today == {"then": "4GB", "now": "7GB"}
    assert any("effective_cache_size is 917504 now, and was 524288" in text for text in now["remarks"])
    assert any(
        "set in postgresql.auto.conf, which goes before postgresql.conf" in text for text in now["remarks"]
    )
    assert now["place"]["kind"] == place["kind"]


@pytest.mark.one_server
def test_what_waits_for_the_next_start_is_counted(own: Cluster) -> None:
    """As after a reload where a restart was due: the server itself says what it then takes."""
    with psycopg.connect(own.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET shared_buffers = '512MB'")
        session.execute("ALTER SYSTEM SET max_connections = 300")
        session.execute("SELECT pg_reload_conf()")
        pending = "SELECT count(*) FROM pg_settings WHERE pending_restart"
        wait_until(lambda: session.execute(pending).fetchone() == (2,), 30)
        session.execute("CREATE ROLE monitor LOGIN")
    found = examine(own.conninfo())
    assert found.settings == {"shared_buffers": "512MB", "max_connections": "300"}
    # Who may not see the values is told of them, and no `on` with which the server would not start.
    unseen = examine(own.conninfo().replace("user=postgres", "user=monitor"))
    assert unseen.settings == {}
    assert [step.text for step in unseen.steps if step.what == "setting"] == [
        "ALTER SYSTEM SET huge_pages = try"
    ]
    with group_in(memory_top()) as group:
        (group / "memory.limit_in_bytes").write_text(str(256 << 20))
        with joined(own, group):
            [row] = [one for one in doctor.examine(own.conninfo()).abilities if one.name == "next start"]
    assert row.available is False and "limited to 256 MB" in row.why
    own.restart()
    now = examine(own.conninfo())
    assert now.settings == {} and now.huge_pages_needed == found.huge_pages_needed
    assert "next start" not in {one.name for one in doctor.examine(own.conninfo()).abilities}


@pytest.mark.one_server
@pytest.mark.parametrize(
    ("name", "value", "reloads"), [("shared_bufers", "1GB", False), ("work_mem", "'much'", True)]
)
def test_nothing_is_written_where_the_files_are_wrong(
    own: Cluster, tmp_path: Path, name: str, value: str, reloads: bool
) -> None:
    """The server ignores the reload, or the value, and does not start again."""
    conf = own.data_directory / "postgresql.conf"
    before = conf.read_text()
    conf.write_text(f"{before}\n{name} = {value}\n")
    said = refused(own, tmp_path)
    assert name in (said.cause or "")
    [row] = [one for one in doctor.examine(own.conninfo()).abilities if one.name == "next start"]
    assert row.available is False and name in row.why
    with psycopg.connect(own.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET effective_cache_size = '3GB'")
        session.execute("SELECT pg_reload_conf()")
        if reloads:
            wait_until(lambda: show(own, "effective_cache_size") == "3GB", 30)
        else:
            errors = "SELECT count(*) FROM pg_file_settings WHERE error IS NOT NULL"
            assert session.execute(errors).fetchone() == (1,)
            assert show(own, "effective_cache_size") == "4GB"
        session.execute("ALTER SYSTEM RESET effective_cache_size")
    with pytest.raises(PgsweepError):
        own.restart()
    conf.write_text(before)
    own.start()


@pytest.mark.one_server
def test_what_waits_for_a_reload_and_a_restart_is_no_error(own: Cluster) -> None:
    """The server has one error for it and for a value that cannot be; it starts with the first."""
    with psycopg.connect(own.conninfo(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET shared_buffers = '24MB'")
        session.execute("ALTER SYSTEM SET huge_pages = 'off'")
        found = read_next_start(session)
        assert found.errors == []
        assert found.pending["shared_buffers"] == "24MB"
        with (own.data_directory / "postgresql.auto.conf").open("a") as file:
            file.write("max_connections = 'many'\n")
        assert ["max_connections" in one for one in read_next_start(session).errors] == [True]
        session.execute("ALTER SYSTEM RESET max_connections")
    own.restart()
    with psycopg.connect(own.conninfo()) as session:
        assert session.execute("SHOW shared_buffers").fetchone() == ("24MB",)
