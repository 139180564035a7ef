"""The model of a trace that others recorded: page numbers alone, replayed from empty pools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgsweep.records import trace_reasons as reasons
from pgsweep.records.prediction import Observed
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.model import Prediction
from pgsweep.sizing.traces.sampled import Pages, replay_sizes
from pgsweep.sizing.traces.shared_replays import ReplayPlan
from pgsweep.sizing.verdict import RELIABLE, ROUGH, TODAY
from pgsweep.units import Z90
from pgsweep.versions import NEWEST_TESTED_MAJOR

if TYPE_CHECKING:
    from pgsweep.evidence.oracle_general import OracleTrace

_WINDOWS = 24


class ForeignTraceModel:
    """Replays a trace of others; it never saw PostgreSQL, so the newest rules there are hold."""

    def __init__(self, trace: OracleTrace, plan: ReplayPlan) -> None:
        self._trace = trace
        self._plan = plan

    @property
    def usual_sizes_blocks(self) -> list[int]:
        """Sizes to predict where none is named: a 64th of its pages to all of them."""
        return [max(self._trace.objects >> shift, 16) for shift in range(7)]

    def at(self, sizes_blocks: tuple[int, ...], *, any_size: bool = False) -> Prediction:  # noqa: ARG002
        """Return the curve; no other size is added.

        Raises:
            MissingAbility: there is no such executor.
        """
        trace = self._trace
        observed = Observed(
            shared_buffers_bytes=0, miss_ratio=0.0, accesses=len(trace.pages), seconds=trace.seconds
        )
        return Prediction(
            observation=None,
            estimate=replay_cold(
                trace.pages, trace.objects, sizes_blocks, version=NEWEST_TESTED_MAJOR, plan=self._plan
            ),
            observed=observed,
            warnings=trace.warnings,
        )


def replay_cold(
    pages: Pages, objects: int, sizes_blocks: Sequence[int], *, version: int, plan: ReplayPlan
) -> Estimate:
    """Replay a trace from empty pools; first accesses count, and the lower bound leaves them out.

    Args:
        pages: of each access, dense ids below `objects`.
        version: of PostgreSQL, whose rules hold.
        plan: how it is replayed.

    Raises:
        ValueError: the trace holds no access.
        MissingAbility: there is no such executor.
    """
    total = len(pages)
    if not total:
        raise ValueError("the trace holds no access")
    edges = np.unique(np.linspace(0, total, _WINDOWS + 1).astype(np.int64))
    sampled = total >= plan.long_trace_accesses
    found = replay_sizes(
        pages, objects, sizes_blocks, version, edges, sampled=sampled, executor=plan.executor, seed=plan.seed
    )
    misses = np.array([one.misses for one in found])
    point = misses.sum(axis=1) / total
    left = misses - point[:, None] * np.diff(edges)
    width = Z90 * np.sqrt((left**2).sum(axis=1) + np.array([one.error for one in found]) ** 2) / total
    first = objects / total
    said = [reasons.first_accesses(first)]
    if sampled:
        said.append(reasons.foreign_pages_sampled())
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(point - width - first, 0, 1),
        high=np.clip(point + width, 0, 1),
        pass_seconds=float("nan"),
        level=RELIABLE if first <= TODAY.rough else ROUGH,
        reasons=said,
    )
