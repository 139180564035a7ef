"""Records that a check of their own row alone refuses, found by one COPY that keeps nothing else.

COPY ... WHERE into a temporary table takes those rows only that a CHECK or NOT NULL of the table refuses. A
serial column counts all that are read, so it has the number of each record.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import psycopg
from psycopg import sql

from pgsweep.pg.connect import Connection
from pgsweep.pg.load_catalog import TableFacts, exact_text
from pgsweep.pg.load_copy import CopyTarget, copy
from pgsweep.pg.queries import load

_TABLE = "pgsweep_refused"
_NUMBER = "pgsweep_number"


def find_refused_by_checks(
    connection: Connection,
    table: TableFacts,
    target: CopyTarget,
    parts: Sequence[bytes | memoryview],
) -> list[tuple[int, str]]:
    """Return number and reason of each record that a check or NOT NULL of the table refuses.

    Nothing is found where a trigger may change rows first, the role may not make a temporary table like this
    one, or COPY takes no such condition (of a generated column). What is not found, the table refuses.

    The text of a check is read anew, so all runs under pg_catalog: under another search_path a name in it
    could mean what somebody else has put there.

    Args:
        connection: in a transaction. All that is done is undone.
        parts: the records.

    Raises:
        BadRow: a record cannot be read.
    """
    if table.insert_triggers:
        return []
    query = load("load_checks", connection.info.server_version).encode()
    names = {"oid": table.oid, "columns": target.columns}
    rows = [tuple(map(exact_text, row)) for row in connection.execute(query, names)]
    checks = [_check(table, name, expression) for name, expression in rows]
    if not checks:
        return []
    found: list[tuple[int, str]] = []
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(_made(table, rows))
            here = msgspec.structs.replace(target, schema="pg_temp", table=_TABLE, freeze=False)
            copy(connection, here, parts, where=sql.SQL(" OR ").join(check for check, _ in checks))
            for check, reason in checks:
                chosen = sql.SQL("SELECT {} FROM pg_temp.{} WHERE {}").format(
                    sql.Identifier(_NUMBER), sql.Identifier(_TABLE), check
                )
                found += [(number - 1, reason) for (number,) in connection.execute(chosen)]
    except (psycopg.ProgrammingError, psycopg.NotSupportedError):
        return []
    return list(dict(reversed(found)).items())


def _check(table: TableFacts, name: str, expression: str | None) -> tuple[sql.Composed, str]:
    """Return the condition that a refused row meets, and what the server says of it."""
    if expression is None:
        reason = f'null value in column "{name}" of relation "{table.name}" violates not-null constraint'
        return sql.SQL("({} IS NULL)").format(sql.Identifier(name)), reason
    reason = f'new row for relation "{table.name}" violates check constraint "{name}"'
    return sql.SQL("(({}) IS FALSE)").format(sql.SQL(expression)), reason


def _made(table: TableFacts, rows: Sequence[tuple[str, str | None]]) -> sql.Composed:
    """Return the statements that make the temporary table."""
    name = sql.Identifier("pg_temp", _TABLE)
    made = sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING DEFAULTS, {} bigserial)").format(
        name, sql.Identifier(table.schema, table.name), sql.Identifier(_NUMBER)
    )
    nullable = [
        sql.SQL("ALTER TABLE {} ALTER {} DROP NOT NULL").format(name, sql.Identifier(column))
        for column, expression in rows
        if expression is None
    ]
    return sql.SQL("; ").join([made, *nullable])
