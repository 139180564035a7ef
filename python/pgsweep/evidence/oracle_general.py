"""Traces of libCacheSim: its oracleGeneral format, read.

A file is nothing but records of 24 bytes, little-endian and packed: u32 time in seconds, u64 object, u32
size in bytes, i64 position (from 0) of the next access to the same object or -1. The published traces come
compressed with Zstandard, which is read too (`.zst`).

Every object counts as one block whatever its size, because a buffer pool knows blocks only; the next accesses
are not needed. Beside a trace that pgsweep wrote (pgsweep.evidence.oracle_export) a file has the names of the
objects (`OUTPUT.relations.csv`), and a folder what the format has no room for (pgsweep.evidence.exported).

Memory: 4 bytes an access and about 24 bytes a distinct object.
"""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pgsweep import _native
from pgsweep.decoded import Budget, TooMuch
from pgsweep.errors import EvidenceError
from pgsweep.evidence.schema import DISK_TROUBLE
from pgsweep.plain import shell_word
from pgsweep.progress import NullListener, Progress
from pgsweep.regular import NotRegular, open_regular, read_bounded

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD: Final = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
CHUNK_RECORDS: Final = 1 << 20

_NEVER: Final = (-2, -1, 2**63 - 1)
"""How writers say that an object is not accessed again."""

_PLAUSIBLE_POSITION: Final = 1 << 48
_TOLERATED_SHARE: Final = 0.01


_MOST_MAPPING_BYTES: Final = 32 << 20
"""Of the names of some hundred thousand relations."""

_MAPPED: Final = ("spc", "db", "rel", "fork")


class OracleTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A trace, which may come from a system other than PostgreSQL.

    Attributes:
        pages: the object of each access, numbered from 0 in the order of first appearance.
        objects: how many distinct ones there are.
        seconds: from the first access to the last, by the trace's own clock.
        block_size_bytes: the objects' size where all have the same, else 8192.
        warnings: what a user must know about it, in words.
    """

    pages: NDArray[np.uint32]
    objects: int
    seconds: float
    block_size_bytes: int
    warnings: list[str]


def read_oracle_general(path: Path, *, progress: Progress | None = None) -> OracleTrace:
    """Read a trace, plain or compressed, in pieces.

    Raises:
        EvidenceError: the file cannot be read, is cut, has no access, or is something else.
    """
    (progress or NullListener()).stage("reading the trace")
    path = Path(path)
    ids = _native.ObjectIds()
    pieces: list[NDArray[np.uint32]] = []
    sizes: set[int] = set()
    absurd = accesses = 0
    first = last = None
    for records in _records(path):
        later = records["next"]
        absurd += int(np.count_nonzero((later > _PLAUSIBLE_POSITION) & (later != _NEVER[2])))
        absurd += int(np.count_nonzero(later < _NEVER[0]))
        accesses += len(records)
        if absurd > max(_TOLERATED_SHARE * accesses, 10):
            raise EvidenceError(
                f"`{path}` is not an oracleGeneral trace",
                cause="its records point to next accesses that no trace can have",
                hint="records are u32 time, u64 object, u32 size, i64 next access: packed, little-endian",
            )
        if first is None:
            first = int(records["time"][0])
        last = int(records["time"][-1])
        if len(sizes) < 2:
            sizes.update(int(size) for size in np.unique(records["size"])[:2])
        pieces.append(ids.ids(records["object"].copy()))
    if first is None or last is None:
        raise EvidenceError(
            f"`{path}` has no accesses", cause="the file is empty", hint="check where it comes from: ls -l"
        )
    warnings = []
    if len(sizes) > 1:
        warnings.append("the trace's objects differ in size; each counts as one block")
    if last < first:
        warnings.append("the trace's clock runs backwards")
    only_size = next(iter(sizes)) if len(sizes) == 1 else 0
    return OracleTrace(
        pages=np.concatenate(pieces),
        objects=len(ids),
        seconds=float(max(0, last - first)),
        # Sizes such as 1 mean "do not care".
        block_size_bytes=only_size if only_size >= 512 else 8192,
        warnings=warnings,
    )


def read_objects(path: Path) -> NDArray[np.uint64]:
    """Return the object of each access.

    Raises:
        EvidenceError: the file cannot be read or is cut.
    """
    return np.concatenate([np.zeros(0, np.uint64), *(part["object"] for part in _records(Path(path)))])


def _records(path: Path) -> Iterator[NDArray[np.void]]:
    """Yield the records of a file in pieces, after checking that it is whole."""
    import pyarrow as pa

    rest = b""
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(open_regular(path))
            budget = Budget.of(file)
            if path.suffix == ".zst":
                file = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"))
            while data := file.read(CHUNK_RECORDS * RECORD.itemsize):
                budget.spend(len(data))
                whole = rest + data
                usable = len(whole) - len(whole) % RECORD.itemsize
                rest = whole[usable:]
                if usable:
                    yield np.frombuffer(whole[:usable], dtype=RECORD)
    except FileNotFoundError as error:
        raise EvidenceError(f"`{path}` does not exist", hint="check the name: ls") from error
    except (TooMuch, NotRegular) as error:
        cause = str(error) if isinstance(error, TooMuch) else error.strerror
        raise EvidenceError(
            f"`{path}` is not a trace", cause=cause, hint=f"look at it: ls -ls {shell_word(str(path))}"
        ) from error
    except OSError as error:
        # pyarrow reports a broken stream as an OSError without a number.
        cause = DISK_TROUBLE.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))
        raise EvidenceError(
            f"cannot read `{path}`", cause=cause, hint="check its owner and mode, and that it is whole: ls -l"
        ) from error
    if rest:
        raise EvidenceError(
            f"`{path}` is cut short or is not an oracleGeneral trace",
            cause=f"its length is not a multiple of {RECORD.itemsize} bytes",
            hint=f"to use it up to the last whole record, drop the last {len(rest)} bytes: "
            f"truncate -s -{len(rest)} FILE",
        )


def read_object_names(mapping: Path, objects: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    """Return spc, db, rel, fork and block of objects of an exported trace.

    Args:
        mapping: the file `OUTPUT.relations.csv` that export wrote.
        objects: as in the trace.

    Raises:
        EvidenceError: the file cannot be read, or an object is not from this export.
    """
    try:
        with open_regular(mapping) as file:
            text = read_bounded(file, _MOST_MAPPING_BYTES, mapping).decode()
        rows = {
            int(row["number"]): [_number(row[name]) for name in _MAPPED]
            for row in csv.DictReader(text.splitlines())
        }
    except (OSError, KeyError, ValueError, TypeError, csv.Error) as error:
        raise EvidenceError(
            f"cannot read `{mapping}`",
            cause=f"its column {error} is missing" if isinstance(error, KeyError) else str(error),
            hint="it is written beside an exported trace",
        ) from error
    numbers = (objects >> np.uint64(32)).astype(np.int64)
    distinct, which = np.unique(numbers, return_inverse=True)
    if missing := [int(number) for number in distinct if int(number) not in rows]:
        raise EvidenceError(
            f"`{mapping}` has no relation {missing[0]}",
            cause="trace and mapping come from different exports",
            hint="export again: both files are written together",
        )
    table: dict[str, NDArray[Any]] = {
        name: np.array([rows[int(number)][at] for number in distinct], dtype=np.uint32)[which]
        for at, name in enumerate(_MAPPED)
    }
    table["block"] = (objects & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return table


def _number(text: str) -> int:
    number = int(text)
    if not 0 <= number < 2**32:
        raise ValueError(f"{number} is no number of a relation")
    return number
