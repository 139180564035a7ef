"""What a load changes in a table: objects dropped and made again, rows removed, short locks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import psycopg
from psycopg import errors as sqlstates
from psycopg import pq, sql

from pgsweep.errors import LacksPrivilege, PgsweepError
from pgsweep.pg.catalog.counters import send_own
from pgsweep.pg.load.catalog import TableFacts, read_hindrances, rows_of
from pgsweep.pg.load.code import under_path
from pgsweep.pg.load.journal import (
    UNLOGGED,
    VALIDATED,
    JournalObject,
    LoadId,
    Piece,
    forget_pieces,
    is_alive,
    mark_alive,
    read_pieces,
    renumber_pieces,
    set_phase,
    set_present,
)
from pgsweep.pg.load.lock import Note, check_same, dropped, in_short_lock, lock_statement, named
from pgsweep.pg.session.connect import Connection
from pgsweep.pg.session.failures import first_line
from pgsweep.pg.session.refusals import translate
from pgsweep.units import format_count

XIDS: Final = 2**32
"""Transaction numbers in a row have 32 bits (TransactionId, c.h)."""

XID_SPAN: Final = 2**30
"""How many transactions may pass between the beginning of a load and the last of its pieces."""

_OF_THE_SESSION: Final = ("", "08", "25", "26", "28", "34", "3D", "53", "57", "58", "XX")
"""Classes of errors that say something of connection, session or server. All others are the statement's."""

_FEW_DEAD: Final = 1000
_DEAD_SHARE: Final = 0.1
"""Fewer dead rows, or a smaller share of those that live, are not worth a line."""

_ROOM: Final = (sqlstates.DiskFull, sqlstates.OutOfMemory, sqlstates.ConfigurationLimitExceeded)


class CannotMake(PgsweepError):
    """An object cannot be made again: duplicates, a key without its row, no room on the disk."""

    entry_name: str = ""
    entry_kind: str = ""


class CannotRemove(PgsweepError):
    """The rows of a load cannot be removed; nothing was changed."""


def unlogged_change(table: TableFacts) -> JournalObject:
    """Return as the journal has it that a table is UNLOGGED while its rows are copied."""
    logged = sql.SQL("ALTER TABLE {} SET LOGGED").format(named(table)).as_string(None)
    return JournalObject(
        kind=UNLOGGED,
        name=table.quoted,
        definition=logged,
        drop=sql.SQL("ALTER TABLE {} SET UNLOGGED").format(named(table)).as_string(None),
        make=[logged],
        stage=-1,
    )


def drop_objects(connection: Connection, objects: Sequence[JournalObject]) -> None:
    """Drop or disable objects, those that depend on others first, in the transaction that is open."""
    for entry in sorted(objects, key=lambda entry: -entry.stage):
        if entry.drop is not None:
            connection.execute(entry.drop.encode())


class Build(NamedTuple):
    """How indexes are built.

    Attributes:
        path: of the table's code: a table that is made LOGGED has its indexes built anew.
        memory_bytes: for the sorts.
        workers: parallel workers of a build; None for the server's own setting.
    """

    path: str
    memory_bytes: int
    workers: int | None = None


