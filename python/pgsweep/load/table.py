"""Which tables can be loaded."""

from __future__ import annotations

from pgsweep.errors import LacksPrivilege, OnStandby, UsageError
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.load.catalog import Catalog, TableFacts
from pgsweep.pg.session.connect import Connection


def check_primary(table: TableFacts) -> None:
    """Refuse a standby.

    Raises:
        MissingAbility: it is one.
    """
    if table.in_recovery:
        raise OnStandby(
            "the server is a standby", cause="it takes no writes", hint="connect to the primary: -h HOST"
        )


def check_table(catalog: Catalog, connection: Connection) -> None:
    """Refuse a table that cannot be loaded.

    Raises:
        MissingAbility: no right, or a standby.
        UsageError: it is not a table that can be loaded.
    """
    table = catalog.table
    check_primary(table)
    if table.kind not in ("r", "p"):
        raise UsageError(f"{table.quoted} is not a table", hint="name a table, or a partitioned one")
    if table.persistence == "t":
        raise UsageError(
            f"{table.quoted} is a temporary table", cause="other sessions cannot see it", hint="name another"
        )
    if table.foreign_partitions:
        raise UsageError(
            f"{table.quoted} has foreign partitions",
            cause="what was sent to another server cannot be undone here",
            hint="load its own partitions one by one",
        )
    if not table.may_insert:
        raise LacksPrivilege(
            f"this role may not insert into {table.quoted}",
            hint=grant_to_session(connection, f"INSERT ON {table.quoted}"),
        )
    if table.row_security:
        raise LacksPrivilege(
            f"row-level security of {table.quoted} holds for this role",
            cause="COPY FROM is not possible then, and rows that are not seen cannot be removed again",
            hint="load as the owner (without FORCE ROW LEVEL SECURITY), or as a role with BYPASSRLS",
        )
    if not any(not column.generated for column in catalog.columns):
        raise UsageError(f"{table.quoted} has no columns to load")
