"""One server watched without end: looks, the counters between them, and the memory of its host.

A server has a thread and a session of its own, so one that does not answer delays no other. The looks are
those of `pgsweep top`: the feed reopens the session after a restart, a failover or a changed password
(libpq reads its password file anew), with pauses that grow to ten seconds. By SQL a look may take 4% of
one backend's time at most, and looks are further apart where they would take more. Where the session may not
read the buffers, the rest is collected (counters_only.py) until it may.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pgsweep.cache.top.feed import Feed
from pgsweep.cache.top.live import Live
from pgsweep.cache.top.sample import CacheSample
from pgsweep.commands import on_server
from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.host.reads import DiskReads
from pgsweep.memory.processes import LocalServer, look
from pgsweep.pg.catalog.counting import Counting, Reading
from pgsweep.pg.catalog.server import read_databases
from pgsweep.records.cache import Missing
from pgsweep.records.memory import MemoryResult
from pgsweep.records.serve import ServeFailure, ServeMemory, ServeMemoryPart
from pgsweep.records.top import TopBackends, TopPageCache, TopView
from pgsweep.residency.access import Access, PoolSource, opened
from pgsweep.serve.board import Board, Watched
from pgsweep.serve.config import ServerConfig
from pgsweep.serve.consumers import KEPT, Consumers, Key, Values, counted_key, pooled
from pgsweep.serve.counters_only import CountersOnly, CountersSample
from pgsweep.serve.history import Gap, History, Interval, Sample
from pgsweep.serve.served_by import ServedBy, Split
from pgsweep.serve.standing import standing_of
from pgsweep.units import BLOCK_BYTES

_MEMORY_SECONDS: Final = 60.0
_MEMORY_SHARE: Final = 0.02
"""Least seconds between readings of private memory, and the largest share of one processor for them."""

_LARGEST: Final = TopView(sort="pool", limit=KEPT)
"""The relations whose part of the pool is kept, once a minute, of the last look."""

_AGAIN_SECONDS: Final = 60.0
"""Seconds until the server is opened again after an unexpected error."""


class Collector:
    """Watches one server in a thread until it is stopped.

    Args:
        config: the server.
        board: gets what is seen.
        history: keeps it.
        interval_seconds: from one look to the next.
        source: how the pool is read.
        show_queries: the normalised texts of statements are wanted.
        readable: called when the buffers can be read, at first or again.
    """

    def __init__(
        self,
        config: ServerConfig,
        board: Board,
        history: History,
        *,
        interval_seconds: float,
        source: PoolSource,
        show_queries: bool = False,
        readable: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._board = board
        self._history = history
        self._interval_seconds = interval_seconds
        self._source = source
        self._show_queries = show_queries
        self._readable = readable
        self._consumers: Consumers | None = None
        self._access: Access | None = None
        self._disk: DiskReads | None = None
        self._counting = Counting()
        self._last_databases: dict[int, tuple[float, float]] | None = None
        self._database_names: dict[int, str] = {}
        self._served_by = ServedBy()
        self._last: Reading | None = None
        self._last_disk_bytes: int | None = None
        self._last_values: dict[str, float] = {}
        self._block_bytes = BLOCK_BYTES
        self._away_since: float | None = time.time()
        self._memory_due = self._standing_due = 0.0
        self._stopped = threading.Event()
        self._feed = self._new_feed()

    def start(self) -> None:
        """Begin."""
        self._feed.start()

    def stop(self) -> None:
        """End; a statement that is running is cancelled."""
        self._stopped.set()
        self._feed.stop()

    def _new_feed(self) -> Feed[CacheSample | CountersSample]:
        return Feed(self._opened, self._interval_seconds, self._show, self._fail, self._give_up)

    @contextmanager
    def _opened(self) -> Iterator[Live | CountersOnly]:
        with opened(self._config.conninfo, self._source, pool_needed=False) as access:
            self._access = access
            self._block_bytes = access.server.block_size_bytes
            self._last = self._last_disk_bytes = None
            self._last_values = {}
            self._memory_due = self._standing_due = 0.0
            self._consumers = Consumers(access.connection, texts=self._show_queries)
            self._disk = None if access.postmaster_pid is None else DiskReads(access.postmaster_pid)
            try:
                if access.pool_missing is None:
                    yield Live(access, counting=self._counting)
                else:
                    may_change = self._source != "peek"
                    yield CountersOnly(access, may_change=may_change, counting=self._counting)
            finally:
                self._access = self._disk = self._consumers = None

    def _show(self, sample: CacheSample | CountersSample) -> None:
        now = time.time()
        if self._away_since is not None:
            self._note_gap(now)
        # Not every look reads the counters; the page then keeps the rates of the last that did.
        counted = self._last is None or sample.reading.at != self._last.at
        if counted:
            self._last_values = self._counted(sample)
        values = self._last_values | gauges(sample)
        whole, counters = (sample, None) if isinstance(sample, CacheSample) else (None, sample)
        known = self._board.servers[self._config.key]
        begins = known.counters is None if whole is None else known.sample is None

        def change(watched: Watched) -> None:
            watched.sample, watched.counters = whole, counters
            watched.at = now
            watched.failure = None
            watched.values = values
            watched.note_size()
            if counted:
                disk_bytes, pending = self._last_disk_bytes, self._served_by.pending
                add_totals(watched.totals, sample.reading, disk_bytes, values, pending)
                if "reads" in values:
                    watched.note_minute(now, values["covered_seconds"], values["hits"], values["reads"])

        self._board.changed(self._config.key, "sample", change)
        if begins:
            # The panels that follow this event say why they have nothing.
            self._board.changed(self._config.key, "curve", lambda _watched: None)
            if whole is not None:
                self._readable()
        if counted and "covered_seconds" in values:
            self._history.add(Sample(self._config.name, now, values))
        self._look_at_memory(sample)
        self._look_at_consumers(sample, now)

    def _counted(self, sample: CacheSample | CountersSample) -> dict[str, float]:
        """Return what was counted since the last reading, with what served the reads where that is known."""
        backends = sample.head.backends if isinstance(sample, CacheSample) else sample.backends
        disk_bytes = None if self._disk is None else self._disk.read_bytes()
        if disk_bytes is not None:
            disk_bytes = round(self._counting.of_postmaster("disk_read_bytes", disk_bytes))
        values = gained(self._last, self._last_disk_bytes, sample.reading, disk_bytes)
        self._last, self._last_disk_bytes = sample.reading, disk_bytes
        # A session that is hidden may be in a transaction.
        is_open = None if backends.hidden else backends.uncounted
        if "reads" not in values or "disk_read_bytes" not in values:
            self._served_by.begin(is_open)
        else:
            blocks = values["disk_read_bytes"] / self._block_bytes
            split = self._served_by.add(values["covered_seconds"], values["reads"], blocks, is_open)
            values |= {} if split is None else columns_of(split)
        return values

    def _look_at_consumers(self, sample: CacheSample | CountersSample, now: float) -> None:
        """Sample what is executed, and keep the interval that is over."""
        consumers = self._consumers
        if consumers is None:
            return
        consumers.sample()
        interval = consumers.interval()
        if interval is None:
            return
        interval[1].update(self._databases())
        if (largest := self._board.sample(self._config.key, _LARGEST)) is not None:
            interval[1].update(pooled(largest, interval[0]))
        head = sample.head if isinstance(sample, CacheSample) else sample
        consumers.remember_hidden(head.backends.hidden)
        self._history.add(Interval(self._config.name, now, *interval))

        def change(watched: Watched) -> None:
            watched.consumers_missing = consumers.missing
            watched.query_texts = consumers.texts

        self._board.changed(self._config.key, "consumers", change)

    def _databases(self) -> dict[Key, Values]:
        """Return hits and reads of each database since the last interval; nothing for the first."""
        access = self._access
        if access is None:
            return {}
        now, before = dict(self._counting.databases), self._last_databases
        self._last_databases = now
        if before is None:
            return {}
        if not now.keys() <= self._database_names.keys():
            self._database_names = read_databases(access.connection)
        rows: dict[Key, Values] = {}
        for oid, (hits, reads) in now.items():
            past = before.get(oid, (0.0, 0.0))
            name = self._database_names.get(oid)
            if oid and name is not None and (hits, reads) != past:
                rows[counted_key(name)] = {"hits": hits - past[0], "reads": reads - past[1]}
        return rows

    def _note_gap(self, now: float) -> None:
        """Record the gap in the history: since when there are no samples, and why."""
        begin, self._away_since = self._away_since, None
        failure = self._board.summary(self._config.key).failure
        # The time before the first sample is not a gap, because the history does not cover it.
        if begin is not None and failure is not None:
            self._history.add(Gap(self._config.name, begin, now, failure.message))

    def _fail(self, error: PgsweepError, _seconds: float) -> None:
        now = time.time()
        if self._away_since is None:
            self._away_since = now
        since = self._away_since

        def change(watched: Watched) -> None:
            watched.sample = watched.counters = None
            watched.memory = watched.standing = None
            watched.failure = ServeFailure(
                message=error.message, cause=error.cause, hint=error.hint, since=since, code=error.code
            )

        self._board.changed(self._config.key, "sample", change)
        # The panel of an open page must not go on showing what was measured before.
        self._board.changed(self._config.key, "memory", lambda _watched: None)

    def _give_up(self, error: Exception) -> None:
        """Begin again after a pause: an error in one sample must not end the watching."""
        self._fail(
            PgsweepError(
                f"an error in pgsweep: {type(error).__name__}: {error}",
                cause="it is tried again in a minute",
                hint="please report this",
            ),
            _AGAIN_SECONDS,
        )

        def again() -> None:
            if not self._stopped.wait(_AGAIN_SECONDS):
                self._feed = self._new_feed()
                self._feed.start()

        threading.Thread(target=again, name="begin again", daemon=True).start()

    def _look_at_memory(self, sample: CacheSample | CountersSample) -> None:
        """Read the memory of the server's processes, where it runs here and it is time."""
        access, now = self._access, time.monotonic()
        if access is not None and access.postmaster_pid is None and now >= self._standing_due:
            self._standing_due = now + _MEMORY_SECONDS
            self._note_standing(access, None)
        if access is None or access.postmaster_pid is None or now < self._memory_due:
            return
        begin = time.monotonic()
        local = LocalServer(access.connection, access.server, access.postmaster_pid)
        try:
            result = look(local)
        except (MissingAbility, OSError):
            # What may not be seen is no reason to end the session; the panel then has nothing to show.
            self._memory_due = begin + _MEMORY_SECONDS
            return
        self._note_standing(access, result)
        if self._consumers is not None:
            self._consumers.remember_memory(result.processes)
        if isinstance(sample, CacheSample):
            files = sample.page_cache()
            memory = memory_of(result, sample.head.pool.used_bytes, files)
            # Until the page cache has been read, the record is not whole.
            whole = files is not None or not access.sees_page_cache
        else:
            memory, whole = memory_of(result, None, None), True
        taken = time.monotonic() - begin
        pause = _MEMORY_SECONDS if whole else 0.0
        self._memory_due = begin + max(pause, taken / _MEMORY_SHARE)
        self._board.changed(self._config.key, "memory", lambda watched: setattr(watched, "memory", memory))

    def _note_standing(self, access: Access, seen: MemoryResult | None) -> None:
        standing = standing_of(access.connection, seen)
        self._board.changed(
            self._config.key, "standing", lambda watched: setattr(watched, "standing", standing)
        )


