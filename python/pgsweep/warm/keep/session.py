"""What keeping relations resident asks of the server: which they are, where they lie, and the touches.

Touching is pg_prewarm in mode `buffer`: a block that is resident gets 1 more on its usage_count, one that is
not is read. It wants SELECT on the table and takes an ACCESS SHARE lock for the milliseconds of a statement.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import errors as sqlstates

from pgsweep.errors import UsageError
from pgsweep.pg.grants import NO_RIGHT, grant_to_read
from pgsweep.pg.prewarm import query_text
from pgsweep.pg.queries import load
from pgsweep.pg.userpath import NOT_A_RELATION, resolve_relation
from pgsweep.residency.rows import kind_word

CLAIM_CLASS: Final = 1885827947
"""First key of the advisory locks that say `this relation is being kept`; the second is its oid."""

LOCK_TIMEOUT: Final = "SET lock_timeout = '100ms'"
"""Whoever rewrites a relation holds its lock for long; there is nothing to be kept until then."""

CALL_BLOCKS: Final = 2048
"""Blocks that one statement touches or reads at most: a stop is heeded between statements."""

CALL_STRETCHES: Final = 2048


@dataclass(frozen=True, slots=True)
class Kept:
    """A relation to keep, by its names."""

    oid: int
    schema: str
    name: str
    kind: str

    @property
    def label(self) -> str:
        """`schema.relation`, without `public`."""
        return self.name if self.schema == "public" else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a relation lies now; `blocks` of the main fork, None while somebody rewrites it."""

    file: tuple[int, int, int]
    blocks: int | None


@dataclass(frozen=True, slots=True)
class Touched:
    """What one statement did: blocks accessed, those of them that were resident, and the server's time."""

    blocks: int
    hits: int
    seconds: float


def find_kept(
    connection: psycopg.Connection[Any], names: Sequence[str], *, indexes: bool, toast: bool
) -> list[Kept]:
    """Return the relations that names mean; of a partitioned table or index all partitions.

    Args:
        connection: in autocommit mode.
        names: as `regclass` reads them: `orders`, `shop.orders`, `"Odd Name"`.
        indexes: with the indexes of the tables.
        toast: with their TOAST relations and those's indexes.

    Raises:
        UsageError: there is no such relation, or it has no blocks in the buffer pool.
    """
    found: dict[int, Kept] = {}
    for name in names:
        try:
            arguments = {"oid": resolve_relation(connection, name), "indexes": indexes, "toast": toast}
            query = load("keep_relations", connection.info.server_version).encode()
            rows = connection.execute(query, arguments).fetchall()
        except NOT_A_RELATION as error:
            raise UsageError(
                f"there is no relation `{name}` in database `{connection.info.dbname}`",
                cause=str(error).splitlines()[0],
                hint="write it as in SQL: schema.table, or '\"Odd Name\"' with quotes; its database by -d",
            ) from error
        kept = [
            Kept(oid, _text(schema), _text(relation), kind_word(kind, _text(schema)))
            for oid, schema, relation, kind, temporary, filenode in rows
            if filenode is not None and not temporary
        ]
        if not kept:
            raise UsageError(
                f"`{name}` has no blocks in shared_buffers",
                cause="it is a view, a foreign table, a temporary table, or has no partitions",
                hint="name tables, indexes, materialized views or partitioned tables",
            )
        found.update((relation.oid, relation) for relation in kept)
    return list(found.values())


def read_places(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, Place]:
    """Return where relations lie now; those that were dropped are not among them."""
    rows = connection.execute(*places_statement(connection, oids), prepare=True).fetchall()
    return {
        oid: Place((tablespace, database, filenode), blocks)
        for oid, database, tablespace, filenode, blocks in rows
        if filenode is not None
    }


def places_statement(connection: psycopg.Connection[Any], oids: Sequence[int]) -> tuple[bytes, list[Any]]:
    """Return the statement that asks where relations lie, and its arguments."""
    return load("keep_places", connection.info.server_version).encode(), [list(oids)]


