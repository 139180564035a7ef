"""Reading blocks through the server: pg_prewarm, many stretches a statement, one session a database.

A statement that fails is divided until the stretch that fails stands alone: one relation without a right to
read it costs itself only. pg_prewarm (contrib/pg_prewarm/pg_prewarm.c) wants SELECT on the table, also for
its indexes (before the releases of November 2025: on the index itself, which is to say ownership, superuser
or pg_read_all_data).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import psycopg
from psycopg import errors as sqlstates
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.errors import MissingAbility
from pgsweep.pg.abilities import read_extension
from pgsweep.pg.connect import connect, explained
from pgsweep.pg.queries import load
from pgsweep.warm.pieces import Piece

APPLICATION_NAME = "pgsweep warm"

_LOCK_TIMEOUT_MS = 500
_LOCKED_SECONDS = 30.0
"""A relation that is locked is not asked for again so soon: each time would cost a lock timeout."""

_OWN_READS = """
SELECT set_config('maintenance_io_concurrency', '0', false)
WHERE current_setting('io_method') = 'worker'
"""
# Since 18 a read goes to one of a few I/O workers (io_workers, 3 by default, for the whole server) and back,
# unless no look-ahead is allowed (read_stream.c, read_stream_begin_impl: READ_BUFFERS_SYNCHRONOUSLY). Several
# warming sessions that read by themselves are faster, one and a half times for whole tables and twice for
# single blocks in the page cache, and leave the workers to the queries.

LOCKED = "another session holds a lock on it"
_LATER = "try again later: what is warm already costs little"

DROPPED = "it was dropped since the plan was made"
SHORTER = "it has become shorter since the plan was made"

Failed = tuple[Piece, str, str | None]
"""A piece, or the part of it that could not be read; why; what would allow it."""


@dataclass(frozen=True, slots=True)
class Read:
    """What one call brought: blocks that were read, and the pieces that failed."""

    blocks: int
    failed: list[Failed]

    def __add__(self, other: Read) -> Read:
        return Read(self.blocks + other.blocks, self.failed + other.failed)


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
        parts = dict(conninfo_to_dict(conninfo))
        if database:
            parts["dbname"] = database
        parts.setdefault("application_name", APPLICATION_NAME)
        self._connection = connect(make_conninfo("", **parts))
        self._mode = mode
        self._locked: dict[int, float] = {}
        try:
            with explained():
                self._connection.execute(f"SET lock_timeout = {_LOCK_TIMEOUT_MS}")
                if self._connection.info.server_version >= 180000:
                    self._connection.execute(_OWN_READS)
                self.started_us, self._query = self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> tuple[int, bytes]:
        version_num = self._connection.info.server_version
        row = self._connection.execute(load("postmaster", version_num)).fetchone()
        assert row is not None
        schema = require_prewarm(self._connection)
        return int(row[1]), load("prewarm", version_num).replace("{schema}", schema).encode()

    def others_warming(self) -> int:
        """Mark this session as a warming one, and return how many others on this server carry the mark."""
        row = self._connection.execute(load("warmers", self._connection.info.server_version)).fetchone()
        assert row is not None
        return int(row[0])

    def read(self, pieces: Sequence[Piece]) -> Read:
        """Read the pieces, in their order.

        Raises:
            Lost: the session has gone.
        """
        try:
            return self._read(pieces)
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            # pg_terminate_backend and an orderly stop say admin_shutdown; only the start time tells which it
            # was. After a crash of any backend the pool is empty though the postmaster is the same.
            alive = isinstance(error, sqlstates.AdminShutdown)
            raise Lost(str(error).strip().splitlines()[0], pool_lives=alive) from error

    def _read(self, pieces: Sequence[Piece]) -> Read:
        """Read pieces; where that fails, read either half by itself."""
        lately = time.monotonic() - _LOCKED_SECONDS
        locked = [piece for piece in pieces if self._locked.get(piece.oid, lately) > lately]
        if locked:
            others = self._read([piece for piece in pieces if self._locked.get(piece.oid, lately) <= lately])
            return others + Read(0, [(piece, LOCKED, _LATER) for piece in locked])
        if not pieces:
            return Read(0, [])
        try:
            rows = self._connection.execute(self._query, arguments(pieces, self._mode)).fetchall()
        except psycopg.Error as error:
            if self._connection.broken or self._connection.closed or error.sqlstate in _ENDED:
                raise
            first, second = _halves(pieces, whole_relation=isinstance(error, _OF_THE_RELATION))
            if not second:
                if isinstance(error, sqlstates.LockNotAvailable):
                    self._locked[pieces[0].oid] = time.monotonic()
                return Read(0, [(piece, *_reason(error, piece)) for piece in pieces])
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
            psycopg.Error: the session has gone.
        """
        self._connection.execute("SELECT 1")

    def cancel(self) -> None:
        """End the statement that another thread waits for."""
        with contextlib.suppress(psycopg.Error):
            self._connection.cancel()

    def close(self) -> None:
        """End the session."""
        self._connection.close()


