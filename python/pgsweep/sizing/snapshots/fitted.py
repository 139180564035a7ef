"""What was fitted to snapshots, as far as the page cache behind the pool needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.page_cache.residence import Classes
from pgsweep.sizing.snapshots.curve import Curve
from pgsweep.sizing.snapshots.load import Flow
from pgsweep.sizing.snapshots.observations import Group
from pgsweep.sizing.snapshots.rates import Rates

Floats = NDArray[np.float64]

_LEAST_PAGES: Final = 1e-4


@dataclass(frozen=True, kw_only=True)
class FittedCurve:
    """Rates of all groups, and the curve that they give.

    Attributes:
        curve: of pools of any size.
        rates: of each group, with its batch laws.
        pages: of each group, at each point of the grid; not those of `rates` where they were drawn again.
    """

    curve: Curve
    rates: list[Rates]
    pages: list[Floats]

    def classes(self) -> Classes:
        """Return pages in classes of one rate, without those of which there are none."""
        group, pages, rate, batch = [], [], [], []
        there_are = self.curve.simulated_pages(self.pages)
        for number, (side, own) in enumerate(zip(self.curve.sides, there_are, strict=True)):
            there = np.flatnonzero(own > _LEAST_PAGES)
            group.append(np.full(len(there), number))
            pages.append(own[there])
            rate.append(side.own[there] / self.curve.pass_seconds)
            batch.append(self.rates[number].batches()[there])
        return Classes(
            group=np.concatenate(group).astype(np.int64),
            pages=np.concatenate(pages),
            rate=np.concatenate(rate),
            batch=np.concatenate(batch),
        )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """All that a simulation of both caches needs. Blocks are of the sample, if one was taken.

    Attributes:
        best: the fit.
        halves: fits to each half of the recording; none where they are too short.
        drawn: fits to pages drawn again, and the fit that they were drawn from.
        groups: of pages; those without relations are of other databases.
        dirty: by group, which part of the pages that are about to be evicted is dirty.
        growth: by group, new blocks per second.
        extensions_are_reads: the server counts a new block as a miss (before 16).
        sampling_rate: share of blocks that were taken.
        seconds: for how long it was observed.
        short: by how much the miss ratio is off for each doubling of the size, since that was short.
    """

    best: FittedCurve
    halves: list[FittedCurve]
    drawn: tuple[FittedCurve, list[FittedCurve]]
    groups: tuple[Group, ...]
    dirty: Floats
    growth: Floats
    extensions_are_reads: bool
    sampling_rate: float
    seconds: float
    short: float

    @property
    def flows(self) -> list[Flow]:
        """What the counters say of each group, with its change."""
        return self.best.curve.simulated_flows

    @property
    def kept_blocks(self) -> float:
        """How many of the sampled blocks are in the pool at all times."""
        return self.best.curve.kept_blocks(self.best.pages)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which groups are of the database."""
        return np.array([bool(group.relations) for group in self.groups])
