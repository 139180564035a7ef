"""Samples taken by a thread of their own, also over restarts of the server.

A server that is stopped, restarted or not to be reached does not end it: the failure is reported, and the
server is tried again after a pause that grows. After a restart everything is opened anew, which finds the
new process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, Generic, Protocol, TypeVar

from pgsweep.cache.top.live import Live
from pgsweep.cache.top.sample import CacheSample
from pgsweep.errors import PgsweepError
from pgsweep.pg.session.failures import DriverError, first_line
from pgsweep.pg.session.retry import Pauses

_LONGEST_PAUSE_SECONDS: Final = 10.0

S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class Looks(Protocol[S_co]):
    """What a feed takes samples from; `Live` is one."""

    interval_seconds: float

    @property
    def effective_interval_seconds(self) -> float:
        """Return the seconds from one look to the next."""

    def look(self) -> S_co | None:
        """Return a sample; None where the server is to be opened anew."""

    def cancel(self) -> None:
        """End a statement that is running, from another thread."""


class Feed(Generic[S]):
    """Takes samples of a server until it is stopped.

    Args:
        reopen: opens the server.
        interval_seconds: from one look to the next.
        show: called with each sample, in the feed's thread.
        fail: called with the failure, and in how many seconds the server is tried again.
        give_up: called with an unexpected error; no more samples are taken.
    """

    def __init__(
        self,
        reopen: Callable[[], AbstractContextManager[Looks[S]]],
        interval_seconds: float,
        show: Callable[[S], None],
        fail: Callable[[PgsweepError, float], None],
        give_up: Callable[[Exception], None],
    ) -> None:
        self._reopen = reopen
        self._interval_seconds = interval_seconds
        self._show = show
        self._fail = fail
        self._give_up = give_up
        self._paused = False
        self._ended = threading.Event()
        self._live: Looks[S] | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def set_interval(self, seconds: float) -> None:
        """Set the time between samples."""
        with self._changed:
            self._interval_seconds = seconds
            self._changed.notify()

    def pause(self, paused: bool) -> None:
        """Pause taking samples, or resume."""
        with self._changed:
            self._paused = paused
            self._changed.notify()

    def stop(self) -> None:
        """End; a statement that is running is cancelled."""
        with self._changed:
            self._ended.set()
            self._changed.notify()
            live = self._live
        if not self._thread.is_alive():
            return
        self._thread.join(0.2)
        if live is not None and self._thread.is_alive():
            live.cancel()
            self._thread.join(2.0)

    def _run(self) -> None:
        pauses = Pauses(_LONGEST_PAUSE_SECONDS)
        while not self._ended.is_set():
            try:
                with self._reopen() as live:
                    self._live = live
                    self._look_on(live)
                pauses.start_again()
            except (PgsweepError, DriverError, OSError) as error:
                if self._ended.is_set():
                    return
                if self._live is not None:
                    pauses.start_again()
                self._fail(_as_failure(error), pauses.seconds)
            except Exception as error:
                self._give_up(error)
                return
            finally:
                self._live = None
            pauses.wait(self._ended)

    def _look_on(self, live: Looks[S]) -> None:
        """Take samples until stopped, or until the server is to be opened anew."""
        while not self._ended.is_set():
            begin = time.monotonic()
            live.interval_seconds = self._interval_seconds
            sample = live.look()
            if sample is None:
                return
            self._show(sample)
            with self._changed:
                while not self._ended.is_set():
                    live.interval_seconds = self._interval_seconds
                    left = begin + live.effective_interval_seconds - time.monotonic()
                    if left <= 0 and not self._paused:
                        break
                    self._changed.wait(None if self._paused else left)


def _as_failure(error: Exception) -> PgsweepError:
    if isinstance(error, PgsweepError):
        return error
    return PgsweepError(first_line(error))


def take_twice(live: Live, interval_seconds: float) -> CacheSample:
    """Return one sample, of the second of two readings `interval_seconds` apart, with rates between both."""
    live.interval_seconds = interval_seconds
    live.look(with_files=False)
    time.sleep(live.effective_interval_seconds)
    live.read_files(60.0)
    return live.look(with_counters=True, with_files=False)