def make_object(
    connection: Connection,
    table: TableFacts,
    number: int,
    entry: JournalObject,
    *,
    load_id: LoadId | None,
    build: Build,
    rolling_back: bool = False,
    note: Note | None = None,
) -> None:
    """Make an object again and note it, in one transaction.

    Args:
        load_id: of the journal; None where all of the load is one transaction, which is open.
        build: how indexes are built.
        rolling_back: the rows of the load are gone, so a later run can only roll back.
        note: receives which sessions hold the lock.

    Raises:
        CannotMake: the data, the disk or another object does not allow it.
        PgsweepError: a lock cannot be obtained.
    """

    def work() -> None:
        settings = {"maintenance_work_mem": f"{max(1024, build.memory_bytes // 1024)}kB"}
        if entry.tablespace is not None:
            settings["default_tablespace"] = entry.tablespace
        if build.workers is not None:
            settings["max_parallel_maintenance_workers"] = str(build.workers)
        for name, value in settings.items():
            connection.execute("SELECT pg_catalog.set_config(%s, %s, true)", [name, value])
        own = False
        if entry.kind == UNLOGGED and load_id is not None:
            if not is_alive(connection, load_id):
                raise _emptied(table)
            own = _only_own_rows(connection, table, load_id)
        with under_path(connection, build.path if entry.kind == UNLOGGED else "pg_catalog"):
            for statement in entry.make:
                connection.execute(statement.encode())
        if load_id is not None:
            # The statements name the table, and have locked what they found under that name.
            check_same(connection, table)
            set_present(connection, load_id, number, present=True)
            if own:
                renumber_pieces(connection, load_id)

    lock = lock_statement(table, "ACCESS EXCLUSIVE") if entry.kind == UNLOGGED else None
    try:
        if load_id is None:
            with connection.transaction():
                work()
        else:
            in_short_lock(connection, table, lock, work, note=note)
    except (sqlstates.UndefinedTable, sqlstates.InvalidSchemaName) as error:
        raise dropped(table.ways, first_line(error)) from error
    except psycopg.DatabaseError as error:
        if not isinstance(error, _ROOM) and (error.sqlstate or "")[:2] in (*_OF_THE_SESSION, "40", "55"):
            raise
        cannot = _cannot(table, entry, error, rolling_back)
        if load_id is None:
            cannot.cause = "rows do not allow it; nothing of the load is in the table"
            cannot.hint = "correct the rows of the files, and load them again"
        raise cannot from error


def adopt_object(
    connection: Connection, table: TableFacts, number: int, entry: JournalObject, load_id: LoadId
) -> None:
    """Note that an object was made again by somebody else; comments and the like are set."""

    def work() -> None:
        for statement in entry.make[1:]:
            connection.execute(statement.encode())
        set_present(connection, load_id, number, present=True)

    in_short_lock(connection, table, None, work)


def _emptied(table: TableFacts) -> PgsweepError:
    """Return the error of a session that was opened after a crash that the others have not noticed yet."""
    return PgsweepError(
        f"a crash of the server has emptied {table.quoted}, which was UNLOGGED",
        cause="the server was stopped at once, or crashed, while rows were copied",
        hint=f"copy the files again: {table.ways.resume}; or undo it: {table.ways.rollback}",
    )


def _only_own_rows(connection: Connection, table: TableFacts, load_id: LoadId) -> bool:
    """Return whether all rows of the table are those of the pieces of the load."""
    pieces = read_pieces(connection, load_id)
    wanted = sum(piece.rows for piece in pieces)
    return _counted(connection, table, _numbers(pieces)) == (wanted, wanted)


def _cannot(table: TableFacts, entry: JournalObject, error: psycopg.Error, rolling_back: bool) -> CannotMake:
    detail = error.diag.message_detail
    text = first_line(error) + (f" ({detail.splitlines()[0]})" if detail else "")
    again = table.ways.rollback if rolling_back else table.ways.resume
    hint = f"correct the rows, then: {again}; or keep the table without it: {table.ways.keep_as_is}"
    if not rolling_back:
        hint += f"; or undo the load: {table.ways.rollback}"
    if isinstance(error, sqlstates.UniqueViolation):
        hint = _duplicates(table, entry, detail) + hint
    elif isinstance(error, sqlstates.ForeignKeyViolation):
        hint = _orphans(entry, detail) + hint
    elif isinstance(error, sqlstates.DuplicateTable | sqlstates.DuplicateObject):
        other = sql.Identifier(table.schema, entry.name).as_string(None)
        if isinstance(error, sqlstates.DuplicateObject):
            rename = (
                f"ALTER TABLE {table.quoted} RENAME CONSTRAINT {sql.Identifier(entry.name).as_string(None)}"
            )
        else:
            rename = f"ALTER TABLE {other} RENAME"
        hint = f"another object has taken its name: rename that ({rename} TO ...), then: {again}; or {hint}"
    elif isinstance(error, _ROOM):
        hint = f"make room on the server, then: {again}"
    done = {UNLOGGED: "made LOGGED", VALIDATED: "validated"}.get(entry.kind, "made again")
    kind = {UNLOGGED: "table", VALIDATED: "foreign key"}.get(entry.kind, entry.kind)
    failed = CannotMake(
        f"{kind} `{entry.name}` cannot be {done}: {text}",
        cause="rows of the file, or of other sessions meanwhile, do not allow it; all other objects are made",
        hint=hint,
    )
    failed.entry_name, failed.entry_kind = entry.name, entry.kind
    return failed


