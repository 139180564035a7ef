"""How much memory a place leaves: what the kernel lets a program take there is what is expected."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsweep.doctor import examine as doctor
from pgsweep.host.limits import cached_in
from pgsweep.host.place import look
from pgsweep.pg.private.cluster import Cluster
from pgsweep.units import parse_bytes
from tests.fix_apply import recorded
from tests.fix_cli import run
from tests.fix_doctor import abilities
from tests.fix_hugepages import locked_pages, needs_2mb, start_with
from tests.fix_place import (
    HIDE_CGROUPS,
    OWN_MEMORY_CGROUPS,
    answers,
    children_of,
    group_in,
    joined,
    memory_top,
    move,
    run_inside,
)
from tests.fix_process import needs_root, wait_until

MB = 1 << 20
SETTINGS = {"shared_buffers": "32MB", "max_connections": "50", "autovacuum": "off"}
HOLD = """
import sys, time
open(sys.argv[1], "w").write("0")
held = b"x" * int(sys.argv[2])
print("held", flush=True)
time.sleep(600)
"""
TAKE = """
import sys
open(sys.argv[1], "w").write("0")
open("/proc/self/oom_score_adj", "w").write("1000")  # this one is to be killed
held = []
while True:
    held.append(b"x" * (1 << 20))
    print(len(held), flush=True)
"""
pytestmark = needs_root


def limit(group: Path, size: int) -> None:
    (group / "memory.limit_in_bytes").write_text(str(size))
    # Otherwise the kernel swaps where the host has swap.
    (group / "memory.swappiness").write_text("0")


@contextmanager
def holding(group: Path, size: int) -> Iterator[None]:
    """Let another program hold memory in a group."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(group / "cgroup.procs"), str(size)], stdout=subprocess.PIPE
    ) as sidecar:
        try:
            sidecar_out = sidecar.stdout
            assert sidecar_out is not None
            assert sidecar_out.readline() == b"held\n"
            yield
        finally:
            sidecar.kill()


