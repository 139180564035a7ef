"""Root over a Unix socket: connecting as the operating-system user that the server runs as.

Debian's pg_hba.conf has `peer` for the socket: the server lets in the system user of the role's name and
nobody else, root neither. What decides is the effective user id at the time of connect() (SO_PEERCRED,
unix(7)), so root takes on that of the socket's owner for as long as connecting takes. The session is then one
of that user's, usually `postgres`. Only the connecting thread changes, by the system call: the C library's
seteuid() changes all threads of a process (nptl(7)), and others may be reading the server's memory as root.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
from collections.abc import Callable
from typing import Final, TypeVar

import psycopg

T = TypeVar("T")

_SETRESUID: Final = {"x86_64": 117, "aarch64": 147}
"""The system call's number (arch/x86/entry/syscalls/syscall_64.tbl; include/uapi/asm-generic/unistd.h)."""


def connected_as_owner(connect: Callable[[], T], refusal: psycopg.Error) -> T | None:
    """Connect again as the owner of the socket, where root was refused.

    libpq gives a refusal no SQLSTATE, and its text is in the language of the server's lc_messages. So any
    refusal of root counts: a refusal with another reason occurs again at the second attempt, which says why.

    Args:
        connect: connects.
        refusal: what the first attempt ended in.

    Returns:
        Nothing where this is not root at a socket of another user's.

    Raises:
        psycopg.Error: that user is refused too.
    """
    if os.geteuid() != 0:
        return None
    owner = _owner_of_socket(refusal)
    if not owner:
        return None
    if not _become(owner):
        return None
    try:
        return connect()
    finally:
        if not _become(0):
            raise OSError("the thread cannot become root again after connecting as the server's user")


def _become(user: int) -> bool:
    """Set the effective user id of this thread; return whether that was possible."""
    number = _SETRESUID.get(platform.machine())
    if number is None:
        return False
    unchanged = ctypes.c_long(-1)
    return (
        int(ctypes.CDLL(None).syscall(ctypes.c_long(number), unchanged, ctypes.c_long(user), unchanged)) == 0
    )


def _owner_of_socket(refusal: psycopg.Error) -> int | None:
    """Return the user id of the server's socket; None where the connection was not a socket's."""
    if refusal.pgconn is None:
        return None
    host, port = refusal.pgconn.host, refusal.pgconn.port
    if not host.startswith(b"/"):
        return None
    try:
        status = os.stat(os.path.join(host, b".s.PGSQL." + port))  # noqa: PTH116, PTH118  (bytes)
    except OSError:
        return None
    return status.st_uid if stat.S_ISSOCK(status.st_mode) else None
