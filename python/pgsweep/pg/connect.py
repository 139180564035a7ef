"""Connections: libpq decides where to connect; pgsweep adds its name and makes the session harmless.

Every spelling that psql takes works, because libpq itself parses it: a database name, `key=value` pairs, a
`postgresql://` URI, PG* environment variables, service and password files, several hosts, SSL. We add a
fallback application name, a connect timeout where the user set none and, for sessions that only read, a
read-only default and timeouts.

Failures become errors of our own tree with the likely cause and a line to paste. No message ever repeats a
connection string, because it may hold a password; libpq's own messages name host, user and database only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import psycopg
from psycopg import errors as sqlstates
from psycopg import pq, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError, UnexpectedAnswer, UsageError
from pgsweep.host.postmaster import has_account
from pgsweep.pg.answers import CheckedConnection, CheckedCursor, decoded, unexpected
from pgsweep.pg.failures import connection_lost, first_line, no_answer
from pgsweep.pg.osuser import connected_as_owner
from pgsweep.pg.secrets import masked, without_secrets
from pgsweep.pg.wire import TooLong, add_limits
from pgsweep.plain import decode_name, shell_word, sql_identifier
from pgsweep.versions import OLDEST_MAJOR

Connection: TypeAlias = psycopg.Connection[Any]
"""A session with a server, as `connect` returns it."""

OLDEST_VERSION_NUM = OLDEST_MAJOR * 10000

_SETUP_SECONDS = 20.0
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
    "idle_in_transaction_session_timeout": "5min",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
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

# Message pattern, likely cause, next step; the first match counts. libpq gives no SQLSTATE for a refused
# connection, and its texts are in English unless the server's lc_messages says otherwise: then the message
# stands alone.
_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        r"password authentication failed",
        "the password is wrong, or the role has none",
        "try the same with psql; a password file is read from ~/.pgpass (mode 0600)",
    ),
    (
        r"no password supplied",
        "the server wants a password and libpq found none",
        "set PGPASSWORD, or add a line to ~/.pgpass: {pgpass}:PASSWORD",
    ),
    (
        r"peer authentication failed",
        "over the socket the server lets in only the system user of the same name",
        "{as_role}connect by TCP: -h localhost",
    ),
    (r'database "[^"]*" does not exist', "there is no such database", "psql -l lists them; choose: -d NAME"),
    (r'role "[^"]*" does not exist', "there is no such role", "name another: -U NAME"),
    (
        r"not permitted to log in",
        "the role was made without LOGIN",
        "name another role: -U NAME",
    ),
    (
        r'too many connections for database "[^"]*"',
        "the database takes no more connections",
        "close some, or as its owner: psql -d postgres -c {alter_database}",
    ),
    (
        r'too many connections for role "[^"]*"',
        "all connections that this role may use are taken",
        "close some, or as a superuser: psql -d postgres -c {alter_role}",
    ),
    (
        r"too many (connections|clients)|remaining connection slots are reserved",
        "all connections that this role may use are taken",
        "close some, or connect as a superuser: -U postgres",
    ),
    (
        r"no pg_hba.conf entry|pg_hba.conf rejects",
        "the server's pg_hba.conf does not let this user in from here",
        "add a line to pg_hba.conf, then: SELECT pg_reload_conf()",
    ),
    (
        r"starting up|not yet accepting connections|in recovery mode",
        "the server is starting or recovering",
        "wait a little and try again: pg_isready",
    ),
    (r"shutting down", "the server is being stopped", "start it again, then: pg_isready"),
    (
        r"definition of service|service file",
        "the service is in none of libpq's service files",
        "see ~/.pg_service.conf, or leave out service=",
    ),
    (
        r"does not support SSL|SSL negotiation|certificate|SSL error",
        "client and server do not agree on encryption",
        "see sslmode and sslrootcert: sslmode=prefer tries both ways",
    ),
    (
        r"resolve host|translate host name|Name or service not known",
        "the host name is unknown here",
        "check the host: -h HOST",
    ),
    (r"timeout", "the host does not answer", "check host, port and firewall: pg_isready"),
    (
        r"No such file or directory|Connection refused",
        "no server listens there",
        "is it running? pg_isready; name another place: -h HOST -p PORT",
    ),
    (
        r"Permission denied",
        "this user may not enter the socket's folder",
        "run it as root: sudo pgsweep ..., or connect by TCP: -h localhost",
    ),
)


def build_conninfo(
    target: str = "",
    *,
    host: str | None = None,
    port: str | int | None = None,
    user: str | None = None,
    dbname: str | None = None,
    password: str | None = None,
) -> str:
    """Return one connection string from psql's positional argument and flags; a flag wins.

    Args:
        target: a database name, `key=value` pairs or a URI. libpq's own rule applies: a text is a
            connection string if it begins like a URI or holds `=`.
        host: `-h`.
        port: `-p`.
        user: `-U`.
        dbname: `-d`; may be a connection string too, as in psql.
        password: as asked for by `-W`; never from an argument of the command line.

    Raises:
        UsageError: a text is not a connection string.
    """
    given = {"host": host, "port": port, "user": user, "password": password}
    flags = {name: str(value) for name, value in given.items() if value is not None}
    parts: dict[str, str] = {}
    for text in (target, dbname or ""):
        if text.startswith(("postgresql://", "postgres://")) or "=" in text:
            parts.update(_parse(text))
        elif text:
            parts["dbname"] = text
    _check_place({**parts, **flags})
    return make_conninfo("", **{**parts, **flags})


def _check_place(parts: dict[str, str]) -> None:
    """Refuse what cannot be a host or a port, before libpq quotes it: it may be a piece of a password.

    Raises:
        UsageError: a host has a character that names of hosts do not have, or a port is not a number.
    """
    # A path is a folder of sockets, and `@` at the beginning an abstract socket (fe-connect.c).
    hosts = [host for host in parts.get("host", "").split(",") if not host.startswith(("/", "@"))]
    if any(re.search(r"[@=;?#/\s]", host) for host in hosts):
        what = "host"
    elif not all(port == "" or port.strip().isdecimal() for port in parts.get("port", "").split(",")):
        what = "port"
    else:
        return
    raise UsageError(
        f"the {what} of the connection is not valid",
        cause="a password in a URI has one of the characters @ : / ? # % as it is, or parts are not "
        "separated",
        hint="in a URI write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23, % as %25, or leave the "
        "password to ~/.pgpass; put blanks between `key=value` pairs, and quotes around them: "
        "'host=... dbname=...'",
    )


def _parse(conninfo: str) -> dict[str, str]:
    try:
        return {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except psycopg.ProgrammingError as error:
        # libpq's message quotes pieces of the text, which may be pieces of a password.
        cause = str(error).strip() if without_secrets(conninfo) == conninfo and "@" not in conninfo else None
        raise UsageError(
            "the connection string cannot be understood",
            cause=cause,
            hint="as for psql: DBNAME, 'host=... dbname=...', or postgresql://USER@HOST:PORT/DBNAME",
        ) from None


def describe(conninfo: str) -> str:
    """Return in words where a connection string leads, without password: `postgres at localhost:5432`."""
    parts = _with_defaults(conninfo)
    if _is_service(parts):
        return place_of(conninfo)
    database = parts.get("dbname") or parts.get("user") or "?"
    return masked(f"database {database} at {place_of(conninfo)}")


def place_of(conninfo: str) -> str:
    """Return in words where the server of a connection string is, without password: `db1, port 5432`."""
    parts = _with_defaults(conninfo)
    if _is_service(parts):
        return masked(f"service {parts['service']}")
    return masked(f"{parts.get('host', 'the local socket')}, port {parts.get('port', '5432')}")


def place_options(conninfo: str) -> tuple[list[str], list[str]]:
    """Return psql's options for what a connection string names: host and port; these, role and database.

    What libpq takes from its environment is not among them: psql takes it from there too.
    """
    parts = _parse(conninfo)
    place = [
        word
        for name, flag in (("host", "-h"), ("port", "-p"))
        if name in parts
        for word in (flag, parts[name])
    ]
    role = ["-U", parts["user"]] if "user" in parts else []
    # A name with `=` in it, or a URI's beginning, would be read as a connection string.
    database = parts.get("dbname", "")
    named = ["-d", database] if database and "=" not in database and "://" not in database else []
    return place, [*place, *role, *named]


def _with_defaults(conninfo: str) -> dict[str, str]:
    """Return the parameters, those not given as libpq's environment has them."""
    given = _parse(conninfo)
    options = pq.Conninfo.get_defaults()
    defaults = {option.keyword.decode(): option.val.decode() for option in options if option.val}
    # A service goes before the defaults, but not before what was given.
    if "service" in {**defaults, **given} and "host" not in given:
        return {"service": defaults.get("service", ""), **given}
    return {**defaults, **given}


