"""What doctor finds out about the host, and about users who may not look into the server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.commands import sudo
from pgsweep.doctor import examine, examine_host
from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.host.abilities import HostChecks
from pgsweep.host.hugepages import HugePages, SharedMemory, read_huge_pages, shared_memory
from pgsweep.host.limits import MemoryLimits, memory_limits
from pgsweep.host.postmaster import Search, find_postmaster, place_of, user_of
from pgsweep.host.yama import who_may
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.trust import require_extension
from pgsweep.records.doctor import DoctorResult
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.doctor import doctor_text
from tests.fix_cli import run_code
from tests.fix_doctor import abilities, tcp
from tests.fix_process import needs_cgroup, needs_root


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
        assert pages.enable == f"{sudo()}sysctl -w vm.nr_hugepages={needed + taken}"


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
        (top / group / "cgroup.procs").touch()
    if version == 1:
        (top / "release_agent").touch()
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
    found = memory_limits(7, proc)
    assert found.hard is not None
    assert (found.hard.path, found.hard.limit_bytes) == (tmp_path / "cgroup/a", 1048576)
    assert (found.hard.used_bytes, found.unseen) == (4096, None)
    (tmp_path / "cgroup/a" / ("memory.limit_in_bytes" if version == 1 else "memory.max")).unlink()
    assert memory_limits(7, proc) == MemoryLimits(None, None, None, 4096)
    # Not seen is not unlimited.
    assert "lies outside of those mounted here" in (memory_limits(8, proc).unknown or "")
    assert memory_limits(9, proc).unknown is not None


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


def test_another_host_is_reached_by_ssh(own: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgsweep.doctor.search", lambda *_: Search(None, ()))
    monkeypatch.setattr("pgsweep.host.abilities._LOOPBACK", ())
    result = examine(f"{tcp(own)} sslmode=disable")
    assert (abilities(result)["same_host"].enable or "").startswith("ssh 127.0.0.1 pgsweep doctor ")


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
    # Other tests have servers too.
    all_of_them = textwrap.dedent("""
        import os, sys
        import pgsweep.host.abilities as abilities
        from pgsweep.cli.main import main
        abilities._SERVERS_NAMED = 1000
        os.environ["COLUMNS"] = "400"
        assert main(["doctor", "-h", "/nowhere", *sys.argv[1:]]) == 3
    """)
    done = run_code(all_of_them)
    assert done.returncode == 0, done.stderr
    assert str(wheel18.socket_directory) in done.stdout
    found = json.loads(run_code(all_of_them, "--json").stdout)
    reasons = Counter(line["why"] for line in found["commands"] + found["abilities"])
    shared = [why for why, times in reasons.items() if times > 1]
    assert len(shared) == 2
    assert [done.stdout.count(why) for why in shared] == [1, 1]


@needs_root
def test_sockets_are_seen_by_users_who_may_not_look_into_the_server(wheel18: Cluster) -> None:
    script = textwrap.dedent("""
        import os
        import pgsweep.host.abilities as abilities
        abilities._SERVERS_NAMED = 1000
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        print(abilities.HostChecks(None, "pgsweep doctor").abilities()[0].why)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    said = f"port 5432, socket in {wheel18.socket_directory}"
    assert f"{wheel18.postmaster_pid} of user postgres" in done.stdout
    assert said not in done.stdout.partition("servers listen here on ")[0]
    assert said in done.stdout.partition("servers listen here on ")[2]


def test_a_server_whose_place_is_known_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside one of another user, of which only that there are sockets is seen."""
    known, other = "port 5432, socket in /run/a", "port 5433, socket in /run/b"
    monkeypatch.setattr("pgsweep.host.abilities.postmasters", lambda: [11, 12])
    monkeypatch.setattr("pgsweep.host.abilities.place_of", {11: known, 12: None}.get)
    monkeypatch.setattr("pgsweep.host.abilities.listening_sockets", lambda: [known, other])
    why = HostChecks(None, "pgsweep doctor").abilities()[0].why
    assert [why.count(place) for place in (known, other)] == [1, 1]


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


def test_yama_is_said_where_the_servers_user_would_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 54321)
    assert who_may(tmp_path).endswith("sudo -u postgres pgsweep ...")
    assert who_may(tmp_path, user="pg").endswith("sudo -u pg pgsweep ...")
    scope = tmp_path / "sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    for number, words in (("1\n", "only root may"), ("3\n", "nobody may")):
        scope.write_text(number)
        said = who_may(tmp_path)
        assert "sudo pgsweep ..." in said
        assert words in said
        assert "sudo -u postgres" not in said


def test_of_many_servers_of_a_host_the_first_are_named(
    wheel18: Cluster, debian15: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsweep.host.abilities._SERVERS_NAMED", 1)
    found = examine_host("host=127.0.0.1 port=1", ConnectionFailed("refused"))
    [said] = {one.why for one in found.abilities if "servers that run here" in one.why}
    assert said.count(" of user ") == 1
    assert re.search(r", and \d+ more", said)
