"""The model of snapshots: the observed load → fitted rates → curve → ensemble → interval → doubts.

Each step is a value: `Load` (load.py), `Fit` (fit.py), `Curve` (curve.py), `Ensemble` (ensemble.py) and the
interval around it (interval.py). A what-if changes the load that the curve is of; the rest is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np
from numpy.typing import NDArray

from pgsweep.records import reasons
from pgsweep.records.prediction import Observed
from pgsweep.sizing.estimate import Estimate, refused
from pgsweep.sizing.look import LookBounds
from pgsweep.sizing.model import Model, Prediction
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.ring_limits import sizes_with_ring_limits, snapshot_ring_limits
from pgsweep.sizing.rules import check_server
from pgsweep.sizing.snapshots.doubts import curve_doubts, together_doubts, unexplained_misses
from pgsweep.sizing.snapshots.ensemble import LoadCurves
from pgsweep.sizing.snapshots.fit import Fit, fit_load
from pgsweep.sizing.snapshots.interval import ErrorSources, bounded_by_today, interval
from pgsweep.sizing.snapshots.load import observed_load
from pgsweep.sizing.snapshots.one_look import look_bounds, one_look
from pgsweep.sizing.snapshots.paths import late_accesses
from pgsweep.sizing.snapshots.recording import Recording
from pgsweep.sizing.snapshots.sequences import ordered_shares, together_groups
from pgsweep.sizing.snapshots.together import bounds_of, widened_sizes
from pgsweep.sizing.snapshots.unfilled import NothingEvicted, unfilled
from pgsweep.sizing.snapshots.unseen import unseen_sizes
from pgsweep.sizing.verdict import KEPT_ROOM, REFUSED, Doubt, judged
from pgsweep.sizing.what_if.assumptions import rough_at_best
from pgsweep.sizing.what_if.changed_rates import load_change, relation_changes
from pgsweep.sizing.what_if.grammar import Asked

Floats = NDArray[np.float64]


def snapshot_model(observation: Observation, asked: Sequence[Asked] = (), *, seed: int = 0) -> Model:
    """Return the model of a recording of snapshots.

    Args:
        observation: the recording.
        asked: what-ifs that may be asked of it; relations that they name are fitted apart.
        seed: of all draws.

    Raises:
        EvidenceError: it holds no access, contradicts itself, or the rules of its server are not known.
        UsageError: a relation of a what-if is not in it, or such a question cannot be asked of it.
    """
    relations, server = observation.relations, observation.server
    check_server(server)
    of_load = any(one.of_load for one in asked)
    apart = relation_changes(asked, relations, server.database_oid) if of_load else {}
    recording = Recording.read(observation)
    if server.settings.get("track_counts") == "off":
        return Uncounted(recording)
    if recording.is_empty:
        raise observation.nothing_seen()
    used, totals = recording.used, recording.totals
    contents = unfilled(used, observation.counters.table, relations, totals, server)
    if contents is not None:
        return NothingEvicted(recording=recording, contents=contents)
    load = observed_load(used, relations, totals, server, server.rules, apart=apart)
    whole_fit = cache(partial(fit_load, load, seed=seed))
    name = f"{seed} {sorted(apart)}"
    fit = observation.steps.step(f"fit {name}", Fit, lambda: whole_fit().in_short())
    curves = LoadCurves(load=load, fit=fit, seed=seed, name=name, whole_fit=whole_fit)
    return SnapshotModel(curves=curves, recording=recording)


@dataclass(frozen=True)
class Uncounted:
    """The model of a server that counts no accesses: nothing is known."""

    recording: Recording

    def changed(self, asked: Sequence[Asked]) -> Uncounted:
        """Return this model."""
        del asked
        return self

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return why there is no curve."""
        del sizes_blocks, any_size
        observation, seconds = self.recording.observation, self.recording.totals.seconds
        pool_bytes = observation.server.pool_bytes
        return Prediction(
            observation=observation,
            estimate=refused(Doubt(REFUSED, reasons.counters_off())),
            observed=Observed(shared_buffers_bytes=pool_bytes, miss_ratio=0.0, accesses=0, seconds=seconds),
            warnings=observation.warnings,
            model=self,
        )