def gained(
    before: Reading | None, disk_bytes_before: int | None, now: Reading, disk_bytes_now: int | None
) -> dict[str, float]:
    """Return what the counters gained since the last sample; nothing at the first.

    Args:
        before: the counters at the last sample; None at the first.
        disk_bytes_before: what was read from disks until then; None where it is not known.
        now: the counters.
        disk_bytes_now: what was read from disks until now; None where it is not known.
    """
    if before is None:
        return {}
    seconds = now.at - before.at
    if seconds <= 0:
        return {}
    values = {
        "covered_seconds": seconds,
        "transactions": now.transactions - before.transactions,
        "allocations": now.allocations - before.allocations,
        "checkpoints": now.checkpoints - before.checkpoints,
    }
    if now.counted:
        values |= {"hits": now.hits - before.hits, "reads": now.reads - before.reads}
    if now.evictions is not None and before.evictions is not None:
        values["evictions"] = now.evictions - before.evictions
    if now.hand_buffers is not None and before.hand_buffers is not None:
        values["hand_buffers"] = float(now.hand_buffers - before.hand_buffers)
    if disk_bytes_now is not None and disk_bytes_before is not None:
        values["disk_read_bytes"] = float(disk_bytes_now - disk_bytes_before)
    return values


def columns_of(split: Split) -> dict[str, float]:
    """Return a split as columns of the history."""
    return {
        "split_seconds": split.seconds,
        "page_cache_reads": split.page_cache,
        "disk_reads": split.disk,
        "unsplit_reads": split.unsplit,
    }


