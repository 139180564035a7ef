"""Names of what lies in the caches: the catalogs of all databases that this role may read.

A catalog can be read only from within its database, so each takes one short session. Databases that cannot
be entered (not allowed, gone, template0) keep their buffers, under the database's name alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from pgsweep.errors import PgsweepError
from pgsweep.pg.catalog.server import (
    Relation,
    estimated_sizes,
    read_connectable,
    read_partition_roots,
    read_relations,
)
from pgsweep.pg.session.connect import Connection, enter
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.residency.access import Access

RelationFile = tuple[int, int, int]
"""Tablespace, database, relfilenode."""


@dataclass(frozen=True, slots=True)
class Named:
    """A relation by its names.

    Attributes:
        database: empty for shared catalogs.
        table: schema and name of the table that an index or TOAST relation serves, else its own.
        root: schema and name of the topmost partitioned table, or the table's own.
    """

    database: str
    relation: Relation
    table: tuple[str, str]
    root: tuple[str, str]


@dataclass(slots=True)
class Names:
    """Relations by their files.

    Attributes:
        entered: oids of the databases whose catalogs were read.
        missing: databases that could not be entered, and why.
    """

    databases: dict[int, str]
    relations: dict[RelationFile, Named] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    missing: list[Missing] = field(default_factory=list)


def read_names(access: Access, wanted: Iterable[int], *, sizes: bool = False) -> Names:
    """Read the catalogs of databases.

    Args:
        access: the server; its own database comes through its own session.
        wanted: oids of databases.
        sizes: read the relations' sizes through SQL too.
    """
    names = Names({0: "", **{database.oid: database.name for database in access.databases}})
    _enter(names, access.connection, access.server.database_oid, sizes=sizes)
    _read_wanted(access, names, wanted, sizes=sizes)
    return names


def _read_wanted(access: Access, names: Names, wanted: Iterable[int], *, sizes: bool) -> None:
    own, wanted = access.server.database_oid, set(wanted)
    for database in access.databases:
        if database.oid == own or database.oid not in wanted:
            continue
        why, enable = None, None
        if not database.allows_connections:
            why = "it accepts no connections"
        elif database.may_connect is None:
            why = "it was dropped meanwhile"
        elif not database.may_connect:
            why, enable = "this role may not connect to it", "connect as a role that may"
        else:
            try:
                with enter(access.connection, database.name) as connection:
                    _enter(names, connection, database.oid, sizes=sizes)
            except PgsweepError as error:
                why, enable = error.message, error.hint
        if why is not None and database.name != "template0":
            names.missing.append(
                Missing(what=f"relations of database {database.name}", why=why, enable=enable)
            )


def read_new_databases(access: Access, names: Names) -> None:
    """Learn which databases were made or renamed since, and read the catalogs of the new ones."""
    with contextlib.suppress(PgsweepError):
        with explained():
            access.databases[:] = read_connectable(access.connection)
        new = [database.oid for database in access.databases if database.oid not in names.databases]
        names.databases |= {database.oid: database.name for database in access.databases}
        _read_wanted(access, names, new, sizes=False)


def read_again(access: Access, names: Names, database_oid: int) -> None:
    """Read one catalog once more, for relations that were made, rewritten or dropped in between.

    A rewritten relation then has two files; one that is gone has no name any more.
    """
    before = {key: named for key, named in names.relations.items() if key[1] == database_oid}
    with contextlib.suppress(PgsweepError):
        if database_oid in (0, access.server.database_oid):
            _enter(names, access.connection, access.server.database_oid, sizes=False)
        elif database_oid in names.entered:
            with enter(access.connection, names.databases[database_oid]) as connection:
                _enter(names, connection, database_oid, sizes=False)
        there = {n.relation.oid for key, n in names.relations.items() if before.get(key) is not n}
        for key, named in before.items():
            if named.relation.oid not in there:
                del names.relations[key]


def name_the_new(access: Access, names: Names, forks: Iterable[tuple[int, int, int, int]]) -> None:
    """Read those catalogs again that do not know a file: its relation was made or rewritten meanwhile.

    Args:
        access: the server.
        names: what is known; is added to.
        forks: of the files, by tablespace, database, relfilenode and fork.
    """
    unknown = {fork[1] for fork in forks if fork[:3] not in names.relations}
    for database_oid in unknown & names.entered:
        read_again(access, names, database_oid)


def _enter(names: Names, connection: Connection, database_oid: int, *, sizes: bool) -> None:
    with explained():
        relations = read_relations(connection, sizes=sizes)
        roots = read_partition_roots(connection)
    if sizes and (estimated := estimated_sizes(relations)) is not None:
        names.missing.append(Missing(what="sizes of relations", why=estimated))
    tables = {relation.oid: (relation.schema, relation.name) for relation in relations}
    served = tables_served(relations)
    for relation in relations:
        table_oid = served[relation.oid]
        table = tables.get(table_oid, (relation.schema, relation.name))
        key = (relation.tablespace_oid, relation.database_oid, relation.filenode)
        database = names.databases.get(relation.database_oid, "")
        names.relations[key] = Named(database, relation, table, roots.get(table_oid, table))
    names.entered |= {0, database_oid}


def tables_served(relations: Iterable[Relation]) -> dict[int, int]:
    """Return the oid of the table that each relation serves, by the relation's; a table serves itself."""
    # The index of a TOAST relation belongs to the TOAST relation, and that to the table.
    owners = {relation.oid: relation.table_oid for relation in relations}
    return {oid: owners.get(table_oid, table_oid) for oid, table_oid in owners.items()}
