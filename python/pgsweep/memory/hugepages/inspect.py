"""Huge pages for a server: how many exactly, whether it uses them, why not, and what they would save.

    result = examine("dbname=shop")
    result = examine("dbname=shop", settings={"shared_buffers": "128GB", "max_connections": "1000"})

Costs the server a few short statements and nothing else; page tables are read from /proc/PID/status of its
processes. What changes the host is in apply.py.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from pgsweep.commands import sudo, this_command
from pgsweep.errors import ClusterError
from pgsweep.host.hugepages import (
    Pool,
    SharedMemory,
    check_page_size,
    read_pools,
    read_transparent,
    shared_memory,
)
from pgsweep.host.limits import UNLIMITED, HugeLimits, huge_page_limits
from pgsweep.host.pagetables import model, own_tables, page_tables_of, vm_peak_bytes
from pgsweep.host.postmaster import Search, search, user_of, why_not_linux
from pgsweep.host.procmem import ProcessStatus, read_family
from pgsweep.memory.hugepages.reasons import Circumstances, reasons_for
from pgsweep.memory.hugepages.steps import steps_for
from pgsweep.memory.processes import CLIENT
from pgsweep.pg.catalog.activity import read_activity
from pgsweep.pg.catalog.next_start import NextStart, read_next_start
from pgsweep.pg.catalog.place import read_place
from pgsweep.pg.catalog.server import Server, read_postmaster, read_server
from pgsweep.pg.private.bindir import ServerBinaries
from pgsweep.pg.private.sharedmemory import ScratchServer, SharedMemoryFacts, find_release, read_facts
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.records.hugepages import (
    HugePagePool,
    HugePagesMethods,
    HugePagesResult,
    PageTables,
)
from pgsweep.records.place import Place
from pgsweep.units import bytes_of, format_count

_SAMPLE = 8
"""The number of connections whose mappings are read: they are alike."""

_SIZED_BY = ("max_", "autovacuum_", "min_dynamic_shared_memory")
"""How settings begin that shared memory is sized by, besides those that end in `_buffers`."""

USUAL_PAGE_BYTES = 2 << 20
"""The default size on x86-64 and, with pages of 4 kB, on arm64; assumed where the host cannot be seen."""


class _Size(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the shared memory, or the best estimate; `notes` say why it is not exact."""

    exact_bytes: int | None
    likely_bytes: int | None
    notes: list[str]


def examine(
    conninfo: str,
    *,
    settings: Mapping[str, str] | None = None,
    page_bytes: int | None = None,
    connections: int | None = None,
    scratch: ScratchServer | None = None,
    pending: bool = True,
) -> HugePagesResult:
    """Return how many huge pages a server needs when it starts next, with its settings or with others.

    Args:
        conninfo: as libpq understands it.
        settings: to be asked about instead of the server's own, as in postgresql.conf.
        page_bytes: size of the pages; the server's or the kernel's default by default.
        connections: for how many to predict page tables; max_connections by default.
        scratch: for asking about other settings, where the caller has one of the server's release already.
        pending: with the settings that wait for a restart; without them, as it runs now.

    Raises:
        UsageError: the text is not a connection string, or there are no pages of that size.
        ConnectionFailed: the server cannot be reached, or went away.
        ClusterError: the server does not take the settings.
    """
    seen = _see(conninfo, pending=pending)
    coming = _Coming.of(seen.start, settings or {})
    changes, pid = coming.changes, seen.pid
    pages = _Pages.of(seen, changes, page_bytes, scratch)
    result = _result(seen, pages, changes, asked_bytes=page_bytes, connections=connections)
    limits = UNLIMITED if pid is None else huge_page_limits(pid, pages.page_bytes)
    result = _with_limits(result, limits, pages.own, seen.family)
    around = Circumstances(
        pid=pid,
        here=seen.here,
        may_be_here=not seen.here and bool(seen.found.closed),
        shared_memory_type=result.shared_memory_type,
        limits=limits,
        uncounted=bool(coming.uncounted),
    )
    notes = [*pages.size.notes, *coming.notes]
    return msgspec.structs.replace(
        result, reasons=[*reasons_for(result, around), *notes], steps=steps_for(result, around)
    )


