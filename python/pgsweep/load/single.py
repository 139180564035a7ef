"""A load in one transaction: all of it or nothing, in one session, without a journal.

The server itself undoes it where a process dies. Only if the connection is lost before the answer to COMMIT
arrives, it is not known whether the transaction was committed; then a new session asks for its status.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import msgspec

from pgsweep.commands import on_server
from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.load.agreed import Agreed
from pgsweep.load.copying import (
    CopyState,
    LoadListener,
    step_since,
    unmoved_sequences,
)
from pgsweep.load.objects import journal_indexes, which_indexes
from pgsweep.load.rebuild import make_all_here
from pgsweep.load.refusing import Refused
from pgsweep.load.rejects import leave_rejects, write_rejects
from pgsweep.load.whole import OneTransaction, Stopped
from pgsweep.pg.load.catalog import check_as_planned, differences, read_facts
from pgsweep.pg.load.copy import open_session
from pgsweep.pg.load.journal import claim
from pgsweep.pg.load.lock import lock_now
from pgsweep.pg.load.progress import wal_position
from pgsweep.pg.load.work import (
    analyze,
    current_xid,
    dead_rows,
    drop_objects,
    failure_of,
    is_empty,
    outcome_of,
    truncate,
)
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import DriverError
from pgsweep.pg.session.retry import awaited
from pgsweep.records.load import LoadOutcome, LoadStep
from pgsweep.units import format_many

_PATIENCE_SECONDS: Final = 30.0


def load_in_one(
    conninfo: str, control: Connection, agreed: Agreed, *, listener: LoadListener, stop: threading.Event
) -> LoadOutcome:
    """Load in one transaction as was agreed; a partition is made first, and attached at the end.

    Raises:
        PgsweepError: nothing was changed, unless the message says that it is not known.
    """
    begin = time.monotonic()
    if agreed.partition is None:
        claim(control, agreed.catalog.table.oid)
    load = _Load(control, agreed, listener, stop)
    wal = wal_position(control)
    ended = "loaded"
    try:
        with control.transaction():
            load.run()
    except Stopped:
        ended = "interrupted"
        load.work.state = CopyState()
    except DriverError as error:
        if not control.closed:
            raise failure_of(error) from error
        if load.xid is None or not _was_committed(conninfo, load.xid):
            lost = failure_of(error)
            lost.cause = f"{lost.cause or 'the session ended'}; nothing of the load is in the table"
            raise lost from error
        load.control = control = open_session(conninfo)
    if ended == "loaded":
        load.finish()
    changes = load.changes()
    after = wal_position(control)
    document, state = agreed.document, load.work.state
    # A new partition takes the values of the sequences of its parent, once it is attached.
    columns = document.columns if agreed.partition is None else agreed.partition.parent.columns
    return LoadOutcome(
        ended=ended,
        load_id="",
        rows=state.rows,
        copied_rows=state.rows,
        rejected=len(load.work.rejects),
        copied_bytes=state.done_bytes,
        seconds=round(time.monotonic() - begin, 3),
        wal_bytes=None if wal is None or after is None else after - wal,
        jobs=1,
        resumed=False,
        unchanged=not changes,
        steps=load.steps,
        problems=changes,
        rejects_file=document.rejects_file,
        notes=load.notes + unmoved_sequences(columns, document.plan.columns, state.rows),
        headers=document.headers,
    )


class _Load:
    """A load in one transaction, while it is under way."""

    def __init__(
        self, control: Connection, agreed: Agreed, listener: LoadListener, stop: threading.Event
    ) -> None:
        self.control = control
        self.work = OneTransaction(control, agreed.document, listener, stop)
        self.xid: int | None = None
        self.steps: list[LoadStep] = []
        self.notes: list[str] = []
        self._document = agreed.document
        self._partition = agreed.partition
        self._catalog, self._objects = agreed.catalog, agreed.objects
        self._listener = listener

    def run(self) -> None:
        """Do all that belongs into the transaction."""
        self._prepare()
        document, partition, listener = self._document, self._partition, self._listener
        drop_objects(self.control, self._objects)
        listener.stage("copying")
        started = time.monotonic()
        try:
            self.work.run()
        except Refused as error:
            leave_rejects(document, self.work.refused_so_far(), error)
            raise
        table = self._catalog.table
        if partition is None and not table.may_lock:
            check_as_planned(self.control, self._catalog)
        self.steps.append(step_since("copying", started))
        if self._objects:
            listener.stage("making indexes")
        self.steps += make_all_here(self.control, self.work.document, self._objects)
        if partition is not None:
            listener.stage("attaching")
            self.steps += partition.attach(self.control, self._catalog, listener.note)
        if table.owned and not document.options.vacuum:
            self._analyze("analyzing", vacuum=False)

    def _prepare(self) -> None:
        """Make the partition, or lock the table and compare it with the plan; truncate it to freeze rows."""
        control, document, work = self.control, self._document, self.work
        if self._partition is not None:
            self._catalog = self._partition.make(control)
            work.document = msgspec.structs.replace(
                document, table=self._catalog.table, columns=self._catalog.columns
            )
            self._objects = journal_indexes(which_indexes(self._catalog, document.options, None))
        table = self._catalog.table
        # Within the transaction: COPY FREEZE wants the table truncated by the same (sub)transaction.
        freeze = document.target.freeze
        if self._partition is None and (self._objects or freeze or table.may_lock):
            mode = "ACCESS EXCLUSIVE" if self._objects or freeze else "ROW EXCLUSIVE"
            lock_now(control, table, mode, note=self._listener.note)
            check_as_planned(control, self._catalog)
        self.xid = current_xid(control)
        if freeze and is_empty(control, table):
            truncate(control, table)
        elif freeze:
            target = msgspec.structs.replace(document.target, freeze=False)
            work.document = msgspec.structs.replace(work.document, target=target)
            self._listener.note("the table is not empty, so its new rows are not frozen at once")

    def finish(self) -> None:
        """Do what comes after the transaction, where it was committed."""
        table, vacuum, work = self._catalog.table, self._document.options.vacuum, self.work
        if table.owned and vacuum:
            self._analyze("vacuuming", vacuum=True)
        write_rejects(self._document, work.rejects)
        if work.rejects and table.owned and not vacuum:
            self.notes += dead_rows(self.control, table)
        if work.left_out:
            left_out = format_many(work.left_out, "record")
            self.notes.append(f"{left_out} not in the table: a trigger left them out")

    def _analyze(self, what: str, *, vacuum: bool) -> None:
        started = time.monotonic()
        self.notes += analyze(self.control, self._catalog.table, self._document.path, vacuum=vacuum)
        self.steps.append(step_since(what, started))

    def changes(self) -> list[str]:
        """Return what differs in the catalog from what it was, or was to be."""
        if self._partition is not None:
            return self._partition.changes(self.control)
        return differences(self._catalog.facts, read_facts(self.control, self._catalog.table.oid))


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
    status = on_server("psql", f"-c \"SELECT pg_xact_status('{xid}')\"")
    if away is not None:
        raise PgsweepError(
            "the connection was lost, and whether the load was committed is not known",
            cause="the server was stopped, and has not been started again",
            hint=f"when it runs again: {status}",
        ) from away
    raise PgsweepError(
        "the connection was lost, and the transaction is still in progress on the server",
        hint=f"ask later: {status}",
    )
