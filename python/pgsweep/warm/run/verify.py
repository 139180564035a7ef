"""The part of the pieces that lies in the caches now, checked block by block."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.host.datafiles import DataFiles, Fork, find_data_files
from pgsweep.host.pages import counted_bytes
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.keep import Place, read_places
from pgsweep.pg.session.connect import enter
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.residency.access import Access, PoolSource, opened
from pgsweep.residency.page_cache import read_pages
from pgsweep.residency.pool import PoolReader
from pgsweep.warm.block_ranges import BlockRange
from pgsweep.warm.files import FORK_NUMBERS, Owner


@dataclass(slots=True)
class Resident:
    """Bytes in each cache by relation; None if a cache cannot be read.

    Attributes:
        source: how the pool was read.
        pool: of the pieces that were asked for there.
        page_cache: of all pieces.
        gone: of the pieces that were asked for in the pool, what no longer exists.
    """

    source: str | None = None
    pool: dict[Owner, int] | None = None
    page_cache: dict[Owner, int] | None = None
    gone: dict[Owner, int] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    @property
    def pool_bytes(self) -> int | None:
        """The sum of the pool."""
        return None if self.pool is None else sum(self.pool.values())

    @property
    def page_cache_bytes(self) -> int | None:
        """The sum of the page cache."""
        return None if self.page_cache is None else sum(self.page_cache.values())


def look(
    conninfo: str,
    into_pool: Sequence[BlockRange],
    into_page_cache: Sequence[BlockRange],
    places: Mapping[Owner, tuple[int, int, int]],
    source: PoolSource = "auto",
    *,
    find_gone: bool = False,
) -> Resident:
    """Look at both caches once.

    By peek that costs the server nothing, by SQL one pass of pg_buffercache; where neither is possible, and
    where this is not the server's host, what is missing is said.

    Args:
        conninfo: as libpq understands it.
        into_pool: what was asked for in the pool.
        into_page_cache: what was asked for in the page cache alone.
        places: of the relations, when the plan was made.
        source: how to read the pool.
        find_gone: where the pool lacks anything, find out what of it no longer exists.

    Raises:
        ConnectionFailed: the server cannot be reached.
    """
    try:
        with opened(conninfo, source) as access:
            resident = Resident(missing=[entry for entry in access.missing if entry.what == "page cache"])
            block_bytes = access.server.block_size_bytes
            with explained():
                pool = PoolReader(access).read()
            resident.source = access.pool_source
            resident.pool = _in_pool(pool, into_pool, places, block_bytes)
            asked = sum(piece.blocks for piece in into_pool) * block_bytes
            if find_gone and sum(resident.pool.values()) < asked:
                resident.gone = _gone(access, into_pool, places)
            if access.sees_page_cache and access.postmaster_pid is not None:
                databases = {place[1] for place in places.values()}
                files = find_data_files(access.postmaster_pid, access.server.version_num, databases)
                pieces = [*into_pool, *into_page_cache]
                resident.page_cache = _in_page_cache(
                    files, pieces, places, access.segment_blocks, block_bytes
                )
            return resident
    except MissingAbility as error:
        return Resident(missing=[Missing(what="the buffer pool", why=error.message, enable=error.hint)])


def _gone(
    access: Access, pieces: Sequence[BlockRange], places: Mapping[Owner, tuple[int, int, int]]
) -> dict[Owner, int]:
    """Return the bytes of each relation's pieces that were dropped, truncated or rewritten since the plan.

    Of a database that cannot be entered any more nothing is known, unless it is gone itself.
    """
    block_bytes, connection = access.server.block_size_bytes, access.connection
    there = {database.name for database in access.databases}
    oids: dict[str, set[int]] = {}
    for piece in pieces:
        oids.setdefault(piece.database, set()).add(piece.oid)
    sums: dict[Owner, int] = {}
    for database, wanted in oids.items():
        found: dict[int, Place] = {}
        try:
            if database == access.server.database:
                with explained():
                    found = read_places(connection, sorted(wanted))
            elif database in there:
                with enter(connection, database) as inside, explained():
                    found = read_places(inside, sorted(wanted))
        except PgsweepError:
            continue
        for piece in pieces:
            if piece.database == database:
                owner = (database, piece.oid)
                blocks = _gone_blocks(piece, found.get(piece.oid), places.get(owner))
                sums[owner] = sums.get(owner, 0) + blocks * block_bytes
    return sums


def _gone_blocks(piece: BlockRange, now: Place | None, before: tuple[int, int, int] | None) -> int:
    if now is None or (before is not None and now.file != before):
        return piece.blocks
    if piece.fork != "main" or now.blocks is None:
        return 0
    return max(0, piece.end_block - max(piece.first_block, now.blocks))


def _forks(
    pieces: Sequence[BlockRange], places: Mapping[Owner, tuple[int, int, int]]
) -> dict[Fork, list[BlockRange]]:
    found: dict[Fork, list[BlockRange]] = {}
    for piece in pieces:
        place = places.get((piece.database, piece.oid))
        if place is not None:
            found.setdefault((*place, FORK_NUMBERS[piece.fork]), []).append(piece)
    return found


def _in_pool(
    pool: Snapshot,
    pieces: Sequence[BlockRange],
    places: Mapping[Owner, tuple[int, int, int]],
    block_bytes: int,
) -> dict[Owner, int]:
    """Return the bytes of each relation's pieces that are in the pool."""
    forks = _forks(pieces, places)
    sums: dict[Owner, int] = {}
    # One pass sorts all buffers; each fork is then a stretch of them.
    order = np.lexsort((pool.block, pool.fork, pool.rel, pool.db, pool.spc))
    keys = [column[order].astype(np.int64) for column in (pool.spc, pool.db, pool.rel, pool.fork)]
    blocks = pool.block[order].astype(np.int64)
    change = np.any([np.diff(key) != 0 for key in keys], axis=0) if len(blocks) else np.zeros(0, np.bool_)
    edges = [0, *(1 + np.flatnonzero(change)).tolist(), len(blocks)] if len(blocks) else [0]
    for first, end in itertools.pairwise(edges):
        spc, db, rel, fork = (int(key[first]) for key in keys)
        for piece in forks.get((spc, db, rel, fork), ()):
            low, high = np.searchsorted(blocks[first:end], [piece.first_block, piece.end_block])
            owner = (piece.database, piece.oid)
            sums[owner] = sums.get(owner, 0) + int(high - low) * block_bytes
    return sums


def _in_page_cache(
    files: DataFiles,
    pieces: Sequence[BlockRange],
    places: Mapping[Owner, tuple[int, int, int]],
    segment_blocks: int,
    block_bytes: int,
) -> dict[Owner, int] | None:
    """Return the bytes of each relation's pieces that are in the page cache; None if it is hidden."""
    forks = _forks(pieces, places)
    chosen = np.array([i for i, fork in enumerate(files.forks) if fork in forks], dtype=np.int64)
    pages = read_pages(files, chosen, block_bytes)
    sums: dict[Owner, int] = {}
    for at, file in enumerate(chosen.tolist()):
        resident = pages.cached_pages[pages.first_block[at] : pages.first_block[at + 1]]
        before = np.concatenate([[0], np.cumsum(resident, dtype=np.int64)])
        begin = files.segments[file] * segment_blocks
        for piece in forks[files.forks[file]]:
            low, high = np.clip([piece.first_block - begin, piece.end_block - begin], 0, len(resident))
            owner = (piece.database, piece.oid)
            sums[owner] = sums.get(owner, 0) + int(before[high] - before[low]) * counted_bytes(block_bytes)
    return sums
