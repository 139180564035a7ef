"""The statements for keeping relations resident: which they are, where they lie, and the touches.

Touching is pg_prewarm in mode `buffer`: a block that is resident gets 1 more on its usage_count, one that is
not is read. It wants SELECT on the table and takes an ACCESS SHARE lock for the milliseconds of a statement.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pgsweep.pg.queries import compose, load
from pgsweep.pg.session.connect import Connection, set_for_session, setting_statement
from pgsweep.pg.session.userpath import resolve_relation
from pgsweep.plain import decode_name

CLAIM_CLASS: Final = 1885827947
"""First key of the advisory locks that say `this relation is being kept`; the second is its oid."""

_LOCK_TIMEOUT: Final = {"lock_timeout": "100ms"}
"""A rewrite of a relation holds its lock for long; there is nothing to keep until it ends."""

CALL_BLOCKS: Final = 2048
"""Blocks that one statement touches or reads at most: a stop takes effect between statements."""

CALL_STRETCHES: Final = 2048

Statement = tuple[bytes, Any]
"""A statement and its arguments."""


class NamedRelation(NamedTuple):
    """A relation by its names; the kind as pg_class has it; of TOAST the schema and table that it serves."""

    oid: int
    schema: str
    name: str
    kind: str
    table: tuple[str, str]


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


def prepare_session(connection: Connection) -> None:
    """Let a session that keeps relations wait for no lock."""
    set_for_session(connection, **_LOCK_TIMEOUT)


def lock_timeout_statement(connection: Connection) -> Statement:
    """Return the statement of `prepare_session`."""
    return setting_statement(**_LOCK_TIMEOUT).as_bytes(connection), [connection.info.backend_pid]


class Meant(NamedTuple):
    """What a name means: a relation, with the schema and name that it has."""

    oid: int
    schema: str
    name: str


def resolve(connection: Connection, name: str) -> Meant:
    """Return what a name means in the user's own session.

    Raises:
        UsageError: there is no such relation.
    """
    oid = resolve_relation(connection, name)
    return resolve_again(connection, Meant(oid, "", "")) or Meant(oid, "", name)


def resolve_again(connection: Connection, meant: Meant) -> Meant | None:
    """Return what the name means by now: a relation of that name, else the one that had it; None without."""
    query = load("keep_named", connection.info.server_version).encode()
    row = connection.execute(query, meant._asdict()).fetchone()
    return None if row is None else Meant(row[0], decode_name(row[1]), decode_name(row[2]))


def read_family(connection: Connection, oid: int, *, indexes: bool, toast: bool) -> list[NamedRelation]:
    """Return the relations with blocks in the pool that one stands for; of a partitioned one all partitions.

    Args:
        connection: in autocommit mode.
        oid: of the relation.
        indexes: with the indexes of the tables.
        toast: with their TOAST relations and the indexes of those.
    """
    arguments = {"oid": oid, "indexes": indexes, "toast": toast}
    query = load("keep_relations", connection.info.server_version).encode()
    return [
        NamedRelation(
            oid,
            decode_name(schema),
            decode_name(relation),
            kind,
            (decode_name(table_schema), decode_name(table)),
        )
        for oid, schema, relation, kind, temporary, filenode, table_schema, table in connection.execute(
            query, arguments
        ).fetchall()
        if filenode is not None and not temporary
    ]


def may_select(connection: Connection, oid: int) -> bool | None:
    """Return whether the role may read a table; None where it was dropped."""
    query = "SELECT pg_catalog.has_table_privilege(%s::oid, 'SELECT')"
    row = connection.execute(query, [oid]).fetchone()
    return None if row is None else row[0]


def read_places(connection: Connection, oids: Sequence[int]) -> dict[int, Place]:
    """Return where relations lie now; those that were dropped are not among them."""
    rows = connection.execute(*places_statement(connection, oids), prepare=True).fetchall()
    return {
        oid: Place((tablespace, database, filenode), blocks)
        for oid, database, tablespace, filenode, blocks in rows
        if filenode is not None
    }


def places_statement(connection: Connection, oids: Sequence[int]) -> Statement:
    """Return the statement that asks where relations lie, and its arguments."""
    return load("keep_places", connection.info.server_version).encode(), [list(oids)]


def claim(connection: Connection, oid: int) -> tuple[bool, int | None]:
    """Claim a relation for this session, without waiting.

    Returns:
        Whether it is ours now; else the process that has it, where that is known.
    """
    row = connection.execute(*claim_statement(connection, oid)).fetchone()
    assert row is not None
    return bool(row[0]), row[1]


def claim_statement(connection: Connection, oid: int) -> Statement:
    """Return the statement that claims a relation, and its arguments."""
    [as_signed] = struct.unpack("<i", struct.pack("<I", oid))
    arguments = {"kind": CLAIM_CLASS, "object": as_signed, "class_oid": CLAIM_CLASS, "oid": oid}
    return load("keep_claim", connection.info.server_version).encode(), arguments


def touch_statements(
    version_num: int, schema: str, oid: int, stretches: Sequence[tuple[int, int]]
) -> list[Statement]:
    """Return the statements that touch stretches of blocks of one relation, and their arguments.

    Args:
        version_num: as `server_version_num`.
        schema: of pg_prewarm, quoted.
        oid: of the relation.
        stretches: first and last block of each.
    """
    query = compose("keep_touch", version_num, schema=schema).encode()
    found = []
    for part in _parts(stretches):
        firsts, lasts = [first for first, _ in part], [last for _, last in part]
        found.append((query, {"oid": oid, "first_blocks": firsts, "last_blocks": lasts}))
    return found


def touch(connection: Connection, statement: Statement) -> Touched | None:
    """Send one of these statements; return None if the relation was dropped.

    Raises:
        DriverError: no right, a lock of others, or the session has gone.
    """
    query, arguments = statement
    row = connection.execute(query, arguments, prepare=True).fetchone()
    if row is None:
        return None
    blocks, accesses, hits, seconds = row
    # Without track_counts nothing is counted: then all count as touched.
    return Touched(blocks, hits if accesses else blocks, seconds)


def _parts(stretches: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Divide stretches so that no statement has more than a number of blocks and of stretches."""
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