def _duplicates(table: TableFacts, entry: JournalObject, detail: str | None) -> str:
    """Return the query that shows the duplicates; the server names the keys: `Key (a, lower(b))=(1, x)`."""
    keys = re.search(r"\((.*?)\)=\(", detail or "", re.DOTALL)
    if keys is None:
        return ""
    where = re.search(r" WHERE (.*)$", entry.make[0], re.DOTALL)
    rows = f"{table.quoted} WHERE {where[1]}" if where else table.quoted
    query = sql.SQL("SELECT {0}, count(*) FROM {1} GROUP BY {0} HAVING count(*) > 1").format(
        sql.SQL(keys[1]), sql.SQL(rows)
    )
    return f"see the duplicates: {query.as_string(None)}; "


def _orphans(entry: JournalObject, detail: str | None) -> str:
    """Return the query that shows rows without the row they refer to, for keys of one column."""
    found = re.search(
        r"^ALTER TABLE ONLY (.*) ADD CONSTRAINT .* FOREIGN KEY \(([^,()]*)\) REFERENCES (.*)\(([^,()]*)\)",
        entry.definition,
        re.DOTALL,
    )
    if found is None or detail is None:
        return ""
    mine, key, theirs, referred = (sql.SQL(part) for part in found.groups())
    query = sql.SQL(
        "SELECT * FROM ONLY {0} AS t WHERE t.{1} IS NOT NULL AND NOT EXISTS "
        "(SELECT FROM {2} AS r WHERE r.{3} = t.{1})"
    ).format(mine, key, theirs, referred)
    return f"see the rows: {query.as_string(None)}; "


