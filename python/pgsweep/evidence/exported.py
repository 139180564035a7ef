"""What an oracleGeneral trace cannot hold of the evidence that it was written from: a folder beside it.

The format knows which object was accessed, in which second, and nothing else. Without more, a simulation must
start from an empty pool and count every first access as a miss. So `OUTPUT.start` beside an exported trace
holds the rest: the pool when the trace began, the sizes of the relations, the settings of the server, what
was dropped, and of each access its time, process, kind and ring. It is evidence whose accesses have no pages;
these come from the trace itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import EvidenceError
from pgsweep.evidence.meta import mapping_file, start_folder
from pgsweep.evidence.oracle_general import read_object_names, read_objects
from pgsweep.evidence.schema import TABLES, EvidenceMeta
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.writer import EvidenceWriter
from pgsweep.plain import shell_word
from pgsweep.units import format_count

PAGE_COLUMNS: Final = ("spc", "db", "rel", "fork", "block")
_KEPT_TABLES: Final = ("relations", "drops", "counters", "snapshots", "read_times", "page_cache")


class TraceTables(Protocol):
    """What a trace is read from, however it is stored or changed."""

    @property
    def meta(self) -> EvidenceMeta:
        """Facts about the recording."""

    @property
    def warnings(self) -> list[str]:
        """What a user must know about it, in words."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return a table of the evidence."""


def write_start(source: Evidence, trace: Path) -> Path:
    """Write the folder beside an exported trace, and replace an older one.

    Raises:
        EvidenceError: it cannot be written, or something else has its name.
    """
    folder = start_folder(trace)
    meta = msgspec.structs.replace(source.meta, source="import")
    with EvidenceWriter(folder, meta, overwrite=True) as writer:
        for part in source.parts("accesses"):
            empty = {name: np.zeros(len(part["kind"]), dtype=part[name].dtype) for name in PAGE_COLUMNS}
            writer.append("accesses", {**part, **empty})
        for table in _KEPT_TABLES:
            rows = source.table(table)
            if table == "snapshots":
                first = rows["snapshot"] == 0
                rows = {name: column[first] for name, column in rows.items()}
            if len(next(iter(rows.values()))):
                writer.append(table, rows)
        writer.close(meta)
    return folder


class ExportedTrace:
    """An exported trace and the folder beside it: the evidence that they were written from.

    Attributes:
        meta: of the evidence.
        warnings: of the folder beside the trace.
    """

    def __init__(self, start: Evidence, pages: dict[str, NDArray[Any]]) -> None:
        self.meta: EvidenceMeta = msgspec.structs.replace(start.meta, source="trace")
        self.warnings = start.warnings
        self._start = start
        self._pages = pages

    @classmethod
    def open(cls, trace: Path) -> Self | None:
        """Return the evidence, or None where nothing lies beside the trace.

        Raises:
            EvidenceError: trace and folder come from different exports, or cannot be read.
        """
        folder, mapping = start_folder(trace), mapping_file(trace)
        if not folder.exists() or not mapping.exists():
            return None
        start = Evidence.open(folder)
        objects = read_objects(trace)
        rows = sum(len(part["kind"]) for part in start.parts("accesses", ["kind"]))
        if rows != len(objects):
            raise EvidenceError(
                f"`{trace}` and `{folder.name}` do not belong together",
                cause=f"the trace has {format_count(len(objects))} accesses, the folder {format_count(rows)}",
                hint=f"export again, or replay it from an empty pool: mv {shell_word(str(folder))} elsewhere",
            )
        return cls(start, read_object_names(mapping, objects))

    def table(self, name: str, columns: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Return a table of the evidence.

        Raises:
            EvidenceError: it cannot be read.
        """
        wanted = list(TABLES[name]) if columns is None else list(columns)
        rows = self._start.table(name, wanted)
        if name == "accesses":
            for column in set(wanted) & set(PAGE_COLUMNS):
                rows[column] = self._pages[column].astype(TABLES[name][column])
        return rows
