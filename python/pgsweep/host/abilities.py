"""What this machine allows with a server: its memory, its files, probes, huge pages, memory limits.

Nothing is changed and nothing is attached: a few words of the server's memory are read, one of its files is
opened and not read, and the kernel is given an eBPF program that never runs.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from pgsweep._native import check_tracing, page_cache, peek_relations
from pgsweep.commands import sudo
from pgsweep.host.hugepages import Pool, SharedMemory, read_pools, shared_memory
from pgsweep.host.limits import HugeLimits, huge_page_limits
from pgsweep.host.machine import describe_machine, memory_bytes
from pgsweep.host.place import look
from pgsweep.host.postmaster import Search, listening_sockets, place_of, postmasters, user_name, user_of
from pgsweep.host.yama import why_not_the_same_user
from pgsweep.records.doctor import Ability, DoctorHost
from pgsweep.records.place import Place
from pgsweep.units import format_bytes, format_count

_SERVERS_NAMED: Final = 5
"""Of the servers of this host, where none is reached."""

READ_THE_POOL: Final = (
    "cache",
    "footprint",
    "top",
    "serve",
    "warm run",
    "warm restore",
    "warm save",
    "warm check",
    "warm keep",
)
"""Commands that read the buffer pool: from the server's memory where that is possible, else by SQL."""

_READ_THE_PAGE_CACHE: Final = (
    "cache",
    "footprint",
    "top",
    "serve",
    "warm plan",
    "warm run",
    "warm restore",
    "warm save",
    "warm check",
)
"""Commands that look into the page cache, or read the server's files into it."""

_ON_THE_HOST: Final = (
    "record --source trace",
    "record --source peek",
    "advise",
    "verify",
    *READ_THE_POOL,
    "warm plan",
    "memory",
    "memory budget",
    "memory kernel",
    "hugepages",
)
"""Commands that look into the server's processes."""

