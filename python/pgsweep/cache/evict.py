"""Take one relation out of both caches, on request: `pgsweep cache --evict`.

The only thing that `cache` changes, and only what lies in caches: the next access reads from disk. Buffers go
by pg_buffercache's own functions, which PostgreSQL has since 17: before, they stay. The page cache goes by
posix_fadvise(2), POSIX_FADV_DONTNEED, file by file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pgsweep._native import drop_page_cache
from pgsweep.errors import UsageError
from pgsweep.host.datafiles import find_data_files
from pgsweep.pg.catalog.server import RelationPlace, find_relation
from pgsweep.pg.evict import cannot_evict, evict, evict_statement
from pgsweep.pg.prewarm import written_out
from pgsweep.pg.session.connect import connect, same_server
from pgsweep.pg.session.refusals import explained
from pgsweep.residency.access import Access


@dataclass(frozen=True, slots=True)
class Evicted:
    """What was taken out.

    Attributes:
        buffers: evicted from shared_buffers; None where this release cannot evict any, so that they stay.
        pinned: buffers that stay, as somebody uses them.
        files: whose pages the kernel was asked to drop; None where the page cache cannot be seen from here.
        refused: files among them that it refused for.
    """

    buffers: int | None
    pinned: int
    files: int | None
    refused: int


def evict_relation(access: Access, name: str) -> Evicted:
    """Take a relation of the session's database out of both caches.

    Args:
        access: the server.
        name: as `regclass` reads it.

    Raises:
        UsageError: there is no such relation, or it has no storage of its own.
        MissingAbility: the server cannot do it, or not for this role; one that is too old to evict buffers
            only where the page cache cannot be reached either.
    """
    place = _place(access, name)
    buffers, pinned = None, 0
    reason = cannot_evict(access.server.version_num)
    if reason is None:
        with connect(same_server(access.connection), inspection=False) as connection, explained():
            buffers, pinned = evict(connection, evict_statement(connection, place))
    paths = _paths(access, place)
    if reason is not None and paths is None:
        raise reason
    if paths is None:
        return Evicted(buffers, pinned, None, 0)
    for path in paths:
        # Pages that are not on disk yet would stay.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    errors = drop_page_cache(paths)
    return Evicted(buffers, pinned, len(paths), int((errors != 0).sum()))


def written_plan(access: Access, name: str) -> list[str]:
    """Return the statement and the system calls by which `evict_relation` would do it; it raises the same."""
    place = _place(access, name)
    paths, reason = _paths(access, place), cannot_evict(access.server.version_num)
    calls = [f"posix_fadvise({path}, 0, 0, POSIX_FADV_DONTNEED)" for path in paths or []]
    if reason is not None and paths is not None:
        return [f"-- {reason.message}: its buffers stay", *calls]
    with explained():
        statement = written_out(access.connection, evict_statement(access.connection, place))
    return [f"{statement};", *calls]


def _place(access: Access, name: str) -> RelationPlace:
    place = find_relation(access.connection, name)
    if place is None:
        raise UsageError(f"`{name}` has no blocks of its own", hint="name a table, an index or a partition")
    return place


def _paths(access: Access, place: RelationPlace) -> list[str] | None:
    """Return the relation's files; None where the page cache cannot be reached from here."""
    if not access.sees_page_cache or access.postmaster_pid is None:
        return None
    files = find_data_files(access.postmaster_pid, access.server.version_num, [place.database_oid])
    mine = (place.tablespace_oid, place.database_oid, place.filenode)
    return [path for fork, path in zip(files.forks, files.paths, strict=True) if fork[:3] == mine]
