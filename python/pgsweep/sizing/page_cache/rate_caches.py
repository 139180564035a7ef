"""What of the pool's misses comes from disk, from rates of visits: both caches under a load that is drawn.

Pages are visited at random times by the rates that were fitted to snapshots, each independently of the
others; scans come at equal distances. The pool works by its own rules, what it misses is read through the
page cache (core/src/files.rs), and what it evicts dirty is written there, as in a replayed trace
(both_caches.py). Pages that never leave are visited no more often than that takes. Many pages are simulated
as fewer: the pool, the page cache and the relations are all smaller by the same factor, and hit ratios stay.

Both caches begin as the closed form has them (residence.py), and run until one and a half times the page
cache has been brought in. Where pages lie in their relations is not known: they are placed at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.host.page_cache_rules import STATISTICS_SECONDS
from pgsweep.sizing.page_cache.both_caches import (
    LEAST_PAGES,
    PAGES_A_BLOCK,
    PageCache,
    SimulatedReads,
)
from pgsweep.sizing.page_cache.residence import MOST_VISITS, Classes, Residence
from pgsweep.sizing.rules import most_blocks_without_ring
from pgsweep.sizing.snapshots.ensemble import FittedCurve, LoadCurves
from pgsweep.units import BLOCK_BYTES

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rows = tuple[NDArray[np.uint32], NDArray[np.uint8], Ints, Floats]
"""Pages, flags, owners, and when."""

_PAGES: Final = 16_000
_MOST_PAGES: Final = 2_000_000
_LEAST_POOL: Final = 300
"""Blocks that are simulated of the relations, and at least of the pool."""

_TURNOVERS: Final = 1.5
"""How many pages are read into the page cache before misses are counted, for each that it has."""

_PASSES: Final = 2.0
_BRIEF_PASSES: Final = 3.0
_BRIEF_TURNOVERS: Final = 20.0
"""How often a page cache is filled that begins empty: hits are rare, so its active list grows slowly."""

_GATHERINGS: Final = 5
"""How often the kernel's statistics are gathered before: its first statistics are not yet representative."""

_COUNTED_GATHERINGS: Final = 10
"""The same while misses are counted: what comes from disk differs between one and the next."""

_COUNTED: Final = 8_000
"""Misses that are counted, where that takes no more than `_MOST_ROWS` accesses."""

_MOST_ROWS: Final = 2_000_000
_FEWEST_SECONDS: Final = 1e-6
_LONGEST_SECONDS: Final = 1e12
_FEWEST_PAGES: Final = 256
"""The smallest page cache that can be simulated (MIN_CAPACITY_PAGES, core/src/page_cache.rs)."""

_NEW_PAGE_ACCESSES: Final = 5
_SIX_DEVIATIONS: Final = 6.0
"""Of the number of new pages, which is drawn."""

_PLAIN: Final = -1


@dataclass(frozen=True, kw_only=True)
class _Load:
    """What is accessed, in order.

    Attributes:
        pages: by row.
        flags: as `_native.replay_outcomes` takes them.
        owner: by row, which scan it is part of; -1 for none.
        seconds: when.
        new_pages: numbered behind all others.
    """

    pages: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    owner: Ints
    seconds: Floats
    new_pages: int


class RateCaches:
    """Simulates both caches at any size.

    Args:
        fitted: to snapshots.
        rules: of the server.
        random: for all draws.
    """

    def __init__(self, fitted: LoadCurves, rules: _native.Rules, random: np.random.Generator) -> None:
        self._fitted = fitted
        self._rules = rules
        self._random = random
        self._classes = fitted.best.classes()
        curve, pages = fitted.best.curve, fitted.best.pages
        self._factor = np.array([curve.factor(number, own) for number, own in enumerate(pages)])

    def at(self, pool_blocks: int, page_caches: list[PageCache]) -> list[SimulatedReads]:
        """Simulate a pool in front of page caches of any kind, and return what each makes of its misses.

        Args:
            pool_blocks: of the pool.
            page_caches: how long it runs before misses are counted is as for the first.
        """
        return _Run(self, pool_blocks, page_caches).results()

    def closed_form(self, fit: FittedCurve, pool_blocks: int, capacity_bytes: int) -> tuple[float, float]:
        """Return which share of the misses waits for the disk, and for how long the page cache keeps a page.

        Args:
            fit: the rates.
            pool_blocks: of the pool.
            capacity_bytes: of the page cache.
        """
        fitted, rate = self._fitted, self._fitted.load.pool.sampling_rate
        pass_seconds = fit.curve.pass_seconds_at(fit.pages, round(pool_blocks * rate))
        classes = fit.classes()
        residence = Residence(classes, pass_seconds)
        kept = residence.kept_seconds(capacity_bytes / BLOCK_BYTES * rate)
        weight = self._factor[classes.group] * fitted.counted[classes.group]
        misses = classes.pages * residence.miss_rate * weight
        total = float(misses.sum())
        if total <= 0 or not np.isfinite(kept):
            return 0.0, kept
        return float(misses @ (1 - residence.found(kept))) / total, kept


