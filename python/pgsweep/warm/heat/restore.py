"""Bring saved heat back: `pgsweep warm restore`.

    heat = read_heat(Path("shop.heat"))
    result = restore("dbname=shop", Path("shop.heat"), heat, RestoreOptions(), stop=threading.Event())

What is resident already is not read again, so a restore that was cut short is resumed by starting it anew,
and one in which the server restarts goes on by itself. Into a pool in use it goes several rounds.

The blocks of a call are first brought into the page cache and then read by the server: so the device has
several requests to work on, though the server reads one block after the other. On the server's host they are
few enough that the reads of queries do not wait long behind them (`warm.files`); from elsewhere pg_prewarm's
mode prefetch asks for the whole call at once.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from pgsweep.errors import ConnectionFailed
from pgsweep.pg.catalog.backends import fewer_note, spared_connections
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.catalog.server import read_postmaster_age
from pgsweep.pg.prewarm import mark_as_warming
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.retry import PATIENCE_SECONDS, patiently
from pgsweep.progress import Listener
from pgsweep.records.heat import HeatRelation, WarmRestoreResult
from pgsweep.records.warm import WarmTrouble
from pgsweep.residency.access import opened
from pgsweep.residency.pool import PoolReader
from pgsweep.warm.block_ranges import Call
from pgsweep.warm.files import FileReader
from pgsweep.warm.heat.file import SavedHeat
from pgsweep.warm.heat.order import HeatCall, Part
from pgsweep.warm.heat.restore_plan import (
    RestoreOptions,
    RestorePlan,
    plan_restore,
    result_of,
    server_files,
    touches_left,
)
from pgsweep.warm.heat.restore_rounds import Remaining, another_round
from pgsweep.warm.heat.restore_statements import statements_of, without_unreadable
from pgsweep.warm.outcome import WorkOutcome, WorkState, nothing_at_all
from pgsweep.warm.readers import LatencyProbe, PageCacheReader, PrewarmReader, is_lasting
from pgsweep.warm.session import Read, others_note
from pgsweep.warm.work import Work
from pgsweep.warm.written import Writer

_STARTS = 3
"""The number of times a restore is begun, at most, if the server is restarted meanwhile."""

_AWAY_SECONDS = 0.05
_ASKED_AGAIN_SECONDS = 0.5
"""Pauses between questions when a server was started: if it is unavailable, and if it still runs."""

_MOSTLY_THERE = 0.95
"""If at least this share is resident already, blocks that cannot be read are reported, but do not fail it."""


@dataclass(slots=True)
class _Done:
    """The outcome of all the work."""

    troubles: list[WarmTrouble] = field(default_factory=list)
    restarts: int = 0
    stopped: bool = False
    touches_left_out: bool = False
    left: list[Remaining] = field(default_factory=list)

    def add(self, outcome: WorkOutcome) -> None:
        self.troubles += outcome.troubles
        self.restarts += 1 if outcome.again_calls else 0
        self.stopped |= outcome.stopped


def restore(
    conninfo: str,
    path: Path,
    heat: SavedHeat,
    options: RestoreOptions,
    *,
    stop: threading.Event,
    listener: Listener[WorkState] | None = None,
) -> WarmRestoreResult:
    """Bring saved heat back, and measure the result.

    Args:
        conninfo: any database of the server; the others are entered as the same role.
        path: where the heat was read from, for the result.
        heat: what was saved.
        options: how.
        stop: ends it after the calls that are under way.
        listener: called with the cost before it is spent, and with the progress.

    Raises:
        ConnectionFailed: the server cannot be reached, or went away and did not come back.
        MissingAbility: the pool cannot be looked at.
        PgsweepError: nothing at all could be read; says why.
    """
    if options.started_after is not None and listener is not None:
        listener.note("ready: waiting until the server is started anew")
    wait_for_server(conninfo, options.wait_seconds, stop, started_after=options.started_after)
    begun, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    with opened(conninfo, options.source) as access:
        with explained():
            spared = spared_connections(access.connection, options.connections)
        if spared < options.connections and listener is not None:
            listener.note(fewer_note(spared, options.connections))
        options = replace(options, connections=spared)
        first = plan = plan_restore(access, heat, options, note=None if listener is None else listener.note)

    def look_again() -> RestorePlan:
        with opened(conninfo, options.source) as access:
            return plan_restore(access, heat, options)

    done, starts = _Done(), 1
    while True:
        with _marked(conninfo, listener if starts == 1 and not done.left else None, stop):
            _carry_out(conninfo, plan, options, stop, listener, done)
        now = patiently(look_again, PATIENCE_SECONDS, stop)
        crowded, restarted = plan.touches_at_once, now.state.started != plan.state.started
        ended = done.stopped or stop.is_set()
        plan = now
        if restarted and starts < _STARTS and not ended:
            starts += 1
            done.restarts = max(1, done.restarts)
            continue
        after, relations = now.compared
        relations = _with_errors(relations, done.troubles, plan)
        if ended or options.rate_bytes_per_second is not None or not (crowded or done.left):
            break
        plan.pages = []
        done.left.append(_left(plan, relations))
        if not another_round(done.left, len(plan.order.block), int(plan.order.usage_count.sum())):
            break
    return msgspec.structs.replace(
        result_of(first, path, at),
        dry_run=False,
        seconds=time.monotonic() - begun,
        after=after,
        relations=relations,
        touches_left_out=done.touches_left_out,
        rounds=max(1, len(done.left)),
        pushed_out_bytes=done.left[0].gone_blocks * plan.access.server.block_size_bytes if done.left else 0,
        restarts=done.restarts,
        stopped=done.stopped or stop.is_set(),
    )


def dry_run(conninfo: str, path: Path, heat: SavedHeat, options: RestoreOptions) -> WarmRestoreResult:
    """Return what a restore would do, with the statements that it would send.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the pool cannot be looked at, or pg_prewarm not be used in any database.
    """
    begun, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    waits = options.started_after is None
    wait_for_server(conninfo, options.wait_seconds if waits else 0.0, threading.Event())
    with opened(conninfo, options.source) as access:
        plan = plan_restore(access, heat, options)
        files, writer = server_files(plan), Writer(access.connection)
        plan, troubles = without_unreadable(plan, writer, files)
        result = result_of(plan, path, at)
        with explained():
            statements = list(statements_of(plan, writer, files))
    return msgspec.structs.replace(
        result,
        relations=_with_errors(result.relations, troubles, plan),
        statements=statements,
        seconds=time.monotonic() - begun,
    )


def wait_for_server(
    conninfo: str, seconds: float, stop: threading.Event, *, started_after: float | None = None
) -> None:
    """Wait until a server accepts connections.

    Args:
        conninfo: as libpq understands it.
        seconds: how long.
        stop: ends the waiting.
        started_after: a server that was started before this time, of `time.monotonic()`, is not meant.

    Raises:
        ConnectionFailed: there was none in that time, or a stop.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            with connect(conninfo) as connection, explained():
                age = read_postmaster_age(connection)
        except ConnectionFailed as error:
            if is_lasting(error) or time.monotonic() > until or stop.is_set():
                raise
            stop.wait(_AWAY_SECONDS)
        else:
            if started_after is None or age < time.monotonic() - started_after:
                return
            if time.monotonic() > until or stop.wait(_ASKED_AGAIN_SECONDS):
                raise ConnectionFailed(
                    "the server was not started anew",
                    cause="it has been running since before this command was started",
                    hint="restart it meanwhile; without --next-start the server that runs is warmed",
                )


