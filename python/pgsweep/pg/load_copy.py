"""COPY of a piece of a file: the session, the statement, the count of its rows, and what a bad row is.

COPY runs under the search_path of the table's code (pg/load_code.py), because triggers, defaults and the
functions of types may rely on one. Everything else in those transactions runs under pg_catalog.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import psycopg
from psycopg import sql

from pgsweep.errors import PgsweepError
from pgsweep.pg.connect import Connection, connect, set_for_session
from pgsweep.pg.failures import first_line
from pgsweep.pg.load_catalog import TableFacts
from pgsweep.pg.load_code import under_path
from pgsweep.pg.load_journal import LoadId, Reject, add_piece, join_work
from pgsweep.pg.load_lock import check_same
from pgsweep.units import format_many

_BAD_ROW_CLASSES = ("22", "23", "P0", "44", "54")
"""Data exception, integrity constraint violation, an error raised by PL/pgSQL, WITH CHECK OPTION, and what is
too large for a limit of the server (an indexed value)."""

_NOT_OF_A_ROW = ("08", "25", "28", "3D", "40", "42", "53", "55", "57", "58", "F0", "XX")
"""Errors of the session, the server, the machine, or of a statement: also where COPY is at a certain line."""


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

    def statement(self, *, ignore_errors: bool = False) -> sql.Composed:
        """Return the COPY statement.

        Args:
            ignore_errors: skip rows that a type refuses, and say which (PostgreSQL 17).
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
        if ignore_errors:
            options.append(sql.SQL("ON_ERROR ignore, LOG_VERBOSITY verbose"))
        return sql.SQL("COPY {}.{} ({}) FROM STDIN WITH ({})").format(
            sql.Identifier(self.schema), sql.Identifier(self.table), names, sql.SQL(", ").join(options)
        )


class BadRow(Exception):
    """A record that the server refuses.

    Args:
        line: physical line within what was copied, from 1; None where the server names none.
        column: None where the server names none.
        reason: the server's words.
        duplicate: another row, of the table or of the files, has its key.
        key: names and values of the key that the server names: where a check comes after all rows, it has
            no line.
    """

    def __init__(
        self,
        line: int | None,
        column: str | None,
        reason: str,
        key: tuple[list[str], list[str]] | None = None,
        *,
        duplicate: bool = False,
    ) -> None:
        super().__init__(reason)
        self.duplicate = duplicate
        self.key = key
        self.line = line
        self.column = column
        self.reason = reason


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
        )
        with suppress(psycopg.Error):
            # A long CREATE INDEX of a client that was killed ends too; not every platform can (pqcomm.c).
            set_for_session(connection, client_connection_check_interval="1s")
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
    ignore_errors: bool = False,
) -> int:
    """Send parts of a file through one COPY, and return how many rows the server counted.

    Raises:
        BadRow: the server refuses a record; the transaction is aborted.
        DriverError: anything else.
    """
    with connection.cursor() as cursor:
        try:
            with cursor.copy(target.statement(ignore_errors=ignore_errors)) as stream:
                for part in parts:
                    stream.write(part)
        except psycopg.DatabaseError as error:
            bad = _bad_row(error, target)
            if _is_of_a_row(error, bad):
                raise bad from error
            raise
        return cursor.rowcount


def settle(connection: Connection, target: CopyTarget, path: str) -> None:
    """Have deferred constraints and triggers checked now, and not by the COMMIT, which could not say where.

    Raises:
        BadRow: one of them refuses a row.
        DriverError: anything else.
    """
    try:
        with under_path(connection, path):
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.DatabaseError as error:
        bad = _bad_row(error, target)
        if _is_of_a_row(error, bad):
            raise bad from error
        raise


def _is_of_a_row(error: psycopg.DatabaseError, bad: BadRow) -> bool:
    """Return whether an error is the fault of a record: a trigger may raise what it likes."""
    kind = (error.sqlstate or "")[:2]
    return kind in _BAD_ROW_CLASSES or (bad.line is not None and bool(kind) and kind not in _NOT_OF_A_ROW)


def copy_piece(
    connection: Connection,
    target: CopyTarget,
    table: TableFacts,
    parts: Sequence[bytes | memoryview],
    *,
    path: str,
    load_id: LoadId,
    file: int,
    piece: int,
    size_bytes: int,
    records: int | None,
    checksum: int,
) -> int:
    """Copy a piece and note it in the journal, in one transaction; return the rows.

    Args:
        table: the one that the load began with: the name may mean another one by now.
        path: the search_path of the table's code.
        size_bytes: of the file.
        records: that the parts hold; None where that is not known (binary).

    Raises:
        BadRow: the server refuses a record; nothing of the piece is in the table.
        WrongCount: likewise.
    """
    with connection.transaction():
        rows = copy_with_path(connection, target, parts, path)
        check_same(connection, table)
        if records is not None and rows != records:
            raise wrong_count(records, rows)
        add_piece(
            connection,
            load_id,
            file=file,
            piece=piece,
            size_bytes=size_bytes,
            records=rows if records is None else records,
            rows=rows,
            checksum=checksum,
        )
    return rows


