"""What there is to warm: relations, their sizes, how often they are read, and whether they may be read.

A read-only session in each database; sizes take a short lock on each relation, statistics take none.
Temporary relations are their sessions' own and foreign ones lie elsewhere: neither can be warmed. Unlogged
ones can, though after a crash they are empty; on a standby they have no blocks and may not be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from pgsweep.commands import on_server
from pgsweep.errors import LacksPrivilege, OnStandby, PgsweepError, UsageError
from pgsweep.pg.catalog.counters import CounterReader
from pgsweep.pg.catalog.grants import (
    NO_RIGHT,
    READ_ALL,
    as_command,
    grant_to_read,
    grant_to_session,
    unread_tables,
)
from pgsweep.pg.catalog.server import (
    Relation,
    ScannedIndex,
    Server,
    estimated_sizes,
    read_cluster,
    read_connectable,
    read_counted_since,
    read_relations,
    read_scanned_indexes,
    read_server,
    read_unlogged,
)
from pgsweep.pg.prewarm import read_named, read_warmable, require_prewarm
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.pg.session.refusals import explained
from pgsweep.plain import relation_label, shell_word
from pgsweep.records.cache import Missing
from pgsweep.records.rollup import SYSTEM_SCHEMAS
from pgsweep.records.warm import WarmTrouble
from pgsweep.residency.names import Named, tables_served
from pgsweep.residency.rows import kind_word
from pgsweep.warm.block_ranges import BlockRange
from pgsweep.warm.files import Owner
from pgsweep.warm.heat.saved import HeatWeights
from pgsweep.warm.run.ranking import INDEX_KINDS, reason
from pgsweep.warm.run.used_part import Counted, accesses_by_queries, used_at_most
from pgsweep.warm.session import UNLOGGED

_SEQUENCE = "S"

_SCANS_OF_A_BUILD = 3
"""Sequential scans that building one index may count: one in each process, of which there are three
by default (max_parallel_maintenance_workers; initscan, heapam.c)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is asked for; nothing means all of the session's database.

    Attributes:
        relations: as `regclass` reads them; a table with its indexes and TOAST, a partitioned one with all
            its partitions.
        schemas: by their names.
        every_database: of all databases that may be entered.
        databases: of these alone besides the session's, where every database is asked for; all if None.
    """

    relations: Sequence[str] = ()
    schemas: Sequence[str] = ()
    every_database: bool = False
    databases: frozenset[str] | None = None


@dataclass(slots=True)
class Gathered:
    """The relations that can be warmed, and what is known of them.

    Attributes:
        pieces: whole forks, with their heat.
        places: tablespace, database and relfilenode of each relation.
        refused: relations that this role may not read, and on a standby the unlogged ones.
        accesses: that statistics have counted, of all relations together.
        tables: schema and name of the table that a TOAST relation or its index serves.
        counted_since: when statistics of the session's database began, ISO 8601 in UTC, where that is known.
        saved: relations with blocks that the heat file holds.
        blocks: of all forks of each relation.
        relations: with blocks, that may be read.
    """

    server: Server
    pieces: list[BlockRange] = field(default_factory=list)
    places: dict[Owner, tuple[int, int, int]] = field(default_factory=dict)
    tables: dict[Owner, tuple[str, str]] = field(default_factory=dict)
    blocks: dict[Owner, int] = field(default_factory=dict)
    refused: list[WarmTrouble] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    accesses: float = 0.0
    counted_since: str | None = None
    saved: int = 0
    relations: int = 0


def gather(
    conninfo: str, selection: Selection, *, heat: HeatWeights | None = None, through_server: bool = True
) -> Gathered:
    """Return what there is to warm.

    Args:
        conninfo: as libpq understands it.
        selection: what of it.
        heat: of a heat file, which counts more than statistics do.
        through_server: by pg_prewarm, so that it and SELECT are needed; else past the server.

    Raises:
        UsageError: there is no such relation or schema, or it has no blocks of its own.
        ConnectionFailed: the server cannot be reached.
        MissingAbility: pg_prewarm is not there.
    """
    with connect(conninfo) as connection, explained():
        found = Gathered(read_server(connection))
        if through_server:
            require_prewarm(connection)
        since = read_counted_since(connection)
        found.counted_since = None if since is None else since.isoformat(timespec="seconds")
        cluster = None if heat is None else read_cluster(connection)
        known = _Known(
            heat, cluster is not None and heat is not None and cluster[0] == heat.system_identifier
        )
        _gather_here(found, connection, selection, known, through_server=through_server)
        databases = read_connectable(connection) if selection.every_database else []
    for database in databases:
        if database.name in (found.server.database, "template0"):
            continue
        if selection.databases is not None and database.name not in selection.databases:
            continue
        why, enable = "", None
        if not database.allows_connections or not database.may_connect:
            why = (
                "this role may not connect to it"
                if database.allows_connections
                else "it takes no connections"
            )
        else:
            try:
                with connect(conninfo, database=database.name) as inside, explained():
                    if through_server:
                        require_prewarm(inside)
                    _gather_here(found, inside, Selection(), known, through_server=through_server)
            except PgsweepError as error:
                why = error.message
                # What is created in a template, all databases made of it later would have.
                enable = None if database.is_template else error.hint
        if why:
            found.missing.append(Missing(what=f"database {database.name}", why=why, enable=enable))
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The heat file, where there is one, and whether it comes from this cluster or a physical copy of it."""

    heat: HeatWeights | None
    same_cluster: bool


