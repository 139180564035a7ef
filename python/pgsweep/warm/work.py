"""Calls carried out in their order, by several sessions at once.

    work = Work(calls, lambda number: PrewarmReader(conninfo, "buffer"), WorkOptions(connections=3))
    outcome = work.run(stop, on_progress)

Threads take the calls from one queue, each a few in a row, so the order holds except for these few calls of
each session. Stretches of one relation are then read in parallel, which fills the device's queue; one process
that reads block by block does not fill it.

What cannot be read is reported and skipped; it is never fatal. A session that is lost is opened again. If the
server lost its pool meanwhile (it was restarted, or a crash emptied it), what was read before is read again.
A stop takes effect between two calls.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from pgsweep.errors import ConnectionFailed
from pgsweep.pg.session.retry import Pauses
from pgsweep.warm.block_ranges import BlockRange, Call
from pgsweep.warm.outcome import WorkOptions, WorkOutcome, WorkState, troubles_of
from pgsweep.warm.session import Lost, Read
from pgsweep.warm.throttle import Gate, ProcessorPauses, Throttle

_RUN_CALLS = 8
"""The number of consecutive calls that one session takes, where there are enough for all. A file that is read
sequentially is read by long requests, into large folios (mm/readahead.c, page_cache_sync_ra: a jump begins
with short ones)."""

_TRIES = 5
"""A call that loses its session this many times is skipped: it may be the cause of the server's failure."""


_ALL_TAKEN = re.compile(r"too many|connection slots", re.IGNORECASE)
"""The server accepts connections but has no free slot (InitPostgres, postinit.c). It is waited for only if
sessions were lost, because then those of other clients reconnect too."""


class Reader(Protocol):
    """Reads the pieces of calls; each thread has its own."""

    def open(self, database: str) -> None:
        """Be ready for calls of a database; one that cannot be entered at all fails when it is read.

        Raises:
            ConnectionFailed: the server cannot be reached now.
        """

    def read(self, call: Call) -> Read:
        """Read a call.

        Raises:
            Lost: the session has gone.
            ConnectionFailed: another session is needed, and the server cannot be reached now.
            PgsweepError: the call cannot be read at all.
        """

    def cancel(self) -> None:
        """End what another thread waits for."""

    def close(self) -> None:
        """End the sessions."""


