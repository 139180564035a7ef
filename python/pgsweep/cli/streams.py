"""Broken streams: a command ends if nobody reads stdout, and goes on if nobody reads stderr.

`pgsweep record ... 2>&1 | head -1` closes stderr after the first line, but the recording must go on. So
nothing that is written to stderr ever fails; what nobody can read is dropped.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

_STDERR = 2
_GONE = (errno.EPIPE, errno.EIO, errno.ECONNRESET)
"""The reader of a pipe or a socket has gone, or the terminal (drivers/tty/tty_io.c, tty_write)."""


class _Steady(io.RawIOBase):
    """Writes to a descriptor and never fails."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        written = 0
        try:
            while written < len(view):
                written += os.write(self._descriptor, view[written:])
        except OSError as error:
            if error.errno in _GONE:
                # Processes that we start have the same stderr, and would be killed by SIGPIPE.
                with contextlib.suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                    os.dup2(nowhere, self._descriptor)
                    os.close(nowhere)
        return len(view)


@contextlib.contextmanager
def steady_stderr() -> Iterator[None]:
    """Keep writes to stderr in the body from failing; a stderr that is another object is left alone."""
    former = sys.stderr
    if type(former) is not io.TextIOWrapper or former.fileno() != _STDERR:
        yield
        return
    former.flush()
    # Without a buffer in between: a signal handler that writes while a message is being written would end
    # in "reentrant call inside BufferedWriter" (https://docs.python.org/3/library/io.html#reentrancy).
    steady = io.TextIOWrapper(
        cast("IO[bytes]", _Steady(_STDERR)),
        encoding=former.encoding,
        errors="replace",  # a character that the locale cannot encode must not cut off a message
        write_through=True,
    )
    sys.stderr = steady
    try:
        yield
    finally:
        steady.flush()
        sys.stderr = former


def reader_gone() -> bool:
    """Return whether nobody can read stdout any more: the kernel says so of a pipe or socket (poll(2))."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False
