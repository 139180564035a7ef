"""Memory as one budget: what is left for the page cache at each size of shared_buffers.

    page cache = memory - other - shared memory - what page tables grow by

A memory cgroup does not count huge pages: where shared memory lies in them, it takes nothing of its limit.

`other` was measured when the evidence was recorded (pgsweep.host.server_memory). Shared memory is the pool
and 188 bytes a buffer around it (measured on 15 and 18: 180 and 188), and what the server has besides. Page
tables without huge pages take 8 bytes in each process for each 4 kB of shared memory that it has touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from pgsweep.commands import recording
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.schema import TWICE
from pgsweep.host.page_cache_rules import DEFAULT_READAHEAD_BYTES
from pgsweep.records.prediction import MemoryUse
from pgsweep.units import BLOCK_BYTES, format_bytes

BUFFER_OVERHEAD: Final = 1 + 188 / BLOCK_BYTES
_PAGE_BYTES: Final = 4096
_TABLE_SHARE: Final = 8 / _PAGE_BYTES
_OWN_TABLES_BYTES: Final = 150_000
"""Page tables of a process that touched no shared memory, where it was not recorded (`_SAVED_TABLES`)."""

_SAVED_TABLES: Final = "memory_page_tables_saved_bytes"

SESSION_BYTES: Final = 5 << 20
"""What one more session takes beside page tables, where private memory was not measured: assumed (catalog
caches, plans, a little of work_mem)."""

_ASSUMED_OTHER: Final = 0.1
"""The share of the memory that serves neither the pool nor cached files, where it was not measured."""

_SAME: Final = 0.01
"""By how much less or more a memory may be to be taken as the one recorded."""

_OTHER_PROCESSES: Final = 8
"""Of the server's processes, those that are not sessions: assumed."""

_NUMBERS: Final = (
    "memory_bytes",
    "memory_other_bytes",
    "memory_shared_bytes",
    "memory_page_cache_bytes",
    "memory_page_tables_bytes",
    "server_processes",
    "readahead_bytes",
    "folio_order",
)
_MOST: Final = 1 << 53
_MOST_SERVERS: Final = 100


def is_another_memory(recorded_bytes: int, asked_bytes: int) -> bool:
    """Return whether a memory is not the one recorded, by more than a hundredth."""
    return abs(asked_bytes - recorded_bytes) > _SAME * asked_bytes


class OtherServer(msgspec.Struct, frozen=True, kw_only=True):
    """Another PostgreSQL server that took part of the same memory.

    Attributes:
        data_directory, port: None where they could not be seen.
        shared_memory_bytes: of it, as much as was touched.
    """

    data_directory: str | None
    port: int | None
    shared_memory_bytes: int


class HostFacts(Protocol):
    """What knows facts about the server's host."""

    @property
    def host(self) -> dict[str, str]:
        """The facts, by name."""


