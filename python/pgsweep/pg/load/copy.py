"""COPY of a piece of a file: the session, the statement, the count of its rows, and what a bad row is.

COPY runs under the search_path of the table's code (pg/load/code.py), because triggers, defaults and the
functions of types may rely on one. Everything else in those transactions runs under pg_catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import msgspec
import psycopg
from psycopg import sql

from pgsweep.errors import PgsweepError
from pgsweep.pg.load.code import under_path
from pgsweep.pg.load.journal import join_work
from pgsweep.pg.session.connect import Connection, connect, end_without_client, set_for_session
from pgsweep.pg.session.failures import first_line
from pgsweep.units import format_many

_BAD_ROW_CLASSES = ("22", "23", "P0", "44", "54")
"""Data exception, integrity constraint violation, an error raised by PL/pgSQL, WITH CHECK OPTION, and what is
too large for a limit of the server (an indexed value)."""

_NOT_OF_A_ROW = ("08", "25", "28", "3D", "40", "42", "53", "55", "57", "58", "F0", "XX")
"""Errors of the session, the server, the machine, or of a statement: also where COPY is at a certain line."""

_OF_A_VALUE = ("08", "42", "XX")
"""What types call a value that they do not take: one of another length in the binary format; tsquery,
regclass, hstore; geometry of PostGIS."""


class CopyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where COPY writes and how it reads, as its options have it.

    Attributes:
        columns: in the order of the file.
        format: `csv`, `text` or `binary`.
        null: the spelling of NULL; None for the format's own.
        force_null: take a quoted NULL spelling for NULL too (CSV).
    """

    schema: str
    table: str
    columns: list[str]
    format: str
    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    null: str | None = None
    encoding: str | None = None
    force_null: bool = False
    freeze: bool = False

    def statement(self, *, where: sql.Composable | None = None, skipping: bool = False) -> sql.Composed:
        """Return the COPY statement.

        Args:
            where: the condition on the rows that are written.
            skipping: leave out what types refuse, and name the line of each in a notice (PostgreSQL 17).
        """
        names = sql.SQL(", ").join(sql.Identifier(name) for name in self.columns)
        options: list[sql.Composable] = [sql.SQL("FORMAT {}").format(sql.SQL(self.format))]
        for word in ("delimiter", "quote", "escape", "null", "encoding"):
            value = getattr(self, word)
            if value is not None:
                options.append(sql.SQL("{} {}").format(sql.SQL(word.upper()), sql.Literal(value)))
        if self.force_null and self.format == "csv":
            options.append(sql.SQL("FORCE_NULL ({})").format(names))
        if self.freeze:
            options.append(sql.SQL("FREEZE"))
        if skipping:
            options.append(sql.SQL("ON_ERROR ignore, LOG_VERBOSITY verbose"))
        return sql.SQL("COPY {}.{} ({}) FROM STDIN WITH ({}){}").format(
            sql.Identifier(self.schema),
            sql.Identifier(self.table),
            names,
            sql.SQL(", ").join(options),
            sql.SQL("") if where is None else sql.SQL(" WHERE {}").format(where),
        )


class BadRow(Exception):
    """A record that the server refuses.

    Args:
        line: within what was copied, from 1, as the server counts; None where it names none.
        column: None where the server names none.
        reason: the server's words.
        sqlstate: the server's code.
        record: which one of the piece, where it was found by itself.
        key: names and values of the key that the server names: where a check comes after all rows, it has
            no line.
    """

    def __init__(
        self,
        line: int | None,
        column: str | None,
        reason: str,
        *,
        sqlstate: str = "",
        record: int | None = None,
        key: tuple[list[str], list[str]] | None = None,
    ) -> None:
        super().__init__(reason)
        self.line = line
        self.column = column
        self.reason = reason
        self.sqlstate = sqlstate
        self.record = record
        self.key = key

    @property
    def by_constraint(self) -> bool:
        """It can be read; a constraint or a trigger refuses it."""
        return self.sqlstate[:2] not in ("22", *_OF_A_VALUE)

    @property
    def by_itself(self) -> bool:
        """It is refused whatever other rows there are: NOT NULL, CHECK."""
        return self.sqlstate in ("23502", "23514")

    @property
    def by_encoding(self) -> bool:
        """Its bytes are no text. The server looks one byte ahead: its line may be that of the one before."""
        return self.sqlstate in ("22021", "22P05")

    @property
    def duplicate(self) -> bool:
        """Another row, of the table or of the files, has its key."""
        return self.sqlstate in ("23505", "23P01")

    @property
    def lacks_reference(self) -> bool:
        """There is no row that it refers to."""
        return self.sqlstate == "23503"


