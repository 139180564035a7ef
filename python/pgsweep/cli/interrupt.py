"""Ctrl-C during a recording: the first ends it in good order, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pgsweep.cli.settings import Settings


@contextmanager
def stoppable(settings: Settings) -> Iterator[threading.Event]:
    """Give an event that Ctrl-C (or SIGTERM) sets; whoever does the work looks at it and finishes.

    A second Ctrl-C raises KeyboardInterrupt where the work stands. The former handlers come back at the end.
    """
    stop = threading.Event()

    def handler(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        settings.say("\nending the recording, what was seen is being written; Ctrl-C again ends it at once")

    former = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, old in former.items():
            signal.signal(number, old)
