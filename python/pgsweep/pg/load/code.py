"""Whose code runs when rows are copied into a table, and the search_path under which it runs.

Triggers, checks, defaults, index expressions and domains are code of the database's users, and it runs with
the rights of whoever loads. A body that names a function or a table without its schema means what the
search_path of the session says. For a role that cannot become superuser that is its own path, as in psql.
For one that is or can become superuser, it is pg_catalog and those schemas of that path in which no untrusted
role may create anything: whoever may create a function there could have it called in the place of another.
Where the code needs a schema that is left out, the load is refused, unless the user names a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import psycopg
from psycopg import pq

from pgsweep.errors import MissingAbility, UsageError
from pgsweep.pg.load.catalog import TableFacts, rows_of, structs
from pgsweep.pg.session.connect import read_user_path
from pgsweep.pg.session.userpath import schemas_of_path
from pgsweep.plain import quoted_where_needed

_NAME: Final = re.compile(r'(?<![.\w$"])(?:"((?:[^"]|"")+)"|([^\W\d][\w$]*))')
"""A name in the text of a function that is not the part after a dot. Strings count: they may be executed."""

_SHOWN: Final = 5


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function that may run; in C it is none of these.

    Attributes:
        name: with schema and parameters.
        used_by: the object of the table that calls it; empty for a function that another one names.
        own_path: the search_path that it sets itself, or nothing.
        body: its text; empty where its names were resolved when it was written.
    """

    oid: int
    name: str
    owner: str
    used_by: str
    own_path: str | None
    body: str


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a table, and how it runs.

    Attributes:
        path: the search_path.
        reason: why this one.
        powerful: the role is a superuser or may become one.
        schema_owner: a role that can put another table in the place of this one; None for none but trusted.
    """

    path: str
    reason: str
    powerful: bool
    schema_owner: str | None
    functions: list[Function]


class _Schema(msgspec.Struct, frozen=True):
    name: str
    stranger: str | None
    powerful: bool
    existing: bool
    owner: str | None


def read_code(
    connection: psycopg.Connection[Any],
    table: TableFacts,
    named: Sequence[str] | None,
    *,
    copying: bool = True,
) -> Code:
    """Return what code a load into a table runs, and under which search_path.

    Args:
        connection: outside a transaction.
        table: that is loaded.
        named: the schemas that the user names for the path.
        copying: rows are copied; otherwise no function is looked for, and nothing is refused.

    Raises:
        MissingAbility: code needs a schema that a superuser's path must not have.
        UsageError: a schema that is named does not exist.
    """
    mine = schemas_of_path(connection)
    wanted = [table.schema, "pg_catalog", *(mine if named is None else named)]
    of_table, *schemas = structs(connection, _Schema, "load_path", schemas=wanted)
    powerful = of_table.powerful
    owner = of_table.owner if powerful else None
    functions = _functions(connection, table.oid, [schema.name for schema in schemas]) if copying else []
    if named is not None:
        for schema in schemas:
            if not schema.existing:
                raise UsageError(f"there is no schema `{schema.name}`", hint="--search-path SCHEMA,SCHEMA")
        path = ", ".join(map(quoted_where_needed, named))
        return Code(path=path, reason="as asked", powerful=powerful, schema_owner=owner, functions=functions)
    if not powerful:
        path = read_user_path(connection)
        return Code(
            path=path, reason="your own, as in psql", powerful=False, schema_owner=None, functions=functions
        )
    safe = [schema for schema in schemas[1:] if schema.stranger is None]
    left_out = [schema for schema in schemas[1:] if schema.stranger is not None]
    needed = _needed(connection, functions, [schema.name for schema in [schemas[0], *safe]], left_out)
    if needed:
        raise _refused(needed, safe, left_out)
    reason = "only trusted roles may create objects in its schemas"
    if left_out:
        who = f"role {left_out[0].stranger} may create objects, or has, in {left_out[0].name}"
        reason = f"without {', '.join(schema.name for schema in left_out)}: {who}"
    path = ", ".join(quoted_where_needed(schema.name) for schema in safe) or "pg_catalog"
    return Code(path=path, reason=reason, powerful=True, schema_owner=owner, functions=functions)


def _functions(connection: psycopg.Connection[Any], oid: int, path: list[str]) -> list[Function]:
    """Return the functions that run, with those that their texts name."""
    found: dict[int, Function] = {}
    words: set[str] = set()
    while True:
        known = sorted(words)
        for function in structs(connection, Function, "load_code", oid=oid, words=known, path=path):
            found.setdefault(function.oid, function)
        more = {word for function in found.values() for word in _words(function.body, qualified=True)}
        if more <= words:
            return sorted(found.values(), key=lambda function: (not function.used_by, function.name))
        words |= more


def _words(body: str, *, qualified: bool = False) -> set[str]:
    """Return the names in the text of a function, as the server folds them.

    Args:
        qualified: those after a dot too.
    """
    text = body.replace(".", " ") if qualified else body
    return {quoted.replace('""', '"') if quoted else plain.lower() for quoted, plain in _NAME.findall(text)}


def _needed(
    connection: psycopg.Connection[Any], functions: list[Function], path: list[str], left_out: list[_Schema]
) -> list[tuple[Function, list[str]]]:
    """Return the functions whose text names what only schemas have that are left out, with these names."""
    names = [schema.name for schema in left_out]
    found = []
    for function in functions if left_out else []:
        words = sorted(_words(function.body)) if function.own_path is None else []
        rows = rows_of(connection, "load_needed", words=words, left_out=names, path=path)
        if rows:
            found.append((function, [str(name) for (name,) in rows]))
    return found


def _refused(
    needed: list[tuple[Function, list[str]]], safe: list[_Schema], left_out: list[_Schema]
) -> MissingAbility:
    lines = [
        f"{function.name} of role {function.owner} names {', '.join(names[:_SHOWN])}"
        for function, names in needed[:_SHOWN]
    ]
    if len(needed) > _SHOWN:
        lines.append(f"{len(needed) - _SHOWN} more functions name others")
    who = "; ".join(
        f"role {schema.stranger} may create objects, or has, in schema {schema.name}" for schema in left_out
    )
    path = ",".join(schema.name for schema in [*safe, *left_out])
    function = needed[0][0].name
    return MissingAbility(
        "the code of the table needs schemas that are not safe for a superuser: " + "; ".join(lines),
        cause=f"{who}: a function of that role could run with your rights in the place of another",
        hint=f"give the function its own path: ALTER FUNCTION {function} SET search_path = ...; or load as "
        f"a role that cannot become superuser: -U NAME; or if you trust these roles: --search-path {path}",
    )


@contextmanager
def under_path(connection: psycopg.Connection[Any], path: str) -> Iterator[None]:
    """Run the body under the search_path of the code; the session's own is back after it."""
    setting = "SELECT pg_catalog.set_config('search_path', %s, false)"
    connection.execute(setting, [path])
    try:
        yield
    finally:
        # The rollback of a transaction that failed puts the setting back.
        idle = pq.TransactionStatus.IDLE, pq.TransactionStatus.INTRANS
        if not connection.closed and connection.info.transaction_status in idle:
            connection.execute(setting, ["pg_catalog"])
