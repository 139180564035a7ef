"""What the page cache may be given where memory cgroups limit it: the server's, and our own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg

from pgsweep.host import cgroup
from pgsweep.host.limits import MemoryRoom, are_killed_together, memory_limits, page_cache_room, swap_allowed
from pgsweep.host.procfile import read_host_memory
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.warm import WarmBudget, WarmResult
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json
from pgsweep.ui.views.warm import warm_text
from pgsweep.warm.capacity import page_cache_budget
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.warming import plan, run
from tests.fix_cli import PGSWEEP
from tests.fix_memory import host
from tests.fix_process import needs_cgroup
from tests.fix_warm import drop_files

MB = 1 << 20


def captured(folder: Path, kind: str, options: str, paths: str) -> Path:
    """Return a /proc whose process 7 is in the groups that `paths` says."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/7").mkdir()
    (folder / "proc/self/mountinfo").write_text(f"30 1 0:26 / {folder}/mount rw - {kind} cgroup {options}\n")
    (folder / "proc/7/cgroup").write_text(paths)
    return folder / "proc"


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").touch()
    for name, text in files.items():
        (folder / name.replace("_dot_", ".")).write_text(text)


def test_the_group_with_least_room_counts_version_2(tmp_path: Path) -> None:
    proc = captured(tmp_path, "cgroup2", "rw", "0::/pg.slice/one.service\n")
    slice_ = tmp_path / "mount/pg.slice"
    stat = f"anon 5\nfile {300 * MB}\nshmem {100 * MB}\n"
    group(slice_, memory_dot_max=f"{900 * MB}\n", memory_dot_current=f"{800 * MB}\n", memory_dot_stat=stat)
    own = slice_ / "one.service"
    group(own, memory_dot_max="max\n", memory_dot_current=f"{200 * MB}\n", memory_dot_stat=stat)
    assert page_cache_room(7, proc) == MemoryRoom(slice_, 900 * MB, 800 * MB, 300 * MB, 200 * MB, 100 * MB)
    # The soft limit throttles and reclaims as well.
    (own / "memory.high").write_text(f"{250 * MB}\n")
    assert page_cache_room(7, proc) == MemoryRoom(
        own, 250 * MB, 200 * MB, 250 * MB, 200 * MB, 100 * MB, throttles=True
    )
    (own / "memory.high").write_text("max\n")
    (slice_ / "memory.max").write_text("max\n")
    assert page_cache_room(7, proc) is None


def test_names_of_files_are_dropped_and_processes_killed_together_version_2(tmp_path: Path) -> None:
    """What stat(2) of many files leaves counts to the group, and goes before anything is killed."""
    proc = captured(tmp_path, "cgroup2", "rw", "0::/pod/server\n")
    stat = f"anon 5\nfile 0\nshmem 0\nslab_reclaimable {300 * MB}\nslab_unreclaimable {50 * MB}\n"
    files = {"memory_dot_max": f"{900 * MB}\n", "memory_dot_current": f"{800 * MB}\n"}
    group(tmp_path / "mount/pod", **files, memory_dot_stat=stat)
    group(tmp_path / "mount/pod/server", memory_dot_oom_dot_group="0\n")
    hard = memory_limits(7, proc).hard
    assert hard is not None and hard.available_bytes == 400 * MB
    assert not are_killed_together(7, proc)
    (tmp_path / "mount/pod/memory.oom.group").write_text("1\n")
    assert are_killed_together(7, proc)


def test_what_a_group_swaps_before_it_is_killed(tmp_path: Path) -> None:
    """MemorySwapMax of a unit, --memory-swap of a container; the least of all groups above counts."""
    proc = captured(tmp_path / "2", "cgroup2", "rw", "0::/pg.slice/one.service\n")
    above, own = tmp_path / "2/mount/pg.slice", tmp_path / "2/mount/pg.slice/one.service"
    group(above, memory_dot_swap_dot_max=f"{500 * MB}\n", memory_dot_swap_dot_current=f"{450 * MB}\n")
    group(own, memory_dot_swap_dot_max="max\n", memory_dot_swap_dot_current=f"{10 * MB}\n")
    assert (swap_allowed(7, 900 * MB, proc), swap_allowed(7, 20 * MB, proc)) == (50 * MB, 20 * MB)
    (own / "memory.swap.max").write_text("0\n")
    assert swap_allowed(7, 900 * MB, proc) == 0
    proc = captured(tmp_path / "1", "cgroup", "rw,memory", "4:memory:/pg\n")
    own = tmp_path / "1/mount/pg"
    group(own, memory_dot_limit_in_bytes=f"{200 * MB}", memory_dot_usage_in_bytes=f"{150 * MB}")
    assert swap_allowed(7, 900 * MB, proc) == 900 * MB
    (own / "memory.memsw.limit_in_bytes").write_text(f"{300 * MB}")
    (own / "memory.memsw.usage_in_bytes").write_text(f"{180 * MB}")
    assert swap_allowed(7, 900 * MB, proc) == 70 * MB
    (own / "memory.swappiness").write_text("0")
    assert swap_allowed(7, 900 * MB, proc) == 0


