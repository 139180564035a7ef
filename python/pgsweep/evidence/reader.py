"""Reading evidence: what is whole is used, what is not is told."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from pgsweep.errors import EvidenceError
from pgsweep.evidence.schema import (
    ADDED_LATER,
    DISK_TROUBLE,
    SCHEMA_NAME,
    SCHEMA_NUMBER,
    TABLES,
    EvidenceMeta,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIMES: Final = {"accesses": "time_ns", "snapshot_times": "end_seconds", "counters": "seconds"}


class Evidence:
    """Evidence as it lies on disk; opening reads the record and the ends of the parts, not the data.

    Attributes:
        meta: the record; for cut evidence `seconds` comes from the last complete part.
        complete: nothing is missing.
        warnings: what a user must know about this evidence, in words; the recorder's own included.
    """

    def __init__(
        self, path: Path, meta: EvidenceMeta, parts: dict[str, list[Path]], warnings: list[str]
    ) -> None:
        self.path = path
        self.meta = meta
        self.warnings = warnings
        self.complete = meta.complete
        self._parts = parts

    @classmethod
    def open(cls, path: Path) -> Evidence:
        """Open a folder of evidence.

        Raises:
            EvidenceError: it is missing, no evidence, broken beyond use, or from a newer pgsweep.
        """
        path = Path(path)
        meta = _read_meta(path)
        warnings = list(meta.warnings)
        parts: dict[str, list[Path]] = {}
        cut: list[str] = []
        for table in TABLES:
            parts[table], trouble = _whole_parts(path, table)
            cut += trouble
        if not meta.complete:
            why = f" (ended by: {meta.ended_by})" if meta.ended_by else ""
            warnings.append(
                f"the recording was cut short{why}; the evidence is read up to its last complete part"
            )
        warnings += cut
        if cut or not meta.complete:
            meta = msgspec.structs.replace(meta, complete=False, seconds=_seconds_seen(parts) or meta.seconds)
        return cls(path, meta, parts, warnings)

    def has(self, table: str) -> bool:
        """Tell whether a table has at least one row."""
        return self.rows(table) > 0

    def rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        from pyarrow import parquet

        return sum(parquet.read_metadata(part).num_rows for part in self._parts[table])

    def table(self, name: str, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return a whole table (or some of its columns) as arrays; text comes as arrays of `str` objects.

        Raises:
            EvidenceError: a part is damaged inside.
        """
        wanted = list(TABLES[name]) if columns is None else list(columns)
        chunks = list(self.parts(name, wanted))
        return {
            column: (
                np.concatenate([chunk[column] for chunk in chunks])
                if chunks
                else np.zeros(0, dtype=_dtype(TABLES[name][column]))
            )
            for column in wanted
        }

    def parts(self, name: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, NDArray[Any]]]:
        """Yield a table part by part, in the order of recording, for tables larger than memory.

        Raises:
            EvidenceError: a part is damaged inside.
        """
        import pyarrow as pa
        from pyarrow import parquet

        schema = TABLES[name]
        wanted = list(schema) if columns is None else list(columns)
        for part in self._parts[name]:
            try:
                with parquet.ParquetFile(part, page_checksum_verification=True) as file:
                    rows = file.read(columns=wanted, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise EvidenceError(
                    f"`{part}` is damaged",
                    cause=str(error).splitlines()[0],
                    hint="remove this part and those numbered after it to use those before, or record again",
                ) from error
            for column in ADDED_LATER.get(name, frozenset()).intersection(wanted) - set(rows.column_names):
                rows = rows.append_column(column, pa.array(np.zeros(len(rows), schema[column])))
            missing = [column for column in wanted if column not in rows.column_names]
            if missing:
                raise EvidenceError(
                    f"`{part}` lacks the column {', '.join(missing)}", hint="record again with this pgsweep"
                )
            yield {
                column: rows.column(column)
                .to_numpy(zero_copy_only=False)
                .astype(_dtype(schema[column]), copy=False)
                for column in wanted
            }


def _dtype(kind: str) -> np.dtype[Any]:
    return np.dtype(object if kind == "str" else kind)


def _read_meta(path: Path) -> EvidenceMeta:
    again = "record again: `pgsweep record -o NAME.evidence`"
    try:
        text = (path / "meta.json").read_bytes()
    except FileNotFoundError as error:
        if path.is_dir():
            raise EvidenceError(
                f"`{path}` is not evidence",
                cause="it has no meta.json",
                hint="name a folder that record wrote",
            ) from error
        raise EvidenceError(f"`{path}` does not exist", hint=again) from error
    except NotADirectoryError as error:
        raise EvidenceError(
            f"`{path}` is a file, evidence is a folder", hint="name a folder that record wrote"
        ) from error
    except OSError as error:
        cause = DISK_TROUBLE.get(error.errno or 0, os.strerror(error.errno or 0))
        raise EvidenceError(
            f"cannot read `{path}`", cause=cause, hint=f"check its owner and mode: ls -ld {path}"
        ) from error
    try:
        found = msgspec.json.decode(text)
        schema = str(found["schema"])
        name, _, number = schema.rpartition("/")
        newer = name == SCHEMA_NAME and int(number) > SCHEMA_NUMBER
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise EvidenceError(
            f"`{path / 'meta.json'}` is broken", cause="it is not the JSON that record writes", hint=again
        ) from error
    if newer:
        raise EvidenceError(
            f"`{path}` was written by a newer pgsweep ({found.get('pgsweep_version', 'unknown')})",
            cause=f"its schema is {schema}, this pgsweep reads up to {SCHEMA_NAME}/{SCHEMA_NUMBER}",
            hint="upgrade: `pip install --upgrade pgsweep`",
        )
    if name != SCHEMA_NAME:
        raise EvidenceError(
            f"`{path}` is not evidence",
            cause=f"its schema is {schema}",
            hint="name a folder that record wrote",
        )
    try:
        return msgspec.convert(found, EvidenceMeta)
    except msgspec.ValidationError as error:
        raise EvidenceError(f"`{path / 'meta.json'}` is broken", cause=str(error), hint=again) from error


def _whole_parts(path: Path, table: str) -> tuple[list[Path], list[str]]:
    """Return the parts of a table up to the first one missing or cut, and what to tell about it."""
    import pyarrow as pa
    from pyarrow import parquet

    whole: list[Path] = []
    found = sorted((path / table).glob("part-*.parquet"))
    for number, part in enumerate(found):
        trouble = ""
        if part.name != f"part-{number:05d}.parquet":
            trouble = f"part-{number:05d}.parquet is missing"
        else:
            try:
                parquet.read_metadata(part)
            except (pa.ArrowException, OSError):
                trouble = f"{part.name} is cut short or damaged"
        if trouble:
            return whole, [f"{table}: {trouble}; {len(whole)} of {len(found)} parts are used"]
        whole.append(part)
    return whole, []


def _seconds_seen(parts: dict[str, list[Path]]) -> float:
    """Return the time of the last row that is whole, from the statistics in the parts' ends."""
    from pyarrow import parquet

    last = 0.0
    for table, column in _TIMES.items():
        for part in parts[table][-1:]:
            groups = parquet.read_metadata(part)
            index = list(TABLES[table]).index(column)
            for group in range(groups.num_row_groups):
                statistics = groups.row_group(group).column(index).statistics
                if statistics is not None and statistics.has_min_max:
                    last = max(last, float(statistics.max) * (1e-9 if column == "time_ns" else 1.0))
    return last
