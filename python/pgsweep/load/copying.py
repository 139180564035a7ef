"""Pieces of files copied by several sessions at once, each piece in a transaction of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from pgsweep.load.document import LoadDocument
from pgsweep.load.input.fields import without_fields
from pgsweep.load.input.rows import JsonRows, parquet_chunks
from pgsweep.load.input.source import FileParts, Input, InputError, check_unchanged, opened
from pgsweep.load.input.split import Chunk, read_chunks
from pgsweep.load.refusing import copy_chunk
from pgsweep.pg.load.catalog import Column
from pgsweep.pg.load.copy import open_session
from pgsweep.pg.load.journal import CopiedPiece, LoadId, Piece, Reject, add_piece
from pgsweep.pg.load.lock import check_same
from pgsweep.pg.load.work import failure_of
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import DeadlockDetected, DriverError, SerializationFailure
from pgsweep.pg.session.retry import repeated
from pgsweep.plain import quoted_where_needed
from pgsweep.progress import Listener, NullListener
from pgsweep.records.load import LoadChoice, LoadStep
from pgsweep.records.rollup import total
from pgsweep.units import format_bytes

_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.2
_POLL_SECONDS: Final = 0.2
_MEASURED_BYTES: Final = 24 << 20
_GAIN: Final = 1.1
"""More sessions go on only where they are faster by this factor: they cost the other sessions more."""


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


@dataclass
class Running:
    """A run of a load in pieces: the session that holds its claim, and what the others need."""

    conninfo: str
    control: Connection
    load_id: LoadId
    document: LoadDocument
    listener: LoadListener
    stop: threading.Event


def begun_state(inputs: Sequence[Input]) -> CopyState:
    """Return the state of a copying that begins."""
    sizes = [entry.size_bytes if entry.compression is None else None for entry in inputs]
    return CopyState(total_bytes=total(sizes))


def step_since(what: str, begin: float) -> LoadStep:
    """Return a part of the work that ends now."""
    return LoadStep(what=what, seconds=round(time.monotonic() - begin, 3))


def chunks_of(entry: Input, document: LoadDocument) -> Iterator[Chunk]:
    """Yield the pieces of one input in the format of COPY.

    Raises:
        InputError: it cannot be read, or changed since the load began.
    """
    check_unchanged(entry)
    plan = document.plan
    file = plan.files[entry.number]
    if entry.format == "parquet":
        yield from parquet_chunks(entry, document)
    elif entry.format == "binary":
        yield Chunk(entry.number, 0, FileParts(entry), None, entry.size_bytes or 0, 1)
    else:
        with opened(entry) as reader:
            chunks = read_chunks(
                reader, document.options, piece_bytes=plan.piece_bytes, skip_header=bool(file.header)
            )
            if entry.format == "jsonl":
                chunks = map(JsonRows(entry, document).converted, chunks)
            elif file.left_out:
                chunks = without_fields(entry, chunks, document)
            yield from chunks
    check_unchanged(entry)


class Threads:
    """Threads that do the same, until all is done or one has failed."""

    def __init__(self, work: Callable[[], None], count: int) -> None:
        self._work = work
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        self._lock = threading.Lock()
        self.failed: Exception | None = None

    def start(self, count: int | None = None) -> None:
        """Start all that do not run yet, or some of them."""
        for thread in [thread for thread in self._threads if thread.ident is None][:count]:
            thread.start()

    def fail(self, error: Exception) -> None:
        """Note why the work is not done; the first error counts."""
        with self._lock:
            self.failed = self.failed or (failure_of(error) if isinstance(error, DriverError) else error)

    def join(self, waiting: Callable[[], None]) -> None:
        """Wait until all that were started have ended.

        Args:
            waiting: is called now and then meanwhile.

        Raises:
            Exception: one has failed.
        """
        for thread in self._threads:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                waiting()
        if self.failed is not None:
            raise self.failed

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.fail(error)


class Copier:
    """Copies all pieces that are not in the journal yet.

    Where the plan leaves open how many sessions are fastest, one copies first, and then all.

    Args:
        done: the pieces that are in the journal.
        rejected: records that were refused before.
    """

    def __init__(self, running: Running, done: Sequence[Piece], rejected: int) -> None:
        self._running = running
        self._document = running.document
        self._done = {(piece.file, piece.piece): piece for piece in done}
        self._lock = threading.Lock()
        self._queue: queue.Queue[Chunk | None] = queue.Queue(maxsize=self._document.plan.jobs)
        self._threads = Threads(self._work, self._document.plan.jobs)
        self._measured: list[float] = []
        self._measured_from = (time.monotonic(), 0)
        self._state = begun_state(self._document.inputs)
        self._state.rows, self._state.rejected = sum(piece.rows for piece in done), rejected

    def run(self) -> bool:
        """Copy; return whether all is copied, and not stopped before.

        Raises:
            Refused: the server refuses a record.
            InputError: a file cannot be read.
            PgsweepError: another failure.
        """
        self._threads.start(1 if self._document.measure else None)
        whole = False
        try:
            whole = self._feed()
        except Exception as error:
            self._threads.fail(error)
        finally:
            for _ in range(self._document.plan.jobs):
                self._put(None)
            self._threads.join(lambda: self._running.listener.state(self._state))
        return whole

    def _measure(self) -> None:
        """Compare one session with all, and go on with those that are faster; one disturbs others less."""
        plan = self._document.plan
        begin, before = self._measured_from
        now, bytes_copied = time.monotonic(), self._state.own_bytes - before
        if bytes_copied < (1 + len(self._measured)) * max(_MEASURED_BYTES, plan.jobs * plan.piece_bytes):
            return
        self._measured.append(bytes_copied / max(1e-6, now - begin))
        self._measured_from = now, self._state.own_bytes
        self._threads.start()
        if len(self._measured) < 2:
            return
        one, many = self._measured
        jobs = plan.jobs if many > one * _GAIN else 1
        for _ in range(plan.jobs - jobs):
            self._put(None)
        words = f"1 copied {format_bytes(int(one))} in a second, {plan.jobs} {format_bytes(int(many))}"
        choices = [
            LoadChoice(what=choice.what, choice=str(jobs), reason=words)
            if choice.what == "sessions"
            else choice
            for choice in plan.choices
        ]
        self._document = msgspec.structs.replace(
            self._document, plan=msgspec.structs.replace(plan, jobs=jobs, choices=choices), measure=False
        )
        self._running.document = self._document

    def _feed(self) -> bool:
        for entry in self._document.inputs:
            for chunk in chunks_of(entry, self._document):
                if self._threads.failed is not None or self._running.stop.is_set():
                    return False
                done = self._done.get((chunk.file, chunk.piece))
                if done is not None:
                    self._check(entry, chunk, done)
                    with self._lock:
                        self._state.done_bytes += chunk.source_bytes
                    continue
                if not self._put(chunk):
                    return False
                if self._document.measure:
                    self._measure()
                self._running.listener.state(self._state)
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
            if self._threads.failed is not None:
                # No thread takes what is left: each ends with the piece that it has.
                return False
            with suppress(queue.Full):
                self._queue.put(chunk, timeout=_POLL_SECONDS)
                return True

    def _work(self) -> None:
        with open_session(self._running.conninfo, self._document.table.oid) as connection:
            while self._threads.failed is None:
                with suppress(queue.Empty):
                    chunk = self._queue.get(timeout=_POLL_SECONDS)
                    if chunk is None:
                        return
                    self._copy(connection, chunk)

    def _copy(self, connection: Connection, chunk: Chunk) -> None:
        # After either error the server has undone the piece, and it can be copied again.
        rows, rejected = repeated(
            lambda: self._copied(connection, chunk),
            (DeadlockDetected, SerializationFailure),
            tries=_TRIES,
            pause_seconds=_PAUSE_SECONDS,
        )
        with self._lock:
            self._state.rows += rows
            self._state.rejected += rejected
            self._state.done_bytes += chunk.source_bytes
            self._state.own_bytes += chunk.source_bytes

    def _copied(self, connection: Connection, chunk: Chunk) -> tuple[int, int]:
        def note(rows: int, rejects: Sequence[Reject]) -> None:
            check_same(connection, self._document.table)
            piece = CopiedPiece(
                file=chunk.file,
                piece=chunk.piece,
                bytes=chunk.source_bytes,
                records=rows + len(rejects),
                rows=rows,
                checksum=chunk.checksum,
            )
            add_piece(connection, self._running.load_id, piece, rejects)

        rows, rejects = copy_chunk(
            connection, self._document, chunk, rejected=self._state.rejected, note=note
        )
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