class WrongCount(PgsweepError):
    """COPY took another number of records than were sent."""


def open_session(conninfo: str, oid: int | None = None) -> Connection:
    """Return a session that loads: without limits on time, and ended by the server when its client is gone.

    Args:
        conninfo: as libpq understands it.
        oid: of the table, where a later run must wait for this session.
    """
    connection = connect(conninfo, inspection=False)
    try:
        set_for_session(
            connection,
            statement_timeout="0",
            lock_timeout="0",
            idle_in_transaction_session_timeout="0",
            idle_session_timeout="0",
            default_transaction_read_only="off",
            # To compile one of our questions takes seconds, to answer it milliseconds; COPY is not compiled.
            jit="off",
        )
        end_without_client(connection)
        if oid is not None:
            join_work(connection, oid)
    except BaseException:
        connection.close()
        raise
    return connection


def copy(
    connection: Connection,
    target: CopyTarget,
    parts: Iterable[bytes | memoryview],
    *,
    where: sql.Composable | None = None,
    skipping: bool = False,
) -> int:
    """Send parts of a file through one COPY, and return how many rows the server counted.

    Raises:
        BadRow: the server refuses a record; the transaction is aborted.
        DriverError: anything else.
    """
    statement = target.statement(where=where, skipping=skipping)
    with connection.cursor() as cursor, _refusing(target):
        with cursor.copy(statement) as stream:
            for part in parts:
                stream.write(part)
        return cursor.rowcount


@contextmanager
def _refusing(target: CopyTarget) -> Iterator[None]:
    """Tell what is the fault of a record from all other errors: a trigger may raise what it likes."""
    try:
        yield
    except psycopg.DatabaseError as error:
        if _is_of_a_record(error, target):
            # Without a name: one in this frame would keep the records until garbage is collected.
            raise _bad_row(error, target) from error
        raise


def _is_of_a_record(error: psycopg.DatabaseError, target: CopyTarget) -> bool:
    bad, kind = _bad_row(error, target), (error.sqlstate or "")[:2]
    # COPY names a column only while its type reads a value; code that a check calls comes before.
    by_type = bad.column is not None and (error.diag.context or "").startswith(f"COPY {target.table}, ")
    return kind in _BAD_ROW_CLASSES or (
        bad.line is not None
        and ((kind != "" and kind not in _NOT_OF_A_ROW) or (by_type and kind in _OF_A_VALUE))
    )


def settle(connection: Connection, target: CopyTarget, path: str) -> None:
    """Have deferred constraints and triggers checked now, and not by the COMMIT, which could not say where.

    Raises:
        BadRow: one of them refuses a row.
        DriverError: anything else.
    """
    with _refusing(target), under_path(connection, path):
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")


def copy_with_path(
    connection: Connection, target: CopyTarget, parts: Iterable[bytes | memoryview], path: str
) -> int:
    """Copy under the search_path of the table's code, within a transaction that is open."""
    with under_path(connection, path):
        return copy(connection, target, parts)


def wrong_count(records: int, rows: int, target: CopyTarget) -> WrongCount:
    """Return the error of a piece whose rows are not as many as its records."""
    ends = "COPY on servers before 18, or the quoting" if target.format == "csv" else "COPY, or the delimiter"
    return WrongCount(
        f"the server took {format_many(rows, 'row')} of {format_many(records, 'record')}",
        cause=f"a line that is only `\\.` ends {ends} is not the one given",
        hint="see how the file is written: --quote, --escape, --delimiter, --format",
    )


def _bad_row(error: psycopg.DatabaseError, target: CopyTarget) -> BadRow:
    # COPY t, line 3, column price: "abc". Words are in the server's language, and the name may hold anything.
    _, _, rest = (error.diag.context or "").rpartition(f"COPY {target.table}, ")
    found = re.match(r"\D*(\d+)(?:, \S+ (.+?))?(?:: |$)", rest, re.DOTALL)
    detail = error.diag.message_detail
    # Key (a, b)=(1, x) is not present in table "t".
    key = re.search(r"\((.+?)\)=\((.*?)\) ", f"{detail} ", re.DOTALL)
    return BadRow(
        int(found[1]) if found else None,
        error.diag.column_name or (found[2] if found else None),
        first_line(error) + (f" ({detail.splitlines()[0]})" if detail else ""),
        sqlstate=error.sqlstate or "",
        key=(key[1].split(", "), key[2].split(", ")) if key else None,
    )
