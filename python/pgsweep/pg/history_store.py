"""The history of `pgsweep serve` in a PostgreSQL: schema `pgsweep_history` of the database that is named.

It keeps the contract of serve/storage.py and gets the same statements. In these, tables are named as SQLite
names them (`main.samples`) and parameters are `?`; both are written as PostgreSQL has them before they are
sent. They are statements of pgsweep's own on tables of its own, and hold no word of anybody else.

Sessions are opened when they are needed, and again after the server was away. One is for writing, one for
all readings, one after the other. Of several processes that write the same history, the one that holds an
advisory lock rolls it up. No two write the history of one server: its name is claimed by another such lock.
The locks end with the session. That is at once where its process was killed, and within half a minute where
its host has gone.

Rows that are deleted leave room in a table that later rows take, so the size on disk does not fall. It is
bounded because rows are deleted as soon as it has reached its limit: from then on what counts is the size of
the rows that are there.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from psycopg import sql

from pgsweep.commands import on_server
from pgsweep.errors import AtWork, ConnectionFailed, MissingAbility, PgsweepError
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.queries import load
from pgsweep.pg.session.answers import CheckedConnection
from pgsweep.pg.session.connect import Connection, connect, set_for_session
from pgsweep.pg.session.conninfo import describe, with_name
from pgsweep.pg.session.failures import ends_session, first_line
from pgsweep.pg.session.refusals import explained
from pgsweep.pg.session.retry import awaited
from pgsweep.pg.session.rows import one_row
from pgsweep.plain import decode_name, shown, sql_identifier

SCHEMA: Final = "pgsweep_history"
_LARGE: Final = ("samples", "consumers", "curves")
_KEEPER: Final = 1885827950
"""Key of the advisory lock of the process that rolls up."""

_WRITE_SECONDS: Final = 60
_READ_SECONDS: Final = 15
_LOCK_SECONDS: Final = 5
_PATIENCE_SECONDS: Final = 5.0
"""How much longer than the server's own limit to wait for an answer."""

_AGAIN_SECONDS: Final = 5.0
"""After a failed connection, readers try again only after this pause, because pages must not wait."""

_COUNT_SECONDS: Final = 600.0
"""How often rows are counted where the tables have reached their limit."""

_ROW_OVERHEAD_BYTES: Final = 80
"""Of a row beside its columns: item, alignment, room in the page, and its entry in the index."""

_KEEPALIVE: Final = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
"""After how many seconds the server asks whether a silent client is there, how often, and until when."""

_CLAIM_SECONDS: Final = 3.0
"""How long a claim is tried: the server needs a moment to end the session of a process that was killed."""

_TABLE: Final = re.compile(r"\bmain\.")


class PostgresColumns:
    """PostgreSQL's types."""

    number = "double precision"
    whole = "bigint"
    text = "text"
    data = "bytea"
    key = "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    options = ""


