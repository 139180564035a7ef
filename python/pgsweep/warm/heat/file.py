"""The heat file: what lay in both caches at one time, by relation name and block. One Parquet file.

One row a block that was in the buffer pool, in the page cache, or in both, sorted by relation and block. All
that is known of a relation stands in columns of its own, so that DuckDB, Polars or Spark can read the
file without pgsweep. They repeat over long stretches, so they take almost no space. What holds for the whole
file is JSON in its key-value metadata. docs/reference/heat-file.md describes it.

A Parquet file is readable only after its footer is written: a truncated file is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pgsweep.commands import on_server
from pgsweep.decoded import Budget, TooMuch, open_parquet, parquet_end
from pgsweep.errors import HeatError
from pgsweep.files import replacing, where_to_look
from pgsweep.pg.session.failures import first_line
from pgsweep.plain import shell_word
from pgsweep.regular import NotRegular, open_regular
from pgsweep.units import format_bytes

FORMAT = 1
"""Raised when a reader of the former number would misunderstand the file; new fields do not raise it."""

NOT_IN_POOL = 255
"""The value in memory for the usage count of a block that was in the page cache only; null in the file."""

T = TypeVar("T", bound=np.generic)

FORKS = ("main", "fsm", "vm", "init")

_KEY = b"pgsweep.heat"
_TEXTS = ("database", "schema", "relation", "kind", "fork", "table_schema", "table")
_ROWS_AT_ONCE = 4 << 20
"""As many are written at a time; Arrow makes groups of a fourth of them."""

_MOST_GROUP_ROWS = 1 << 20
_MOST_GROUP_BYTES = 256 << 20
"""What a group becomes when it is read, before it is reduced to `_ROW_BYTES` a row."""

_ROW_BYTES = 14
"""What is kept of a row."""

_MOST_RATIO = 1000
"""How many times its length a file may become: of tables that lie in memory as a whole, it takes half a bit a
row, 230 times less."""

_MOST_NAME_BYTES = 1024
"""Names have at most 63 bytes (NAMEDATALEN, pg_config_manual.h)."""

_MOST_COUNT = 1 << 40
"""An upper bound, far above the number of blocks that a server can hold in its caches."""


class HeatPart(msgspec.Struct, frozen=True, kw_only=True):
    """One fork of one relation, as it was.

    Attributes:
        database: empty for shared catalogs.
        kind: table, index, TOAST table, TOAST index, materialized view, sequence.
        fork: one of `FORKS`.
        table_schema: with `table`, the table that an index or TOAST relation serves; else its own name.
        filenode: the number of its file; changes when the relation is rewritten.
        size_blocks: of the fork; -1 where it was not known.
    """

    database: str
    schema: str
    relation: str
    kind: str
    fork: str
    table_schema: str
    table: str
    database_oid: int
    tablespace_oid: int
    filenode: int
    size_blocks: int


class HeatMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says of itself.

    Attributes:
        at: when, ISO 8601 in UTC.
        system_identifier: of the cluster; a physical standby has its primary's. Nothing where the role may
            not ask.
        pool_source: peek or sql.
        sees_page_cache: the page cache was looked at.
        pool_blocks: blocks in the pool whose relation has a name: rows with a usage count.
        page_cache_blocks: blocks resident in the page cache, whole.
        nameless_blocks: blocks of the pool whose relation no catalog names; they are not in the file.
    """

    format: int = FORMAT
    pgsweep_version: str
    at: str
    server_version_num: int
    server_version: str
    system_identifier: str | None
    in_recovery: bool
    block_size_bytes: int
    shared_buffers_blocks: int
    pool_source: str
    sees_page_cache: bool
    pool_blocks: int
    page_cache_blocks: int
    nameless_blocks: int


class _Version(msgspec.Struct):
    format: int
    pgsweep_version: str = "?"


@dataclass(frozen=True, slots=True)
class SavedHeat:
    """The contents of both caches; arrays are parallel, one element a block, sorted by part and block.

    Attributes:
        parts: forks of relations, in the order of the file.
        part: index into `parts`.
        usage_count: 0 to 5, or NOT_IN_POOL.
        page_cache: whether it was resident in the page cache, whole.
    """

    meta: HeatMeta
    parts: list[HeatPart]
    part: NDArray[np.int32]
    block: NDArray[np.int64]
    usage_count: NDArray[np.uint8]
    page_cache: NDArray[np.bool_]

    @property
    def pooled(self) -> NDArray[np.bool_]:
        """Which blocks were in the buffer pool."""
        pooled: NDArray[np.bool_] = self.usage_count != NOT_IN_POOL
        return pooled

    def by_part(self) -> Iterator[tuple[HeatPart, slice]]:
        """Yield each part with its rows."""
        edges = np.searchsorted(self.part, np.arange(len(self.parts) + 1))
        for number, part in enumerate(self.parts):
            yield part, slice(int(edges[number]), int(edges[number + 1]))


