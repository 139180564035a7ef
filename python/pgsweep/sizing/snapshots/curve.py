"""Predict every other size from rates: the time of a clock pass is the free variable, no root finding.

A pool of another size has another time of a clock pass; with the pass s times as long as today's, a page of λ
visits in a pass has λ·s. The resident pages then sum to the size of the pool, the misses follow. Sequential
scans are apart: of a large relation they go through a ring and leave hardly a trace in the pool, which is
decided again at each size (rules.py); else their pages come round together (scan_counts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.clock import Clock
from pgsweep.sizing.snapshots.load import Flow, SampledPool
from pgsweep.sizing.snapshots.rates import GRID, Rates, law_of
from pgsweep.sizing.snapshots.scan_counts import loop_absent
from pgsweep.sizing.what_if.changed_rates import LoadChange, RelationChange

Floats = NDArray[np.float64]

PASS_SCALES: Floats = np.geomspace(2e-3, 2e4, 260)
"""Times of a clock pass relative to today's at which the model is evaluated."""

_TODAY = float(np.interp(0.0, np.log(PASS_SCALES), np.arange(len(PASS_SCALES))))
"""Where among them today's is, between two of them."""

REGULARITY = 0.5
"""How regularly scans come, between at random (0) and at equal intervals (1): it is not seen.

One job scans by the clock, and many sessions at random. In a pool in which an interval takes one or two clock
passes the one misses each time and the other does not.
"""

_HAND_VISITS = 5.5
"""Clock passes that a new page stays for: filled row by row it is at usage_count 5, and the hand comes first
after half a pass on average."""

