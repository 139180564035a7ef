"""The journal of loads in the database: a schema of each role that loads, dropped with its last load.

It is `pgsweep_load` for superusers, and `pgsweep_load_` with the oid of the role for others. What a journal
holds is executed, so a role reads its own only, and superusers those of superusers. So that loads of one
table by different roles do not mix, each has a mark that all roles see in the catalog: a table without
columns, named after the oid of the one that is loaded.

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
from typing import Any, Final, Literal, LiteralString

import msgspec
import psycopg
from psycopg import sql
from psycopg.types.numeric import Oid

from pgsweep.commands import on_server
from pgsweep.errors import AtWork, LacksPrivilege, MissingAbility, PgsweepError
from pgsweep.pg.catalog.grants import grant_to_session
from pgsweep.pg.load.catalog import rows_of
from pgsweep.pg.queries import compose, load
from pgsweep.pg.session.retry import awaited, repeated
from pgsweep.plain import decode_name, quoted_where_needed, sql_identifier

CLAIM: Final = 1885827948
WORK: Final = 1885827949
"""First keys of the advisory locks; the second is the oid of the table."""

_SCHEMA: Final = "pgsweep_load"
"""Of superusers; that of another role has its oid after it."""

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

_TABLES: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.load (
    id uuid PRIMARY KEY,
    table_oid oid NOT NULL UNIQUE,
    phase text NOT NULL,
    document text NOT NULL,
    before text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
CREATE TABLE IF NOT EXISTS {schema}.object (
    load uuid NOT NULL,
    number int4 NOT NULL,
    document text NOT NULL,
    present bool NOT NULL,
    PRIMARY KEY (load, number)
);
CREATE TABLE IF NOT EXISTS {schema}.piece (
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
CREATE TABLE IF NOT EXISTS {schema}.reject (
    load uuid NOT NULL,
    file int4 NOT NULL,
    line int8 NOT NULL,
    reason text NOT NULL,
    record bytea NOT NULL
);
CREATE UNLOGGED TABLE IF NOT EXISTS {schema}.alive (load uuid PRIMARY KEY)
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
    drop: str | None = None
    make: list[str]
    tablespace: str | None = None
    stage: int
    size_bytes: int | None = None

    @property
    def title(self) -> str:
        """The object in words."""
        if self.kind == UNLOGGED:
            return f"table {self.name} made LOGGED"
        if self.kind == VALIDATED:
            return f"foreign key {quoted_where_needed(self.name)} validated"
        return f"{self.kind} {quoted_where_needed(self.name)}"


class LoadId(msgspec.Struct, frozen=True):
    """A load in the journal.

    Attributes:
        schema: of the journal.
        id: of the load in it.
    """

    schema: str
    id: str


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A load that has begun and not ended."""

    load_id: LoadId
    phase: Phase
    document: str
    before: list[tuple[str, str]]


class CopiedPiece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a file, copied in the transaction that is open."""

    file: int
    piece: int
    bytes: int
    records: int
    rows: int
    checksum: int


class Piece(CopiedPiece, frozen=True, kw_only=True):
    """A piece of a file that was copied; `own`: its rows still have its transaction number."""

    xid: int
    own: bool


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """A record that was not loaded."""

    file: int
    line: int
    reason: str
    record: bytes


def make_journal(connection: psycopg.Connection[Any]) -> str:
    """Make the schema of the role and its tables where they are not there; return its name.

    Raises:
        MissingAbility: the role may not, or somebody else made a schema of that name.
    """
    schema = _schema_of_new(connection)

    def make() -> None:
        with connection.transaction():
            _make(connection, schema)

    try:
        repeated(make, _RACES, tries=_RACE_TRIES, pause_seconds=_RACE_PAUSE_SECONDS)
    except psycopg.errors.InsufficientPrivilege as error:
        database = sql_identifier(connection.info.dbname)
        raise LacksPrivilege(
            f"the journal of the load cannot be made in database `{connection.info.dbname}`",
            cause="the role may not create a schema there",
            hint=grant_to_session(connection, f"CREATE ON DATABASE {database}")
            + ", or load in one transaction, which needs no journal: --single-transaction",
        ) from error
    return schema


class _Journal(msgspec.Struct, frozen=True):
    """A schema of that kind.

    Attributes:
        role: of the session, its oid.
        is_superuser: whether it is one.
        schema: None where there is no journal.
        trusted: all in it is the role's own, or of superusers where it is one.
        tables: how many of the journal's it has.
        owner: of the schema.
    """

    role: int
    is_superuser: bool
    schema: str | None
    trusted: bool
    tables: int
    owner: bytes


def _journals(connection: psycopg.Connection[Any]) -> list[_Journal]:
    query = load("load_journal", connection.info.server_version).encode()
    return [_Journal(*row) for row in connection.execute(query).fetchall()]


def _usable(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the journals that the role may rely on.

    Earlier versions had one schema for all roles: `pgsweep_load` may be that of a role without superuser.
    """
    return [
        found.schema
        for found in _journals(connection)
        if found.schema and found.trusted and found.tables == 5
    ]


