"""Files of records in the formats that load takes, written byte by byte, so that their places are known."""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.load.model_oracle import BAD_BYTE, Record
from tests.load.model_tables import CODECS, Column

SUFFIXES = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "parquet": "parquet", "binary": "copy"}


@dataclass
class Style:
    """How files are written, and the options that say so to the command.

    Attributes:
        header: `names`, `upper`, `blanks` (around names), or `none`; keys of JSON and columns of Parquet are
            always there.
        spare: names of columns in the file that are not loaded.
        order: the seed of the order of the columns, the same in all files.
        bad_byte: stands where a text has BAD_BYTE.
        compression: `gz`, `zst`, `xz`, or empty.
    """

    kind: str
    encoding: str = "UTF8"
    terminator: str = "\n"
    delimiter: str = ","
    quote: str = '"'
    escape: str = '"'
    null: str = ""
    empty_is_null: bool = False
    header: str = "names"
    spare: list[str] = field(default_factory=list)
    bad_byte: bytes = b"\xff"
    compression: str = ""
    stdin: bool = False
    order: int = 0


def make_style(rng: Random, kind: str, encoding: str) -> Style:
    """Return a random way to write a format."""
    style = Style(kind, encoding, order=rng.getrandbits(16))
    # Compressed standard input is refused.
    style.compression = rng.choices(["", "gz", "zst", "xz"], [70, 15, 9, 6])[0] if kind != "parquet" else ""
    style.stdin = kind != "parquet" and rng.random() < (0.02 if style.compression else 0.1)
    style.bad_byte = rng.choice([b"\xff", b"\x00", b"\xc3"]) if encoding == "UTF8" else b"\x00"
    if kind in ("csv", "tsv"):
        style.terminator = rng.choices(["\n", "\r\n", "\r"], [60, 25, 15])[0]
        style.header = rng.choices(["names", "upper", "blanks", "none"], [50, 13, 7, 30])[0]
        style.delimiter = rng.choices([",", ";", "|"], [80, 10, 10])[0] if kind == "csv" else "\t"
        style.null = (
            rng.choice(["", "", "NULL", "\\N"]) if kind == "csv" else rng.choice(["\\N", "\\N", "NULL"])
        )
    if kind == "csv":
        if rng.random() < 0.1:
            style.quote = style.escape = "'"
        if rng.random() < 0.1:
            style.escape = "\\"
        style.empty_is_null = rng.random() < 0.1
    if kind in ("jsonl", "parquet") and rng.random() < 0.15:
        style.header = "upper"
    if kind in ("csv", "tsv", "jsonl", "parquet") and rng.random() < 0.12:
        style.spare = rng.sample(["spare", "Not loaded", "x"], rng.randrange(1, 3))
        if style.header == "none":
            style.header = "names"
    return style


def options_of(style: Style, columns: list[Column], *, all_columns: bool, rng: Random) -> list[str]:
    """Return the options that tell the command how the files are written."""
    options = []
    if style.stdin and (style.kind != "csv" or rng.random() < 0.5):
        options += ["--format", style.kind]
    if style.encoding != "UTF8":
        options += ["--encoding", style.encoding]
    if style.kind == "csv":
        default = Style("csv")
        for word in ("delimiter", "quote", "null"):
            if getattr(style, word) != getattr(default, word):
                options += [f"--{word}", getattr(style, word)]
        if style.escape != style.quote:
            options += ["--escape", style.escape]
        if style.empty_is_null:
            options.append("--empty-is-null")
    if style.kind == "tsv" and style.null != "\\N":
        options += ["--null", style.null]
    if style.spare:
        options += ["--leave-out", _listed(style.spare)]
    if style.kind in ("csv", "tsv"):
        if style.header == "none":
            if not all_columns or rng.random() < 0.5:
                options += ["--columns", _listed([column.name for column in columns])]
            if rng.random() < 0.7:
                options.append("--no-header")
        elif rng.random() < 0.3:
            options.append("--header")
    if style.kind == "binary":
        options += ["--columns", _listed([column.name for column in columns])]
    return options


