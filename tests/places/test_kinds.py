"""What kind of place a server runs in, and what does not agree with its settings there."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path

import msgspec
import psycopg
import pytest

from pgsweep.advice.owner import adapted, lacks_page_cache
from pgsweep.doctor import examine
from pgsweep.host.perils import perils_of
from pgsweep.host.place import look
from pgsweep.memory.processes import _host as host_of
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.place import Kind, Place
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.views.doctor import doctor_text
from tests.fix_advice import advised, growing
from tests.fix_cli import PGSWEEP, run
from tests.fix_doctor import abilities
from tests.fix_place import group_in, joined, memory_top, started_with
from tests.fix_process import needs_root, wait_until

SETTINGS = {"shared_buffers": "16MB", "max_connections": "20", "autovacuum": "off"}


@needs_root
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kubepods-burstable-pod1234.slice", "pod"),
        ("docker-0123456789abcdef.scope", "container"),
        ("lxc.payload.shop", "lxc"),
        ("postgresql@18-main.service", "systemd"),
    ],
)
def test_the_cgroup_tells_the_kind(name: str, kind: Kind) -> None:
    with (
        Cluster.create(settings=SETTINGS) as cluster,
        group_in(memory_top()) as above,
        group_in(above, name=name) as group,
        joined(cluster, group),
    ):
        place = look(cluster.postmaster_pid)
        assert (place.kind, place.contained) == (kind, kind != "systemd")
        assert place.unit == (name if kind == "systemd" else None)
        result = examine(cluster.conninfo())
        assert result.place is not None and result.place.kind == kind
        text = "".join(
            doctor_text(result, Terminal(width=300, unicode=False)).split()
        )  # long names are wrapped
        assert "".join(place.because.split()) in text


@needs_root
@pytest.mark.parametrize(
    ("first", "kind"),
    [
        ("export KUBERNETES_SERVICE_HOST=10.0.0.1", "pod"),
        ("mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys", "container"),
    ],
)
def test_the_process_tells_the_kind(first: str, kind: Kind) -> None:
    with Cluster.create(settings=SETTINGS) as cluster:
        pid = cluster.postmaster_pid
        assert look(pid).kind == "host"
        with started_with(cluster, first=first):
            running = int((cluster.data_directory / "postmaster.pid").read_text().split()[0])
            assert look(running).kind == kind


@needs_root
@pytest.mark.parametrize("kind", ["posix", "sysv", "mmap"])
def test_a_parallel_hash_join_needs_room_in_dev_shm(kind: str) -> None:
    """Docker gives 64 MB; the server itself says what happens then. Elsewhere it takes no room there."""
    settings = {**SETTINGS, "work_mem": "64MB", "max_parallel_workers_per_gather": "2"}
    settings["dynamic_shared_memory_type"] = kind
    with Cluster.create(settings=settings) as cluster:
        assert "dynamic shared memory" not in abilities(examine(cluster.conninfo()))
        with started_with(cluster, first="mount -t tmpfs -o size=8m none /dev/shm"):
            found = abilities(examine(cluster.conninfo())).get("dynamic shared memory")
            assert (found is not None) == (kind == "posix")
            if found is not None:
                assert found.available is False
                assert "/dev/shm has 8 MB" in found.why and "--shm-size" in found.why
            with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
                session.execute(
                    "CREATE TABLE a AS SELECT n, repeat('x', 100) AS t FROM generate_series(1, 300000) AS n"
                )
                session.execute("CREATE TABLE b AS TABLE a")
                session.execute("ANALYZE a, b")
                for name in ("parallel_setup_cost", "parallel_tuple_cost", "min_parallel_table_scan_size"):
                    session.execute(f"SET {name} = 0".encode())
                session.execute("SET enable_mergejoin = off")
                fails = pytest.raises(psycopg.errors.DiskFull, match="could not resize shared memory segment")
                with fails if kind == "posix" else nullcontext():
                    session.execute("SELECT count(*) FROM a JOIN b USING (n) WHERE a.t = b.t")


@needs_root
@pytest.mark.parametrize("aside", ["0", "128MB"])
def test_a_parallel_vacuum_needs_room_in_dev_shm(bindir: Path | None, aside: str) -> None:
    """Its dead rows lie there, unless the server has set memory aside at its start."""
    settings = {**SETTINGS, "work_mem": "64kB", "maintenance_work_mem": "64MB", "autovacuum": "off"}
    settings |= {"min_parallel_index_scan_size": "0", "min_dynamic_shared_memory": aside}
    settings["dynamic_shared_memory_type"] = "posix"
    small = "mount -t tmpfs -o size=4m none /dev/shm"
    with Cluster.create(bindir, settings) as cluster, started_with(cluster, first=small):
        found = abilities(examine(cluster.conninfo())).get("dynamic shared memory")
        assert (found is not None) == (aside == "0")
        if cluster.version_num >= 170000:
            return  # the rows take a bitmap for each block: a VACUUM takes as much of a larger table only
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            session.execute("CREATE TABLE a AS SELECT n FROM generate_series(1, 1000000) AS n")
            session.execute("CREATE INDEX ON a (n)")
            session.execute("CREATE INDEX ON a ((n % 7))")
            session.execute("DELETE FROM a")
            fails = pytest.raises(psycopg.errors.DiskFull, match="could not resize shared memory")
            with fails if aside == "0" else nullcontext():
                session.execute("VACUUM (PARALLEL 2) a")


def test_who_is_exposed() -> None:
    uring = {"io_method": "io_uring", "max_connections": "1000"}
    place = Place(kind="systemd", locked_memory_bytes=8 << 20)
    here = {"huge_pages": False, "processors": 64, "kernel": "7.0.2-cloud"}
    assert [one.name for one in perils_of(place, uring, **here)] == ["locked memory", "spinlocks"]  # type: ignore[arg-type]
    for change in ({"huge_pages": True}, {"processors": 8}, {"kernel": "6.18.44"}):
        found = perils_of(place, {"io_method": "worker"}, **{**here, **change})  # type: ignore[arg-type]
        assert found == []
    unlimited = Place(kind="systemd", locked_memory_bytes=None)
    assert perils_of(unlimited, uring, huge_pages=True) == []


def test_a_user_who_sees_little_is_told_no_kind_but_what_anybody_sees(tmp_path: Path) -> None:
    """What may not be read is left out, and ends nothing."""
    assert look(None).kind == "elsewhere"
    assert look(os.getpid(), tmp_path).kind == "host"
    assert look(os.getpid(), tmp_path).memory.limited == "unknown"


@needs_root
def test_a_limit_on_addresses_keeps_the_pool_as_it_is() -> None:
    """As LimitAS of a unit, or `ulimit -v`: with the size that would be advised the server does not start."""
    limited = f"ulimit -v {600 << 10}"
    with Cluster.create(settings=SETTINGS) as cluster:
        with started_with(cluster, first=limited):
            found = examine(cluster.conninfo())
            assert found.place is not None
            assert found.place.address_space_bytes == 600 << 20
            assert "address space" in abilities(found)
        assert (pool_at(found.place), pool_at(Place(kind="pod"))) == ("leave", "set")
        cluster.stop()
        # The program by its path in the folder that the server's user reaches.
        start = f'{limited}; exec "$@" -c shared_buffers=4GB'
        argv = ["/bin/sh", "-c", start, "sh", str(cluster._bindir / "postgres")]
        code, said = cluster.run_program([*argv, "-D", str(cluster.data_directory)], 60)
        cluster.start()
    assert code == 1 and "could not map anonymous shared memory" in said


@needs_root
def test_what_is_free_in_dev_shm_counts() -> None:
    """What others hold there, as containers of a pod or the server's own statistics do, is not to be had."""
    settings = {**SETTINGS, "work_mem": "4MB", "maintenance_work_mem": "8MB", "max_connections": "10"}
    settings["dynamic_shared_memory_type"] = "posix"
    full = "mount -t tmpfs -o size=64m none /dev/shm && chmod 1777 /dev/shm"
    with Cluster.create(settings=settings) as cluster:
        for held, expected in ((0, False), (60, True)):
            with started_with(cluster, first=f"{full} && head -c {held}M /dev/zero >/dev/shm/other"):
                place = look(postmaster_of(cluster))
                assert place.dev_shm_bytes == 64 << 20
                assert place.dev_shm_free_bytes is not None
                assert abs(place.dev_shm_free_bytes - ((64 - held) << 20)) < 2 << 20
                assert ("dynamic shared memory" in abilities(examine(cluster.conninfo()))) == expected


