"""What a refused connection or statement means: our own errors with the likely cause and the next step.

No message repeats a connection string, because it may hold a password; libpq's own messages name host, user
and database only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from psycopg import errors as sqlstates

from pgsweep.commands import on_server, sudo, this_command
from pgsweep.errors import ConnectionFailed, LacksPrivilege, MissingAbility, PgsweepError, UnexpectedAnswer
from pgsweep.host.postmaster import has_account
from pgsweep.pg.session.answers import unexpected
from pgsweep.pg.session.failures import connection_lost, first_line, no_answer
from pgsweep.pg.session.unanswered import NO_SESSION, NO_SESSION_CAUSE, NO_SESSION_HINT
from pgsweep.pg.session.wire import TooLong
from pgsweep.plain import decode_name, shell_word, sql_identifier

_DRDS: Final = r"-c '\drds'"
"""psql's command for the settings of roles and databases."""

# Code, message pattern, likely cause, next step; the first match counts. libpq gives no SQLSTATE for a
# refused connection, and its texts are in English unless the server's lc_messages says otherwise: then the
# message stands alone.
REFUSALS: tuple[tuple[str, str, str, str], ...] = (
    (
        "wrong-password",
        r"password authentication failed",
        "the password is wrong, or the role has none",
        "try the same with psql; a password file is read from ~/.pgpass (mode 0600)",
    ),
    (
        "no-password",
        r"no password supplied",
        "the server wants a password and libpq found none",
        "set PGPASSWORD, or add a line to ~/.pgpass: {pgpass}:PASSWORD",
    ),
    (
        "peer-refused",
        r"peer authentication failed",
        "over the socket the server lets in only the system user of the same name",
        "{as_role}connect by TCP: -h localhost",
    ),
    (
        "no-database",
        r'database "[^"]*" does not exist',
        "there is no such database",
        "{psql_l} lists them; choose: -d NAME",
    ),
    ("no-role", r'role "[^"]*" does not exist', "there is no such role", "name another: -U NAME"),
    (
        "no-login",
        r"not permitted to log in",
        "the role was made without LOGIN",
        "name another role: -U NAME",
    ),
    (
        "database-full",
        r'too many connections for database "[^"]*"',
        "the database takes no more connections, and pgsweep may need two",
        "close some, or as a superuser: {alter_database}",
    ),
    (
        "role-full",
        r'too many connections for role "[^"]*"',
        "all connections that this role may use are taken; pgsweep may need two",
        "close some, or as a superuser: {alter_role}",
    ),
    (
        "server-full",
        r"too many (connections|clients)|remaining connection slots are reserved",
        "all connections that this role may use are taken",
        "close some, or connect as a superuser: -U NAME",
    ),
    (
        "no-hba-entry",
        r"no pg_hba.conf entry|pg_hba.conf rejects",
        "the server's pg_hba.conf does not let this user in from here",
        "add a line to pg_hba.conf, then: SELECT pg_reload_conf()",
    ),
    (
        "starting",
        r"starting up|not yet accepting connections|in recovery mode",
        "the server is starting or recovering",
        "wait a little and try again: {isready}",
    ),
    ("stopping", r"shutting down", "the server is being stopped", "start it again, then: {isready}"),
    (
        "no-service",
        r"definition of service|service file",
        "the service is in none of libpq's service files",
        "see ~/.pg_service.conf, or leave out service=",
    ),
    (
        "no-encryption",
        r"does not support SSL|SSL negotiation|certificate|SSL error",
        "client and server do not agree on encryption",
        "see sslmode and sslrootcert: sslmode=prefer tries both ways",
    ),
    (
        "unknown-host",
        r"resolve host|translate host name|Name or service not known",
        "the host name is unknown here",
        "check the host: -h HOST",
    ),
    ("no-session", NO_SESSION, NO_SESSION_CAUSE, NO_SESSION_HINT),
    (
        "catalog-locked",
        r"due to lock timeout",
        "another session locks a catalog that every session reads at its start (VACUUM FULL, REINDEX, LOCK)",
        "wait until it has ended, then: {doctor}",
    ),
    (
        "slow-start",
        r"due to statement timeout",
        "the server needed longer to begin a session than a setting of the role or the database allows",
        "see which: {drds}; try again when the server is less busy",
    ),
    (
        "invalid-database",
        r"cannot connect to invalid database",
        "its DROP DATABASE was interrupted: nothing can be done with it",
        "drop it again: DROP DATABASE",
    ),
    (
        "no-answer",
        r"timeout|timed out",
        "the host does not answer",
        "check host, port and firewall: {isready}",
    ),
    (
        "not-listening",
        r"No such file or directory|Connection refused",
        "no server listens there",
        "is it running? {isready}; name another place: -h HOST -p PORT",
    ),
    (
        "no-connect-privilege",
        r'permission denied for database "[^"]*"',
        "the role may not connect to it",
        "as its owner or a superuser: {grant_connect}",
    ),
    (
        "socket-closed",
        r"Permission denied",
        "this user may not enter the socket's folder",
        "run it as root: {as_root}, or connect by TCP: -h localhost",
    ),
)


