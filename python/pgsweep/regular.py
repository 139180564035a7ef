"""Files that somebody else may have made: opened without waiting, and read no further than expected.

Opening a FIFO waits for a writer that may never come, and a device has no end. So a file is opened with
O_NONBLOCK (open(2): without it the open of a FIFO blocks), and refused unless it is a regular one.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import IO


class NotRegular(OSError):
    """The path names a folder, a FIFO, a socket or a device."""


class TooLong(OSError):
    """The file is longer than anything that belongs there."""


def open_regular(path: Path) -> BufferedReader:
    """Return a regular file opened for reading.

    Raises:
        NotRegular: it is something else.
        OSError: it cannot be opened.
    """
    return os.fdopen(_regular(path, os.O_RDONLY), "rb")


def open_at_once(path: Path) -> IO[bytes]:
    """Return a file, or a pipe, opened for reading; a pipe without a writer is empty, and is not waited for.

    Raises:
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)
    try:
        return os.fdopen(descriptor, "rb")
    except IsADirectoryError:
        os.close(descriptor)
        raise


def open_of(path: Path, uid: int, flags: int) -> int:
    """Return the descriptor of a file that a user made in a folder of his own, and that is not a link.

    Whoever owns a folder can put a link there in the place of any file, which leads root to a file that the
    owner has no right to (symlink(7); link(2): a second name of somebody else's file).

    Args:
        path: the file.
        uid: whose it must be.
        flags: O_RDONLY, O_RDWR or O_WRONLY, and O_APPEND.

    Raises:
        NotRegular: it is something else, or somebody else's.
        OSError: it is a symbolic link, or cannot be opened.
    """
    descriptor = _regular(path, flags | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    if status.st_uid != uid or status.st_nlink > 1:
        os.close(descriptor)
        raise NotRegular(errno.EPERM, "it belongs to another user, or has another name", str(path))
    return descriptor


def _regular(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return all that is in a regular file.

    Raises:
        NotRegular: it is something else.
        TooLong: it has more than `most_bytes`.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        return read_bounded(file, most_bytes, path)


def read_bounded(file: IO[bytes], most_bytes: int, path: Path) -> bytes:
    """Return all that is in a file.

    Raises:
        TooLong: it has more than `most_bytes`.
        OSError: it cannot be read.
    """
    found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise TooLong(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return found
