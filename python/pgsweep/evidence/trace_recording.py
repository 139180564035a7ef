"""One recording by probes: their events become evidence, with the pool's contents and the counters.

The pool's contents at the beginning and at the end are read from the server's memory, so that a simulation
can start from them.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep._native import PoolReader, Tracer
from pgsweep.evidence.block_residency import BlockResidency, Pool
from pgsweep.evidence.budget import Budget, check_trace
from pgsweep.evidence.endings import CANCELLED, WENT_AWAY, refused, went_away
from pgsweep.evidence.host_memory import facts_at_end
from pgsweep.evidence.observe import CounterLog, closed, first_meta, lost_at_end
from pgsweep.evidence.processor_times import copy_facts, pace_facts, pace_timer, program
from pgsweep.evidence.read_timing import ReadTiming, open_timer, timing_facts
from pgsweep.evidence.relations import KnownRelations
from pgsweep.evidence.schema import EXTENSIONS_ARE_READS_BELOW, NEW_PAGE, STATISTICS_RESET, TABLES
from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from pgsweep.host.postmaster import process_exists
from pgsweep.host.processor_pace import PaceTimer
from pgsweep.host.processor_time import CopyTimer
from pgsweep.pg.catalog.agreement import disagreement
from pgsweep.pg.catalog.buffercache import used_buffers
from pgsweep.pg.catalog.counters import CounterReader
from pgsweep.pg.catalog.server import Server, read_counted_since, read_recovery
from pgsweep.pg.session.connect import Connection, session_lives
from pgsweep.pg.session.failures import QueryCanceled, SessionLost, first_line
from pgsweep.pg.session.session_end import SessionWatch
from pgsweep.progress import Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.units import format_count, format_percent

if TYPE_CHECKING:
    from pgsweep._native import PoolTable

POLL_SECONDS: Final = 0.25
COUNTER_SECONDS: Final = 10.0

_OWN_EVENT_SECONDS: Final = 0.2e-6
_OWN_SHARE: Final = 0.025
_OWN_SECONDS: Final = 0.1
"""What this process takes of a processor: for each event, in each second, and in all. From 14 recordings of 6
to 20 s with 1,100 to 236,000 events a second; in ten others what was expected was 0.6 to 1.6 times what was
measured (docs/concepts/tracing.md)."""

_LOOKS_AT_ENDS: Final = 1.0
"""Reading the pool and the files at both ends takes about as long as the look at pool and catalog before."""

_USUAL_SECONDS: Final = 40.0

LOAD_SECONDS: Final = 2.0
"""Seconds of counting the load before a trace: processes report their counts at most once a second."""

_ROW_BYTES: Final = 12
"""A row takes about as many bytes on disk, mostly fewer."""


class Limits(msgspec.Struct, frozen=True):
    """What ends a recording, where it is not None."""

    seconds: float | None
    events: int | None
    bytes: int | None
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class _Live:
    """What a recording has while its probes are there; `started` is by the monotonic clock."""

    tracer: Tracer
    writer: EvidenceWriter
    limits: Limits
    log: CounterLog
    started: float
    budget: Budget | None

    @property
    def seconds(self) -> float:
        """How long they are there."""
        return time.monotonic() - self.started


class TraceRecording:
    """One recording: what it knows and what it has gathered.

    Args:
        connection: a session for inspection.
        postmaster_pid: of the server that the session is with.
        start_time: of the server, in microseconds since 2000-01-01.
        progress: called with the cost before it is spent, and with the time passed.
        stop: set it to end early with valid evidence.
    """

    def __init__(
        self,
        connection: Connection,
        server: Server,
        postmaster_pid: int,
        start_time: int,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        begun = time.process_time()
        self._connection = connection
        self._server = server
        self._watch = SessionWatch(connection, server.database_oid)
        self._postmaster_pid, self._start_time = postmaster_pid, start_time
        self._timer, self._no_timer = open_timer(postmaster_pid, start_time)
        self._progress = progress
        self._stop = stop
        self._relations = KnownRelations(connection, server.database_oid)
        self._reader = CounterReader(connection, self._relations.databases, self._relations.counted())
        self._counted_since = self._counted_until = read_counted_since(connection)
        self._warnings = [] if self._relations.estimated is None else [self._relations.estimated]
        self._recovery_pid = self._find_recovery()
        self._rows = 0
        self._flushed_rows = 0
        self._database_accesses = 0
        self._last_access_ns = 0
        self._alive_ns = 0
        self._end_ns: int | None = None
        self._snapshots = 0
        self._memory: PoolReader | None = None
        # Before the probes and the first counters: statements of ours would be in one of them only.
        self._unlike = self._compared()
        self._look_seconds = time.process_time() - begun

    @property
    def pool_is_as_expected(self) -> bool:
        """Return whether the memory shows what the server says; only then buffers are read from it."""
        return self._unlike is None

    def meta(self) -> EvidenceMeta:
        """Return what is known at the beginning."""
        recovery = {} if self._recovery_pid is None else {"recovery_pid": str(self._recovery_pid)}
        return first_meta(
            self._connection,
            "trace",
            self._server,
            postmaster_pid=self._postmaster_pid,
            depths=True,
            host=recovery | timing_facts(self._timer, self._no_timer),
        )

    def _find_recovery(self) -> int | None:
        """Return the process that replays WAL on a standby, whose accesses are not a session's."""
        in_recovery, pid = read_recovery(self._connection)
        if in_recovery and pid is None:
            self._warnings.append(
                "the server is in recovery, and this role may not see which process replays WAL: "
                "its accesses count as the database's own; pg_monitor may see it"
            )
        return pid

    def state_cost(self, cost_seconds: float, seconds: float | None, budget: float | None = None) -> float:
        """Say what tracing will cost, and return it as a share of all processors' time.

        An access costs one event, a miss another one.

        Args:
            cost_seconds: of an event.
            seconds: that will be recorded; None where that is not known.
            budget: share of all processors that it may take; None for no bound.

        Raises:
            MissingAbility: it is expected to take more.
        """
        self._progress.stage("measuring the load", 1.0)
        worked = time.process_time()
        self._reader.settle()
        counting_seconds = time.process_time() - worked
        begin, counts = time.monotonic(), self._total_accesses()
        self._stop.wait(LOAD_SECONDS)
        elapsed = time.monotonic() - begin
        accesses, misses = (
            after - before for after, before in zip(self._total_accesses(), counts, strict=True)
        )
        events = (accesses + misses) / elapsed
        processors = os.cpu_count() or 1
        ends_seconds = _OWN_SECONDS + _LOOKS_AT_ENDS * self._look_seconds
        own = events * _OWN_EVENT_SECONDS + _OWN_SHARE + counting_seconds / COUNTER_SECONDS
        own += ends_seconds / (seconds or _USUAL_SECONDS)
        share = (events * cost_seconds + own) / processors
        self._progress.note(
            f"expected cost: about {format_count(round(events))} accesses and misses a second, at "
            f"{cost_seconds * 1e6:.2f} µs each, and {format_percent(own, 1)} of one processor to store them: "
            f"{format_percent(share, 1)} of {processors} processors"
        )
        check_trace(budget, share, events * (seconds or _USUAL_SECONDS))
        return share

    def _total_accesses(self) -> tuple[float, float]:
        counters = self._reader.databases()
        read = sum(c.value for c in counters if c.name == "blks_read")
        hit = sum(c.value for c in counters if c.name == "blks_hit")
        return read + hit, read

    def run(
        self,
        writer: EvidenceWriter,
        limits: Limits,
        start: Callable[[], Tracer],
        cost_seconds: float,
        expected: float,
    ) -> RecordResult:
        """Record until something ends it, then close the evidence."""
        # In the evidence from the beginning, for the case that the recording is killed.
        writer.replace("relations", self._relations.columns())
        processor_seconds = time.process_time()
        if limits.seconds is not None:
            self._end_ns = round(limits.seconds * 1e9)
        tracer, budget = start(), None
        try:
            started = tracer.start_ns() / 1e9
            log = CounterLog(self._reader, writer, lambda: time.monotonic() - started)
            if limits.budget is not None:
                budget = Budget(limits.budget, lambda: tracer.counts()["events"] * cost_seconds)
            live = _Live(tracer, writer, limits, log, started, budget)
            ended_by, host, timing = self._observe(live)
            tracer.stop()
            probed_seconds = live.seconds
            while (batch := tracer.poll(0.0)) is not None:
                if not self._append(live, batch) and ended_by == "time":
                    ended_by = "limit"
        except OSError:
            self._note_failure(tracer, writer)
            raise
        finally:
            tracer.stop()
        counts, lost = tracer.counts(), tracer.lost()
        measured = counts["events"] * cost_seconds + time.process_time() - processor_seconds
        measured += timing.get("timed_reads_seconds", 0.0)
        length_seconds = self._length_seconds(ended_by)
        if ended_by not in WENT_AWAY:
            self._finish(live)
        exceeded = None if budget is None else budget.exceeded
        self._judge(lost, counts, was_reset=log.was_reset)
        meta = msgspec.structs.replace(
            writer.meta,
            seconds=length_seconds,
            accesses_per_second=None if lost else self._database_accesses / max(length_seconds, 1e-9),
            ended_by=ended_by,
            lost_events=lost,
            losses={"ring_full": lost} if lost else {},
            warnings=self._warnings,
            overhead={
                "event_cost_seconds": cost_seconds,
                "events": float(counts["events"]),
                "probed_seconds": probed_seconds,
                "expected_share": expected,
                # The probes and their reader worked until they were gone.
                "measured_share": measured / (probed_seconds * (os.cpu_count() or 1)),
                "reader_processor_seconds": tracer.reader_processor_seconds(),
                **timing,
                **({} if budget is None else budget.facts),
            },
            host=writer.meta.host | host | {"attachment": tracer.attachment()},
        )
        return closed(
            writer,
            meta,
            snapshots=self._snapshots,
            accesses=self._database_accesses,
            expected=expected,
            # Not in the evidence: it says nothing of what was recorded.
            warnings=[*self._warnings, *filter(None, [exceeded])],
        )

    def _observe(self, live: _Live) -> tuple[str, dict[str, str], dict[str, float]]:
        """Record until something ends it: return what, facts of the host, and what timing reads cost."""
        writer = live.writer
        residency = BlockResidency(self._server, self._postmaster_pid, writer)
        self._snapshot(live)
        residency.begin(live.started)
        live.log.sample(full=True)
        live.log.add_of_host(self._postmaster_pid, live.seconds)
        # What the pool held at the beginning is on disk before anything can go wrong.
        writer.flush()
        self._progress.note(f"probes are live ({live.tracer.attachment()}); they end with this process")
        with (
            contextlib.closing(CopyTimer(program(self._postmaster_pid))) as copies,
            contextlib.closing(pace_timer(self._postmaster_pid)) as pace,
            ReadTiming(self._timer, live.started) as timing,
        ):
            ended_by = self._loop(live, copies, pace)
            # What is accessed until the probes are gone, which takes a second, is not stored.
            if ended_by != "time" and ended_by not in WENT_AWAY:
                self._end_ns = round(live.seconds * 1e9)
        writer.append("read_times", timing.take())
        at_end: dict[str, str] = {}
        if ended_by not in WENT_AWAY:
            live.log.add_of_host(self._postmaster_pid, live.seconds)
            server = self._server
            at_end = facts_at_end(self._postmaster_pid, server.version_num, server.block_size_bytes)
            self._snapshot(live)
            residency.end(live.started, self._pool)
        host = copy_facts(copies.seconds) | pace_facts(pace.pace) | at_end | residency.facts
        return ended_by, host | timing.failure_facts, timing.overhead

    def _loop(self, live: _Live, copies: CopyTimer, pace: PaceTimer) -> str:
        """Store what comes until something ends it, and return what."""
        limits = live.limits
        self._progress.stage("recording page accesses", limits.seconds)
        counters_due = COUNTER_SECONDS
        try:
            while True:
                now = live.seconds
                if self._stop.is_set():
                    return "interrupt"
                if limits.seconds is not None and now >= limits.seconds:
                    return "time"
                if live.budget is not None and live.budget.is_exceeded_by_a_trace:
                    return "budget"
                # A server that crashes ends all sessions.
                if not (session_lives(self._connection) and process_exists(self._postmaster_pid)):
                    return self._gone(live)
                self._alive_ns = round(now * 1e9)
                if now >= counters_due:
                    live.log.sample()
                    counters_due = now + COUNTER_SECONDS
                copies.time_if_due(now)
                due = min(pace.time_if_due(now), now + POLL_SECONDS, limits.seconds or math.inf)
                batch = live.tracer.poll(max(0.0, due - now))
                if batch is not None and not self._append(live, batch):
                    return "limit"
                self._progress.advance(now)
        except KeyboardInterrupt:
            return "interrupt"
        except QueryCanceled:
            self._warnings.append(CANCELLED)
            return "cancelled"
        except SessionLost as error:
            if session_lives(self._connection):
                self._warnings.append(refused(first_line(error)))
                return "refused"
            return self._gone(live, error)

    def _gone(self, live: _Live, error: SessionLost | None = None) -> str:
        """Return why the session has gone, as `ended_by`; what is accessed from now on is not stored."""
        now_ns = round(live.seconds * 1e9)
        self._end_ns = now_ns if self._end_ns is None else min(now_ns, self._end_ns)
        ended_by = self._watch.ending(error)
        self._warnings.append(went_away(ended_by))
        return ended_by

    def _append(self, live: _Live, batch: Any) -> bool:
        """Store a batch; return whether there is room for more."""
        writer, limits = live.writer, live.limits
        batch = self._until_end(batch)
        accesses = batch["accesses"]
        count = len(accesses["kind"])
        if limits.events is not None and self._rows + count > limits.events:
            count = max(0, limits.events - self._rows)
            accesses = {name: column[:count] for name, column in accesses.items()}
        if count:
            writer.append("accesses", accesses)
            self._rows += count
            ours = accesses["db"] == self._server.database_oid
            if self._server.version_num >= EXTENSIONS_ARE_READS_BELOW:
                ours &= accesses["kind"] != NEW_PAGE
            if self._recovery_pid is not None:
                ours &= accesses["pid"] != self._recovery_pid
            self._database_accesses += int(np.count_nonzero(ours))
            self._last_access_ns = max(self._last_access_ns, int(accesses["time_ns"].max()))
        for table in ("scans", "drops"):
            if len(next(iter(batch[table].values()))):
                writer.append(table, batch[table])
        if limits.events is not None and self._rows >= limits.events:
            return False
        return limits.bytes is None or self._bytes_left(writer, limits.bytes)

    def _until_end(self, batch: Any) -> Any:
        """Return what of a batch happened before the end of the observation."""
        if self._end_ns is None:
            return batch
        # Up to the first one that is too late: drops count the accesses before them.
        late = np.flatnonzero(batch["accesses"]["time_ns"] > self._end_ns)
        count = int(late[0]) if len(late) else len(batch["accesses"]["kind"])
        cut = {"accesses": {name: column[:count] for name, column in batch["accesses"].items()}}
        # A scan is handed out when it ends, which may be later.
        for table, time_name in (("scans", "begin_ns"), ("drops", "time_ns")):
            early = batch[table][time_name] <= self._end_ns
            cut[table] = {name: column[early] for name, column in batch[table].items()}
        return cut

    def _length_seconds(self, ended_by: str) -> float:
        """Return how long was observed: all accesses that are stored are of this time."""
        if ended_by == "limit":
            # Of what came after the last access nothing is known.
            return self._last_access_ns / 1e9
        if ended_by == "server" or self._end_ns is None:
            return max(self._alive_ns, self._last_access_ns) / 1e9
        return self._end_ns / 1e9

    def _bytes_left(self, writer: EvidenceWriter, limit_bytes: int) -> bool:
        """Return whether the evidence is smaller than its limit, counting rows that wait in memory."""
        waiting_bytes = (self._rows - self._flushed_rows) * _ROW_BYTES
        if writer.bytes_written < limit_bytes <= writer.bytes_written + waiting_bytes:
            writer.flush()
            self._flushed_rows = self._rows
        return writer.bytes_written < limit_bytes

    def _read_pool(self) -> PoolTable:
        """Return what lies in the buffers.

        Raises:
            RuntimeError: the layout of the server's memory is not known.
            OSError: it cannot be read, or the server ended or restarted meanwhile.
        """
        if self._memory is None:
            self._memory = PoolReader(
                self._postmaster_pid, self._server.version_num, start_time=self._start_time
            )
        return self._memory.read()

    def _compared(self) -> str | None:
        """Return why the pool in the server's memory cannot be what the server says; None if it can."""
        try:
            before = used_buffers(self._connection)
            pool = self._read_pool()
            return disagreement(pool, self._server, before, used_buffers(self._connection))
        except (RuntimeError, OSError) as error:
            return str(error.args[0])

    def _pool(self) -> Pool | None:
        """Return what lies in the buffers; None where it cannot be read."""
        if not self.pool_is_as_expected:
            return None
        try:
            pool = self._read_pool()
        except (RuntimeError, OSError):
            return None
        return cast("dict[str, NDArray[Any]]", pool), len(pool["block"])

    def _snapshot(self, live: _Live) -> None:
        """Store what lies in the buffers, if the memory shows what the server says of it."""
        writer, started = live.writer, live.started
        why = self._unlike
        try:
            pool = self._read_pool()
            why = why or disagreement(pool, self._server, None, None)
        except (RuntimeError, OSError) as error:
            why = why or str(error.args[0])
        if why is not None:
            warning = f"the pool's contents are not in the evidence: {why}"
            if not self.pool_is_as_expected:
                warning += "; the probes read no states of buffers either"
            if warning not in self._warnings:
                self._warnings.append(warning)
            return
        number = self._snapshots
        self._snapshots += 1
        begin, end = pool["begin_ns"] / 1e9 - started, pool["end_ns"] / 1e9 - started
        used = len(pool["frame"])
        columns = {name: column for name, column in pool.items() if name in TABLES["snapshots"]}
        columns["snapshot"] = np.full(used, number, np.int32)
        writer.append("snapshots", cast("dict[str, NDArray[Any]]", columns))
        writer.append(
            "snapshot_times",
            {"snapshot": [number], "begin_seconds": [begin], "end_seconds": [end], "used_frames": [used]},
        )
        if pool["hand"] is not None:
            names = ["next_victim", "complete_passes", "first_free"]
            writer.append(
                "counters",
                {
                    "sample": [number] * 3,
                    "seconds": [begin] * 3,
                    "scope": ["pool"] * 3,
                    "object": [""] * 3,
                    "name": names,
                    "value": [float(value) for value in pool["hand"]],
                },
            )
        elif not pool["hand_settled"]:
            self._warnings.append("where the clock hand stood could not be read: it was never at rest")

    def _finish(self, live: _Live) -> None:
        """Read the last counters, and the sizes at the end."""
        try:
            live.log.sample(full=True)
            self._counted_until = read_counted_since(self._connection)
            self._relations.finish(live.log, live.writer)
        except SessionLost as error:
            self._warnings.append(lost_at_end(error))

    def _note_failure(self, tracer: Tracer, writer: EvidenceWriter) -> None:
        """Put into the incomplete evidence what was lost when reading the probes' events failed."""
        tracer.stop()
        losses = {"reader_failed": tracer.unread(), "ring_full": tracer.lost()}
        losses = {cause: events for cause, events in losses.items() if events}
        lost = sum(losses.values())
        self._warnings.append(
            f"reading the probes' events failed; {format_count(lost)} events were lost until the probes were "
            "taken away"
        )
        writer.meta = msgspec.structs.replace(
            writer.meta, lost_events=lost, losses=losses, warnings=self._warnings
        )

    def _judge(self, lost: int, counts: dict[str, int], *, was_reset: bool) -> None:
        """Add what a reader of this evidence must know."""
        # Where few samples are taken, a counter may have risen again before the next one.
        renewed = self._counted_since is not None and self._counted_until != self._counted_since
        if was_reset or renewed:
            self._warnings.append(STATISTICS_RESET)
        if lost:
            share = lost / (lost + counts["events"])
            self._warnings.append(
                f"{format_count(lost)} events ({format_percent(share, 2)}) were lost because they were not "
                "read in time: hits and misses are less certain; record for a shorter time or on a less busy "
                "machine"
            )
        if self._database_accesses == 0:
            self._warnings.append(
                f"no block of database `{self._server.database}` was accessed: is it the right one?"
            )
