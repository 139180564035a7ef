"""What a session may see and do on its server, and who can grant more.

A few short statements that take no lock on any user's relation; nothing is created or changed. They work for
any role on any server, hosted ones too.
"""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from pgsweep.pg.queries import load
from pgsweep.pg.session.rows import one_row
from pgsweep.plain import decode_name, decode_nullable, printable_identifier


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a session, and what its database and cluster hold.

    Attributes:
        administrator: a role that may create extensions and grant: this one, a hosted server's administrator,
            or a superuser; None where none may log in.
        hosted: the administrator is not a superuser: the provider keeps that role and the settings to itself.
        monitor: the role has what pg_monitor has.
        relations: relations with storage in this database.
        databases: those of the cluster that allow connections.
        closed_databases: those among them that this role may not connect to.
        file: path of pg_class below the data directory.
        huge_pages_needed: to hold the shared memory; None before version 15, -1 where the server's
            platform has none.
        by_socket: connected by a Unix socket.
    """

    role: str
    administrator: str | None
    hosted: bool
    superuser: bool
    monitor: bool
    relations: int
    databases: int
    closed_databases: list[str]
    file: str
    huge_pages_needed: int | None
    by_socket: bool


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """How far an extension is there: installed with the server, created in this database, usable by the role.

    Attributes:
        available: the version that the server would create; None where it is not installed.
        created: the version that exists in this database.
        schema: where it exists, as an SQL identifier.
    """

    available: str | None
    created: str | None
    schema: str | None
    usable: bool


def read_session(connection: psycopg.Connection[Any]) -> Session:
    """Return what the session's role may do."""
    row = one_row(connection, "session")
    (
        role,
        administrator,
        hosted,
        superuser,
        monitor,
        relations,
        databases,
        closed,
        file,
        huge,
        by_socket,
    ) = row
    return Session(
        role=decode_name(role),
        administrator=decode_nullable(administrator),
        hosted=bool(hosted),
        superuser=bool(superuser),
        monitor=monitor,
        relations=relations,
        databases=databases,
        closed_databases=[decode_name(name) for name in closed or []],
        file=str(file),
        huge_pages_needed=huge,
        by_socket=by_socket,
    )


def read_extension(connection: psycopg.Connection[Any], name: str, function: str) -> Extension:
    """Return how far an extension is there.

    Args:
        connection: a session in the database that is asked about.
        name: the extension.
        function: one of its functions, which the role must be allowed to execute.
    """
    row = one_row(connection, "extension", [function, name])
    schema = None if row[2] is None else printable_identifier(row[2])
    return Extension(available=row[0], created=row[1], schema=schema, usable=row[3])


def read_readable_tables(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return how many tables of users the session's database has, and how many of them its role may read."""
    row = connection.execute(load("readable_tables", connection.info.server_version)).fetchone()
    assert row is not None
    return row[0], row[1]


def read_primary(connection: psycopg.Connection[Any]) -> tuple[str, int] | None:
    """Return host and port of a standby's primary; None if it is not known, or there is none."""
    row = connection.execute(load("primary", connection.info.server_version)).fetchone()
    return None if row is None or row[0] is None else (str(row[0]), int(row[1]))
