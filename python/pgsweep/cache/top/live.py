"""Both caches and the load on them, again and again: what `pgsweep top` shows.

    with opened("dbname=shop") as access:
        live = Live(access)
        caches = live.look()
        print(caches.sample(TopView(sort="change", limit=20)))

What it costs the server: the counters and the states of backends, three short statements a second at most;
the pool nothing by peek, and by SQL one pass of pg_buffercache a look, which is why looks are then so far
apart that they take no more than `SQL_SHARE` of one backend. The page cache costs the server nothing but
takes us longer, so it is looked at in a thread of its own, and more rarely. Catalogs are read at the start,
and again only when a file shows up that none of them names.
"""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.cache.top.counts import PoolCounts, prepare_counts, read_counts
from pgsweep.cache.top.directory import Directory
from pgsweep.cache.top.page_cache import PageCacheByRelation, look_at_files
from pgsweep.cache.top.sample import CacheSample, padded
from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed
from pgsweep.pg.catalog.backends import read_backends
from pgsweep.pg.catalog.counters import CounterReader
from pgsweep.pg.catalog.counting import Counting, Reading
from pgsweep.pg.catalog.server import Server, read_postmaster
from pgsweep.pg.session.connect import cancel, ping, require_session
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing, PoolState
from pgsweep.records.top import TopBackends, TopRates, TopSample
from pgsweep.residency.access import Access
from pgsweep.residency.names import read_again, read_names, read_new_databases
from pgsweep.residency.pool import PoolReader

SQL_SHARE: Final = 0.04
"""Share of one backend's time that all statements may take: half of it is for reading the pool."""

_POOL_SHARE: Final = SQL_SHARE / 2
_COUNTERS_SHARE: Final = SQL_SHARE / 4
_BLOCKS_SHARE: Final = SQL_SHARE / 4

_OWN_SHARE: Final = 0.25
"""Share of one processor that reading the pool by peek may take in this process."""

_FEWEST_PINGS: Final = 3
_PINGS: Final = 20
_PINGS_SECONDS: Final = 0.2
"""The round trip is measured by the fewest statements at least, and by more only within this time."""

_COSTS_KEPT: Final = 5
"""What the counters cost is the shortest of this many readings. A longer one waited, for a processor or the
network: that is no cost to the server, and must not delay the readings that follow."""

_COUNTERS_SECONDS: Final = 1.0
"""Between readings of the counters: sessions send theirs every second (PGSTAT_MIN_INTERVAL, pgstat.c)."""

_RATES_SECONDS: Final = 2.0
"""Least seconds of a rate, so that the times at which sessions send their counters do not distort it."""

_CHANGE_SECONDS: Final = 1.0
"""The same for the change of relations, however often the pool is looked at."""

_NAMES_SECONDS: Final = 5.0
_NAMES_SHARE: Final = 0.05
_UNNAMED_SECONDS: Final = 30.0
"""What no catalog named is asked for again: a transaction that makes a table may take long. The pause doubles
up to this."""

_FILES_SECONDS: Final = 5.0
_FILES_SHARE: Final = 0.05
"""Least seconds between readings of catalogs and page cache, and the largest share of the time for them."""


