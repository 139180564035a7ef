"""COPY of a piece of a file: the session, the statement, the count of its rows, and what a bad row is.

COPY runs under the user's own search_path, because triggers, defaults and the functions of types may rely on
it. Everything else in those transactions is qualified in full.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import msgspec
import psycopg
from psycopg import sql

from pgsweep.errors import PgsweepError
from pgsweep.pg.connect import Connection, connect, read_user_path, set_for_session
from pgsweep.pg.failures import first_line
from pgsweep.pg.load_journal import join_work
from pgsweep.units import format_many

_BAD_ROW_CLASSES = ("22", "23", "P0", "44")
"""Data exception, integrity constraint violation, an error raised by PL/pgSQL, WITH CHECK OPTION."""

_OTHER_CLASSES = ("", "08", "25", "40", "42", "53", "55", "57", "58", "XX")
"""Errors that are not those of a record, though the server was at one: connection, transaction state,
rollback, rights and names, resources, object state, an operator, the system, a fault of the server. Any other
error that names a line is: a value too long for an index (54000), what a trigger raises with its own code."""

_FIRST_RANGE = 1024
_LEAST_RANGE = 64
"""Records that are sent at once where refused ones are looked for. The server writes up to 1,000 rows at a
time, so what it refuses of so few has written nothing."""


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

    def statement(self, *, parse_only: bool = False) -> sql.Composed:
        """Return the COPY statement.

        Args:
            parse_only: read the records, and write no row.
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
        return sql.SQL("COPY {}.{} ({}) FROM STDIN WITH ({}){}").format(
            sql.Identifier(self.schema),
            sql.Identifier(self.table),
            names,
            sql.SQL(", ").join(options),
            sql.SQL(" WHERE false" if parse_only else ""),
        )


class BadRow(Exception):
    """A record that the server refuses.

    Args:
        line: within what was copied, from 1, as the server counts; None where it names none.
        column: None where the server names none.
        reason: the server's words.
        record: which one of the piece, where it was found by itself.
        by_constraint: it can be read; a constraint or a trigger refuses it.
        by_itself: by a constraint that sees nothing but this row.
    """

    def __init__(
        self,
        line: int | None,
        column: str | None,
        reason: str,
        *,
        record: int | None = None,
        by_constraint: bool = False,
        by_itself: bool = False,
    ) -> None:
        super().__init__(reason)
        self.line = line
        self.column = column
        self.reason = reason
        self.record = record
        self.by_constraint = by_constraint
        self.by_itself = by_itself


