"""What recordings on the server's host keep of its memory and of its disk reads, against real servers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pgsweep._native import drop_page_cache, page_cache
from pgsweep.evidence.disk_latency import latencies_of
from pgsweep.evidence.host_memory import facts_at_end, memory_counters, memory_facts
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.store import Evidence
from pgsweep.host import cgroup, server_memory
from pgsweep.host.group_tree import Groups, groups_of
from pgsweep.host.limits import (
    counts_huge_pages,
    is_in_group,
    processors_allowed,
    read_bytes_of_group,
    reads_are_limited,
)
from pgsweep.host.processor_time import server_processors
from pgsweep.host.server_memory import neighbours, read_server_memory
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from tests.fix_cli import run
from tests.fix_hugepages import locked_pages, needs_2mb, start_with
from tests.fix_process import needs_cgroup, needs_root
from tests.fix_recording import RECORDERS, Recorder, WhenRecording

MB = 1 << 20


def values_of(evidence: Evidence, name: str) -> list[float]:
    table = evidence.table("counters")
    rows = (table["scope"] == "host") & (table["name"] == name)
    return [float(value) for value in table["value"][rows]]


def run_sql(cluster: Cluster, statement: str) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(statement.encode())


@needs_root
@RECORDERS
def test_snapshots_on_the_host_count_what_a_trace_counts(
    record: Recorder, wheel18: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "x.evidence"
    record(wheel18.conninfo(), path, seconds=2)
    evidence = Evidence.open(path)
    for name in ("disk_read_bytes", "server_cpu_seconds", "host_cpu_seconds", "workingset_refault_file"):
        begin, end = values_of(evidence, name)
        assert begin <= end, name
    # Not at times of their own, which would count as samples of the server's counters.
    counters = evidence.table("counters")
    times = [counters["seconds"][counters["scope"] == scope] for scope in ("database", "host")]
    assert times[0].min() == times[1].min()
    assert len(np.unique(times[1])) == 2
    host = evidence.meta.host
    assert host["disk_reads_from"].split(" and ")[0] == "processes"
    assert "not_counted" not in host
    assert MemoryFacts.of(evidence.meta) is not None
    assert int(host["data_cached_bytes"]) > MB < int(host["data_cached_end_bytes"])
    counted = page_cache([])["method"] == "cachestat"
    for name in ("dirty", "writeback", "recently_evicted"):
        for when in ("", "_end"):
            assert (f"data_{name}{when}_bytes" in host) == counted
    # Reads are timed from the memory, not by the way that says to use nothing but SQL.
    assert ("copy_nanoseconds" in host) == (evidence.meta.source == "peek")


@needs_root
def test_dry_runs_state_the_reads_that_are_timed(wheel18: Cluster, tmp_path: Path) -> None:
    texts = {}
    for source in ("sql", "peek", "trace"):
        done = run("record", wheel18.conninfo(), "--source", source, "-n", "--json", cwd=tmp_path)
        if source == "trace" and done.returncode == 4:
            pytest.skip("nothing can be traced here")
        assert done.returncode == 0, done.stderr
        texts[source] = {
            step["what"]: step["when"] + step["text"] for step in json.loads(done.stdout)["steps"]
        }
    assert "disk reads" in texts["sql"] and "cold reads" not in texts["sql"]
    for source in ("peek", "trace"):
        assert "pread of up to 200 blocks" in texts[source]["cold reads"]
        assert "POSIX_FADV_DONTNEED" in texts[source]["cold reads"]
    # Only from a trace the throughput is predicted.
    assert (
        "O_DIRECT" in texts["trace"]["disk latency"] and "a second at most" in texts["trace"]["disk latency"]
    )
    assert "disk latency" not in texts["peek"]
    assert "every 0.5 seconds" in texts["trace"]["copies"]
    assert "every" not in texts["peek"]["copies"]


def test_what_may_not_be_read_is_named(wheel18: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for another user's server: /proc/PID/io is refused, and there is no file of refaults."""
    assert wheel18.postmaster_pid is not None
    monkeypatch.setattr("pgsweep.evidence.host_memory.disk_read_bytes", lambda _pid: None)
    monkeypatch.setattr(server_memory, "_REFAULTS", ("no_such_counter",))
    kept = memory_facts(wheel18.postmaster_pid, wheel18.version_num, 8192, timed=False)
    assert kept["disk_reads_from"] in ("nothing", "cgroup")
    assert f"/proc/{wheel18.postmaster_pid}/io may not be read" in kept["not_counted"]
    assert "which pages came back" in kept["not_counted"]
    names = {counter.name for counter in memory_counters(wheel18.postmaster_pid)}
    assert "disk_read_bytes" not in names and "server_cpu_seconds" in names


