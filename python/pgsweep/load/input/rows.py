"""JSON lines and Parquet as CSV for COPY: values keep their text, and the server reads it.

JSON is decoded value by value (msgspec), not by pyarrow's reader, which guesses types: it would change the
text of a number or of a string that looks like a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pgsweep.decoded import TooMuch, longest_text
from pgsweep.errors import UsageError
from pgsweep.load.document import LoadDocument
from pgsweep.load.input.arrow_text import as_text, row_bytes
from pgsweep.load.input.names import columns_for, named
from pgsweep.load.input.source import BLOCK_BYTES, Input, InputError
from pgsweep.load.input.split import Chunk, Head
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.catalog import Column
from pgsweep.pg.load.journal import Reject
from pgsweep.plain import shell_word
from pgsweep.units import format_bytes

_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NULL: Final = b"null"
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_SAMPLE_LINES: Final = 1000
_PARQUET_ROWS: Final = 20_000
_PARQUET_BYTES: Final = 4 << 20
_TEXT_BYTES: Final = 64 << 20
_PREFIXED: Final = ("DELTA_BYTE_ARRAY",)
"""Encodings in which a text is what the one before begins with, and some more."""


def json_columns(entry: Input, head: Head, columns: Sequence[Column], options: LoadOptions) -> list[str]:
    """Return the columns that the keys of the first lines mean, in the table's order.

    Raises:
        InputError: a line is not a JSON object, and none may be refused.
        UsageError: a key is not a column.
    """
    keys: dict[str, None] = {}
    lines = head.data.split(b"\n")
    whole = lines if head.whole else lines[:-1]
    for number, line in enumerate(whole[:_SAMPLE_LINES], 1):
        if line.strip():
            try:
                keys |= dict.fromkeys(_DECODER.decode(line))
            except _UNDECODABLE as error:
                if options.max_rejects is None:
                    raise _not_json(entry, number, _not_an_object(line, error)) from error
    if options.columns is not None:
        return options.columns
    known = [column.name for column in columns]
    meant = {named(key, known) or key for key in keys if named(key, options.leave_out or []) is None}
    columns_for(sorted(meant), columns, [], f"a key of {entry.name}")
    return [column.name for column in columns if column.name in meant]


class _Unfit(Exception):
    """A line that cannot be sent to the server, and why."""


class JsonRows:
    """Converts JSON lines of an input."""

    def __init__(self, entry: Input, document: LoadDocument) -> None:
        columns = document.columns
        self._entry = entry
        self._names = document.plan.columns
        self._columns = {column.name: column for column in columns}
        self._options = document.options
        self._kinds = {column.name: (column.category == "A", column.is_json) for column in columns}
        self._hstores = {column.name for column in columns if column.type.endswith("hstore")}
        self._meant: dict[str, str | None] = {}

    def converted(self, chunk: Chunk) -> Chunk:
        """Return a piece as CSV.

        Raises:
            InputError: a line is not a JSON object, has a key that is not a column, or a value that cannot be
                decoded, and none may be refused.
        """
        names, wanted = list(self._names), set(self._names)
        kinds = [(name, *self._kinds[name]) for name in names]
        rejecting = self._options.max_rejects is not None
        out: list[bytes] = []
        lines: list[int] = []
        sources: list[bytes] = []
        refused: list[Reject] = []
        for number, line in enumerate(b"".join(chunk.parts).split(b"\n"), chunk.first_line):
            if not line or line.isspace():
                continue
            try:
                found = _decoded(line)
                if not found.keys() <= wanted:
                    found = self._by_column(found)
                    if late := [name for name in found if name not in wanted]:
                        # Without a default the other rows are the same whether the column is named or not.
                        names += late
                        wanted.update(late)
                        kinds = [(name, *self._kinds[name]) for name in names]
                        out = [row + b"," * len(late) for row in out]
                self._check(found)
                row = b",".join([_field(found.get(name), array, document) for name, array, document in kinds])
            except (_Unfit, *_UNDECODABLE) as error:
                reason = str(error) if isinstance(error, _Unfit) else f"a value cannot be read: {error}"
                if not rejecting:
                    raise _not_json(self._entry, number, reason) from error
                refused.append(Reject(file=chunk.file, line=number, reason=reason, record=line))
                continue
            out.append(row)
            lines.append(number)
            if rejecting:
                sources.append(line)
        out.append(b"")
        columns = names if len(names) > len(self._names) else None
        return chunk.of([b"\n".join(out)], lines, sources, refused, columns)

    def _check(self, found: dict[str, msgspec.Raw]) -> None:
        """Refuse an object for hstore, which would read its text as pairs of its own."""
        for name in self._hstores & found.keys():
            if bytes(found[name]).lstrip().startswith(b"{"):
                raise _Unfit(f"{name} is an object; hstore takes a string of pairs: key=>value")

    def _by_column(self, found: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        """Return the values by the columns that the keys mean."""
        values: dict[str, msgspec.Raw] = {}
        for key, value in found.items():
            if key not in self._meant:
                self._meant[key] = self._column_of(key)
            name = self._meant[key]
            if name in values:
                raise _Unfit(f"two of its keys mean the column {name}")
            if name is not None:
                values[name] = value
        return values

    def _column_of(self, key: str) -> str | None:
        """Return the column that a key means, or nothing where it is to be left out."""
        options = self._options
        try:
            if named(key, options.leave_out or []) is not None:
                return None
            name = named(key, list(self._columns))
        except UsageError as error:
            raise _Unfit(error.message) from error
        if options.columns is not None:
            return name if name in options.columns else None
        if name is None:
            raise _Unfit(f"its key {key} is not a column of the table; to leave it out: --leave-out")
        column = self._columns[name]
        if column.generated:
            raise _Unfit(f"its key {key} is a generated column; to leave it out: --leave-out")
        if name not in self._names and column.has_default:
            raise _Unfit(
                f"its key {key} is a column with a default that no line before has; to name it: --columns"
            )
        return name


def _decoded(line: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _DECODER.decode(line)
    except _UNDECODABLE as error:
        raise _Unfit(_not_an_object(line, error)) from error


def _not_an_object(line: bytes, error: Exception) -> str:
    with suppress(ValueError, RecursionError):
        # Python's own reader takes what msgspec calls cut short.
        if _HALF.search(line) and isinstance(json.loads(line), dict):
            return "a \\u escape in it is half of a character: a surrogate without the other one"
    return f"it is not a JSON object: {error}"


def _not_json(entry: Input, number: int, why: str) -> InputError:
    return InputError(
        f"{entry.name}, line {number}: {why}",
        hint="JSON lines have one object a line, from { to }, in UTF-8; correct the line, or have such lines "
        "written to a file: --rejects FILE",
    )


def _field(raw: msgspec.Raw | None, is_array: bool, is_document: bool) -> bytes:
    value = _NULL if raw is None else bytes(raw).strip()
    if raw is None or (value == _NULL):
        return b""
    if is_document and not is_array:
        return _quoted(value)
    if value[:1] == b'"':
        return _quoted(msgspec.json.decode(value, type=str).encode("utf-8", "surrogatepass"))
    if is_array and value[:1] == b"[":
        return _quoted(_array_of_json(value, is_document))
    return _quoted(value)


def _quoted(value: bytes) -> bytes:
    return b'"' + value.replace(b'"', b'""') + b'"'


def _array_of_json(value: bytes, of_documents: bool) -> bytes:
    """Return a JSON array as PostgreSQL writes an array; numbers and objects in it keep their text.

    Strings keep their quotes where the elements are JSON, as in jsonb_populate_record (jsonfuncs.c). There
    arrays within the array are its further dimensions if all have the same form, else documents.
    """
    if value[:1] == b"[":
        elements = [bytes(element).strip() for element in msgspec.json.decode(value, type=list[msgspec.Raw])]
        if of_documents and _shape(value) is None:
            return b"{" + b",".join(map(_element, elements)) + b"}"
        parts = [_array_of_json(element, of_documents) for element in elements]
        # Servers before 17 refuse an array of empty arrays; it is empty itself.
        return b"{}" if parts and all(part == b"{}" for part in parts) else b"{" + b",".join(parts) + b"}"
    if value[:1] == b'"' and not of_documents:
        value = msgspec.json.decode(value, type=str).encode("utf-8", "surrogatepass")
        return _element(value, null=None)
    return _element(value)


def _element(value: bytes, null: bytes | None = _NULL) -> bytes:
    """Return one element as PostgreSQL writes it in an array."""
    if value == null:
        return b"NULL"
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _shape(value: bytes) -> tuple[int, ...] | None:
    """Return how long an array is in each dimension; nothing where its elements have not all one form."""
    if value[:1] != b"[":
        return ()
    elements = msgspec.json.decode(value, type=list[msgspec.Raw])
    forms = {_shape(bytes(element).strip()) for element in elements}
    if len(forms) > 1 or None in forms:
        return None
    return (len(elements), *(forms.pop() or () if forms else ()))


def parquet_columns(entry: Input, columns: Sequence[Column], options: LoadOptions) -> dict[str, str]:
    """Return the columns of a Parquet file by those of the table that they are for, in its order.

    Raises:
        InputError: it cannot be read.
        UsageError: it has columns that the table does not have, or lacks one that is to be loaded.
    """
    with _opened(entry) as file:
        names = list(file.schema_arrow.names)
    if options.columns is None:
        found = columns_for(names, columns, options.leave_out or [], entry.name)
        return {one: name for one, name in zip(found, names, strict=True) if one is not None}
    meant: dict[str, str] = {}
    for name in names:
        one = named(name, options.columns)
        if one in meant:
            raise UsageError(f"{entry.name} has the column {one} twice", hint="name one: --columns NAME,...")
        if one is not None:
            meant[one] = name
    missing = [name for name in options.columns if name not in meant]
    if missing:
        raise UsageError(
            f"{entry.name} does not have the columns {', '.join(missing[:5])}",
            hint=f"it has {', '.join(names[:20])}",
        )
    return {name: meant[name] for name in options.columns}


def parquet_chunks(entry: Input, document: LoadDocument) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file as pieces of CSV, each of so many rows as have few bytes of text.

    Raises:
        InputError: it cannot be read, or a row is too long.
    """
    names, options = document.plan.columns, document.options
    meant = parquet_columns(entry, document.columns, options)
    kinds = {column.name: column for column in document.columns}
    fields = [meant[name] for name in names]
    number, row = 0, 1
    with _opened(entry) as file:
        try:
            for batch in file.iter_batches(batch_size=_batch_rows(entry, file, set(fields)), columns=fields):
                ordered = batch.select(fields)
                for begin, end in _ranges(entry, ordered, options, row):
                    part = ordered.slice(begin, end - begin)
                    arrays = [_column(entry, part.column(at), kinds[name]) for at, name in enumerate(names)]
                    sink = pa.BufferOutputStream()
                    plain = pa.RecordBatch.from_arrays(arrays, names=[str(at) for at in range(len(names))])
                    wanted = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
                    pyarrow.csv.write_csv(plain, sink, wanted)
                    data = sink.getvalue().to_pybytes()
                    rows = range(row, row + part.num_rows)
                    yield Chunk(entry.number, number, [data], len(rows), len(data), row, lines=rows)
                    row += part.num_rows
                    number += 1
        except (pa.ArrowException, TooMuch, OSError) as error:
            raise InputError(f"{entry.name} cannot be read to its end: {error}") from error


