"""What huge pages a place allows: the server starts with so many, and not with one fewer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from pgsweep.advice.huge_pages import advise_huge_pages
from pgsweep.commands import sudo
from pgsweep.doctor import examine as doctor
from pgsweep.errors import ClusterError
from pgsweep.host.hugepages import pool_file
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.hugepages import HugePagesResult
from tests.fix_advice import growing
from tests.fix_cli import run
from tests.fix_doctor import abilities
from tests.fix_hugepages import PAGE, give, locked_pages, needs_2mb, start_with
from tests.fix_place import group_in, joined, mounted_v1
from tests.fix_process import needs_root

SETTINGS = {"shared_buffers": "16MB", "max_connections": "20", "huge_pages": "off"}
pytestmark = [needs_root, needs_2mb]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Path]:
    """A hugetlb cgroup of version 1, as a pod's, with room for containers below it."""
    with mounted_v1("hugetlb", tmp_path) as top, group_in(top) as group:
        yield group


def limit_file(group: Path, kind: str) -> Path:
    return group / f"hugetlb.2MB{kind}.limit_in_bytes"


def texts(result: HugePagesResult) -> str:
    return " ".join([*result.reasons, *(step.text for step in result.steps)])


@pytest.mark.parametrize("kind", [".rsvd", ""])
def test_a_limit_of_one_page_too_few(pod: Path, kind: str, bindir: Path | None) -> None:
    """Where the kernel refuses to map, or kills at the first touch, neither pages nor `on` are advised."""
    with Cluster.create(bindir, SETTINGS) as cluster, joined(cluster, pod):
        needed = examine(cluster.conninfo()).huge_pages_needed or 0
        limit_file(pod, kind).write_text(str((needed - 1) * PAGE))
        with locked_pages() as pages:
            give(pages, needed + 5)
            result = examine(cluster.conninfo())
            assert result.allowed_pages == needed - 1
            # The hierarchy may be mounted in several places.
            bound = Path(result.binding_limit or "")
            assert bound.samefile(limit_file(pod, kind))
            assert "ALTER SYSTEM" not in texts(result) and "sysctl" not in texts(result)
            assert f"echo {needed * PAGE} | {sudo()}tee {bound}" in texts(result)
            assert ("SIGBUS" in texts(result)) == ("does not start" not in texts(result)) == (kind == "")
            found = abilities(doctor(cluster.conninfo()))["huge_pages"]
            assert found.enable is None
            assert f"{pod.name}/{bound.name} allows" in found.why
            assert "restart the server with huge_pages = on" not in found.why
            before = pages.pool().persistent
            done = run("hugepages", cluster.conninfo(), "--apply", "--yes", "--shared-buffers", "24MB")
            assert done.returncode == 1
            assert bound.name in done.stderr
            assert pages.pool().persistent == before
            if kind:
                # With a limit on what is reserved the outcome is certain; below the other one a server lives
                # that touches less.
                with pytest.raises(ClusterError, match="start"):
                    cluster.restart({"huge_pages": "on"})
            limit_file(pod, kind).write_text(str(needed * PAGE))
            start_with(pages, needed + 5, cluster, {"huge_pages": "on"})
            after = examine(cluster.conninfo())
            # What it has itself is not in its way at the next start.
            assert (after.status, after.allowed_pages) == ("on", needed)
            assert "hugetlb" not in texts(after)
            cluster.restart({"huge_pages": "off"})


@pytest.mark.parametrize("pod_name", ["kubepods-burstable-pod9.slice", "plain"])
def test_a_node_counts_its_pages_when_the_kubelet_starts(pod: Path, pod_name: str) -> None:
    """And a pod has no unit in which to set pages aside."""
    with (
        Cluster.create(settings=SETTINGS) as cluster,
        group_in(pod, name=pod_name) as group,
        joined(cluster, group),
    ):
        steps = {step.what for step in examine(cluster.conninfo()).steps}
    assert ("kubelet" in steps) == ("systemd" not in steps) == (pod_name != "plain")


