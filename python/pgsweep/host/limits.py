"""What cgroups limit a process to: memory, huge pages, processors, reads.

Every group on the way up from the process's own has limits, and what binds is not the smallest one but the
one that leaves least: another program in a pod may hold most of what the pod is allowed. What cannot be seen
from here is unknown, which is not the same as unlimited (`unseen`).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pgsweep.host.group_tree import PROC, Groups, Unseen, groups_of, mounts_of
from pgsweep.host.procfile import field_bytes, parse_fields, read_kernel_text

_NO_LIMIT = 1 << 62
"""Version 1 shows no limit as a number of pages that no machine has (mm/page_counter.c)."""


class MemoryRoom(NamedTuple):
    """How much memory a process and its neighbours in a memory cgroup may use together.

    Attributes:
        path: the group.
        limit_bytes: of it.
        used_bytes: what it holds now, page cache included.
        available_bytes: the limit, less what the group holds and cannot drop: all but page cache and the
            kernel's own caches, as of names of files. How large these are version 2 says; of version 1 it is
            estimated.
        cached_bytes: page cache of files, shared memory not counted.
        shmem_bytes: shared memory counted to the group.
        throttles: the limit is memory.high: above it processes are not killed, but slowed down.
    """

    path: Path
    limit_bytes: int
    used_bytes: int
    available_bytes: int
    cached_bytes: int
    shmem_bytes: int
    throttles: bool = False


class MemoryLimits(NamedTuple):
    """The limits of all memory cgroups of a process.

    Attributes:
        hard: of the group whose limit leaves least; beyond it a process is killed. None where none is seen.
        high: likewise for memory.high; None where none is seen, or where `hard` leaves less.
        unseen: why there may be other limits; None where all groups are seen.
        used_bytes: what the process's own group holds now; None where it is not seen.
    """

    hard: MemoryRoom | None
    high: MemoryRoom | None
    unseen: str | None
    used_bytes: int | None = None

    @property
    def least(self) -> MemoryRoom | None:
        """The one that leaves least page cache, which the kernel takes back at either limit."""
        return self.high or self.hard

    @property
    def unknown(self) -> str | None:
        """Why the limit is not known; None where a limit is seen, or none can be hidden."""
        return self.unseen if self.least is None else None


class HugeLimit(NamedTuple):
    """A limit on huge pages.

    Attributes:
        file: that holds it.
        limit_bytes: the limit.
        used_bytes: what counts for it now.
    """

    file: Path
    limit_bytes: int
    used_bytes: int

    def room_bytes(self, own_bytes: int) -> int:
        """Return what a server may have that gives back its own pages first."""
        return max(0, self.limit_bytes - max(0, self.used_bytes - own_bytes))


class HugeLimits(NamedTuple):
    """The limits on huge pages of one size, of all groups of a process, those that leave least.

    Attributes:
        reserved: on pages that are promised; where it is met, mapping memory fails, and a server with
            huge_pages = on does not start. None where there is none.
        touched: on pages that are used; beyond it the kernel sends SIGBUS, and what is read into them is cut
            short (`read only 5120 of 8192 bytes`). None where there is none.
        unseen: why there may be others; None where all groups are seen.
    """

    reserved: HugeLimit | None
    touched: HugeLimit | None
    unseen: str | None


UNLIMITED = HugeLimits(None, None, None)


def memory_limits(pid: int, proc: Path = Path("/proc")) -> MemoryLimits:
    """Return the limits of a process's memory.

    Page cache is counted to the group of whoever reads a page first (Documentation/admin-guide/cgroup-v2.rst,
    "Memory Ownership"), and at the limit the group drops its own.
    """
    groups = groups_of(pid, "memory", proc)
    if groups is None:
        return MemoryLimits(None, None, None)
    if isinstance(groups, Unseen):
        return MemoryLimits(None, None, groups.why)
    limit, usage = _MEMORY[groups.version]
    hard = [_room_in(group, limit, usage, proc) for group in groups.folders]
    high = [_room_in(group, "memory.high", usage, proc) for group in groups.folders if groups.version == 2]
    hardest, highest = (
        min((room for room in rooms if room is not None), key=lambda room: room.available_bytes, default=None)
        for rooms in (hard, high)
    )
    if highest is not None and hardest is not None and highest.available_bytes >= hardest.available_bytes:
        highest = None
    used = _number(groups.folders[0] / usage) if groups.folders else None
    return MemoryLimits(hardest, highest, groups.unseen, used)


def page_cache_room(pid: int, proc: Path = Path("/proc")) -> MemoryRoom | None:
    """Return how much page cache the memory cgroups of a process have room for; nothing without a limit."""
    return memory_limits(pid, proc).least


def huge_page_limits(pid: int, page_bytes: int, proc: Path = Path("/proc")) -> HugeLimits:
    """Return the limits on huge pages of one size that hold for a process.

    Documentation/admin-guide/cgroup-v2.rst, "HugeTLB"; container runtimes set both since runc 1.1.10.

    Args:
        pid: the process.
        page_bytes: size of the pages.
    """
    groups = groups_of(pid, "hugetlb", proc)
    if groups is None:
        return UNLIMITED
    if isinstance(groups, Unseen):
        return HugeLimits(None, None, groups.why)
    unit = "GB" if page_bytes >= 1 << 30 else "MB" if page_bytes >= 1 << 20 else "KB"
    # Named as mm/hugetlb_cgroup.c, `mem_fmt` has it.
    size = f"hugetlb.{page_bytes >> {'GB': 30, 'MB': 20, 'KB': 10}[unit]}{unit}"
    limit, usage = ("limit_in_bytes", "usage_in_bytes") if groups.version == 1 else ("max", "current")
    reserved, touched = (
        _least_huge(groups, f"{size}{kind}.{limit}", f"{size}{kind}.{usage}") for kind in (".rsvd", "")
    )
    return HugeLimits(reserved, touched, groups.unseen)


def _least_huge(groups: Groups, limit: str, usage: str) -> HugeLimit | None:
    found = []
    for group in groups.folders:
        limit_bytes = _number(group / limit)
        if limit_bytes is not None and limit_bytes < _NO_LIMIT:
            found.append(HugeLimit(group / limit, limit_bytes, _number(group / usage) or 0))
    return min(found, key=lambda one: (one.limit_bytes - one.used_bytes, one.limit_bytes), default=None)


def is_in_group(pid: int, group: Path, proc: Path = Path("/proc")) -> bool:
    """Return whether a process is in a memory cgroup or in one below it, so that it counts for its limit.

    Args:
        pid: the process.
        group: its folder.
    """
    groups = groups_of(pid, "memory", proc)
    return isinstance(groups, Groups) and group in groups.folders


def read_bytes_of_group(pid: int, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> int | None:
    """Return what the cgroup of a process has read from disks; None where the kernel does not count it.

    Others in the group are counted too, and programs in it that have ended. Devices that lie on others
    (device mapper, md) are left out: what they read is counted once more below (block/blk-cgroup.c,
    `blk_cgroup_bio_start`, is called for each clone).
    """
    groups = groups_of(pid, "blkio", proc)
    if not isinstance(groups, Groups) or not groups.folders:
        return None
    found = []
    with suppress(OSError, ValueError):
        # Version 1: `8:0 Read 4096`; version 2: `8:0 rbytes=4096 wbytes=0 rios=1 ...`.
        name = "blkio.throttle.io_service_bytes_recursive" if groups.version == 1 else "io.stat"
        for line in (groups.folders[0] / name).read_text().splitlines():
            device, *words = line.split()
            if (sys / "dev/block" / device / "slaves").is_dir() and any(
                (sys / "dev/block" / device / "slaves").iterdir()
            ):
                continue
            if groups.version == 1 and words[:1] == ["Read"]:
                found.append(int(words[1]))
            elif groups.version == 2:
                found += [int(word[7:]) for word in words if word.startswith("rbytes=")]
    return sum(found) if found else None


def reads_are_limited(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether a cgroup of a process, or one above it, limits what it reads from a disk."""
    groups = groups_of(pid, "blkio", proc)
    if not isinstance(groups, Groups):
        return False
    # Version 1 has a line for each device with a limit; version 2: `8:0 rbps=max wbps=1048576 riops=max ...`.
    old = groups.version == 1
    names = [f"blkio.throttle.read_{what}_device" for what in ("bps", "iops")] if old else ["io.max"]
    for group in groups.folders:
        for name in names:
            with suppress(OSError):
                words = (group / name).read_text().split()
                limits = [word for word in words if word.startswith(("rbps=", "riops="))]
                if any(not word.endswith("=max") for word in (words if old else limits)):
                    return True
    return False


