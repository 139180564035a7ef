"""A table that is UNLOGGED while its rows are copied: when that may be, what it gives up, and how it ends.

The rows are not written to the WAL until the table is made LOGGED again, which writes all of it. A crash of
the server before that empties the table. So it must be empty when the load begins. The journal notices that
it was emptied (`alive` in pg/load/journal.py); a later run then copies the files from their beginning.
"""

from __future__ import annotations

from typing import Final

from pgsweep.errors import PgsweepError, UsageError
from pgsweep.load.options import LoadOptions
from pgsweep.pg.load.catalog import Catalog, hindering
from pgsweep.records.load import LoadChoice

GIVEN_UP: Final = (
    "the table is UNLOGGED while rows are copied: a crash of the server empties it, and rows that other "
    "sessions insert in that time are lost too; --resume then copies the files from their beginning",
    "making it LOGGED again writes the table anew, under an ACCESS EXCLUSIVE lock, for which readers and "
    "writers wait; after that, the load can be rolled back only if no other session has inserted rows",
)


def check_unlogged(catalog: Catalog, options: LoadOptions, *, firing: bool) -> None:
    """Refuse a table that must not be UNLOGGED for a while.

    Raises:
        UsageError: rows could be lost, others would miss them, or PostgreSQL does not allow it.
    """
    table = catalog.table
    why = None
    if table.kind == "p":
        why = "a partitioned table holds no rows itself: load its partitions one by one"
    elif not table.owned:
        why = "only the owner of the table may make it UNLOGGED"
    elif table.persistence == "u":
        why = "it is UNLOGGED already"
    elif table.published:
        why = "it is published, and changes of an UNLOGGED table are not sent to subscribers"
    elif table.standbys or table.slots:
        why = "the server has standbys or replication slots: on a standby an UNLOGGED table cannot be read"
    elif catalog.referencing:
        why = f"foreign keys of logged tables refer to it: {', '.join(catalog.referencing[:3])}"
    elif hindering(catalog.hindrances, triggers_off=options.disable_triggers):
        why = "pieces could be seen, or not be undone alone: " + catalog.hindrances[0].what
    elif not catalog.truncatable:
        why = "it has an index that is not valid, which writing the table anew would change"
    elif options.single_transaction or options.freeze:
        why = (
            "in one transaction the server undoes a crash itself: leave out --single-transaction and --freeze"
        )
    elif firing:
        why = "triggers fire, so the load must be one transaction: --disable-triggers"
    if why is not None:
        raise UsageError(
            f"{table.quoted} cannot be made UNLOGGED for the load", cause=why, hint="leave out --unlogged"
        )
    if table.rows_estimate:
        raise not_empty(table.quoted)


def not_empty(table: str) -> PgsweepError:
    """Return the error of a table with rows."""
    return UsageError(
        f"{table} has rows, so it is not made UNLOGGED",
        cause="a crash of the server during the load would empty it",
        hint="leave out --unlogged, or load into a new table",
    )


def unlogged_choice(wal_level: str) -> LoadChoice:
    """Return the line of the plan."""
    cost = "making it LOGGED again writes all of it, so it pays only where several sessions wait for the WAL"
    if wal_level == "minimal":
        cost = "with wal_level=minimal --single-transaction writes no WAL either, without this danger"
    return LoadChoice(
        what="log", choice="UNLOGGED while rows are copied, then LOGGED", reason=f"as asked; {cost}"
    )