class Records:
    """Records in their order.

    Args:
        data: all of them.
        ends: where each ends.
    """

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        self._data = memoryview(data)
        self._ends = ends

    @classmethod
    def of(cls, records: Records, places: Iterable[int]) -> Records:
        """Return some of the records."""
        parts = [records.between(place, place + 1) for place in places]
        return cls(b"".join(parts), list(itertools.accumulate(map(len, parts))))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return bytes(self.between(number, number + 1))

    def between(self, begin: int, end: int) -> memoryview:
        """Return the bytes of the records from one up to another, which is left out."""
        if begin >= end:
            return self._data[:0]
        return self._data[self._ends[begin - 1] if begin else 0 : self._ends[end - 1]]

    def without(self, numbers: Sequence[int]) -> list[memoryview]:
        """Return the bytes of all others."""
        begins, ends = [0, *(number + 1 for number in numbers)], [*numbers, len(self)]
        return [self.between(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]

    def certain_at(self, line: int | None, *, begin: int, end: int) -> int | None:
        """Return the record of a line where each one up to it is one line, however lines are counted."""
        if line is None or not 0 < line <= end - begin:
            return None
        part = bytes(self.between(begin, begin + line))
        counts = part.count(b"\n"), part.count(b"\r"), part.count(b"\r\n")
        plain = counts in ((line, 0, 0), (0, line, 0), (line, line, line))
        return begin + line - 1 if plain else None

    def record_at(self, line: int | None, kind: str, *, begin: int = 0, end: int | None = None) -> int | None:
        """Return the record that a line of the server's means, which was sent those from `begin` to `end`.

        The server counts a line for each record of CSV, and one for each of its line ends within quotes: by
        carriage returns alone until it knows how lines end, from the end of the first record on
        (CopyReadLineText, copyfromparse.c). In the text format it counts records.
        """
        end = len(self) if end is None else end
        if line is None:
            return None
        passed = 0
        for number in range(begin, end):
            passed += 1
            if kind == "csv":
                record = self[number]
                returns = record.endswith((b"\r", b"\r\n")) or number == begin
                sign = b"\r" if returns else b"\n"
                passed += record.rstrip(b"\r\n").count(sign)
            if line <= passed:
                return number
        return None


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
    parse_only: bool = False,
) -> int:
    """Send parts of a file through one COPY, and return how many rows the server counted.

    Raises:
        BadRow: the server refuses a record; the transaction is aborted.
        DriverError: anything else.
    """
    with connection.cursor() as cursor:
        try:
            with cursor.copy(target.statement(parse_only=parse_only)) as stream:
                for part in parts:
                    stream.write(part)
        except psycopg.DatabaseError as error:
            bad = _bad_row(error, target)
            code = (error.sqlstate or "")[:2]
            if code in _BAD_ROW_CLASSES or (bad.line is not None and code not in _OTHER_CLASSES):
                raise bad from error
            raise
        return cursor.rowcount


def copy_with_path(
    connection: Connection, target: CopyTarget, parts: Iterable[bytes | memoryview], path: str
) -> int:
    """Copy under the user's search_path, within a transaction that is open."""
    _set_path(connection, path)
    rows = copy(connection, target, parts)
    _set_path(connection, "pg_catalog")
    return rows


def wrong_count(records: int, rows: int) -> WrongCount:
    """Return the error of a piece whose rows are not as many as its records."""
    return WrongCount(
        f"the server took {format_many(rows, 'row')} of {format_many(records, 'record')}",
        cause="a line that is only `\\.` ends COPY on servers before 18, or the quoting is not the one given",
        hint="see how the file is quoted: --quote, --escape, --delimiter, --format",
    )


def copy_without_refused(
    connection: Connection,
    target: CopyTarget,
    records: Records,
    first: BadRow,
    *,
    path: str,
    most: int,
    at_once: bool,
    note: Callable[[int, Sequence[tuple[int, str]]], None],
) -> int:
    """Copy the records that the server takes, in one transaction, or in a savepoint of the one that is open.

    Records that cannot be read are found without a row being written. Rows are written only where constraints
    or triggers refuse others.

    Args:
        first: what the server said of all of them.
        most: the largest number of records that may be refused.
        at_once: what is written on the search is undone, and all the others are copied by one statement: then
            they have the number of the transaction itself.
        note: is called with the rows, and number and reason of each refused record, within the transaction.

    Returns:
        The rows.

    Raises:
        BadRow: more are refused than may be.
    """
    search: _Search | None = None
    for writing in (first.by_constraint, True):
        try:
            with connection.transaction():
                _set_path(connection, path)
                if search is None:
                    search = _Search(connection, target, records, most)
                    search.run(writing=False)
                if writing:
                    rows = search.run(writing=True, keep=not at_once)
                if at_once or not writing:
                    rows = copy(connection, target, records.without(sorted(search.refused)))
                _set_path(connection, "pg_catalog")
                note(rows, sorted(search.refused.items()))
        except BadRow as bad:
            # Without a number it is the last copy that failed, for what was not looked for.
            if writing or bad.record is not None:
                raise
        else:
            return rows
    raise AssertionError


