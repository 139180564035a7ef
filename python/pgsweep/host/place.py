"""Where a server runs: on a bare host, under systemd, in a container, a pod, LXC or WSL; its limits there.

All commands ask here, once, and say the same. Nothing is changed, and what may not be read is left out: an
answer that is not known is not guessed.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from pathlib import Path

from pgsweep.host.group_tree import PROC, paths_of
from pgsweep.host.hugepages import shared_memory
from pgsweep.host.limits import (
    are_killed_together,
    counts_huge_pages,
    memory_limits,
    processes_allowed,
    swap_allowed,
)
from pgsweep.host.pages import PAGE_BYTES
from pgsweep.host.postmaster import data_directory_of, pid_namespaces
from pgsweep.host.procfile import lines_of, parse_meminfo, read_kernel_text
from pgsweep.records.place import Kind, Limited, Place, PlaceMemory

_MARKS = (".dockerenv", "run/.containerenv")
_OF_KUBELET = {"/etc/hosts", "/dev/termination-log"}
_RUNTIMES = re.compile(r"/(?:docker|libpod|containerd|cri-containerd|crio|machine\.slice)[-/:]")
_LXC = re.compile(r"/lxc(?:\.payload)?[./]|/lxd[./]")
_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_READ_BYTES = 1 << 20
_CODE_BYTES = 192 << 20
"""What a process maps besides its shared memory: code, libraries, and a little of its own; assumed."""

_KEPT_FOR_ROOT_BYTES = 264 << 20
"""What __vm_enough_memory (mm/util.c) keeps for root, 8 MB, and for others of the user, 128 MB, and as much
again for what the server's own processes and others take meanwhile."""

_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The inode of the host's own PID namespace (include/linux/proc_ns.h, PROC_PID_INIT_INO)."""


def look(pid: int | None, proc: Path = PROC) -> Place:
    """Return where a server runs, as its process and this host show.

    Args:
        pid: the postmaster; None where it is not seen from here.
    """
    if pid is None:
        why = "the server's process is not seen from here"
        return Place(kind="elsewhere", because=why, memory=PlaceMemory(why=why))
    mounts = _mounts(pid, proc)
    kind, because = _kind(pid, mounts, proc)
    paths: dict[str, str] = {}
    with suppress(OSError):
        paths = paths_of(proc, str(pid))
    process_limit, process_room, limit_name = _processes(pid, proc)
    dev_shm_bytes, dev_shm_free_bytes = _dev_shm(pid, proc)
    address_space_bytes = _soft_limit(pid, "Max address space", proc)
    shared_limit, shared_name = _shared_memory_limit(pid, address_space_bytes, proc)
    unit = next((found[1] for path in paths.values() if (found := _UNIT.search(path))), None)
    return Place(
        kind=kind,
        because=because,
        memory=look_at_memory(pid, proc),
        unit=unit,
        file_system=file_system_of(pid, proc),
        dev_shm_bytes=dev_shm_bytes,
        dev_shm_free_bytes=dev_shm_free_bytes,
        locked_memory_bytes=_soft_limit(pid, "Max locked memory", proc),
        address_space_bytes=address_space_bytes,
        private_memory_bytes=_soft_limit(pid, "Max data size", proc),
        shared_memory_limit_bytes=shared_limit,
        shared_memory_limit_name=shared_name,
        process_limit=process_limit,
        process_limit_name=limit_name,
        process_room=process_room,
        sysctl_writable=not _is_read_only(_mounts(None, proc), "/proc/sys"),
    )


def look_at_memory(pid: int, proc: Path = PROC) -> PlaceMemory:
    """Return what a server may use of the memory.

    A limit that is larger than the host's memory limits nothing. Where lxcfs is mounted it says the smallest
    limit of all groups, also of those that cannot be seen (lxcfs: src/proc_fuse.c, `get_min_memlimit`).

    Args:
        pid: the postmaster.
    """
    total: int | None = None
    swap_bytes = 0
    with suppress(OSError, ValueError):
        memory = parse_meminfo((proc / "meminfo").read_text())
        total, swap_bytes = memory.total or None, swap_allowed(pid, memory.swap_free, proc)
    from_lxcfs = any(point == "/proc/meminfo" for _, point, _, _ in _mounts(None, proc))
    limits = memory_limits(pid, proc)
    hard, high = (
        room if room is not None and (total is None or room.limit_bytes < total) else None
        for room in (limits.hard, limits.high)
    )
    limited: Limited = "no" if limits.unseen is None or from_lxcfs else "unknown"
    if hard is not None or high is not None:
        limited = "yes"
    return PlaceMemory(
        host_bytes=total,
        from_lxcfs=from_lxcfs,
        limited=limited,
        why=limits.unseen if not from_lxcfs else None,
        group=None if hard is None else str(hard.path),
        limit_bytes=None if hard is None else hard.limit_bytes,
        used_bytes=limits.used_bytes if hard is None else hard.used_bytes,
        available_bytes=None if hard is None else hard.available_bytes,
        high_bytes=None if high is None else high.limit_bytes,
        high_available_bytes=None if high is None else high.available_bytes,
        counts_huge_pages=counts_huge_pages(proc),
        swap_bytes=swap_bytes,
        killed_together=are_killed_together(pid, proc),
    )


