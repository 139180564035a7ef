"""Exchange traces with libCacheSim: its oracleGeneral format, in and out.

A file is nothing but records of 24 bytes, little-endian and packed: u32 time in seconds, u64 object, u32
size in bytes, i64 position (from 0) of the next access to the same object or -1. The published traces come
compressed with Zstandard, which is read too (`.zst`).

On the way in, every object counts as one block whatever its size, because a buffer pool knows blocks only;
the next accesses are not needed. On the way out, an object is a block of a relation's fork: its number is
the relation's number in the file beside (`OUTPUT.relations.csv`) times 2^32 plus the block, so the names
can be had back. What the format has no room for stands beside too (pgsweep.evidence.exported).

Memory: 4 bytes an access and about 24 bytes a distinct object on the way in; on the way out 8 bytes an
object beside.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pgsweep import _native
from pgsweep.errors import EvidenceError
from pgsweep.evidence.exported import start_folder, write_start
from pgsweep.evidence.schema import DISK_TROUBLE
from pgsweep.evidence.store import Evidence
from pgsweep.files import replacing
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import ExportResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

RECORD: Final = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
CHUNK_RECORDS: Final = 1 << 20

_NEVER: Final = (-2, -1, 2**63 - 1)
"""How writers say that an object is not accessed again."""

_PLAUSIBLE_POSITION: Final = 1 << 48
_TOLERATED_SHARE: Final = 0.01
_MAPPING_COLUMNS: Final = ("number", "spc", "db", "rel", "fork", "schema", "name", "kind")


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


def mapping_file(trace: Path) -> Path:
    """Return the file beside an exported trace, compressed or not, that names its relations."""
    return trace.with_name(trace.name.removesuffix(".zst") + ".relations.csv")


def _records(path: Path) -> Iterator[NDArray[np.void]]:
    """Yield the records of a file in pieces, after checking that it is whole."""
    import pyarrow as pa

    rest = b""
    try:
        with contextlib.ExitStack() as stack:
            file: Any = stack.enter_context(path.open("rb", buffering=0))
            if path.suffix == ".zst":
                file = stack.enter_context(pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"))
            while data := file.read(CHUNK_RECORDS * RECORD.itemsize):
                whole = rest + data
                usable = len(whole) - len(whole) % RECORD.itemsize
                rest = whole[usable:]
                if usable:
                    yield np.frombuffer(whole[:usable], dtype=RECORD)
    except FileNotFoundError as error:
        raise EvidenceError(f"`{path}` does not exist", hint="check the name: ls") from error
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


def export_oracle_general(
    evidence: Path, output: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> ExportResult:
    """Write the accesses of trace evidence as an oracleGeneral trace, and what it cannot hold beside it.

    Extensions are accesses as others; which backend made an access, hits, misses and rings are not in the
    format. They go into the folder `OUTPUT.start`, from which `predict` warms its pools.

    Raises:
        EvidenceError: the evidence cannot be read or has no accesses; the output exists or cannot be written.
    """
    (progress or NullListener()).stage("writing the trace")
    source = Evidence.open(evidence)
    if not source.has("accesses"):
        raise EvidenceError(
            f"`{evidence}` has no accesses",
            cause="only evidence of a trace has them" if source.meta.source == "sql" else None,
            hint="record with `pgsweep record --source trace`",
        )
    output = Path(output)
    mapping = mapping_file(output)
    for file in (output, mapping, start_folder(output)):
        if file.exists() and not overwrite:
            raise EvidenceError(f"`{file}` exists already", hint="choose another name, or remove it")
    try:
        # The names first: a trace without them could not be read back, names without a trace do no harm.
        with replacing(output) as out:
            relations, ids, objects = _write_records(source, out)
            _write_next(out, ids, objects)
            with replacing(mapping) as names:
                names.write(_mapping(relations, source).encode())
            start = write_start(source, output)
    except BaseException as error:
        shutil.rmtree(start_folder(output), ignore_errors=True)
        if isinstance(error, OSError):
            raise EvidenceError(
                f"cannot write `{output}`",
                cause=DISK_TROUBLE.get(error.errno or 0, os.strerror(error.errno or 0)),
                hint="free some space, or write elsewhere",
            ) from error
        raise
    accesses = sum(len(piece) for piece in ids)
    return ExportResult(
        path=str(output),
        mapping_path=str(mapping),
        start_path=str(start),
        accesses=accesses,
        objects=objects,
        bytes_written=accesses * RECORD.itemsize,
        warnings=source.warnings,
    )


_Fork = tuple[int, int, int, int]


def _write_records(
    source: Evidence, out: IO[bytes]
) -> tuple[dict[_Fork, int], list[NDArray[np.uint32]], int]:
    """Write all records, next accesses still open; return relation numbers, objects' ids and their count."""
    relations: dict[_Fork, int] = {}
    numbering = _native.ObjectIds()
    ids: list[NDArray[np.uint32]] = []
    for part in source.parts("accesses", ["time_ns", "spc", "db", "rel", "fork", "block"]):
        names = np.column_stack([part[name].astype(np.int64) for name in ("spc", "db", "rel", "fork")])
        distinct, which = _distinct_rows(names)
        numbers = np.array(
            [
                relations.setdefault((int(row[0]), int(row[1]), int(row[2]), int(row[3])), len(relations) + 1)
                for row in distinct
            ],
            dtype=np.uint64,
        )
        records = np.empty(len(names), dtype=RECORD)
        records["time"] = part["time_ns"] // np.uint64(10**9)
        records["object"] = (numbers[which] << np.uint64(32)) | part["block"].astype(np.uint64)
        records["size"] = source.meta.block_size_bytes
        records["next"] = -1
        out.write(records.tobytes())
        ids.append(numbering.ids(records["object"].copy()))
    return relations, ids, len(numbering)