class HeatReader:
    """Reads calls into the pool; unless it only touches, the operating system is asked for all of it first.

    Args:
        conninfo: of any database of the server.
        server_started: called at each connection with the server's start time.
        files: the server's, where they are on this host; elsewhere the server itself asks for them.
    """

    def __init__(
        self, conninfo: str, server_started: Callable[[int], None], files: FileReader | None
    ) -> None:
        self._files = files
        self._ahead = PrewarmReader(conninfo, "prefetch", server_started=server_started)
        self._buffer = PrewarmReader(conninfo, "buffer", server_started=server_started)

    def open(self, database: str) -> None:
        """Connect to a database now, rather than with the first call.

        Raises:
            ConnectionFailed: the server cannot be reached.
        """
        self._buffer.open(database)

    def read(self, call: Call) -> Read:
        """Read a call.

        Raises:
            Lost: the session has gone.
        """
        ahead = call.ahead if isinstance(call, HeatCall) else call.pieces
        if self._files is not None:
            if ahead:
                self._files.fetch(ahead)
        elif len(ahead) > 1:
            self._ahead.read(Call(call.number, call.database, ahead))
        return self._buffer.read(call)

    def cancel(self) -> None:
        """End the statement that another thread waits for."""
        self._ahead.cancel()
        self._buffer.cancel()

    def close(self) -> None:
        """End the sessions."""
        self._ahead.close()
        self._buffer.close()


@contextlib.contextmanager
def _marked(conninfo: str, listener: Listener[WorkState] | None, stop: threading.Event) -> Iterator[None]:
    """Announce this warmer to others of this server, and report the others to the user."""
    connection, others = patiently(lambda: _mark(conninfo), PATIENCE_SECONDS, stop)
    with contextlib.closing(connection):
        if others and listener is not None:
            listener.note(others_note(others))
        yield


