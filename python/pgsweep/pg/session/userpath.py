"""Names that the user typed: the one thing that the user's own search_path is for.

Every session of pgsweep has a search_path of pg_catalog alone (`connect._ALWAYS`). A name such as `orders`
means what it means in the user's psql, so it is resolved under the path that role, database or connection
set, within a transaction of its own and by one function of pg_catalog that is named in full: nothing else is
looked up while that path is in force, so whoever may create objects in its schemas gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
from psycopg import errors as sqlstates

from pgsweep.errors import ConnectionFailed, UsageError
from pgsweep.pg.session.connect import read_user_path
from pgsweep.pg.session.failures import first_line
from pgsweep.plain import decode_nullable

_SET_PATH = "SELECT pg_catalog.set_config('search_path', %s, true)"
_RESOLVE = "SELECT pg_catalog.to_regclass(%s)"
_PARTS = "SELECT pg_catalog.to_json(pg_catalog.parse_ident(%s))"
_SCHEMAS = "SELECT pg_catalog.to_json(pg_catalog.current_schemas(false))"
_CREATES_IN = "SELECT pg_catalog.current_schema()"

_NOT_A_RELATION = (
    sqlstates.UndefinedTable,
    sqlstates.SyntaxError,
    sqlstates.InvalidName,
    sqlstates.InvalidSchemaName,
    sqlstates.InvalidParameterValue,
    sqlstates.FeatureNotSupported,
)
"""What the server says where a text is the name of no relation."""


@contextmanager
def user_path(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Run a transaction under the user's search_path; the session's own is back after it.

    Args:
        connection: in autocommit mode, outside a transaction.
    """
    path = read_user_path(connection)
    with connection.transaction():
        connection.execute(_SET_PATH, [path])
        yield


def creation_schema(connection: psycopg.Connection[Any]) -> str | None:
    """Return the schema in which the user's own session makes what it names no schema for; None for nowhere.

    Args:
        connection: in autocommit mode, outside a transaction.
    """
    with user_path(connection), connection.cursor(binary=True) as cursor:
        cursor.execute(_CREATES_IN)
        result = cursor.pgresult
        assert result is not None
        value = result.get_value(0, 0)
    # In a database without an encoding a name may be any bytes.
    return decode_nullable(value)


def schemas_of_path(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the schemas of the user's search_path that exist and that the role may use, in their order.

    Args:
        connection: in autocommit mode, outside a transaction.
    """
    with user_path(connection):
        row = connection.execute(_SCHEMAS).fetchone()
    return [] if row is None else [str(name) for name in row[0]]


def resolve_relation(connection: psycopg.Connection[Any], name: str) -> int:
    """Return the oid of the relation that a name means in the user's own session.

    Args:
        connection: in autocommit mode, outside a transaction.
        name: as SQL has it: `orders`, `shop.orders`, `"Odd Name"`.

    Raises:
        UsageError: there is no such relation.
        ConnectionFailed: the user's search_path cannot be asked for.
    """
    try:
        # A name with its schema is looked up in no path, which takes another session to ask for.
        whole = len(parts_of_name(connection, name)) > 1
        path = nullcontext() if whole else user_path(connection)
        with path, connection.cursor(binary=True) as cursor:
            # In binary form a regclass is its oid; a cast would be looked up under the user's path.
            cursor.execute(_RESOLVE, [name])
            result = cursor.pgresult
            assert result is not None
            value = result.get_value(0, 0)
    except ConnectionFailed as error:
        # The session that was to be asked for the path.
        error.hint = f"{error.hint}; or write the name with its schema: schema.table"
        raise
    except _NOT_A_RELATION as error:
        raise _no_relation(connection, name, first_line(error)) from error
    if value is None:
        quoted = name if '"' in name else f'"{name}"'
        raise _no_relation(connection, name, f"relation {quoted} does not exist")
    return int.from_bytes(value, "big")


def parts_of_name(connection: psycopg.Connection[Any], name: str) -> list[str]:
    """Return the parts of a name as the server takes it, without quotes; nothing where it is not a name."""
    try:
        row = connection.execute(_PARTS, [name]).fetchone()
    except psycopg.DataError:
        return []
    return [] if row is None else [str(part) for part in row[0]]


def _no_relation(connection: psycopg.Connection[Any], name: str, cause: str) -> UsageError:
    return UsageError(
        f"there is no relation `{name}` in database `{connection.info.dbname}`",
        cause=cause,
        hint="write it as in SQL: schema.table, or '\"Odd Name\"' with its quotes; its database by -d",
    )
