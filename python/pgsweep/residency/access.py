"""One server under observation: its session, its process if it runs on this host, and what may be read.

Each ability that is missing makes the answer smaller and adds one line that says why and how to get it; only
when the buffer pool itself cannot be read by any way is there no answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pgsweep._native import PoolReader
from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed, MissingAbility, NeedsRoot
from pgsweep.host.datafiles import find_data_files
from pgsweep.host.pages import counted_bytes, pages_of_block
from pgsweep.host.postmaster import user_of
from pgsweep.host.yama import who_may
from pgsweep.pg.catalog.agreement import disagreement
from pgsweep.pg.catalog.buffercache import used_buffers
from pgsweep.pg.catalog.server import (
    Database,
    Server,
    read_connectable,
    read_server,
    read_tablespaces,
    require_buffercache,
)
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.postmaster import local_postmaster
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.units import format_count

PoolSource = Literal["auto", "peek", "sql"]

_SQL_SECONDS_PER_BUFFER = 1.2e-6
"""Time of an aggregate over pg_buffercache: 607 ms for 524,288 buffers, the median of benchmarks/look."""

_SQL_BYTES_PER_BUFFER = 32 + 112
"""What pg_buffercache_pages keeps of a buffer (BufferCachePagesRec), and its row in the tuple store."""

_BELIEVED_SHARE = 0.99
"""Share of the buffers whose database and tablespace the server must know for a peek to be accepted; the rest
may belong to databases that were made or dropped meanwhile."""


@dataclass(slots=True)
class Access:
    """What may be read.

    Attributes:
        buffercache: quoted schema of pg_buffercache, where this session may read it.
        postmaster_pid: the server's process, where it runs here and may be looked into.
        start_time: when that process started, in microseconds since 2000-01-01, as the server says.
        memory: reads the buffers from that process's memory, where `pool_source` is `peek`.
        pool_source: `peek` or `sql`.
        sees_page_cache: the data directory can be entered.
        pool_missing: why the buffer pool cannot be read by any way; None where it can.
        missing: one entry an ability that is not there.
    """

    connection: Connection
    server: Server
    databases: list[Database]
    buffercache: str | None = None
    postmaster_pid: int | None = None
    start_time: int | None = None
    memory: PoolReader | None = None
    pool_source: Literal["peek", "sql"] = "sql"
    sees_page_cache: bool = False
    pool_missing: Missing | None = None
    missing: list[Missing] = field(default_factory=list)

    @property
    def segment_blocks(self) -> int:
        """Blocks in one segment file (`segment_size`)."""
        return int(self.server.settings["segment_size"])

    @property
    def pages_of_block(self) -> int:
        """How many pages the page cache has of a block, if it has it whole."""
        return pages_of_block(self.server.block_size_bytes)

    @property
    def counted_bytes(self) -> int:
        """How many bytes of a block each of these pages stands for."""
        return counted_bytes(self.server.block_size_bytes)

    def cost_note(self) -> str:
        """Return in words what reading the pool by SQL costs the server."""
        buffers = self.server.shared_buffers_blocks
        return (
            f"reading {format_count(buffers)} buffers by pg_buffercache: about "
            f"{format_count(max(0.001, buffers * _SQL_SECONDS_PER_BUFFER))} s "
            f"and {buffers * _SQL_BYTES_PER_BUFFER / 2**20:.0f} MB of one backend; no lock is held"
        )

    def lacks(self, what: str, error: MissingAbility) -> None:
        """Keep the reason why something cannot be read."""
        self.missing.append(
            Missing(what=what, why=f"{error.message}" + (f" ({error.cause})" if error.cause else ""),
                    enable=error.hint)
        )  # fmt: skip


@contextmanager
def opened(conninfo: str, source: PoolSource = "auto", *, pool_needed: bool = True) -> Iterator[Access]:
    """Connect and find out what may be read.

    Args:
        conninfo: as libpq understands it.
        source: how to read the buffer pool; `auto` peeks where that is possible, as it costs the server
            nothing.
        pool_needed: where the pool cannot be read, raise; else `pool_missing` has the reason.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the buffer pool cannot be read, or not by the requested source.
    """
    connection = connect(conninfo)
    try:
        with explained():
            access = Access(connection, read_server(connection), databases=read_connectable(connection))
            _find_process(access)
            try:
                _choose_source(access, source)
            except MissingAbility as error:
                if pool_needed:
                    raise
                access.lacks("the contents of shared_buffers", error)
                access.pool_missing = access.missing[-1]
        yield access
    finally:
        connection.close()


def may_read_pool(access: Access) -> bool:
    """Return whether the session may read pg_buffercache now."""
    with explained():
        try:
            require_buffercache(access.connection)
        except MissingAbility:
            return False
    return True


def server_gone() -> ConnectionFailed:
    """Return what it means when a server's memory can no longer be read."""
    return ConnectionFailed(
        "the server's memory can no longer be read",
        cause="the server was stopped or restarted",
        hint=f"is it running again? {on_server('pg_isready', named='server')}",
    )


def _find_process(access: Access) -> None:
    try:
        access.postmaster_pid, access.start_time = local_postmaster(access.connection)
        find_data_files(access.postmaster_pid, access.server.version_num, databases=())
        access.sees_page_cache = True
    except MissingAbility as error:
        access.lacks("page cache", error)


def _choose_source(access: Access, source: PoolSource) -> None:
    if source != "sql":
        try:
            _check_peek(access)
            access.pool_source = "peek"
        except MissingAbility as error:
            if source == "peek":
                raise
            if access.postmaster_pid is not None:
                access.lacks("peek", error)
    try:
        access.buffercache = require_buffercache(access.connection)
    except MissingAbility:
        if access.pool_source == "sql":
            raise


def _check_peek(access: Access) -> None:
    """Accept the contents of the server's memory only if they agree with what the server reports.

    Raises:
        MissingAbility: not on this host, not permitted, a layout that is not known, or no agreement.
    """
    server = access.server
    if access.postmaster_pid is None:
        raise MissingAbility(
            "the server's memory cannot be read from here",
            cause=access.missing[-1].why if access.missing else None,
            hint=f"on the server's host {who_may()}; or use --source sql",
        )
    before = used_buffers(access.connection)
    try:
        memory = PoolReader(access.postmaster_pid, server.version_num, start_time=access.start_time)
        pool = memory.read()
    except RuntimeError as error:
        raise MissingAbility(str(error.args[0]), hint="use --source sql") from error
    except OSError as error:
        raise NeedsRoot(
            "the server's memory cannot be read",
            cause=error.strerror,
            hint=f"{who_may(user=user_of(access.postmaster_pid))}; or use --source sql",
        ) from error
    why = disagreement(pool, server, before, used_buffers(access.connection))
    if why is not None:
        raise MissingAbility(
            "the server's memory does not show what the server says", cause=why, hint="use --source sql"
        )
    known = np.isin(pool["db"], [0, *(database.oid for database in access.databases)])
    known &= np.isin(pool["spc"], list(read_tablespaces(access.connection)))
    sound = int(np.count_nonzero(known))
    if sound < _BELIEVED_SHARE * len(known) - 1:
        raise MissingAbility(
            "the server's memory does not show what the server says",
            cause=f"only {format_count(sound)} of {format_count(len(known))} buffers make sense",
            hint="use --source sql",
        )
    access.memory = memory
