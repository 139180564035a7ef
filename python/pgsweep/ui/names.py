"""Names of relations as people read them."""

from __future__ import annotations

from pgsweep.plain import shown
from pgsweep.records.cache import CacheRelation
from pgsweep.records.top import TopRelation


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
    elif row.schema and row.schema != "public":
        name = f"{row.schema}.{row.relation}"
    if row.database and row.database != home:
        name = f"{row.database}: {name}"
    return shown(name)
