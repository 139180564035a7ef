"""How a server stands with what its host gives it: huge pages, room below a limit, settings that wait.

Looked at once a minute: one statement, and what is seen of the host's memory anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pgsweep.advice.huge_pages import LEAST_SHARE
from pgsweep.host.hugepages import HugePages, read_huge_pages
from pgsweep.pg.catalog.manager import Source, read_sources
from pgsweep.pg.session.connect import Connection
from pgsweep.records.memory import MemoryResult
from pgsweep.records.serve import ServeStanding

_NAMES: Final = ("huge_pages", "shared_memory_type", "shared_memory_size_in_huge_pages", "huge_page_size")


def standing_of(connection: Connection, seen: MemoryResult | None) -> ServeStanding:
    """Return how the server stands.

    Args:
        connection: a session on it.
        seen: of its processes; None where they are not on this host.
    """
    sources = read_sources(connection, _NAMES)
    wanted = pages_wanted(sources)
    used = missing = None
    if seen is not None and wanted is not None and seen.huge_pages is not None:
        used = wanted if seen.huge_pages else 0
        pays = seen.totals.page_tables_bytes >= LEAST_SHARE * seen.host.memory_bytes
        missing = 0 if seen.huge_pages else pages_missing(sources, wanted, read_huge_pages(), pays=pays)
    memory = None if seen is None or seen.place is None else seen.place.memory
    return ServeStanding(
        huge_pages_wanted=wanted,
        huge_pages_used=used,
        huge_pages_missing=missing,
        memory_limit_bytes=None if memory is None else memory.limit_bytes,
        memory_room_bytes=None if memory is None else memory.available_bytes,
        pending_restart=sorted(name for name, one in sources.items() if one.pending),
    )


def pages_wanted(sources: Mapping[str, Source]) -> int | None:
    """Return how many huge pages the server asks for: 0 where it wants none, None where it does not say.

    It says it from version 15 on (shared_memory_size_in_huge_pages): one more than it needs where its memory
    is a whole number of pages.
    """
    values = {name: sources[name].value for name in _NAMES if name in sources}
    if values.get("huge_pages") == "off" or values.get("shared_memory_type", "mmap") != "mmap":
        return 0
    number = values.get("shared_memory_size_in_huge_pages", "")
    return int(number) if number.isdecimal() else None


def pages_missing(sources: Mapping[str, Source], wanted: int, pool: HugePages | None, *, pays: bool) -> int:
    """Return how many huge pages are wanted beyond those that the kernel has free in its usual size.

    With the defaults (`huge_pages = try`, no size named) and a kernel without huge pages none are missing:
    that is how PostgreSQL is installed, and no fault.

    Args:
        pays: page tables take so much of the memory that `advise` has huge pages set; otherwise none are
            missing where `huge_pages` is `try`.
    """
    named = sources["huge_page_size"].value if "huge_page_size" in sources else "0"
    usual = pool is not None and named in ("0", str(pool.size_bytes // 1024))
    free = max(0, pool.free) if pool is not None and usual else 0
    unmeant = not pays or (named == "0" and (pool is None or pool.total == 0))
    return 0 if unmeant and sources["huge_pages"].value == "try" else max(0, wanted - free)
