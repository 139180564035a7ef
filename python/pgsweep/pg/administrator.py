"""The command by which a server's administrator executes statements there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgsweep.commands import on_server, sudo
from pgsweep.errors import PgsweepError
from pgsweep.host.postmaster import has_account
from pgsweep.pg.catalog.abilities import Session, read_primary, read_session
from pgsweep.plain import database_word, shell_word, shell_words


@dataclass(frozen=True, slots=True)
class Administrator:
    """Who may create extensions, grant and set parameters, and where.

    Attributes:
        host: of the session's server; a folder for a Unix socket.
        port: that the server listens at.
        database: of the session.
        session: what its role may do.
        in_recovery: the server is a standby.
        primary: host and port of its primary, as far as they are known.
    """

    host: str
    port: int
    database: str
    session: Session
    in_recovery: bool
    primary: tuple[str, int] | None

    def psql(self, *statements: str, here: bool = False) -> str:
        """Return the command by which the administrator executes the statements.

        Args:
            statements: each is a transaction of its own.
            here: on this very server, also where that is a standby.
        """
        name, host, port = self.session.administrator, self.host, self.port
        elsewhere = self.in_recovery and not here
        if elsewhere:
            host, port = self.primary or ("PRIMARY", port)
        # Over a socket peer authentication is usual: it lets in the system user of the role's name only. Root
        # is refused too; a session of root's own is one of the server's user (pg/session/osuser.py).
        by_socket = host.startswith("/") if elsewhere else self.session.by_socket
        peer = by_socket and (name != self.session.role or os.geteuid() == 0)
        as_name = sudo(name) if peer and name is not None and has_account(name) else ""
        command = f"{as_name}psql {session_options(host, port, name, self.database)}"
        return " ".join([command, *(f"-c {shell_word(text)}" for text in statements)])


def session_options(host: str, port: int, role: str | None, database: str) -> str:
    """Return psql's options for a session, without password."""
    words = ["-h", host] if host else []
    words += ["-p", str(port)]
    words += ["-U", role] if role else []
    return f"{shell_words(words)} -d {database_word(database)}"


def connect_as_superuser(session: Session) -> str:
    """Return the hint for what nobody but superusers may do, with the role that the server has for it."""
    name = session.administrator
    return f"connect as a superuser{'' if name is None else f': -U {shell_word(name)}'}"


def as_superuser(
    connection: psycopg.Connection[Any], statements: Sequence[str], *, here: bool = False
) -> str:
    """Return in words and as a command how statements are executed that the session's role may not.

    Args:
        connection: a session in the database where they are executed.
        statements: each is a transaction of its own.
        here: on this very server, also where that is a standby.
    """
    info = connection.info
    try:
        session = read_session(connection)
        row = connection.execute("SELECT pg_catalog.pg_is_in_recovery()").fetchone()
        in_recovery = row is not None and bool(row[0])
        primary = read_primary(connection) if in_recovery else None
    except (psycopg.Error, PgsweepError):
        # The session is in a failed transaction, or lost: psql's own defaults decide.
        commands = " ".join(f"-c {shell_word(statement)}" for statement in statements)
        where = f"-d {database_word(info.dbname)} {commands}"
        return f"as a superuser: {on_server('psql', where, named='server')}"
    administrator = Administrator(info.host, info.port, info.dbname, session, in_recovery, primary)
    who = "as the administrator" if session.hosted else "as a superuser"
    where = " on the primary" if in_recovery and not here else ""
    return f"{who}{where}: {administrator.psql(*statements, here=here)}"
