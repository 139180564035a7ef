"""When to take snapshots and when to stop: random times, bounded cost, long enough by the clock hand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from pgsweep.evidence.clock_passes import PassClock

DUTY: Final = 0.025
"""Share of time that snapshots may take of one backend."""

MOST_DUTY: Final = 0.1
"""The same where a short observation of a large pool would otherwise have hardly any snapshots."""

WANTED_COUNT: Final = 60
"""Snapshots wanted over the observation, where their cost allows it."""

SHORTEST_INTERVAL_SECONDS: Final = 0.65
LONGEST_INTERVAL_SECONDS: Final = 10.0

LEAST_SECONDS: Final = 30.0
"""The shortest observation when the choice is ours: miss ratios themselves vary over seconds."""

STILL_SECONDS: Final = 60.0
"""If nothing is evicted in this time, a longer recording does not help."""

MOST_SECONDS: Final = 600.0
"""The longest one. In a pool of gigabytes a clock pass takes longer, and one look at it says most of what
there is to know (sizing/look.py)."""


def least_seconds(action: Callable[[], object], clock: Callable[[], float] = time.monotonic) -> float:
    """Return the least time in seconds of several runs: other programs may slow single runs down.

    Args:
        action: is run.
        clock: tells the time.
    """
    taken: list[float] = []
    end = time.monotonic() + 2.0
    while not taken or (len(taken) < 7 and time.monotonic() < end):
        begin = clock()
        action()
        taken.append(clock() - begin)
    return min(taken)


def wanted_interval_seconds(seconds: float | None) -> float:
    """Return the time between snapshots that is wanted of an observation, whatever one costs."""
    wanted = 0.0 if seconds is None else seconds / WANTED_COUNT
    return min(max(wanted, SHORTEST_INTERVAL_SECONDS), LONGEST_INTERVAL_SECONDS)


class SnapshotSchedule:
    """The times of the snapshots: one at random in each slot, and slots become longer where passes are long.

    Args:
        cost_seconds: what one snapshot takes.
        seconds: length of the observation, or None to stop when it suffices.
        max_snapshots: stop after this number.
        clock: measures the time of a clock pass.
        rng: draws the times.
    """

    def __init__(
        self,
        cost_seconds: float,
        *,
        seconds: float | None,
        max_snapshots: int | None,
        clock: PassClock,
        rng: np.random.Generator,
    ) -> None:
        self.cost_seconds = cost_seconds
        self.seconds = seconds
        self._max_snapshots = max_snapshots
        self._clock = clock
        self._rng = rng
        self.interval_seconds = self._first_interval()
        self._least_interval_seconds = 0.0
        self._slot_begin = -self.interval_seconds
        self.due_seconds = 0.0
        self.choose_next(0.0)

    @property
    def share(self) -> float:
        """Return the share of one backend's time that the snapshots take."""
        return self.cost_seconds / self.interval_seconds

    def space(self, interval_seconds: float) -> None:
        """Have snapshots at least so far apart from now on."""
        self._least_interval_seconds = interval_seconds

    def choose_next(self, now: float) -> None:
        """Choose the time of the next snapshot, in the first slot that is not over."""
        if self.seconds is None and self._clock.snapshots >= 5:
            self._stretch()
        self.interval_seconds = max(self.interval_seconds, self._least_interval_seconds)
        self._slot_begin += self.interval_seconds
        if self._slot_begin + self.interval_seconds < now:
            self._slot_begin = now
        self.due_seconds = self._slot_begin + self.interval_seconds * float(self._rng.random())
        if self.seconds is not None and not self._clock.snapshots:
            self.due_seconds = min(self.due_seconds, self.seconds)

    def reason_to_end(self, now: float) -> str | None:
        """Return why the observation is over, or None.

        One of a given length has a snapshot: on a busy host its time may be over before the first.
        """
        if self._max_snapshots is not None and self._clock.snapshots >= self._max_snapshots:
            return "limit"
        if self.seconds is not None:
            return "time" if now >= self.seconds and self._clock.snapshots else None
        if now >= MOST_SECONDS:
            # Before "enough", which a judge may refuse again and again.
            return "limit"
        if now >= LEAST_SECONDS and self._clock.suffices:
            return "enough"
        return "still" if now >= STILL_SECONDS and math.isinf(self._clock.pass_seconds) else None

    @property
    def wanted_seconds(self) -> float:
        """Return how long the observation should be, infinite where the hand stands still."""
        return max(LEAST_SECONDS, self._clock.wanted_seconds(self.interval_seconds))

    def _first_interval(self) -> float:
        interval = max(wanted_interval_seconds(self.seconds), self.cost_seconds / DUTY)
        # A short observation of a large pool may cost more, to have a few snapshots at all.
        return (
            interval
            if self.seconds is None
            else min(interval, max(self.seconds / 4, self.cost_seconds / MOST_DUTY))
        )

    def _stretch(self) -> None:
        """Space snapshots out where passes are long: an open-ended recording needs no thousands of them."""
        pass_seconds = self._clock.pass_seconds
        if not math.isinf(pass_seconds):
            wanted = min(self._clock.wanted_passes * pass_seconds / WANTED_COUNT, LONGEST_INTERVAL_SECONDS)
            self.interval_seconds = max(wanted, SHORTEST_INTERVAL_SECONDS, self.cost_seconds / DUTY)
