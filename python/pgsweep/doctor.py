"""What can be done with a server from here, and how to enable the rest.

Every ability is tried in the same way as the commands use it, but nothing is changed on the server or on the
host (see host/abilities.py). All checks together take a fraction of a second. A check that fails says why,
and does not end the others. On a hosted server the result is shorter: an ability that the provider does not
offer has one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from msgspec import structs

from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed, MissingAbility, PgsweepError, ServerTooOld
from pgsweep.host.abilities import READ_THE_POOL, HostChecks, Seen
from pgsweep.host.perils import perils_of
from pgsweep.host.postmaster import search
from pgsweep.pg.administrator import Administrator, session_options
from pgsweep.pg.alter_system import lacking_rights, refuse_kept_elsewhere
from pgsweep.pg.catalog.abilities import (
    Session,
    read_extension,
    read_primary,
    read_readable_tables,
    read_session,
)
from pgsweep.pg.catalog.grants import READ_ALL, unread_tables
from pgsweep.pg.catalog.next_start import read_next_start
from pgsweep.pg.catalog.place import read_place
from pgsweep.pg.catalog.provider import Provider, Wanted, read_provider
from pgsweep.pg.catalog.server import (
    BUFFERCACHE_OBJECTS,
    Server,
    read_buffercache,
    read_postmaster,
    read_server,
    readable_schema,
)
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.conninfo import describe
from pgsweep.pg.session.failures import DriverError
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.trust import Distrust, find_distrust, statements_to_create
from pgsweep.plain import sql_identifier
from pgsweep.records.doctor import Ability, DoctorResult, DoctorServer
from pgsweep.records.place import Place
from pgsweep.records.runnable import runnable
from pgsweep.units import bytes_of, format_bytes
from pgsweep.versions import beyond_tested

R = TypeVar("R")
_EVERYTHING: Final = (
    "record",
    *READ_THE_POOL,
    "warm plan",
    "load",
    "memory",
    "memory budget",
    "hugepages",
)
"""Commands that do nothing without a server."""

_BY_PREWARM: Final = ("warm plan", "warm run", "warm restore", "warm keep")
_IN_EVERY_DATABASE: Final = (
    "cache",
    "top",
    "serve",
    "warm plan",
    "warm run",
    "warm restore",
    "warm save",
    "warm check",
)
"""Commands that name the relations of all databases, or read them."""

_BY_STATISTICS: Final = ("record", "top", "serve", "warm plan", "warm run", "warm keep")


def examine(conninfo: str) -> DoctorResult:
    """Return what can be done with a server, and how to enable the rest.

    Args:
        conninfo: as libpq understands it.

    Raises:
        UsageError: the text is not a connection string.
        ConnectionFailed: the server cannot be reached, or went away; see `examine_host`.
    """
    try:
        connection = connect(conninfo)
    except MissingAbility as refusal:
        missing = "version" if isinstance(refusal, ServerTooOld) else "session"
        return _without_session(conninfo, _answered(missing, _sentence(refusal), refusal.hint))
    with connection:
        with explained():
            server, session = read_server(connection), read_session(connection)
            process = read_postmaster(connection)
        provider = _provider(connection)
        found = search(*process)
        info = connection.info
        host = HostChecks(
            Seen(
                search=found,
                server_host=info.host,
                by_socket=session.by_socket,
                version_num=server.version_num,
                shared_buffers_blocks=server.shared_buffers_blocks,
                file=session.file,
                huge_pages=server.settings["huge_pages"],
                huge_pages_status=server.settings.get("huge_pages_status"),
                huge_pages_needed=session.huge_pages_needed,
                hosted=provider is not None or session.hosted,
                shared_memory_type=server.settings.get("shared_memory_type", "mmap"),
            ),
            f"pgsweep doctor {session_options(info.host, info.port, session.role, server.database)}",
        )
        place = _place(connection, found.pid, host.place)
        abilities = [
            *_ServerChecks(connection, server, session, provider).abilities(),
            *_next_start(connection, server, place),
            *host.abilities(),
            *_perils(place, server),
        ]
        return DoctorResult(
            target=f"database {server.database} at {info.host or 'the local socket'}, port {info.port}",
            server=DoctorServer(
                version=server.version,
                version_num=server.version_num,
                database=server.database,
                role=session.role,
                superuser=session.superuser,
                in_recovery=server.in_recovery,
                shared_buffers_bytes=server.shared_buffers_blocks * server.block_size_bytes,
                relations=session.relations,
                databases=session.databases,
                provider=None if provider is None else provider.name,
            ),
            host=host.facts(),
            abilities=abilities,
            commands=runnable(abilities, in_recovery=server.in_recovery),
            place=place,
        )


def _provider(connection: Connection) -> Provider | None:
    try:
        with explained():
            return read_provider(connection)
    except ConnectionFailed:
        raise
    except PgsweepError:
        return None


def _place(connection: Connection, pid: int | None, seen: Place) -> Place:
    """Return where the server runs; what only this host shows, where the server does not answer."""
    try:
        with explained():
            return read_place(connection, pid)
    except ConnectionFailed:
        raise
    except (PgsweepError, DriverError):
        return seen


def _next_start(connection: Connection, server: Server, place: Place) -> list[Ability]:
    """Return what the next start of the server would bring, where that is not what is there now."""
    try:
        with explained():
            found = read_next_start(connection)
    except ConnectionFailed:
        raise
    except (PgsweepError, DriverError):
        return []
    why = []
    if found.errors:
        reload = ", and no reload takes anything over" if found.errors_end_reloads else ""
        why.append(f"it would fail{reload}: {'; '.join(found.errors)}")
    if found.pending:
        waiting = (f"{name} = {value or 'a value that is not seen'}" for name, value in found.pending.items())
        why.append(f"it takes over {', '.join(waiting)}")
        if found.unseen is not None and None in found.pending.values():
            why.append(found.unseen)
        pool, limit = found.pending.get("shared_buffers"), place.memory.limit_bytes
        if pool is not None and limit is not None and bytes_of(pool, server.block_size_bytes) > limit:
            why.append(f"the server is killed then: its memory is limited to {format_bytes(limit)}")
    return [_server("next start", False, "; ".join(why), None, [])] if why else []


def _perils(place: Place, server: Server) -> list[Ability]:
    """Return what the server's settings do not agree with where it runs."""
    if place.kind == "elsewhere":
        return []
    huge = server.settings.get("huge_pages_status") == "on"
    return [
        Ability(
            name=one.name,
            area="host",
            available=False,
            why=f"{one.why}; {one.remedy}",
            enable=None,
            needed_for=[],
        )
        for one in perils_of(place, server.settings, huge_pages=huge)
    ]


