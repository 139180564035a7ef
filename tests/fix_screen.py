"""A command on a terminal of its own: keys go in, and what a person would see comes out."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte

from tests.fix_cli import Command, launch
from tests.fix_process import Patience

PATIENCE_SECONDS = 60.0


class Screen:
    """What a terminal shows of one process."""

    def __init__(self, process: Command, master: int, columns: int, lines: int) -> None:
        self.process = process
        self.master = master
        self.raw = b""
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        _set_size(self.master, columns, lines)
        self._screen.resize(lines, columns)
        self.process.send_signal(signal.SIGWINCH)

    def lines(self) -> list[str]:
        self._read(0.0)
        return [line.rstrip() for line in self._screen.display]

    def text(self) -> str:
        return "\n".join(self.lines())

    def wait_for(self, *parts: str, without: str | None = None, patience: float = PATIENCE_SECONDS) -> str:
        """Wait until all of these stand on the screen, and return it."""

        def there(text: str) -> bool:
            return all(part in text for part in parts) and (without is None or without not in text)

        return self.wait_until(there, f"{parts} without {without}", patience)

    def wait_until(self, there: Callable[[str], bool], what: str, patience: float = PATIENCE_SECONDS) -> str:
        until = Patience(patience)
        while not there(text := self.text()):
            assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{text}"
            assert until.left() > 0, f"no {what} on:\n{text}"
            self._read(0.2)
        return text

    def wait_end(self, patience: float = PATIENCE_SECONDS) -> int:
        until = Patience(patience)
        while (code := self.process.poll()) is None:
            assert until.left() > 0, f"it does not end:\n{self.text()}"
            self._read(0.1)
        self._read(0.1)
        return code

    def _read(self, seconds: float) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            try:
                piece = os.read(self.master, 65536)
            except OSError:
                return  # nobody has the other end any more
            if not piece:
                return
            self.raw += piece
            self._stream.feed(piece)
            seconds = 0.0


def _set_size(descriptor: int, columns: int, lines: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@contextmanager
def screen_of(
    *arguments: str,
    columns: int = 80,
    lines: int = 24,
    env: dict[str, str] | None = None,
    first: str = "",
) -> Iterator[Screen]:
    """Run pgsweep on a terminal of this size; it is killed at the end if it has not ended.

    Args:
        first: what is done in its process before it begins, in Python.
    """
    master, slave = os.openpty()
    _set_size(slave, columns, lines)
    plain = {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = launch(
        *arguments,
        env={**plain, **(env or {})},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        first=first,
        terminal=True,
    )
    os.close(slave)
    try:
        yield Screen(process, master, columns, lines)
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            os.close(master)
