"""Memory of `pgsweep serve` for one server with many relations, by each source."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psycopg

from pgsweep.pg.private.cluster import Cluster

SOURCES: Final = ("peek", "sql")
_EVERY_SECONDS: Final = 5.0
_SETTINGS: Final = {"shared_buffers": "2GB", "max_locks_per_transaction": "4096"}

Start = Callable[[Path, Path, str], tuple[subprocess.Popen[str], str]]
"""Starts `pgsweep serve` by configuration, folder of the history, source; returns process and address."""


def make_relations(cluster: Cluster, count: int) -> None:
    """Make tables with a row and so a page each, in transactions of 500."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_buffercache")
        for begin in range(0, count, 500):
            statements = "; ".join(
                f"CREATE TABLE t{n} (a int); INSERT INTO t{n} VALUES (1)" for n in range(begin, begin + 500)
            )
            connection.execute(statements.encode())


def children(pid: int) -> list[int]:
    """Return the processes that a process's threads have started."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found |= {int(word) for word in (task / "children").read_text().split()}
    return sorted(found)


def memory_of(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process and the most that it has had; zeros where it is gone."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        found = {name: text for name, _, text in (line.partition(":") for line in lines)}
        if "VmRSS" in found:
            now, most = (int(found[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
            return now, most
    return 0, 0


def measure(relations: int, minutes: float, folder: Path, start: Start) -> dict[str, Any]:
    """Return the memory of a process by each source, both at work on the same server.

    Args:
        relations: how many.
        minutes: more than ten, so that a second piece of evidence is begun.
        folder: for configuration and histories.
        start: begins `pgsweep serve`.
    """
    with Cluster.create(None, _SETTINGS) as cluster:
        began = time.monotonic()
        make_relations(cluster, relations)
        made_seconds = time.monotonic() - began
        with psycopg.connect(cluster.conninfo()) as connection:
            row = connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone()
        assert row is not None
        config = folder / "relations.toml"
        config.write_text(f"[[server]]\nname = 'large'\nconninfo = \"{cluster.conninfo()}\"\n")
        with ExitStack() as stack:
            runs = {
                source: stack.enter_context(_running(start, config, folder / source, source))
                for source in SOURCES
            }
            until = time.monotonic() + 60 * minutes
            while time.monotonic() < until:
                for run in runs.values():
                    run.note()
                time.sleep(_EVERY_SECONDS)
            return {
                "relations": int(row[0]),
                "made_seconds": made_seconds,
                "minutes": minutes,
                "sources": {source: run.result() for source, run in runs.items()},
            }


class _Run:
    """One process that is watched."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process, self._address = process, address
        self._began = time.monotonic()
        self._up_seconds: float | None = None
        self._rows: list[list[float]] = []
        self._peak = self._predicting_peak = 0

    def note(self) -> None:
        """Read the memory of the process, and of the one that predicts."""
        assert self._process.poll() is None
        now, self._peak = memory_of(self._process.pid)
        predicting = [memory_of(child) for child in children(self._process.pid)]
        self._predicting_peak = max([self._predicting_peak, *(most for _, most in predicting)])
        at = time.monotonic() - self._began
        self._rows.append([round(at, 1), now, sum(each for each, _ in predicting)])
        up = r"^pgsweep_up{.*} 1\.0$"
        if self._up_seconds is None and re.search(up, self._asked("metrics"), re.MULTILINE):
            self._up_seconds = time.monotonic() - self._began

    def _asked(self, path: str) -> str:
        with urllib.request.urlopen(f"{self._address}{path}", timeout=120) as answer:
            return str(answer.read().decode())

    def result(self) -> dict[str, Any]:
        """Return all that was noted, and the times of a page and of /metrics."""
        seconds: dict[str, list[float]] = {"servers/large": [], "metrics": []}
        for path, times in seconds.items():
            for _ in range(5):
                begin = time.monotonic()
                self._asked(path)
                times.append(time.monotonic() - begin)
        curves = self._asked("servers/large/curves.json")
        return {
            "up_seconds": self._up_seconds,
            "peak_bytes": self._peak,
            "predicting_peak_bytes": self._predicting_peak,
            "page_seconds": seconds["servers/large"],
            "metrics_seconds": seconds["metrics"],
            "curves": curves.count("window_seconds"),
            "seconds_bytes_predicting_bytes": self._rows,
        }


@contextmanager
def _running(start: Start, config: Path, history: Path, source: str) -> Iterator[_Run]:
    process, address = start(config, history, source)
    try:
        yield _Run(process, address)
    finally:
        process.terminate()
        process.wait(30)
