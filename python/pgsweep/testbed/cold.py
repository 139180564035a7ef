"""A private server whose caches can be emptied, for statements that shall be seen cold."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from pgsweep._native import drop_page_cache
from pgsweep.errors import UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.server import Server, for_programs

DATABASE = "pgsweep"


@contextmanager
def private_server(
    setup: Path,
    *,
    settings: Mapping[str, str] | None = None,
    bindir: Path | None = None,
    work_dir: Path | None = None,
) -> Iterator[Cluster]:
    """Make a private server, with a database `pgsweep` in which the setup has run; it is removed at the end.

    Args:
        setup: a script for psql, which stops at its first error.
        settings: the server's.
        bindir: its programs; the wheel's by default.
        work_dir: where the data directory is made; beside the socket by default.

    Raises:
        UsageError: the setup fails.
        ClusterError: there is no server to start.
    """
    wanted = {"autovacuum": "off", **(settings or {})}
    with Cluster.create(bindir, wanted, work_dir=work_dir) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}".encode())
        cluster.create_extensions(DATABASE, "pg_buffercache", "pg_prewarm")
        run_setup(cluster, setup, DATABASE)
        yield cluster


def run_setup(server: Server, setup: Path, database: str) -> None:
    """Run a script for psql, which stops at its first error.

    Raises:
        UsageError: it fails.
    """
    conninfo, environment = for_programs(server, database)
    done = subprocess.run(
        [
            server.binaries.bindir / "psql",
            *("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--file={setup}"),
            f"--dbname={conninfo}",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="backslashreplace",
        env=environment,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"psql ended with {done.returncode}"]
        raise UsageError(
            f"the setup `{setup}` failed", cause=said[0], hint="try it: psql -v ON_ERROR_STOP=1 -f FILE"
        )


def empty_caches(cluster: Cluster) -> None:
    """Restart a private server and drop its files from the page cache: both caches are cold then.

    Raises:
        ClusterError: it does not come up again.
    """
    cluster.stop()
    drop_files(cluster)
    cluster.start()


def drop_files(cluster: Cluster) -> None:
    """Drop all files of a private server, which is stopped, from the page cache."""
    for folder, _, names in os.walk(cluster.data_directory):
        for name in names:
            with suppress(OSError):
                if (Path(folder) / name).is_file() and not (Path(folder) / name).is_symlink():
                    drop_from_page_cache(Path(folder) / name)


def drop_from_page_cache(path: Path) -> None:
    """Write a file's dirty pages to disk and drop all its pages (posix_fadvise(2), POSIX_FADV_DONTNEED).

    Raises:
        OSError: the file cannot be opened, or its pages cannot be dropped.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)
    [error] = drop_page_cache([path])
    if error:
        raise OSError(int(error), os.strerror(int(error)), str(path))
