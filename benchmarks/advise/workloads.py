"""The loads of this benchmark: pgbench with four sessions that never pause.

What depends on time would be another mix of accesses at each throughput, and the sizes would not have the
same load. So scans are counted in transactions, and hot sets and loops move on by transactions too (the
variable `step`). Each session has its own: a shared one would fall apart, as sessions are not equally fast.
All sessions scan: were it one alone, the longer its scans take, the fewer they would be for each access.

A pgbench with two sessions runs on a processor, together with the two backends that serve it, and another one
on the next. Left to the kernel, sessions fall into one of several arrangements when they begin, and stay
there: with everything in the pool the loop did 104 or 87 thousand transactions a second, on the same server.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psycopg

from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, find_pgbench
from pgsweep.testbed.server import for_programs
from pgsweep.testbed.workloads import MIX, TPCB, ZIPF, Script, Workload, zipf_account

CLIENTS = 4
PROGRAMS = 2
ROWS_A_BLOCK = 58
SCANNED_BLOCKS = 3072
LOOP_BLOCKS = 13_000
"""About 100 MB: more than most of the pools that are measured, less than the largest."""

_OWN_ROWS = ROWS_A_BLOCK * LOOP_BLOCKS // 4
_CONNECT_SECONDS = 30.0
_SAME_LOOKS = 3
_PROGRESS = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps", re.MULTILINE)
_READ = "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
_SESSION = "(:first + :client_id)"
"""Number of the session, from 0, among those of all programs."""

_STEP = "\\set step :step + 1\n"

SCAN = Workload(
    name="scan",
    title="point reads, Zipf 1.08; each session scans a table of 24 MB every 16000 of its transactions",
    scripts=(
        Script(
            _STEP
            + zipf_account("aid", 1.08, 11)
            + _READ
            + f"\\if :step % 16000 = 4000 * {_SESSION}\nSELECT count(filler) FROM scanned;\n\\endif\n"
        ),
    ),
    setup=(
        "CREATE TABLE scanned (id int, filler text)",
        "ALTER TABLE scanned ALTER filler SET STORAGE PLAIN",
        f"INSERT INTO scanned SELECT g, repeat('x', 1000) FROM generate_series(1, {SCANNED_BLOCKS * 7}) g",
        "VACUUM (ANALYZE) scanned",
    ),
)

DRIFT = Workload(
    name="drift",
    title="four hot sets, a tenth of the table together, that move on by two rows with each transaction",
    scripts=(
        Script(
            _STEP
            + "\\set rank random_exponential(1, 2500 * :scale, 5)\n"
            + f"\\set aid 1 + (:step * 2 + {_SESSION} * 25000 * :scale + :rank) % (100000 * :scale)\n"
            + _READ
        ),
    ),
)

LOOP = Workload(
    name="loop",
    title="four sessions that each read 25 MB of a table again and again, block by block",
    scripts=(
        Script(
            _STEP + f"\\set aid 1 + {_SESSION} * {_OWN_ROWS} + :step * {ROWS_A_BLOCK} % {_OWN_ROWS}\n" + _READ
        ),
    ),
)

WORKLOADS = {workload.name: workload for workload in (ZIPF, TPCB, MIX, SCAN, DRIFT, LOOP)}
UNSTEADY = ("drift", "loop")
"""Those that a prediction has to name as such."""


@dataclass(eq=False)
class Load:
    """pgbench beside the server, until the block ends.

    Attributes:
        cluster: with the tables of the workload.
        workload: what runs.
        scale: of pgbench's tables.
        seed: of all draws.
        processes: of pgbench, while it runs.
    """

    cluster: Cluster
    workload: Workload
    scale: int
    seed: int

    def __enter__(self) -> Load:
        folder = self.cluster.run_directory / f"load-{self.workload.name}"
        folder.mkdir(exist_ok=True)
        self._said = [folder / f"pgbench-{number}.log" for number in range(PROGRAMS)]
        self.processes: list[subprocess.Popen[bytes]] = []
        try:
            for number, said in enumerate(self._said):
                self.processes.append(self._started(number, folder, said))
            self._bind()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _started(self, number: int, folder: Path, said_path: Path) -> subprocess.Popen[bytes]:
        sessions = CLIENTS // PROGRAMS
        conninfo, environment = for_programs(self.cluster, DATABASE)
        command = [str(find_pgbench(self.cluster.binaries)), "--no-vacuum", "--protocol=prepared"]
        command += [f"--client={sessions}", "--time=86400", "--define=step=0"]
        command += [f"--define=first={number * sessions}", "--progress=1", "--progress-timestamp"]
        command += [f"--random-seed={self.seed * PROGRAMS + number}", f"--scale={self.scale}"]
        with said_path.open("w") as said:
            return subprocess.Popen(
                [*command, *self._scripts(folder), conninfo],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env={**environment, "PGAPPNAME": _name(number)},
            )

    def _bind(self) -> None:
        """Have each program and its backends run on a processor of their own."""
        processors = sorted(os.sched_getaffinity(0))
        backends = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
        with psycopg.connect(self.cluster.conninfo(DATABASE), autocommit=True) as connection:
            for number, process in enumerate(self.processes):
                only = {processors[number % len(processors)]}
                os.sched_setaffinity(process.pid, only)
                deadline = time.monotonic() + _CONNECT_SECONDS
                bound, looks = set[int](), 0
                while looks < _SAME_LOOKS:
                    if time.monotonic() > deadline:
                        raise RuntimeError(
                            f"pgbench did not connect: {self._said[number].read_text()[-500:]}"
                        )
                    found = {pid for (pid,) in connection.execute(backends, [_name(number)]).fetchall()}
                    same = found == bound and len(found) == CLIENTS // PROGRAMS
                    looks = looks + 1 if same else 0
                    for pid in found - bound:
                        # pgbench connects once before to look at the tables; that backend is ending.
                        with suppress(ProcessLookupError):
                            os.sched_setaffinity(pid, only)
                    bound = found
                    time.sleep(0.05)

    def _scripts(self, folder: Path) -> list[str]:
        arguments = []
        for number, script in enumerate(self.workload.scripts):
            if script.text.startswith("builtin:"):
                arguments.append(f"--builtin={script.text.removeprefix('builtin:')}@{script.weight}")
            else:
                path = folder / f"{number}.sql"
                path.write_text(script.text)
                arguments.append(f"--file={path}@{script.weight}")
        return arguments

    def transactions_by_second(self) -> list[float]:
        """Return the transactions a second of each second so far.

        Raises:
            RuntimeError: pgbench has ended by itself.
        """
        programs = [[tps for _, tps in reports] for reports in self._reports()]
        return [sum(rates) for rates in zip(*programs, strict=False)]

    def rate_within(self, begin: float, end: float, turns: Sequence[tuple[float, float]]) -> float:
        """Return the transactions a second of the turns in a time, as far as pgbench reported of it.

        Args:
            begin: and `end`, in seconds since the epoch.
            turns: when it ran: begin and end of each.

        Raises:
            RuntimeError: pgbench has ended by itself, or reported less than twice.
        """
        total = 0.0
        for every in self._reports():
            reports = [(at, tps) for at, tps in every if begin <= at <= end]
            if len(reports) < 2:
                raise RuntimeError(f"pgbench reported {len(reports)} times in {end - begin:.1f} s")
            transactions = sum(tps * (at - before) for (before, _), (at, tps) in pairwise(reports))
            first, last = reports[0][0], reports[-1][0]
            total += transactions / sum(
                max(0.0, min(last, stop) - max(first, start)) for start, stop in turns
            )
        return total

    def _reports(self) -> list[list[tuple[float, float]]]:
        """Return for each program when it reported, and the transactions a second since then."""
        found = []
        for process, path in zip(self.processes, self._said, strict=True):
            said = path.read_text(errors="replace")
            if process.poll() is not None:
                raise RuntimeError(f"pgbench ended by itself: {said[-500:]}")
            found.append([(float(at), float(tps)) for at, tps in _PROGRESS.findall(said)])
        return found

    def pause(self) -> None:
        """Stop the processes of pgbench: its sessions end their statements and stay idle."""
        for process in self.processes:
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let pgbench go on."""
        for process in self.processes:
            process.send_signal(signal.SIGCONT)

    def processor_seconds(self) -> float:
        """Return the processor time of pgbench so far."""
        ticks = 0
        for process in self.processes:
            words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(words[11]) + int(words[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        self.resume()
        for process in self.processes:
            process.wait()


def _name(number: int) -> str:
    """Return the application name of the sessions of a program."""
    return f"pgbench {number}"