def test_initdb_is_killed_before_there_is_a_server(pod: Path, tmp_path: Path, bindir: Path | None) -> None:
    """The pod may have no huge pages, and its host has some: what is said helps."""
    limit_file(pod, "").write_text("0")
    with Cluster.create(bindir, SETTINGS, start=False) as cluster, locked_pages() as pages:
        give(pages, 120)
        user = cluster._user

        def initdb(name: str, *options: str) -> subprocess.CompletedProcess[str]:
            folder = Path(tempfile.mkdtemp())
            os.chown(folder, user.uid, user.gid)
            join = f'echo $$ >{pod}/cgroup.procs; exec setpriv --reuid {user.uid} --clear-groups "$@"'
            program = [str(cluster._bindir / "initdb"), "-D", str(folder), "-A", "trust", *options]
            done = subprocess.run(
                ["sh", "-c", join, "sh", *program],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            shutil.rmtree(folder)
            (tmp_path / name).write_text(done.stdout)
            return done

        assert initdb("killed").returncode != 0
        result = json.loads(run("hugepages", "--log", str(tmp_path / "killed"), "--json").stdout)
        assert "SIGBUS" in result["reasons"][0] and "-c huge_pages=off" in result["reasons"][1]
        if cluster.version_num >= 160000:
            assert initdb("well", "-c", "huge_pages=off").returncode == 0
            assert run("hugepages", "--log", str(tmp_path / "well")).returncode == 1


def test_a_neighbour_in_the_pod_takes_of_what_is_allowed(pod: Path) -> None:
    """The limit of the pod is large enough; what its other container has reserved leaves too little."""
    with ExitStack() as closing:
        first, second = (closing.enter_context(Cluster.create(settings=SETTINGS)) for _ in range(2))
        for cluster in (first, second):
            closing.enter_context(joined(cluster, closing.enter_context(group_in(pod))))
        needed = examine(first.conninfo()).huge_pages_needed or 0
        pages = closing.enter_context(locked_pages())
        start_with(pages, 2 * needed + 5, second, {"huge_pages": "on"})
        limit_file(pod, ".rsvd").write_text(str((2 * needed - 1) * PAGE))
        result = examine(first.conninfo())
        assert result.allowed_pages == needed - 1
        assert "ALTER SYSTEM" not in texts(result)
        with pytest.raises(ClusterError):
            first.restart({"huge_pages": "on"})
        limit_file(pod, ".rsvd").write_text(str(2 * needed * PAGE))
        assert examine(second.conninfo()).allowed_pages == 2 * needed
        first.restart({"huge_pages": "on"})
        assert examine(first.conninfo()).status == "on"
        assert examine(second.conninfo()).allowed_pages == needed
        for cluster in (first, second):
            cluster.restart({"huge_pages": "off"})


def test_shared_memory_of_system_v_is_never_in_huge_pages(bindir: Path | None) -> None:
    settings = {**SETTINGS, "huge_pages": "try", "shared_memory_type": "sysv"}
    with Cluster.create(bindir, settings) as cluster, locked_pages() as pages:
        result = examine(cluster.conninfo())
        assert result.status == "off"
        assert "shared_memory_type is sysv" in result.reasons[0]
        assert "too few" not in texts(result)
        assert [step.text for step in result.steps] == ["ALTER SYSTEM SET shared_memory_type = mmap"]
        # The size of its segment is seen in the memory of the server, and of its processes.
        with psycopg.connect(cluster.conninfo()) as session:
            [allocated] = session.execute(
                "SELECT sum(allocated_size) FROM pg_shmem_allocations"
            ).fetchone() or [0]
        assert result.shared_memory_bytes == allocated
        memory = json.loads(run("memory", cluster.conninfo(), "--json").stdout)
        assert memory["huge_pages"] is False
        assert 0 <= memory["totals"]["shared_memory_size_bytes"] - allocated < 4096
        give(pages, (result.huge_pages_needed or 0) + 5)
        found = abilities(doctor(cluster.conninfo()))["huge_pages"]
        assert "shared_memory_type is sysv" in found.why and "restart" not in found.why
        done = run("hugepages", cluster.conninfo(), "--apply", "--yes")
        assert done.returncode == 1 and "no use" in done.stderr
        if cluster.version_num >= 140000:
            with pytest.raises(ClusterError) as refused:
                cluster.restart({"huge_pages": "on"})
            assert "shared_memory_type" in (refused.value.cause or "")
        first_step = {"shared_memory_type": "mmap", "huge_pages": "on"}
        start_with(pages, (result.huge_pages_needed or 0) + 5, cluster, first_step)
        assert examine(cluster.conninfo()).status == "on"
        cluster.restart({"huge_pages": "off"})


@pytest.fixture
def overcommit() -> Iterator[Path]:
    """The file of how many surplus pages the kernel may make; what it said is put back."""
    file = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages")
    before = file.read_text()
    try:
        yield file
    finally:
        file.write_text(before)


def test_surplus_pages_are_not_set_aside(overcommit: Path) -> None:
    """They are gone when the server has stopped: none are set aside, and all are to be for its next start."""
    with Cluster.create(settings=SETTINGS) as cluster, locked_pages() as pages:
        needed = examine(cluster.conninfo()).huge_pages_needed or 0
        assert pages.make_available(0)
        kept = pages.pool().persistent
        overcommit.write_text(str(needed + 5))
        cluster.restart({"huge_pages": "on"})
        result = examine(cluster.conninfo())
        assert result.status == "on"
        pool = next(p for p in result.pools if p.is_default)
        assert pool.surplus >= needed and pool.total - pool.surplus == kept
        assert result.target == kept + needed
        # The kernel makes them again, if it finds the memory; with a lower number it does not.
        assert abilities(doctor(cluster.conninfo()))["huge_pages"].available is True
        overcommit.write_text(str(needed - 1))
        assert abilities(doctor(cluster.conninfo()))["huge_pages"].available is False
        overcommit.write_text(str(needed + 5))
        setting = next(
            one
            for one in advise_huge_pages(replace(growing(), huge_pages=result), 0)
            if one.name == "vm.nr_hugepages"
        )
        assert (setting.today, setting.undo) == (str(kept), f"{sudo()}sysctl -w vm.nr_hugepages={kept}")
        cluster.restart({"huge_pages": "off"})
        found = abilities(doctor(cluster.conninfo()))["huge_pages"]
        assert f"the kernel has {kept} of 2 MB set aside" in found.why
        assert found.enable == f"{sudo()}sysctl -w vm.nr_hugepages={kept + needed}"


def test_surplus_pages_that_the_kernel_does_not_make_again_do_not_suffice(bindir: Path | None) -> None:
    """The number was lowered below a running server's: it has its pages, and its next start finds none."""
    with Cluster.create(bindir, {**SETTINGS, "huge_pages": "off"}) as cluster, locked_pages() as pages:
        needed = examine(cluster.conninfo()).huge_pages_needed or 0
        start_with(pages, needed, cluster, {"huge_pages": "on"})
        enough = examine(cluster.conninfo())
        assert (enough.too_few, enough.steps) == (0, [])
        assert abilities(doctor(cluster.conninfo()))["huge_pages"].available is True
        pool_file(PAGE).write_text(str(pages.pool().persistent - needed))
        result = examine(cluster.conninfo())
        assert (result.status, result.own_pages, result.after_stop, result.too_few) == (
            "on",
            needed,
            0,
            needed,
        )
        kept = pages.pool().persistent
        assert result.target == kept + needed and any(
            str(result.target) in step.text for step in result.steps
        )
        [_, setting] = advise_huge_pages(replace(growing(), huge_pages=result), growing().today_bytes)
        assert (setting.name, setting.value) == ("vm.nr_hugepages", str(kept + needed))
        found = abilities(doctor(cluster.conninfo()))["huge_pages"]
        assert (found.available, found.enable) == (
            False,
            f"{sudo()}sysctl -w vm.nr_hugepages={kept + needed}",
        )
        with pytest.raises(ClusterError):
            cluster.restart({"huge_pages": "on"})
        start_with(pages, needed, cluster, {"huge_pages": "on"})
        cluster.restart({"huge_pages": "off"})


def test_a_budget_for_more_connections_counts_the_missing_pages(bindir: Path | None) -> None:
    with Cluster.create(bindir, {**SETTINGS, "huge_pages": "off"}) as cluster, locked_pages() as pages:
        needed = examine(cluster.conninfo()).huge_pages_needed or 0
        start_with(pages, needed, cluster, {"huge_pages": "on"})
        done = run("memory", "budget", cluster.conninfo(), "--max-connections", "500", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        missing = result["missing_huge_pages"]
        assert missing > 0
        assert f"{missing} more huge pages" in result["reasons"][0]
        assert "the server does not start" in result["reasons"][0]
        cluster.restart({"huge_pages": "off"})
        more = {"huge_pages": "on", "max_connections": "500"}
        give(pages, needed + missing - 1)
        with pytest.raises(ClusterError):
            cluster.restart(more)
        start_with(pages, needed + missing, cluster, more)
        done = run("memory", "budget", cluster.conninfo(), "--max-connections", "400", "--json")
        assert json.loads(done.stdout)["missing_huge_pages"] == 0
        cluster.restart({"huge_pages": "off"})
