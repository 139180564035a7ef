"""A curve from a trace: the accesses replayed at every size, each pool warmed to its stationary state first.

A trace begins in the middle of things. At today's size its own first seconds warm the pool; a pool eight
times as large would need minutes. So each pool starts in a state drawn from the model: the number of visits
a page had during the trace gives a distribution of its rate (Poisson mixture, empirical Bayes, per
relation; pages never visited included), its rate and the lap of the hand at that size give the chance that
it lies in the pool, and at which usage_count. Given the rate, what happened before the trace is independent
of what happened in it, so the drawn state may stand before the trace it was derived from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import UsageError
from pgsweep.inference.sightings import Table, file_keys
from pgsweep.units import BLOCK_BYTES, format_bytes

Floats = NDArray[np.float64]

VISIT_GAP_SECONDS = 0.005
"""Accesses to a page closer than this belong to one visit (an index descent again, a row updated and read
back)."""

EXTENSION = 2
_GRID_POINTS = 120
_REPEAT, _EXTEND, _UNCOUNTED = 8, 16, 64
_COLD_VISITS = 5
_NEVER_LARGE_BLOCKS = 4
_MOST_TABLE_BLOCKS = 2**32 - 1
"""Of a fork (block.h, MaxBlockNumber); the maps count besides."""

_MOST_STRANGERS = 1 << 25
"""Pages drawn into a pool that the trace never names, some 80 bytes each: 256 GB of shared_buffers."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Accesses in the form that the simulator takes.

    Attributes:
        pages: dense ids, shape (accesses,).
        seconds: time of each access from the beginning.
        duration_seconds: how long was watched, also where nothing happened before or after the accesses.
        flags: the simulator's (strategy, repeat, extension, not counted).
        owner_access, owner, owner_blocks: rings, as the simulator takes them.
        page_group: group of each page, shape (pages,).
        group_pages: how many pages each group has, visited or not.
        counted: which accesses belong to the database.
        missed: which accesses the server missed itself.
        new_page: which pages were created during the trace.
    """

    pages: NDArray[np.uint32]
    seconds: Floats
    duration_seconds: float
    flags: NDArray[np.uint8]
    owner_access: NDArray[np.uint64]
    owner: NDArray[np.uint32]
    owner_blocks: NDArray[np.uint32]
    page_group: NDArray[np.int64]
    group_pages: Floats
    counted: NDArray[np.bool_]
    missed: NDArray[np.bool_]
    new_page: NDArray[np.bool_]


def from_evidence(
    accesses: Table,
    relations: Table,
    database_oid: int,
    *,
    seconds: float = 0.0,
    recovery_pid: int | None = None,
) -> Trace:
    """Number the pages of the evidence's tables and group them, by relation and a rest.

    Args:
        accesses, relations: tables of the evidence.
        database_oid: whose accesses are counted, as the server counts them (pg_stat_database).
        seconds: how long was watched, where that is longer than the accesses tell.
        recovery_pid: the process that replays the log on a stand-by. What it accesses moves the pool and is
            counted for no database (ReadBufferWithoutRelcache, bufmgr.c).
    """
    pages, names = _native.dense_ids(
        accesses["spc"], accesses["db"], accesses["rel"], accesses["fork"], accesses["block"]
    )
    key, relation_key = file_keys(names, relations)
    order = np.argsort(relation_key, kind="stable")
    rest = len(relation_key)
    if rest:
        found = order[np.minimum(np.searchsorted(relation_key[order], key), rest - 1)]
        page_group = np.where(relation_key[found] == key, found, rest)
    else:
        page_group = np.full(len(key), rest)
    seen = np.bincount(page_group, minlength=rest + 1).astype(np.float64)
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"])
    blocks = blocks + relations["fsm_blocks"] + relations["vm_blocks"]
    group_pages = np.maximum(np.append(blocks, 0.0), seen)

    extends = accesses["kind"] == EXTENSION
    new_page = np.zeros(len(key), dtype=bool)
    new_page[pages[extends]] = True
    strategy = _strategies(accesses, page_group[pages], group_pages)
    flags = strategy.astype(np.uint8)
    flags |= np.where((accesses["flags"] & 2) > 0, _REPEAT, 0).astype(np.uint8)
    flags |= np.where(extends, _EXTEND, 0).astype(np.uint8)
    counted = accesses["db"] == database_oid
    if recovery_pid is not None:
        counted &= accesses["pid"] != recovery_pid
    flags |= np.where(counted, 0, _UNCOUNTED).astype(np.uint8)
    owner_access, owner, owner_blocks = _owners(accesses, strategy, page_group[pages], group_pages)
    at = accesses["time_ns"].astype(np.float64) / 1e9
    return Trace(
        pages=pages,
        seconds=at,
        duration_seconds=max(seconds, float(at.max()) if len(at) else 0.0),
        flags=flags,
        owner_access=owner_access,
        owner=owner,
        owner_blocks=owner_blocks,
        page_group=page_group.astype(np.int64),
        group_pages=group_pages,
        counted=counted,
        missed=accesses["kind"] == 1,
        new_page=new_page,
    )


def from_ids(pages: NDArray[np.uint32], seconds: Floats) -> Trace:
    """Wrap a foreign trace: one group, as many pages as it names, no rings, nothing known of misses."""
    count = int(pages.max()) + 1 if len(pages) else 0
    none = np.zeros(0, dtype=np.uint32)
    return Trace(
        pages=pages,
        seconds=seconds,
        duration_seconds=float(seconds[-1] - seconds[0]) if len(seconds) else 0.0,
        flags=np.zeros(len(pages), dtype=np.uint8),
        owner_access=np.zeros(0, dtype=np.uint64),
        owner=none,
        owner_blocks=none,
        page_group=np.zeros(count, dtype=np.int64),
        group_pages=np.array([float(count)]),
        counted=np.ones(len(pages), dtype=bool),
        missed=np.zeros(len(pages), dtype=bool),
        new_page=np.zeros(count, dtype=bool),
    )


def _strategies(accesses: Table, access_group: NDArray[np.int64], group_pages: Floats) -> NDArray[np.uint8]:
    """Return the strategy of each access; for scans, as the simulator means it, BULKREAD if large.

    Whether a table is large depends on the size of the pool (`heapam.c`: initscan), so a scan without a ring
    at the traced size may have one at a smaller size. A table of four blocks is large nowhere, the smallest
    pool having sixteen; the size of a table that is not in the catalog is not known, and the server's choice
    stands.
    """
    known = access_group < len(group_pages) - 1
    scanned = ((accesses["flags"] & 1) > 0) & known & (group_pages[access_group] > _NEVER_LARGE_BLOCKS)
    return np.where(scanned, 1, accesses["strategy"] & 7).astype(np.uint8)


def _owners(
    accesses: Table, strategy: NDArray[Any], access_group: NDArray[np.int64], group_pages: Floats
) -> tuple[NDArray[np.uint64], NDArray[np.uint32], NDArray[np.uint32]]:
    """Return position, owner and table size of every access that may use a ring."""
    at = np.flatnonzero(strategy > 0)
    if not len(at):
        none = np.zeros(0, dtype=np.uint32)
        return np.zeros(0, dtype=np.uint64), none, none
    # Without a scan's id, a backend's accesses to one relation share a ring.
    scan = accesses["scan"][at].astype(np.int64)
    fallback = (accesses["pid"][at].astype(np.int64) << 24) ^ access_group[at] | (1 << 62)
    _, first, owner = np.unique(np.where(scan > 0, scan, fallback), return_index=True, return_inverse=True)
    blocks = np.minimum(group_pages[access_group[at[first]]], _MOST_TABLE_BLOCKS)
    return at.astype(np.uint64), owner.astype(np.uint32), blocks.astype(np.uint32)


@dataclass(frozen=True, kw_only=True)
class Visits:
    """How often each page was visited, and what that says about rates.

    Attributes:
        grid: rates in visits per second.
        weights: expected number of pages at each grid point, shape (groups, grid); all pages, visited or not.
        batches: batch law of each group, shape (groups, 5).
        of_page: number of visits of each page.
    """

    grid: Floats
    weights: Floats
    batches: Floats
    of_page: NDArray[np.int64]
    duration_seconds: float


def count_visits(trace: Trace) -> Visits:
    """Fold accesses into visits and fit the distribution of rates of every group."""
    duration = max(trace.duration_seconds, 1e-3)
    page_count = len(trace.page_group)
    order = np.argsort(trace.pages, kind="stable")
    page = trace.pages[order]
    at = trace.seconds[order]
    pinned = (trace.flags[order] & _REPEAT) > 0
    begins = np.empty(len(page), dtype=bool)
    if len(page):
        begins[0] = True
        begins[1:] = (page[1:] != page[:-1]) | (np.diff(at) > VISIT_GAP_SECONDS)
        # A page that is never left alone for so long has a visit in each such stretch of time.
        since = at - at[begins][np.cumsum(begins) - 1]
        stretch = np.floor(since / VISIT_GAP_SECONDS)
        begins[1:] |= np.diff(stretch) > 0
    of_page = np.bincount(page[begins], minlength=page_count)
    visit = np.cumsum(begins) - 1
    size = np.bincount(visit[~pinned], minlength=int(begins.sum()))
    size = np.clip(size, 1, 5)
    visit_page = page[begins]

    groups = len(trace.group_pages)
    cold = of_page[visit_page] <= _COLD_VISITS
    batches = np.zeros((groups, 5))
    np.add.at(batches, (trace.page_group[visit_page[cold]], size[cold] - 1), 1.0)
    batches[:, 0] += 1.0
    batches /= batches.sum(axis=1, keepdims=True)

    grid = np.geomspace(1e-4, 2e4, _GRID_POINTS) / duration
    weights = np.zeros((groups, _GRID_POINTS))
    for group, visited in _by_group(trace):
        members = visited[~trace.new_page[visited]]
        never = max(trace.group_pages[group] - len(visited), 0.0)
        values, pages = np.unique(of_page[members], return_counts=True)
        values = np.append(values, 0)
        counts = np.append(pages.astype(np.float64), never)
        like = _scaled(_log_poisson(values, grid * duration))
        fitted, _ = _native.mixture_weights(like, counts, steps=400, gain=1e-2)
        weights[group] = fitted * counts.sum()
    return Visits(grid=grid, weights=weights, batches=batches, of_page=of_page, duration_seconds=duration)


def _by_group(trace: Trace) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the pages of each group that has any in the trace."""
    order = np.argsort(trace.page_group, kind="stable")
    groups, begins = np.unique(trace.page_group[order], return_index=True)
    return [(int(g), pages) for g, pages in zip(groups, np.split(order, begins[1:]), strict=True)]