@dataclass(frozen=True, kw_only=True)
class SnapshotModel:
    """Says what pools of other sizes would have missed.

    Attributes:
        curves: of the load that was observed, or of one that is changed.
        recording: of it; only the curve is known without.
        unchanged: the model of the load as it is; None if this is it.
    """

    curves: LoadCurves
    recording: Recording | None = None
    unchanged: SnapshotModel | None = None
    _estimates: dict[tuple[int, ...], Estimate] = field(default_factory=dict)

    def changed(self, asked: Sequence[Asked]) -> SnapshotModel:
        """Return the model of the load with what-ifs.

        Raises:
            UsageError: a relation is not in the evidence, or such a question cannot be asked of it.
        """
        curves = replace(self.curves, change=load_change(asked, self.curves.load))
        return SnapshotModel(curves=curves, recording=self.recording, unchanged=self)

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return the curve at these sizes, and what was recorded."""
        recording = self.recording
        assert recording is not None
        scans = snapshot_ring_limits(
            recording.totals, self.curves.load.relations, recording.server.database_oid
        )
        sizes = sizes_with_ring_limits(sizes_blocks, scans) if any_size else sizes_blocks
        estimate = self.estimate(sizes)
        if self.unchanged is not None:
            estimate = rough_at_best(estimate, self.unchanged.at(sizes).estimate)
        else:
            doubts = [*recording.doubts, *(Doubt(estimate.level, reason) for reason in estimate.reasons)]
            level, said = judged(doubts)
            estimate = replace(estimate, level=level, reasons=said)
        return recording.prediction(estimate, model=self, scans=scans)

    def estimate(self, sizes_blocks: Sequence[int]) -> Estimate:
        """Return the curve at these sizes, with its interval and its verdict."""
        sizes = tuple(sizes_blocks)
        if sizes not in self._estimates:
            self._estimates[sizes] = self._estimate(sizes)
        return self._estimates[sizes]

    def _estimate(self, sizes: tuple[int, ...]) -> Estimate:
        pool = self.curves.load.server.pool_blocks
        # Today's size, half and twice of it are computed in any case, for what they show about the load.
        looked_at = (*sizes, pool, max(pool // 2, 1), 2 * pool)
        together = bounds_of(self.curves, looked_at, self._together)
        ensemble = self.curves.ensemble(looked_at, self._spread(looked_at))
        ensemble = replace(ensemble, bounds=[*ensemble.bounds, together.below, together.above])
        point, low, high = interval(ensemble, np.asarray(looked_at) / pool, self._error_sources)
        if self.curves.fit.is_one_look(self.curves.load.totals.seconds):
            changed = None if self.unchanged is None else point
            point, low, high = one_look(self.curves.load, self._look_bounds, looked_at, changed)
            low = np.clip(np.minimum(low, point + together.below), 0, 1)
            high = np.clip(np.maximum(high, point + together.above), 0, 1)
        low, high = bounded_by_today(np.asarray(looked_at) / pool, point, low, high)
        found = Estimate(
            sizes_blocks=sizes,
            miss_ratio=point[: len(sizes)],
            low=low[: len(sizes)],
            high=high[: len(sizes)],
            pass_seconds=self.curves.fit.pass_seconds,
            level="reliable",
            unseen_blocks=unseen_sizes(
                self.curves, sizes, high[: len(sizes)], (self.unchanged or self).curves.today
            ),
            in_order_blocks=widened_sizes(sizes, low, high, together),
            fitted=self.curves,
        )
        if self.unchanged is None:
            # What stays or goes together has bounds of its own.
            rest = np.where(np.isin(np.arange(len(self._ordered)), self._together), 0.0, self._ordered)
            ordered = self.curves.load.weighted_by_misses(rest)
            doubts = curve_doubts(self.curves, found, ensemble, ordered, self._together)
            names = [self.curves.load.groups[group].label for group in self._together]
            level, said = judged([*doubts, *together_doubts(found, pool, together, names)])
            return replace(found, level=level, reasons=said)
        # Nothing speaks for or against the change itself.
        today = self.unchanged.estimate(sizes)
        kept_blocks = self.curves.kept_blocks / self.curves.load.pool.sampling_rate
        return replace(
            found,
            level=today.level,
            reasons=today.reasons,
            too_small_blocks=tuple(size for size in sizes if size < kept_blocks * KEPT_ROOM),
            accesses_per_second=self.curves.accesses_per_second,
        )

    def _spread(self, sizes: tuple[int, ...]) -> Floats | None:
        """Return the spread of the curve of the load as it is, of which each size may be known already."""
        if self.recording is None or self.unchanged is not None:
            return None

        def made(_: list[int]) -> dict[int, Floats]:
            return dict(zip(sizes, self.curves.spread(sizes).T, strict=True))

        steps = self.recording.observation.steps
        known = steps.steps(f"spread {self.curves.name}", np.ndarray, sizes, made)
        return np.stack([known[size] for size in sizes], axis=1)

    @cached_property
    def _together(self) -> list[int]:
        """The groups whose pages stay or go together."""
        if self.unchanged is not None:
            return self.unchanged._together
        return together_groups(self.curves.load, self._ordered, self.curves.fit.pass_seconds)

    @cached_property
    def _ordered(self) -> Floats:
        """Which share of each group's misses is on pages that come in the order of their blocks."""
        return ordered_shares(self.curves.load, self.curves.fit.pass_seconds)

    @cached_property
    def _look_bounds(self) -> list[LookBounds]:
        """What one look allows, computed once for each size: a size takes some fifty linear programs."""
        if self.unchanged is not None:
            return self.unchanged._look_bounds
        return look_bounds(self.curves.load, self.curves.fit)

    @cached_property
    def _error_sources(self) -> ErrorSources:
        load, fit = self.curves.load, self.curves.fit
        if self.unchanged is not None and (change := self.curves.change) is not None:
            today = self.unchanged._error_sources
            return replace(today, scans=change.scan_share(load, today.scans))
        late = np.zeros(len(load.groups))
        if fit.by_paths:
            late = np.array([late_accesses(load.seen, g, own) for g, own in enumerate(fit.rates)])
        return ErrorSources(
            noise=load.totals.miss_ratio_error,
            short=self.curves.short,
            scans=load.totals.scan_share,
            ordered=load.weighted_by_misses(self._ordered),
            late=load.weighted_by_misses(late),
            unexplained=unexplained_misses(self.curves, self._together),
            dropped=load.totals.dropped,
            replayed=load.replayed_misses / max(load.totals.allocations, 1e-9),
        )
