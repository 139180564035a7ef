"""From rates to every other size: one lap of the hand as the free variable, no root finding.

A pool of another size has another lap time; with the lap s times today's, a page of x visits per lap has
x·s. The resident pages then sum to the size of the pool, the misses follow. Sequential scans of relations
larger than a quarter of the pool go through a ring and leave no trace in it (heapam.c: initscan), and that
is decided again at
each size: such a scan visits every page once, either as a visit like any other or past the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.inference.rates import GRID, Rates

Floats = NDArray[np.float64]

LAP_SCALES: Floats = np.geomspace(2e-3, 2e4, 260)
"""Laps relative to today's at which the model is evaluated."""

_PSEUDO_MISSES = 10.0
"""How many misses it takes for a group's own counter to weigh as much as the rates and the common lap do."""


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What the server's counters say about a group, per second.

    Attributes:
        misses: reads that the server counted.
        extensions: new blocks, where the server counts each as a read (before 16), else 0.
        scans: full sequential scans.
        scanned_blocks: size of the relation that they scan.
    """

    misses: float
    extensions: float = 0.0
    scans: float = 0.0
    scanned_blocks: float = 0.0


class Curve:
    """Resident pages and misses of all groups as functions of the lap.

    Args:
        rates: of each group.
        flows: of each group.
        observed_blocks: size of the pool under observation.
        lap_seconds: its lap.
        seconds: for how long misses were counted.
    """

    def __init__(
        self,
        rates: list[Rates],
        flows: list[Flow],
        observed_blocks: int,
        lap_seconds: float,
        seconds: float,
    ) -> None:
        self.flows = flows
        self._seconds = seconds
        self.observed_blocks = observed_blocks
        self.lap_seconds = lap_seconds
        self._own: list[Floats] = []
        self._absent: list[tuple[Floats, Floats]] = []
        for group, flow in zip(rates, flows, strict=True):
            scan_visits = flow.scans * lap_seconds
            ringed_today = flow.scanned_blocks > observed_blocks / 4
            own = GRID if ringed_today else np.maximum(GRID - scan_visits, GRID[0])
            self._own.append(own)
            beside = _absent(own, group)
            self._absent.append((beside, _absent(own + scan_visits, group) if scan_visits > 0 else beside))

    def miss_rate(self, pages: list[Floats], blocks: int) -> float:
        """Return the misses per second of a pool of that many blocks.

        Args:
            pages: for each group the number of pages at each grid point (fitted, or drawn again).
        """
        resident = np.zeros(len(LAP_SCALES))
        resident_today = 0.0
        misses = np.zeros(len(LAP_SCALES))
        for index, (flow, group_pages) in enumerate(zip(self.flows, pages, strict=True)):
            ringed = flow.scanned_blocks > blocks / 4
            absent = self._absent[index][0 if ringed else 1]
            resident += (1 - absent) @ group_pages
            ringed_today = flow.scanned_blocks > self.observed_blocks / 4
            resident_today += float((1 - self._today(index, ringed=ringed_today)) @ group_pages)
            misses += self._factor(index, group_pages) * (absent @ (group_pages * self._own[index]))
            misses += flow.scans * (absent @ group_pages) + flow.extensions
        # Frames that no group accounts for (pages of dropped relations, rounding) stay as they are.
        resident += self.observed_blocks - resident_today
        at = np.interp(np.log(blocks), np.log(np.maximum(resident, 1e-9)), np.log(LAP_SCALES))
        return float(np.interp(at, np.log(LAP_SCALES), misses))

    def _factor(self, index: int, pages: Floats) -> float:
        """Return misses per second for one miss per lap, such that today's misses of the group come out.

        A group that hardly ever misses today has no misses to measure that by: what the lap says holds then,
        or else nothing of it would ever miss at any smaller size.
        """
        flow = self.flows[index]
        own = self._own[index]
        ringed_today = flow.scanned_blocks > self.observed_blocks / 4
        absent = self._today(index, ringed=ringed_today)
        scanned = flow.scans * float(absent @ pages)
        expected = float(absent @ (pages * own)) / self.lap_seconds * self._seconds
        counted = max(flow.misses - flow.extensions - scanned, 0.0) * self._seconds
        return (counted + _PSEUDO_MISSES) / (expected + _PSEUDO_MISSES) / self.lap_seconds

    def _today(self, index: int, *, ringed: bool) -> Floats:
        table = self._absent[index][0 if ringed else 1]
        position = float(np.interp(0.0, np.log(LAP_SCALES), np.arange(len(LAP_SCALES))))
        low = int(position)
        share = position - low
        return np.asarray(table[low] * (1 - share) + table[low + 1] * share)


def _absent(visits_per_lap: Floats, rates: Rates) -> Floats:
    """Return P(absent), shape (laps, grid)."""
    return np.ascontiguousarray(rates.law(LAP_SCALES[:, None] * visits_per_lap[None, :])[:, :, 0])
