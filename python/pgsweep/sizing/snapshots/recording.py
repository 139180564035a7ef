"""A recording of snapshots: what of it is used, what the server counted, and what makes it doubtful."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from pgsweep.records import reasons
from pgsweep.records.prediction import Observed
from pgsweep.records.reasons import Reason
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.model import Prediction
from pgsweep.sizing.observed import Observation, Server
from pgsweep.sizing.rules import check_usage_counts
from pgsweep.sizing.snapshots.totals import Totals, read_totals
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots, used_snapshots
from pgsweep.sizing.verdict import FULL_SHARE, REFUSED, ROUGH, Doubt

_COLUMNS: Final = ("snapshot", "frame", "spc", "db", "rel", "fork", "block", "usage_count", "dirty")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recording of snapshots.

    Attributes:
        observation: the recording.
        used: its snapshots, as far as they are used.
        totals: of its counters.
    """

    observation: Observation
    used: UsedSnapshots
    totals: Totals

    @classmethod
    def read(cls, observation: Observation) -> Self:
        """Return a recording with what is used of it.

        Raises:
            EvidenceError: it contradicts itself.
        """
        server, counters = observation.server, observation.counters.table
        snapshots = observation.table("snapshots", _COLUMNS)
        check_usage_counts(server, snapshots["usage_count"])
        used = used_snapshots(
            snapshots,
            observation.table("snapshot_times"),
            counters,
            pool_blocks=server.pool_blocks,
            rate=server.sampling_rate,
        )
        totals = read_totals(counters, observation.relations, server.database)
        return cls(observation=observation, used=used, totals=totals)

    @property
    def server(self) -> Server:
        """The server that was observed."""
        return self.observation.server

    @property
    def is_empty(self) -> bool:
        """Whether it shows no access, or no page of the pool."""
        totals = self.totals
        return totals.accesses <= 0 or totals.seconds <= 0 or not len(self.used.snapshots["snapshot"])

    @property
    def doubts(self) -> list[Doubt]:
        """What speaks against any curve of it: the counters do not show what the server did."""
        doubts = []
        server = self.server
        filling = filled_up(self.used.used_blocks, server.pool_blocks)
        if filling is not None:
            doubts.append(Doubt(REFUSED, filling))
        if server.settings.get("in_hot_standby") == "on":
            doubts.append(Doubt(ROUGH, reasons.standby()))
        if server.session_lost is not None:
            lost = reasons.server_went_away if server.ended_by == "server" else reasons.session_lost
            doubts.append(Doubt(ROUGH, lost(server.session_lost)))
        return doubts

    def prediction(self, estimate: Estimate, **more: Any) -> Prediction:
        """Return a curve with what was measured, and what must be known of the recording."""
        totals, server = self.totals, self.server
        return Prediction(
            observation=self.observation,
            estimate=estimate,
            observed=Observed(
                shared_buffers_bytes=server.pool_blocks * server.block_size_bytes,
                miss_ratio=totals.miss_ratio,
                accesses=round(totals.accesses),
                seconds=totals.seconds,
            ),
            warnings=[*self.used.warnings, *self.observation.warnings],
            **more,
        )


def filled_up(used_blocks: NDArray[np.int64], pool_blocks: int) -> Reason | None:
    """Return a reason not to rely on snapshots where the pool was full in some of them and not in others."""
    short = int((used_blocks < FULL_SHARE * pool_blocks).sum())
    return None if short <= 0.1 * len(used_blocks) else reasons.filled_meanwhile(short, len(used_blocks))