def add_totals(
    totals: dict[str, float],
    reading: Reading,
    disk_bytes: int | None,
    values: dict[str, float],
    pending: float,
) -> None:
    """Add an interval to what was counted since this process began.

    What is counted goes on over sessions that were lost, and over restarts (pg/catalog/counting.py).

    Args:
        totals: is added to.
        reading: the last one.
        disk_bytes: what was read from disks until then; None where it is not known.
        values: what was gained in the interval.
        pending: reads of which it is not known yet what served them.
    """
    if disk_bytes is not None:
        totals["disk_read_bytes"] = disk_bytes
    for name in ("page_cache_reads", "disk_reads"):
        if name in values:
            totals[name] = totals.get(name, 0.0) + values[name]
    totals["allocations"] = reading.allocations
    if reading.evictions is not None:
        totals["evictions"] = reading.evictions
    if reading.counted:
        known = totals.get("page_cache_reads", 0.0) + totals.get("disk_reads", 0.0)
        totals |= {"hits": reading.hits, "reads": reading.reads}
        # It does not fall, but by what adding in another order makes of a number.
        before = totals.get("outside_pool_reads", 0.0)
        totals["outside_pool_reads"] = max(before, reading.reads - known - pending)


def gauges(sample: CacheSample | CountersSample) -> dict[str, float]:
    """Return the state of the caches at a sample, as far as it is known."""
    if isinstance(sample, CountersSample):
        return {
            "shared_buffers_bytes": float(sample.size_bytes),
            **_sessions(sample.backends),
        }
    head = sample.head
    files = sample.page_cache()
    values = {
        "shared_buffers_bytes": float(head.pool.size_bytes),
        "used_bytes": float(head.pool.used_bytes),
        "dirty_bytes": float(head.pool.dirty_bytes),
        **_sessions(head.backends),
    }
    values |= {f"usage_count_{n}": float(count) for n, count in enumerate(head.pool.usage_counts)}
    if files is not None:
        values["page_cache_bytes"] = float(files.page_cache_bytes)
        values["both_bytes"] = float(files.both_bytes)
    return values