def examine_host(conninfo: str, refused: ConnectionFailed) -> DoctorResult:
    """Return what this machine allows, for a server that cannot be reached.

    Args:
        conninfo: as libpq understands it.
        refused: why there is no session.

    Raises:
        UsageError: the text is not a connection string.
    """
    why = f"{_sentence(refused)}; {refused.hint}" if refused.hint else _sentence(refused)
    if refused.by_server:
        return _without_session(conninfo, _answered("session", why, None))
    return _without_session(conninfo, [_server("connection", False, why, None, _EVERYTHING)])


def _answered(missing: str, why: str, enable: str | None) -> list[Ability]:
    """Return what is there and what is missing where a server answers, and gives no session."""
    return [
        _server("connection", True, "the server answers", None, _EVERYTHING),
        _server(missing, False, why, enable, _EVERYTHING),
    ]


def _without_session(conninfo: str, abilities: list[Ability]) -> DoctorResult:
    host = HostChecks(None, on_server("pgsweep doctor"))
    found = [*abilities, *host.abilities()]
    return DoctorResult(
        target=describe(conninfo),
        server=None,
        host=host.facts(),
        abilities=found,
        commands=runnable(found),
    )


class _ServerChecks:
    """What the session may do."""

    def __init__(
        self, connection: Connection, server: Server, session: Session, provider: Provider | None
    ) -> None:
        self._connection = connection
        self._provider = provider
        self._server = server
        self._session = session
        info = connection.info
        primary = None
        if server.in_recovery:
            primary = self._tried(lambda: read_primary(connection), None)
        self._psql, self._own_psql = (
            Administrator(info.host, info.port, server.database, one, server.in_recovery, primary).psql
            for one in (session, structs.replace(session, administrator=session.role))
        )

    def abilities(self) -> list[Ability]:
        """Return all of them.

        Raises:
            ConnectionFailed: the connection was lost.
        """
        checks: tuple[tuple[str, Callable[[], Ability]], ...] = (
            ("connection", self._reached),
            ("version", self._version),
            ("pg_monitor", self._monitor),
            ("pg_buffercache", self._buffercache),
            ("pg_prewarm", self._prewarm),
            ("databases", self._databases),
            ("tables", self._tables),
            ("track_counts", self._counts),
            ("track_io_timing", self._timing),
        )
        return [
            self._tried(check, _server(name, None, "the server gave no answer", None, []))
            for name, check in checks
        ]

    def _tried(self, check: Callable[[], R], otherwise: R) -> R:
        try:
            with explained():
                return check()
        except ConnectionFailed:
            raise
        except (PgsweepError, DriverError):
            return otherwise

    def _reached(self) -> Ability:
        how = "by a Unix socket" if self._session.by_socket else "by TCP"
        return _server("connection", True, f"as role {self._session.role}, {how}", None, _EVERYTHING)

    def _version(self) -> Ability:
        why = beyond_tested(self._server.version_num)
        if why is not None:
            return _server("version", None, why, "pip install --upgrade pgsweep", _EVERYTHING)
        return _server("version", True, f"PostgreSQL {self._server.version}", None, _EVERYTHING)

    def _monitor(self) -> Ability:
        needed_for = ["record --source sql", *READ_THE_POOL, "memory", "memory budget", "hugepages"]
        session = self._session
        if session.monitor:
            why = "the role is a superuser" if session.superuser else "the role is a member"
            return _server("pg_monitor", True, why, None, needed_for)
        command = self._psql(f"GRANT pg_monitor TO {sql_identifier(session.role)}")
        return _server("pg_monitor", False, self._there("the role is not a member"), command, needed_for)

    def _buffercache(self) -> Ability:
        name, needed_for = "pg_buffercache", ["record --source sql", *READ_THE_POOL]
        found = read_buffercache(self._connection)
        try:
            schema = readable_schema(self._connection, found)
        except MissingAbility as missing:
            if not found.installed:
                return _server(name, False, self._not_installed(name), None, needed_for)
            if found.schema is None:
                return self._not_created(name, _sentence(missing), needed_for)
            command = self._psql(found.grant)
            return _server(name, False, self._there(_sentence(missing)), command, needed_for)
        distrust = find_distrust(self._connection, name, BUFFERCACHE_OBJECTS)
        if distrust is not None:
            return self._distrusted(name, distrust, needed_for)
        version = read_extension(self._connection, name, "pg_buffercache_pages")
        why = f"version {version.created} in schema {schema}, readable"
        if version.created == version.available:
            return _server(name, True, why, None, needed_for)
        why += f"; the server has version {version.available}"
        return _server(
            name,
            True,
            self._there(why),
            self._psql(f"ALTER EXTENSION {name} UPDATE"),
            needed_for,
        )

    def _prewarm(self) -> Ability:
        name = "pg_prewarm"
        found = read_extension(self._connection, name, name)
        distrust = find_distrust(self._connection, name, [name])
        if distrust is not None:
            return self._distrusted(name, distrust, _BY_PREWARM)
        if found.usable:
            why = f"version {found.created} in schema {found.schema}"
            return _server(name, True, why, None, _BY_PREWARM)
        if found.created is not None:
            why = f"the role may not execute it in schema {found.schema}"
            command = self._psql(
                f"GRANT USAGE ON SCHEMA {found.schema} TO {sql_identifier(self._session.role)}"
            )
            return _server(name, False, self._there(why), command, _BY_PREWARM)
        if found.available is None:
            return _server(name, False, self._not_installed(name), None, _BY_PREWARM)
        why = f"the extension does not exist in database `{self._server.database}`"
        return self._not_created(name, why, _BY_PREWARM)

    def _not_created(self, name: str, why: str, needed_for: Sequence[str]) -> Ability:
        """Return the ability of an extension that the server lists and the database does not have."""
        first = None if self._provider is None else self._provider.before_creating(name)
        if self._provider is not None and first is not None:
            why = f"{why}; {self._provider.name}: {first}"
        command = self._psql(*statements_to_create(self._connection, name))
        return _server(name, False, self._there(why), command, needed_for)

    def _not_installed(self, name: str) -> str:
        if self._provider is not None:
            where = self._provider.extensions.format(name=name)
            return f"{self._provider.name} does not offer {name} to this server yet: {where}"
        major = self._server.version_num // 10000
        return (
            f"{name} is not installed on the server's host: install the contrib package of PostgreSQL "
            f"{major} there (Debian: apt-get install postgresql-{major}; elsewhere postgresql-contrib)"
        )

    def _distrusted(self, name: str, found: Distrust, needed_for: Sequence[str]) -> Ability:
        why = self._there(f"it is {found.problem}: {found.cause}")
        return _server(name, False, why, self._psql(*found.statements), needed_for)

    def _databases(self) -> Ability:
        closed = self._session.closed_databases
        if not closed:
            why = f"the role may connect to all {self._session.databases}"
            return _server("databases", True, why, None, _IN_EVERY_DATABASE)
        why = f"the role may not connect to {len(closed)} of {self._session.databases}: {', '.join(closed)}"
        names = ", ".join(sql_identifier(name) for name in closed)
        command = self._psql(f"GRANT CONNECT ON DATABASE {names} TO {sql_identifier(self._session.role)}")
        return _server("databases", False, self._there(why), command, _IN_EVERY_DATABASE)

    def _tables(self) -> Ability:
        tables, readable = read_readable_tables(self._connection)
        database = f"database `{self._server.database}`"
        if readable == tables:
            why = f"the role may read all {tables} of {database}" if tables else f"{database} has none"
            return _server("tables", True, why, None, _BY_PREWARM)
        command = self._psql(f"GRANT {READ_ALL} TO {sql_identifier(self._session.role)}")
        why = self._there(f"{unread_tables(tables, readable)} of {database}")
        return _server("tables", False, why, command, _BY_PREWARM)

    def _counts(self) -> Ability:
        if self._server.settings["track_counts"] == "on":
            return _server("track_counts", True, "the server counts accesses", None, _BY_STATISTICS)
        return self._setting("track_counts", "the server counts no accesses", _BY_STATISTICS)

    def _timing(self) -> Ability:
        if self._server.settings["track_io_timing"] == "on":
            return _server("track_io_timing", True, "the server times its reads", None, [])
        why = "the server does not time its reads: footprint and serve show no times of reads, and for the "
        return self._setting("track_io_timing", f"{why}throughput predict and advise have less to go by", [])

    def _setting(self, name: str, why: str, needed_for: Sequence[str]) -> Ability:
        if self._provider is not None:
            where = self._provider.settings({name: Wanted.plain("on")})
            return _server(name, False, f"{why}; {self._provider.name}: set it {where}", None, needed_for)
        if self._session.hosted:
            why += "; set it where the provider keeps the server's parameters"
            return _server(name, False, why, None, needed_for)
        try:
            refuse_kept_elsewhere(self._connection, {name: "on"})
        except MissingAbility as elsewhere:
            return _server(name, False, f"{why}; {elsewhere.message}: {elsewhere.hint}", None, needed_for)
        lacking = self._tried(lambda: lacking_rights(self._connection, [name]), None)
        # Since 15 a role may be granted single parameters.
        granted = lacking is not None and not any("PARAMETER" in one or "reload" in one for one in lacking)
        psql = self._own_psql if granted else self._psql
        command = psql(f"ALTER SYSTEM SET {name} = on", "SELECT pg_reload_conf()", here=True)
        return _server(name, False, why, command, needed_for)

    def _there(self, why: str) -> str:
        """Return the reason, with the word that a standby needs: what is created comes from its primary."""
        return f"{why}; this is a standby, so do it on its primary" if self._server.in_recovery else why


def _sentence(error: PgsweepError) -> str:
    return f"{error.message} ({error.cause})" if error.cause else error.message


def _server(
    name: str, available: bool | None, why: str, enable: str | None, needed_for: Sequence[str]
) -> Ability:
    return Ability(
        name=name, area="server", available=available, why=why, enable=enable, needed_for=list(needed_for)
    )