class NoHeatFile(HeatError):
    """A file that `pgsweep warm save` did not write."""


def write_heat(path: Path, heat: SavedHeat) -> int:
    """Write the file whole or not at all; return its size in bytes.

    It is written aside, flushed to the disk and renamed (`files.replacing`), so a reader finds it complete.

    Raises:
        HeatError: the disk is full, or the folder has gone or may not be written.
    """
    try:
        with replacing(path) as file:
            _write(file, heat)
            file.flush()
            size = os.fstat(file.fileno()).st_size
    except (OSError, pa.ArrowException) as error:
        raise HeatError(
            f"cannot write `{path}`: {getattr(error, 'strerror', None) or error}",
            hint=where_to_look(path),
        ) from error
    return size


def read_heat(path: Path) -> SavedHeat:
    """Return what a heat file holds.

    Raises:
        HeatError: it cannot be read, is not a heat file, was cut short, or comes from a newer pgsweep.
    """
    if path.is_dir():
        raise HeatError(f"`{path}` is a folder", hint=_OURS)
    try:
        with open_regular(path) as source:
            found = parquet_end(source)
            text = (found.metadata or {}).get(_KEY)
            if text is None:
                raise NoHeatFile(
                    f"`{path}` is not a heat file",
                    cause="it is Parquet, but nothing in it says what it holds",
                    hint=_OURS,
                )
            meta = _meta(text, path)
            if found.num_rows > meta.pool_blocks + meta.page_cache_blocks:
                raise HeatError(f"`{path}` is damaged", cause=_DISAGREES, hint=_OTHER_FILE)
            groups = [found.row_group(number).num_rows for number in range(found.num_row_groups)]
            if any(not 0 <= rows <= _MOST_GROUP_ROWS for rows in groups) or found.num_rows != sum(groups):
                raise HeatError(f"`{path}` is damaged", cause=_DISAGREES, hint=_OTHER_FILE)
            heat = _rows(source, meta, found.num_rows)
    except FileNotFoundError as error:
        raise HeatError(
            f"there is no file `{path}`",
            hint=f"make one: {on_server('pgsweep warm save', shell_word(str(path)))}",
        ) from error
    except MemoryError as error:
        raise HeatError(
            f"`{path}` does not fit into memory",
            cause="its metadata declares more rows than fit",
            hint=_OTHER_FILE,
        ) from error
    except (OSError, pa.ArrowException, KeyError, ValueError) as error:
        # Of what Arrow raises some are ValueErrors: a name that is not UTF-8, say.
        raise _unreadable(path, error) from error
    _check(heat, path)
    return heat


_PART_COLUMNS = HeatPart.__struct_fields__


def _rows(source: IO[bytes], meta: HeatMeta, rows: int) -> SavedHeat:
    """Return the rows, read and checked group by group: a damaged file ends before it takes much memory.

    Raises:
        ValueError: a value is missing, does not fit, or cannot follow the one before it.
    """
    columns = [*_PART_COLUMNS, "part", "block", "usage_count", "page_cache"]
    file, costs = open_parquet(source, columns)
    if max(costs, default=0) > _MOST_GROUP_BYTES:
        raise TooMuch(f"a group of its rows would become {format_bytes(max(costs))}")
    Budget.of(source, _MOST_RATIO).spend(rows * _ROW_BYTES)
    heat = SavedHeat(
        meta=meta,
        parts=[],
        part=np.empty(rows, np.int32),
        block=np.empty(rows, np.int64),
        usage_count=np.empty(rows, np.uint8),
        page_cache=np.empty(rows, np.bool_),
    )
    begin = 0
    with file:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number, columns=columns, use_threads=False)
            end = begin + len(table)
            if end > rows:
                raise ValueError(_DISAGREES)
            heat.part[begin:end] = _numbers(table, "part", np.int32)
            heat.block[begin:end] = _numbers(table, "block", np.int64)
            heat.usage_count[begin:end] = _numbers(table, "usage_count", np.uint8, missing=NOT_IN_POOL)
            heat.page_cache[begin:end] = _numbers(table, "page_cache", np.bool_)
            _check_order(heat.part[max(0, begin - 1) : end], heat.block[max(0, begin - 1) : end], begin)
            # A part that goes on from the group before is known.
            known = np.int32(len(heat.parts) - 1)
            heat.parts.extend(_parts(table, heat.part[begin:end], known))
            begin = end
    if begin != rows:
        raise ValueError(_DISAGREES)
    return heat


