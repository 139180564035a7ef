"""Private clusters: a PostgreSQL server of our own, for as long as it is needed.

    with Cluster.create(settings={"shared_buffers": "64MB"}) as cluster:
        connection = connect(cluster.conninfo())

What makes it private: its own data directory; a socket in a folder that only its user may enter, no TCP; an
unprivileged user when we are root; on request its own memory cgroup. For its removal see `keeper` and
`rundir`. Several may run at once, of any versions.

A private cluster is discarded, so it does not protect its data: fsync, full_page_writes and
synchronous_commit are off, wal_level is minimal. It does not use the huge pages that a host has reserved for
another server. None of these changes what enters or leaves shared_buffers.
All other settings are the server's defaults unless given.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep.errors import ClusterError
from pgsweep.host import cgroup
from pgsweep.pg.private.bindir import ServerBinaries, find_server
from pgsweep.pg.private.identity import ServerUser, choose_server_user, reachable_bindir
from pgsweep.pg.private.keeper_pipe import KeeperPipe, log_tail
from pgsweep.pg.private.rundir import (
    RunFolder,
    RunState,
    make_run_folder,
    postmaster_lines,
    reap_leftovers,
    remove_run,
    write_state,
)
from pgsweep.pg.session.failures import first_line
from pgsweep.regular import open_of

__all__ = ["Cluster", "reap_leftovers"]

_SUPERUSER = "postgres"
_PORT = 5432
_START_PATIENCE_SECONDS = 60.0
_STOP_PATIENCE_SECONDS = 120.0
_INITDB_PATIENCE_SECONDS = 180.0
_SIGINT, _SIGQUIT = 2, 3  # fast and immediate shutdown

# Safe only because the cluster is discarded.
_DISPOSABLE = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "1GB",
    # Files in the data directory instead of /dev/shm: nothing is left behind even when the server is killed.
    "dynamic_shared_memory_type": "mmap",
    # With `try` it would take the pages that another server needs to start again.
    "huge_pages": "off",
}

# The parameters are the data directory, the major version, and pg_resetwal with its options, which writes a
# control file of its release where it finds one that is empty.
_CONTROL_FILE = """
cd -- "$1" || exit
mkdir global pg_wal pg_wal/archive_status pg_wal/summaries &&
    : > postgresql.conf && : > global/pg_control && echo "$2" > PG_VERSION &&
    shift 2 && "$@" . && exit
