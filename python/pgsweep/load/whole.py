"""Files copied by one COPY each, for what sees how rows are divided among statements.

Statement triggers, keys that refer to their own table, exclusion constraints and deferred checks see what
they would see in psql. The server says which record it refuses by its own count of lines, or by a key after
all rows; where records may be refused, they are noted, and all is copied again without them.
"""

from __future__ import annotations

import threading
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Final

import msgspec

from pgsweep.load.copying import LoadListener, begun_state, chunks_of
from pgsweep.load.document import LoadDocument
from pgsweep.load.input.fields import values_of
from pgsweep.load.input.source import Input, InputError
from pgsweep.load.input.split import Chunk, records_of
from pgsweep.load.refusing import (
    check_count,
    copy_chunk,
    refused,
    refused_somewhere,
    rejects_of,
    target_of,
    too_many,
    too_many_of,
    too_many_unreadable,
)
from pgsweep.pg.load.catalog import TableFacts
from pgsweep.pg.load.checks import find_duplicates, find_missing_references
from pgsweep.pg.load.copy import BadRow, CopyTarget, copy_with_path, settle
from pgsweep.pg.load.journal import Reject
from pgsweep.pg.load.search import Records, Refusals, Search, Stage, equal_keys, stage_of
from pgsweep.pg.session.connect import Connection

_KEPT_BYTES: Final = 16 << 20
"""How much of what was sent is kept: the server complains of a record that was sent shortly before."""

_ALONE: Final[tuple[Stage, ...]] = ("reading", "checks")
"""What is found by one reading of the records, whatever others there are."""

_Find = Callable[
    [Connection, TableFacts, CopyTarget, Iterable[Iterable[bytes | memoryview]], int], list[tuple[int, str]]
]
"""Finds numbers and reasons of refused records, of at least so many more than may be refused."""


class Stopped(Exception):
    """The user has stopped the load: the transaction is undone."""


@dataclass(frozen=True)
class _Sent:
    """A piece within one COPY.

    Attributes:
        before: lines that COPY had counted before it.
        lines: that it counts in it.
    """

    chunk: Chunk
    before: int
    lines: int


