"""A load in one transaction: all of it or nothing, in one session, without a journal.

The server itself undoes it where a process dies. Only if the connection is lost before the answer to COMMIT
arrives, it is not known whether the transaction was committed; then a new session asks for its status.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from pgsweep.errors import ConnectionFailed, PgsweepError
from pgsweep.load.copying import (
    CopyState,
    LoadListener,
    Refused,
    chunks_of,
    line_of,
    records_of,
    refused_in_one,
    rows_of,
    too_many,
    unmoved_sequences,
)
from pgsweep.load.document import LoadDocument
from pgsweep.load.objects import journal_indexes, which_indexes
from pgsweep.load.partition import NewPartition
from pgsweep.load.rebuild import make_all_here
from pgsweep.load.rejects import write_rejects
from pgsweep.load.source import Chunk, Input
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DriverError
from pgsweep.pg.load_catalog import Catalog, Column, check_as_planned, differences, read_facts
from pgsweep.pg.load_copy import (
    BadRow,
    CopyTarget,
    copy_carefully,
    copy_with_path,
    open_session,
    record_of_line,
    savepoint,
    settle,
    wrong_count,
)
from pgsweep.pg.load_journal import JournalObject, Reject, claim
from pgsweep.pg.load_lock import lock_now, transaction
from pgsweep.pg.load_progress import wal_position
from pgsweep.pg.load_work import (
    analyze,
    current_xid,
    drop_objects,
    failure_of,
    is_empty,
    outcome_of,
    truncate,
)
from pgsweep.pg.retry import awaited
from pgsweep.records.load import LoadOutcome, LoadStep

_PATIENCE_SECONDS: Final = 30.0

_SENT_KEPT_BYTES: Final = 16 << 20
"""How much of what was sent is kept: the server complains of a record that was sent shortly before."""

Part = bytes | memoryview


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
    notes: list[str] = []
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
                check_as_planned(control, catalog)
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
                notes += analyze(control, table, document.path, vacuum=False)
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
        notes += analyze(control, table, document.path, vacuum=True)
        steps.append(LoadStep(what="vacuuming", seconds=round(time.monotonic() - started, 3)))
    if document.rejects_file is not None and ended == "loaded":
        write_rejects(Path(document.rejects_file), [entry.path for entry in document.inputs], work.rejects)
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
        notes=notes + unmoved_sequences(columns, document.plan.columns, work.state.rows),
    )


@dataclass(frozen=True)
class _Sent:
    """A piece of a file within one COPY.

    Attributes:
        before: lines that COPY had read before it.
        numbers: of its records that were sent; None for all.
    """

    chunk: Chunk
    before: int
    numbers: list[int] | None


class _Work:
    """The copying, within the transaction that is open.

    Each file is one COPY: what looks at statements sees what it would see in psql. Only where records may be
    refused, and nothing looks, each piece is a statement, so that one record costs no more than its piece.
    """

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
        self._found: dict[tuple[int, int, int], Reject] = {}
        self._sent: deque[_Sent] = deque()
        sizes = [entry.size_bytes for entry in document.inputs if entry.compression is None]
        known = len(sizes) == len(document.inputs) and None not in sizes
        self.state = CopyState(total_bytes=sum(size or 0 for size in sizes) if known else None)

    @property
    def rejects(self) -> list[Reject]:
        """The records that were refused, in their order."""
        return [self._found[place] for place in sorted(self._found)]

    def run(self) -> None:
        """Copy all files."""
        most = self._document.options.max_rejects
        if most is not None and not self._document.plan.one_statement:
            for chunk in self._chunks():
                self._add(chunk, self._carefully(chunk, most))
            settle(self._connection, self.target, self._document.path)
            return
        while True:
            before = len(self._found)
            try:
                if most is None:
                    self._whole()
                else:
                    with savepoint(self._connection):
                        self._whole()
            except BadRow as bad:
                error = self._refuse(bad, most)
                if error is not None:
                    raise error from bad
                assert len(self._found) > before
                self.state = CopyState(total_bytes=self.state.total_bytes, rejected=len(self._found))
                continue
            return

    def _whole(self) -> None:
        for entry in self._document.inputs:
            self._sent.clear()
            counts: list[int | None] = []
            rows = copy_with_path(
                self._connection, self.target, self._parts(entry, counts), self._document.path
            )
            known = None not in counts
            self._check_count(rows, sum(count or 0 for count in counts) if known else None)
            self.state.rows += rows
        self._sent.clear()
        settle(self._connection, self.target, self._document.path)

    def _parts(self, entry: Input, counts: list[int | None]) -> Iterator[Part]:
        """Yield what of a file is copied, and note how many records each piece has."""
        for chunk in self._chunks(entry):
            parts, count = self._send(chunk)
            counts.append(count)
            yield from parts
            self._add(chunk, 0)

    def _chunks(self, only: Input | None = None) -> Iterator[Chunk]:
        for entry in self._document.inputs if only is None else [only]:
            for chunk in chunks_of(entry, self._document, self.columns):
                if self._stop.is_set():
                    raise _Stopped
                yield chunk

    def _add(self, chunk: Chunk, rows: int) -> None:
        self.state.rows += rows
        self.state.done_bytes += chunk.source_bytes
        self.state.own_bytes += chunk.source_bytes
        self.state.rejected = len(self._found)
        self._listener.state(self.state)

    def _send(self, chunk: Chunk) -> tuple[Sequence[Part], int | None]:
        """Return what of a piece is copied, and how many records that are."""
        while sum(sent.chunk.source_bytes for sent in self._sent) > _SENT_KEPT_BYTES and len(self._sent) > 1:
            self._sent.popleft()
        out = {number for file, piece, number in self._found if (file, piece) == (chunk.file, chunk.piece)}
        before = self._sent[-1].before + _lines(self._sent[-1]) if self._sent else 0
        if not out:
            self._sent.append(_Sent(chunk, before, None))
            return chunk.parts, chunk.records
        records = self._records(chunk)
        numbers = [number for number in range(len(records)) if number not in out]
        left = [records[number] for number in numbers]
        kept = Chunk(chunk.file, chunk.piece, left, len(left), chunk.source_bytes, chunk.first_line)
        self._sent.append(_Sent(kept, before, numbers))
        return left, len(left)

    def _records(self, chunk: Chunk) -> list[bytes]:
        return records_of(self._document.inputs[chunk.file], self._document, chunk)

    def _refuse(self, bad: BadRow, most: int | None) -> PgsweepError | None:
        """Note the records that an error is about; return the error of ours where the load ends with it."""
        partition = self._document.options.partition_of is not None
        for sent in reversed(self._sent):
            if bad.line is not None and bad.line > sent.before:
                entry = self._document.inputs[sent.chunk.file]
                here = BadRow(bad.line - sent.before, bad.column, bad.reason)
                if most is None:
                    return refused_in_one(entry, sent.chunk, here, partition=partition)
                records = self._records(sent.chunk)
                at = record_of_line(records, here.line)
                if at is not None:
                    number = at if sent.numbers is None else sent.numbers[at]
                    whole = self._again(sent.chunk)
                    return self._note(whole, [number], bad, most)
        found = list(self._with_key(bad))
        if bad.duplicate:
            # The first of them may stay.
            found = [(chunk, numbers[-1:]) for chunk, numbers in found[-1:]]
        for chunk, numbers in found:
            if most is None:
                entry, records = self._document.inputs[chunk.file], self._records(chunk)
                line = line_of(entry, chunk, records, numbers[0]) - chunk.first_line + 1
                here = BadRow(line, bad.column, bad.reason)
                return refused_in_one(entry, chunk, here, partition=partition)
            error = self._note(chunk, numbers, bad, most)
            if error is not None:
                return error
        if found:
            return None
        return Refused(
            bad.reason,
            cause="the server refuses a record, and does not say which; nothing of the load is in the table",
            hint="correct the records with these values",
        )

    def _again(self, wanted: Chunk) -> Chunk:
        """Return a piece with all its records."""
        entry = self._document.inputs[wanted.file]
        return next(chunk for chunk in self._chunks(entry) if chunk.piece == wanted.piece)

    def _note(self, chunk: Chunk, numbers: list[int], bad: BadRow, most: int) -> PgsweepError | None:
        entry, records = self._document.inputs[chunk.file], self._records(chunk)
        for number in numbers:
            line = line_of(entry, chunk, records, number)
            self._found[chunk.file, chunk.piece, number] = Reject(
                file=chunk.file, line=line, reason=bad.reason, record=records[number]
            )
            if len(self._found) > most:
                here = BadRow(line - chunk.first_line + 1, bad.column, bad.reason)
                return too_many(most, entry, chunk, here)
        return None

    def _with_key(self, bad: BadRow) -> Iterator[tuple[Chunk, list[int]]]:
        """Yield the pieces with records that have the key of an error, and the numbers of these."""
        names = self._document.plan.columns
        if bad.key is None or not set(bad.key[0]) <= set(names) or self.target.format == "binary":
            return
        if any(entry.identity is None for entry in self._document.inputs):
            return
        places = [names.index(name) for name in bad.key[0]]
        for chunk in self._chunks():
            if not all(value.encode() in b"".join(chunk.parts) for value in bad.key[1]):
                continue
            numbers = []
            for number, record in enumerate(self._records(chunk)):
                if (chunk.file, chunk.piece, number) in self._found:
                    continue
                [fields] = rows_of([record], self.target) or [[]]
                if len(fields) == len(names) and [fields[at] for at in places] == bad.key[1]:
                    numbers.append(number)
            if numbers:
                yield chunk, numbers

    def _carefully(self, chunk: Chunk, most: int) -> int:
        """Copy a piece without the records that the server refuses, and return the rows."""
        entry = self._document.inputs[chunk.file]
        try:
            with savepoint(self._connection):
                rows = copy_with_path(self._connection, self.target, chunk.parts, self._document.path)
                self._check_count(rows, chunk.records)
                return rows
        except BadRow:
            records = self._records(chunk)
            left = most - len(self._found)
            try:
                rows, found = copy_carefully(
                    self._connection, self.target, records, path=self._document.path, most=left
                )
            except BadRow as last:
                raise too_many(most, entry, chunk, last) from last
            for number, reason in found:
                line = line_of(entry, chunk, records, number)
                self._found[chunk.file, chunk.piece, number] = Reject(
                    file=chunk.file, line=line, reason=reason, record=records[number]
                )
            return rows

    def _check_count(self, rows: int, records: int | None) -> None:
        # A trigger may leave rows out, so there may be fewer.
        fewer_is_fine = self._document.table.insert_triggers and not self._document.options.disable_triggers
        if records is not None and rows != records and not (fewer_is_fine and rows < records):
            raise wrong_count(records, rows)


def _lines(sent: _Sent) -> int:
    """Return how many lines COPY counts in a piece."""
    data = b"".join(sent.chunk.parts)
    return data.count(b"\n") or data.count(b"\r")


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