def counts_huge_pages(proc: Path = Path("/proc")) -> bool:
    """Return whether memory cgroups count huge pages, which they do by a mount option of version 2 only.

    Documentation/admin-guide/cgroup-v2.rst, `memory_hugetlb_accounting`.
    """
    with suppress(OSError):
        return any("memory_hugetlb_accounting" in options for _, _, _, options in mounts_of(proc))
    return False


def processors_allowed(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Return for how many processors' time the cgroups of a process leave room; None without a limit.

    The smallest quota of its group and of those above (Documentation/admin-guide/cgroup-v2.rst, `cpu.max`).
    """
    groups = groups_of(pid, "cpu", proc)
    if not isinstance(groups, Groups):
        return None
    found = []
    for group in groups.folders:
        with suppress(OSError, ValueError):
            # `-1` in version 1, `max` in version 2: no limit.
            if groups.version == 1:
                words = [(group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
            else:
                words = (group / "cpu.max").read_text().split()
            quota, period = map(int, words)
            if quota > 0 and period > 0:
                found.append(quota / period)
    return min(found, default=None)


def swap_allowed(pid: int, free_bytes: int, proc: Path = Path("/proc")) -> int:
    """Return how much more a process's memory cgroups let it swap: at a limit that comes before a kill.

    Args:
        pid: the process.
        free_bytes: swap of the host that is free.
    """
    groups = groups_of(pid, "memory", proc)
    if not isinstance(groups, Groups):
        return free_bytes
    for group in groups.folders:
        if groups.version == 2:
            limit, used = (_number(group / f"memory.swap.{name}") for name in ("max", "current"))
        else:
            # The limit is on both together; with a swappiness of 0 a group swaps nothing (mm/vmscan.c).
            both, memory = (
                [_number(group / f"memory.{kind}{name}_in_bytes") for name in ("limit", "usage")]
                for kind in ("memsw.", "")
            )
            limit, used = None, 0
            if _number(group / "memory.swappiness") == 0:
                limit = 0
            elif both[0] is not None and memory[0] is not None and both[0] < _NO_LIMIT:
                limit, used = both[0] - memory[0], (both[1] or 0) - (memory[1] or 0)
        if limit is not None:
            free_bytes = min(free_bytes, max(0, limit - (used or 0)))
    return free_bytes


def are_killed_together(pid: int, proc: Path = Path("/proc")) -> bool:
    """Return whether the kernel kills all processes of a group together where a process's memory ends.

    `memory.oom.group` (Documentation/admin-guide/cgroup-v2.rst); kubelets set it from Kubernetes 1.28 on.
    """
    groups = groups_of(pid, "memory", proc)
    return isinstance(groups, Groups) and any(
        _number(group / "memory.oom.group") == 1 for group in groups.folders
    )


def cached_in(group: Path) -> tuple[int, int]:
    """Return the page cache of a group and those below, shared memory included, and the shared memory.

    Raises:
        OSError: the group has gone.
    """
    stat = _stat(group)
    # Version 1 has the group's own figures, and with `total_` those of all below; version 2 only the latter.
    cached = stat.get("total_cache") or stat.get("cache") or stat.get("file") or "0"
    shmem = stat.get("total_shmem") or stat.get("shmem") or "0"
    return int(cached), int(shmem)


def _stat(group: Path) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in (group / "memory.stat").read_text().splitlines())


_MEMORY = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}


def _room_in(group: Path, limit_file: str, usage_file: str, proc: Path) -> MemoryRoom | None:
    limit, used = _number(group / limit_file), _number(group / usage_file)
    if limit is None or limit >= _NO_LIMIT or used is None:
        return None
    cached, shmem, slab = 0, 0, 0
    with suppress(OSError):
        cached, shmem = cached_in(group)
        found = _stat(group).get("slab_reclaimable")
        slab = _reclaimable(group, proc) if found is None else int(found)
    return MemoryRoom(
        path=group,
        limit_bytes=limit,
        used_bytes=used,
        available_bytes=max(0, limit - used + cached - shmem + slab),
        cached_bytes=max(0, cached - shmem),
        shmem_bytes=shmem,
        throttles=limit_file == "memory.high",
    )


_KERNEL_BYTES_PER_PROCESS = 128 << 10
"""Of the kernel's memory, what a process takes besides page tables: its stack of 16 kB, mappings, files."""


def _reclaimable(group: Path, proc: Path) -> int:
    """Return how much of the kernel's memory of a group of version 1 it can give up: an estimate.

    Version 1 counts it (memory.kmem, in the group's usage too) and does not say what it is for. What its
    processes need is subtracted; of the rest as much is taken to be reclaimable as of the host's own.
    """
    kernel = _number(group / "memory.kmem.usage_in_bytes") or 0
    for file in group.rglob("cgroup.procs"):
        for pid in file.read_text().split():
            with suppress(OSError):
                status = parse_fields(read_kernel_text(proc / pid / "status"))
                kernel -= (field_bytes(status, "VmPTE") or 0) + _KERNEL_BYTES_PER_PROCESS
    host = parse_fields(read_kernel_text(proc / "meminfo"))
    share = (field_bytes(host, "SReclaimable") or 0) / (field_bytes(host, "Slab") or 1)
    return round(max(0, kernel) * min(1.0, share))


def processes_allowed(pid: int, proc: Path = PROC) -> tuple[int | None, int | None]:
    """Return the least number of processes that a cgroup above a process allows, and the least that is left.

    Threads count too (kernel/cgroup/pids.c). Both are None where none is limited, or none is seen.
    """
    groups = groups_of(pid, "pids", proc)
    folders = groups.folders if isinstance(groups, Groups) else ()
    limits = [(_number(folder / "pids.max"), _number(folder / "pids.current")) for folder in folders]
    known = [(limit, limit - (used or 0)) for limit, used in limits if limit is not None]
    return min((limit for limit, _ in known), default=None), min((left for _, left in known), default=None)


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it holds a word (`max`), or is not there."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
