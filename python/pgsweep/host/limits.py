"""What cgroups limit a process to: memory, huge pages, processors, reads."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pgsweep.host.group_tree import group_of, mounts_of, upwards


class MemoryLimit(NamedTuple):
    """How much memory a process and its neighbours in memory cgroups may use together.

    Attributes:
        path: the group that holds the limit; the process's own where there is none.
        limit_bytes: the smallest limit of its group and of those above; None where there is none.
        usage_bytes: what that group holds now, page cache included.
    """

    path: Path
    limit_bytes: int | None
    usage_bytes: int | None


class PageCacheRoom(NamedTuple):
    """How much page cache a process and its neighbours in memory cgroups may bring.

    Attributes:
        path: the group that leaves least, of the process's own and those above.
        limit_bytes: of that group.
        available_bytes: the limit, less what the group holds and cannot drop for it: all but page cache.
        shmem_bytes: shared memory counted to the group.
    """

    path: Path
    limit_bytes: int
    available_bytes: int
    shmem_bytes: int


def limit_of(pid: int, proc: Path = Path("/proc")) -> MemoryLimit | None:
    """Return the memory limit that holds for a process, or None if it cannot be determined.

    Anybody may read it. It cannot be determined if no memory cgroups are mounted here, or if the process is
    in a group outside of those that are (we are in a container, it is not).

    Args:
        pid: the process.
        proc: the proc file system to read (a captured tree in tests).
    """
    return _limit_of(pid, "memory", _V1_FILES, _V2_FILES, proc)


def page_cache_room(pid: int, proc: Path = Path("/proc")) -> PageCacheRoom | None:
    """Return how much page cache the memory cgroups of a process have room for; nothing without a limit.

    Page cache is counted to the group of whoever reads a page first (Documentation/admin-guide/cgroup-v2.rst,
    "Memory Ownership"), and at the limit the group drops its own.

    Args:
        pid: the process.
        proc: the proc file system to read (a captured tree in tests).
    """
    place = group_of(pid, "memory", proc)
    if place is None:
        return None
    folder, top, version = place
    rooms = [_room_in(group, version) for group in upwards(folder, top)]
    return min((room for room in rooms if room is not None), key=_available, default=None)


def is_in_group(pid: int, group: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether a process is in a memory cgroup or in one below it, so that it counts for its limit.

    Args:
        pid: the process.
        group: its folder.
        proc: the proc file system to read (a captured tree in tests).
    """
    place = group_of(pid, "memory", proc)
    return place is not None and place[0].is_relative_to(group)


