"""`pgsweep warm plan` and `pgsweep warm run`: gather, plan, read, verify.

    result = plan(conninfo, WarmOptions(into="pool"))
    result = run(conninfo, WarmOptions(into="pool"), stop=stop, listener=listener)

Into the pool everything goes through the server, by pg_prewarm. Into the page cache it goes past the server
where its files can be reached, else through it too, in pg_prewarm's mode read.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from pgsweep.pg.catalog.backends import fewer_note
from pgsweep.pg.session.connect import connect
from pgsweep.pg.session.refusals import explained
from pgsweep.progress import Listener, NullListener
from pgsweep.records.warm import WarmRate, WarmResult, WarmStatement, WarmTrouble, WarmVerified, WarmWork
from pgsweep.warm.block_ranges import Call
from pgsweep.warm.outcome import WorkOutcome, WorkState, nothing_at_all
from pgsweep.warm.readers import LatencyProbe, PageCacheReader, PrewarmReader
from pgsweep.warm.run.journal import Header, Journal
from pgsweep.warm.run.prepare import Planned, WarmOptions, order_words, prepare
from pgsweep.warm.run.rate import assumed_rate, measure_rate
from pgsweep.warm.run.reread_evicted import look_again, read_and_gone_bytes, reread_evicted
from pgsweep.warm.run.rows import ReadBlocks, relation_rows
from pgsweep.warm.run.verify import Resident, look
from pgsweep.warm.session import PrewarmSession, Read, others_note
from pgsweep.warm.work import Reader, Work
from pgsweep.warm.written import Writer


def plan(
    conninfo: str,
    options: WarmOptions,
    *,
    assumed_bytes_per_second: float | None = None,
) -> WarmResult:
    """Return what would be read, in which order and why, and how long it would take.

    To estimate the time, a sample is read in mode read, some tens of MB at most, which may stay in the page
    cache; the buffer pool is left alone. With an assumed rate nothing is read.

    Raises:
        UsageError: there is no such relation.
        ConnectionFailed: the server cannot be reached.
        MissingAbility: pg_prewarm is not there, or nothing may be read.
    """
    planned = prepare(conninfo, options)
    if assumed_bytes_per_second is not None:
        rate: WarmRate | None = assumed_rate(assumed_bytes_per_second)
    else:
        pieces = [*planned.pool, *planned.page_cache]
        rate = measure_rate(conninfo, pieces, planned.files, planned.block_bytes, planned.options.connections)
    return _result(planned, "plan", rate=rate)


def dry_run(conninfo: str, options: WarmOptions) -> WarmResult:
    """Return the plan with every statement and system call that would carry it out; nothing is read.

    Raises:
        UsageError, ConnectionFailed, MissingAbility: as in plan.
    """
    planned = prepare(conninfo, options)
    pool, page_cache = planned.calls()
    statements = []
    with connect(conninfo) as connection, explained():
        writer = Writer(connection)
        for calls, mode in ((pool, "buffer"), (page_cache, planned.mode)):
            for call in calls:
                if mode == "kernel":
                    assert planned.files is not None
                    text = planned.files.reading(call.pieces)
                else:
                    text = writer.text(call.pieces, mode)
                size = call.blocks * planned.block_bytes
                statements.append(WarmStatement(database=call.database, text=text, size_bytes=size))
    return _result(planned, "dry run", statements=statements)


def run(
    conninfo: str,
    options: WarmOptions,
    *,
    stop: threading.Event | None = None,
    listener: Listener[WorkState] | None = None,
    journal: Path | None = None,
    resume: Path | None = None,
) -> WarmResult:
    """Carry the plan out, and verify the result.

    Args:
        conninfo: as libpq understands it.
        options: what, and how.
        stop: ends it in good order after the calls that are under way.
        listener: called with lines for the user and with the progress.
        journal: where to write down what is done; it stays only where not all is done.
        resume: the journal of a run that did not finish; it says what to read, and is gone on with.

    Raises:
        UsageError: there is no such relation, or no such journal.
        ConnectionFailed: the server cannot be reached, or went away and stayed away.
        MissingAbility: pg_prewarm is not there, or nothing may be read.
    """
    heard = listener or NullListener()
    planned = prepare(conninfo, options, resume=resume)
    spared = planned.options.connections
    if spared < options.connections:
        heard.note(fewer_note(spared, options.connections))
    before = look(conninfo, planned.pool, planned.page_cache, planned.found.places, options.source)
    written = None
    calls = planned.calls()
    if journal is not None and (planned.asked_bytes or resume is not None):
        written = Journal(journal, _header(planned), *calls)
    marker = (
        None if planned.files is not None and not planned.pool else PrewarmSession(conninfo, None, "read")
    )
    finished = False
    stop = stop or threading.Event()
    read = ReadBlocks()
    try:
        others = 0 if marker is None else marker.others_warming()
        if others:
            heard.note(others_note(others))
        outcome = _carry_out(planned, calls, stop, heard, written, read)
        finished = not outcome.stopped
        error = nothing_at_all(outcome)
        if error is not None:
            raise error
        after = look_again(planned, stop)
        back = reread_evicted(planned, outcome, after, stop, heard.state, read)
    finally:
        if marker is not None:
            marker.close()
        if written is not None:
            written.close(remove=finished)
    block_bytes = planned.block_bytes
    read_bytes = outcome.read_blocks * block_bytes
    work = WarmWork(
        connections=spared,
        mode=_modes(planned),
        asked_bytes=outcome.asked_blocks * block_bytes,
        read_bytes=read_bytes,
        again_bytes=outcome.again_blocks * block_bytes,
        pushed_out_bytes=back.pushed_out_bytes,
        brought_back_seconds=back.seconds,
        seconds=outcome.seconds,
        bytes_per_second=(read_bytes + outcome.again_blocks * block_bytes) / max(outcome.seconds, 1e-9),
        reconnects=outcome.reconnects,
        pauses=outcome.pauses,
        paused_seconds=outcome.paused_seconds,
        stopped=outcome.stopped,
        other_warmers=others,
        journal=str(journal) if written is not None and not finished else None,
        troubles=_with_tables(planned, outcome.troubles),
    )
    return _result(planned, "run", work=work, before=before, after=back.after, read=read)


def _with_tables(planned: Planned, troubles: Sequence[WarmTrouble]) -> list[WarmTrouble]:
    """Return the troubles, those of TOAST relations with the names of their tables."""
    if not troubles:
        return []
    tables = {
        (piece.database, piece.schema, piece.relation): table
        for piece in planned.found.pieces
        if (table := planned.found.tables.get((piece.database, piece.oid))) is not None
    }
    named = []
    for trouble in troubles:
        of = tables.get((trouble.database, trouble.schema, trouble.relation), ("", ""))
        named.append(msgspec.structs.replace(trouble, table_schema=of[0], table=of[1]))
    return named


def _header(planned: Planned) -> Header:
    return Header(
        server=planned.found.server.version,
        started_us=planned.started_us,
        block_size_bytes=planned.block_bytes,
        into=planned.options.into,
        mode=planned.mode,
        run=planned.run,
    )


def _carry_out(
    planned: Planned,
    both: tuple[list[Call], list[Call]],
    stop: threading.Event,
    listener: Listener[WorkState],
    journal: Journal | None,
    read: ReadBlocks,
) -> WorkOutcome:
    """Do the calls of the pool, then those of the page cache."""
    pool, page_cache = both
    total = WorkOutcome()
    for calls, mode in ((pool, "buffer"), (page_cache, planned.mode)):
        if not calls:
            continue
        if stop.is_set():
            total.calls_left += len(calls)
            total.asked_blocks += sum(call.blocks for call in calls)
            total.stopped = True
            continue
        total.add(_work(planned, calls, mode, stop, listener.state, journal, read))
    return total


def _work(
    planned: Planned,
    calls: list[Call],
    mode: str,
    stop: threading.Event,
    progress: Callable[[WorkState], None],
    journal: Journal | None,
    counted: ReadBlocks,
) -> WorkOutcome:
    work: Work
    files = planned.files if mode == "kernel" else None

    def reader() -> Reader:
        if files is not None:
            return PageCacheReader(files)
        return PrewarmReader(planned.conninfo, mode, server_started=work.server_started)

    def done(call: Call, read: Read) -> None:
        counted.add(call, read, pool=mode == "buffer")
        if journal is not None:
            journal.done(call, read.blocks)

    def undone() -> None:
        counted.pool_lost()
        if journal is not None:
            journal.undone()

    probe = LatencyProbe(planned.conninfo, files)
    work = Work(
        calls,
        reader,
        planned.options.work(planned.block_bytes, pool=mode == "buffer"),
        done=done,
        undone=undone,
        probe=probe,
    )
    try:
        return work.run(stop, progress)
    finally:
        probe.close()


def _modes(planned: Planned) -> str:
    modes = [
        mode for mode, pieces in (("buffer", planned.pool), (planned.mode, planned.page_cache)) if pieces
    ]
    return ", ".join(modes) or planned.mode


def _result(
    planned: Planned,
    action: str,
    *,
    rate: WarmRate | None = None,
    statements: list[WarmStatement] | None = None,
    work: WarmWork | None = None,
    before: Resident | None = None,
    after: Resident | None = None,
    read: ReadBlocks | None = None,
) -> WarmResult:
    server = planned.found.server
    verified = None
    if before is not None and after is not None:
        verified = WarmVerified(
            source=after.source,
            pool_asked_bytes=sum(piece.blocks for piece in planned.pool) * planned.block_bytes,
            pool_before_bytes=before.pool_bytes,
            pool_bytes=after.pool_bytes,
            gone_bytes=0 if read is None else read_and_gone_bytes(planned, after, read),
            page_cache_asked_bytes=planned.asked_bytes,
            page_cache_before_bytes=before.page_cache_bytes,
            page_cache_bytes=after.page_cache_bytes,
        )
    expected = None
    if rate is not None:
        speed = min(rate.bytes_per_second, planned.options.rate_bytes_per_second or rate.bytes_per_second)
        expected = planned.asked_bytes / speed
    return WarmResult(
        action=action,
        server_version=server.version,
        database=server.database,
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
        block_size_bytes=planned.block_bytes,
        into=planned.options.into,
        mode=_modes(planned),
        heat_source=order_words(planned),
        heat_file=None if planned.options.heat is None else planned.options.heat.source,
        statistics_since=planned.found.counted_since,
        budgets=planned.budgets,
        asked_bytes=planned.asked_bytes,
        left_out_bytes=sum(piece.blocks for piece in planned.left_out) * planned.block_bytes,
        rate=rate,
        expected_seconds=expected,
        relations=relation_rows(
            planned.pool,
            planned.page_cache,
            planned.left_out,
            planned.block_bytes,
            tables=planned.found.tables,
            blocks=planned.found.blocks,
            resident=after,
            read=read,
        ),
        refused=planned.found.refused,
        statements=statements or [],
        work=work,
        verified=verified,
        missing=[*planned.missing, *(after.missing if after is not None else [])],
    )
