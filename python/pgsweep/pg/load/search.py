"""Records that the server refuses: which ones they are, and the others copied.

A record is found by the splitter's own count of records. COPY's line numbers count line ends within fields
by rules of their own, so they are hints: of where to cut, or of what to try alone.
"""

from __future__ import annotations

import re
from bisect import bisect, insort
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from types import MappingProxyType
from typing import Final, Literal

import psycopg
from psycopg import pq, sql

from pgsweep.pg.load.catalog import TableFacts, rows_of
from pgsweep.pg.load.checks import find_duplicates, find_refused_by_checks
from pgsweep.pg.load.code import under_path
from pgsweep.pg.load.copy import BadRow, CopyTarget, copy, copy_with_path
from pgsweep.pg.session.connect import Connection

_FIRST_RANGE: Final = 1024
_LEAST_RANGE: Final = 64
"""Records that are sent at once where refused ones are looked for. The server writes up to 1,000 rows at a
time, so what it refuses of so few has written nothing."""

Refusals = dict[int, str]
"""The reason by the number of a record."""

_ENDED_OTHERWISE: Final = BadRow(None, None, "its line ends otherwise than those of most records")

EMPTY: Final[Mapping[int, str]] = MappingProxyType({})

Stage = Literal["reading", "checks", "keys", "writing"]
"""What is looked for: records that cannot be read; that a check of the row alone refuses; that have a
duplicate key; all others."""

_NONE: Final = sql.SQL("false")


class Records:
    """Records in their order.

    Args:
        data: all of them.
        ends: where each ends.
    """

    def __init__(self, data: bytes, ends: Sequence[int]) -> None:
        self._data = memoryview(data)
        self._ends = ends

    def of(self, numbers: Sequence[int]) -> Records:
        """Return some of the records."""
        parts = [self.between(number, number + 1) for number in numbers]
        return Records(b"".join(parts), list(accumulate(map(len, parts))))

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

    def ended_otherwise(self, refused: Mapping[int, str]) -> list[int]:
        """Return the records that do not end as most do: COPY takes each alone, and not all together."""
        ends: dict[int, bytes] = {}
        for number in range(len(self)):
            last = bytes(self.between(number, number + 1)[-2:])
            if last.endswith((b"\n", b"\r")):
                ends[number] = last if last == b"\r\n" else last[-1:]
        [(most, _)] = Counter(ends.values()).most_common(1) or [(b"", 0)]
        return [number for number, end in ends.items() if end != most and number not in refused]

    def certain_at(self, line: int | None, *, begin: int, end: int) -> int | None:
        """Return the record of a line where each one up to it is one line, however lines are counted."""
        if line is None or not 0 < line <= end - begin:
            return None
        return begin + line - 1 if self.are_lines(begin, begin + line) else None

    def are_lines(self, begin: int, end: int) -> bool:
        """Return whether each of these records is one line, by any count."""
        part = bytes(self.between(begin, end))
        ended = end - begin - (not part.endswith((b"\n", b"\r")))
        counts = part.count(b"\n"), part.count(b"\r"), part.count(b"\r\n")
        return counts in ((ended, 0, 0), (0, ended, 0), (ended, ended, ended))

    def record_at(
        self,
        line: int | None,
        kind: str,
        *,
        begin: int = 0,
        end: int | None = None,
        is_first: bool = True,
    ) -> int | None:
        """Return the record that a line of the server's means, which was sent those from `begin` to `end`.

        The server counts a line for each record of CSV, and one for each of its line ends within quotes: by
        carriage returns alone until it knows how lines end, from the end of the first record on
        (CopyReadLineText, copyfromparse.c). In the text format it counts records.

        Args:
            is_first: `begin` is the first that this COPY was sent.
        """
        end = len(self) if end is None else end
        if line is None:
            return None
        passed = 0
        for number in range(begin, end):
            passed += 1
            if kind == "csv":
                record = self[number]
                returns = record.endswith((b"\r", b"\r\n")) or (is_first and number == begin)
                sign = b"\r" if returns else b"\n"
                passed += record.rstrip(b"\r\n").count(sign)
            if line <= passed:
                return number
        return None


def stage_of(bad: BadRow) -> Stage:
    """Return where records are found that are refused for such a reason."""
    if bad.by_constraint:
        return "checks" if bad.by_itself else "keys" if bad.duplicate else "writing"
    return "reading"