rm -rf global pg_wal postgresql.conf PG_VERSION
exit 1
"""

_HINTS = (
    ("cannot allocate memory", "choose a smaller shared_buffers, or a larger memory limit"),
    ("could not map anonymous shared memory", "choose a smaller shared_buffers"),
    ("no space left on device", "free some room, or name a place with more: --work-dir DIR"),
    ("unrecognized configuration parameter", "this server's version does not know the setting; leave it out"),
    ("invalid value for parameter", "correct the setting"),
    ("is outside the valid range", "correct the setting"),
    ("could not access file", "the library in shared_preload_libraries is not installed with this server"),
)


class Cluster:
    """A running private cluster; make one with `Cluster.create`.

    Attributes:
        binaries: the server's programs.
        data_directory: absolute path.
        socket_directory: absolute path, mode 0700.
        log_path: the server's log.
        settings: what was set beyond the server's defaults.
    """

    def __init__(
        self, run: RunFolder, binaries: ServerBinaries, user: ServerUser, group: cgroup.MemoryCgroup | None
    ) -> None:
        self.binaries = binaries
        self.run_directory = run.path
        self.data_directory = run.path / "data"
        self.socket_directory = run.path / "s"
        self.log_path = run.path / "server.log"
        self.settings: dict[str, str] = {}
        self._run = run
        self._user = user
        self._cgroup = group
        self._bindir = binaries.bindir
        self._keeper: KeeperPipe | None = None
        self._owner = os.getpid()
        self._closed = False
        self.postmaster_pid: int | None = None

    @classmethod
    def create(
        cls,
        bindir: Path | None = None,
        settings: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
        *,
        work_dir: Path | None = None,
        start: bool = True,
        wal_segment_bytes: int | None = None,
        control_file_only: bool = False,
    ) -> Self:
        """Make a cluster and start it; first removes what killed runs left.

        Args:
            bindir: the server's bin folder; the wheel's by default.
            settings: server settings, as in postgresql.conf without quotes.
            memory_limit_bytes: limit of the cluster's memory cgroup: private memory, shared memory and page
                cache together; none by default.
            work_dir: where the data directory is made; beside the socket by default.
            start: whether to start the server now.
            wal_segment_bytes: the size of a segment of WAL; the server's default by default.
            control_file_only: make only what a server reads before it requests its memory, which takes a
                twentieth of the time; such a server cannot be started.

        Raises:
            ClusterError: no server, initdb or the start failed; shows the last lines of its log.
            MissingAbility: a memory limit was asked for and memory cgroups are not available.
        """
        reap_leftovers()
        binaries = find_server(bindir)
        user = choose_server_user()
        group = cgroup.plan() if memory_limit_bytes is not None else None
        cluster = cls(make_run_folder(), binaries, user, group)
        try:
            cluster._prepare(work_dir, memory_limit_bytes)
            options = [f"--wal-segsize={wal_segment_bytes >> 20}"] if wal_segment_bytes is not None else []
            if not (control_file_only and cluster._make_control_file(options)):
                cluster._initdb(options)
            cluster._configure()
            cluster.settings = {**_DISPOSABLE, **(settings or {})}
            if start:
                cluster.start()
        except BaseException:
            cluster.close()
            raise
        return cluster

    @property
    def bindir(self) -> Path:
        """Return the folder of the server's programs, such as pgbench."""
        return self.binaries.bindir

    @property
    def version_num(self) -> int:
        """Return the version as `server_version_num` says it."""
        return self.binaries.version_num

    @property
    def memory_cgroup(self) -> cgroup.MemoryCgroup | None:
        """Return the cluster's memory cgroup, where one was asked for."""
        return self._cgroup

    def conninfo(self, dbname: str = "postgres") -> str:
        """Return a connection string for the superuser."""
        return make_conninfo(host=str(self.socket_directory), port=_PORT, user=_SUPERUSER, dbname=dbname)

    def create_extensions(self, dbname: str, *names: str) -> None:
        """Create contrib extensions in a database, those that are missing.

        Raises:
            ClusterError: the server was installed without them.
        """
        create = sql.SQL("CREATE EXTENSION IF NOT EXISTS {}")
        with psycopg.connect(self.conninfo(dbname), autocommit=True) as connection:
            for name in names:
                try:
                    connection.execute(create.format(sql.Identifier(name)))
                except psycopg.errors.FeatureNotSupported as error:
                    raise ClusterError(
                        f"{name} is not installed with the PostgreSQL in {self.bindir}",
                        cause=first_line(error),
                        hint="install its contrib package, or leave out --pg-bindir",
                    ) from error

    def database_bytes(self, dbname: str) -> int:
        """Return the size of a database's files."""
        with psycopg.connect(self.conninfo(dbname)) as connection:
            row = connection.execute(
                "SELECT pg_catalog.pg_database_size(pg_catalog.current_database())"
            ).fetchone()
        assert row is not None
        return int(row[0])

    def run_program(self, argv: Sequence[str], patience_seconds: float) -> tuple[int | None, str]:
        """Run a program to its end as the server's user; return its exit code and its output.

        Args:
            argv: the program is a path, or a name in the bin folder.
            patience_seconds: it has no exit code where it has not ended by then; it ends with the cluster.

        Raises:
            ClusterError: it cannot be run.
        """
        said_before = self.log_path.stat().st_size if self.log_path.exists() else 0
        program = str(self._bindir / argv[0])
        code = self._ask("run", argv=[program, *argv[1:]], patience_seconds=patience_seconds)["code"]
        return code, self.log_tail(10_000, start_bytes=said_before)

    def start(self) -> None:
        """Start the server with the present settings and wait until it accepts connections.

        Raises:
            ClusterError: it does not start; shows the end of the server's log.
        """
        if self._closed:
            raise ClusterError("this private cluster was closed")
        self._write_settings()
        said_before = self.log_path.stat().st_size if self.log_path.exists() else 0
        pid = self._ask("start", argv=[str(self._bindir / "postgres"), "-D", str(self.data_directory)])["pid"]
        self.postmaster_pid = pid
        deadline = time.monotonic() + _START_PATIENCE_SECONDS
        while not self._is_ready(pid):
            code = self._ask("poll")["code"]
            if code is not None or time.monotonic() > deadline:
                self.stop(immediately=True)
                raise self._failure("the private PostgreSQL did not start", code, said_before)
            time.sleep(0.005)

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server; one that is not running is not an error.

        Args:
            immediately: without the shutdown checkpoint: the next start recovers from the WAL.
        """
        self._ask(
            "stop", signal=_SIGQUIT if immediately else _SIGINT, patience_seconds=_STOP_PATIENCE_SECONDS
        )
        self.postmaster_pid = None

    def restart(self, settings: Mapping[str, str] | None = None) -> None:
        """Stop the server, change settings, start it.

        Args:
            settings: what to change; all other settings stay as they are.

        Raises:
            ClusterError: it does not come up again with them.
        """
        self.stop()
        self.settings.update(settings or {})
        self.start()

    def set_memory_limit(self, limit_bytes: int | None) -> None:
        """Change the limit of the memory cgroup (the cluster was created with one).

        Raises:
            ClusterError: it was not.
        """
        if self._cgroup is None:
            raise ClusterError(
                "this private cluster has no memory cgroup", hint="create it with a memory limit"
            )
        self._cgroup.set_limit(limit_bytes)

    def log_tail(self, lines: int = 10, *, start_bytes: int = 0) -> str:
        """Return the last lines of the server's log, from an offset on."""
        return log_tail(self.log_path, lines, start_bytes=start_bytes)

    def close(self) -> None:
        """End the server at once and remove everything; may be repeated."""
        if self._closed or os.getpid() != self._owner:
            return  # a forked child has the parent's clusters in memory; it must not remove them
        self._closed = True
        atexit.unregister(self.close)
        if self._keeper is not None:
            self._keeper.end()
        if self.run_directory.exists():
            remove_run(self.run_directory)
        if self._cgroup is not None:
            self._cgroup.remove()
        os.close(self._run.lock_descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, work_dir: Path | None, memory_limit_bytes: int | None) -> None:
        """Make the folders and the cgroup, start the keeper."""
        if work_dir is not None:
            self.data_directory = self._data_directory_in(work_dir)
        state = RunState(
            str(self.data_directory), str(self._cgroup.path) if self._cgroup else "", os.getpid()
        )
        write_state(self.run_directory, state)
        if self._cgroup is not None:
            self._cgroup.make(memory_limit_bytes)
        for folder in (self.data_directory, self.socket_directory):
            folder.mkdir(mode=0o700, exist_ok=True)
            self._user.give(folder)
        procs_file = self._cgroup.procs_file if self._cgroup else None
        self._keeper = KeeperPipe(self._run, self._user, procs_file, self.log_path)
        atexit.register(self.close)
        self._bindir = reachable_bindir(self.binaries, self._user, self.run_directory)

    def _configure(self) -> None:
        """Begin the log, and write the server's settings."""
        self.log_path.write_text("")
        path = self.data_directory / "postgresql.conf"
        with os.fdopen(open_of(path, self._user.uid, os.O_WRONLY | os.O_APPEND), "a") as configuration:
            configuration.write(
                f"\nlisten_addresses = ''\nport = {_PORT}\nunix_socket_permissions = 0700\n"
                f"unix_socket_directories = {_quoted(str(self.socket_directory))}\n"
                f"include = {_quoted(str(self.run_directory / 'settings.conf'))}\n"
            )
        self._write_settings()

    def _make_control_file(self, options: Sequence[str]) -> bool:
        """Make a data directory without relations; return whether this release could."""
        argv = ["/bin/sh", "-c", _CONTROL_FILE, "sh", str(self.data_directory), str(self.binaries.major)]
        argv += [str(self._bindir / "pg_resetwal"), "--force", *options]
        code, _ = self.run_program(argv, _INITDB_PATIENCE_SECONDS)
        return code == 0

    def _initdb(self, options: Sequence[str]) -> None:
        argv = [str(self._bindir / "initdb"), "-D", str(self.data_directory), "-U", _SUPERUSER, "-A", "trust"]
        argv += ["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions", *options]
        if (
            self.binaries.major >= 16
        ):  # those before take no settings: their initdb has huge pages for a second
            argv += ["--set", f"huge_pages={_DISPOSABLE['huge_pages']}"]
        code, _ = self.run_program(argv, _INITDB_PATIENCE_SECONDS)
        if code != 0:
            raise self._failure("initdb failed", code, 0)

    def _write_settings(self) -> None:
        lines = [f"{name} = {_quoted(value)}\n" for name, value in self.settings.items()]
        (self.run_directory / "settings.conf").write_text("".join(lines))
        (self.run_directory / "settings.conf").chmod(0o644)

    def _data_directory_in(self, work_dir: Path) -> Path:
        try:
            work_dir.mkdir(parents=True, exist_ok=True)
            data_directory = Path(tempfile.mkdtemp(prefix="pgsweep-data-", dir=work_dir.absolute()))
        except OSError as error:
            raise ClusterError(f"cannot make a data directory in {work_dir}", cause=str(error)) from error
        if not self._user.reaches(data_directory):
            data_directory.rmdir()
            raise ClusterError(
                f"user {self._user.name}, as whom the server runs, cannot enter {work_dir}",
                cause="PostgreSQL refuses to run as root, and a folder above may not be entered by that user",
                hint="--work-dir /var/tmp",
            )
        return data_directory

    def _ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        if self._closed or self._keeper is None:
            raise ClusterError("this private cluster was closed")
        return self._keeper.ask(what, **arguments)

    def _is_ready(self, pid: int) -> bool:
        """Return whether the postmaster says `ready` in line 8 of its postmaster.pid, as pg_ctl asks too."""
        lines = postmaster_lines(self.data_directory, self._user.uid)
        return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"

    def _failure(self, message: str, code: int | None, said_before: int) -> ClusterError:
        said = self.log_tail(10, start_bytes=said_before)
        if code is None:
            said = f"no answer in time\n{said}"
        elif code < 0:
            said = f"ended by signal {-code}\n{said}"
        hint = next((hint for pattern, hint in _HINTS if pattern in said.lower()), None)
        if hint is None and code == -9 and self._cgroup is not None:
            hint = "the memory limit is too small for it; choose a larger one"
        return ClusterError(
            message, cause=said.strip() or f"exit code {code}, and it said nothing", hint=hint
        )


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