def _distinct_rows(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the distinct rows, and for each row which one it is; folded by columns, faster than by rows."""
    which = np.zeros(len(rows), dtype=np.int64)
    for column in range(rows.shape[1]):
        values, inverse = np.unique(rows[:, column], return_inverse=True)
        which = which * len(values) + inverse
    _, first, folded = np.unique(which, return_index=True, return_inverse=True)
    return rows[first], folded


def _write_next(out: IO[bytes], ids: list[NDArray[np.uint32]], objects: int) -> None:
    """Fill in the next accesses, from the end of the file to its beginning."""
    finder = _native.NextAccesses(objects)
    end = sum(len(piece) for piece in ids)
    for piece in reversed(ids):
        begin = end - len(piece)
        out.seek(begin * RECORD.itemsize)
        records = np.frombuffer(out.read(len(piece) * RECORD.itemsize), dtype=RECORD).copy()
        records["next"] = finder.piece(piece, begin)
        out.seek(begin * RECORD.itemsize)
        out.write(records.tobytes())
        end = begin


def _mapping(relations: dict[_Fork, int], source: Evidence) -> str:
    """Return the relations' names as CSV."""
    known = source.table("relations")
    names = {
        (int(spc), int(db), int(rel)): (schema, name, kind)
        for spc, db, rel, schema, name, kind in zip(
            known["spc"],
            known["db"],
            known["rel"],
            known["schema"],
            known["name"],
            known["kind"],
            strict=True,
        )
    }
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_MAPPING_COLUMNS)
    for fork, number in relations.items():
        writer.writerow([number, *fork, *names.get(fork[:3], ("", "", ""))])
    return text.getvalue()


def read_object_names(mapping: Path, objects: NDArray[np.uint64]) -> dict[str, NDArray[Any]]:
    """Return spc, db, rel, fork and block of objects of an exported trace.

    Args:
        mapping: the file `OUTPUT.relations.csv` that export wrote.
        objects: as in the trace.

    Raises:
        EvidenceError: the file cannot be read, or an object is not from this export.
    """
    try:
        with mapping.open(newline="", encoding="utf-8") as file:
            rows = {int(row["number"]): row for row in csv.DictReader(file)}
    except (OSError, KeyError, ValueError) as error:
        raise EvidenceError(
            f"cannot read `{mapping}`", cause=str(error), hint="it is written beside an exported trace"
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
        name: np.array([int(rows[int(number)][name]) for number in distinct], dtype=np.uint32)[which]
        for name in ("spc", "db", "rel", "fork")
    }
    table["block"] = (objects & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    return table
