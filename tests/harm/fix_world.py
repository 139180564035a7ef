"""A server with applications on it, a home, and a host: the world in which commands run.

Each command has its own view of /tmp and of /dev/shm, by a mount namespace, so that what it leaves there is
known to be its own while other tests run; and a limit that no other process has, which its children and
theirs inherit, so that each of them is found, whatever became of its parent.
"""

from __future__ import annotations

import itertools
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.ui.results import to_json
from tests.fix_cli import Command, launch
from tests.fix_cluster import ROOT, own_server_files
from tests.fix_initdb import TEMPLATES
from tests.fix_page import load_running, make_page
from tests.fix_process import wait_until
from tests.fix_results import lab_result
from tests.fix_standby import PRIMARY, standby_of
from tests.fix_written import write_trace
from tests.harm.fix_snapshot import (
    Parts,
    Snapshot,
    of_files,
    of_host,
    of_server,
    of_session,
    of_sessions,
    schema_of,
)

DATABASE = "shop"
SETTINGS = {**PRIMARY, "autovacuum": "off", "max_connections": "60", "max_prepared_transactions": "2"}
GONE_SECONDS = 40.0
"""How soon after a command its sessions and processes must be gone, on a busy machine."""

GRID = """
repetitions = 1
scale = 1
clients = [1]
caches = ["warm"]
warm_up_seconds = 0.2
[settings]
work_mem = ["1MB"]
[[workload]]
builtin = "select-only"
seconds = 1
"""

_ALONE = """
import ctypes, resource, tempfile
tempfile.tempdir = None
resource.setrlimit(resource.RLIMIT_MSGQUEUE, ({mark}, {mark}))
libc = ctypes.CDLL(None, use_errno=True)
NEW_NAMESPACE, BIND, PRIVATE = 0x20000, 0x5000, 1 << 18 | 1 << 14
assert libc.unshare(NEW_NAMESPACE) == 0, ctypes.get_errno()
assert libc.mount(None, b"/", None, PRIVATE, None) == 0, ctypes.get_errno()
for place, shown in {views!r}:
    assert libc.mount(place.encode(), shown.encode(), None, BIND, None) == 0, ctypes.get_errno()
"""
_marks = itertools.count(100_000 + os.getpid() % 5000 * 100)

_SETUP = """
CREATE EXTENSION pg_prewarm;
CREATE ROLE app LOGIN;
GRANT pg_monitor TO app;
ALTER ROLE app SET lock_timeout = '30s';
CREATE SCHEMA app AUTHORIZATION app;
GRANT SELECT ON page TO app;
CREATE TABLE app.other AS SELECT g AS id FROM generate_series(1, 1000) g;
ALTER TABLE app.other OWNER TO app;
CREATE TABLE target (id int PRIMARY KEY, note text);
CREATE INDEX target_note ON target (note);
INSERT INTO target SELECT g, 'old ' || g FROM generate_series(1, 1000) g;
"""
_OF_AN_APPLICATION = """
SET application_name = 'app';
SET search_path = app, public;
SET statement_timeout = '3min';
SET lock_timeout = '40s';
SET DateStyle = 'German';
SET TimeZone = 'Asia/Tokyo';
SET extra_float_digits = 0;
SET default_transaction_read_only = off;
SET jit = on;
SET max_parallel_workers_per_gather = 1;
SET app.tenant = '42';
SET ROLE app;
PREPARE app_statement AS SELECT 1;
CREATE TEMPORARY TABLE app_temporary (id int);
LISTEN app_channel;
SELECT pg_advisory_lock_shared(42);
DECLARE app_cursor CURSOR WITH HOLD FOR SELECT 1;
"""

_NOT_ON_STANDBY = ("CREATE", "LISTEN")


