"""Save the heat of both caches: `pgsweep warm save`.

    with opened("dbname=shop") as access:
        heat, missing = take_heat(access)
        write_heat(Path("shop.heat"), heat)

What it costs: by peek nothing to the server; by SQL one pass of pg_buffercache in one backend; for the page
cache a system call a file, on the server's host only. A read-only session in each database reads its catalog.
"""

from __future__ import annotations

import datetime
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import __version__
from pgsweep.errors import HeatError
from pgsweep.host.datafiles import Fork
from pgsweep.pg.catalog.agreement import MAX_USAGE_COUNT
from pgsweep.pg.catalog.server import INIT_FORK, read_cluster
from pgsweep.pg.session.refusals import explained
from pgsweep.records.cache import Missing
from pgsweep.records.heat import WarmSaveResult
from pgsweep.regular import open_regular
from pgsweep.residency.access import Access
from pgsweep.residency.join import forks_of
from pgsweep.residency.names import Named, name_the_new, read_names
from pgsweep.residency.pool import PoolReader
from pgsweep.residency.rows import KINDS
from pgsweep.residency.snapshot import ForkPages, visible_pages
from pgsweep.units import format_count
from pgsweep.warm.heat.file import (
    FORKS,
    NOT_IN_POOL,
    HeatMeta,
    HeatPart,
    NoHeatFile,
    SavedHeat,
    joined,
    read_heat,
    write_heat,
)
from pgsweep.warm.heat.rotate import kept_files, rotate

_MAGIC = b"PAR1"
"""How every Parquet file begins."""

_COLDER = 0.5
"""After a restart, a pool with less than this share of a file's blocks does not replace the file."""


def take_heat(access: Access) -> tuple[SavedHeat, list[Missing]]:
    """Return what lies in both caches now, and what could not be read."""
    server = access.server
    names = read_names(access, [d.oid for d in access.databases], sizes=not access.sees_page_cache)
    at = datetime.datetime.now(datetime.UTC)
    with explained():
        pool = PoolReader(access).read()
        cluster = read_cluster(access.connection)
    pages, unseen = visible_pages(access)
    missing = [*access.missing, *names.missing, *unseen]
    forks, fork_of_buffer = forks_of(pool)
    name_the_new(access, names, forks)
    order = np.lexsort((pool.block, fork_of_buffer))
    edges = np.searchsorted(fork_of_buffer[order], np.arange(len(forks) + 1))
    block, level = pool.block[order].astype(np.int64), pool.usage_count[order]
    pooled = {fork: slice(int(edges[n]), int(edges[n + 1])) for n, fork in enumerate(forks)}
    whole = access.pages_of_block

    parts: list[HeatPart] = []
    columns: list[tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]] = []
    nameless = 0
    for fork in _all_forks(pooled, pages):
        rows = pooled.get(fork, slice(0, 0))
        named = names.relations.get(fork[:3])
        if named is None or fork[3] >= INIT_FORK:
            nameless += rows.stop - rows.start
            continue
        cached = np.zeros(0, dtype=np.int64)
        if pages is not None and fork in pages.cached_pages:
            cached = np.flatnonzero(pages.cached_pages[fork] == whole)
        column = _merged(block[rows], level[rows], cached)
        if len(column[0]):
            parts.append(_part(named, fork, pages, server.block_size_bytes))
            columns.append(column)
    level_out = joined([column[1] for column in columns], np.uint8)
    page_cache = joined([column[2] for column in columns], np.bool_)
    meta = HeatMeta(
        pgsweep_version=__version__,
        at=at.isoformat(timespec="milliseconds"),
        server_version_num=server.version_num,
        server_version=server.version,
        system_identifier=None if cluster is None else cluster[0],
        in_recovery=server.in_recovery,
        block_size_bytes=server.block_size_bytes,
        shared_buffers_blocks=server.shared_buffers_blocks,
        pool_source=access.pool_source,
        sees_page_cache=pages is not None,
        pool_blocks=int(np.count_nonzero(level_out != NOT_IN_POOL)),
        page_cache_blocks=int(np.count_nonzero(page_cache)),
        nameless_blocks=nameless,
    )
    part = np.repeat(np.arange(len(parts), dtype=np.int32), [len(column[0]) for column in columns])
    heat = SavedHeat(
        meta, parts, part, joined([column[0] for column in columns], np.int64), level_out, page_cache
    )
    return heat, missing


