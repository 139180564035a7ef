"""Both caches by relation: the rows of `pgsweep cache`, from what was joined and what it is called."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep.records.cache import CacheRelation
from pgsweep.records.rollup import merged
from pgsweep.residency.join import USAGE_COUNTS, ForkCaches
from pgsweep.residency.names import Named, Names, RelationFile

KINDS = {"r": "table", "i": "index", "t": "TOAST table", "m": "materialized view", "S": "sequence"}
"""Words for pg_class.relkind."""


def kind_word(letter: str, schema: str) -> str:
    """Return the word for a relation's kind; the index of a TOAST table has a word of its own."""
    return "TOAST index" if letter == "i" and schema == "pg_toast" else KINDS.get(letter, letter)


def relation_rows(caches: ForkCaches, names: Names, block_bytes: int) -> list[CacheRelation]:
    """Return one row a relation; buffers and files that no catalog names become one row a database.

    A relation that was rewritten while we looked has two files, which make one row.
    """
    number: dict[tuple[int, int], int] = {}
    named_rows: list[Named] = []
    for (_, database_oid, _), named in names.relations.items():
        key = (database_oid, named.relation.oid)
        if key not in number:
            number[key] = len(named_rows)
            named_rows.append(named)
    nameless: dict[RelationFile, int] = {}
    row_of_fork = np.empty(len(caches.forks), dtype=np.int64)
    for index, fork in enumerate(caches.forks):
        known = names.relations.get(fork[:3])
        if known is None:
            row_of_fork[index] = len(named_rows) + nameless.setdefault(fork[:3], len(nameless))
        else:
            row_of_fork[index] = number[fork[1], known.relation.oid]
    sums = _summed(caches, row_of_fork, len(named_rows) + len(nameless), block_bytes)
    rows = [_named_row(named, sums[index], block_bytes) for index, named in enumerate(named_rows)]
    members: dict[int, list[CacheRelation]] = {}
    for (_, database_oid, _), index in nameless.items():
        members.setdefault(database_oid, []).append(sums[len(named_rows) + index])
    for database_oid, parts in members.items():
        why = "(unknown relations)" if database_oid in names.entered else "(relations not visible)"
        database = names.databases.get(database_oid, f"(oid {database_oid})")
        row = merged(parts, database=database, relation=why, kind="unknown")
        # The empty files of dropped relations stay until the next checkpoint.
        if row.size_bytes != 0 or row.shared_buffers_bytes:
            rows.append(row)
    return rows


def _summed(
    caches: ForkCaches, row_of_fork: NDArray[np.int64], rows: int, block_bytes: int
) -> list[CacheRelation]:
    """Return rows without names; sums over whole columns, as there may be 100,000 relations."""

    def by_row(values: NDArray[np.int64] | None) -> list[int] | list[None]:
        if values is None:
            return [None] * rows
        total = np.zeros(rows, dtype=np.int64)
        np.add.at(total, row_of_fork, values)
        return total.tolist()

    usage_counts = np.zeros((rows, USAGE_COUNTS), dtype=np.int64)
    np.add.at(usage_counts, row_of_fork, caches.usage_counts)
    columns = zip(
        by_row(caches.size_bytes),
        by_row(caches.usage_counts.sum(axis=1) * block_bytes),
        by_row(caches.page_cache_bytes),
        by_row(caches.both_bytes),
        by_row(caches.neither_bytes),
        by_row(caches.dirty_blocks * block_bytes),
        by_row(caches.pinned_blocks * block_bytes),
        usage_counts.tolist(),
        strict=True,
    )
    return [
        CacheRelation(
            database="",
            schema="",
            relation="",
            kind="unknown",
            size_bytes=size,
            shared_buffers_bytes=pooled or 0,
            page_cache_bytes=cached,
            both_bytes=both,
            neither_bytes=neither,
            dirty_bytes=dirty or 0,
            pinned_bytes=pinned or 0,
            usage_counts=counts,
        )
        for size, pooled, cached, both, neither, dirty, pinned, counts in columns
    ]


def _named_row(named: Named, row: CacheRelation, block_bytes: int) -> CacheRelation:
    relation = named.relation
    size_bytes = row.size_bytes
    if size_bytes is None and relation.measured:
        size_bytes = (relation.main_blocks + relation.fsm_blocks + relation.vm_blocks) * block_bytes
    return msgspec.structs.replace(
        row,
        database=named.database,
        schema=relation.schema,
        relation=relation.name,
        kind=KINDS.get(relation.kind, relation.kind),
        size_bytes=size_bytes,
        table_schema=named.table[0],
        table=named.table[1],
        root_schema=named.root[0],
        root=named.root[1],
    )