def taken(group: Path) -> int:
    """Return how much a program can take in a group until the kernel kills it."""
    words = [sys.executable, "-c", TAKE, str(group / "cgroup.procs")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -9
    return int(done.stdout.split()[-1]) * MB


@contextmanager
def a_pod(inner: int | None, outer: int | None) -> Iterator[tuple[Path, Path, Cluster]]:
    """A group with limits, and in it that of a server and that of its sidecar."""
    with (
        Cluster.create(settings=SETTINGS) as cluster,
        group_in(memory_top()) as pod,
        group_in(pod) as server,
        group_in(pod) as other,
    ):
        for group, size in ((server, inner), (pod, outer)):
            if size is not None:
                limit(group, size)
        with joined(cluster, server):
            # What it starts now is counted there.
            cluster.restart({})
            yield server, other, cluster


NAMES = """
import os, sys
open(sys.argv[1], "w").write("0")
for number in range(200_000):
    try:
        os.stat(f"/tmp/pgsweep-{os.getpid()}-is-not-there-{number}")
    except OSError:
        pass
"""
TABLES = """
import mmap, sys, time
open(sys.argv[1], "w").write("0")
held = mmap.mmap(-1, 20_000 << 21, flags=mmap.MAP_PRIVATE | 0x4000)  # MAP_NORESERVE
held.madvise(mmap.MADV_NOHUGEPAGE)
for place in range(0, 20_000 << 21, 1 << 21):
    held[place] = 1
print("held", flush=True)
time.sleep(600)
"""


def test_caches_of_the_kernel_are_given_back_and_page_tables_are_not() -> None:
    """Version 1 does not say what it is for: here 35 MB of names of files, and 80 MB of page tables."""
    with group_in(memory_top()) as group:
        limit(group, 400 * MB)
        procs = str(group / "cgroup.procs")
        subprocess.run([sys.executable, "-c", NAMES, procs], check=True)
        with subprocess.Popen([sys.executable, "-c", TABLES, procs], stdout=subprocess.PIPE) as holds:
            try:
                assert holds.stdout is not None and holds.stdout.readline() == b"held\n"
                room = look(holds.pid).memory.available_bytes
                used = int((group / "memory.usage_in_bytes").read_text())
                cached, shmem = cached_in(group)
                without = 400 * MB - used + cached - shmem
                # The kernel gives up at one time with 229 MB taken, at another with 242.
                most = max(taken(group) for _ in range(3))
            finally:
                holds.kill()
        assert room is not None
        # Some of the caches are counted, at least a fifth of them, and no more than there is.
        assert without + 7 * MB < room < most + 8 * MB


def test_where_memory_ends_the_server_is_not_killed_for_us() -> None:
    """As `kubectl exec` in a pod that is nearly full: a session larger than pgsweep lives on."""
    with a_pod(None, None) as (group, _, cluster), psycopg.connect(cluster.conninfo()) as session:
        session.execute("SET work_mem = '300MB'")
        series = "SELECT n, repeat('x', 300) FROM generate_series(1, 300000) AS n ORDER BY n DESC"
        session.execute(f"DECLARE held CURSOR FOR {series}".encode())
        session.execute("FETCH FROM held")
        cached, shmem = cached_in(group)
        used = int((group / "memory.usage_in_bytes").read_text()) - cached + shmem
        limit(group, used + 16 * MB)
        assert run_inside(["doctor", cluster.conninfo()], group=group).returncode == -9
        assert session.execute("FETCH FROM held").fetchone() is not None


def test_a_pool_larger_than_the_pod_is_killed_when_it_is_used() -> None:
    """The server starts, and nothing happens until pages are read."""
    with a_pod(None, None) as (server, _, cluster):
        cluster.restart({"shared_buffers": "200MB"})
        for size, too_large in ((400 * MB, False), (120 * MB, True)):
            limit(server, size)
            assert ("pool" in abilities(doctor(cluster.conninfo()))) == too_large
        insert = "INSERT INTO t SELECT repeat('x', 900) FROM generate_series(1, 200000)"
        with (
            psycopg.connect(cluster.conninfo(), autocommit=True) as session,
            pytest.raises(psycopg.OperationalError),
        ):
            session.execute("CREATE UNLOGGED TABLE t (x text)")
            session.execute(insert)
        limit(server, 400 * MB)
        wait_until(lambda: answers(cluster), 60)


def test_a_sidecar_takes_of_what_the_pod_may_have() -> None:
    """The server's own limit is the smaller one, but leaves more."""
    with a_pod(400 * MB, 450 * MB) as (server, other, cluster), holding(other, 300 * MB):
        memory = look(cluster.postmaster_pid).memory
        assert (memory.group, memory.limit_bytes) == (str(server.parent), 450 * MB)
        assert memory.available_bytes is not None
        result = json.loads(run("memory", "budget", cluster.conninfo(), "--json").stdout)
        assert result["limit_bytes"] == result["capacity_bytes"] == 450 * MB
        parts = {part["name"]: part for part in result["parts"]}
        assert 295 * MB < parts["everything else"]["now_bytes"] < 330 * MB
        ability = abilities(doctor(cluster.conninfo()))["cgroup"]
        assert ability.available and "limited to 450 MB" in ability.why
        # A program of 10 MB is what takes it.
        assert abs(taken(server) + 8 * MB - memory.available_bytes) < 12 * MB


def test_a_pod_that_was_resized_since_is_advised_for_what_it_has(tmp_path: Path) -> None:
    """As an in-place resize, or the vertical autoscaler: nothing of the memory that has gone is given out."""
    with a_pod(600 * MB, None) as (server, _, cluster):
        cluster.create_extensions("postgres", "pg_buffercache")
        recorded(cluster, tmp_path)
        evidence = str(tmp_path / "e.evidence")
        for size in (600 * MB, 300 * MB):
            limit(server, size)
            advice = json.loads(run("advise", evidence, "-d", cluster.conninfo(), "--json").stdout)
            assert advice["resources"]["memory_bytes"] == size
            assert any("300 MB of memory now" in remark for remark in advice["remarks"]) == (size == 300 * MB)
        fit = []
        for named in ("1GB", "4GB"):
            words = ["advise", evidence, "-d", cluster.conninfo(), "--ram", named, "--json"]
            advice = json.loads(run(*words).stdout)
            assert advice["resources"]["memory_bytes"] == parse_bytes(named)
            reason = next(one["reason"] for one in advice["settings"] if one["name"] == "max_connections")
            fit.append(int(reason.partition(" connections")[0].replace(" ", "")))
        assert fit[0] * 3 < fit[1] < fit[0] * 6


def test_files_on_tmpfs_are_not_taken_back(tmp_path: Path) -> None:
    """WAL, a tablespace or temporary files in an emptyDir of medium Memory count to the pod until removed."""
    with a_pod(400 * MB, None) as (server, _, cluster), ExitStack() as closing:
        subprocess.run(["mount", "-t", "tmpfs", "none", str(tmp_path)], check=True)
        closing.callback(subprocess.run, ["umount", str(tmp_path)], check=True)
        write = f"echo $$ >{server}/cgroup.procs; head -c 150M /dev/zero >{tmp_path}/wal; cat {tmp_path}/wal"
        subprocess.run(["sh", "-c", write], stdout=subprocess.DEVNULL, check=True)
        memory = look(cluster.postmaster_pid).memory
        assert memory.available_bytes is not None and memory.available_bytes < 245 * MB
        assert abs(taken(server) + 8 * MB - memory.available_bytes) < 12 * MB
        result = json.loads(run("memory", "budget", cluster.conninfo(), "--json").stdout)
        [rest] = [part["now_bytes"] for part in result["parts"] if part["name"] == "everything else"]
        assert 145 * MB < rest < 180 * MB


def test_a_limit_above_the_mounted_groups_is_not_known(tmp_path: Path) -> None:
    """As inside of a container: its own group has no limit, and the one above it cannot be seen."""
    with a_pod(None, 200 * MB) as (server, _, cluster):
        inside: dict[str, Any] = {
            "group": server,
            "first": OWN_MEMORY_CGROUPS,
            "namespaces": "--mount --cgroup",
        }
        checks_unknown(cluster, tmp_path, inside, "cannot be seen from here")


def test_a_server_in_another_container_is_not_limited_by_ours(tmp_path: Path) -> None:
    """As in a container for debugging, which sees the server's processes only."""
    with a_pod(200 * MB, None) as (_, other, cluster):
        inside: dict[str, Any] = {
            "group": other,
            "first": OWN_MEMORY_CGROUPS,
            "namespaces": "--mount --cgroup",
        }
        checks_unknown(cluster, tmp_path, inside, "lies outside of those mounted here")


def test_without_a_mount_the_limit_is_not_known(tmp_path: Path) -> None:
    with a_pod(200 * MB, None) as (_, _, cluster):
        checks_unknown(cluster, tmp_path, {"first": HIDE_CGROUPS}, "are mounted here")


def checks_unknown(cluster: Cluster, folder: Path, inside: dict[str, Any], why: str) -> None:
    """Check that no command takes the limit for none, or the host's memory for the server's."""
    target = cluster.conninfo()
    found = json.loads(run_inside(["doctor", target, "--json"], **inside).stdout)
    [ability] = [one for one in found["abilities"] if one["name"] == "cgroup"]
    assert ability["available"] is None
    assert "not known" in ability["why"] and why in ability["why"]
    assert found["host"]["memory_limit_bytes"] is None
    memory = json.loads(run_inside(["memory", target, "--json"], **inside).stdout)
    assert memory["place"]["memory"]["limited"] == "unknown"
    assert any("limits the server" in one["what"] and why in one["why"] for one in memory["missing"])
    budget = run_inside(["memory", "budget", target], **inside)
    assert budget.returncode == 4
    assert why in budget.stderr and "--ram" in budget.stderr
    given = run_inside(["memory", "budget", target, "--ram", "200MB", "--json"], **inside)
    assert given.returncode == 0, given.stderr
    assert json.loads(given.stdout)["capacity_bytes"] == 200 * MB
    words = ["record", target, "--source", "peek", "-o", "x.evidence", "--for", "2s"]
    with psycopg.connect(target, autocommit=True) as session:
        session.execute("CREATE TABLE IF NOT EXISTS t AS SELECT generate_series(1, 100000) AS n")
    recorded = run_inside(words, cwd=folder, **inside)
    assert recorded.returncode == 0, recorded.stderr
    host = json.loads((folder / "x.evidence/meta.json").read_text())["host"]
    assert why in host["memory_unknown"] and "memory_bytes" not in host
    warmed = run_inside(["warm", "plan", target, "--into", "page-cache"], **inside)
    assert warmed.returncode == 2 and why in warmed.stderr


@needs_2mb
def test_shared_memory_in_huge_pages_is_not_charged_to_the_cgroup() -> None:
    """Less than the shared memory suffices: nothing is killed."""
    settings = {**SETTINGS, "shared_buffers": "256MB", "huge_pages": "off"}
    with (
        Cluster.create(settings=settings) as cluster,
        locked_pages() as pages,
        group_in(memory_top()) as group,
    ):
        limit(group, 150 * MB)
        with joined(cluster, group):
            start_with(pages, 160, cluster, {"huge_pages": "on"})
            with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
                session.execute("CREATE TABLE t AS SELECT repeat('x', 900) FROM generate_series(1, 200000)")
                session.execute("SELECT count(*) FROM t")
            result = json.loads(run("memory", "budget", cluster.conninfo(), "--json").stdout)
            assert result["capacity_bytes"] == 150 * MB
            assert result["verdict"] != "will be killed"
            [shared] = [part for part in result["parts"] if part["name"] == "shared memory"]
            assert (shared["now_bytes"], shared["high_bytes"]) == (0, 0)
            assert "does not count" in shared["why"]
            cluster.restart({"huge_pages": "off"})


def test_inside_of_lxc_the_memory_is_what_lxcfs_says(tmp_path: Path) -> None:
    """lxcfs mounts a file over /proc/meminfo, which says the limit of all groups above."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    told = {"MemTotal": 500 << 10, "MemFree": 200 << 10, "MemAvailable": 300 << 10, "Cached": 100 << 10}
    file = tmp_path / "meminfo"
    file.write_text(
        "".join(
            f"{name}: {told.get(name, rest)} kB\n" if name in told else f"{name}:{rest}\n"
            for name, _, rest in (line.partition(":") for line in lines)
        )
    )
    with a_pod(None, None) as (_, _, cluster):
        inside: dict[str, Any] = {"first": f"{HIDE_CGROUPS} && mount --bind {file} /proc/meminfo"}
        found = json.loads(run_inside(["doctor", cluster.conninfo(), "--json"], **inside).stdout)
        assert found["host"]["memory_bytes"] == 500 * MB
        assert "500 MB" in found["host"]["machine"]
        [ability] = [one for one in found["abilities"] if one["name"] == "cgroup"]
        assert "lxcfs says that the server may use 500 MB" in ability["why"]
        words = ["memory", "budget", cluster.conninfo(), "--json"]
        budget = json.loads(run_inside(words, **inside).stdout)
        assert budget["capacity_bytes"] == 500 * MB
        assert budget["place"]["kind"] == "lxc"


def test_a_limit_on_processes_is_one_on_connections() -> None:
    """As podPidsLimit, docker run --pids-limit or TasksMax: connections until the server cannot fork."""
    tops = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup")]
    top = next((one for one in tops if (one / "cgroup.procs").exists()), None)
    if top is None:
        pytest.skip("no cgroups of processes are mounted")
    with Cluster.create(settings=SETTINGS) as cluster, group_in(top) as group:
        pid = cluster.postmaster_pid
        assert pid is not None
        if not (group / "pids.max").exists():
            pytest.skip("the pids controller is not in use there")
        move([pid, *children_of(pid)], group)
        allowed = 14 + int((group / "pids.current").read_text())
        (group / "pids.max").write_text(str(allowed))
        said = json.loads(run("memory", "budget", "-d", cluster.conninfo(), "--json").stdout)
        assert said["verdict"] == "tight" and said["place"]["process_limit"] == allowed
        assert "processes" in abilities(doctor(cluster.conninfo()))
        opened = 0
        with ExitStack() as held:
            with pytest.raises(psycopg.OperationalError, match="could not fork new process"):
                while opened < 20:
                    held.enter_context(psycopg.connect(cluster.conninfo()))
                    opened += 1
            # What the server itself starts meanwhile, as a worker of its I/O, is one of them.
            assert said["possible_connections"] - 2 <= opened <= said["possible_connections"]
