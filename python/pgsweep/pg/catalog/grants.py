"""The statements that grant a role the privileges that it lacks, to be pasted."""

from __future__ import annotations

from typing import Any

import psycopg

from pgsweep.pg.administrator import as_superuser
from pgsweep.plain import sql_identifier
from pgsweep.units import format_count, format_many

NO_RIGHT = "this role may not read it"


def grant_to_session(connection: psycopg.Connection[Any], *rights: str) -> str:
    """Return in words and as a command how the session's role gets rights.

    Args:
        rights: as GRANT has them, such as `pg_monitor` or `USAGE ON SCHEMA public`.
    """
    role = sql_identifier(connection.info.user)
    return as_superuser(connection, [f"GRANT {right} TO {role}" for right in rights])


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
    to = sql_identifier(role)
    if kind.startswith("TOAST"):
        return f"GRANT {READ_ALL} TO {to}"
    if kind == "index":
        return (
            "the role needs SELECT on its table; before 15.15, 16.11, 17.7 and 18.1 only its owner, "
            "superusers and members of pg_read_all_data may read an index"
        )
    return f"GRANT SELECT ON {sql_identifier(schema)}.{sql_identifier(relation)} TO {to}"


READ_ALL = "pg_read_all_data"
"""What lets a role read all tables of all databases, their indexes and TOAST relations too."""


def unread_tables(tables: int, readable: int) -> str:
    """Return in words that a role may not read some tables."""
    if not readable:
        return f"the role may read none of the {format_many(tables, 'table')}"
    return f"the role may not read {format_many(tables - readable, 'table')} of {format_count(tables)}"


def as_command(connection: psycopg.Connection[Any], enable: str | None) -> str | None:
    """Return what `grant_to_read` returned as the command that executes it; sentences as they are."""
    if enable is None or not enable.startswith("GRANT "):
        return enable
    return as_superuser(connection, [enable])
