"""Read evidence: complete parts are used, incomplete ones are reported."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pgsweep.decoded import Budget, open_parquet, parquet_end, stored_bytes
from pgsweep.errors import EvidenceError
from pgsweep.evidence.checks import MOST_TEXT_BYTES, trouble_in, trouble_in_counters
from pgsweep.evidence.meta import read_meta, unreadable
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.schema import ADDED_LATER, TABLES, EvidenceMeta
from pgsweep.evidence.writer import is_being_written
from pgsweep.plain import shell_word
from pgsweep.regular import open_regular
from pgsweep.units import format_count

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyarrow import parquet

_MOST_PARTS: Final = 100_000
"""As many as their numbers of five digits."""

_TIMES: Final = {"accesses": "time_ns", "snapshot_times": "end_seconds", "counters": "seconds"}


class _Part(msgspec.Struct, frozen=True):
    """A part of a table, of which the end was read: its rows, and what it takes on the disk."""

    path: Path
    rows: int
    stored_bytes: int


class Evidence:
    """Evidence as it lies on disk; opening reads the record and the ends of the parts, not the data.

    Attributes:
        meta: the record; for cut evidence `seconds` comes from the last complete part.
        complete: nothing is missing.
        being_written: it was still being recorded when it was opened.
        warnings: what a user must know about this evidence, in words; the recorder's own included.
        damaged: tables of which a part is missing or damaged, and which part, in words.
    """

    def __init__(
        self,
        path: Path,
        meta: EvidenceMeta,
        parts: dict[str, list[_Part]],
        warnings: list[str],
        damaged: dict[str, str],
        *,
        being_written: bool,
    ) -> None:
        self.path = path
        self.being_written = being_written
        self.meta = meta
        self.warnings = warnings
        self.damaged = damaged
        self.complete = meta.complete
        self._parts = parts

    @classmethod
    def open(cls, path: Path) -> Evidence:
        """Open a folder of evidence.

        Raises:
            EvidenceError: it is missing, no evidence, broken beyond use, or from a newer pgsweep.
        """
        path = Path(path)
        # Asked first: a recording that ends meanwhile is complete, and not cut short.
        held = is_being_written(path)
        meta = read_meta(path)
        being_written = held and not meta.complete
        warnings = list(meta.warnings)
        parts: dict[str, list[_Part]] = {}
        damaged: dict[str, str] = {}
        for table in TABLES:
            parts[table], trouble = _whole_parts(path, table, meta.parts.get(table, 0))
            if trouble:
                damaged[table] = trouble
        if not meta.complete:
            why = f" (ended by: {meta.ended_by})" if meta.ended_by else ""
            state = "is still under way" if being_written else f"was cut short{why}"
            warnings.append(f"the recording {state}; the evidence is read up to its last complete part")
        warnings += damaged.values()
        if damaged or not meta.complete:
            seconds = _seconds_seen(parts, damaged) or meta.seconds
            # The last counters are read after the end of what a closed recording observed.
            seconds = min(seconds, meta.seconds or seconds)
            meta = msgspec.structs.replace(meta, complete=False, seconds=seconds)
        return cls(path, meta, parts, warnings, damaged, being_written=being_written)

    def has(self, table: str) -> bool:
        """Return whether a table has at least one row."""
        return self.rows(table) > 0

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        return sum(part.rows for part in self._parts[table])

    def table(
        self, name: str, columns: Sequence[str] | None = None, *, of: BlockSample | None = None
    ) -> dict[str, NDArray[Any]]:
        """Return a whole table (or some of its columns) as arrays; text comes as arrays of `str` objects.

        Args:
            name: of the table.
            columns: those that are read.
            of: the blocks of which rows are kept; the columns `rel` and `block` are among those read.

        Raises:
            EvidenceError: a part is damaged inside.
        """
        wanted = list(TABLES[name]) if columns is None else list(columns)
        parts = self.parts(name, wanted)
        chunks = list(parts if of is None else map(of.rows, parts))
        return {
            column: (
                np.concatenate([chunk[column] for chunk in chunks])
                if chunks
                else np.zeros(0, dtype=TABLES[name][column].replace("str", "object"))
            )
            for column in wanted
        }

    def parts(self, name: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield a table part by part, in the order of recording, for tables larger than memory.

        Raises:
            EvidenceError: a part is damaged inside.
        """
        wanted = list(TABLES[name]) if columns is None else list(columns)
        budget = Budget(sum(part.stored_bytes for part in self._parts[name]))
        for part in self._parts[name]:
            yield _read_part(part.path, name, wanted, budget)


def _read_part(part: Path, table: str, columns: Sequence[str], budget: Budget) -> dict[str, NDArray[Any]]:
    """Return columns of a part as arrays; what they take is taken off the budget.

    Raises:
        EvidenceError: it is damaged, cannot be opened, or holds what no recorder writes.
    """
    import pyarrow as pa

    schema = TABLES[table]
    try:
        with open_regular(part) as source:
            file, costs = open_parquet(source, columns)
            _check_columns(part, file.metadata, table, columns)
            budget.spend(sum(costs))
            there = [name for name in columns if name in file.schema_arrow.names]
            rows = file.read(columns=there, use_threads=False)
        found = {name: _column(part, table, name, rows.column(name)) for name in there}
        if table == "counters" and {"name", "value"} <= found.keys():
            trouble = trouble_in_counters(found["name"], found["value"])
            if trouble is not None:
                raise _damaged(part, trouble)
        # Columns that an older pgsweep did not write.
        return {name: found.get(name, np.zeros(len(rows), schema[name])) for name in columns}
    except (pa.ArrowException, KeyError, ValueError, MemoryError) as error:
        # Arrow reports what is broken in a file by any of these; UnicodeDecodeError is a ValueError.
        raise _damaged(part, str(error)) from error
    except OSError as error:
        if error.errno is None:
            raise _damaged(part, str(error)) from error
        raise unreadable(part, error) from error


