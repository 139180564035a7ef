"""Memory as one budget, and the facts about it that a recording keeps."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import psycopg
import pytest

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.host_memory import memory_counters, memory_facts
from pgsweep.evidence.store import EvidenceMeta
from pgsweep.host.page_cache_rules import read_page_cache_rules
from pgsweep.host.server_memory import disk_read_bytes, read_server_memory
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.page_cache.memory_shares import BUFFER_OVERHEAD, MemoryFacts
from pgsweep.testbed.cold import empty_caches

GB = 1 << 30
HOST = {
    "memory_bytes": str(16 * GB),
    "memory_from": "host",
    "memory_other_bytes": str(2 * GB),
    "memory_shared_bytes": str(round(4 * GB * BUFFER_OVERHEAD)),
    "memory_page_cache_bytes": str(8 * GB),
    "memory_page_tables_bytes": str(100 * 1_000_000),
    "server_processes": "100",
    "huge_pages": "off",
    "mglru": "off",
    "readahead_bytes": "131072",
    "folio_order": "0",
    "data_cached_bytes": str(7 * GB),
}


def meta(**changed: str) -> EvidenceMeta:
    return EvidenceMeta(source="trace", host={**HOST, **changed})


def test_a_larger_pool_takes_its_memory_and_page_tables_from_the_page_cache() -> None:
    facts = MemoryFacts.of(meta())
    assert facts is not None
    today, larger = (facts.share(16 * GB, size, 4 * GB) for size in (4 * GB, 8 * GB))
    assert today.page_cache_bytes == pytest.approx(16 * GB - 2 * GB - 4 * GB * BUFFER_OVERHEAD, abs=2)
    # 85 MB of page tables for shared memory today, twice as much for twice the pool.
    grown = 4 * GB * BUFFER_OVERHEAD + 85_000_000
    assert today.page_cache_bytes - larger.page_cache_bytes == pytest.approx(grown, abs=4)
    # At worst each of 100 processes touches all of the pool, and 1 GB of others' files stays.
    full = 100 * 8 * GB // 512
    assert larger.page_cache_bytes - larger.low_bytes == GB + full - larger.page_tables_bytes
    with pytest.raises(UsageError, match="leave no page cache in 16 GB"):
        facts.share(16 * GB, 14 * GB, 4 * GB)
    assert facts.share(32 * GB, 14 * GB, 4 * GB).page_cache_bytes > 12 * GB


def test_huge_pages_need_no_page_tables() -> None:
    facts = MemoryFacts.of(meta(huge_pages="on"))
    assert facts is not None
    share = facts.share(16 * GB, 8 * GB, 4 * GB)
    assert share.page_tables_bytes == 0
    assert share.page_tables_most_bytes == 100 * 8 * GB // 512, "without them, at most"
    assert facts.use.page_tables_saved_bytes == 0


def test_huge_pages_that_a_cgroup_does_not_count_leave_its_memory_to_the_page_cache() -> None:
    facts = MemoryFacts.of(meta(huge_pages="on", huge_pages_counted="off"))
    assert facts is not None
    shares = [facts.share(16 * GB, size, 4 * GB) for size in (4 * GB, 14 * GB, 20 * GB)]
    assert [share.page_cache_bytes for share in shares] == [14 * GB] * 3
    assert facts.use.shared_memory_bytes == 0
    assert facts.use.page_cache_bytes == 14 * GB
    assert any("does not count" in remark for remark in facts.remarks(4 * GB))
    facts.check_asked(2 * GB)
    # Without huge pages the same server would be counted, and with them another one would not be any more.
    ordinary = facts.changed(huge_pages=False, sessions_factor=1.0)
    assert ordinary.share(16 * GB, 4 * GB, 4 * GB).page_cache_bytes < 10 * GB
    apart = MemoryFacts.of(meta(huge_pages_counted="off"))
    assert apart is not None
    assert apart.share(16 * GB, 4 * GB, 4 * GB).page_cache_bytes < 10 * GB
    changed = apart.changed(huge_pages=True, sessions_factor=1.0)
    assert changed.share(16 * GB, 4 * GB, 4 * GB).page_cache_bytes >= 14 * GB


def test_the_parts_of_the_memory_add_up() -> None:
    for private in ("memory_private_bytes", ""):
        facts = MemoryFacts.of(meta(**({private: str(GB)} if private else {})))
        assert facts is not None
        use = facts.use
        assert use.private_bytes == (GB if private else None)
        assert use.rest_bytes == (GB if private else 2 * GB) - 100_000_000
        assert use.page_tables_saved_bytes == 100_000_000 - 100 * 150_000
        parts = (use.shared_memory_bytes, use.page_tables_bytes, use.private_bytes or 0, use.rest_bytes)
        assert sum(parts) + use.page_cache_bytes == use.memory_bytes
    much = MemoryFacts.of(meta(memory_private_bytes=str(3 * GB)))
    assert much is not None
    assert (much.use.private_bytes, much.use.page_tables_bytes, much.use.rest_bytes) == (2 * GB, 0, 0)


def test_older_evidence_says_nothing_and_impossible_facts_are_refused() -> None:
    assert MemoryFacts.of(EvidenceMeta(source="trace")) is None
    for name, value in (("memory_bytes", "-1"), ("memory_bytes", "0"), ("folio_order", "40")):
        with pytest.raises(EvidenceError, match="impossible values"):
            MemoryFacts.of(meta(**{name: value}))


def test_the_kernel_rules_of_a_file_system(tmp_path: Path) -> None:
    number = tmp_path.stat().st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(f"1 0 {device} / / rw - xfs /dev/x rw\n")
    queue = tmp_path / "dev/block" / device / "queue"
    queue.mkdir(parents=True)
    (queue / "read_ahead_kb").write_text("4096\n")
    lists = tmp_path / "kernel/mm/lru_gen"
    lists.mkdir(parents=True)
    for enabled, mglru in (("0x0007\n", True), ("0x0000\n", False), ("0x0006\n", False)):
        (lists / "enabled").write_text(enabled)
        rules = read_page_cache_rules(tmp_path, release="6.1.0-28-amd64", proc=tmp_path, sys=tmp_path)
        assert (rules.mglru, rules.readahead_bytes, rules.folio_order) == (mglru, 4 << 20, 9)
        assert rules.pages_out_idle is False
    thread = tmp_path / "kernel/mm/damon/admin/kdamonds/0"
    scheme = thread / "contexts/0/schemes/0"
    scheme.mkdir(parents=True)
    for state, action, found in (("on", "pageout", True), ("off", "pageout", False), ("on", "stat", False)):
        (thread / "state").write_text(f"{state}\n")
        (scheme / "action").write_text(f"{action}\n")
        rules = read_page_cache_rules(tmp_path, release="6.1.0-28-amd64", proc=tmp_path, sys=tmp_path)
        assert rules.pages_out_idle is found
    (tmp_path / "self/mountinfo").write_text(f"1 0 {device} / / rw - ext4 /dev/x rw\n")
    for release, order in (("6.15.2", 0), ("6.16.0", 9), ("odd", 0)):
        rules = read_page_cache_rules(tmp_path, release=release, proc=tmp_path, sys=tmp_path)
        assert rules.folio_order == order


def test_what_a_server_reads_from_disk_is_counted_also_for_sessions_that_ended() -> None:
    with Cluster.create(settings={"autovacuum": "off"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        empty_caches(cluster)
        pid = cluster.postmaster_pid
        assert pid is not None
        before = disk_read_bytes(pid)
        if before is None:
            pytest.skip("/proc/PID/io of the server may not be read here")
        psql = [str(cluster.bindir / "psql"), "-Xqc", "SELECT count(*) FROM t", cluster.conninfo()]
        subprocess.run(psql, check=True, capture_output=True)
        after = disk_read_bytes(pid)
    assert after is not None
    assert after - before >= 20_000_000


def test_facts_of_a_server_are_kept_and_understood(wheel18: Cluster) -> None:
    pid = wheel18.postmaster_pid
    assert pid is not None
    memory = read_server_memory(pid)
    assert memory.processes >= 5
    assert 1 << 20 < memory.shared_memory_bytes < memory.memory_bytes
    assert 0 < memory.page_tables_bytes < memory.other_bytes < memory.memory_bytes
    assert memory.private_bytes is not None
    assert 1 << 20 < memory.private_bytes < memory.other_bytes
    # Another test may have dropped the server's files from the page cache.
    for file in (wheel18.data_directory / "base/1").glob("[0-9]*"):
        file.read_bytes()
    kept = memory_facts(pid, wheel18.version_num, 8192)
    facts = MemoryFacts.of(msgspec.structs.replace(meta(), host=kept))
    assert facts is not None
    assert facts.processes >= 5
    assert facts.private_bytes is not None
    assert int(kept["data_cached_bytes"]) > 1 << 20
    assert {counter.scope for counter in memory_counters(pid)} == {"host"}


def test_what_huge_pages_save_is_what_was_recorded() -> None:
    """As `hugepages` computes it; where it was not recorded, 150 kB of a process are taken to be its own."""
    tables, processes = 100_000_000, int(meta().host["server_processes"])
    assumed, recorded = (
        MemoryFacts.of(one) for one in (meta(), meta(memory_page_tables_saved_bytes="7000000"))
    )
    assert assumed is not None and recorded is not None
    assert recorded.use.page_tables_saved_bytes == 7_000_000
    assert assumed.use.page_tables_saved_bytes == tables - processes * 150_000
    huge = recorded.changed(huge_pages=True, sessions_factor=1.0)
    assert recorded.page_tables_bytes - huge.page_tables_bytes == 7_000_000
    twice = recorded.changed(huge_pages=None, sessions_factor=2.0).use
    assert 7_000_000 < twice.page_tables_saved_bytes < 14_000_000