class PostgresSession:
    """Statements on the history.

    Args:
        connection: on which.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, text: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Execute one statement; return its rows."""
        done = self._connection.execute(_own(text), _sent(values))
        return [] if done.description is None else done.fetchall()

    def execute_many(self, text: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each of some rows of values."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_own(text), [_sent(row) for row in rows])

    def batches(self, text: str, values: Sequence[Any], count: int) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a query, `count` at a time; they stay on the server until then."""
        with (
            self._connection.transaction(),
            psycopg.ServerCursor(self._connection, "pgsweep_history_rows") as cursor,
        ):
            cursor.execute(_own(text), _sent(values))
            while rows := cursor.fetchmany(count):
                yield rows

    def columns(self, table: str) -> set[str]:
        """Return the columns of a table; none where there is none."""
        wanted = (
            b"SELECT attname::text FROM pg_catalog.pg_attribute "
            b"WHERE attrelid = pg_catalog.to_regclass(%s::text) AND attnum > 0 AND NOT attisdropped"
        )
        return {str(name) for (name,) in self._connection.execute(wanted, [f"{SCHEMA}.{table}"])}


class PostgresStore:
    """A history in a database of PostgreSQL.

    Args:
        conninfo: as libpq understands it.
        tables: the statements that make the tables.
        number: of the format; a database with a larger one is of a newer pgsweep.
        complete: adds what the tables of an older history lack.
        servers: the names of those whose history this process writes, and nobody else meanwhile.
    """

    def __init__(
        self,
        conninfo: str,
        tables: Sequence[str],
        number: int,
        complete: Callable[[PostgresSession], None],
        servers: Sequence[str] = (),
    ) -> None:
        self.name = describe(conninfo)
        self._conninfo = with_name(conninfo, "pgsweep serve history")
        self._tables = tables
        self._number = number
        self._complete = complete
        self._servers = servers
        self._writer: Connection | None = None
        self._keeper = False
        self._counted: tuple[float, int] | None = None
        self._reader: Connection | None = None
        self._reading = threading.Lock()
        self._away: tuple[float, PgsweepError] | None = None

    def open(self) -> None:
        """Connect, and make the tables that are not there.

        Raises:
            ConnectionFailed: the server cannot be reached.
            MissingAbility: the role may not make tables there, somebody else made a schema of that name, or
                the database has another encoding than UTF8.
            PgsweepError: the history is of a newer pgsweep, or another process writes that of a server.
        """
        self._session()

    def _session(self) -> Connection:
        if self._writer is not None and not self._writer.closed and not self._writer.broken:
            return self._writer
        self._writer, self._keeper = None, False
        connection = self._connected(_WRITE_SECONDS, read_only=False)
        try:
            with explained():
                self._make_tables(connection)
                if self._servers:
                    set_for_session(connection, **_KEEPALIVE)
                for name in self._servers:
                    self._claim(connection, name)
        except BaseException:
            connection.close()
            raise
        self._writer = connection
        return connection

    def _claim(self, connection: Connection, name: str) -> None:
        """Claim the history of a server for a session.

        Raises:
            PgsweepError: another session has it.
        """
        named = f"{SCHEMA} {name}".encode(errors="surrogateescape")
        key = int.from_bytes(hashlib.sha256(named).digest()[:8], signed=True)
        values = {"key": key, "high": key >> 32 & 0xFFFFFFFF, "low": key & 0xFFFFFFFF}
        query = load("history_claim", connection.info.server_version).encode()
        holder: tuple[int | None, str | None] = (None, None)

        def attempt() -> bool | None:
            nonlocal holder
            row = connection.execute(query, values).fetchone()
            assert row is not None
            holder = (row[1], row[2])
            return row[0] or None

        if awaited(attempt, seconds=_CLAIM_SECONDS, pause_seconds=0.1):
            return
        pid, client = holder
        end = on_server("psql", f"-c 'SELECT pg_terminate_backend({pid})'")
        ends = "" if pid is None else f"; if nothing runs there: {end}"
        raise AtWork(
            f"another `pgsweep serve` writes the history of `{shown(name)}` in {self.name}",
            cause=f"its session in that database is the server's process {pid or 'that is not known'}"
            + (f", from {shown(client)}" if client else ""),
            hint="stop that one, or give the server another name: `name` in serve.toml" + ends,
        )

    def _connected(self, seconds: int, *, read_only: bool) -> Connection:
        connection = connect(self._conninfo, inspection=read_only)
        assert isinstance(connection, CheckedConnection)
        connection.patience_seconds = seconds + _PATIENCE_SECONDS
        try:
            with explained():
                set_for_session(
                    connection,
                    statement_timeout=str(seconds * 1000),
                    lock_timeout=str(_LOCK_SECONDS * 1000),
                    idle_session_timeout="0",
                    idle_in_transaction_session_timeout="0",
                    jit="off",
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: Connection) -> None:
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            raise MissingAbility(
                f"the history cannot be kept in {self.name}",
                cause=f"its encoding is {encoding}, and names of all servers must fit in",
                hint=as_superuser(
                    connection, ["CREATE DATABASE pgsweep_history ENCODING 'UTF8' TEMPLATE template0"]
                ),
            )
        try:
            with connection.transaction():
                if not self._check_owner(connection):
                    connection.execute(b"CREATE SCHEMA pgsweep_history")
                for statement in (*self._tables, "CREATE TABLE IF NOT EXISTS main.format (number bigint)"):
                    connection.execute(_own(statement))
                self._check_owner(connection)
                self._complete(PostgresSession(connection))
                row = connection.execute(b"SELECT max(number) FROM pgsweep_history.format").fetchone()
                found = 0 if row is None or row[0] is None else int(row[0])
                if found > self._number:
                    raise PgsweepError(
                        f"the history in {self.name} was written by a newer pgsweep",
                        hint="pip install --upgrade pgsweep",
                    )
                if found < self._number:
                    connection.execute(b"INSERT INTO pgsweep_history.format VALUES (%s)", [self._number])
        except psycopg.errors.InsufficientPrivilege as error:
            raise MissingAbility(
                f"the history cannot be kept in {self.name}: {first_line(error)}",
                cause="the role may not make a schema there, or may not write the tables in it",
                hint=as_superuser(
                    connection,
                    [f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {sql_identifier(connection.info.user)}"],
                ),
            ) from error

    def _check_owner(self, connection: Connection) -> bool:
        """Return whether the schema is there.

        Raises:
            MissingAbility: it is of another role: triggers of theirs would run with our rights.
        """
        row = one_row(connection, "history_owner")
        if not row[1]:
            owner = decode_name(row[2])
            raise MissingAbility(
                f"the schema {SCHEMA} in {self.name} belongs to another role, or contains another "
                "role's tables",
                cause=f"role {owner} owns it: it may be a history of theirs, or a trap",
                hint="name another database, or connect as that role: -U in the connection string",
            )
        return bool(row[0])

    @contextmanager
    def writing(self) -> Iterator[PostgresSession]:
        """Begin a transaction, committed at the end of the block.

        Raises:
            PgsweepError: it failed; nothing of it is written.
        """
        connection = self._session()
        try:
            with connection.transaction():
                yield PostgresSession(connection)
        except psycopg.Error as error:
            raise self._failed(error, connection) from error

    def _failed(self, error: psycopg.Error, connection: Connection) -> PgsweepError:
        """Return the error of a statement; a session that has gone is forgotten."""
        gone = ends_session(error, connection)
        if gone:
            with suppress(psycopg.Error):
                connection.close()
        return PgsweepError(
            f"{self.name}: {first_line(error)}",
            cause="the server was stopped or restarted" if gone else "the server refused a statement",
            hint="pgsweep tries again; see the server's log",
        )

    @contextmanager
    def reading(self) -> Iterator[PostgresSession]:
        """Give a session that reads only; others wait for it.

        Raises:
            PgsweepError: the server does not answer.
        """
        with self._reading:
            if self._away is not None and time.monotonic() < self._away[0]:
                raise self._away[1]
            try:
                if self._reader is None or self._reader.closed or self._reader.broken:
                    self._reader = self._connected(_READ_SECONDS, read_only=True)
                connection = self._reader
                try:
                    yield PostgresSession(connection)
                except psycopg.Error as error:
                    raise self._failed(error, connection) from error
            except ConnectionFailed as error:
                self._away = (time.monotonic() + _AGAIN_SECONDS, error)
                raise
            self._away = None

    def is_keeper(self) -> bool:
        """Return whether this process holds the lock of the one that rolls up; it is taken if it is free."""
        connection = self._session()
        if not self._keeper:
            with explained():
                row = connection.execute(
                    b"SELECT pg_catalog.pg_try_advisory_lock(%s::int8)", [_KEEPER]
                ).fetchone()
            self._keeper = row is not None and bool(row[0])
        return self._keeper

    def size_bytes(self, most_bytes: int) -> int:
        """Return the size on disk; where that is more than the limit, of the rows that are there."""
        connection = self._session()
        with explained():
            query = load("history_size", connection.info.server_version).encode()
            row = connection.execute(query).fetchone()
            on_disk = 0 if row is None else int(row[0])
            if on_disk <= most_bytes:
                return on_disk
            if self._counted is None or time.monotonic() - self._counted[0] > _COUNT_SECONDS:
                self._counted = (time.monotonic(), self._rows_bytes(connection))
        return min(on_disk, self._counted[1])

    def _rows_bytes(self, connection: Connection) -> int:
        total = 0
        for table in _LARGE:
            query = sql.SQL(
                "SELECT (SELECT count(*) FROM {table}),"
                " (SELECT avg(pg_column_size(t.*)) FROM (SELECT * FROM {table} LIMIT 1000) AS t)"
            )
            row = connection.execute(query.format(table=sql.Identifier(SCHEMA, table))).fetchone()
            if row is not None and row[1] is not None:
                total += int(row[0]) * (int(row[1]) + _ROW_OVERHEAD_BYTES)
        return total

    def reclaim(self) -> None:
        """Make the room of deleted rows usable for later ones."""
        connection = self._session()
        self._counted = None
        with explained():
            for table in _LARGE:
                connection.execute(sql.SQL("VACUUM {}").format(sql.Identifier(SCHEMA, table)))

    def close(self) -> None:
        """End the sessions."""
        for connection in (self._writer, self._reader):
            if connection is not None:
                with suppress(psycopg.Error):
                    connection.close()


def _own(text: str) -> bytes:
    """Return a statement as PostgreSQL has it."""
    return _TABLE.sub(f"{SCHEMA}.", text).replace("?", "%s").encode()


def _sent(values: Sequence[Any]) -> list[Any]:
    """Return values that PostgreSQL takes: text has no NUL in it, and no half characters."""
    return [
        each.replace("\0", "").encode("utf-8", "backslashreplace").decode() if isinstance(each, str) else each
        for each in values
    ]
