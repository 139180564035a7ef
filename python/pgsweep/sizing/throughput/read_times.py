"""How long reads take, as the server itself or a recording timed them, and what that says of the disk.

With `track_io_timing` on, pg_stat_database has the time of all reads (`blk_read_time`); without it the
recording may have timed reads by probes (timed_reads.py). A miss is a copy from
the page cache of c, or a read from disk of L, so of the misses

    q = (mean - c) / (L - c)

came from disk. Neither c nor L is known exactly, so q is an interval: a mean of a few microseconds leaves
hardly any room for the disk, one of many hundreds is mostly disk. From 18 on the time is what sessions waited
for reads (AIO): a read that was begun ahead and had ended counts as none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from pgsweep.sizing.throughput.read_costs import read_costs
from pgsweep.sizing.throughput.timed_reads import waited_per_second

if TYPE_CHECKING:
    from pgsweep.records.prediction import MemoryPrediction, PredictResult, ReadCosts
    from pgsweep.sizing.observed import Observation

DISK_SECONDS: Final = (50e-6, 10e-3)
"""What a read from disk takes: a fast solid-state disk, a slow or far one. Assumed."""

COPY_SECONDS: Final = (1e-6, 5e-6)
"""What a copy from the page cache takes, with the system call and the server's own clock. Assumed."""

_QUEUED_SECONDS: Final = 30e-6
"""From 18 on the same, where another process makes the copy (io_method = worker). Assumed."""

COPY_RANGE: Final = (2 / 3, 2.0)
"""How much quicker and slower copies of sessions may be than those that were timed, of one small file."""
_FEWEST_READS: Final = 100
_WAITS_FROM: Final = 180000
_LEAST_DISK_SHARE: Final = 0.02
"""Of the misses, from which on their mean time says what a read from disk takes."""


@dataclass(frozen=True, kw_only=True)
class ReadTimes:
    """What was timed.

    Attributes:
        mean_seconds: of a miss.
        copy_seconds: of a read from the page cache: at least, and at most.
        waits: it is the time that sessions waited, not that of the reads (18 and later).
    """

    mean_seconds: float
    copy_seconds: tuple[float, float]
    waits: bool

    @property
    def disk_share(self) -> tuple[float, float]:
        """Return which share of the misses came from disk, at least and at most."""
        (quick, slow), (short, long) = self.copy_seconds, DISK_SECONDS
        least = (self.mean_seconds - slow) / (long - slow)
        most = (self.mean_seconds - quick) / (short - quick)
        return min(max(least, 0.0), 1.0), min(max(most, 0.0), 1.0)

    def disk_seconds(self, disk_share: float, copy_seconds: float) -> float:
        """Return what a read from disk takes, where that share of the misses is one."""
        copies = (1 - disk_share) * copy_seconds
        return max((self.mean_seconds - copies) / max(disk_share, 1e-9), copy_seconds)


def read_times(observation: Observation) -> ReadTimes | None:
    """Return what reads of the database took; None where they were not timed, or hardly any."""
    server, rate = observation.server, observation.counters.rate
    reads = rate("database", server.database, "blks_read")
    if server.io_is_timed:
        waited = (rate("database", server.database, "blk_read_time") or 0.0) / 1000
    else:
        by_probes = waited_per_second(observation)
        if by_probes is None:
            return None
        waited = by_probes
    if not reads or reads * max(server.seconds, 0.0) < _FEWEST_READS:
        return None
    copy = server.copy_seconds
    least, most = COPY_SECONDS if copy is None else (copy * COPY_RANGE[0], copy * COPY_RANGE[1])
    waits = server.server_version_num >= _WAITS_FROM
    return ReadTimes(
        mean_seconds=waited / reads,
        copy_seconds=(least, max(most, _QUEUED_SECONDS) if waits else most),
        waits=waits,
    )


def costs_by_times(observation: Observation, memory: MemoryPrediction, today_bytes: int) -> ReadCosts:
    """Return what reads take: the server's own time of a miss, split by today's share of the disk.

    Args:
        observation: snapshots.
        memory: predicted from them.
        today_bytes: shared_buffers.
    """
    costs, times = read_costs(observation.server.copy_seconds), read_times(observation)
    today = [point for point in memory.points if point.shared_buffers_bytes == today_bytes]
    found = today[0].page_cache_hit_ratio if today else None
    if times is None or found is None:
        return costs
    share = 1 - found
    if share < _LEAST_DISK_SHARE:
        # Hardly any disk read is predicted, so the mean says nothing of one: all misses take what they did.
        return msgspec.structs.replace(
            costs,
            disk_read_seconds=max(costs.disk_read_seconds, times.mean_seconds),
            copy_seconds=times.mean_seconds,
            copy_kind="mean",
        )
    copies = min(costs.copy_seconds, times.mean_seconds)
    return msgspec.structs.replace(
        costs,
        disk_read_seconds=times.disk_seconds(share, copies),
        disk_read_kind="measured",
        copy_seconds=copies,
    )


def costs_of_misses(observation: Observation, prediction: PredictResult, *, memory_known: bool) -> ReadCosts:
    """Return what reads take, for advice. Where the memory is not known, each miss takes what it did.

    Args:
        observation: of any kind.
        prediction: from it.
        memory_known: how much memory the pool and the page cache share.
    """
    memory, times = prediction.memory, read_times(observation)
    if memory is not None and memory.costs is not None:
        return memory.costs
    costs = read_costs(observation.server.copy_seconds)
    if times is None or memory_known:
        return costs
    return msgspec.structs.replace(
        costs,
        disk_read_seconds=times.mean_seconds,
        disk_read_kind="measured",
        copy_seconds=times.mean_seconds,
        copy_kind="mean",
    )
