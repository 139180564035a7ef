"""Which column of the table each field of a file is for."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from pgsweep.errors import UsageError
from pgsweep.load.options import LoadOptions
from pgsweep.load.source import STDIN, Input, InputError, splitter_for, terminator_of
from pgsweep.pg.load_catalog import Column
from pgsweep.plain import shell_word
from pgsweep.units import format_many

_WIDE_MARKS: Final = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Those of UTF-32 first: in little endian order they begin with that of UTF-16."""

_FIELD_MOST = 1 << 30


def first_record(entry: Input, sample: bytes, options: LoadOptions) -> list[str]:
    """Return the fields of the first record of a text file.

    Args:
        sample: the beginning of the file.
    """
    terminator = terminator_of(sample)
    sample = sample.removeprefix(b"\xef\xbb\xbf")
    ends = splitter_for(entry.format, options, terminator).ends(sample)
    record = (sample[: int(ends[0])] if len(ends) else sample).rstrip(b"\r\n")
    text = _decoded(record, options)
    if entry.format == "tsv":
        return [_unescaped(field) for field in text.split(options.delimiter or "\t")]
    return next(_reader(text, options), [])


def check_encoding(entry: Input, sample: bytes, options: LoadOptions) -> None:
    """Refuse a file that begins with the byte order mark of UTF-16 or UTF-32, which no server reads.

    Raises:
        InputError: it does.
    """
    mark = next((mark for mark in _WIDE_MARKS if sample.startswith(mark)), None)
    if mark is None or not (options.encoding or "UTF8").upper().startswith("UTF"):
        return
    name = _WIDE_MARKS[mark]
    packed = entry.path == STDIN or entry.compression is not None
    raise InputError(
        f"{entry.name} is in {name}",
        cause="it begins with the byte order mark of that encoding, which PostgreSQL does not take",
        hint=f"convert it: iconv -f {name} -t UTF-8 {'FILE' if packed else shell_word(entry.path)}",
    )


def chosen_columns(
    entry: Input, sample: bytes, options: LoadOptions, columns: Sequence[Column]
) -> tuple[list[str], bool]:
    """Return the columns that the fields are for, and whether the file begins with a header.

    A first record whose fields all are names of columns is a header. Where only some are, the user must say.

    Raises:
        UsageError: a name is not a column of the table, or it is not clear whether there is a header.
        InputError: the header cannot be read.
    """
    writable = [column.name for column in columns if not column.generated]
    if options.columns is not None:
        _check_names(options.columns, columns, "--columns names")
    fields = first_record(entry, sample, options) if sample else []
    known = {column.name for column in columns}
    by_lower = {name.lower(): name for name in known}
    matched = [field if field in known else by_lower.get(field.strip().lower()) for field in fields]
    header = options.header
    if header is None:
        hits = sum(name is not None for name in matched)
        header = bool(fields) and hits == len(fields)
        if 0 < hits < len(fields) and len(fields) > 1 and hits * 2 >= len(fields):
            unknown = [field for field, name in zip(fields, matched, strict=True) if name is None]
            raise UsageError(
                f"the first record of {entry.name} has names of columns, and also other fields: "
                f"{', '.join(unknown[:5])}",
                cause="it may be a header with names that the table does not have, or a row of data",
                hint="say which: --header with --columns NAME,... in the order of the file, or --no-header",
            )
    if options.columns is not None:
        return options.columns, header
    if not header:
        if fields and len(fields) != len(writable):
            raise UsageError(
                f"the first record of {entry.name} has {format_many(len(fields), 'field')}, the table "
                f"{format_many(len(writable), 'column')}",
                cause="the delimiter or the quoting is another, or columns are missing",
                hint="name the columns in the order of the file: --columns NAME,...; or --delimiter",
            )
        return writable, False
    _check_names(
        [name or field for field, name in zip(fields, matched, strict=True)], columns, "the header names"
    )
    return [name for name in matched if name is not None], True


def _check_names(names: Sequence[str], columns: Sequence[Column], who: str) -> None:
    known = {column.name: column for column in columns}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"{who} columns that the table does not have: {', '.join(unknown[:5])}",
            hint=f"the table has {', '.join(known)}",
        )
    generated = [name for name in names if known[name].generated]
    if generated:
        raise UsageError(
            f"{who} generated columns: {', '.join(generated)}",
            cause="the server computes them, and takes no values for them",
            hint="leave these fields out of the file",
        )
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise UsageError(f"{who} columns twice: {', '.join(twice)}")


def strays(entry: Input, sample: bytes, options: LoadOptions) -> str | None:
    """Return where a strict parser sees other records than COPY in a sample of CSV; None where both agree.

    COPY takes every quote for the start or end of a quoted part, also within an unquoted field; a strict
    parser (RFC 4180) takes such a quote for text.
    """
    if entry.format != "csv":
        return None
    terminator = terminator_of(sample)
    sample = sample.removeprefix(b"\xef\xbb\xbf")
    ends = splitter_for("csv", options, terminator).ends(sample)
    if not len(ends):
        return None
    whole = sample[: int(ends[-1])]
    try:
        text = _decoded(whole, options)
    except InputError:
        return None
    try:
        found = sum(1 for _ in _reader(text, options, strict=True))
    except csv.Error as error:
        return str(error)
    if found != len(ends):
        return f"a strict parser finds {found} records in the first {len(whole)} bytes, COPY {len(ends)}"
    return None


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


_ENCODINGS = {
    "LATIN1": "latin-1",
    "WIN1252": "cp1252",
    "WIN1251": "cp1251",
    "WIN1250": "cp1250",
    "SJIS": "cp932",
}


def _decoded(record: bytes, options: LoadOptions) -> str:
    name = (options.encoding or "UTF8").upper()
    try:
        return record.decode(_ENCODINGS.get(name, name))
    except (LookupError, UnicodeDecodeError) as error:
        if isinstance(error, LookupError):
            return record.decode("latin-1")
        raise InputError(
            f"the file is not in {name}: {error.reason} at byte {error.start}",
            cause="it has another encoding",
            hint="name it: --encoding LATIN1",
        ) from error


def _unescaped(field: str) -> str:
    return field.replace("\\t", "\t").replace("\\n", "\n").replace("\\\\", "\\")
