"""Which processes run in a folder, and ending them: reads /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from pgsweep.host.procfile import parse_fields, read_kernel_text


def processes_in(folder: Path) -> list[int]:
    """Return the ids of the processes whose working directory is the folder.

    A postmaster and all its children work in their data directory, whatever their names and titles; other
    users' processes, whose working directory we may not read, are never among them.
    """
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if works_in(pid, folder)]


def works_in(pid: int, folder: Path) -> bool:
    """Return whether the working directory of a process is the folder."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/cwd").readlink()).removesuffix(" (deleted)") == str(folder)
    return False


def runs_as(pid: int, uid: int) -> bool:
    """Return whether a process has the rights of a user and no others (proc(5), the line Uid)."""
    with suppress(OSError, KeyError):
        return set(parse_fields(read_kernel_text(Path(f"/proc/{pid}/status")))["Uid"].split()) == {str(uid)}
    return False


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        state = read_kernel_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in {"Z", "X"}


def end_processes(
    pids: list[int],
    first: signal.Signals,
    *,
    patience_seconds: float = 5.0,
    belongs: Callable[[int], bool] = lambda _: True,
) -> None:
    """Send a signal, wait, and kill what is still there.

    Args:
        pids: the processes; those already gone are skipped.
        first: what they are asked with first (SIGQUIT is a server's immediate shutdown).
        patience_seconds: how long they are given before SIGKILL.
        belongs: asked about each once it is held: a pid that another process has got since is left alone.
    """
    with ExitStack() as closing:
        held: dict[int, int | None] = {}
        for pid in pids:
            descriptor = None
            try:
                descriptor = os.pidfd_open(pid)
                closing.callback(os.close, descriptor)
            except ProcessLookupError:
                continue
            except OSError:
                pass  # before Linux 5.3, or where a container does not allow it
            if belongs(pid):
                held[pid] = descriptor
        _signal(held, first)
        deadline = time.monotonic() + patience_seconds
        while any(map(is_running, held)) and time.monotonic() < deadline:
            time.sleep(0.02)
        _signal({pid: held[pid] for pid in held if is_running(pid)}, signal.SIGKILL)
        while any(map(is_running, held)) and time.monotonic() < deadline + patience_seconds:
            time.sleep(0.02)


def _signal(held: dict[int, int | None], number: signal.Signals) -> None:
    for pid, descriptor in held.items():
        with suppress(ProcessLookupError):
            if descriptor is None:
                os.kill(pid, number)
            else:
                signal.pidfd_send_signal(descriptor, number)


def is_abandoned_segment(segment_id: int, owner: int) -> bool:
    """Return whether a shared memory segment is a user's and is used by nobody (proc(5), sysvipc/shm)."""
    try:
        lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    except OSError:
        return False
    columns = lines[0].split()
    for line in lines[1:]:
        segment = dict(zip(columns, line.split(), strict=False))
        if segment.get("shmid") == str(segment_id):
            made_by = {segment.get("uid"), segment.get("cuid")}
            return made_by == {str(owner)} and segment.get("nattch") == "0"
    return False
