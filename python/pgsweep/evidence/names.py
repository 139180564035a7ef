"""Names of the relations of evidence, as a person reads them."""

from __future__ import annotations

from typing import Any

import numpy as np


def relation_names(relations: dict[str, np.ndarray[Any, Any]]) -> list[str]:
    """Return `schema.relation` for each row of the table `relations`.

    A TOAST relation and its index, whose own names are numbers, are named by their table:
    `public.documents (TOAST)`, `public.documents (TOAST index)`. Where the evidence lacks
    the table, the number stays.
    """
    columns = [relations[name].tolist() for name in ("db", "oid", "table_oid", "schema", "name")]
    rows = {
        (db, oid): (table_oid, schema, name)
        for db, oid, table_oid, schema, name in zip(*columns, strict=True)
    }
    names = []
    for db, _, table_oid, schema, name in zip(*columns, strict=True):
        served = rows.get((db, table_oid))
        # The index of a TOAST relation serves the TOAST relation, and that the table.
        if served is not None and served[1] == "pg_toast":
            served = rows.get((db, served[0]))
        if schema != "pg_toast" or served is None or served[1] == "pg_toast":
            names.append(f"{schema}.{name}")
        else:
            kind = "TOAST index" if name.endswith("_index") else "TOAST"
            names.append(f"{served[1]}.{served[2]} ({kind})")
    return names