def _mark(conninfo: str) -> tuple[Connection, int]:
    """Return a session that carries the mark of a warmer, and how many others carry it."""
    connection = connect(conninfo)
    try:
        with explained():
            return connection, mark_as_warming(connection)
    except BaseException:
        connection.close()
        raise


def _carry_out(
    conninfo: str,
    plan: RestorePlan,
    options: RestoreOptions,
    stop: threading.Event,
    listener: Listener[WorkState] | None,
    done: _Done,
) -> None:
    """Do what was planned: read into the page cache and into the pool, then touch."""

    def look_at_pool() -> Snapshot:
        with opened(conninfo, options.source) as access, explained():
            return PoolReader(access).read()

    files, pages_first = server_files(plan), plan.pages_first
    if pages_first:
        done.add(_read_pages(conninfo, plan, options, stop, listener, files))
        if plan.access.pool_source == "peek":
            plan.pool_after_pages = patiently(look_at_pool, PATIENCE_SECONDS, stop)
    # Computed now: the pages need not wait for it.
    sums = plan.sums
    at_once = sums.touches if plan.touches_at_once else sums.first_touches
    block_bytes = plan.access.server.block_size_bytes

    def worked(calls: Iterator[HeatCall], blocks: int) -> WorkOutcome:
        work: Work

        def reader() -> HeatReader:
            return HeatReader(conninfo, work.server_started, files)

        probe = LatencyProbe(conninfo)
        how = options.work(block_bytes, pool=True)
        if pages_first:
            # Copies need no device to be kept busy, but processors, and these are the queries'.
            how = replace(how, connections=_half(options.connections), spares_processors=True)
        work = Work(calls, reader, how, total_blocks=blocks, probe=probe)
        try:
            return work.run(stop, None if listener is None else listener.state)
        finally:
            probe.close()

    def look() -> tuple[Iterator[HeatCall], int] | None:
        with opened(conninfo, options.source) as access:
            return touches_left(plan, access)

    if sums.read_blocks + at_once and not stop.is_set():
        part: Part = "all" if plan.touches_at_once else "reads"
        outcome = worked(plan.calls(part, pages_read=pages_first), sums.read_blocks + at_once)
        # No session works in a template, and all databases that are made of it later would have what is
        # created in it.
        templates = {database.name for database in plan.access.databases if database.is_template}
        failure = nothing_at_all(outcome, templates)
        if failure is not None and plan.compared[0].resident < _MOSTLY_THERE:
            raise failure
        done.add(outcome)
    if plan.pages and not pages_first and not stop.is_set():
        done.add(_read_pages(conninfo, plan, options, stop, listener, files))
    if sums.touches > at_once and not stop.is_set():
        left = patiently(look, PATIENCE_SECONDS, stop)
        done.touches_left_out = left is None
        if left is not None and left[1]:
            done.add(worked(*left))


def _read_pages(
    conninfo: str,
    plan: RestorePlan,
    options: RestoreOptions,
    stop: threading.Event,
    listener: Listener[WorkState] | None,
    files: FileReader | None,
) -> WorkOutcome:
    def reader() -> PageCacheReader | PrewarmReader:
        return PrewarmReader(conninfo, "read") if files is None else PageCacheReader(files)

    probe = LatencyProbe(conninfo, files)
    how = options.work(plan.access.server.block_size_bytes, pool=False)
    if plan.pages_first:
        # Queries read from the device at the same time.
        how = replace(how, connections=_half(options.connections))
    work = Work(plan.pages, reader, how, probe=probe)
    try:
        return work.run(stop, None if listener is None else listener.state)
    finally:
        probe.close()


def _half(connections: int) -> int:
    return max(1, connections // 2)


def _left(plan: RestorePlan, relations: Sequence[HeatRelation]) -> Remaining:
    """Return the totals of a new plan, without what could not be read before."""
    failed = sum(row.target_bytes - row.resident_bytes for row in relations if row.error)
    failed_blocks = failed // plan.access.server.block_size_bytes
    return Remaining(max(0, plan.sums.read_blocks - failed_blocks), plan.sums.touches)


def _with_errors(
    rows: Sequence[HeatRelation], troubles: Sequence[WarmTrouble], plan: RestorePlan
) -> list[HeatRelation]:
    """Return the rows with what kept them from being read, and what would allow it: not in templates."""
    templates = {database.name for database in plan.access.databases if database.is_template}
    why = {
        (trouble.database, trouble.schema, trouble.relation): trouble.why
        if trouble.enable is None or trouble.database in templates
        else f"{trouble.why}; {trouble.enable}"
        for trouble in troubles
    }
    return [
        msgspec.structs.replace(row, error=why.get((row.database, row.schema, row.relation))) for row in rows
    ]
