"""Answers of a server, checked where they come in.

A party in between (a proxy, a pooler, an attacker) or a fork of PostgreSQL may answer anything. Every
connection of ours has cursors that check each row of our own queries against its shape (shapes.py), and that
wait no longer than the server itself would let a statement run. An answer that does not fit raises an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import psycopg
from psycopg import waiting

from pgsweep.errors import UnexpectedAnswer
from pgsweep.pg.queries import name_of
from pgsweep.pg.shapes import Shape, shape_of

T = TypeVar("T")


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
        with decoded(self.connection):
            super().execute(query, params, **options)
            name = name_of(query)
            shape = None if name is None else shape_of(name)
            if shape is not None:
                self._check(shape)
        return self

    def _check(self, shape: Shape) -> None:
        result = self.pgresult
        rows, width = (0, 0) if result is None else (result.ntuples, result.nfields)
        fault = shape.fault_of_result(rows, width)
        if fault is None and shape.rows != "binary":
            assert self.description is not None
            self._checked, self._next = super().fetchall(), 0
            fault = shape.fault(self._checked)
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
        if self._checked is None:
            with decoded(self.connection):
                return super().__next__()
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row


class CheckedConnection(psycopg.Connection[Any]):
    """A connection with such cursors and with a limit on waiting.

    Attributes:
        patience_seconds: how long a statement may take in all; None for as long as it takes.
    """

    patience_seconds: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **options: Any) -> T:
        """Wait for a statement.

        The server cancels a statement that exceeds statement_timeout. If the error does not arrive either,
        or only a part of an answer, nothing else would end the waiting.
        """
        if self.patience_seconds is not None:
            gen = _until(gen, time.monotonic() + self.patience_seconds, self.pgconn.finish)
        return super().wait(gen, *arguments, **options)


def _until(gen: Generator[Any, Any, T], end: float, give_up: Callable[[], None]) -> Generator[Any, Any, T]:
    """Pass on what a generator of psycopg yields and is sent, until the end.

    Raises:
        psycopg.OperationalError: it is not done by then.
    """
    try:
        wanted = next(gen)
        while True:
            # psycopg asks again every tenth of a second, ready or not.
            ready = yield wanted
            if ready == waiting.READY_NONE and time.monotonic() > end:
                give_up()
                raise psycopg.OperationalError("the server has not answered in time")
            wanted = gen.send(ready)
    except StopIteration as done:
        result: T = done.value
        return result