class Live:
    """Looks at one server again and again.

    Args:
        access: the server; the session is ours alone.
        every_database: name relations of all databases that may be entered, not only of the session's.
        counting: goes on from an earlier session; begins anew by default.
    """

    def __init__(
        self, access: Access, *, every_database: bool = True, counting: Counting | None = None
    ) -> None:
        self._access = access
        server = access.server
        begin = time.monotonic()
        names = read_names(access, [d.oid for d in access.databases] if every_database else [])
        self._directory = Directory(names)
        self._names_cost = time.monotonic() - begin
        self._names_due = begin + self._names_cost + _NAMES_SECONDS
        self._every_database = every_database
        self._unnamed: set[tuple[int, int, int]] = set()
        self._unnamed_due, self._unnamed_pause = 0.0, _NAMES_SECONDS
        with explained():
            self._counters = ServerCounters(access, counting)
            self._round_trip = self._measure_round_trip()
        prepare_counts(access)
        self._began = time.monotonic()
        self._statement_seconds = 0.0
        self._look_seconds = 0.0
        self._counters_costs: deque[float] = deque(maxlen=_COSTS_KEPT)
        self._readings: deque[Reading] = deque()
        self._usage_history: deque[tuple[float, NDArray[np.int64]]] = deque()
        self._backends: TopBackends | None = None
        self._max_connections = int(server.settings.get("max_connections", "0"))
        self._file_thread: threading.Thread | None = None
        self._files: PageCacheByRelation | None = None
        self._files_due = 0.0
        self._files_missing: list[Missing] = []
        self.interval_seconds = 1.0

    @property
    def effective_interval_seconds(self) -> float:
        """Seconds from one look to the next: as requested, or longer so that reading costs little."""
        share = _POOL_SHARE if self._access.pool_source == "sql" else _OWN_SHARE
        return max(self.interval_seconds, self._look_seconds / share)

    def look(self, *, with_counters: bool = False, with_files: bool = True) -> CacheSample:
        """Look once.

        Args:
            with_counters: read them even if they were read less than a second ago.
            with_files: begin to read the page cache, if that is due.

        Raises:
            PgsweepError: a statement took too long.
        """
        access = self._access
        require_session(access.connection)
        pool = read_counts(access)
        now = time.monotonic()
        seconds = pool.seconds
        if access.pool_source == "sql":
            with explained():
                self._round_trip = min(self._round_trip, self._time_ping())
            seconds = max(0.0, seconds - self._round_trip)
            self._statement_seconds += seconds
        # The last duration counts most, but one that was slow by chance must not delay those that follow.
        self._look_seconds = seconds if not self._look_seconds else (self._look_seconds + seconds) / 2
        rows, known = self._directory.find(pool.spc, pool.db, pool.rel)
        if self._learn_names(pool, known, now):
            rows, known = self._directory.find(pool.spc, pool.db, pool.rel)
        self._read_counters(pool, now, needed=with_counters)
        if with_files:
            self._start_on_files(now)
        return self._sample(pool, rows, now)

    def read_files(self, seconds: float) -> None:
        """Read the page cache now, due or not, and wait for it, at most this long."""
        self._files_due = 0.0
        self._start_on_files(time.monotonic())
        if self._file_thread is not None:
            self._file_thread.join(seconds)

    def cancel(self) -> None:
        """End a statement that is running, from another thread; the session then ends with an error."""
        cancel(self._access.connection)

    def _sample(self, pool: PoolCounts, rows: NDArray[np.int64], now: float) -> CacheSample:
        access, server = self._access, self._access.server
        # Before the rows are counted: the other thread adds the rows of its files first, at any time.
        files = self._files
        count = len(self._directory.rows)
        usage = np.zeros((count, 6), dtype=np.int64)
        dirty, pinned = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        np.add.at(usage, rows, pool.usage_counts)
        np.add.at(dirty, rows, pool.dirty)
        np.add.at(pinned, rows, pool.pinned)
        change = self._change(usage.sum(axis=1), now)
        block = server.block_size_bytes
        used = int(usage.sum())
        assert self._backends is not None
        effective = self.effective_interval_seconds
        head = TopSample(
            server_version=server.version,
            database=server.database,
            block_size_bytes=block,
            pool_source=access.pool_source,
            at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            look_seconds=self._look_seconds,
            backend_share=self._share(),
            interval_seconds=effective,
            held_back=effective > self.interval_seconds,
            pool=PoolState(
                size_bytes=pool.buffers * block,
                used_bytes=used * block,
                unused_bytes=(pool.buffers - used) * block,
                dirty_bytes=int(dirty.sum()) * block,
                pinned_bytes=int(pinned.sum()) * block,
                usage_counts=usage.sum(axis=0).tolist(),
            ),
            page_cache=None,
            rates=self._rates(),
            backends=self._backends,
            relations=[],
            relations_found=0,
            missing=[
                *access.missing,
                *self._directory.names.missing,
                *self._files_missing,
                *not_counted(server, self._readings[-1]),
            ],
        )
        # The rows list is only ever added to, by this thread; a copy of it would cost more than the look.
        return CacheSample(
            head, self._directory.rows, usage, dirty, pinned, change, files, now, self._readings[-1]
        )

    def _change(self, used: NDArray[np.int64], now: float) -> NDArray[np.float64] | None:
        """Return by how many buffers a second each row grows."""
        history = self._usage_history
        history.append((now, used))
        while len(history) > 2 and now - history[1][0] >= _CHANGE_SECONDS:
            history.popleft()
        before, then = history[0]
        if before == now:
            return None
        return (used - padded(then, len(used))) / (now - before)

    def _learn_names(self, pool: PoolCounts, known: NDArray[np.bool_], now: float) -> bool:
        """Read those catalogs again that may know a file that no one names yet; return whether any was."""
        if known.all() or now < self._names_due:
            return False
        strange = np.flatnonzero(~known)
        keys = set(
            zip(
                pool.spc[strange].tolist(), pool.db[strange].tolist(), pool.rel[strange].tolist(), strict=True
            )
        )
        names = self._directory.names
        if self._every_database and not {key[1] for key in keys} <= names.databases.keys():
            begin = time.monotonic()
            read_new_databases(self._access, names)
            return self._learned(keys, begin)
        asked = {key for key in keys if key[1] in names.entered}
        new = asked - self._unnamed
        if not new and (not asked or now < self._unnamed_due):
            return False
        begin = time.monotonic()
        for database_oid in {key[1] for key in new or asked}:
            read_again(self._access, names, database_oid)
        self._unnamed_pause = _NAMES_SECONDS if new else min(2 * self._unnamed_pause, _UNNAMED_SECONDS)
        return self._learned(keys, begin)

    def _learned(self, unnamed: set[tuple[int, int, int]], begin: float) -> bool:
        """Take over names that were read; what still has none was dropped, or is not committed yet."""
        self._directory.learn()
        self._unnamed = unnamed
        cost = time.monotonic() - begin
        self._names_due = begin + cost + max(_NAMES_SECONDS, cost / _NAMES_SHARE)
        self._unnamed_due = begin + max(self._unnamed_pause, cost / _NAMES_SHARE)
        return True

    def _read_counters(self, pool: PoolCounts, now: float, *, needed: bool) -> None:
        readings = self._readings
        pause = max(_COUNTERS_SECONDS, min(self._counters_costs, default=0.0) / _COUNTERS_SHARE)
        # A sample that comes slightly early still reads the counters.
        if readings and not needed and now - readings[-1].at < 0.9 * pause:
            return
        begin = time.monotonic()
        with explained():
            reading = self._counters.read(at=now, hand_buffers=pool.hand_buffers)
            self._backends = read_backends(self._access.connection, self._max_connections)
        statements = 5 if self._access.server.version_num >= 160000 else 4
        cost = max(0.0, time.monotonic() - begin - statements * self._round_trip)
        self._statement_seconds += cost
        if readings:  # the first time it includes planning
            self._counters_costs.append(cost)
        readings.append(reading)
        while len(readings) > 2 and now - readings[1].at >= 0.9 * _RATES_SECONDS:
            readings.popleft()

    def _rates(self) -> TopRates | None:
        first, last = self._readings[0], self._readings[-1]
        seconds = last.at - first.at
        if seconds <= 0:
            return None
        hits, reads, counted = last.hits - first.hits, last.reads - first.reads, last.counted
        evictions = hand = None
        if last.evictions is not None and first.evictions is not None:
            evictions = (last.evictions - first.evictions) / seconds
        if last.hand_buffers is not None and first.hand_buffers is not None:
            hand = (last.hand_buffers - first.hand_buffers) / seconds
        return TopRates(
            seconds=seconds,
            hit_ratio=hits / (hits + reads) if counted and hits + reads > 0 else None,
            hits_per_second=hits / seconds if counted else None,
            reads_per_second=reads / seconds if counted else None,
            allocations_per_second=(last.allocations - first.allocations) / seconds,
            evictions_per_second=evictions,
            transactions_per_second=(last.transactions - first.transactions) / seconds,
            hand_buffers_per_second=hand,
        )

    def _share(self) -> float:
        """Return the share of one backend's time that our statements took so far."""
        elapsed = time.monotonic() - self._began
        return self._statement_seconds / max(elapsed, _COUNTERS_SECONDS, self.effective_interval_seconds)

    def _start_on_files(self, now: float) -> None:
        """Start a thread that reads the page cache, if a reading is due and none is running."""
        access = self._access
        if not access.sees_page_cache or now < self._files_due or self._files_missing:
            return
        if self._file_thread is not None and self._file_thread.is_alive():
            return
        # By SQL the blocks come through the session, which is this thread's.
        pool = PoolReader(access).read() if access.pool_source == "sql" else None
        if pool is not None:
            taken = time.monotonic() - now
            self._statement_seconds += taken
            self._files_due = now + taken / _BLOCKS_SHARE

        def look() -> None:
            begin = time.monotonic()
            try:
                found = look_at_files(access, pool, self._directory)
            except ConnectionFailed:
                return  # the next reading of the pool reports it
            if isinstance(found, Missing):
                self._files_missing = [found]
            else:
                self._files = found
            end = time.monotonic()
            self._files_due = max(self._files_due, end + max(_FILES_SECONDS, (end - begin) / _FILES_SHARE))

        self._file_thread = threading.Thread(target=look, name="page cache", daemon=True)
        self._file_thread.start()

    def _measure_round_trip(self) -> float:
        """Return how long the shortest statement takes, which is the network's part of every one.

        The shortest of several: on a busy machine one may wait for a processor for longer than a look takes.
        """
        shortest, begin = math.inf, time.monotonic()
        for count in range(_PINGS):
            if count >= _FEWEST_PINGS and time.monotonic() - begin > _PINGS_SECONDS:
                break
            shortest = min(shortest, self._time_ping())
        return shortest

    def _time_ping(self) -> float:
        begin = time.monotonic()
        ping(self._access.connection)
        return time.monotonic() - begin


