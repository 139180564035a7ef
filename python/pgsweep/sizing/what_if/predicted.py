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
from pgsweep.records.prediction import ChangedPrediction, PredictResult, Verdict, WhatIf
from pgsweep.sizing.estimate import KEPT_ROOM, Doubt, Estimate, judged, without_unknown
from pgsweep.sizing.predict import (
    Judged,
    no_memory,
    points_of,
)
from pgsweep.sizing.rules import rules_of
from pgsweep.sizing.what_if.assumptions import assumption_of
from pgsweep.sizing.what_if.changed_trace import ChangedTrace
from pgsweep.sizing.what_if.grammar import Asked, Connections, HugePages, OfMemory, Ram, SharedBuffers
from pgsweep.sizing.what_if.relations import check_relations
from pgsweep.units import BLOCK_BYTES, format_bytes

if TYPE_CHECKING:
    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.joined import JoinedEvidence
    from pgsweep.evidence.store import Evidence
    from pgsweep.sizing.traces.accesses import Trace

_DRAWS: Final = 2
_Z90: Final = 1.645
_LEAST_BLOCKS: Final = 16
_ASSUMED: Final = (
    "the changed load was never observed: the intervals take the assumptions as exact and do not cover their "
    "error"
)


def with_what_if(
    found: Judged, result: PredictResult, asked: Sequence[Asked], *, memory_bytes: int | None, seed: int
) -> PredictResult:
    """Return the prediction with the curve that has all the changes.

    Args:
        found: the curve without them.
        result: its record.
        asked: the changes.
        memory_bytes: as for `predict`.
        seed: of all draws.

    Raises:
        UsageError: the evidence cannot answer one of them.
    """
    memory = _of_memory(found, asked, memory_bytes)
    if all(isinstance(one, SharedBuffers) for one in asked):
        # Only sizes are named, and these are in the curve.
        what = [WhatIf(text=one.text, assumption=assumption_of(one, {}, 0).assumption) for one in asked]
        return msgspec.structs.replace(result, what_if=what)
    if found.relations is None:
        raise UsageError(
            "a trace recorded by others does not name relations, sessions or memory, so --what-if is not "
            "possible",
            hint="record with pgsweep record, or ask for another size only: --sizes",
        )
    check_relations(asked, found.relations, found.database_oid)
    what = [assumption_of(one, found.relations, found.database_oid) for one in asked]
    if found.snapshots is not None:
        changed = _of_snapshots(found, found.snapshots, result, asked, memory, seed)
    else:
        assert found.recorded is not None
        changed = _of_trace(found, found.recorded, result, asked, memory, seed)
    return msgspec.structs.replace(result, what_if=what, changed=changed)


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What is asked of the memory.

    Attributes:
        today_bytes: what pool and page cache share today, where that was named (--ram).
        then_bytes: what they share with the what-ifs; None as the evidence says.
        huge_pages: None as they are.
    """

    today_bytes: int | None
    then_bytes: int | None
    huge_pages: bool | None


def _of_memory(found: Judged, asked: Sequence[Asked], memory_bytes: int | None) -> _Memory:
    huge_pages, then_bytes = None, memory_bytes
    for one in asked:
        if not isinstance(one, OfMemory) or isinstance(one, SharedBuffers):
            continue
        if found.recorded is None and found.snapshots is None:
            raise no_memory(f"`{shown(one.text)}`")
        if isinstance(one, Ram):
            then_bytes = one.memory_bytes
        elif isinstance(one, HugePages):
            huge_pages = one.on
    return _Memory(today_bytes=memory_bytes, then_bytes=then_bytes, huge_pages=huge_pages)


def _of_snapshots(
    found: Judged,
    evidence: Evidence | JoinedEvidence,
    result: PredictResult,
    asked: Sequence[Asked],
    memory: _Memory,
    seed: int,
) -> ChangedPrediction:
    """Return the curve with the changes, from rates; also what comes from disk."""
    from pgsweep.sizing.page_cache.disk_reads import Change
    from pgsweep.sizing.page_cache.snapshot_disk_reads import Changed, predict_memory_of_snapshots

    of_load = any(one.of_load for one in asked)
    now, changed = found.estimate, found.estimate.changed
    per_second = found.observed.accesses / max(found.observed.seconds, 1e-9)
    if not of_load:
        changed = replace(now, accesses_per_second=per_second)
    elif now.level == "refused" or changed is None:
        why = "the curve without the what-ifs is refused"
        if now.level != "refused":
            why = "nothing was evicted while it was observed: what would be under another load is not known"
        changed = replace(now, accesses_per_second=per_second, level="refused", reasons=[why, *now.reasons])
    else:
        changed = _rough(changed, now)
    record = _record(changed, found.warnings, from_snapshots=True)
    behind = predict_memory_of_snapshots(
        evidence,
        _with_points(result, record),
        changed.fitted,
        rules_of(evidence.meta),
        memory_bytes=memory.then_bytes,
        seed=seed,
        changed=Changed(
            change=Change(
                recorded=result.memory,
                before=result,
                of_load=of_load,
                same_transactions=all(isinstance(one, Connections | OfMemory) for one in asked),
                huge_pages=memory.huge_pages,
                sessions_factor=_sessions_factor(asked),
            ),
            fitted=now.fitted,
            memory_bytes=memory.today_bytes,
        ),
    )
    return msgspec.structs.replace(record, memory=behind.memory, verdict=behind.verdict)


def _with_points(result: PredictResult, record: ChangedPrediction) -> PredictResult:
    """Return the prediction with the curve and the pace of what is changed, and without disk reads."""
    accesses = round(record.accesses_per_second * result.observed.seconds)
    observed = msgspec.structs.replace(result.observed, accesses=accesses)
    return msgspec.structs.replace(
        result, observed=observed, points=record.points, verdict=record.verdict, memory=None
    )


def _sessions_factor(asked: Sequence[Asked]) -> float:
    return next((one.factor for one in asked if isinstance(one, Connections)), 1.0)


def _of_trace(
    found: Judged,
    recorded: TraceTables,
    result: PredictResult,
    asked: Sequence[Asked],
    memory: _Memory,
    seed: int,
) -> ChangedPrediction:
    """Return the curve with the changes, from a trace that is rewritten; also what comes from disk."""
    from pgsweep.sizing.page_cache.disk_reads import Change, predict_memory

    of_load = any(one.of_load for one in asked)
    if not of_load:
        changed, tables, trace = found.estimate, recorded, found.trace
        kept, per_second = 0, result.observed.accesses / max(result.observed.seconds, 1e-9)
        record = _record(replace(changed, accesses_per_second=per_second), found.warnings)
    elif found.estimate.level == "refused":
        why = "the curve without the what-ifs is refused"
        per_second = result.observed.accesses / max(result.observed.seconds, 1e-9)
        refused = replace(
            found.estimate, accesses_per_second=per_second, reasons=[why, *found.estimate.reasons]
        )
        return _record(refused, found.warnings)
    else:
        first = _drawn(found, recorded, asked, seed, 0)
        draws = [first, *(_drawn(found, recorded, asked, seed, n) for n in range(1, _DRAWS))]
        changed = _rough(_joined([draw.estimate for draw in draws], found.estimate), found.estimate)
        tables, trace, kept = first.tables, first.trace, first.tables.kept_blocks
        record = _record(changed, found.warnings)
    if trace is None or not record.points:
        return record
    behind = predict_memory(
        tables,
        _with_points(result, record),
        trace,
        rules_of(recorded.meta),
        memory_bytes=memory.then_bytes,
        seed=seed,
        change=Change(
            recorded=result.memory,
            before=result,
            of_load=of_load,
            same_transactions=all(isinstance(one, Connections | OfMemory) for one in asked),
            huge_pages=memory.huge_pages,
            sessions_factor=_sessions_factor(asked),
            kept_blocks=kept,
        ),
    )
    return msgspec.structs.replace(record, memory=behind.memory, verdict=behind.verdict)


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """One drawing of the changed load.

    Attributes:
        tables: of the evidence.
        trace: its accesses, but for those that always hit.
        estimate: the curve.
        per_second: accesses of the database.
    """

    tables: ChangedTrace
    trace: Trace
    estimate: Estimate
    per_second: float


def _drawn(found: Judged, recorded: TraceTables, asked: Sequence[Asked], seed: int, number: int) -> _Draw:
    from pgsweep.sizing.observed import Observation
    from pgsweep.sizing.traces.curve import TraceCurve
    from pgsweep.sizing.traces.recorded import read_trace
    from pgsweep.sizing.traces.shared_replays import ReplayPlan

    tables = ChangedTrace(recorded, asked, np.random.default_rng([seed, number]))
    observation = Observation(tables)
    trace = read_trace(observation)
    kept = tables.kept_blocks
    # A scan goes through a ring where its table is more than a quarter of all buffers, with those of what
    # is kept.
    trace = replace(trace, owner_blocks=np.maximum(trace.owner_blocks.astype(np.int64) - kept // 4, 1))
    trace = replace(trace, owner_blocks=trace.owner_blocks.astype(np.uint32))
    if not trace.counted.any():
        raise UsageError(
            "nothing is left of the load with these what-ifs",
            cause="all accesses of the trace are to relations that are left out or kept",
            hint="leave one of them out",
        )
    sizes = found.estimate.sizes_blocks
    large = tuple(size for size in sizes if size >= kept * KEPT_ROOM and size - kept >= _LEAST_BLOCKS)
    if not large:
        raise UsageError(
            "none of the sizes has room for what is kept in it",
            cause=f"{format_bytes(kept * BLOCK_BYTES)} are kept",
            hint=f"ask for sizes from {format_bytes(kept * KEPT_ROOM * BLOCK_BYTES)} on with --sizes",
        )
    replayed = TraceCurve(trace, observation.server, ReplayPlan(seed=seed), as_recorded=False)
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
    return _Draw(tables=tables, trace=trace, estimate=curve, per_second=curve.accesses_per_second)


def _joined(draws: Sequence[Estimate], now: Estimate) -> Estimate:
    """Return the mean of several draws, with an interval that holds their spread and today's error."""
    points = np.array([one.miss_ratio for one in draws])
    point = points.mean(axis=0)
    spread = points.std(axis=0, ddof=1) if len(draws) > 1 else np.zeros(len(point))
    beside = np.hypot(_Z90 * spread * np.sqrt(1 + 1 / len(draws)), now.off_today)
    below = np.max([one.miss_ratio - one.low for one in draws], axis=0)
    above = np.max([one.high - one.miss_ratio for one in draws], axis=0)
    return replace(
        draws[0],
        miss_ratio=point,
        low=np.clip(point - np.hypot(below, beside), 0, 1),
        high=np.clip(point + np.hypot(above, beside), 0, 1),
    )


