"""Which process of this host is the server that a session is connected to.

A server says the process id of the session's backend and when its postmaster started. Its postmaster is the
parent of that backend, if the server runs here: the start time, kept in every server process to the
microsecond, is read from that parent's memory and compared. In a container the process ids that the server
knows are others than ours; then all postmasters of this host are asked.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pgsweep._native import postmaster_start_time
from pgsweep.errors import MissingAbility

_PROC = Path("/proc")


def find_postmaster(backend_pid: int, start_time_microseconds: int) -> int:
    """Return the process id of the postmaster of a backend.

    Args:
        backend_pid: as `pg_backend_pid()` says it.
        start_time_microseconds: `pg_postmaster_start_time()` in microseconds since 2000-01-01.

    Raises:
        MissingAbility: the server does not run on this host, or its memory may not be read.
    """
    parent = _parent(backend_pid)
    candidates = ([] if parent is None else [parent]) + [pid for pid in _postmasters() if pid != parent]
    refused = False
    for pid in candidates:
        try:
            if postmaster_start_time(pid) == start_time_microseconds:
                return pid
        except PermissionError:
            refused = True
        except (OSError, RuntimeError):
            continue
    if refused:
        raise MissingAbility(
            "the memory of the server's processes may not be read",
            cause=f"pgsweep runs as user {os.geteuid()}, the server as another",
            hint="run it as root: sudo pgsweep record --source trace ...; or use --source sql",
        )
    raise MissingAbility(
        "the server does not run on this host",
        cause="no process here is the postmaster of this session",
        hint="run pgsweep on the server's host, as root; or use --source sql: a connection suffices",
    )


def _status(pid: int) -> dict[str, str]:
    """Return the lines of /proc/PID/status; nothing if there is no such process."""
    try:
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _parent(pid: int) -> int | None:
    status = _status(pid)
    return int(status["PPid"]) if "PPid" in status and status.get("Name", "").startswith("post") else None


def _postmasters() -> list[int]:
    """Return the processes that are a server's first: they and their parent are not the same program."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            status = _status(int(entry.name))
            if status.get("Name", "") not in {"postgres", "postmaster"}:
                continue
            with suppress(KeyError, ValueError):
                if _status(int(status["PPid"])).get("Name") != status["Name"]:
                    found.append(int(entry.name))
    return sorted(found)
