"""What was fitted to snapshots, as far as the page cache behind the pool needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.page_cache.residence import Classes
from pgsweep.sizing.snapshots.curve import Curve, Flow
from pgsweep.sizing.snapshots.observations import Group, Observations, Table
from pgsweep.sizing.snapshots.rates import Rates, resample
from pgsweep.sizing.what_if.changed_curve import Changes

Floats = NDArray[np.float64]

_LEAST_PAGES: Final = 1e-4
_DRAWN: Final = 4
_ABOUT_TO_GO: Final = 1
"""Pages with at most this usage count show how much is dirty when it is evicted."""


@dataclass(frozen=True, kw_only=True)
class Fit:
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
        for number, (side, own) in enumerate(zip(self.curve.simulated_sides, there_are, strict=True)):
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

    best: Fit
    halves: list[Fit]
    drawn: tuple[Fit, list[Fit]]
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
        return [side.flow for side in self.best.curve.simulated_sides]

    @property
    def kept_blocks(self) -> float:
        """How many of the sampled blocks are in the pool at all times."""
        return self.best.curve.kept_blocks(self.best.pages)

    def changed(self, changes: Changes, change: Callable[..., Curve]) -> Fitted:
        """Return the same fits of a load that is changed.

        Args:
            changes: of the relations.
            change: makes a curve with them of rates.
        """

        def of(fit: Fit) -> Fit:
            return replace(fit, curve=change(fit.rates, pass_seconds=fit.curve.pass_seconds))

        centre, drawn = self.drawn
        there = of(centre)
        return replace(
            self,
            best=of(self.best),
            halves=[of(half) for half in self.halves],
            drawn=(there, [replace(one, curve=there.curve) for one in drawn]),
            dirty=changes.dirty(self.dirty, self.best, self.groups, self.sampling_rate),
            growth=changes.growth(self.growth, self.groups, self.sampling_rate),
        )

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which groups are of the database."""
        return np.array([bool(group.relations) for group in self.groups])


def fits_drawn_again(
    curve: Curve, fits: Sequence[tuple[Rates, Floats, Floats]], random: np.random.Generator
) -> tuple[Fit, list[Fit]]:
    """Return a fit of all groups, and fits to its pages drawn again.

    Args:
        curve: of the rates.
        fits: by group, its rates, and `like` and `pages` as `resample` takes them.
        random: for the draws.
    """
    rates = [own for own, _, _ in fits]
    drawn = [resample(like, pages, own, _DRAWN, random) for own, like, pages in fits]
    again = [Fit(curve=curve, rates=rates, pages=[pages[k] for pages in drawn]) for k in range(_DRAWN)]
    return Fit(curve=curve, rates=rates, pages=[own.pages for own in rates]), again


def dirty_by_group(seen: Observations, snapshots: Table) -> Floats:
    """Return which part of each group's pages of low usage count is dirty.

    Args:
        seen: the observations.
        snapshots: the rows that they were made of.
    """
    if "dirty" not in snapshots:
        return np.zeros(len(seen.groups))
    low, dirty = seen.usage_count <= _ABOUT_TO_GO, snapshots["dirty"]
    group = seen.page_group[seen.page[low]]
    count = np.bincount(group, minlength=len(seen.groups))
    found = np.bincount(group, weights=dirty[low].astype(np.float64), minlength=len(seen.groups))
    return np.asarray(found / np.maximum(count, 1))
