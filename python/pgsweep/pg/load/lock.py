"""Short locks on a table that is loaded: nobody waits long for a load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import psycopg
from psycopg import errors as sqlstates
from psycopg import pq, sql

from pgsweep.commands import on_server
from pgsweep.errors import PgsweepError
from pgsweep.pg.load.catalog import TableFacts, rows_of
from pgsweep.pg.load.journal import WORK
from pgsweep.pg.load.ways import Ways
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import first_line
from pgsweep.pg.session.retry import repeated

T = TypeVar("T")

_LOCK_TIMEOUT: Final = b"SET LOCAL lock_timeout = '2s'"
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_SECONDS: Final = 1.0

Note = Callable[[str], None]
"""Shows one line to the user."""


def in_short_lock(
    connection: Connection,
    table: TableFacts,
    statement: sql.Composed | None,
    work: Callable[[], T],
    *,
    note: Note | None = None,
) -> T:
    """Run a transaction that waits at most 2 s for each lock, and try again after a pause, 20 times at most.

    A session that waits for a strong lock makes all later ones wait, so the wait is short. If a lock cannot
    be obtained, the whole attempt is undone. In a transaction that is open, that is a savepoint; a deadlock
    of that transaction would come again.

    Args:
        statement: takes the first lock.
        work: the rest of the transaction.
        note: receives once which sessions hold the lock.

    Raises:
        PgsweepError: a lock cannot be obtained, or the table is not there any more.
    """

    def attempt() -> T:
        with connection.transaction():
            connection.execute(_LOCK_TIMEOUT)
            if statement is not None:
                connection.execute(statement)
                check_same(connection, table)
            return work()

    def waiting() -> None:
        if note is not None:
            note(f"waiting for a lock: {_holders(connection, table)}")

    errors: tuple[type[psycopg.Error], ...] = (sqlstates.LockNotAvailable,)
    if connection.info.transaction_status == pq.TransactionStatus.IDLE:
        errors += (sqlstates.DeadlockDetected,)
    try:
        return repeated(
            attempt, errors, tries=_LOCK_TRIES, pause_seconds=_LOCK_PAUSE_SECONDS, waiting=waiting
        )
    except errors as error:
        see = on_server("psql", "-c 'SELECT pid, state, query FROM pg_stat_activity'")
        raise PgsweepError(
            f"the table cannot be locked: {first_line(error)}",
            cause=f"{_holders(connection, table)}; this step was not done",
            hint=f"see what they do: {see}; then try again",
        ) from error


def _holders(connection: Connection, table: TableFacts) -> str:
    """Return who has locks on the table, in words."""
    found = rows_of(connection, "load_holders", oid=table.oid, work=WORK)
    others = [f"{pid} ({state})" if state else str(pid) for pid, state, own in found if not own]
    if not others:
        return f"{'another step of this load uses' if found else 'other sessions use'} {table.quoted}"
    names = f"process{'es' if len(others) > 1 else ''} {', '.join(others)}"
    return f"{table.quoted} is in use by {names} of the server"


def check_same(connection: Connection, table: TableFacts) -> None:
    """Refuse to go on where the name means another table now; the lock that is held keeps it from changing.

    Raises:
        PgsweepError: the table was dropped or renamed, and another one may have its name.
    """
    names = {"schema": table.schema, "table": table.name}
    if rows_of(connection, "load_same", oid=table.oid, **names) != [(True,)]:
        raise dropped(table.ways, f"{table.quoted} is another table now")


def lock_statement(table: TableFacts, mode: str) -> sql.Composed:
    """Return the statement that locks a table.

    Args:
        mode: as LOCK TABLE has it.
    """
    only = sql.SQL("") if table.kind == "p" else sql.SQL("ONLY ")
    return sql.SQL("LOCK TABLE {}{} IN {} MODE").format(only, named(table), sql.SQL(mode))


def lock_now(connection: Connection, table: TableFacts, mode: str, *, note: Note | None = None) -> None:
    """Lock the table in the transaction that is open.

    Raises:
        PgsweepError: it cannot be obtained.
    """
    try:
        in_short_lock(connection, table, lock_statement(table, mode), lambda: None, note=note)
    except sqlstates.UndefinedTable as error:
        raise dropped(table.ways, first_line(error)) from error


def named(table: TableFacts) -> sql.Identifier:
    """Return the name of a table for a statement."""
    return sql.Identifier(table.schema, table.name)


def dropped(ways: Ways | None, reason: str = "") -> PgsweepError:
    """Return the error of a table that is not there any more.

    Args:
        ways: of a load that has begun.
    """
    gone = None
    if ways is not None:
        gone = (
            f"if the table is gone, remove the journal: {ways.rollback}; if it was renamed, give it its name "
            f"back, then: {ways.resume}"
        )
    return PgsweepError(
        "the table was dropped or renamed meanwhile" + (f": {reason}" if reason else ""),
        cause="another session did it while the load was under way",
        hint=gone,
    )
