"""The journal of loads in the database: schema `pgsweep_load`, dropped with the last load.

What is committed together:

    begin        the load, every object that it will drop with its statements, the catalog as it was
    drop         all objects dropped or disabled, and the phase `copying`: all or none
    piece        the rows of one piece of a file, and the row of `piece` that names it; its primary key
                 refuses a second copy of the same piece
    restore      one object made again, and the mark that it is present
    remove       (rollback) the rows of all pieces deleted, the rows of `piece`, and the phase `rolling back`
    end          the journal of the load removed

A crash of the server empties unlogged tables. `alive` is one too: a load into an UNLOGGED table has a row
there, and where it is missing, the rows of the load are missing.

So the journal always says what is in the table, also after client, server or host have died. Two
advisory locks keep runs apart: `CLAIM` is held by the one run of a table, `WORK` is shared by all its
sessions. A run that resumes takes both alone first, so no session of a killed run can commit after it has
read the journal.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

import msgspec
import psycopg
from psycopg.types.numeric import Oid

from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.pg.grants import grant_to_session
from pgsweep.pg.queries import load
from pgsweep.pg.retry import awaited, repeated
from pgsweep.plain import decode_name, sql_identifier

CLAIM: Final = 1885827948
WORK: Final = 1885827949
"""First keys of the advisory locks; the second is the oid of the table."""

SCHEMA: Final = "pgsweep_load"
_CLAIM_PATIENCE_SECONDS: Final = 30.0

_RACES: Final = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DuplicateTable,
    psycopg.errors.UndefinedTable,
    psycopg.errors.InvalidSchemaName,
)
"""Of CREATE ... IF NOT EXISTS, and of what follows, where another load makes or drops the journal."""

_RACE_TRIES: Final = 20
_RACE_PAUSE_SECONDS: Final = 0.1

_TABLES: Final = b"""
CREATE SCHEMA IF NOT EXISTS pgsweep_load;
CREATE TABLE IF NOT EXISTS pgsweep_load.load (
    id uuid PRIMARY KEY,
    table_oid oid NOT NULL UNIQUE,
    phase text NOT NULL,
    document text NOT NULL,
    before text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE TABLE IF NOT EXISTS pgsweep_load.object (
    load uuid NOT NULL,
    number int4 NOT NULL,
    document text NOT NULL,
    present bool NOT NULL,
    PRIMARY KEY (load, number)
);
CREATE TABLE IF NOT EXISTS pgsweep_load.piece (
    load uuid NOT NULL,
    file int4 NOT NULL,
    piece int8 NOT NULL,
    bytes int8 NOT NULL,
    records int8 NOT NULL,
    rows int8 NOT NULL,
    checksum int8 NOT NULL,
    xid text NOT NULL,
    PRIMARY KEY (load, file, piece)
);
CREATE TABLE IF NOT EXISTS pgsweep_load.reject (
    load uuid NOT NULL,
    file int4 NOT NULL,
    line int8 NOT NULL,
    reason text NOT NULL,
    record bytea NOT NULL
);
CREATE UNLOGGED TABLE IF NOT EXISTS pgsweep_load.alive (load uuid PRIMARY KEY)
"""

UNLOGGED: Final = "unlogged"
"""Kind of the object that is the table itself, made UNLOGGED and LOGGED again."""

VALIDATED: Final = "foreign key, validated"
"""Kind of the validation of a foreign key."""

Phase = Literal["planned", "copying", "rebuilding", "rolling back"]


class JournalObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object that a load drops or disables, and the statements that bring it back.

    Attributes:
        kind: as in `LoadObject`.
        drop: takes it away; nothing where the drop of another object does.
        make: the statements that make it, in order; the first may take long.
        tablespace: for `make`; empty for the database's own; None where it has none.
        stage: objects of one stage may be made at once: -1 the table made LOGGED, 0 indexes, 1 constraints,
            2 foreign keys, 3 validation, 4 triggers.
    """

    kind: str
    name: str
    definition: str
    drop: str | None
    make: list[str]
    tablespace: str | None
    stage: int
    size_bytes: int | None = None

    @property
    def title(self) -> str:
        """The object in words."""
        if self.kind == UNLOGGED:
            return f"table {self.name} made LOGGED"
        if self.kind == VALIDATED:
            return f"foreign key {self.name} validated"
        return f"{self.kind} {self.name}"


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A load that has begun and not ended."""

    load_id: str
    phase: Phase
    document: str
    before: list[tuple[str, str]]


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a file that was copied; `own`: its rows still have its transaction number."""

    file: int
    piece: int
    bytes: int
    records: int
    rows: int
    checksum: int
    xid: int
    own: bool


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was not loaded."""

    file: int
    line: int
    reason: str
    record: bytes


def make_journal(connection: psycopg.Connection[Any]) -> None:
    """Make the schema and its tables where they are not there.

    Raises:
        MissingAbility: the role may not, or somebody else made a schema of that name.
    """

    def make() -> None:
        with connection.transaction():
            _make(connection)

    try:
        repeated(make, _RACES, tries=_RACE_TRIES, pause_seconds=_RACE_PAUSE_SECONDS)
    except psycopg.errors.InsufficientPrivilege as error:
        database = sql_identifier(connection.info.dbname)
        raise MissingAbility(
            f"the journal of the load cannot be made in database `{connection.info.dbname}`",
            cause="the role may not create a schema there",
            hint=grant_to_session(connection, f"CREATE ON DATABASE {database}")
            + ", or load in one transaction, which needs no journal: --single-transaction",
        ) from error


def _make(connection: psycopg.Connection[Any]) -> None:
    _check_trust(connection)
    connection.execute(_TABLES)
    _check_trust(connection)


def has_journal(connection: psycopg.Connection[Any]) -> bool:
    """Return whether there is a journal of loads in this database.

    Raises:
        MissingAbility: somebody else made a schema of that name.
    """
    return _check_trust(connection) == 5


def _check_trust(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(load("load_journal", connection.info.server_version).encode()).fetchone()
    assert row is not None
    if not row[1]:
        owner = decode_name(row[3])
        raise MissingAbility(
            f"schema {SCHEMA} in database `{connection.info.dbname}` or a table in it is another role's",
            cause=f"role {owner} owns it: it may be the journal of that role's load, or a trap",
            hint="wait for their load, or load in one transaction, which needs no journal: "
            "--single-transaction",
        )
    return int(row[2])


def claim(connection: psycopg.Connection[Any], oid: int) -> None:
    """Claim a table for this run, and wait until no session of an earlier run is left.

    Raises:
        PgsweepError: another run is at work.
    """
    query = load("load_claim", connection.info.server_version).encode()
    holder: int | None = None

    def claimed(kind: int) -> bool | None:
        nonlocal holder
        row = connection.execute(query, {"kind": kind, "object": _signed(oid), "oid": oid}).fetchone()
        assert row is not None
        holder = row[1]
        return True if row[0] else None

    for kind in (CLAIM, WORK):
        if not awaited(partial(claimed, kind), seconds=_CLAIM_PATIENCE_SECONDS, pause_seconds=0.1):
            raise PgsweepError(
                f"another load of this table is at work (process {holder or '?'} of the server)",
                cause="two loads of one table would take each other's indexes away",
                hint="wait for it, or end it: psql -d NAME -c "
                f"'SELECT pg_terminate_backend({holder or 'PROCESS'})'",
            )
    connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s::int4, %s::int4)", [WORK, _signed(oid)])


def is_claimed(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Return whether a run has claimed a table."""
    query = load("load_claimed", connection.info.server_version).encode()
    return connection.execute(query, {"kind": CLAIM, "oid": oid}).fetchone() == (True,)


def join_work(connection: psycopg.Connection[Any], oid: int) -> None:
    """Make a session one of those that a later run waits for."""
    query = "SELECT pg_catalog.pg_advisory_lock_shared(%s::int4, %s::int4)"
    connection.execute(query, [WORK, _signed(oid)])


def _signed(oid: int) -> int:
    [signed] = struct.unpack("<i", struct.pack("<I", oid))
    return int(signed)


def begin_load(
    connection: psycopg.Connection[Any],
    load_id: str,
    oid: int,
    document: str,
    before: list[tuple[str, str]],
    objects: Sequence[JournalObject],
) -> None:
    """Write a new load into the journal, in one transaction; every object counts as present."""

    def begin() -> None:
        with connection.transaction():
            # The end of another load may have dropped it since.
            _make(connection)
            connection.execute(
                "INSERT INTO pgsweep_load.load (id, table_oid, phase, document, before)"
                " VALUES (%s, %s, 'planned', %s, %s)",
                [load_id, Oid(oid), document, msgspec.json.encode(before).decode()],
            )
            for number, entry in enumerate(objects):
                connection.execute(
                    "INSERT INTO pgsweep_load.object (load, number, document, present)"
                    " VALUES (%s, %s, %s, true)",
                    [load_id, number, msgspec.json.encode(entry).decode()],
                )

    repeated(begin, _RACES, tries=_RACE_TRIES, pause_seconds=_RACE_PAUSE_SECONDS)


def find_unfinished(connection: psycopg.Connection[Any], oid: int) -> Unfinished | None:
    """Return the load of a table that has not ended."""
    if not has_journal(connection):
        return None
    row = connection.execute(
        load("load_find", connection.info.server_version).encode(), {"oid": oid}
    ).fetchone()
    if row is None:
        return None
    before = [(title, facts) for title, facts in msgspec.json.decode(row[3])]
    return Unfinished(load_id=row[0], phase=row[1], document=row[2], before=before)


def read_unfinished(connection: psycopg.Connection[Any]) -> list[tuple[str, int, str, str]]:
    """Return id, table, phase and document of every load of this database that has not ended."""
    return connection.execute(load("load_unfinished", connection.info.server_version).encode()).fetchall()


def set_phase(connection: psycopg.Connection[Any], load_id: str, phase: Phase) -> None:
    """Note how far a load is."""
    connection.execute("UPDATE pgsweep_load.load SET phase = %s WHERE id = %s", [phase, load_id])


def set_document(connection: psycopg.Connection[Any], load_id: str, document: str) -> None:
    """Replace what the load keeps of its options and files."""
    connection.execute("UPDATE pgsweep_load.load SET document = %s WHERE id = %s", [document, load_id])


def read_objects(connection: psycopg.Connection[Any], load_id: str) -> list[tuple[int, JournalObject, bool]]:
    """Return number, object, and whether it is present."""
    rows = connection.execute(
        load("load_objects", connection.info.server_version).encode(), {"id": load_id}
    ).fetchall()
    return [
        (number, msgspec.json.decode(text, type=JournalObject), present) for number, text, present in rows
    ]


def set_present(
    connection: psycopg.Connection[Any], load_id: str, number: int | None, *, present: bool
) -> None:
    """Note whether one object, or each, is present."""
    connection.execute(
        "UPDATE pgsweep_load.object SET present = %s WHERE load = %s AND (%s::int4 IS NULL OR number = %s)",
        [present, load_id, number, number],
    )


def add_piece(
    connection: psycopg.Connection[Any],
    load_id: str,
    *,
    file: int,
    piece: int,
    size_bytes: int,
    records: int,
    rows: int,
    checksum: int,
    rejects: Sequence[Reject] = (),
) -> None:
    """Note a piece as copied, in the transaction that copied it; safe under any search_path."""
    connection.execute(
        "INSERT INTO pgsweep_load.piece (load, file, piece, bytes, records, rows, checksum, xid)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, pg_catalog.pg_current_xact_id()::pg_catalog.text)",
        [load_id, file, piece, size_bytes, records, rows, checksum],
    )
    for reject in rejects:
        connection.execute(
            "INSERT INTO pgsweep_load.reject (load, file, line, reason, record) VALUES (%s, %s, %s, %s, %s)",
            [load_id, reject.file, reject.line, reject.reason, reject.record],
        )


def read_pieces(connection: psycopg.Connection[Any], load_id: str) -> list[Piece]:
    """Return the pieces that are copied."""
    rows = connection.execute(
        load("load_pieces", connection.info.server_version).encode(), {"id": load_id}
    ).fetchall()
    names = Piece.__struct_fields__
    return [
        Piece(**{**dict(zip(names, row, strict=True)), "xid": int(row[names.index("xid")])}) for row in rows
    ]


def read_rejects(connection: psycopg.Connection[Any], load_id: str) -> list[Reject]:
    """Return the records that were not loaded."""
    rows = connection.execute(
        load("load_rejects", connection.info.server_version).encode(), {"id": load_id}
    ).fetchall()
    return [Reject(**dict(zip(Reject.__struct_fields__, row, strict=True))) for row in rows]


def forget_pieces(connection: psycopg.Connection[Any], load_id: str) -> None:
    """Remove the pieces and rejects of a load, in the transaction that removed its rows."""
    connection.execute("DELETE FROM pgsweep_load.piece WHERE load = %s", [load_id])
    connection.execute("DELETE FROM pgsweep_load.reject WHERE load = %s", [load_id])


def mark_alive(connection: psycopg.Connection[Any], load_id: str) -> None:
    """Note, where a crash forgets it, that the rows of a load into an unlogged table are there."""
    connection.execute("INSERT INTO pgsweep_load.alive (load) VALUES (%s)", [load_id])


def is_alive(connection: psycopg.Connection[Any], load_id: str) -> bool:
    """Return whether no crash has emptied the unlogged table of a load."""
    query = load("load_alive", connection.info.server_version).encode()
    return connection.execute(query, {"id": load_id}).fetchone() == (True,)


def renumber_pieces(connection: psycopg.Connection[Any], load_id: str) -> None:
    """Give all pieces the number of the transaction that is open, which wrote their rows anew."""
    connection.execute(
        "UPDATE pgsweep_load.piece SET xid = pg_catalog.pg_current_xact_id()::pg_catalog.text"
        " WHERE load = %s",
        [load_id],
    )


def end_load(connection: psycopg.Connection[Any], load_id: str) -> None:
    """Remove a load from the journal, and the journal where no other load is in it, in one transaction."""
    with connection.transaction():
        connection.execute("LOCK TABLE pgsweep_load.load IN ACCESS EXCLUSIVE MODE")
        forget_pieces(connection, load_id)
        connection.execute("DELETE FROM pgsweep_load.object WHERE load = %s", [load_id])
        connection.execute("DELETE FROM pgsweep_load.alive WHERE load = %s", [load_id])
        connection.execute("DELETE FROM pgsweep_load.load WHERE id = %s", [load_id])
        _drop_empty(connection)


def drop_empty_journal(connection: psycopg.Connection[Any]) -> None:
    """Remove the journal where no load is in it."""
    if has_journal(connection):
        with suppress(psycopg.errors.UndefinedTable), connection.transaction():
            connection.execute("LOCK TABLE pgsweep_load.load IN ACCESS EXCLUSIVE MODE")
            _drop_empty(connection)


def _drop_empty(connection: psycopg.Connection[Any]) -> None:
    row = connection.execute("SELECT pg_catalog.count(*) FROM pgsweep_load.load").fetchone()
    if row == (0,):
        connection.execute(
            "DROP TABLE pgsweep_load.load, pgsweep_load.object, pgsweep_load.piece, pgsweep_load.reject,"
            " pgsweep_load.alive"
        )
        with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
            connection.execute("DROP SCHEMA pgsweep_load")
