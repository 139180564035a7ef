"""The texts of /proc as numbers: `name: value` lines with or without `kB`, in bytes.

Documentation/filesystems/proc.rst of the kernel lists the fields; which of them exist depends on its
version, so a field that is not there is absent from what is returned here, never zero.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
"""Where a function takes it as `proc`, and /sys as `sys`, that may be a captured tree, as in tests."""


def be_killed_first() -> None:
    """Let the kernel kill this process, and those that it starts, before any other where memory ends.

    In a container or a pod we take of the server's own memory. Where the kernel kills a session instead of
    us, the server ends all its sessions and recovers. Anybody may raise his own value
    (proc_pid_oom_score_adj(5)).
    """
    with suppress(OSError):
        (PROC / "self/oom_score_adj").write_text("1000")


def parse_fields(text: str) -> dict[str, str]:
    """Return the values of `name: value` lines, as text."""
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines_of(text))}


def field_bytes(fields: dict[str, str], name: str) -> int | None:
    """Return a field of kilobytes in bytes; None where the kernel does not have it."""
    words = fields.get(name, "").split()
    return int(words[0]) * 1024 if len(words) == 2 and words[1] == "kB" and words[0].isdigit() else None


class HostMemory(NamedTuple):
    """The memory of the host, in bytes, from /proc/meminfo.

    Attributes:
        total: what the kernel has to give.
        available: what programs may still take without swapping; kernels before 3.14 do not report it.
        anonymous: private memory of all processes.
        page_tables: of all processes.
        shmem: shared memory, files in tmpfs too; ordinary pages only.
        page_cache: cached files, shared memory not counted.
        huge_pages: set aside as huge pages, used or not.
        slab: the kernel's own objects.
        swap_total: room to swap to.
        swap_free: what of it is free.
        commit_limit: what may be promised under vm.overcommit_memory = 2.
        committed: what is promised.
    """

    total: int
    available: int | None
    free: int
    anonymous: int
    page_tables: int
    shmem: int
    page_cache: int
    huge_pages: int
    slab: int
    swap_total: int
    swap_free: int
    commit_limit: int | None
    committed: int | None


def read_kernel_text(path: Path) -> str:
    """Return a file of /proc; names in it that are not UTF-8 are kept (surrogateescape).

    Names of processes, mount points and mapped files are bytes to the kernel, and any user may choose some.
    """
    # As text, a carriage return in a name would be read as the end of a line.
    return path.read_bytes().decode(errors="surrogateescape")


def lines_of(text: str) -> list[str]:
    """Return the lines of such a file: a line feed alone ends one, not what else `str.splitlines` knows."""
    return [line for line in text.split("\n") if line]


def parse_meminfo(text: str) -> HostMemory:
    """Return the memory of the host."""
    fields = parse_fields(text)

    def known(name: str) -> int:
        return field_bytes(fields, name) or 0

    return HostMemory(
        total=known("MemTotal"),
        available=field_bytes(fields, "MemAvailable"),
        free=known("MemFree"),
        anonymous=known("AnonPages"),
        page_tables=known("PageTables"),
        shmem=known("Shmem"),
        page_cache=max(0, known("Cached") + known("Buffers") - known("Shmem")),
        huge_pages=int(fields.get("HugePages_Total", "0")) * known("Hugepagesize"),
        slab=known("Slab"),
        swap_total=known("SwapTotal"),
        swap_free=known("SwapFree"),
        commit_limit=field_bytes(fields, "CommitLimit"),
        committed=field_bytes(fields, "Committed_AS"),
    )


def zfs_cache_bytes(proc: Path = PROC) -> int:
    """Return what ZFS's own cache (ARC) gives back where memory is scarce; 0 without ZFS.

    MemAvailable does not know of it: to the kernel it is memory in use, down to `c_min` (OpenZFS, arc.c).
    """
    with suppress(OSError, KeyError, ValueError):
        lines = (proc / "spl/kstat/zfs/arcstats").read_text().splitlines()
        found = {words[0]: words[2] for line in lines if len(words := line.split()) == 3}
        return max(0, int(found["size"]) - int(found["c_min"]))
    return 0


def read_host_memory(proc: Path = PROC) -> HostMemory:
    """Return the memory of the host."""
    return parse_meminfo((proc / "meminfo").read_text())
