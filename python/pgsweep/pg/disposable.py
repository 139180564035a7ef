"""A server that its owner has named disposable: who else is connected, and a database for the lab alone.

The database has a comment, so that another user's database of the same name is never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep.errors import PgsweepError
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.catalog.activity import read_activity
from pgsweep.pg.queries import load
from pgsweep.pg.session.connect import Connection, connect, set_for_session
from pgsweep.pg.session.conninfo import LAB
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.rows import all_rows

DATABASE: Final = "pgsweep_lab"
_COMMENT: Final = "made by pgsweep lab run, which drops it"
_CLIENTS: Final = frozenset({"client backend", "walsender"})
_MOST_NAMED: Final = 3


def load_conninfo(conninfo: str, *, own_database: bool) -> str:
    """Return the connection string of sessions that load the server.

    Args:
        conninfo: of the server.
        own_database: whether they use the lab's database; else the one that conninfo names.
    """
    named = {"dbname": DATABASE} if own_database else {}
    return make_conninfo(conninfo, application_name=LAB, **named)


def overridden(connection: Connection, names: Sequence[str]) -> list[str]:
    """Return which settings of postgresql.auto.conf are not in force, each with what overrides it."""
    rows = all_rows(connection, "lab_settings", [list(names)])
    return [
        f"{name} ({'not taken over by a restart' if pending else source})"
        for name, source, pending in rows
        if pending or source != "configuration file"
    ]


def other_clients(connection: Connection) -> list[str]:
    """Return who else is connected, in words: clients, and servers that replicate from this one."""
    found = [
        f"{each.application or each.kind} of {each.user}" + (f" in {each.database}" if each.database else "")
        for each in read_activity(connection).values()
        if not each.own and (each.kind in _CLIENTS or each.hidden)
    ]
    return found[:_MOST_NAMED] + ([f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else [])


def end_sessions(connection: Connection) -> int:
    """End the sessions that a killed run has left, and return how many there were."""
    query = load("lab_end_sessions", connection.info.server_version)
    return len(connection.execute(query, [LAB]).fetchall())


def make_database(conninfo: str, extensions: Sequence[str]) -> None:
    """Make the lab's database, in the place of one that a killed run has left.

    Args:
        conninfo: of the server.
        extensions: to create in it, those that the server has.

    Raises:
        PgsweepError: there is one of this name that somebody else made.
    """
    drop_database(conninfo)
    name = sql.Identifier(DATABASE)
    with connect(conninfo, inspection=False) as connection, explained():
        set_for_session(connection, statement_timeout="300s")
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(name))
        connection.execute(sql.SQL("COMMENT ON DATABASE {} IS {}").format(name, sql.Literal(_COMMENT)))
    create = sql.SQL("CREATE EXTENSION IF NOT EXISTS {} SCHEMA public")
    with connect(conninfo, inspection=False, database=DATABASE) as connection, explained():
        for extension in extensions:
            connection.execute(create.format(sql.Identifier(extension)))


def drop_database(conninfo: str) -> bool:
    """Drop the lab's database and return whether there was one.

    Raises:
        PgsweepError: there is one of this name that somebody else made.
    """
    with connect(conninfo, inspection=False) as connection, explained():
        set_for_session(connection, statement_timeout="300s")
        if not check_database(connection):
            return False
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(DATABASE)))
    return True


def check_database(connection: Connection) -> bool:
    """Return whether there is a database of the lab.

    Raises:
        PgsweepError: there is one of this name that somebody else made.
    """
    query = load("lab_database", connection.info.server_version)
    row = connection.execute(query, [DATABASE]).fetchone()
    if row is not None and row[0] != _COMMENT.encode():
        raise PgsweepError(
            f"there is a database `{DATABASE}` that pgsweep did not make",
            cause="the lab makes one of this name, and drops it at the end",
            hint="rename it, " + as_superuser(connection, [f"ALTER DATABASE {DATABASE} RENAME TO another"]),
        )
    return row is not None
