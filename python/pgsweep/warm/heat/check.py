"""How much of a saved working set is resident now: `pgsweep warm check`.

It reads what `pgsweep cache` reads, and costs the same. Nothing is brought into any cache.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pgsweep.condition import Condition
from pgsweep.pg.catalog.agreement import MAX_USAGE_COUNT
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.session.refusals import explained
from pgsweep.records.heat import HeatRelation, HeatSource, HeatState, WarmCheckResult
from pgsweep.residency.access import Access
from pgsweep.residency.join import forks_of
from pgsweep.residency.pool import PoolReader
from pgsweep.residency.snapshot import ForkPages
from pgsweep.warm.heat.file import NOT_IN_POOL, SavedHeat
from pgsweep.warm.heat.match import Target, find_targets, look_around

CONDITION_NAMES = ("worth", "resident", "resident_hot", "either", "page_cache", "matched", "usage_reached")
"""The numbers of `HeatState` that a condition may name."""

WORTH_HAVING = 2
"""The least usage count of a block worth having. A page that is read once stands at 1 (PinBuffer, bufmgr.c),
so in a steady load blocks at 0 and 1 come and go all the time; from 2 on it was accessed again."""


def check(
    access: Access, path: Path, heat: SavedHeat, conditions: Sequence[Condition] = ()
) -> WarmCheckResult:
    """Compare what was saved with what is in the caches now.

    Args:
        access: the server.
        path: where the heat was read from, for the result.
        heat: what was saved.
        conditions: the result says which of these hold.

    Raises:
        UsageError: a condition names what cannot be seen here.
    """
    begun = time.monotonic()
    at = datetime.datetime.now(datetime.UTC)
    server = access.server
    now = look_around(access, heat)
    targets = find_targets(heat, now, server.block_size_bytes)
    with explained():
        pool = PoolReader(access).read()
    pages = now.pages if heat.meta.sees_page_cache else None
    state, relations = compare(targets, PoolNow(pool), pages, access)
    values = {name: getattr(state, name) for name in CONDITION_NAMES}
    return WarmCheckResult(
        source=source_of(path, heat),
        server_version=server.version,
        database=server.database,
        pool_source=access.pool_source,
        at=at.isoformat(timespec="milliseconds"),
        seconds=time.monotonic() - begun,
        state=state,
        relations=relations,
        conditions=[condition.text for condition in conditions if condition.holds(values)],
        missing=now.missing,
    )


def source_of(path: Path, heat: SavedHeat) -> HeatSource:
    """Return what a result says of the file."""
    meta = heat.meta
    return HeatSource(
        path=str(path),
        at=meta.at,
        server_version=meta.server_version,
        pool_bytes=meta.pool_blocks * meta.block_size_bytes,
        page_cache_bytes=meta.page_cache_blocks * meta.block_size_bytes if meta.sees_page_cache else None,
        shared_buffers_bytes=meta.shared_buffers_blocks * meta.block_size_bytes,
    )


@dataclass(slots=True)
class PoolNow:
    """The pool, to be asked for the blocks of a fork."""

    pool: Snapshot
    _forks: dict[tuple[int, int, int, int], slice] = field(default_factory=dict)
    _block: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _usage: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))

    def __post_init__(self) -> None:
        forks, of_buffer = forks_of(self.pool)
        order = np.lexsort((self.pool.block, of_buffer))
        edges = np.searchsorted(of_buffer[order], np.arange(len(forks) + 1))
        self._forks = {fork: slice(int(edges[n]), int(edges[n + 1])) for n, fork in enumerate(forks)}
        self._block = self.pool.block[order].astype(np.int64)
        self._usage = np.minimum(self.pool.usage_count[order], MAX_USAGE_COUNT)

    def usage_of(self, target: Target) -> NDArray[np.uint8]:
        """Return the usage count that each block of a target has now; NOT_IN_POOL where it is out."""
        now = np.full(len(target.block), NOT_IN_POOL, dtype=np.uint8)
        rows = self._forks.get(target.fork)
        if rows is None or target.oid == 0:
            return now
        block, usage = self._block[rows], self._usage[rows]
        at = np.minimum(np.searchsorted(block, target.block), len(block) - 1)
        there = block[at] == target.block
        now[there] = usage[at[there]]
        return now


def compare(
    targets: Sequence[Target], now: PoolNow, pages: ForkPages | None, access: Access
) -> tuple[HeatState, list[HeatRelation]]:
    """Return the whole and each relation; no `pages` where the page cache was not seen, then or now."""
    block_bytes, whole = access.server.block_size_bytes, access.pages_of_block
    sums = _Sums()
    relations = []
    for target in targets:
        usage, pooled = now.usage_of(target), target.pooled
        resident = pooled & (usage != NOT_IN_POOL)
        weight = target.usage_count[pooled].astype(np.float64) + 1
        weight_there = float((target.usage_count[resident].astype(np.float64) + 1).sum())
        cached = cached_now(target, pages, whole)
        wanted, there = int(np.count_nonzero(pooled)), int(np.count_nonzero(resident))
        sums.saved += target.saved_blocks
        sums.wanted += wanted
        sums.resident += there
        sums.matched += target.saved_blocks if target.match == "by share" else wanted
        sums.weight += float(weight.sum())
        sums.weight_there += weight_there
        sums.page_cache += int(np.count_nonzero(target.page_cache))
        sums.usage_saved += np.bincount(target.usage_count[pooled], minlength=6)
        sums.usage_now += np.bincount(usage[resident], minlength=6)
        sums.usage_there += np.bincount(target.usage_count[resident], minlength=6)
        sums.reached += int(np.count_nonzero(usage[resident] >= target.usage_count[resident]))
        if cached is not None:
            sums.page_cache_there += int(np.count_nonzero(cached & target.page_cache))
            sums.either += int(np.count_nonzero((usage != NOT_IN_POOL) | cached))
            sums.in_either += len(target.block)
        part = target.part
        relations.append(
            HeatRelation(
                database=part.database,
                schema=part.schema,
                relation=part.relation,
                table_schema=part.table_schema,
                table=part.table,
                kind=part.kind,
                fork=part.fork,
                match=target.match,
                saved_bytes=target.saved_blocks * block_bytes,
                target_bytes=wanted * block_bytes,
                resident_bytes=there * block_bytes,
                resident_hot=weight_there / float(weight.sum()) if wanted else 0.0,
                page_cache_saved_bytes=target.saved_page_cache_blocks * block_bytes,
                page_cache_resident_bytes=None
                if cached is None
                else int(np.count_nonzero(cached & target.page_cache)) * block_bytes,
            )
        )
    relations.sort(key=lambda row: (-row.saved_bytes, -(row.page_cache_saved_bytes or 0)))
    return sums.state(block_bytes, seen=pages is not None), relations


@dataclass(slots=True)
class _Sums:
    """Blocks over all targets."""

    saved: int = 0
    matched: int = 0
    wanted: int = 0
    resident: int = 0
    weight: float = 0.0
    weight_there: float = 0.0
    page_cache: int = 0
    page_cache_there: int = 0
    either: int = 0
    in_either: int = 0
    reached: int = 0
    usage_saved: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, dtype=np.int64))
    usage_now: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, dtype=np.int64))
    usage_there: NDArray[np.int64] = field(default_factory=lambda: np.zeros(6, dtype=np.int64))

    def state(self, block_bytes: int, *, seen: bool) -> HeatState:
        """Return the shares; where nothing was saved, the share is 1."""
        least = WORTH_HAVING if self.usage_saved[WORTH_HAVING:].any() else 0
        return HeatState(
            saved_bytes=self.saved * block_bytes,
            target_bytes=self.wanted * block_bytes,
            resident_bytes=self.resident * block_bytes,
            resident=_share(self.resident, self.wanted),
            resident_hot=_share(self.weight_there, self.weight),
            either=_share(self.either, self.in_either) if seen else None,
            page_cache=_share(self.page_cache_there, self.page_cache) if seen else None,
            matched=_share(self.matched, self.saved),
            usage_saved=self.usage_saved.tolist(),
            usage_now=self.usage_now.tolist(),
            usage_reached=_share(self.reached, self.wanted),
            worth=_share(int(self.usage_there[least:].sum()), int(self.usage_saved[least:].sum())),
        )


def cached_now(target: Target, pages: ForkPages | None, whole: int) -> NDArray[np.bool_] | None:
    """Return which blocks of a target are in the page cache now, whole; None if that cannot be read."""
    if pages is None:
        return None
    cached = np.zeros(len(target.block), dtype=np.bool_)
    found = pages.cached_pages.get(target.fork)
    if found is not None and target.oid != 0:
        inside = target.block < len(found)
        cached[inside] = found[target.block[inside]] == whole
    return cached


def _share(part: float, of: float) -> float:
    return part / of if of else 1.0