def _check_order(part: NDArray[np.int32], block: NDArray[np.int64], begin: int) -> None:
    """Refuse rows that are not sorted by part, numbered from 0, and block, with each block once.

    Raises:
        ValueError: they are not.
    """
    steps = np.diff(part)
    first_is_wrong = begin == 0 and len(part) > 0 and part[0] != 0
    if first_is_wrong or np.any((steps < 0) | (steps > 1) | ((steps == 0) & (np.diff(block) <= 0))):
        raise ValueError(_DISAGREES)


def _write(file: IO[bytes], heat: SavedHeat) -> None:
    meta = msgspec.json.encode(heat.meta)
    # Names are stored as a dictionary with run lengths. Neighbouring block numbers differ by little, so a
    # block takes a few bits, and a stretch of consecutive blocks almost nothing.
    options = {
        "compression": "zstd",
        "use_dictionary": [*_PART_COLUMNS, "usage_count"],
        "column_encoding": {"part": "DELTA_BINARY_PACKED", "block": "DELTA_BINARY_PACKED"},
        "write_page_checksum": True,
    }
    first = _table(heat, slice(0, _ROWS_AT_ONCE)).replace_schema_metadata({_KEY: meta})
    with pq.ParquetWriter(file, first.schema, **options) as writer:
        writer.write_table(first)
        for begin in range(_ROWS_AT_ONCE, len(heat.block), _ROWS_AT_ONCE):
            table = _table(heat, slice(begin, begin + _ROWS_AT_ONCE))
            writer.write_table(table.replace_schema_metadata({_KEY: meta}))


def _table(heat: SavedHeat, rows: slice) -> pa.Table:
    """Return some rows; columns of parts come from dictionaries, so that there is no loop over blocks."""
    part = heat.part[rows]

    def of_parts(name: str) -> pa.DictionaryArray:
        values = [getattr(entry, name) for entry in heat.parts]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(values))}
        of_part = np.array([numbers[value] for value in values], dtype=np.int32)
        kind = pa.string() if name in _TEXTS else pa.int64()
        return pa.DictionaryArray.from_arrays(pa.array(of_part[part]), pa.array(list(numbers), type=kind))

    return pa.table(
        {
            **{name: of_parts(name) for name in _PART_COLUMNS},
            "part": pa.array(part),
            "block": pa.array(heat.block[rows]),
            "usage_count": pa.array(heat.usage_count[rows], mask=~heat.pooled[rows]),
            "page_cache": pa.array(heat.page_cache[rows]),
        }
    )