def _listed(names: list[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(names)
    return out.getvalue()


def adapt(style: Style, record: Record, columns: list[Column]) -> None:
    """Change values that the style cannot express."""
    for column in columns:
        if style.empty_is_null:
            if record.row[column.name] == style.null:
                record.row[column.name] = "e"
            if record.wrong.get(column.name) == style.null:
                record.wrong[column.name] = "~"


def write_file(
    rng: Random,
    style: Style,
    columns: list[Column],
    records: list[Record],
    path: Path,
    binary: Callable[[list[Column], list[Record]], bytes],
) -> None:
    """Write a file, and note in the records where they stand.

    Args:
        binary: gives the records in COPY's binary format, which only a server writes.
    """
    if style.kind == "parquet":
        _write_parquet(rng, style, columns, records, path)
        return
    if style.kind == "binary":
        data = binary(columns, records)
    else:
        order = [*(column.name for column in columns), *style.spare]
        if style.header != "none":  # all files have the same
            Random(style.order).shuffle(order)
        data = _write_lines(rng, style, order, columns, records)
    if style.compression == "xz":
        data = lzma.compress(data)
    elif style.compression:
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, {"gz": "gzip", "zst": "zstd"}[style.compression]) as packed:
            packed.write(data)
        data = out.getvalue().to_pybytes()
    path.write_bytes(data)


def _write_lines(
    rng: Random, style: Style, order: list[str], columns: list[Column], records: list[Record]
) -> bytes:
    terminator = style.terminator.encode()
    counted = b"\r" if style.terminator == "\r" else b"\n"
    parts: list[bytes] = []
    lines = 1

    def add(data: bytes, *, end: bool = True) -> None:
        nonlocal lines
        parts.append(data + (terminator if end else b""))
        lines += parts[-1].count(counted)

    if style.kind in ("csv", "tsv") and style.header != "none":
        names = [written(style, name) for name in order]
        if style.kind == "csv":
            names = [_csv_field(rng, style, name, first=not n) for n, name in enumerate(names)]
        else:
            names = [name.replace("\t", "\\t") for name in names]
        add(style.delimiter.join(names).encode(CODECS[style.encoding]))
    kinds = {column.name: column.kind for column in columns}
    optional = {column.name for column in columns if column.default is None and not column.clauses}
    for number, record in enumerate(records):
        if style.kind == "jsonl" and rng.random() < 0.03:
            add(rng.choice([b"", b"  "]))
        record.line = lines
        text = (
            _json_record(rng, style, order, kinds, record, optional)
            if style.kind == "jsonl"
            else _text_record(rng, style, order, kinds, record)
        )
        record.data = _encoded(style, text)
        last = number == len(records) - 1
        # A record that is blank has nothing but its end.
        add(record.data, end=not last or record.fault in ("blank", "open") or rng.random() < 0.7)
        if last and record.fault == "open":
            record.data += terminator
    return b"".join(parts)


def written(style: Style, name: str) -> str:
    """Return how the name of a column stands in the file."""
    match style.header:
        case "upper":
            return name.upper()
        case "blanks":
            return f" {name} "
    return name


def _encoded(style: Style, text: str) -> bytes:
    pieces = text.split(BAD_BYTE)
    return style.bad_byte.join(piece.encode(CODECS[style.encoding]) for piece in pieces)


def _text_record(rng: Random, style: Style, order: list[str], kinds: dict[str, str], record: Record) -> str:
    if record.fault == "blank":
        return ""
    write = _csv_field if style.kind == "csv" else _tsv_field
    fields = []
    for number, name in enumerate(order):
        value = record.wrong.get(name) or record.row.get(name, "spare, too")
        if name in record.wrong:
            value = record.wrong[name]
        elif value is not None:
            value = spelled(rng, kinds.get(name, ""), value)
        fields.append(write(rng, style, value, first=not number))
    match record.fault:
        case "few":
            fields.pop()
        case "many":
            fields.append("extra")
        case "stray":
            loaded = max(number for number, name in enumerate(order) if name in kinds)
            fields[loaded] = f"a{_stray(style)}b"
        case "open":
            fields[-1] = style.quote + "never closed"
    return style.delimiter.join(fields)


def _stray(style: Style) -> str:
    """Return an end of line of another kind than the file's, which may not stand outside of quotes."""
    return "\n" if style.terminator == "\r" else "\r"


def spelled(rng: Random, kind: str, value: str) -> str:
    """Return another text for the same value now and then."""
    if rng.random() < 0.8:
        return value
    match kind:
        case "bool":
            return rng.choice(["t", "yes", "on", "1"] if value == "true" else ["f", "no", "off", "0"])
        case "int" | "bigint":
            return f" {value} "
        case "uuid":
            return value.upper()
    return value


def _csv_field(rng: Random, style: Style, value: str | None, *, first: bool) -> str:
    if value is None:
        return style.null
    special = (style.delimiter, style.quote, "\r", "\n")
    needs = value == style.null or any(sign in value for sign in special) or (first and value == "\\.")
    if style.escape in value:
        needs = True
    if not needs and rng.random() < 0.75:
        return value
    inner = value
    if style.escape != style.quote:
        inner = inner.replace(style.escape, style.escape * 2)
    inner = inner.replace(style.quote, style.escape + style.quote)
    return style.quote + inner + style.quote


def _tsv_field(rng: Random, style: Style, value: str | None, *, first: bool) -> str:
    if value is None:
        return style.null
    signs = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
    if style.terminator == "\n" and rng.random() < 0.3:
        signs |= {"\n": "\\\n", "\r": "\\\r"}
    if rng.random() < 0.1:
        signs |= {"\x0b": "\\v", "a": "\\a", "e": "\\x65"}
    text = "".join(signs.get(sign, sign) for sign in value)
    return "\\" + text if text == style.null else text


def _json_record(
    rng: Random, style: Style, order: list[str], kinds: dict[str, str], record: Record, optional: set[str]
) -> str:
    if record.fault == "broken":
        return rng.choice(['{"id": 1, ', "garbage", "[1, 2]", '"text"', "null", "{]", "17", '{"a": tru}'])
    ascii_only = rng.random() < 0.3 and not any(BAD_BYTE in text for text in record.wrong.values())
    colon, comma = rng.choice([(": ", ", "), (":", ","), (" : ", " ,\t")])
    pairs = []
    for name in rng.sample(order, len(order)):
        value = record.wrong.get(name, record.row.get(name, "spare"))
        if value is None and name in optional and rng.random() < 0.2:
            continue
        kind = "text" if name in record.wrong else kinds.get(name, "text")
        pairs.append(
            json.dumps(written(style, name), ensure_ascii=ascii_only)
            + colon
            + _json_value(rng, kind, value, ascii_only)
        )
    return "{" + comma.join(pairs) + "}"


def _json_value(rng: Random, kind: str, value: str | None, ascii_only: bool) -> str:
    if value is None:
        return "null"
    if kind in ("int", "bigint", "numeric", "bool", "size") and rng.random() < 0.8:
        return value
    if kind == "jsonb":
        return json.dumps(json.loads(value), ensure_ascii=ascii_only)
    if kind == "ints" and rng.random() < 0.7:
        return "[" + value[1:-1].replace("NULL", "null") + "]"
    return json.dumps(value, ensure_ascii=ascii_only)


_ARROW: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "size": (pa.int16(), int),
    "numeric": (pa.decimal128(12, 2), decimal.Decimal),
    "bool": (pa.bool_(), lambda text: text == "true"),
    "date": (pa.date32(), datetime.date.fromisoformat),
    "timestamp": (pa.timestamp("us"), datetime.datetime.fromisoformat),
    "bytes": (pa.binary(), lambda text: bytes.fromhex(text[2:])),
    "ints": (
        pa.list_(pa.int32()),
        lambda text: [None if each == "NULL" else int(each) for each in text[1:-1].split(",") if each],
    ),
}


def _write_parquet(
    rng: Random, style: Style, columns: list[Column], records: list[Record], path: Path
) -> None:
    kinds = {column.name: column.kind for column in columns}
    order = [*kinds, *style.spare]
    Random(style.order).shuffle(order)
    arrays = []
    for name in order:
        values = [record.wrong.get(name, record.row.get(name, "spare")) for record in records]
        kind, read = _ARROW.get(kinds.get(name, ""), (pa.string(), str))
        if any(name in record.wrong for record in records) or rng.random() < 0.2:
            kind, read = pa.string(), str
        if kind == pa.int32() and any(value is not None and abs(int(value)) >= 2**31 for value in values):
            kind = pa.int64()
        arrays.append(pa.array([None if value is None else read(value) for value in values], kind))
    for number, record in enumerate(records, 1):
        record.line = number
    pq.write_table(
        pa.table(arrays, names=[written(style, name) for name in order]),
        path,
        row_group_size=rng.choice([3, 50, 1000]),
        compression="snappy",
    )
