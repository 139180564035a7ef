"""Connections: libpq decides where to connect; pgsweep adds its name and makes the session harmless.

We add a fallback application name, a connect timeout where the user set none and, for sessions that only
read, a read-only default and timeouts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence, Set
from contextlib import closing, suppress
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors as sqlstates
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from pgsweep.commands import on_server, this_command
from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError, Pooled, ServerTooOld
from pgsweep.pg.session import open_sessions, unanswered
from pgsweep.pg.session.answers import CheckedConnection, CheckedCursor, as_sockets, decoded
from pgsweep.pg.session.conninfo import APPLICATION, at_reached, note_reached, parameter_of, parse_conninfo
from pgsweep.pg.session.failures import connection_lost
from pgsweep.pg.session.osuser import connected_as_owner
from pgsweep.pg.session.refusals import explained, refused, translate
from pgsweep.pg.session.unanswered import NO_SESSION
from pgsweep.pg.session.wire import add_limits
from pgsweep.plain import decode_name, shell_word, sql_identifier
from pgsweep.versions import OLDEST_MAJOR

Connection: TypeAlias = psycopg.Connection[Any]
"""A session with a server, as `connect` returns it. What uses it raises ConnectionFailed where the server has
gone."""


class Session(CheckedConnection):
    """A session of the server's own for this client.

    Attributes:
        given_options: the `options` of the startup packet that the user gave.
        before: what `set_for_session` changed, as it was before.
        user_path: see `read_user_path`; None before it was asked for.
    """

    given_options: str = ""
    user_path: str | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.before: dict[str, str] = {}

    def close(self) -> None:
        """End the session, after its settings are again as they were.

        A server's own session ends with the connection. One that a pooler lends is given to another client.
        """
        if self.before and not self.closed and not self.broken:
            before, self.before = self.before, {}
            self.patience_seconds = _RESTORE_SECONDS
            with suppress(psycopg.Error, PgsweepError):
                if self.info.transaction_status != pq.TransactionStatus.IDLE:
                    self.rollback()
                set_for_session(self, **before)
        if not self.closed:
            open_sessions.note_closed()
        super().close()


OLDEST_VERSION_NUM = OLDEST_MAJOR * 10000

_SETUP_SECONDS = 20.0
_STATEMENT_TIMEOUT_SECONDS = 50.0

_ALWAYS: Final = {
    "search_path": "pg_catalog",
    "lock_timeout": "2s",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # What holds locks or a snapshot must end with its client, also where that has gone without a word.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    # A client that lives and does not read is given up too (the zero window of tcp(7)).
    "tcp_user_timeout": "120000",
    "exit_on_error": "off",
    "client_min_messages": "notice",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "extra_float_digits": "1",
    "IntervalStyle": "postgres",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
"""Settings of every session, in its startup packet, with a limit for statements.

Otherwise the owner of a database and the role's own settings (ALTER DATABASE, ALTER ROLE) decide what a name
or a statement means, how an answer reads, and when a session ends. Whoever may create objects in a schema of
the search_path could put a function or an operator of his own in the place of one of pg_catalog. What the
startup packet sets goes before both (guc.h, GucSource), holds from the first statement on, and does not stay
in a session that a connection pooler gives to another client.
"""

_INSPECTION: Final = {
    "idle_in_transaction_session_timeout": "5min",
    "default_transaction_read_only": "on",
    "jit": "off",
    # No parallel plan is the cheapest. Evidence has the server's own settings: what it holds is not set here.
    "parallel_setup_cost": "1e+10",
    # Where PGDATESTYLE or PGTZ are set, libpq sends them too, and they go before these two.
    "DateStyle": "ISO",
    "TimeZone": "UTC",
}
"""Settings of a session that only reads."""

NEWER: Final = {"transaction_timeout": "0", "restrict_nonsystem_relation_kind": ""}
"""Settings that not every version has: since 17, and since the minor releases of August 2024. They are in the
startup packet only where a role or a database has set them: a server refuses one that it does not know."""

_SHOWN_AS_SET: Final = (
    "search_path",
    "client_min_messages",
    "default_transaction_isolation",
    "exit_on_error",
)
"""Settings that the first statement reads, as samples of all. The server shows them as written here."""

_TRANSACTION_TIMEOUT_SINCE: Final = 170000
_LOGIN_TRIGGERS_SINCE: Final = 170000

_LOGIN_TRIGGERS: Final = """\
SELECT pg_catalog.convert_to(t.evtname::pg_catalog.text, pg_catalog.getdatabaseencoding())
FROM pg_catalog.pg_event_trigger AS t
WHERE t.evtevent OPERATOR(pg_catalog.=) 'login' AND t.evtenabled OPERATOR(pg_catalog.<>) 'D'
  AND EXISTS (SELECT FROM pg_catalog.pg_settings AS s
              WHERE s.name OPERATOR(pg_catalog.=) ANY (%s) AND s.source OPERATOR(pg_catalog.=) 'session')
