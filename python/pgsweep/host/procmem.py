"""The memory of a server's processes: private memory, page tables, shared memory touched.

What a process costs the host is what would come back if it ended: private memory, as proportional anonymous
memory (`Pss_Anon`: a page that n processes share since the fork counts 1/n), and page tables (`VmPTE`). RSS
counts the same page of shared memory once more for every process that ever touched it.

Everybody may read /proc/PID/status. Private memory needs the process's user or root (PTRACE_MODE_READ) and is
read in the first of these ways that the kernel has and time permits:

    smaps_rollup   4.14 and later, its line `Pss_Anon` 5.4 and later: exact. The kernel walks every page
                   table of the process, shared memory too: 0.5 s for a backend that touched 32 GB.
    pagemap        4.2 and later: private mappings only, so it does not grow with shared memory. It shows
                   whether a page belongs to this process alone (bit 56), not how many share it (`_SHARERS`).
    smaps          any kernel: mapping by mapping, with the same walk as smaps_rollup.

A process that ends meanwhile is left out. A number that may not be read is None, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from pgsweep.host.pages import PAGE_BYTES, table_spans
from pgsweep.host.procfile import PROC, field_bytes, lines_of, parse_fields, read_kernel_text

ROLLUP_BUDGET_BYTES = 1 << 30
"""The touched shared memory that is walked page by page in one reading; the rest is read from pagemap. The
kernel takes up to 100 ns a page (benchmarks/memory), 0.03 s in all."""

_PRESENT, _FILE_OR_SHARED, _EXCLUSIVE = np.uint64(1 << 63), np.uint64(1 << 61), np.uint64(1 << 56)
"""Bits of an entry (Documentation/admin-guide/mm/pagemap.rst)."""

_LARGEST_READ_ONLY_BYTES = 64 << 20
"""Read-only mappings of files hold private pages where relocation wrote to them; larger ones are data."""


_GAP_BYTES = 1 << 20
"""2 kB of entries."""

_SEGMENTS = ("/dev/zero", "/SYSV", "/dev/shm/")  # noqa: S108 (a name to look for)
"""Names of shared memory in ordinary pages: the main segment, SysV, POSIX (sysv_shmem.c, dsm_impl.c)."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What any user may read of a process, in bytes; None if this kernel does not report it.

    Attributes:
        pid: here.
        inner_pid: in the innermost PID namespace that it is in, which is how it knows itself.
        title: its command line, which PostgreSQL rewrites: `postgres: checkpointer`.
        rss: resident, everything it ever touched and that is still there, but for huge pages.
        rss_shmem: the part of it that is shared memory.
        page_tables: page tables of all levels but the topmost.
        huge_pages: mapped huge pages of hugetlbfs, private and shared.
    """

    pid: int
    inner_pid: int
    parent: int
    uid: int
    title: str
    rss: int
    rss_anon: int | None
    rss_file: int | None
    rss_shmem: int | None
    page_tables: int
    huge_pages: int | None
    swap: int


@dataclass(frozen=True, slots=True)
class PrivateMemory:
    """The anonymous memory of a process, each page divided by the processes that share it.

    Attributes:
        anonymous: bytes; None where it may not be read.
        shmem: resident shared memory divided likewise; None if this method does not show it.
        method: `smaps_rollup`, `pagemap` or `smaps`.
        refused: why there is no number.
    """

    anonymous: int | None
    shmem: int | None = None
    method: str = ""
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """All of it."""

    status: ProcessStatus
    private: PrivateMemory


def parse_status(text: str, title: str = "") -> ProcessStatus | None:
    """Return what /proc/PID/status says; nothing for what has no memory: a kernel thread, a zombie."""
    fields = parse_fields(text)
    rss = field_bytes(fields, "VmRSS")
    if rss is None:
        return None
    pid = int(fields["Pid"])
    return ProcessStatus(
        pid=pid,
        inner_pid=int(fields.get("NSpid", str(pid)).split()[-1]),
        parent=int(fields["PPid"]),
        uid=int(fields["Uid"].split()[1]),
        title=title or fields.get("Name", ""),
        rss=rss,
        rss_anon=field_bytes(fields, "RssAnon"),
        rss_file=field_bytes(fields, "RssFile"),
        rss_shmem=field_bytes(fields, "RssShmem"),
        # Kernels before 4.15 have page directories on a line of their own.
        page_tables=(field_bytes(fields, "VmPTE") or 0) + (field_bytes(fields, "VmPMD") or 0),
        huge_pages=field_bytes(fields, "HugetlbPages"),
        swap=field_bytes(fields, "VmSwap") or 0,
    )


def parse_smaps_rollup(text: str) -> PrivateMemory | None:
    """Return what /proc/PID/smaps_rollup says; None if it has no line `Pss_Anon` (before 5.4)."""
    fields = parse_fields(text)
    anonymous = field_bytes(fields, "Pss_Anon")
    if anonymous is None:
        return None
    return PrivateMemory(anonymous, field_bytes(fields, "Pss_Shmem"), "smaps_rollup")


def parse_smaps(text: str) -> PrivateMemory:
    """Return what /proc/PID/smaps says, summed up over the private mappings.

    In a private mapping of a file anonymous pages and pages of the file differ by size only; both are
    shared by about as many processes, so their proportional size is divided by their sizes.
    """
    anonymous = shmem = 0.0
    private = True
    fields: dict[str, int] = {}

    def close() -> None:
        nonlocal anonymous, shmem
        if private and fields.get("Rss"):
            anonymous += fields.get("Pss", 0) * fields.get("Anonymous", 0) / fields["Rss"]
        elif not private:
            shmem += fields.get("Pss", 0)

    for line in lines_of(text):
        name, _, value = line.partition(":")
        words = value.split()
        if " " not in name and len(words) == 2 and words[1] == "kB":
            fields[name] = int(words[0]) * 1024
        elif "-" in line.split(" ", 1)[0]:
            close()
            private, fields = line.split()[1].endswith("p"), {}
    close()
    return PrivateMemory(round(anonymous), round(shmem), "smaps")


def private_ranges(maps: str) -> list[tuple[int, int]]:
    """Return the stretches of addresses that may hold private memory.

    Those less than `_GAP_BYTES` apart are joined, since reading costs more by the piece than by the page:
    what lies between holds no private pages, or none that would not count.

    Args:
        maps: as /proc/PID/maps.
    """
    found: list[tuple[int, int]] = []
    for line in lines_of(maps):
        # "start-end perms offset device inode path"
        addresses, permissions, *rest = line.split(maxsplit=5)
        if not permissions.endswith("p") or rest[3:] in (["[vvar]"], ["[vsyscall]"], ["[vvar_vclock]"]):
            continue
        start, end = (int(text, 16) for text in addresses.split("-"))
        if permissions[:3] == "---" or ("w" not in permissions and end - start > _LARGEST_READ_ONLY_BYTES):
            continue
        if found and start - found[-1][1] < _GAP_BYTES:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def own_page_tables(maps: str) -> int:
    """Return the page tables that a process needs for all but shared memory, in bytes.

    Each table of the three lower levels is counted (`table_spans`); mappings that are neighbours share them.
    Stretches of large mappings that were never touched have none, so this is at most.

    Args:
        maps: as /proc/PID/maps.
    """
    tables: set[tuple[int, int]] = set()
    for line in lines_of(maps):
        addresses, permissions, *rest = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in addresses.split("-"))
        reserved = permissions.startswith("---") or rest[3:] == ["[vsyscall]"]
        if permissions.endswith("s") or reserved or end - start > _LARGEST_READ_ONLY_BYTES:
            continue
        for span in table_spans(PAGE_BYTES):
            tables.update((span, index) for index in range(start // span, (end - 1) // span + 1))
    return len(tables) * PAGE_BYTES


def count_pages(entries: np.ndarray) -> tuple[int, int]:
    """Return how many private pages are this process's alone, and how many it shares.

    Args:
        entries: of /proc/PID/pagemap.
    """
    anonymous = entries[((entries & _PRESENT) != 0) & ((entries & _FILE_OR_SHARED) == 0)]
    own = int(np.count_nonzero(anonymous & _EXCLUSIVE))
    return own, len(anonymous) - own


def read_status(pid: int, proc: Path = PROC) -> ProcessStatus | None:
    """Return what any user may read of a process; None if it has ended."""
    folder = proc / str(pid)
    try:
        title = (folder / "cmdline").read_bytes().rstrip(b"\0 ").split(b"\0", 1)[0]
        return parse_status(read_kernel_text(folder / "status"), title.decode(errors="replace"))
    except (OSError, KeyError, ValueError):
        return None


def read_family(
    postmaster_pid: int, proc: Path = PROC, *, parents: Mapping[int, int | None] | None = None
) -> list[ProcessStatus]:
    """Return a postmaster and its children, in order of their ids; those that end meanwhile are left out.

    Args:
        postmaster_pid: the server's first process.
        parents: as `read_parents` returns them, where several families are read.
    """
    found = []
    for pid, parent in sorted((read_parents(proc) if parents is None else parents).items()):
        if postmaster_pid in (pid, parent):
            status = read_status(pid, proc)
            if status is not None:
                found.append(status)
    return found


def read_parents(proc: Path = PROC) -> dict[int, int | None]:
    """Return the parent of each process; None where it cannot be read."""
    names = os.listdir(proc)  # noqa: PTH208 (names suffice, and there may be thousands)
    return {int(name): _parent(f"{proc}/{name}/stat") for name in names if name.isdigit()}


def read_memory(
    processes: Sequence[ProcessStatus], proc: Path = PROC, *, rollup_budget_bytes: int = ROLLUP_BUDGET_BYTES
) -> list[ProcessMemory]:
    """Return the memory of processes of one server; those that end meanwhile are left out.

    Args:
        processes: a postmaster and its children.
        rollup_budget_bytes: see `ROLLUP_BUDGET_BYTES`.
    """
    found: dict[int, PrivateMemory] = {}
    for status in sorted(processes, key=lambda status: status.rss_shmem or status.rss):
        walked = status.rss_shmem or status.rss
        fast = walked > rollup_budget_bytes
        if not fast:
            rollup_budget_bytes -= walked
        private = read_private(status.pid, proc, sharers=len(processes), fast=fast)
        if private is not None:
            found[status.pid] = private
    return [ProcessMemory(status, found[status.pid]) for status in processes if status.pid in found]


def read_private(
    pid: int, proc: Path = PROC, *, sharers: int = 1, fast: bool = False
) -> PrivateMemory | None:
    """Return the private memory of a process; None if it has ended.

    Args:
        pid: the process.
        sharers: how many processes the server has. A page that a backend shares, it shares with the
            postmaster that forked it and, nearly always, with all other children: pages that the postmaster
            wrote to since then are few (tests/memory/test_memory.py compares with smaps_rollup).
        fast: rather by pagemap, whose time does not grow with shared memory.
    """
    folder = proc / str(pid)
    ways: list[Callable[[], PrivateMemory | None]]
    ways = [partial(_by_rollup, folder), partial(_by_pagemap, folder, sharers), partial(_by_smaps, folder)]
    if fast:
        ways[:2] = reversed(ways[:2])
    refused: str | None = None
    for way in ways:
        try:
            found = way()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            refused = error.strerror or str(error)
            continue
        if found is not None:
            return found
    # A process that is ending gives its memory back before it leaves /proc: it has no VmRSS any more.
    if read_status(pid, proc) is None:
        return None
    return PrivateMemory(
        None, refused=f"this user may not read it ({refused})" if refused else "the kernel does not say"
    )


def _by_rollup(folder: Path) -> PrivateMemory | None:
    return parse_smaps_rollup(read_kernel_text(folder / "smaps_rollup"))


def _by_smaps(folder: Path) -> PrivateMemory | None:
    text = read_kernel_text(folder / "smaps")
    # A process that is just ending has no mappings any more.
    return parse_smaps(text) if text else None


def _by_pagemap(folder: Path, sharers: int) -> PrivateMemory | None:
    maps = read_kernel_text(folder / "maps")
    if not maps:
        return None
    descriptor = os.open(folder / "pagemap", os.O_RDONLY)
    try:
        pieces = []
        for start, end in private_ranges(maps):
            first, wanted = start // PAGE_BYTES * 8, (end - start) // PAGE_BYTES * 8
            while wanted > 0:
                data = os.pread(descriptor, min(wanted, 1 << 20), first)
                if not data:
                    break
                pieces.append(data)
                first, wanted = first + len(data), wanted - len(data)
    finally:
        os.close(descriptor)
    own, shared = count_pages(np.frombuffer(b"".join(pieces), dtype=np.uint64))
    return PrivateMemory(round((own + shared / max(1, sharers)) * PAGE_BYTES), method="pagemap")


def _parent(stat: str) -> int | None:
    """Return the parent of the process of a `stat` file: the second field after its name in parentheses."""
    with suppress(OSError, IndexError, ValueError), open(stat, "rb") as file:  # noqa: PTH123 (of thousands)
        return int(file.read().rpartition(b")")[2].split()[1])
    return None


def shared_memory_resident(postmaster_pid: int, proc: Path = PROC) -> int | None:
    """Return how much of a server's shared memory has been allocated by the kernel, in bytes.

    The segments are files of the kernel's own tmpfs, reachable by the links in map_files; how many blocks
    they have is how many of their pages were touched by anybody. Only root may follow those links; for
    others None.

    Args:
        postmaster_pid: the server's first process, which maps them all.
    """
    folder = proc / str(postmaster_pid)
    seen: dict[tuple[int, int], int] = {}
    try:
        for line in lines_of(read_kernel_text(folder / "maps")):
            addresses, permissions, _, _, _, *path = line.split(maxsplit=5)
            if permissions.endswith("s") and path and path[0].startswith(_SEGMENTS):
                status = os.stat(folder / "map_files" / addresses)  # noqa: PTH116 (a link that leads nowhere)
                seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    except OSError:
        return None
    return sum(seen.values())
