"""A table for a sample beside the real one: the same columns, no indexes, in the journal's schema."""

from __future__ import annotations

import secrets

import msgspec
import psycopg
from psycopg import sql

from pgsweep.pg.connect import Connection
from pgsweep.pg.load_catalog import TableFacts
from pgsweep.pg.load_copy import CopyTarget
from pgsweep.pg.queries import load


def make_sample(
    connection: Connection, table: TableFacts, target: CopyTarget, schema: str, *, unlogged: bool
) -> CopyTarget:
    """Make a table for a sample and return it as the target of COPY; those of killed runs are dropped first.

    Args:
        schema: of the journal.

    Generated columns, defaults and checks are as in the table, and so is whether it is logged.
    """
    drop_leftovers(connection, schema)
    name = f"sample_{connection.info.backend_pid}_{secrets.token_hex(4)}"
    logged = sql.SQL("UNLOGGED ") if unlogged or table.persistence == "u" else sql.SQL("")
    connection.execute(
        sql.SQL(
            "CREATE {}TABLE {} (LIKE {} INCLUDING GENERATED INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        ).format(logged, sql.Identifier(schema, name), sql.Identifier(table.schema, table.name))
    )
    return msgspec.structs.replace(target, schema=schema, table=name, freeze=False)


def empty_sample(connection: Connection, target: CopyTarget) -> None:
    """Remove the rows of the sample."""
    connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(target.schema, target.table)))


def drop_sample(connection: Connection, target: CopyTarget) -> None:
    """Drop the table of the sample."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(target.schema, target.table)))


def drop_leftovers(connection: Connection, schema: str) -> None:
    """Drop the tables of samples whose sessions are gone."""
    query = load("load_samples", connection.info.server_version).encode()
    rows = connection.execute(query, {"schema": schema}).fetchall()
    for (name,) in rows:
        try:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))
        except psycopg.errors.InsufficientPrivilege:
            continue
