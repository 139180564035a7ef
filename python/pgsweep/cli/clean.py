"""The process's standard streams: all of them open, and their output free of control characters.

What is shown was made printable before it was laid out (`plain` in ui/results.py); here is the last place
that all text passes, whoever wrote it: no control but line feeds and our own colours gets to a terminal.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from pgsweep.plain import cleaned


class CleanStream:
    """A text stream that writes control characters as escapes and passes all else to another stream."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        """The stream as it is, for what moves the cursor on purpose."""

    def write(self, text: str) -> int:
        """Write the text; return how many characters it had."""
        self.raw.write(cleaned(text, colours=True))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write one text after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def raw_stream(stream: TextIO) -> TextIO:
    """Return the stream below the cleaning."""
    return stream.raw if isinstance(stream, CleanStream) else stream


@contextmanager
def clean_streams() -> Iterator[bool]:
    """Clean what is written to stdout and stderr until the context ends; yield whether stdout is open.

    Closed streams are opened on /dev/null first: otherwise the next file that is opened would get their
    descriptor, and every message would be written to it.
    """
    missing = _open_missing()
    former = sys.stdout, sys.stderr
    for stream in former:
        if isinstance(stream, io.TextIOWrapper):
            # A character that the locale cannot encode must not cut off a message.
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = (cast(TextIO, CleanStream(stream)) for stream in former)
    try:
        yield 1 not in missing
    finally:
        sys.stdout, sys.stderr = former


def _open_missing() -> set[int]:
    """Return the numbers of the standard streams that were closed."""
    missing = set()
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            missing.add(number)
            # The lowest free number is taken, and all below are open.
            os.open(os.devnull, mode)
    # In Python a stream that was closed is None: https://docs.python.org/3/library/sys.html#sys.stdin
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    return missing
