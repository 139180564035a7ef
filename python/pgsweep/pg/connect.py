"""Connections: libpq decides where to connect; pgsweep adds its name and makes the session harmless.

We add a fallback application name, a connect timeout where the user set none and, for sessions that only
read, a read-only default and timeouts.
"""

from __future__ import annotations

import select
from contextlib import suppress
from typing import Any, TypeAlias

import psycopg
from psycopg import errors as sqlstates
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.pg.answers import CheckedConnection, CheckedCursor, decoded
from pgsweep.pg.conninfo import default_is_set, parse_conninfo
from pgsweep.pg.failures import connection_lost
from pgsweep.pg.osuser import connected_as_owner
from pgsweep.pg.refusals import explained, plain_message, refused
from pgsweep.versions import OLDEST_MAJOR

Connection: TypeAlias = psycopg.Connection[Any]
"""A session with a server, as `connect` returns it."""

OLDEST_VERSION_NUM = OLDEST_MAJOR * 10000

_CONNECT_TIMEOUT_SECONDS = 10
_STATEMENT_TIMEOUT_MS = 60_000
_LOCK_TIMEOUT_MS = 2_000
PIN = "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)"
"""The first statement of every session.

The owner of a database sets the search_path of all who enter it, superusers too (ALTER DATABASE), and
whoever may create objects in a schema of that path could put a function or an operator of his own in the
place of one of pg_catalog. So this statement calls its one function by its full name, and after it names
mean what pg_catalog holds. A statement, not the `options` parameter of the connection: connection poolers
refuse the latter.
"""