@dataclass(frozen=True, kw_only=True)
class Share:
    """What is left at one size.

    Attributes:
        page_cache_bytes: for cached files.
        low_bytes: the least that it may be.
        page_tables_bytes: what page tables take for shared memory.
        page_tables_most_bytes: what they take at most without huge pages.
        shared_memory_bytes: the pool, and what else the server shares.
        high_bytes: the most that it may be, where `page_cache_bytes` rests on an assumption; else None.
    """

    page_cache_bytes: int
    low_bytes: int
    page_tables_bytes: int
    page_tables_most_bytes: int
    shared_memory_bytes: int
    high_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The most that may be left for cached files."""
        return self.page_cache_bytes if self.high_bytes is None else self.high_bytes


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """What the evidence says of the memory of the server's host.

    Attributes:
        memory_bytes: all there was to share.
        from_cgroup: it was a memory cgroup's limit.
        other_bytes: taken by neither shared memory nor cached files.
        shared_bytes: of the server, as much as was touched; all of it in huge pages.
        other_files_bytes: cached files that are not the server's data; None where it is not known.
        page_tables_bytes: of the server's processes, part of `other_bytes`.
        saved_tables_bytes: of these, what huge pages save or would save; None where it is not known.
        private_bytes: private memory of these, likewise; None where it is not known.
        twice_bytes: of the pool, what the page cache held too at the end; None where it is not known.
        processes: of the server.
        huge_pages: the shared memory lay in huge pages.
        huge_pages_counted: such memory takes part of `memory_bytes`.
        mglru: the kernel's lists are those of the multi-generational LRU.
        pages_out_idle: the kernel takes pages that are not accessed for a while, although there is room.
        readahead_bytes, folio_order: of the file system of the data.
        page_bytes: size of the kernel's pages.
        other_servers: on the host, or in the memory cgroup; what they hold is part of `other_bytes`.
        assumed: nothing of this was measured, but for the memory that the user named.
    """

    memory_bytes: int
    from_cgroup: bool
    other_bytes: int
    shared_bytes: int
    other_files_bytes: int | None
    page_tables_bytes: int
    processes: int
    huge_pages: bool
    mglru: bool
    pages_out_idle: bool
    readahead_bytes: int
    folio_order: int
    private_bytes: int | None = None
    saved_tables_bytes: int | None = None
    twice_bytes: int | None = None
    other_servers: tuple[OtherServer, ...] = ()
    huge_pages_counted: bool = True
    page_bytes: int = _PAGE_BYTES
    assumed: bool = False

    @classmethod
    def supposed(cls, memory_bytes: int, pool_bytes: int) -> MemoryFacts:
        """Return how memory is likely used where nothing was measured.

        Args:
            memory_bytes: what pool and page cache share.
            pool_bytes: shared_buffers.
        """
        return cls(
            memory_bytes=memory_bytes,
            from_cgroup=False,
            other_bytes=round(memory_bytes * _ASSUMED_OTHER),
            shared_bytes=pool_bytes,
            other_files_bytes=None,
            page_tables_bytes=0,
            processes=0,
            huge_pages=True,
            mglru=False,
            pages_out_idle=False,
            readahead_bytes=DEFAULT_READAHEAD_BYTES,
            folio_order=0,
            assumed=True,
        )

    @classmethod
    def of(cls, server: HostFacts) -> MemoryFacts | None:
        """Return what the evidence says, or None if it says nothing (recorded elsewhere, or earlier).

        Raises:
            EvidenceError: it holds what cannot be.
        """
        host = server.host
        if any(name not in host for name in _NUMBERS):
            return None
        values = {name: _number(name, host[name]) for name in _NUMBERS}
        cached = host.get("data_cached_bytes")
        page_cache = values["memory_page_cache_bytes"]
        others = None if cached is None else max(0, page_cache - _number("data_cached_bytes", cached))
        private, twice, saved = (host.get(name) for name in ("memory_private_bytes", TWICE, _SAVED_TABLES))
        if not values["memory_bytes"] or values["folio_order"] > 9 or values["readahead_bytes"] > 1 << 30:
            raise _impossible("memory, folio order or readahead")
        page_bytes = _number("page_bytes", host.get("page_bytes", str(_PAGE_BYTES)))
        if not page_bytes:
            raise _impossible("page_bytes")
        return cls(
            memory_bytes=values["memory_bytes"],
            from_cgroup=host.get("memory_from") == "cgroup",
            other_bytes=values["memory_other_bytes"],
            shared_bytes=values["memory_shared_bytes"],
            other_files_bytes=others,
            page_tables_bytes=values["memory_page_tables_bytes"],
            processes=values["server_processes"],
            huge_pages=host.get("huge_pages") == "on",
            mglru=host.get("mglru") == "on",
            pages_out_idle=host.get("pages_out_idle") == "on",
            readahead_bytes=values["readahead_bytes"],
            folio_order=values["folio_order"],
            private_bytes=None if private is None else _number("memory_private_bytes", private),
            saved_tables_bytes=None if saved is None else _number(_SAVED_TABLES, saved),
            twice_bytes=None if twice is None else _number(TWICE, twice),
            other_servers=_other_servers(host.get("other_servers", "[]")),
            huge_pages_counted=host.get("huge_pages_counted") != "off",
            page_bytes=page_bytes,
        )

    @property
    def use(self) -> MemoryUse:
        """What the memory is used for; the parts add up to all of it."""
        private = None if self.private_bytes is None else min(self.private_bytes, self.other_bytes)
        tables = min(self.page_tables_bytes, self.other_bytes - (private or 0))
        return MemoryUse(
            memory_bytes=self.memory_bytes,
            shared_memory_bytes=self.held_by_shared_bytes,
            page_tables_bytes=tables,
            page_tables_saved_bytes=0 if self.huge_pages else min(self._mapping_bytes, tables),
            processes=self.processes,
            private_bytes=private,
            rest_bytes=self.other_bytes - tables - (private or 0),
            page_cache_bytes=max(self.memory_bytes - self.other_bytes - self.held_by_shared_bytes, 0),
            huge_pages=self.huge_pages,
        )

    @property
    def held_by_shared_bytes(self) -> int:
        """What shared memory takes of the memory."""
        return 0 if self._shared_apart else self.shared_bytes

    @property
    def _shared_apart(self) -> bool:
        """Shared memory lies in huge pages that take nothing of the memory."""
        return self.huge_pages and not self.huge_pages_counted

    @property
    def _mapping_bytes(self) -> int:
        """Page tables that map shared memory in ordinary pages."""
        if self.saved_tables_bytes is not None:
            return min(self.saved_tables_bytes, self.page_tables_bytes)
        return max(0, self.page_tables_bytes - self.processes * _OWN_TABLES_BYTES)

    @property
    def not_simulated(self) -> str | None:
        """Why this page cache is not simulated; None if it is."""
        if self.page_bytes == _PAGE_BYTES:
            return None
        return (
            f"the kernel's pages have {format_bytes(self.page_bytes)} there; the page cache is simulated "
            f"with pages of {format_bytes(_PAGE_BYTES)}"
        )

    def is_another(self, memory_bytes: int | None) -> bool:
        """Return whether a memory is named that is not the one recorded."""
        return memory_bytes is not None and is_another_memory(self.memory_bytes, memory_bytes)

    def check_asked(self, memory_bytes: int | None) -> None:
        """Refuse an impossible memory: one that is less than the shared memory that the server has already.

        Raises:
            UsageError: it is less.
        """
        if memory_bytes is not None and memory_bytes < self.held_by_shared_bytes:
            raise UsageError(
                f"the memory asked about, {format_bytes(memory_bytes)}, is less than the "
                f"{format_bytes(self.shared_bytes)} of shared memory that the server has now",
                cause="the pool and the page cache share it, and the pool alone does not fit into it",
                hint="name more memory, or set shared_buffers lower and record again",
            )

    def share_today(self, today_bytes: int) -> Share:
        """Return what today's size leaves in the memory that was measured.

        Where a pool in full use would leave nothing, a hundredth of the memory, as the server runs so.
        """
        found = self._left_over(self.memory_bytes, today_bytes, today_bytes)
        return replace(found, page_cache_bytes=max(found.page_cache_bytes, self.memory_bytes // 100))

    def remarks(self, today_bytes: int | None) -> list[str]:
        """Return what a reader must know of these facts: what takes the memory so that little is left.

        Args:
            today_bytes: of shared_buffers; None where another memory than the one measured was asked about.
        """
        apart = []
        if self._shared_apart:
            apart.append(
                "shared memory lies in huge pages, which the limit of the memory cgroup does not count, so "
                "the page cache has the same memory at each size"
            )
        full = [] if today_bytes is None else self._full_remark(today_bytes)
        return [*full, *apart, *self._other_servers_remark()]

    def _full_remark(self, today_bytes: int) -> list[str]:
        try:
            self.share(self.memory_bytes, today_bytes, today_bytes)
        except UsageError as error:
            return [
                f"today's {error.message} when all of it is in use: almost no page cache is assumed for "
                "today's size, and smaller sizes are considered"
            ]
        return []

    def _other_servers_remark(self) -> list[str]:
        if not self.other_servers:
            return []
        many = len(self.other_servers)
        who = "another PostgreSQL server takes" if many == 1 else f"{many} other PostgreSQL servers take"
        taken = format_bytes(sum(one.shared_memory_bytes for one in self.other_servers))
        return [f"{who} {taken} of the memory as shared memory (measured)"]

    def with_sessions(self, sessions: float) -> MemoryFacts:
        """Return the facts with the processes of that many sessions, where processes were not counted."""
        return replace(self, processes=round(sessions) + _OTHER_PROCESSES)

    def changed(self, *, huge_pages: bool | None, sessions_factor: float) -> MemoryFacts:
        """Return the facts with huge pages or without, and with another number of sessions.

        A session takes as much private memory and page tables as a process of today on average;
        `SESSION_BYTES` where private memory was not measured.
        """
        facts = self
        if sessions_factor != 1.0:
            sessions = max(self.processes - _OTHER_PROCESSES, 1)
            added = sessions * (sessions_factor - 1)
            tables = round(self.page_tables_bytes / max(self.processes, 1) * added)
            private = self.private_bytes
            own = SESSION_BYTES if private is None else private / max(self.processes, 1)
            more, saved = 1 + added / max(self.processes, 1), self.saved_tables_bytes
            facts = replace(
                facts,
                other_bytes=max(facts.other_bytes + round(added * own) + tables, 0),
                page_tables_bytes=max(facts.page_tables_bytes + tables, 0),
                saved_tables_bytes=None if saved is None else max(round(saved * more), 0),
                processes=max(round(facts.processes + added), 1),
            )
        if huge_pages is None or huge_pages == facts.huge_pages:
            return facts
        # Page tables that map the pool are gone with huge pages.
        mapped = facts._mapping_bytes if huge_pages else 0
        return replace(
            facts,
            huge_pages=huge_pages,
            other_bytes=max(facts.other_bytes - mapped, 0),
            page_tables_bytes=facts.page_tables_bytes - mapped,
        )

    def share(self, memory_bytes: int, size_bytes: int, today_bytes: int) -> Share:
        """Return what is left for the page cache.

        The low end takes it that every process touches all of the pool, and that cached files of others stay.

        Args:
            memory_bytes: all there is to share.
            size_bytes: of shared_buffers.
            today_bytes: of shared_buffers when the evidence was recorded.

        Raises:
            UsageError: nothing is left, or next to nothing (a hundredth).
        """
        found = self._left_over(memory_bytes, size_bytes, today_bytes)
        if found.page_cache_bytes < memory_bytes // 100:
            raise UsageError(
                f"shared_buffers of {format_bytes(size_bytes)} leave no page cache in "
                f"{format_bytes(memory_bytes)}",
                cause=f"{format_bytes(self.other_bytes)} are neither shared memory nor cached files",
                hint="name smaller sizes with --sizes, or more memory",
            )
        return found

    def _left_over(self, memory_bytes: int, size_bytes: int, today_bytes: int) -> Share:
        """Return what is left by the sum, which may be less than nothing."""
        around = max(0, self.shared_bytes - round(today_bytes * BUFFER_OVERHEAD))
        shared = round(size_bytes * BUFFER_OVERHEAD) + around
        now = tables = full = 0
        most = round(self.processes * size_bytes * _TABLE_SHARE)
        if not self.huge_pages:
            now = self._mapping_bytes
            tables = round(now * size_bytes / max(today_bytes, 1))
            full = most = max(tables, most)
        held = 0 if self._shared_apart else shared
        left = memory_bytes - self.other_bytes - held - tables + now
        low = left - (full - tables) - (self.other_files_bytes or 0)
        high = None
        if self.assumed:
            # Twice as much is taken by others, or a quarter.
            low, high = low - self.other_bytes, left + self.other_bytes * 3 // 4
        return Share(
            page_cache_bytes=left,
            low_bytes=max(low, memory_bytes // 100),
            page_tables_bytes=tables,
            page_tables_most_bytes=most,
            shared_memory_bytes=shared,
            high_bytes=high,
        )


def _other_servers(text: str) -> tuple[OtherServer, ...]:
    try:
        found = msgspec.json.decode(text, type=tuple[OtherServer, ...])
    except msgspec.DecodeError as error:
        raise _impossible("other_servers") from error
    if len(found) > _MOST_SERVERS or any(not 0 <= one.shared_memory_bytes < _MOST for one in found):
        raise _impossible("other_servers")
    return found


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 17 and int(text) < _MOST):
        raise _impossible(name)
    return int(text)


def _impossible(name: str) -> EvidenceError:
    return EvidenceError(
        f"the evidence has impossible values of its host: {name}",
        hint=f"record again: {recording('--source trace')}",
    )
