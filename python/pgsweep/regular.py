"""Files that somebody else may have made: opened without waiting, and read no further than expected.

Opening a FIFO waits for a writer that may never come, and a device has no end. So a file is opened with
O_NONBLOCK (open(2): without it the open of a FIFO blocks), and refused unless it is a regular one.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO


class NotRegular(OSError):
    """The path names a folder, a FIFO, a socket or a device."""


class TooLong(OSError):
    """The file is longer than anything that belongs there."""


def open_regular(path: Path) -> IO[bytes]:
    """Return a regular file opened for reading.

    Raises:
        NotRegular: it is something else.
        OSError: it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegular(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


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
