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

# port/sysv_shmem.c, `CreateAnonymousSegment`: the hint names the size in whole huge pages.
_LOG_SIZE = re.compile(r"could not map anonymous shared memory|request size \(currently (\d{1,19}) bytes\)")
_MOST_LINE_BYTES = 1 << 16


def read_log(log: IO[bytes]) -> str:
    """Return the last lines of a log that say something about huge pages; it may be longer than memory."""
    found: deque[str] = deque(maxlen=1000)
    while line := log.readline(_MOST_LINE_BYTES):
        text = line.decode(errors="replace")
        if _LOG_SIZE.search(text):
            found.append(text)
    return "".join(found)


def explain_log(text: str) -> HugePagesResult | None:
    """Return what the log of a server that did not start says about huge pages.

    Args:
        text: of the log; the last refusal counts.

    Returns:
        None if the log has no such refusal.
    """
    sizes = [match.group(1) for match in _LOG_SIZE.finditer(text)]
    if not sizes:
        return None
    named = [int(found) for found in sizes if found]
    pools = read_pools()
    pool = next((pool for pool in pools if pool.is_default), None)
    page = pool.size_bytes if pool is not None else USUAL_PAGE_BYTES
    size = named[-1] if named else None
    needed = None if size is None else -(-size // page)
    result = HugePagesResult(
        server_version="",
        huge_pages="on",
        settings={},
        status="off",
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
    around = Circumstances(here=True, not_started=True)
    return msgspec.structs.replace(
        result, reasons=reasons_for(result, around), steps=steps_for(result, around)
    )
