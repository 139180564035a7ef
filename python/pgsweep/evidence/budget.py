"""A bound on what a recording takes of the processors: `record --budget 1%`.

It counts the processor time of this process and what the recording asks of the server. What is done before
the first snapshot or event, such as reading the catalogs once, is not in it.

Snapshots are taken farther apart, and what was recorded is judged later, so that the sum stays below the
bound. A trace cannot be slowed down: it is not begun where it is expected to take more, and ended where it
does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from pgsweep.errors import MissingAbility
from pgsweep.units import format_count, format_percent

_OF_SNAPSHOTS: Final = 0.5
"""The part that snapshots may take; the rest is for counters and for judging."""

_FIRST_SECONDS: Final = 5.0
"""A trace is not ended before: what it takes at its beginning is a large part of a short time."""

_MOST_ACCESSES: Final = 20e6
"""Of a trace with a budget: more take gigabytes, and a minute and more to predict from."""


class Budget:
    """What a recording may take of the processors, and what it has taken.

    Args:
        share: of all processors of this host, 0 to 1.
        on_server: returns the seconds of the server's processors that the recording has taken so far.
    """

    def __init__(self, share: float, on_server: Callable[[], float]) -> None:
        self.share = share
        self._on_server = on_server
        self._began = time.monotonic()
        self._before = time.process_time() + on_server()

    @property
    def taken(self) -> float:
        """The share of all processors that was taken since the beginning."""
        return self._taken_seconds / self._available(max(time.monotonic() - self._began, 1e-9))

    def is_enough_for(self, seconds: float) -> bool:
        """Return whether so much processor time more is within the bound by now."""
        passed = time.monotonic() - self._began
        return self._taken_seconds + seconds <= self.share * self._available(passed)

    def interval_seconds(self, snapshot_seconds: float) -> float:
        """Return how far apart snapshots must be that take so much processor time each."""
        return snapshot_seconds / self._available(1.0) / (_OF_SNAPSHOTS * self.share)

    @property
    def facts(self) -> dict[str, float]:
        """The bound and what was taken, as `overhead` in the evidence has them."""
        return {"budget_share": self.share, "taken_share": self.taken}

    @property
    def exceeded(self) -> str | None:
        """A sentence where more was taken than the bound; None where not."""
        taken = self.taken
        if taken <= self.share:
            return None
        return (
            f"the recording took {format_percent(taken, 2)} of {_processors()} processors; the budget was "
            f"{format_percent(self.share, 2)}"
        )

    @property
    def is_exceeded_by_a_trace(self) -> bool:
        """Whether a trace, which cannot be slowed down, takes more than the bound."""
        return time.monotonic() - self._began >= _FIRST_SECONDS and self.taken > self.share

    @property
    def _taken_seconds(self) -> float:
        return time.process_time() + self._on_server() - self._before

    def _available(self, seconds: float) -> float:
        return seconds * (os.cpu_count() or 1)


def note_budget(share: float) -> str:
    """Return the sentence that states a budget of a recording of snapshots."""
    return f"budget: {format_percent(share, 2)} of {_processors()} processors, for pgsweep and its statements"


def check_trace(share: float | None, expected: float, accesses: float) -> None:
    """Check that a trace is expected to be within a budget.

    Args:
        share: the budget; None is none.
        expected: share of all processors that the trace is expected to take.
        accesses: that it is expected to hold.

    Raises:
        MissingAbility: it is not.
    """
    if share is None:
        return
    if expected > share:
        raise MissingAbility(
            f"a trace is expected to take {format_percent(expected, 2)} of {_processors()} processors",
            cause=f"the budget is {format_percent(share, 2)}",
            hint="use --source peek, or a larger --budget",
        )
    if accesses > _MOST_ACCESSES:
        raise MissingAbility(
            f"a trace of that length would hold {format_count(round(accesses))} accesses",
            cause=f"more than {format_count(round(_MOST_ACCESSES))} take minutes to predict from",
            hint="use --source peek, or a shorter --for",
        )


def _processors() -> str:
    return format_count(os.cpu_count() or 1)