def _parts(table: pa.Table, part: NDArray[np.int32], known: np.int32) -> list[HeatPart]:
    """Return the parts of some rows that come after the known one, each from its first row."""
    firsts = np.flatnonzero(np.diff(part, prepend=known))
    columns = [
        _texts(table, name, firsts) if name in _TEXTS else _numbers(table, name, np.int64)[firsts].tolist()
        for name in _PART_COLUMNS
    ]
    rows = [dict(zip(_PART_COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]
    return msgspec.convert(rows, list[HeatPart])


def _texts(table: pa.Table, name: str, rows: NDArray[np.int64]) -> list[str]:
    """Return the text of a column in some rows, ascending.

    Raises:
        ValueError: it is not text, some is missing, or it is longer than names are.
    """
    found: list[str] = []
    begin = 0
    for chunk in table[name].chunks:
        kind = chunk.type.value_type if pa.types.is_dictionary(chunk.type) else chunk.type
        if kind == chunk.type or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ValueError(f"{name} is {chunk.type}, not text")
        values = chunk.dictionary.to_pylist()
        longest = max((len((value or "").encode()) for value in values), default=0)
        if longest > _MOST_NAME_BYTES:
            raise ValueError(f"a name in it has {longest} bytes")
        inside = rows[slice(*np.searchsorted(rows, [begin, begin + len(chunk)]))] - begin
        found += [values[at] for at in chunk.indices.to_numpy()[inside].tolist()]
        begin += len(chunk)
    return found


def _numbers(
    table: pa.Table, name: str, kind: type[np.generic], *, missing: int | None = None
) -> NDArray[Any]:
    """Return a column in its type.

    By NumPy alone: `pyarrow.compute` takes longer to import than all else of Arrow, and a restore after a
    restart is late by it.

    Raises:
        ValueError: values are missing where none may be, or do not fit.
    """
    column = table[name]
    fits = pa.types.is_boolean if kind is np.bool_ else pa.types.is_integer
    if not fits(column.type):
        raise ValueError(f"{name} is {column.type}, not {np.dtype(kind)}")
    if column.null_count and missing is None:
        raise ValueError(f"{column.null_count} values of {name} are missing")
    values = column.to_numpy()
    if column.null_count:  # NaN among floating-point numbers
        values = np.where(np.isnan(values), missing, values)
    found = values.astype(kind)
    if np.any(found != values):
        raise ValueError(f"{name} has values that are not {np.dtype(kind)}")
    return np.asarray(found)


def _meta(text: bytes, path: Path) -> HeatMeta:
    try:
        version = msgspec.json.decode(text, type=_Version)
        if version.format > FORMAT:
            raise HeatError(
                f"`{path}` was written by a newer pgsweep",
                cause=f"it has format {version.format}, written by {version.pgsweep_version}; this one reads "
                f"formats up to {FORMAT}",
                hint="pip install --upgrade pgsweep",
            )
        meta = msgspec.json.decode(text, type=HeatMeta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HeatError(f"`{path}` is damaged", cause=str(error), hint=_OTHER_FILE) from error
    numbers = (meta.server_version_num, meta.block_size_bytes, meta.shared_buffers_blocks)
    counts = (meta.pool_blocks, meta.page_cache_blocks, meta.nameless_blocks)
    if min(*numbers, *counts) < 0 or max(*numbers, *counts) > _MOST_COUNT:
        raise HeatError(f"`{path}` is damaged", cause="its counts are impossible", hint=_OTHER_FILE)
    return meta


_DISAGREES = "its rows do not agree with its description"
_OURS = "name a file that `pgsweep warm save` wrote"
_OTHER_FILE = "take an older one (`pgsweep warm save --keep` keeps them as FILE.1, FILE.2, ...)"


def _unreadable(path: Path, error: Exception) -> HeatError:
    if isinstance(error, NotRegular):
        return HeatError(f"`{path}` is not a heat file", cause=error.strerror, hint=_OURS)
    if isinstance(error, PermissionError):
        return HeatError(
            f"`{path}` may not be read", cause=error.strerror, hint="run as the user who saved it, or as root"
        )
    try:
        with path.open("rb") as file:
            begins = file.read(4)
            file.seek(max(0, path.stat().st_size - 4))
            ends = file.read(4)
    except OSError:
        begins = ends = b""
    if begins == b"PAR1" and ends != b"PAR1":
        return HeatError(
            f"`{path}` was cut short", cause="the end of the file is missing; it was copied in part",
            hint=f"copy it again, or {_OTHER_FILE}",
        )  # fmt: skip
    if not begins:
        return HeatError(
            f"`{path}` is not a heat file",
            cause="it is empty",
            hint=f"make one: {on_server('pgsweep warm save', shell_word(str(path)))}",
        )
    if begins != b"PAR1":
        return NoHeatFile(f"`{path}` is not a heat file", cause="it is not Parquet", hint=_OURS)
    return HeatError(f"`{path}` is damaged", cause=first_line(error), hint=_OTHER_FILE)


def _check(heat: SavedHeat, path: Path) -> None:
    """Refuse a file whose rows do not agree with its metadata: a restore would use them on a server.

    Raises:
        HeatError: they do not.
    """
    level = heat.usage_count
    wrong = (
        np.any((heat.block < 0) | (heat.block >= 2**32 - 1))
        or np.any((level > 5) & (level != NOT_IN_POOL))
        or np.count_nonzero(heat.pooled) != heat.meta.pool_blocks
        or any(part.fork not in FORKS for part in heat.parts)
    )
    if wrong:
        raise HeatError(f"`{path}` is damaged", cause=_DISAGREES, hint=_OTHER_FILE)


def joined(columns: list[NDArray[T]], kind: type[T]) -> NDArray[T]:
    """Return the columns concatenated; for none, an empty one of the type."""
    return np.concatenate(columns) if columns else np.zeros(0, dtype=kind)