_ENDED = ("57P01", "57P02", "57P03", "57P05")
"""admin_shutdown, crash_shutdown, cannot_connect_now, idle_session_timeout (utils/errcodes.txt)."""


def arguments(pieces: Sequence[Piece], mode: str) -> list[Any]:
    """Return the parameters of the statement that reads the pieces."""
    return [
        mode,
        [piece.oid for piece in pieces],
        [piece.fork for piece in pieces],
        [piece.first_block for piece in pieces],
        [piece.end_block - 1 for piece in pieces],
    ]


def statement_text(connection: psycopg.Connection[Any], pieces: Sequence[Piece], mode: str) -> str:
    """Return the statement that reads the pieces, its parameters filled in, for people to read.

    Raises:
        MissingAbility: pg_prewarm is not there, or not for this role.
    """
    schema = require_prewarm(connection)
    query = load("prewarm", connection.info.server_version).replace("{schema}", schema)
    literals = [sql.Literal(value).as_string(connection) for value in arguments(pieces, mode)]
    parts = query.split("%s")
    return "".join(text + value for text, value in zip(parts, [*literals, ""], strict=True)).strip()


def require_prewarm(connection: psycopg.Connection[Any]) -> str:
    """Return the quoted schema of pg_prewarm, after checking that this session may use it.

    Raises:
        MissingAbility: the extension is not created here, is not installed, or may not be used by this role.
    """
    found = read_extension(connection, "pg_prewarm", "pg_prewarm")
    database = connection.info.dbname
    if found.schema is None:
        if found.available is None:
            raise MissingAbility(
                "pg_prewarm is not installed on the server",
                cause="the server has no contrib modules",
                hint="install the contrib package of the server's version; on the server's host "
                "`--into page-cache` needs no extension",
            )
        raise MissingAbility(
            f"the extension pg_prewarm does not exist in database `{database}`",
            hint="as a superuser or the owner of the database: "
            f"psql -d {database} -c 'CREATE EXTENSION pg_prewarm'",
        )
    if not found.usable:
        raise MissingAbility(
            f"this role may not use pg_prewarm in database `{database}`",
            cause=f"it may not enter schema {found.schema}, or not execute the function",
            hint=f"as a superuser: psql -d {database} -c 'GRANT USAGE ON SCHEMA {found.schema} TO ROLE_NAME'",
        )
    return found.schema


_OF_THE_RELATION = (
    sqlstates.InsufficientPrivilege,
    sqlstates.LockNotAvailable,
    sqlstates.UndefinedTable,
    sqlstates.UndefinedObject,
)
"""Errors that all pieces of a relation share, so that one of them need not be looked for."""


def _halves(pieces: Sequence[Piece], *, whole_relation: bool) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """Divide pieces; none in the second half where the first cannot be divided any more."""
    oids = list(dict.fromkeys(piece.oid for piece in pieces))
    if len(oids) > 1:
        former = set(oids[: len(oids) // 2])
        return [p for p in pieces if p.oid in former], [p for p in pieces if p.oid not in former]
    if whole_relation or len(pieces) == 1:
        return pieces, []
    return pieces[: len(pieces) // 2], pieces[len(pieces) // 2 :]


def _rest(piece: Piece, read: int) -> Piece:
    return msgspec.structs.replace(piece, first_block=piece.first_block + read, blocks=piece.blocks - read)


def _grant(piece: Piece) -> str:
    if piece.kind == "index":
        # SELECT on its table suffices from 15.15, 16.11, 17.7 and 18.1 on.
        return "GRANT SELECT on its table to the role; on older minor releases: GRANT pg_read_all_data"
    name = ".".join(sql.Identifier(part).as_string(None) for part in (piece.schema, piece.relation))
    return f"GRANT SELECT ON {name} TO ROLE_NAME"


def _reason(error: psycopg.Error, piece: Piece) -> tuple[str, str | None]:
    """Return why a piece could not be read, in our words, and what would allow it."""
    match error:
        case sqlstates.InsufficientPrivilege():
            return "this role may not read it", _grant(piece)
        case sqlstates.UndefinedTable() | sqlstates.UndefinedObject():
            return DROPPED, None
        case sqlstates.LockNotAvailable():
            return LOCKED, _LATER
        case sqlstates.InvalidParameterValue():
            return SHORTER, None
        case sqlstates.QueryCanceled():
            return "reading it took longer than a minute, or someone cancelled the statement", None
    return str(error).strip().splitlines()[0], None
