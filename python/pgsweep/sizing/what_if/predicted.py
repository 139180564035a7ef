"""The curve with what-ifs, beside that of the load as it was recorded.

Its interval holds what the interval of any curve holds, how different draws of the change come out, and by
how much today's size comes out wrong without it. Not in it is whether the change is as it is assumed to be:
nothing in the evidence shows that. So a changed load is at best rough. Where only the memory changes, the
verdict stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from pgsweep.errors import UsageError
from pgsweep.plain import shown
from pgsweep.records import trace_reasons as reasons
from pgsweep.records.prediction import ChangedPrediction, PredictResult, WhatIf
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.forecast import Change, forecast, no_memory
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.rules import most_blocks_without_ring
from pgsweep.sizing.verdict import KEPT_ROOM
from pgsweep.sizing.what_if.assumptions import assumption_of, rough_at_best
from pgsweep.sizing.what_if.grammar import Asked, Connections, HugePages, OfMemory, Ram, SharedBuffers
from pgsweep.sizing.what_if.relations import check_relations
from pgsweep.sizing.what_if.rewritten_trace import RewrittenTrace
from pgsweep.units import BLOCK_BYTES, Z90, format_bytes

if TYPE_CHECKING:
    from pgsweep.sizing.model import Prediction
    from pgsweep.sizing.traces.warm_start import WarmPools

_DRAWS: Final = 2
_LEAST_BLOCKS: Final = 16


def with_what_if(
    prediction: Prediction,
    result: PredictResult,
    asked: Sequence[Asked],
    *,
    memory_bytes: int | None,
    seed: int,
) -> PredictResult:
    """Return the prediction with the curve that has all the changes, and with what follows from it.

    Args:
        prediction: the curve without them.
        result: all that follows from it.
        asked: the changes.
        memory_bytes: as for `predict`.
        seed: of all draws.

    Raises:
        UsageError: the evidence cannot answer one of them.
    """
    observation = prediction.observation
    if observation is None:
        _refuse_memory(asked)
    if all(isinstance(one, SharedBuffers) for one in asked):
        # Only sizes are named, and these are in the curve.
        what = [WhatIf(text=one.text, assumption=assumption_of(one, {}, 0).assumption) for one in asked]
        return msgspec.structs.replace(result, what_if=what)
    if observation is None:
        raise UsageError(
            "a trace recorded by others does not name relations, sessions or memory, so --what-if is not "
            "possible",
            hint="record with pgsweep record, or ask for another size only: --sizes",
        )
    relations, database_oid = observation.relations, observation.server.database_oid
    check_relations(asked, relations, database_oid)
    what = [assumption_of(one, relations, database_oid) for one in asked]
    changed, kept_blocks = _changed(prediction, observation, asked, seed)
    found = forecast(
        changed,
        memory_bytes=next((one.memory_bytes for one in asked if isinstance(one, Ram)), memory_bytes),
        seed=seed,
        change=Change(
            before=result,
            of_load=any(one.of_load for one in asked),
            same_transactions=all(isinstance(one, Connections | OfMemory) for one in asked),
            huge_pages=next((one.on for one in asked if isinstance(one, HugePages)), None),
            sessions_factor=next((one.factor for one in asked if isinstance(one, Connections)), 1.0),
            kept_blocks=kept_blocks,
            memory_bytes=memory_bytes,
            fitted=prediction.estimate.fitted,
        ),
    )
    record = ChangedPrediction(
        accesses_per_second=float(changed.estimate.accesses_per_second),
        points=found.points,
        unknown_bytes=found.unknown_bytes,
        verdict=found.verdict,
        memory=found.memory,
    )
    return msgspec.structs.replace(result, what_if=what, changed=record)


def _refuse_memory(asked: Sequence[Asked]) -> None:
    for one in asked:
        if isinstance(one, OfMemory) and not isinstance(one, SharedBuffers):
            raise no_memory(f"`{shown(one.text)}`")


def _changed(
    prediction: Prediction, observation: Observation, asked: Sequence[Asked], seed: int
) -> tuple[Prediction, int]:
    """Return the curve with the changes, and how many blocks of the pool hold what is kept in it."""
    now = prediction.estimate
    pools, kept_blocks = prediction.pools, 0
    estimate = replace(
        now,
        accesses_per_second=prediction.observed.accesses_per_second,
    )
    if any(one.of_load for one in asked):
        if now.level == "refused":
            why = reasons.refused_without_change()
            estimate = replace(estimate, reasons=[why, *now.reasons])
        elif pools is not None and pools.trace.is_within_a_pass:
            why = reasons.short_for_change()
            estimate = replace(estimate, level="refused", reasons=[why, *now.reasons])
        elif pools is not None:
            draws = [_drawn(prediction, observation, asked, seed, number) for number in range(_DRAWS)]
            estimate = rough_at_best(_joined([draw.estimate for draw in draws], now), now)
            observation, pools = Observation(draws[0].tables), draws[0].pools
            kept_blocks = draws[0].tables.kept_blocks
        else:
            assert prediction.model is not None
            estimate = prediction.model.changed(asked).at(now.sizes_blocks).estimate
    accesses = round(float(estimate.accesses_per_second) * prediction.observed.seconds)
    changed = replace(
        prediction,
        observation=observation,
        estimate=estimate,
        observed=msgspec.structs.replace(prediction.observed, accesses=accesses),
        pools=pools,
    )
    return changed, kept_blocks


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """One drawing of the changed load.

    Attributes:
        tables: of the evidence.
        pools: under its accesses, but for those that always hit.
        estimate: the curve.
    """

    tables: RewrittenTrace
    pools: WarmPools
    estimate: Estimate


def _drawn(
    prediction: Prediction, observation: Observation, asked: Sequence[Asked], seed: int, number: int
) -> _Draw:
    from pgsweep.sizing.traces.curve import TraceCurve
    from pgsweep.sizing.traces.recorded import read_trace
    from pgsweep.sizing.traces.shared_replays import ReplayPlan

    tables = RewrittenTrace(observation.evidence, asked, np.random.default_rng([seed, number]))
    changed = Observation(tables)
    trace = read_trace(changed)
    kept = tables.kept_blocks
    # A scan goes through a ring where its table is more than a quarter of all buffers, with those of what
    # is kept.
    owner_blocks = np.maximum(trace.owner_blocks.astype(np.int64) - int(most_blocks_without_ring(kept)), 1)
    trace = replace(trace, owner_blocks=owner_blocks.astype(np.uint32))
    if not trace.counted.any():
        raise UsageError(
            "nothing is left of the load with these what-ifs",
            cause="all accesses of the trace are to relations that are left out or kept",
            hint="leave one of them out",
        )
    sizes = prediction.estimate.sizes_blocks
    large = tuple(size for size in sizes if size >= kept * KEPT_ROOM and size - kept >= _LEAST_BLOCKS)
    if not large:
        raise UsageError(
            "none of the sizes has room for what is kept in it",
            cause=f"{format_bytes(kept * BLOCK_BYTES)} are kept",
            hint=f"ask for sizes from {format_bytes(kept * KEPT_ROOM * BLOCK_BYTES)} on with --sizes",
        )
    replayed = TraceCurve(trace, changed.server, ReplayPlan(seed=seed), as_recorded=False)
    alone = replayed.at([size - kept for size in large])
    others = int(replayed.replay.stretch.total)
    accesses = others + tables.kept_accesses
    share, added = others / accesses, tables.kept_misses / accesses
    curve = replace(
        alone,
        sizes_blocks=large,
        miss_ratio=alone.miss_ratio * share + added,
        low=alone.low * share + added,
        high=alone.high * share + added,
        too_small_blocks=tuple(size for size in sizes if size not in large),
        accesses_per_second=accesses / max(trace.duration_seconds, 1e-9),
    )
    return _Draw(tables=tables, pools=replayed.pools, estimate=curve)


def _joined(draws: Sequence[Estimate], now: Estimate) -> Estimate:
    """Return the mean of several draws, with an interval that holds their spread and today's error.

    Of a part of the load no more is known than of all of it: how far the unchanged curve may be off is in the
    interval too, in proportion where less is missed.
    """
    points = np.array([one.miss_ratio for one in draws])
    point = points.mean(axis=0)
    spread = points.std(axis=0, ddof=1) if len(draws) > 1 else np.zeros(len(point))
    beside = np.hypot(Z90 * spread * np.sqrt(1 + 1 / len(draws)), now.off_today)
    below = np.max([one.miss_ratio - one.low for one in draws], axis=0)
    above = np.max([one.high - one.miss_ratio for one in draws], axis=0)
    kept = np.isin(now.sizes_blocks, draws[0].sizes_blocks)
    before, low, high = now.miss_ratio[kept], now.low[kept], now.high[kept]
    part = np.minimum(point / np.maximum(before, 1e-12), 1.0)
    return replace(
        draws[0],
        miss_ratio=point,
        low=np.clip(point - np.maximum(np.hypot(below, beside), (before - low) * part), 0, 1),
        high=np.clip(point + np.maximum(np.hypot(above, beside), (high - before) * part), 0, 1),
    )
