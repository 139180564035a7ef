"""Evicting a relation from shared_buffers: pg_buffercache_evict (17), pg_buffercache_evict_relation (18)."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from pgsweep.errors import LacksExtension, LacksPrivilege, MissingAbility
from pgsweep.pg.administrator import as_superuser, connect_as_superuser
from pgsweep.pg.catalog.abilities import read_extension, read_session
from pgsweep.pg.catalog.server import BUFFERCACHE_OBJECTS, RelationPlace
from pgsweep.pg.queries import compose
from pgsweep.pg.session.trust import missing_extension, require_trusted

_OLDEST: Final = 170000
_NAME: Final = "pg_buffercache"


def cannot_evict(version_num: int) -> MissingAbility | None:
    """Return why servers of a release cannot evict a relation's buffers; None if they can."""
    if version_num >= _OLDEST:
        return None
    return MissingAbility(
        f"PostgreSQL {version_num // 10000} cannot evict a relation from shared_buffers",
        cause="pg_buffercache has functions for it since PostgreSQL 17",
    )


def evict_statement(connection: psycopg.Connection[Any], place: RelationPlace) -> tuple[bytes, list[int]]:
    """Return the statement that evicts a relation's buffers, and its arguments.

    Args:
        connection: a superuser's session in the relation's database.
        place: the relation.

    Raises:
        MissingAbility: the server is older than 17, or its extension is missing, outdated, not trusted or not
            for this role.
    """
    version_num = connection.info.server_version
    reason = cannot_evict(version_num)
    if reason is not None:
        raise reason
    function = "pg_buffercache_evict" if version_num < 180000 else "pg_buffercache_evict_relation"
    found = read_extension(connection, _NAME, function)
    if found.created is None or found.schema is None:
        raise missing_extension(connection, _NAME, installed=found.available is not None)
    session = read_session(connection)
    # The functions test it themselves, whatever is granted (pg_buffercache_pages.c).
    if not session.superuser:
        raise LacksPrivilege(
            f"role {session.role} may not execute {function}",
            cause="the server lets superusers evict, and nobody else",
            hint=None if session.hosted else connect_as_superuser(session),
        )
    if not found.usable:
        raise LacksExtension(
            f"{_NAME} {found.created} does not have {function}",
            cause=f"the server has version {found.available} of the extension",
            hint=as_superuser(connection, [f"ALTER EXTENSION {_NAME} UPDATE"]),
        )
    require_trusted(connection, _NAME, [*BUFFERCACHE_OBJECTS, function], instead="leave out --evict")
    text = compose("evict", version_num, schema=found.schema)
    return text.encode(), [place.oid, place.database_oid, place.tablespace_oid]


def evict(connection: psycopg.Connection[Any], statement: tuple[bytes, list[int]]) -> tuple[int, int]:
    """Return how many buffers were evicted, and how many stay because they are pinned.

    A dirty buffer is written first, by the server itself.

    Args:
        connection: a session that may change something.
        statement: of `evict_statement`.
    """
    row = connection.execute(*statement).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])
