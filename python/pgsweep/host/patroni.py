"""Whether Patroni runs a server of this host: the parent of its postmaster, and its configuration file."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from pgsweep.host.procfile import PROC, parse_fields, read_kernel_text
from pgsweep.regular import open_of

_BANNER_BYTES: Final = 4096
_OVERWRITTEN: Final = re.compile(rb"overwritten by Patroni", re.IGNORECASE)


def patroni_above(pid: int, proc: Path = PROC) -> str | None:
    """Return the process number of a postmaster's parent where that is Patroni, run by Python or not."""
    with suppress(OSError, KeyError):
        parent = parse_fields(read_kernel_text(proc / str(pid) / "status"))["PPid"]
        words = (proc / parent / "cmdline").read_bytes().split(b"\0")[:3]
        names = [os.path.basename(word) for word in words]  # noqa: PTH119 (bytes)
        if any(name in {b"patroni", b"patroni.py", b"patroni.__main__"} for name in names):
            return parent
    return None


def is_overwritten_by_patroni(pid: int, config: str, proc: Path = PROC) -> bool:
    """Return whether a server's configuration file says that Patroni writes it anew.

    Args:
        pid: the postmaster.
        config: the file as the server names it; empty for the one in its data directory.
        proc: the proc file system to read.
    """
    place = proc / str(pid)
    file = place / "root" / config.lstrip("/") if config else place / "cwd/postgresql.conf"
    return _OVERWRITTEN.search(_beginning(file, pid, proc)) is not None


def _beginning(file: Path, pid: int, proc: Path) -> bytes:
    """Return the beginning of a file of the server's user; nothing where it cannot be read."""
    with suppress(OSError, KeyError, ValueError, IndexError):
        uid = int(parse_fields(read_kernel_text(proc / str(pid) / "status"))["Uid"].split()[1])
        with os.fdopen(open_of(file, uid, os.O_RDONLY), "rb") as opened:
            return opened.read(_BANNER_BYTES)
    return b""
