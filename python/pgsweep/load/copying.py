"""Pieces of files copied by several sessions at once, each piece in a transaction of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.load.document import LoadDocument
from pgsweep.load.fields import with_names, without_fields
from pgsweep.load.rows import json_chunks, parquet_chunks
from pgsweep.load.source import FileParts, Input, InputError, Reader, check_unchanged
from pgsweep.load.split import Chunk, line_ends, line_of, read_chunks, records_of
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DeadlockDetected, DriverError, SerializationFailure
from pgsweep.pg.load_catalog import Column
from pgsweep.pg.load_copy import (
    BadRow,
    CopyTarget,
    Records,
    copy_with_path,
    copy_without_refused,
    open_session,
    wrong_count,
)
from pgsweep.pg.load_journal import LoadId, Piece, Reject, add_piece
from pgsweep.pg.load_partition import BOUND_CHECK
from pgsweep.pg.load_work import check_same, failure_of
from pgsweep.pg.retry import repeated
from pgsweep.plain import quoted_where_needed
from pgsweep.progress import Listener, NullListener
from pgsweep.units import format_many

_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 0.2


@dataclass
class CopyState:
    """How far the copying is.

    Attributes:
        total_bytes: of the files, uncompressed; None where that is not known.
        own_bytes: copied by this run: the rate is theirs.
    """

    rows: int = 0
    rejected: int = 0
    done_bytes: int = 0
    own_bytes: int = 0
    total_bytes: int | None = None
    begin: float = field(default_factory=time.monotonic)

    @property
    def bytes_per_second(self) -> float:
        """The rate of this run."""
        return self.own_bytes / max(1e-6, time.monotonic() - self.begin)

    @property
    def left_seconds(self) -> float | None:
        """How long the rest takes at this rate."""
        if self.total_bytes is None or not self.own_bytes:
            return None
        return max(0.0, (self.total_bytes - self.done_bytes) / self.bytes_per_second)


class LoadListener(Listener[CopyState], Protocol):
    """Listens to a load."""

    def stage(self, title: str) -> None:
        """Receive the title of a stage that begins."""

    def building(self, name: str, phase: str, done_ratio: float) -> None:
        """Receive how far an index is."""


class NullLoadListener(NullListener):
    """A `LoadListener` that ignores everything."""

    def building(self, name: str, phase: str, done_ratio: float) -> None:
        """Ignore it."""


class Refused(PgsweepError):
    """A record that the server refuses, with its place in the file."""


def chunks_of(entry: Input, document: LoadDocument, columns: Sequence[Column]) -> Iterator[Chunk]:
    """Yield the pieces of one input in the format of COPY.

    Raises:
        InputError: it cannot be read, or changed since the load began.
    """
    check_unchanged(entry)
    plan = document.plan
    if entry.format == "parquet":
        yield from parquet_chunks(entry, plan.columns, columns, document.options)
    elif entry.format == "binary":
        yield Chunk(entry.number, 0, FileParts(entry), None, entry.size_bytes or 0, 1)
    else:
        with Reader(entry) as reader:
            chunks = read_chunks(
                reader,
                document.options,
                piece_bytes=plan.piece_bytes,
                skip_header=document.headers[entry.number],
            )
            if entry.format == "jsonl":
                chunks = json_chunks(entry, chunks, plan.columns, columns, document.options)
            elif left_out := plan.files[entry.number].left_out:
                count = len(plan.columns) + len(left_out)
                chunks = without_fields(entry, chunks, left_out, count, document.options)
            yield from chunks
    check_unchanged(entry)


class Copier:
    """Copies all pieces that are not in the journal yet.

    Args:
        conninfo: for the sessions.
        load_id: of the journal.
        document: what is loaded and how.
        columns: of the table.
        done: the pieces that are in the journal.
        rejected: records that were refused before.
        listener: receives how far it is.
        stop: ends it after the pieces that are under way.
    """

    def __init__(
        self,
        conninfo: str,
        load_id: LoadId,
        document: LoadDocument,
        columns: Sequence[Column],
        done: Sequence[Piece],
        *,
        rejected: int,
        listener: LoadListener,
        stop: threading.Event,
    ) -> None:
        self._conninfo = conninfo
        self._load_id = load_id
        self._document = document
        self._columns = columns
        self._done = {(piece.file, piece.piece): piece for piece in done}
        self._listener = listener
        self._stop = stop
        self._lock = threading.Lock()
        self._failed: Exception | None = None
        self._queue: queue.Queue[Chunk | None] = queue.Queue(maxsize=document.jobs)
        sizes = [entry.size_bytes for entry in document.inputs if entry.compression is None]
        known = len(sizes) == len(document.inputs) and None not in sizes
        self.state = CopyState(
            rows=sum(piece.rows for piece in done),
            rejected=rejected,
            total_bytes=sum(size or 0 for size in sizes) if known else None,
        )

    def run(self) -> bool:
        """Copy; return whether all is copied, and not stopped before.

        Raises:
            Refused: the server refuses a record.
            InputError: a file cannot be read.
            PgsweepError: another failure.
        """
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self._document.jobs)]
        for thread in threads:
            thread.start()
        whole = False
        try:
            whole = self._feed()
        except Exception as error:
            self._fail(error)
        finally:
            for _ in threads:
                self._put(None)
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_SECONDS)
                    self._listener.state(self.state)
        if self._failed is not None:
            raise self._failed
        return whole

    def _feed(self) -> bool:
        for entry in self._document.inputs:
            for chunk in chunks_of(entry, self._document, self._columns):
                if self._failed is not None or self._stop.is_set():
                    return False
                done = self._done.get((chunk.file, chunk.piece))
                if done is not None:
                    self._check(entry, chunk, done)
                    with self._lock:
                        self.state.done_bytes += chunk.source_bytes
                    continue
                if not self._put(chunk):
                    return False
                self._listener.state(self.state)
        return True

    def _check(self, entry: Input, chunk: Chunk, done: Piece) -> None:
        size = chunk.source_bytes
        if (size, chunk.checksum) != (done.bytes, done.checksum):
            raise InputError(
                f"{entry.name} is not what the load began with: piece {chunk.piece} differs",
                cause="other data was given than to the run that is resumed",
                hint="give the same input again, or undo the load: pgsweep load --rollback TABLE",
            )

    def _put(self, chunk: Chunk | None) -> bool:
        while True:
            if self._failed is not None and chunk is not None:
                return False
            try:
                self._queue.put(chunk, timeout=_POLL_SECONDS)
            except queue.Full:
                if self._failed is not None:
                    # No thread takes what is left.
                    self._drain()
                continue
            return True

    def _drain(self) -> None:
        try:
            while True:
                self._queue.get_nowait()
        except queue.Empty:
            return

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failed = self._failed or error

    def _work(self) -> None:
        try:
            with open_session(self._conninfo, self._document.table.oid) as connection:
                while (chunk := self._queue.get()) is not None:
                    if self._failed is None:
                        self._copy(connection, chunk)
        except DriverError as error:
            self._fail(failure_of(error))
        except Exception as error:
            self._fail(error)

    def _copy(self, connection: Connection, chunk: Chunk) -> None:
        # After either error the server has undone the piece, and it can be copied again.
        rows, rejected = repeated(
            lambda: self._copied(connection, chunk),
            (DeadlockDetected, SerializationFailure),
            tries=_TRIES,
            pause_seconds=_PAUSE_SECONDS,
        )
        with self._lock:
            self.state.rows += rows
            self.state.rejected += rejected
            self.state.done_bytes += chunk.source_bytes
            self.state.own_bytes += chunk.source_bytes

    def _copied(self, connection: Connection, chunk: Chunk) -> tuple[int, int]:
        document, entry = self._document, self._document.inputs[chunk.file]
        target, path = target_of(document.target, chunk), document.path
        most = document.options.max_rejects
        left = (most or 0) - self.state.rejected - len(chunk.refused)
        rejects: list[Reject] = []
        records: Records | None = None

        def note(rows: int, refused: Sequence[tuple[int, str]]) -> None:
            check_same(connection, document.table)
            sent = rows if chunk.records is None else chunk.records - len(refused)
            if rows != sent:
                raise wrong_count(sent, rows)
            rejects[:] = rejects_of(entry, chunk, target, records, refused)
            add_piece(
                connection,
                self._load_id,
                file=chunk.file,
                piece=chunk.piece,
                size_bytes=chunk.source_bytes,
                records=sent + len(rejects),
                rows=rows,
                checksum=chunk.checksum,
                rejects=rejects,
            )

        if left < 0:
            raise too_many_unreadable(most or 0, entry, chunk.refused[-1])
        try:
            with connection.transaction():
                rows = copy_with_path(connection, target, chunk.parts, path)
                note(rows, ())
        except BadRow as bad:
            if most is None or chunk.records is None:
                raise refused(entry, document, chunk, bad) from bad
            records = records_of(entry, document.options, chunk)
            try:
                rows = copy_without_refused(
                    connection, target, records, bad, path=path, most=left, at_once=True, note=note
                )
            except BadRow as last:
                raise too_many(most, entry, document, chunk, last) from last
        return rows, len(rejects)


def target_of(target: CopyTarget, chunk: Chunk) -> CopyTarget:
    """Return where a piece is copied to: it may be for more columns than the others."""
    return target if chunk.columns is None else msgspec.structs.replace(target, columns=chunk.columns)


def rejects_of(
    entry: Input,
    chunk: Chunk,
    target: CopyTarget,
    records: Records | None,
    refused: Sequence[tuple[int, str]],
) -> list[Reject]:
    """Return the refused records of a piece as the file has them, in its order; of Parquet as JSON objects.

    Args:
        records: of the piece; None where the server has refused none.
    """
    found = list(chunk.refused)
    lines, passed = chunk.first_line, 0
    if records is not None:
        for number, reason in refused:
            source = records[number] if chunk.sources is None else chunk.sources[number]
            if entry.format == "parquet":
                source = with_names(source, target.columns)
            lines += line_ends(chunk, records, passed, number)
            passed = number
            line = lines if chunk.lines is None else chunk.lines[number]
            found.append(Reject(file=chunk.file, line=line, reason=reason, record=source))
    return sorted(found, key=lambda reject: reject.line)


def unmoved_sequences(columns: Sequence[Column], loaded: Sequence[str], rows: int) -> list[str]:
    """Return a line for each sequence that a later INSERT would take a loaded value from.

    Args:
        loaded: the names of the columns that the files have.
        rows: in the table by this load.
    """
    return [
        f"the sequence of {quoted_where_needed(column.name)} was not moved: {column.move_sequence}"
        for column in columns
        if rows and column.move_sequence and column.name in loaded
    ]


def refused(entry: Input, document: LoadDocument, chunk: Chunk, bad: BadRow) -> Refused:
    """Return the error of a record that the server refuses."""
    number = bad.record
    place = ""
    if chunk.records is not None and (number is not None or bad.line is not None):
        records = records_of(entry, document.options, chunk)
        if number is None:
            number = records.record_at(bad.line, document.target.format)
        if number is not None:
            kind = "row" if entry.format == "parquet" else "line"
            place = f", {kind} {line_of(chunk, records, number)}"
    elif bad.line is not None:
        place = f", row {bad.line}"
    column = f", column {bad.column}" if bad.column else ""
    return Refused(
        f"{entry.name}{place}{column}: {bad.reason}",
        cause="the server refuses the record; nothing of this piece is in the table",
        hint="correct it, or have such records written to a file: --rejects FILE",
    )


def refused_in_one(entry: Input, document: LoadDocument, chunk: Chunk, bad: BadRow) -> Refused:
    """Return the error of a record that the server refuses in a load that is one transaction."""
    error = refused(entry, document, chunk, bad)
    error.cause = "the server refuses the record; nothing of the load is in the table"
    if document.options.partition_of is not None and BOUND_CHECK in bad.reason:
        # The constraint is ours, and is gone; the detail that follows its name shows the row.
        rest = bad.reason.partition(BOUND_CHECK)[2]
        detail = rest[rest.find(" (") :] if " (" in rest else ""
        where = error.message.removesuffix(bad.reason)
        return Refused(
            f"{where}the row is outside the bound of the new partition{detail}",
            cause="it belongs to another partition; nothing of the load is in the database",
            hint=error.hint,
        )
    return error


def too_many(most: int, entry: Input, document: LoadDocument, chunk: Chunk, bad: BadRow) -> Refused:
    """Return the error of more refused records than are allowed."""
    return _too_many(most, refused(entry, document, chunk, bad).message)


def too_many_unreadable(most: int, entry: Input, last: Reject) -> Refused:
    """Return the error of more records than are allowed that cannot be sent to the server."""
    return _too_many(most, f"{entry.name}, line {last.line}: {last.reason}")


def _too_many(most: int, last: str) -> Refused:
    return Refused(
        f"more than {format_many(most, 'record')} {'is' if most == 1 else 'are'} refused, the last: {last}",
        cause="the columns or the format may not be those given",
        hint="see the plan: --plan; or allow more: --max-rejects N",
    )
