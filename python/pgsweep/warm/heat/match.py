"""What was saved, found again on a server: by name, and within a relation by block or by share.

Names are what survives pg_upgrade, a dump, another host or logical replication. TOAST relations are found
through their table, because pg_toast_NNN is named after an oid. The blocks are the same where the file is: on
the same cluster or a physical standby while the relation has not been rewritten, and after pg_upgrade, which
copies files as they are. A relation that was rewritten (VACUUM FULL, CLUSTER, REINDEX, a load into another
server) has its rows elsewhere: its blocks are then taken by share, the hundredth block of a thousand
becoming the tenth of a hundred. That keeps how much of it is read, and the order of a clustered table; which
rows of an unordered one were hot is not known from any file. On another cluster a relation with the same
number of blocks may be a copy of the file (pg_upgrade before 15 may give it another number) or another file,
so this match has a name of its own. The same blocks are taken, as they would be by share.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep.host.datafiles import Fork
from pgsweep.pg.catalog.server import read_cluster
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.residency.access import Access
from pgsweep.residency.names import Named, Names, read_names
from pgsweep.residency.snapshot import ForkPages, visible_pages
from pgsweep.warm.heat.file import FORKS, NOT_IN_POOL, HeatPart, SavedHeat

Blocks = NDArray[np.int64]
Name = tuple[str, str, str, str]
"""Database, schema, relation, nothing; for a TOAST relation those of its table, and its kind."""


@dataclass(frozen=True, slots=True)
class Target:
    """One saved fork on this server; arrays are parallel, one element a block of this server, ascending.

    Attributes:
        match: as in `records.heat.HeatRelation`.
        database: where to connect to; empty if the relation was not found.
        oid: of the relation; 0 where it was not found, and then there are no blocks.
        fork: tablespace, database, relfilenode, number of the fork.
        usage_count: as saved, or NOT_IN_POOL.
        page_cache: as saved.
        saved_blocks: of the pool, in the file.
    """

    part: HeatPart
    match: str
    database: str
    oid: int
    fork: Fork
    block: Blocks
    usage_count: NDArray[np.uint8]
    page_cache: NDArray[np.bool_]
    saved_blocks: int
    saved_page_cache_blocks: int

    @property
    def pooled(self) -> NDArray[np.bool_]:
        """Which blocks were in the buffer pool."""
        pooled: NDArray[np.bool_] = self.usage_count != NOT_IN_POOL
        return pooled


@dataclass(slots=True)
class ServerState:
    """What can be seen of a server besides its pool.

    Attributes:
        same_cluster: the heat comes from this cluster or from one of which it is a physical copy.
        pages: the page cache, where it can be seen.
        started: when the server was, where that may be asked.
    """

    names: Names
    same_cluster: bool
    pages: ForkPages | None
    missing: list[Missing]
    started: datetime.datetime | None = None


def look_around(access: Access, heat: SavedHeat) -> ServerState:
    """Read names, sizes and the page cache of a server, for what the heat is about."""
    wanted = {part.database for part in heat.parts}
    oids = [database.oid for database in access.databases if database.name in wanted]
    names = read_names(access, oids, sizes=not access.sees_page_cache)
    pages, unseen = visible_pages(access)
    missing = [*access.missing, *names.missing, *unseen]
    if unseen:
        names = read_names(access, oids, sizes=True)
    with explained():
        cluster = read_cluster(access.connection)
    same = cluster is not None and cluster[0] == heat.meta.system_identifier
    return ServerState(names, same, pages, missing, None if cluster is None else cluster[1])


def find_targets(heat: SavedHeat, state: ServerState, block_bytes: int) -> list[Target]:
    """Return every saved fork with its match on this server, in the order of the file."""
    names = state.names
    by_name = {name_of(named): named for named in names.relations.values()}
    by_file = dict(names.relations)
    database_oids = {name: oid for oid, name in names.databases.items()}
    targets = []
    for part, rows in heat.by_part():
        named = by_name.get(saved_name(part))
        if named is None and state.same_cluster:  # it was renamed since
            named = by_file.get((part.tablespace_oid, part.database_oid, part.filenode))
        saved = (heat.block[rows], heat.usage_count[rows], heat.page_cache[rows])
        if named is None:
            targets.append(_lost(part, _why_lost(part, names, database_oids), saved))
            continue
        relation = named.relation
        fork = (relation.tablespace_oid, relation.database_oid, relation.filenode, FORKS.index(part.fork))
        blocks = _size(named, fork, state.pages, block_bytes)
        if blocks == 0:
            targets.append(_lost(part, "empty", saved))
            continue
        match, found = _placed(part, fork, blocks, saved, same_cluster=state.same_cluster)
        targets.append(
            Target(
                part=part,
                match=match,
                database=named.database,
                oid=relation.oid,
                fork=fork,
                block=found[0],
                usage_count=found[1],
                page_cache=found[2],
                saved_blocks=int(np.count_nonzero(saved[1] != NOT_IN_POOL)),
                saved_page_cache_blocks=int(np.count_nonzero(saved[2])),
            )
        )
    return targets


_Columns = tuple[Blocks, NDArray[np.uint8], NDArray[np.bool_]]


def saved_name(part: HeatPart) -> Name:
    """Return what a saved relation is known by, on this server and on others."""
    if part.kind.startswith("TOAST"):
        return part.database, part.table_schema, part.table, part.kind
    return part.database, part.schema, part.relation, ""


def name_of(named: Named) -> Name:
    """Return what a relation of this server is known by, likewise."""
    relation = named.relation
    if relation.schema == "pg_toast":
        kind = "TOAST index" if relation.kind == "i" else "TOAST table"
        return named.database, *named.table, kind
    return named.database, relation.schema, relation.name, ""


def _why_lost(part: HeatPart, names: Names, database_oids: Mapping[str, int]) -> str:
    if part.database not in database_oids:
        return "database missing"
    return "dropped" if database_oids[part.database] in names.entered else "not entered"


def _lost(part: HeatPart, match: str, saved: _Columns) -> Target:
    nothing = np.zeros(0, dtype=np.int64)
    return Target(
        part=part,
        match=match,
        database="",
        oid=0,
        fork=(0, 0, 0, 0),
        block=nothing,
        usage_count=nothing.astype(np.uint8),
        page_cache=nothing.astype(np.bool_),
        saved_blocks=int(np.count_nonzero(saved[1] != NOT_IN_POOL)),
        saved_page_cache_blocks=int(np.count_nonzero(saved[2])),
    )


def _size(named: Named, fork: Fork, pages: ForkPages | None, block_bytes: int) -> int:
    """Return the size of a fork in blocks, from its files or from the server."""
    if pages is not None:
        return pages.size_bytes.get(fork, 0) // block_bytes
    relation = named.relation
    return (relation.main_blocks, relation.fsm_blocks, relation.vm_blocks, 0)[fork[3]]


def _placed(
    part: HeatPart, fork: Fork, blocks: int, saved: _Columns, *, same_cluster: bool
) -> tuple[str, _Columns]:
    """Return how a saved fork matches one of the given size, and which blocks there correspond to its own."""
    was = part.size_blocks if part.size_blocks > 0 else 1 + int(saved[0].max(initial=-1))
    same_file = part.filenode == fork[2]
    if same_cluster:
        same_file = same_file and (part.tablespace_oid, part.database_oid) == fork[:2]
    else:
        # Two clusters may have given the same number to relations of their own: only one that holds all that
        # was saved can be the same file.
        same_file = same_file and blocks >= was
    if same_file:
        there = saved[0] < blocks
        found = (saved[0][there], saved[1][there], saved[2][there])
        return ("same blocks" if there.all() else "resized"), found
    if blocks == was and not same_cluster:
        return "same size", saved
    return "by share", by_share(*saved, was, blocks)


def by_share(
    block: Blocks, usage_count: NDArray[np.uint8], page_cache: NDArray[np.bool_], was: int, now: int
) -> _Columns:
    """Return the blocks of a fork of `now` blocks that stand for those of one of `was` blocks.

    Each block stands for a stretch of its length in proportion, so the share that is resident stays the same.
    Where it shrank, several become one: of those the hottest are taken, as many as keep the share.
    """
    scaled = block.astype(np.uint64) * np.uint64(now) // np.uint64(was)
    first = scaled.astype(np.int64)
    if now >= was:
        begins = np.arange(len(block) + 1, dtype=np.uint64) * np.uint64(now) // np.uint64(was)
        before, length = begins[:-1].astype(np.int64), np.diff(begins).astype(np.int64)
        # One begins where it lay in proportion, or a block or two later, where the one before it ends.
        ahead = np.maximum.accumulate(first - before)
        every = np.repeat(ahead, length) + np.arange(int(length.sum()))
        there = every < now
        return every[there], np.repeat(usage_count, length)[there], np.repeat(page_cache, length)[there]
    places, place = np.unique(first, return_inverse=True)
    pooled = usage_count != NOT_IN_POOL
    warmth = np.bincount(place[pooled], weights=usage_count[pooled] + 1.0, minlength=len(places))
    hottest = np.zeros(len(places), dtype=np.int16)
    np.maximum.at(hottest, place[pooled], usage_count[pooled].astype(np.int16) + 1)
    kept = _most(warmth, int(np.count_nonzero(pooled)), was, now)
    usage = np.where(kept, hottest - 1, NOT_IN_POOL).astype(np.uint8)
    pages = np.bincount(place[page_cache], minlength=len(places)).astype(np.float64)
    cached = _most(pages, int(np.count_nonzero(page_cache)), was, now)
    there = kept | cached
    return places[there], usage[there], cached[there]


def _most(weight: NDArray[Any], blocks: int, was: int, now: int) -> NDArray[np.bool_]:
    """Return which places to take, the heaviest first, so that as large a share of them is taken as was."""
    wanted = min(-(-blocks * now // was), int(np.count_nonzero(weight)))
    taken = np.zeros(len(weight), dtype=np.bool_)
    taken[np.argsort(-weight, kind="stable")[:wanted]] = True
    return taken
