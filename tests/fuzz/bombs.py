"""Inputs of some kB that ask for gigabytes, or for minutes: `make_seeds` writes them to seeds/ as bomb-*."""

from __future__ import annotations

import gzip
import io
import json
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pgsweep.pg.gather_script import MAGIC
from tests.fuzz.mutate import pack, unpack

MB = 1 << 20

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
ZSTD, INT64, BYTE_ARRAY, PLAIN, RLE = 6, 2, 6, 0, 3


def _number(value: int) -> bytes:
    """Return a number without a sign, seven bits a byte."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def thrift(*fields: tuple[int, int, Any]) -> bytes:
    """Return a struct in Thrift's compact protocol: number, type and value of its fields, ascending.

    Structs are given as bytes, lists as the type of their elements and the elements.
    """
    out, before = bytearray(), 0
    for field, kind, value in fields:
        out.append((field - before) << 4 | kind)
        before = field
        out += _element(kind, value)
    return bytes([*out, 0])


def _element(kind: int, value: Any) -> bytes:
    if kind in (I32, I64):
        return _number(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == BINARY:
        return _number(len(value)) + bytes(value)
    if kind == LIST:
        of, items = value
        return bytes([0xF0 | of]) + _number(len(items)) + b"".join(_element(of, item) for item in items)
    return bytes(value)


def parquet(footer: bytes, pages: bytes = b"") -> bytes:
    return b"PAR1" + pages + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def schema(*columns: tuple[str, int]) -> tuple[int, int, Any]:
    root = thrift((4, BINARY, b"schema"), (5, I32, len(columns)))
    leaves = [thrift((1, I32, kind), (3, I32, 0), (4, BINARY, name.encode())) for name, kind in columns]
    return (2, LIST, (STRUCT, [root, *leaves]))


def chunk(name: str, kind: int, values: int, stored: int, decompressed: int, at: int = 4) -> bytes:
    meta = thrift(
        (1, I32, kind),
        (2, LIST, (I32, [PLAIN, RLE])),
        (3, LIST, (BINARY, [name.encode()])),
        (4, I32, ZSTD),
        (5, I64, values),
        (6, I64, decompressed),
        (7, I64, stored),
        (9, I64, at),
    )
    return thrift((2, I64, at), (3, STRUCT, meta))


def page(values: int, decompressed: int, data: bytes) -> bytes:
    of_data = thrift((1, I32, values), (2, I32, PLAIN), (3, I32, RLE), (4, I32, RLE))
    return thrift((1, I32, 0), (2, I32, decompressed), (3, I32, len(data)), (5, STRUCT, of_data)) + data


def lying_page(
    columns: dict[str, int],
    metadata: dict[bytes, bytes],
    rows: int,
    *,
    decompressed: int,
    groups: int = 1,
) -> bytes:
    """Return a file of which each column has a page that is long, and a footer that says it is short.

    All groups have the same pages.
    """
    data = zeros(decompressed)
    header = page(min(rows, 2**31 - 1), decompressed, data)
    chunks = [chunk(name, kind, rows, len(header), 8 * rows) for name, kind in columns.items()]
    group = thrift((1, LIST, (STRUCT, chunks)), (2, I64, 8 * rows), (3, I64, rows))
    footer = thrift(
        (1, I32, 1),
        schema(*columns.items()),
        (3, I64, rows * groups),
        (4, LIST, (STRUCT, [group] * groups)),
        (5, LIST, (STRUCT, [thrift((1, BINARY, key), (2, BINARY, text)) for key, text in metadata.items()])),
    )
    return parquet(footer, header)


@cache
def zeros(count: int) -> bytes:
    """Return as many zeros, in one frame of zstd."""
    return bytes(pa.compress(bytes(count), codec="zstd", asbytes=True))


def of_tiny_structs(count: int) -> bytes:
    """Return a file that is a footer of columns without anything: a byte or two that take hundreds."""
    group = thrift((1, LIST, (STRUCT, [thrift((2, I64, 0))] * count)), (2, I64, 0), (3, I64, 0))
    return parquet(thrift((1, I32, 1), schema(("time_ns", INT64)), (3, I64, 0), (4, LIST, (STRUCT, [group]))))


def nested(depth: int) -> bytes:
    """Return a file with a column in a struct in a struct, and so on."""
    inner = [thrift((3, I32, 0), (4, BINARY, b"a"), (5, I32, 1))] * depth
    leaf = thrift((1, I32, INT64), (3, I32, 0), (4, BINARY, b"a"))
    return parquet(
        thrift((1, I32, 1), (2, LIST, (STRUCT, [*inner, leaf])), (3, I64, 0), (4, LIST, (STRUCT, [])))
    )


def written(columns: dict[str, Any], metadata: dict[bytes, bytes], **options: Any) -> bytes:
    out = io.BytesIO()
    table = pa.table(columns)
    # Without the schema of Arrow in it, Arrow does not know that a column was a dictionary.
    with pq.ParquetWriter(out, table.schema, compression="zstd", store_schema=False) as writer:
        writer.add_key_value_metadata(metadata)
        writer.write_table(table, **options)
    return out.getvalue()


def parquet_bombs(right: bytes, text: str, number: str) -> dict[str, bytes]:
    """Return Parquet files like one that is right, of which a text (if any) and a number are columns."""
    table = pq.read_table(io.BytesIO(right))
    rows = 50_000
    metadata = {key: text for key, text in (table.schema.metadata or {}).items() if key == b"pgsweep.heat"}
    few = _zeros_of(table, rows)
    long = same([b"A" * MB], rows)
    types = {field.name: BYTE_ARRAY if _is_text(field.type) else INT64 for field in table.schema}
    made = {
        "number-is-text": written({**few, number: long}, metadata),
        "rows": written(_zeros_of(table, 8 * MB), metadata, row_group_size=MB),
        "lying-page": lying_page(types, metadata, 10, decompressed=1000 * MB),
        "same-page": lying_page(types, metadata, MB, decompressed=64 * MB, groups=200),
        "lying-rows": lying_page(types, metadata, 1 << 39, decompressed=1024),
        "tiny-structs": of_tiny_structs(3 * MB),
        "nested": nested(100_000),
    }
    if text:
        made["long-text"] = written({**few, text: long}, metadata)
        # Each text of a dictionary is an object of its own in Python.
        made["same-texts"] = written({**few, text: same([b"ab"] * 10 * MB, rows)}, metadata)
    return made


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_dictionary(kind))


def _zeros_of(table: pa.Table, rows: int) -> dict[str, Any]:
    def of(kind: pa.DataType) -> pa.Array:
        if _is_text(kind) and not (pa.types.is_dictionary(kind) and pa.types.is_integer(kind.value_type)):
            return same([b"a"], rows)
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return pa.array(np.zeros(rows, bool if pa.types.is_boolean(kind) else np.int8)).cast(kind)

    return {field.name: of(field.type) for field in table.schema}


def same(texts: list[bytes], rows: int) -> pa.DictionaryArray:
    """Return a column with the first of some texts in every row, and all of them in its dictionary."""
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(texts, type=pa.string()))


def evidence_bombs(snapshots: bytes, trace: bytes) -> dict[str, bytes]:
    """Return folders of evidence like two that are right, each with one part changed."""
    found = {}
    for seed, table, text, number in (
        (snapshots, "counters", "name", "value"),
        (snapshots, "snapshots", "", "frame"),
        (trace, "accesses", "", "block"),
    ):
        files = unpack(seed)
        part = f"{table}/part-00000.parquet"
        for name, data in parquet_bombs(files[part], text, number).items():
            found[f"{table}-{name}"] = pack({**files, part: data})
    files = unpack(snapshots)
    meta = json.loads(files["meta.json"])
    for name, data in {
        "meta-numbers": b"[" + b"1," * 499_000 + b"1]",
        "meta-digits": json.dumps({**meta, "seconds": 0}).encode()[:-1] + b',"x":' + b"9" * 900_000 + b"}",
        "meta-exponent": json.dumps({**meta, "seconds": 0}).encode()[:-1] + b',"seconds":1e999999999}',
        "meta-warnings": json.dumps({**meta, "warnings": ["a"] * 200_000}).encode(),
    }.items():
        found[name] = pack({**files, "meta.json": data})
    return found


def heat_bombs(right: bytes) -> dict[str, bytes]:
    table = pq.read_table(io.BytesIO(right))
    metadata = table.schema.metadata
    meta = json.loads(metadata[b"pgsweep.heat"])
    vast = json.dumps({**meta, "pool_blocks": 1 << 39, "page_cache_blocks": 0}).encode()
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({**metadata, b"pgsweep.heat": vast}), out)
    return parquet_bombs(out.getvalue(), "relation", "block")


def oracle_bombs() -> dict[str, bytes]:
    """Return compressed traces: records of nothing but zeros are right."""
    frame = zeros(512 * MB)
    # A frame of a window of 2 GB, with one block of 128 kB of zeros after another.
    window = b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x02\x00\x10\x00" * 16_000 + b"\x03\x00\x10\x00"
    return {"zeros": frame * 8, "window": window}


def gathered_bombs(right: bytes) -> dict[str, bytes]:
    """Return files of psql, compressed."""
    lines = right.split(b"\n")
    sizes = next(at for at, line in enumerate(lines) if line.startswith(b"size\t"))
    buffers = max(at for at, line in enumerate(lines) if line.startswith(b"buffers\t"))
    names = next(line for line in reversed(lines[:buffers]) if line.startswith(b"tag\t")).split(b"\t")
    cells = lines[buffers].split(b"\t")
    count = 15 * MB
    cells[names.index(b"blocks")] = b"{" + b"111," * count + b"1}"
    cells[names.index(b"buffers")] = str(count + 1).encode()
    head, tail = [b"\n".join(part) for part in (lines[:sizes], lines[sizes + 1 :])]
    many = head + b"\n" + (lines[sizes] + b"\n") * (3 * MB) + tail
    long = b"\n".join([*lines[:buffers], b"\t".join(cells), *lines[buffers + 1 :]])
    members = {
        "rows": many,
        "blocks": long,
        "line": MAGIC.encode() + b"\n" + bytes(1000 * MB),
        "lines": MAGIC.encode() + b"\ntag\ta\n" + b"none\t\n" * (150 * MB),
    }
    # Compressed twice by the tree: gzip alone leaves a thousandth.
    return {name: gzip.compress(data, mtime=0) for name, data in members.items()}


def result_bombs(predict: bytes, cache: bytes) -> dict[str, bytes]:
    """Return results in JSON and HTML that are long and repeat themselves."""
    result = json.loads(predict)
    numbers = {**json.loads(cache)}
    script = b'<script type="application/json" id="pgsweep-result">'
    relations = numbers["relations"][:1] * 100_000
    return {
        "points": json.dumps({**result, "points": result["points"][:1] * 150_000}).encode(),
        "relations": json.dumps({**numbers, "relations": relations}).encode(),
        "counts": json.dumps(
            {**numbers, "pool": {**numbers["pool"], "usage_counts": [1] * 20 * MB}}, separators=(",", ":")
        ).encode(),
        "warnings": json.dumps({**result, "warnings": [""] * 15 * MB}, separators=(",", ":")).encode(),
        "digits": predict.rstrip()[:-1] + b',"x":' + b"9" * 60 * MB + b"}",
        "page": b"<html>" + script * MB,
    }