def _is_service(parts: dict[str, str]) -> bool:
    # libpq looks the service up when it connects, and not before.
    return "service" in parts and "host" not in parts


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
    parameters = _parse(conninfo)
    add_limits(parameters)
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
            raise _refused(error) from None
        connection = as_owner
    if inspection:
        connection.patience_seconds = _STATEMENT_TIMEOUT_MS / 1000 + _GRACE_SECONDS
    connection.setup_ends = time.monotonic() + _SETUP_SECONDS
    try:
        _settle(connection, inspection=inspection)
    except BaseException:
        connection.close()
        raise
    connection.setup_ends = None
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
    parts = {**_parse(conninfo), "host": info.host, "port": str(info.port)}
    parts.pop("hostaddr", None)
    if info.hostaddr and not info.host.startswith("/"):
        parts["hostaddr"] = info.hostaddr
    return connect(make_conninfo("", **parts), database=database)


def with_name(conninfo: str, name: str) -> str:
    """Return a connection string whose sessions have an application_name, unless the environment has one."""
    return make_conninfo(conninfo, fallback_application_name=name)


def is_conninfo(text: str) -> bool:
    """Return whether libpq would read a text as a connection string; it would not for `a=b.heat`."""
    if text.startswith(("postgresql://", "postgres://")):
        return True
    if "=" not in text:
        return False
    try:
        return bool(conninfo_to_dict(text))
    except psycopg.ProgrammingError:
        return False


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
    assert isinstance(connection, CheckedConnection)
    try:
        connection.look()
    except psycopg.OperationalError:
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
                _plain(error),
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


