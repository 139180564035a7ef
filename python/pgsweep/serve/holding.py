"""One `pgsweep serve` for a folder: two would write the same samples, gaps and evidence over each other.

The lock (flock(2)) is on a file in the folder and ends with the process, however that ends. The file says who
holds it. Held are the folder of the history, and that of the evidence of each server; where the history is in
a PostgreSQL, the names of the servers are held there instead (pg/history_store.py).
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from typing import IO, Final

from pgsweep.errors import AtWork, PgsweepError
from pgsweep.plain import shell_word, shown

_NAME: Final = "serve.lock"
_LONGEST: Final = 300


def hold_folder(folder: Path) -> IO[bytes]:
    """Return a file that holds a folder for this process until it is closed.

    Raises:
        PgsweepError: another process holds it, or it cannot be held.
    """
    path = folder / _NAME
    try:
        descriptor = os.open(
            path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600
        )
        file = os.fdopen(descriptor, "r+b", 0)
    except OSError as error:
        raise _not_held(path, error) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.truncate()
        file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
    except BlockingIOError as error:
        with file:
            raise _held_by(folder, file.read(_LONGEST)) from error
    except OSError as error:
        file.close()
        raise _not_held(path, error) from error
    return file


def _held_by(folder: Path, said: bytes) -> PgsweepError:
    pid, _, host = shown(said.decode(errors="replace").strip()).partition(" ")
    elsewhere = host != "" and host != shown(socket.gethostname())
    who = f"process {pid}" + (f" on {host}" if elsewhere else "") if pid.isdecimal() else "a process"
    stop = f"stop it{' there' if elsewhere else ''}: kill {pid}; or " if pid.isdecimal() else "stop it, or "
    return AtWork(
        f"another `pgsweep serve` keeps its history or its evidence in `{folder}`",
        cause=f"{who} holds {shell_word(str(folder / _NAME))}",
        hint=f"{stop}name another folder: --history DIR, and for the evidence `evidence` in serve.toml",
    )


def _not_held(path: Path, error: OSError) -> PgsweepError:
    return PgsweepError(
        f"`{path}` cannot be locked: {error.strerror}",
        cause="without that, two `pgsweep serve` could write the same history",
        hint="name a folder of yours on a local disk: --history DIR",
    )