def _batch_rows(entry: Input, file: pq.ParquetFile, wanted: set[str]) -> int:
    """Return how many rows are read at once: by what they take in the file, and what they may become.

    A text that stands once in a dictionary may be the one of every row.
    """
    groups = [file.metadata.row_group(at) for at in range(file.metadata.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    longest = 1
    with open(entry.path, "rb") as source:  # noqa: PTH123
        for group in groups:
            chunks = [group.column(at) for at in range(group.num_columns)]
            texts = [chunk for chunk in chunks if _is_text(chunk) and _name(chunk) in wanted]
            longest = max(longest, sum(_longest(source, chunk) for chunk in texts))
    return max(1, min(_PARQUET_ROWS, int(_PARQUET_BYTES / max(1.0, widest)), _TEXT_BYTES // longest))


def _name(chunk: pq.ColumnChunkMetaData) -> str:
    return str(chunk.path_in_schema).partition(".")[0]


def _longest(source: IO[bytes], chunk: pq.ColumnChunkMetaData) -> int:
    """Return the longest text that a row may have where it is not as long in the file."""
    if any(encoding in _PREFIXED for encoding in chunk.encodings):
        return int(chunk.total_uncompressed_size)
    return longest_text(source, chunk)


def _ranges(
    entry: Input, batch: pa.RecordBatch, options: LoadOptions, first_row: int
) -> Iterator[tuple[int, int]]:
    """Yield ranges of the rows of a batch, each of few bytes of text.

    Raises:
        InputError: a row has more than a record may have.
    """
    sizes = sum((row_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
    ends = np.cumsum(sizes)
    begin = 0
    while begin < batch.num_rows:
        before = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + _PARQUET_BYTES, "right")))
        if int(sizes[begin]) > options.max_record_bytes:
            raise InputError(
                f"{entry.name}, row {first_row + begin}: it has {format_bytes(int(sizes[begin]))} of text",
                hint="leave a long column out: --leave-out; or allow more: --max-record",
            )
        yield begin, end
        begin = end


def _column(entry: Input, column: pa.Array, target: Column) -> pa.Array:
    """Return a column as `as_text` does.

    Raises:
        InputError: it holds a value that cannot be written.
    """
    try:
        return as_text(column, target)
    except pa.ArrowException:
        raise
    except ValueError as error:
        raise InputError(
            f"{entry.name}, column {target.name}: {error}",
            hint="write the columns of a struct as columns of their own; or leave it out: --leave-out "
            + shell_word(target.name),
        ) from error


def _opened(entry: Input) -> pq.ParquetFile:
    """Return the file, open. Texts in lists stay a dictionary: how many a row has is not known before."""
    try:
        with pq.ParquetFile(entry.path) as file:
            metadata = file.metadata
        schema = metadata.schema
        there = [schema.column(at) for at in range(metadata.num_columns)]
        texts = [column.path for column in there if _is_text(column) and column.max_repetition_level > 0]
        return pq.ParquetFile(
            entry.path, metadata=metadata, read_dictionary=texts, pre_buffer=False, buffer_size=BLOCK_BYTES
        )
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"`{entry.path}` is not a Parquet file, or is cut short: {error}", hint="get it again"
        ) from error


def _is_text(column: pq.ColumnSchema | pq.ColumnChunkMetaData) -> bool:
    return bool(column.physical_type == "BYTE_ARRAY")
