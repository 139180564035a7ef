"""How much shared memory a server requests from the kernel, now or with other settings; exact to the byte.

Of a running server pg_shmem_allocations shows it: the sum over all rows is the size of the segment. The
setting shared_memory_size_in_huge_pages (15 and later) is the size divided by a page, plus one (ipci.c,
`InitializeShmemGUCs`), so it is one too many where the size is a whole number of pages; from 19 on it is
rounded up (8eef2df189).

For other settings a server of the same release is asked, in a data directory of its own: it logs the size
just before it requests it (ipci.c, `CreateSharedMemoryAndSemaphores`, at log level debug3). A setting then
makes it refuse to start: huge pages in System V shared memory do not exist (sysv_shmem.c,
`PGSharedMemoryCreate`). So nothing is requested, and 128 GB can be asked about on a laptop. `postgres -C`
shows the rounded number only, and from 15 on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import psycopg

from pgsweep.errors import ClusterError
from pgsweep.host.postmaster import executable_of
from pgsweep.pg.private.bindir import ServerBinaries, inspect_bindir, installed_servers
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.queries import load

_SIZE = re.compile(r"invoking IpcMemoryCreate\(size=(\d+)\)")
_FATAL = re.compile(r"(?:FATAL|ERROR|PANIC):\s+(.*)")
_PATIENCE_SECONDS = 30.0
_ASK = {
    "huge_pages": "on",
    "shared_memory_type": "sysv",
    "log_min_messages": "debug3",
    "log_destination": "stderr",
    "logging_collector": "off",
    "listen_addresses": "",
}


class SharedMemoryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a session reports about its server's shared memory.

    Attributes:
        huge_pages: the setting.
        huge_pages_status: on or off; None before version 17.
        huge_page_bytes: huge_page_size; 0 for the kernel's default.
        server_pages: shared_memory_size_in_huge_pages; None before version 15.
        server_pages_exact: it is never one too many, as it may be up to 18.
        requested_bytes: the size of the segment; None where the role may not know.
        settings: those that determine its size and are not at their default, in the units of pg_settings.
        sees_all_settings: the role sees all of them.
    """

    huge_pages: str
    huge_pages_status: str | None
    huge_page_bytes: int
    shared_memory_type: str
    server_pages: int | None
    server_pages_exact: bool
    max_connections: int
    wal_segment_bytes: int
    by_socket: bool
    sees_all_settings: bool
    requested_bytes: int | None
    settings: dict[str, str]


def read_facts(connection: psycopg.Connection[Any]) -> SharedMemoryFacts:
    """Return what a session reports about its server's shared memory."""
    version_num = connection.info.server_version
    row = connection.execute(load("shared_memory", version_num)).fetchone()
    assert row is not None
    huge, status, page, kind, pages, connections, wal_segment, by_socket, may_sum, sees_all = row
    requested = None
    if may_sum:
        total = connection.execute(load("shared_memory_sum", version_num)).fetchone()
        requested = None if total is None or total[0] is None else int(total[0])
    settings = connection.execute(load("startup_settings", version_num)).fetchall()
    return SharedMemoryFacts(
        huge_pages=str(huge),
        huge_pages_status=status,
        huge_page_bytes=page,
        shared_memory_type=str(kind),
        server_pages=None if pages is None or pages < 0 else pages,
        server_pages_exact=version_num >= 190000,
        max_connections=connections,
        wal_segment_bytes=wal_segment,
        by_socket=by_socket,
        sees_all_settings=sees_all,
        requested_bytes=requested,
        settings={str(name): str(setting) for name, setting in settings},
    )


class ScratchServer:
    """A server that is never started, to ask how much shared memory settings would take.

    with ScratchServer(binaries, wal_segment_bytes=16 << 20) as scratch:
        size_bytes = scratch.requested_bytes({"shared_buffers": "128GB"})
    """

    def __init__(self, binaries: ServerBinaries, *, wal_segment_bytes: int) -> None:
        """Make its data directory.

        Args:
            binaries: of the release that is asked about.
            wal_segment_bytes: of the server that is asked about; wal_buffers follows from it.

        Raises:
            ClusterError: it cannot be made.
        """
        # As initdb writes them: the server's own defaults are too small for long segments.
        megabytes = wal_segment_bytes >> 20
        self._defaults = {"min_wal_size": f"{5 * megabytes}MB", "max_wal_size": f"{64 * megabytes}MB"}
        self._cluster = Cluster.create(
            binaries.bindir, start=False, wal_segment_bytes=wal_segment_bytes, control_file_only=True
        )

    def requested_bytes(self, settings: Mapping[str, str]) -> int:
        """Return the bytes that a server with these settings requests from the kernel.

        Args:
            settings: beyond the server's defaults.

        Raises:
            ClusterError: the server does not accept them; shows its message.
        """
        given = {**self._defaults, **settings, **_ASK}
        given["unix_socket_directories"] = str(self._cluster.socket_directory)
        argv = ["postgres", "-D", str(self._cluster.data_directory)]
        for name, value in given.items():
            argv += ["-c", f"{name}={value}"]
        code, said = self._cluster.run_program(argv, _PATIENCE_SECONDS)
        found = _SIZE.search(said)
        if found is not None:
            return int(found.group(1))
        words = _FATAL.search(said)
        raise ClusterError(
            "PostgreSQL does not take these settings",
            cause=words.group(1) if words else f"exit code {code}: {said.strip()[-500:]}",
            hint="give each as it would stand in postgresql.conf",
        )

    def close(self) -> None:
        """Remove the data directory."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find_release(postmaster_pid: int | None, version_num: int) -> ServerBinaries | None:
    """Return the programs of a server: its own where it runs here, else of the same major version.

    Args:
        postmaster_pid: the server, where it runs on this host.
        version_num: as `server_version_num`.
    """
    if postmaster_pid is not None:
        program = executable_of(postmaster_pid)
        try:
            own = None if program is None else inspect_bindir(program.parent)
        except ClusterError:
            own = None
        if own is not None and own.version_num == version_num:
            return own
    same = [found for found in installed_servers() if found.major == version_num // 10000]
    return min(same, key=lambda found: abs(found.version_num - version_num), default=None)
