"""A table for a sample beside the real one: the same columns, no indexes, in the journal's schema."""

from __future__ import annotations

import secrets

import msgspec
import psycopg
from psycopg import sql

from pgsweep.pg.connect import Connection
from pgsweep.pg.load_catalog import TableFacts
from pgsweep.pg.load_copy import CopyTarget
from pgsweep.pg.load_journal import SCHEMA
from pgsweep.pg.queries import load


def make_sample(
    connection: Connection, table: TableFacts, target: CopyTarget, *, unlogged: bool
) -> CopyTarget:
    """Make a table for a sample and return it as the target of COPY; those of killed runs are dropped first.

    Generated columns, defaults and checks are as in the table, and so is whether it is logged.
    """
    drop_leftovers(connection)
    name = f"sample_{connection.info.backend_pid}_{secrets.token_hex(4)}"
    logged = sql.SQL("UNLOGGED ") if unlogged or table.persistence == "u" else sql.SQL("")
    connection.execute(
        sql.SQL(
            "CREATE {}TABLE {} (LIKE {} INCLUDING GENERATED INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        ).format(logged, sql.Identifier(SCHEMA, name), sql.Identifier(table.schema, table.name))
    )
    return msgspec.structs.replace(target, schema=SCHEMA, table=name, freeze=False)


def empty_sample(connection: Connection, target: CopyTarget) -> None:
    """Remove the rows of the sample."""
    connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(target.schema, target.table)))


def drop_sample(connection: Connection, target: CopyTarget) -> None:
    """Drop the table of the sample."""
    connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(target.schema, target.table)))


def drop_leftovers(connection: Connection) -> None:
    """Drop the tables of samples whose sessions are gone."""
    rows = connection.execute(load("load_samples", connection.info.server_version).encode()).fetchall()
    for (name,) in rows:
        try:
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
        except psycopg.errors.InsufficientPrivilege:
            continue
