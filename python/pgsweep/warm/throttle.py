"""Limits on speed: a maximum rate, pauses while the processors are busy, and while the server is slow."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from pgsweep.host.processor_time import host_seconds

_IDLE_PROCESSORS: Final = 0.5
"""With so many idle, a session that works takes nothing that queries could use."""

_PAUSE_RATIO: Final = 3.0
"""Pause for each second of work, where no processor is idle: a session then works a quarter of the time."""

_LONGEST_PAUSE_SECONDS: Final = 2.0


class Throttle:
    """Limits the average number of bytes a second; shared by several threads.

    Args:
        bytes_per_second: None for no limit.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = time.monotonic()
        self._lock = threading.Lock()

    def wait(self, size_bytes: int, stop: threading.Event) -> None:
        """Wait until that many bytes may be read, or until the stop."""
        if self._rate is None:
            return
        with self._lock:
            begin = max(self._free_at, time.monotonic())
            self._free_at = begin + size_bytes / self._rate
        stop.wait(max(0.0, begin - time.monotonic()))


class ProcessorPauses:
    """Leaves the processors of this host to others: pauses after work during which they were all busy.

    For one thread. The pause grows with the time that the work took, and with how much less than half a
    processor was idle meanwhile.

    Args:
        busy_seconds: returns for how long all processors together have been busy; None if that is not known.
        processors: how many there are.
    """

    def __init__(
        self,
        busy_seconds: Callable[[], float | None] = host_seconds,
        processors: int | None = None,
    ) -> None:
        self._busy_seconds = busy_seconds
        self._processors = processors or os.cpu_count() or 1
        self._begin: tuple[float, float | None] = (0.0, None)

    def begin(self) -> None:
        """Note when the work begins."""
        self._begin = time.monotonic(), self._busy_seconds()

    def pause_seconds(self) -> float:
        """Return how long to pause after the work that has ended now."""
        began, busy_before = self._begin
        busy, seconds = self._busy_seconds(), time.monotonic() - began
        if busy is None or busy_before is None or seconds <= 0:
            return 0.0
        idle = self._processors - (busy - busy_before) / seconds
        lacking = 1 - max(0.0, idle) / _IDLE_PROCESSORS
        return min(_LONGEST_PAUSE_SECONDS, max(0.0, lacking) * _PAUSE_RATIO * seconds)


class Gate:
    """Is shut while a probe takes longer than it may; measures in a thread of its own.

    The probe measures the latency of a query: it reads one block that is not warm yet. It is repeated every
    quarter of a second, and the gate opens again when it has been in time twice.

    Args:
        probe: reads once, and returns when it is done; a failure counts as late.
        max_seconds: how long it may take; None for a gate that is always open.
    """

    _EVERY_SECONDS = 0.25
    _IN_TIME = 2

    def __init__(self, probe: Callable[[], None], max_seconds: float | None) -> None:
        self._probe = probe
        self._max_seconds = max_seconds
        self._open = threading.Event()
        self._open.set()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._shut_at = 0.0
        self._paused_seconds = 0.0
        self.pauses = 0
        self.worst_seconds = 0.0

    @property
    def is_open(self) -> bool:
        """Whether reading may go on."""
        return self._open.is_set()

    @property
    def paused_seconds(self) -> float:
        """The total time for which the gate was shut."""
        now = 0.0 if self._open.is_set() else time.monotonic() - self._shut_at
        return self._paused_seconds + now

    def start(self) -> None:
        """Start measuring."""
        if self._max_seconds is not None:
            self._thread = threading.Thread(target=self._watch, name="warm-gate", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop measuring, and leave the gate open."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        self._swing(late=False)

    def wait(self, stop: threading.Event) -> None:
        """Wait until the gate is open, or until the stop."""
        while not stop.is_set() and not self._open.wait(0.1):
            pass

    def _watch(self) -> None:
        assert self._max_seconds is not None
        in_time = 0
        while not self._end.is_set():
            begin = time.monotonic()
            try:
                self._probe()
                failed = False
            except Exception:  # any error means that the server has a problem
                failed = True
            seconds = time.monotonic() - begin
            self.worst_seconds = max(self.worst_seconds, seconds)
            late = failed or seconds > self._max_seconds
            in_time = 0 if late else in_time + 1
            if late or in_time >= self._IN_TIME:
                self._swing(late=late)
            self._end.wait(self._EVERY_SECONDS)

    def _swing(self, *, late: bool) -> None:
        if late and self._open.is_set():
            self._shut_at = time.monotonic()
            self.pauses += 1
            self._open.clear()
        elif not late and not self._open.is_set():
            self._paused_seconds += time.monotonic() - self._shut_at
            self._open.set()