def _gather_here(
    found: Gathered,
    connection: Connection,
    selection: Selection,
    known: _Known,
    *,
    through_server: bool,
) -> None:
    relations = [r for r in read_relations(connection) if r.kind != _SEQUENCE]
    if (estimated := estimated_sizes(relations)) is not None:
        found.missing.append(Missing(what="sizes of relations", why=estimated))
    names = {relation.oid: (relation.schema, relation.name) for relation in relations}
    served = tables_served(relations)
    weights = {} if known.heat is None else _weights(known.heat, connection, relations, known.same_cluster)
    chosen = _chosen(connection, relations, selection)
    relations = [r for r in relations if chosen is None or r.oid in chosen]
    database = connection.info.dbname
    counted = _counted(connection, relations)
    scanned = read_scanned_indexes(connection)
    heat = accesses_by_queries(relations, counted, scanned, found.server.block_size_bytes)
    # A role that may read everything else may still not read TOAST tables: they have no owner to grant it.
    allowed = read_warmable(connection) if through_server else {r.oid for r in relations}
    # Any session reads catalogs: that they are counted says nothing of what queries will read.
    own = [r for r in relations if r.schema not in (*SYSTEM_SCHEMAS, "pg_toast")] or relations
    unused = not any(heat[relation.oid] for relation in own)
    tables = {r.oid for r in own if r.kind in "rm" and r.schema not in SYSTEM_SCHEMAS}
    if not tables <= allowed:
        why, grant = unread_tables(len(tables), len(tables & allowed)), grant_to_session(connection, READ_ALL)
        found.missing.append(Missing(what=f"database {database}", why=why, enable=grant))
    found.accesses += 0.0 if unused else sum(heat.values())
    borrowed = _borrowed_heat(relations, heat, counted, scanned)
    in_part: dict[int, float] = {}
    away: set[int] = set()
    if found.server.in_recovery:
        away = read_unlogged(connection)
        found.refused += _unlogged(database, relations, away)
    else:
        in_part = used_at_most(relations, counted, scanned, found.server.block_size_bytes)
    seen = {place for place in found.places.values() if place[1] == 0}
    for relation in relations:
        place = (relation.tablespace_oid, relation.database_oid, relation.filenode)
        if place in seen or relation.oid in away:
            continue  # a shared catalog, met in another database before; or one that has no blocks here
        blocks = relation.main_blocks + relation.fsm_blocks + relation.vm_blocks
        if relation.oid not in allowed:
            if blocks:
                table = (
                    names.get(served[relation.oid], ("", "")) if relation.schema == "pg_toast" else ("", "")
                )
                found.refused.append(_refusal(database, relation, table, blocks, connection.info.user))
            continue
        found.places[database, relation.oid] = place
        found.blocks[database, relation.oid] = blocks
        if relation.schema == "pg_toast":
            found.tables[database, relation.oid] = names.get(served[relation.oid], ("", ""))
        if not blocks:
            continue
        found.relations += 1
        kind, per_block = kind_word(relation.kind, relation.schema), None
        saved = relation.oid in weights
        if saved:
            found.saved += 1
            per_block = weights[relation.oid] / max(1, relation.main_blocks)
        elif not unused and kind in INDEX_KINDS and not (relation.oid in scanned or relation.oid in borrowed):
            # Its accesses are those of insertions, which need no more than the path to one leaf.
            per_block = 0.0
        elif not unused:
            per_block = borrowed.get(relation.oid, heat[relation.oid] / max(1, relation.main_blocks))
        why = reason(
            kind,
            per_block,
            saved=saved,
            of_table=relation.oid in borrowed,
            unsaved=known.heat is not None and not saved,
            used_at_most=in_part.get(relation.oid),
        )
        partly = not saved and relation.oid in in_part
        found.pieces += _pieces(database, relation, kind, per_block, why, saved=saved, partly=partly)


