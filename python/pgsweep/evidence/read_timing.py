"""How long reads of the server take, timed by probes for half a second in every five: the table `read_times`.

    with ReadTiming(timer, started) as timing:
        ...
    writer.append("read_times", timing.take())

Where a session begins to wait for a read, and where that has ended, the kernel counts the time between in a
histogram (probe/src/read_timer.rs): two or four traps for a read, and no event. `track_io_timing` does not
matter, and the server's own views have only the sum of these times.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import ReadTimer
from pgsweep.evidence.schema import TABLES

TIMED_SECONDS: Final = 0.5
EVERY_SECONDS: Final = 5.0

NOT_MEASURED: Final = "read_times_not_measured"
"""The fact that says why there are no such times."""

Columns = dict[str, NDArray[Any]]


def open_timer(postmaster_pid: int, start_time: int | None = None) -> tuple[ReadTimer | None, str]:
    """Return what times the reads of a server, or None and why not.

    Args:
        postmaster_pid: of the server.
        start_time: which it must have, in microseconds since 2000-01-01.
    """
    try:
        return ReadTimer(postmaster_pid, start_time=start_time), ""
    except (RuntimeError, OSError) as error:
        return None, _reason(error)


def timing_facts(timer: ReadTimer | None, why: str) -> dict[str, str]:
    """Return what the times are of, or why there are none, as facts."""
    if timer is None:
        return {NOT_MEASURED: why}
    added_seconds, _ = timer.own_seconds
    return {
        "read_times_function": timer.function,
        "read_times_added_nanoseconds": str(round(added_seconds * 1e9)),
    }


class ReadTiming:
    """Times reads in a thread of its own until it is closed.

    Args:
        timer: what does it; None does nothing.
        started: the monotonic clock's seconds from which times count.

    Attributes:
        failure: why it ended early; empty where it did not.
        reads: that were timed so far.
    """

    def __init__(self, timer: ReadTimer | None, started: float) -> None:
        self._timer = timer
        self._started = started
        self._stretches = 0
        self._rows: list[Columns] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""
        self.reads = 0

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._thread = threading.Thread(target=self._run, args=(self._timer,), name="pgsweep-read-times")
            self._thread.daemon = True
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stretch that is under way, and take the probes away."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def failure_facts(self) -> dict[str, str]:
        """Return why it ended early, as a fact; none where it did not."""
        return {NOT_MEASURED: self.failure} if self.failure else {}

    @property
    def overhead(self) -> dict[str, float]:
        """Return what `overhead` in the evidence says of it: the reads, and what timing them took."""
        if self._timer is None:
            return {}
        return {
            "timed_reads": float(self.reads),
            "timed_reads_seconds": self.reads * self._timer.own_seconds[1],
        }

    def take(self) -> Columns:
        """Return the rows of the stretches that have ended since the last call."""
        with self._lock:
            rows, self._rows = self._rows, []
        return {
            name: np.concatenate([np.zeros(0, kind), *(row[name] for row in rows)])
            for name, kind in TABLES["read_times"].items()
        }

    def _run(self, timer: ReadTimer) -> None:
        try:
            while not self._stop.is_set():
                self._time_stretch(timer)
                self._stop.wait(EVERY_SECONDS - TIMED_SECONDS)
        except Exception as error:  # whatever it is, the evidence must say that no more was timed
            self.failure = _reason(error)
        finally:
            timer.detach()

    def _time_stretch(self, timer: ReadTimer) -> None:
        before = timer.histogram()
        timer.attach()
        begin = time.monotonic()
        self._stop.wait(TIMED_SECONDS)
        # Probes are taken away one after the other, in some tenths of a second.
        after, end = timer.histogram(), time.monotonic()
        timer.detach()
        seen = after["reads"] > before["reads"]
        # A stretch without a read is known by a row too.
        seen[0] |= not seen.any()
        count = int(seen.sum())
        rows: Columns = {
            "stretch": np.full(count, self._stretches, np.int32),
            "begin_seconds": np.full(count, begin - self._started),
            "end_seconds": np.full(count, end - self._started),
            "from_ns": after["from_ns"][seen],
            "below_ns": after["below_ns"][seen],
            "reads": (after["reads"] - before["reads"])[seen],
            "nanoseconds": (after["nanoseconds"] - before["nanoseconds"])[seen],
        }
        with self._lock:
            self._rows.append(rows)
            self._stretches += 1
            self.reads += int(rows["reads"].sum())


def _reason(error: Exception) -> str:
    """Return what the probes say failed."""
    number_first = isinstance(error, OSError) and len(error.args) > 1
    return str(error.args[-1] if number_first else error.args[0] if error.args else error)
