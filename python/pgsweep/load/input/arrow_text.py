"""Values of Arrow as the text that PostgreSQL reads: the same alone, in an array, and in JSON.

Arrow's own texts are taken where PostgreSQL reads them as the same value. Values do not become Python's: its
types hold neither nanoseconds nor all years nor single precision.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgsweep.pg.load.catalog import Column

_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UUID: Final = "arrow.uuid"
_EARLY: Final = re.compile(r"^(-\d+|0000)(-.*)$")
_NUMBER_BYTES: Final = 16
"""Assumed: the text of a number or a time, or what surrounds others."""


class Number(str):
    """The text of a number: JSON has it without quotes."""

    __slots__ = ()


def as_text(column: pa.Array, target: Column) -> pa.Array:
    """Return a column as text for a column of the table: strings, and null where there is no value.

    A list is an array or JSON, as the table's column is; so is a map, in an array as pairs. A struct is JSON.

    Raises:
        ValueError: a value has no such text.
        pyarrow.ArrowException: Arrow cannot convert it.
    """
    column = _decoded(column)
    if not pa.types.is_nested(column.type):
        return _scalars(column, target)
    if target.category == "C":
        raise ValueError(f"{column.type} cannot be loaded into the composite type {target.type}")
    write: Callable[[Any], str] = array_text if target.category == "A" else json_text
    values = _values(column, target)
    return pa.array([None if value is None else write(value) for value in values], pa.string())


def row_bytes(column: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return about how many bytes of text each value of a column is."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(column.storage)
    if pa.types.is_dictionary(kind):
        lengths = np.append(row_bytes(column.dictionary), 0)
        return np.asarray(lengths[pc.fill_null(column.indices, len(lengths) - 1).to_numpy()])
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        total = sum((row_bytes(one) for one in inner), np.zeros(len(inner[0]), np.int64))
        sums = np.append(0, np.cumsum(total))
        offsets = column.offsets.to_numpy()
        return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]] + _NUMBER_BYTES)
    if pa.types.is_struct(kind):
        parts = [row_bytes(field) for field in column.flatten()]
        return sum(parts, np.full(len(column), _NUMBER_BYTES, np.int64))
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if plain or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        counts = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        return np.asarray(counts, np.int64)
    return np.full(len(column), _NUMBER_BYTES, np.int64)


def array_text(value: Any) -> str:
    """Return a list as PostgreSQL writes an array (array_in, arrayfuncs.c).

    Raises:
        ValueError: an object in it has no JSON text.
    """
    match value:
        case None:
            return "NULL"
        case list() | tuple():
            parts = [array_text(part) for part in value]
            # Servers before 17 refuse an array of empty arrays; it is empty itself.
            return "{}" if parts and all(part == "{}" for part in parts) else "{" + ",".join(parts) + "}"
        case bool():
            return "t" if value else "f"
        case dict():
            value = json_text(value)
        case bytes():
            value = "\\x" + value.hex()
    text: str = value
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def json_text(value: Any) -> str:
    """Return a value as JSON: numbers with all their digits, times and durations as text.

    Raises:
        ValueError: JSON has no such value (bytes, NaN, infinity).
    """
    match value:
        case Number():
            if not math.isfinite(float(value)):
                raise ValueError(f"{value} is not a number of JSON")
            return str(value)
        case bytes():
            raise ValueError("JSON has no binary values")
        case list() | tuple():
            return "[" + ", ".join(map(json_text, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{json.dumps(k)}: {json_text(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def _decoded(column: pa.Array) -> pa.Array:
    """Return the values themselves of a column that has a dictionary, or a type that Arrow does not know."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(column.type, pa.BaseExtensionType) and column.type.extension_name != _UUID:
        column = column.storage
    return column


