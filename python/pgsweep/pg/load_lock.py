"""Short locks on a table that is loaded: nobody waits long for a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import psycopg
from psycopg import errors as sqlstates
from psycopg import sql

from pgsweep.errors import PgsweepError
from pgsweep.pg.connect import Connection
from pgsweep.pg.failures import first_line
from pgsweep.pg.load_catalog import TableFacts
from pgsweep.pg.load_ways import Ways
from pgsweep.pg.queries import load
from pgsweep.pg.retry import repeated

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
    """Run a transaction that waits at most 2 s for each lock, and try again after a pause.

    A session that waits for a strong lock makes all later ones wait, so the wait is short. If a lock cannot
    be obtained, the whole attempt is undone.

    Args:
        table: that the load is of.
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

    errors = (sqlstates.LockNotAvailable, sqlstates.DeadlockDetected)
    return _until_locked(connection, table, attempt, errors, note)


def _until_locked(
    connection: Connection,
    table: TableFacts,
    attempt: Callable[[], T],
    errors: tuple[type[psycopg.Error], ...],
    note: Note | None,
) -> T:
    """Return what an attempt returns; where it cannot lock, it is repeated after a pause, 20 times at most.

    Raises:
        PgsweepError: it failed each time with one of these errors.
    """

    def waiting() -> None:
        if note is not None:
            note(f"waiting for a lock: {_holders(connection, table)}")

    try:
        return repeated(
            attempt, errors, tries=_LOCK_TRIES, pause_seconds=_LOCK_PAUSE_SECONDS, waiting=waiting
        )
    except errors as error:
        raise _not_locked(connection, table, error) from error


def _holders(connection: Connection, table: TableFacts) -> str:
    """Return who has locks on the table, in words."""
    query = load("load_holders", connection.info.server_version).encode()
    rows = connection.execute(query, {"oid": table.oid}).fetchall()
    if not rows:
        return f"other sessions use {table.quoted}"
    names = ", ".join(f"{pid} ({state})" if state else str(pid) for pid, state in rows)
    return f"{table.quoted} is in use by process{'es' if len(rows) > 1 else ''} {names} of the server"


def _not_locked(connection: Connection, table: TableFacts, error: psycopg.Error) -> PgsweepError:
    return PgsweepError(
        f"the table cannot be locked: {first_line(error)}",
        cause=f"{_holders(connection, table)}; this step was not done",
        hint="see what they do: psql -c 'SELECT pid, state, query FROM pg_stat_activity'; then try again",
    )


def check_same(connection: Connection, table: TableFacts) -> None:
    """Refuse to go on where the name means another table now; the lock that is held keeps it from changing.

    Raises:
        PgsweepError: the table was dropped or renamed, and another one may have its name.
    """
    query = load("load_same", connection.info.server_version).encode()
    names = {"oid": table.oid, "schema": table.schema, "table": table.name}
    if connection.execute(query, names).fetchone() != (True,):
        raise dropped(table.ways, f"{table.quoted} is another table now")


def lock_statement(table: TableFacts, mode: str) -> sql.Composed:
    """Return the statement that locks a table.

    Args:
        mode: as LOCK TABLE has it.
    """
    only = sql.SQL("") if table.kind == "p" else sql.SQL("ONLY ")
    return sql.SQL("LOCK TABLE {}{} IN {} MODE").format(only, named(table), sql.SQL(mode))


def lock_now(connection: Connection, table: TableFacts, mode: str, *, note: Note | None = None) -> None:
    """Lock the table in the transaction that is open, waiting at most 2 s at a time, for 20 times.

    Raises:
        PgsweepError: it cannot be obtained.
    """
    retried(connection, table, lock_statement(table, mode), note=note)
    check_same(connection, table)


def retried(connection: Connection, table: TableFacts, statement: sql.Composed, *, note: Note | None) -> None:
    """Run a statement in the transaction that is open, waiting for locks at most 2 s at a time, for 20 times.

    Raises:
        PgsweepError: they cannot be obtained.
    """

    def attempt() -> None:
        with connection.transaction():
            connection.execute(_LOCK_TIMEOUT)
            connection.execute(statement)

    try:
        _until_locked(connection, table, attempt, (sqlstates.LockNotAvailable,), note)
    except sqlstates.UndefinedTable as error:
        raise dropped(table.ways, first_line(error)) from error


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the body in a transaction."""
    with connection.transaction():
        yield


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
