"""Bring saved heat back: `pgsweep warm restore`.

    heat = read_heat(Path("shop.heat"))
    result = restore("dbname=shop", Path("shop.heat"), heat, RestoreOptions(), stop=threading.Event())

What is resident already is not read again, so a restore that was cut short is resumed by starting it anew,
and one in which the server restarts goes on by itself. Scattered blocks are first asked of the operating
system (pg_prewarm's mode prefetch, posix_fadvise(2)), a whole call of them at once, and then read: so the
device has many requests to work on, though the server reads them one after the other.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pgsweep.caches.access import opened
from pgsweep.errors import ConnectionFailed
from pgsweep.host.datafiles import find_data_files
from pgsweep.pg.connect import connect, explained
from pgsweep.records.heat import HeatRelation, WarmRestoreResult
from pgsweep.records.warm import WarmTrouble
from pgsweep.warm.files import FileReader, places_of
from pgsweep.warm.heat import Heat
from pgsweep.warm.match import look_around
from pgsweep.warm.order import (
    HeatCall,
)
from pgsweep.warm.pieces import Call
from pgsweep.warm.readers import LatencyProbe, PageCacheReader, PrewarmReader
from pgsweep.warm.restore_plan import RestoreOptions, RestorePlan, plan_restore, result_of, statements_of
from pgsweep.warm.run import Listener
from pgsweep.warm.session import Read
from pgsweep.warm.work import Work, WorkOutcome, nothing_at_all


@dataclass(slots=True)
class _Done:
    """What came of both kinds of work."""

    troubles: list[WarmTrouble] = field(default_factory=list)
    restarts: int = 0
    stopped: bool = False

    def add(self, outcome: WorkOutcome) -> None:
        self.troubles += outcome.troubles
        self.restarts += 1 if outcome.again_calls else 0
        self.stopped |= outcome.stopped


def restore(
    conninfo: str,
    path: Path,
    heat: Heat,
    options: RestoreOptions,
    *,
    stop: threading.Event,
    listener: Listener | None = None,
) -> WarmRestoreResult:
    """Bring saved heat back, and measure what came of it.

    Args:
        conninfo: any database of the server; the others are entered as the same role.
        path: where the heat was read from, for the result.
        heat: what was saved.
        options: how.
        stop: ends it after the calls that are under way.
        listener: is told the cost before it is spent, and how it goes.

    Raises:
        ConnectionFailed: the server cannot be reached, or went away and did not come back.
        MissingAbility: the pool cannot be looked at.
        PgsweepError: nothing at all could be read; says why.
    """
    begun, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    wait_for_server(conninfo, options.wait_seconds, stop)
    with opened(conninfo, options.source) as access:
        plan = plan_restore(access, heat, options, note=None if listener is None else listener.note)
        result = result_of(plan, path, options, at)
    done = _Done()
    if plan.sums.read_blocks + plan.sums.touches and not stop.is_set():
        outcome = _read_pool(conninfo, plan, options, stop, listener)
        failure = nothing_at_all(outcome)
        if failure is not None:
            raise failure
        done.add(outcome)
    if plan.pages and not stop.is_set():
        done.add(_read_pages(conninfo, plan, options, stop, listener))
    # The first session may have ended with a restart of the server.
    with opened(conninfo, options.source) as access:
        plan.access, plan.sight = access, look_around(access, heat)
        after, relations = plan.compare()
    return msgspec.structs.replace(
        result,
        dry_run=False,
        seconds=time.monotonic() - begun,
        after=after,
        relations=_with_errors(relations, done.troubles),
        restarts=done.restarts,
        stopped=done.stopped or stop.is_set(),
    )


def dry_run(conninfo: str, path: Path, heat: Heat, options: RestoreOptions) -> WarmRestoreResult:
    """Return what a restore would do, with the statements that it would send.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: the pool cannot be looked at, or pg_prewarm not be used.
    """
    begun, at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    wait_for_server(conninfo, options.wait_seconds, threading.Event())
    with opened(conninfo, options.source) as access:
        plan = plan_restore(access, heat, options)
        result = result_of(plan, path, options, at)
        with explained():
            statements = list(statements_of(plan))
    return msgspec.structs.replace(result, statements=statements, seconds=time.monotonic() - begun)


def wait_for_server(conninfo: str, seconds: float, stop: threading.Event) -> None:
    """Wait until a server accepts connections.

    Raises:
        ConnectionFailed: it does not, in that time.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            connect(conninfo).close()
        except ConnectionFailed:
            if time.monotonic() > until or stop.is_set():
                raise
        else:
            return
        stop.wait(0.05)


class HeatReader:
    """Reads calls into the pool; unless it only touches, the operating system is asked for all of it first.

    Args:
        conninfo: of any database of the server.
        server_started: is told when the server was started, at each connection.
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
            self._files.ask(ahead)
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


def _read_pool(
    conninfo: str,
    plan: RestorePlan,
    options: RestoreOptions,
    stop: threading.Event,
    listener: Listener | None,
) -> WorkOutcome:
    work: Work

    def reader() -> HeatReader:
        return HeatReader(conninfo, work.server_started, files)

    files = _files(plan)
    probe = LatencyProbe(conninfo)
    work = Work(
        plan.calls(),
        reader,
        options.work(plan.access.server.block_size_bytes, pool=True),
        total_blocks=plan.sums.read_blocks + plan.sums.touches,
        probe=probe,
    )
    try:
        return work.run(stop, None if listener is None else listener.state)
    finally:
        probe.close()


def _files(plan: RestorePlan) -> FileReader | None:
    """Return the server's files, where they are on this host."""
    access = plan.access
    if not access.sees_page_cache or access.postmaster_pid is None:
        return None
    return FileReader(
        find_data_files(access.postmaster_pid, access.server.version_num),
        places_of((target.database, target.oid, target.fork[:3]) for target in plan.targets),
        access.server.block_size_bytes,
        access.segment_blocks,
    )


def _read_pages(
    conninfo: str,
    plan: RestorePlan,
    options: RestoreOptions,
    stop: threading.Event,
    listener: Listener | None,
) -> WorkOutcome:
    files = _files(plan)

    def reader() -> PageCacheReader | PrewarmReader:
        return PrewarmReader(conninfo, "read") if files is None else PageCacheReader(files)

    probe = LatencyProbe(conninfo, files)
    work = Work(
        plan.pages, reader, options.work(plan.access.server.block_size_bytes, pool=False), probe=probe
    )
    try:
        return work.run(stop, None if listener is None else listener.state)
    finally:
        probe.close()


def _with_errors(rows: Sequence[HeatRelation], troubles: Sequence[WarmTrouble]) -> list[HeatRelation]:
    why = {(trouble.database, trouble.schema, trouble.relation): trouble.why for trouble in troubles}
    return [
        msgspec.structs.replace(row, error=why.get((row.database, row.schema, row.relation))) for row in rows
    ]
