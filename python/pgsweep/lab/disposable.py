"""A grid on a server that its owner has named disposable: `pgsweep lab run --dsn`.

Settings are written by ALTER SYSTEM. What postgresql.auto.conf said before is on disk before the first of
them (advice/apply.py), and is put back at the end; the next run puts back what a killed one left. The server
is restarted by a command of its owner. Where it does not come up with the settings of a cell, and its data
directory can be written from here, the file gets its old lines back, and the grid goes on.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pgsweep.advice.apply import apply, kept_before, mark, undo
from pgsweep.errors import ClusterError, ConnectionFailed, MissingAbility, PgsweepError, UsageError
from pgsweep.files import rewrite
from pgsweep.host.datafiles import find_data_files
from pgsweep.lab.protocol import Disposable, NothingRuns
from pgsweep.lab.shell import run_command
from pgsweep.pg.alter_system import check_allowed, read_states
from pgsweep.pg.catalog.server import read_cluster, read_databases, read_postmaster, read_server
from pgsweep.pg.disposable import (
    DATABASE,
    check_database,
    drop_database,
    end_sessions,
    load_conninfo,
    make_database,
    other_clients,
    overridden,
)
from pgsweep.pg.private.bindir import ServerBinaries, find_server
from pgsweep.pg.private.rundir import postmaster_lines
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.conninfo import describe, place_of
from pgsweep.pg.session.postmaster import local_postmaster
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.retry import patiently
from pgsweep.plain import shown
from pgsweep.progress import Progress
from pgsweep.testbed import pgbench
from pgsweep.testbed.cold import drop_from_page_cache

_OWNER: Final = "lab"
_ALONE_PATIENCE_SECONDS: Final = 3.0
_BACK_PATIENCE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_NOT_STARTED: Final = "it was not started again"
_EXTENSIONS: Final = ("pg_buffercache", "pg_prewarm")
_PRIVATE: Final = "leave out --dsn: a private server is made, and no other is touched"
_NOT_CHANGED: Final = frozenset(
    {
        # Lists of names, which ALTER SYSTEM quotes in a way of its own.
        *("search_path", "shared_preload_libraries", "session_preload_libraries", "local_preload_libraries"),
        "temp_tablespaces",
        # Where the server is found.
        *("unix_socket_directories", "listen_addresses", "port", "config_file", "data_directory"),
        *("hba_file", "ident_file", "external_pid_file"),
        # With this off, no further ALTER SYSTEM is allowed.
        "allow_alter_system",
    }
)


class DisposableServer:
    """A `pgsweep.testbed.server.Server` that somebody else owns; open one with `opened_server`.

    Attributes:
        binaries: of the client programs.
        run_directory: a temporary folder.
    """

    def __init__(self, server: Disposable, binaries: ServerBinaries, folder: Path, *, own: bool) -> None:
        self.binaries = binaries
        self.run_directory = folder
        self._server = server
        self._own = own
        self._before: dict[str, str | None] = {}
        with connect(server.conninfo) as connection, explained():
            self._identifier = _identifier(connection)
            self._started = read_postmaster(connection).start_time_us
            self._data_directory = _data_directory(connection)

    @property
    def changed(self) -> bool:
        """Whether settings were changed since, so that the server may run with them."""
        return bool(self._before)

    def conninfo(self, dbname: str = "postgres", /) -> str:
        """Return a connection string for sessions that load the server; `bench` is the grid's database."""
        own = self._own and dbname == pgbench.DATABASE
        return load_conninfo(self._server.conninfo, own_database=own)

    def restart(self, settings: Mapping[str, str], empty: bool) -> None:
        """Restart the server with settings of a cell.

        Args:
            settings: by name.
            empty: drop its files from the page cache then.

        Raises:
            PgsweepError: it cannot be done with these settings.
            NothingRuns: the server is down, or not the one that it was.
        """
        try:
            _check_alone(self._server)
        except ConnectionFailed as error:
            raise NothingRuns("the server went away", cause=error.message) from error
        changes = apply(self._server.conninfo, dict(settings), owner=_OWNER)
        for change in changes:
            self._before.setdefault(change.name, change.before)
        try:
            self._restart()
        except _NotBack as error:
            self._bring_back(error)
            raise ClusterError(
                "the server does not start with these settings", cause=error.cause or error.message
            ) from error
        with connect(self._server.conninfo) as connection, explained():
            wrong = overridden(connection, list(settings))
            if wrong:
                raise PgsweepError(
                    "settings of postgresql.auto.conf are not in force: " + ", ".join(wrong),
                    hint="take them from the server's command line, and from ALTER ROLE and ALTER DATABASE",
                )
            if empty:
                _drop_files(connection)

    def give_back(self, *, restart: bool) -> None:
        """Drop the lab's database, put the settings back, and restart.

        Args:
            restart: also where no setting was changed.

        Raises:
            NothingRuns: it cannot be done; the next run will try again.
        """
        try:
            with connect(self._server.conninfo, inspection=False) as connection, explained():
                end_sessions(connection)
                ours = check_database(connection)
            if ours:
                drop_database(self._server.conninfo)
            undone = undo(self._server.conninfo, owner=_OWNER, also_changed=True)
            if undone.changes or restart:
                # The next run must find this until the server runs with the old values.
                mark(self._server.conninfo, owner=_OWNER)
                self._restart()
                undo(self._server.conninfo, owner=_OWNER, also_changed=True)
        except PgsweepError as error:
            raise NothingRuns(
                "the server's settings are not put back yet",
                cause=error.message + (f": {error.cause}" if error.cause else ""),
                hint="start the server, then run the same command again: it begins with putting them back",
            ) from error

    def undo_killed(self, progress: Progress) -> None:
        """Put back what a killed run has left, where there was one."""
        if kept_before(self._server.conninfo, owner=_OWNER) is not None:
            progress.note("a run that was killed has left settings or its database: they are put back first")
            self.give_back(restart=True)

    def _restart(self) -> None:
        """Run the restart command and wait until the server answers again.

        Raises:
            _NotBack: it does not.
            NothingRuns: it was not restarted, or another server answers.
        """
        code, said = run_command(self._server.restart_command)
        patience = _BACK_PATIENCE_SECONDS if code == 0 else _ALONE_PATIENCE_SECONDS
        try:
            self._started = patiently(self._started_again, patience, threading.Event())
        except ConnectionFailed as error:
            ended = "did not end in time" if code is None else f"ended with {code}"
            cause = f"it {ended}, and {error.message}" + (f"; it said: {said[-600:]}" if said else "")
            if error.message == _NOT_STARTED:
                raise NothingRuns("the restart command did not restart the server", cause=cause) from error
            raise _NotBack("the server did not come back after the restart command", cause=cause) from error

    def _started_again(self) -> int:
        """Return when the server was started, in its own microseconds.

        Raises:
            ConnectionFailed: it does not answer, or was not started again.
            NothingRuns: another server answers.
        """
        with connect(self._server.conninfo) as connection, explained():
            if _identifier(connection) != self._identifier:
                raise NothingRuns("another server answers after the restart command")
            started = read_postmaster(connection).start_time_us
        if started == self._started:
            raise ConnectionFailed(_NOT_STARTED)
        return started

    def _bring_back(self, reason: PgsweepError) -> None:
        """Restart a server that is down with its old settings.

        Raises:
            NothingRuns: it cannot be done from here.
        """
        lines = [f"{name} = {value!r}" for name, value in self._before.items() if value is not None]
        try:
            if self._data_directory is None:
                raise MissingAbility("its data directory cannot be reached from here")
            _write_back(self._data_directory, self._before)
            self._restart()
        except (PgsweepError, OSError) as error:
            said = error.message if isinstance(error, PgsweepError) else str(error)
            raise NothingRuns(
                "the server is down, and cannot be brought back from here",
                cause=f"{reason.cause or reason.message}; {said}",
                hint=f"in postgresql.auto.conf remove the lines of {', '.join(self._before)}"
                + (f", add {'; '.join(lines)}" if lines else "")
                + "; then start the server and run the same command again",
            ) from error


