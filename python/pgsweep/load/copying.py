"""Pieces of files copied by several sessions at once, each piece in a transaction of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pgsweep.load.document import LoadDocument
from pgsweep.load.fields import without_fields
from pgsweep.load.refusing import copy_chunk
from pgsweep.load.rows import json_chunks, parquet_chunks
from pgsweep.load.source import FileParts, Input, InputError, Reader, check_unchanged
from pgsweep.load.split import Chunk, read_chunks
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import DeadlockDetected, DriverError, SerializationFailure
from pgsweep.pg.load_catalog import Column
from pgsweep.pg.load_copy import open_session
from pgsweep.pg.load_journal import LoadId, Piece, Reject, add_piece
from pgsweep.pg.load_lock import check_same
from pgsweep.pg.load_work import failure_of
from pgsweep.pg.retry import repeated
from pgsweep.plain import quoted_where_needed
from pgsweep.progress import Listener, NullListener

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
                hint=f"give the same input again, or undo the load: {self._document.table.ways.rollback}",
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
        def note(rows: int, rejects: Sequence[Reject]) -> None:
            check_same(connection, self._document.table)
            add_piece(
                connection,
                self._load_id,
                file=chunk.file,
                piece=chunk.piece,
                size_bytes=chunk.source_bytes,
                records=rows + len(rejects),
                rows=rows,
                checksum=chunk.checksum,
                rejects=rejects,
            )

        rows, rejects = copy_chunk(connection, self._document, chunk, rejected=self.state.rejected, note=note)
        return rows, len(rejects)


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
