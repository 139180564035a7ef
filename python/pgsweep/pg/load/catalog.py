"""The catalog of a table that is loaded: what is on it, and the statements that make each part.

The server writes the statements (pg_get_indexdef, pg_get_constraintdef, format with %I), under a search_path
of pg_catalog alone, so every name in them is qualified. What they leave out is beside them: the tablespace,
comments, the mark of CLUSTER, statistics targets. What cannot be made again exactly has a reason in `kept`
and is not dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import psycopg

from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.pg.load.ways import Ways
from pgsweep.pg.queries import load

S = TypeVar("S", bound=msgspec.Struct)


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A table as `load_table_140000.sql` reads it; its comments are there."""

    oid: int
    schema: str
    name: str
    quoted: str
    kind: str
    persistence: str
    owner: str
    owned: bool
    may_insert: bool
    may_lock: bool
    may_undo: bool
    may_create: bool
    row_security: bool
    is_partition: bool
    published: bool
    table_bytes: int
    index_bytes: int
    rows_estimate: int | None
    partitions: int
    foreign_partitions: bool
    insert_triggers: bool
    in_recovery: bool
    wal_level: str
    slots: int
    standbys: int
    maintenance_work_mem: str
    shared_buffers: str
    maintenance_workers: int
    owner_superuser: bool

    @property
    def ways(self) -> Ways:
        """The commands that end a load of it."""
        return Ways(self.quoted)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A column.

    Attributes:
        category: that of pg_type (`A` is an array).
        is_json: it holds JSON; of an array: its elements do.
        has_default: a row that does not name it gets another value than null, or one of a sequence.
        move_sequence: the statement that moves the sequence of an integer column behind its values; nothing
            where none gives it values.
    """

    name: str
    type: str
    category: str
    is_json: bool
    generated: bool
    has_default: bool = False
    move_sequence: str | None = None


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An index.

    Attributes:
        definition: makes it, without its tablespace.
        drop: drops it, or the constraint that owns it.
        constrained: makes the primary key or unique constraint with this index.
        constraint_type: `p`, `u`, `x`, or nothing.
        tablespace: empty for the database's own.
        index_extras: comment and statistics targets, to be set when it is made.
        last_extras: comment of the constraint and the mark of CLUSTER, to be set when that is made.
        kept: why it is not dropped, or nothing.
    """

    name: str
    definition: str
    drop: str
    constrained: str | None
    constraint_type: str | None
    is_unique: bool
    is_valid: bool
    tablespace: str
    index_extras: list[str]
    last_extras: list[str]
    bytes: int
    method: str
    kept: str | None


class KeyFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign key of the table; `batched`: the server checks rows of COPY in batches, in half the time."""

    name: str
    to_itself: bool
    drop: str
    add: str
    validate: str | None
    comment: str | None
    kept: str | None
    batched: bool


class TriggerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A trigger of the table; `enabled` as pg_trigger has it."""

    name: str
    definition: str
    enabled: str
    on_insert: bool
    disable: str
    enable: str

    @property
    def fires(self) -> bool:
        """It fires when a load inserts rows."""
        return self.on_insert and self.enabled in "OA"


class Hindrance(msgspec.Struct, frozen=True, kw_only=True):
    """Why the rows of a load must not be committed piece by piece.

    Attributes:
        what: in words.
        undoing: removing rows would run code of users or concern other tables.
        acts: it would do something, and not merely refuse.
        whole: it sees how rows are divided among statements.
        trigger: it is a user's trigger.
    """

    what: str
    undoing: bool
    acts: bool
    whole: bool
    trigger: bool


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """A table with all that bears on loading it.

    Attributes:
        referencing: foreign keys of other tables, as `table.name`.
        hindrances: why it must be loaded in one transaction.
        facts: everything the catalog says, by title: compared before and after.
    """

    table: TableFacts
    columns: list[Column]
    indexes: list[IndexFacts]
    keys: list[KeyFacts]
    triggers: list[TriggerFacts]
    referencing: list[str]
    facts: list[tuple[str, str]]
    hindrances: list[Hindrance] = []

    @property
    def truncatable(self) -> bool:
        """Whether TRUNCATE of the table, where it is empty, changes nothing but its files.

        It makes the indexes anew, and with that one valid that was not (reindex_index, index.c), and fires
        triggers.
        """
        table = self.table
        mine = table.kind == "r" and table.owned and not table.published
        acts = any(found.acts for found in self.hindrances)
        return mine and not acts and not self.referencing and all(index.is_valid for index in self.indexes)


