"""Why a server does or does not use huge pages, and what prevents it: one sentence each.

PostgreSQL decides when it starts (src/backend/port/sysv_shmem.c, `CreateAnonymousSegment`): with huge_pages =
try it asks the kernel for huge pages and takes ordinary ones where there are too few, without a word in the
log; with on it does not start then. All or nothing: never some of its pages.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pgsweep.host.limits import UNLIMITED, HugeLimits
from pgsweep.records.hugepages import HugePagesResult
from pgsweep.units import format_bytes, format_count, huge_page_word


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else is known of the server and its host.

    Attributes:
        pid: the postmaster; None where it is not seen.
        here: it runs on this kernel.
        may_be_here: its process may be one that runs here and may not be looked into.
        shared_memory_type: the setting.
        limits: of its hugetlb cgroups, for pages of the size in question.
        not_started: it did not start, for want of huge pages.
        uncounted: values that wait for its next start are not counted: it may take more pages then.
    """

    pid: int | None = None
    here: bool = False
    may_be_here: bool = False
    shared_memory_type: str = "mmap"
    limits: HugeLimits = UNLIMITED
    not_started: bool = False
    uncounted: bool = False

    @property
    def impossible(self) -> bool:
        """Whether its shared memory is of a kind that is never in huge pages."""
        return self.shared_memory_type != "mmap"


def reasons_for(result: HugePagesResult, around: Circumstances) -> list[str]:
    """Return the sentences, the most important first.

    Args:
        result: all but the reasons.
        around: what else is known.
    """
    reasons = []
    if around.not_started:
        reasons.append(_not_started(result))
    elif result.status == "on":
        reasons.append("the server's shared memory lies in huge pages")
    elif result.status == "off":
        reasons += _off(result, around)
    else:
        reasons.append(_unknown(around))
    if around.impossible and around.shared_memory_type not in " ".join(reasons):
        reasons.append(_impossible(around))
    asks = result.too_few if result.status == "on" else result.huge_pages != "off"
    asks = asks or bool(result.settings)
    if around.here and asks and not around.impossible:
        reasons += pool_reasons(result)
    reasons += [] if around.impossible else _huge_limits(result, around)
    reasons += _memory_limit(result)
    if result.place is not None and result.place.provider is not None:
        reasons.append(f"its host is one of {result.place.provider}: who runs it sets huge pages aside there")
    if result.place is not None and result.place.contained:
        reasons.append(
            "the server runs in a container: huge pages are set aside on its host, for all containers "
            "together, and its hugetlb limit must allow them"
        )
    if result.huge_pages == "try" and result.status == "on":
        reasons.append(
            "huge_pages is try: at its next start the server silently uses ordinary pages if there are "
            "too few huge pages; huge_pages = on makes that an error"
        )
    return reasons


def _not_started(result: HugePagesResult) -> str:
    if result.shared_memory_bytes is None:
        return "the server did not start: huge_pages is on, and the kernel had too few huge pages"
    return (
        f"the server did not start: huge_pages is on, and the kernel did not have the "
        f"{format_count(result.shared_memory_bytes)} bytes that it requested in huge pages; the segment "
        f"is larger than "
        "shared_buffers"
    )


def _off(result: HugePagesResult, around: Circumstances) -> list[str]:
    if result.huge_pages == "off":
        return ["huge_pages is off, so the server does not ask for huge pages"]
    if around.impossible:
        return [_impossible(around)]
    return ["huge_pages is try, and the kernel had too few huge pages when the server started"]


def _unknown(around: Circumstances) -> str:
    why = "its process is not on this host"
    if around.may_be_here:
        why = f"user {_me()} may not see whether its process runs on this host"
    elif around.here:
        why = f"user {_me()} may not look into its process" if around.pid else "its process is not seen here"
    return f"servers before version 17 do not report whether they use huge pages, and {why}"


