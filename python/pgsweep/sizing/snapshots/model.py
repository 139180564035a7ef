"""The model of snapshots: the observed load → fitted rates → curve → ensemble → interval → doubts.

Each step is a value: `Load` (load.py), `Fit` (fit.py), `Curve` (curve.py), `Ensemble` and the interval around
it (interval.py). A what-if changes the load that the curve is of; the rest is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.estimate import KEPT_ROOM, Doubt, Estimate, judged
from pgsweep.sizing.snapshots.curve import Curve
from pgsweep.sizing.snapshots.fit import Fit
from pgsweep.sizing.snapshots.fitted import Fitted, FittedCurve
from pgsweep.sizing.snapshots.interval import Ensemble, ErrorSources, interval, short_error
from pgsweep.sizing.snapshots.load import Load
from pgsweep.sizing.snapshots.paths import late_accesses
from pgsweep.sizing.snapshots.rates import SINGLE, Rates, resample
from pgsweep.sizing.snapshots.recording_doubts import (
    length_doubts,
    load_doubts,
    scan_doubts,
    scan_share,
)
from pgsweep.sizing.snapshots.self_consistency import (
    Part,
    drift_doubts,
    order_doubts,
    part_doubts,
    stranger_doubts,
    today_doubts,
    together_doubts,
    width_doubts,
)
from pgsweep.sizing.snapshots.sequences import looping_relations, ordered_share
from pgsweep.sizing.snapshots.unseen import followers_of, unseen_sizes
from pgsweep.sizing.what_if.changed_rates import LoadChange, load_change
from pgsweep.sizing.what_if.grammar import Asked

Floats = NDArray[np.float64]

_SETTLED_SECONDS: Final = 120.0
_REPLICATES: Final = 40
_DRAWN: Final = 4

_GROWTH: Final = 0.02
"""New blocks of a relation for each miss that is expected of it, from which on it counts as growing."""


class SnapshotModel:
    """Says what pools of other sizes would have missed.

    Args:
        load: that was observed.
        fit: of its rates.
        seed: of the draws behind the interval.
        change: of the load.
        unchanged: the model of the load as it is; None if this is it.
    """

    def __init__(
        self,
        load: Load,
        fit: Fit,
        *,
        seed: int = 0,
        change: LoadChange | None = None,
        unchanged: SnapshotModel | None = None,
    ) -> None:
        self._load = load
        self._fit = fit
        self._seed = seed
        self._change = change
        self._unchanged = unchanged
        self._estimates: dict[tuple[int, ...], Estimate] = {}

    def changed(self, asked: Sequence[Asked]) -> SnapshotModel:
        """Return the model of the load with what-ifs.

        Raises:
            UsageError: a relation is not in the evidence, or such a question cannot be asked of it.
        """
        change = load_change(asked, self._load)
        return SnapshotModel(self._load, self._fit, seed=self._seed, change=change, unchanged=self)

    def estimate(self, sizes_blocks: Sequence[int]) -> Estimate:
        """Return the curve at these sizes, with its interval and its verdict."""
        sizes = tuple(sizes_blocks)
        if sizes not in self._estimates:
            self._estimates[sizes] = self._estimate(sizes)
        return self._estimates[sizes]

    def _estimate(self, sizes: tuple[int, ...]) -> Estimate:
        pool = self._load.server.pool_blocks
        # Half and twice today's size are computed in any case, for what they show about the load.
        looked_at = (*sizes, max(pool // 2, 1), 2 * pool)
        ensemble = self._ensemble(looked_at)
        point, low, high = interval(ensemble, np.asarray(looked_at) / pool, self._error_sources)
        found = Estimate(
            sizes_blocks=sizes,
            miss_ratio=point[: len(sizes)],
            low=low[: len(sizes)],
            high=high[: len(sizes)],
            pass_seconds=self._fit.pass_seconds,
            level="reliable",
            unseen_blocks=self._unseen(sizes),
            fitted=self.fitted,
        )
        if self._unchanged is None:
            level, reasons = judged(self._doubts(found, ensemble))
            return replace(found, level=level, reasons=reasons)
        # Nothing speaks for or against the change itself.
        today = self._unchanged.estimate(sizes)
        kept_blocks = self._curve.kept_blocks(self._pages) / self._load.pool.sampling_rate
        return replace(
            found,
            level=today.level,
            reasons=today.reasons,
            too_small_blocks=tuple(size for size in sizes if size < kept_blocks * KEPT_ROOM),
            accesses_per_second=self._accesses_per_second,
        )

    @cached_property
    def _curve(self) -> Curve:
        return self._curve_of(self._fit.rates)

    @property
    def _pages(self) -> list[Floats]:
        return [own.pages for own in self._fit.rates]

    def _curve_of(self, rates: list[Rates], pass_seconds: float | None = None, **options: float) -> Curve:
        """Return the curve of rates; by default with the time of a clock pass by the whole recording."""
        if pass_seconds is None:
            pass_seconds = self._fit.pass_seconds
        options = {"settled_seconds": _SETTLED_SECONDS, **options}
        return Curve(rates, pass_seconds, self._load.pool, change=self._change, **options)

    @cached_property
    def _halves(self) -> list[FittedCurve]:
        """The curves from each half of the recording alone."""
        return [
            FittedCurve(
                curve=self._curve_of(rates, pass_seconds), rates=rates, pages=[own.pages for own in rates]
            )
            for rates, pass_seconds in self._fit.halves
        ]

    @cached_property
    def _bounds(self) -> list[Curve]:
        """Curves with what snapshots do not show at either end."""
        rates = self._fit.rates
        # How many accesses a visit brings to pages that never leave.
        bounds = [
            self._curve_of([replace(own, hot_batch=own.batch) for own in rates]),
            self._curve_of([replace(own, hot_batch=SINGLE) for own in rates]),
        ]
        if any(side.flow.scans > 0 for side in self._curve.sides):
            # How regularly scans come, and for how long their rings have gathered in a pool.
            bounds += [self._curve_of(rates, regularity=regularity) for regularity in (0.0, 1.0)]
            bounds += [self._curve_of(rates, settled_seconds=seconds) for seconds in (0.0, np.inf)]
        return bounds

    def _ensemble(self, sizes: tuple[int, ...]) -> Ensemble:
        """Return the curve at these sizes, and all that it might be as well."""

        def ratios(curve: Curve, pages: list[Floats]) -> Floats:
            return np.minimum(self._miss_ratios(curve, pages, sizes), 1.0)

        point = ratios(self._curve, self._pages)
        return Ensemble(
            point=point,
            bounds=[ratios(curve, self._pages) - point for curve in self._bounds],
            halves=[ratios(half.curve, half.pages) for half in self._halves],
            spread=self._spread(lambda pages: ratios(self._curve, pages)),
        )

    def _spread(self, ratios: Callable[[list[Floats]], Floats]) -> Floats:
        """Return curves from pages drawn again, minus the curve of the subset that they were drawn from.

        Shape (replicates, sizes). With several subsets their own differences are in it as well, each divided
        as the mean over subsets divides it.
        """
        subsets, random = self._fit.subsets, np.random.default_rng(self._seed)
        per_subset = max(_REPLICATES // len(subsets), 4)
        rows: list[Floats] = []
        centres: list[Floats] = []
        for subset in subsets:
            centre = ratios([own.rates.pages for own in subset])
            centres.append(centre)
            drawn = [resample(own.like, own.pages, own.rates, per_subset, random) for own in subset]
            rows.extend(ratios([pages[k] for pages in drawn]) - centre for k in range(per_subset))
        noise = np.array(rows)
        if len(subsets) > 1:
            between = np.array(centres) - np.mean(centres, axis=0)
            picks = random.integers(0, len(subsets), len(noise))
            noise = noise + between[picks] / np.sqrt(len(subsets))
        return noise

    def _miss_ratios(self, curve: Curve, pages: list[Floats], sizes: Sequence[int]) -> Floats:
        """Return misses of the database for each of its accesses; a little more than 1 where a curve errs."""
        load, rate = self._load, self._load.pool.sampling_rate
        scaled = curve.miss_rates(pages, [round(size * rate) for size in sizes])
        missed = np.array(scaled) * load.agreement / rate
        if self._change is None:
            return missed / load.accesses_per_second + load.temporary_ratio
        temporary = load.temporary_ratio * load.accesses_per_second * self._change.factor
        return (missed + temporary) / max(self._accesses_per_second, 1e-9)

    @cached_property
    def _accesses_per_second(self) -> float:
        today = self._load.accesses_per_second
        return today if self._change is None else self._change.accesses_per_second(self._load)

    @cached_property
    def _error_sources(self) -> ErrorSources:
        load, fit = self._load, self._fit
        if self._unchanged is not None and self._change is not None:
            today = self._unchanged._error_sources
            return replace(today, scans=self._change.scan_share(load, today.scans))
        late = np.zeros(len(load.groups))
        if fit.by_paths:
            late = np.array([late_accesses(load.seen, g, own) for g, own in enumerate(fit.rates)])
        return ErrorSources(
            noise=load.totals.miss_ratio_error,
            short=short_error(fit.passes(load.totals.seconds), by_paths=fit.by_paths),
            scans=scan_share(load.totals),
            ordered=ordered_share(load),
            late=load.of_misses(late),
        )

    def _unseen(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """Return the sizes that snapshots do not show."""
        load, fit = self._load, self._fit
        misses = self._miss_ratios(self._curve, self._pages, sizes)
        if self._change is not None:
            # As many misses for each of today's accesses: that is how fast the hand goes.
            misses = misses * self._accesses_per_second / load.accesses_per_second
        flows = zip(fit.rates, load.pool.flows, strict=True)
        followers = np.array([followers_of(own, flow, fit.pass_seconds) for own, flow in flows])
        return unseen_sizes(
            sizes,
            misses,
            pool_blocks=load.server.pool_blocks,
            misses_today=(self._unchanged or self)._today,
            pass_seconds=fit.pass_seconds,
            followers=load.of_misses(followers),
        )

    @cached_property
    def _today(self) -> float:
        """The miss ratio at today's size."""
        [today] = self._miss_ratios(self._curve, self._pages, [self._load.server.pool_blocks])
        return float(today)

    def _doubts(self, found: Estimate, ensemble: Ensemble) -> list[Doubt]:
        """Return what speaks against a curve."""
        load, fit, pool = self._load, self._fit, self._load.pool
        totals, resident = load.totals, load.seen.resident()
        known = np.flatnonzero(~np.isin(found.sizes_blocks, found.unseen_blocks))
        known_sizes = [found.sizes_blocks[at] for at in known.tolist()]
        length = length_doubts(totals, load.seen.snapshots, fit.pass_seconds, by_paths=fit.by_paths)
        return [
            *totals.doubts,
            # One sentence on length: a short recording's interval is wide as well.
            *(length or width_doubts(known_sizes, found.low[known], found.high[known])),
            *load_doubts(totals, load.relations),
            *today_doubts(self._today, load.miss_ratio, totals.miss_ratio_error),
            *part_doubts(
                self._parts(),
                pool.blocks,
                seconds=totals.seconds * pool.sampling_rate,
                miss_ratio=load.miss_ratio,
            ),
            *stranger_doubts(float(resident[-1]) / pool.blocks, load.seen.unknown / pool.blocks),
            *scan_doubts(totals, load.relations, (load.server.pool_blocks, *found.sizes_blocks)),
            *(order_doubts(self._error_sources.ordered) or together_doubts(looping_relations(load))),
            *drift_doubts(
                ensemble.point[-2:],
                [half[-2:] for half in ensemble.halves],
                ensemble.spread[:, -2:].std(axis=0),
            ),
        ]

    def _parts(self) -> list[Part]:
        """Return each group, as it was counted and as the model has it today."""
        load, rate = self._load, self._load.pool.sampling_rate
        expected = self._curve.expected_misses(self._pages)
        resident, growth, unread = load.seen.resident(), load.growth, load.unread_growth
        return [
            Part(
                name=group.name,
                counted_misses=float(load.group_misses[g]) / rate,
                # Misses of groups without relations (other databases, for example) are not counted here.
                expected_misses=max(expected[g] / rate - float(unread[g]), 0.0) if group.relations else 0.0,
                seen_resident=float(resident[g]),
                expected_resident=self._fit.rates[g].resident(),
                grows=float(growth[g]) > _GROWTH * expected[g] / rate,
            )
            for g, group in enumerate(load.groups)
        ]

    @cached_property
    def fitted(self) -> Fitted:
        """What a simulation of both caches needs."""
        load, change = self._load, self._change
        rates = self._fit.rates
        best = FittedCurve(curve=self._curve, rates=rates, pages=self._pages)
        growth, dirty = load.growth * load.pool.sampling_rate, load.dirty
        if change is not None:
            visits = [
                float(pages @ side.own) / self._fit.pass_seconds
                for pages, side in zip(self._pages, self._curve.observed, strict=True)
            ]
            growth, dirty = change.growth(load), change.dirty(load, np.array(visits))
        return Fitted(
            best=best,
            halves=self._halves,
            drawn=self._drawn_again(),
            groups=load.groups,
            dirty=dirty,
            growth=growth,
            extensions_are_reads=load.pool.extensions_are_reads,
            sampling_rate=load.pool.sampling_rate,
            seconds=load.totals.seconds,
            short=self._error_sources.short,
        )

    def _drawn_again(self) -> tuple[FittedCurve, list[FittedCurve]]:
        """Return the fit to the first subset, and fits to its pages drawn again."""
        subset, random = self._fit.subsets[0], np.random.default_rng([self._seed, 1])
        rates = [own.rates for own in subset]
        drawn = [resample(own.like, own.pages, own.rates, _DRAWN, random) for own in subset]
        curve = self._curve if self._change is None else self._curve_of(rates)
        centre = FittedCurve(curve=curve, rates=rates, pages=[own.pages for own in rates])
        return centre, [replace(centre, pages=[pages[k] for pages in drawn]) for k in range(_DRAWN)]