class OneTransaction:
    """The copying, within the transaction that is open.

    Each file is one COPY: what looks at statements sees what it would see in psql. Only where records may be
    refused, and nothing looks, each piece is a statement, so that one record costs no more than its piece.
    """

    def __init__(
        self, connection: Connection, document: LoadDocument, listener: LoadListener, stop: threading.Event
    ) -> None:
        self._connection = connection
        self.document = document
        self._listener = listener
        self._stop = stop
        self._copied: Input | None = None
        self._most = document.options.max_rejects
        self._refusals: dict[tuple[int, int], Refusals] = {}
        self._searched: set[Stage] = set()
        self._sent: deque[_Sent] = deque()
        self._sign = b"\n"
        self.rejects: list[Reject] = []
        self.left_out = 0
        self.state = begun_state(document.inputs)

    def run(self) -> None:
        """Copy all files.

        Raises:
            Refused: a record is refused that may not be.
            Stopped: by the user.
        """
        if self._most is not None and not self.document.plan.one_statement:
            self._copy_pieces()
            return
        self._name_all_keys()
        while True:
            try:
                if self._most is None:
                    self.state.rows = self._copy()
                    return
                with self._connection.transaction():
                    self.state.rows = self._copy()
                    return
            except BadRow as bad:
                self._note(bad)
            self.state = begun_state(self.document.inputs)

    def refused_so_far(self) -> list[Reject]:
        """Return the records that were refused, where the load failed before it had all of them."""
        if not self._refusals:
            return self.rejects
        found: list[Reject] = []
        for chunk in chain.from_iterable(chunks_of(entry, self.document) for entry in self.document.inputs):
            refusals = self._refusals.get((chunk.file, chunk.piece), {})
            if refusals or chunk.refused:
                entry, target = self.document.inputs[chunk.file], target_of(self.document.target, chunk)
                found += rejects_of(entry, chunk, target, self._records(chunk), refusals)
        return found

    def _copy_pieces(self) -> None:
        for chunk in self._all_pieces():
            rows, rejects = copy_chunk(
                self._connection,
                self.document,
                chunk,
                rejected=len(self.rejects),
                note=lambda *_: None,
            )
            self.rejects += rejects
            self.state.rows += rows
            if chunk.records is not None:
                self.left_out += chunk.records + len(chunk.refused) - len(rejects) - rows
            self._show(chunk)
        try:
            settle(self._connection, self.document.target, self.document.path)
        except BadRow as bad:
            raise refused_somewhere(bad) from bad

    def _pieces(self, entry: Input) -> Iterator[Chunk]:
        for chunk in chunks_of(entry, self.document):
            if self._stop.is_set():
                raise Stopped
            yield chunk

    def _all_pieces(self) -> Iterator[Chunk]:
        return chain.from_iterable(self._pieces(entry) for entry in self.document.inputs)

    def _show(self, chunk: Chunk) -> None:
        self.state.done_bytes += chunk.source_bytes
        self.state.own_bytes += chunk.source_bytes
        self.state.rejected = len(self.rejects)
        self._listener.state(self.state)

    def _copy(self) -> int:
        rows = self.left_out = 0
        self.rejects = []
        for entry in self.document.inputs:
            self._sent.clear()
            self._copied = entry
            counts: list[int | None] = []
            taken = copy_with_path(
                self._connection, self.document.target, self._parts(entry, counts), self.document.path
            )
            known = [count for count in counts if count is not None]
            if len(known) == len(counts):
                self.left_out += check_count(self.document, sum(known), taken)
            rows += taken
        self._sent.clear()
        self._copied = None
        settle(self._connection, self.document.target, self.document.path)
        return rows

    def _parts(self, entry: Input, counts: list[int | None]) -> Iterator[bytes | memoryview]:
        """Yield what of a file is copied, and note how many records each piece has."""
        for chunk in self._pieces(entry):
            if chunk.columns is not None:
                raise InputError(
                    f"{entry.name} has keys that its first lines do not have, and can be read only once",
                    cause="its rows must be one statement, which has one list of columns",
                    hint=f"name them: --columns {','.join(chunk.columns)}",
                )
            refusals = self._refusals.get((chunk.file, chunk.piece), {})
            records = self._records(chunk) if refusals or not self._sent else None
            parts = chunk.parts if records is None else records.without(sorted(refusals))
            counts.append(None if chunk.records is None else chunk.records - len(refusals))
            self.rejects += rejects_of(entry, chunk, self.document.target, records, refusals)
            if self._most is not None and len(self.rejects) > self._most:
                raise too_many_unreadable(self._most, entry, self.rejects[-1])
            before = self._sent[-1].before + self._sent[-1].lines if self._sent else 0
            self._sent.append(_Sent(chunk, before, self._lines(parts, counts[-1], records)))
            while sum(sent.chunk.source_bytes for sent in self._sent) > _KEPT_BYTES and len(self._sent) > 1:
                self._sent.popleft()
            yield from parts
            self._show(chunk)

    def _lines(self, parts: Iterable[bytes | memoryview], count: int | None, records: Records | None) -> int:
        """Return how many lines COPY counts in a piece: as `Records.record_at` has the rule."""
        if self.document.target.format != "csv" or count is None:
            return count or 0
        surplus = 0
        if not self._sent and records is not None and len(records):
            first = records[0]
            self._sign = b"\r" if first.endswith((b"\r", b"\r\n")) else b"\n"
            body = first.rstrip(b"\r\n")
            surplus = body.count(b"\r") - body.count(self._sign)
        return sum(bytes(part).count(self._sign) for part in parts) + surplus

    def _records(self, chunk: Chunk) -> Records:
        return records_of(self.document.inputs[chunk.file], self.document.options, chunk)

    def _name_all_keys(self) -> None:
        """Name all columns that JSON lines have: a key may come first after those that the plan has seen."""
        for entry in self.document.inputs:
            if entry.format == "jsonl" and entry.identity is not None:
                for chunk in self._pieces(entry):
                    if chunk.columns is not None:
                        self._name(chunk.columns)

    def _name(self, columns: list[str]) -> None:
        names = [*self.document.plan.columns]
        names += [name for name in columns if name not in names]
        replace = msgspec.structs.replace
        plan, target = self.document.plan, self.document.target
        self.document = replace(
            self.document, plan=replace(plan, columns=names), target=replace(target, columns=names)
        )

    def _note(self, bad: BadRow) -> None:
        """Note the records that an error is about.

        Raises:
            Refused: there may be none, or not so many.
        """
        stage = stage_of(bad)
        if self._most is not None and stage in _ALONE and stage not in self._searched:
            # One reading finds all that are refused by themselves, and not one each time.
            self._searched.add(stage)
            self._search(stage)
            return
        if self._most is not None and bad.lacks_reference and self._search_all(find_missing_references):
            return
        if self._most is not None and stage == "keys" and stage not in self._searched:
            # A record is no duplicate of one that something else refuses.
            for each in _ALONE:
                if each not in self._searched:
                    self._searched.add(each)
                    self._search(each)
            self._searched.add(stage)
            if self._search_all(find_duplicates):
                return
        found = False
        for chunk, numbers in self._meant(bad):
            for number in numbers:
                here = BadRow(bad.line, bad.column, bad.reason, sqlstate=bad.sqlstate, record=number)
                if self._most is None:
                    raise refused(self.document, chunk, here) from bad
                self._refusals.setdefault((chunk.file, chunk.piece), {})[number] = bad.reason
                if self._count() > self._most:
                    raise too_many(self.document, chunk, here) from bad
            found = True
        if found:
            return
        raise refused_somewhere(bad) from bad

    def _count(self) -> int:
        return sum(map(len, self._refusals.values()))

    def _search(self, stage: Stage) -> None:
        for chunk in self._all_pieces():
            place, target = (chunk.file, chunk.piece), target_of(self.document.target, chunk)
            known = self._refusals.get(place, {})
            left = (self._most or 0) - self._count() + len(known)
            search = Search(
                self._connection,
                self.document.table,
                target,
                self._records(chunk),
                most=left,
                path=self.document.path,
                known=known,
            )
            try:
                with self._connection.transaction():
                    search.run(stage)
            except BadRow as last:
                if last.record is not None:
                    self._refusals[place] = {**search.refused, last.record: last.reason}
                raise too_many(self.document, chunk, last) from last
            if search.refused:
                self._refusals[place] = search.refused

    def _search_all(self, find: _Find) -> bool:
        """Note all records that are found by looking at all of them at once; return whether there are any."""
        chunks: list[tuple[int, tuple[int, int], int]] = []
        passed = 0

        def parts(entry: Input) -> Iterator[bytes | memoryview]:
            nonlocal passed
            for chunk in self._pieces(entry):
                place, records = (chunk.file, chunk.piece), self._records(chunk)
                known = self._refusals.get(place, {})
                chunks.append((passed, place, len(records)))
                passed += len(records) - len(known)
                yield from records.without(sorted(known))

        document, most = self.document, self._most or 0
        files = (parts(entry) for entry in document.inputs)
        try:
            found = find(self._connection, document.table, document.target, files, most)
        except BadRow:
            return False
        for (first, place, size), numbers in groupby(
            found, lambda one: chunks[bisect(chunks, one[0], key=itemgetter(0)) - 1]
        ):
            refusals = self._refusals.setdefault(place, {})
            kept = [number for number in range(size) if number not in refusals]
            refusals.update((kept[number - first], reason) for number, reason in numbers)
        if self._count() > most:
            raise too_many_of(most, found[-1][1])
        return bool(found)

    def _meant(self, bad: BadRow) -> Iterator[tuple[Chunk, list[int]]]:
        """Yield pieces with the records that an error is about."""
        sent = next((s for s in reversed(self._sent) if bad.line is not None and bad.line > s.before), None)
        if sent is not None and bad.line is not None:
            records = self._records(sent.chunk)
            refusals = self._refusals.get((sent.chunk.file, sent.chunk.piece), {})
            kept = [number for number in range(len(records)) if number not in refusals]
            line, first = bad.line - sent.before, sent.before == 0
            at = records.of(kept).record_at(line, self.document.target.format, is_first=first)
            if at is not None:
                yield sent.chunk, [kept[at]]
                return
        if bad.duplicate:
            # The first of them may stay.
            *_, last = [None, *self._with_key(bad)]
            if last is not None:
                yield last[0], last[1][-1:]
            return
        yield from self._with_key(bad)

    def _with_key(self, bad: BadRow) -> Iterator[tuple[Chunk, list[int]]]:
        """Yield the pieces with records that have the key of an error, and the numbers of these."""
        target, names = self.document.target, self.document.plan.columns
        inputs = self.document.inputs if self._copied is None else [self._copied]
        if bad.key is None or not set(bad.key[0]) <= set(names) or target.format == "binary":
            return
        if any(entry.identity is None for entry in inputs):
            return
        places = [names.index(name) for name in bad.key[0]]
        kinds = {column.name: column.type for column in self.document.columns}
        types = [kinds[name] for name in bad.key[0]]
        for chunk in chain.from_iterable(map(self._pieces, inputs)):
            records = self._records(chunk)
            refusals = self._refusals.get((chunk.file, chunk.piece), {})
            keys: dict[int, list[str]] = {}
            for number in range(len(records)):
                values = values_of(records[number], target) if number not in refusals else []
                key = [values[place] for place in places] if len(values) == len(names) else [None]
                if None not in key:
                    keys[number] = [value for value in key if value is not None]
            numbers = equal_keys(self._connection, types, keys, bad.key[1])
            if numbers:
                yield chunk, numbers
