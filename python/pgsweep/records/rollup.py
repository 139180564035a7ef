"""Rows of the cache table combined: by table, schema and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pgsweep.errors import UsageError
from pgsweep.records.cache import CacheRelation
from pgsweep.records.footprint import FootprintRelation
from pgsweep.units import format_count

SYSTEM_SCHEMAS = ("pg_catalog", "information_schema")
"""Schemas of the system catalogs."""

_Key = tuple[str, str, str, str]

_KEYS: dict[str, Callable[[CacheRelation], _Key]] = {
    # database, schema, relation, kind of the row that a relation goes into
    "table": lambda r: (r.database, r.table_schema, r.table, "table"),
    "partition-root": lambda r: (r.database, r.root_schema, r.root, "table"),
    "index": lambda r: (
        (r.database, r.schema, r.relation, r.kind)
        if r.kind == "index"
        else (r.database, "", "(all but indexes)", "other")
    ),
    "schema": lambda r: (r.database, r.table_schema or r.schema, "", "schema"),
    "database": lambda r: (r.database, "", "", "database"),
}

BY = ("relation", *_KEYS)
"""What a row can be."""


def roll_up(relations: Sequence[CacheRelation], by: str) -> list[CacheRelation]:
    """Return rows of the kind asked for, most in the pool first.

    Raises:
        UsageError: there is no such kind.
    """
    if by not in BY:
        raise UsageError(f"`{by}` is not a way to group", hint=f"one of: {', '.join(BY)}")
    rows = list(relations)
    if by != "relation":
        groups: dict[_Key, list[CacheRelation]] = {}
        for relation in relations:
            # Files that no catalog names stay rows of their own, except in the sums of a database.
            key = (
                (relation.database, "", relation.relation, "unknown")
                if relation.kind == "unknown" and by != "database"
                else _KEYS[by](relation)
            )
            groups.setdefault(key, []).append(relation)
        rows = [
            members[0]
            if kind == "index" and len(members) == 1
            else merged(members, database=database, schema=schema, relation=name, kind=kind)
            for (database, schema, name, kind), members in groups.items()
        ]
    return sorted(rows, key=_weight)


def fold_catalogs(rows: Sequence[CacheRelation], by: str) -> list[CacheRelation]:
    """Return the rows with all system catalogs, and what serves them, put together at the end."""
    if by in ("schema", "database"):
        return list(rows)
    own = [row for row in rows if not is_catalog(row)]
    catalogs = [row for row in rows if is_catalog(row)]
    if len(catalogs) < 2 or not own:
        return list(rows)
    relations = sum(row.relations for row in catalogs)
    return [
        *own,
        merged(catalogs, relation=f"(system catalogs: {format_count(relations)} relations)", kind=FOLDED),
    ]


FOLDED = "system catalogs"
"""The kind of the row that combines them."""


def is_catalog(row: CacheRelation | FootprintRelation) -> bool:
    """Return whether a row is a system catalog, or an index or TOAST table of one."""
    return (row.table_schema or row.schema) in SYSTEM_SCHEMAS


def largest(rows: Sequence[CacheRelation], by: str, top: int) -> list[CacheRelation]:
    """Return the first rows; the system catalogs put together count as none and come after them."""
    folded = fold_catalogs(rows, by)
    if folded and folded[-1].kind == FOLDED:
        return [*folded[:-1][:top], folded[-1]]
    return folded[:top]


def _weight(row: CacheRelation) -> tuple[int, int, int, str, str, str]:
    return (
        -row.shared_buffers_bytes,
        -(row.page_cache_bytes or 0),
        -(row.size_bytes or 0),
        row.database,
        row.schema,
        row.relation,
    )


def merged(
    members: Sequence[CacheRelation], *, relation: str, kind: str, database: str = "", schema: str = ""
) -> CacheRelation:
    """Return one row for several; a sum is None if one of its parts is not known."""
    return CacheRelation(
        database=database,
        schema=schema,
        relation=relation,
        kind=kind,
        size_bytes=total([row.size_bytes for row in members]),
        shared_buffers_bytes=sum(row.shared_buffers_bytes for row in members),
        page_cache_bytes=total([row.page_cache_bytes for row in members]),
        both_bytes=total([row.both_bytes for row in members]),
        neither_bytes=total([row.neither_bytes for row in members]),
        dirty_bytes=sum(row.dirty_bytes for row in members),
        pinned_bytes=sum(row.pinned_bytes for row in members),
        usage_counts=[sum(row.usage_counts[level] for row in members) for level in range(6)],
        relations=sum(row.relations for row in members),
    )


def total(values: Sequence[int | None]) -> int | None:
    """Return the sum; None where a number is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