def _refused(error: psycopg.Error) -> ConnectionFailed:
    text = _plain(error)
    for pattern, cause, hint in _REFUSALS:
        if re.search(pattern, text, re.IGNORECASE):
            return ConnectionFailed(text, cause=cause, hint=_with_place(hint, error))
    return ConnectionFailed(text, hint="try the same with psql: it reads the same settings")


def _with_place(hint: str, error: psycopg.Error) -> str:
    """Return a hint of `_REFUSALS` with the names of the connection that was refused."""
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
    alter_database = f"ALTER DATABASE {sql_identifier(place['db'])} CONNECTION LIMIT -1"
    alter_role = f"ALTER ROLE {sql_identifier(place['user'])} CONNECTION LIMIT -1"
    return hint.format(
        pgpass=":".join(escaped),
        as_role=f"sudo -u {shell_word(place['user'])} pgsweep ..., or " if has_account(place["user"]) else "",
        alter_database=shell_word(alter_database),
        alter_role=shell_word(alter_role),
    )


def _plain(error: psycopg.Error) -> str:
    """Return the message in one line, without psycopg's preface and libpq's question."""
    return re.sub(r"^connection (failed|is bad): ", "", first_line(error)).replace("FATAL:  ", "")


def translate(error: psycopg.Error) -> PgsweepError:
    """Return the error of ours that a failed statement means."""
    text = _plain(error)
    match error:
        case sqlstates.InsufficientPrivilege():
            return MissingAbility(
                text,
                cause="the role may not see this",
                hint="`pgsweep doctor` has the command that grants pg_monitor",
            )
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
                hint="see which: psql -c '\\drds'; connect as another role, or to another database: -U NAME, "
                "-d NAME",
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
                hint="see what is there: pgsweep doctor",
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