def pool_reasons(result: HugePagesResult) -> list[str]:
    """Return what the kernel's pool means for the next start."""
    pool = next((p for p in result.pools if p.page_size_bytes == result.huge_page_size_bytes), None)
    size = format_bytes(result.huge_page_size_bytes)
    if not result.pools:
        return ["this kernel has no huge pages (CONFIG_HUGETLBFS, or a container that hides them)"]
    if pool is None:
        sizes = " and ".join(format_bytes(p.page_size_bytes) for p in result.pools)
        return [f"this kernel or processor has no huge pages of {size}; there are {sizes}"]
    if pool.needed is None:
        return []
    have = pool.available if result.after_stop is None else result.after_stop
    needed, pages = format_count(pool.needed), f"{format_count(have)} huge pages of {size}"
    if have >= pool.needed:
        when = "the next start finds enough" if result.settings else "it will use them when it is restarted"
        return [f"{pages} are available now, {needed} are needed: {when}"]
    when = " once it has stopped" if result.own_pages else ""
    text = f"{pages} are available{when}, {needed} are needed: {format_count(pool.needed - have)} too few"
    if gone := min(result.own_pages, pool.surplus):
        text += f"; {format_count(gone)} of those that it has are surplus pages, which are gone then"
    if pool.reserved:
        free, reserved = format_count(pool.free), format_count(pool.reserved)
        text += f"; of {free} free ones {reserved} are reserved by running programs"
    if pool.overcommit:
        more = format_count(pool.overcommit)
        text += f"; the kernel may make up to {more} more on demand, which is not certain"
    return [text]


def _impossible(around: Circumstances) -> str:
    return (
        f"shared_memory_type is {around.shared_memory_type}, and huge pages are taken for mmap only: no "
        "number "
        "of them helps, and with huge_pages = on the server does not start"
    )


def _huge_limits(result: HugePagesResult, around: Circumstances) -> list[str]:
    """Return which limit on huge pages binds, and what the server does where it is met."""
    limits, page = around.limits, result.huge_page_size_bytes
    if limits.unseen is not None and limits.reserved is None and limits.touched is None:
        if result.place is None or not result.place.contained:
            return []
        return [f"whether a cgroup limits its huge pages is not known: {limits.unseen}"]
    if not result.limit_binds:
        return []
    limit, allowed = result.binding_limit_bytes or 0, result.allowed_pages or 0
    others = f", {format_bytes(allowed * page)} of it for this server" if allowed * page < limit else ""
    text = f"the server's hugetlb cgroup allows {format_bytes(limit) if limit else 'none'} of them{others} "
    text += f"({result.binding_limit})"
    raising = (
        "set huge_pages = off, or raise the limit (Kubernetes: resources.limits.hugepages-"
        f"{huge_page_word(page)}i); container runtimes have two, .rsvd and the other, and both must allow "
        "them"
    )
    # Where mapping is refused, nothing is touched.
    if limits.reserved is not None and result.binding_limit == str(limits.reserved.file):
        return [
            f"{text}: the kernel refuses to map more, so with huge_pages = on the server does not start, and "
            f"with try it takes ordinary pages; {raising}"
        ]
    return [
        f"{text}: the kernel grants the pages at the start and kills the server with SIGBUS when it touches "
        "more, with huge_pages = try too; a read into such a page fails as `read only 5120 of 8192 bytes`; "
        f"{raising}"
    ]


def _memory_limit(result: HugePagesResult) -> list[str]:
    memory = None if result.place is None else result.place.memory
    size = result.shared_memory_bytes
    if memory is None or memory.limit_bytes is None or size is None or memory.limit_bytes >= size:
        return []
    return [
        f"the server's memory cgroup is limited to {format_bytes(memory.limit_bytes)}, less than its shared "
        f"memory of {format_bytes(size)}: in ordinary pages it is killed once it has touched that much (huge "
        "pages do not count there, but for the mount option memory_hugetlb_accounting)"
    ]


def _me() -> str:
    from pgsweep.host.postmaster import user_name

    return user_name(os.geteuid())
