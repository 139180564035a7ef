"""What every process of the server costs the host: `pgsweep memory`.

    with opened("dbname=shop") as server:
        result = look(server)

The session says who the processes are, /proc what they hold (host/procmem.py). Nothing is changed. While a
process's memory is read the kernel holds the lock of its address space for reading: it runs on, and waits
only where it maps memory itself. Reading 500 backends takes well below a second
(benchmarks/memory).
"""

from __future__ import annotations

import datetime
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pgsweep.errors import MissingAbility
from pgsweep.host.hugepages import SharedMemory, shared_memory
from pgsweep.host.place import look as look_around
from pgsweep.host.place import look_at_memory
from pgsweep.host.postmaster import find_postmaster, search, user_of
from pgsweep.host.procfile import PROC, read_host_memory, zfs_cache_bytes
from pgsweep.host.procmem import ProcessMemory, read_family, read_memory, shared_memory_resident
from pgsweep.host.yama import who_may
from pgsweep.pg.catalog.activity import Activity, read_activity
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.catalog.place import read_place
from pgsweep.pg.catalog.server import Server, read_postmaster, read_server
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.records.memory import MemoryCost, MemoryHost, MemoryProcess, MemoryResult, MemoryTotals
from pgsweep.records.place import Place

CLIENT = "client backend"
ASSUMED = "assumed"
"""The method of a process that is not seen: what it takes is assumed (memory/assumed.py)."""
MEMORY_LIMIT = "whether a memory cgroup limits the server"


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server whose processes run here.

    Attributes:
        postmaster_pid: on this host.
        place: where it runs, as it was when it was opened; None where that was not asked.
    """

    connection: Connection
    server: Server
    postmaster_pid: int
    place: Place | None = None

    def place_now(self) -> Place:
        """Return where it runs, with its memory as it is now; who keeps its settings is not asked again."""
        if self.place is None:
            return look_around(self.postmaster_pid)
        if self.place.kind == "elsewhere":
            return self.place
        return msgspec.structs.replace(self.place, memory=look_at_memory(self.postmaster_pid))


@contextmanager
def opened(conninfo: str) -> Iterator[LocalServer]:
    """Connect, and find the server's process.

    A server reached by a Unix socket whose process we may not look into is taken all the same where its
    session's parent says which it is: much of it anybody may read.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: its processes do not run here.
    """
    connection = connect(conninfo)
    try:
        with explained():
            server = read_server(connection)
            process = read_postmaster(connection)
        try:
            pid = find_postmaster(*process)
        except MissingAbility:
            closed = search(*process).closed
            host = connection.info.host
            parents = [
                pid for pid in closed if any(s.inner_pid == process.backend_pid for s in read_family(pid))
            ]
            if len(parents) != 1 or not (host == "" or host.startswith("/")):
                raise
            pid = parents[0]
        with explained():
            place = read_place(connection, pid)
        yield LocalServer(connection, server, pid, place)
    finally:
        connection.close()


def look(local: LocalServer, *, top: int | None = None, queries: bool = False) -> MemoryResult:
    """Look at the memory of all processes once.

    Args:
        local: the server.
        top: how many processes are kept, the highest cost first; None for all.
        queries: with the text of each session's statement, which may hold passwords and other secrets.
    """
    started, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    with explained():
        activity = read_activity(local.connection)
    found = read_memory(read_family(local.postmaster_pid))
    processes = [_process(memory, activity, local.postmaster_pid, queries=queries) for memory in found]
    processes.sort(key=lambda p: (-(p.cost_bytes or 0), -p.page_tables_bytes, p.pid))
    segment = shared_memory(local.postmaster_pid)
    clients = [p for p in processes if p.kind == CLIENT and not p.own]
    place = local.place_now()
    return MemoryResult(
        server_version=local.server.version,
        database=local.server.database,
        at=at.isoformat(timespec="milliseconds"),
        seconds=time.monotonic() - started,
        max_connections=int(local.server.settings["max_connections"]),
        huge_pages=None if segment is None else segment.huge,
        connections=len(clients),
        pgsweep_sessions=sum(p.own for p in processes),
        cost=connection_cost(clients),
        totals=_totals(local.postmaster_pid, found, segment),
        host=_host(place),
        place=place,
        processes=processes if top is None else processes[:top],
        hidden=0 if top is None else max(0, len(processes) - top),
        missing=_missing(processes, activity, local, place),
    )


def connection_cost(clients: Sequence[MemoryProcess]) -> MemoryCost | None:
    """Return what connections cost; None if there are none, or if it may not be read.

    The 95th percentile is the nearest rank: the cost that 95% of the connections do not exceed.
    """
    known = sorted((p for p in clients if p.cost_bytes is not None), key=_cost)
    if not known or len(known) < len(clients):
        return None
    n = len(known)
    return MemoryCost(
        connections=n,
        mean_bytes=round(sum(map(_cost, known)) / n),
        p95_bytes=_cost(known[math.ceil(0.95 * n) - 1]),
        worst_bytes=_cost(known[-1]),
        worst_pid=known[-1].pid,
        private_mean_bytes=round(sum(p.private_bytes or 0 for p in known) / n),
        page_tables_mean_bytes=round(sum(p.page_tables_bytes for p in known) / n),
        rss_mean_bytes=round(sum(p.rss_bytes for p in known) / n),
    )


def _cost(process: MemoryProcess) -> int:
    return process.cost_bytes or 0


def _process(
    memory: ProcessMemory, activity: dict[int, Activity], postmaster_pid: int, *, queries: bool
) -> MemoryProcess:
    status, private = memory.status, memory.private
    known = activity.get(status.inner_pid)
    query = None
    pgsweep = known is not None and known.pgsweep
    if queries and known is not None and not known.hidden and not pgsweep and known.query:
        query = " ".join(known.query.split())[:200]
    return MemoryProcess(
        pid=status.pid,
        server_pid=status.inner_pid,
        kind=_kind(status.title, known, is_postmaster=status.pid == postmaster_pid),
        user=known.user if known else None,
        database=known.database if known else None,
        application=known.application or None if known else None,
        state=known.state if known else None,
        query=query,
        private_bytes=private.anonymous,
        page_tables_bytes=status.page_tables,
        cost_bytes=None if private.anonymous is None else private.anonymous + status.page_tables,
        shared_touched_bytes=status.rss_shmem,
        huge_pages_bytes=status.huge_pages,
        swap_bytes=status.swap,
        rss_bytes=status.rss,
        method=private.method,
        own=pgsweep,
        why=private.refused,
    )


_TITLES = (
    "archiver",
    "autovacuum launcher",
    "autovacuum worker",
    "background writer",
    "checkpointer",
    "io worker",
    "logger",
    "logical replication apply worker",
    "logical replication launcher",
    "logical replication tablesync worker",
    "parallel worker",
    "slotsync worker",
    "startup",
    "walreceiver",
    "walsender",
    "walsummarizer",
    "walwriter",
)
"""How the titles of processes begin that are not a client's (miscinit.c, GetBackendTypeDesc)."""


