"""A load in one transaction: all of it or nothing, in one session, without a journal.

The server itself undoes it where a process dies. Only if the connection is lost before the answer to COMMIT
arrives, it is not known whether the transaction was committed; then a new session asks for its status.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.load.copying import (
    CopyState,
    LoadListener,
    chunks_of,
    refused_in_one,
    rejects_of,
    target_of,
    too_many,
    too_many_unreadable,
    unmoved_sequences,
)
from pgsweep.load.document import LoadDocument
from pgsweep.load.objects import journal_indexes, which_indexes
from pgsweep.load.partition import NewPartition
from pgsweep.load.rebuild import make_all_here
from pgsweep.load.rejects import write_rejects
from pgsweep.load.split import Chunk, records_of
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DriverError
from pgsweep.pg.load_catalog import Catalog, Column, differences, read_facts
from pgsweep.pg.load_copy import (
    BadRow,
    CopyTarget,
    Records,
    copy_with_path,
    copy_without_refused,
    open_session,
    savepoint,
    wrong_count,
)
from pgsweep.pg.load_journal import JournalObject, Reject, claim
from pgsweep.pg.load_progress import wal_position
from pgsweep.pg.load_work import (
    analyze,
    current_xid,
    drop_objects,
    failure_of,
    is_empty,
    lock_now,
    outcome_of,
    transaction,
    truncate,
)
from pgsweep.pg.retry import awaited
from pgsweep.records.load import LoadOutcome, LoadStep

_PATIENCE_SECONDS: Final = 30.0


class _Stopped(Exception):
    """The user has stopped the load: the transaction is undone."""


def load_in_one(
    conninfo: str,
    control: Connection,
    catalog: Catalog,
    document: LoadDocument,
    objects: list[JournalObject],
    *,
    listener: LoadListener,
    stop: threading.Event,
    partition: NewPartition | None = None,
) -> LoadOutcome:
    """Load in one transaction.

    Args:
        partition: the table is made first, and attached at the end.

    Raises:
        PgsweepError: nothing was changed, unless the message says that it is not known.
    """
    begin = time.monotonic()
    table = document.table
    if partition is None:
        claim(control, table.oid)
    work = _Work(control, document, catalog.columns, listener, stop)
    wal = wal_position(control)
    xid: int | None = None
    steps: list[LoadStep] = []
    ended = "loaded"
    try:
        with transaction(control):
            if partition is not None:
                catalog = partition.make(control)
                table = catalog.table
                document = msgspec.structs.replace(document, table=table)
                objects = journal_indexes(which_indexes(catalog, document.options, None))
                work = _Work(control, document, catalog.columns, listener, stop)
            # Within the transaction: COPY FREEZE wants the table truncated by the same (sub)transaction.
            if objects or document.target.freeze:
                lock_now(control, table, "ACCESS EXCLUSIVE", note=listener.note)
            xid = current_xid(control)
            if document.target.freeze:
                if is_empty(control, table):
                    truncate(control, table)
                else:
                    work.target = msgspec.structs.replace(work.target, freeze=False)
                    listener.note("the table is not empty, so its new rows are not frozen at once")
            drop_objects(control, objects)
            listener.stage("copying")
            started = time.monotonic()
            work.run()
            steps.append(LoadStep(what="copying", seconds=round(time.monotonic() - started, 3)))
            if objects:
                listener.stage("making indexes")
            steps += make_all_here(control, document, objects)
            if partition is not None:
                listener.stage("attaching")
                steps += partition.attach(control, catalog, listener.note)
            if table.owned and not document.options.vacuum:
                started = time.monotonic()
                analyze(control, table, vacuum=False)
                steps.append(LoadStep(what="analyzing", seconds=round(time.monotonic() - started, 3)))
    except _Stopped:
        ended = "interrupted"
        work.state = CopyState()
    except DriverError as error:
        if not control.closed:
            raise failure_of(error) from error
        if xid is None or not _was_committed(conninfo, xid):
            lost = failure_of(error)
            lost.cause = f"{lost.cause or 'the session ended'}; nothing of the load is in the table"
            raise lost from error
        control = open_session(conninfo)
    if ended == "loaded" and table.owned and document.options.vacuum:
        started = time.monotonic()
        analyze(control, table, vacuum=True)
        steps.append(LoadStep(what="vacuuming", seconds=round(time.monotonic() - started, 3)))
    if document.rejects_file is not None and ended == "loaded":
        write_rejects(Path(document.rejects_file), document.inputs, document.options.encoding, work.rejects)
    if partition is not None:
        changes = partition.changes(control)
    else:
        changes = differences(catalog.facts, read_facts(control, table.oid))
    # A new partition takes the values of the sequences of its parent, once it is attached.
    columns = work.columns if partition is None else partition.parent.columns
    after = wal_position(control)
    return LoadOutcome(
        ended=ended,
        load_id="",
        rows=work.state.rows,
        rejected=len(work.rejects),
        copied_bytes=work.state.done_bytes,
        seconds=round(time.monotonic() - begin, 3),
        wal_bytes=None if wal is None or after is None else after - wal,
        jobs=1,
        resumed=False,
        unchanged=not changes,
        steps=steps,
        problems=changes,
        rejects_file=document.rejects_file,
        notes=unmoved_sequences(columns, document.plan.columns, work.state.rows),
    )


class _Work:
    """The copying, within the transaction that is open."""

    def __init__(
        self,
        connection: Connection,
        document: LoadDocument,
        columns: list[Column],
        listener: LoadListener,
        stop: threading.Event,
    ) -> None:
        self._connection = connection
        self._document = document
        self.columns = columns
        self._listener = listener
        self._stop = stop
        self.target: CopyTarget = document.target
        self.rejects: list[Reject] = []
        sizes = [entry.size_bytes for entry in document.inputs if entry.compression is None]
        known = len(sizes) == len(document.inputs) and None not in sizes
        self.state = CopyState(total_bytes=sum(size or 0 for size in sizes) if known else None)

    def run(self) -> None:
        """Copy all files."""
        for entry in self._document.inputs:
            for chunk in chunks_of(entry, self._document, self.columns):
                if self._stop.is_set():
                    raise _Stopped
                self.state.rows += self._chunk(chunk)
                self.state.done_bytes += chunk.source_bytes
                self.state.own_bytes += chunk.source_bytes
                self.state.rejected = len(self.rejects)
                self._listener.state(self.state)

    def _chunk(self, chunk: Chunk) -> int:
        document, entry = self._document, self._document.inputs[chunk.file]
        target, path = target_of(self.target, chunk), document.path
        most = document.options.max_rejects
        left = (most or 0) - len(self.rejects) - len(chunk.refused)
        records: Records | None = None
        found: list[Reject] = []

        def note(rows: int, refused: Sequence[tuple[int, str]]) -> None:
            # A trigger may leave rows out, so there may be fewer.
            fewer_is_fine = document.table.insert_triggers and not document.options.disable_triggers
            sent = rows if chunk.records is None else chunk.records - len(refused)
            if rows != sent and not (fewer_is_fine and rows < sent):
                raise wrong_count(sent, rows)
            found[:] = rejects_of(entry, chunk, target, records, refused)

        if left < 0:
            raise too_many_unreadable(most or 0, entry, chunk.refused[-1])
        try:
            # COPY FREEZE wants the table truncated in the same subtransaction.
            with nullcontext() if most is None else savepoint(self._connection):
                rows = copy_with_path(self._connection, target, chunk.parts, path)
                note(rows, ())
        except BadRow as bad:
            if most is None or chunk.records is None:
                raise refused_in_one(entry, document, chunk, bad) from bad
            records = records_of(entry, document.options, chunk)
            try:
                rows = copy_without_refused(
                    self._connection, target, records, bad, path=path, most=left, at_once=False, note=note
                )
            except BadRow as last:
                raise too_many(most, entry, document, chunk, last) from last
        self.rejects += found
        return rows


def _was_committed(conninfo: str, xid: int) -> bool:
    """Return whether the transaction was committed, as a new session sees it.

    Raises:
        PgsweepError: the server cannot be asked.
    """
    away: Exception | None = None

    def outcome() -> str | None:
        nonlocal away
        try:
            with open_session(conninfo) as connection:
                found = outcome_of(connection, xid)
        except (ConnectionFailed, DriverError) as error:
            away = error
            return None
        away = None
        return None if found == "in progress" else found or "long ago"

    ended = awaited(outcome, seconds=_PATIENCE_SECONDS, pause_seconds=0.5)
    if ended is not None:
        return ended == "committed"
    if away is not None:
        raise PgsweepError(
            "the connection was lost, and whether the load was committed is not known",
            cause="the server was stopped, and has not been started again",
            hint=f"when it runs again: psql -d NAME -c \"SELECT pg_xact_status('{xid}')\"",
        ) from away
    raise PgsweepError(
        "the connection was lost, and the transaction is still in progress on the server",
        hint=f"ask later: psql -d NAME -c \"SELECT pg_xact_status('{xid}')\"",
    )
