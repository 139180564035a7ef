"""Which processes run in a folder, and ending them: reads /proc."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def processes_in(folder: Path) -> list[int]:
    """Return the ids of the processes whose working directory is the folder.

    A postmaster and all its children work in their data directory, whatever their names and titles; other
    users' processes, whose working directory we may not read, are never among them.
    """
    found = []
    wanted = str(folder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if str((entry / "cwd").readlink()).removesuffix(" (deleted)") == wanted:
                    found.append(int(entry.name))
    return found


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {"Z", "X"}


def end_processes(pids: list[int], first: signal.Signals, *, patience_seconds: float = 5.0) -> None:
    """Send a signal, wait, and kill what is still there.

    Args:
        pids: the processes; those already gone are skipped.
        first: what they are asked with first (SIGQUIT is a server's immediate shutdown).
        patience_seconds: how long they are given before SIGKILL.
    """
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, first)
    deadline = time.monotonic() + patience_seconds
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in pids:
        if is_running(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline + patience_seconds:
        time.sleep(0.02)
