"""Which column of the table each field of a file is for."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pgsweep.errors import UsageError
from pgsweep.load.input.fields import FieldCutter, unescaped
from pgsweep.load.input.names import check_columns, columns_for, named, quoted
from pgsweep.load.input.source import Input, InputError
from pgsweep.load.input.split import Head, check_header_end, codec_of, splitter_for
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.catalog import Column
from pgsweep.plain import shell_word
from pgsweep.units import format_many

_FIELD_MOST = 1 << 30


class Unclear(UsageError):
    """The first record may be a header or a row."""

    code = "unclear-header"


EMPTY: Final = "the file is empty"


@dataclass(frozen=True)
class Fields:
    """What the fields of a file are for.

    Attributes:
        columns: those that are loaded, in the order of the file.
        header: whether the first record is one.
        left_out: the places of fields that are not loaded.
        why: how it was decided whether there is a header.
    """

    columns: list[str]
    header: bool
    left_out: list[int]
    why: str


def first_record(entry: Input, head: Head, options: LoadOptions) -> list[str]:
    """Return the fields of the first record of a text file."""
    if entry.format == "tsv":
        fields = FieldCutter("tsv", options).fields(head.record)
        return [unescaped(_decoded(field, options, entry)) for field in fields]
    return next(_reader(_decoded(head.record.rstrip(b"\r\n"), options, entry), options), [])


def chosen_fields(entry: Input, head: Head, options: LoadOptions, columns: Sequence[Column]) -> Fields:
    """Return the columns that the fields are for, and whether the file begins with a header.

    A first record whose fields all are names of columns is a header. Where only some are, the user must say.

    Raises:
        UsageError: a name is not a column of the table, or contradicts another.
        Unclear: it may be a header or not.
        InputError: the header cannot be read.
    """
    leave_out = options.leave_out or []
    fields = first_record(entry, head, options) if head.data else []
    known = [column.name for column in columns]
    matched = (
        [named(field, known) if (left := named(field, leave_out)) is None else left for field in fields]
        if options.header is not False
        else []
    )
    hits = sum(name is not None for name in matched)
    header, why = bool(options.header), "as asked"
    if options.header is None:
        header, why = bool(fields) and hits == len(fields), "all its fields are names of columns"
        if not header:
            why = "its fields are not names of columns" if head.data else EMPTY
        if 0 < hits < len(fields):
            unknown = [field for field, name in zip(fields, matched, strict=True) if name is None]
            raise Unclear(
                f"the first record of {entry.name} has names of columns, and also other fields: "
                f"{', '.join(map(quoted, unknown[:5]))}",
                cause="it may be a header with names that the table does not have, or a row of data",
                hint=f"a header: --leave-out {shell_word(','.join(map(quoted, unknown)))}, or --header with "
                "--columns NAME,... in the order of the file; a row: --no-header",
            )
    if header:
        check_header_end(entry, head)
        _check_one_line(entry, head, options)
    if options.columns is not None:
        return _given(entry, options.columns, fields, matched, columns, leave_out, header=header, why=why)
    if header:
        found = columns_for(fields, columns, leave_out, f"the header of {entry.name}")
        out = [place for place, name in enumerate(found) if name is None]
        used = {named(field, leave_out) for field in fields}
        missing = [name for name in leave_out if name not in used]
        if missing:
            raise UsageError(
                f"the header of {entry.name} does not have {', '.join(missing)}, which is to be left out",
                hint=f"it has {', '.join(fields[:20])}",
            )
        return Fields([name for name in found if name is not None], True, out, why)
    writable = [column.name for column in columns if not column.generated]
    if leave_out:
        raise UsageError(
            f"{entry.name} has no header, so its fields have no names to be left out by",
            hint="name all of them in the order of the file: --columns NAME,...",
        )
    if fields and len(fields) != len(writable):
        raise UsageError(
            f"the first record of {entry.name} has {format_many(len(fields), 'field')}, the table "
            f"{format_many(len(writable), 'column')}",
            cause="the delimiter or the quoting is another, or columns are missing",
            hint="name the columns in the order of the file: --columns NAME,...; or --delimiter",
        )
    return Fields(writable, False, [], why)


def _given(
    entry: Input,
    names: list[str],
    fields: Sequence[str],
    matched: Sequence[str | None],
    columns: Sequence[Column],
    leave_out: Sequence[str],
    *,
    header: bool,
    why: str,
) -> Fields:
    """Return what the fields are for where the user has named them.

    Raises:
        UsageError: the names are not those of columns, or the header has others.
    """
    if header and len(fields) != len(names):
        raise UsageError(
            f"the header of {entry.name} has {format_many(len(fields), 'field')}, and --columns names "
            f"{len(names)}: {', '.join(fields[:5])}",
            hint="name all of them in the order of the file; those of --leave-out are not loaded",
        )
    if header:
        for place, (meant, name) in enumerate(zip(matched, names, strict=True), 1):
            if meant is not None and meant != name and named(name, leave_out) is None:
                raise UsageError(
                    f"--columns contradicts the header of {entry.name}: field {place} is {fields[place - 1]} "
                    f"there, and {name} in --columns",
                    hint="leave out --columns: fields go to columns by their names",
                )
    out = [place for place, name in enumerate(names) if named(name, leave_out) is not None]
    kept = [name for place, name in enumerate(names) if place not in out]
    check_columns(kept, columns, "--columns")
    return Fields(kept, header, out, why)


def _check_one_line(entry: Input, head: Head, options: LoadOptions) -> None:
    """Refuse a header that has taken lines after it, because of a quote that a strict parser takes for text.

    Raises:
        InputError: it has.
    """
    record = head.record.rstrip(b"\r\n")
    if entry.format != "csv" or (b"\n" not in record and b"\r" not in record):
        return
    lines = _strictly(_decoded(record, options, entry), options)
    if lines != 1:
        raise InputError(
            f"the header of {entry.name} goes on over more lines",
            cause="a quote within a field begins a quoted part, as COPY reads CSV",
            hint="correct the header; or say how the file is quoted: --quote",
        )


def strays(entry: Input, head: Head, options: LoadOptions) -> str | None:
    """Return where a strict parser sees other records than COPY in a sample of CSV; None where both agree.

    COPY takes every quote for the start or end of a quoted part, also within an unquoted field; a strict
    parser (RFC 4180) takes such a quote for text.
    """
    if entry.format != "csv":
        return None
    ends = splitter_for("csv", options, head.terminator).ends(head.data)
    if not len(ends):
        return None
    whole = head.data[: int(ends[-1])]
    try:
        text = _decoded(whole, options, entry)
    except InputError:
        return None
    found = _strictly(text, options)
    if isinstance(found, str):
        return found
    if found != len(ends):
        return f"a strict parser finds {found} records in the first {len(whole)} bytes, COPY {len(ends)}"
    return None


def _strictly(text: str, options: LoadOptions) -> int | str:
    """Return how many records a strict parser finds, or what it says."""
    try:
        return sum(1 for _ in _reader(text, options, strict=True))
    except csv.Error as error:
        return str(error)


def _reader(text: str, options: LoadOptions, *, strict: bool = False) -> Iterator[list[str]]:
    csv.field_size_limit(_FIELD_MOST)
    quote = options.quote or '"'
    escape = options.escape if options.escape and options.escape != quote else None
    return csv.reader(
        io.StringIO(text, newline=""),
        delimiter=options.delimiter or ",",
        quotechar=quote,
        doublequote=escape is None,
        escapechar=escape,
        strict=strict,
    )


def _decoded(record: bytes, options: LoadOptions, entry: Input) -> str:
    try:
        a_row = options.header is False and options.max_rejects is not None
        return record.decode(codec_of(options.encoding), "replace" if a_row else "strict")
    except UnicodeDecodeError as error:
        name = (options.encoding or "UTF8").upper()
        raise InputError(
            f"{entry.name} is not in {name}: {error.reason} at byte {error.start}",
            cause="it has another encoding",
            hint="name it: --encoding LATIN1",
        ) from error