def read_bytes_of_group(pid: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int | None:
    """Return what the cgroup of a process has read from disks; None where the kernel does not count it.

    Others in the group are counted too, and programs in it that have ended. Devices that lie on others
    (device mapper, md) are left out: what they read is counted once more below (block/blk-cgroup.c,
    `blk_cgroup_bio_start`, is called for each clone).

    Args:
        pid: the process.
        proc: the proc file system to read (a captured tree in tests).
        sys: the sys file system to read.
    """
    place = group_of(pid, "blkio", proc)
    if place is None:
        return None
    folder, _, version = place
    found = []
    with suppress(OSError, ValueError):
        # Version 1: `8:0 Read 4096`; version 2: `8:0 rbytes=4096 wbytes=0 rios=1 ...`.
        name = "blkio.throttle.io_service_bytes_recursive" if version == 1 else "io.stat"
        for line in (folder / name).read_text().splitlines():
            device, *words = line.split()
            if (sys / "dev/block" / device / "slaves").is_dir() and any(
                (sys / "dev/block" / device / "slaves").iterdir()
            ):
                continue
            if version == 1 and words[:1] == ["Read"]:
                found.append(int(words[1]))
            elif version == 2:
                found += [int(word[7:]) for word in words if word.startswith("rbytes=")]
    return sum(found) if found else None


def reads_are_limited(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a cgroup of a process, or one above it, limits what it reads from a disk.

    Args:
        pid: the process.
        proc: the proc file system to read (a captured tree in tests).
    """
    place = group_of(pid, "blkio", proc)
    if place is None:
        return False
    folder, top, version = place
    # Version 1 has a line for each device with a limit; version 2: `8:0 rbps=max wbps=1048576 riops=max ...`.
    names = [f"blkio.throttle.read_{what}_device" for what in ("bps", "iops")] if version == 1 else ["io.max"]
    for group in upwards(folder, top):
        for name in names:
            with suppress(OSError):
                words = (group / name).read_text().split()
                limits = [word for word in words if word.startswith(("rbps=", "riops="))]
                if any(not word.endswith("=max") for word in (words if version == 1 else limits)):
                    return True
    return False


def counts_huge_pages(proc: Path = Path("/proc")) -> bool:
    """Return whether memory cgroups count huge pages, which they do by a mount option of version 2 only.

    Documentation/admin-guide/cgroup-v2.rst, `memory_hugetlb_accounting`.

    Args:
        proc: the proc file system to read (a captured tree in tests).
    """
    with suppress(OSError):
        return any("memory_hugetlb_accounting" in options for _, _, _, options in mounts_of(proc))
    return False


def processors_allowed(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Return for how many processors' time the cgroups of a process leave room; None without a limit.

    The smallest quota of its group and of those above (Documentation/admin-guide/cgroup-v2.rst, `cpu.max`).

    Args:
        pid: the process.
        proc: the proc file system to read (a captured tree in tests).
    """
    place = group_of(pid, "cpu", proc)
    if place is None:
        return None
    folder, top, version = place
    found = []
    for group in upwards(folder, top):
        with suppress(OSError, ValueError):
            # `-1` in version 1, `max` in version 2: no limit.
            if version == 1:
                words = [(group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
            else:
                words = (group / "cpu.max").read_text().split()
            quota, period = map(int, words)
            if quota > 0 and period > 0:
                found.append(quota / period)
    return min(found, default=None)


def _available(room: PageCacheRoom) -> int:
    return room.available_bytes


def _room_in(group: Path, version: int) -> PageCacheRoom | None:
    limit, usage = _V1_FILES if version == 1 else _V2_FILES
    # Above memory.high the kernel takes page cache back too, before the limit is met.
    limits = [_number(group / name) for name in (limit, *(() if version == 1 else ("memory.high",)))]
    least = min((value for value in limits if value is not None and value < _NO_LIMIT), default=None)
    used = _number(group / usage)
    if least is None or used is None:
        return None
    try:
        cached, shmem = cached_in(group)
    except OSError:
        return None
    return PageCacheRoom(group, least, max(0, least - used + cached - shmem), shmem)


def cached_in(group: Path) -> tuple[int, int]:
    """Return the page cache of a group and those below, shared memory included, and the shared memory.

    Raises:
        OSError: the group has gone.
    """
    stat = dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())
    # Version 1 has the group's own figures, and with `total_` those of all below; version 2 only the latter.
    cached = stat.get("total_cache") or stat.get("cache") or stat.get("file") or "0"
    shmem = stat.get("total_shmem") or stat.get("shmem") or "0"
    return int(cached), int(shmem)


def huge_page_limit_of(pid: int, page_bytes: int, proc: Path = Path("/proc")) -> MemoryLimit | None:
    """Return the limit on huge pages of one size that holds for a process, or None if there is none.

    The limit counts when a page is touched, not when it is mapped: beyond it the kernel sends SIGBUS
    (Documentation/admin-guide/cgroup-v2.rst, "HugeTLB"). So a server with huge_pages = try starts, and dies.

    Args:
        pid: the process.
        page_bytes: size of the pages.
        proc: the proc file system to read (a captured tree in tests).
    """
    unit = "GB" if page_bytes >= 1 << 30 else "MB" if page_bytes >= 1 << 20 else "KB"
    # Named as mm/hugetlb_cgroup.c, `mem_fmt` has it.
    size = f"{page_bytes >> {'GB': 30, 'MB': 20, 'KB': 10}[unit]}{unit}"
    v1 = (f"hugetlb.{size}.limit_in_bytes", f"hugetlb.{size}.usage_in_bytes")
    limit = _limit_of(pid, "hugetlb", v1, (f"hugetlb.{size}.max", f"hugetlb.{size}.current"), proc)
    return None if limit is None or limit.limit_bytes is None else limit


def _limit_of(
    pid: int, name: str, v1: tuple[str, str], v2: tuple[str, str], proc: Path
) -> MemoryLimit | None:
    """Return what a controller limits a process to.

    Args:
        pid: the process.
        name: of the controller.
        v1: names of the files that hold limit and usage, in version 1.
        v2: likewise in version 2.
        proc: the proc file system to read.
    """
    place = group_of(pid, name, proc)
    if place is None:
        return None
    folder, top, version = place
    return _smallest_limit(folder, top, v1 if version == 1 else v2)


_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2_FILES = ("memory.max", "memory.current")
_NO_LIMIT = 1 << 62
"""Version 1 shows no limit as a number of pages that no machine has (mm/page_counter.c)."""


def _smallest_limit(folder: Path, top: Path, names: tuple[str, str]) -> MemoryLimit:
    """Return the smallest limit on the way from a group up to the mounted one."""
    smallest = MemoryLimit(folder, None, _number(folder / names[1]))
    for group in upwards(folder, top):
        limit_bytes = _number(group / names[0])
        least = _NO_LIMIT if smallest.limit_bytes is None else smallest.limit_bytes
        if limit_bytes is not None and limit_bytes < least:
            smallest = MemoryLimit(group, limit_bytes, _number(group / names[1]))
    return smallest


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it holds a word (`max`), or is not there."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
