"""The statements of a new partition: its table, the check of its bound, its foreign keys, and ATTACH."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import partial
from typing import Final

import psycopg
from psycopg import sql

from pgsweep.commands import on_server
from pgsweep.errors import PgsweepError, UsageError
from pgsweep.pg.load.catalog import Catalog, KeyFacts, TableFacts, read_catalog, rows_of
from pgsweep.pg.load.lock import Note, in_short_lock, named
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import first_line

BOUND_CHECK: Final = "pgsweep_bound"
_PARTS: Final = sql.SQL(
    "INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED INCLUDING STORAGE INCLUDING COMPRESSION "
    "INCLUDING INDEXES"
)
"""What CREATE TABLE ... PARTITION OF gives a partition too; not identity, which ATTACH refuses from 17 on."""


def name_of_new(connection: Connection, table: str, schema: str) -> tuple[str, str, str]:
    """Return schema, name, and both quoted, of a table that is to be made.

    Args:
        table: as SQL has it.
        schema: where the name has none.

    Raises:
        UsageError: it is not a name, or there is such a table.
        MissingAbility: a name is not UTF-8.
    """
    try:
        rows = rows_of(connection, "load_new", name=table, schema=schema)
    except psycopg.DataError as error:
        raise UsageError(f"`{table}` is not the name of a table: {first_line(error)}") from error
    if not rows:
        raise UsageError(f"`{table}` is not the name of a table", hint="name it NAME or SCHEMA.NAME")
    found, name, quoted, exists, _ = rows[0]
    if exists:
        raise UsageError(
            f"{quoted} already exists",
            cause="--partition-of makes a new table",
            hint="name another, or load into it as it is: leave out --partition-of and --for-values",
        )
    return found, name, quoted


def make_partition(connection: Connection, parent: TableFacts, table: TableFacts, bound: str) -> Catalog:
    """Make a table like a partitioned one, in the transaction that is open, and return what is on it.

    Raises:
        UsageError: the bound is not understood.
    """
    [(key, tablespace, owner, same_owner)] = rows_of(connection, "load_parent", oid=parent.oid)
    check = _check_of(connection, parent, table, key, bound)
    place = sql.SQL(" TABLESPACE {}").format(sql.Identifier(tablespace)) if tablespace else sql.SQL("")
    connection.execute(
        sql.SQL("CREATE TABLE {} (LIKE {} {}){}").format(named(table), named(parent), _PARTS, place)
    )
    if not same_owner:
        connection.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(named(table), sql.Identifier(owner)))
    if check is not None:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK ({})").format(
                named(table), sql.Identifier(BOUND_CHECK), sql.SQL(check)
            )
        )
    [(*_, oid)] = rows_of(connection, "load_new", name=table.quoted, schema=table.schema)
    catalog = read_catalog(connection, oid)
    assert catalog is not None
    return catalog


def _check_of(
    connection: Connection, parent: TableFacts, table: TableFacts, key: str, bound: str
) -> str | None:
    """Return the condition that a bound means, as the server writes it; None where that is not of columns.

    The server says it of a partition only. So one is made of an empty table with the same columns and key,
    and undone; the real one would be locked against readers.
    """
    like_name, part_name = (f"pgsweep_bound_{secrets.token_hex(4)}" for _ in range(2))
    like, part = sql.Identifier(parent.schema, like_name), sql.Identifier(parent.schema, part_name)
    with connection.transaction(force_rollback=True):
        connection.execute(
            sql.SQL("CREATE TABLE {} (LIKE {}) PARTITION BY {}").format(like, named(parent), sql.SQL(key))
        )
        try:
            # Prepared, so that it is one statement, whatever the user wrote.
            connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF {} {}").format(part, like, sql.SQL(bound)), prepare=True
            )
        except (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError) as error:
            # The position is that in our own statement, and the names are of the tables that are undone.
            words = (error.diag.message_primary or first_line(error)).replace(part_name, table.name)
            raise UsageError(
                f"the bound `{bound}` is not one of {parent.quoted}: {words.replace(like_name, parent.name)}",
                cause=f"it is partitioned by {key}",
                hint='--for-values "FROM (...) TO (...)", "IN (...)" or "WITH (modulus N, remainder M)"',
            ) from error
        [(condition,)] = rows_of(connection, "load_bound", name=part.as_string(connection))
    # Of a hash the condition names the partitioned table itself; ATTACH then reads the rows.
    return None if key.startswith("HASH") else condition


def attach_partition(
    connection: Connection,
    parent: Catalog,
    table: TableFacts,
    bound: str,
    keys: Sequence[KeyFacts],
    *,
    note: Note,
) -> None:
    """Add foreign keys to a table and attach it, in the transaction that is open.

    Args:
        keys: of the partitioned table; ATTACH takes the same ones of the table as its own.

    Raises:
        PgsweepError: it overlaps another, a row has no row that it refers to, or a lock cannot be had.
    """
    prefix = f"ALTER TABLE ONLY {parent.table.quoted} ADD CONSTRAINT "
    try:
        for key in keys:
            if key.add.startswith(prefix):
                rest = sql.SQL(key.add.removeprefix(prefix).removesuffix(" NOT VALID"))
                statement = sql.SQL("ALTER TABLE ONLY {} ADD CONSTRAINT {}").format(named(table), rest)
                in_short_lock(
                    connection, parent.table, None, partial(connection.execute, statement), note=note
                )
        attach = sql.SQL("ALTER TABLE {} ATTACH PARTITION {} {}").format(
            named(parent.table), named(table), sql.SQL(bound)
        )
        in_short_lock(connection, parent.table, None, partial(connection.execute, attach), note=note)
        drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT IF EXISTS {}")
        connection.execute(drop.format(named(table), sql.Identifier(BOUND_CHECK)))
    except (psycopg.ProgrammingError, psycopg.IntegrityError) as error:
        detail = (error.diag.message_detail or "").splitlines()[:1]
        raise PgsweepError(
            f"the partition cannot be attached: {first_line(error)}"
            + "".join(f" ({line})" for line in detail),
            cause="nothing was changed: the new table is undone",
            hint="see the partitions: " + on_server("psql", f'-c "\\\\d+ {parent.table.quoted}"'),
        ) from error