def claim(connection: psycopg.Connection[Any], oid: int) -> tuple[bool, int | None]:
    """Claim a relation for this session, without waiting.

    Returns:
        Whether it is ours now; else the process that has it, where that is known.
    """
    row = connection.execute(*claim_statement(connection, oid)).fetchone()
    assert row is not None
    return bool(row[0]), row[1]


def claim_statement(connection: psycopg.Connection[Any], oid: int) -> tuple[bytes, dict[str, int]]:
    """Return the statement that claims a relation, and its arguments."""
    [as_signed] = struct.unpack("<i", struct.pack("<I", oid))
    arguments = {"kind": CLAIM_CLASS, "object": as_signed, "class_oid": CLAIM_CLASS, "oid": oid}
    return load("keep_claim", connection.info.server_version).encode(), arguments


def touch_statements(
    version_num: int, schema: str, oid: int, stretches: Sequence[tuple[int, int]]
) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the statements that touch stretches of blocks of one relation, and their arguments.

    Args:
        version_num: as `server_version_num`.
        schema: of pg_prewarm, quoted.
        oid: of the relation.
        stretches: first and last block of each.
    """
    query = query_text("keep_touch", version_num, schema).encode()
    found = []
    for part in _parts(stretches):
        firsts, lasts = [first for first, _ in part], [last for _, last in part]
        found.append((query, {"oid": oid, "first_blocks": firsts, "last_blocks": lasts}))
    return found


def touch(connection: psycopg.Connection[Any], statement: tuple[bytes, dict[str, Any]]) -> Touched | None:
    """Send one of these statements; returns nothing where the relation was dropped.

    Raises:
        psycopg.Error: no right, a lock of others, or the session has gone.
    """
    query, arguments = statement
    row = connection.execute(query, arguments, prepare=True).fetchone()
    if row is None:
        return None
    blocks, accesses, hits, seconds = row
    # Without track_counts nothing is counted: then all count as touched.
    return Touched(blocks, hits if accesses else blocks, seconds)


def written_out(connection: psycopg.Connection[Any], statement: tuple[bytes, Any]) -> str:
    """Return a statement with its arguments filled in, as it could be pasted into psql."""
    with psycopg.ClientCursor(connection) as cursor:
        return cursor.mogrify(*statement).strip()


def reason(
    error: psycopg.Error, relation: Kept, connection: psycopg.Connection[Any]
) -> tuple[str, str | None]:
    """Return in our words why a relation could not be touched, and what would allow it."""
    if isinstance(error, sqlstates.InsufficientPrivilege):
        return _no_right(relation, connection)
    return str(error).strip().splitlines()[0], None


def refusal(relation: Kept, connection: psycopg.Connection[Any]) -> tuple[str | None, str | None]:
    """Return why a table could not be touched, and what would allow it, without trying.

    Of an index nothing is told: whether its own rights or its table's decide differs by minor version.
    """
    if relation.kind.endswith("index"):
        return None, None
    row = connection.execute(
        "SELECT pg_catalog.has_table_privilege(%s::oid, 'SELECT')", [relation.oid]
    ).fetchone()
    # A table that was dropped meanwhile gives a null; the first look tells of it.
    return (None, None) if row is None or row[0] is not False else _no_right(relation, connection)


def _no_right(relation: Kept, connection: psycopg.Connection[Any]) -> tuple[str, str]:
    role = connection.info.user
    return NO_RIGHT, grant_to_read(role, relation.schema, relation.name, relation.kind)


def _parts(stretches: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Divide stretches so that a statement has no more than so many blocks and stretches."""
    parts: list[list[tuple[int, int]]] = []
    room = 0
    for begin, last in stretches:
        first = begin
        while first <= last:
            if room == 0 or len(parts[-1]) == CALL_STRETCHES:
                parts.append([])
                room = CALL_BLOCKS
            end = min(last, first + room - 1)
            parts[-1].append((first, end))
            room -= end - first + 1
            first = end + 1
    return parts


def _text(name: bytes) -> str:
    return bytes(name).decode("utf-8", "backslashreplace")
