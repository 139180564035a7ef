"""What all recordings of snapshots have in common, by whichever method they read the pool.

Snapshots come at random times, one in each slot of equal length: hot pages sit in neighbouring buffers, and
a fixed rhythm would see them always at the same phase of the clock hand. The time between them follows from
the cost of one (measured first), and the length of the recording from the time of a clock pass, unless the
caller sets it. Beside them the server's counters are sampled, over a session that, while it records, touches
no catalog, unless somebody else changes it (relations.py): what it does before is flushed into the statistics
before the first counter is read.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed, EvidenceError, UnexpectedAnswer
from pgsweep.evidence.block_residency import BlockResidency, Pool
from pgsweep.evidence.budget import Budget, note_budget
from pgsweep.evidence.clock_passes import PassClock
from pgsweep.evidence.endings import CANCELLED, WENT_AWAY, refused, went_away
from pgsweep.evidence.host_memory import facts_at_end
from pgsweep.evidence.observe import (
    RELATION_SECONDS,
    RELATION_SHARE,
    CounterLog,
    closed,
    lost_at_end,
    note_newer,
)
from pgsweep.evidence.outlook import UNPREDICTABLE, Judge, Outlook
from pgsweep.evidence.processor_times import pace_facts
from pgsweep.evidence.read_timing import ReadTiming
from pgsweep.evidence.relations import KnownRelations
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.schema import NEVER_FULL, STATISTICS_RESET
from pgsweep.evidence.snapshot_schedule import (
    LEAST_SECONDS,
    MOST_SECONDS,
    SnapshotSchedule,
    least_seconds,
)
from pgsweep.evidence.store import EvidenceWriter
from pgsweep.host.processor_time import backend_seconds
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.catalog.counters import Counter, CounterReader
from pgsweep.pg.catalog.server import Relation, Server
from pgsweep.pg.session.connect import Connection, session_lives
from pgsweep.pg.session.failures import QueryCanceled, ServerError, SessionLost, first_line
from pgsweep.pg.session.session_end import SessionWatch
from pgsweep.progress import Progress
from pgsweep.records.prediction import RecordResult
from pgsweep.units import format_count, format_minutes, format_percent

if TYPE_CHECKING:
    from pgsweep._native import ReadTimer
    from pgsweep.host.processor_pace import PaceTimer

COUNTER_SECONDS: Final = 5.0
"""Counters are sampled with every snapshot, and at least this often."""

_HOLE_INTERVALS: Final = 2.0
"""From so many of them without a sample on the recording has a hole."""

_COUNTER_TRIES: Final = 5
_COUNTER_PAUSE_SECONDS: Final = 0.04

WHOLE_POOL_BLOCKS: Final = 1 << 19
SAMPLE_BLOCKS: Final = 1 << 18
"""Pools above the first are sampled down to the second: fewer blocks are kept, but all buffers are read."""


def sample_of(server: Server, seed: int, sample_blocks: int | None) -> BlockSample:
    """Return which blocks a recording keeps: all, or a random sample of a large pool."""
    if sample_blocks is None and server.shared_buffers_blocks <= WHOLE_POOL_BLOCKS:
        return BlockSample.everything()
    return BlockSample.draw((sample_blocks or SAMPLE_BLOCKS) / server.shared_buffers_blocks, seed)


def note_sample(sample: BlockSample, progress: Progress) -> None:
    """Say that only a sample is kept, if so."""
    if sample.modulus > 1:
        rate = format_percent(sample.rate, 1)
        progress.note(f"the pool is large: {rate} of the blocks, drawn at random, are kept")


class PoolGone(Exception):
    """The pool can no longer be read: the server was stopped, restarted, or crashed."""


class View(Protocol):
    """A method to read the pool."""

    source: str
    loads_server: bool
    """Whether a snapshot is a statement that a backend works on."""

    def check(self, relations: list[Relation], databases: dict[int, str]) -> None:
        """Compare what is seen with what the server reports, before anything is used.

        Raises:
            MissingAbility: they do not agree.
        """

    def take(self) -> Snapshot:
        """Take one snapshot.

        Raises:
            DriverError: the connection was lost or the statement was cancelled.
            PoolGone: the server went away.
        """

    def cost(self, schedule: SnapshotSchedule, counters_share: float) -> tuple[float, str]:
        """Return the share of one backend's time that the recording takes, and the sentence that says so."""

    def measured(self, seconds: float) -> dict[str, float]:
        """Return what `overhead` in the evidence shall say besides."""


