"""How fast the clock hand turns, and whether snapshots span enough of its passes.

A victim is a buffer that the hand finds with usage_count 0 (StrategyGetBuffer, freelist.c), so in one pass
at most the buffers that stood at 0 are taken: its time is <= buffers at 0 / allocations per second. Buffers
that are used again before the hand comes make the true pass shorter, so the estimate errs towards longer
observation; against the hand itself, followed by the buffers that changed between snapshots 20 ms apart, it
was 7% too long for uniform and for Zipf reads (PostgreSQL 15, 64 MB).

Where the hand itself is seen (in the server's memory), its passes are counted, not estimated.

Snapshots a clock pass apart are informative, those much closer hardly: a snapshot counts as
1 - exp(-passes since the one before).
"""

from __future__ import annotations

import math
from typing import Final

from pgsweep.evidence.schema import wanted_passes

WANTED_SNAPSHOTS: Final = 12.0
_FEWEST_MOVES: Final = 10


class PassClock:
    """Measures the time of a clock pass: from where the hand stood, else from snapshots and allocations."""

    def __init__(self, pool_buffers: int) -> None:
        self._pool_buffers = pool_buffers
        self._times: list[float] = []
        self._zero: list[int] = []
        self._full: list[bool] = []
        self._allocations: list[float] = []
        self._hands: list[int | None] = []

    def add(
        self,
        seconds: float,
        *,
        zero_buffers: int,
        used_buffers: int,
        allocations: float,
        hand_buffers: int | None = None,
    ) -> None:
        """Add one snapshot.

        Args:
            seconds: when it was taken.
            zero_buffers: buffers with usage_count 0.
            used_buffers: buffers that hold a page.
            allocations: cumulative `buffers_alloc` at that time.
            hand_buffers: buffers that the hand has passed so far, where that is seen.
        """
        self._times.append(seconds)
        self._zero.append(zero_buffers)
        # Up to 18 a victim comes from the free list as long as one is there: the hand stands still.
        self._full.append(used_buffers >= 0.99 * self._pool_buffers)
        self._allocations.append(allocations)
        self._hands.append(hand_buffers)

    @property
    def pass_seconds(self) -> float:
        """Return the estimated time of one pass; infinite where the hand does not move."""
        if len(self._times) < 2:
            return math.inf
        first = next((number for number, full in enumerate(self._full) if full), len(self._full))
        if len(self._times) - first < 2:
            return math.inf
        seconds = self._times[-1] - self._times[first]
        begin, end = self._hands[first], self._hands[-1]
        if begin is not None and end is not None:
            return seconds * self._pool_buffers / (end - begin) if end - begin >= _FEWEST_MOVES else math.inf
        # The background writer reports allocations in rounds of 200 ms, and later where processors are short.
        # So a handful says nothing yet. The first report may hold allocations from before the first snapshot:
        # the count begins with it.
        reports = (
            number
            for number in range(first + 1, len(self._times) - 1)
            if self._allocations[number] != self._allocations[first]
        )
        first = next(reports, first)
        seconds = self._times[-1] - self._times[first]
        allocated = self._allocations[-1] - self._allocations[first]
        if allocated < _FEWEST_MOVES or seconds <= 0:
            return math.inf
        zero = sum(self._zero[first:]) / len(self._zero[first:])
        # With no buffer at 0 the hand has to go round several times; a pass is then at most the whole pool.
        return max(zero, 1.0) * seconds / allocated

    @property
    def seconds(self) -> float:
        """Return the time between the first and the last snapshot."""
        return self._times[-1] - self._times[0] if self._times else 0.0

    @property
    def snapshots(self) -> int:
        """Return the number of snapshots added."""
        return len(self._times)

    @property
    def pool_is_full(self) -> bool:
        """Return whether the last snapshot found (nearly) all buffers in use."""
        return bool(self._full) and self._full[-1]

    @property
    def passes(self) -> float:
        """Return the passes between the first and the last snapshot."""
        if len(self._times) < 2:
            return 0.0
        return self.seconds / self.pass_seconds

    @property
    def effective_snapshots(self) -> float:
        """Return how many independent snapshots the ones taken are worth."""
        if not self._times:
            return 0.0
        pass_seconds = self.pass_seconds
        gaps = (later - earlier for earlier, later in zip(self._times, self._times[1:], strict=False))
        return 1.0 + sum(1.0 - math.exp(-gap / pass_seconds) for gap in gaps)

    @property
    def wanted_passes(self) -> float:
        """Return how many passes the observation should cover."""
        return wanted_passes(hand_seen=bool(self._hands) and None not in self._hands)

    @property
    def suffices(self) -> bool:
        """Return whether the observation is long enough."""
        return self.passes >= self.wanted_passes and self.effective_snapshots >= WANTED_SNAPSHOTS

    def facts(self) -> dict[str, float]:
        """Return what the record of the evidence keeps of the passes."""
        pass_seconds = self.pass_seconds
        return {
            "lap_seconds": pass_seconds if math.isfinite(pass_seconds) else 0.0,
            "laps": self.passes,
            "effective_snapshots": self.effective_snapshots,
        }

    def wanted_seconds(self, interval_seconds: float) -> float:
        """Return how long an observation should be, given the mean time between snapshots."""
        pass_seconds = self.pass_seconds
        if math.isinf(pass_seconds):
            return math.inf
        worth = 1.0 - math.exp(-interval_seconds / pass_seconds)
        return max(self.wanted_passes * pass_seconds, (WANTED_SNAPSHOTS - 1.0) / worth * interval_seconds)
