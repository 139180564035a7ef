"""Memory of collecting and of the history over 100,000 samples, in a process of its own.

Collectors, board and history are those of `pgsweep serve`, against a real server; metrics and pages are made
of every hundredth sample. In use 100,000 samples take 11 days. Here a look follows the last as soon as its
cost allows, each reads the counters and is kept, and the time of day that the history sees goes on by ten
seconds with each sample of a server, so that it rolls up, and drops, what it would in those days.

    python -m benchmarks.serve.growth CONNINFO SAMPLES FOLDER [SERVERS]

prints the samples taken and the resident memory, a line for each hundredth.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

from pgsweep.cache.top import live
from pgsweep.host.allocator import limit_arenas
from pgsweep.host.reads import DiskReads
from pgsweep.records.top import TopView
from pgsweep.serve import collect, consumers, history
from pgsweep.serve.board import Board
from pgsweep.serve.collect import Collector
from pgsweep.serve.config import ServeConfig, ServerConfig
from pgsweep.serve.history import History, sqlite_store
from pgsweep.serve.metrics import exposed
from pgsweep.serve.web.pages import render

_STEP_SECONDS: Final = 10.0
_LONGEST_SECONDS: Final = 3600.0
_DISK_EVERY: Final = 50
"""What processes read from disks is read that rarely: all processes of the host are looked at for it."""


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process."""
    fields = Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


class _Count:
    """Counts samples, and moves the time of day with them."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._began = time.time()
        self.samples = 0
        self.changed = threading.Event()
        self._lock = threading.Lock()

    def time(self) -> float:
        return self._began + self.samples / self._servers * _STEP_SECONDS

    def note(self, _key: str, kind: str) -> None:
        if kind == "sample":
            with self._lock:
                self.samples += 1
            self.changed.set()


class _SeldomRead(DiskReads):
    """Reads what processes read from disks once in fifty times."""

    def __init__(self, postmaster_pid: int) -> None:
        super().__init__(postmaster_pid)
        self._asked, self._last = 0, super().read_bytes()

    def read_bytes(self) -> int | None:
        self._asked += 1
        if self._asked % _DISK_EVERY == 0:
            self._last = super().read_bytes()
        return self._last


def _steady(self: history.Clock) -> bool:
    return True


def main() -> None:
    """Run it."""
    conninfo, wanted, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    number = int(sys.argv[4]) if len(sys.argv) > 4 else 8
    limit_arenas(2)
    servers = [ServerConfig(key=f"s{n}", name=f"s{n}", conninfo=conninfo) for n in range(number)]
    config = ServeConfig(servers=servers, host="", port=1, history=folder, evidence=folder)
    count = _Count(number)
    # The limits of cost keep looks and readings apart, in use.
    live._COUNTERS_SECONDS = 0.0  # type: ignore[misc]
    live._COUNTERS_SHARE = live._OWN_SHARE = 100.0  # type: ignore[misc]
    consumers.INTERVAL_SECONDS = 0.1  # type: ignore[misc]
    history.Clock.is_steady = _steady  # type: ignore[method-assign]
    collect.DiskReads = _SeldomRead  # type: ignore[assignment,attr-defined]
    time.time = count.time
    board = Board(config, ["here"] * number, lambda: None)
    board.listen(count.note)
    kept = History(sqlite_store(folder / "history.sqlite"), most_bytes=64 << 20)
    collectors = [Collector(server, board, kept, interval_seconds=0.001, source="auto") for server in servers]
    kept.start()
    for collector in collectors:
        collector.start()
    until = time.monotonic() + _LONGEST_SECONDS
    shown = noted = 0
    step = max(1, wanted // 100)
    while noted < wanted and time.monotonic() < until:
        count.changed.clear()
        if count.samples < min(shown + 100, noted + step):
            count.changed.wait(1.0)
            continue
        if count.samples >= shown + 100:
            shown = count.samples
            exposed(board, [], 20)
            render("_overview.html.j2", overview=board.overview())
            board.sample(servers[shown % number].key, TopView(sort="pool", limit=50))
        if count.samples >= noted + step:
            noted += step
            print(count.samples, resident_bytes(), flush=True)
    for collector in collectors:
        collector.stop()
    kept.stop()
    failures = [found.failure.message for found in board.overview().servers if found.failure is not None]
    if failures or noted < wanted:
        sys.exit(f"{count.samples} samples only: {failures}")


if __name__ == "__main__":
    main()