X86_64_ONLY: Final = (
    "where probes go is found by decoding the server's instructions, and which of these the kernel emulates, "
    "so that a probe costs one trap and not two, is known for x86-64 only"
)
_PROVIDERS = "the server's host is the provider's: nobody else runs programs there"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a session reported about its server, to find and judge it on this host.

    Attributes:
        search: what the search for its process found.
        server_host: host name or address; a folder, or nothing, for a Unix socket.
        by_socket: connected by a Unix socket: server and we run on one kernel.
        version_num: as `server_version_num`.
        shared_buffers_blocks: as the server says.
        file: path of one of its files below the data directory.
        huge_pages: the setting of that name.
        huge_pages_status: the setting of that name (17 and later).
        huge_pages_needed: to hold its shared memory; None if the server does not report it (14).
        shared_memory_type: the setting of that name.
        hosted: its host is a provider's, so nothing can be set or run there.
    """

    search: Search
    server_host: str
    by_socket: bool
    version_num: int
    shared_buffers_blocks: int
    file: str
    huge_pages: str
    huge_pages_status: str | None
    huge_pages_needed: int | None
    hosted: bool = False
    shared_memory_type: str = "mmap"


class HostChecks:
    """The abilities of this machine; without a session, those that need none of it."""

    def __init__(self, seen: Seen | None, again: str) -> None:
        """Look from this host.

        Args:
            seen: what the session reported; None if there is no session.
            again: the command line by which pgsweep would be asked the same again.
        """
        self._seen = seen
        self._again = again
        self._search = Search(None, ()) if seen is None else seen.search
        self._user = user_name(os.geteuid())

    @cached_property
    def _process(self) -> int | None:
        """The postmaster, or the only thing that it can be; much about a process anybody may read."""
        if self._search.pid is None and self._seen is not None and self._seen.by_socket:
            return next(iter(self._search.closed), None)
        return self._search.pid

    @cached_property
    def place(self) -> Place:
        """Where the server runs, as this host shows it."""
        return look(self._process)

    @cached_property
    def _huge(self) -> Pool | None:
        return next((pool for pool in read_pools() if pool.is_default), None)

    def facts(self) -> DoctorHost:
        """Return what this machine is."""
        huge, memory = self._huge, self.place.memory
        return DoctorHost(
            user=self._user,
            machine=describe_machine(),
            memory_bytes=memory_bytes(),
            huge_pages_total=huge.total if huge else None,
            huge_pages_free=huge.available if huge else None,
            huge_page_bytes=huge.size_bytes if huge else None,
            postmaster_pid=self._search.pid,
            memory_limit_bytes=memory.limit_bytes,
            memory_limit_used_bytes=memory.used_bytes,
        )

    def abilities(self) -> list[Ability]:
        """Return all of them."""
        return [
            self._same_host(),
            self._same_user(),
            self._peek(),
            self._page_cache(),
            self._trace(),
            self._huge_pages(),
            self._memory_limit(),
        ]

    def _same_host(self) -> Ability:
        needed_for = [*_ON_THE_HOST]
        seen, search = self._seen, self._search
        enable = None
        available: bool | None
        if seen is None:
            available, why = None, f"only a session says which process is the server's; {_running()}"
        elif search.pid is not None:
            available, why = True, f"the server is process {search.pid} here"
        elif search.closed and seen.by_socket:
            available, why = True, "connected by a Unix socket"
        elif seen.hosted:
            available, why = False, _PROVIDERS
        elif search.closed:
            available, enable = None, self._as_root
            processes = ", ".join(_described(pid) for pid in search.closed)
            why = (
                f"it may be one of the servers here (process {processes}), "
                f"whose memory user {self._user} may not read"
            )
        elif seen.by_socket:
            available = False
            why = "connected by a Unix socket, but its processes cannot be seen from here (a container's?)"
        else:
            available, why = False, "no process here is the server's"
            if seen.server_host not in _LOOPBACK:
                enable = f"ssh {seen.server_host} {self._again}"
        return _ability("same_host", available, why, enable, needed_for)

    def _same_user(self) -> Ability:
        needed_for = [*_ON_THE_HOST]
        own = f"pgsweep runs as {self._user}"
        if self._seen is None:
            return _ability("same_user", None, f"{own}; the server's user is not known", None, needed_for)
        pid = self._search.pid
        if pid is not None:
            return _ability("same_user", True, f"{own}, the server as {user_of(pid)}", None, needed_for)
        if self._search.closed:
            server = user_of(self._search.closed[0]) or "another"
            why = f"{own}, the server as {server}"
            if server == self._user and (yama := why_not_the_same_user()):
                why = f"{why}: {yama}"
            if os.geteuid() == 0:
                why = f"{own}, but without the capability CAP_SYS_PTRACE (a container's root?)"
            enable = None if os.geteuid() == 0 else self._as_root
            return _ability("same_user", False, why, enable, needed_for)
        return _ability("same_user", False, f"{own}; {self._absence}", None, needed_for)

    def _peek(self) -> Ability:
        needed_for = ["record --source peek", *READ_THE_POOL]
        if self._seen is None or self._search.pid is None:
            return self._without_process("peek", needed_for)
        expected = self._seen.shared_buffers_blocks
        try:
            # All of them, as the commands do: a layout that differs shows where pages are in use.
            found = peek_relations(self._search.pid, self._seen.version_num)["buffers"]
        except RuntimeError as error:
            return _ability("peek", False, str(error.args[0]), None, needed_for)
        except OSError as error:
            return _ability("peek", False, str(error.args[-1]), self._as_root, needed_for)
        if found != expected:
            why = (
                f"its memory says {format_count(found)} buffers, the server {format_count(expected)}: its "
                "layout is not known here"
            )
            return _ability("peek", False, why, None, needed_for)
        why = f"the descriptors of all {format_count(found)} buffers can be read from the server's memory"
        return _ability("peek", True, why, None, needed_for)

    def _page_cache(self) -> Ability:
        needed_for = [*_READ_THE_PAGE_CACHE]
        if self._seen is None or self._search.pid is None:
            return self._without_process("page_cache", needed_for)
        # A postmaster works in its data directory; through /proc this holds in other mount namespaces too.
        found = page_cache([f"/proc/{self._search.pid}/cwd/{self._seen.file}"])
        error = int(found["error"][0])
        if error:
            why = f"the kernel does not say what it holds of the server's files: {os.strerror(error)}"
            return _ability("page_cache", False, why, self._as_root, needed_for)
        why = f"the server's files can be opened, and {found['method']}(2) says what is cached"
        return _ability("page_cache", True, why, None, needed_for)

    def _trace(self) -> Ability:
        needed_for = ["record --source trace"]
        if platform.system() != "Linux" or platform.machine() != "x86_64":
            why = f"this is {platform.system()} {platform.machine()}; tracing needs Linux on x86-64"
            if platform.system() == "Linux":
                why += f": {X86_64_ONLY}"
            return _ability("trace", False, why, None, needed_for)
        if self._seen is not None and self._search == Search(None, ()):
            return _ability("trace", False, self._absence, None, needed_for)
        try:
            check_tracing(self._search.pid)
        except RuntimeError as error:
            what, *hint = error.args
            if os.geteuid() != 0:
                return _ability("trace", False, str(what), self._as_root, needed_for)
            why = f"{what}; {hint[0]}" if hint else str(what)
            return _ability("trace", False, why, None, needed_for)
        except OSError as error:
            return _ability("trace", False, str(error.args[-1]), self._as_root, needed_for)
        if self._search.pid is None:
            return _ability("trace", None, "the kernel allows it; the server was not found", None, needed_for)
        why = "the kernel accepts eBPF programs from this user, and the server has the functions to probe"
        return _ability("trace", True, why, None, needed_for)

    def _huge_pages(self) -> Ability:
        name, pool, seen = "huge_pages", self._huge, self._seen
        kernel = (
            "this kernel has no huge pages"
            if pool is None
            else f"the kernel has {format_count(pool.persistent)} of {format_bytes(pool.size_bytes)} "
            "set aside, "
            f"{format_count(pool.available)} free"
        )
        if seen is None:
            return _ability(name, None, kernel, None, [])
        pid = self._search.pid
        memory = None if pid is None else shared_memory(pid)
        needed = seen.huge_pages_needed
        if needed is None and memory is not None and pool is not None:
            needed = -(-memory.size_bytes // pool.size_bytes)
        if seen.huge_pages_status == "on" or (memory is not None and memory.huge):
            return self._used_huge_pages(pool, memory)
        if seen.shared_memory_type != "mmap":
            why = f"shared_memory_type is {seen.shared_memory_type}, and huge pages are taken for mmap only"
            return _ability(name, False, why, None, [])
        if seen.huge_pages_status is None and memory is None:
            why = (
                "a server before version 17 does not report whether it uses huge pages, and its process "
                "cannot be seen"
            )
            return _ability(name, None, why, None, [])
        why = f"huge_pages is {seen.huge_pages}, and the shared memory lies in ordinary pages"
        if needed is None or needed < 0:
            return _ability(name, False, why, None, [])
        why += f"; {format_count(needed)} huge pages would hold it"
        if pid is None or pool is None:
            return self._huge_pages_elsewhere(why, needed)
        why += f", {kernel}"
        limits = huge_page_limits(pid, pool.size_bytes)
        if refused := _limited(limits, needed * pool.size_bytes):
            return _ability(name, False, f"{why}; {refused}", None, [])
        if pool.available >= needed:
            return _ability(name, False, f"{why}: restart the server with huge_pages = on", None, [])
        why += ": set them aside on this host, then restart the server"
        return _ability(name, False, why, self._set_aside(pool.target(needed)), [])

    def _used_huge_pages(self, pool: Pool | None, memory: SharedMemory | None) -> Ability:
        """Return the ability of a server that has huge pages: surplus ones it has this time only."""
        name, why = "huge_pages", "the server's shared memory lies in huge pages"
        own = 0 if pool is None or memory is None else -(-memory.size_bytes // pool.size_bytes)
        # With a huge_page_size of its own its pages are in another pool.
        if pool is None or pool.total - pool.available < own or (lacks := own - pool.after_stop(own)) <= 0:
            return _ability(name, True, why, None, [])
        why += (
            f"; {format_count(lacks)} of its {format_count(own)} pages are surplus, and gone when it stops: "
        )
        why += "its next start finds too few"
        if pool.on_demand(own) >= lacks:
            return _ability(name, True, f"{why}, unless the kernel makes others on demand again", None, [])
        return _ability(name, False, why, self._set_aside(pool.target(own, own)), [])

    def _set_aside(self, pages: int) -> str:
        return f"{sudo(here=not self.place.contained)}sysctl -w vm.nr_hugepages={pages}"

    def _huge_pages_elsewhere(self, why: str, needed: int) -> Ability:
        if self._seen is not None and self._seen.hosted:
            return _ability("huge_pages", False, f"{why}; its host is the provider's", None, [])
        why += ": set them aside on its host, then restart the server"
        return _ability("huge_pages", False, why, self._set_aside(needed), [])

    def _memory_limit(self) -> Ability:
        if self._seen is None or self._process is None:
            return self._without_process("cgroup", [])
        memory = self.place.memory
        if memory.limited == "unknown":
            why = f"whether a memory cgroup limits the server is not known: {memory.why}"
            return _ability("cgroup", None, why, None, [])
        if memory.limit_bytes is None and memory.high_bytes is None:
            why = "no memory cgroup limits the server"
            if memory.from_lxcfs and memory.host_bytes is not None:
                why = f"lxcfs says that the server may use {format_bytes(memory.host_bytes)}"
            return _ability("cgroup", True, why, None, [])
        parts = []
        if memory.limit_bytes is not None:
            why = f"the server's memory cgroup is limited to {format_bytes(memory.limit_bytes)}"
            if memory.used_bytes is not None:
                why += f", of which {format_bytes(memory.used_bytes)} are used, page cache included"
            if memory.available_bytes is not None:
                why += f"; {format_bytes(memory.available_bytes)} of it are left or can be given back"
            parts.append(why)
        if memory.high_bytes is not None:
            parts.append(
                f"above {format_bytes(memory.high_bytes)} (memory.high) its processes are slowed down"
            )
        if memory.why is not None:
            parts.append(f"there may be a lower limit: {memory.why}")
        return _ability("cgroup", True, "; ".join(parts), None, [])

    def _without_process(self, name: str, needed_for: list[str]) -> Ability:
        """Return the ability of a server whose process was not found."""
        if self._seen is None:
            return _ability(name, None, "there is no session", None, needed_for)
        if not self._search.closed:
            return _ability(name, False, self._absence, None, needed_for)
        why = f"user {self._user} may not look into the server's process"
        return _ability(name, False, why, None if os.geteuid() == 0 else self._as_root, needed_for)

    @property
    def _absence(self) -> str:
        return "the server's process is not on this host"

    @property
    def _as_root(self) -> str:
        return f"{sudo(here=not self.place.contained)}{self._again}"


def _limited(limits: HugeLimits, needed_bytes: int) -> str | None:
    """Return which limit of a hugetlb cgroup the server's shared memory would exceed; None for none."""
    for limit in (limits.reserved, limits.touched):
        if limit is not None and limit.room_bytes(0) < needed_bytes:
            return (
                f"{limit.file} allows {format_bytes(limit.limit_bytes)}, "
                f"{format_bytes(limit.used_bytes)} of it "
                "used: raise that first; with huge_pages = on the server would not start, or be killed"
            )
    return None


def _running() -> str:
    """Return which servers run here, and where they listen, as far as that may be seen."""
    running = postmasters()
    if not running:
        return "no server runs here"
    text = f"servers that run here: {_first([_described(pid) for pid in running], ', ')}"
    known = {place_of(pid) for pid in running}
    others = [place for place in listening_sockets() if place not in known] if None in known else []
    return f"{text}; servers listen here on {_first(others, '; ')}" if others else text


def _first(words: Sequence[str], between: str) -> str:
    left = len(words) - _SERVERS_NAMED
    return between.join(words[:_SERVERS_NAMED]) + (f", and {left} more" if left > 0 else "")


def _described(pid: int) -> str:
    """Return a server by its process, its user and where it listens, as far as that may be seen."""
    place = place_of(pid)
    return f"{pid} of user {user_of(pid)}" + (f", {place}" if place else "")


def _ability(
    name: str, available: bool | None, why: str, enable: str | None, needed_for: list[str]
) -> Ability:
    return Ability(name=name, area="host", available=available, why=why, enable=enable, needed_for=needed_for)
