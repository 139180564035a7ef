"""Runs a specification stretch by stretch: a number of transactions, then what the server counted.

A stretch is a number of transactions, not a time: at every size of the pool the same transactions run,
with the same random numbers, however slow the machine is. pgbench gets a thread for each client, because
clients of one thread share what chooses the scripts, and which client gets which would depend on times.

Between stretches no client is connected: a backend reports its counts at its end at the latest
(pgstat_shutdown_hook, pgstat.c), so a stretch's counts are whole.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
import psycopg

from benchmarks.calibration.scripts import pgbench_script, setup_sql
from benchmarks.calibration.specification import Specification, Stream
from pgsweep.errors import ClusterError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.filling import unused_buffers
from pgsweep.testbed.pgbench import DATABASE

_FEW_TRANSACTIONS = 20
"""A client with fewer in a stretch makes them at equal distances: as Poisson's they would fill half of it."""

_PATIENCE_SECONDS = 120.0
_NOT_COPIED = {"postgresql.conf", "postmaster.opts", "postmaster.pid", "pg_wal"}


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """What the server counted for the workload's database in one stretch.

    Attributes:
        accesses: blks_hit + blks_read.
        misses: blks_read.
        transactions: committed, those of parallel workers and maintenance included.
        began_seconds: when it began, by the host's monotonic clock.
        seconds: how long it took.
    """

    accesses: int
    misses: int
    transactions: int
    began_seconds: float
    seconds: float


def transactions_per_client(stream: Stream, seconds: float) -> int:
    """Return the transactions of each client of a stream in a stretch of a nominal length."""
    return max(round(stream.transactions_per_second * seconds / stream.clients), 1)


def make_database(cluster: Cluster, spec: Specification) -> None:
    """Make the database of a specification, with the extensions that recordings need.

    Raises:
        psycopg.Error: the specification cannot be made.
    """
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}".encode())
    cluster.create_extensions(DATABASE, "pg_buffercache", "pg_prewarm")
    with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '256MB'")
        for statement in setup_sql(spec):
            connection.execute(statement.encode())


def copy_data(source: Path, cluster: Cluster) -> None:
    """Replace the data of a stopped cluster by those of another stopped one of the same version.

    Of the WAL only the segment is copied that a start after a clean shutdown reads.

    Args:
        source: data directory of a cluster that was shut down cleanly.
        cluster: keeps its own configuration.
    """
    target = cluster.data_directory
    for path in target.iterdir():
        if path.name not in _NOT_COPIED:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    copied = [str(path) for path in sorted(source.iterdir()) if path.name not in _NOT_COPIED]
    subprocess.run(["cp", "-a", "--reflink=auto", *copied, str(target)], check=True)
    for path in (target / "pg_wal").iterdir():
        if path.is_file():
            path.unlink()
    segment = source / "pg_wal" / _last_segment(cluster, source)
    subprocess.run(["cp", "-a", "--reflink=auto", str(segment), str(target / "pg_wal")], check=True)


