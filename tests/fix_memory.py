"""The memory of a server made by hand, with round numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from pgsweep.host.kernel import KernelFacts
from pgsweep.host.procfile import HostMemory
from pgsweep.memory.budget import estimate_budget
from pgsweep.memory.kernel import advise
from pgsweep.memory.processes import connection_cost
from pgsweep.pg.catalog.memory_settings import MemorySettings
from pgsweep.records.budget import BudgetResult
from pgsweep.records.cache import Missing
from pgsweep.records.kernel import KernelResult
from pgsweep.records.memory import MemoryHost, MemoryProcess, MemoryResult, MemoryTotals

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30
SETTINGS = MemorySettings(
    max_connections=100,
    shared_buffers=1000 * MB,
    shared_memory=None,
    work_mem=4 * MB,
    hash_mem_multiplier=2.0,
    temp_buffers=8 * MB,
    maintenance_work_mem=64 * MB,
    autovacuum_work_mem=-1,
    autovacuum_workers=3,
    parallel_workers=8,
    logical_decoding_work_mem=64 * MB,
    logical_slots=0,
    own_work_mem=[],
)


def process(
    pid: int, kind: str = "client backend", private: int = 2 * MB, tables: int = 200 * KB
) -> MemoryProcess:
    return MemoryProcess(
        pid=pid,
        server_pid=pid,
        kind=kind,
        user="app",
        database="shop",
        application=None,
        state="idle",
        query=None,
        private_bytes=private,
        page_tables_bytes=tables,
        cost_bytes=private + tables,
        shared_touched_bytes=0,
        huge_pages_bytes=0,
        swap_bytes=0,
        rss_bytes=10 * MB,
        method="smaps_rollup",
    )


def seen(
    memory: int = 16 * GB, *, huge: bool = False, limit: int | None = None, used: int = 0, cached: int = 0
) -> MemoryResult:
    """Ten connections of 2 MB, one process of 1 MB, 1024 MB of shared memory, half of it allocated."""
    each = 60 * KB if huge else 200 * KB
    processes = [*(process(n, tables=each) for n in range(10)), process(99, "checkpointer", MB, each)]
    private = 21 * MB
    tables = 11 * each
    real = 512 * MB + private + tables
    totals = MemoryTotals(
        shared_memory_bytes=512 * MB,
        shared_memory_size_bytes=1024 * MB,
        shared_memory_method="segment",
        private_bytes=private,
        page_tables_bytes=tables,
        swap_bytes=0,
        real_bytes=real,
        rss_bytes=2 * real,
    )
    host = MemoryHost(
        memory_bytes=memory,
        available_bytes=memory - real - 300 * MB,
        page_tables_bytes=tables,
        page_cache_bytes=GB,
        limit_bytes=limit,
        limit_used_bytes=used,
        limit_taken_bytes=used - cached,
    )
    return MemoryResult(
        server_version="18.1",
        database="shop",
        at="2024-05-06T07:08:09",
        seconds=0.1,
        max_connections=100,
        huge_pages=huge,
        connections=10,
        cost=connection_cost(processes[:10]),
        totals=totals,
        host=host,
        processes=processes,
    )


def budget_of(
    memory: MemoryResult, connections: int = 100, settings: MemorySettings = SETTINGS, **options: Any
) -> BudgetResult:
    given = {"plan_nodes": 2, "own_tables_bytes": 80 * KB, "huge_page_bytes": 2 * MB, **options}
    return estimate_budget(memory, settings, 180000, connections=connections, **given)


def memory_result() -> MemoryResult:
    return msgspec.structs.replace(
        seen(),
        missing=[
            Missing(what="what other roles' sessions do", why="of 3 sessions: no pg_monitor", enable="GRANT")
        ],
    )


def kernel_result() -> KernelResult:
    """A host of 64 GB as it is installed: defaults."""
    gigabytes = 1 << 30
    memory = HostMemory(
        total=64 * gigabytes,
        available=60 * gigabytes,
        free=10 * gigabytes,
        anonymous=2 * gigabytes,
        page_tables=0,
        shmem=0,
        page_cache=50 * gigabytes,
        huge_pages=0,
        slab=gigabytes,
        swap_total=8 * gigabytes,
        swap_free=8 * gigabytes,
        commit_limit=40 * gigabytes,
        committed=5 * gigabytes,
    )
    facts = KernelFacts(
        memory=memory,
        sysctls={
            "vm.dirty_background_ratio": 10,
            "vm.dirty_ratio": 20,
            "vm.dirty_expire_centisecs": 3000,
            "vm.dirty_writeback_centisecs": 500,
            "vm.overcommit_memory": 0,
            "vm.overcommit_ratio": 50,
            "vm.swappiness": 60,
            "vm.zone_reclaim_mode": 0,
        },
        transparent_huge_pages="always",
        numa_nodes=1,
    )
    return KernelResult(
        machine="a machine",
        memory_bytes=memory.total,
        server_version=None,
        postmaster_pid=None,
        settings=advise(facts),
    )


def host(available: int, *, shmem: int = 0) -> HostMemory:
    """Return the memory of a host of 16 GB."""
    return HostMemory(
        total=16000 * MB,
        available=available,
        free=0,
        anonymous=0,
        page_tables=0,
        shmem=shmem,
        page_cache=0,
        huge_pages=0,
        slab=0,
        swap_total=0,
        swap_free=0,
        commit_limit=None,
        committed=None,
    )