_MEANING = {
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "extra_float_digits": "1",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
"""Settings that change what a statement means or how its answer reads, and that a role or the owner of a
database may have set; with the server's defaults."""

_LOWERED = (
    "EXISTS (SELECT FROM pg_catalog.pg_roles"
    " WHERE rolname = session_user AND rolsuper AND rolname <> current_user)"
)
"""Whether a superuser's session has another role: the owner of a database can set his own for it."""

_NEWER = {"transaction_timeout": "0", "restrict_nonsystem_relation_kind": ""}
"""Settings that not every version has: since 17, and since the minor releases of August 2024."""

_HARMLESS = {
    "statement_timeout": str(_STATEMENT_TIMEOUT_MS),
    "lock_timeout": str(_LOCK_TIMEOUT_MS),
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "exit_on_error": "off",
    "TimeZone": "UTC",
    "default_transaction_read_only": "on",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}


def _set(settings: dict[str, str]) -> str:
    """Return the statement that gives a session these settings, and those of `_NEWER` that it has."""
    always = sql.SQL("pg_catalog.set_config({name}, {value}, false)")
    newer = sql.SQL(
        "CASE WHEN pg_catalog.current_setting({name}, true) IS NOT NULL"
        " THEN pg_catalog.set_config({name}, {value}, false) END"
    )
    calls = [
        form.format(name=name, value=value)
        for form, values in ((always, settings), (newer, _NEWER))
        for name, value in values.items()
    ]
    text = sql.SQL("SELECT pg_catalog.pg_backend_pid(), {lowered}, {calls}")
    return text.format(lowered=sql.SQL(_LOWERED), calls=sql.SQL(", ").join(calls)).as_string(None)


MEANING = _set(_MEANING)
"""The second statement of a session that does not only read."""

INSPECTION = _set({**_HARMLESS, **_MEANING})
"""The second statement of a session that only reads."""

_GRACE_SECONDS = 5.0
"""How much longer than the server's own limit to wait for an answer."""


def connect(conninfo: str = "", *, inspection: bool = True, database: str | None = None) -> Connection:
    """Connect, in autocommit mode, with a search_path of pg_catalog alone (see `PIN`).

    Args:
        conninfo: as `build_conninfo` returns it; empty means libpq's environment.
        database: instead of the one that conninfo names, which it need not name.
        inspection: whether the session only reads: it is then read-only by default, gives up a statement
            after 60 s and a lock after 2 s, may be idle for as long as it likes, has dates in ISO style, and
            runs no JIT compilation or parallel workers of its own.

    Raises:
        UsageError: the text is not a connection string.
        ConnectionFailed: no server, refused, or not in time; with cause and hint.
        MissingAbility: the server is older than PostgreSQL 14, or the session is shared through a pooler.
    """
    parameters = parse_conninfo(conninfo)
    if "connect_timeout" not in parameters and not default_is_set("connect_timeout"):
        parameters["connect_timeout"] = str(_CONNECT_TIMEOUT_SECONDS)
    parameters.setdefault("fallback_application_name", "pgsweep")
    if database:
        parameters["dbname"] = database
    # In a database of SQL_ASCII that would be the client's encoding too, and text would come as bytes.
    parameters.setdefault("client_encoding", "UTF8")
    whole = make_conninfo("", **parameters)

    def attempt() -> CheckedConnection:
        with decoded():
            return CheckedConnection.connect(whole, autocommit=True, cursor_factory=CheckedCursor)

    try:
        connection = attempt()
    except psycopg.Error as error:
        # Root is refused by peer authentication, the server's own user is not.
        as_owner = connected_as_owner(attempt, error)
        if as_owner is None:
            raise refused(error) from None
        connection = as_owner
    if inspection:
        connection.patience_seconds = _STATEMENT_TIMEOUT_MS / 1000 + _GRACE_SECONDS
    try:
        _settle(connection, inspection=inspection)
    except BaseException:
        connection.close()
        raise
    return connection


def enter(connection: Connection, conninfo: str, database: str) -> Connection:
    """Connect to another database of a session's very server, as the same role.

    Args:
        connection: its server is connected to, where conninfo names several or the environment decides.
        conninfo: of that session.
        database: by its name.

    Raises:
        ConnectionFailed, MissingAbility: as `connect`.
    """
    info = connection.info
    parts = {**parse_conninfo(conninfo), "host": info.host, "port": str(info.port)}
    parts.pop("hostaddr", None)
    if info.hostaddr and not info.host.startswith("/"):
        parts["hostaddr"] = info.hostaddr
    return connect(make_conninfo("", **parts), database=database)


def set_for_session(connection: Connection, **settings: str) -> None:
    """Give a session other settings than `connect` gave it."""
    for name, value in settings.items():
        connection.execute("SELECT pg_catalog.set_config(%s, %s, false)", [name, value])


def ping(connection: Connection) -> None:
    """Run the shortest statement: its time is the network's part of every statement's.

    Raises:
        DriverError: the session has gone.
    """
    connection.execute("SELECT")


def cancel(connection: Connection) -> None:
    """End the statement that another thread waits for; the session then ends with an error, or goes on."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=1)


def session_lives(connection: Connection) -> bool:
    """Return whether a session is still there, without a statement: a server that stops ends all of them."""
    try:
        readable, _, _ = select.select([connection.pgconn.socket], [], [], 0)
        if readable:
            connection.pgconn.consume_input()
    except (psycopg.OperationalError, ValueError, OSError):
        return False
    return not connection.broken


def require_session(connection: Connection) -> None:
    """Check that a session is still there, without a statement.

    After a crash the postmaster survives and recreates the shared memory, but the session is gone.

    Raises:
        ConnectionFailed: it is not.
    """
    if not session_lives(connection):
        raise connection_lost()


def _settle(connection: Connection, *, inspection: bool) -> None:
    """Refuse a server that is too old; pin the search_path; make an inspection session harmless."""
    if connection.info.server_version < OLDEST_VERSION_NUM:
        version = connection.info.parameter_status("server_version")
        raise MissingAbility(
            f"PostgreSQL {version} is not supported",
            cause=f"pgsweep knows the rules of PostgreSQL {OLDEST_MAJOR} and later",
            hint="upgrade the server",
        )
    with explained():
        try:
            connection.execute(PIN.encode())
            row = connection.execute((INSPECTION if inspection else MEANING).encode()).fetchone()
        except sqlstates.QueryCanceled as error:
            # The session's own limit holds from here on.
            raise ConnectionFailed(
                plain_message(error),
                cause="statement_timeout, as set for the role, the database or the server, ended the first "
                "statements of the session, which set another",
                hint="PGOPTIONS='-c statement_timeout=60s' pgsweep ...; psql -c '\\drds' shows what is set "
                "for roles and databases",
            ) from error
    if row is not None and row[1]:
        _check_role(connection)
    if row is None or row[0] != connection.info.backend_pid:
        # A pooler gives its clients process numbers of its own; the server gives the true one.
        raise MissingAbility(
            "the connection goes through a connection pooler",
            cause="a pooler may give each statement another session of the server; pgsweep needs one of "
            "its own, for its search_path, its timeouts and the counters of its own work",
            hint="connect to the server itself: -h HOST -p PORT as in the pooler's configuration",
        )


def _check_role(connection: Connection) -> None:
    """Refuse the session of a superuser as another role, unless the options of the connection ask for it.

    What that role may not see would be missing, and hints would name it for a GRANT.

    Raises:
        MissingAbility: the database sets another role.
    """
    if "role" not in connection.info.options:
        raise MissingAbility(
            f"the session of the superuser {connection.info.user} in database `{connection.info.dbname}` "
            "runs as another role",
            cause="the owner of the database, or the role's own settings, set it: ALTER ... SET role",
            hint="to stay the superuser: PGOPTIONS='-c role=none' pgsweep ...",
        )
