"""What the log of a server says about huge pages: of one that did not start, or that was killed by them."""

from __future__ import annotations

import re
from collections import deque
from typing import IO

import msgspec

from pgsweep.host.hugepages import read_pools, read_transparent
from pgsweep.memory.hugepages.inspect import USUAL_PAGE_BYTES, pool_record
from pgsweep.memory.hugepages.reasons import Circumstances, reasons_for
from pgsweep.memory.hugepages.steps import steps_for
from pgsweep.records.hugepages import HugePagesMethods, HugePagesResult

# port/sysv_shmem.c, `CreateAnonymousSegment`: the hint names the size in whole huge pages, and two settings,
# whatever language it is in.
_REFUSED = re.compile(r"could not map anonymous shared memory")
_HINT = re.compile(r"(?<!\d)(\d{6,19})(?!\d)")
_HINT_NAMES = ("shared_buffers", "max_connections")
# The kernel granted the pages, and a limit was met when they were touched: by a process, or by a read.
_KILLED = re.compile(r"\bsignal 7\b|\bSIGBUS\b|Bus error|\b\d{1,4} (?:of|von|sur|de|di|из|/) 8192\b")
_KILLED_WORDS = ("signal 7", "SIGBUS", "Bus error", " 8192")
_MOST_LINE_BYTES = 1 << 16


def read_log(log: IO[bytes]) -> str:
    """Return the last lines of a log that say something about huge pages; it may be longer than memory."""
    found: deque[str] = deque(maxlen=1000)
    while line := log.readline(_MOST_LINE_BYTES):
        text = line.decode(errors="replace")
        if _REFUSED.search(text) or _hint(text) or _killed(text):
            found.append(text)
    return "".join(found)


# Words first: an expression searched for in each line takes a minute in a log longer than memory.
def _killed(text: str) -> re.Match[str] | None:
    return _KILLED.search(text) if any(word in text for word in _KILLED_WORDS) else None


def _hint(line: str) -> re.Match[str] | None:
    return _HINT.search(line) if all(name in line for name in _HINT_NAMES) else None


def requested_bytes(text: str) -> int | None:
    """Return the size that a server requested in vain, by the last line of a log that names one."""
    sizes = [int(found[1]) for line in text.splitlines() if (found := _hint(line))]
    return sizes[-1] if sizes else None


def explain_log(text: str, page_bytes: int | None = None) -> HugePagesResult | None:
    """Return what the log of a server that did not start says about huge pages.

    A size that is no whole number of huge pages was requested in ordinary pages.

    Args:
        text: of the log; the last refusal counts.
        page_bytes: size of the pages that the server wants; the kernel's default by default.

    Returns:
        None if the log says nothing of huge pages.
    """
    pools = read_pools()
    default = next((pool.size_bytes for pool in pools if pool.is_default), USUAL_PAGE_BYTES)
    page = page_bytes or default
    pool = next((pool for pool in pools if pool.size_bytes == page), None)
    size = requested_bytes(text)
    started = size is None and _REFUSED.search(text) is None
    if (started and _killed(text) is None) or (size is not None and size % page):
        return None
    needed = None if size is None else -(-size // page)
    result = HugePagesResult(
        server_version="",
        huge_pages="on",
        settings={},
        status="unknown" if started else "off",
        shared_buffers_bytes=0,
        shared_memory_bytes=size,
        huge_pages_needed=needed,
        huge_page_size_bytes=page,
        available=pool.available if pool else None,
        target=None if pool is None or needed is None else pool.target(needed),
        reasons=[],
        methods=HugePagesMethods(exact=needed, server=None, vmpeak=None),
        page_tables=None,
        pools=[pool_record(p, size) for p in pools],
        transparent=read_transparent(),
        steps=[],
    )
    if started:
        return msgspec.structs.replace(result, reasons=[_TOUCHED])
    around = Circumstances(here=True, not_started=True)
    return msgspec.structs.replace(
        result, reasons=reasons_for(result, around), steps=steps_for(result, around)
    )


_TOUCHED = (
    "the kernel granted huge pages to the server, and did not have them when they were touched: it "
    "sends SIGBUS "
    "then, and cuts reads into them short (`read only 5120 of 8192 bytes`). Look at the limit of its hugetlb "
    "cgroup (hugetlb.2MB.max; in a pod resources.limits.hugepages-2Mi), or set huge_pages = off"
)
