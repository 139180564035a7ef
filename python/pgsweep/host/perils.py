"""What a place makes fail or slow that works elsewhere: /dev/shm, locked memory, a kernel's scheduler."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from pgsweep.commands import on_server
from pgsweep.records.place import Place
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count

_MB: Final = 1 << 20
_RING_BYTES: Final = 24 << 10
"""What the kernel locks for one queue of io_uring of 64 entries: rings and entries, in whole pages."""

_ALWAYS_THERE: Final = 10
"""The postmaster, the checkpointer, the writers, launchers and workers of I/O that a server starts with."""

_MANY_PROCESSORS: Final = 32
_PREEMPTED_FROM: Final = (7, 0)


class Peril(NamedTuple):
    """Something that does not work well in a place.

    Attributes:
        name: what it is about.
        why: what happens.
        remedy: what to change, in words.
    """

    name: str
    why: str
    remedy: str


def perils_of(
    place: Place,
    settings: Mapping[str, str],
    *,
    huge_pages: bool,
    processors: int | None = None,
    kernel: str | None = None,
) -> list[Peril]:
    """Return what a server's settings do not agree with in its place.

    Args:
        place: of the server, whose process is seen.
        settings: in the units of pg_settings.
        huge_pages: its shared memory lies in huge pages.
        processors: of the host.
        kernel: its release.
    """
    found = [
        _pool(place, settings, huge_pages=huge_pages),
        _file_system(place),
        _dynamic_shared_memory(place, settings),
        _locked_memory(place, settings),
        _address_space(place),
        _private_memory(place),
        _processes(place, settings),
        _spinlock(
            huge_pages=huge_pages,
            processors=processors or os.cpu_count() or 1,
            kernel=kernel or platform.release(),
        ),
    ]
    return [peril for peril in found if peril is not None]


def _number(settings: Mapping[str, str], name: str, default: float) -> float:
    try:
        return float(settings.get(name, default))
    except ValueError:
        return default


def parallel_hash_bytes(settings: Mapping[str, str]) -> int:
    """Return what one parallel hash join may take of dynamic shared memory (nodeHash.c); 0 without workers.

    Args:
        settings: in the units of pg_settings.
    """
    each = _number(settings, "work_mem", 0) * 1024 * max(1.0, _number(settings, "hash_mem_multiplier", 1))
    workers = _number(settings, "max_parallel_workers_per_gather", 0)
    return round(each * (workers + 1)) if workers else 0


def parallel_vacuum_bytes(settings: Mapping[str, str]) -> int:
    """Return what one VACUUM with parallel workers may take of dynamic shared memory; 0 without workers.

    Its dead rows lie there (vacuumparallel.c), as do the graphs of some extensions' indexes while they are
    built: up to maintenance_work_mem.

    Args:
        settings: in the units of pg_settings.
    """
    workers = _number(settings, "max_parallel_maintenance_workers", 0)
    return round(_number(settings, "maintenance_work_mem", 0) * 1024) if workers else 0


def set_aside_bytes(settings: Mapping[str, str]) -> int:
    """Return what the server sets aside at its start for dynamic shared memory, and takes first (dsm.c).

    Args:
        settings: in the units of pg_settings.
    """
    return round(_number(settings, "min_dynamic_shared_memory", 0) * _MB)


def _pool(place: Place, settings: Mapping[str, str], *, huge_pages: bool) -> Peril | None:
    """Compare the pool with all the memory that there is: it is taken page by page, as it is used."""
    capacity, pool = place.memory.capacity_bytes, _number(settings, "shared_buffers", 0) * BLOCK_BYTES
    if capacity is None or pool < capacity or (huge_pages and not place.memory.counts_huge_pages):
        return None
    return Peril(
        "pool",
        f"shared_buffers is {format_bytes(pool)}, and the server may use {format_bytes(capacity)} of memory: "
        "it starts, and processes are killed once that much of the pool has been used",
        f"a smaller shared_buffers, or more memory: {on_server('pgsweep memory budget')}",
    )


def _file_system(place: Place) -> Peril | None:
    if place.file_system != "zfs":
        return None
    return Peril(
        "file system",
        "its data directory lies on ZFS, which has a cache of its own (ARC) instead of the page cache of "
        "Linux: which misses wait for the disk is not known, so no sizes are advised",
        "pgsweep predict, for the misses of the pool; arcstat, for what becomes of them",
    )


def _dynamic_shared_memory(place: Place, settings: Mapping[str, str]) -> Peril | None:
    """Compare /dev/shm with what one statement may take there for all of its processes."""
    size = place.dev_shm_bytes
    if size is None or settings.get("dynamic_shared_memory_type", "posix") != "posix":
        return None
    workers = format_count(_number(settings, "max_parallel_workers_per_gather", 0))
    need, what, setting = max(
        (
            parallel_hash_bytes(settings),
            f"a parallel hash join (work_mem x hash_mem_multiplier, for {workers} workers and their leader)",
            "work_mem",
        ),
        (
            parallel_vacuum_bytes(settings),
            "a VACUUM with parallel workers, or an extension that builds an index with them, "
            "(maintenance_work_mem)",
            "maintenance_work_mem",
        ),
    )
    free = size if place.dev_shm_free_bytes is None else place.dev_shm_free_bytes
    aside = set_aside_bytes(settings)
    if need <= free + aside:
        return None
    left = f", of which {format_bytes(free)} are free now" if need <= size + aside else ""
    return Peril(
        "dynamic shared memory",
        f"{what} may take {format_bytes(need)} of dynamic shared memory, and /dev/shm has "
        f"{format_bytes(size)}{left}: `could not resize shared memory segment: No space left on device`",
        f"docker run --shm-size, in a pod an emptyDir of medium Memory on /dev/shm; or a smaller {setting}",
    )


def _locked_memory(place: Place, settings: Mapping[str, str]) -> Peril | None:
    limit = place.locked_memory_bytes
    if limit is None or settings.get("io_method") != "io_uring":
        return None
    queues = _number(settings, "max_connections", 100) + _number(settings, "max_worker_processes", 8) + 20
    need = round(queues * _RING_BYTES)
    if need <= limit:
        return None
    return Peril(
        "locked memory",
        f"io_method is io_uring: its {format_count(queues)} queues may lock {format_bytes(need)}, and a "
        "process "
        f"may lock {format_bytes(limit)} (RLIMIT_MEMLOCK): `could not setup io_uring queue: Cannot allocate "
        "memory` on kernels that count it",
        "LimitMEMLOCK=infinity in the unit, docker run --ulimit memlock=-1; or io_method = worker",
    )


def _address_space(place: Place) -> Peril | None:
    limit = place.address_space_bytes
    if limit is None:
        return None
    return Peril(
        "address space",
        f"each process may map {format_bytes(limit)} (RLIMIT_AS), shared memory and code included: a session "
        "that needs more ends with `out of memory` while there is memory, and with larger shared_buffers the "
        "server does not start",
        "LimitAS=infinity in the unit, ulimit -v unlimited",
    )


def _private_memory(place: Place) -> Peril | None:
    limit = place.private_memory_bytes
    if limit is None:
        return None
    return Peril(
        "private memory",
        f"each process may have {format_bytes(limit)} of its own (RLIMIT_DATA): a session that needs more, "
        "for sorts, hashes and temporary tables together, ends with `out of memory` while there is memory",
        "LimitDATA=infinity in the unit, ulimit -d unlimited",
    )


def _processes(place: Place, settings: Mapping[str, str]) -> Peril | None:
    """Compare the processes that are allowed with one for each connection and worker."""
    limit = place.process_limit
    connections = round(_number(settings, "max_connections", 100))
    workers = _number(settings, "max_worker_processes", 8) + _number(settings, "autovacuum_max_workers", 3)
    need = round(connections + workers + _number(settings, "max_wal_senders", 10) + _ALWAYS_THERE)
    if limit is None or need <= limit:
        return None
    return Peril(
        "processes",
        f"max_connections of {format_count(connections)} and the workers take up to {format_count(need)} "
        f"processes, and {format_count(limit)} are allowed ({place.process_limit_name}): `could not fork new "
        "process for connection: Resource temporarily unavailable`",
        (
            "TasksMax in the unit, docker run --pids-limit, podPidsLimit of the kubelet"
            if place.process_limit_name == "pids.max"
            else "LimitNPROC in the unit, nproc in limits.conf, docker run --ulimit nproc"
        )
        + "; or a smaller max_connections",
    )


def _spinlock(*, huge_pages: bool, processors: int, kernel: str) -> Peril | None:
    """Tell who is exposed to a holder of a spinlock being preempted while it takes a page fault.

    Linux 7.0 lets processes be preempted in the kernel where earlier ones did not (PREEMPT_NONE is gone).
    """
    version = re.match(r"(\d{1,3})\.(\d{1,3})", kernel)
    if version is None or tuple(map(int, version.groups())) < _PREEMPTED_FROM:
        return None
    if huge_pages or processors < _MANY_PROCESSORS:
        return None
    return Peril(
        "spinlocks",
        f"Linux {kernel} has no PREEMPT_NONE: on {format_count(processors)} processors, without huge "
        "pages, a "
        "session may be preempted in a page fault while it holds the spinlock of StrategyGetBuffer, and all "
        "that look for a buffer wait",
        f"put the shared memory in huge pages: {on_server('pgsweep hugepages')}",
    )
