"""The bytes between libpq and the server, counted and timed.

libpq keeps an answer in memory until it is complete, and reads a message of a gigabyte in one call that
nothing interrupts. Its own limits are the server's word: a length in a message, a statement_timeout that the
server enforces. So libpq is given one end of a pair of sockets in the place of the connection, and what
arrives is handed to it piece by piece, while it is within a limit on bytes and on time. Encryption, copying
and everything else that libpq does remain as they are. A piece costs two calls of the kernel for 64 kB.

Time is limited in two ways. A statement has a deadline, which counts also while data keeps arriving. And of a
session's time there is a part in which an answer has begun and is not complete: an honest server takes its
time before the first row, and sends the rows as fast as the network goes. A peer that sends a byte a second,
or rows without end, takes it all from that part, over however many statements. Where the rows come as slowly
as the work behind them is done (`steady` is off), only the deadline holds.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import psycopg
from psycopg import pq, waiting

T = TypeVar("T")

_PIECE_BYTES: Final = 1 << 16
_LOOK_SECONDS: Final = 0.1
"""Waiting is interrupted this often to look for signals, the deadline, and a socket closed elsewhere."""

_ARRIVING_SECONDS: Final = 30.0
"""How long answers of a session may be on their way, beyond what `_SLOW_LINK` explains; what was used comes
back as time passes."""

_LONGEST_ARRIVING_SECONDS: Final = 45.0
"""How long one answer may be on its way, however much it is."""

_SLOW_LINK_BYTES_PER_SECOND: Final = 256 << 10

_WORK_SECONDS: Final = 10.0
_WORK_SECONDS_PER_BYTE: Final = 1e-6
"""How much time of the processor libpq may take for an answer. A notice costs it some 50 ns a byte, a row
less; a new setting is searched for among all that the server reported before."""

_MOST_RESULTS: Final = 32
"""Pieces that may complete results of a statement, which has one. A result of 20 bytes takes a kB here."""


_PARAMETERS: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""A network that is gone is noticed within half a minute."""


def add_limits(parameters: dict[str, str]) -> None:
    """Add what libpq and the kernel limit to the parameters of a connection, where the user set nothing."""
    by_default = {option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.val}
    for name, value in _PARAMETERS.items():
        # An environment variable or a service file may set it too.
        if name not in by_default:
            parameters.setdefault(name, value)


class TooLong(psycopg.OperationalError):
    """The server has not answered in time."""


class TooLarge(Exception):
    """The server sends more than it was asked for."""


@dataclass(frozen=True)
class Limits:
    """What one answer may take.

    Attributes:
        most_bytes: of all that arrives, notices and messages too.
        end: by the clock time.monotonic; None for as long as it takes.
        steady: whether an answer that has begun comes without pauses.
    """

    most_bytes: int
    end: float | None = None
    steady: bool = True


