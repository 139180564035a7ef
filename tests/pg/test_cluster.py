"""Private clusters: they run, they are private, and nothing of them is ever left."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pgsweep.errors import ClusterError
from pgsweep.host import cgroup
from pgsweep.host.processes import is_running, processes_in
from pgsweep.pg.private.bindir import find_server, inspect_bindir, installed_servers, parse_version
from pgsweep.pg.private.cluster import Cluster, reap_leftovers
from tests.fix_cluster import bindirs
from tests.fix_process import needs_cgroup, needs_root, wait_until

CHILD = """
import sys, time
from pathlib import Path
from pgsweep.pg.private.cluster import Cluster
cluster = Cluster.create(settings={"shared_buffers": "8MB"}, memory_limit_bytes=LIMIT)
keeper = cluster._keeper.pid
print(cluster.run_directory, cluster.data_directory, cluster.postmaster_pid, keeper,
      cluster.memory_cgroup.path if cluster.memory_cgroup else "-", flush=True)
time.sleep(60)
"""


class Victim:
    """Another process with a cluster, to be killed."""

    def __init__(self, limit: str = "None") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD.replace("LIMIT", limit)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        run, data, postmaster, keeper, group = self.process.stdout.readline().split()
        self.run, self.data = Path(run), Path(data)
        self.postmaster, self.keeper = int(postmaster), int(keeper)
        self.group = None if group == "-" else Path(group)

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def nothing_left(self) -> bool:
        return not (
            self.run.exists()
            or processes_in(self.data)
            or is_running(self.keeper)
            or (self.group is not None and self.group.exists())
        )


def test_servers_are_found() -> None:
    found = installed_servers()
    assert find_server().major == 18
    assert [inspect_bindir(server.bindir) for server in found] == found


@pytest.mark.parametrize(
    ("text", "version_num"),
    [
        ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n", 150018),
        ("postgres (PostgreSQL) 18.6", 180006),
        ("postgres (PostgreSQL) 19beta3", 190000),
        ("postgres (PostgreSQL) 20devel", 200000),
    ],
)
def test_version(text: str, version_num: int) -> None:
    assert parse_version(text)[0] == version_num


def test_a_folder_without_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="no PostgreSQL server") as caught:
        find_server(tmp_path)
    assert caught.value.cause == "missing: postgres, initdb"
    assert "pg_config --bindir" in (caught.value.hint or "")


def test_it_runs_privately(server: Cluster) -> None:
    with psycopg.connect(server.conninfo()) as connection:
        row = connection.execute(
            "SELECT current_setting('server_version_num')::int, current_setting('listen_addresses'),"
            " current_setting('data_directory')"
        ).fetchone()
    assert row == (server.version_num, "", str(server.data_directory))
    assert stat.S_IMODE(server.socket_directory.stat().st_mode) == 0o700
    assert server.postmaster_pid in processes_in(server.data_directory)
    if os.getuid() == 0:
        assert server.data_directory.stat().st_uid != 0


def test_restart_with_settings_keeps_the_data(bindir: Path | None, own_tmpdir: Path) -> None:
    with Cluster.create(bindir, {"shared_buffers": "8MB"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
        first = cluster.postmaster_pid
        cluster.restart({"shared_buffers": "12MB", "cluster_name": "it's odd"})
        assert cluster.postmaster_pid != first
        with psycopg.connect(cluster.conninfo()) as connection:
            row = connection.execute(
                "SELECT number, current_setting('shared_buffers'), current_setting('cluster_name') FROM kept"
            ).fetchone()
        assert row == (7, "12MB", "it's odd")
    cluster.close()
    with pytest.raises(ClusterError, match="was closed"):
        cluster.start()


def test_several_at_once(own_tmpdir: Path) -> None:
    with Cluster.create() as one, Cluster.create(bindirs()[-1]) as two:
        assert one.data_directory != two.data_directory
        for cluster in (one, two):
            with psycopg.connect(cluster.conninfo()) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_failed_start_says_why(own_tmpdir: Path) -> None:
    with pytest.raises(ClusterError, match="did not start") as caught:
        Cluster.create(settings={"shared_buffers": "8MB", "no_such_setting": "1"})
    assert "no_such_setting" in (caught.value.cause or "")
    assert caught.value.hint == "this server's version does not know the setting; leave it out"


def test_a_failed_restart_can_be_repaired(own_tmpdir: Path) -> None:
    with Cluster.create(settings={"shared_buffers": "8MB"}) as cluster:
        with pytest.raises(ClusterError, match="did not start"):
            cluster.restart({"shared_buffers": "1000000GB"})
        cluster.restart({"shared_buffers": "8MB"})


def test_a_work_dir_of_the_users_choice(own_tmpdir: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    room = own_tmpdir / "room"
    room.mkdir(mode=0o755)
    with Cluster.create(work_dir=room) as cluster:
        assert cluster.data_directory.parent == room
    assert list(room.iterdir()) == []
    room.rmdir()


@needs_root
def test_a_work_dir_that_the_server_cannot_enter(own_tmpdir: Path) -> None:
    closed = own_tmpdir / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(ClusterError, match="cannot enter"):
        Cluster.create(work_dir=closed)
    assert list(closed.iterdir()) == []
    closed.rmdir()


def copy_of_the_wheels_server(folder: Path) -> Path:
    """Copy the wheel's server with its libraries into a folder; returns its bin folder there."""
    package = find_server().bindir.parent.parent
    for name in (package.name, package.name + ".libs"):
        shutil.copytree(package.with_name(name), folder / name, symlinks=True)
    return folder / package.name / "pginstall/bin"


