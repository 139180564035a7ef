"""How long sessions waited for single reads, where the recording timed them (evidence/read_timing.py).

Timing a read adds to its time: what it adds to a call that does nothing was measured when the recording
began, and is taken off here. Reads of all databases are timed; the waiting is shared among them by the blocks
that each read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from pgsweep.records.prediction import TimedReads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pgsweep.sizing.observed import Observation

_FEWEST_READS: Final = 100
_FEWEST_SECONDS: Final = 0.1
_MOST_ADDED_SECONDS: Final = 1e-3


@dataclass(frozen=True, kw_only=True)
class ReadHistogram:
    """Reads by the time that sessions waited for them, ascending.

    Attributes:
        from_seconds, below_seconds: bounds of each bucket.
        reads: in each.
        seconds: of these, together.
        stretch_seconds: for which reads were timed.
    """

    from_seconds: NDArray[np.float64]
    below_seconds: NDArray[np.float64]
    reads: NDArray[np.float64]
    seconds: NDArray[np.float64]
    stretch_seconds: float

    @property
    def waited_per_second(self) -> float:
        """Return the seconds that all sessions together waited in one second."""
        return float(self.seconds.sum()) / self.stretch_seconds

    def quantile(self, share: float) -> float:
        """Return the time that this share of the reads did not exceed; within a bucket by proportion."""
        upto = np.cumsum(self.reads)
        at = int(np.searchsorted(upto, share * upto[-1]))
        before = upto[at] - self.reads[at]
        inside = (share * upto[-1] - before) / self.reads[at]
        # The last bucket has no end; no other goes beyond five quarters of its beginning.
        high = min(self.below_seconds[at], 1.25 * self.seconds[at] / self.reads[at])
        return float(self.from_seconds[at] + inside * (high - self.from_seconds[at]))


def read_histogram(observation: Observation) -> ReadHistogram | None:
    """Return the reads that were timed; None where none were, or too few."""
    rows = observation.table("read_times")
    if not len(rows["reads"]):
        return None
    _, first = np.unique(rows["stretch"], return_index=True)
    lengths = rows["end_seconds"][first] - rows["begin_seconds"][first]
    stretch_seconds = float(np.maximum(lengths, 0.0).sum())
    seen = rows["reads"] > 0
    from_ns, bucket = np.unique(rows["from_ns"][seen], return_inverse=True)
    reads = np.bincount(bucket, rows["reads"][seen].astype(np.float64)).astype(np.float64)
    if reads.sum() < _FEWEST_READS or stretch_seconds < _FEWEST_SECONDS:
        return None
    added = _added_seconds(observation)
    seconds = np.bincount(bucket, rows["nanoseconds"][seen].astype(np.float64)) / 1e9
    below_ns = np.zeros(len(from_ns))
    np.maximum.at(below_ns, bucket, rows["below_ns"][seen].astype(np.float64))
    return ReadHistogram(
        from_seconds=np.maximum(from_ns / 1e9 - added, 0.0),
        below_seconds=np.maximum(below_ns / 1e9 - added, 0.0),
        reads=reads,
        seconds=np.maximum(seconds - added * reads, 0.0),
        stretch_seconds=stretch_seconds,
    )


def _added_seconds(observation: Observation) -> float:
    text = observation.server.host.get("read_times_added_nanoseconds", "")
    return min(int(text) / 1e9, _MOST_ADDED_SECONDS) if text.isdecimal() and len(text) < 9 else 0.0


def timed_reads(observation: Observation) -> TimedReads | None:
    """Return the reads that were timed, in a few numbers; None where none were, or too few."""
    found = read_histogram(observation)
    if found is None:
        return None
    reads = float(found.reads.sum())
    return TimedReads(
        reads=round(reads),
        seconds=found.stretch_seconds,
        mean_seconds=float(found.seconds.sum()) / reads,
        median_seconds=found.quantile(0.5),
        p90_seconds=found.quantile(0.9),
        p99_seconds=found.quantile(0.99),
        p999_seconds=found.quantile(0.999),
    )


def waited_per_second(observation: Observation) -> float | None:
    """Return the seconds that sessions of the database waited for reads in one second; None if not timed."""
    found = read_histogram(observation)
    counters = observation.counters
    own = counters.counted_rate("database", observation.server.database, "blks_read")
    if found is None or not own:
        return None
    databases = counters.objects("database", "blks_read")
    everyone = sum(counters.counted_rate("database", name, "blks_read") or 0.0 for name in databases)
    return found.waited_per_second * own / everyone