def own_rows_are_distinct(connection: Connection, table: TableFacts, xid: int) -> bool:
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
    [(outcome,)] = rows_of(connection, "load_outcome", xid=str(xid))
    return None if outcome is None else str(outcome)


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
    load_id: LoadId,
    pieces: Sequence[Piece],
    *,
    first_xid: int,
    may_truncate: bool,
    note: Note | None = None,
) -> int:
    """Delete the rows of all pieces and forget the pieces; return how many there were.

    The phase `rolling back` is noted in the same transaction, so the journal has it only after the rows are
    gone: where they cannot be removed, the load can be finished still. A row is the load's if its transaction
    number is that of a piece: `own_rows_are_distinct` has made sure that no older row has one of them, and
    the count must be the journal's. In a table without any row nothing is left to remove.

    Args:
        first_xid: the number from which the load counts.
        may_truncate: the table was empty and nothing refers to it: it is truncated if it has no other rows.
        note: receives which sessions hold the lock.

    Raises:
        CannotRemove: rows of the load were changed or deleted by others, or other tables refer to them.
        PgsweepError: a lock cannot be obtained.
    """
    if not pieces:
        set_phase(connection, load_id, "rolling back")
        return 0
    wanted = sum(piece.rows for piece in pieces)
    if not all(piece.own and first_xid <= piece.xid < first_xid + XID_SPAN for piece in pieces):
        raise CannotRemove(
            "the rows of this load can no longer be distinguished from others",
            cause="the database was restored from a dump since, or too many transactions have passed; "
            "nothing was removed",
            hint=table.ways.forward,
        )
    numbers = _numbers(pieces)

    def remove() -> int:
        _check_nobody_acts(connection, table)
        connection.execute("SET LOCAL row_security = off")
        if may_truncate and _counted(connection, table, numbers) == (wanted, wanted):
            found = _emptied_by_us(connection, table, numbers, wanted)
        else:
            found = _delete(connection, table, numbers)
        if found == 0 < wanted and is_empty(connection, table):
            if note is not None:
                note(f"{table.quoted} is empty: other sessions have removed the rows of this load")
        elif found != wanted:
            raise CannotRemove(
                f"{format_count(wanted - found)} of {format_count(wanted)} rows of this load were changed "
                f"or deleted by other sessions",
                cause="a row changed by another session is not the load's alone; nothing was removed",
                hint=f"{table.ways.forward}; then correct the rows by SQL",
            )
        forget_pieces(connection, load_id)
        set_phase(connection, load_id, "rolling back")
        return found

    mode = "ACCESS EXCLUSIVE" if may_truncate else "SHARE ROW EXCLUSIVE"
    try:
        return in_short_lock(connection, table, lock_statement(table, mode), remove, note=note)
    except sqlstates.ForeignKeyViolation as error:
        raise CannotRemove(
            f"the rows of this load cannot be removed: {first_line(error)}",
            cause="other tables refer to them already; nothing was removed",
            hint=f"remove the rows that refer to them, then: {table.ways.rollback}; or {table.ways.forward}",
        ) from error


def _emptied_by_us(connection: Connection, table: TableFacts, numbers: str, wanted: int) -> int:
    """Remove all rows of a table; another one may refer to it by now, and then TRUNCATE is refused."""
    try:
        with connection.transaction():
            truncate(connection, table)
    except sqlstates.FeatureNotSupported:
        return _delete(connection, table, numbers)
    return wanted


def begin_again(
    connection: Connection, table: TableFacts, load_id: LoadId, *, note: Note | None = None
) -> None:
    """Forget the pieces of a load into an unlogged table that a crash of the server has emptied.

    A session that came back before the others knew of the crash may have copied a piece since: it goes too.
    """

    def work() -> None:
        _check_nobody_acts(connection, table)
        _delete(connection, table, _numbers(read_pieces(connection, load_id)))
        forget_pieces(connection, load_id)
        mark_alive(connection, load_id)

    in_short_lock(connection, table, lock_statement(table, "SHARE ROW EXCLUSIVE"), work, note=note)


def _numbers(pieces: Sequence[Piece]) -> str:
    return "{" + ",".join(str(piece.xid % XIDS) for piece in pieces) + "}"


def _counted(connection: Connection, table: TableFacts, numbers: str) -> tuple[int, ...] | None:
    """Return how many rows a table has, and how many of them have one of the transaction numbers."""
    query = sql.SQL(
        "SELECT pg_catalog.count(*), pg_catalog.count(*) FILTER (WHERE xmin = ANY ({}::xid[])) FROM {}{}"
    ).format(numbers, _only(table), named(table))
    return connection.execute(query).fetchone()


def _delete(connection: Connection, table: TableFacts, numbers: str) -> int:
    query = sql.SQL("DELETE FROM {}{} WHERE xmin = ANY ({}::xid[])").format(
        _only(table), named(table), numbers
    )
    return connection.execute(query).rowcount


