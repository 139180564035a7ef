"""The memory of every process."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance
from pgsweep.records.place import Place


class MemoryProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one process of the server, measured.

    Attributes:
        pid: on this host.
        server_pid: as the server knows it, in a container another number.
        kind: as `backend_type` of pg_stat_activity; `postmaster`; `unknown` for a process that came or went.
        user: of the database; null for background processes, and where the role may not see it.
        query: shortened; null unless it was asked for, and where the role may not see it.
        private_bytes: anonymous memory, pages shared since the fork divided by their sharers (Pss_Anon); null
            where it may not be read, see `why`.
        page_tables_bytes: VmPTE.
        cost_bytes: what would be freed if the process ended: private memory and page tables.
        shared_touched_bytes: shared memory in ordinary pages that it ever touched (RssShmem), which others
            touch too.
        huge_pages_bytes: shared memory in huge pages that it has mapped (HugetlbPages).
        rss_bytes: what `ps` and `top` show.
        method: how private memory was read: smaps_rollup, pagemap or smaps.
        own: a session of pgsweep: of this command, or of another such as `serve`.
    """

    pid: int
    server_pid: int
    kind: str
    user: str | None
    database: str | None
    application: str | None
    state: str | None
    query: str | None
    private_bytes: int | None
    page_tables_bytes: int
    cost_bytes: int | None
    shared_touched_bytes: int | None
    huge_pages_bytes: int | None
    swap_bytes: int
    rss_bytes: int
    method: str
    own: bool = False
    why: str | None = None


class MemoryCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection costs, private memory and page tables: client backends without those of pgsweep."""

    connections: int
    mean_bytes: int
    p95_bytes: int
    worst_bytes: int
    worst_pid: int
    private_mean_bytes: int
    page_tables_mean_bytes: int
    rss_mean_bytes: int


class MemoryTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What the server costs the host: shared memory once, private memory and page tables of each process.

    Attributes:
        shared_memory_bytes: what the kernel has allocated of it.
        shared_memory_size_bytes: what has been promised; null where the mapping cannot be seen.
        shared_memory_method: `segment` (its blocks were counted), `pss` (at least this much: the shares of
            the processes that run), `huge pages` (set aside whole), `size` (at most this much).
        real_bytes: the sum; null where a part may not be read.
        rss_bytes: sum of RSS, which counts shared memory once a process.
    """

    shared_memory_bytes: int | None
    shared_memory_size_bytes: int | None
    shared_memory_method: str
    private_bytes: int | None
    page_tables_bytes: int
    swap_bytes: int
    real_bytes: int | None
    rss_bytes: int


class MemoryHost(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the host, and the limit of the server's memory cgroup that leaves least.

    Attributes:
        limit_bytes: null where there is none, or none can be seen: see `place` of the result.
        limit_used_bytes: what its group holds, page cache included.
        limit_taken_bytes: what of that the kernel cannot take back: all but page cache; shared memory counts.
    """

    memory_bytes: int
    available_bytes: int | None
    page_tables_bytes: int
    page_cache_bytes: int
    limit_bytes: int | None
    limit_used_bytes: int | None
    swap_bytes: int = 0
    limit_taken_bytes: int | None = None


class MemoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of every process of the server: measured, at one time.

    Attributes:
        processes: the highest cost first; `top` may have left out others.
        hidden: how many were left out.
        connections: client backends without those of pgsweep.
        pgsweep_sessions: how many sessions pgsweep has there, this command's included.
        cost: null where there are no other connections, or their memory may not be read.
        place: where the server runs; null in older results.
    """

    schema: str = "pgsweep.memory/1"
    server_version: str
    database: str
    at: str
    seconds: float
    max_connections: int
    huge_pages: bool | None
    connections: int
    cost: MemoryCost | None
    totals: MemoryTotals
    host: MemoryHost
    processes: list[MemoryProcess]
    hidden: int = 0
    missing: list[Missing] = []
    place: Place | None = None
    provenance: Provenance | None = None
    pgsweep_sessions: int = 1

    @property
    def private(self) -> bool:
        """Whether it holds statements of sessions; a file of it is for its owner only."""
        return any(process.query is not None for process in self.processes)