class _NotBack(PgsweepError):
    """The server did not come up."""


@contextmanager
def opened_server(
    server: Disposable, bindir: Path | None, *, own: bool, progress: Progress
) -> Iterator[DisposableServer]:
    """Prepare a server for a grid; at the end it is as it was.

    Args:
        server: which.
        bindir: of the client programs.
        own: whether a database is made for the grid.
        progress: receives what a killed run has left.

    Raises:
        PgsweepError: it is refused, see `check_server`, or cannot be put back.
    """
    with tempfile.TemporaryDirectory(prefix="pgsweep-lab-") as folder:
        made = DisposableServer(server, find_server(bindir), Path(folder), own=own)
        made.undo_killed(progress)
        check_server(server)
        # From here on the next run finds that this one changed the server.
        mark(server.conninfo, owner=_OWNER)
        try:
            if own:
                make_database(server.conninfo, _EXTENSIONS)
            yield made
        finally:
            made.give_back(restart=made.changed)


def check_server(server: Disposable) -> str:
    """Return the version of a server on which a grid may be run.

    Raises:
        MissingAbility: it is a standby, the role is not a superuser, or ALTER SYSTEM is disabled.
        UsageError: other clients are connected to it.
        PgsweepError: it has a database of the lab's name that somebody else made.
    """
    with connect(server.conninfo) as connection, explained():
        try:
            check_allowed(connection, only_superuser=True)
        except MissingAbility as error:
            raise MissingAbility(error.message, cause=error.cause, hint=_PRIVATE) from error
        check_database(connection)
        version = read_server(connection).version
    # The sessions of a killed run are ended before anything else.
    if kept_before(server.conninfo, owner=_OWNER) is None:
        _check_alone(server)
    return version