class Application:
    """An application's use of the database, over the server itself or through a pooler.

    Args:
        stays: keeps its connection; otherwise it has one only while it looks, as where a pooler gives each
            client a session for as long as it is connected.
        on_standby: does without what cannot be done there.
    """

    def __init__(self, conninfo: str, *, stays: bool = True, on_standby: bool = False) -> None:
        self._conninfo = make_conninfo(conninfo, application_name="app", connect_timeout="30")
        self._stays = stays
        self._on_standby = on_standby
        self._connection: psycopg.Connection[Any] | None = None

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        if self._connection is None or self._connection.closed:
            # psycopg would prepare statements of its own.
            self._connection = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        yield self._connection
        if not self._stays:
            self.close()

    def begin(self) -> None:
        """Make the session one that has been used: with settings, a role, a lock and the like."""
        with self.connected() as connection:
            connection.execute("DISCARD ALL")
            for statement in _OF_AN_APPLICATION.strip().rstrip(";").split(";\n"):
                if self._on_standby and statement.startswith(_NOT_ON_STANDBY):
                    continue
                connection.execute(statement.encode())

    def look(self) -> Parts:
        """Return what its session is."""
        with self.connected() as connection:
            return of_session(connection)

    def works(self) -> None:
        """Read and write as applications do, and wait for no lock."""
        with self.connected() as connection, connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '10s'")
            connection.execute("SELECT count(*) FROM public.page WHERE id < 10")
            if not self._on_standby:
                connection.execute("LOCK TABLE app.other IN ROW EXCLUSIVE MODE")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@dataclass(frozen=True)
class Run:
    """What a command cost, and what was seen of it while it ran."""

    words: Sequence[str]
    code: int
    out: str
    err: str
    seconds: float
    processor_seconds: float
    peak_bytes: int


