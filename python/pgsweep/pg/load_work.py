"""What a load changes in a table: objects dropped and made again, rows removed, short locks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

import psycopg
from psycopg import errors as sqlstates
from psycopg import sql

from pgsweep.errors import PgsweepError
from pgsweep.pg.connect import Connection, translate
from pgsweep.pg.failures import first_line
from pgsweep.pg.load_catalog import TableFacts
from pgsweep.pg.load_journal import JournalObject, Piece, forget_pieces, set_present
from pgsweep.pg.queries import load

T = TypeVar("T")

_LOCK_TIMEOUT: Final = b"SET LOCAL lock_timeout = '2s'"
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_SECONDS: Final = 1.0
XIDS: Final = 2**32
"""Transaction numbers in a row have 32 bits (TransactionId, c.h)."""

XID_SPAN: Final = 2**30
"""How many transactions may pass between the begin of a load and the last of its pieces."""

_ROOM: Final = (sqlstates.DiskFull, sqlstates.OutOfMemory, sqlstates.ConfigurationLimitExceeded)


class CannotMake(PgsweepError):
    """An object cannot be made again: duplicates, a key without its row, no room on the disk.

    Attributes:
        entry_name: the object's.
    """

    entry_name: str = ""


def in_short_lock(connection: Connection, statement: sql.Composed | None, work: Callable[[], T]) -> T:
    """Run a transaction that waits at most 2 s for each lock, and try again after a pause.

    Whoever waits for a strong lock holds up all that come after; so the wait is short. Where a lock cannot be
    had, everything of the attempt is undone.

    Args:
        statement: takes the first lock.
        work: the rest of the transaction.

    Raises:
        PgsweepError: a lock cannot be had, or the table is not there any more.
    """
    failed: psycopg.Error | None = None
    for attempt in range(_LOCK_TRIES):
        if attempt:
            time.sleep(_LOCK_PAUSE_SECONDS)
        try:
            with connection.transaction():
                connection.execute(_LOCK_TIMEOUT)
                if statement is not None:
                    connection.execute(statement)
                return work()
        except (sqlstates.LockNotAvailable, sqlstates.DeadlockDetected) as error:
            failed = error
    assert failed is not None
    raise _not_locked(failed) from failed


def _not_locked(error: psycopg.Error) -> PgsweepError:
    return PgsweepError(
        f"the table cannot be locked: {first_line(error)}",
        cause="other sessions used it all the time; this step was not done",
        hint="see which: psql -c 'SELECT pid, state, query FROM pg_stat_activity', then try again",
    )


def lock_statement(table: TableFacts, mode: str) -> sql.Composed:
    """Return the statement that locks a table.

    Args:
        mode: as LOCK TABLE has it.
    """
    only = sql.SQL("") if table.kind == "p" else sql.SQL("ONLY ")
    return sql.SQL("LOCK TABLE {}{} IN {} MODE").format(only, named(table), sql.SQL(mode))


def lock_now(connection: Connection, table: TableFacts, mode: str) -> None:
    """Lock the table in the transaction that is open, waiting at most 2 s at a time, for 20 times.

    Raises:
        PgsweepError: it cannot be had.
    """
    connection.execute(_LOCK_TIMEOUT)
    for attempt in range(_LOCK_TRIES):
        try:
            with connection.transaction():
                connection.execute(lock_statement(table, mode))
        except sqlstates.LockNotAvailable as error:
            if attempt + 1 == _LOCK_TRIES:
                raise _not_locked(error) from error
            time.sleep(_LOCK_PAUSE_SECONDS)
        except sqlstates.UndefinedTable as error:
            raise dropped(first_line(error)) from error
        else:
            return


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """Run the body in a transaction."""
    with connection.transaction():
        yield


def named(table: TableFacts) -> sql.Identifier:
    """Return the name of a table for a statement."""
    return sql.Identifier(table.schema, table.name)


def dropped(reason: str = "") -> PgsweepError:
    """Return the error of a table that is not there any more."""
    return PgsweepError(
        "the table was dropped or renamed meanwhile" + (f": {reason}" if reason else ""),
        cause="another session did it while the load was under way",
        hint="load into another table; the journal of this load goes with the next load of this database",
    )


def drop_objects(connection: Connection, objects: Sequence[JournalObject]) -> None:
    """Drop or disable objects, those that depend on others first, in the transaction that is open."""
    for entry in sorted(objects, key=lambda entry: -entry.stage):
        if entry.drop is not None:
            connection.execute(entry.drop.encode())


def make_object(
    connection: Connection,
    table: TableFacts,
    number: int,
    entry: JournalObject,
    *,
    load_id: str | None,
    memory_bytes: int,
    workers: int | None = None,
) -> None:
    """Make an object again and note it, in one transaction.

    Args:
        load_id: of the journal; None where all of the load is one transaction, which is open.
        memory_bytes: for the sorts of an index build.
        workers: parallel workers of the build; None for the server's own setting.

    Raises:
        CannotMake: the data, the disk or another object does not allow it.
        PgsweepError: a lock cannot be had.
    """

    def work() -> None:
        settings = {"maintenance_work_mem": f"{max(1024, memory_bytes // 1024)}kB"}
        if entry.tablespace is not None:
            settings["default_tablespace"] = entry.tablespace
        if workers is not None:
            settings["max_parallel_maintenance_workers"] = str(workers)
        for name, value in settings.items():
            connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])
        for statement in entry.make:
            connection.execute(statement.encode())
        if load_id is not None:
            set_present(connection, load_id, number, present=True)

    try:
        if load_id is None:
            with connection.transaction():
                work()
        else:
            in_short_lock(connection, None, work)
    except (sqlstates.UndefinedTable, sqlstates.InvalidSchemaName) as error:
        raise dropped(first_line(error)) from error
    except (sqlstates.IntegrityError, psycopg.DataError, *_ROOM, sqlstates.InsufficientPrivilege) as error:
        raise _cannot(table, entry, error) from error
    except psycopg.ProgrammingError as error:
        raise _cannot(table, entry, error) from error


def _cannot(table: TableFacts, entry: JournalObject, error: psycopg.Error) -> CannotMake:
    detail = error.diag.message_detail
    text = first_line(error) + (f" ({detail.splitlines()[0]})" if detail else "")
    hint = (
        "correct the rows, then: pgsweep load --resume TABLE; or undo the load: pgsweep load --rollback TABLE"
    )
    if isinstance(error, sqlstates.UniqueViolation):
        keys = re.search(
            r" USING \w+ \((.*?)\)(?: INCLUDE .*| NULLS .*| WITH .*| WHERE .*|)$", entry.make[0], re.DOTALL
        )
        if keys:
            names = keys[1]
            hint = (
                f"see the duplicates: SELECT {names}, count(*) FROM {table.quoted} GROUP BY {names} "  # noqa: S608
                f"HAVING count(*) > 1; {hint}"
            )
    elif isinstance(error, _ROOM):
        hint = "make room on the server, then: pgsweep load --resume TABLE"
    failed = CannotMake(
        f"{entry.kind} `{entry.name}` cannot be made again: {text}",
        cause="rows of the file, or of other sessions meanwhile, do not allow it; all other objects are made",
        hint=hint,
    )
    failed.entry_name = entry.name
    return failed


def own_rows_can_be_told(connection: Connection, table: TableFacts, xid: int) -> bool:
    """Return whether no old row has a transaction number that the load is going to use.

    The number in a row has 32 bits, and a row that was frozen long ago keeps it. Before 2^32 transactions
    there is none; after that the table is read once.

    Args:
        xid: the present transaction number, 64 bits.
    """
    if xid < XIDS:
        return True
    query = sql.SQL(
        "SELECT pg_catalog.count(*) FROM (SELECT FROM {} WHERE"
        " (xmin::text::int8 - {} + {}) % {} < {} LIMIT 1) AS found"
    ).format(
        named(table), sql.Literal(xid % XIDS), sql.Literal(XIDS), sql.Literal(XIDS), sql.Literal(XID_SPAN)
    )
    return bool(connection.execute(query).fetchone() == (0,))


def current_xid(connection: Connection) -> int:
    """Return a new transaction number, 64 bits."""
    row = connection.execute("SELECT pg_catalog.pg_current_xact_id()::text").fetchone()
    assert row is not None
    return int(row[0])


def outcome_of(connection: Connection, xid: int) -> str | None:
    """Return `committed`, `aborted` or `in progress`; None where the transaction is too long ago."""
    query = load("load_outcome", connection.info.server_version).encode()
    row = connection.execute(query, {"xid": str(xid)}).fetchone()
    return None if row is None else row[0]


def is_empty(connection: Connection, table: TableFacts) -> bool:
    """Return whether a table has no row that this session sees."""
    query = sql.SQL("SELECT NOT EXISTS (SELECT FROM {}{})").format(_only(table), named(table))
    row = connection.execute(query).fetchone()
    return bool(row and row[0])


def _only(table: TableFacts) -> sql.SQL:
    return sql.SQL("") if table.kind == "p" else sql.SQL("ONLY ")


def remove_rows(
    connection: Connection,
    table: TableFacts,
    load_id: str,
    pieces: Sequence[Piece],
    *,
    first_xid: int,
    may_truncate: bool,
) -> int:
    """Delete the rows of all pieces and forget the pieces, in one transaction; return how many there were.

    A row is the load's if its transaction number is that of a piece: `own_rows_can_be_told` has made sure
    that no older row has one of them, and the count must be the journal's.

    Args:
        first_xid: the number from which the load counts.
        may_truncate: the table was empty and nothing refers to it: it is truncated if it has no other rows.

    Raises:
        PgsweepError: rows of the load were changed or deleted by others.
    """
    if not pieces:
        return 0
    wanted = sum(piece.rows for piece in pieces)
    if not all(piece.own and first_xid <= piece.xid < first_xid + XID_SPAN for piece in pieces):
        raise PgsweepError(
            "the rows of this load can no longer be told from others",
            cause="the database was restored from a dump since, or too many transactions have passed",
            hint="finish the load: pgsweep load --resume TABLE",
        )
    numbers = "{" + ",".join(str(piece.xid % XIDS) for piece in pieces) + "}"

    def remove() -> int:
        connection.execute("SET LOCAL row_security = off")
        if may_truncate:
            query = sql.SQL(
                "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE xmin = ANY (%s::xid[])) "
                "FROM {}{}"
            ).format(_only(table), named(table))
            row = connection.execute(query, [numbers]).fetchone()
            if row == (wanted, wanted):
                connection.execute(sql.SQL("TRUNCATE {}{}").format(_only(table), named(table)))
                forget_pieces(connection, load_id)
                return wanted
        query = sql.SQL("DELETE FROM {}{} WHERE xmin = ANY (%s::xid[])").format(_only(table), named(table))
        found = connection.execute(query, [numbers]).rowcount
        if found != wanted:
            raise PgsweepError(
                f"{wanted - found} of {wanted} rows of this load were changed or deleted by other sessions",
                cause="a changed row is theirs as much as the load's, so nothing was removed",
                hint="finish the load: pgsweep load --resume TABLE; then correct the rows by SQL",
            )
        forget_pieces(connection, load_id)
        return found

    mode = "ACCESS EXCLUSIVE" if may_truncate else "SHARE ROW EXCLUSIVE"
    try:
        return in_short_lock(connection, lock_statement(table, mode), remove)
    except sqlstates.ForeignKeyViolation as error:
        raise PgsweepError(
            f"the rows of this load cannot be removed: {first_line(error)}",
            cause="other tables refer to them already",
            hint="finish the load: pgsweep load --resume TABLE; or remove the rows that refer to it",
        ) from error


def analyze(connection: Connection, table: TableFacts, *, vacuum: bool) -> None:
    """Make the planner's statistics anew, and with VACUUM the visibility map."""
    words = sql.SQL("VACUUM (ANALYZE) {}") if vacuum else sql.SQL("ANALYZE {}")
    connection.execute(words.format(named(table)))


