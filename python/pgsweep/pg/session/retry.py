"""Retries: while the server is unavailable, and while other sessions hold locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from pgsweep.errors import ConnectionFailed

T = TypeVar("T")

PATIENCE_SECONDS = 60.0
"""How long to wait for a server that restarts."""

_TRY_AGAIN_SECONDS = 0.05


def patiently(step: Callable[[], T], seconds: float, stop: threading.Event) -> T:
    """Return what a step returns; it is tried again while the server cannot be reached.

    Args:
        step: begins anew each time, with a connection of its own.
        seconds: how long the server is waited for.
        stop: ends the waiting.

    Raises:
        ConnectionFailed: the server is away for longer, or there was a stop.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return step()
        except ConnectionFailed:
            if time.monotonic() > until or stop.is_set():
                raise
        stop.wait(_TRY_AGAIN_SECONDS)


def repeated(
    step: Callable[[], T],
    errors: tuple[type[Exception], ...],
    *,
    tries: int,
    pause_seconds: float,
    waiting: Callable[[], None] | None = None,
) -> T:
    """Return what a step returns; it is tried again after a pause where it fails with one of these errors.

    Args:
        step: undoes what it did where it fails.
        errors: any other one is raised at once.
        tries: the error of the last is raised.
        pause_seconds: between two.
        waiting: called before the first pause.
    """
    for number in range(1, tries):
        try:
            return step()
        except errors:
            if number == 1 and waiting is not None:
                waiting()
        time.sleep(pause_seconds)
    return step()


def awaited(step: Callable[[], T | None], *, seconds: float, pause_seconds: float) -> T | None:
    """Repeat a step until it returns something other than None, and return that; None if the time runs out.

    Args:
        step: asks once.
        seconds: how long it is asked again.
        pause_seconds: between two.
    """
    until = time.monotonic() + seconds
    while (found := step()) is None and time.monotonic() <= until:
        time.sleep(pause_seconds)
    return found


class Pauses:
    """Pauses between attempts for as long as it takes, each twice as long as the one before.

    Args:
        longest_seconds: no pause is longer.
        first_seconds: the shortest.
    """

    def __init__(self, longest_seconds: float, *, first_seconds: float = 0.5) -> None:
        self._longest_seconds = longest_seconds
        self._first_seconds = first_seconds
        self.seconds = first_seconds

    def start_again(self) -> None:
        """Begin with the shortest, after an attempt that went well."""
        self.seconds = self._first_seconds

    def wait(self, stop: threading.Event, at_most_seconds: float | None = None) -> None:
        """Wait for the next pause, or until the stop."""
        left = self.seconds if at_most_seconds is None else min(self.seconds, max(0.0, at_most_seconds))
        stop.wait(left)
        self.seconds = min(2 * self.seconds, self._longest_seconds)
