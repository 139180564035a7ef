"""What a server's counters gained since they were first read: sums that never fall.

The server's own counters fall: when somebody resets statistics, after a crash, and, summed over databases,
when a database is dropped. So differences are taken for each database and each group of counters, between
readings that follow each other, and added up here; sums over longer times are differences of these sums.

An orderly restart keeps them, so they go on from the last reading before it. What began to count after that
reading, as after a crash, has gained what it has. Of a server that ran already, to which a failover led,
nothing is known until its second reading.

Hits and reads are those of pg_stat_io from 16 on: of all processes, without temporary tables, whose buffers
are not those of shared_buffers, and whatever `track_counts` is. Before 16 databases count them, with those of
temporary tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.pg.catalog.counters import Cumulative

_TEMPORARY: Final = "/temp relation/"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the server's counters gained until one time since they were first read: sums that never fall.

    Attributes:
        at: `time.monotonic()` of the reading.
        evictions: None before PostgreSQL 16, which does not count them.
        hand_buffers: buffers that the clock hand has passed; None where the server's memory is not read.
        counted: whether the server counts hits and reads (before 16 only with `track_counts`).
        checkpoints: that were made, timed and requested.
    """

    at: float
    hits: float
    reads: float
    transactions: float
    allocations: float
    evictions: float | None
    hand_buffers: int | None
    counted: bool = True
    checkpoints: float = 0.0


class Counting:
    """Adds up what one server's counters gain; lives as long as the server is watched."""

    def __init__(self) -> None:
        self._last: Cumulative | None = None
        self._of_postmaster: dict[str, float] = {}
        self._started: int | None = None
        self._new_start = False
        self._sums: dict[str, float] = {}
        self.databases: dict[int, tuple[float, float]] = {}
        """By oid what databases gained: hits and reads, with those of temporary tables. 0 is what belongs to
        all of them."""

    def begin(self, started: int) -> None:
        """Begin to read from a session that was opened anew.

        Args:
            started: when the postmaster started, in microseconds since 2000-01-01.
        """
        if self._started != started:
            if self._last is not None and started > self._last.at_us:
                self._of_postmaster = dict.fromkeys(self._of_postmaster, 0.0)
                self._new_start = True
            else:
                self._last, self._of_postmaster = None, {}
        self._started = started

    def of_postmaster(self, name: str, value: float) -> float:
        """Return the sum over restarts of a counter that begins at 0 when the postmaster starts."""
        gain = max(0.0, value - self._of_postmaster.get(name, value))
        self._sums[name] = self._sums.get(name, 0.0) + gain
        self._of_postmaster[name] = value
        return self._sums[name]

    def add(self, now: Cumulative, *, at: float, hand_buffers: int | None, block_bytes: int) -> Reading:
        """Add what was gained since the last reading, and return the sums.

        Args:
            now: the counters.
            at: `time.monotonic()` of the reading.
            hand_buffers: buffers that the clock hand has passed since the server started; None where that is
                not seen.
            block_bytes: size of the server's blocks.
        """
        last = _before_restart(self._last, now) if self._new_start and self._last is not None else self._last
        if last is not None:
            for name, gain in _gained(last, now, block_bytes).items():
                self._sums[name] = self._sums.get(name, 0.0) + gain
            for oid, (hits, reads) in _of_databases(last, now).items():
                before = self.databases.get(oid, (0.0, 0.0))
                self.databases[oid] = (before[0] + hits, before[1] + reads)
        hand = None if hand_buffers is None else round(self.of_postmaster("hand_buffers", hand_buffers))
        self._last, self._new_start = now, False
        sums = self._sums
        return Reading(
            at=at,
            hits=sums.get("hits", 0.0),
            reads=sums.get("reads", 0.0),
            transactions=sums.get("transactions", 0.0),
            allocations=sums.get("allocations", 0.0),
            evictions=None if now.io is None else sums.get("evictions", 0.0),
            hand_buffers=hand,
            counted=now.counted or now.io is not None,
            checkpoints=sums.get("checkpoints", 0.0),
        )


def _before_restart(last: Cumulative, now: Cumulative) -> Cumulative | None:
    """Return the counters from which a server that was started anew goes on; None if it may be another."""
    if now.since_us is None or now.since_us == last.since_us:
        return last
    if now.since_us > last.at_us:
        return Cumulative(
            databases={}, io=None if now.io is None else {}, allocations=0.0, counted=now.counted
        )
    return None


def _gained(before: Cumulative, now: Cumulative, block_bytes: int) -> dict[str, float]:
    """Return what was gained between two readings that follow each other."""
    databases = _grown_databases(before, now).values()
    gains = {
        "transactions": sum(row[0] for row in databases),
        "hits": sum(row[2] for row in databases),
        "reads": sum(max(0.0, row[1] - row[2]) for row in databases),
        "allocations": _grown([(before.allocations,)], [(now.allocations,)])[0][0],
        "checkpoints": _grown([(before.checkpoints,)], [(now.checkpoints,)])[0][0],
    }
    if now.io is not None and before.io is not None:
        named = list(now.io)
        rows = _grown([before.io.get(name) for name in named], [now.io[name] for name in named])
        pool = [row for name, row in zip(named, rows, strict=True) if _TEMPORARY not in name]
        gains["hits"] = sum(row[0] for row in pool)
        gains["reads"] = sum(row[1] for row in pool) / block_bytes
        gains["evictions"] = sum(row[2] for row in pool)
    return gains


def _grown_databases(before: Cumulative, now: Cumulative) -> dict[int, tuple[float, ...]]:
    """Return by how much the counters of each database grew.

    One that was not there before was made since; one that is not there any more has nothing to add.
    """
    return {oid: _grown([before.databases.get(oid)], [row])[0] for oid, row in now.databases.items()}


def _of_databases(before: Cumulative, now: Cumulative) -> dict[int, tuple[float, float]]:
    """Return hits and reads that each database gained."""
    return {oid: (row[2], max(0.0, row[1] - row[2])) for oid, row in _grown_databases(before, now).items()}


def _grown(
    before: Iterable[Sequence[float] | None], now: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    """Return by how much rows of counters grew that are reset together; where any fell, all were reset.

    Counters that were reset have gained since what they have: as Prometheus takes it too.
    """
    known = [(0.0,) * len(row) if last is None else last for last, row in zip(before, now, strict=True)]
    if any(
        value < last
        for lasts, row in zip(known, now, strict=True)
        for last, value in zip(lasts, row, strict=True)
    ):
        return [tuple(row) for row in now]
    return [
        tuple(value - last for last, value in zip(lasts, row, strict=True))
        for lasts, row in zip(known, now, strict=True)
    ]