def _rough(changed: Estimate, now: Estimate) -> Estimate:
    """Return the curve with its verdict: at best rough, and no better than the one without changes."""
    doubts = [Doubt("rough", _ASSUMED)]
    doubts += [Doubt(changed.level, text) for text in changed.reasons]
    if now.level != "reliable":
        doubts += [Doubt(now.level, text) for text in now.reasons]
    if changed.too_small_blocks:
        sizes = ", ".join(format_bytes(size * BLOCK_BYTES) for size in changed.too_small_blocks[:3])
        doubts.append(Doubt("rough", f"at {sizes} little more would fit than what is kept: not predicted"))
    level, reasons = judged(doubts)
    return replace(changed, level=level, reasons=reasons)


def _record(changed: Estimate, warnings: Sequence[str], *, from_snapshots: bool = False) -> ChangedPrediction:
    small = changed.too_small_blocks
    known = changed
    if from_snapshots and small:
        chosen = ~np.isin(changed.sizes_blocks, small)
        known = replace(
            changed,
            sizes_blocks=tuple(size for size in changed.sizes_blocks if size not in small),
            miss_ratio=changed.miss_ratio[chosen],
            low=changed.low[chosen],
            high=changed.high[chosen],
            level=changed.level if chosen.any() else "refused",
        )
    unknown: list[int] = []
    if from_snapshots:
        known, unknown = without_unknown(known)
    return ChangedPrediction(
        accesses_per_second=float(changed.accesses_per_second),
        points=points_of(known),
        unknown_bytes=sorted(size * BLOCK_BYTES for size in {*small, *unknown})
        if known.level != "refused"
        else [],
        verdict=Verdict(level=known.level, reasons=list(dict.fromkeys([*known.reasons, *warnings]))),
    )