class _BackendClock:
    """The time that a session's process has worked: on a busy host its statements take much longer than that.

    Args:
        pid: of the session's process, as the server knows it.
        postmaster_pid: of the server where it runs on this host; else None.
    """

    def __init__(self, pid: int, postmaster_pid: int | None) -> None:
        self._pid = pid
        self._postmaster_pid = postmaster_pid
        self._last: float | None = None
        self.seconds()

    @property
    def is_seen(self) -> bool:
        """Whether the process can be looked at; else `seconds` is the time of a clock."""
        return self._last is not None

    def seconds(self) -> float:
        """Return the processor time so far; of a process that has ended, as it was last seen."""
        found = None
        if self._postmaster_pid is not None:
            found = backend_seconds(self._pid, self._postmaster_pid)
        self._last = self._last if found is None else found
        return time.monotonic() if self._last is None else self._last


@dataclass(frozen=True, kw_only=True)
class Course:
    """How a recording goes, and who hears of it.

    Attributes:
        seconds: length of the observation; None ends it when it suffices.
        max_snapshots: end after this number.
        seed: of the times of snapshots.
        judge: asked whether what is recorded will be refused, so that the recording ends in time.
        budget: share of all processors that the recording may take; None for no bound.
        progress: called with the cost before it is spent, the time of a clock pass, and the time passed.
        stop: set it to end early with valid evidence.
    """

    seconds: float | None
    max_snapshots: int | None
    seed: int
    judge: Judge | None
    budget: float | None
    progress: Progress
    stop: threading.Event


