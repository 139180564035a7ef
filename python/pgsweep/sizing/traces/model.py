"""The model of a recorded trace: what was measured, and the curve of its accesses at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pgsweep.records.prediction import Observed
from pgsweep.sizing.model import Prediction
from pgsweep.sizing.ring_limits import sizes_with_ring_limits, trace_ring_limits
from pgsweep.sizing.rules import check_server, check_usage_counts
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.recorded import read_trace

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Observation
    from pgsweep.sizing.traces.shared_replays import ReplayPlan


class TraceModel:
    """Replays the accesses of a recording.

    Attributes:
        trace: the accesses.

    Raises:
        EvidenceError: the server's rules are not known, a table cannot be read, or there is no access.
    """

    def __init__(self, observation: Observation, plan: ReplayPlan) -> None:
        server = observation.server
        check_server(server)
        check_usage_counts(server, observation.table("snapshots", ["usage_count"])["usage_count"])
        trace = read_trace(observation)
        if not trace.counted.any():
            raise observation.nothing_seen()
        self._observation = observation
        self._curve = TraceCurve(trace, server, plan, steps=observation.steps)
        self.trace = self._curve.replay.trace
        self._scans = trace_ring_limits(self.trace)

    @property
    def observed(self) -> Observed:
        """What the server itself counted."""
        replay = self._curve.replay
        misses, accesses = int(np.count_nonzero(replay.measured_misses)), int(replay.stretch.total)
        return Observed(
            shared_buffers_bytes=self._observation.server.pool_bytes,
            miss_ratio=misses / max(accesses, 1),
            accesses=accesses,
            seconds=self.trace.duration_seconds,
        )

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return the curve.

        Args:
            sizes_blocks: of the pool.
            any_size: nobody asked for these sizes: those from which on a scan uses no ring are added.

        Raises:
            UsageError: a size is too large for so short a trace.
            EvidenceError: that of its own pool is.
            MissingAbility: there is no such executor.
        """
        if any_size:
            sizes_blocks = sizes_with_ring_limits(sizes_blocks, self._scans)
        return Prediction(
            observation=self._observation,
            estimate=self._curve.at(sizes_blocks),
            observed=self.observed,
            warnings=self._observation.warnings,
            pools=self._curve.pools,
            scans=self._scans,
        )
