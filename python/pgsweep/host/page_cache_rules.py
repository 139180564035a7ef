"""How this kernel keeps the pages of files: which lists, how far it reads ahead, in pieces of what size.

| what | from | source |
|---|---|---|
| multi-generational LRU | 6.1, where it is compiled in and enabled |
Documentation/admin-guide/mm/multigen_lru.rst |
| memory paged out as idle | 5.16, where DAMON is set to do so |
Documentation/admin-guide/mm/damon/usage.rst, reclaim.rst |
| large folios on xfs | 5.18 | fs/xfs/xfs_iops.c, mapping_set_large_folios |
| large folios on ext4 | 6.16 | fs/ext4/inode.c, ext4_set_inode_mapping_order |
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pgsweep.host.kernel import SYS, device_of
from pgsweep.host.procfile import PROC, lines_of, read_kernel_text

_LARGE_FOLIOS_FROM: Final = {"xfs": (5, 18), "ext4": (6, 16)}
_LARGEST_ORDER: Final = 9
"""MAX_PAGECACHE_ORDER, include/linux/pagemap.h, with pages of 4 kB."""

_MGLRU_CORE: Final = 1
"""Bit of lru_gen/enabled that switches the lists."""

DEFAULT_READAHEAD_BYTES: Final = 128 << 10
"""VM_READAHEAD_PAGES, include/linux/mm.h."""

STATISTICS_SECONDS: Final = 2.0
"""How old the statistics of a memory cgroup get (FLUSH_TIME, mm/memcontrol.c)."""


@dataclass(frozen=True, slots=True)
class PageCacheRules:
    """The rules of the page cache that holds a file.

    Attributes:
        mglru: the multi-generational LRU is enabled, so the two lists are not what runs.
        pages_out_idle: DAMON pages out what was not accessed for a while, although there is room; None where
            this process may not see it.
        readahead_bytes: of the file's device.
        folio_order: the largest folio of its file system, as a power of two of pages; 0 is one page.
    """

    mglru: bool
    pages_out_idle: bool | None
    readahead_bytes: int
    folio_order: int


def read_page_cache_rules(
    path: Path, *, release: str | None = None, proc: Path = PROC, sys: Path = SYS
) -> PageCacheRules:
    """Return the rules for a file or folder.

    Args:
        path: a file of the server's data, or its folder; may be a link below /proc.
        release: of the kernel; this one's by default.

    Raises:
        OSError: the path may not be looked at.
    """
    number = path.stat().st_dev
    device = device_of(number, sys)
    readahead = DEFAULT_READAHEAD_BYTES if device is None else device.read_ahead_bytes
    kind = _file_system(number, proc)
    since = _LARGE_FOLIOS_FROM.get(kind)
    large = since is not None and _version(release or platform.release()) >= since
    return PageCacheRules(_mglru(sys), _pages_out_idle(sys), readahead, _LARGEST_ORDER if large else 0)


def rules_of_data(postmaster_pid: int) -> PageCacheRules:
    """Return the rules for a server's data directory.

    Raises:
        OSError: the directory may not be looked at, or the server has gone.
    """
    return read_page_cache_rules(PROC / str(postmaster_pid) / "cwd")


def _mglru(sys: Path) -> bool:
    with suppress(OSError, ValueError):
        return bool(int((sys / "kernel/mm/lru_gen/enabled").read_text(), 16) & _MGLRU_CORE)
    return False


def _pages_out_idle(sys: Path) -> bool | None:
    """Return whether DAMON takes idle pages: its module does, or a thread with a scheme that pages out."""
    try:
        reclaim = sys / "module/damon_reclaim/parameters/enabled"
        if reclaim.exists() and reclaim.read_text().strip() == "Y":
            return True
        for thread in (sys / "kernel/mm/damon/admin/kdamonds").glob("[0-9]*"):
            if (thread / "state").read_text().strip() != "on":
                continue
            actions = thread.glob("contexts/[0-9]*/schemes/[0-9]*/action")
            if any(action.read_text().strip() == "pageout" for action in actions):
                return True
    except OSError:
        return None
    return False


def _file_system(number: int, proc: Path) -> str:
    """Return the type of the file system with this device number; empty where it is not mounted here."""
    wanted = f"{os.major(number)}:{os.minor(number)}"
    with suppress(OSError):
        for line in lines_of(read_kernel_text(proc / "self/mountinfo")):
            left, _, right = line.partition(" - ")
            if left.split(" ")[2] == wanted:
                return right.split(" ")[0]
    return ""


def _version(release: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", release)
    return (int(found[1]), int(found[2])) if found else (0, 0)