def _check_columns(part: Path, end: parquet.FileMetaData, table: str, columns: Sequence[str]) -> None:
    """Refuse a part that lacks a column, or has one twice, before any row is read."""
    names = [end.schema.column(index).path for index in range(end.num_columns)]
    later = ADDED_LATER.get(table, frozenset())
    missing = [name for name in columns if name not in names and name not in later]
    if missing:
        raise EvidenceError(
            f"`{part}` lacks the column {', '.join(missing)}", hint="record again with this pgsweep"
        )
    if doubled := [name for name in columns if names.count(name) > 1]:
        raise _damaged(part, f"the column {doubled[0]} is there {names.count(doubled[0])} times")


def _column(part: Path, table: str, name: str, found: pa.ChunkedArray) -> NDArray[Any]:
    """Return the values of a column, in its type; by `pyarrow.compute` only where they have another.

    To import that takes longer than all else of Arrow.
    """
    import pyarrow as pa

    kind = TABLES[table][name]
    if found.null_count:
        raise _damaged(part, f"{found.null_count} values of {name} are missing")
    if kind == "str":
        if not pa.types.is_dictionary(found.type) or not pa.types.is_string(found.type.value_type):
            raise _damaged(part, f"{name} is {found.type}, not text")
        longest = max((_longest_text(chunk.dictionary) for chunk in found.chunks), default=0)
        if longest > MOST_TEXT_BYTES:
            raise _damaged(part, f"a text in {name} has {longest} bytes")
        return np.asarray(found.to_numpy(zero_copy_only=False), dtype=object)
    numbers = pa.types.is_boolean if kind == "bool" else _is_number
    if not numbers(found.type):
        raise _damaged(part, f"{name} is {found.type}, not {kind}")
    if found.type != (wanted := pa.from_numpy_dtype(np.dtype(kind))):
        found = found.cast(wanted)
    values = np.asarray(found.to_numpy(zero_copy_only=False), dtype=kind)
    trouble = trouble_in(table, name, values)
    if trouble is not None:
        raise _damaged(part, trouble)
    return values


def _longest_text(texts: pa.StringArray) -> int:
    """Return how many bytes the longest of some texts has."""
    if not len(texts):
        return 0
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return int(np.diff(ends).max(initial=0))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _damaged(part: Path, cause: str) -> EvidenceError:
    return EvidenceError(
        f"`{part}` is damaged",
        cause=cause.splitlines()[0] if cause.strip() else None,
        hint="remove this part and those numbered after it to use those before, or record again",
    )


def _whole_parts(path: Path, table: str, written: int) -> tuple[list[_Part], str]:
    """Return the parts of a table up to the first one missing or cut, and the warning about it.

    Args:
        path: of the evidence.
        table: by name.
        written: how many there were when the evidence was closed; 0 where that is not known.
    """
    import pyarrow as pa

    whole: list[_Part] = []
    found = _parts_in(path / table)
    count = max(len(found), written)
    for number, part in enumerate(found):
        trouble = ""
        if part.name != f"part-{number:05d}.parquet":
            trouble = f"part-{number:05d}.parquet is missing"
        else:
            try:
                with open_regular(part) as file:
                    found_part = _Part(part, parquet_end(file).num_rows, stored_bytes(file))
            except OSError as error:
                # Arrow's own have no number: then the file is at fault and not the system.
                if error.errno is not None:
                    raise unreadable(part, error) from error
                trouble = f"{part.name} is cut short or damaged"
            except (pa.ArrowException, ValueError):
                trouble = f"{part.name} is cut short or damaged"
        if trouble:
            break
        whole.append(found_part)
    else:
        trouble = f"part-{len(whole):05d}.parquet is missing" if len(whole) < count else ""
    return whole, f"{table}: {trouble}; {len(whole)} of {count} parts are used" if trouble else ""


def _parts_in(folder: Path) -> list[Path]:
    """Return the parts in the folder of a table, which need not be there, in their order."""
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("part-") and entry.name.endswith(".parquet"):
                    names.append(entry.name)
                if len(names) > _MOST_PARTS:
                    raise EvidenceError(
                        f"`{folder}` is not what record writes",
                        cause=f"it has more than {format_count(_MOST_PARTS)} parts",
                        hint=f"look at it: ls -f {shell_word(str(folder))}",
                    )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error
    return [folder / name for name in sorted(names)]


def _seconds_seen(parts: dict[str, list[_Part]], damaged: Collection[str]) -> float:
    """Return the time of the last row that is whole; where accesses are damaged, of the last access."""
    last = 0.0
    for table, column in _TIMES.items():
        if "accesses" in damaged and table != "accesses":
            continue
        for part in parts[table][-1:]:
            # Damage inside the part is reported when its table is read.
            with contextlib.suppress(EvidenceError):
                times = _read_part(part.path, table, [column], Budget(part.stored_bytes))[column]
                last = max(last, float(times.max(initial=0)) * (1e-9 if column == "time_ns" else 1.0))
    return last
