"""Runs workloads by pgbench on a private cluster, in the background, for as long as wanted.

pgbench has no option to run until stopped: it is started for a day, or for as long as its caller can need it,
and ended by a signal. Transactions are
therefore counted by the server (pg_stat_database), not by pgbench's summary, which a signal suppresses.
"""

from __future__ import annotations

import math
import re
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psycopg

from pgsweep.errors import ClusterError
from pgsweep.pg.private.bindir import ServerBinaries, installed_servers
from pgsweep.pg.private.cluster import Cluster
from pgsweep.plain import shell_word
from pgsweep.testbed.server import Server, for_programs
from pgsweep.testbed.workloads import Workload
from pgsweep.units import format_plain

DATABASE = "bench"
_A_DAY_SECONDS = 86_400
_BUILTIN = "builtin:"
_LOG = "transactions"
_LOGGED_FIELDS = 6
_PROGRESS = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps", re.MULTILINE)
_TPS = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)
# Room for one more version of a row on each page: updates stay on their page (HOT), so that the tables do not
# grow and the miss ratio of an updating workload can be steady at all.
_FILLFACTOR = 95


def create_database(cluster: Cluster, scale: int, *, timeout_seconds: float = 600.0) -> None:
    """Make the database `bench` with pgbench's tables (15 MB per unit of scale) and the extensions we need.

    Rows come by COPY FREEZE (step `g`), which writes each page once and marks all of them all-visible.

    Raises:
        ClusterError: pgbench failed; says its last words. Or it took too long, or the extensions are not
            installed.
    """
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {DATABASE}")
    cluster.create_extensions(DATABASE, "pg_buffercache", "pg_prewarm")
    fill_tables(
        cluster, scale, timeout_seconds=timeout_seconds, place=str(_mount_point(cluster.data_directory))
    )


def fill_tables(server: Server, scale: int, *, timeout_seconds: float, place: str = "DATA_DIRECTORY") -> None:
    """Make pgbench's tables in the database `bench`; none for a scale of 0.

    Args:
        server: where.
        scale: of the tables, 15 MB each.
        timeout_seconds: it fails after that time.
        place: where they lie, for the hint when there is no room.

    Raises:
        ClusterError: pgbench failed or took too long; shows the end of its output.
    """
    if scale == 0:
        return
    arguments = [
        "--initialize",
        "--init-steps=dtgvp",
        f"--fillfactor={_FILLFACTOR}",
        "--quiet",
        f"--scale={scale}",
    ]
    conninfo, environment = for_programs(server, DATABASE)
    run = subprocess.Popen(
        [*_command(server), *arguments, conninfo],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**environment, "PGOPTIONS": "-c maintenance_work_mem=256MB"},
    )
    try:
        _, said = run.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        _end(run)
        raise ClusterError(
            f"pgbench did not fill its tables within {format_plain(timeout_seconds)} s",
            cause="the machine or its disk is busy with other work",
            hint="see what runs: top; then try again",
        ) from error
    except BaseException:
        _end(run)
        raise
    if run.returncode != 0:
        raise ClusterError(
            "pgbench could not fill its tables",
            cause=_errors_of(said.splitlines()) or f"it ended with {run.returncode}",
            hint=f"is there room for {scale * 20} MB? df -h {shell_word(place)}",
        )


def _end(run: subprocess.Popen[str]) -> None:
    run.kill()
    run.communicate()


def prepare(cluster: Cluster, workload: Workload) -> None:
    """Run the workload's own setup.

    Raises:
        psycopg.Error: its SQL is wrong.
    """
    with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
        for statement in workload.setup:
            connection.execute(statement.encode())


def run_transactions(
    server: Server, workload: Workload, transactions: int, *, seed: int, scale: int
) -> float:
    """Run `transactions` in each client and return the transactions a second that pgbench says.

    Raises:
        ClusterError: pgbench failed; says its errors.
    """
    folder = server.run_directory / f"workload-{workload.name}"
    folder.mkdir(exist_ok=True)
    arguments = [
        "--no-vacuum",
        f"--client={workload.clients}",
        f"--jobs={min(2, workload.clients)}",
        f"--transactions={transactions}",
        f"--random-seed={seed}",
        f"--scale={scale}",
        *_scripts(workload, folder),
    ]
    conninfo, environment = for_programs(server, DATABASE)
    done = subprocess.run(
        [*_command(server), *arguments, conninfo],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        env=environment,
        check=False,
    )
    found = _TPS.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise _ended(done.stderr.splitlines(), done.returncode)
    return float(found.group(1))