def _check_nobody_acts(connection: Connection, table: TableFacts) -> None:
    """Refuse to remove rows where that would run code of others or change other tables, under the lock.

    Raises:
        CannotRemove: somebody has made a trigger, a rule or a foreign key since the load began.
    """
    acting = [found.what for found in read_hindrances(connection, table.oid) if found.acts]
    if acting:
        raise CannotRemove(
            f"the rows of this load cannot be removed without doing more: {'; '.join(acting)}",
            cause="it was made since the load began; nothing was removed",
            hint=f"drop or disable it for a while, then: {table.ways.rollback}; or {table.ways.forward}",
        )


def analyze(connection: Connection, table: TableFacts, path: str, *, vacuum: bool) -> list[str]:
    """Make the planner's statistics anew, and with VACUUM the visibility map; return what failed, in words.

    The rows are loaded without them. Up to version 16 expressions of indexes and statistics are computed
    under the search_path of the session; since then the server itself sets a safe one.

    Args:
        path: of the table's code.
    """
    words = sql.SQL("VACUUM (ANALYZE) {}") if vacuum else sql.SQL("ANALYZE {}")
    statement = words.format(named(table))
    try:
        with under_path(connection, path):
            if connection.info.transaction_status == pq.TransactionStatus.INTRANS:
                with connection.transaction():
                    connection.execute(statement)
            else:
                connection.execute(statement)
    except psycopg.Error as error:
        if connection.closed or connection.broken:
            raise
        return [f"no statistics were made ({first_line(error)}); later: {statement.as_string(None)}"]
    return []


def dead_rows(connection: Connection, table: TableFacts) -> list[str]:
    """Return a line on the dead rows of a table where there are many; to be asked after ANALYZE.

    What is written on the search for refused records is undone, and its space stays until VACUUM.
    """
    # ANALYZE leaves out what its own transaction has written, until the session sends that.
    send_own(connection)
    [(dead, live)] = rows_of(connection, "load_dead", oid=table.oid)
    if dead < live * _DEAD_SHARE:
        return []
    return left_to_vacuum(dead, table, "ranges with refused records were copied more than once")


def left_to_vacuum(dead: int, table: TableFacts, why: str) -> list[str]:
    """Return a line on dead rows of which there are many, with the command that frees their space."""
    if dead < _FEW_DEAD:
        return []
    vacuum = sql.SQL("VACUUM {}").format(named(table)).as_string(None)
    return [
        f"about {format_count(dead)} dead rows are in the table, as {why}; to free their space for new rows: "
        f"{vacuum}"
    ]


def truncate(connection: Connection, table: TableFacts) -> None:
    """Give an empty table new files, in the transaction that is open: COPY may then freeze its rows."""
    connection.execute(sql.SQL("TRUNCATE {}{}").format(_only(table), named(table)))


def failure_of(error: psycopg.Error) -> PgsweepError:
    """Return the error of ours for one of a load's own statements."""
    if isinstance(error, sqlstates.DiskFull):
        return PgsweepError(
            f"the server has no room: {first_line(error)}",
            cause="the disk of the server is full",
            hint="make room on the server",
        )
    if isinstance(error, sqlstates.UndefinedTable):
        return dropped(None, first_line(error))
    if isinstance(error, sqlstates.ReadOnlySqlTransaction):
        return PgsweepError(
            f"the server does not let this session write: {first_line(error)}",
            cause="it is a standby, or its transactions are read-only by default",
            hint="connect to the primary: -h HOST",
        )
    if isinstance(error, sqlstates.DeadlockDetected):
        return PgsweepError(
            first_line(error),
            cause="other sessions and the load wait for each other",
            hint="try again",
        )
    if (error.sqlstate or "")[:2] in _OF_THE_SESSION:
        return translate(error)
    if isinstance(error, sqlstates.InsufficientPrivilege):
        return LacksPrivilege(
            f"the server refused it: {first_line(error)}",
            cause="the role lacks a privilege on what it names",
            hint="connect as the owner of the table: -U NAME; or have it granted to this role",
        )
    return PgsweepError(f"the server refused it: {first_line(error)}")