def read_catalog(connection: psycopg.Connection[Any], oid: int) -> Catalog | None:
    """Return what is on a table; None where it was dropped.

    Raises:
        MissingAbility: a name is not UTF-8, so that it could not be written again exactly.
    """
    tables = structs(connection, TableFacts, "load_table", oid=oid)
    if not tables:
        return None
    referencing = rows_of(connection, "load_referencing", oid=oid)
    return Catalog(
        table=tables[0],
        columns=structs(connection, Column, "load_columns", oid=oid),
        indexes=[_index(row) for row in rows_of(connection, "load_indexes", oid=oid)],
        keys=structs(connection, KeyFacts, "load_keys", oid=oid),
        triggers=structs(connection, TriggerFacts, "load_triggers", oid=oid),
        referencing=[f"{of_table}.{name}" for name, of_table in referencing],
        facts=read_facts(connection, oid),
        hindrances=read_hindrances(connection, oid),
    )


def read_hindrances(connection: psycopg.Connection[Any], oid: int) -> list[Hindrance]:
    """Return why the rows of a load into a table must not be committed piece by piece."""
    return structs(connection, Hindrance, "load_hindrances", oid=oid)


def hindering(found: Sequence[Hindrance], *, triggers_off: bool) -> list[str]:
    """Return in words what makes a load one transaction.

    Args:
        triggers_off: the load disables triggers on INSERT.
    """
    return [each.what for each in found if each.undoing or not (each.trigger and triggers_off)]


def read_facts(connection: psycopg.Connection[Any], oid: int) -> list[tuple[str, str]]:
    """Return all that the catalog says of a table and its partitions, by names and not by oids."""
    return [(title, facts) for title, facts in rows_of(connection, "load_catalog", oid=oid)]


def check_as_planned(connection: psycopg.Connection[Any], catalog: Catalog) -> None:
    """Refuse to go on where a table is not as it was when the load was planned, under a lock.

    Raises:
        PgsweepError: another session altered it.
    """
    oid = catalog.table.oid
    if (read_facts(connection, oid), read_hindrances(connection, oid)) != (catalog.facts, catalog.hindrances):
        raise changed_since_plan()


def changed_since_plan() -> PgsweepError:
    """Return the error of a table that was altered between plan and load."""
    return PgsweepError(
        "the table was changed between plan and load", cause="another session altered it", hint="try again"
    )


def differences(before: list[tuple[str, str]], after: list[tuple[str, str]]) -> list[str]:
    """Return what two readings of the catalog differ in, a line each."""
    lost = [f"before: {title} {facts}" for title, facts in before if (title, facts) not in set(after)]
    new = [f"after: {title} {facts}" for title, facts in after if (title, facts) not in set(before)]
    return lost + new


def rows_of(connection: psycopg.Connection[Any], name: str, /, **values: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a query, its text as it is.

    Raises:
        MissingAbility: it is not UTF-8.
    """
    query = load(name, connection.info.server_version).encode()
    return [tuple(map(exact_text, row)) for row in connection.execute(query, values)]


def structs(connection: psycopg.Connection[Any], kind: type[S], name: str, /, **values: Any) -> list[S]:
    """Return the rows of a query that has the fields of a struct, in their order."""
    names = kind.__struct_fields__
    return [kind(**dict(zip(names, row, strict=True))) for row in rows_of(connection, name, **values)]


def _index(row: tuple[Any, ...]) -> IndexFacts:
    named = dict(zip(IndexFacts.__struct_fields__, row, strict=True))
    for name in ("index_extras", "last_extras"):
        # The server separates the statements by a line that ends in a semicolon, and a comment may hold one.
        named[name] = [named[name]] if named[name] else []
    return IndexFacts(**named)


def exact_text(value: Any) -> Any:
    """Return text of bytes in UTF-8, and anything else as it is.

    Raises:
        MissingAbility: the bytes are not UTF-8.
    """
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MissingAbility(
            "a name or a definition of the table is not UTF-8",
            cause="the database has no encoding (SQL_ASCII), so it could not be written again exactly",
            hint="load it with COPY, or rename what has such a name",
        ) from error
