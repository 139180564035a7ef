"""A piece copied without the records that are refused, and what is said of these."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from pgsweep.errors import PgsweepError
from pgsweep.load.document import LoadDocument
from pgsweep.load.input.fields import values_of, with_names
from pgsweep.load.input.source import Input
from pgsweep.load.input.split import CR, Chunk, is_text, line_ends, line_of, records_of
from pgsweep.pg.load.copy import BadRow, CopyTarget, copy_with_path, wrong_count
from pgsweep.pg.load.journal import Reject
from pgsweep.pg.load.partition import BOUND_CHECK
from pgsweep.pg.load.search import Records, Refusals, Search
from pgsweep.pg.session.connect import Connection
from pgsweep.units import format_many


class Refused(PgsweepError):
    """A record that the server refuses, with its place in the file.

    Attributes:
        rejects: where too many are refused, those of the piece that were found.
    """

    code = "refused-record"
    rejects: Sequence[Reject] = ()


def copy_chunk(
    connection: Connection,
    document: LoadDocument,
    chunk: Chunk,
    *,
    rejected: int,
    note: Callable[[int, Sequence[Reject]], None],
) -> tuple[int, Sequence[Reject]]:
    """Copy a piece in one transaction, or in a savepoint of the one that is open.

    Args:
        rejected: records that the load has refused before.
        note: is called within the transaction with what is returned.

    Returns:
        The rows, and the records that were refused.

    Raises:
        Refused: a record is refused that may not be.
        WrongCount: the server took another number of records than were sent.
    """
    entry, most = document.inputs[chunk.file], document.options.max_rejects
    target, path = target_of(document.target, chunk), document.path
    left = (most or 0) - rejected - len(chunk.refused)
    records: Records | None = None
    rejects: Sequence[Reject] = ()

    def noted(rows: int, refusals: Refusals) -> None:
        nonlocal rejects
        if len(refusals) > left:
            number, reason = sorted(refusals.items())[left]
            raise BadRow(None, None, reason, record=number)
        if chunk.records is not None:
            check_count(document, chunk.records - len(refusals), rows)
        rejects = rejects_of(entry, chunk, target, records, refusals)
        note(rows, rejects)

    if left < 0:
        unreadable = too_many_unreadable(most or 0, entry, chunk.refused[-1])
        unreadable.rejects = chunk.refused
        raise unreadable
    try:
        with connection.transaction():
            rows = copy_with_path(connection, target, chunk.parts, path)
            noted(rows, {})
    except BadRow as bad:
        if most is None or chunk.records is None:
            raise refused(document, chunk, bad) from bad
        records = records_of(entry, document.options, chunk)
        search = Search(connection, document.table, target, records, most=left, path=path)
        if not bad.by_constraint and left:
            skipped = search.copy_skipping(lambda record: values_of(record, target), noted)
            if skipped is not None:
                return skipped, rejects
        try:
            rows = search.copy(bad, noted)
        except BadRow as last:
            if last.record is not None:
                found = too_many(document, chunk, last)
                found.rejects = rejects_of(
                    entry, chunk, target, records, {**search.refused, last.record: last.reason}
                )
                raise found from last
            together = refused(document, chunk, last)
            together.hint = "correct it: it is refused with the others only, so it is not written to a file"
            raise together from last
    return rows, rejects


def check_count(document: LoadDocument, records: int, rows: int) -> int:
    """Return how many records a trigger left out; refuse another number of rows than of records elsewhere.

    Raises:
        WrongCount: it is another.
    """
    fewer_is_fine = document.table.insert_triggers and not document.options.disable_triggers
    if rows != records and not (fewer_is_fine and rows < records):
        raise wrong_count(records, rows, document.target)
    return records - rows


def target_of(target: CopyTarget, chunk: Chunk) -> CopyTarget:
    """Return where a piece is copied to: it may be for more columns than the others."""
    return target if chunk.columns is None else msgspec.structs.replace(target, columns=chunk.columns)


def rejects_of(
    entry: Input,
    chunk: Chunk,
    target: CopyTarget,
    records: Records | None,
    refusals: Refusals,
) -> Sequence[Reject]:
    """Return the refused records of a piece as the file has them, in its order; of Parquet as JSON objects.

    Args:
        records: of the piece; None where the server has refused none.
    """
    found = list(chunk.refused)
    lines, passed = chunk.first_line, 0
    if records is not None:
        for number, reason in sorted(refusals.items()):
            source = records[number] if chunk.sources is None else chunk.sources[number]
            if entry.format == "parquet":
                source = with_names(source, target.columns)
            lines += line_ends(chunk, records, passed, number)
            passed = number
            line = lines if chunk.lines is None else chunk.lines[number]
            found.append(Reject(file=chunk.file, line=line, reason=_in_words(reason), record=source))
    return sorted(found, key=lambda reject: reject.line)


def refused(document: LoadDocument, chunk: Chunk, bad: BadRow) -> Refused:
    """Return the error of a record that the server refuses."""
    entry, number = document.inputs[chunk.file], bad.record
    place = ""
    records = None
    if chunk.records is not None and (number is not None or bad.line is not None):
        records = records_of(entry, document.options, chunk)
        if number is None:
            number = records.record_at(bad.line, document.target.format)
        if number is not None:
            ahead = bad.by_encoding and chunk.terminator == CR and number + 1 < len(records)
            number += ahead and is_text(records[number], document.options)
            kind = "row" if entry.format == "parquet" else "line"
            place = f", {kind} {line_of(chunk, records, number)}"
    elif bad.line is not None:
        place = f", row {bad.line}"
    place += f", column {bad.column}" if bad.column else ""
    hint = "correct it, or have such records written to a file: --rejects FILE"
    if bad.by_encoding and document.options.encoding is None and records is not None and number is not None:
        hint = _hint_of_encoding(records[number]) + hint
    if document.target.format == "binary":
        hint = "correct the program that writes the file"
    if (words := _in_words(bad.reason)) != bad.reason:
        return Refused(
            f"{entry.name}{place}: {words}",
            cause="it belongs to another partition; nothing of the load is in the database",
            hint=hint,
        )
    whole = "the load" if document.plan.strategy == "one transaction" else "this piece"
    return Refused(
        f"{entry.name}{place}: {bad.reason}",
        cause=f"the server refuses the record; nothing of {whole} is in the table",
        hint=hint,
    )


def _in_words(reason: str) -> str:
    """Return the server's words, without the constraint of a new partition's bound, which is ours."""
    begin, bracket, row = reason.partition(" (")
    return (
        f"the row is outside the bound of the new partition{bracket}{row}" if BOUND_CHECK in begin else reason
    )


def _hint_of_encoding(record: bytes) -> str:
    """Return the question whether a record is in an encoding of one byte a character, where it may be."""
    with suppress(UnicodeDecodeError):
        if b"\0" in record or record.decode():
            return ""
    with suppress(UnicodeDecodeError):
        # WIN1252 has characters where LATIN1 has only codes for control.
        name = "WIN1252" if re.search(b"[\x80-\x9f]", record) and record.decode("cp1252") else "LATIN1"
        return f"is the file in another encoding? --encoding {name}; else "
    return ""


def refused_somewhere(bad: BadRow) -> Refused:
    """Return the error of a record that is refused after all have been copied, without a place or a key."""
    return Refused(
        bad.reason,
        cause="the server refuses a record, and does not say which; nothing of the load is in the table",
        hint="correct the records with these values",
    )


def too_many(document: LoadDocument, chunk: Chunk, bad: BadRow) -> Refused:
    """Return the error of more refused records than are allowed."""
    return too_many_of(document.options.max_rejects or 0, refused(document, chunk, bad).message)


def too_many_unreadable(most: int, entry: Input, last: Reject) -> Refused:
    """Return the error of more records than are allowed that cannot be sent to the server."""
    return too_many_of(most, f"{entry.name}, line {last.line}: {last.reason}")


def too_many_of(most: int, last: str) -> Refused:
    """Return the error of more refused records than are allowed, with what is said of the last one."""
    return Refused(
        f"more than {format_many(most, 'record')} {'is' if most == 1 else 'are'} refused, the last: {last}",
        cause="the columns or the format may not be those given",
        hint=f"see the plan: --plan; or allow more: --max-rejects {10 * max(most, 1)}",
    )