def _weights(
    heat: HeatWeights, connection: Connection, relations: Sequence[Relation], same_cluster: bool
) -> dict[int, float]:
    """Return the saved weight of the relations that the heat file holds, by oid."""
    names = {relation.oid: (relation.schema, relation.name) for relation in relations}
    served = tables_served(relations)
    weights = {}
    for relation in relations:
        table = names.get(served[relation.oid], names[relation.oid])
        database = connection.info.dbname if relation.database_oid else ""
        weight = heat.weight_of(Named(database, relation, table, table), same_cluster=same_cluster)
        if weight is not None:
            weights[relation.oid] = weight
    return weights


def _borrowed_heat(
    relations: Sequence[Relation],
    heat: Mapping[int, float],
    counted: Mapping[int, Counted],
    scanned: Mapping[int, ScannedIndex],
) -> dict[int, float]:
    """Return accesses a block for indexes that are as hot as their table, for all that is known.

    Those are the indexes of a table that no query has read since statistics began, as after a load or a
    reset. If queries have read it by another index or from end to end, an index that was never used is of
    no use.
    """
    tables = {relation.oid: relation for relation in relations}
    of_table: dict[int, list[int]] = {}
    for relation in relations:
        if kind_word(relation.kind, relation.schema) == "index" and relation.table_oid in tables:
            of_table.setdefault(relation.table_oid, []).append(relation.oid)
    return {
        index: heat[table] / max(1, tables[table].main_blocks)
        for table, indexes in of_table.items()
        if heat[table] and not any(index in scanned for index in indexes)
        if counted[table].scans <= _SCANS_OF_A_BUILD * len(indexes)
        for index in indexes
    }


def _pieces(
    database: str, relation: Relation, kind: str, heat: float | None, why: str, *, saved: bool, partly: bool
) -> list[BlockRange]:
    forks = (("main", relation.main_blocks), ("vm", relation.vm_blocks), ("fsm", relation.fsm_blocks))
    return [
        BlockRange(
            database=database,
            oid=relation.oid,
            schema=relation.schema,
            relation=relation.name,
            kind=kind,
            fork=fork,
            first_block=0,
            blocks=blocks,
            heat=heat,
            relation_blocks=relation.main_blocks,
            saved=saved,
            partly=partly,
            why=why,
        )
        for fork, blocks in forks
        if blocks
    ]


