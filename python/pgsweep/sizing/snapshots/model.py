"""The model of snapshots: the observed load → fitted rates → curve → ensemble → interval → doubts.

Each step is a value: `Load` (load.py), `Fit` (fit.py), `Curve` (curve.py), `Ensemble` (ensemble.py) and the
interval around it (interval.py). A what-if changes the load that the curve is of; the rest is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final

import numpy as np

from pgsweep.records import reasons
from pgsweep.records.prediction import Observed
from pgsweep.sizing.estimate import Estimate, refused
from pgsweep.sizing.model import Model, Prediction
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.ring_limits import snapshot_ring_limits, with_ring_limits
from pgsweep.sizing.rules import check_server
from pgsweep.sizing.snapshots.doubts import (
    Part,
    drift_doubts,
    order_doubts,
    part_doubts,
    stranger_doubts,
    today_doubts,
    together_doubts,
    width_doubts,
)
from pgsweep.sizing.snapshots.ensemble import LoadCurves
from pgsweep.sizing.snapshots.fit import fit_load
from pgsweep.sizing.snapshots.interval import Ensemble, ErrorSources, interval
from pgsweep.sizing.snapshots.load import observed_load
from pgsweep.sizing.snapshots.paths import late_accesses
from pgsweep.sizing.snapshots.recording import Recording
from pgsweep.sizing.snapshots.recording_doubts import (
    length_doubts,
    load_doubts,
    scan_doubts,
    scan_share,
)
from pgsweep.sizing.snapshots.sequences import looping_relations, ordered_share
from pgsweep.sizing.snapshots.unfilled import NothingEvicted, unfilled
from pgsweep.sizing.snapshots.unseen import unseen_sizes
from pgsweep.sizing.verdict import KEPT_ROOM, REFUSED, Doubt, judged
from pgsweep.sizing.what_if.assumptions import at_best_rough
from pgsweep.sizing.what_if.changed_rates import load_change, relation_changes
from pgsweep.sizing.what_if.grammar import Asked

_GROWTH: Final = 0.02
"""New blocks of a relation for each miss that is expected of it, from which on it counts as growing."""


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
        return NothingEvicted(recording, contents)
    load = observed_load(used, relations, totals, server, server.rules, apart=apart)
    fit = fit_load(load, seed=seed)
    return SnapshotModel(LoadCurves(load=load, fit=fit, seed=seed), recording)


class Uncounted:
    """The model of a server that counts no accesses: nothing is known.

    Args:
        recording: of snapshots.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def changed(self, asked: Sequence[Asked]) -> Uncounted:
        """Return this model."""
        del asked
        return self

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return why there is no curve."""
        del sizes_blocks, any_size
        observation, seconds = self._recording.observation, self._recording.totals.seconds
        pool_bytes = observation.server.pool_bytes
        return Prediction(
            observation=observation,
            estimate=refused(Doubt(REFUSED, reasons.counters_off())),
            observed=Observed(shared_buffers_bytes=pool_bytes, miss_ratio=0.0, accesses=0, seconds=seconds),
            warnings=observation.warnings,
            model=self,
        )


class SnapshotModel:
    """Says what pools of other sizes would have missed.

    Args:
        curves: of the load that was observed.
        recording: of it; only the curve is known without.
        unchanged: the model of the load as it is; None if this is it.
    """

    def __init__(
        self,
        curves: LoadCurves,
        recording: Recording | None = None,
        *,
        unchanged: SnapshotModel | None = None,
    ) -> None:
        self._curves = curves
        self._load, self._fit = curves.load, curves.fit
        self._recording = recording
        self._unchanged = unchanged
        self._estimates: dict[tuple[int, ...], Estimate] = {}

    def changed(self, asked: Sequence[Asked]) -> SnapshotModel:
        """Return the model of the load with what-ifs.

        Raises:
            UsageError: a relation is not in the evidence, or such a question cannot be asked of it.
        """
        curves = replace(self._curves, change=load_change(asked, self._load))
        return SnapshotModel(curves, self._recording, unchanged=self)

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return the curve at these sizes, and what was recorded."""
        recording = self._recording
        assert recording is not None
        scans = snapshot_ring_limits(recording.totals, self._load.relations, recording.server.database_oid)
        sizes = with_ring_limits(sizes_blocks, scans) if any_size else sizes_blocks
        estimate = self.estimate(sizes)
        if self._unchanged is not None:
            estimate = at_best_rough(estimate, self._unchanged.at(sizes).estimate)
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
        pool = self._load.server.pool_blocks
        # Half and twice today's size are computed in any case, for what they show about the load.
        looked_at = (*sizes, max(pool // 2, 1), 2 * pool)
        ensemble = self._curves.ensemble(looked_at)
        point, low, high = interval(ensemble, np.asarray(looked_at) / pool, self._error_sources)
        found = Estimate(
            sizes_blocks=sizes,
            miss_ratio=point[: len(sizes)],
            low=low[: len(sizes)],
            high=high[: len(sizes)],
            pass_seconds=self._fit.pass_seconds,
            level="reliable",
            unseen_blocks=unseen_sizes(self._curves, sizes, (self._unchanged or self)._today),
            fitted=self._curves,
        )
        if self._unchanged is None:
            level, said = judged(self._doubts(found, ensemble))
            return replace(found, level=level, reasons=said)
        # Nothing speaks for or against the change itself.
        today = self._unchanged.estimate(sizes)
        kept_blocks = self._curves.kept_blocks / self._load.pool.sampling_rate
        return replace(
            found,
            level=today.level,
            reasons=today.reasons,
            too_small_blocks=tuple(size for size in sizes if size < kept_blocks * KEPT_ROOM),
            accesses_per_second=self._curves.accesses_per_second,
        )

    @cached_property
    def _error_sources(self) -> ErrorSources:
        load, fit = self._load, self._fit
        if self._unchanged is not None and (change := self._curves.change) is not None:
            today = self._unchanged._error_sources
            return replace(today, scans=change.scan_share(load, today.scans))
        late = np.zeros(len(load.groups))
        if fit.by_paths:
            late = np.array([late_accesses(load.seen, g, own) for g, own in enumerate(fit.rates)])
        return ErrorSources(
            noise=load.totals.miss_ratio_error,
            short=self._curves.short,
            scans=scan_share(load.totals),
            ordered=ordered_share(load),
            late=load.of_misses(late),
        )

    @cached_property
    def _today(self) -> float:
        """The miss ratio at today's size."""
        [today] = self._curves.miss_ratios([self._load.server.pool_blocks])
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
            *today_doubts(self._today, totals.miss_ratio, totals.miss_ratio_error),
            *part_doubts(
                self._parts(),
                pool.blocks,
                seconds=totals.seconds * pool.sampling_rate,
                miss_ratio=totals.miss_ratio,
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
        expected = self._curves.best.curve.expected_misses(self._curves.best.pages)
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