def _schema_of_new(connection: psycopg.Connection[Any]) -> str:
    """Return the schema for a new load: what others have under that name is left alone."""
    found = _journals(connection)
    names = [f"{_SCHEMA}_{found[0].role}"] if found else []
    if found and found[0].is_superuser:
        names.insert(0, _SCHEMA)
    taken = {journal.schema for journal in found if not journal.trusted}
    return next((name for name in names if name not in taken), names[-1] if names else _SCHEMA)


def _check_trust(connection: psycopg.Connection[Any], schema: str) -> None:
    for found in _journals(connection):
        if found.schema == schema and not found.trusted:
            owner = decode_name(found.owner)
            raise MissingAbility(
                f"schema {schema} in database `{connection.info.dbname}` or a table in it is another role's",
                cause=f"role {owner} owns the schema, and what a journal holds is executed",
                hint="have it dropped or renamed, or load in one transaction, which needs no journal: "
                "--single-transaction",
            )


def _make(connection: psycopg.Connection[Any], schema: str) -> None:
    _check_trust(connection, schema)
    connection.execute(_in(schema, _TABLES))
    _check_trust(connection, schema)


def _in(schema: str, text: LiteralString) -> sql.Composed:
    """Return a statement about the journal in a schema."""
    return sql.SQL(text).format(schema=sql.Identifier(schema))


def _write(
    connection: psycopg.Connection[Any], load_id: LoadId, text: LiteralString, *values: object
) -> None:
    """Run a statement about a load in the journal; its last parameter is the load."""
    connection.execute(_in(load_id.schema, text), [*values, load_id.id])


def _rows(connection: psycopg.Connection[Any], name: str, schema: str, **values: Any) -> list[Any]:
    """Return the rows of a query about the journal in a schema."""
    query = compose(name, connection.info.server_version, schema=sql_identifier(schema)).encode()
    return connection.execute(query, values).fetchall()


def begun_by_others(connection: psycopg.Connection[Any], oid: int) -> list[str]:
    """Return the roles that have begun a load of a table, and not ended it, in journals of their own.

    A load is marked by a table without columns, named after the loaded one. Its name is in the catalog, so it
    is seen without reading what belongs to another role.
    """
    query = load("load_marked", connection.info.server_version).encode()
    mine = _usable(connection)
    rows = connection.execute(query, {"oid": oid}).fetchall()
    return [decode_name(owner) for schema, owner in rows if schema not in mine]


def claim(connection: psycopg.Connection[Any], oid: int) -> None:
    """Claim a table for this run, and wait until no session of an earlier run is left.

    Raises:
        PgsweepError: another run is at work.
    """
    query = "SELECT pg_catalog.pg_try_advisory_lock(%s::int4, %s::int4) OR NULL"

    def claimed(kind: int) -> bool | None:
        row = connection.execute(query, [kind, _signed(oid)]).fetchone()
        return None if row is None else row[0]

    for kind in (CLAIM, WORK):
        if not awaited(partial(claimed, kind), seconds=_CLAIM_PATIENCE_SECONDS, pause_seconds=0.1):
            raise at_work(holder_of(connection, oid, kind))
    connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s::int4, %s::int4)", [WORK, _signed(oid)])


def at_work(holder: int | None) -> PgsweepError:
    """Return the error of a table that another run has claimed."""
    end = on_server("psql", f"-c 'SELECT pg_terminate_backend({holder or 'PROCESS'})'")
    return AtWork(
        f"another load of this table is at work (process {holder or '?'} of the server)",
        cause="two loads of one table would take each other's indexes away",
        hint=f"wait for it, or end it: {end}",
    )


