"""Readable names of relations."""

from __future__ import annotations

from pgsweep.plain import shown
from pgsweep.records.cache import CacheRelation
from pgsweep.records.top import TopRelation

_TOAST = {"TOAST table": "TOAST", "index": "TOAST index"}


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
    elif row.schema == "pg_toast" and row.kind in _TOAST and row.table:
        # pg_toast.pg_toast_16405 says nothing to a person.
        table = row.table if row.table_schema == "public" else f"{row.table_schema}.{row.table}"
        name = f"{table} ({_TOAST[row.kind]})"
    elif row.schema and row.schema != "public":
        name = f"{row.schema}.{row.relation}"
    if row.database and row.database != home:
        name = f"{row.database}: {name}"
    return shown(name)