def refused(error: psycopg.Error) -> ConnectionFailed:
    """Return the error of a connection that could not be made."""
    text = plain_message(error)
    known = (one for one in REFUSALS if re.search(one[1], text, re.IGNORECASE))
    other = (ConnectionFailed.code, "", None, "try the same with psql: it reads the same settings")
    code, _, cause, hint = next(known, other)
    if code == "socket-closed" and os.geteuid() == 0:
        cause = f"{cause}: its root is that of a user namespace, as in a rootless container"
        hint = "run it in the server's container, or as root of the host, or connect by TCP: -h localhost"
    refusal = ConnectionFailed(text, cause=cause, hint=_with_place(hint, error))
    refusal.code = code
    refusal.by_server = "FATAL:" in str(error)
    return refusal


def _with_place(hint: str, error: psycopg.Error) -> str:
    """Return a hint of `REFUSALS` with the names of the connection that was refused."""
    if "{" not in hint:
        return hint
    # Where libpq did not come as far as to know them, they are the user's to fill in.
    place = {"host": "HOST", "port": "PORT", "db": "DATABASE", "user": "USER"}
    if error.pgconn is not None:
        for name, unknown in place.items():
            with suppress(psycopg.Error):
                place[name] = decode_name(getattr(error.pgconn, name)) or unknown
    # fe-connect.c, passwordFromFile: `:` and `\\` are escaped by `\\`.
    escaped = [re.sub(r"([:\\])", r"\\\1", place[name]) for name in ("host", "port", "db", "user")]
    database, role = sql_identifier(place["db"]), sql_identifier(place["user"])
    return hint.format(
        pgpass=":".join(escaped),
        as_role=f"{sudo(place['user'])}{this_command()}, or " if has_account(place["user"]) else "",
        as_root=f"{sudo()}{this_command()}",
        alter_database=_by_another(f"ALTER DATABASE {database} CONNECTION LIMIT -1"),
        alter_role=_by_another(f"ALTER ROLE {role} CONNECTION LIMIT -1"),
        grant_connect=_by_another(f"GRANT CONNECT ON DATABASE {database} TO {role}"),
        psql_l=on_server("psql", "-l", named="role"),
        drds=on_server("psql", _DRDS),
        isready=on_server("pg_isready", named="server"),
        doctor=on_server("pgsweep doctor"),
    )


def _by_another(statement: str) -> str:
    """Return the command by which another role, which the user chooses, executes a statement."""
    return on_server("psql", f"-d postgres -U NAME -c {shell_word(statement)}", named="server")


def plain_message(error: psycopg.Error) -> str:
    """Return the message in one line, without psycopg's preface and libpq's question."""
    return re.sub(r"^connection (failed|is bad): ", "", first_line(error)).replace("FATAL:  ", "")


_OF_MONITOR = re.compile(r"pg_(?:stat|show|ls_|read|monitor|buffercache|shmem|file_settings|config)")
"""What members of pg_monitor may read, and others may not."""


def _lacking(text: str) -> MissingAbility:
    """Return the error of a role that lacks a privilege: pg_monitor, or one that the message names."""
    if _OF_MONITOR.search(text) or "permission denied for" not in text:
        return LacksPrivilege(
            text,
            cause="the role may not see this",
            hint=f"`{on_server('pgsweep doctor')}` has the command that grants pg_monitor",
        )
    return LacksPrivilege(
        text,
        cause="the role has no privilege on it",
        hint="have its owner or a superuser grant it to the role, or name another role: -U NAME",
    )


def translate(error: psycopg.Error) -> PgsweepError:
    """Return the error of ours that a failed statement means."""
    text = plain_message(error)
    match error:
        case sqlstates.InsufficientPrivilege():
            return _lacking(text)
        case sqlstates.QueryCanceled():
            return PgsweepError(
                text,
                cause="the statement took longer than pgsweep's own limit, or someone cancelled it",
                hint="try again when the server is less busy",
            )
        case sqlstates.TransactionTimeout() | sqlstates.IdleInTransactionSessionTimeout():
            return PgsweepError(
                text,
                cause="a setting of the role or of the database ends transactions after too short a time",
                hint=f"see which: {on_server('psql', _DRDS)}; connect as another role, or to another "
                "database: -U NAME, -d NAME",
            )
        case sqlstates.LockNotAvailable():
            return PgsweepError(text, cause="another session holds the lock", hint="try again later")
        case TooLong():
            return no_answer(text)
        case psycopg.OperationalError() | psycopg.InterfaceError():
            return connection_lost(text)
        case (
            sqlstates.UndefinedTable()
            | sqlstates.UndefinedFunction()
            | sqlstates.UndefinedObject()
            | sqlstates.UndefinedColumn()
            | sqlstates.InvalidSchemaName()
        ):
            return PgsweepError(
                f"the server refused a statement: {text}",
                cause="an extension or a relation was dropped meanwhile, or is not of the server's version",
                hint=f"see what is there: {on_server('pgsweep doctor')}",
            )
    if error.sqlstate is None:
        # Of psycopg or libpq, not of the server: an answer that they cannot read.
        return unexpected(None, text)
    return UnexpectedAnswer(
        f"the server refused a statement that PostgreSQL takes: {text}",
        cause="a proxy changes statements or answers, or the server is not PostgreSQL as released",
        hint="connect to the server itself: -h HOST -p PORT; `--debug` shows which statement it was",
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn what a statement raises inside into errors with cause and hint.

    Raises:
        MissingAbility: a privilege is missing.
        ConnectionFailed: the connection was lost.
        PgsweepError: a timeout.
    """
    try:
        yield
    except psycopg.Error as error:
        raise translate(error) from error
