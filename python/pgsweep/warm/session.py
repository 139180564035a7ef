"""Reading blocks through the server: pg_prewarm, many stretches a statement, one session a database.

A statement that fails is divided until the stretch that fails stands alone: one relation without a right to
read it costs itself only. pg_prewarm (contrib/pg_prewarm/pg_prewarm.c) wants SELECT on the table, also for
its indexes (before the releases of November 2025: on the index itself, which is to say ownership, superuser
or pg_read_all_data).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.pg.catalog.grants import NO_RIGHT, grant_to_read
from pgsweep.pg.catalog.server import read_postmaster
from pgsweep.pg.prewarm import Prewarm, mark_as_warming, read_without_workers
from pgsweep.pg.session.connect import Connection, cancel, connect, ping, set_for_session
from pgsweep.pg.session.conninfo import with_name
from pgsweep.pg.session.failures import (
    AdminShutdown,
    DriverError,
    InsufficientPrivilege,
    InvalidParameterValue,
    LockNotAvailable,
    QueryCanceled,
    SessionEnded,
    UndefinedObject,
    UndefinedTable,
    ends_session,
    first_line,
)
from pgsweep.pg.session.refusals import explained
from pgsweep.warm.block_ranges import BlockRange, Stretches

APPLICATION_NAME = "pgsweep warm"

_MANY = 16
"""From this many stretches of one fork on average, each fork has a statement of its own."""

_LOCK_TIMEOUT_MS = 500
_LOCKED_SECONDS = 30.0
"""A relation that is locked is not asked for again so soon: each time would cost a lock timeout."""

LOCKED = "another session holds a lock on it"
_LATER = "try again later: what is warm already costs little"

UNLOGGED = "it is unlogged, and unlogged relations cannot be read during recovery"

DROPPED = "it was dropped since the plan was made"
SHORTER = "it has become shorter since the plan was made"

Failed = tuple[BlockRange, str, str | None]
"""A piece, or the part of it that could not be read; why; what would allow it."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one call brought: blocks that were read, and the pieces that failed."""

    blocks: int
    failed: list[Failed]

    def __add__(self, other: Read) -> Read:
        return Read(self.blocks + other.blocks, self.failed + other.failed)


def others_note(sessions: int) -> str:
    """Report that others are warming the same server."""
    counted = "1 session" if sessions == 1 else f"{sessions} sessions"
    return f"another `pgsweep warm` is running on this server ({counted}): both take longer"


class Lost(Exception):
    """The session has gone; `pool_lives` where only it was ended and the server goes on."""

    def __init__(self, message: str, *, pool_lives: bool) -> None:
        super().__init__(message)
        self.pool_lives = pool_lives


class PrewarmSession:
    """One session in one database that reads by pg_prewarm.

    Args:
        conninfo: as libpq understands it.
        database: instead of the one that conninfo names; nothing for that one.
        mode: of pg_prewarm: buffer, read or prefetch.

    Raises:
        ConnectionFailed: the server cannot be reached.
        MissingAbility: pg_prewarm is not there, or not for this role.
    """

    def __init__(self, conninfo: str, database: str | None, mode: str) -> None:
        self._connection = connect(with_name(conninfo, APPLICATION_NAME), database=database)
        self._locked: dict[int, float] = {}
        try:
            with explained():
                set_for_session(self._connection, lock_timeout=f"{_LOCK_TIMEOUT_MS}ms")
                read_without_workers(self._connection)
                self.started_us = read_postmaster(self._connection).start_time_us
                self._prewarm = Prewarm(self._connection, mode)
        except BaseException:
            self.close()
            raise

    def others_warming(self) -> int:
        """Mark this session as a warming one, and return how many others on this server carry the mark."""
        return mark_as_warming(self._connection)

    def read(self, pieces: Sequence[BlockRange]) -> Read:
        """Read the pieces, in their order.

        Raises:
            Lost: the session has gone.
        """
        try:
            done, left = self._read_forks(pieces)
            return done + self._read(left)
        except SessionEnded as error:
            # pg_terminate_backend and an orderly stop say admin_shutdown; only the start time shows which it
            # was. After a crash of any backend the pool is empty though the postmaster is the same.
            alive = isinstance(error, AdminShutdown)
            raise Lost(first_line(error), pool_lives=alive) from error

    def _read_forks(self, pieces: Sequence[BlockRange]) -> tuple[Read, Sequence[BlockRange]]:
        """Read forks that have many stretches; return the outcome, and the pieces that are left to read.

        If a statement fails, or reads less than was asked, the rest is left to `_read`, which finds out why.
        """
        done = 0
        forks = many_of_each_fork(pieces)
        if self._lately_locked(pieces):
            return Read(0, []), pieces
        for number, fork in enumerate(forks):
            try:
                read = self._prewarm.read_fork(*_of_one_fork(fork))
            except DriverError as error:
                if ends_session(error, self._connection):
                    raise
                read = None
            if read is None or read != fork.blocks.sum():
                return Read(done, []), [piece for rest in forks[number:] for piece in rest]
            done += read
        return Read(done, []), [] if forks else pieces

    def _lately_locked(self, pieces: Sequence[BlockRange]) -> list[BlockRange]:
        if not self._locked:
            return []
        lately = time.monotonic() - _LOCKED_SECONDS
        return [piece for piece in pieces if self._locked.get(piece.oid, lately) > lately]

    def _read(self, pieces: Sequence[BlockRange]) -> Read:
        """Read pieces; where that fails, read either half by itself."""
        locked = self._lately_locked(pieces)
        if locked:
            oids = {piece.oid for piece in locked}
            others = self._read([piece for piece in pieces if piece.oid not in oids])
            return others + Read(0, [(piece, LOCKED, _LATER) for piece in locked])
        if not pieces:
            return Read(0, [])
        try:
            rows = self._prewarm.read(pieces)
        except DriverError as error:
            if ends_session(error, self._connection):
                raise
            first, second = _halves(pieces, whole_relation=isinstance(error, _OF_THE_RELATION))
            if not second:
                if isinstance(error, LockNotAvailable):
                    self._locked[pieces[0].oid] = time.monotonic()
                return Read(
                    0, [(piece, *_reason(error, piece, self._connection.info.user)) for piece in pieces]
                )
            return self._read(first) + self._read(second)
        failed: list[Failed] = []
        blocks = 0
        for number, read in rows:
            piece = pieces[number - 1]
            blocks += read or 0
            if read is None:
                failed.append((piece, DROPPED, None))
            elif read < piece.blocks:
                failed.append((_rest(piece, read), SHORTER, None))
        return Read(blocks, failed)

    def ping(self) -> None:
        """Run a statement that does nothing.

        Raises:
            DriverError: the session has gone.
        """
        ping(self._connection)

    def cancel(self) -> None:
        """End the statement that another thread waits for."""
        cancel(self._connection)

    def close(self) -> None:
        """End the session."""
        self._connection.close()


