"""What allows a role to read relations, as a statement to paste."""

from __future__ import annotations

from psycopg import sql

NO_RIGHT = "this role may not read it"


def grant_to_read(role: str, schema: str, relation: str, kind: str) -> str:
    """Return what an administrator may do so that a role can warm a relation.

    pg_prewarm wants SELECT on a table, for an index on its table: before the releases of November 2025 on the
    index itself, which nobody can grant (contrib/pg_prewarm/pg_prewarm.c). TOAST relations have no rights of
    their own to grant.

    Args:
        role: that shall read.
        schema, relation: what it shall read, not quoted.
        kind: as `residency.rows.KINDS` has it.
    """
    to = sql.Identifier(role).as_string(None)
    if kind.startswith("TOAST"):
        return f"GRANT pg_read_all_data TO {to}"
    if kind == "index":
        return (
            f"GRANT SELECT on its table TO {to}; before 15.15, 16.11, 17.7 and 18.1 only its owner, "
            "superusers and members of pg_read_all_data may read an index"
        )
    return f"GRANT SELECT ON {sql.Identifier(schema, relation).as_string(None)} TO {to}"
