"""Write traces for libCacheSim, in its oracleGeneral format.

An object is a block of a relation's fork: its number is the relation's number in the file beside
(`OUTPUT.relations.csv`) times 2^32 plus the block, so the names can be read back. What the format has no room
for stands in a folder beside it (pgsweep.evidence.exported).

Memory: 4 bytes an access, about 24 bytes a distinct object, and 8 bytes an object for the next accesses.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from pgsweep import _native
from pgsweep.commands import recording, sudo
from pgsweep.errors import EvidenceError, NotEvidence
from pgsweep.evidence.exported import write_start
from pgsweep.evidence.meta import mapping_file, start_folder
from pgsweep.evidence.oracle_general import RECORD
from pgsweep.evidence.schema import DISK_TROUBLE, NEW_PAGE
from pgsweep.evidence.store import Evidence
from pgsweep.files import replacing
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import ExportResult

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAPPING_COLUMNS: Final = ("number", "spc", "db", "rel", "fork", "schema", "name", "kind")


def export_oracle_general(
    evidence: Path, output: Path, *, overwrite: bool = False, progress: Progress | None = None
) -> ExportResult:
    """Write the accesses of trace evidence as an oracleGeneral trace, and what it cannot hold beside it.

    Extensions are accesses as others; which backend made an access, hits, misses and rings are not in the
    format. They go into the folder `OUTPUT.start`, from which `predict` warms its pools.

    Raises:
        EvidenceError: the evidence cannot be read, or has no trace (`NotEvidence`) or no accesses; the output
            exists or cannot be written.
    """
    (progress or NullListener()).stage("writing the trace")
    source = Evidence.open(evidence)
    if not source.has("accesses"):
        if source.meta.source != "trace":
            raise NotEvidence(
                f"`{evidence}` has no trace",
                cause=f"it was recorded by --source {source.meta.source}, which sees no single access",
                hint=sudo() + recording("--source trace"),
            )
        raise EvidenceError(
            f"`{evidence}` has no accesses",
            cause="nothing was accessed while it was recorded, or it was cut short before",
            hint=f"record again, under the usual load: {sudo()}" + recording("--source trace"),
        )
    output = Path(output)
    mapping = mapping_file(output)
    for file in (output, mapping, start_folder(output)):
        if file.exists() and not overwrite:
            raise EvidenceError(f"`{file}` exists already", hint="choose another name, or remove it")
    try:
        # The names first: a trace without them could not be read back, names without a trace do no harm.
        with replacing(output) as out:
            relations, ids, objects, counted = _write_records(source, out)
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
        counted=counted,
        objects=objects,
        bytes_written=accesses * RECORD.itemsize,
        warnings=source.warnings,
    )


_Fork = tuple[int, int, int, int]


def _write_records(
    source: Evidence, out: IO[bytes]
) -> tuple[dict[_Fork, int], list[NDArray[np.uint32]], int, int]:
    """Write all records, next accesses still open.

    Returns:
        The numbers of relations, the ids of the objects, how many objects there are, and how many accesses
        the database counts.
    """
    counted, recovery_pid = 0, int(source.meta.host.get("recovery_pid", "0"))
    relations: dict[_Fork, int] = {}
    numbering = _native.ObjectIds()
    ids: list[NDArray[np.uint32]] = []
    for part in source.parts("accesses", ["time_ns", "kind", "pid", "spc", "db", "rel", "fork", "block"]):
        ours = (part["db"] == source.meta.database_oid) & (part["pid"] != recovery_pid)
        counted += int(np.count_nonzero(ours & (part["kind"] != NEW_PAGE)))
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
    return relations, ids, len(numbering), counted


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