class Recording:
    """One recording: what it knows and what it has gathered.

    Args:
        connection: a session for inspection.
        view: the method to read the pool.
        writer: takes the evidence.
        postmaster_pid: of the server where it runs on this host and may be looked into; else None.
        timer: times the server's reads meanwhile; None does not.
        pace: times the processors meanwhile; None does not.
        blocks_cached: keep which blocks the page cache holds at both ends.
    """

    def __init__(
        self,
        connection: Connection,
        server: Server,
        view: View,
        writer: EvidenceWriter,
        course: Course,
        *,
        postmaster_pid: int | None,
        timer: ReadTimer | None = None,
        pace: PaceTimer | None = None,
        blocks_cached: bool = True,
    ) -> None:
        self._course = course
        self._connection = connection
        self._watch = SessionWatch(connection, server.database_oid)
        self._postmaster_pid = postmaster_pid
        self._server = server
        self._view = view
        self._timer = timer
        self._pace = pace
        self._writer = writer
        self._residency = BlockResidency(server, postmaster_pid if blocks_cached else None, writer)
        self._progress = course.progress
        self._clock = PassClock(server.shared_buffers_blocks)
        self._spent_seconds = 0.0
        self._backend = _BackendClock(connection.info.backend_pid, postmaster_pid)
        self._newer = note_newer(server, course.progress)
        self._warnings: list[str] = []
        # Not in the evidence: a prediction judges its length by itself.
        self._advice: list[str] = []
        self._advised = False
        self._outlook: Outlook | None = None
        self._budget: Budget | None = None
        self._started = time.monotonic()

    def run(self) -> RecordResult:
        """Record until something ends it, then close the evidence."""
        counters, course = self._prepared(), self._course
        clock = self._backend.seconds if self._view.loads_server else time.monotonic
        schedule = SnapshotSchedule(
            least_seconds(self._view.take, clock),
            seconds=course.seconds,
            max_snapshots=course.max_snapshots,
            clock=self._clock,
            rng=np.random.default_rng(course.seed),
        )
        expected = self._state_cost(schedule, counters)

        self._started = time.monotonic()
        worked_before = self._backend.seconds()
        if course.budget is not None:
            self._budget = Budget(course.budget, self._server_seconds)
        log = CounterLog(counters, self._writer, self._now)
        self._sample(log, full=True)
        log.add_of_host(self._postmaster_pid)
        self._residency.begin(self._started)
        accesses_before = log.accesses(self._server.database)
        with ReadTiming(self._timer, self._started) as timing:
            ended_by = self._observe(log, schedule)
        worked_seconds = self._backend.seconds() - worked_before
        self._writer.append("read_times", timing.take())
        if self._clock.snapshots == 0:
            if ended_by == "interrupt":
                raise KeyboardInterrupt
            raise EvidenceError(
                "not a single snapshot was taken",
                hint=f"record for longer: `{on_server('pgsweep record', '--for 60s')}`",
            )
        at_end: dict[str, str] = {}
        if ended_by not in WENT_AWAY:
            self._finish(log)
            at_end = self._facts_at_end()
            self._residency.end(self._started, self._pool)
        # What happened later, until the loss of the server was noticed, is counted nowhere.
        length_seconds = max(log.sampled_seconds, 1e-9)
        accesses = max(0.0, log.accesses(self._server.database) - accesses_before)
        self._judge_whole(log, ended_by, length_seconds, accesses)
        if self._budget is not None and (exceeded := self._budget.exceeded) is not None:
            self._advice.append(exceeded)
        if not self._backend.is_seen:
            worked_seconds = log.spent_seconds + self._spent_seconds * self._view.loads_server
        worked_seconds += timing.overhead.get("timed_reads_seconds", 0.0)
        pace = {} if self._pace is None else pace_facts(self._pace.pace)
        meta = msgspec.structs.replace(
            self._writer.meta,
            seconds=length_seconds,
            ended_by=ended_by,
            warnings=self._warnings,
            host=self._writer.meta.host | pace | at_end | self._residency.facts | timing.failure_facts,
            overhead={
                "snapshot_seconds": self._spent_seconds / self._clock.snapshots,
                "expected_share": expected,
                "measured_share": worked_seconds / length_seconds,
                "statements": float(counters.statements + self._clock.snapshots * self._view.loads_server),
                **self._clock.facts(),
                **self._view.measured(length_seconds),
                **({} if self._budget is None else self._budget.facts),
                **timing.overhead,
            },
        )
        return closed(
            self._writer,
            meta,
            snapshots=self._clock.snapshots,
            accesses=int(accesses),
            expected=expected,
            warnings=[*self._newer, *self._warnings, *self._advice],
        )

    def _prepared(self) -> CounterReader:
        """Learn what there is; return what reads the counters, whose statements are planned."""
        self._relations = known = KnownRelations(self._connection, self._server.database_oid)
        self._view.check(known.begin, known.databases)
        if known.estimated is not None:
            self._warnings.append(known.estimated)
        # In the evidence from the beginning, for the case that the recording is killed.
        self._writer.replace("relations", known.columns())
        counters = CounterReader(self._connection, known.databases, known.counted())
        # Planned statements read catalogs; from here on, nothing of ours does.
        self._view.take()
        counters.settle(float(self._server.settings["bgwriter_delay"]) / 1000)
        return counters

    def _judge_whole(self, log: CounterLog, ended_by: str, length_seconds: float, accesses: float) -> None:
        """Note what a reader of the evidence must know, and what whoever recorded it learns."""
        warnings, self._advice = judged(self._server, self._clock, accesses, was_reset=log.was_reset)
        self._warnings += warnings
        hole_seconds, hole_begin = log.hole
        if hole_seconds > _HOLE_INTERVALS * COUNTER_SECONDS:
            self._warnings.append(
                f"nothing was sampled for {format_count(hole_seconds)} s, from second "
                f"{format_count(hole_begin)} on: the recorder or the server was held up"
            )
        in_time = ended_by in ("limit", "time")
        refusal = None if self._outlook is None else self._outlook.end(wait=in_time)
        if refusal is not None:
            why = refusal.why
            if ended_by == UNPREDICTABLE:
                self._advice = [f"no prediction is possible: {why}"]
            elif self._course.judge is not None and in_time:
                longer = format_minutes(2 * length_seconds)
                if self._course.judge.decides:
                    self._advice = [f"not as asked: {why}; record for longer, such as {longer}"]
                elif ended_by == "limit":
                    self._advice.append(
                        f"not enough when last looked at: {why}; record for longer, such as {longer}"
                    )

    def _facts_at_end(self) -> dict[str, str]:
        if self._postmaster_pid is None:
            return {}
        return facts_at_end(self._postmaster_pid, self._server.version_num, self._server.block_size_bytes)

    def _sample(self, log: CounterLog, *, full: bool = False) -> None:
        if log.sample(full=full):
            self._relations.follow(log, self._writer)

    def _now(self) -> float:
        return time.monotonic() - self._started

    def _state_cost(self, schedule: SnapshotSchedule, counters: CounterReader) -> float:
        """Say what the recording will cost, and return the share of one backend's time."""
        quick_seconds = self._usual_seconds(lambda: (counters.databases(), counters.writers()))
        slow_seconds = self._usual_seconds(lambda: (deque(counters.each_relation(), maxlen=0), counters.io()))
        slow_interval_seconds = max(RELATION_SECONDS, slow_seconds / RELATION_SHARE)
        counters_share = quick_seconds / schedule.interval_seconds + slow_seconds / slow_interval_seconds
        # All of them are read at the beginning besides, which matters where the recording is short.
        counters_share += (quick_seconds + slow_seconds) / (schedule.seconds or LEAST_SECONDS)
        share, sentence = self._view.cost(schedule, counters_share)
        # All else that is done stands in the plan: `record --dry-run`.
        self._progress.note(sentence)
        if self._course.budget is not None:
            self._progress.note(note_budget(self._course.budget))
        return share

    def _server_seconds(self) -> float:
        """Return what the recording has taken of the server: of its processors where they are seen."""
        if self._backend.is_seen:
            return self._backend.seconds()
        return self._spent_seconds * self._view.loads_server

    def _usual_seconds(self, statements: Callable[[], object]) -> float:
        """Return what statements take at times: what others do meanwhile takes the processor's caches."""
        if not self._backend.is_seen:
            return least_seconds(statements)
        taken = []
        for _ in range(_COUNTER_TRIES):
            time.sleep(_COUNTER_PAUSE_SECONDS)
            begin = self._backend.seconds()
            statements()
            taken.append(self._backend.seconds() - begin)
        return sorted(taken)[_COUNTER_TRIES // 2]

    def _observe(self, log: CounterLog, schedule: SnapshotSchedule) -> str:
        """Take snapshots until something ends it, and return what.

        Raises:
            SessionLost: the connection was lost before the first snapshot.
        """
        until = "" if schedule.seconds is not None else " until there is enough data"
        self._progress.stage(f"recording snapshots{until}", schedule.seconds)
        try:
            return self._loop(log, schedule)
        except KeyboardInterrupt:
            return "interrupt"
        except QueryCanceled:
            self._warnings.append(CANCELLED)
            return "cancelled"
        except (ServerError, UnexpectedAnswer) as error:
            if self._clock.snapshots == 0:
                raise
            if isinstance(error, SessionLost) and not session_lives(self._connection):
                ended_by = self._watch.ending(error)
                self._warnings.append(went_away(ended_by))
                return ended_by
            self._warnings.append(refused(first_line(error)))
            return "refused"
        except PoolGone:
            ended_by = self._watch.ending()
            if self._clock.snapshots == 0:
                cause = went_away(ended_by).removesuffix("; the evidence ends there")
                raise ConnectionFailed(
                    "the session was lost before the first snapshot", cause=cause, hint="record again"
                ) from None
            self._warnings.append(went_away(ended_by))
            return ended_by

    def _loop(self, log: CounterLog, schedule: SnapshotSchedule) -> str:
        counters_due = COUNTER_SECONDS
        outlook = self._outlook = Outlook(
            self._course.judge, self._written, asked_seconds=schedule.seconds, progress=self._progress
        )
        while True:
            now = self._now()
            if self._course.stop.is_set():
                return "interrupt"
            may_ask = self._budget is None or self._budget.is_enough_for(outlook.judge_seconds)
            reason = outlook.decided(schedule.reason_to_end(now), now, may_ask=may_ask)
            if reason is not None:
                return reason
            if now >= schedule.due_seconds:
                worked = time.thread_time() + self._server_seconds()
                self._sample(log)
                self._take(log)
                if self._budget is not None:
                    worked = time.thread_time() + self._server_seconds() - worked
                    schedule.space(self._budget.interval_seconds(worked))
                self._advise(schedule)
                now = self._now()
                schedule.choose_next(now)
                counters_due = now + COUNTER_SECONDS
            elif now >= counters_due:
                self._sample(log)
                counters_due = now + COUNTER_SECONDS
            else:
                until = min(schedule.due_seconds, counters_due, schedule.seconds or math.inf)
                if self._pace is not None:
                    until = min(until, self._pace.time_if_due(now))
                self._course.stop.wait(min(max(until - now, 0.0), 0.25))
            self._progress.advance(self._now())

    def _written(self) -> Path:
        """Write what waits, and return the folder."""
        self._writer.flush()
        return self._writer.path

    def _take(self, log: CounterLog) -> None:
        number = self._clock.snapshots
        begin = self._now()
        snapshot = self._view.take()
        end = self._now()
        self._spent_seconds += end - begin
        self._backend.seconds()
        self._writer.append("snapshots", snapshot_columns(snapshot, number))
        self._writer.append("snapshot_times", time_columns(number, begin, end, snapshot.used_buffers))
        self._clock.add(
            (begin + end) / 2,
            zero_buffers=snapshot.zero_buffers,
            used_buffers=snapshot.used_buffers,
            allocations=log.value("bgwriter", "buffers_alloc"),
            hand_buffers=snapshot.hand_buffers,
        )
        if snapshot.hand_buffers is not None:
            log.add(begin, Counter("pool", "", "hand_frames", float(snapshot.hand_buffers)))

    def _pool(self) -> Pool | None:
        """Return the pool as it is now, beside the snapshots; None where it cannot be read."""
        try:
            snapshot = self._view.take()
        except (SessionLost, ServerError, UnexpectedAnswer, QueryCanceled, PoolGone):
            return None
        return snapshot_columns(snapshot, 0), snapshot.used_buffers

    def _finish(self, log: CounterLog) -> None:
        """Read the last counters and the sizes at the end."""
        try:
            log.sample(full=True)
            log.add_of_host(self._postmaster_pid)
            self._relations.finish(log, self._writer)
        except SessionLost as error:
            self._warnings.append(lost_at_end(error))
        except (ServerError, UnexpectedAnswer):
            self._warnings.append(
                "the server answered no more statements at the end; the last counters are missing"
            )

    def _advise(self, schedule: SnapshotSchedule) -> None:
        """Say once how long the observation must be, as soon as the speed of the hand is known."""
        pass_seconds = self._clock.pass_seconds
        if self._advised or self._clock.snapshots < 8 or self._now() < 5.0 or math.isinf(pass_seconds):
            return
        self._advised = True
        text = (
            f"the clock hand goes round once in about {format_count(pass_seconds)} s; "
            f"{format_minutes(schedule.wanted_seconds)} give enough data"
        )
        if schedule.seconds is None and schedule.wanted_seconds > MOST_SECONDS:
            self._progress.note(
                f"{text}; the recording ends after {format_minutes(MOST_SECONDS)}, with wider intervals"
            )
            self._progress.stage("recording snapshots", MOST_SECONDS)
        elif schedule.seconds is None:
            self._progress.note(text)
            self._progress.stage("recording snapshots until there is enough data", schedule.wanted_seconds)
        elif schedule.seconds < schedule.wanted_seconds:
            self._progress.note(f"{text}, {format_minutes(schedule.seconds)} leave the intervals wide")


def judged(
    server: Server, clock: PassClock, accesses: float, *, was_reset: bool
) -> tuple[list[str], list[str]]:
    """Return what a reader of this evidence must know, and what only the user who recorded it learns.

    Args:
        server: that was observed.
        clock: with all snapshots added.
        accesses: counted during the observation.
        was_reset: the statistics were reset meanwhile.
    """
    warnings: list[str] = []
    if server.settings.get("track_counts") == "off":
        warnings.append("track_counts is off: the server counts no accesses")
    elif accesses == 0:
        warnings.append(f"no block of database `{server.database}` was read: is it the right one?")
    if was_reset:
        warnings.append(STATISTICS_RESET)
    if not clock.pool_is_full:
        warnings.append(NEVER_FULL)
    elif math.isinf(clock.pass_seconds):
        warnings.append("hardly anything was evicted: the clock hand stood still")
    elif not clock.suffices:
        # For how long instead, a prediction says: it knows the time of a clock pass from the fitted rates.
        return warnings, [
            f"short: {clock.passes:.1f} clock passes, {clock.effective_snapshots:.1f} independent snapshots; "
            "the intervals will be wide, and `pgsweep predict` says for how long to record"
        ]
    return warnings, []


def snapshot_columns(snapshot: Snapshot, number: int) -> dict[str, Any]:
    """Return the rows of the table `snapshots` for one snapshot."""
    return {
        "snapshot": np.full(len(snapshot.buffer), number, dtype=np.int32),
        "frame": snapshot.buffer,
        "spc": snapshot.spc,
        "db": snapshot.db,
        "rel": snapshot.rel,
        "fork": snapshot.fork,
        "block": snapshot.block,
        "usage_count": snapshot.usage_count,
        "dirty": snapshot.dirty,
        "pinned": snapshot.pinned,
    }


def time_columns(number: int, begin: float, end: float, used_buffers: int) -> dict[str, Any]:
    """Return the row of the table `snapshot_times` for one snapshot."""
    return {
        "snapshot": [number],
        "begin_seconds": [begin],
        "end_seconds": [end],
        "used_frames": [used_buffers],
    }