def holder_of(connection: psycopg.Connection[Any], oid: int, kind: int = CLAIM) -> int | None:
    """Return the process of the run that has claimed a table, if one has; with `WORK` that of a session."""
    return next((pid for (pid,) in rows_of(connection, "load_claimed", kind=kind, oid=oid)), None)


def join_work(connection: psycopg.Connection[Any], oid: int) -> None:
    """Make a session one of those that a later run waits for."""
    query = "SELECT pg_catalog.pg_advisory_lock_shared(%s::int4, %s::int4)"
    connection.execute(query, [WORK, _signed(oid)])


def _signed(oid: int) -> int:
    [signed] = struct.unpack("<i", struct.pack("<I", oid))
    return int(signed)


def begin_load(
    connection: psycopg.Connection[Any],
    load_id: LoadId,
    oid: int,
    document: str,
    before: list[tuple[str, str]],
    objects: Sequence[JournalObject],
) -> None:
    """Write a new load into the journal, in one transaction; every object counts as present."""
    schema = load_id.schema

    def begin() -> None:
        with connection.transaction():
            # The end of another load may have dropped it since.
            _make(connection, schema)
            connection.execute(
                sql.SQL("CREATE TABLE IF NOT EXISTS {} ()").format(sql.Identifier(schema, _mark(oid)))
            )
            connection.execute(
                _in(
                    schema,
                    "INSERT INTO {schema}.load (id, table_oid, phase, document, before)"
                    " VALUES (%s, %s, 'planned', %s, %s)",
                ),
                [load_id.id, Oid(oid), document, msgspec.json.encode(before).decode()],
            )
            for number, entry in enumerate(objects):
                connection.execute(
                    _in(
                        schema,
                        "INSERT INTO {schema}.object (load, number, document, present)"
                        " VALUES (%s, %s, %s, true)",
                    ),
                    [load_id.id, number, msgspec.json.encode(entry).decode()],
                )

    repeated(begin, _RACES, tries=_RACE_TRIES, pause_seconds=_RACE_PAUSE_SECONDS)


def _mark(oid: int) -> str:
    return f"of_{oid}"


def find_unfinished(connection: psycopg.Connection[Any], oid: int) -> Unfinished | None:
    """Return the load of a table that the role has begun and not ended."""
    for schema in _usable(connection):
        for row in _rows(connection, "load_find", schema, oid=oid):
            before = [(title, facts) for title, facts in msgspec.json.decode(row[3])]
            return Unfinished(load_id=LoadId(schema, row[0]), phase=row[1], document=row[2], before=before)
    return None


def read_unfinished(connection: psycopg.Connection[Any]) -> list[tuple[str, int, str, str]]:
    """Return id, table, phase and document of every load that the role has begun here and not ended."""
    return [row for schema in _usable(connection) for row in _rows(connection, "load_unfinished", schema)]


def set_phase(connection: psycopg.Connection[Any], load_id: LoadId, phase: Phase) -> None:
    """Note how far a load is."""
    _write(connection, load_id, "UPDATE {schema}.load SET phase = %s WHERE id = %s", phase)


def set_document(connection: psycopg.Connection[Any], load_id: LoadId, document: str) -> None:
    """Replace what the load keeps of its options and files."""
    _write(connection, load_id, "UPDATE {schema}.load SET document = %s WHERE id = %s", document)


def read_objects(
    connection: psycopg.Connection[Any], load_id: LoadId
) -> list[tuple[int, JournalObject, bool]]:
    """Return number, object, and whether it is present."""
    return [
        (number, msgspec.json.decode(text, type=JournalObject), present)
        for number, text, present in _rows(connection, "load_objects", load_id.schema, id=load_id.id)
    ]


def set_present(
    connection: psycopg.Connection[Any], load_id: LoadId, number: int | None, *, present: bool
) -> None:
    """Note whether one object, or each, is present."""
    which = "UPDATE {schema}.object SET present = %s WHERE number = coalesce(%s::int4, number) AND load = %s"
    _write(connection, load_id, which, present, number)


