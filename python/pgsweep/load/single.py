"""A load in one transaction: all of it or nothing, in one session, without a journal.

The server itself undoes it where a process dies. Only if the connection is lost before the answer to COMMIT
arrives, it is not known whether the transaction was committed; then a new session asks for its status.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import msgspec

from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.load.copying import (
    CopyState,
    LoadListener,
    step_since,
    unmoved_sequences,
)
from pgsweep.load.document import LoadDocument
from pgsweep.load.objects import journal_indexes, which_indexes
from pgsweep.load.partition import NewPartition
from pgsweep.load.rebuild import make_all_here
from pgsweep.load.refusing import Refused
from pgsweep.load.rejects import leave_rejects, write_rejects
from pgsweep.load.whole import OneTransaction, Stopped
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DriverError
from pgsweep.pg.load_catalog import Catalog, check_as_planned, differences, read_facts
from pgsweep.pg.load_copy import open_session
from pgsweep.pg.load_journal import JournalObject, claim
from pgsweep.pg.load_lock import lock_now
from pgsweep.pg.load_progress import wal_position
from pgsweep.pg.load_work import (
    analyze,
    current_xid,
    dead_rows,
    drop_objects,
    failure_of,
    is_empty,
    outcome_of,
    truncate,
)
from pgsweep.pg.retry import awaited
from pgsweep.records.load import LoadOutcome, LoadStep
from pgsweep.units import format_many

_PATIENCE_SECONDS: Final = 30.0


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
    work = OneTransaction(control, document, listener, stop)
    wal = wal_position(control)
    xid: int | None = None
    steps: list[LoadStep] = []
    notes: list[str] = []
    ended = "loaded"
    try:
        with control.transaction():
            if partition is not None:
                catalog = partition.make(control)
                table = catalog.table
                work.document = msgspec.structs.replace(document, table=table, columns=catalog.columns)
                objects = journal_indexes(which_indexes(catalog, document.options, None))
            # Within the transaction: COPY FREEZE wants the table truncated by the same (sub)transaction.
            freeze = document.target.freeze
            if partition is None and (objects or freeze or table.may_lock):
                mode = "ACCESS EXCLUSIVE" if objects or freeze else "ROW EXCLUSIVE"
                lock_now(control, table, mode, note=listener.note)
                check_as_planned(control, catalog)
            xid = current_xid(control)
            if freeze and is_empty(control, table):
                truncate(control, table)
            elif freeze:
                target = msgspec.structs.replace(document.target, freeze=False)
                work.document = msgspec.structs.replace(work.document, target=target)
                listener.note("the table is not empty, so its new rows are not frozen at once")
            drop_objects(control, objects)
            listener.stage("copying")
            started = time.monotonic()
            try:
                work.run()
            except Refused as error:
                leave_rejects(document, work.refused_so_far(), error)
                raise
            if partition is None and not table.may_lock:
                check_as_planned(control, catalog)
            steps.append(step_since("copying", started))
            if objects:
                listener.stage("making indexes")
            steps += make_all_here(control, work.document, objects)
            if partition is not None:
                listener.stage("attaching")
                steps += partition.attach(control, catalog, listener.note)
            if table.owned and not document.options.vacuum:
                started = time.monotonic()
                notes += analyze(control, table, document.path, vacuum=False)
                steps.append(step_since("analyzing", started))
    except Stopped:
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
        notes += analyze(control, table, document.path, vacuum=True)
        steps.append(step_since("vacuuming", started))
    if ended == "loaded":
        write_rejects(document, work.rejects)
        if work.rejects and table.owned and not document.options.vacuum:
            notes += dead_rows(control, table)
        if work.left_out:
            notes.append(f"{format_many(work.left_out, 'record')} not in the table: a trigger left them out")
    if partition is not None:
        changes = partition.changes(control)
    else:
        changes = differences(catalog.facts, read_facts(control, table.oid))
    # A new partition takes the values of the sequences of its parent, once it is attached.
    columns = document.columns if partition is None else partition.parent.columns
    after = wal_position(control)
    return LoadOutcome(
        ended=ended,
        load_id="",
        rows=work.state.rows,
        copied_rows=work.state.rows,
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
        notes=notes + unmoved_sequences(columns, document.plan.columns, work.state.rows),
        headers=document.headers,
    )


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