ORDER BY t.evtname"""
"""Login event triggers, where one of these settings was set in the session."""

_READ_ONLY: Final = "default_transaction_read_only"

_HOSTS_BY_READ_ONLY: Final = {"read-write", "read-only"}
"""Values of target_session_attrs by which libpq chooses a host by its `_READ_ONLY`: in the startup packet,
ours would make a standby of every primary."""

LEFT_TO_LOGIN: Final = ("search_path", _READ_ONLY)
"""What a login event trigger (since 17) may rely on: its tables' schema, and that it may write."""

_REFUSES_OPTIONS: Final = r"startup parameter|command-line options"
"""What PgBouncer says of `options` in the startup packet, and what RDS Proxy says."""

_RESTORE_SECONDS: Final = 2.0
"""How long a session that is left may take to give its settings back."""

_GRACE_SECONDS = 5.0
"""How much longer than the server's own limit to wait for an answer."""


def connect(
    conninfo: str = "",
    *,
    inspection: bool = True,
    database: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Connection:
    """Connect, in autocommit mode, with a search_path of pg_catalog alone (see `_ALWAYS`).

    Args:
        conninfo: as `build_conninfo` returns it; empty means libpq's environment.
        database: instead of the one that conninfo names, which it need not name.
        inspection: whether the session only reads: it is then read-only by default, gives up a statement
            after 50 s and a lock after 2 s, may be idle for as long as it likes, has dates in ISO style, and
            runs no JIT compilation or parallel workers of its own.
        settings: others for this session, by name; of those that every version since 14 has.

    Raises:
        UsageError: the text is not a connection string.
        ConnectionFailed: no server, refused, or not in time; with cause and hint. Also where two connections
            hung in the server within the last minute: they may still take places there.
        MissingAbility: the server is older than PostgreSQL 14, or the session is shared through a pooler.
    """
    parameters = parse_conninfo(conninfo)
    if database:
        parameters["dbname"] = database
    connection = _settled(parameters, session_settings(inspection=inspection) | dict(settings or {}))
    if inspection:
        connection.patience_seconds = _STATEMENT_TIMEOUT_SECONDS + _GRACE_SECONDS
    else:
        try:
            # The order of day and month stays the user's: it is how dates in files are read.
            set_for_session(connection, DateStyle="ISO")
        except BaseException:
            connection.close()
            raise
    return connection


def session_settings(*, inspection: bool) -> dict[str, str]:
    """Return the settings in the startup packet of a session."""
    if not inspection:
        return {**_ALWAYS, "statement_timeout": "0"}
    limit = {"statement_timeout": f"{1000 * _STATEMENT_TIMEOUT_SECONDS:.0f}ms"}
    return {**_ALWAYS, **limit, **_INSPECTION}


def read_user_path(connection: Connection) -> str:
    """Return the search_path that the session would have if pgsweep had not set its own.

    A second session of the same role is asked, for a moment: the first does not know what role, database,
    connection and configuration file would have set. Nothing is looked up under that path.

    Raises:
        ConnectionFailed, MissingAbility: as `connect`.
    """
    assert isinstance(connection, Session)
    if connection.user_path is None:
        wanted = session_settings(inspection=True)
        del wanted["search_path"]
        with closing(_settled(parse_conninfo(same_server(connection)), wanted)) as session, explained():
            row = session.execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
        connection.user_path = "" if row is None else str(row[0])
    return connection.user_path


def _settled(parameters: Mapping[str, str], wanted: Mapping[str, str]) -> Session:
    """Return a session that is one of the server's own, in which these settings are in force.

    Raises:
        ConnectionFailed, MissingAbility: as `connect`.
    """
    attributes = parameter_of(parameters, "target_session_attrs")
    left = {_READ_ONLY} & wanted.keys() if attributes in _HOSTS_BY_READ_ONLY else set()
    try:
        connection = _opened(parameters, _without(wanted, left))
    except ConnectionFailed as refusal:
        left = left | (set(LEFT_TO_LOGIN) & wanted.keys())
        # With a cause it is another refusal than a trigger's, and would come again.
        if refusal.cause is not None or not refusal.by_server or not left:
            raise
        try:
            connection = _opened(parameters, _without(wanted, left))
        except ConnectionFailed:
            raise refusal from None
    at_login = _without(wanted, left)
    later = {name: wanted[name] for name in left}
    try:
        newer = _check_session(connection, at_login, later)
        if newer:
            connection.close()
            connection = _opened(parameters, {**at_login, **newer})
            _check_session(connection, at_login, later, again=True)
    except BaseException:
        connection.close()
        raise
    connection.setup_ends = None
    return connection


def _without(settings: Mapping[str, str], names: Set[str]) -> dict[str, str]:
    return {name: value for name, value in settings.items() if name not in names}


def _opened(parameters: Mapping[str, str], settings: Mapping[str, str]) -> Session:
    """Return a connection that has sent nothing but its startup packet.

    Where several hosts are named it goes to the one that a session of this process has reached already: what
    sessions of one command do is meant for one server. Where that one has gone, it is looked for again.
    """
    place = at_reached(parameters)
    if place != parameters:
        with suppress(ConnectionFailed):
            return _opened_at(place, settings)
    connection = _opened_at(parameters, settings)
    note_reached(parameters, connection.info)
    return connection


def _opened_at(parameters: Mapping[str, str], settings: Mapping[str, str]) -> Session:
    unanswered.require_answered(parameters)
    asked, parameters = parameters, dict(parameters)
    add_limits(parameters)
    parameters.setdefault("fallback_application_name", APPLICATION)
    # In a database of SQL_ASCII that would be the client's encoding too, and text would come as bytes.
    parameters.setdefault("client_encoding", "UTF8")
    given = parameter_of(parameters, "options")
    # A backslash at the end means nothing there, and would mean the blank after it.
    ended = re.sub(r"(?<!\\)((?:\\\\)*)\\$", r"\1", given)
    parameters["options"] = f"{ended} {startup_options(settings)}".strip()
    if "@" in (hosts := parameter_of(parameters, "host")):
        parameters["host"] = as_sockets(hosts)
    whole = make_conninfo("", **parameters)

    def attempt() -> Session:
        while True:
            try:
                with decoded():
                    return Session.connect(whole, autocommit=True, cursor_factory=CheckedCursor)
            except psycopg.OperationalError as error:
                if not (open_sessions.one_is_ending() and re.search("too many connections for", str(error))):
                    raise
                time.sleep(0.05)

    connection: Session | None = None
    try:
        connection = attempt()
    except psycopg.Error as error:
        failure = error
        try:
            # Root is refused by peer authentication, the server's own user is not.
            connection = connected_as_owner(attempt, error)
        except psycopg.Error as of_owner:
            # Root's password file is closed to the server's user, who then has no password to give.
            lacks_password = of_owner.pgconn is not None and of_owner.pgconn.needs_password
            failure = error if lacks_password else of_owner
    if connection is None:
        if NO_SESSION in str(failure):
            unanswered.note(asked)
        if re.search(_REFUSES_OPTIONS, str(failure)):
            raise _pooler()
        _check_age(make_conninfo("", **{**parameters, "options": given}), failure)
        raise refused(failure)
    open_sessions.note(connection)
    connection.given_options = given
    connection.setup_ends = time.monotonic() + _SETUP_SECONDS
    return connection


def first_statement(checked: Sequence[str] = _SHOWN_AS_SET) -> sql.Composed:
    """Return the first statement of a session. It changes nothing: a pooler may be found by its answer.

    Args:
        checked: settings of the startup packet to read.
    """
    shown = [sql.SQL("pg_catalog.current_setting({})").format(name) for name in checked]
    shown += [sql.SQL("pg_catalog.current_setting({}, true)").format(name) for name in NEWER]
    return sql.SQL("SELECT pg_catalog.pg_backend_pid(), session_user, current_user, {}").format(
        sql.SQL(", ").join(shown)
    )


def startup_options(settings: Mapping[str, str]) -> str:
    """Return the `options` of a startup packet that give a session these settings."""
    # A backslash keeps the character after it from ending a word (postinit.c, pg_split_opts).
    words = (f"{name}={value}" for name, value in settings.items())
    return " ".join("-c " + re.sub(r"([\\\s])", r"\\\1", word) for word in words)


def enter(connection: Connection, database: str) -> Connection:
    """Connect to another database of a session's very server, as the same role.

    Raises:
        ConnectionFailed, MissingAbility: as `connect`.
    """
    return connect(same_server(connection), database=database)


def same_server(connection: Connection) -> str:
    """Return the connection string of another session like this one, with the very server that it reached.

    Where several hosts were named, or the environment decides, another connection may reach another one.
    """
    info = connection.info
    parts = {**_given(connection), "host": info.host, "port": str(info.port)}
    parts.pop("hostaddr", None)
    if info.hostaddr and not info.host.startswith("/"):
        parts["hostaddr"] = info.hostaddr
    if info.password:
        parts["password"] = info.password
    assert isinstance(connection, Session)
    return make_conninfo("", **{**parts, "options": connection.given_options})


def _given(connection: Connection) -> dict[str, Any]:
    """Return the parameters of a connection, but for the password."""
    try:
        return parse_conninfo(connection.info.dsn)
    except RuntimeError:
        # psycopg wants to know where the home folder is, and a user without an account has none.
        of_libpq = connection.pgconn.info
        return {
            one.keyword.decode(): one.val.decode()
            for one in of_libpq
            if one.val and one.keyword not in {b"password", b"passfile"}
        }


def setting_statement(**settings: str) -> sql.Composed:
    """Return the statement of `set_for_session`: the settings as they are, and as set for the session.

    Its parameters, one for each setting, are the session's process: nothing is set in another session.
    """
    value = sql.SQL(
        "pg_catalog.current_setting({name}), CASE WHEN pg_catalog.pg_backend_pid() OPERATOR(pg_catalog.=) %s"
        " THEN pg_catalog.set_config({name}, {value}, false) END"
    )
    columns = [value.format(name=name, value=text) for name, text in settings.items()]
    return sql.SQL("SELECT {}").format(sql.SQL(", ").join(columns))


def set_for_session(connection: Connection, **settings: str) -> None:
    """Give a session other settings than `connect` gave it, until it is closed.

    Raises:
        MissingAbility: the statement went to another session of the server; nothing was set.
    """
    processes = [connection.info.backend_pid] * len(settings)
    row = connection.execute(setting_statement(**settings), processes).fetchone()
    if row is None or None in row:
        raise _pooler()
    assert isinstance(connection, Session)
    for name, before in zip(settings, row[::2], strict=True):
        connection.before.setdefault(name, before)


def end_without_client(connection: Connection) -> None:
    """Have the server end a statement whose client is gone: one that is killed cancels nothing.

    Where the server's system cannot see that, nothing is set (check_client_connection_check_interval,
    postgres.c).

    Raises:
        MissingAbility: the statement went to another session of the server; nothing was set.
    """
    with suppress(psycopg.errors.InvalidParameterValue):
        set_for_session(connection, client_connection_check_interval="1s")


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


def _check_session(
    connection: Session, wanted: Mapping[str, str], later: Mapping[str, str], *, again: bool = False
) -> dict[str, str]:
    """Send the first statement; return settings that the next connection must have instead of this one.

    Args:
        connection: that has sent nothing yet.
        wanted: settings that are in its startup packet.
        later: settings that are not, and that it gets when it is known to be the server's own.
        again: whether it already is the next one.

    Raises:
        MissingAbility: the server is too old, the session is shared through a pooler, or has another role.
        ConnectionFailed: it was lost.
    """
    version_num = connection.info.server_version
    if version_num < OLDEST_VERSION_NUM:
        raise _too_old(connection)
    checked = [name for name in _SHOWN_AS_SET if name in wanted]
    try:
        row = connection.execute(first_statement(checked)).fetchone()
    except (sqlstates.QueryCanceled, sqlstates.FeatureNotSupported) as error:
        # Its time limit, or its isolation level (there is no serializable one on a standby), is not ours.
        raise _not_in_force() from error
    except psycopg.Error as error:
        # A transaction_timeout of the role's ends the session, at times without its message.
        ended = connection.broken or isinstance(error, sqlstates.TransactionTimeout)
        if again or not ended or version_num < _TRANSACTION_TIMEOUT_SINCE:
            raise translate(error) from error
        return dict(NEWER)
    if row is None or row[0] != connection.info.backend_pid:
        raise _pooler()
    _, session_user, current_user, *values = row
    others = [name for name, value in zip(checked, values, strict=False) if value != wanted[name]]
    if others:
        raise _set_at_login(connection, others) or _not_in_force()
    if later:
        set_for_session(connection, **later)
    if session_user != current_user:
        _check_role(connection)
    shown = zip(NEWER, values[len(checked) :], strict=True)
    newer = {name: NEWER[name] for name, value in shown if value not in {None, NEWER[name]}}
    if newer and again:
        raise _not_in_force()
    return newer


def _pooler() -> MissingAbility:
    """Return the refusal of a connection whose server session is not its own.

    A pooler gives its clients process numbers of its own; the server gives the true one.
    """
    return Pooled(
        "the connection goes through a connection pooler",
        cause="a pooler may give each statement another session of the server; pgsweep needs one of "
        "its own, for its search_path, its timeouts and the counters of its own work",
        hint="connect to the server itself: -h HOST -p PORT as in the pooler's configuration",
    )


def _set_at_login(connection: Session, names: Sequence[str]) -> MissingAbility | None:
    """Return the refusal of a session for which a login event trigger has set these settings, if one has."""
    if connection.info.server_version < _LOGIN_TRIGGERS_SINCE:
        return None
    with explained():
        triggers = [decode_name(name) for (name,) in connection.execute(_LOGIN_TRIGGERS, [list(names)])]
    if not triggers:
        return None
    shown = ", ".join(sql_identifier(name) for name in triggers)
    statements = "; ".join(f"ALTER EVENT TRIGGER {sql_identifier(name)} DISABLE" for name in triggers)
    disable = f"-d {shell_word(connection.info.dbname)} -c {shell_word(statements)}"
    return MissingAbility(
        f"a login event trigger of database `{connection.info.dbname}` sets {', '.join(names)}",
        cause=f"{shown} sets it for the session, after what the connection asked for; pgsweep needs its own",
        hint=f"as a superuser leave the triggers out: PGOPTIONS='-c event_triggers=off' {this_command()}, or "
        f"{on_server('psql', disable, named='server')}; or connect to another database: -d NAME",
    )


def _not_in_force() -> MissingAbility:
    return MissingAbility(
        "the settings that the connection asked for are not in force",
        cause="a connection pooler ignores them (`options` of the startup packet), or a login event trigger "
        "set others",
        hint="connect to the server itself: -h HOST -p PORT as in the pooler's configuration",
    )


def _too_old(connection: psycopg.Connection[Any]) -> ServerTooOld:
    version = connection.info.parameter_status("server_version")
    return ServerTooOld(
        f"PostgreSQL {version} is not supported",
        cause=f"pgsweep knows the rules of PostgreSQL {OLDEST_MAJOR} and later",
        hint="upgrade the server",
    )


def _check_age(conninfo: str, error: psycopg.Error) -> None:
    """Find out whether a connection was refused because the server is too old to know a setting.

    Args:
        conninfo: without settings of ours.
        error: the refusal, which names the setting in any language.

    Raises:
        MissingAbility: it is.
    """
    if not any(name in str(error) for name in _ALWAYS):
        return
    with suppress(psycopg.Error), psycopg.connect(conninfo) as connection:
        if connection.info.server_version < OLDEST_VERSION_NUM:
            raise _too_old(connection)


def _check_role(connection: Connection) -> None:
    """Refuse the session of a superuser as another role, unless the options of the connection ask for it.

    What that role may not see would be missing, and hints would name it for a GRANT.

    Raises:
        MissingAbility: the database sets another role.
    """
    row = connection.execute(
        "SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = session_user"
    ).fetchone()
    if row is not None and row[0] and "role" not in connection.info.options:
        raise MissingAbility(
            f"the session of the superuser {connection.info.user} in database `{connection.info.dbname}` "
            "runs as another role",
            cause="the owner of the database, or the role's own settings, set it: ALTER ... SET role",
            hint=f"to stay the superuser: PGOPTIONS='-c role=none' {this_command()}",
        )