def check_names(names: Sequence[str]) -> None:
    """Refuse settings that are not changed on a server that is not ours.

    Raises:
        UsageError: there is one.
    """
    wrong = sorted(_NOT_CHANGED & {name.lower() for name in names})
    if wrong:
        raise UsageError(
            f"{', '.join(wrong)} is not changed on a server that is named by --dsn",
            cause="the server could not be found or started again with another value",
            hint="leave it out of the grid, or leave out --dsn",
        )


def announce(
    server: Disposable, names: Sequence[str], *, restarts: int, cold: bool, own: bool, tables: str
) -> list[str]:
    """Return what a grid will do to a server, a line each, after checking that it may.

    Args:
        server: which.
        names: of the settings that are changed.
        restarts: how many.
        cold: whether the page cache is to be dropped.
        own: whether a database is made.
        tables: what is made in it, in words.

    Raises:
        PgsweepError: see `check_server`.
    """
    version = check_server(server)
    killed = kept_before(server.conninfo, owner=_OWNER) is not None
    with connect(server.conninfo) as connection, explained():
        states = read_states(connection, list(names))
        database = connection.info.dbname
        databases = [name for oid, name in read_databases(connection).items() if oid]
        why_not = _why_not_dropped(connection) if cold else None
    lines = [
        f"on the server at {place_of(server.conninfo)} (PostgreSQL {version}), which is named disposable:"
    ]
    lines.append(f"  its databases: {', '.join(shown(name) for name in databases)}")
    if killed:
        lines.append(
            "  first what a killed run has left is put back or removed: settings, database, sessions"
        )
    if states:
        now = ", ".join(f"{each.name} (now {shown(each.value)})" for each in states)
        lines.append(f"  ALTER SYSTEM sets {now}; at the end, or by the next run, they are put back")
    lines.append(f"  it is restarted {restarts} times, by: {shown(server.restart_command)}")
    if own:
        lines.append(f"  the load runs in a database {DATABASE}, made with {tables} and dropped at the end")
    else:
        lines.append(f"  the load runs in the database {shown(database)} as it is")
    if cold and why_not is None:
        lines.append("  its files are dropped from the page cache before cold and prewarmed runs")
    elif cold:
        lines.append(
            f"  its files cannot be dropped from the page cache, so cold and prewarmed runs fail: {why_not}"
        )
    return lines


