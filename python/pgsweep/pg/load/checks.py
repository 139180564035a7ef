"""Records that a table refuses, found by one reading: for a check, a missing reference, or a duplicate key.

All are copied into a temporary table, of which a serial column has the number of each record. What CHECK and
NOT NULL refuse is all that COPY ... WHERE takes; what has no row to refer to, or a key that is there already,
is found by a join, of all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg import sql

from pgsweep.pg.load.catalog import TableFacts, exact_text, rows_of
from pgsweep.pg.load.copy import BadRow, CopyTarget, copy
from pgsweep.pg.session.connect import Connection

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
    rows = rows_of(connection, "load_checks", oid=table.oid, columns=target.columns)
    checks = [_check(table, name, expression) for name, expression in rows]
    if not checks:
        return []
    found: list[tuple[int, str]] = []
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(_made(table, rows))
            copy(connection, _here(target), parts, where=sql.SQL(" OR ").join(check for check, _ in checks))
            for check, reason in checks:
                chosen = sql.SQL("SELECT {} FROM pg_temp.{} WHERE {}").format(
                    sql.Identifier(_NUMBER), sql.Identifier(_TABLE), check
                )
                found += [(number - 1, reason) for (number,) in connection.execute(chosen)]
    except (psycopg.ProgrammingError, psycopg.NotSupportedError):
        return []
    return list(dict(reversed(found)).items())


def find_missing_references(
    connection: Connection,
    table: TableFacts,
    target: CopyTarget,
    files: Iterable[Iterable[bytes | memoryview]],
    most: int,
) -> list[tuple[int, str]]:
    """Return number and reason of records whose foreign keys refer to no row, not even to one of the files.

    A record that refers to one of these is another. Nothing is found where a trigger may change rows first,
    or this role may not read what they refer to. What is not found, the table refuses.

    Args:
        connection: in a transaction. All that is done is undone.
        files: the records of each, which the table takes by one statement.
        most: a few more than so many are enough.
    """
    names = {"columns": target.columns, "records": _TABLE}
    keys = rows_of(connection, "load_references", oid=table.oid, **names)
    if table.insert_triggers or not keys:
        return []
    found: dict[int, str] = {}

    def find(*, deferred: bool) -> None:
        before = -1
        while before < len(found) <= most:
            before = len(found)
            for _, words, missing in (key for key in keys if key[0] is deferred):
                removed = sql.SQL("DELETE FROM pg_temp.{} AS t WHERE {} RETURNING {}, {}").format(
                    sql.Identifier(_TABLE), sql.SQL(missing), sql.Identifier(_NUMBER), sql.SQL(words)
                )
                found.update(
                    (number - 1, exact_text(reason)) for number, reason in connection.execute(removed)
                )

    try:
        with _staged(connection, table):
            for parts in files:
                copy(connection, _here(target), parts)
                find(deferred=False)
            find(deferred=True)
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError, BadRow):
        return []
    return sorted(found.items())


def find_duplicates(
    connection: Connection,
    table: TableFacts,
    target: CopyTarget,
    files: Iterable[Iterable[bytes | memoryview]],
    most: int,
) -> list[tuple[int, str]]:
    """Return number and reason of records whose keys another row has: of the table, or a record before.

    The first record of a key stays, if nothing else refuses it. So nothing is found where a trigger, a
    foreign key, or a constraint that is not examined here may, or where this role may not read the table.
    What is not found, the table refuses.

    Args:
        connection: in a transaction. All that is done is undone.
        files: the records of each, which neither their types nor checks refuse.
        most: a few more than so many are enough.

    Raises:
        BadRow: a record cannot be read.
    """
    indexes = rows_of(connection, "load_unique", oid=table.oid, columns=target.columns)
    if table.insert_triggers or not indexes:
        return []
    number, records = sql.Identifier(_NUMBER), sql.Identifier(_TABLE)
    keys: dict[int, list[tuple[int, int, bool, str]]] = {}
    try:
        with _staged(connection, table):
            for parts in files:
                copy(connection, _here(target), parts)
            for place, (words, mine, filled, taken) in enumerate(indexes):
                chosen = sql.SQL(
                    "SELECT k.number, k.first, k.taken, k.words FROM (SELECT t.{number} AS number, "
                    "pg_catalog.min(t.{number}) OVER w AS first, pg_catalog.count(*) OVER w AS many, "
                    "{taken} AS taken, {words} AS words "
                    "FROM pg_temp.{records} AS t WHERE {filled} WINDOW w AS (PARTITION BY {mine})) AS k "
                    "WHERE k.taken OR k.many > 1"
                ).format(
                    number=number, records=records, words=sql.SQL(words), taken=sql.SQL(taken),
                    filled=sql.SQL(filled), mine=sql.SQL(mine),
                )  # fmt: skip
                for at, first, is_taken, reason in connection.execute(chosen):
                    keys.setdefault(at, []).append((place, first, is_taken, exact_text(reason)))
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError):
        return []
    found: list[tuple[int, str]] = []
    there: set[tuple[int, int]] = set()
    for at in sorted(keys):
        own = {(place, first) for place, first, _, _ in keys[at]}
        # The server checks the indexes one after the other.
        reasons = [
            reason for place, first, is_taken, reason in keys[at] if is_taken or (place, first) in there
        ]
        if not reasons:
            there |= own
            continue
        found.append((at - 1, reasons[0]))
        if len(found) > most:
            break
    return found


@contextlib.contextmanager
def _staged(connection: Connection, table: TableFacts) -> Iterator[None]:
    """Have the temporary table for records that are compared with rows; all that is done is undone."""
    with connection.transaction(force_rollback=True):
        # Where a policy would hide a row, it is an error.
        connection.execute("SET LOCAL row_security = off")
        connection.execute(_made(table, [], "INCLUDING IDENTITY"))
        yield


def _here(target: CopyTarget) -> CopyTarget:
    return msgspec.structs.replace(target, schema="pg_temp", table=_TABLE, freeze=False)


def _check(table: TableFacts, name: str, expression: str | None) -> tuple[sql.Composed, str]:
    """Return the condition that a refused row meets, and what the server says of it."""
    if expression is None:
        reason = f'null value in column "{name}" of relation "{table.name}" violates not-null constraint'
        return sql.SQL("({} IS NULL)").format(sql.Identifier(name)), reason
    reason = f'new row for relation "{table.name}" violates check constraint "{name}"'
    return sql.SQL("(({}) IS FALSE)").format(sql.SQL(expression)), reason


def _made(table: TableFacts, rows: Sequence[tuple[Any, ...]], also: LiteralString = "") -> sql.Composed:
    """Return the statements that make the temporary table, without the NOT NULL that is looked for."""
    name = sql.Identifier("pg_temp", _TABLE)
    made = sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING DEFAULTS {}, {} bigserial)").format(
        name, sql.Identifier(table.schema, table.name), sql.SQL(also), sql.Identifier(_NUMBER)
    )
    nullable = [
        sql.SQL("ALTER TABLE {} ALTER {} DROP NOT NULL").format(name, sql.Identifier(column))
        for column, expression in rows
        if expression is None
    ]
    return sql.SQL("; ").join([made, *nullable])