def truncate(connection: Connection, table: TableFacts) -> None:
    """Give an empty table new files, in the transaction that is open: COPY may then freeze its rows."""
    connection.execute(sql.SQL("TRUNCATE {}{}").format(_only(table), named(table)))


def wal_position(connection: Connection) -> int | None:
    """Return where the server's log of changes ends; None on a stand-by."""
    try:
        row = connection.execute(load("load_wal", connection.info.server_version).encode()).fetchone()
    except psycopg.Error:
        return None
    return None if row is None else int(row[0])


def build_progress(connection: Connection, oid: int) -> list[tuple[str, float]]:
    """Return phase and share of each index build on a table."""
    found = []
    query = load("load_build_progress", connection.info.server_version).encode()
    for _, phase, blocks, all_blocks, tuples, all_tuples in connection.execute(
        query, {"oid": oid}
    ).fetchall():
        done, whole = (tuples, all_tuples) if all_tuples else (blocks, all_blocks)
        found.append((str(phase), done / whole if whole else 0.0))
    return found


def failure_of(error: psycopg.Error) -> PgsweepError:
    """Return the error of ours for one of a load's own statements."""
    if isinstance(error, sqlstates.DiskFull):
        return PgsweepError(
            f"the server has no room: {first_line(error)}",
            cause="the disk of the server is full",
            hint="make room on the server, then: pgsweep load --resume TABLE, or: pgsweep load "
            "--rollback TABLE",
        )
    if isinstance(error, sqlstates.UndefinedTable):
        return dropped(first_line(error))
    if isinstance(error, sqlstates.ReadOnlySqlTransaction):
        return PgsweepError(
            f"the server does not let this session write: {first_line(error)}",
            cause="it is a stand-by, or its transactions are read-only by default",
            hint="connect to the primary: -h HOST",
        )
    if isinstance(error, sqlstates.DeadlockDetected):
        return PgsweepError(
            first_line(error),
            cause="other sessions and the load wait for each other",
            hint="go on: pgsweep load --resume TABLE",
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or not isinstance(
        error, psycopg.ProgrammingError
    ):
        return translate(error)
    if isinstance(error, sqlstates.InsufficientPrivilege):
        return translate(error)
    return PgsweepError(f"the server refused it: {first_line(error)}")
