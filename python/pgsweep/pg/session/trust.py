"""Whether the objects of an extension may be used: whose code would run with the rights of this session.

A view or a function that a session uses runs its owner's code with the session's rights, and a read-only
transaction does not prevent that from doing harm (COPY TO PROGRAM is allowed in it). So an extension is used
only if its owner, and the owners of those of its objects that are used, are trusted: superusers, or the
session's own role. Where nobody connects as superuser, on a hosted service, the service's administrators own
the extensions and are trusted too.

A superuser needs more: the owner of a schema can rename it at any time, between this check and the next
statement, and make another one of that name. From version 15 on that is the owner of the database for the
schema public. No lock that a reader may take prevents it, so a superuser uses an extension only in a schema
whose owner is trusted.

The rights of a session are those of the role that logged in, not of the current role: the owner of a database
can set the current role for all who enter (ALTER DATABASE ... SET role), and code that runs in the session
can leave it (SET ROLE, set_config).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from pgsweep.errors import ConnectionFailed, LacksExtension, LacksPrivilege, MissingAbility
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.catalog.abilities import read_extension
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.catalog.provider import provider_if_known
from pgsweep.pg.queries import load
from pgsweep.pg.session.rows import all_rows
from pgsweep.pg.session.userpath import creation_schema
from pgsweep.plain import decode_name, sql_identifier

_SAFE_SCHEMAS = ("extensions", "superuser_extensions", "pgsweep_extensions")
"""Names that hints propose for a schema of a superuser's own: the first that nobody else has taken.
pg_catalog is not possible: the server creates no view there (heap.c: heap_create)."""


@dataclass(frozen=True, slots=True)
class Distrust:
    """Why an extension is not used.

    Attributes:
        problem: what is wrong, as the end of the sentence `the extension X in database Y is ...`.
        cause: who could do what.
        statements: SQL that corrects it, for a superuser.
        otherwise: what helps without these statements, or nothing.
    """

    problem: str
    cause: str
    statements: tuple[str, ...]
    otherwise: str = ""


def find_distrust(
    connection: psycopg.Connection[Any], extension: str, objects: Sequence[str]
) -> Distrust | None:
    """Return why the objects of an extension are not used with the rights of this session; None if they are.

    Args:
        connection: a session in the database that has the extension.
        extension: its name; one that does not exist gives None.
        objects: names of its functions and views that are going to be used.
    """
    query = load("extension_trust", connection.info.server_version)
    row = connection.execute(query, [extension, list(objects)]).fetchone()
    if row is None:
        return None
    stranger, whole, schema, schema_owner, schema_trusted = row
    if not whole or stranger is not None:
        anew = (f"DROP EXTENSION {extension}", *statements_to_create(connection, extension))
    if not whole:
        return Distrust(
            "not trusted",
            f"a view in schema {_identifier(schema)} has the name of the extension's view, but does not "
            "belong to the extension",
            anew,
        )
    if stranger is not None:
        return Distrust(
            "not trusted",
            f"role {_identifier(stranger)}, who is not a superuser, owns it or one of its objects, "
            f"and could run code with the rights of role {connection.info.user}",
            anew,
        )
    if not schema_trusted:
        safe, made = _safe_schema(connection)
        return Distrust(
            "not safe for a superuser",
            f"role {_identifier(schema_owner)}, who is not a superuser, owns its schema {_identifier(schema)}"
            " and could put other objects in the place of the extension's",
            (*made, f"ALTER EXTENSION {extension} SET SCHEMA {safe}"),
            "connect as a role with pg_monitor that is not a superuser",
        )
    return None


def statements_to_create(connection: psycopg.Connection[Any], extension: str) -> tuple[str, ...]:
    """Return SQL by which a superuser makes an extension that `find_distrust` finds nothing wrong with.

    Where the session is a superuser's and the schema that is first in its path belongs to somebody else, as
    public does from 15 on in a database with another owner, that is a schema of its own.

    Args:
        connection: a session in the database that lacks the extension.
        extension: its name.
    """
    # Within a transaction the user's path would stay in force to its end.
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    first = None
    # A role that may have one session only cannot ask; a schema of its own is right in any case.
    with suppress(ConnectionFailed):
        first = creation_schema(connection) if idle else None
    if first is not None and _schemas(connection, [first]).get(first, _NOBODYS).trusted:
        return (f"CREATE EXTENSION {extension}",)
    safe, made = _safe_schema(connection)
    return (*made, f"CREATE EXTENSION {extension} SCHEMA {safe}")


@dataclass(frozen=True, slots=True)
class _Schema:
    existing: bool
    trusted: bool


_NOBODYS = _Schema(existing=True, trusted=False)
"""Assumed of a schema that is missing from the server's answer: it exists and is not trusted."""