def _kind(pid: int, mounts: list[tuple[str, str, set[str], str]], proc: Path) -> tuple[Kind, str]:
    """Return the kind of place, and what shows it."""
    with suppress(OSError):
        paths = list(paths_of(proc, str(pid)).values())
        if found := next((path for path in paths if "kubepods" in path), None):
            return "pod", f"its cgroup is {found}"
        if any("/pods/" in root and point in _OF_KUBELET for root, point, _, _ in mounts):
            return "pod", "the kubelet has mounted files in it"
        if any(word.startswith("KUBERNETES_SERVICE_HOST=") for word in _environment(pid, proc)):
            return "pod", "its environment has KUBERNETES_SERVICE_HOST"
        # Where we are inside of LXC, a server that we see is too.
        both = [*mounts, *_mounts(None, proc)]
        if any(kind == "fuse.lxcfs" or point == "/proc/meminfo" for _, point, _, kind in both):
            return "lxc", "its /proc/meminfo is not the kernel's own (lxcfs)"
        if found := next((path for path in paths if _LXC.search(path)), None):
            return "lxc", f"its cgroup is {found}"
        if found := next((path for path in paths if _RUNTIMES.search(path)), None):
            return "container", f"its cgroup is {found}"
        if pid_namespaces(pid, proc) > 1:
            return "container", "it has a PID namespace of its own"
        mark = next((mark for mark in _MARKS if (proc / str(pid) / "root" / mark).exists()), None)
        if mark is not None and not _is_in_first_namespace(pid, proc):
            return "container", f"/{mark} is there"
        if _is_read_only(mounts, "/proc/sys"):
            return "container", "/proc/sys is mounted read-only"
        if "microsoft" in platform.release().lower():
            return "wsl", f"the kernel is {platform.release()}"
        if found := next((path for path in paths if _UNIT.search(path)), None):
            return "systemd", f"its cgroup is {found}"
    return "host", "nothing shows a container"


def runs_containers(proc: Path = PROC) -> bool:
    """Return whether any process that is seen here runs in a container, a pod or LXC."""
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                text = (folder / "cgroup").read_text()
                if "kubepods" in text or _RUNTIMES.search(text) or _LXC.search(text):
                    return True
    return False