def _kind(title: str, known: Activity | None, *, is_postmaster: bool) -> str:
    """Return what a process is: as the server says, else as its title does (ps_status.c).

    The server does not list its logger, and to a role without pg_monitor it shows only which processes are
    sessions. A title such as `postgres: main: checkpointer` has the cluster's name in front of what it is.
    """
    if is_postmaster:
        return "postmaster"
    if known is not None and known.kind:
        return known.kind
    words = title.removeprefix("postgres: ").strip()
    for begin in (words, words.partition(": ")[2]):
        for kind in _TITLES:
            if begin.startswith(kind):
                return kind
    return CLIENT if known is not None and known.user is not None else "unknown"


def _totals(
    postmaster_pid: int, found: Sequence[ProcessMemory], segment: SharedMemory | None
) -> MemoryTotals:
    shared, method = _shared(postmaster_pid, found, segment)
    private = [memory.private.anonymous for memory in found]
    known = None if None in private else sum(value or 0 for value in private)
    tables = sum(memory.status.page_tables for memory in found)
    return MemoryTotals(
        shared_memory_bytes=shared,
        shared_memory_size_bytes=segment.size_bytes if segment else None,
        shared_memory_method=method,
        private_bytes=known,
        page_tables_bytes=tables,
        swap_bytes=sum(memory.status.swap for memory in found),
        real_bytes=None if known is None or shared is None else shared + known + tables,
        rss_bytes=sum(memory.status.rss for memory in found),
    )


def _shared(
    postmaster_pid: int, found: Sequence[ProcessMemory], segment: SharedMemory | None
) -> tuple[int | None, str]:
    """Return how much of the shared memory is allocated, and how that was found."""
    resident = shared_memory_resident(postmaster_pid)
    if segment is not None and segment.huge:
        return segment.size_bytes + (resident or 0), "huge pages"
    if resident is not None:
        return resident, "segment"
    shares = [memory.private.shmem for memory in found]
    if shares and None not in shares:
        return sum(share or 0 for share in shares), "pss"
    return (None, "") if segment is None else (segment.size_bytes, "size")


def _host(place: Place, proc: Path = PROC) -> MemoryHost:
    host, memory = read_host_memory(proc), place.memory
    available = host.available
    if available is not None and not memory.from_lxcfs:
        available = min(host.total, available + zfs_cache_bytes(proc))
    taken = None
    if memory.limit_bytes is not None and memory.available_bytes is not None:
        taken = memory.limit_bytes - memory.available_bytes
    return MemoryHost(
        memory_bytes=host.total,
        available_bytes=available,
        page_tables_bytes=host.page_tables,
        page_cache_bytes=host.page_cache,
        limit_bytes=memory.limit_bytes,
        limit_used_bytes=memory.used_bytes,
        limit_taken_bytes=taken,
        swap_bytes=host.swap_total,
    )


def _missing(
    processes: Sequence[MemoryProcess], activity: dict[int, Activity], local: LocalServer, place: Place
) -> list[Missing]:
    missing = []
    if place.memory.limited == "unknown":
        missing.append(
            Missing(
                what=MEMORY_LIMIT,
                why=place.memory.why or "",
                enable="run pgsweep on the host, outside of containers",
            )
        )
    refused = [process for process in processes if process.private_bytes is None]
    if refused:
        missing.append(
            Missing(
                what="private memory",
                why=f"of {len(refused)} of {len(processes)} processes: {refused[0].why}",
                enable=who_may(user=user_of(local.postmaster_pid)),
            )
        )
    if processes and not any(process.page_tables_bytes for process in processes):
        # Every process has some: the first page of a table is there before the process runs.
        why = "the kernel does not report them (VmPTE in /proc/PID/status), as under gVisor: counted as 0"
        missing.append(Missing(what="page tables", why=why))
    hidden = sum(1 for entry in activity.values() if entry.hidden and entry.user is not None)
    if hidden:
        missing.append(
            Missing(
                what="what other roles' sessions do",
                why=f"of {hidden} sessions: the role is not a member of pg_monitor",
                enable=grant_to_session(local.connection, "pg_monitor"),
            )
        )
    return missing