def equal_keys(
    connection: Connection, types: Sequence[str], keys: Mapping[int, Sequence[str]], wanted: Sequence[str]
) -> list[int]:
    """Return the numbers of those keys that are equal to one, as their types have it: ` 9` is 9.

    Args:
        types: of the columns of the key, as SQL names them.
        keys: their texts by the number of the record.
        wanted: the texts of the key that is looked for.
    """
    columns = [sql.Identifier(f"c{at}") for at in range(len(types))]
    # As literals of arrays: the types' own input reads them, as COPY does, and not a cast from text, which
    # the owner of a type may have made.
    query = sql.SQL("SELECT k.number FROM ROWS FROM ({}) AS k (number, {}) WHERE {}").format(
        sql.SQL(", ").join(
            sql.SQL("pg_catalog.unnest(%s::{}[])").format(sql.SQL(kind)) for kind in ("int8", *types)
        ),
        sql.SQL(", ").join(columns),
        sql.SQL(" AND ").join(
            sql.SQL("k.{} = %s::{kind}").format(column, kind=sql.SQL(kind))
            for column, kind in zip(columns, types, strict=True)
        ),
    )
    texts = ["{" + ",".join(_element(key[at]) for key in keys.values()) + "}" for at in range(len(types))]
    with suppress(psycopg.DataError, psycopg.ProgrammingError):
        if connection.info.transaction_status != pq.TransactionStatus.INERROR:
            with connection.transaction():
                return [number for (number,) in connection.execute(query, [list(keys), *texts, *wanted])]
    # A record that COPY has not read yet, or a type whose operator is in no schema of the path.
    return [number for number, key in keys.items() if list(key) == list(wanted)]


