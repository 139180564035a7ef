"""What a server says about itself: version and settings, databases, relations and the files they lie in.

All of it is read with a few short statements that take no lock on any user's relation. Names come as bytes
in UTF-8 (or as they are, in an SQL_ASCII database) and are decoded so that none can fail; they are data and
never become SQL. Numbers that PostgreSQL calls `oid` are plain integers here.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
import psycopg

from pgsweep.errors import LacksPrivilege
from pgsweep.pg.administrator import as_superuser
from pgsweep.pg.queries import load
from pgsweep.pg.session.answers import unexpected
from pgsweep.pg.session.rows import all_rows, one_row
from pgsweep.pg.session.trust import missing_extension, require_trusted
from pgsweep.pg.session.userpath import resolve_relation
from pgsweep.plain import decode_name, printable_identifier, shown
from pgsweep.units import format_count

MAIN_FORK, FSM_FORK, VM_FORK, INIT_FORK = range(4)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The server and the database of a session.

    Attributes:
        settings: as in pg_settings, in its units (shared_buffers in blocks, for one).
        tablespace_oid: the default tablespace of the database.
        place: where it is, in words: `db1, port 5432`.
    """

    version_num: int
    version: str
    block_size_bytes: int
    shared_buffers_blocks: int
    database: str
    database_oid: int
    tablespace_oid: int
    in_recovery: bool
    settings: dict[str, str]
    place: str = ""


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """A database of the cluster, and whether this role may connect to it.

    Attributes:
        may_connect: None where it was dropped just now.
        is_template: databases are made as copies of it, so they would inherit what is created in it.
    """

    oid: int
    name: str
    allows_connections: bool
    may_connect: bool | None
    is_template: bool


class Relation(msgspec.Struct, frozen=True, kw_only=True):
    """A relation that has storage.

    Attributes:
        database_oid: 0 for shared catalogs.
        filenode: the number of its file, `rel` in evidence; changes when the relation is rewritten.
        table_oid: for an index or a TOAST relation (and its index) the table it serves; else its own oid.
        main_blocks: size of the main fork, or the last estimate of VACUUM where the size could not be read.
        measured: the sizes were read.
        tuples_per_block: as VACUUM or ANALYZE last saw it; 0 where they never ran.
    """

    oid: int
    schema: str
    name: str
    kind: str
    database_oid: int
    tablespace_oid: int
    filenode: int
    table_oid: int
    main_blocks: int
    fsm_blocks: int
    vm_blocks: int
    measured: bool
    tuples_per_block: float = 0.0


class ScannedIndex(NamedTuple):
    """How often queries have used an index since statistics began."""

    scans: int
    is_btree: bool


class ServerProcess(NamedTuple):
    """What identifies a server's processes among all others of its host.

    Attributes:
        backend_pid: the session's process, as the server knows it.
        start_time_us: when the postmaster started, in microseconds since 2000-01-01, as it keeps it itself.
    """

    backend_pid: int
    start_time_us: int


class RelationPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one relation's main fork lies.

    Attributes:
        table: schema and name of the table that a TOAST relation or its index serves; else empty.
    """

    oid: int
    schema: str
    name: str
    database_oid: int
    tablespace_oid: int
    filenode: int
    blocks: int
    table: tuple[str, str] = ("", "")


def read_server(connection: psycopg.Connection[Any]) -> Server:
    """Return version, block size, settings and database of a session."""
    version_num = connection.info.server_version
    row = connection.execute(load("server", version_num)).fetchone()
    assert row is not None
    settings = dict(connection.execute(load("settings", version_num)).fetchall())
    _check_settings(connection, settings)
    return Server(
        version_num=row[0],
        version=row[1],
        block_size_bytes=row[2],
        shared_buffers_blocks=row[3],
        database_oid=row[4],
        database=decode_name(row[5]),
        tablespace_oid=row[6],
        in_recovery=row[7],
        settings={str(name): str(setting) for name, setting in settings.items()},
        place=f"{connection.info.host or 'the local socket'}, port {connection.info.port}",
    )


_NUMBERS = {"segment_size": (1, 2**31 - 1), "max_connections": (1, 2**18 - 1), "bgwriter_delay": (10, 10_000)}
"""Settings that are used in computations, and their limits (guc_tables.c)."""

_WORDS = ("huge_pages", "track_counts", "track_io_timing")


def _check_settings(connection: psycopg.Connection[Any], settings: dict[str, str | None]) -> None:
    """Check that the required settings are present and within their limits.

    Raises:
        UnexpectedAnswer: they are not.
    """
    for name, (least, most) in _NUMBERS.items():
        text = settings.get(name) or ""
        if not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
            raise unexpected(connection, f"setting `{name}`")
    for name in _WORDS:
        if not settings.get(name):
            raise unexpected(connection, f"setting `{name}`")


def read_postmaster(connection: psycopg.Connection[Any]) -> ServerProcess:
    """Return what identifies the session's postmaster among the processes of its host."""
    row = one_row(connection, "postmaster")
    return ServerProcess(*row)


def read_postmaster_age(connection: psycopg.Connection[Any]) -> float:
    """Return for how many seconds the postmaster has been running."""
    row = connection.execute(load("postmaster_age", connection.info.server_version)).fetchone()
    assert row is not None
    return float(row[0])


def read_pool_start_us(connection: psycopg.Connection[Any]) -> int:
    """Return since when the pool is in use, in microseconds since 2000-01-01: a crash empties it too.

    Where the role may not read when server processes started, it is when the postmaster did.
    """
    row = one_row(connection, "pool_started")
    return int(row[0])


def read_recovery(connection: psycopg.Connection[Any]) -> tuple[bool, int | None]:
    """Return whether the server is in recovery, and the process that replays WAL, if it is known."""
    row = one_row(connection, "recovery")
    return row[0], row[1]


def read_counted_since(connection: psycopg.Connection[Any]) -> datetime.datetime | None:
    """Return when the statistics of the session's database began; None if that is not known."""
    row = connection.execute(load("counted_since", connection.info.server_version)).fetchone()
    return None if row is None or row[0] is None else _time(row[0])


def read_scanned_indexes(connection: psycopg.Connection[Any]) -> dict[int, ScannedIndex]:
    """Return the indexes that a query has used since statistics began, by oid."""
    rows = all_rows(connection, "scanned_indexes")
    return {oid: ScannedIndex(scans, is_btree) for oid, scans, is_btree in rows}


def read_cluster(connection: psycopg.Connection[Any]) -> tuple[str, datetime.datetime] | None:
    """Return the system identifier and when the server was started; None if the role may not ask."""
    try:
        row = connection.execute(load("cluster", connection.info.server_version)).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return None
    assert row is not None
    return row[0], _time(row[1])


def _time(epoch_microseconds: int) -> datetime.datetime:
    # Times as text depend on DateStyle and TimeZone, which libpq's environment may set.
    return _EPOCH + datetime.timedelta(microseconds=epoch_microseconds)


def read_databases(connection: psycopg.Connection[Any]) -> dict[int, str]:
    """Return the names of all databases by oid; 0, for what belongs to all of them, has an empty name."""
    rows = all_rows(connection, "databases")
    return {oid: decode_name(name) for oid, name in rows}


def read_connectable(connection: psycopg.Connection[Any]) -> list[Database]:
    """Return all databases of the cluster, templates too."""
    rows = all_rows(connection, "connectable")
    return [
        Database(
            oid=oid,
            name=decode_name(name),
            allows_connections=allows,
            may_connect=may,
            is_template=template,
        )
        for oid, name, allows, may, template in rows
    ]


def read_partition_roots(connection: psycopg.Connection[Any]) -> dict[int, tuple[str, str]]:
    """Return schema and name of the topmost partitioned table, by the oid of each partition."""
    rows = all_rows(connection, "partition_roots")
    return {oid: (decode_name(schema), decode_name(name)) for oid, schema, name in rows}