def _result(
    seen: _Seen, pages: _Pages, changes: dict[str, str], *, asked_bytes: int | None, connections: int | None
) -> HugePagesResult:
    """Return what is counted, without reasons and steps.

    Args:
        seen: the server.
        pages: that it needs.
        changes: settings that it is asked about.
        asked_bytes: size of the pages, where it was asked for.
        connections: for how many to predict page tables.
    """
    server, facts, pid, page = seen.server, seen.facts, seen.pid, pages.page_bytes
    likely, exact, pool = pages.size.likely_bytes, pages.size.exact_bytes, pages.pool
    buffers = changes.get("shared_buffers", f"{server.shared_buffers_blocks}")
    return HugePagesResult(
        server_version=server.version,
        database=server.database,
        huge_pages=facts.huge_pages,
        settings=changes,
        status=_status(facts, pages.mapping),
        shared_buffers_bytes=bytes_of(buffers, server.block_size_bytes),
        shared_memory_bytes=likely,
        huge_pages_needed=pages.needed,
        huge_page_size_bytes=page,
        available=None if pool is None else pool.available,
        target=None if pool is None or pages.needed is None else pool.target(pages.needed, pages.own),
        reasons=[],
        methods=HugePagesMethods(
            exact=None if exact is None else -(-exact // page),
            server=facts.server_pages if not changes and asked_bytes is None else None,
            vmpeak=None if changes or pid is None else _vmpeak(pid, page),
        ),
        page_tables=_page_tables(
            [one for one in seen.family if one.inner_pid not in seen.ours],
            pages.mapping,
            pages.size,
            own_tables_bytes=seen.own_tables_bytes,
            huge_page_bytes=page,
            connections=connections or _connections(facts, changes),
        ),
        pools=[pool_record(p, likely) for p in pages.pools],
        transparent=read_transparent() if seen.here else {},
        steps=[],
        missing=_missing(seen.here, seen.found, pid),
        own_pages=pages.own,
        after_stop=None if pool is None else pool.after_stop(pages.own),
        shared_memory_type=changes.get("shared_memory_type", facts.shared_memory_type),
        place=seen.place,
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a session and the host show of a server.

    Attributes:
        found: the search for its process.
        pid: of the postmaster, where it runs here and may be looked at.
        start: what waits for its next start.
        family: its processes.
        ours: those of pgsweep, as the server knows them.
        own_tables_bytes: page tables that a connection has for itself.
    """

    server: Server
    facts: SharedMemoryFacts
    found: Search
    pid: int | None
    place: Place
    start: NextStart
    family: list[ProcessStatus]
    ours: set[int]
    own_tables_bytes: int

    @property
    def here(self) -> bool:
        """Whether it runs on this host, also where its process may not be looked at."""
        return self.pid is not None or self.facts.by_socket


def _see(conninfo: str, *, pending: bool) -> _Seen:
    with connect(conninfo) as connection, explained():
        server = read_server(connection)
        facts = read_facts(connection)
        process = read_postmaster(connection)
        activity = read_activity(connection).values()
        ours = {one.pid for one in activity if one.pgsweep}
        clients = {one.pid for one in activity if one.kind == CLIENT} - ours
        found = search(*process)
        place = read_place(connection, found.pid)
        # The pages are taken when the server starts next: with the values that wait for that.
        start = read_next_start(connection) if pending else NextStart({}, [])
        pid = found.pid
        if pid is None and facts.by_socket and len(found.closed) == 1:
            pid = found.closed[0]  # much about a process anybody may read
        # As long as the session lives: where there is no other, it shows what a connection has.
        family = read_family(pid) if pid is not None else []
        own_tables_bytes = _own_tables(family, clients, connection.info.backend_pid)
    return _Seen(server, facts, found, pid, place, start, family, ours, own_tables_bytes)


@dataclass(frozen=True, slots=True)
class _Coming:
    """Settings that the server has when it starts next, and that decide how many pages it needs.

    Attributes:
        changes: all that differ from those of now.
        uncounted: names of those whose effect is not known.
        notes: what is to be said of them.
    """

    changes: dict[str, str]
    uncounted: list[str]
    notes: list[str]

    @classmethod
    def of(cls, start: NextStart, asked: Mapping[str, str]) -> _Coming:
        """Return those that wait for the next start, and those that are asked about instead."""
        waiting = start.pending
        sizes = {k: v for k, v in waiting.items() if k.startswith(_SIZED_BY) or k.endswith("_buffers")}
        changes = {**{name: value for name, value in sizes.items() if value is not None}, **asked}
        takes_more = {*sizes, "shared_preload_libraries"}
        uncounted = [name for name in waiting if name in takes_more and name not in changes]
        notes = []
        if counted := [name for name in sizes if name in changes]:
            notes.append(f"{', '.join(counted)}: another value waits for the next start already")
        if uncounted:
            notes.append(f"not counted: what waits for the next start of {', '.join(uncounted)}")
            notes += [] if start.unseen is None else [start.unseen]
        return cls(changes, uncounted, notes)


@dataclass(frozen=True, slots=True)
class _Pages:
    """The huge pages that the shared memory takes, and those that the kernel has.

    Attributes:
        size: of the shared memory.
        mapping: of the shared memory, where it can be looked at.
        pools: the kernel's.
        page_bytes: size of the pages.
        own: how many the server has now.
    """

    size: _Size
    mapping: SharedMemory | None
    pools: list[Pool]
    page_bytes: int
    own: int

    @classmethod
    def of(
        cls, seen: _Seen, changes: Mapping[str, str], asked_bytes: int | None, scratch: ScratchServer | None
    ) -> _Pages:
        """Return those that a server needs with changed settings; with pages of the size that is asked for.

        Raises:
            UsageError: there are no pages of that size.
            ClusterError: the server does not take the settings.
        """
        facts, pid = seen.facts, seen.pid
        pools = read_pools() if seen.here else []
        check_page_size(asked_bytes, pools)
        mapping = shared_memory(pid) if pid is not None else None
        usual = next((pool.size_bytes for pool in pools if pool.is_default), USUAL_PAGE_BYTES)
        page = asked_bytes or facts.huge_page_bytes or usual
        if changes:
            binaries = find_release(seen.found.pid, seen.server.version_num)
            size = _with_other_settings(facts, mapping, changes, binaries, scratch)
        else:
            size = _of_running(facts, mapping, page)
        own = -(-mapping.size_bytes // page) if mapping is not None and mapping.huge else 0
        if facts.huge_page_bytes not in (0, page):
            own = 0  # the server's pages are of another size
        return cls(size, mapping, pools, page, own)

    @property
    def needed(self) -> int | None:
        """How many are needed; None where the size is not known."""
        likely = self.size.likely_bytes
        return None if likely is None else -(-likely // self.page_bytes)

    @property
    def pool(self) -> Pool | None:
        """The kernel's pool of pages of this size."""
        return next((pool for pool in self.pools if pool.size_bytes == self.page_bytes), None)


def _with_limits(
    result: HugePagesResult, limits: HugeLimits, own_pages: int, family: Sequence[ProcessStatus]
) -> HugePagesResult:
    """Return the result with what hugetlb cgroups allow a server that gives back its own pages first."""
    page = result.huge_page_size_bytes
    touched = min(own_pages * page, max((one.huge_pages or 0 for one in family), default=0))
    rooms = [
        (limit.room_bytes(own_bytes) // page, str(limit.file), limit.limit_bytes)
        for limit, own_bytes in ((limits.reserved, own_pages * page), (limits.touched, touched))
        if limit is not None
    ]
    pages, file, limit_bytes = min(rooms, default=(None, None, None))
    return msgspec.structs.replace(
        result,
        huge_limit_bytes=None if limits.touched is None else limits.touched.limit_bytes,
        huge_reservation_limit_bytes=None if limits.reserved is None else limits.reserved.limit_bytes,
        allowed_pages=pages,
        binding_limit=file,
        binding_limit_bytes=limit_bytes,
    )


def _of_running(facts: SharedMemoryFacts, mapping: SharedMemory | None, page_bytes: int) -> _Size:
    size = facts.requested_bytes or (mapping.size_bytes if mapping is not None else None)
    if size is not None:
        return _Size(exact_bytes=size, likely_bytes=size, notes=[])
    if facts.server_pages is not None:
        # The server counts in its own pages, rounded up, and up to 18 one more for a whole number of them.
        likely = facts.server_pages * (facts.huge_page_bytes or page_bytes)
        if facts.server_pages_exact:
            return _Size(exact_bytes=None, likely_bytes=likely, notes=[])
        note = (
            "the number is the server's own (shared_memory_size_in_huge_pages), which may be one too many; "
            "a member of pg_monitor gets the exact one"
        )
        return _Size(exact_bytes=None, likely_bytes=likely, notes=[note])
    note = (
        "before version 15 the size of the server's shared memory is shown to superusers only "
        "(pg_shmem_allocations), or on its host to its user and root"
    )
    return _Size(exact_bytes=None, likely_bytes=None, notes=[note])


def _with_other_settings(
    facts: SharedMemoryFacts,
    mapping: SharedMemory | None,
    changes: Mapping[str, str],
    binaries: ServerBinaries | None,
    scratch: ScratchServer | None,
) -> _Size:
    """Ask a server of the same release, which is asked about the present settings too, to see that it agrees.

    Raises:
        ClusterError: it does not take the settings.
    """
    if scratch is None:
        if binaries is None:
            note = (
                "how much these settings take is not known: no PostgreSQL of the server's version is "
                "installed here; on its host, or with the server stopped: "
                + " ".join(
                    ["postgres -D DIR -C shared_memory_size_in_huge_pages"]
                    + [f"-c {name}={value}" for name, value in changes.items()]
                )
            )
            return _Size(exact_bytes=None, likely_bytes=None, notes=[note])
        try:
            made = ScratchServer(binaries, wal_segment_bytes=facts.wal_segment_bytes)
        except ClusterError as error:
            note = f"how much these settings take is not known: {error.message}"
            note += f" ({error.cause})" if error.cause else ""
            return _Size(exact_bytes=None, likely_bytes=None, notes=[note])
        with made as own:
            return _with_other_settings(facts, mapping, changes, binaries, own)
    try:
        present = scratch.requested_bytes(facts.settings)
        base = facts.settings
        notes = []
    except ClusterError as error:
        # A library that is installed with the server only.
        # Or an io_method that the programs here were built without: it takes no shared memory to speak of.
        left_out = {"shared_preload_libraries", "io_method"}
        base = {k: v for k, v in facts.settings.items() if k not in left_out and "." not in k}
        present = scratch.requested_bytes(base)
        notes = [f"not exact: the server's settings cannot be tried here ({error.cause})"]
    asked = scratch.requested_bytes({**base, **changes})
    running = _of_running(facts, mapping, USUAL_PAGE_BYTES).exact_bytes
    if running is not None and not notes and _agree(present, running, facts, mapping):
        return _Size(exact_bytes=asked, likely_bytes=asked, notes=[])
    if running is None:
        if facts.sees_all_settings and not notes:
            return _Size(exact_bytes=asked, likely_bytes=asked, notes=[])
        notes.append("not exact: this role does not see all settings; a member of pg_monitor does")
        return _Size(exact_bytes=None, likely_bytes=asked, notes=notes)
    if not notes:
        notes = [
            "not exact: a server of this release with the settings that are seen here would request "
            f"{format_count(present)} bytes, and the running one has {format_count(running)}; the "
            f"difference was added"
        ]
    return _Size(exact_bytes=None, likely_bytes=asked + max(0, running - present), notes=notes)


def _agree(present: int, running: int, facts: SharedMemoryFacts, mapping: SharedMemory | None) -> bool:
    """Return whether two sizes are the same; one in huge pages is rounded up to them."""
    huge = mapping.huge if mapping is not None else facts.huge_pages_status == "on"
    return present == running or (huge and 0 <= running - present < (facts.huge_page_bytes or 1 << 30))


def _status(facts: SharedMemoryFacts, mapping: SharedMemory | None) -> str:
    if mapping is not None:
        return "on" if mapping.huge else "off"
    if facts.huge_pages == "off" or facts.shared_memory_type != "mmap":
        return "off"  # both take effect at a start only, so this is how it was started
    return facts.huge_pages_status if facts.huge_pages_status in ("on", "off") else "unknown"


def _vmpeak(pid: int, page_bytes: int) -> int | None:
    peak = vm_peak_bytes(pid)
    return None if peak is None else -(-peak // page_bytes)


def _own_tables(family: Sequence[ProcessStatus], clients: Container[int], own_pid: int) -> int:
    """Return the page tables of a connection without those for shared memory: the most of a few."""
    sample = [one for one in family if one.inner_pid in clients]
    sample = sample or [one for one in family if one.inner_pid == own_pid]
    found = [own_tables(one.pid, one.page_tables, one.rss_shmem or 0) for one in sample[:_SAMPLE]]
    return max(found, default=0)


def _page_tables(
    tables: list[ProcessStatus],
    mapping: SharedMemory | None,
    size: _Size,
    *,
    own_tables_bytes: int,
    huge_page_bytes: int,
    connections: int,
) -> PageTables | None:
    now = mapping.size_bytes if mapping is not None else size.likely_bytes
    if not tables or now is None:
        return None
    found = model(tables, mapping or SharedMemory(now, huge=any(table.huge_pages for table in tables)))
    later = size.likely_bytes or now
    return PageTables(
        processes=len(tables),
        now_bytes=sum(table.page_tables for table in tables),
        with_huge_pages_bytes=found.with_huge_bytes,
        without_huge_pages_bytes=found.without_huge_bytes,
        connections=connections,
        connections_ordinary_bytes=connections * (own_tables_bytes + page_tables_of(later)),
        connections_huge_bytes=connections * (own_tables_bytes + page_tables_of(later, huge_page_bytes)),
    )


def _connections(facts: SharedMemoryFacts, changes: Mapping[str, str]) -> int:
    wanted = changes.get("max_connections", "")
    return int(wanted) if wanted.isdigit() else facts.max_connections


def pool_record(pool: Pool, size_bytes: int | None) -> HugePagePool:
    """Return the kernel's pool with how many of its pages hold shared memory of that size."""
    return HugePagePool(
        page_size_bytes=pool.size_bytes,
        is_default=pool.is_default,
        total=pool.total,
        free=pool.free,
        reserved=pool.reserved,
        surplus=pool.surplus,
        overcommit=pool.overcommit,
        available=pool.available,
        needed=None if size_bytes is None else -(-size_bytes // pool.size_bytes),
    )


def _missing(here: bool, found: Search, pid: int | None) -> list[Missing]:
    if found.pid is not None:
        return []
    if (elsewhere := why_not_linux()) is not None:
        enable = "run pgsweep on the server's host"
        return [Missing(what="huge pages of the host", why=elsewhere, enable=enable)]
    if not here and found.closed:
        why = (
            "the server may be one of those that run here as "
            f"{user_of(found.closed[0]) or 'another user'}, whose memory this user may not read"
        )
        return [Missing(what="huge pages of the host", why=why, enable=sudo() + this_command())]
    if not here:
        why = "the server's process is not on this host: what its kernel has set aside is not seen"
        return [Missing(what="huge pages of the host", why=why, enable="run pgsweep on the server's host")]
    if pid is None:
        why = (
            "connected by a Unix socket, but the process is not seen (it is in another container's namespace)"
        )
        return [Missing(what="the server's process", why=why, enable="run pgsweep on the host, as root")]
    why = f"the server runs as {user_of(pid) or 'another user'}, whose processes this user may not look into"
    return [Missing(what="the server's memory", why=why, enable=sudo() + this_command())]