def add_piece(
    connection: psycopg.Connection[Any],
    load_id: LoadId,
    piece: CopiedPiece,
    rejects: Sequence[Reject] = (),
) -> None:
    """Note a piece as copied, in the transaction that copied it; safe under any search_path."""
    connection.execute(
        _in(
            load_id.schema,
            "INSERT INTO {schema}.piece (load, file, piece, bytes, records, rows, checksum, xid)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, pg_catalog.pg_current_xact_id()::pg_catalog.text)",
        ),
        [load_id.id, *msgspec.structs.astuple(piece)],
    )
    if rejects:
        values = [
            [getattr(reject, name) for reject in rejects] for name in ("file", "line", "reason", "record")
        ]
        connection.execute(
            _in(
                load_id.schema,
                "INSERT INTO {schema}.reject (load, file, line, reason, record) SELECT %s, * FROM"
                " ROWS FROM (pg_catalog.unnest(%s::pg_catalog.int4[]),"
                " pg_catalog.unnest(%s::pg_catalog.int8[]), pg_catalog.unnest(%s::pg_catalog.text[]),"
                " pg_catalog.unnest(%s::pg_catalog.bytea[]))",
            ),
            [load_id.id, *values],
        )


def read_pieces(connection: psycopg.Connection[Any], load_id: LoadId) -> list[Piece]:
    """Return the pieces that are copied."""
    rows = _rows(connection, "load_pieces", load_id.schema, id=load_id.id)
    return [Piece(**dict(zip(Piece.__struct_fields__, row, strict=True))) for row in rows]


def read_rejects(connection: psycopg.Connection[Any], load_id: LoadId) -> list[Reject]:
    """Return the records that were not loaded."""
    rows = _rows(connection, "load_rejects", load_id.schema, id=load_id.id)
    return [Reject(**dict(zip(Reject.__struct_fields__, row, strict=True))) for row in rows]


def forget_pieces(connection: psycopg.Connection[Any], load_id: LoadId) -> None:
    """Remove the pieces and rejects of a load, in the transaction that removed its rows."""
    _write(connection, load_id, "DELETE FROM {schema}.piece WHERE load = %s")
    _write(connection, load_id, "DELETE FROM {schema}.reject WHERE load = %s")


def mark_alive(connection: psycopg.Connection[Any], load_id: LoadId) -> None:
    """Note, where a crash forgets it, that the rows of a load into an unlogged table are there."""
    _write(connection, load_id, "INSERT INTO {schema}.alive (load) VALUES (%s)")


def is_alive(connection: psycopg.Connection[Any], load_id: LoadId) -> bool:
    """Return whether no crash has emptied the unlogged table of a load."""
    return bool(_rows(connection, "load_alive", load_id.schema, id=load_id.id) == [(True,)])


def renumber_pieces(connection: psycopg.Connection[Any], load_id: LoadId) -> None:
    """Give all pieces the number of the transaction that is open, which wrote their rows anew."""
    own = "UPDATE {schema}.piece SET xid = pg_catalog.pg_current_xact_id()::pg_catalog.text WHERE load = %s"
    _write(connection, load_id, own)


def end_load(connection: psycopg.Connection[Any], load_id: LoadId) -> None:
    """Remove a load from the journal, and the journal where no other load is in it, in one transaction."""
    schema = load_id.schema
    with connection.transaction():
        connection.execute(_in(schema, "LOCK TABLE {schema}.load IN ACCESS EXCLUSIVE MODE"))
        forget_pieces(connection, load_id)
        _write(connection, load_id, "DELETE FROM {schema}.object WHERE load = %s")
        _write(connection, load_id, "DELETE FROM {schema}.alive WHERE load = %s")
        ended = connection.execute(
            _in(schema, "DELETE FROM {schema}.load WHERE id = %s RETURNING table_oid::int8"), [load_id.id]
        ).fetchone()
        if ended is not None:
            mark = sql.Identifier(schema, _mark(ended[0]))
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(mark))
        _drop_empty(connection, schema)


def drop_empty_journal(connection: psycopg.Connection[Any]) -> None:
    """Remove the role's journal where no load is in it."""
    for schema in _usable(connection):
        with suppress(psycopg.errors.UndefinedTable), connection.transaction():
            connection.execute(_in(schema, "LOCK TABLE {schema}.load IN ACCESS EXCLUSIVE MODE"))
            _drop_empty(connection, schema)


def _drop_empty(connection: psycopg.Connection[Any], schema: str) -> None:
    row = connection.execute(_in(schema, "SELECT pg_catalog.count(*) FROM {schema}.load")).fetchone()
    if row == (0,):
        connection.execute(
            _in(
                schema,
                "DROP TABLE {schema}.load, {schema}.object, {schema}.piece, {schema}.reject, {schema}.alive",
            )
        )
        with suppress(psycopg.errors.DependentObjectsStillExist), connection.transaction():
            connection.execute(_in(schema, "DROP SCHEMA {schema}"))