class _Search:
    """Finds the records that the server refuses.

    Ranges of records are sent, each about as long as the way to the last refused one, so that a bad record
    costs what stands around it and not the whole piece. Where the server names a line, the range is cut
    before that record, else in its middle. A record is refused if it is so alone; or if it is the one of
    that line beyond doubt, as no record before it goes on over lines, and what refuses it sees no others.

    Attributes:
        refused: the reason by the number of a record.
    """

    def __init__(self, connection: Connection, target: CopyTarget, records: Records, most: int) -> None:
        self._connection = connection
        self._target = target
        self._records = records
        self._most = most
        self.refused: dict[int, str] = {}

    def run(self, *, writing: bool, keep: bool = False) -> int:
        """Look for records that were not found yet, and return how many rows were written.

        Args:
            writing: rows are written, so that constraints and triggers refuse records too.
            keep: what is written stays.
        """
        with self._connection.transaction(force_rollback=not keep):
            self._connection.execute("SAVEPOINT pgsweep_range")
            return self._run(writing)

    def _run(self, writing: bool) -> int:
        begin, size, last, bound, rows = 0, _FIRST_RANGE, 0, 0, 0
        count, largest = len(self._records), _FIRST_RANGE if writing else len(self._records)
        known = sorted(self.refused)
        suspect: int | None = None
        while begin < count:
            if begin in self.refused:
                begin += 1
                continue
            place = bisect(known, begin)
            stop = min(count, known[place] if place < len(known) else count)
            end = begin + 1 if begin == suspect else min(begin + size, stop)
            try:
                rows += copy(
                    self._connection,
                    self._target,
                    [self._records.between(begin, end)],
                    parse_only=not writing,
                )
            except BadRow as bad:
                self._connection.execute("ROLLBACK TO SAVEPOINT pgsweep_range")
                alone = begin if end - begin == 1 else None
                if alone is None and (not writing or bad.by_itself):
                    alone = self._records.certain_at(bad.line, begin=begin, end=end)
                if alone is None:
                    suspect, bound = (
                        self._records.record_at(bad.line, self._target.format, begin=begin, end=end),
                        end,
                    )
                    size = (end - begin) // 2 if suspect is None else max(1, suspect - begin)
                    continue
                self.refused[alone] = bad.reason
                if len(self.refused) > self._most:
                    raise BadRow(bad.line, bad.column, bad.reason, record=alone) from bad
                size, last, bound = max(_LEAST_RANGE, 2 * (alone - last)), alone, 0
                if writing and alone > begin:
                    insort(known, alone)  # those before it are written first
                else:
                    # COPY reads in order: those before it can be read.
                    begin = alone + 1
                continue
            if writing:
                self._connection.execute("RELEASE SAVEPOINT pgsweep_range; SAVEPOINT pgsweep_range")
            begin = end
            size = max(1, (bound - begin) // 2) if begin < bound else min(largest, 2 * size)
        return rows


def _set_path(connection: Connection, path: str) -> None:
    connection.execute("SELECT pg_catalog.set_config('search_path', %s, true)", [path])


def _bad_row(error: psycopg.DatabaseError, target: CopyTarget) -> BadRow:
    # COPY t, line 3, column price: "abc". Words are in the server's language, and the name may hold anything.
    _, _, rest = (error.diag.context or "").rpartition(f"COPY {target.table}, ")
    found = re.match(r"\D*(\d+)(?:, \S+ (.+?))?(?:: |$)", rest, re.DOTALL)
    detail = error.diag.message_detail
    return BadRow(
        int(found[1]) if found else None,
        error.diag.column_name or (found[2] if found else None),
        first_line(error) + (f" ({detail.splitlines()[0]})" if detail else ""),
        by_constraint=not (error.sqlstate or "").startswith("22"),
        by_itself=error.sqlstate in ("23502", "23514"),
    )


@contextmanager
def savepoint(connection: Connection) -> Iterator[None]:
    """Undo what fails inside, and only that."""
    with connection.transaction():
        yield


def session_path(connection: Connection) -> str:
    """Return the search_path that the user's own sessions have."""
    return read_user_path(connection)
