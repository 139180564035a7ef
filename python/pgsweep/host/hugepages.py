"""Huge pages: how many the kernel has set aside, and whether a server's shared memory lies in them.

The kernel's Documentation/admin-guide/mm/hugetlbpage.rst. PostgreSQL takes pages of the kernel's default size
unless huge_page_size says otherwise (src/backend/port/sysv_shmem.c, `GetHugePageSize`).

The kernel has one pool for each size of page. What is free in it is not what is available: a server that maps
pages and has not touched them yet has them reserved, so they count as free but are not available.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pgsweep.errors import UsageError
from pgsweep.host.procfile import lines_of, read_kernel_text
from pgsweep.units import format_bytes

_SMALLEST = 64 << 10
"""On arm64 (Documentation/arch/arm64/hugetlbpage.rst)."""

_POOLS = "kernel/mm/hugepages"
_TRANSPARENT = "kernel/mm/transparent_hugepage"


@dataclass(frozen=True, slots=True)
class HugePages:
    """The kernel's pool of huge pages of the default size.

    Attributes:
        total: pages set aside.
        free: those that nobody has, less those that are promised to somebody.
        size_bytes: of one page.
    """

    total: int
    free: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """The main shared memory of a server.

    Attributes:
        size_bytes: its size.
        huge: whether it consists of huge pages.
        start: its address in the postmaster and so in all its children.
        system_v: whether it is a segment of System V.
    """

    size_bytes: int
    huge: bool
    start: int = field(default=0, compare=False)
    system_v: bool = False


@dataclass(frozen=True, slots=True)
class Pool:
    """The kernel's pool of huge pages of one size.

    Attributes:
        size_bytes: of one page.
        is_default: the size that PostgreSQL takes when huge_page_size is 0.
        total: pages that exist, surplus pages too.
        free: those that no process has touched.
        reserved: those among the free ones that are promised to a process.
        surplus: those beyond nr_hugepages, made on demand and given back by themselves.
        overcommit: how many surplus pages the kernel may try to make on demand.
    """

    size_bytes: int
    is_default: bool
    total: int
    free: int
    reserved: int
    surplus: int
    overcommit: int

    @property
    def available(self) -> int:
        """Return how many pages a server that starts now can count on."""
        return self.free - self.reserved

    @property
    def persistent(self) -> int:
        """Return how many pages are set aside: those that stay when no program uses them.

        What nr_hugepages shows has surplus pages too; what is written to it is this.
        """
        return self.total - self.surplus

    def after_stop(self, own: int) -> int:
        """Return how many pages are available once a server has given back its own.

        As long as there are surplus pages, each page that is freed is one of them, and gone (mm/hugetlb.c,
        `free_huge_folio`). Whether the kernel makes others on demand (`overcommit`) is not certain.

        Args:
            own: pages that the server has now.
        """
        return self.available + max(0, own - self.surplus)

    def on_demand(self, own: int) -> int:
        """Return how many more the kernel may then make on demand, if it finds the memory.

        Args:
            own: pages that the server has now.
        """
        return max(0, self.overcommit - max(0, self.surplus - own))

    def target(self, needed: int, own: int = 0) -> int:
        """Return how many must be set aside for a server that starts once it has given back its own pages.

        Args:
            needed: by the server.
            own: that it has now.
        """
        return self.persistent + max(0, needed - self.after_stop(own))


_READINGS = 10
"""How often counts that keep changing are read, at most."""


def read_pools(sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> list[Pool]:
    """Return the pools of all sizes, the default size first; none where the kernel was built without.

    Args:
        sys: the sysfs to read (a captured tree in tests).
        proc: the proc file system likewise; it says which size is the default.
    """
    default = read_huge_pages(proc)
    found = []
    for folder in (sys / _POOLS).glob("hugepages-*kB"):
        try:
            total, free, reserved, surplus = _counts(folder)
        except (OSError, ValueError):
            continue
        overcommit = 0
        with suppress(OSError, ValueError):  # pages of 1 GB cannot be made on demand
            overcommit = int((folder / "nr_overcommit_hugepages").read_text())
        size_bytes = int(folder.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        is_default = default is not None and default.size_bytes == size_bytes
        found.append(Pool(size_bytes, is_default, total, free, reserved, surplus, overcommit))
    return sorted(found, key=lambda pool: (not pool.is_default, pool.size_bytes))


def check_page_size(size_bytes: int | None, pools: Sequence[Pool]) -> None:
    """Check that there are huge pages of a size; None is whatever the server or the kernel takes.

    Args:
        size_bytes: of one page.
        pools: of the server's host; none where it is another one.

    Raises:
        UsageError: this kernel has none, or none can have them.
    """
    if size_bytes is None:
        return
    sizes = [pool.size_bytes for pool in pools]
    if sizes and size_bytes not in sizes:
        known = " and ".join(map(format_bytes, sorted(sizes)))
        raise UsageError(
            f"there are no huge pages of {format_bytes(size_bytes)}", hint=f"this host's kernel has {known}"
        )
    if size_bytes < _SMALLEST or size_bytes & (size_bytes - 1):
        raise UsageError(
            f"there are no huge pages of {format_bytes(size_bytes)}", hint="on x86-64 there are 2MB and 1GB"
        )


def _counts(folder: Path) -> list[int]:
    """Return total, free, reserved and surplus pages of a pool, read at the same time.

    The file nr_hugepages counts surplus pages too (mm/hugetlb.c, `nr_hugepages_show_common`): where a server
    ends between the reading of two files, its surplus pages would count as kept ones. So all are read until
    they agree with what was read before.

    Raises:
        OSError, ValueError: a file cannot be read, or has no number.
    """
    names = ("nr_hugepages", "free_hugepages", "resv_hugepages", "surplus_hugepages")
    found = [int((folder / name).read_text()) for name in names]
    for _ in range(_READINGS):
        before, found = found, [int((folder / name).read_text()) for name in names]
        if found == before:
            break
    return found


def pool_file(size_bytes: int, sys: Path = Path("/sys")) -> Path:
    """Return the file that says how many pages of a size the kernel shall keep, and takes another number."""
    return sys / _POOLS / f"hugepages-{size_bytes // 1024}kB" / "nr_hugepages"


def read_transparent(sys: Path = Path("/sys")) -> dict[str, str]:
    """Return what the kernel does with transparent huge pages: enabled, defrag, shmem_enabled.

    Args:
        sys: the sysfs to read.
    """
    found = {}
    for name in ("enabled", "defrag", "shmem_enabled"):
        with suppress(OSError):
            chosen = re.search(r"\[([^]]+)\]", (sys / _TRANSPARENT / name).read_text())
            if chosen is not None:
                found[name] = chosen.group(1)
    return found


def read_huge_pages(proc: Path = Path("/proc")) -> HugePages | None:
    """Return the pool of huge pages, or None if the kernel was built without."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return None
    values = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
    if "HugePages_Total" not in values:
        return None
    return HugePages(
        total=values["HugePages_Total"],
        free=values["HugePages_Free"] - values["HugePages_Rsvd"],
        size_bytes=values["Hugepagesize"] * 1024,
    )


