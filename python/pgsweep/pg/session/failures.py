"""What a statement or a session can fail with, under the names that PostgreSQL gives the conditions.

Features that go on after a failure (the next relation, a new session) catch these; all others let
`connect.explained` turn them into errors with cause and hint. The driver is named here and nowhere else
outside this package.
"""

from __future__ import annotations

import psycopg
from psycopg.errors import (
    AdminShutdown,
    DeadlockDetected,
    InsufficientPrivilege,
    InvalidParameterValue,
    LockNotAvailable,
    QueryCanceled,
    SerializationFailure,
    UndefinedObject,
    UndefinedTable,
)

from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed, ConnectionLost

__all__ = [
    "AdminShutdown",
    "DeadlockDetected",
    "DriverError",
    "InsufficientPrivilege",
    "InvalidParameterValue",
    "LockNotAvailable",
    "QueryCanceled",
    "SerializationFailure",
    "ServerError",
    "SessionEnded",
    "SessionLost",
    "UndefinedObject",
    "UndefinedTable",
    "connection_lost",
    "ends_session",
    "first_line",
    "no_answer",
]

DriverError = psycopg.Error
"""Whatever a statement or a session fails with."""

ServerError = psycopg.DatabaseError
"""What the server answers to a statement that it refuses; `SessionLost` is one of them."""

SessionLost = psycopg.OperationalError
"""The session has gone, or the server lacks what it needs; `QueryCanceled` is one of them."""

SessionEnded = (psycopg.OperationalError, psycopg.InterfaceError)
"""`SessionLost`, or a session used after that."""

_ENDED = ("57P01", "57P02", "57P03", "57P05")
"""admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout (utils/errcodes.txt)."""


def ends_session(error: DriverError, connection: psycopg.Connection) -> bool:
    """Return whether the session has gone with this failure, so that no other statement can work either."""
    return connection.broken or connection.closed or error.sqlstate in _ENDED


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message: the rest is libpq's position marks and hints.

    A server may send any length; of a line a thousand letters are given.
    """
    line, _, _ = str(error).strip().partition("\n")
    return line.rstrip()[:1000] or type(error).__name__


def connection_lost(reason: str | None = None) -> ConnectionLost:
    """Return the error of a session that has gone.

    Args:
        reason: the server's or libpq's words, where there are any.
    """
    return ConnectionLost(
        "the connection was lost" + (f": {reason}" if reason else ""),
        cause="the server was stopped, restarted or crashed, or an administrator ended the session",
        hint=f"see the server's log; is it running again? {on_server('pg_isready', named='server')}",
    )


def no_answer(reason: str) -> ConnectionFailed:
    """Return the error of a session that was left because no answer, or no end of one, came."""
    return ConnectionFailed(
        reason,
        cause="the server or the network hangs, or a proxy in between sends without end",
        hint="does psql get an answer? Else see the server's log, or leave the proxy out: -h HOST -p PORT",
    )
