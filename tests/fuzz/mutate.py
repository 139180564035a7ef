"""Inputs from other inputs. Every function returns the same for the same random numbers."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS: tuple[int, ...] = (
    0, 1, -1, 2, 3, 5, 6, 7, 8, 15, 16, 17, 64, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -(2**31),
    2**32 - 2, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 10**18, 10**30,
)  # fmt: skip
FLOATS: tuple[float, ...] = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-9, 5e-324, 1e18, 1.7e308, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS: tuple[str, ...] = (
    "", "a", "0", "-1", "1e999", "\x00", "\x1b[31m", "\u202e", "é", "</script>", "=1+1", "%s", "{}", "../..",
    "A" * 5000,
)  # fmt: skip


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to four places changed."""
    found = bytearray(data)
    for _ in range(1 + min(int(random.expovariate(1)), 3)):
        _change_bytes(found, random)
    return bytes(found)


def _change_bytes(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    length = min(1 << random.randrange(10), len(data) - at)
    kind = random.randrange(8)
    if kind == 0:
        data[at:at] = random.randbytes(1 << random.randrange(6))
    elif kind == 1:
        del data[at : at + length]
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = data[at : at + length]
    elif kind == 4:
        begin = random.randrange(len(data) + 1)
        data[at : at + length] = data[begin : begin + length]
    elif kind == 5:
        size = random.choice((1, 2, 4, 8))
        number = random.choice(NUMBERS) % (1 << (8 * size))
        data[at : at + size] = number.to_bytes(size, random.choice(("little", "big")))
    elif kind == 6:
        data[at : at + 8] = struct.pack("<d", random.choice(FLOATS))
    elif at < len(data):
        data[at] ^= 1 << random.randrange(8)


def mutate_json(text: bytes, random: Random) -> bytes:
    """Return the JSON with one to three of its values changed; now and then with bytes changed."""
    if random.random() < 0.1:
        return mutate_bytes(text, random)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return mutate_bytes(text, random)
    for _ in range(1 + min(int(random.expovariate(1)), 2)):
        value = _change_value(value, random)
    if random.random() < 0.01:
        depth = random.choice((100, 1000, 100_000))
        return b'{"a":' * depth + json.dumps(value).encode() + b"}" * depth
    return json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


def _change_value(root: Any, random: Random) -> Any:
    """Return the value with one place in it changed; every place is as likely."""
    places: list[tuple[Any, Any]] = []

    def visit(value: Any) -> None:
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, inner in items:
            places.append((value, key))
            visit(inner)

    visit(root)
    if not places:
        return any_value(random)
    holder, key = random.choice(places)
    kind = random.randrange(10)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * random.choice((1, 2, 300))
    elif kind == 2:
        other, other_key = random.choice(places)
        if _size(other[other_key]) < 2000:
            holder[key] = json.loads(json.dumps(other[other_key]))
    elif kind == 3 and isinstance(holder, dict):
        holder[random.choice(TEXTS)] = holder.pop(key)
    elif kind == 4 and isinstance(holder[key], list):
        random.shuffle(holder[key])
    elif kind == 5 and isinstance(holder[key], list | dict):
        holder[key].clear()
    else:
        holder[key] = like(holder[key], random) if random.random() < 0.8 else any_value(random)
    return root


def _size(value: Any) -> int:
    return len(json.dumps(value))


def like(value: Any, random: Random) -> Any:
    """Return another value of the same type, where it is a plain one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = value + random.choice((-1, 1))
        return random.choice((random.choice(NUMBERS), near, value * 2, -value, value * 10**6))
    if isinstance(value, float):
        return random.choice((random.choice(FLOATS), value * random.choice((-1, 0.5, 2, 1e6, 1e-6))))
    if isinstance(value, str):
        return random.choice((random.choice(TEXTS), value * 2, value[: len(value) // 2]))
    return any_value(random)


def any_value(random: Random) -> Any:
    return random.choice(
        (None, True, False, random.choice(NUMBERS), random.choice(FLOATS), random.choice(TEXTS), [], {}, [[]])
    )


def mutate_rows(data: bytes, random: Random) -> bytes:
    """Return lines of cells apart by tabs with one to three of them changed; now and then with bytes changed.

    What is compressed is compressed again.
    """
    if random.random() < 0.1:
        return mutate_bytes(data, random)
    if data[:2] == b"\x1f\x8b":
        try:
            return gzip.compress(mutate_rows(gzip.decompress(data), random), mtime=0)
        except (OSError, EOFError, zlib.error):
            return mutate_bytes(data, random)
    lines = data.split(b"\n")
    for _ in range(1 + min(int(random.expovariate(1)), 2)):
        _change_line(lines, random)
    return b"\n".join(lines)


def _change_line(lines: list[bytes], random: Random) -> None:
    at, other = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(12)
    if kind == 0:
        del lines[at : at + random.choice((1, 1, 5, 50))]
        lines[:] = lines or [b""]
    elif kind == 1:
        lines[at:at] = [lines[other]] * random.choice((1, 1, 2, 50))
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    else:
        cells = lines[at].split(b"\t")
        place = random.randrange(len(cells))
        cells[place] = _changed_cell(cells[place], random)
        lines[at] = b"\t".join(cells)


def _changed_cell(cell: bytes, random: Random) -> bytes:
    """Return another cell of the same kind: a number, an array of numbers, hexadecimal bytes, or a word."""
    if cell[:1] == b"{":
        numbers = cell[1:-1].split(b",")
        chosen = random.randrange(len(numbers))
        numbers[chosen] = _changed_cell(numbers[chosen], random)
        if random.random() < 0.3:
            numbers *= random.choice((0, 2))
        return b"{" + b",".join(numbers) + b"}"
    if cell[:2] == b"\\x" and random.random() < 0.7:
        return b"\\x" + random.choice(TEXTS).encode("utf-8", "surrogatepass").hex().encode()
    with contextlib.suppress(ValueError):
        return str(like(int(cell), random)).encode()
    with contextlib.suppress(ValueError):
        return str(like(float(cell), random)).encode()
    return random.choice((random.choice(TEXTS), str(random.choice(NUMBERS)))).encode("utf-8", "surrogatepass")


def mutate_parquet(data: bytes, random: Random) -> bytes:
    """Return the Parquet file with values, rows, or the type or name of a column changed; or with bytes."""
    if random.random() < 0.15:
        return mutate_bytes(data, random)
    try:
        table = pq.read_table(io.BytesIO(data))
        for _ in range(1 + min(int(random.expovariate(1)), 3)):
            table = random.choice(_TABLE_CHANGES)(table, random)
        out = io.BytesIO()
        pq.write_table(table, out, write_page_checksum=True)
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError):
        return mutate_bytes(data, random)
    return out.getvalue()


def _column(table: pa.Table, random: Random) -> int:
    return random.randrange(max(table.num_columns, 1))


def _change_values(table: pa.Table, random: Random) -> pa.Table:
    """Set one, some, or all values of a column; wrap them round to fit its type."""
    at = _column(table, random)
    kind = table.schema.field(at).type
    values = table.column(at).to_pylist()
    share = random.choice((0.0, 0.1, 0.5, 1.0))
    each = random.random() < 0.3
    drawn = _fitting(kind, random)
    chosen = random.randrange(max(len(values), 1))
    for row in range(len(values)):
        if row == chosen or random.random() < share:
            values[row] = _fitting(kind, random) if each else drawn
    return table.set_column(at, table.schema.field(at).name, pa.array(values, type=kind))


def _fitting(kind: pa.DataType, random: Random) -> Any:
    if random.random() < 0.03:
        return None
    if pa.types.is_boolean(kind):
        return random.random() < 0.5
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        low = 0 if pa.types.is_unsigned_integer(kind) else -(1 << (bits - 1))
        return (random.choice((*NUMBERS, random.getrandbits(bits))) - low) % (1 << bits) + low
    if pa.types.is_floating(kind):
        return random.choice(FLOATS)
    if pa.types.is_dictionary(kind):
        return _fitting(kind.value_type, random)
    return random.choice(TEXTS)


def _swap_values(table: pa.Table, random: Random) -> pa.Table:
    """Put a column's values in another order."""
    at = _column(table, random)
    values = table.column(at).to_pylist()
    random.choice((random.shuffle, list.reverse, list.sort))(values)
    return table.set_column(
        at, table.schema.field(at).name, pa.array(values, type=table.schema.field(at).type)
    )


def _change_rows(table: pa.Table, random: Random) -> pa.Table:
    """Drop rows, or have some twice."""
    at = random.randrange(table.num_rows + 1)
    length = random.choice((1, 10, table.num_rows))
    if random.random() < 0.5:
        return pa.concat_tables([table.slice(0, at), table.slice(min(at + length, table.num_rows))])
    return pa.concat_tables([table, table.slice(at, min(length, 1000))])


def _change_type(table: pa.Table, random: Random) -> pa.Table:
    at = _column(table, random)
    values = [str(value) if value is not None else None for value in table.column(at).to_pylist()]
    kind = random.choice(
        (
            pa.string(),
            pa.binary(),
            pa.int8(),
            pa.int64(),
            pa.float64(),
            pa.bool_(),
            pa.list_(pa.int64()),
            pa.date32(),
        )
    )
    column = pa.array([None if random.random() < 0.2 else value for value in values], type=pa.string())
    name = table.schema.field(at).name
    try:
        return table.set_column(at, name, column.cast(kind))
    except (pa.ArrowException, ValueError):
        return table.set_column(at, name, pa.nulls(len(column), kind))


def _change_columns(table: pa.Table, random: Random) -> pa.Table:
    """Drop, double or rename a column."""
    at = _column(table, random)
    kind = random.randrange(3)
    if kind == 0:
        return table.remove_column(at)
    if kind == 1:
        return table.append_column(table.schema.field(at), table.column(at))
    names = list(table.column_names)
    names[at] = random.choice((*TEXTS[:5], *names))
    return table.rename_columns(names)


def _change_metadata(table: pa.Table, random: Random) -> pa.Table:
    """Change JSON in the metadata of the file, where there is some."""
    found = {key: mutate_json(text, random) for key, text in (table.schema.metadata or {}).items()}
    return table.replace_schema_metadata(found)


_TABLE_CHANGES: tuple[Callable[[pa.Table, Random], pa.Table], ...] = (
    *[_change_values] * 10, *[_swap_values] * 2, *[_change_rows] * 3, _change_type, _change_columns,
    *[_change_metadata] * 2,
)  # fmt: skip


def pack(files: dict[str, bytes]) -> bytes:
    """Return files of a folder as one input: a zip, the same bytes for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name], zipfile.ZIP_DEFLATED)
    return out.getvalue()


def unpack(data: bytes) -> dict[str, bytes]:
    """Return the files of such an input."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def mutate_folder(data: bytes, random: Random) -> bytes:
    """Return the folder with one to three files changed, each as its name says; or one gone or doubled."""
    files = unpack(data)
    for _ in range(1 + min(int(random.expovariate(1)), 2)):
        if not files:
            break
        name = random.choice(sorted(files))
        kind = random.randrange(40)
        if kind == 0:
            del files[name]
        elif kind == 1:
            other = random.choice(sorted(files))
            files[name] = files[other]
        elif name.endswith(".json"):
            files[name] = mutate_json(files[name], random)
        elif name.endswith(".parquet"):
            files[name] = mutate_parquet(files[name], random)
        else:
            files[name] = mutate_bytes(files[name], random)
    return pack(files)