def test_the_group_with_least_room_counts_version_1(tmp_path: Path) -> None:
    proc = captured(tmp_path, "cgroup", "rw,memory", "4:memory:/pg\n3:cpu:/\n")
    stat = f"cache 1\nshmem 1\ntotal_cache {30 * MB}\ntotal_shmem {10 * MB}\n"
    files = {"memory_dot_limit_in_bytes": f"{100 * MB}", "memory_dot_usage_in_bytes": f"{90 * MB}"}
    group(tmp_path / "mount/pg", **files, memory_dot_stat=stat)
    assert page_cache_room(7, proc) == MemoryRoom(
        tmp_path / "mount/pg", 100 * MB, 90 * MB, 30 * MB, 20 * MB, 10 * MB
    )
    (tmp_path / "mount/pg/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert page_cache_room(7, proc) is None


def room(available: int, shmem: int = 0) -> MemoryRoom:
    return MemoryRoom(Path("/group"), 2000 * MB, 0, available, 0, shmem)


def budget(server: MemoryRoom | None, reader: MemoryRoom | None, given: int | None = None) -> WarmBudget:
    return page_cache_budget(
        host(10_000 * MB, shmem=1000 * MB), 1000 * MB, given, server=server, reader=reader
    )


def test_the_smallest_room_is_the_budget_and_says_whose_it_is() -> None:
    assert budget(None, None).holds_why == "available on the host"
    ours = budget(room(1000 * MB, 400 * MB), None)
    assert ours.budget_bytes == (1000 - 600 - 100) * MB
    assert ours.holds_why == "left by the limit of 1.95 GB of the memory cgroup the server is in, /group"
    reads = budget(room(9000 * MB, 1000 * MB), room(100 * MB))
    assert reads.budget_bytes == 90 * MB
    assert "pgsweep is in" in reads.holds_why
    assert budget(room(50 * MB), None).budget_bytes == 0
    given = budget(None, room(100 * MB), 10 * MB)
    assert (given.budget_bytes, given.reserve_bytes, given.reserve_why) == (10 * MB, 90 * MB, "by --budget")


@needs_cgroup
def test_a_server_in_a_cgroup_gets_no_more_than_its_group_holds() -> None:
    settings = {"shared_buffers": "16MB", "autovacuum": "off", "huge_pages": "off"}
    with Cluster.create(settings=settings, memory_limit_bytes=160 * MB) as cluster:
        conninfo = cluster.conninfo()
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_prewarm")
            connection.execute(
                "CREATE TABLE big AS SELECT repeat('x', 1900) AS x FROM generate_series(1, 80000)"
            )
            connection.execute("CHECKPOINT")
        big = WarmOptions(selection=Selection(relations=["big"]), into="page-cache")
        result = plan(conninfo, big, assumed_bytes_per_second=1e8)
        [budget] = result.budgets
        group = cluster.memory_cgroup
        assert group is not None
        assert budget.holds_bytes is not None
        # Less the server's private memory and its pool.
        assert 100 * MB < budget.holds_bytes < 160 * MB
        assert 80 * MB < budget.planned_bytes <= budget.budget_bytes < 150 * MB
        assert budget.holds_why == (
            f"left by the limit of 160 MB of the memory cgroup the server is in, {group.path}"
        )
        assert result.left_out_bytes > 0
        assert "Statistics do not say which blocks" in warm_text(result, Terminal())
        assert budget.holds_why in " ".join(warm_text(result, Terminal()).split())
        # Read through the server the pages are its group's, and what was planned stays, but for what the
        # kernel takes from the wrong end at the limit, where write-ahead log lies in the group too.
        drop_files(cluster, conninfo, "big")
        done = run(conninfo, WarmOptions(selection=big.selection, into="page-cache", mode="read"))
        assert done.verified is not None
        assert group.usage_bytes() <= 160 * MB
        assert (done.verified.page_cache_bytes or 0) > 0.85 * done.asked_bytes


@needs_cgroup
def test_our_own_cgroup_counts_where_we_read_past_the_server(wheel18: Cluster) -> None:
    own = cgroup.plan()
    own.make(200 * MB)
    try:
        words = [
            "warm",
            "plan",
            "--into",
            "page-cache",
            "--assume-rate",
            "1GB",
            "--json",
            "-d",
            wheel18.conninfo(),
        ]
        script = 'echo 0 > "$1"; shift; exec "$@"'
        out = subprocess.run(
            ["sh", "-c", script, "sh", str(own.procs_file), PGSWEEP, *words], capture_output=True, check=True
        ).stdout
    finally:
        own.remove()
    result = from_json(out, "stdout")
    assert isinstance(result, WarmResult)
    assert result.mode == "kernel"
    [budget] = result.budgets
    assert budget.budget_bytes < 200 * MB < (read_host_memory().available or 0)
    assert budget.holds_why.endswith(f"pgsweep is in, {own.path}")
