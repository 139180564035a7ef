"""Huge pages."""

from __future__ import annotations

import msgspec

from pgsweep.records.cache import Missing
from pgsweep.records.common import Provenance
from pgsweep.records.place import Place
from pgsweep.records.prediction import PlanStep


class HugePagePool(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's pool of huge pages of one size.

    `available` is free less reserved: what a server that starts now can count on. `needed` is how many of
    this size would hold the server's shared memory; null where its size is not known.
    """

    page_size_bytes: int
    is_default: bool
    total: int
    free: int
    reserved: int
    surplus: int
    overcommit: int
    available: int
    needed: int | None


class HugePagesMethods(msgspec.Struct, frozen=True, kw_only=True):
    """The number of huge pages by each method; null where it cannot be had.

    Attributes:
        exact: from the size that the server requests from the kernel.
        server: what the server says (shared_memory_size_in_huge_pages, 15 and later): one more than needed
            where the size is a whole number of pages.
        vmpeak: from VmPeak of the postmaster, as often advised: counts its code and private memory too.
    """

    exact: int | None
    server: int | None
    vmpeak: int | None


class PageTables(msgspec.Struct, frozen=True, kw_only=True):
    """Page tables of the server's processes: `now_bytes` is measured, all else predicted from it.

    Attributes:
        processes: those that were measured.
        now_bytes: as things are now.
        with_huge_pages_bytes: of the same processes, were the shared memory in huge pages.
        without_huge_pages_bytes: of the same processes, were it in ordinary pages.
        connections: how many connections the next two are for.
        connections_ordinary_bytes: in ordinary pages, once each has touched all of the shared memory.
        connections_huge_bytes: in huge pages.
    """

    processes: int
    now_bytes: int
    with_huge_pages_bytes: int
    without_huge_pages_bytes: int
    connections: int
    connections_ordinary_bytes: int
    connections_huge_bytes: int


class HugePagesChange(msgspec.Struct, frozen=True, kw_only=True):
    """How the number of huge pages was changed.

    Attributes:
        what: `reserved` or `undone`.
        page_size_bytes: of the pages.
        before: nr_hugepages before.
        after: nr_hugepages now.
        compacted: memory had to be compacted.
        files: those that were written, or removed.
        undo_command: puts back what was before.
    """

    what: str
    page_size_bytes: int
    before: int
    after: int
    compacted: bool
    files: list[str]
    undo_command: str = "sudo pgsweep hugepages --undo"


class HugePagesResult(msgspec.Struct, frozen=True, kw_only=True):
    """How many huge pages a server needs, whether it uses them, and why not.

    Attributes:
        database: the session's; null in older results, and where there was no session.
        settings: those that replace the server's own (a what-if).
        status: on, off or unknown: whether the shared memory lies in huge pages now.
        shared_memory_bytes: what the server requests from the kernel; with a what-if, would request.
        huge_pages_needed: null where it is not known; equal to `methods.exact` where that is known, else an
            estimate, and `reasons` says so.
        huge_page_size_bytes: the size that the number is for.
        available: pages of that size that are free and not reserved; null where the host cannot be seen.
        own_pages: pages of that size that the server has now.
        after_stop: how many a start finds after the server's stop: those available, and its own but for
            surplus pages, which are gone then; null where the host cannot be seen, and in older results.
        target: what nr_hugepages must be, other users' pages included.
        reasons: why the status is what it is, and what prevents the use of huge pages.
        transparent: what the kernel does with transparent huge pages, by the names of its files.
        steps: what to do, as commands and lines to paste.
        plan: what --apply would write; nothing of it was done.
        change: what --apply did.
        huge_limit_bytes: what the server's hugetlb cgroups let it touch of these pages; null for no limit.
        huge_reservation_limit_bytes: likewise what they let it reserve.
        allowed_pages: how many of these pages a start can have under both limits of all its groups, when the
            server has given back its own; null where there is no limit.
        binding_limit: the file of the limit that allows least.
        binding_limit_bytes: what it says.
        shared_memory_type: the server's setting; with any other than mmap it has no huge pages.
        place: where the server runs; null in older results.
    """

    schema: str = "pgsweep.hugepages/1"
    server_version: str
    huge_pages: str
    settings: dict[str, str]
    status: str
    shared_buffers_bytes: int
    shared_memory_bytes: int | None
    huge_pages_needed: int | None
    huge_page_size_bytes: int
    available: int | None
    target: int | None
    reasons: list[str]
    methods: HugePagesMethods
    page_tables: PageTables | None
    pools: list[HugePagePool]
    transparent: dict[str, str]
    steps: list[PlanStep]
    plan: list[PlanStep] = []
    change: HugePagesChange | None = None
    missing: list[Missing] = []
    own_pages: int = 0
    after_stop: int | None = None
    huge_limit_bytes: int | None = None
    huge_reservation_limit_bytes: int | None = None
    allowed_pages: int | None = None
    binding_limit: str | None = None
    binding_limit_bytes: int | None = None
    shared_memory_type: str = "mmap"
    place: Place | None = None
    database: str | None = None
    provenance: Provenance | None = None

    @property
    def too_few(self) -> int:
        """How many pages a start after the server's stop lacks; 0 where that is not known."""
        return max(0, (self.huge_pages_needed or 0) - self.after_stop) if self.after_stop is not None else 0

    @property
    def limit_binds(self) -> bool:
        """Whether a hugetlb cgroup allows fewer pages than are needed: then none must be advised."""
        allowed, needed = self.allowed_pages, self.huge_pages_needed
        return allowed is not None and (allowed == 0 or (needed is not None and allowed < needed))
