"""A copy of a table, within a transaction that is always rolled back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from psycopg import sql

from pgsweep.pg.load.catalog import Catalog, read_catalog
from pgsweep.pg.load.copy import CopyTarget
from pgsweep.pg.session.connect import Connection


@contextmanager
def table_copy(connection: Connection, original: Catalog, *, unlogged: bool = False) -> Iterator[Catalog]:
    """Make an empty copy of a table with its indexes, checks, keys and triggers; undo all at the end."""
    schema = f"pgsweep_compare_{secrets.token_hex(4)}"
    table = original.table
    name = sql.Identifier(schema, table.name)
    with connection.transaction(force_rollback=True):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        connection.execute(
            sql.SQL("CREATE {}TABLE {} (LIKE {} INCLUDING ALL)").format(
                sql.SQL("UNLOGGED " if unlogged else ""), name, sql.Identifier(table.schema, table.name)
            )
        )
        for key in original.keys:
            prefix = f"ALTER TABLE ONLY {table.quoted} ADD CONSTRAINT "
            if key.add.startswith(prefix) and not key.to_itself:
                rest = sql.SQL(key.add.removeprefix(prefix).removesuffix(" NOT VALID"))
                connection.execute(sql.SQL("ALTER TABLE ONLY {} ADD CONSTRAINT {}").format(name, rest))
        for trigger in original.triggers:
            before, on, after = trigger.definition.partition(f" ON {table.quoted} ")
            if on and trigger.fires:
                connection.execute(sql.SQL("{} ON {} {}").format(sql.SQL(before), name, sql.SQL(after)))
        row = connection.execute(
            "SELECT c.oid::int8 FROM pg_catalog.pg_class AS c"
            " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            [schema, table.name],
        ).fetchone()
        assert row is not None
        catalog = read_catalog(connection, row[0])
        assert catalog is not None
        yield catalog


def run_statements(connection: Connection, statements: Sequence[str]) -> None:
    """Execute statements that the server itself has written."""
    for statement in statements:
        connection.execute(statement.encode())


def insert_rows(
    connection: Connection, target: CopyTarget, rows: Sequence[Sequence[str | None]], *, at_once: int
) -> None:
    """Insert rows by statements of `at_once` rows each."""
    head = sql.SQL("INSERT INTO {} ({}) VALUES ").format(
        sql.Identifier(target.schema, target.table),
        sql.SQL(", ").join(sql.Identifier(name) for name in target.columns),
    )
    # psycopg takes % for the beginning of a parameter.
    begin = sql.SQL(head.as_string(None).replace("%", "%%"))
    one = sql.SQL("({})").format(sql.SQL(", ").join(sql.Placeholder() for _ in target.columns))
    for first in range(0, len(rows), at_once):
        part = rows[first : first + at_once]
        statement = begin + sql.SQL(", ").join([one] * len(part))
        connection.execute(statement, [value for row in part for value in row])