def _element(text: str) -> str:
    """Return a text as an element of an array's literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Search:
    """Finds the records that the server refuses, and copies the others.

    Ranges of records are sent, each about as long as the way to the last refused one, so that a bad record
    costs what stands around it and not the whole piece. Where the server names a line, the range is cut
    before that record, else in its middle. A record is refused if it is so alone; or if it is the one of
    that line beyond doubt, as no record before it goes on over lines, and what refuses it sees no others.

    Args:
        connection: of which a transaction is made, or a savepoint of the one that is open.
        most: the largest number of records that may be refused.
        path: of the table's code.
        known: records that are refused already.

    Attributes:
        refused: what was found.
    """

    def __init__(
        self,
        connection: Connection,
        table: TableFacts,
        target: CopyTarget,
        records: Records,
        *,
        most: int,
        path: str,
        known: Mapping[int, str] = EMPTY,
    ) -> None:
        self._connection = connection
        self._table = table
        self._path = path
        self._target = target
        self._records = records
        self._most = most
        self.refused: Refusals = dict(known)
        self._known = sorted(known)

    def copy(self, first: BadRow, note: Callable[[int, Refusals], None]) -> int:
        """Copy the records that the server takes by one statement, and return the rows.

        Records that cannot be read are found without a row being written. Rows are written on the search only
        where other constraints or triggers refuse some, and undone: a load is undone by the numbers of its
        transactions, which do not name what a savepoint within them has written.

        Args:
            first: what the server said of all of them.
            note: is called with the rows and the refused records within the transaction.

        Raises:
            BadRow: more are refused than may be.
        """
        stage: Stage | None = stage_of(first)
        tried: set[Stage | None] = set()
        while True:
            tried.add(stage)
            try:
                with self._connection.transaction():
                    if stage is not None:
                        self.run(stage)
                    parts = self._records.without(sorted(self.refused))
                    rows = copy_with_path(self._connection, self._target, parts, self._path)
                    note(rows, self.refused)
            except BadRow as bad:
                # Without a number it is the last copy that failed, for what was not looked for.
                if bad.record is not None:
                    raise
                if stage is None or "writing" in tried:
                    odd = self._records.ended_otherwise(self.refused)
                    if not odd:
                        raise
                    for number in odd:
                        self._refuse(number, _ENDED_OTHERWISE)
                    stage = None
                    continue
                stage = "writing" if stage_of(bad) in tried else stage_of(bad)
            else:
                return rows

    def copy_skipping(
        self,
        fields_of: Callable[[bytes], Sequence[str | None]],
        note: Callable[[int, Refusals], None],
    ) -> int | None:
        """Copy the records that their types do not refuse by one statement.

        The server skips the others (PostgreSQL 17) and tells the line of each. That is used only where each
        record is one line by any count, and believed only where a type does refuse a field of the record.

        Args:
            fields_of: takes a record apart.
            note: as for `copy`.

        Returns:
            The rows; None where nothing was copied, because it cannot be done like this.
        """
        connection, count = self._connection, len(self._records)
        if connection.info.server_version < 170000 or not self._records.are_lines(0, count):
            return None
        notices: list[str] = []

        def noticed(diagnostic: psycopg.errors.Diagnostic) -> None:
            notices.append(diagnostic.message_primary or "")

        connection.add_notice_handler(noticed)
        try:
            with connection.transaction() as attempt:
                with under_path(connection, self._path):
                    rows = copy(connection, self._target, self._records.without([]), skipping=True)
                    # Whatever the language, the line is the first number; the last notice is the sum.
                    lines = [int(found[0]) for notice in notices if (found := re.search(r"\d+", notice))]
                    numbers = [line - 1 for line in lines[: count - rows] if 0 < line <= count]
                    refusals = self._unreadable(fields_of, numbers)
                if rows + len(refusals) != count:
                    raise psycopg.Rollback(attempt)
                note(rows, refusals)
                return rows
        except BadRow:
            pass
        finally:
            connection.remove_notice_handler(noticed)
        return None

    def _unreadable(
        self, fields_of: Callable[[bytes], Sequence[str | None]], numbers: Sequence[int]
    ) -> Refusals:
        """Return which of some records have a field that its type refuses."""
        fields = [
            (number, name, text)
            for number in numbers
            for name, text in zip(self._target.columns, fields_of(self._records[number]), strict=False)
            if text is not None
        ]
        rows = rows_of(
            self._connection,
            "load_unreadable",
            oid=self._table.oid,
            numbers=[number for number, _, _ in fields],
            names=[name for _, name, _ in fields],
            texts=[text for _, _, text in fields],
        )
        # Of several fields the first counts.
        return dict(reversed(rows))

    def run(self, stage: Stage) -> None:
        """Look for records that were not found yet; whatever is written is undone.

        Raises:
            BadRow: more are refused than may be.
        """
        if stage == "checks":
            self._check()
            return
        if stage == "keys":
            self._find_duplicates()
            return
        with self._connection.transaction(force_rollback=True), under_path(self._connection, self._path):
            self._connection.execute("SAVEPOINT pgsweep_range")
            self._send(reading=stage == "reading")

    def _check(self) -> None:
        left = [number for number in range(len(self._records)) if number not in self.refused]
        parts = self._records.without(self._known)
        try:
            with self._connection.transaction():
                found = find_refused_by_checks(self._connection, self._table, self._target, parts)
        except BadRow:
            # Some cannot be read. They are found first; without any it is a check that fails in another way.
            before = len(self.refused)
            self.run("reading")
            if len(self.refused) > before:
                self._check()
            return
        for number, reason in sorted(found):
            self._refuse(left[number], BadRow(None, None, reason))

    def _find_duplicates(self) -> None:
        # A record is no duplicate of one that something else refuses.
        self._check()
        left = [number for number in range(len(self._records)) if number not in self.refused]
        parts = self._records.without(self._known)
        try:
            with self._connection.transaction():
                found = find_duplicates(self._connection, self._table, self._target, [parts], self._most)
        except BadRow:
            before = len(self.refused)
            self.run("reading")
            if len(self.refused) > before:
                self._find_duplicates()
            return
        for number, reason in found:
            self._refuse(left[number], BadRow(None, None, reason))

    def _send(self, *, reading: bool) -> None:
        """Send ranges of records, and find those that are refused.

        Args:
            reading: they are read only. Otherwise they are written, and refused because of what is in the
                table too, and of those before them: a range goes in whole, or is sent again.
        """
        begin, size, last, bound = 0, _FIRST_RANGE, 0, 0
        suspect: int | None = None
        while begin < len(self._records):
            if begin in self.refused:
                begin += 1
                continue
            end = begin + 1 if begin == suspect else self._end_of_range(begin, size)
            bad = self._try(begin, end, reading=reading)
            if bad is None:
                longest = len(self._records) if reading else _FIRST_RANGE
                begin = end
                size = max(1, (bound - begin) // 2) if begin < bound else min(longest, 2 * size)
                continue
            alone = begin if end - begin == 1 else None
            if alone is None and (reading or bad.by_itself) and not bad.by_encoding:
                alone = self._records.certain_at(bad.line, begin=begin, end=end)
            if alone is None:
                suspect = self._records.record_at(bad.line, self._target.format, begin=begin, end=end)
                size, bound = ((end - begin) // 2 if suspect is None else max(1, suspect - begin)), end
                continue
            self._refuse(alone, bad)
            size, last, bound = max(_LEAST_RANGE, 2 * (alone - last)), alone, 0
            if reading:
                begin = alone + 1

    def _end_of_range(self, begin: int, size: int) -> int:
        end = min(begin + size, len(self._records))
        place = bisect(self._known, begin)
        return min(end, self._known[place]) if place < len(self._known) else end

    def _refuse(self, number: int, bad: BadRow) -> None:
        """Note a record as refused.

        Raises:
            BadRow: more are refused than may be.
        """
        self.refused[number] = bad.reason
        insort(self._known, number)
        if len(self.refused) > self._most:
            raise BadRow(bad.line, bad.column, bad.reason, sqlstate=bad.sqlstate, record=number) from bad

    def _try(self, begin: int, end: int, *, reading: bool) -> BadRow | None:
        """Send some of the records; return what the server says of one of them, if it refuses any."""
        parts = [self._records.between(begin, end)]
        try:
            copy(self._connection, self._target, parts, where=_NONE if reading else None)
        except BadRow as bad:
            self._connection.execute("ROLLBACK TO SAVEPOINT pgsweep_range")
            return bad
        if not reading:
            self._connection.execute("RELEASE SAVEPOINT pgsweep_range; SAVEPOINT pgsweep_range")
        return None