def where(server: Disposable) -> str:
    """Return where the server is, in words and without password."""
    return describe(server.conninfo)


def _check_alone(server: Disposable) -> None:
    """Wait until the sessions of our own that have ended are gone, and refuse other clients.

    Raises:
        UsageError: there are some.
        ConnectionFailed: the server cannot be reached.
    """
    deadline = time.monotonic() + _ALONE_PATIENCE_SECONDS
    with connect(server.conninfo) as connection, explained():
        while (found := other_clients(connection)) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    if found:
        raise UsageError(
            "other clients are connected to the server: " + ", ".join(shown(each) for each in found),
            cause="a restart would end their sessions, and what they do would be measured too",
            hint=f"end them, or {_PRIVATE}",
        )


def _identifier(connection: Connection) -> str:
    found = read_cluster(connection)
    if found is None:
        raise MissingAbility("the server does not say which cluster it is", hint=_PRIVATE)
    return found[0]


def _data_directory(connection: Connection) -> Path | None:
    """Return the data directory as it is seen from here; None where it is not."""
    try:
        pid = local_postmaster(connection).pid
        [state] = read_states(connection, ["data_directory"])
        path = Path(state.value)
        lines = postmaster_lines(path, path.stat().st_uid)
    except (PgsweepError, OSError, ValueError):
        return None
    return path if lines and lines[0].strip() == str(pid) else None


def _why_not_dropped(connection: Connection) -> str | None:
    try:
        files = find_data_files(local_postmaster(connection).pid, connection.info.server_version)
    except MissingAbility as error:
        return error.message
    if not all(os.access(path, os.R_OK) for path in files.paths[:1]):
        return "its files may not be opened by this user"
    return None


def _drop_files(connection: Connection) -> None:
    """Drop the files of all relations from the page cache.

    Raises:
        MissingAbility: the server runs elsewhere, or its files may not be opened.
    """
    files = find_data_files(local_postmaster(connection).pid, connection.info.server_version)
    if files.unreadable:
        raise MissingAbility(
            "the server's files cannot be dropped from the page cache",
            cause=f"`{files.unreadable[0]}` cannot be read",
            hint="run as root",
        )
    for path in files.paths:
        try:
            with suppress(FileNotFoundError):
                drop_from_page_cache(Path(path))
        except OSError as error:
            raise MissingAbility(
                "the server's files cannot be dropped from the page cache",
                cause=str(error),
                hint="run as root",
            ) from error


def _write_back(data_directory: Path, before: Mapping[str, str | None]) -> None:
    """Give postgresql.auto.conf its old lines back, of a server that is down.

    Raises:
        OSError: it cannot be written.
    """

    def changed(former: bytes) -> bytes:
        text = written_back(former.decode(errors="surrogateescape"), before)
        return text.encode(errors="surrogateescape")

    rewrite(data_directory / "postgresql.auto.conf", changed)


def written_back(text: str, before: Mapping[str, str | None]) -> str:
    """Return the text of postgresql.auto.conf with the settings as they were; None where there was none."""
    names = "|".join(re.escape(name) for name in before)
    ours = re.compile(rf"\s*(?:{names})\s*=", re.IGNORECASE)
    lines = [line for line in text.splitlines() if not (before and ours.match(line))]
    for name, value in before.items():
        if value is not None:
            quoted = value.replace("\\", "\\\\").replace("'", "''")
            lines.append(f"{name} = '{quoted}'")
    return "".join(f"{line}\n" for line in lines)
