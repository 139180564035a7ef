"""The commands to kill, each with its next run and with what must not be there afterwards."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.kill.kills import Remaining, Scenario, pgsweep
from pgsweep.evidence.schema import needed_tables
from pgsweep.evidence.store import Evidence
from pgsweep.host.hugepages import read_pools
from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.cluster import Cluster

SETTINGS = {"shared_buffers": "32MB", "max_connections": "20"}
DATABASE = "killed"
_STATEMENTS = (
    "CREATE EXTENSION pg_prewarm",
    "CREATE EXTENSION pg_buffercache",
    "CREATE TABLE hot AS SELECT g AS id, repeat('h', 900) AS payload FROM generate_series(1, 9000) g",
    "CREATE TABLE cold AS SELECT g AS id, repeat('c', 900) AS payload FROM generate_series(1, 9000) g",
    "VACUUM ANALYZE",
    "CHECKPOINT",
)


@contextmanager
def killed_server() -> Iterator[Cluster]:
    """Give a server whose database has two tables of 9 MB."""
    with _own_program() as bindir, Cluster.create(bindir, SETTINGS) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
            for statement in _STATEMENTS:
                connection.execute(statement)
        yield cluster


@contextmanager
def _own_program() -> Iterator[Path]:
    """Give the bin folder of a copy of PostgreSQL.

    The kernel inserts breakpoints wherever a file is mapped. With a file of its own the server has none of
    those that others trace with meanwhile.
    """
    install = find_server(None).bindir.parent
    package = install.parent
    libraries = package.with_name(package.name + ".libs")
    with tempfile.TemporaryDirectory(prefix="pgsweep-kill-") as folder:
        Path(folder).chmod(0o755)
        copy = Path(folder) / package.name / install.name
        shutil.copytree(install, copy, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, Path(folder) / libraries.name, symlinks=True)
        yield copy / "bin"


def hugepages(cluster: Cluster, *, buffers: str) -> Scenario:
    """Return `hugepages --apply`, which the next `--undo` must undo whatever number of pages it left."""
    before = _pages()
    peak = [before]

    def places(folder: Path) -> list[str]:
        return ["--state-dir", str(folder / "lib"), "--sysctl-dir", str(folder / "sysctl.d"), "--yes"]

    def command(folder: Path) -> list[str]:
        (folder / "sysctl.d").mkdir()
        server = [cluster.conninfo(DATABASE), "--shared-buffers", buffers]
        return ["hugepages", *server, "--apply", "--persist", *places(folder)]

    def undo(folder: Path) -> str:
        pages = _pages()
        state = (folder / "lib/hugepages.json").exists()
        done = pgsweep(["hugepages", "--undo", *places(folder)], folder)
        if done.returncode != (0 if state else 1) or (not state and "nothing to undo" not in done.stderr):
            raise Remaining(f"undo from {pages} pages: {done.stderr}")
        peak[0] = max(peak[0], pages)  # the first run is not killed
        words = "no page" if pages == before else "all pages" if pages == peak[0] else "some pages"
        return words if state else "nothing"

    def begun(folder: Path) -> bool:
        return (folder / "lib/hugepages.json").exists()

    def left(folder: Path) -> list[str]:
        pages = [] if _pages() == before else [f"{_pages()} huge pages, before {before}"]
        files = [str(path) for path in folder.rglob("*") if path.name not in ("sysctl.d", "state")]
        return pages + files

    return Scenario("hugepages", command, begun, undo, left)


def record(cluster: Cluster, source: str, *, seconds: int) -> Scenario:
    """Return `record`, which leaves readable evidence, or nothing that is in the way of the next."""
    name = "killed.evidence"

    def command(_folder: Path) -> list[str]:
        return [
            *("record", cluster.conninfo(DATABASE), "--source", source),
            *("--for", f"{seconds}s", "-o", name),
        ]

    def again(folder: Path) -> str:
        path = folder / name
        found = "nothing"
        if path.exists():
            found = "no observation"
            if any(path.glob("*/part-*")):
                evidence = Evidence.open(path)
                # The pool that a trace begins with is no observation of the load.
                seen = any(path.glob(f"{needed_tables(evidence.meta.source)[0]}/part-*"))
                found = "complete" if evidence.complete else "cut" if seen else "no observation"
        if found in ("cut", "complete"):
            refused = pgsweep(command(folder), folder)
            if refused.returncode != 2 or "exists already" not in refused.stderr:
                raise Remaining(f"evidence was not kept: {refused.stderr}")
            shutil.rmtree(path)  # as the hint says
            return found
        done = pgsweep(command(folder), folder)
        if done.returncode == 1 and "not a single snapshot" in done.stderr:
            return found  # it could begin, and a busy machine gave it no time
        if done.returncode != 0 or not Evidence.open(path).complete:
            raise Remaining(f"the next recording fails after {found}: {done.stderr}")
        spare = [str(file) for file in path.rglob(".*")]
        if spare:
            raise Remaining(f"beside the evidence: {spare}")
        shutil.rmtree(path)
        return found

    return Scenario(f"record {source}", command, lambda folder: (folder / name).exists(), again, _any_file)


def warm_run(cluster: Cluster, *, rate: str = "20MB") -> Scenario:
    """Return `warm run`, which the next one goes on with by the journal, or does anew."""

    def command(_folder: Path) -> list[str]:
        return ["warm", "run", cluster.conninfo(DATABASE), "--rate", rate, "-o", "result.json"]

    def resume(folder: Path) -> str:
        journals = list((folder / "state").rglob("*.journal"))
        aside = list((folder / "state").rglob("*.part"))
        done = pgsweep([*command(folder), *(["--resume"] if journals else [])], folder)
        if done.returncode != 0:
            raise Remaining(f"the next run fails: {done.stderr}")
        (folder / "result.json").unlink()
        return "journal" if journals else "journal aside" if aside else "nothing"

    def begun(folder: Path) -> bool:
        return any((folder / "state").rglob("*.journal"))

    return Scenario("warm run", command, begun, resume, _any_file)


def warm_keep(cluster: Cluster, *, seconds: int = 3) -> Scenario:
    """Return `warm keep`, whose relation the next one may keep at once."""

    def command(_folder: Path) -> list[str]:
        return ["warm", "keep", "hot", "-d", cluster.conninfo(DATABASE), "--budget", "8MB",
                "--for", f"{seconds}s", "-o", "result.json"]  # fmt: skip

    def again(folder: Path) -> str:
        begin = time.monotonic()
        done = pgsweep([*command(folder)[:-3], "1s", "-o", "result.json"], folder)
        if done.returncode != 0:
            raise Remaining(f"the next keep fails after {time.monotonic() - begin:.1f} s: {done.stderr}")
        (folder / "result.json").unlink()
        return "nothing"

    def begun(_folder: Path) -> bool:
        time.sleep(0.02)  # each look takes a session of its own
        with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
            row = connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone()
        return row is not None and row[0] > 0

    return Scenario("warm keep", command, begun, again, _any_file)


def _any_file(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.is_file() or path.is_symlink()]


def _pages() -> int:
    return next(pool.persistent for pool in read_pools() if pool.is_default)
