"""Readable names of relations."""

from __future__ import annotations

from pgsweep.plain import relation_label, shown
from pgsweep.records.cache import CacheRelation
from pgsweep.records.rollup import FOLDED
from pgsweep.records.top import TopRelation

_IN_WORDS = ("other", "unknown", "total", FOLDED)
"""The kinds of rows that are not one relation: their names are words."""


def relation_name(row: CacheRelation | TopRelation, home: str) -> str:
    """Return `schema.relation`; without `public`, and with the database in front where it is another one.

    Args:
        row: a relation, or several rolled up.
        home: the session's database.
    """
    name = row.relation
    if row.kind == "database":
        return shown(row.database) or "(shared catalogs)"
    if row.kind == "schema":
        name = row.schema or "(shared)"
        if row.schema and not row.database:
            name = f"{row.schema} (shared by all databases)"
    elif row.kind in _IN_WORDS:
        shared = row.kind == "other" and not row.database
        name = f"{row.relation} (shared by all databases)" if shared else row.relation
    else:
        name = relation_label(row.schema, row.relation, row.table_schema, row.table)
    if row.database and row.database != home:
        name = f"{row.database}: {name}"
    return shown(name)
