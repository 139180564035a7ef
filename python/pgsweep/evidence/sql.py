"""Record evidence with SQL alone: snapshots of pg_buffercache at random times, and the counters beside them.

Works on any server that has pg_buffercache, hosted ones too; needs membership in pg_monitor, nothing on the
host. The session is read-only, has timeouts, takes no lock on a user's relation and, while it records,
touches no
catalog: what it does before is flushed into the statistics before the first counter is read.

Snapshots come at random times, one in each slot of equal length: hot pages sit in neighbouring buffers, and
a fixed rhythm would see them always at the same phase of the clock hand. The time between them follows from
the cost of one (measured first), and the length of the recording from the lap time of the hand, unless the
caller sets it.

It cannot see accesses between two snapshots other than through counters, nor which backend made them; rates
of pages that always stand at usage_count 5 cannot be told apart.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import psycopg

import pgsweep
from pgsweep.errors import EvidenceError
from pgsweep.evidence.laps import LapClock
from pgsweep.evidence.observe import RELATION_SECONDS, RELATION_SHARE, CounterLog, relation_columns
from pgsweep.evidence.pace import Pace, least_seconds
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.pg.buffercache import Snapshot, SnapshotReader
from pgsweep.pg.catalog import (
    Relation,
    Server,
    read_databases,
    read_relations,
    read_server,
    require_buffercache,
)
from pgsweep.pg.connect import connect, explained
from pgsweep.pg.counters import CounterReader
from pgsweep.progress import Progress, Silent
from pgsweep.records import RecordResult

WHOLE_POOL_BLOCKS: Final = 1 << 19
SAMPLE_BLOCKS: Final = 1 << 18
"""Pools above the first are sampled down to the second: less to transfer and keep, not less for the
server."""

COUNTER_SECONDS: Final = 5.0
"""Counters are sampled with every snapshot, and at least this often."""


def record_sql(
    conninfo: str,
    output: Path,
    *,
    seconds: float | None = None,
    max_snapshots: int | None = None,
    rng_seed: int | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    overwrite: bool = False,
    sample_blocks: int | None = None,
) -> RecordResult:
    """Record snapshots and counters of a running server into a folder of evidence.

    The result says in `ended_by` why it ended: `enough` (it suffices), `time` or `limit` (as asked),
    `still` (nothing was evicted), `interrupt`, `cancelled` (somebody cancelled a statement) or `server`
    (the connection was lost); in all cases the evidence is valid up to there.

    Args:
        conninfo: as libpq understands it; its database is the one whose accesses are observed.
        output: the folder to write.
        seconds: length of the observation; None ends it when it suffices.
        max_snapshots: end after so many.
        rng_seed: for the random times and the sample of blocks; None draws one.
        progress: told the cost before it is spent, the lap time, and time passing.
        stop: set it to end early with valid evidence.
        overwrite: replace evidence that is there already.
        sample_blocks: transfer about so many blocks a snapshot; None decides by the size of the pool.

    Raises:
        ConnectionFailed: the server cannot be reached, or went away before the first snapshot.
        MissingAbility: pg_buffercache is missing or may not be read; the server is too old.
        EvidenceError: the evidence cannot be written.
        KeyboardInterrupt: interrupted before the first snapshot.
    """
    progress = progress or Silent()
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if rng_seed is None else rng_seed
    progress.stage("reading the catalog")
    connection = connect(conninfo)
    try:
        with explained():
            schema = require_buffercache(connection)
            server = read_server(connection)
            sample = sample_of(server, seed, sample_blocks)
            reader = SnapshotReader(
                connection,
                schema,
                server.shared_buffers_blocks,
                modulus=sample.modulus,
                offsets=sample.offsets,
            )
            meta = _meta(connection, server, sample, seed)
            with EvidenceWriter(output, meta, overwrite=overwrite) as writer:
                recording = _Recording(
                    connection, server, reader, writer, progress=progress, stop=stop or threading.Event()
                )
                if sample.modulus > 1:
                    progress.note(
                        f"the pool is large: {sample.rate:.1%} of the blocks, drawn at random, are kept"
                    )
                return recording.run(np.random.default_rng(seed), seconds, max_snapshots)
    finally:
        with contextlib.suppress(psycopg.Error):
            connection.close()


def sample_of(server: Server, seed: int, sample_blocks: int | None) -> BlockSample:
    """Return which blocks a recording keeps: all, or a random sample of a large pool."""
    if sample_blocks is None and server.shared_buffers_blocks <= WHOLE_POOL_BLOCKS:
        return BlockSample.everything()
    return BlockSample.draw((sample_blocks or SAMPLE_BLOCKS) / server.shared_buffers_blocks, seed)


def _meta(
    connection: psycopg.Connection[Any], server: Server, sample: BlockSample, seed: int
) -> EvidenceMeta:
    return EvidenceMeta(
        source="sql",
        pgsweep_version=pgsweep.__version__,
        started_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        server_version_num=server.version_num,
        server_version=server.version,
        block_size_bytes=server.block_size_bytes,
        shared_buffers_blocks=server.shared_buffers_blocks,
        settings=server.settings,
        database=server.database,
        database_oid=server.database_oid,
        host={"server": connection.info.host or "local"},
        sampling={"seed": float(seed)} | sample.to_meta(seed),
    )


class _Recording:
    """One recording: what it knows and what it has gathered."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        server: Server,
        reader: SnapshotReader,
        writer: EvidenceWriter,
        *,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._connection = connection
        self._server = server
        self._reader = reader
        self._writer = writer
        self._progress = progress
        self._stop = stop
        self._clock = LapClock(server.shared_buffers_blocks)
        self._spent_seconds = 0.0
        self._warnings: list[str] = []
        self._advised = False
        self._started = time.monotonic()

    def run(self, rng: np.random.Generator, seconds: float | None, max_snapshots: int | None) -> RecordResult:
        """Record until something ends it, then close the evidence."""
        databases = read_databases(self._connection)
        begin = read_relations(self._connection)
        # In the evidence from the beginning, for the case that the recording is killed.
        self._writer.replace("relations", relation_columns(begin, None, databases))
        own = [r.oid for r in begin if r.database_oid == self._server.database_oid]
        counters = CounterReader(self._connection, databases, own)
        # Planned statements read catalogs; from here on, nothing of ours does.
        self._reader.take()
        counters.settle()
        cost_seconds = least_seconds(self._reader.take)
        pace = Pace(cost_seconds, seconds=seconds, max_snapshots=max_snapshots, clock=self._clock, rng=rng)
        expected = self._tell_cost(pace, counters)

        self._started = time.monotonic()
        log = CounterLog(counters, self._writer, self._now)
        log.sample(full=True)
        accesses_before = self._accesses(log)
        ended_by = self._observe(log, pace)
        if self._clock.snapshots == 0:
            if ended_by == "interrupt":
                raise KeyboardInterrupt
            raise EvidenceError(
                "not a single snapshot was taken", hint="record for longer: `pgsweep record --for 60s`"
            )
        length_seconds = self._now()
        if ended_by != "server":
            length_seconds = self._finish(log, begin, databases)
        accesses = max(0.0, self._accesses(log) - accesses_before)
        self._judge(log, accesses, pace)
        measured = (self._spent_seconds + log.spent_seconds) / length_seconds
        lap_seconds = self._clock.lap_seconds
        self._writer.close(
            msgspec.structs.replace(
                self._writer.meta,
                seconds=length_seconds,
                ended_by=ended_by,
                warnings=self._warnings,
                overhead={
                    "snapshot_seconds": self._spent_seconds / self._clock.snapshots,
                    "expected_share": expected,
                    "measured_share": measured,
                    "statements": float(counters.statements + self._clock.snapshots),
                    "lap_seconds": lap_seconds if math.isfinite(lap_seconds) else 0.0,
                    "laps": self._clock.laps,
                    "effective_snapshots": self._clock.effective_snapshots,
                },
            )
        )
        return RecordResult(
            path=str(self._writer.path),
            source="sql",
            seconds=length_seconds,
            shared_buffers_bytes=self._server.shared_buffers_blocks * self._server.block_size_bytes,
            snapshots=self._clock.snapshots,
            accesses=int(accesses),
            lost_events=0,
            bytes_written=self._writer.bytes_written,
            ended_by=ended_by,
            expected_overhead_ratio=expected,
            measured_overhead_ratio=measured,
            warnings=self._warnings,
        )

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _accesses(self, log: CounterLog) -> float:
        database = self._server.database
        return log.value("database", "blks_hit", database) + log.value("database", "blks_read", database)

    def _tell_cost(self, pace: Pace, counters: CounterReader) -> float:
        """Say what the recording will cost, and return the share of one backend's time."""
        quick_seconds = least_seconds(lambda: (counters.databases(), counters.writers()))
        slow_seconds = least_seconds(lambda: (counters.relations(), counters.io()))
        slow_interval_seconds = max(RELATION_SECONDS, slow_seconds / RELATION_SHARE)
        share = pace.share + quick_seconds / pace.interval_seconds + slow_seconds / slow_interval_seconds
        count = math.ceil(pace.seconds / pace.interval_seconds) if pace.seconds else None
        length = "" if count is None else f", about {count} in {pace.seconds:g} s"
        self._progress.note(
            f"expected cost: one snapshot of {self._server.shared_buffers_blocks} buffers takes "
            f"{pace.cost_seconds * 1e3:.1f} ms of one backend{length}; counters too: {share:.2%} of its time"
        )
        memory_bytes = self._reader.server_memory_bytes
        if memory_bytes > 64 << 20:
            self._progress.note(f"each snapshot needs about {memory_bytes >> 20} MB of memory on the server")
        return share

    def _observe(self, log: CounterLog, pace: Pace) -> str:
        """Take snapshots until something ends it, and return what.

        Raises:
            psycopg.OperationalError: the connection was lost before the first snapshot.
        """
        self._progress.stage("recording snapshots", pace.seconds)
        try:
            return self._loop(log, pace)
        except KeyboardInterrupt:
            return "interrupt"
        except psycopg.errors.QueryCanceled:
            self._warnings.append(
                "a statement of the recorder was cancelled: by an administrator, or timeout"
            )
            return "cancelled"
        except psycopg.OperationalError as error:
            if self._clock.snapshots == 0:
                raise
            reason = str(error).strip().splitlines()
            self._warnings.append(
                "the connection to the server was lost"
                + (f" ({reason[0]})" if reason else "")
                + "; the evidence ends there"
            )
            return "server"

    def _loop(self, log: CounterLog, pace: Pace) -> str:
        counters_due = COUNTER_SECONDS
        while True:
            now = self._now()
            if self._stop.is_set():
                return "interrupt"
            reason = pace.reason_to_end(now)
            if reason is not None:
                return reason
            if now >= pace.due_seconds:
                log.sample()
                self._take(log)
                self._advise(pace)
                now = self._now()
                pace.choose_next(now)
                counters_due = now + COUNTER_SECONDS
            elif now >= counters_due:
                log.sample()
                counters_due = now + COUNTER_SECONDS
            else:
                until = min(pace.due_seconds, counters_due, pace.seconds or math.inf)
                self._stop.wait(min(max(until - now, 0.0), 0.25))
            self._progress.advance(self._now())

    def _take(self, log: CounterLog) -> None:
        number = self._clock.snapshots
        begin = self._now()
        snapshot = self._reader.take()
        end = self._now()
        self._spent_seconds += end - begin
        self._writer.append("snapshots", _columns(snapshot, number))
        self._writer.append(
            "snapshot_times",
            {
                "snapshot": [number],
                "begin_seconds": [begin],
                "end_seconds": [end],
                "used_frames": [snapshot.used_frames],
            },
        )
        self._clock.add(
            (begin + end) / 2,
            zero_frames=snapshot.zero_frames,
            used_frames=snapshot.used_frames,
            allocations=log.value("bgwriter", "buffers_alloc"),
        )

    def _finish(self, log: CounterLog, begin: list[Relation], databases: dict[int, str]) -> float:
        """Read the last counters and the sizes at the end, and return the length of the observation."""
        length_seconds = self._now()
        try:
            log.sample(full=True)
            length_seconds = self._now()
            end = read_relations(self._connection)
            self._writer.replace("relations", relation_columns(begin, end, databases))
        except psycopg.OperationalError:
            self._warnings.append("the connection was lost at the end; the last counters are missing")
        return length_seconds

    def _advise(self, pace: Pace) -> None:
        """Tell once how long the observation must be, as soon as the hand's pace is known."""
        lap_seconds = self._clock.lap_seconds
        if self._advised or self._clock.snapshots < 8 or self._now() < 5.0 or math.isinf(lap_seconds):
            return
        self._advised = True
        text = (
            f"the clock hand goes round once in about {lap_seconds:.2g} s; an observation of "
            f"{pace.wanted_seconds:.0f} s suffices"
        )
        if pace.seconds is None:
            self._progress.note(text)
            self._progress.stage("recording snapshots until they suffice", pace.wanted_seconds)
        elif pace.seconds < pace.wanted_seconds:
            self._progress.note(f"{text}, {pace.seconds:.0f} s are few")

    def _judge(self, log: CounterLog, accesses: float, pace: Pace) -> None:
        """Add what a reader of this evidence must know."""
        clock = self._clock
        if self._server.settings.get("track_counts") == "off":
            self._warnings.append("track_counts is off: the server counts no accesses")
        elif accesses == 0:
            self._warnings.append(
                f"no block of database `{self._server.database}` was read: is it the right one?"
            )
        if log.was_reset:
            self._warnings.append("the server's statistics were reset during the recording")
        if not clock.pool_is_full:
            self._warnings.append("shared_buffers is not full yet: nothing had to be evicted")
        elif math.isinf(clock.lap_seconds):
            self._warnings.append("hardly anything was evicted: the clock hand stood still")
        elif not clock.suffices:
            self._warnings.append(
                f"short: {clock.laps:.1f} laps of the clock hand, {clock.effective_snapshots:.1f} "
                f"independent snapshots; record for about {pace.wanted_seconds:.0f} s"
            )


def _columns(snapshot: Snapshot, number: int) -> dict[str, Any]:
    return {
        "snapshot": np.full(len(snapshot.frame), number, dtype=np.int32),
        "frame": snapshot.frame,
        "spc": snapshot.spc,
        "db": snapshot.db,
        "rel": snapshot.rel,
        "fork": snapshot.fork,
        "block": snapshot.block,
        "usage_count": snapshot.usage_count,
        "dirty": snapshot.dirty,
        "pinned": snapshot.pinned,
    }