_PSEUDO_MISSES = 10.0
"""How many misses it takes for a group's own counter to weigh as much as the rates and the clock pass do."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """What visits and scans make of the pages of a group.

    Attributes:
        flow: of the group.
        own: visits per clock pass of the observed pool that are no scans', for pages of each grid point.
        beside: share of time absent of pages that scans pass by in a ring, shape (clock passes, grid).
        among: misses of scans, and absence, of pages that scans visit as well.
    """

    flow: Flow
    own: Floats
    beside: Floats
    among: tuple[Floats, Floats]


class Curve:
    """Resident pages and misses of all groups as functions of the time of a clock pass.

    The factors that make today's misses come out as counted are those of the load as it is, also with a
    change: then the answer has the accuracy of the curve only as far as the change is as described.

    Args:
        rates: of each group.
        pass_seconds: time of a clock pass of the pool under observation.
        pool: that pool.
        change: of the load.
        regularity: of scans without a ring: 1 at equal intervals, 0 at random as other visits.
        settled_seconds: for how long pools of other sizes have run when they are measured. What each scan
            leaves of its ring gathers over that time.

    Attributes:
        observed: what visits and scans make of each group as it is.
        sides: the same with the change.
    """

    def __init__(
        self,
        rates: list[Rates],
        pass_seconds: float,
        pool: SampledPool,
        *,
        change: LoadChange | None = None,
        regularity: float = REGULARITY,
        settled_seconds: float = float("inf"),
    ) -> None:
        self.pool = pool
        self.pass_seconds = pass_seconds
        self._settled_seconds = settled_seconds
        self.observed = [
            self._side(group, flow, self._own(group, flow), regularity)
            for group, flow in zip(rates, pool.flows, strict=True)
        ]
        self._changes = [RelationChange()] * len(rates) if change is None else change.groups
        self.sides = self.observed
        if change is not None:
            each = zip(rates, self.observed, change.groups, strict=True)
            self.sides = [self._changed(*one, change.factor, regularity) for one in each]

    def _own(self, group: Rates, flow: Flow) -> Floats:
        """Return the visits per clock pass that are no scans', for pages of each grid point."""
        scan_visits = flow.scans * self.pass_seconds
        own = GRID
        if scan_visits > 0 and not flow.ringed(self.pool.blocks):
            own = np.maximum(GRID - scan_visits, GRID[0])
        if scan_visits > 0:
            # What scans leave of the accesses that were counted bounds the other visits.
            left = max(flow.accesses - flow.scan_accesses, 0.0) * self.pass_seconds
            visits = float(group.pages @ own)
            own = own * min(1.0, left / visits) if visits > 0 else own
            own = np.maximum(own, 1e-9)
        return own

    def _side(self, group: Rates, flow: Flow, own: Floats, regularity: float) -> Side:
        """Return what visits and scans make of a group's pages, given the visits that are no scans'."""
        scan_visits = flow.scans * self.pass_seconds
        beside = _absent(own, group)
        if scan_visits <= 0:
            return Side(flow=flow, own=own, beside=beside, among=(beside, beside))
        at_random = _absent(own + scan_visits, group)
        missed, absent = (
            regularity * beside * part[:, None] + (1 - regularity) * at_random
            for part in loop_absent(scan_visits * PASS_SCALES)
        )
        return Side(flow=flow, own=own, beside=beside, among=(missed, absent))

    def _changed(
        self, group: Rates, side: Side, change: RelationChange, factor: float, regularity: float
    ) -> Side:
        """Return what visits and scans make of a group with its change."""
        flow, own, rate = side.flow, side.own * factor / change.growth, self.pool.sampling_rate
        visits = float(group.pages @ side.own) * factor / self.pass_seconds
        if change.visits_per_second > 0 and visits > 0:
            own = own * (1 + change.visits_per_second * rate / visits)
        blocks = flow.scanned_blocks * change.growth
        if change.scans_per_second > 0:
            blocks = change.blocks * rate
        scans = flow.scans * factor + change.scans_per_second
        # Those that are added come at equal intervals.
        added = change.scans_per_second / max(scans, 1e-12)
        flow = replace(flow, extensions=flow.extensions * factor, scans=scans, scanned_blocks=blocks)
        return self._side(group, flow, own, regularity + (1 - regularity) * added)

    def miss_rates(self, pages: list[Floats], sizes: Sequence[int]) -> list[float]:
        """Return the misses per second of pools of these numbers of blocks.

        Args:
            pages: for each group the number of pages at each grid point (fitted, or drawn again).
        """
        # Sizes differ by the rings of scans alone: most of them share one table.
        known: dict[tuple[int | None, ...], tuple[Floats, Floats]] = {}
        rates = []
        for blocks in sizes:
            rings = self._rings(blocks)
            if rings not in known:
                known[rings] = self._by_pass(pages, blocks)
            rates.append(self._at_size(*known[rings], blocks))
        return rates

    def _rings(self, blocks: int) -> tuple[int | None, ...]:
        """Return the ring size of each group that is scanned, None without a ring, in a pool of that size.

        And at last that of VACUUM.
        """
        scanned = (side.flow for side in self.sides if side.flow.scans > 0)
        return (
            *(self.pool.ring_blocks(blocks) if flow.ringed(blocks) else None for flow in scanned),
            self.pool.vacuum_ring_blocks(blocks),
        )

    def pass_seconds_at(self, pages: list[Floats], blocks: int) -> float:
        """Return the time of a clock pass of a pool of that many blocks; `pages` as for `miss_rates`."""
        resident, _ = self._by_pass(pages, blocks)
        return self.pass_seconds * self._at_size(resident, PASS_SCALES, blocks)

    def by_group(self, pages: list[Floats], blocks: int) -> tuple[float, Floats]:
        """Return the time of a clock pass relative to today's, and the misses of each group per second.

        Args:
            pages: as for `miss_rates`.
            blocks: of the pool. Groups that a change leaves out or keeps in the pool have none.
        """
        resident, _ = self._by_pass(pages, blocks)
        passes = self._at_size(resident, PASS_SCALES, blocks)
        found = np.zeros(len(pages))
        for index, (change, group_pages) in enumerate(zip(self._changes, pages, strict=True)):
            if not (change.left_out or change.kept):
                _, missed = self._of_group(index, group_pages, blocks)
                found[index] = np.interp(np.log(passes), np.log(PASS_SCALES), missed)
        return passes, found

    def resident_of(self, index: int, pages: Floats, blocks: int, passes: float) -> float:
        """Return how many pages of a group, all `pages` of it, a pool of that size and clock pass holds."""
        there, _ = self._of_group(index, pages, blocks)
        return float(np.interp(np.log(passes), np.log(PASS_SCALES), there))

    @property
    def simulated_flows(self) -> list[Flow]:
        """Each group's flow with its change; what is left out or always in the pool is not scanned."""
        return [
            replace(side.flow, scans=0.0) if change.left_out or change.kept else side.flow
            for change, side in zip(self._changes, self.sides, strict=True)
        ]

    def simulated_pages(self, pages: list[Floats]) -> list[Floats]:
        """Return the pages of each group with its change: none of what is left out or always in the pool."""
        return [
            group * (0.0 if change.left_out or change.kept else change.growth)
            for change, group in zip(self._changes, pages, strict=True)
        ]

    def kept_blocks(self, pages: list[Floats]) -> float:
        """Return how many of the sampled blocks are in the pool at all times."""
        kept = zip(self._changes, pages, strict=True)
        return sum(float(group.sum()) * change.growth for change, group in kept if change.kept)

    def unaccounted(self, pages: list[Floats]) -> float:
        """Return how many buffers of the pool under observation no group accounts for."""
        here = zip(self.observed, pages, strict=True)
        return self.pool.blocks - sum(self._resident_today(side, group) for side, group in here)

    def _by_pass(self, pages: list[Floats], blocks: int) -> tuple[Floats, Floats]:
        """Return resident pages and misses per second by time of a clock pass."""
        resident = np.zeros(len(PASS_SCALES))
        misses = np.zeros(len(PASS_SCALES))
        for index, (change, group_pages) in enumerate(zip(self._changes, pages, strict=True)):
            if change.left_out:
                continue
            new = change.new_blocks_per_second * self.pool.sampling_rate
            misses += new if self.pool.extensions_are_reads else 0.0
            grown = group_pages * change.growth
            if change.kept:
                resident += float(grown.sum())
                misses += self.sides[index].flow.extensions
                continue
            resident += new * self.pass_seconds * PASS_SCALES * _HAND_VISITS
            there, missed = self._of_group(index, group_pages, blocks)
            resident += there
            misses += missed
        # Buffers that no group accounts for (pages of dropped relations, rounding) stay as they are.
        return resident + self.unaccounted(pages), misses

    def _resident_today(self, side: Side, pages: Floats) -> float:
        """Return how many pages of a group are expected in the pool under observation."""
        _, absent = self._tables(side, self.pool.blocks)
        return float((1 - _today(absent)) @ pages)

    def _of_group(self, index: int, observed: Floats, blocks: int) -> tuple[Floats, Floats]:
        """Return resident pages and misses per second of a group, by time of a clock pass.

        Args:
            observed: its pages at each grid point, without a change.
        """
        side, factor = self.sides[index], self.factor(index, observed)
        flow, pages = side.flow, observed * self._changes[index].growth
        scan_missed, absent = self._tables(side, blocks)
        away, own_missed = (absent @ np.stack([pages, pages * side.own], axis=1)).T
        misses = factor / self.pass_seconds * own_missed + flow.extensions
        if flow.scans > 0:
            misses += np.minimum(factor * flow.scans * (scan_missed @ pages), flow.scan_accesses)
        if flow.vacuumed > 0:
            # VACUUM visits pages through a ring of its own (vacuum.c), and misses those that are not there.
            _, vacuumed, _ = self._of_today(index, observed)
            misses += factor * vacuumed * away / max(float(pages.sum()), 1e-9)
        return np.asarray(pages.sum() - away), np.asarray(misses)

    def _at_size(self, resident: Floats, misses: Floats, blocks: int) -> float:
        """Return the misses where the resident pages fill a pool of that many blocks."""
        at = np.interp(np.log(blocks), np.log(np.maximum(resident, 1e-9)), np.log(PASS_SCALES))
        return float(np.interp(at, np.log(PASS_SCALES), misses))

    def _tables(self, side: Side, blocks: int) -> tuple[Floats, Floats]:
        """Return how often a scan misses and the share of time absent, shape (clock passes, grid)."""
        flow, beside = side.flow, side.beside
        missed, absent = side.among
        if flow.ringed(blocks):
            missed = absent = beside
            if flow.scans > 0:
                left = flow.participants * self.pool.ring_blocks(blocks) / flow.scanned_blocks
                missed = absent = beside * (1 - self._gathered(left, flow.scans))[:, None]
        if flow.vacuumed > 0 and flow.vacuums > 0:
            # What lies there today the rates show.
            away = (1 - self._left_by_vacuum(flow, blocks)) / (
                1 - min(float(_today(self._left_by_vacuum(flow, self.pool.blocks))), 0.99)
            )
            away = np.minimum(away, 1.0)[:, None]
            missed, absent = missed * away, absent * away
        return missed, absent

    def _left_by_vacuum(self, flow: Flow, blocks: int) -> Floats:
        """Return which part of a table lies in the pool because rings of VACUUM were left there, by pass.

        It skips what is all visible, and the next one is taken to visit any page as likely as this one did.
        """
        visited = min(flow.vacuumed / flow.vacuums, flow.scanned_blocks)
        share = visited / max(flow.scanned_blocks, 1.0)
        left = min(self.pool.vacuum_ring_blocks(blocks) / max(visited, 1.0), 1.0)
        return share * self._gathered(left, share * flow.vacuums)

    def _gathered(self, left: float, per_second: float) -> Floats:
        """Return which part of a relation lies in the pool because rings were left there, by clock pass.

        A ring's buffers stay when its scan or VACUUM ends, and a later one that finds such a page keeps it:
        it raises a count of 0 to 1 (bufmgr.c, PinBuffer). So where they come more often than the hand, each
        adds its ring to what the others left, until all that they visit is there.

        Args:
            left: which part each leaves.
            per_second: how many there are.
        """
        lost, _ = loop_absent(per_second * self.pass_seconds * PASS_SCALES)
        most = left * (1 + self._settled_seconds * per_second) if left > 0 else 0.0
        gathered = np.minimum(left / np.maximum(lost, 1e-6), most)
        return np.minimum(gathered, 1.0)

    def expected_misses(self, pages: list[Floats]) -> list[float]:
        """Return today's misses of each group per second as rates and scans have them, not as counted."""
        return [self._expected(index, group) for index, group in enumerate(pages)]

    def _expected(self, index: int, pages: Floats) -> float:
        missed, vacuumed, absent = self._of_today(index, pages)
        return missed + vacuumed * absent

    def _of_today(self, index: int, pages: Floats) -> tuple[float, float, float]:
        """Return a group's misses by visits and scans, what VACUUM visits, and which part of that it misses.

        Per second. How many blocks VACUUM skips is not known: it visits no more than what the others leave
        of the misses.
        """
        side = self.observed[index]
        flow = side.flow
        scan_missed, absent = (_today(table) for table in self._tables(side, self.pool.blocks))
        missed = float(absent @ (pages * side.own)) / self.pass_seconds + flow.scans * float(
            scan_missed @ pages
        )
        if flow.vacuumed <= 0:
            return missed, 0.0, 0.0
        away = float(absent @ pages) / max(float(pages.sum()), 1e-9)
        left = max(flow.misses - flow.extensions - missed, 0.0)
        return missed, min(flow.vacuumed, left / max(away, 1e-9)), away

    def factor(self, index: int, pages: Floats) -> float:
        """Return by what the misses of a group are multiplied, such that today's come out as counted.

        A group that hardly ever misses today has no misses to measure that by: what the clock pass says holds
        then, or else nothing of it would ever miss at any smaller size.
        """
        flow = self.pool.flows[index]
        expected = self._expected(index, pages)
        counted = max(flow.misses - flow.extensions, 0.0)
        return (counted * self.pool.seconds + _PSEUDO_MISSES) / (
            expected * self.pool.seconds + _PSEUDO_MISSES
        )


def _today(table: Floats) -> Floats:
    low = int(_TODAY)
    share = _TODAY - low
    return np.asarray(table[low] * (1 - share) + table[low + 1] * share)


def _absent(visits_per_pass: Floats, rates: Rates) -> Floats:
    """Return P(absent), shape (clock passes, grid)."""
    arrays = (visits_per_pass, rates.batch, rates.hot_batch)
    return _absent_of(*(array.tobytes() for array in arrays), rates.clock)


@lru_cache(maxsize=64)
def _absent_of(visits_per_pass: bytes, batch: bytes, hot_batch: bytes, clock: Clock) -> Floats:
    """Return what `_absent` does; kept, as many of the curves and groups that are compared have one law."""
    visits = PASS_SCALES[:, None] * np.frombuffer(visits_per_pass)
    law = law_of(visits, np.frombuffer(batch), np.frombuffer(hot_batch), clock)
    absent = np.ascontiguousarray(law[:, :, 0])
    absent.setflags(write=False)
    return absent