def read_tablespaces(connection: psycopg.Connection[Any]) -> set[int]:
    """Return the oids of all tablespaces."""
    rows = all_rows(connection, "tablespaces")
    return {oid for (oid,) in rows}


def find_relation(connection: psycopg.Connection[Any], name: str) -> RelationPlace | None:
    """Return the relation that SQL means by a name; None where it has no storage.

    Raises:
        UsageError: there is no such relation.
    """
    oid = resolve_relation(connection, name)
    row = connection.execute(load("relation", connection.info.server_version), [oid]).fetchone()
    if row is None or row[5] is None:
        return None
    oid, schema, relation, database_oid, tablespace_oid, filenode, blocks, table_schema, table = row
    return RelationPlace(
        oid=oid,
        schema=decode_name(schema),
        name=decode_name(relation),
        database_oid=database_oid,
        tablespace_oid=tablespace_oid,
        filenode=filenode,
        blocks=blocks or 0,
        table=(decode_name(table_schema), decode_name(table)),
    )


def read_temporary(connection: psycopg.Connection[Any]) -> list[int]:
    """Return the oids of the temporary relations of the session's database, those of all sessions."""
    rows = all_rows(connection, "temporary")
    return [oid for (oid,) in rows]


def read_unlogged(connection: psycopg.Connection[Any]) -> set[int]:
    """Return the oids of the unlogged relations of the session's database."""
    rows = all_rows(connection, "unlogged")
    return {oid for (oid,) in rows}


def read_relations(
    connection: psycopg.Connection[Any], *, sizes: bool = True, known: Iterable[Relation] = ()
) -> list[Relation]:
    """Return all relations of the session's database that have storage, with their sizes.

    Temporary relations are left out: they live outside the buffer pool. A relation whose size cannot be
    read without waiting for somebody else's lock has the estimate of pg_class instead.

    Args:
        connection: in autocommit mode.
        sizes: read them, which takes a short lock on each relation; else all are estimates.
        known: files with these sizes; those of the other relations are read.
    """
    version_num = connection.info.server_version
    found = connection.execute(load("relations", version_num)).fetchall()
    before = {(r.oid, r.filenode): r for r in known if r.measured}
    kept = [before[row[0], row[6]] for row in found if (row[0], row[6]) in before]
    measured = {r.oid: (r.main_blocks, r.fsm_blocks, r.vm_blocks) for r in kept}
    if sizes:
        measured |= _read_sizes(connection, [row[0] for row in found if row[0] not in measured])
    return [relation_of(row, measured) for row in found]


def relation_of(row: Sequence[Any], measured: Mapping[int, tuple[int, int, int]]) -> Relation:
    """Return a relation from a row of the query `relations`, names as bytes, and the sizes that were read."""
    oid, schema, name, kind, database_oid, tablespace_oid, filenode, table_oid, estimate, tuples = row
    main_blocks, fsm_blocks, vm_blocks = measured.get(oid, (max(0, estimate), 0, 0))
    return Relation(
        oid=oid,
        # Of 100,000 relations each would have a copy of its own.
        schema=sys.intern(decode_name(schema)),
        name=decode_name(name),
        kind=kind,
        database_oid=database_oid,
        tablespace_oid=tablespace_oid,
        filenode=filenode,
        table_oid=oid if table_oid == oid else table_oid,
        main_blocks=main_blocks,
        fsm_blocks=fsm_blocks,
        vm_blocks=vm_blocks,
        measured=oid in measured,
        tuples_per_block=tuples,
    )


_SIZE_TRIES: Final = 3
"""Each may wait for a lock for as long as `lock_timeout` says."""


