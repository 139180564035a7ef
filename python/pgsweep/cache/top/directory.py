"""Files to rows: which relation each file belongs to, for tables that are filled again and again.

A relation keeps its row when its files change and when catalogs are read again, so that two
samples can be subtracted. Everything that no catalog names becomes one row a database. Many files are looked
up at once, in sorted arrays: 100,000 relations take milliseconds.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pgsweep.residency.names import Names
from pgsweep.residency.rows import KINDS

_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        words: what a filter looks in, in small letters.
    """

    database: str
    schema: str
    relation: str
    kind: str
    words: str
    table_schema: str = ""
    table: str = ""


@dataclass(slots=True)
class Directory:
    """The rows, and the files that belong to them; may be asked by several threads.

    Attributes:
        rows: only ever added to.
    """

    names: Names
    rows: list[Row] = field(default_factory=list)
    _of_relation: dict[_Key, int] = field(default_factory=dict)
    _unnamed: dict[int, int] = field(default_factory=dict)
    _places: dict[int, int] = field(default_factory=dict)
    _files: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    _row_of_file: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.learn()

    def learn(self) -> None:
        """Take over the names as they now are."""
        with self._lock:
            self._learn()

    def _learn(self) -> None:
        keys, numbers = [], []
        for (spc, db, rel), named in self.names.relations.items():
            relation = named.relation
            number = self._of_relation.get((db, relation.oid))
            kind = KINDS.get(relation.kind, relation.kind)
            row = _row(named.database, relation.schema, relation.name, kind, named.table)
            if number is None:
                number = self._of_relation[db, relation.oid] = len(self.rows)
                self.rows.append(row)
            elif self.rows[number] != row:
                self.rows[number] = row  # it was renamed
            keys.append(self._place(spc << 32 | db) << 32 | rel)
            numbers.append(number)
        for database_oid, number in self._unnamed.items():
            self.rows[number] = self._row_of_unnamed(database_oid)  # the database may have a name now
        files = np.array(keys, dtype=np.uint64)
        order = np.argsort(files)
        self._files = files[order]
        self._row_of_file = np.array(numbers, dtype=np.int64)[order]

    def find(
        self, spc: NDArray[np.uint32], db: NDArray[np.uint32], rel: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the row of each file, and which of them a catalog names."""
        with self._lock:
            return self._find(spc, db, rel)

    def _find(
        self, spc: NDArray[np.uint32], db: NDArray[np.uint32], rel: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        places, place = np.unique(spc.astype(np.uint64) << np.uint64(32) | db, return_inverse=True)
        numbers = np.array([self._place(int(key)) for key in places.tolist()], dtype=np.uint64)
        keys = numbers[place] << np.uint64(32) | rel if len(place) else np.zeros(0, dtype=np.uint64)
        at = np.minimum(np.searchsorted(self._files, keys), max(0, len(self._files) - 1))
        known = self._files[at] == keys if len(self._files) else np.zeros(len(keys), dtype=np.bool_)
        rows = self._row_of_file[at] if len(self._files) else np.zeros(len(keys), dtype=np.int64)
        for database_oid in np.unique(db[~known]).tolist():
            rows[~known & (db == database_oid)] = self._unnamed_row(database_oid)
        return rows, known

    def _place(self, key: int) -> int:
        return self._places.setdefault(key, len(self._places))

    def _unnamed_row(self, database_oid: int) -> int:
        number = self._unnamed.get(database_oid)
        if number is None:
            number = self._unnamed[database_oid] = len(self.rows)
            self.rows.append(self._row_of_unnamed(database_oid))
        return number

    def _row_of_unnamed(self, database_oid: int) -> Row:
        entered = database_oid in self.names.entered
        why = "(unknown relations)" if entered else "(relations not visible)"
        return _row(self.names.databases.get(database_oid, f"(oid {database_oid})"), "", why, "unknown")


def _row(database: str, schema: str, relation: str, kind: str, table: tuple[str, str] = ("", "")) -> Row:
    words = f"{database}: {schema}.{relation} {kind}"
    if table[1] != relation:
        words += f" of {table[1]}"
    return Row(database, schema, relation, kind, words.lower(), *table)
