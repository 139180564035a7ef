"""A server whose buffers this session may not read: its counters, settings and sessions.

Any role may read them. A look takes a few short statements; looks are further apart than requested where
these would take more than a share of one backend's time. Whether the buffers may be read meanwhile is checked
every few seconds: a GRANT takes effect without a new session.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from pgsweep.cache.top.live import SQL_SHARE, ServerCounters, not_counted
from pgsweep.pg.catalog.backends import read_backends
from pgsweep.pg.catalog.counting import Counting, Reading
from pgsweep.pg.session.connect import cancel, require_session
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.records.top import TopBackends
from pgsweep.residency.access import Access, may_read_pool

_CHECK_SECONDS: Final = 5.0
_COSTS_KEPT: Final = 5


@dataclass(frozen=True, slots=True)
class CountersSample:
    """What is known at one time without the buffers.

    Attributes:
        size_bytes: of shared_buffers.
        pool_missing: why the buffers are not read.
        missing: all that is not seen, this too.
    """

    server_version: str
    database: str
    size_bytes: int
    reading: Reading
    backends: TopBackends
    look_seconds: float
    backend_share: float
    interval_seconds: float
    held_back: bool
    pool_missing: Missing
    missing: list[Missing]


class CountersOnly:
    """Reads the counters of one server again and again.

    Args:
        access: the server, with the reason why its pool cannot be read.
        may_change: the buffers can become readable by a right that is granted.
        counting: goes on from an earlier session; begins anew by default.
    """

    def __init__(self, access: Access, *, may_change: bool, counting: Counting | None = None) -> None:
        assert access.pool_missing is not None
        self._access = access
        self._pool_missing = access.pool_missing
        self._may_change = may_change
        self._check_due = time.monotonic() + _CHECK_SECONDS
        with explained():
            self._reader = ServerCounters(access, counting)
        self._max_connections = int(access.server.settings["max_connections"])
        self._costs: deque[float] = deque(maxlen=_COSTS_KEPT)
        self._began = time.monotonic()
        self._statement_seconds = 0.0
        self.interval_seconds = 1.0

    @property
    def effective_interval_seconds(self) -> float:
        """Seconds from one look to the next: as requested, or longer so that reading costs little."""
        return max(self.interval_seconds, min(self._costs, default=0.0) / SQL_SHARE)

    def look(self) -> CountersSample | None:
        """Read once; return None as soon as the buffers may be read.

        Raises:
            PgsweepError: a statement took too long.
        """
        access, begin = self._access, time.monotonic()
        require_session(access.connection)
        if self._may_change and begin >= self._check_due:
            if may_read_pool(access):
                return None
            self._check_due = begin + _CHECK_SECONDS
        with explained():
            reading = self._reader.read(at=begin, hand_buffers=None)
            backends = read_backends(access.connection, self._max_connections)
        now = time.monotonic()
        self._costs.append(now - begin)
        self._statement_seconds += now - begin
        server, effective = access.server, self.effective_interval_seconds
        return CountersSample(
            server_version=server.version,
            database=server.database,
            size_bytes=server.shared_buffers_blocks * server.block_size_bytes,
            reading=reading,
            backends=backends,
            look_seconds=now - begin,
            backend_share=self._statement_seconds / max(now - self._began, effective),
            interval_seconds=effective,
            held_back=effective > self.interval_seconds,
            pool_missing=self._pool_missing,
            missing=[*access.missing, *not_counted(server, reading)],
        )

    def cancel(self) -> None:
        """End a statement that is running, from another thread; the session then ends with an error."""
        cancel(self._access.connection)
