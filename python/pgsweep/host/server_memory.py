"""The memory that a server's pages and the page cache share, and what the server has read from disk.

Page cache is what is left of the memory: of the host's, or of the smallest memory cgroup that the server is
in. `other_bytes` is what neither the server's shared memory nor cached files take: private memory, page
tables, the kernel's own, and what the kernel keeps free (vm.min_free_kbytes, and half of it again:
mm/page_alloc.c, `__setup_per_zone_wmarks`).

What a process reads from disk is in /proc/PID/io (its user or root may read it). A process that ends adds it
to its parent (kernel/exit.c, `wait_task_zombie`), so the sum over the postmaster and its children never
falls. The server's cgroup counts the same for all programs in it, and anybody may read that
(pgsweep.host.limits, `read_bytes_of_group`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pgsweep.host.hugepages import SharedMemory, shared_memory
from pgsweep.host.limits import counts_huge_pages, is_in_group, page_cache_room
from pgsweep.host.pagetables import model
from pgsweep.host.postmaster import data_directory_of, port_of, postmasters
from pgsweep.host.procfile import PROC, read_host_memory
from pgsweep.host.procmem import (
    ProcessStatus,
    read_family,
    read_memory,
    read_parents,
    shared_memory_resident,
)

_WATERMARK = 1.5
_REFAULTS = ("workingset_refault_file", "workingset_activate_file")


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """How the memory is used, in bytes.

    Attributes:
        memory_bytes: all there is to share.
        from_cgroup: it is a memory cgroup's limit, not the host's memory.
        other_bytes: what is neither shared memory of the server nor cached files.
        shared_memory_bytes: of the server, as much as has been touched; in huge pages all of it, as they are
            set aside for it.
        page_cache_bytes: cached files, shared memory not counted.
        page_tables_bytes: of the server's processes; part of `other_bytes`.
        page_tables_saved_bytes: of these, what huge pages save or would save (`pagetables.model`).
        private_bytes: private memory of the server's processes, likewise; None where it may not be read.
        processes: of the server.
        huge_pages: the shared memory lies in huge pages.
        huge_pages_counted: huge pages take part of `memory_bytes`; those of the host do, those of a memory
            cgroup only where the kernel is told to count them.
    """

    memory_bytes: int
    from_cgroup: bool
    other_bytes: int
    shared_memory_bytes: int
    page_cache_bytes: int
    page_tables_bytes: int
    page_tables_saved_bytes: int
    private_bytes: int | None
    processes: int
    huge_pages: bool
    huge_pages_counted: bool


@dataclass(frozen=True, slots=True)
class NeighbourMemory:
    """Another server in the same memory.

    Attributes:
        data_directory, port: None where they may not be seen.
        shared_memory_bytes: as much as has been touched.
    """

    data_directory: str | None
    port: int | None
    shared_memory_bytes: int


def read_server_memory(postmaster_pid: int, proc: Path = PROC) -> ServerMemory:
    """Return how the memory is used.

    Raises:
        OSError: the server has gone, or /proc cannot be read.
    """
    host = read_host_memory(proc)
    family = read_family(postmaster_pid, proc)
    huge, shared = _shared_memory(postmaster_pid, family, proc)
    room = page_cache_room(postmaster_pid, proc)
    counted = True
    if room is not None and room.limit_bytes < host.total:
        counted = counts_huge_pages(proc)
        # What is counted of huge pages is those that were touched.
        inside = min(shared, room.shmem_bytes) if not huge else huge if counted else 0
        memory = room.limit_bytes
        other = room.limit_bytes - room.available_bytes - inside
        cached = max(0, _group_cache(room.path) - room.shmem_bytes)
    else:
        room = None
        memory, cached = host.total, host.page_cache
        reserve = _number(proc / "sys/vm/min_free_kbytes") * 1024 * _WATERMARK
        other = host.total - host.free - host.page_cache - shared + round(reserve)
    mapping = shared_memory(postmaster_pid, proc) or SharedMemory(shared, huge=huge > 0)
    return ServerMemory(
        memory_bytes=memory,
        from_cgroup=room is not None,
        other_bytes=max(0, other),
        shared_memory_bytes=shared,
        page_cache_bytes=cached,
        page_tables_bytes=sum(process.page_tables for process in family),
        page_tables_saved_bytes=model(family, mapping, proc).saved_bytes if family else 0,
        private_bytes=_private(family, proc),
        processes=len(family),
        huge_pages=huge > 0,
        huge_pages_counted=counted,
    )


def _private(family: list[ProcessStatus], proc: Path) -> int | None:
    """Return the private memory of the server's processes; None where that of one may not be read."""
    found = [process.private.anonymous for process in read_memory(family, proc)]
    known = [size for size in found if size is not None]
    return sum(known) if known and len(known) == len(found) else None


def neighbours(postmaster_pid: int, proc: Path = PROC) -> list[NeighbourMemory]:
    """Return the other servers that take part of the same memory: of the host, or of the server's cgroup.

    Raises:
        OSError: /proc cannot be read.
    """
    host = read_host_memory(proc)
    room = page_cache_room(postmaster_pid, proc)
    group = None if room is None or room.limit_bytes >= host.total else room.path
    found = []
    parents = read_parents(proc)
    for pid in postmasters(proc):
        if pid == postmaster_pid or (group is not None and not is_in_group(pid, group, proc)):
            continue
        family = read_family(pid, proc, parents=parents)
        if family:
            _, shared = _shared_memory(pid, family, proc)
            found.append(NeighbourMemory(data_directory_of(pid, proc), port_of(pid, proc), shared))
    return found


def _shared_memory(postmaster_pid: int, family: list[ProcessStatus], proc: Path) -> tuple[int, int]:
    """Return how much of a server's huge pages was touched, and how much shared memory there is in all.

    Of ordinary pages only those touched are memory; huge pages are set aside when the server starts.
    """
    touched = max((process.rss_shmem or 0 for process in family), default=0)
    huge = max((process.huge_pages or 0 for process in family), default=0)
    if huge:
        segment = shared_memory(postmaster_pid, proc)
        # Where its mappings may not be looked at: what the process that touched most of them has.
        return huge, segment.size_bytes if segment is not None and segment.huge else huge
    return 0, shared_memory_resident(postmaster_pid, proc) or touched


def disk_read_bytes(postmaster_pid: int, proc: Path = PROC) -> int | None:
    """Return what the server's processes have read from disk since it started; None if it may not be read."""
    total = 0
    try:
        for process in read_family(postmaster_pid, proc):
            with suppress(FileNotFoundError, ProcessLookupError):
                text = (proc / str(process.pid) / "io").read_text()
                total += int(text.partition("\nread_bytes:")[2].split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return total


def refaults(postmaster_pid: int, proc: Path = PROC) -> dict[str, int]:
    """Return how many file pages came back after an eviction, and how many of them became active at once.

    Of the memory cgroup whose limit leaves least page cache, or of the host; names as the kernel has them.
    """
    room = page_cache_room(postmaster_pid, proc)
    file = proc / "vmstat" if room is None else room.path / "memory.stat"
    found = {}
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name in _REFAULTS:
                found[name] = int(value)
    return found


def _group_cache(group: Path) -> int:
    with suppress(OSError, ValueError):
        stat = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
        return int(stat.get("total_cache") or stat.get("cache") or stat.get("file") or "0")
    return 0


def _number(file: Path) -> int:
    with suppress(OSError, ValueError):
        return int(file.read_text().split()[0])
    return 0