def _schemas(connection: psycopg.Connection[Any], names: Sequence[str]) -> dict[str, _Schema]:
    return {
        name: _Schema(existing, trusted)
        for name, existing, trusted in all_rows(connection, "schema_trust", [list(names)])
    }


def _safe_schema(connection: psycopg.Connection[Any]) -> tuple[str, tuple[str, ...]]:
    """Return a schema that no stranger owns, and SQL that makes it and lets others use what it holds."""
    found = _schemas(connection, _SAFE_SCHEMAS)
    schemas = [(name, found.get(name, _NOBODYS)) for name in _SAFE_SCHEMAS]
    free = [name for name, schema in schemas if schema.trusted or not schema.existing]
    name = free[0] if free else _SAFE_SCHEMAS[-1]
    return name, (f"CREATE SCHEMA IF NOT EXISTS {name}", f"GRANT USAGE ON SCHEMA {name} TO PUBLIC")


def require_trusted(
    connection: psycopg.Connection[Any], extension: str, objects: Sequence[str], *, instead: str
) -> None:
    """Check that the owners of an extension's objects may be trusted with the rights of this session.

    Args:
        connection, extension, objects: as for `find_distrust`.
        instead: what works without the extension, as the end of the hint.

    Raises:
        MissingAbility: an owner is not trusted.
    """
    found = find_distrust(connection, extension, objects)
    if found is None:
        return
    ways = [found.otherwise, as_superuser(connection, found.statements), f"or {instead}"]
    raise MissingAbility(
        f"the extension {extension} in database `{connection.info.dbname}` is {found.problem}",
        cause=found.cause,
        hint="; ".join(way for way in ways if way),
    )


def require_extension(connection: psycopg.Connection[Any], name: str, *, instead: str) -> str:
    """Return the quoted schema of an extension, after checking that this session may use it.

    Args:
        connection: as for `find_distrust`.
        name: the extension, which has a function of the same name.
        instead: as for `require_trusted`.

    Raises:
        MissingAbility: it is not created here, is not installed, may not be used by this role, or is not
            trusted.
    """
    found = read_extension(connection, name, name)
    if found.schema is None:
        raise missing_extension(connection, name, installed=found.available is not None, instead=instead)
    if not found.usable:
        raise LacksPrivilege(
            f"this role may not use {name} in database `{connection.info.dbname}`",
            cause=f"it may not enter schema {found.schema}, or not execute the function",
            hint=grant_to_session(connection, f"USAGE ON SCHEMA {found.schema}"),
        )
    require_trusted(connection, name, (name,), instead=instead)
    return found.schema


def missing_extension(
    connection: psycopg.Connection[Any], name: str, *, installed: bool, instead: str = ""
) -> MissingAbility:
    """Return the error of an extension that the session's database does not have.

    Args:
        connection: as for `find_distrust`.
        name: the extension.
        installed: whether its files are on the server's host.
        instead: as for `require_trusted`; nothing where there is no other way.
    """
    provider = provider_if_known(connection)
    if installed:
        first = None if provider is None else provider.before_creating(name)
        create = as_superuser(connection, statements_to_create(connection, name))
        return LacksExtension(
            f"the extension {name} does not exist in database `{connection.info.dbname}`",
            hint=create if first is None else f"{first}; {create}",
        )
    otherwise = f"; or {instead}" if instead else ""
    if provider is not None:
        return LacksExtension(
            f"{provider.name} does not offer {name} to this server yet",
            hint=provider.extensions.format(name=name) + otherwise,
        )
    major = connection.info.server_version // 10000
    package = (
        f"install the contrib package of PostgreSQL {major} on the server's host: on Debian it is part of "
        f"`postgresql-{major}`, elsewhere `postgresql-contrib`"
    )
    return MissingAbility(f"{name} is not installed on the server", hint=package + otherwise)


def _identifier(name: bytes) -> str:
    return sql_identifier(decode_name(name))