class Turns:
    """Answers that are waited for, and whether others may begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._held = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for an answer inside; first until others may begin."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    @contextmanager
    def none(self, seconds: float) -> Iterator[None]:
        """Let no other begin until the end of the body, and wait this long for those that are waited for."""
        with self._changed:
            self._held = True
            self._changed.wait_for(lambda: not self._count, seconds)
        try:
            yield
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()


class Wire:
    """What lies between one connection of libpq and its server."""

    turns: ClassVar[Turns] = Turns()
    _hurry_until: ClassVar[float | None] = None

    def __init__(self) -> None:
        self._server: socket.socket | None = None
        self._inner: socket.socket | None = None
        self._place: tuple[int, int] | None = None
        self._incoming = memoryview(b"")
        self._outgoing = b""
        self._ended = False
        self._lost: OSError | None = None
        self._room = bytearray(_PIECE_BYTES)
        self._received = 0
        self._used_seconds = 0.0
        self._used_at = time.monotonic()

    @classmethod
    def hurry(cls, seconds: float | None) -> None:
        """End all waiting for servers after so many seconds, in every thread; None takes it back.

        For the end of the process: an end in good order must not wait for a server that does not answer.
        """
        cls._hurry_until = None if seconds is None else time.monotonic() + seconds

    def __del__(self) -> None:
        self.close()

    @property
    def has_server(self) -> bool:
        """Whether the server took the connection."""
        return self._server is not None

    def close(self) -> None:
        """Send what libpq has written last, as far as the network takes it at once, and close the sockets."""
        with suppress(OSError):
            self._pass_out()
        for end in (self._server, self._inner):
            if end is not None:
                end.close()
        self._server = self._inner = None

    def take_what_is_there(self) -> None:
        """Hand over what has arrived, without waiting."""
        with suppress(OSError):
            self._pass_in()

    def drive(self, work: Generator[Any, Any, T], limits: Limits, libpq: pq.abc.PGconn | None = None) -> T:
        """Return what a generator of psycopg returns.

        Args:
            work: yields what it waits for; while connecting also on which socket.
            limits: of what arrives meanwhile.
            libpq: its connection; while connecting the generator makes it.

        Raises:
            TooLong, TooLarge: a limit was exceeded.
            psycopg.Error: what the generator raises.
        """
        with self.turns.one():
            return self._drive(work, limits, libpq)

    def _drive(self, work: Generator[Any, Any, T], limits: Limits, libpq: pq.abc.PGconn | None) -> T:
        self._received = 0
        work_seconds = 0.0
        begun: float | None = None
        results = 0
        fd = -1 if libpq is None else libpq.socket
        try:
            wanted = next(work)
            self._pass_out()
            while True:
                if isinstance(wanted, tuple):
                    fd, events = wanted
                    self._find(fd, events)
                else:
                    events = wanted
                ready = self._wait(fd, events)
                now = time.monotonic()
                if begun is None and self._received:
                    begun = now
                self._check(limits, begun, now, work_seconds)
                before = time.thread_time()
                is_answer = libpq is not None and events == waiting.WAIT_R and ready != 0
                if not is_answer or _is_complete(libpq):
                    # psycopg takes all results of a piece before it waits again.
                    results += is_answer
                    # A pipeline (executemany) has a result for each of its statements.
                    if results > _MOST_RESULTS and not (libpq is not None and libpq.pipeline_status):
                        raise TooLarge("has more results than one")
                    wanted = work.send(ready)
                work_seconds += time.thread_time() - before
                self._pass_out()
        except StopIteration as done:
            self._pass_out()
            result: T = done.value
            return result
        finally:
            if begun is not None and limits.steady:
                now = time.monotonic()
                self._used_seconds, self._used_at = self._used(begun, now), now

    def _used(self, begun: float, now: float) -> float:
        """Return how much of the session's time for arriving answers is used, with this one."""
        earlier = max(0.0, self._used_seconds - (begun - self._used_at))
        return earlier + max(0.0, now - begun - self._received / _SLOW_LINK_BYTES_PER_SECOND)

    def _check(self, limits: Limits, begun: float | None, now: float, work_seconds: float) -> None:
        if self._received > limits.most_bytes:
            raise TooLarge(f"is larger than {limits.most_bytes >> 20} MB")
        if limits.end is not None and now > limits.end:
            raise TooLong("the server has not answered in time")
        if self._hurry_until is not None and now > self._hurry_until:
            raise TooLong("the server had not answered when pgsweep was to end")
        if begun is None:
            return
        if work_seconds > _WORK_SECONDS + self._received * _WORK_SECONDS_PER_BYTE or (
            limits.steady
            and (now - begun > _LONGEST_ARRIVING_SECONDS or self._used(begun, now) > _ARRIVING_SECONDS)
        ):
            raise TooLong("the server's answer has begun, and does not come to an end")

    def _find(self, fd: int, events: int) -> None:
        """Take the place of libpq's socket where it is a new one: it makes another for each attempt."""
        if _place(fd) == self._place:
            return
        self.close()
        # Not before libpq wants to read: by then it has looked at who listens there (requirepeer).
        if events != waiting.WAIT_R:
            return
        self._incoming, self._outgoing, self._ended, self._lost = memoryview(b""), b"", False, None
        outer, self._inner = socket.socketpair()
        with outer:
            self._server = socket.socket(fileno=os.dup(fd))
            os.dup2(outer.fileno(), fd, inheritable=False)
        # The flag of what was there before belongs to the connection, and is that of the pair no more.
        os.set_blocking(fd, False)
        self._server.setblocking(False)
        self._inner.setblocking(False)
        self._place = _place(fd)

    def _wait(self, fd: int, events: int) -> int:
        """Return what libpq's socket is ready for, after a tenth of a second at most."""
        poll = select.poll()
        wants_read, wants_write = events & waiting.WAIT_R, events & waiting.WAIT_W
        poll.register(fd, (select.POLLIN if wants_read else 0) | (select.POLLOUT if wants_write else 0))
        server = self._server
        if server is not None:
            # A server that is sent much and says much (notices of a COPY) reads no more until it is heard.
            hears = wants_read or bool(self._outgoing)
            reads = select.POLLIN if hears and not self._ended else 0
            writes = select.POLLOUT if self._outgoing else 0
            if reads or writes:
                poll.register(server, reads | writes)
        found = dict(poll.poll(_LOOK_SECONDS * 1000))
        inner, heard = found.pop(fd, 0), False
        if inner & select.POLLNVAL:
            raise psycopg.OperationalError("the connection is closed")
        if server is not None and found:
            self._pass_out()
            if (wants_read or self._outgoing) and not inner & select.POLLIN:
                heard = self._pass_in()
        broken = inner & ~(select.POLLIN | select.POLLOUT)
        ready = 0
        if wants_read and (inner & select.POLLIN or broken):
            ready |= waiting.READY_R
        # libpq takes in what there is when it cannot write (pqSendSome).
        if wants_write and (inner & select.POLLOUT or broken or heard):
            ready |= waiting.READY_W
        return ready

    def _pass_in(self) -> bool:
        """Hand a piece of what has come from the server to libpq; return whether there was something."""
        if self._server is None or self._inner is None or self._ended:
            return False
        if not self._incoming:
            try:
                size = self._server.recv_into(self._room)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._lost, size = self._lost or error, 0
            self._received += size
            self._incoming = memoryview(self._room)[:size]
        if self._incoming:
            with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                self._incoming = self._incoming[self._inner.send(self._incoming) :]
            return True
        self._ended = True
        if self._lost is not None and not isinstance(self._lost, BrokenPipeError | ConnectionResetError):
            raise psycopg.OperationalError(f"could not receive data from server: {self._lost.strerror}")
        with suppress(OSError):
            self._inner.shutdown(socket.SHUT_WR)
        return True

    def _pass_out(self) -> None:
        """Send what libpq has written, as far as the network takes it."""
        if self._server is None or self._inner is None:
            return
        with suppress(BlockingIOError, InterruptedError):
            while self._outgoing or (piece := self._inner.recv(_PIECE_BYTES)):
                if not self._outgoing:
                    self._outgoing = piece
                try:
                    sent = self._server.send(self._outgoing)
                except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
                    # libpq sees it when it writes again, after it has read what the server said at last.
                    self._lost, sent = self._lost or error, len(self._outgoing)
                    with suppress(OSError):
                        self._inner.shutdown(socket.SHUT_RD)
                self._outgoing = self._outgoing[sent:]


def _is_complete(libpq: pq.abc.PGconn | None) -> bool:
    """Return whether what has come completes a result, or ends the session, which psycopg looks at itself."""
    assert libpq is not None
    try:
        libpq.consume_input()
        # Nobody listens, and libpq would keep each of them in four times its bytes.
        while libpq.notifies():
            pass
    except psycopg.OperationalError:
        return True
    return not libpq.is_busy()


def _place(fd: int) -> tuple[int, int]:
    """Return which socket a number stands for."""
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
