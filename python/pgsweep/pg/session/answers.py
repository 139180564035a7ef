"""Answers of a server, checked where they come in.

A party in between (a proxy, a pooler, an attacker) or a fork of PostgreSQL may answer anything. Every
connection of ours has cursors that check each row of our own queries against its shape (shapes.py). What
arrives is limited in bytes and in time (wire.py). An answer that does not fit raises an error.

The limits are chosen so that no honest server meets them, and a peer that never ends is left within a minute
and with less than 500 MB of memory used:

- In bytes: an answer of one row has a few values of 1 MB at most. For one of many rows the limit is some
  550,000 relations, which libpq keeps in four times as much memory. A snapshot of pg_buffercache has 12 bytes
  a buffer, so its limit grows with the pool, up to an eighth of this machine's memory.
- In time: connecting takes as long as connect_timeout says, the set-up of a session 20 s, and a statement
  5 s longer than the server's own limit of 50 s, which the server ends on a busy host. An endless answer is
  noticed earlier, by what arrives (wire.py). A session that loads, or runs a statement of the user's, has
  limits of its own, or none on time, and the same ones on bytes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Self, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo, timeout_from_conninfo

from pgsweep.errors import UnexpectedAnswer
from pgsweep.pg.queries import name_of
from pgsweep.pg.session.shapes import Shape, shape_of
from pgsweep.pg.session.unanswered import NO_SESSION
from pgsweep.pg.session.wire import Limits, TooLarge, TooLong, Wire

T = TypeVar("T")

_ONE_ROW_BYTES: Final = 16 << 20
_ROWS_BYTES: Final = 64 << 20
_BUFFER_BYTES: Final = 16
_BATCH_ROWS: Final = 10_000
_CANCEL_SECONDS: Final = 1.0
"""How long an interrupted statement is given to end, once to be told and once to do it."""

_STEPWISE: Final = frozenset({"prewarm", "prewarm_fork", "keep_touch", "evict", "sizes"})
"""Queries that do work on files for each row, so that rows come as slowly as that."""


@contextmanager
def decoded(connection: psycopg.Connection[Any] | None = None, what: str = "") -> Iterator[None]:
    """Turn any failure while an answer is parsed into UnexpectedAnswer.

    For code that only parses what the server sent: any other failure there would be attributed to the server.

    Raises:
        UnexpectedAnswer: the answer is not what it should be.
    """
    try:
        yield
    except (psycopg.Error, UnexpectedAnswer):
        raise
    except Exception as error:
        raise unexpected(connection, what or f"{type(error).__name__}: {error}") from error


def unexpected(connection: psycopg.Connection[Any] | None, what: str) -> UnexpectedAnswer:
    """Return the error of an answer that PostgreSQL does not give.

    Args:
        connection: it names the version.
        what: what is wrong with it.
    """
    version = ""
    if connection is not None and not connection.closed:
        version = f" {connection.info.server_version // 10000}"
    return UnexpectedAnswer(
        f"the server's answer is not what PostgreSQL{version} gives ({what[:200]})",
        cause="a proxy in between changes answers, or the server is not PostgreSQL as released",
        hint="connect to the server itself: -h HOST -p PORT; `--debug` shows where it came up",
    )


class CheckedCursor(psycopg.Cursor[Any]):
    """A cursor that gives only rows of the shape that its query has."""

    def __init__(self, connection: psycopg.Connection[Any], *, row_factory: Any = None) -> None:
        super().__init__(connection, row_factory=row_factory)
        self._checked: list[Any] | None = None
        self._next = 0

    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        """Execute a statement, and check its rows where it is one of our queries.

        Raises:
            UnexpectedAnswer: they are of another shape.
        """
        self._checked = None
        name = name_of(query)
        shape = None if name is None else shape_of(name)
        with decoded(self.connection), self._limited(shape):
            super().execute(query, params, **options)
            if shape is not None:
                self._check(shape)
        return self

    @contextmanager
    def _limited(self, shape: Shape | None) -> Iterator[None]:
        """Let the connection expect the answer of this shape."""
        connection = self.connection
        if not isinstance(connection, CheckedConnection):
            yield
            return
        connection.expected = shape
        try:
            yield
        finally:
            connection.expected = None

    def _check(self, shape: Shape) -> None:
        result = self.pgresult
        rows, width = (0, 0) if result is None else (result.ntuples, result.nfields)
        fault = shape.fault_of_result(rows, width)
        if fault is None and shape.rows != "binary":
            assert self.description is not None
            self._checked, self._next = [], 0
            # In batches, so that rows that do not fit are noticed before all of them are taken apart.
            while fault is None and (batch := super().fetchmany(_BATCH_ROWS)):
                fault = shape.fault(batch)
                self._checked += batch
        if fault is not None:
            raise unexpected(self.connection, f"query `{shape.name}`: {fault}")

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        if self._checked is None:
            with decoded(self.connection):
                return super().fetchone()
        row = self._checked[self._next] if self._next < len(self._checked) else None
        self._next += 1
        return row

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        if self._checked is None:
            with decoded(self.connection):
                return super().fetchall()
        rows, self._next = self._checked[self._next :], len(self._checked)
        return rows

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row


_ABSTRACT: Final = "/\x01@"
"""How an abstract socket's name begins for psycopg, which would look `@` up as a host's; libpq gets `@`."""


def as_sockets(hosts: str) -> str:
    """Return the hosts of a connection, abstract sockets as `CheckedConnection` takes them."""
    return ",".join(_ABSTRACT + host[1:] if host.startswith("@") else host for host in hosts.split(","))


class CheckedConnection(psycopg.Connection[Any]):
    """A connection with such cursors, and with limits on what arrives (wire.py).

    Attributes:
        patience_seconds: how long a statement may take in all; None for as long as it takes.
        setup_ends: until when the set-up of the session may take, by the clock time.monotonic.
        expected: the shape of the answer that is waited for, where it is known.
        pool_blocks: how many buffers a snapshot may have.
    """

    patience_seconds: float | None = None
    setup_ends: float | None = None
    expected: Shape | None = None
    pool_blocks = 0
    _wire: Wire | None = None

    @classmethod
    def _connect_gen(cls, conninfo: str = "", **options: Any) -> Generator[Any, Any, Self]:
        """Connect as psycopg does, within limits: its own clock stands still while data arrives."""
        yield from ()  # what psycopg would wait for is waited for here
        parameters = conninfo_to_dict(conninfo)
        seconds = timeout_from_conninfo(parameters)
        if str(parameters.get("host", "")).startswith(_ABSTRACT):
            conninfo = make_conninfo(
                "", **{**parameters, "host": str(parameters["host"])[len(_ABSTRACT) - 1 :]}
            )
        wire = Wire()
        try:
            connection = wire.drive(
                super()._connect_gen(conninfo, **options),
                Limits(_ONE_ROW_BYTES, time.monotonic() + seconds, steady=False),
            )
        except TooLong as error:
            text = NO_SESSION if wire.has_server else "connection timeout expired"
            raise psycopg.errors.ConnectionTimeout(text) from error
        except TooLarge as error:
            raise _too_large(error) from error
        connection._wire = wire
        return connection

    def wait(self, gen: Generator[Any, Any, T], *_: Any, **__: Any) -> T:
        """Wait for a statement, within limits; an interrupt cancels it.

        The server cancels a statement that exceeds statement_timeout. If the error does not arrive either,
        or only a part of an answer, nothing else would end the waiting.

        Raises:
            UnexpectedAnswer: more arrives than the statement can have asked for.
        """
        assert self._wire is not None
        limits = self._limits()
        try:
            return self._wire.drive(gen, limits, self.pgconn)
        except TooLong:
            self._give_up()
            raise
        except TooLarge as error:
            self._give_up()
            raise _too_large(error) from error
        except (KeyboardInterrupt, SystemExit):
            self._interrupt(gen)
            raise

    def close(self) -> None:
        """End the session."""
        super().close()
        if self._wire is not None:
            self._wire.close()

    def look(self) -> None:
        """Take in what the server has said of itself, without waiting.

        Raises:
            psycopg.OperationalError: the session has gone.
        """
        # Twice: its last words, and that it has gone.
        for _ in range(2):
            if self._wire is not None:
                self._wire.take_what_is_there()
            self.pgconn.consume_input()

    def _limits(self) -> Limits:
        now = time.monotonic()
        ends = [
            self.setup_ends,
            None if self.patience_seconds is None else now + self.patience_seconds,
        ]
        end = min((each for each in ends if each is not None), default=None)
        shape = self.expected
        steady = end is not None and not (shape is not None and shape.name in _STEPWISE)
        return Limits(self._most_bytes(shape), end, steady=steady)

    def _most_bytes(self, shape: Shape | None) -> int:
        if self.setup_ends is not None or (shape is not None and shape.rows in {"one", "few"}):
            return _ONE_ROW_BYTES
        if shape is None or shape.rows != "binary":
            return _ROWS_BYTES
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return _ROWS_BYTES + min(self.pool_blocks * _BUFFER_BYTES, memory_bytes // 8)

    def _give_up(self) -> None:
        self.pgconn.finish()
        self.close()

    def _interrupt(self, gen: Generator[Any, Any, Any]) -> None:
        """Cancel the statement that was waited for, and wait for its end for a moment."""
        if self.pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
            return
        assert self._wire is not None
        try:
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
            limits = Limits(_ROWS_BYTES, time.monotonic() + _CANCEL_SECONDS, steady=False)
            self._wire.drive(gen, limits, self.pgconn)
        except psycopg.errors.QueryCanceled:
            pass
        except BaseException as error:
            self._give_up()
            if not isinstance(error, Exception):
                raise


def _too_large(error: TooLarge) -> UnexpectedAnswer:
    return UnexpectedAnswer(
        f"the server's answer {error}",
        cause="a proxy in between sends without end, the server is not PostgreSQL as released, or the "
        "database has far more relations than pgsweep takes in",
        hint="connect to the server itself: -h HOST -p PORT; `--debug` shows where it came up",
    )