class ServerCounters:
    """Reads what a server's counters gained, through one session.

    Args:
        access: the server.
        counting: of an earlier session; begins anew by default.
    """

    def __init__(self, access: Access, counting: Counting | None = None) -> None:
        self._reader = CounterReader(access.connection, {}, [])
        self._counting = counting or Counting()
        self._counting.begin(read_postmaster(access.connection).start_time_us)
        self._block_bytes = access.server.block_size_bytes

    def read(self, *, at: float, hand_buffers: int | None) -> Reading:
        """Return the sums of now.

        Args:
            at: `time.monotonic()` of the reading.
            hand_buffers: buffers that the clock hand has passed; None where that is not seen.
        """
        return self._counting.add(
            self._reader.cumulative(), at=at, hand_buffers=hand_buffers, block_bytes=self._block_bytes
        )


def not_counted(server: Server, reading: Reading) -> list[Missing]:
    """Return what the server does not count, or not by itself."""
    if not reading.counted:
        why = "track_counts is off, and only PostgreSQL 16 and later counts them without it"
        enable = f"`{on_server('pgsweep doctor')}` has the command that sets it"
        return [Missing(what="hits and reads", why=why, enable=enable)]
    if server.version_num < 160000:
        why = "PostgreSQL counts its hits and reads with those of shared_buffers before 16"
        return [Missing(what="what temporary tables use", why=why)]
    return []