class _Run:
    """One simulation."""

    def __init__(self, caches: RateCaches, pool_blocks: int, page_caches: list[PageCache]) -> None:
        self._fitted = fitted = caches._fitted
        self._rules, self._random, self._page_caches = caches._rules, caches._random, page_caches
        self._factor = caches._factor
        self._dirty = fitted.dirty
        classes = caches._classes
        fit = fitted.best
        rate = fitted.load.pool.sampling_rate
        sampled = max(round(pool_blocks * rate), 1)
        self._pass_seconds = fit.curve.pass_seconds_at(fit.pages, sampled)
        taken = fit.curve.unaccounted(fit.pages)
        kept = fitted.kept_blocks
        pool = max(sampled - taken - kept, (sampled - kept) / 2)
        in_blocks = [one.capacity_bytes / BLOCK_BYTES * rate for one in page_caches]
        total = float(classes.pages.sum())
        large_folios = any(one.folio_order for one in page_caches)
        least = LEAST_PAGES // PAGES_A_BLOCK if large_folios else _LEAST_POOL
        smallest = max(min(in_blocks), 1.0)
        scale = max(_PAGES / total, _LEAST_POOL / pool, least / smallest)
        self._scale = min(scale, 1.0, max(_MOST_PAGES / total, 1e-9))
        self._simulated_share = self._scale * rate
        self.pool = max(round(pool * self._scale), 16)
        # A scan goes through a ring where its table is more than a quarter of all buffers, with those of
        # what is kept.
        self._fewer_blocks = most_blocks_without_ring(kept)
        self._simulated = _drawn(classes, self._scale, self._random)
        at_least = LEAST_PAGES if large_folios else _FEWEST_PAGES
        wanted = [max(blocks * self._scale * PAGES_A_BLOCK, at_least) for blocks in in_blocks]
        self._residence = Residence(self._simulated, self._pass_seconds)
        self._begins = np.append(0, np.cumsum(self._simulated.pages)).astype(np.int64)
        self._group_begins = np.searchsorted(
            np.repeat(self._simulated.group, self._simulated.pages.astype(np.int64)),
            np.arange(len(fitted.load.groups) + 1),
        )
        self._class_of_page = np.repeat(np.arange(len(self._begins) - 1), np.diff(self._begins))
        self._in_pool = np.zeros(len(self._class_of_page), dtype=bool)
        self._place = self._placed()
        self._before_seconds, self._seconds = self._lengths(wanted[0] / PAGES_A_BLOCK)
        # A page cache larger than all pages, with those that are made, evicts nothing, however large it is.
        made = self._scale * float(fitted.growth.sum()) * (self._before_seconds + self._seconds)
        pages = float(self._simulated.pages.sum()) + made + _SIX_DEVIATIONS * np.sqrt(made)
        most = pages * PAGES_A_BLOCK + LEAST_PAGES
        self._capacities = [int(min(one, most)) for one in wanted]

    def _placed(self) -> NDArray[np.uint32]:
        """Return the address of each page: somewhere among those of its group."""
        place = np.empty(int(self._begins[-1]), dtype=np.uint32)
        for begin, end in zip(self._group_begins[:-1], self._group_begins[1:], strict=True):
            place[begin:end] = begin + self._random.permutation(int(end - begin))
        return place

    def _lengths(self, cache: float) -> tuple[float, float]:
        """Return for how long it runs before misses are counted, and while they are.

        Args:
            cache: blocks that the page cache has room for.
        """
        fitted, simulated = self._fitted, self._simulated
        scanned = np.array([flow.scan_accesses for flow in fitted.flows]) * self._scale
        grown = float(fitted.growth.sum()) * self._scale
        loads = simulated.pages * self._residence.miss_rate
        written = float((loads * self._dirty[simulated.group]).sum())
        counted = float(loads @ fitted.counted[simulated.group]) + float(scanned @ fitted.counted)
        steps = simulated.batch @ np.arange(1.0, 6.0)
        visits = np.minimum(simulated.rate, MOST_VISITS / self._pass_seconds)
        rows = float((simulated.pages * visits) @ steps) + float(scanned.sum()) + grown * _NEW_PAGE_ACCESSES
        # What is found there brings nothing in.
        kept = self._residence.kept_seconds(cache)
        found = self._residence.found(min(kept, _LONGEST_SECONDS))
        read = float(loads @ (1 - found)) + float(scanned.sum()) + written + grown
        read = read if np.isfinite(kept) else float("inf")
        before = max(
            _TURNOVERS * cache / max(read, 1e-9),
            _PASSES * self._pass_seconds,
            _BRIEF_TURNOVERS * kept if kept < _BRIEF_PASSES * self._pass_seconds else 0.0,
            _GATHERINGS * STATISTICS_SECONDS,
        )
        measured = max(_COUNTED / max(counted, 1e-9), _COUNTED_GATHERINGS * STATISTICS_SECONDS)
        scans = [flow.scans for flow in fitted.flows if flow.scans > 0]
        if scans:
            measured = max(measured, 2 / min(scans))
        most = _MOST_ROWS / max(rows, 1e-9)
        if before + measured > most:
            measured = max(min(measured, most / 2), _FEWEST_SECONDS)
            before = max(most - measured, 0.0)
        return before, measured

    def results(self) -> list[SimulatedReads]:
        """Return what each page cache makes of it."""
        load = self._load()
        owned = np.flatnonzero(load.owner != _PLAIN)
        owner, owner_blocks = self._owners(load.owner[owned])
        end = int(self._begins[-1]) + load.new_pages
        # New pages are the last group.
        groups = np.append(self._group_begins, end).astype(np.uint32)
        warm = self._warm_pool()
        resident = {capacity: self._first_residents(capacity) for capacity in set(self._capacities)}
        found = _native.both_caches(
            load.pages,
            load.seconds,
            _native.FileSpace(
                np.unique(groups), groups, self._dirty_shares(), gather_seconds=STATISTICS_SECONDS
            ),
            self.pool,
            self._rules,
            [
                one.holding(capacity, resident[capacity], pages_each=1 / self._simulated_share)
                for one, capacity in zip(self._page_caches, self._capacities, strict=True)
            ],
            counted_from=int(np.searchsorted(load.seconds, self._before_seconds)),
            seed=int(self._random.integers(1 << 63)),
            flags=load.flags,
            owner_access=owned.astype(np.uint64) if len(owned) else None,
            owner=owner if len(owned) else None,
            owner_blocks=owner_blocks if len(owned) else None,
            warm=warm,
        )
        made = 0
        if self._fitted.load.pool.extensions_are_reads:
            extended = (load.flags & _native.EXTENSION) > 0
            made = int((extended & (load.seconds >= self._before_seconds)).sum())
        return [
            self._reads(reads, capacity, made)
            for reads, capacity in zip(found, self._capacities, strict=True)
        ]

    def _dirty_shares(self) -> Floats:
        """Return how likely pages of each group are dirty when they are evicted, new ones last."""
        grown = self._fitted.growth
        new = float(grown @ self._dirty) / max(float(grown.sum()), 1e-9)
        return np.append(self._dirty, new)

    def _owners(self, owner: Ints) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the number of each scan, and the blocks of its table."""
        found, number = np.unique(owner, return_inverse=True)
        flows, scanned = self._fitted.flows, found % len(self._fitted.load.groups)
        sizes = [flows[group].scanned_blocks - self._fewer_blocks for group in scanned.tolist()]
        blocks = [max(round(size * self._scale), 1) for size in sizes]
        return number.astype(np.uint32).ravel(), np.array(blocks, dtype=np.uint32)

    def _load(self) -> _Load:
        simulated, random = self._simulated, self._random
        seconds = self._before_seconds + self._seconds
        visits = simulated.pages * np.minimum(simulated.rate, MOST_VISITS / self._pass_seconds)
        rows, at = _native.drawn_accesses(
            visits,
            self._begins,
            simulated.batch,
            self._place,
            count=int(random.poisson(float(visits.sum()) * seconds)),
            seconds=seconds,
            seed=int(random.integers(1 << 63)),
        )
        plain = np.full(len(rows), _PLAIN)
        parts = [(rows, np.zeros(len(rows), np.uint8), plain, at)]
        new = int(random.poisson(float(self._fitted.growth.sum()) * self._scale * seconds))
        parts += [self._growth(new, seconds)] if new else []
        parts += self._scans(seconds)
        if len(parts) == 1:
            return _Load(pages=rows, flags=parts[0][1], owner=plain, seconds=at, new_pages=0)
        when = np.concatenate([part[3] for part in parts])
        order = np.argsort(when, kind="stable")
        return _Load(
            pages=np.concatenate([part[0] for part in parts])[order],
            flags=np.concatenate([part[1] for part in parts])[order],
            owner=np.concatenate([part[2] for part in parts])[order],
            seconds=when[order],
            new_pages=new,
        )

    def _growth(self, count: int, seconds: float) -> Rows:
        """Return the rows of new pages: each is made, and filled row by row."""
        page = int(self._begins[-1]) + np.arange(count)
        flags = np.zeros((count, _NEW_PAGE_ACCESSES), dtype=np.uint8)
        flags[:, 0] = _native.EXTENSION
        rows = np.repeat(page, _NEW_PAGE_ACCESSES).astype(np.uint32)
        at = np.repeat(np.sort(self._random.random(count)) * seconds, _NEW_PAGE_ACCESSES)
        return rows, flags.ravel(), np.full(len(rows), _PLAIN), at

    def _scans(self, seconds: float) -> list[Rows]:
        """Return the rows of scans: of all pages of a group, one after the other, at equal distances."""
        found = []
        for group, flow in enumerate(self._fitted.flows):
            begin, end = int(self._group_begins[group]), int(self._group_begins[group + 1])
            if flow.scans <= 0 or begin == end:
                continue
            when = (self._random.random() + np.arange(int(seconds * flow.scans) + 1)) / flow.scans
            when = when[when < seconds]
            rows = np.tile(np.arange(begin, end), len(when)).astype(np.uint32)
            number = np.repeat(np.arange(len(when)) * len(self._fitted.load.groups) + group, end - begin)
            flags = np.full(len(rows), _native.BULKREAD, dtype=np.uint8)
            found.append((rows, flags, number, np.repeat(when, end - begin)))
        return found

    def _warm_pool(self) -> _native.PoolContents:
        """Draw a state of the pool by the law of each page."""
        below = np.cumsum(self._residence.states, axis=1)
        of, drawn = self._class_of_page, self._random.random(len(self._class_of_page))
        state = np.zeros(len(of), dtype=np.int64)
        for column in range(below.shape[1] - 1):
            state += drawn >= below[of, column]
        there = self._random.permutation(np.flatnonzero(state > 0))[: self.pool]
        self._in_pool[there] = True
        return _native.PoolContents(self._place[there], (state[there] - 1).astype(np.uint8))

    def _first_residents(self, capacity_pages: int) -> NDArray[np.uint32]:
        """Draw what the page cache holds at first, in the order in which it was read.

        What lies in the pool was read when it was loaded, what does not, at least a clock pass ago. So a page
        that is not in the pool is cached as often as one that is missed. A page cache that keeps pages hardly
        longer than a clock pass begins empty: what is drawn into it could be read again at once, which makes
        it active, and then it stays. A page cache that misses do not fill in any time keeps what was ever
        read: all pages, also what has lain in the pool since it was first read.
        """
        most = capacity_pages // PAGES_A_BLOCK
        residence, of, inside = self._residence, self._class_of_page, self._in_pool
        kept = residence.kept_seconds(most)
        if not np.isfinite(kept):
            return self._random.permutation(self._place)[:most]
        if kept < _BRIEF_PASSES * self._pass_seconds:
            return np.zeros(0, np.uint32)
        absent, missed = residence.states[:, 0], residence.found(kept)
        resident = (residence.cached(kept) - missed * absent) / np.maximum(1 - absent, 1e-9)
        chance = np.where(inside, np.clip(resident, 0, 1)[of], missed[of])
        cached = np.flatnonzero(self._random.random(len(of)) < chance)
        youngest = np.where(inside[cached], 0.0, min(self._pass_seconds, kept))
        age = youngest + self._random.random(len(cached)) * (kept - youngest)
        ordered = cached[np.argsort(-age, kind="stable")]
        return self._place[ordered[-most:]]

    def _reads(self, reads: _native.PageCacheReads, capacity_pages: int, made: int) -> SimulatedReads:
        """Return what a page cache made of it.

        Args:
            reads: by group.
            capacity_pages: its size.
            made: how many new pages count as misses.
        """
        fitted = self._fitted
        misses, waited, disk_pages = (
            np.where(fitted.counted, reads[name][:-1], 0) for name in ("misses", "waited", "disk_pages")
        )
        group_misses, group_reads = misses * self._factor, waited * self._factor
        total = max(float(group_misses.sum()) + made, 1e-9)
        simulated = self._simulated_share
        return SimulatedReads(
            misses=int(misses.sum()),
            disk_share=float(group_reads.sum()) / total,
            disk_blocks=float(disk_pages @ self._factor) / PAGES_A_BLOCK / total,
            twice_blocks=round(reads["twice_blocks"] / simulated),
            refaults_per_second=reads["refaulted_pages"] / max(self._seconds, 1e-9) / simulated,
            turnovers=reads["blocks_before"] * PAGES_A_BLOCK / capacity_pages,
            group_misses=group_misses,
            group_reads=group_reads,
        )


def _drawn(classes: Classes, scale: float, random: np.random.Generator) -> Classes:
    """Return fewer pages, in whole numbers; classes without a page are left out."""
    wanted = classes.pages * scale
    pages = np.floor(wanted + random.random(len(wanted)))
    there = np.flatnonzero(pages > 0)
    return Classes(
        group=classes.group[there],
        pages=pages[there],
        rate=classes.rate[there],
        batch=classes.batch[there],
    )
