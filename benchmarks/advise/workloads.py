"""The loads of this benchmark: pgbench with four sessions that never pause.

What depends on time would be another mix of accesses at each throughput, and the sizes would not have the
same load. So a scan comes after so many transactions, and hot sets and loops move on by transactions too (the
variable `step`). Each session has its own: a shared one would fall apart, as sessions are not equally fast.
All sessions scan: were it one alone, the longer its scans take, the fewer they would be for each access.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pgsweep.pg.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE, find_pgbench
from pgsweep.testbed.server import for_programs
from pgsweep.testbed.workloads import MIX, TPCB, ZIPF, Script, Workload, zipf_account

CLIENTS = 4
ROWS_A_BLOCK = 58
SCANNED_BLOCKS = 3072
LOOP_BLOCKS = 13_000
"""About 100 MB: more than most of the pools that are measured, less than the largest."""

_OWN_ROWS = ROWS_A_BLOCK * LOOP_BLOCKS // 4
_PROGRESS = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps", re.MULTILINE)
_READ = "SELECT abalance FROM pgbench_accounts WHERE aid = :aid;\n"
_STEP = "\\set step :step + 1\n"

SCAN = Workload(
    name="scan",
    title="point reads, Zipf 1.08; each session scans a table of 24 MB every 16000 of its transactions",
    scripts=(
        Script(
            _STEP
            + zipf_account("aid", 1.08, 11)
            + _READ
            + "\\if :step % 16000 = 4000 * :client_id\nSELECT count(filler) FROM scanned;\n\\endif\n"
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
            + "\\set aid 1 + (:step * 2 + :client_id * 25000 * :scale + :rank) % (100000 * :scale)\n"
            + _READ
        ),
    ),
)

LOOP = Workload(
    name="loop",
    title="four sessions that each read 25 MB of a table again and again, block by block",
    scripts=(
        Script(
            _STEP + f"\\set aid 1 + :client_id * {_OWN_ROWS} + :step * {ROWS_A_BLOCK} % {_OWN_ROWS}\n" + _READ
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
    """

    cluster: Cluster
    workload: Workload
    scale: int
    seed: int

    def __enter__(self) -> Load:
        folder = self.cluster.run_directory / f"load-{self.workload.name}"
        folder.mkdir(exist_ok=True)
        self._said = folder / "pgbench.log"
        conninfo, environment = for_programs(self.cluster, DATABASE)
        command = [str(find_pgbench(self.cluster.binaries)), "--no-vacuum", "--protocol=prepared"]
        command += [f"--client={CLIENTS}", "--jobs=2", "--time=86400", "--define=step=0"]
        command += ["--progress=1", "--progress-timestamp"]
        command += [f"--random-seed={self.seed}", f"--scale={self.scale}", *self._scripts(folder)]
        with self._said.open("w") as said:
            self._process = subprocess.Popen(
                [*command, conninfo], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment
            )
        return self

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
        return [tps for _, tps in self._reports()]

    def rate_within(self, begin: float, end: float, turns: Sequence[tuple[float, float]]) -> float:
        """Return the transactions a second of the turns in a time, as far as pgbench reported of it.

        Args:
            begin: and `end`, in seconds since the epoch.
            turns: when it ran: begin and end of each.

        Raises:
            RuntimeError: pgbench has ended by itself, or reported less than twice.
        """
        reports = [(at, tps) for at, tps in self._reports() if begin <= at <= end]
        if len(reports) < 2:
            raise RuntimeError(f"pgbench reported {len(reports)} times in {end - begin:.1f} s")
        transactions = sum(tps * (at - before) for (before, _), (at, tps) in pairwise(reports))
        first, last = reports[0][0], reports[-1][0]
        return transactions / sum(max(0.0, min(last, stop) - max(first, start)) for start, stop in turns)

    def _reports(self) -> list[tuple[float, float]]:
        """Return the time of each report, and the transactions a second since the one before."""
        said = self._said.read_text(errors="replace")
        if self._process.poll() is not None:
            raise RuntimeError(f"pgbench ended by itself: {said[-500:]}")
        return [(float(at), float(tps)) for at, tps in _PROGRESS.findall(said)]

    def pause(self) -> None:
        """Stop the process of pgbench: its sessions end their statements and stay idle."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let pgbench go on."""
        self._process.send_signal(signal.SIGCONT)

    def processor_seconds(self) -> float:
        """Return the processor time of pgbench so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self.resume()
        self._process.wait()
