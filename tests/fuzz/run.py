"""Run targets and watch them: `python -m tests.fuzz.run --time 60s [TARGET ...]`; `make fuzz TIME=60s`.

A run that takes 5 s of processor time, that waits for 5 s, that takes 500 MB, or whose process dies is
ended and kept, as is every exception that is not a PgsweepError. What waits is run once more: on a busy
machine it is the server that waited for a processor, and only what hangs again is a finding. Each finding is
two files in the folder of findings: the input, and what happened. `--replay FILE TARGET` runs one input
again, in this process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgsweep.cli.common import Duration
from tests.fuzz.targets import load, target_names
from tests.fuzz.worker import AGAIN, DONE, STATE, TOO_LARGE, keep, run_once

HANG_SECONDS = 5.0
MOST_BYTES = 500 << 20
FINDINGS = Path("fuzz-findings")
_POLL_SECONDS = 0.02
_MOST_ENDED = 20
"""A target that hangs or dies so often is not run on."""
_MOST_RUNS = 1 << 62

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Outcome:
    """What running a target came to."""

    name: str
    runs: int = 0
    waited: int = 0
    """Runs that were ended for a wait and did not wait again."""
    outcomes: set[str] = field(default_factory=set)
    findings: list[Path] = field(default_factory=list)


class Watch:
    """One worker's time and memory, looked at from outside."""

    def __init__(self, pid: int, scratch: Path) -> None:
        self._proc = Path(f"/proc/{pid}")
        self._state = scratch / "state"
        self._run = -1
        self._cpu_seconds = 0.0
        self._begun = 0.0
        self._waits_since: float | None = None

    def run(self) -> int:
        return int(STATE.unpack(self._state.read_bytes())[0])

    def _sleeps(self) -> bool:
        """Return whether nothing would run if there were a processor for it: no thread, and no descendant.

        Commands start servers (initdb), and wait for them; on a busy machine that is long.
        """
        waiting = [self._proc]
        while waiting:
            process = waiting.pop()
            with contextlib.suppress(OSError):
                for task in (process / "task").iterdir():
                    with contextlib.suppress(OSError):
                        if (task / "stat").read_text().rpartition(")")[2].split()[0] != "S":
                            return False
                        waiting += [Path("/proc") / pid for pid in (task / "children").read_text().split()]
        return True

    def trouble(self) -> str | None:
        """Return `hang` or `memory` where the run at hand takes too much."""
        try:
            pages = int((self._proc / "statm").read_text().split()[1])
            fields = (self._proc / "stat").read_text().rpartition(")")[2].split()
        except (OSError, IndexError):
            return None
        if pages * _PAGE_BYTES > MOST_BYTES:
            return "memory"
        run, now = self.run(), time.monotonic()
        cpu_seconds = (int(fields[11]) + int(fields[12])) / _TICKS
        if run != self._run:
            self._run, self._cpu_seconds, self._waits_since = run, cpu_seconds, None
        if run == 0:  # still importing
            return None
        # By processor time, lest a busy machine makes hangs; a process that waits uses none.
        if cpu_seconds - self._cpu_seconds > HANG_SECONDS:
            return "hang"
        if cpu_seconds != self._begun or not self._sleeps():
            self._begun, self._waits_since = cpu_seconds, None
        elif self._waits_since is None:
            self._waits_since = now
        elif now - self._waits_since > HANG_SECONDS:
            return "hang"
        return None


def fuzz(name: str, seconds: float, findings: Path, *, seed: int = 0, most_runs: int = _MOST_RUNS) -> Outcome:
    """Run a target for a time and return what was found; inputs of findings lie in `findings`/NAME.

    With the same seed and `most_runs`, and time enough for them, the same inputs are run.
    """
    outcome = Outcome(name)
    folder = findings / name
    end = time.monotonic() + seconds
    ended = 0
    for process in range(1_000_000):
        with tempfile.TemporaryDirectory(prefix="pgsweep-fuzz-") as place:
            code, runs, trouble, data, words = _work(
                name,
                f"{name}/{seed}/{process}",
                Path(place),
                folder,
                end - time.monotonic(),
                most_runs - outcome.runs,
            )
        outcome.runs += runs
        outcome.outcomes |= words
        if trouble == "hang" and not _hangs_again(name, data, folder):
            trouble = None
            outcome.waited += 1
            ended += 1
        if trouble is not None:
            keep(
                folder,
                trouble,
                f"{trouble} of {name}: {hashlib.sha256(data).hexdigest()}",
                data,
                f"exit code {code}",
            )
            ended += 1
        if code == DONE or time.monotonic() > end or ended >= _MOST_ENDED:
            break
    outcome.findings = sorted(folder.glob("*.txt"))
    return outcome


def _hangs_again(name: str, data: bytes, folder: Path) -> bool:
    with tempfile.TemporaryDirectory(prefix="pgsweep-fuzz-") as place:
        only = Path(place) / "only"
        only.write_bytes(data)
        _, _, trouble, _, _ = _work(name, "again", Path(place), folder, 60.0, 1, only=only)
    return trouble == "hang"


def _work(
    name: str,
    seed: str,
    scratch: Path,
    folder: Path,
    seconds: float,
    most_runs: int,
    *,
    only: Path | None = None,
) -> tuple[int, int, str | None, bytes, set[str]]:
    """Run one worker; return its exit code, its runs, how it failed and on which input, and the outcomes."""
    (scratch / "state").write_bytes(bytes(STATE.size))
    limits = (seconds, most_runs, MOST_BYTES)
    command = [sys.executable, "-m", "tests.fuzz.worker", name, seed, scratch, folder, *limits]
    command += [] if only is None else [only]
    trouble = None
    # Targets are small; threads would only wait for each other.
    alone = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    worker = subprocess.Popen([str(word) for word in command], env={**os.environ, **alone})
    try:
        watch = Watch(worker.pid, scratch)
        while worker.poll() is None:
            trouble = watch.trouble()
            if trouble is not None:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        worker.kill()
        code = worker.wait()
    if trouble is None and code not in (DONE, AGAIN):
        trouble = "memory" if code == TOO_LARGE else "died"
    current, words = scratch / "current", scratch / "outcomes"
    return (
        code,
        watch.run(),
        trouble,
        current.read_bytes() if current.exists() else b"",
        set(words.read_text(encoding="utf-8").splitlines()) if words.exists() else set(),
    )


def replay(name: str, path: Path) -> int:
    with tempfile.TemporaryDirectory(prefix="pgsweep-fuzz-") as place:
        outcome, report = run_once(load(name), path.read_bytes(), Path(place))
    print(report or outcome)
    return int(report is not None)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", help="without any: all")
    parser.add_argument("--time", default="60s", help="for each target, such as 60s or 1h")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=FINDINGS)
    parser.add_argument("--replay", type=Path, metavar="FILE")
    parser.add_argument("--outcomes", action="store_true", help="list what inputs were taken for")
    options = parser.parse_args(arguments)
    if options.replay is not None:
        return replay(options.targets[0], options.replay)
    seconds = Duration().convert(options.time, None, None)
    found = 0
    for name in options.targets or target_names():
        outcome = fuzz(name, seconds, options.findings, seed=options.seed)
        found += len(outcome.findings)
        print(
            f"{name}: {outcome.runs} runs, {len(outcome.outcomes)} different outcomes, "
            f"{len(outcome.findings)} findings, {outcome.waited} waited once",
            flush=True,
        )
        for word in sorted(outcome.outcomes) if options.outcomes else ():
            print(f"    {word}")
        for path in outcome.findings:
            print(f"  {path}: {path.read_text().splitlines()[0]}", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