def _read_sizes(connection: psycopg.Connection[Any], oids: list[int]) -> dict[int, tuple[int, int, int]]:
    query = load("sizes", connection.info.server_version)
    sizes: dict[int, tuple[int, int, int]] = {}
    for begin in range(0, len(oids), 1000):
        for _ in range(_SIZE_TRIES):
            try:
                rows = connection.execute(query, [oids[begin : begin + 1000]]).fetchall()
            except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
                # Somebody has asked for an ACCESS EXCLUSIVE lock since the query looked: it sees that next.
                continue
            # A relation that was dropped in between has no size.
            sizes.update({row[0]: (row[1] or 0, row[2] or 0, row[3] or 0) for row in rows})
            break
    return sizes


def estimated_sizes(relations: Iterable[Relation]) -> str | None:
    """Return in words whose sizes could not be read; None where all were."""
    names = [f"{relation.schema}.{relation.name}" for relation in relations if not relation.measured]
    if not names:
        return None
    which = shown(names[0]) if len(names) == 1 else f"{format_count(len(names))} relations"
    return f"the size of {which} is an estimate (pg_class): an ACCESS EXCLUSIVE lock is held or waited for"


BUFFERCACHE_OBJECTS = ("pg_buffercache", "pg_buffercache_pages", "pg_buffercache_summary")
_WITHOUT_BUFFERCACHE = "use --source peek on the server's host"


class Buffercache(msgspec.Struct, frozen=True, kw_only=True):
    """How far pg_buffercache is there for a session.

    Attributes:
        installed: the server has it, so that it can be created.
        schema: where it was created in this database, as an SQL identifier; None where it was not.
        role: the session's role, as an SQL identifier.
        readable: the role may read it.
        monitor: the role has what pg_monitor has.
    """

    installed: bool
    schema: str | None
    role: str
    readable: bool
    monitor: bool

    @property
    def grant(self) -> str:
        """Return the statement that lets the role read it."""
        if self.monitor:
            return f"GRANT USAGE ON SCHEMA {self.schema} TO {self.role}"
        return f"GRANT pg_monitor TO {self.role}"


def read_buffercache(connection: psycopg.Connection[Any]) -> Buffercache:
    """Return how far pg_buffercache is there."""
    row = one_row(connection, "buffercache")
    schema = None if row[1] is None else printable_identifier(row[1])
    return Buffercache(installed=row[0], schema=schema, role=row[2], readable=row[3], monitor=row[4])


def require_buffercache(connection: psycopg.Connection[Any]) -> str:
    """Return the quoted schema of pg_buffercache, after checking that this session may read it.

    Raises:
        MissingAbility: the extension is not created here, is not installed, may not be read by this role, or
            is not trusted.
    """
    schema = readable_schema(connection, read_buffercache(connection))
    require_trusted(connection, "pg_buffercache", BUFFERCACHE_OBJECTS, instead=_WITHOUT_BUFFERCACHE)
    return schema


def readable_schema(connection: psycopg.Connection[Any], found: Buffercache) -> str:
    """Return the quoted schema of pg_buffercache, if it can be read.

    Raises:
        MissingAbility: the extension is not created here, is not installed, or may not be read by this role.
    """
    if found.schema is None:
        raise missing_extension(connection, "pg_buffercache", installed=found.installed)
    if not found.readable:
        raise LacksPrivilege(
            f"role {found.role} may not read pg_buffercache in database `{connection.info.dbname}`",
            cause=f"the role has pg_monitor, but no access to schema {found.schema}"
            if found.monitor
            else "the role is not a member of pg_monitor",
            hint=as_superuser(connection, [found.grant]),
        )
    return found.schema


def read_names_like(
    connection: psycopg.Connection[Any],
    kind: Literal["databases", "relations", "schemas"],
    beginning: str,
    most: int,
) -> list[str]:
    """Return names that begin like this, for the shell's completion.

    Args:
        kind: databases that may be connected to, or relations of this one, as SQL writes
            them, or its schemas.
        beginning: of the names.
        most: the largest number of names.
    """
    query = load(f"complete_{kind}", connection.info.server_version)
    return [decode_name(name) for (name,) in connection.execute(query, [beginning, most]).fetchall()]
