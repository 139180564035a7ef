"""What the log of a server says about huge pages: of one that did not start, or that was killed by them."""

from __future__ import annotations

import re
from collections import deque
from typing import IO

import msgspec

from pgsweep.host.hugepages import check_page_size, read_pools, read_transparent
from pgsweep.memory.hugepages.inspect import USUAL_PAGE_BYTES, pool_record
from pgsweep.memory.hugepages.reasons import Circumstances, reasons_for
from pgsweep.memory.hugepages.steps import steps_for
from pgsweep.records.hugepages import HugePagesMethods, HugePagesResult

# port/sysv_shmem.c, `CreateAnonymousSegment`: the hint names the size in whole huge pages and two settings.
# In some languages it has several lines, and in Chinese it does not name the settings.
_REFUSED = re.compile(r"could not map anonymous shared memory")
_SIZE = re.compile(r"(?<!\d)\d{6,19}(?!\d)")
_HINT_NAMES = ("shared_buffers", "max_connections")
# The kernel granted the pages, and a limit was met when they were touched: by a process (postmaster.c,
# `LogChildExit`: its number, a signal, and the signal in words), or by a read (md.c: so many bytes of so
# many).
_KILLED = re.compile(r"\bsignal 7\b|\bSIGBUS\b|Bus error|\(PID \d{1,10}\)\D{1,60}7(?!\d)\D{0,40}?: ")
_FILE = re.compile(r"\b(?:base|global|pg_tblspc)/[\w./]*\d")
_NUMBER = re.compile(r"\d{1,19}")
_SECTOR = 512
_BLOCK = 8192
_KILLED_WORDS = ("signal 7", "SIGBUS", "Bus error", "(PID ")
# initdb.c runs a server by sh, which says what killed it and ends with 128 + 7. Its output has no tabs.
_INITDB_WORDS = ("exit code 135", "running bootstrap script", "postgres --boot", 'postgres" --boot')
_FILE_WORDS = ("base/", "global/", "pg_tblspc/")
_MOST_LINE_BYTES = 1 << 16
_MOST_LINES = 20


def read_log(log: IO[bytes]) -> str:
    """Return the last entries of a log that say something about huge pages; it may be longer than memory."""
    found: deque[str] = deque(maxlen=1000)
    entry: list[str] = []
    while True:
        line = log.readline(_MOST_LINE_BYTES)
        if not line.startswith(b"\t") or len(entry) >= _MOST_LINES:
            text = "".join(entry)
            if entry and (
                _REFUSED.search(text) or _requested(text) is not None or _killed(text) or _initdb(text)
            ):
                found.append(text)
            entry = []
        if not line:
            return "".join(found)
        entry.append(line.decode(errors="replace"))


def _entries(text: str) -> list[str]:
    """Return the entries of a log: lines with those that continue them, which begin with a tab."""
    return re.split(r"\n(?!\t)", text)


def _message(entry: str) -> str:
    """Return an entry without its prefix: after the severity stand a colon and two spaces (elog.c)."""
    prefix, mark, message = entry.partition(":  ")
    return message if mark else prefix


def _initdb(text: str) -> bool:
    return any(word in text for word in _INITDB_WORDS)


# Words first: an expression searched for in each line takes a minute in a log longer than memory.
def _killed(entry: str) -> bool:
    if any(word in entry for word in _KILLED_WORDS) and _KILLED.search(entry):
        return True
    return any(word in entry for word in _FILE_WORDS) and _is_cut_short(_message(entry))


def _is_cut_short(message: str) -> bool:
    """Return whether a message is of a read of a relation that ended within a block, in any language.

    After the name of the file it ends with the bytes that were read and those that were wanted, in
    either order.
    """
    file = _FILE.search(message)
    numbers = [] if file is None else [int(one) for one in _NUMBER.findall(message[file.end() :])][-2:]
    if len(numbers) < 2:
        return False
    least, most = sorted(numbers)
    return most > 0 and most % _BLOCK == 0 and 0 < least < most and least % _SECTOR == 0


def _requested(entry: str) -> int | None:
    """Return the size that an entry says was requested; None where it says none."""
    named = all(name in entry for name in _HINT_NAMES)
    if not named and "PostgreSQL" not in entry:
        return None
    sizes = _SIZE.findall(_message(entry))
    if named:
        # In CSV the number of a process may stand before it.
        return max(map(int, sizes), default=None)
    # A hint that does not name the settings: only a size that can be one.
    return int(sizes[0]) if len(sizes) == 1 and int(sizes[0]) % (1 << 20) == 0 else None


def requested_bytes(text: str) -> int | None:
    """Return the size that a server requested in vain, by the last entry of a log that names one."""
    sizes = [size for entry in _entries(text) if (size := _requested(entry)) is not None]
    return sizes[-1] if sizes else None


def explain_log(text: str, page_bytes: int | None = None) -> HugePagesResult | None:
    """Return what the log of a server that did not start says about huge pages.

    A size that is no whole number of huge pages was requested in ordinary pages.

    Args:
        text: of the log; the last refusal counts.
        page_bytes: size of the pages that the server wants; the kernel's default by default.

    Returns:
        None if the log says nothing of huge pages.

    Raises:
        UsageError: there are no pages of that size.
    """
    pools = read_pools()
    default = next((pool.size_bytes for pool in pools if pool.is_default), USUAL_PAGE_BYTES)
    check_page_size(page_bytes, pools)
    page = page_bytes or default
    pool = next((pool for pool in pools if pool.size_bytes == page), None)
    size = requested_bytes(text)
    started = size is None and _REFUSED.search(text) is None
    if (started and not any(map(_killed, _entries(text)))) or (size is not None and size % page):
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
        reasons = [_TOUCHED] + ([_INITDB] if _initdb(text) else [])
        return msgspec.structs.replace(result, reasons=reasons)
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
_INITDB = (
    "it was initdb, which reads no postgresql.conf of yours: from PostgreSQL 16 on give it "
    "`-c huge_pages=off` (POSTGRES_INITDB_ARGS of the image); before, write huge_pages = off to "
    "postgresql.conf.sample in the folder that `pg_config --sharedir` names"
)