def save(access: Access, path: Path, *, keep: int = 1) -> WarmSaveResult:
    """Write the heat of both caches to a file; older ones are kept beside it.

    If the server was restarted since the file was written and its pool is still filling, the file holds more
    than the pool. The file then stays as it is, because it is what a restore needs.

    Args:
        access: the server.
        path: the newest is always at this name; the one before at `path.1` and so on.
        keep: how many files there shall be.

    Raises:
        HeatError: the file cannot be written, or what is there now is something else.
    """
    begun = time.monotonic()
    former = _former(path)
    for file in kept_files(path) if keep > 1 else ():
        _require_parquet(file)
    heat, missing = take_heat(access)
    skipped = None if former is None else _worth_more(access, former, heat)
    size = 0
    if skipped is None:
        with rotate(path, keep):
            size = write_heat(path, heat)
    meta, pooled = heat.meta, heat.pooled
    return WarmSaveResult(
        path=str(path),
        at=meta.at,
        seconds=time.monotonic() - begun,
        server_version=meta.server_version,
        database=access.server.database,
        pool_source=meta.pool_source,
        size_bytes=size,
        block_size_bytes=meta.block_size_bytes,
        shared_buffers_bytes=meta.shared_buffers_blocks * meta.block_size_bytes,
        pool_blocks=meta.pool_blocks,
        page_cache_blocks=meta.page_cache_blocks if meta.sees_page_cache else None,
        nameless_blocks=meta.nameless_blocks,
        usage_counts=np.bincount(heat.usage_count[pooled], minlength=MAX_USAGE_COUNT + 1).tolist(),
        relations=len({(part.database, part.schema, part.relation) for part in heat.parts}),
        databases=len({part.database for part in heat.parts} - {""}),
        kept=[str(file) for file in kept_files(path)],
        skipped=skipped,
        missing=missing,
    )


def _former(path: Path) -> HeatMeta | None:
    """Return the description in the existing file; None if it is damaged or there is none.

    Raises:
        HeatError: it is not a heat file, so it is not ours to replace.
    """
    try:
        return read_heat(path).meta if path.exists() else None
    except NoHeatFile as error:
        raise HeatError(
            f"`{path}` is not replaced: it is not a heat file",
            cause=error.cause,
            hint="name another file, or remove this one",
        ) from error
    except HeatError:
        return None


def _require_parquet(file: Path) -> None:
    """Refuse to move, and in time to remove, a file that is surely not ours.

    Raises:
        HeatError: it is not a Parquet file.
    """
    try:
        with open_regular(file) as opened:
            ours = opened.read(len(_MAGIC)) in (_MAGIC, b"")
    except OSError as error:
        raise HeatError(f"cannot read `{file}`: {error.strerror}") from error
    if not ours:
        raise HeatError(
            f"`{file}` is not a heat file, and --keep would move it",
            hint="name another file to save to, or move this one",
        )


def _worth_more(access: Access, former: HeatMeta, heat: SavedHeat) -> str | None:
    """Return why the existing file is worth more than the present heat, if it is."""
    with explained():
        cluster = read_cluster(access.connection)
    if cluster is None or former.system_identifier != cluster[0]:
        return None
    started = cluster[1].astimezone(datetime.UTC)
    filling = (
        heat.meta.pool_blocks + heat.meta.nameless_blocks < _COLDER * access.server.shared_buffers_blocks
    )
    colder = heat.meta.pool_blocks < _COLDER * former.pool_blocks
    if started <= datetime.datetime.fromisoformat(former.at) or not filling or not colder:
        return None
    return (
        f"the server was restarted at {started.isoformat(timespec='seconds')} and has "
        f"{format_count(heat.meta.pool_blocks)} blocks in its pool; the file of {former.at} holds "
        f"{format_count(former.pool_blocks)} and stays: restore it, or remove it"
    )


def _all_forks(pooled: dict[Fork, slice], pages: ForkPages | None) -> list[Fork]:
    """Return every fork with something in a cache, by database, so that its parts lie together."""
    forks = set(pooled) | set({} if pages is None else pages.cached_pages)
    return sorted(forks, key=lambda fork: (fork[1], fork[0], fork[2], fork[3]))


def _merged(
    pooled: NDArray[np.int64], level: NDArray[np.uint8], cached: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.bool_]]:
    """Return blocks of either cache, ascending, with usage count and whether they are in the page cache."""
    block = np.union1d(pooled, cached)
    usage = np.full(len(block), NOT_IN_POOL, dtype=np.uint8)
    usage[np.searchsorted(block, pooled)] = np.minimum(level, MAX_USAGE_COUNT)
    in_page_cache = np.zeros(len(block), dtype=np.bool_)
    in_page_cache[np.searchsorted(block, cached)] = True
    return block, usage, in_page_cache


def _part(named: Named, fork: Fork, pages: ForkPages | None, block_bytes: int) -> HeatPart:
    relation = named.relation
    kind = KINDS.get(relation.kind, relation.kind)
    if relation.kind == "i" and relation.schema == "pg_toast":
        kind = "TOAST index"
    if pages is not None and fork in pages.size_bytes:
        blocks = pages.size_bytes[fork] // block_bytes
    elif relation.measured:
        blocks = (relation.main_blocks, relation.fsm_blocks, relation.vm_blocks)[fork[3]]
    else:
        blocks = -1
    return HeatPart(
        database=named.database,
        schema=relation.schema,
        relation=relation.name,
        kind=kind,
        fork=FORKS[fork[3]],
        table_schema=named.table[0],
        table=named.table[1],
        database_oid=fork[1],
        tablespace_oid=fork[0],
        filenode=fork[2],
        size_blocks=blocks,
    )