def many_of_each_fork(pieces: Sequence[BlockRange]) -> list[Stretches]:
    """Return the pieces by fork, in their order; nothing where forks have few each."""
    forks = Stretches.of(pieces).by_fork()
    return forks if len(forks) * _MANY <= len(pieces) else []


def _of_one_fork(stretches: Stretches) -> tuple[int, str, NDArray[np.int64], NDArray[np.int64]]:
    first, last = stretches.first_block, stretches.first_block + stretches.blocks - 1
    return stretches[0].oid, stretches[0].fork, first, last


def statement_text(connection: Connection, pieces: Sequence[BlockRange], mode: str, schema: str) -> str:
    """Return the statements that read pieces, as they could be pasted into psql.

    Args:
        connection: to any database of the server.
        pieces: of one database.
        mode: of pg_prewarm.
        schema: of pg_prewarm in that database, quoted.
    """
    prewarm = Prewarm(connection, mode, schema)
    of_forks = [prewarm.fork_written_out(*_of_one_fork(fork)) for fork in many_of_each_fork(pieces)]
    return ";\n".join(of_forks or [prewarm.written_out(pieces)])


_OF_THE_RELATION = (
    InsufficientPrivilege,
    LockNotAvailable,
    UndefinedTable,
    UndefinedObject,
)
"""Errors that all pieces of a relation share, so that one of them need not be looked for."""


def _halves(
    pieces: Sequence[BlockRange], *, whole_relation: bool
) -> tuple[Sequence[BlockRange], Sequence[BlockRange]]:
    """Divide pieces; none in the second half where the first cannot be divided any more."""
    oids = list(dict.fromkeys(piece.oid for piece in pieces))
    if len(oids) > 1:
        former = set(oids[: len(oids) // 2])
        return [p for p in pieces if p.oid in former], [p for p in pieces if p.oid not in former]
    if whole_relation or len(pieces) == 1:
        return pieces, []
    return pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]


def _rest(piece: BlockRange, read: int) -> BlockRange:
    return msgspec.structs.replace(piece, first_block=piece.first_block + read, blocks=piece.blocks - read)


def _reason(error: DriverError, piece: BlockRange, role: str) -> tuple[str, str | None]:
    """Return why a piece could not be read, in our words, and what would allow it."""
    match error:
        case InsufficientPrivilege():
            return NO_RIGHT, grant_to_read(role, piece.schema, piece.relation, piece.kind)
        case UndefinedTable() | UndefinedObject():
            return DROPPED, None
        case LockNotAvailable():
            return LOCKED, _LATER
        case InvalidParameterValue():
            return SHORTER, None
        case QueryCanceled():
            return "reading it took longer than a minute, or someone cancelled the statement", None
    return first_line(error), None