@dataclass
class World:
    """The server, its applications, and the folders of the user who runs commands.

    Attributes:
        server: which commands are run against; the primary or its standby.
        target: the connection string that commands are given: of the server, or of a pooler before it.
        root: has the folders `home`, `work` (the current one), `tmp` and `shm`.
        applications: whose sessions must stay as they are.
    """

    server: Cluster
    root: Path
    target: str
    applications: list[Application] = field(default_factory=list)
    _schemas: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("home", "work", "tmp", "shm", "kept"):
            (self.root / name).mkdir(exist_ok=True)
        # Data directories for private servers, which all tests share (fix_initdb.py).
        templates = Path(os.environ[TEMPLATES])
        self._templates = self.root / "tmp" / templates.name
        self._templates.mkdir()
        self._shown_through = {self._templates}
        # What the tests run from, where it lies below /tmp: two views, as the second hides the first.
        here = ROOT.resolve()
        checkout: tuple[tuple[str, str], ...] = ()
        if here.is_relative_to("/tmp"):
            seen = self.root / "tmp" / here.relative_to("/tmp")
            seen.mkdir(parents=True)
            self._shown_through.add(self.root / "tmp" / here.relative_to("/tmp").parts[0])
            checkout = ((str(here), str(seen)),)
        self._views = (
            (str(templates), str(self._templates)),
            *checkout,
            (str(self.root / "tmp"), "/tmp"),
            (str(self.root / "shm"), "/dev/shm"),
        )
        (self.root / "tmp").chmod(0o1777)
        (self.root / "shm").chmod(0o1777)
        self._observer: psycopg.Connection[Any] | None = None

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def kept(self) -> Path:
        """What commands are given to read."""
        return self.root / "kept"

    @property
    def observer(self) -> psycopg.Connection[Any]:
        """A superuser's session with the server itself."""
        if self._observer is None:
            self._observer = psycopg.connect(
                self.server.conninfo(DATABASE), autocommit=True, application_name="observer"
            )
        return self._observer

    def look(self, *, sessions_only: bool = False) -> Snapshot:
        """Return all of it, or only what the sessions of the server are, which takes a tenth of the time."""
        parts: dict[str, Sequence[str]] = {}
        for number, application in enumerate(self.applications):
            parts |= {f"{number} {about}": lines for about, lines in application.look().items()}
        if sessions_only:
            return Snapshot({**parts, **of_sessions(self.observer)})
        parts |= of_server(self.observer)
        catalog = tuple(parts["catalog"])
        if catalog not in self._schemas:  # a dump takes as long as all the rest
            self._schemas[catalog] = schema_of(self.server, DATABASE)
        parts |= of_host(self.server)
        parts["definition"] = self._schemas[catalog]
        parts["file of the server"] = of_files(self.server.data_directory, server=True)
        parts["file"] = of_files(*(self.root / name for name in ("home", "work", "tmp", "shm", "kept")))
        return Snapshot(parts)

    def settled(
        self, before: Snapshot, allowed: Sequence[str] = (), *, sessions_only: bool = False
    ) -> list[str]:
        """Return what differs from a snapshot once what ends by itself has had time to."""
        differences = ["never looked"]

        def same() -> bool:
            nonlocal differences
            differences = before.differences(self.look(sessions_only=sessions_only), allowed)
            return not differences

        with suppress(AssertionError):
            # A session of a client that is gone lives until the server notices. That of a pooler has the name
            # of its last client, which is the application once it has looked.
            if not same():
                wait_until(same, GONE_SECONDS if self.unsettled() else 0.5)
        return differences

    def unsettled(self, name: str = "pgsweep%") -> bool:
        """Return whether a session of pgsweep is there, or one of that name."""
        query = "SELECT FROM pg_stat_activity WHERE application_name LIKE %s"
        return bool(self.observer.execute(query, [name]).fetchall())

    def begin(self, *words: str, stdin: int = DEVNULL, folder: Path | None = None) -> Started:
        """Begin a command, in the current folder or another."""
        mark = next(_marks)
        first = _ALONE.format(mark=mark, views=self._views)
        started = Started(mark, time.monotonic())
        environment = {
            "HOME": str(self.home),
            "PGAPPNAME": started.name,
            # As users have it: answers are kept.
            "PGSWEEP_PREDICT_FRESH": "0",
            "PGSWEEP_ADVISE_FRESH": "0",
        }
        started.command = launch(*words, cwd=folder or self.work, env=environment, stdin=stdin, first=first)
        return started

    def run(self, *words: str, given: str = "", seconds: float = 120) -> Run:
        """Run a command to its end; all its processes must then be gone."""
        started = self.begin(*words, stdin=PIPE if given else DEVNULL)
        try:
            out, err = started.command.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            started.command.kill()
            raise
        took = time.monotonic() - started.at
        wait_until(started.is_gone, GONE_SECONDS, started.described)
        command = started.command
        return Run(words, command.wait(), out, err, took, command.processor_seconds, command.peak_bytes)

    def clear(self) -> None:
        """Remove what commands left in the user's folders."""
        for name in ("home", "work", "tmp", "shm"):
            for path in {*(self.root / name).iterdir()} - self._shown_through:
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def close(self) -> None:
        for application in self.applications:
            application.close()
        if self._observer is not None:
            self._observer.close()


@dataclass
class Started:
    """A command that runs."""

    mark: int
    at: float
    command: Command = field(init=False)

    @property
    def name(self) -> str:
        """Return the application_name of its sessions."""
        return f"pgsweep {self.mark}"

    def processes(self) -> list[int]:
        """Return the command and all that it started."""
        return [pid for pid in _pids() if _is_of(self.mark, pid)]

    def is_gone(self) -> bool:
        return not self.processes()

    def described(self) -> list[str]:
        """Return the processes with their command lines."""
        found = []
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{pid} {words.decode(errors='replace')[:200]}")
        return found

    def _held(self) -> set[str]:
        """Return the files and sockets that any of them has open."""
        held = set()
        for pid in self.processes():
            with suppress(OSError):
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        held.add(str(link.readlink()))
        return held

    def listening(self) -> list[str]:
        """Return the addresses at which any of them listens by TCP."""
        held = self._held()
        found = []
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in held:  # TCP_LISTEN
                    found.append(words[1])
        return found


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _is_of(mark: int, pid: int) -> bool:
    """Return whether a process has the limit by which a command's are known, and has not ended."""
    try:
        if _limit_of(pid) != mark:
            return False
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, ValueError, IndexError):  # it is gone, or has no limit
        return False


