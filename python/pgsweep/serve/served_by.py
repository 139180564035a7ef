"""What served the reads into the pool: the page cache or a disk, over times for which that is known.

Two clocks count them. The kernel counts bytes from disks when they are read; PostgreSQL counts blocks when
the transaction is over that read them (pgstat_report_stat, pgstat.c). Compared interval by interval, a
statement that reads for 20 s would have read nothing from disk: its bytes came in other intervals than its
blocks. So both are compared between moments at which no older transaction is open. Until there is one the
split is pending; after five minutes, or where a transaction that was open at the beginning has ended, it is
not known.

Such a moment is none: counters are read first, then sessions, then the disk, and a transaction that is young
is not seen. What begins or ends meanwhile has read from disk in this interval what is counted in the next. So
what the kernel counted beyond the blocks of an interval is there for those of the next.
"""

from __future__ import annotations

from typing import Final

import msgspec

from pgsweep.records.top import OpenTransaction

SHORTEST_SECONDS: Final = 10.0
"""Between two such moments at least: a session may keep its counters to itself for as long
(PGSTAT_IDLE_INTERVAL, pgstat.c), and what was too young to be seen at one (pg/catalog/backends.py) is seen at
the next."""

LONGEST_SECONDS: Final = 300.0


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks read into the pool in some seconds, by what served them.

    Attributes:
        unsplit: not known.
    """

    seconds: float
    page_cache: float = 0.0
    disk: float = 0.0
    unsplit: float = 0.0


class ServedBy:
    """Splits what is read into the pool."""

    def __init__(self) -> None:
        self._reads = 0.0
        self._disk_blocks = 0.0
        self._excess = 0.0
        self._seconds = 0.0
        self._idle: dict[tuple[int, str], str] | None = None

    @property
    def pending(self) -> float:
        """Return the blocks of which it is not known yet."""
        return self._reads

    def begin(self, is_open: list[OpenTransaction] | None) -> None:
        """Begin, also after a time in which nothing was seen.

        Args:
            is_open: older transactions now; None where not all sessions are seen.
        """
        idle = {(one.pid, one.since): one.idle_since for one in is_open or [] if one.idle_since is not None}
        self._idle = idle if is_open is not None and len(idle) == len(is_open) else None
        self._seconds = self._reads = self._disk_blocks = self._excess = 0.0

    def add(
        self, seconds: float, reads: float, disk_blocks: float | None, is_open: list[OpenTransaction] | None
    ) -> Split | None:
        """Add an interval; return the split of all since the last one; None while it is pending.

        Args:
            seconds: of the interval.
            reads: blocks that the server counted in it.
            disk_blocks: that the kernel counted in it; None where that is not seen.
            is_open: older transactions at its end; None where not all sessions are seen.
        """
        self._seconds += seconds
        self._reads += reads
        self._disk_blocks += disk_blocks or 0.0
        if disk_blocks is None or is_open is None:
            self._idle = None
            return self._split(known=False)
        idle = {(one.pid, one.since): one.idle_since for one in is_open if one.idle_since is not None}
        if len(idle) < len(is_open):
            # Somebody is at work whose reads are not counted yet.
            if self._idle is not None and self._seconds < LONGEST_SECONDS:
                return None
            self._idle = None
            return self._split(known=False)
        if self._idle is not None and self._seconds < SHORTEST_SECONDS:
            return None
        # What was open at the beginning is open still and did nothing: its earlier reads are not counted yet.
        known = self._idle is not None and self._idle.items() <= idle.items()
        self._idle = idle
        return self._split(known=known)

    def _split(self, *, known: bool) -> Split:
        seconds, reads, blocks, excess = self._seconds, self._reads, self._disk_blocks, self._excess
        self._seconds = self._reads = self._disk_blocks = 0.0
        # The kernel reads ahead, and other files too: what not even the next interval needs was of these.
        self._excess = min(blocks, max(0.0, blocks + excess - reads))
        if not known:
            return Split(seconds=seconds, unsplit=reads)
        disk = min(reads, blocks + excess)
        return Split(seconds=seconds, page_cache=reads - disk, disk=disk)
