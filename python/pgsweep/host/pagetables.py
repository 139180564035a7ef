"""Page tables of a server's processes: their present size, and their size with huge pages.

Each process has page tables of its own for the shared memory that it has touched: 8 bytes a page, in pieces
of a page. With pages of 4 kB a piece maps 2 MB. Huge pages of 2 MB need none of these pieces: their entries
stand one level higher, in pieces that are there anyway. /proc/PID/status has it all, and anybody may read it:

    VmPTE          page tables of all levels (fs/proc/task_mmu.c)
    RssShmem       shared memory touched in ordinary pages
    HugetlbPages   shared memory touched in huge pages

How many pieces map shared memory is not shown there. /proc/PID/pagemap shows it (bit 63: the page is mapped),
to its user and root, at 8 bytes a page; it is read for as many processes as a budget allows. What those
have for code and private memory is nearly the same in all processes, so the rest is estimated from them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pgsweep.host.hugepages import SharedMemory
from pgsweep.host.pages import ENTRY_BYTES, PAGE_BYTES, table_spans
from pgsweep.host.procfile import PROC, field_bytes, parse_fields, read_kernel_text
from pgsweep.host.procmem import ProcessStatus, own_page_tables

PIECE_BYTES = PAGE_BYTES
"""Of a page table of the last level."""
MAPPED_BYTES, _, _ = table_spans(PAGE_BYTES)
"""What such a piece maps."""
_PAGES = MAPPED_BYTES // PAGE_BYTES
"""The entries of a piece."""

_PRESENT = np.uint64(1 << 63)
_BUDGET_BYTES = 64 << 20
"""Of pagemap, in all: a shared memory of 32 GB in one process, of 1 GB in 32; some 50 ms."""


@dataclass(frozen=True, slots=True)
class Model:
    """Page tables of a server with and without huge pages.

    Attributes:
        with_huge_bytes: of all processes, were the shared memory in huge pages.
        without_huge_bytes: of all processes, were it in ordinary pages.
    """

    with_huge_bytes: int
    without_huge_bytes: int

    @property
    def saved_bytes(self) -> int:
        """What huge pages save, or would save: the page tables that map shared memory in ordinary pages."""
        return max(0, self.without_huge_bytes - self.with_huge_bytes)


def vm_peak_bytes(pid: int, proc: Path = Path("/proc")) -> int | None:
    """Return VmPeak of a process: the most address space that it ever had; None if it is gone."""
    try:
        return field_bytes(parse_fields(read_kernel_text(proc / str(pid) / "status")), "VmPeak")
    except OSError:
        return None


def read_pieces(pid: int, memory: SharedMemory, proc: Path = Path("/proc")) -> int | None:
    """Return how many pieces map the shared memory of a process; None if that may not be read."""
    first = memory.start // MAPPED_BYTES * MAPPED_BYTES
    end = memory.start + memory.size_bytes
    pieces = 0
    try:
        with (proc / str(pid) / "pagemap").open("rb", buffering=0) as pagemap:
            for address in range(first, end, _PAGES * MAPPED_BYTES):
                pages = min(_PAGES * _PAGES, -(-(end - address) // PAGE_BYTES))
                pagemap.seek(address // PAGE_BYTES * 8)
                entries = np.frombuffer(pagemap.read(pages * 8), dtype=np.uint64)
                present = np.flatnonzero(entries & _PRESENT) // _PAGES
                pieces += len(np.unique(present))
    except (OSError, ValueError):
        return None
    return pieces


def model(tables: list[ProcessStatus], memory: SharedMemory, proc: Path = PROC) -> Model:
    """Return what the page tables would be with and without huge pages.

    Args:
        tables: at least one process.
        memory: the server's shared memory; without a start its pages are not read.
    """
    private = [(t.rss_anon or 0) // _PAGES for t in tables]
    least = [_pieces(t.rss_shmem or 0) * PIECE_BYTES for t in tables]
    most = [min((t.rss_shmem or 0) // PAGE_BYTES, _pieces(memory.size_bytes)) * PIECE_BYTES for t in tables]
    looked_at = []
    if memory.start and not memory.huge:
        affordable = max(1, _BUDGET_BYTES // (memory.size_bytes // _PAGES + 1))
        for index, process in enumerate(tables[:affordable]):
            pieces = read_pieces(process.pid, memory, proc)
            if pieces is not None:
                least[index] = most[index] = pieces * PIECE_BYTES
                looked_at.append(index)
    of_base = looked_at or range(len(tables))
    base = max(0, min(tables[i].page_tables - private[i] - least[i] for i in of_base))
    # Of each process: what maps shared memory in ordinary pages.
    mapping = [
        min(max(t.page_tables - base - p, low), high)
        for t, p, low, high in zip(tables, private, least, most, strict=True)
    ]
    now = sum(t.page_tables for t in tables)
    if memory.huge:
        return Model(now, now + sum(_pieces(t.huge_pages or 0) * PIECE_BYTES for t in tables))
    return Model(now - sum(mapping), now)


def page_tables_of(touched_bytes: int, page_bytes: int = PAGE_BYTES) -> int:
    """Return the page tables that one process needs for shared memory that it has touched in one piece.

    With pages of 4 kB the kernel has one for each 2 MB, and on the level above, where huge pages of 2 MB have
    their entries, one for each 1 GB (`table_spans`). What lies above those a process has anyway.

    Args:
        touched_bytes: shared memory.
        page_bytes: size of the kernel's pages, or of the huge pages that it lies in.
    """
    spans = table_spans(PAGE_BYTES)[:2]
    return sum(-(-touched_bytes // span) * PAGE_BYTES for span in spans if span > page_bytes)


def own_tables(pid: int, page_tables_bytes: int, touched_bytes: int, proc: Path = PROC) -> int:
    """Return the page tables of a process without those for shared memory.

    What it has less the entries for what it touched is too much where it touched a little here and there:
    each table of 4 kB serves 2 MB. What its other mappings need at most is the other bound
    (`own_page_tables`).

    Args:
        pid: the process.
        page_tables_bytes: all that it has.
        touched_bytes: shared memory that it has touched in ordinary pages.
    """
    bound = page_tables_bytes - touched_bytes // PAGE_BYTES * ENTRY_BYTES
    with suppress(OSError):
        maps = read_kernel_text(proc / str(pid) / "maps")
        bound = min(bound, own_page_tables(maps)) if maps else bound
    return max(0, bound)


def _pieces(size_bytes: int) -> int:
    return -(-size_bytes // MAPPED_BYTES)
