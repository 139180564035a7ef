"""What a model makes of an observation: a curve, its verdict, and the record of both.

There are models of snapshots, of a trace, of a trace without its server, and of a pool that evicted nothing.
What follows from a curve (forecast.py) is the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from pgsweep.records import reasons
from pgsweep.records.prediction import (
    CurvePoint,
    NoEviction,
    Observed,
    PredictResult,
    ScannedRelation,
    Verdict,
)
from pgsweep.records.reasons import unique
from pgsweep.units import BLOCK_BYTES

if TYPE_CHECKING:
    from pgsweep.sizing.estimate import Estimate
    from pgsweep.sizing.observed import Observation
    from pgsweep.sizing.traces.warm_start import WarmPools
    from pgsweep.sizing.what_if.grammar import Asked

SNAPSHOTS: Final = ("sql", "peek")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A curve, also where it may not be shown, and what it was made of.

    Attributes:
        observation: None of a trace that others recorded.
        estimate: the curve.
        observed: what was measured.
        warnings: what else must be known.
        no_eviction: where the pool evicted nothing.
        pools: under a trace, where there is one; not under one that others recorded.
        scans: relations that are scanned.
        model: that it comes from, where that can be asked for more.
    """

    observation: Observation | None
    estimate: Estimate
    observed: Observed
    warnings: list[str] = field(default_factory=list)
    no_eviction: NoEviction | None = None
    pools: WarmPools | None = None
    scans: list[ScannedRelation] = field(default_factory=list)
    model: Model | None = None

    @property
    def source(self) -> str:
        """Where the observation comes from."""
        return "import" if self.observation is None else self.observation.server.source

    def shown(self) -> tuple[Estimate, list[int]]:
        """Return the curve without the sizes that are too uncertain to be shown, and these sizes in blocks.

        Of a trace all are shown: where its interval is wide, its ends are states that a pool can be in. That
        is not so where it is shorter than a clock pass.
        """
        from pgsweep.sizing.estimate import without_too_small, without_unknown

        small = self.estimate.too_small_blocks
        if self.source not in SNAPSHOTS and not self.estimate.is_bounded:
            return self.estimate, sorted(small)
        found, unknown = without_unknown(without_too_small(self.estimate))
        return found, sorted({*small, *unknown}) if small else unknown

    def record(self) -> PredictResult:
        """Return the record of the curve: a refused one has no points, and an unknown size has none."""
        estimate, unknown = self.shown()
        points = points_of(estimate)
        of_evidence = (reasons.evidence(warning) for warning in self.warnings)
        said = unique([*estimate.reasons, *of_evidence])
        return PredictResult(
            source=self.source,
            observed=self.observed,
            points=points,
            unknown_bytes=[blocks * BLOCK_BYTES for blocks in unknown] if points else [],
            verdict=Verdict(level=estimate.level, reasons=said),
            no_eviction=self.no_eviction,
            scans=self.scans,
        )


class Model(Protocol):
    """Says what the pool would have missed at other sizes."""

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:
        """Return the curve.

        Args:
            sizes_blocks: of the pool.
            any_size: nobody asked for these sizes, so that others may be added.
        """

    def changed(self, asked: Sequence[Asked]) -> Model:
        """Return the model of another load.

        Args:
            asked: what-ifs.

        Raises:
            UsageError: the evidence cannot answer one of them.
        """


def points_of(estimate: Estimate) -> list[CurvePoint]:
    """Return the points of a curve; a refused one has none."""
    if estimate.level == "refused":
        return []
    columns = (estimate.sizes_blocks, estimate.miss_ratio, estimate.low, estimate.high)
    of_stretch: list[list[float | None]] = [[None, None]] * len(estimate.sizes_blocks)
    if estimate.of_stretch is not None:
        of_stretch = estimate.of_stretch.T.tolist()
    return [
        CurvePoint(
            shared_buffers_bytes=blocks * BLOCK_BYTES,
            miss_ratio=float(ratio),
            low=float(low),
            high=float(high),
            stretch_low=stretch_low,
            stretch_high=stretch_high,
        )
        for blocks, ratio, low, high, (stretch_low, stretch_high) in zip(*columns, of_stretch, strict=True)
    ]