def postmaster_of(cluster: Cluster) -> int:
    return int((cluster.data_directory / "postmaster.pid").read_text().split()[0])


def threads_of(user: int) -> int:
    """Return the number of threads of a user's processes, which come and go meanwhile."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == user:
                found += len(list((process / "task").iterdir()))
    return found


@needs_root
def test_a_limit_on_the_processes_of_a_user_is_one_on_connections() -> None:
    """As nproc of limits.conf, or docker run --ulimit nproc: connections until the server cannot fork."""
    with Cluster.create(settings={**SETTINGS, "max_connections": "60"}) as cluster:
        there = threads_of(cluster._user.uid)
        with started_with(cluster, first=f"ulimit -p {there + 20}"), ExitStack() as held:
            found = examine(cluster.conninfo())
            assert found.place is not None
            assert found.place.process_limit_name == "RLIMIT_NPROC"
            assert "processes" in abilities(found)
            said = json.loads(run("memory", "budget", "-d", cluster.conninfo(), "--json").stdout)
            assert said["possible_connections"] == said["place"]["process_room"] + 1

            def is_full() -> bool:
                """Open one more; where it cannot be had, there is no room for it by our count either."""
                try:
                    held.enter_context(psycopg.connect(cluster.conninfo()))
                except psycopg.OperationalError as error:
                    assert "could not fork new process" in str(error)
                    return (look(postmaster_of(cluster)).process_room or 0) <= 1
                return False

            # Other servers of the user, of other tests, come and go meanwhile.
            wait_until(is_full, 60)


@needs_root
def test_a_limit_on_private_memory_ends_statements() -> None:
    """As LimitDATA of a unit: there is memory, and a sort may not have it."""
    with Cluster.create(settings=SETTINGS) as cluster:
        assert "private memory" not in abilities(examine(cluster.conninfo()))
        with started_with(cluster, first="ulimit -d 40960"):
            found = abilities(examine(cluster.conninfo()))["private memory"]
            assert found.available is False and "40 MB" in found.why
            with psycopg.connect(cluster.conninfo()) as session:
                session.execute("SET work_mem = '100MB'")
                with pytest.raises(psycopg.errors.OutOfMemory):
                    session.execute("SELECT n FROM generate_series(1, 2000000) AS n ORDER BY n DESC OFFSET 9")


@needs_root
def test_a_limit_on_segments_keeps_the_pool_as_it_is() -> None:
    """As docker run --sysctl kernel.shmmax: with the size that would be advised the server does not start."""
    most = 600 << 20
    with Cluster.create(settings={**SETTINGS, "shared_memory_type": "sysv"}) as cluster:
        limited = {"first": f"echo {most} >/proc/sys/kernel/shmmax", "namespaces": ("--mount", "--ipc")}
        with started_with(cluster, **limited):  # type: ignore[arg-type]
            pid = postmaster_of(cluster)
            # Another namespace's limit is not seen, and ours is not taken for it.
            assert look(pid).shared_memory_limit_bytes is None
            words = ["nsenter", "-t", str(pid), "-i", PGSWEEP, "doctor", cluster.conninfo(), "--json"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
            place = msgspec.convert(json.loads(done.stdout)["place"], Place)
        again = started_with(cluster, "-c", "shared_buffers=600MB", **limited)  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="does not start"), again:
            pass
    assert (place.shared_memory_limit_bytes, place.shared_memory_limit_name) == (most, "kernel.shmmax")
    assert pool_at(place) == "leave" and pool_at(Place(kind="pod")) == "set"


def pool_at(place: Place) -> str:
    """Return what is advised for shared_buffers at a place."""
    settings = adapted(advised(growing()), place, {}).settings
    return next(one.action for one in settings if one.name == "shared_buffers")


def test_what_the_kernel_no_longer_promises_limits_the_pool(tmp_path: Path) -> None:
    """Where vm.overcommit_memory is 2: the server gives back what it has, unless that lies in huge pages."""
    (tmp_path / "7").mkdir()
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "meminfo").write_text("CommitLimit: 3145728 kB\nCommitted_AS: 2097152 kB\n")
    for mode, name, limit_mb in (
        (2, "/dev/zero", 1024 + 512 - 264),
        (2, "/anon_hugepage", 1024 - 264),
        (0, "", 0),
    ):
        (tmp_path / "sys/vm/overcommit_memory").write_text(f"{mode}\n")
        mapped = f"7f0000000000-7f0020000000 rw-s 00000000 00:01 1 {name} (deleted)\n"
        (tmp_path / "7/maps").write_text(mapped)
        place = look(7, tmp_path)
        assert place.shared_memory_limit_bytes == (limit_mb << 20 or None)
        assert pool_at(place) == ("leave" if limit_mb else "set")


def test_zfs_has_a_cache_of_its_own(tmp_path: Path) -> None:
    """No size is advised of one that is not modelled, and what it gives back is not taken for used."""
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    (proc / "7/cwd").symlink_to("/var/lib/postgresql/18/main")
    lines = [
        "20 1 0:20 / / rw - ext4 /dev/sda1 rw",
        "21 20 0:21 / /var/lib/postgresql rw - ext4 /dev/sdb1 rw",
        "22 20 0:22 / /var/lib/postgresql rw - zfs tank/pg rw",
        "23 20 0:23 / /var/lib/postgresql/1 rw - xfs /dev/sdc1 rw",
    ]
    (proc / "7/mountinfo").write_text("\n".join(lines) + "\n")
    place = look(7, proc)
    assert place.file_system == "zfs"
    assert [one.name for one in perils_of(place, {}, huge_pages=True)] == ["file system"]
    assert lacks_page_cache(place) is not None
    (proc / "7/mountinfo").write_text("\n".join(lines[:2]) + "\n")
    assert look(7, proc).file_system == "ext4" and lacks_page_cache(look(7, proc)) is None
    (proc / "meminfo").write_text("MemTotal: 8192000 kB\nMemAvailable: 2048000 kB\n")
    assert host_of(place, proc).available_bytes == 2048000 << 10
    (proc / "spl/kstat/zfs").mkdir(parents=True)
    stats = (
        f"13 1 0x01 147 39984 5 6\nname type data\nsize 4 {3 << 30}\nc_min 4 {1 << 30}\nc_max 4 {4 << 30}\n"
    )
    (proc / "spl/kstat/zfs/arcstats").write_text(stats)
    assert host_of(place, proc).available_bytes == (2048000 << 10) + (2 << 30)


@needs_root
def test_the_file_system_of_a_server_here() -> None:
    with Cluster.create(settings=SETTINGS) as cluster:
        words = ["stat", "-f", "-c", "%T", str(cluster.data_directory)]
        kind = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        found = look(cluster.postmaster_pid).file_system
        # stat(1) cannot tell ext2 from ext4, and has its own name for overlayfs.
        assert found is not None and kind.replace("fs", "")[:3] == found.replace("fs", "")[:3]


@needs_root
@pytest.mark.parametrize("name", ["kubepods-besteffort-pod77.slice", "docker-fedcba9876543210.scope"])
def test_a_host_that_runs_containers_is_not_for_postgresql_alone(name: str) -> None:
    """As a node: what is asked there, without a server, is not to end the kubelet or its pods."""
    with group_in(memory_top()) as above, group_in(above, name=name) as group:
        with subprocess.Popen(["sleep", "60"]) as container:
            (group / "cgroup.procs").write_text(str(container.pid))
            found = json.loads(run("memory", "kernel", "-h", "/nowhere", "--json").stdout)
            container.kill()
        assert not [one for one in found["settings"] if "overcommit" in one["name"]]