class RunningWorkload:
    """A workload that runs until this context ends.

    Args:
        server: where; must run.
        workload: what.
        seed: pgbench's random seed; differs by client.
        scale: of the tables, where it is known: else a session asks for it first.
        timed: note the transactions of each second.
        longest_seconds: when it ends by itself, also where nobody is left to end it.
        rate_per_second: transactions begun per second, at random times; None for as many as possible.
        logged: note the time of each transaction, for `latencies`.
    """

    def __init__(
        self,
        server: Server,
        workload: Workload,
        *,
        seed: int,
        scale: int | None = None,
        timed: bool = False,
        longest_seconds: float = _A_DAY_SECONDS,
        rate_per_second: float | None = None,
        logged: bool = False,
    ) -> None:
        if scale is None:
            scale = _scale(server) if workload.needs_pgbench_tables else 1
        self._folder = server.run_directory / f"workload-{workload.name}"
        self._folder.mkdir(exist_ok=True)
        self._said = self._folder / "pgbench.log"
        arguments = [
            "--no-vacuum",
            "--protocol=prepared",
            f"--client={workload.clients}",
            f"--jobs={min(2, workload.clients)}",
            f"--time={math.ceil(longest_seconds)}",
            f"--random-seed={seed}",
            f"--scale={scale}",
            *(("--progress=1",) if timed else ()),
            *((f"--rate={rate_per_second}",) if rate_per_second is not None else ()),
            *(("--log", f"--log-prefix={self._folder / _LOG}") if logged else ()),
            *_scripts(workload, self._folder),
        ]
        conninfo, environment = for_programs(server, DATABASE)
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [*_command(server), *arguments, conninfo],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
            )

    def check(self) -> None:
        """Raise when pgbench has ended by itself.

        Raises:
            ClusterError: it has; shows the end of its output.
        """
        if self._process.poll() is not None:
            lines = self._said.read_text(errors="replace").splitlines()
            raise _ended(lines, self._process.returncode)

    def seconds(self) -> list[tuple[float, float]]:
        """Return, of each second so far, when it ended and its transactions a second, where it was timed.

        The time counts from when all clients were connected.
        """
        said = self._said.read_text(errors="replace")
        return [(float(at), float(tps)) for at, tps in _PROGRESS.findall(said)]

    def latencies(self, begin: float, end: float) -> list[float]:
        """Return the seconds of each transaction that ended between two times of `time.time`.

        The time by which pgbench itself began late is not in them. pgbench writes its notes in pieces: what
        ended in the last second before `stop` may be missing.
        """
        found = []
        for path in self._folder.glob(f"{_LOG}.{self._process.pid}*"):
            for line in path.read_text(errors="replace").splitlines():
                # client, transaction, time, script, epoch, microseconds, lag (pgbench's documentation)
                fields = line.split()
                if len(fields) < _LOGGED_FIELDS:
                    continue  # cut short when it was ended
                at = int(fields[4]) + int(fields[5]) / 1e6
                if begin <= at < end:
                    lag = int(fields[6]) if len(fields) > _LOGGED_FIELDS else 0
                    found.append((int(fields[2]) - lag) / 1e6)
        return found

    def stop(self) -> None:
        """End pgbench; may be repeated."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _ended(lines: Sequence[str], code: int) -> ClusterError:
    return ClusterError(
        "the workload ended by itself", cause=_errors_of(lines) or f"pgbench ended with {code}"
    )


def _errors_of(lines: Sequence[str]) -> str:
    """Return the first errors in pgbench's output, or else the end of the output."""
    errors = [line for line in lines if "error:" in line.lower()]
    return "\n".join(errors[:3] or lines[-5:])


def _mount_point(path: Path) -> Path:
    """Return the mount point of a folder: it is still there when a private server is not."""
    return next(folder for folder in (path.resolve(), *path.resolve().parents) if folder.is_mount())


def _scale(server: Server) -> int:
    """Return the scale the tables were made with: pgbench passes it to builtin scripts only."""
    with psycopg.connect(server.conninfo(DATABASE)) as connection:
        row = connection.execute("SELECT count(*) FROM pgbench_branches").fetchone()
    assert row is not None
    return int(row[0])


def _scripts(workload: Workload, folder: Path) -> list[str]:
    arguments = []
    for number, script in enumerate(workload.scripts):
        if script.text.startswith(_BUILTIN):
            arguments.append(f"--builtin={script.text.removeprefix(_BUILTIN)}@{script.weight}")
        else:
            path = folder / f"{number}.sql"
            path.write_text(script.text)
            arguments.append(f"--file={path}@{script.weight}")
    return arguments


def find_pgbench(binaries: ServerBinaries) -> Path:
    """Return the pgbench of this server, or else of another one that is installed.

    Raises:
        ClusterError: there is none; says which package has it.
    """
    for server in (binaries, *installed_servers()):
        program = server.bindir / "pgbench"
        if program.exists():
            return program
    major = binaries.major
    raise ClusterError(
        f"there is no pgbench beside {binaries.bindir / 'postgres'}, and none elsewhere",
        cause="this PostgreSQL was installed without it",
        hint=f"apt-get install postgresql-{major} (Debian), dnf install postgresql{major}-contrib (RPM)",
    )


def _command(server: Server) -> Sequence[str | Path]:
    return [find_pgbench(server.binaries)]