def _is_in_first_namespace(pid: int, proc: Path) -> bool:
    """Return whether a process sees all processes: a machine made of an image of Docker has its mark."""
    with suppress(OSError):
        return (proc / str(pid) / "ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    return False


def _mounts(pid: int | None, proc: Path) -> list[tuple[str, str, set[str], str]]:
    """Return `(mounted root, mount point, options, file system type)` of each mount that a process sees."""
    found = []
    with suppress(OSError, ValueError):
        text = read_kernel_text(proc / ("self" if pid is None else str(pid)) / "mountinfo")
        for line in lines_of(text):
            left, _, right = line.partition(" - ")
            words = left.split(" ")
            found.append((words[3], words[4], set(words[5].split(",")), right.split(" ")[0]))
    return found


def _is_read_only(mounts: list[tuple[str, str, set[str], str]], point: str) -> bool:
    """Return whether a mount point, the last mounted there, is read-only."""
    options = [options for _, where, options, _ in mounts if where == point]
    return bool(options) and "ro" in options[-1]


def _environment(pid: int, proc: Path) -> list[str]:
    with suppress(OSError), (proc / str(pid) / "environ").open("rb") as file:
        return file.read(_READ_BYTES).decode(errors="replace").split("\0")
    return []


def file_system_of(pid: int, proc: Path = PROC) -> str | None:
    """Return the type of the file system on which a server's data directory lies; None where it is not seen.

    Args:
        pid: the postmaster, which works in its data directory.
    """
    folder = data_directory_of(pid, proc)
    if folder is None:
        return None
    above = {folder, "/", *map(str, Path(folder).parents)}
    found = [
        (len(point), order, kind)
        for order, (_, point, _, kind) in enumerate(_mounts(pid, proc))
        if point in above
    ]
    # Of those mounted at one point the last one is seen.
    return max(found)[2] if found else None


def _dev_shm(pid: int, proc: Path) -> tuple[int | None, int | None]:
    """Return the size of a process's /dev/shm, and what of it is free."""
    with suppress(OSError):
        found = os.statvfs(proc / str(pid) / "root/dev/shm")
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return None, None


def _processes(pid: int, proc: Path) -> tuple[int | None, int | None, str]:
    """Return how many processes a server may have, how many more, and the name of the limit that binds.

    RLIMIT_NPROC counts all threads of its user (kernel/fork.c, `copy_process`), other servers' too, and what
    those leave is the server's.
    """
    limit, room = processes_allowed(pid, proc)
    allowed = _soft_limit(pid, "Max processes", proc)
    if allowed is not None:
        left = max(0, allowed - _threads_of_user(pid, proc))
        if room is None or left < room:
            return left + 1 + _count_children(pid, proc), left, "RLIMIT_NPROC"
    return limit, room, "pids.max"


def _count_children(pid: int, proc: Path) -> int:
    with suppress(OSError):
        return len((proc / str(pid) / "task" / str(pid) / "children").read_text().split())
    return 0


def _threads_of_user(pid: int, proc: Path) -> int:
    count = 0
    with suppress(OSError):
        user = (proc / str(pid)).stat().st_uid
        for folder in proc.iterdir():
            with suppress(OSError):
                if folder.name.isdigit() and folder.stat().st_uid == user:
                    count += (folder / "task").stat().st_nlink - 2
    return count


def _shared_memory_limit(pid: int, address_space_bytes: int | None, proc: Path) -> tuple[int | None, str]:
    """Return how much shared memory a server can map when it is started again, and the limit that says so.

    It gives back what it has first. The kernel shows kernel.shmmax of our IPC namespace only. Ordinary pages
    of shared memory are promised like private ones (Documentation/mm/overcommit-accounting.rst), huge pages
    are not.
    """
    found: list[tuple[int, str]] = []
    if address_space_bytes is not None:
        found.append((max(0, address_space_bytes - _CODE_BYTES), "RLIMIT_AS"))
    with suppress(OSError, ValueError):
        segment = shared_memory(pid, proc)
        if segment is not None and segment.system_v and _in_our_ipc_namespace(pid, proc):
            most, pages = (int((proc / "sys/kernel" / name).read_text()) for name in ("shmmax", "shmall"))
            found.append(min((most, "kernel.shmmax"), (pages * PAGE_BYTES, "kernel.shmall")))
        if int((proc / "sys/vm/overcommit_memory").read_text()) == 2:
            memory = parse_meminfo((proc / "meminfo").read_text())
            own = 0 if segment is None or segment.huge else segment.size_bytes
            if memory.commit_limit is not None and memory.committed is not None:
                left = memory.commit_limit - memory.committed + own - _KEPT_FOR_ROOT_BYTES
                found.append((max(0, left), "vm.overcommit_memory"))
    return min(found, default=(None, ""))


def _in_our_ipc_namespace(pid: int, proc: Path) -> bool:
    return (proc / str(pid) / "ns/ipc").stat().st_ino == (proc / "self/ns/ipc").stat().st_ino


def _soft_limit(pid: int, name: str, proc: Path) -> int | None:
    """Return a limit as setrlimit(2) has it; None where there is none, or it is not seen."""
    with suppress(OSError, IndexError, ValueError):
        for line in lines_of(read_kernel_text(proc / str(pid) / "limits")):
            if line.startswith(name):
                soft = line.removeprefix(name).split()[0]
                return None if soft == "unlimited" else int(soft)
    return None


def why_auto_conf_is_closed(pid: int, data_directory: str | None, proc: Path = PROC) -> str | None:
    """Return why a server cannot write its postgresql.auto.conf; None where nothing is seen that forbids it.

    Args:
        pid: the postmaster, which works in its data directory.
        data_directory: as it names it; None where that is not known.
    """
    name = "postgresql.auto.conf"
    file = proc / str(pid) / "cwd" / name
    with suppress(OSError):
        if os.statvfs(file).f_flag & os.ST_RDONLY:
            return "it is on a file system that is mounted read-only"
        if not file.stat().st_mode & 0o222:
            return "its mode is read-only"
        if data_directory is not None:
            path = str(Path(data_directory) / name)
            if any(point == path for _, point, _, _ in _mounts(pid, proc)):
                return "it is mounted by itself, and cannot be replaced"
    return None