def test_a_server_without_contrib(own_tmpdir: Path) -> None:
    folder = own_tmpdir / "bare"
    folder.mkdir(mode=0o755)
    bindir = copy_of_the_wheels_server(folder)
    next(folder.rglob("pg_prewarm.control")).unlink()
    with Cluster.create(bindir) as cluster, pytest.raises(ClusterError, match="pg_prewarm") as caught:
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
    assert "contrib" in (caught.value.hint or "")
    shutil.rmtree(folder)


@needs_root
def test_a_server_below_a_closed_folder(own_tmpdir: Path) -> None:
    closed = own_tmpdir / "closed"
    closed.mkdir(mode=0o700)
    bindir = copy_of_the_wheels_server(closed)
    with Cluster.create(bindir) as cluster, psycopg.connect(cluster.conninfo()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert cluster.bindir == bindir
    shutil.rmtree(closed)


@needs_cgroup
def test_the_memory_limit_shortens_the_page_cache(own_tmpdir: Path) -> None:
    limit = 96 * 1024**2
    with Cluster.create(settings={"shared_buffers": "8MB"}, memory_limit_bytes=limit) as cluster:
        group = cluster.memory_cgroup
        assert group is not None
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            # Rows below two kilobytes are not compressed: 120 MB.
            connection.execute(
                "CREATE TABLE big AS SELECT repeat('x', 1900) AS x FROM generate_series(1, 60000)"
            )
            connection.execute("CHECKPOINT")
            connection.execute("SELECT count(*) FROM big")
        assert len(group.processes()) >= 5
        assert group.usage_bytes() <= limit
        cluster.set_memory_limit(600 * 1024**2)
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE bigger AS TABLE big")
        assert limit < group.usage_bytes() <= 600 * 1024**2
        path = group.path
    assert not path.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_we_are_killed(own_tmpdir: Path, number: signal.Signals) -> None:
    victim = Victim()
    victim.end(number)
    wait_until(victim.nothing_left)


@needs_cgroup
def test_leftovers_of_a_run_killed_with_its_keeper(own_tmpdir: Path) -> None:
    victim = Victim(limit="200 * 1024**2")
    os.kill(victim.keeper, signal.SIGSTOP)  # so that it cannot clean up before it is killed
    victim.end(signal.SIGKILL)
    os.kill(victim.keeper, signal.SIGKILL)
    wait_until(lambda: not is_running(victim.postmaster))  # the kernel ended it with its keeper
    assert victim.data.exists()
    assert victim.group is not None
    assert victim.group.exists()
    assert reap_leftovers() == [victim.run]
    assert victim.nothing_left()


def test_a_living_run_is_not_reaped(own_tmpdir: Path) -> None:
    victim = Victim()
    assert reap_leftovers() == []
    assert is_running(victim.postmaster)
    victim.end(signal.SIGTERM)
    wait_until(victim.nothing_left)


def test_a_crashed_server_is_reported(own_tmpdir: Path) -> None:
    with Cluster.create(settings={"shared_buffers": "8MB"}) as cluster:
        assert cluster.postmaster_pid is not None
        os.kill(cluster.postmaster_pid, signal.SIGKILL)
        wait_until(lambda: not processes_in(cluster.data_directory))
        cluster.start()
        with psycopg.connect(cluster.conninfo()) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_foreign_common_folder_is_not_trusted(own_tmpdir: Path) -> None:
    trap = own_tmpdir / f"pgsweep-{os.getuid()}"
    trap.mkdir()
    trap.chmod(0o777)
    with pytest.raises(ClusterError, match="cannot be trusted"):
        Cluster.create()
    trap.rmdir()


def test_cgroup_parent_version_2(tmp_path: Path) -> None:
    """The nearest ancestor that hands out `memory` is taken; our own group, which holds processes, is not."""
    mount = tmp_path / "cgroup"
    own = mount / "user.slice/app.slice/run.scope"
    own.mkdir(parents=True)
    for folder, controllers in [(mount, "cpu memory"), (mount / "user.slice", "cpu memory")]:
        (folder / "cgroup.subtree_control").write_text(controllers)
    (mount / "user.slice/app.slice/cgroup.subtree_control").write_text("pids")
    (own / "cgroup.subtree_control").write_text("")
    proc = tmp_path / "proc/self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text("0::/user.slice/app.slice/run.scope\n")
    (proc / "mountinfo").write_text(
        f"30 1 0:26 / {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
    )
    assert cgroup.find_parent(tmp_path / "proc") == (mount / "user.slice", 2)


def test_an_interrupted_request_does_not_confuse_the_next(own_tmpdir: Path) -> None:
    """A Ctrl-C between a request and its answer leaves the answer unread."""
    with Cluster.create(settings={"shared_buffers": "8MB"}) as cluster:
        assert cluster._keeper is not None
        cluster._keeper.write({"do": "poll", "number": 0})
        cluster.restart({"shared_buffers": "9MB"})
        with psycopg.connect(cluster.conninfo()) as connection:
            assert connection.execute("SHOW shared_buffers").fetchone() == ("9MB",)


def test_the_keeper_of_a_server_imports_little() -> None:
    """Every private server waits for its start."""
    code = (
        "import sys, pgsweep.pg.private.keeper\n"
        "print({'dataclasses', 'inspect', 'msgspec', 'numpy', 'psycopg'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")