def _scalars(column: pa.Array, target: Column) -> pa.Array:
    """Return the text of values that are neither lists nor objects."""
    kind = column.type
    if _is_uuid(kind, target):
        stored = column.storage if isinstance(kind, pa.BaseExtensionType) else column
        texts = [None if value is None else str(uuid.UUID(bytes=value)) for value in stored.to_pylist()]
        return pa.array(texts, pa.string())
    if _is_binary(kind):
        texts = [None if value is None else "\\x" + value.hex() for value in column.to_pylist()]
        return pa.array(texts, pa.string())
    if pa.types.is_duration(kind):
        counts = pc.cast(column, pa.int64()).to_pylist()
        per_second = _PER_SECOND[kind.unit]
        texts = [None if count is None else _interval_text(count, per_second) for count in counts]
        return pa.array(texts, pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        # Of an offset from UTC the text has no seconds, which many zones had until 1920, one until 1972.
        column = pc.cast(column, pa.timestamp(kind.unit, "UTC"))
    texts = pc.cast(column, pa.string())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _with_era(texts)
    if pa.types.is_decimal(kind) and pc.any(pc.match_substring(texts, "E")).as_py():
        # Of digits far behind the point Arrow's text has an exponent, which a column of text would keep.
        plain = [None if text is None else f"{Decimal(text):f}" for text in texts.to_pylist()]
        return pa.array(plain, pa.string())
    return texts


def _with_era(texts: pa.Array) -> pa.Array:
    """Return times before the year 1 as PostgreSQL has them: Arrow counts a year 0, and then backwards."""
    early = pc.match_substring_regex(texts, "^(-|0000)")
    if not pc.any(early).as_py():
        return texts
    found = [None if text is None else _EARLY.sub(_era, text) for text in texts.to_pylist()]
    return pa.array(found, pa.string())


def _era(found: re.Match[str]) -> str:
    return f"{1 - int(found[1]):04}{found[2]} BC"


def _is_uuid(kind: pa.DataType, target: Column) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return bool(kind.extension_name == _UUID)
    of_uuid = target.type.removesuffix("[]") == "uuid"
    return of_uuid and bool(pa.types.is_fixed_size_binary(kind)) and kind.byte_width == 16


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    plain = types.is_binary(kind) or types.is_large_binary(kind)
    return bool(plain or types.is_fixed_size_binary(kind) or types.is_binary_view(kind))


def _interval_text(count: int, per_second: int) -> str:
    """Return a duration as hours, minutes and seconds with their fraction (DecodeInterval, datetime.c)."""
    seconds, part = divmod(abs(count), per_second)
    minutes, seconds = divmod(seconds, 60)
    fraction = "" if per_second == 1 else f".{part:0{len(str(per_second)) - 1}}"
    return f"{'-' if count < 0 else ''}{minutes // 60}:{minutes % 60:02}:{seconds:02}{fraction}"


def _values(column: pa.Array, target: Column) -> list[Any]:
    """Return lists, dicts for structs, pairs or dicts for maps, and in them text, Number, bool or bytes."""
    column = _decoded(column)
    kind = column.type
    if pa.types.is_struct(kind):
        return _objects(column, target)
    if not pa.types.is_nested(kind):
        return _leaves(column, target)
    if pa.types.is_map(kind):
        return _maps(column, target)
    inner = iter(_values(column.flatten(), target))
    counts = pc.list_value_length(column).to_pylist()
    return [None if count is None else list(itertools.islice(inner, count)) for count in counts]


def _maps(column: pa.Array, target: Column) -> list[Any]:
    keys, items = _values(column.keys, target), _values(column.items, target)
    pairs = [
        list(zip(keys[begin:end], items[begin:end], strict=True)) if there else None
        for there, (begin, end) in zip(
            column.is_valid().to_pylist(), itertools.pairwise(column.offsets.to_pylist()), strict=True
        )
    ]
    if target.category == "A" and not target.is_json:
        return pairs
    return [None if one is None else {_key(key): value for key, value in one} for one in pairs]


def _key(key: Any) -> str:
    """Return the key of a map as that of a JSON object, which is text."""
    return key if isinstance(key, str) else json_text(key)


def _objects(column: pa.Array, target: Column) -> list[dict[str, Any] | None]:
    kind = column.type
    names = [kind.field(at).name for at in range(kind.num_fields)]
    if len(set(names)) < len(names):
        raise ValueError(f"{kind} has two fields of one name")
    fields = [_values(field, target) for field in column.flatten()]
    rows = list(zip(*fields, strict=True)) if fields else [()] * len(column)
    return [
        dict(zip(names, row, strict=True)) if there else None
        for there, row in zip(column.is_valid().to_pylist(), rows, strict=True)
    ]


def _leaves(column: pa.Array, target: Column) -> list[Any]:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return list(column.to_pylist())
    if _is_binary(kind) and not _is_uuid(kind, target):
        return list(column.to_pylist())
    texts = _scalars(column, target).to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return [None if text is None else Number(text) for text in texts]
    return list(texts)