def _sessions(backends: TopBackends) -> dict[str, float]:
    """Return how many there are; how many are active is known where none is hidden from the role."""
    known = {"sessions": float(backends.total)}
    return known if backends.hidden else known | {"active_sessions": float(backends.active)}


def memory_of(result: MemoryResult, used_bytes: int | None, files: TopPageCache | None) -> ServeMemory:
    """Return the host's memory as parts that add up to it.

    Args:
        result: of the server's processes.
        used_bytes: of shared_buffers; None where the buffers are not read.
        files: the server's relations in the page cache; None where it was not read.
    """
    host, totals = result.host, result.totals
    missing = list(result.missing)
    shared = totals.shared_memory_bytes or 0
    private = totals.private_bytes or 0
    available = host.memory_bytes if host.available_bytes is None else host.available_bytes
    free = max(0, available - host.page_cache_bytes)
    known = shared + private + totals.page_tables_bytes + host.page_cache_bytes + free
    if host.limit_bytes is not None and host.limit_bytes < host.memory_bytes:
        missing.append(
            Missing(
                what="the limit of the server's memory cgroup",
                why=f"the bar shows the whole host; the cgroup may use {host.limit_bytes >> 20} MB",
                enable=on_server("pgsweep memory budget"),
            )
        )
    parts = [
        *_shared_parts(shared, used_bytes, files),
        ServeMemoryPart(name="private memory", size_bytes=private, why="of the server's processes"),
        ServeMemoryPart(name="page tables", size_bytes=totals.page_tables_bytes),
        *_page_cache_parts(host.page_cache_bytes, files),
        ServeMemoryPart(
            name="everything else", size_bytes=max(0, host.memory_bytes - known), why="kernel, programs"
        ),
        ServeMemoryPart(name="free", size_bytes=free),
    ]
    return ServeMemory(at=time.time(), capacity_bytes=host.memory_bytes, parts=parts, missing=missing)


def _shared_parts(
    shared_bytes: int, used_bytes: int | None, files: TopPageCache | None
) -> list[ServeMemoryPart]:
    if used_bytes is None:
        why = "shared_buffers too: what they hold is not known"
        return [ServeMemoryPart(name="shared memory", size_bytes=shared_bytes, why=why)]
    held = min(used_bytes, shared_bytes)
    twice = min(files.both_bytes, held) if files else 0
    return [
        ServeMemoryPart(
            name="shared_buffers", size_bytes=held, twice_bytes=twice, why="buffers that hold a page"
        ),
        ServeMemoryPart(name="other shared memory", size_bytes=max(0, shared_bytes - held)),
    ]


def _page_cache_parts(size_bytes: int, files: TopPageCache | None) -> list[ServeMemoryPart]:
    if files is None:
        return [ServeMemoryPart(name="page cache", size_bytes=size_bytes, why="of all programs")]
    relations = min(files.page_cache_bytes, size_bytes)
    return [
        ServeMemoryPart(
            name="page cache: relations",
            size_bytes=relations,
            twice_bytes=min(files.both_bytes, relations),
            why="of this server",
        ),
        ServeMemoryPart(name="page cache: other files", size_bytes=size_bytes - relations),
    ]