def _limit_of(pid: int) -> int:
    try:
        # A system call, where to read its file takes fifty times as long: this is asked of all processes.
        return resource.prlimit(pid, resource.RLIMIT_MSGQUEUE)[0]
    except PermissionError:  # of another user, without CAP_SYS_RESOURCE
        limits = Path(f"/proc/{pid}/limits").read_text()
        return int(limits.partition("Max msgqueue size")[2].split()[0])


@contextmanager
def a_root() -> Iterator[Path]:
    """Give a folder below neither /tmp nor /dev/shm, of which commands have their own view."""
    root = Path(tempfile.mkdtemp(prefix="pgs-", dir="/var/tmp"))
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root)


@pytest.fixture(scope="package")
def primary() -> Iterator[Cluster]:
    """A primary with tables that are read all the time, and with its program in a file of its own."""
    if os.geteuid() != 0:
        pytest.skip("a view of /tmp of one's own needs root")
    with ExitStack() as closing:
        place = closing.enter_context(a_root())
        patched = closing.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(tempfile, "tempdir", str(place))
        bindir = closing.enter_context(own_server_files(find_server(None).bindir))
        cluster = closing.enter_context(Cluster.create(bindir, SETTINGS))
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
            make_page(connection)
            connection.execute(_SETUP.encode())
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")
        yield cluster


@pytest.fixture(scope="package")
def make_world(primary: Cluster) -> Iterator[Callable[..., World]]:
    """Make worlds around the primary or its standby, whose table is read meanwhile."""
    with ExitStack() as closing:

        def make(server: Cluster, target: str = "") -> World:
            root = closing.enter_context(a_root())
            if made:
                shutil.copytree(made[0].kept, root / "kept")
            world = World(server, root, target or server.conninfo(DATABASE))
            closing.callback(world.close)
            made.append(world)
            return world

        closing.enter_context(load_running(primary, DATABASE, sessions=1))
        made: list[World] = []
        prepare(make(primary))
        yield make


@pytest.fixture(scope="package")
def world(primary: Cluster, make_world: Callable[..., World]) -> World:
    """The primary, with an application that has a session of its own."""
    made = make_world(primary)
    made.applications.append(Application(primary.conninfo(DATABASE)))
    made.applications[0].begin()
    return made


@pytest.fixture(scope="package")
def standby_world(primary: Cluster, make_world: Callable[..., World]) -> Iterator[World]:
    """A hot standby, with an application that reads on it."""
    with standby_of(primary) as standby:
        made = make_world(standby)
        made.applications.append(Application(standby.conninfo(DATABASE), on_standby=True))
        made.applications[0].begin()
        yield made
        made.close()


def prepare(world: World) -> None:
    """Make what commands read: files of rows, a grid, results, saved heat, evidence of this very server."""
    kept, at = world.kept, world.server.conninfo(DATABASE)
    write_trace(kept / "trace.evidence", accesses=20_000)
    (kept / "rows.csv").write_text("id,note\n5001,new\n5002,newer\n")
    good = "".join(f"{number},new\n" for number in range(5001, 9000))
    (kept / "bad.csv").write_text(f"id,note\n{good}no number,x\n")
    (kept / "grid.toml").write_text(GRID)
    (kept / "long.toml").write_text(GRID.replace("\nseconds = 1", "\nseconds = 60"))
    (kept / "lab.json").write_text(to_json(lab_result()))
    shutil.copy(ROOT / "tests/fuzz/seeds/gathered/shop.gathered", kept)
    for words in (
        ["warm", "save", str(kept / "shop.heat"), "-d", at],
        ["record", "-d", at, "--source", "peek", "--for", "1s", "-o", str(kept / "shop.evidence")],
    ):
        done = world.run(*words)
        assert done.code == 0, done.err