def _log_poisson(values: NDArray[np.int64], means: Floats) -> Floats:
    """Return log P(N = value) but for a constant of each row, for every value (rows) and mean (columns)."""
    return np.asarray(values[:, None] * np.log(means)[None, :] - means[None, :])


def _scaled(logs: Floats) -> Floats:
    """Return the exponentials, rows scaled to a largest entry of 1."""
    return np.ascontiguousarray(np.exp(logs - logs.max(axis=1, keepdims=True)))


class WarmPools:
    """Draws stationary states of pools of any size."""

    def __init__(self, trace: Trace, visits: Visits) -> None:
        self._trace = trace
        self._visits = visits
        self._laps = np.geomspace(1e-4, 1e6, 160) * max(visits.duration_seconds, 1e-3) / 100
        resident = np.zeros(len(self._laps))
        self._by_group = _by_group(trace)
        for group, _ in self._by_group:
            rates = (self._laps[:, None] * visits.grid[None, :]).ravel()
            law = _native.clock_law(rates, visits.batches[group])[:, 0].reshape(len(self._laps), -1)
            resident += (1 - law) @ visits.weights[group]
        self._resident = resident

    @property
    def most_resident(self) -> float:
        """Return how many pages there are to fill a pool with."""
        return float(self._visits.weights.sum())

    def lap_seconds(self, blocks: int) -> float:
        """Return the lap of the hand in a pool of that size; infinite where everything fits."""
        if blocks >= self._resident[-1]:
            return float("inf")
        return float(np.exp(np.interp(np.log(blocks), np.log(self._resident), np.log(self._laps))))

    def draw(self, blocks: int, random: np.random.Generator) -> _native.PoolContents:
        """Return the contents of a pool of that size at a random moment."""
        pages, counts = self.draw_pages(blocks, random)
        return _native.PoolContents(pages.astype(np.uint32), counts.astype(np.uint8))

    def draw_pages(
        self, blocks: int, random: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return pages and usage counts of such contents; pages never visited are numbered behind."""
        lap = min(self.lap_seconds(blocks), float(self._laps[-1]))
        visits, trace = self._visits, self._trace
        pages: list[NDArray[np.int64]] = []
        counts: list[NDArray[np.int64]] = []
        stranger = len(trace.page_group)
        for group, visited in self._by_group:
            law = _native.clock_law(lap * visits.grid, visits.batches[group])
            members = visited[~trace.new_page[visited]]
            values, index = np.unique(visits.of_page[members], return_inverse=True)
            # In logarithms: a page may be visited more often than any rate with weight makes likely.
            prior = np.log(np.maximum(visits.weights[group], 1e-300))
            logs = _log_poisson(np.append(values, 0), visits.grid * visits.duration_seconds) + prior
            posterior = _scaled(logs)
            posterior /= posterior.sum(axis=1, keepdims=True)
            states = np.cumsum(posterior @ law, axis=1)
            states /= states[:, -1:]
            draws = random.random(len(members))
            state = (draws[:, None] > states[:-1][index.ravel()]).sum(axis=1)
            inside = state > 0
            pages.append(members[inside])
            counts.append(state[inside] - 1)
            never = max(trace.group_pages[group] - len(visited), 0.0)
            expected = never * float(1 - states[-1][0]) + stranger - len(trace.page_group)
            if expected > _MOST_STRANGERS:
                raise UsageError(
                    f"a pool of {format_bytes(blocks * BLOCK_BYTES)} is too large to replay the trace in",
                    cause=f"it would hold {expected:.2g} pages that the trace never names",
                    hint="name smaller sizes, for example --sizes 1GB,2GB,4GB",
                )
            unseen = random.multinomial(int(never), np.diff(states[-1], prepend=0.0))[1:]
            pages.append(np.arange(stranger, stranger + int(unseen.sum())))
            counts.append(np.repeat(np.arange(6), unseen))
            stranger += int(unseen.sum())
        page = np.concatenate(pages) if pages else np.zeros(0, dtype=np.int64)
        count = np.concatenate(counts) if counts else np.zeros(0, dtype=np.int64)
        chosen = random.permutation(len(page))[:blocks]
        return page[chosen], count[chosen]