def _refusal(
    database: str, relation: Relation, table: tuple[str, str], blocks: int, role: str
) -> WarmTrouble:
    return WarmTrouble(
        database=database,
        schema=relation.schema,
        relation=relation.name,
        why=NO_RIGHT,
        blocks=blocks,
        enable=grant_to_read(role, relation.schema, relation.name, kind_word(relation.kind, relation.schema)),
        table_schema=table[0],
        table=table[1],
    )


def _unlogged(database: str, relations: Sequence[Relation], away: set[int]) -> list[WarmTrouble]:
    """Return the unlogged relations that are asked for, but for indexes and TOAST of tables among them."""
    asked = {relation.oid for relation in relations}
    return [
        WarmTrouble(database=database, schema=each.schema, relation=each.name, why=UNLOGGED, blocks=0)
        for each in relations
        if each.oid in away and (each.table_oid == each.oid or each.table_oid not in asked)
    ]


def _counted(connection: Connection, relations: Sequence[Relation]) -> dict[int, Counted]:
    """Return what statistics have counted of each relation since they began (pg_statio, pg_stat)."""
    names = {field.name for field in fields(Counted)}
    counts: dict[int, dict[str, float]] = {relation.oid: {} for relation in relations}
    for counter in CounterReader(connection, {}, counts).each_relation(names=names):
        counts[int(counter.object)][counter.name] = counter.value
    return {oid: Counted(**found) for oid, found in counts.items()}


def _chosen(connection: Connection, relations: Sequence[Relation], selection: Selection) -> set[int] | None:
    """Return the oids that were asked for; None for all.

    Raises:
        UsageError: there is no such relation or schema.
    """
    if not selection.relations and not selection.schemas:
        return None
    tables: set[int] = set()
    single: set[int] = set()
    for name in selection.relations:
        kind, oids = _named(connection, name)
        (single if kind in "iI" else tables).update(oids)
    for schema in selection.schemas:
        inside = {relation.oid for relation in relations if relation.schema == schema}
        if not inside:
            raise UsageError(
                f"there is nothing to warm in schema `{schema}`",
                cause=f"database `{connection.info.dbname}` has no relations with blocks in it",
                hint="the schema's name as it is, without quotes: --schema sales",
            )
        tables |= inside
    return single | {relation.oid for relation in relations if {relation.oid, relation.table_oid} & tables}


def _named(connection: Connection, name: str) -> tuple[str, list[int]]:
    kind, persistence, oids = read_named(connection, name)
    if persistence == "t":
        raise UsageError(
            f"`{name}` is a temporary table",
            cause="its blocks lie in the memory of its own session, where nobody else can bring them",
            hint="leave it out",
        )
    if kind in "vfcS":
        shown = shell_word(rf"\d+ {name}")
        raise UsageError(
            f"`{name}` has no blocks that could be warmed",
            cause="it is a view, a foreign table, a composite type or a sequence",
            hint=f"name the tables that it reads: {on_server('psql', f'-c {shown}')} shows them",
        )
    return kind, oids


def require_readable(found: Gathered, conninfo: str) -> None:
    """Check that there is anything that this role may read.

    Args:
        found: on the server.
        conninfo: of the server.

    Raises:
        MissingAbility: there are relations, and it may read none of them, or all are unlogged on a standby.
    """
    rights = [trouble for trouble in found.refused if trouble.why != UNLOGGED]
    if not found.pieces and found.refused and not rights:
        name = relation_label(found.refused[0].schema, found.refused[0].relation)
        raise OnStandby(
            f"`{name}` cannot be read on a standby",
            cause=UNLOGGED,
            hint="warm it on the primary, or name relations that are not unlogged",
        )
    if not found.pieces and rights:
        first, refused = rights[0], len(rights)
        what = f"not read `{first.relation}`" if refused == 1 else f"read none of the {refused} relations"
        with connect(conninfo, database=first.database) as connection, explained():
            hint = as_command(connection, first.enable)
        raise LacksPrivilege(
            f"this role may {what}", cause="pg_prewarm wants SELECT on what it reads", hint=hint
        )