def copy_piece_carefully(
    connection: Connection,
    target: CopyTarget,
    table: TableFacts,
    records: Sequence[bytes],
    *,
    path: str,
    load_id: LoadId,
    file: int,
    piece: int,
    size_bytes: int,
    checksum: int,
    most: int,
    line_of: Callable[[int], int],
) -> tuple[int, int]:
    """Copy a piece without the records that the server refuses; note both in the journal. One transaction.

    Returns:
        The rows, and how many records were refused.

    Raises:
        BadRow: more records are refused than may be.
    """
    with connection.transaction():
        # Rows copied within a savepoint have the number of a subtransaction, and a rollback of the load
        # knows the piece's own number only. So the bad records are found first, then the others are copied.
        with connection.transaction(force_rollback=True):
            _, bad = copy_carefully(connection, target, records, path=path, most=most)
        refused = {number for number, _ in bad}
        good = [record for number, record in enumerate(records) if number not in refused]
        rows = copy_with_path(connection, target, good, path)
        check_same(connection, table)
        if rows != len(good):
            raise wrong_count(len(good), rows)
        add_piece(
            connection,
            load_id,
            file=file,
            piece=piece,
            size_bytes=size_bytes,
            records=len(records),
            rows=rows,
            checksum=checksum,
            rejects=[
                Reject(file=file, line=line_of(number), reason=reason, record=records[number])
                for number, reason in bad
            ],
        )
    return rows, len(bad)


def copy_with_path(
    connection: Connection,
    target: CopyTarget,
    parts: Iterable[bytes | memoryview],
    path: str,
    *,
    ignore_errors: bool = False,
) -> int:
    """Copy under the search_path of the table's code, within a transaction that is open."""
    with under_path(connection, path):
        return copy(connection, target, parts, ignore_errors=ignore_errors)


def wrong_count(records: int, rows: int) -> WrongCount:
    """Return the error of a piece whose rows are not as many as its records."""
    return WrongCount(
        f"the server took {format_many(rows, 'row')} of {format_many(records, 'record')}",
        cause="a line that is only `\\.` ends COPY on servers before 18, or the quoting is not the one given",
        hint="see how the file is quoted: --quote, --escape, --delimiter, --format",
    )


def copy_carefully(
    connection: Connection,
    target: CopyTarget,
    records: Sequence[bytes],
    *,
    path: str,
    most: int,
) -> tuple[int, list[tuple[int, str]]]:
    """Copy records, one by one only where a record is refused, within a transaction that is open.

    A refused record is found by the line that the server names, else by halves; all others are copied.

    Args:
        records: whole records, in their order.
        most: the largest number of records that may be refused.

    Returns:
        The rows, and number and reason of each refused record.

    Raises:
        BadRow: more are refused than may be.
    """
    rows = 0
    refused: list[tuple[int, str]] = []
    pending = [(0, len(records))]
    while pending:
        begin, end = pending.pop()
        if begin == end:
            continue
        if connection.info.server_version >= 170000 and refused and target.format != "binary":
            done = _ignoring(connection, target, records[begin:end], path)
            if done is not None:
                rows += done[0]
                refused += [(begin + number, reason) for number, reason in done[1]]
                if len(refused) > most:
                    raise BadRow(None, None, refused[-1][1])
                continue
        try:
            with connection.transaction():
                copied = copy_with_path(connection, target, records[begin:end], path)
                if copied != end - begin:
                    raise wrong_count(end - begin, copied)
                rows += copied
        except BadRow as bad:
            if end - begin == 1:
                refused.append((begin, bad.reason))
                if len(refused) > most:
                    raise
                continue
            number = record_of_line(records[begin:end], bad.line)
            if number is None:
                middle = (begin + end) // 2
                pending += [(middle, end), (begin, middle)]
            else:
                at = begin + number
                pending += [(at + 1, end), (at, at + 1), (begin, at)]
    return rows, sorted(refused)


def record_of_line(records: Sequence[bytes], line: int | None) -> int | None:
    """Return which record a physical line belongs to; None where there is none."""
    if line is None:
        return None
    passed = 0
    for number, record in enumerate(records):
        passed += max(1, record.count(b"\n"))
        if line <= passed:
            return number
    return None


def _ignoring(
    connection: Connection, target: CopyTarget, records: Sequence[bytes], path: str
) -> tuple[int, list[tuple[int, str]]] | None:
    """Copy with ON_ERROR ignore; None where it does not skip an error, or did not name each row."""
    notices: list[str] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        notices.append(diagnostic.message_primary or "")

    connection.add_notice_handler(note)
    try:
        with connection.transaction() as attempt:
            rows = copy_with_path(connection, target, records, path, ignore_errors=True)
            found = []
            for notice in notices:
                # Whatever the language, the line is the first number; the last notice is the sum.
                number = re.search(r"\d+", notice)
                at = record_of_line(records, int(number[0])) if number else None
                if at is not None:
                    # This line number counts within the piece; that of the file is shown beside the reason.
                    found.append((at, re.sub(r" at line \d+", "", notice)))
            missing = len(records) - rows
            named = dict(found[:missing])
            if len(named) != missing:
                raise psycopg.Rollback(attempt)
            return rows, sorted(named.items())
    except BadRow:
        return None
    finally:
        connection.remove_notice_handler(note)


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
        (key[1].split(", "), key[2].split(", ")) if key else None,
        duplicate=error.sqlstate in ("23505", "23P01"),
    )


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo what fails inside, and only that."""
    with connection.transaction():
        yield
