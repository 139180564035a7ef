"""Kill a command of pgsweep at random moments, look what is left, and let the next run undo it.

After each kill -9 nothing may stay that lives: no process, no session of the server and with it no advisory
lock, no breakpoint of a probe in the server's program. What stays on disk and in the kernel (files aside,
journals, huge pages) must be found and undone by the next run of the same.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from pgsweep.pg.private.cluster import Cluster

PGSWEEP = str(Path(sys.executable).with_name("pgsweep"))
PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Scenario:
    """A command to kill, and what must be true after the next run.

    Attributes:
        command: the arguments of pgsweep; `folder` is empty at the beginning and the working directory.
        begun: whether its work has begun, seen from outside: half of the moments are counted from there.
        next_run: run it again or undo it; return what was found, in a word or two.
        left: what is still there then, and must not be.
    """

    name: str
    command: Callable[[Path], list[str]]
    begun: Callable[[Path], bool]
    next_run: Callable[[Path], str]
    left: Callable[[Path], list[str]]


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        from_begin: whether the delay was counted from when the work had begun.
        delay_seconds: after which it was killed.
        ended: the command had ended by itself before.
        gone_seconds: after which no process and no session of it was there.
        files: how many files it left.
        found: what the next run found.
    """

    scenario: str
    from_begin: bool
    delay_seconds: float
    ended: bool
    gone_seconds: float
    files: int
    found: str


@dataclass(frozen=True)
class Span:
    """How long a command takes that nobody kills: all of it, and from when its work has begun."""

    seconds: float
    work_seconds: float


class Remaining(AssertionError):
    """Something is there that must not be."""


def pgsweep(arguments: list[str], folder: Path, name: str = "pgsweep") -> subprocess.CompletedProcess[str]:
    """Run a command to its end in the folder."""
    return subprocess.run(
        [PGSWEEP, *arguments],
        cwd=folder,
        env=environment(folder, name),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def environment(folder: Path, name: str) -> dict[str, str]:
    """Return the environment by which the processes and sessions of a run are known."""
    return {**os.environ, "PGAPPNAME": name, "XDG_STATE_HOME": str(folder / "state")}


def kill_at(scenario: Scenario, cluster: Cluster, folder: Path, chance: random.Random, span: Span) -> Kill:
    """Kill the command at one random moment, and run the next.

    Raises:
        Remaining: something stays that must not.
    """
    folder.mkdir()
    name = f"kill-{secrets.token_hex(6)}"
    process = subprocess.Popen(
        [PGSWEEP, *scenario.command(folder)],
        cwd=folder,
        env=environment(folder, name),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    from_begin = chance.random() < 0.5
    if from_begin:
        while process.poll() is None and not scenario.begun(folder):
            time.sleep(_POLL_SECONDS)
    delay = chance.uniform(0, span.work_seconds if from_begin else span.seconds)
    time.sleep(delay)
    ended = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    process.wait()
    gone = _wait_until_gone(cluster, name)
    files = sum(path.is_file() for path in folder.rglob("*"))
    found = scenario.next_run(folder)
    if left := scenario.left(folder):
        raise Remaining(f"{scenario.name}, killed after {delay:.3f} s: {left}")
    return Kill(scenario.name, from_begin, round(delay, 4), ended, round(gone, 3), files, found)


def span_of(scenario: Scenario, folder: Path) -> Span:
    """Return how long the command takes when nobody kills it, and undo what it did.

    Raises:
        Remaining: it fails.
    """
    folder.mkdir()
    begin = time.monotonic()
    begun = None
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        process = subprocess.Popen(
            [PGSWEEP, *scenario.command(folder)],
            cwd=folder,
            env=environment(folder, "pgsweep"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        while process.poll() is None:
            if begun is None and scenario.begun(folder):
                begun = time.monotonic()
            time.sleep(_POLL_SECONDS)
        end = time.monotonic()
        log.seek(0)
        if process.returncode != 0:
            raise Remaining(f"{scenario.name} fails by itself: {log.read()}")
    scenario.next_run(folder)
    if left := scenario.left(folder):
        raise Remaining(f"{scenario.name}, not killed: {left}")
    return Span(end - begin, end - (begun or begin))


def summary(kills: list[Kill]) -> dict[str, Any]:
    """Return what was found, by scenario."""
    found: dict[str, Any] = {}
    for name in dict.fromkeys(kill.scenario for kill in kills):
        mine = [kill for kill in kills if kill.scenario == name]
        words = [kill.found for kill in mine]
        found[name] = {
            "moments": len(mine),
            "ended_before": sum(kill.ended for kill in mine),
            "with_files_left": sum(kill.files > 0 for kill in mine),
            "gone_seconds_max": max(kill.gone_seconds for kill in mine),
            "found": {word: words.count(word) for word in sorted(set(words))},
            "left_after_next_run": 0,  # anything else ends the benchmark
        }
    return found


def samples(kills: list[Kill]) -> list[dict[str, Any]]:
    """Return the raw samples."""
    return [asdict(kill) for kill in kills]


def _wait_until_gone(cluster: Cluster, name: str) -> float:
    """Wait until no process, session or breakpoint of a run is there; return how long that took.

    Raises:
        Remaining: one stays.
    """
    begin = time.monotonic()
    while True:
        looked = time.thread_time()
        # The kernel takes the breakpoints of probes out when it closes the last descriptor.
        alive = _processes(name) or _sessions(cluster, name) or changed_code(cluster)
        if not alive:
            return time.monotonic() - begin
        if time.monotonic() - begin > PATIENCE_SECONDS:
            raise Remaining(f"still there after {PATIENCE_SECONDS:.0f} s: {alive}")
        # A look takes some milliseconds of a processor, which what is to end may need.
        time.sleep(max(_POLL_SECONDS, 3 * (time.thread_time() - looked)))


def _processes(name: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"PGAPPNAME={name}".encode() in (entry / "environ").read_bytes():
                    found.append(f"process {entry.name}")
            except OSError:
                continue
    return found


def _sessions(cluster: Cluster, name: str) -> list[str]:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        rows = connection.execute(
            "SELECT a.pid, (SELECT count(*) FROM pg_locks l WHERE l.pid = a.pid AND locktype = 'advisory')"
            " FROM pg_stat_activity a WHERE application_name = %s",
            (name,),
        ).fetchall()
    return [f"session {pid} with {locks} advisory locks" for pid, locks in rows]


def changed_code(cluster: Cluster) -> list[str]:
    """Return where the server's program in memory differs from its file: at breakpoints of probes."""
    pid = cluster.postmaster_pid
    program = str(Path(f"/proc/{pid}/exe").readlink())
    differ = []
    with (
        Path(f"/proc/{pid}/maps").open() as maps,
        Path(f"/proc/{pid}/mem").open("rb") as memory,
        Path(f"/proc/{pid}/exe").open("rb") as file,
    ):
        for line in maps:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or fields[5].strip() != program or "x" not in fields[1]:
                continue
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            memory.seek(begin)
            file.seek(int(fields[2], 16))
            meant = file.read(end - begin)
            there = memory.read(len(meant))
            if there != meant:
                at = np.flatnonzero(np.frombuffer(there, np.uint8) != np.frombuffer(meant, np.uint8))
                differ += [f"{there[where]:02x} at {int(fields[2], 16) + where:x}" for where in at]
    return differ
