"""What waiting for the disk makes of the throughput, at each depth at which it is served."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.sizing.throughput.closed_loop import ClosedLoop, Station
from pgsweep.sizing.throughput.disk_curve import CURVE_ENDS, ProbedLoad, curves_of

if TYPE_CHECKING:
    from pgsweep.sizing.throughput.measured_loop import MeasuredLoop

_COLD_READ_SECONDS: Final = 30e-6
"""Processor time of a disk read where it was not measured: assumed."""


class DiskWaits:
    """What waiting for the disk makes of the throughput.

    Args:
        loop: of today.
        read_seconds: that a transaction waits for reads from disk.
        delay_seconds: that it takes outside the processors, this included.
        now_reads: disk reads per second of today.
        sessions: that there are then.
    """

    def __init__(
        self, loop: MeasuredLoop, read_seconds: float, delay_seconds: float, now_reads: float, sessions: float
    ) -> None:
        cold = loop.cold_read_seconds
        self.cold_seconds = _COLD_READ_SECONDS if cold is None else cold
        self.unrecorded = max(loop.demand_seconds - loop.recording_seconds, loop.demand_seconds / 2)
        self._loop = loop
        self._reads = read_seconds
        self._delay = delay_seconds
        waited = self.waited(now_reads)
        self.depth = loop.transactions_per_second * waited
        found = curves_of(
            loop.latencies,
            ProbedLoad(
                sessions=loop.sessions,
                waited_seconds=waited,
                loop=ClosedLoop(
                    delay_seconds=delay_seconds - waited,
                    demand_seconds=loop.demand_seconds,
                    processors=loop.processors,
                ),
            ),
            math.floor(max(sessions, loop.sessions)) + 1,
        )
        self._then_sessions = sessions
        self._curves = found.curves
        self._likely = [0]
        if sessions != loop.sessions and not loop.latencies:
            one_by_one = np.arange(1.0, math.floor(max(sessions, loop.sessions)) + 2)
            self._likely.append(len(self._curves))
            self._curves = [*self._curves, one_by_one]
        self.most_reads_per_second = found.most_reads_per_second
        self._known: dict[tuple[float, int], tuple[Station, float]] = {}

    @property
    def curve_ends(self) -> list[tuple[int, int]]:
        """The numbers of curves that are the two ends of what is not known exactly of the likely one, 0."""
        pairs = [pair for pair in CURVE_ENDS if any(self._curves[end] is not None for end in pair)]
        return pairs if len(self._likely) == 1 else [*pairs, (self._likely[0], self._likely[1])]

    def waited(self, now_reads: float) -> float:
        """Return the waiting of a transaction today, without the processor time in it.

        Where reads seem to take more than all, they take all that is not processor time.
        """
        busy = now_reads / self._loop.transactions_per_second * self.cold_seconds
        return min(max(0.0, self._reads - busy), self._delay)

    def ratio(
        self, waited: float, longer: float, demand: float, curve: int | None, delayed: float = 0.0
    ) -> float:
        """Return the throughput, divided by that of today.

        Args:
            waited: today.
            longer: by which factor a transaction waits longer, were the depth the same.
            demand: processor time of a transaction.
            curve: which of the curves; the likely one by default.
            delayed: seconds that a transaction is delayed longer.
        """
        if curve is None:
            likely = [self.ratio(waited, longer, demand, one, delayed) for one in self._likely]
            return math.prod(likely) ** (1 / len(likely))
        sessions, slower = self._loop.sessions, self._curves[curve]
        loop = ClosedLoop(
            delay_seconds=self._delay, demand_seconds=self.unrecorded, processors=self._loop.processors
        )
        if slower is None:
            seconds = self._delay - waited + waited * longer + delayed
            changed = replace(loop, delay_seconds=seconds, demand_seconds=demand)
            return changed.throughput(self._then_sessions) / loop.throughput(sessions)
        rest = self._delay - waited
        if (waited, curve) not in self._known:
            today = replace(loop, delay_seconds=rest, demand_seconds=self._loop.demand_seconds)
            today = today.waiting(waited, slower, sessions)
            base = replace(today, demand_seconds=self.unrecorded).throughput(sessions)
            assert today.disk is not None
            self._known[waited, curve] = today.disk, base
        disk, base = self._known[waited, curve]
        changed = ClosedLoop(
            delay_seconds=rest + delayed,
            demand_seconds=demand,
            processors=loop.processors,
            disk=Station(seconds=disk.seconds * longer, slower=slower),
        )
        return changed.throughput(self._then_sessions) / base
