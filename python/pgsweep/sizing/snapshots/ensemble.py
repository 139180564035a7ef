"""The curve of a load, and all the curves that it might have as well: what the interval is made of.

They differ by what snapshots do not show, by the half of the recording that they are made of, and by the
pages that were drawn again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.page_cache.residence import Classes
from pgsweep.sizing.snapshots.curve import Curve
from pgsweep.sizing.snapshots.fit import FEW_DRAWS, Fit
from pgsweep.sizing.snapshots.interval import Ensemble, short_error
from pgsweep.sizing.snapshots.load import Flow, Load
from pgsweep.sizing.snapshots.rates import SINGLE, Rates
from pgsweep.sizing.what_if.changed_rates import LoadChange

Floats = NDArray[np.float64]

_SETTLED_SECONDS: Final = 120.0
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
class LoadCurves:
    """The curves of a load.

    Attributes:
        load: that was observed.
        fit: of its rates.
        seed: of the pages that are drawn again.
        change: of the load.
        name: tells the fit from others to the same evidence.
        whole_fit: with all draws, where `fit` was kept in short.
    """

    load: Load
    fit: Fit
    seed: int = 0
    change: LoadChange | None = None
    name: str = ""
    whole_fit: Callable[[], Fit] | None = None

    @cached_property
    def best(self) -> FittedCurve:
        """The curve."""
        return self._fitted(self.fit.rates)

    @cached_property
    def halves(self) -> list[FittedCurve]:
        """The curves from each half of the recording alone."""
        return [self._fitted(rates, pass_seconds) for rates, pass_seconds in self.fit.halves]

    def ensemble(self, sizes: Sequence[int], spread: Floats | None = None) -> Ensemble:
        """Return the curve at these sizes, and all that it might be as well.

        Args:
            sizes: of the pool.
            spread: at these sizes, where it is known.
        """

        def ratios(curve: Curve, pages: list[Floats]) -> Floats:
            return np.minimum(self.miss_ratios(sizes, curve, pages), 1.0)

        best = self.best
        point = ratios(best.curve, best.pages)
        return Ensemble(
            point=point,
            bounds=[ratios(curve, best.pages) - point for curve in self._bounds],
            halves=[ratios(half.curve, half.pages) for half in self.halves],
            spread=self.spread(sizes) if spread is None else spread,
        )

    @cached_property
    def drawn(self) -> tuple[FittedCurve, list[FittedCurve]]:
        """The fit to the first subset of snapshots, and fits to its pages drawn again."""
        first = self.fit.subsets[0]
        rates = [own.rates for own in first]
        curve = self.best.curve if self.change is None else self._curve(rates)
        centre = FittedCurve(curve=curve, rates=rates, pages=[own.pages for own in rates])
        return centre, [replace(centre, pages=[own.drawn[k] for own in first]) for k in range(FEW_DRAWS)]

    def miss_ratios(
        self, sizes: Sequence[int], curve: Curve | None = None, pages: list[Floats] | None = None
    ) -> Floats:
        """Return misses of the database for each of its accesses; a little more than 1 where a curve errs.

        Args:
            sizes: of the pool.
            curve, pages: the best ones by default.
        """
        load, rate = self.load, self.load.pool.sampling_rate
        scaled = (curve or self.best.curve).miss_rates(
            self.best.pages if pages is None else pages, [round(size * rate) for size in sizes]
        )
        missed = np.array(scaled) * load.agreement / rate
        if self.change is None:
            return missed / load.accesses_per_second + load.temporary_ratio
        temporary = load.temporary_ratio * load.accesses_per_second * self.change.factor
        return (missed + temporary) / max(self.accesses_per_second, 1e-9)

    def part_of(self, fitted: FittedCurve, sizes: Sequence[int], groups: Sequence[int]) -> Floats:
        """Return the misses of some groups for each access of the database, at these sizes."""
        rate, chosen = self.load.pool.sampling_rate, list(groups)
        each = (fitted.curve.by_group(fitted.pages, round(size * rate))[1] for size in sizes)
        missed = np.array([found[chosen].sum() for found in each]) * self.load.agreement / rate
        return np.asarray(missed / max(self.accesses_per_second, 1e-9))

    @cached_property
    def today(self) -> float:
        """The miss ratio at today's size."""
        return float(self.miss_ratios([self.load.server.pool_blocks])[0])

    @cached_property
    def accesses_per_second(self) -> float:
        """Accesses of the database, with the change."""
        today = self.load.accesses_per_second
        return today if self.change is None else self.change.accesses_per_second(self.load)

    @property
    def short(self) -> float:
        """By how much the miss ratio is off for each doubling of the size, since the recording is short."""
        passes = self.fit.passes(self.load.totals.seconds)
        return short_error(passes, by_paths=self.fit.by_paths)

    @cached_property
    def flows(self) -> list[Flow]:
        """What the counters say of each group, with the change."""
        return self.best.curve.simulated_flows

    @property
    def kept_blocks(self) -> float:
        """How many of the sampled blocks are in the pool at all times."""
        return self.best.curve.kept_blocks(self.best.pages)

    @cached_property
    def growth(self) -> Floats:
        """New sampled blocks of each group per second."""
        load = self.load
        return load.growth * load.pool.sampling_rate if self.change is None else self.change.growth(load)

    @cached_property
    def dirty(self) -> Floats:
        """Which part of each group's pages that are about to be evicted is dirty."""
        if self.change is None:
            return self.load.dirty
        each = zip(self.best.pages, self.best.curve.observed, strict=True)
        visits = [float(pages @ side.own) / self.fit.pass_seconds for pages, side in each]
        return self.change.dirty(self.load, np.array(visits))

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Which groups are of the database."""
        return np.array([bool(group.relations) for group in self.load.groups])

    def _fitted(self, rates: list[Rates], pass_seconds: float | None = None) -> FittedCurve:
        curve = self._curve(rates, pass_seconds)
        return FittedCurve(curve=curve, rates=rates, pages=[own.pages for own in rates])

    def _curve(self, rates: list[Rates], pass_seconds: float | None = None, **options: float) -> Curve:
        """Return the curve of rates; by default with the time of a clock pass by the whole recording."""
        if pass_seconds is None:
            pass_seconds = self.fit.pass_seconds
        options = {"settled_seconds": _SETTLED_SECONDS, **options}
        return Curve(rates, pass_seconds, self.load.pool, change=self.change, **options)

    @cached_property
    def _bounds(self) -> list[Curve]:
        """Curves with what snapshots do not show at either end."""
        rates = self.fit.rates
        # How many accesses a visit brings to pages that never leave.
        bounds = [
            self._curve([replace(own, hot_batch=own.batch) for own in rates]),
            self._curve([replace(own, hot_batch=SINGLE) for own in rates]),
        ]
        flows = [side.flow for side in self.best.curve.sides]
        if any(flow.scans > 0 for flow in flows):
            # How regularly scans come.
            bounds += [self._curve(rates, regularity=regularity) for regularity in (0.0, 1.0)]
        if any(flow.scans > 0 or flow.vacuums > 0 for flow in flows):
            # For how long rings have gathered in a pool.
            bounds += [self._curve(rates, settled_seconds=seconds) for seconds in (0.0, np.inf)]
        return bounds

    def spread(self, sizes: Sequence[int]) -> Floats:
        """Return curves from pages drawn again, minus the curve of the subset that they were drawn from.

        Shape (replicates, sizes). With several subsets their own differences are in it as well, each divided
        as the mean over subsets divides it.
        """
        subsets = (self.whole_fit() if self.whole_fit else self.fit).subsets

        def ratios(pages: list[Floats]) -> Floats:
            return np.minimum(self.miss_ratios(sizes, self.best.curve, pages), 1.0)

        rows: list[Floats] = []
        centres: list[Floats] = []
        for subset in subsets:
            centre = ratios([own.rates.pages for own in subset])
            centres.append(centre)
            rows.extend(
                ratios(list(pages)) - centre for pages in zip(*(own.drawn for own in subset), strict=True)
            )
        noise = np.array(rows)
        if len(subsets) > 1:
            between = np.array(centres) - np.mean(centres, axis=0)
            picks = np.random.default_rng([self.seed, 1]).integers(0, len(subsets), len(noise))
            noise = noise + between[picks] / np.sqrt(len(subsets))
        return noise