class Work:
    """Carries out calls.

    Args:
        calls: in their order; an iterator is asked for them when their turn comes.
        reader: makes the reader of one thread.
        options: how.
        done: called with each finished call and its outcome; by one thread at a time.
        undone: called when the server has lost its pool, so that all calls must be repeated.
        total_blocks: of all calls, where the calls are not made yet.
        probe: for `max_latency_seconds`: reads one block of a call that is still to be done.
    """

    def __init__(
        self,
        calls: Iterable[Call],
        reader: Callable[[], Reader],
        options: WorkOptions,
        *,
        done: Callable[[Call, Read], None] | None = None,
        undone: Callable[[], None] | None = None,
        total_blocks: int | None = None,
        probe: Callable[[BlockRange | None], None] | None = None,
    ) -> None:
        self._reader = reader
        self._options = options
        self._report_done = done
        self._report_undone = undone
        self._throttle = Throttle(options.rate_bytes_per_second)
        self._gate = Gate(
            lambda: probe(self._cold_piece()) if probe is not None else None,
            None if probe is None else options.max_latency_seconds,
        )
        self._lock = threading.Condition()
        self._source = iter(calls if total_blocks is not None else ())
        self._pending = deque(() if total_blocks is not None else calls)
        self._running: dict[int, Call] = {}
        self._finished: dict[int, tuple[Call, Read]] = {}
        self._finished_blocks = 0
        self._tries: dict[int, int] = {}
        self._losses = 0
        self._again = 0
        self._again_blocks = 0
        self._reconnects = 0
        self._waiting = 0
        self._started_us: int | None = None
        self._failure: BaseException | None = None
        self._readers: list[Reader] = []
        self._total_blocks = total_blocks or sum(call.blocks for call in self._pending)
        self._lazy = total_blocks is not None

    def run(self, stop: threading.Event, progress: Callable[[WorkState], None] | None = None) -> WorkOutcome:
        """Carry out all calls, or as many as possible until the stop.

        Args:
            stop: ends the work after the calls that are under way.
            progress: called with the state a few times a second, in this thread.

        Raises:
            ConnectionFailed: the server went away and did not come back.
            PgsweepError: nothing at all can be read.
        """
        begin = time.monotonic()
        halt = threading.Event()
        meter = _Meter(begin)
        most = self._options.connections
        threads = [
            threading.Thread(target=self._thread, args=(halt,), name=f"warm-{number}", daemon=True)
            for number in range(most if self._lazy else min(most, len(self._pending)))
        ]
        self._gate.start()
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                if stop.is_set():
                    halt.set()
                with self._lock:
                    self._lock.wait(0.1)
                if progress is not None:
                    progress(self._state(meter))
        except BaseException:
            halt.set()
            with self._lock:
                readers = list(self._readers)
            for reader in readers:
                reader.cancel()
            raise
        finally:
            halt.set()
            for thread in threads:
                thread.join()
            self._gate.close()
        if self._failure is not None:
            raise self._failure
        return self._outcome(time.monotonic() - begin)

    def _thread(self, halt: threading.Event) -> None:
        reader = self._reader()
        pauses = ProcessorPauses() if self._options.spares_processors else None
        call: Call | None = None
        with self._lock:
            self._readers.append(reader)
        try:
            while (call := self._next(halt, call)) is not None:
                self._throttle.wait(call.blocks * self._options.block_bytes, halt)
                self._gate.wait(halt)
                if pauses is not None:
                    pauses.begin()
                self._do(reader, call, halt)
                if pauses is not None:
                    halt.wait(pauses.pause_seconds())
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            halt.set()
        finally:
            with self._lock:
                self._readers.remove(reader)
                self._lock.notify_all()
            reader.close()

    def _do(self, reader: Reader, call: Call, halt: threading.Event) -> None:
        """Read a call; wait for an unavailable server for `patience_seconds` at most.

        The server was there when the work was planned, so it is waited for from the first call on. A reader
        may need a connection to open, and another one to read: while a server restarts, either can fail.

        Raises:
            ConnectionFailed: it lasted longer, or the server has no session left for us.
        """
        until = time.monotonic() + self._options.patience_seconds
        pauses = Pauses(2.0, first_seconds=0.1)
        while not halt.is_set():
            losses = self._losses
            try:
                reader.open(call.database)
                if halt.is_set():
                    break
                losses = self._losses
                read = reader.read(call)
            except Lost as lost:
                reader.close()
                self._lost(call, lost, losses)
                return
            except ConnectionFailed as error:
                taken = self._reconnects == 0 and _ALL_TAKEN.search(error.message)
                if taken or time.monotonic() > until:
                    raise
            else:
                self._read(call, read, losses)
                return
            with self._lock:
                self._waiting += 1
            pauses.wait(halt)
            with self._lock:
                self._waiting -= 1
        self._give_back(call)

    def server_started(self, started_us: int) -> None:
        """Record when the server that a reader connected to was started; a new time means an empty pool."""
        with self._lock:
            if self._started_us not in (None, started_us):
                self._pool_lost()
            self._started_us = started_us

    def _next(self, halt: threading.Event, last: Call | None) -> Call | None:
        with self._lock:
            while not halt.is_set():
                if not self._pending:
                    self._pending.extend(islice(self._source, 1))
                if self._pending:
                    call = self._take(None if last is None else last.number // _RUN_CALLS)
                    self._running[call.number] = call
                    return call
                if not self._running:
                    return None
                # A call under way may fail and come back.
                self._lock.wait(0.1)
        return None

    def _take(self, last_run: int | None) -> Call:
        """Take the next call of a thread's last run; else one of a run that no other thread works on."""
        others = {number // _RUN_CALLS for number in self._running}
        ahead = [
            call.number // _RUN_CALLS
            for call in islice(self._pending, _RUN_CALLS * (1 + self._options.connections))
        ]
        chosen = next((at for at, run in enumerate(ahead) if run not in others), 0)
        if last_run in ahead:
            chosen = ahead.index(last_run)
        call = self._pending[chosen]
        del self._pending[chosen]
        return call

    def _give_back(self, call: Call) -> None:
        with self._lock:
            self._running.pop(call.number, None)
            self._pending.appendleft(call)

    def _lost(self, call: Call, lost: Lost, losses: int) -> None:
        with self._lock:
            self._running.pop(call.number, None)
            self._reconnects += 1
            tries = self._tries[call.number] = self._tries.get(call.number, 0) + 1
            if not lost.pool_lives and losses == self._losses:
                self._pool_lost()
        if tries < _TRIES:
            self._give_back(call)
        else:
            why = f"the session was lost {tries} times while it was read: {lost}"
            self._done(call, Read(0, [(piece, why, None) for piece in call.pieces]))

    def _read(self, call: Call, read: Read, losses: int) -> None:
        """Note a call that was read; it is to be read again where the pool was lost meanwhile."""
        with self._lock:
            if losses == self._losses or not self._options.pool:
                self._done(call, read)
                return
            self._again += 1
            self._again_blocks += call.blocks
            self._give_back(call)

    def _pool_lost(self) -> None:
        """Put what was read back to the front of the queue; the lock is held."""
        self._losses += 1
        if not self._options.pool or not self._finished:
            return
        again = [self._finished[number][0] for number in sorted(self._finished)]
        self._again += len(again)
        self._again_blocks += self._finished_blocks
        self._finished.clear()
        self._finished_blocks = 0
        self._pending.extendleft(reversed(again))
        if self._report_undone is not None:
            self._report_undone()

    def _done(self, call: Call, read: Read) -> None:
        with self._lock:
            self._running.pop(call.number, None)
            self._finished[call.number] = (call, read)
            self._finished_blocks += call.blocks
            if self._report_done is not None:
                self._report_done(call, read)
            self._lock.notify_all()

    def _cold_piece(self) -> BlockRange | None:
        """Return a piece that is still to be read, from the end of the queue."""
        with self._lock:
            return self._pending[-1].pieces[-1] if self._pending else None

    def _state(self, meter: _Meter) -> WorkState:
        with self._lock:
            done = self._finished_blocks
            waiting = self._waiting > 0
        block_bytes = self._options.block_bytes
        total = self._total_blocks * block_bytes
        rate, seconds = meter.measure(done * block_bytes)
        left = None if rate <= 0 else (total - done * block_bytes) / rate
        return WorkState(done * block_bytes, total, seconds, rate, left, not self._gate.is_open, waiting)

    def _outcome(self, seconds: float) -> WorkOutcome:
        self._pending.extend(self._source)
        outcome = WorkOutcome(
            asked_blocks=self._total_blocks,
            read_blocks=sum(read.blocks for _, read in self._finished.values()),
            calls=len(self._finished),
            calls_left=len(self._pending),
            again_calls=self._again,
            again_blocks=self._again_blocks,
            reconnects=self._reconnects,
            seconds=seconds,
            pauses=self._gate.pauses,
            paused_seconds=self._gate.paused_seconds,
            stopped=len(self._pending) > 0,
        )
        failed = [entry for _, read in self._finished.values() for entry in read.failed]
        outcome.troubles = troubles_of(failed)
        return outcome


class _Meter:
    """The rate of the last seconds."""

    _SPAN_SECONDS = 5.0

    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._seen: deque[tuple[float, int]] = deque([(begin, 0)])

    def measure(self, done_bytes: int) -> tuple[float, float]:
        """Return the rate in bytes a second, and the seconds since the beginning."""
        now = time.monotonic()
        self._seen.append((now, done_bytes))
        while len(self._seen) > 2 and now - self._seen[0][0] > self._SPAN_SECONDS:
            self._seen.popleft()
        at, before = self._seen[0]
        rate = (done_bytes - before) / (now - at) if now > at else 0.0
        return max(0.0, rate), now - self._begin