def shared_memory(pid: int, proc: Path = Path("/proc")) -> SharedMemory | None:
    """Return the main shared memory of a postmaster: its largest shared mapping that is no file.

    The kernel names such a mapping `/anon_hugepage` when it was made with MAP_HUGETLB, else `/dev/zero`
    (fs/hugetlbfs/inode.c, `hugetlb_file_setup`; mm/shmem.c, `shmem_zero_setup`). With shared_memory_type =
    sysv it is a segment of System V, `/SYSV` and its key (ipc/shm.c, `newseg`), never in huge pages; with
    mmap there is a small one besides, which is not the largest.

    Args:
        pid: the postmaster.
    """
    try:
        lines = lines_of(read_kernel_text(proc / str(pid) / "maps"))
    except OSError:
        return None
    found = []
    for line in lines:
        # "start-end perms offset device inode path"
        addresses, permissions, _, _, _, *path = line.split(maxsplit=5)
        name = path[0].removesuffix(" (deleted)") if path else ""
        if permissions.endswith("s") and (
            name in {"/anon_hugepage", "/dev/zero"} or name.startswith("/SYSV")
        ):
            start, end = (int(text, 16) for text in addresses.split("-"))
            system_v = name.startswith("/SYSV")
            found.append(SharedMemory(end - start, name == "/anon_hugepage", start, system_v))
    return max(found, key=lambda mapping: mapping.size_bytes, default=None)