@needs_root
def test_a_trace_keeps_the_latency_of_the_disk_by_depth(wheel18: Cluster) -> None:
    pid = wheel18.postmaster_pid
    assert pid is not None
    run_sql(wheel18, "CREATE TABLE latency AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
    run_sql(wheel18, "CHECKPOINT")
    try:
        files = [file for file in (wheel18.data_directory / "base").glob("*/*") if file.is_file()]
        for file in files:
            with file.open("rb") as opened:  # the server has fsync off
                os.fsync(opened.fileno())
        # A disk that others keep busy may answer hardly any read for some seconds; the evidence says so then.
        for _ in range(10):
            drop_page_cache(files)
            kept = memory_facts(pid, wheel18.version_num, 8192, depths=True)
            found, why = latencies_of(kept)
            if "reads came back" not in why or len(found) > 1:
                break
    finally:
        run_sql(wheel18, "DROP TABLE latency")
    if "O_DIRECT" in why or "cgroup" in why:
        pytest.skip(why)
    assert [one.depth for one in found][:2] == [1, 2], why
    assert all(1e-6 < one.seconds < 1 and one.reads >= 3 for one in found)
    # Where not all depths were tried, the evidence says why.
    assert (len(found) < 6) == ("disk_latency_not_measured" in kept)
    assert "disk_latency_by_depth" not in memory_facts(pid, wheel18.version_num, 8192)


def test_the_end_of_a_server_leaves_no_facts(wheel18: Cluster) -> None:
    assert facts_at_end(2**22 + 1, wheel18.version_num, 8192) == {}


def captured(folder: Path, kind: str, options: str, groups: str) -> tuple[Path, Path, Path]:
    """Return a /proc whose process 7 is in these groups, the folder of the mount, and a /sys."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/7").mkdir()
    (folder / "proc/self/mountinfo").write_text(f"30 1 0:26 / {folder}/mount rw - {kind} cgroup {options}\n")
    (folder / "proc/7/cgroup").write_text(groups)
    # 253:0 lies on 8:0.
    (folder / "sys/dev/block/253:0/slaves/sda").mkdir(parents=True)
    (folder / "sys/dev/block/8:0/slaves").mkdir(parents=True)
    return folder / "proc", folder / "mount", folder / "sys"


def test_a_cgroup_counts_each_read_once(tmp_path: Path) -> None:
    proc, mount, sys = captured(tmp_path / "v2", "cgroup2", "rw", "0::/pg\n")
    (mount / "pg").mkdir(parents=True)
    (mount / "pg/cgroup.procs").touch()
    assert read_bytes_of_group(7, proc, sys) is None
    lines = ["8:0 rbytes=4096 wbytes=7 rios=1", "8:16 rbytes=8192 wbytes=0 rios=2", "253:0 rbytes=4096"]
    (mount / "pg/io.stat").write_text("\n".join(lines) + "\n")
    assert read_bytes_of_group(7, proc, sys) == 12_288
    proc, mount, sys = captured(tmp_path / "v1", "cgroup", "rw,blkio", "7:blkio:/pg\n0::/\n")
    (mount / "pg").mkdir(parents=True)
    (mount / "pg/cgroup.procs").touch()
    file = mount / "pg/blkio.throttle.io_service_bytes_recursive"
    file.write_text("8:0 Read 4096\n8:0 Write 5\n8:0 Total 4101\n253:0 Read 4096\nTotal 8197\n")
    assert read_bytes_of_group(7, proc, sys) == 4096
    # Where blkio has no device, it counts nothing.
    file.write_text("Total 0\n")
    assert read_bytes_of_group(7, proc, sys) is None


def test_the_smallest_quota_of_processors_counts(tmp_path: Path) -> None:
    proc, mount, _ = captured(tmp_path / "v2", "cgroup2", "rw,memory_hugetlb_accounting", "0::/pg/inner\n")
    (mount / "pg/inner").mkdir(parents=True)
    (mount / "pg/inner/cgroup.procs").touch()
    assert processors_allowed(7, proc) is None
    (mount / "pg/cpu.max").write_text("150000 100000\n")
    (mount / "pg/inner/cpu.max").write_text("max 100000\n")
    assert processors_allowed(7, proc) == 1.5
    (mount / "pg/inner/cpu.max").write_text("50000 100000\n")
    assert processors_allowed(7, proc) == 0.5
    assert counts_huge_pages(proc)
    proc, mount, _ = captured(tmp_path / "v1", "cgroup", "rw,cpu", "1:cpu:/pg\n0::/\n")
    (mount / "pg").mkdir(parents=True)
    (mount / "pg/cgroup.procs").touch()
    (mount / "pg/cpu.cfs_period_us").write_text("100000\n")
    (mount / "pg/cpu.cfs_quota_us").write_text("-1\n")
    assert processors_allowed(7, proc) is None
    (mount / "pg/cpu.cfs_quota_us").write_text("250000\n")
    assert processors_allowed(7, proc) == 2.5
    assert not counts_huge_pages(proc)


@needs_root
def test_a_server_bound_to_a_processor_has_that_one(wheel18: Cluster) -> None:
    pid = wheel18.postmaster_pid
    assert pid is not None
    mask = os.sched_getaffinity(pid)
    assert float(memory_facts(pid, wheel18.version_num, 8192)["server_processors"]) <= len(mask)
    os.sched_setaffinity(pid, {min(mask)})
    try:
        assert server_processors(pid) <= 1
        assert float(memory_facts(pid, wheel18.version_num, 8192)["server_processors"]) <= 1
    finally:
        os.sched_setaffinity(pid, mask)


@needs_root
@needs_2mb
@needs_cgroup
def test_huge_pages_take_nothing_of_a_memory_cgroup() -> None:
    settings = {"shared_buffers": "64MB", "huge_pages": "off"}
    with locked_pages() as pages, Cluster.create(None, settings, memory_limit_bytes=256 * MB) as cluster:
        start_with(pages, 60, cluster, {"huge_pages": "on"})
        pid = cluster.postmaster_pid
        assert pid is not None
        memory = read_server_memory(pid)
        kept = memory_facts(pid, cluster.version_num, 8192)
    assert memory.from_cgroup
    assert memory.huge_pages
    assert not memory.huge_pages_counted
    # All of the pool, of which hardly anything was touched; none of it is in what others hold.
    assert memory.shared_memory_bytes > 64 * MB
    assert memory.other_bytes < 64 * MB
    assert kept["huge_pages_counted"] == "off"


def test_limits_of_what_a_cgroup_reads_are_seen(tmp_path: Path) -> None:
    proc, mount, _ = captured(tmp_path / "v2", "cgroup2", "rw", "0::/pg/inner\n")
    (mount / "pg/inner").mkdir(parents=True)
    (mount / "pg/inner/cgroup.procs").touch()
    assert not reads_are_limited(7, proc)
    for text, limited in (("", False), ("8:0 rbps=max wbps=1048576 riops=max wiops=max", False)):
        (mount / "pg/io.max").write_text(text)
        assert reads_are_limited(7, proc) is limited
    (mount / "pg/io.max").write_text("8:0 rbps=max wbps=max riops=500 wiops=max\n")
    assert reads_are_limited(7, proc)
    proc, mount, _ = captured(tmp_path / "v1", "cgroup", "rw,blkio", "7:blkio:/pg\n0::/\n")
    (mount / "pg").mkdir(parents=True)
    (mount / "pg/cgroup.procs").touch()
    (mount / "pg/blkio.throttle.read_iops_device").write_text("")
    assert not reads_are_limited(7, proc)
    (mount / "pg/blkio.throttle.read_iops_device").write_text("8:0 500\n")
    assert reads_are_limited(7, proc)


@pytest.fixture
def pair() -> Iterator[tuple[Cluster, Cluster]]:
    """Two servers that share the host's memory."""
    with (
        Cluster.create(settings={"shared_buffers": "16MB"}) as first,
        Cluster.create(settings={"shared_buffers": "32MB"}) as second,
    ):
        run_sql(second, "CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
        yield first, second


@needs_root
def test_another_server_of_the_host_is_named_with_what_it_holds(
    pair: tuple[Cluster, Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The largest are kept, and other tests have servers too.
    monkeypatch.setattr("pgsweep.evidence.host_memory._MOST_NEIGHBOURS", 1000)
    first, second = pair
    assert first.postmaster_pid is not None and second.postmaster_pid is not None
    found = {one.data_directory: one for one in neighbours(first.postmaster_pid)}
    assert str(first.data_directory) not in found
    other = found[str(second.data_directory)]
    assert other.port == int(str(psycopg.conninfo.conninfo_to_dict(second.conninfo())["port"]))
    # The rows of the table, in buffers.
    assert 10 * MB < other.shared_memory_bytes < 64 * MB
    load = WhenRecording(lambda: run_sql(first, "SELECT count(*) FROM pg_class"))
    record_peek(first.conninfo(), tmp_path / "x.evidence", seconds=2, progress=load)
    load.join()
    facts = MemoryFacts.of(Evidence.open(tmp_path / "x.evidence").meta)
    assert facts is not None
    [named] = [one for one in facts.other_servers if one.data_directory == str(second.data_directory)]
    assert named.shared_memory_bytes <= facts.other_bytes
    done = run("advise", "x.evidence", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    remarks = json.loads(done.stdout)["remarks"]
    assert any(re.search(r"other PostgreSQL servers? takes? .* of the memory", one) for one in remarks)


@needs_cgroup
def test_of_nested_groups_the_smallest_limit_is_kept_and_servers_outside_are_not(
    pair: tuple[Cluster, Cluster],
) -> None:
    server, other = pair
    assert server.postmaster_pid is not None and other.postmaster_pid is not None
    outer = cgroup.plan()
    outer.make(200 * MB)
    inner = cgroup.MemoryCgroup(outer.path / "inner", outer.version)
    try:
        if outer.version == 2:
            (outer.path / "cgroup.subtree_control").write_text("+memory")
        inner.make(300 * MB)
        home = groups_of(server.postmaster_pid, "memory")
        assert isinstance(home, Groups)
        inner.procs_file.write_text(str(server.postmaster_pid))
        try:
            assert is_in_group(server.postmaster_pid, outer.path)
            assert not is_in_group(other.postmaster_pid, outer.path)
            kept = memory_facts(server.postmaster_pid, server.version_num, 8192, timed=False)
            assert (kept["memory_bytes"], kept["memory_from"]) == (str(200 * MB), "cgroup")
            assert "other_servers" not in kept
            inner.set_limit(100 * MB)
            kept = memory_facts(server.postmaster_pid, server.version_num, 8192, timed=False)
            assert kept["memory_bytes"] == str(100 * MB)
        finally:
            (home.folders[0] / "cgroup.procs").write_text(str(server.postmaster_pid))
            for pid in inner.processes():
                (home.folders[0] / "cgroup.procs").write_text(str(pid))
    finally:
        inner.remove()
        outer.remove()