def _last_segment(cluster: Cluster, source: Path) -> str:
    """Return the name of the segment that holds the shutdown checkpoint."""
    run = subprocess.run(
        [cluster.binaries.program("pg_controldata"), "-D", str(source)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LC_ALL": "C"},
    )
    for line in run.stdout.splitlines():
        if "REDO WAL file" in line:
            return line.split(":", 1)[1].strip()
    raise ClusterError(f"pg_controldata names no segment of the WAL of {source}", cause=run.stdout[-300:])


class Life:
    """The life of a workload on a running cluster: each stretch begins where the last one ended.

    Args:
        cluster: runs, with the specification's database.
        spec: what to run.
        primary: of the cluster, where that is a standby: runs the streams that are meant for it.
    """

    def __init__(self, cluster: Cluster, spec: Specification, primary: Cluster | None = None) -> None:
        self._cluster = cluster
        self._primary = primary or cluster
        self._spec = spec
        self._stretches = 0
        self._done = [0] * len(spec.streams)
        self._folder = cluster.run_directory / "streams"
        self._folder.mkdir(exist_ok=True)
        self._monitor = psycopg.connect(cluster.conninfo(), autocommit=True)

    def skip(self, seconds: Sequence[float]) -> None:
        """Take up after stretches of these nominal lengths that ran elsewhere."""
        for length in seconds:
            self._advance(length)

    def run(self, seconds: float, *, hurry: float | None = 1.0) -> Stretch:
        """Run a stretch to its end.

        Args:
            seconds: its nominal length, which sets the number of transactions.
            hurry: how many times faster than its rate; None is as fast as it can.

        Raises:
            ClusterError: a transaction failed, or it took far too long.
        """
        before = self._counts()
        began = time.monotonic()
        running: list[tuple[Stream, subprocess.Popen[bytes]]] = []
        try:
            for number, stream in enumerate(self._spec.streams):
                running.append((stream, self._start(number, stream, seconds, hurry)))
            self._wait(running, began + _PATIENCE_SECONDS + 8 * seconds)
        finally:
            for _, process in running:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        elapsed = time.monotonic() - began
        self._await_ends()
        after = self._counts()
        self._advance(seconds)
        return Stretch(
            accesses=after[0] - before[0],
            misses=after[1] - before[1],
            transactions=after[2] - before[2],
            began_seconds=round(began, 3),
            seconds=round(elapsed, 3),
        )

    def unused_buffers(self) -> int:
        """Return how many buffers hold nothing (the extension is in the database `postgres`)."""
        return unused_buffers(self._monitor)

    def close(self) -> None:
        """End the session that reads counters."""
        self._monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _advance(self, seconds: float) -> None:
        self._stretches += 1
        for number, stream in enumerate(self._spec.streams):
            self._done[number] += transactions_per_client(stream, seconds)

    def _start(
        self, number: int, stream: Stream, seconds: float, hurry: float | None
    ) -> subprocess.Popen[bytes]:
        count = transactions_per_client(stream, seconds)
        spaced = count < _FEW_TRANSACTIONS
        gap_ms = 0 if hurry is None else round(900 * seconds / count / hurry)
        rate = [] if hurry is None or spaced else [f"--rate={stream.transactions_per_second * hurry:.4f}"]
        scripts = []
        for index, script in enumerate(stream.scripts):
            path = self._folder / f"{stream.name}-{index}.sql"
            path.write_text(pgbench_script(self._spec, script, spaced=spaced))
            scripts.append(f"--file={path}@{script.weight}")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        cluster = self._primary if stream.on_primary else self._cluster
        environment |= {
            "LC_ALL": "C",
            "PGOPTIONS": f"-c max_parallel_workers_per_gather={stream.parallel_workers}",
        }
        with self._said(stream).open("wb") as said:
            return subprocess.Popen(
                [
                    self._cluster.binaries.program("pgbench"),
                    "--no-vacuum",
                    f"--protocol={'simple' if stream.simple else 'prepared'}",
                    f"--client={stream.clients}",
                    f"--jobs={stream.clients}",
                    f"--transactions={count}",
                    f"--random-seed={(self._spec.seed * 1000 + self._stretches) * 10 + number}",
                    "--max-tries=20",
                    f"--define=step={self._done[number]}",
                    f"--define=gap={gap_ms}",
                    *rate,
                    *(["--connect"] if stream.reconnects else []),
                    *scripts,
                    cluster.conninfo(DATABASE),
                ],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
            )

    def _said(self, stream: Stream) -> Path:
        return self._folder / f"{stream.name}.log"

    def _wait(self, running: list[tuple[Stream, subprocess.Popen[bytes]]], deadline: float) -> None:
        for stream, process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(deadline - time.monotonic(), 0.1))
            if process.returncode != 0:
                said = self._said(stream).read_text(errors="replace").splitlines()
                errors = [line for line in said if "error:" in line.lower()] or said[-5:]
                state = "did not end in time" if process.returncode is None else "failed"
                raise ClusterError(
                    f"the stream {stream.name} of case {self._spec.seed} {state}", cause="\n".join(errors[:4])
                )

    def _await_ends(self) -> None:
        """Wait until no client's backend is left.

        Raises:
            ClusterError: one stays.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            row = self._monitor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'"
            ).fetchone()
            if row is not None and row[0] == 0:
                return
            time.sleep(0.01)
        raise ClusterError("a backend of pgbench does not end")

    def _counts(self) -> tuple[int, int, int]:
        row = self._monitor.execute(
            "SELECT blks_hit + blks_read, blks_read, xact_commit FROM pg_stat_database WHERE datname = %s",
            (DATABASE,),
        ).fetchone()
        if row is None:
            raise ClusterError(f"database {DATABASE} is gone")
        return int(row[0]), int(row[1]), int(row[2])
