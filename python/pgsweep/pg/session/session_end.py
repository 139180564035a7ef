"""Why a session has gone: with its server, with its database, or alone.

The server's own words do not say it: pg_terminate_backend(), DROP DATABASE ... WITH (FORCE) and an orderly
stop end a session by the same message, and after a crash there may be none. So the server is asked, over a
new session: if it has run for longer than the old one lived, and counted for as long, it was neither
restarted nor crashed.
"""

from __future__ import annotations

import time
from contextlib import closing, suppress
from typing import Final, Literal

import psycopg

from pgsweep.errors import ConnectionFailed, ConnectionLost, PgsweepError
from pgsweep.pg.session.connect import Connection, connect, same_server
from pgsweep.pg.session.rows import one_row

SessionEnding = Literal["server", "session", "dropped", "connection"]

_ELSEWHERE: Final = ("postgres", "template1")
"""Databases to ask in where the session's own does not accept one; initdb makes both."""

_ADMIN_SHUTDOWN: Final = "57P01"


def say_if_dropped(lost: ConnectionLost, conninfo: str) -> None:
    """Give the error of a lost session another cause where its database no longer exists."""
    try:
        connect(conninfo).close()
    except ConnectionFailed as refusal:
        if refusal.code == "no-database":
            lost.cause, lost.hint = "the database was dropped; the server runs on", refusal.hint
    except PgsweepError:
        pass


class SessionWatch:
    """Finds out why a session has gone.

    Args:
        connection: the session, which has just begun.
        database_oid: its database.
    """

    def __init__(self, connection: Connection, database_oid: int) -> None:
        self._conninfo = same_server(connection)
        self._connection = connection
        self._database_oid = database_oid
        self._opened = time.monotonic()
        self._reason: str | None = None
        connection.add_notice_handler(self._note)

    def _note(self, message: psycopg.errors.Diagnostic) -> None:
        if message.severity_nonlocalized in {"FATAL", "PANIC"}:
            self._reason = message.sqlstate

    def ending(self, error: psycopg.Error | None = None) -> SessionEnding:
        """Return why the session has gone.

        `server`: it was stopped, restarted or crashed, or cannot be reached; `dropped`: the database was;
        `session`: an administrator ended the session; `connection`: it broke. In the last three the server
        runs on.

        Args:
            error: by which it was noticed, if there was one.
        """
        reason = self._reason_given(error)
        lived_seconds = time.monotonic() - self._opened
        for database in (None, *_ELSEWHERE):
            with (
                suppress(PgsweepError, psycopg.Error),
                closing(connect(self._conninfo, database=database)) as again,
            ):
                row = one_row(again, "survived", {"oid": self._database_oid})
                up_seconds, counted_seconds, has_database = row
                if min(up_seconds, counted_seconds or 0.0) < lived_seconds:
                    return "server"
                if not has_database:
                    return "dropped"
                return "session" if reason == _ADMIN_SHUTDOWN else "connection"
        return "server"

    def _reason_given(self, error: psycopg.Error | None) -> str | None:
        """Return the SQLSTATE with which the server ended the session, where it said one."""
        if error is not None and error.sqlstate is not None:
            return error.sqlstate
        # What came without a statement waits to be handled as a notice (fe-protocol3.c, pqParseInput3).
        with suppress(psycopg.Error):
            self._connection.pgconn.notifies()
        return self._reason
