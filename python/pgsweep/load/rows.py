"""JSON lines and Parquet as CSV for COPY: values keep their text, and the server reads it.

JSON is decoded value by value (msgspec), not by pyarrow's reader, which guesses types: it would change the
text of a number or of a string that looks like a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pgsweep.load.arrow_text import as_text
from pgsweep.load.source import Chunk, Input, InputError
from pgsweep.pg.load_catalog import Column

_DECODER: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NULL: Final = b"null"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_SAMPLE_LINES: Final = 1000
_PARQUET_ROWS: Final = 50_000


def json_columns(entry: Input, sample: bytes, columns: Sequence[Column]) -> list[str]:
    """Return the columns that the first lines name, in the table's order.

    Raises:
        InputError: a line is not a JSON object, or has a key that is not a column.
    """
    keys: set[str] = set()
    lines = sample.splitlines()
    whole = lines if sample.endswith(b"\n") or len(lines) == 1 else lines[:-1]
    for number, line in enumerate(whole[:_SAMPLE_LINES], 1):
        if line.strip():
            keys |= set(_object(entry, line, number))
    known = {column.name for column in columns if not column.generated}
    unknown = sorted(keys - known)
    if unknown:
        raise InputError(
            f"{entry.name} has keys that are not columns: {', '.join(unknown[:5])}",
            hint=f"the table has {', '.join(sorted(known))}",
        )
    return [column.name for column in columns if column.name in keys]


def json_chunk(entry: Input, chunk: Chunk, names: Sequence[str], columns: Sequence[Column]) -> Chunk:
    """Return a piece of JSON lines as a piece of CSV.

    Raises:
        InputError: a line is not a JSON object, has a key that is not one of the columns, or a value that
            cannot be decoded.
    """
    arrays = {column.name for column in columns if column.category == "A"}
    documents = {column.name for column in columns if column.is_json}
    wanted = set(names)
    out = []
    for number, line in enumerate(b"".join(chunk.parts).split(b"\n"), chunk.first_line):
        if not line.strip():
            continue
        found = _object(entry, line, number)
        if not found.keys() <= wanted:
            raise InputError(
                f"{entry.name}, line {number}: it has keys that the lines before do not have: "
                f"{', '.join(sorted(found.keys() - wanted)[:5])}",
                hint="name all columns: --columns NAME,...",
            )
        try:
            fields = [_field(found.get(name), name in arrays, name in documents) for name in names]
        except _UNDECODABLE as error:
            raise InputError(
                f"{entry.name}, line {number}: a value cannot be read: {error}",
                hint="JSON is UTF-8; convert the file, or leave the record out",
            ) from error
        out.append(b",".join(fields) + b"\n")
    return msgspec_replaced(chunk, [b"".join(out)], len(out))


def msgspec_replaced(chunk: Chunk, parts: list[bytes | memoryview], records: int) -> Chunk:
    """Return the chunk with other bytes for COPY."""
    return Chunk(
        chunk.file, chunk.piece, parts, records, chunk.source_bytes, chunk.first_line, chunk.checksum
    )


def _object(entry: Input, line: bytes, number: int) -> dict[str, msgspec.Raw]:
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    try:
        return _DECODER.decode(line)
    except _UNDECODABLE as error:
        raise InputError(
            f"{entry.name}, line {number}: it is not a JSON object: {error}",
            hint="JSON lines have one object a line, from { to }",
        ) from error


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

    Strings keep their quotes where the elements are JSON, as in jsonb_populate_record (jsonfuncs.c).
    """
    if value[:1] == b"[":
        elements = msgspec.json.decode(value, type=list[msgspec.Raw])
        parts = [_array_of_json(bytes(element).strip(), of_documents) for element in elements]
        # Servers before 17 refuse an array of empty arrays; it is empty itself.
        return b"{}" if parts and all(part == b"{}" for part in parts) else b"{" + b",".join(parts) + b"}"
    if value == _NULL:
        return b"NULL"
    if value[:1] == b'"' and not of_documents:
        value = msgspec.json.decode(value, type=str).encode("utf-8", "surrogatepass")
    return b'"' + value.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def parquet_columns(entry: Input, columns: Sequence[Column]) -> list[str]:
    """Return the columns of a Parquet file, in its order.

    Raises:
        InputError: it cannot be read, or has columns that the table does not have.
    """
    with _opened(entry) as file:
        names = list(file.schema_arrow.names)
    known = {column.name for column in columns if not column.generated}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(
            f"{entry.name} has columns that the table does not have: {', '.join(unknown[:5])}",
            hint=f"name those to load: --columns NAME,...; the table has {', '.join(sorted(known))}",
        )
    return names


def parquet_chunks(entry: Input, names: Sequence[str], columns: Sequence[Column]) -> Iterator[Chunk]:
    """Yield the rows of a Parquet file as pieces of CSV.

    Raises:
        InputError: it cannot be read.
    """
    kinds = {column.name: column for column in columns}
    with _opened(entry) as file:
        row = 1
        try:
            batches = file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(names))
            for number, batch in enumerate(batches):
                ordered = batch.select(list(names))
                arrays = [_column(entry, ordered.column(at), kinds[name]) for at, name in enumerate(names)]
                sink = pa.BufferOutputStream()
                plain = pa.RecordBatch.from_arrays(arrays, names=[str(at) for at in range(len(names))])
                options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
                pyarrow.csv.write_csv(plain, sink, options)
                data = sink.getvalue().to_pybytes()
                yield Chunk(entry.number, number, [data], batch.num_rows, batch.nbytes, row)
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{entry.name} cannot be read to its end: {error}") from error


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
            hint="load the columns of a struct by themselves, or leave the column out: --columns NAME,...",
        ) from error


def _opened(entry: Input) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(entry.path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"`{entry.path}` is not a Parquet file, or is cut short: {error}", hint="get it again"
        ) from error
