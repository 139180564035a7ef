"""A curve of miss ratios over sizes of shared_buffers, from evidence of either kind or from a foreign trace.

Snapshots (`record --source sql` or `peek`) are inverted through the law of the clock, traces (`record
--source trace`) are replayed through the exact pool. Both give an interval and a verdict. The method is
described in docs/concepts/prediction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.records import reasons
from pgsweep.records.prediction import NoEviction, Observed, PredictResult
from pgsweep.sizing.forecast import forecast
from pgsweep.sizing.model import SNAPSHOTS, Prediction
from pgsweep.sizing.nothing_seen import nothing_seen
from pgsweep.sizing.observed import Observation, observe
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.parallel import check_threads
from pgsweep.sizing.rules import check_server, check_usage_counts, rules_of, unsettled
from pgsweep.sizing.sizes import SizesAsked, whole_megabytes, with_ring_limits
from pgsweep.sizing.verdict import Doubt, judged
from pgsweep.units import BLOCK_BYTES
from pgsweep.versions import beyond_tested

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.joined import JoinedEvidence
    from pgsweep.evidence.store import EvidenceMeta
    from pgsweep.sizing.snapshots.unfilled import Unfilled
    from pgsweep.sizing.what_if.grammar import Asked

__all__ = ["predict", "predict_window"]


def predict(
    evidence: Path,
    *,
    sizes_bytes: Sequence[int] | None = None,
    memory_bytes: int | None = None,
    what_if: Sequence[str] = (),
    executor: Executor | str | None = None,
    seed: int = 0,
) -> PredictResult:
    """Predict the miss ratio at other sizes of shared_buffers, and what of the misses comes from disk.

    Args:
        evidence: a folder written by `record`, or a file NAME.oracleGeneral. If pgsweep exported it,
            the evidence that it comes from is used, as long as the folder written beside it exists.
        sizes_bytes: sizes to predict, each at least 128 kB; without, an eighth to eight times today's.
        memory_bytes: what the pool and the page cache share; without, the memory of the host or of the cgroup
            that the evidence was recorded on, where it says so. What comes from disk is not predicted where
            neither is known.
        what_if: changes of the load or of the memory, such as `orders grows 2x`; all of them together give
            a second curve.
        executor: where a trace is replayed at the sizes: an executor of `concurrent.futures`,
            `processes:N`, or the address of a dask scheduler; without, this process.
        seed: of the resampling behind the intervals; the same seed gives the same result.

    Raises:
        EvidenceError: the evidence cannot be read, or holds no access.
        UsageError: a size is too small, a memory is given for evidence that says nothing of the page cache,
            a what-if cannot be read or answered, or an executor is given for snapshots.
        MissingAbility: there is no such executor here, or its workers die again and again.
    """
    from pgsweep.sizing.what_if.grammar import check_memory, parse
    from pgsweep.sizing.what_if.predicted import with_what_if

    asked = parse(what_if)
    sizes = SizesAsked.of(sizes_bytes, asked)
    check_threads()
    observation = observe(evidence)
    if memory_bytes is not None and _knows_memory(observation):
        check_memory(asked)
    prediction = _predicted(observation, evidence, sizes, asked, executor, seed)
    result = forecast(prediction, memory_bytes=memory_bytes, seed=seed)
    return with_what_if(prediction, result, asked, memory_bytes=memory_bytes, seed=seed) if asked else result


def _knows_memory(observation: Observation | None) -> bool:
    """Return whether it says how much memory its server's host has; true for a trace of others."""
    return (
        observation is None
        or observation.server.source not in SNAPSHOTS
        or MemoryFacts.of(observation.server) is not None
    )


def judge(evidence: Path, *, sizes_bytes: Sequence[int] | None = None, seed: int = 0) -> Prediction:
    """Return the curve as `predict` does, with what is not shown: refused curves, and sizes that are unknown.

    It is for judging the method (benchmarks/calibration).
    """
    sizes = SizesAsked.of(sizes_bytes)
    check_threads()
    return _predicted(observe(evidence), evidence, sizes, (), None, seed)


def _predicted(
    observation: Observation | None,
    evidence: Path,
    sizes: SizesAsked,
    asked: Sequence[Asked],
    executor: Executor | str | None,
    seed: int,
) -> Prediction:
    """Choose the model, and return its curve."""
    if observation is None:
        return _from_foreign_trace(evidence, sizes, executor, seed)
    sizes_blocks = sizes.or_around(observation.server.pool_blocks)
    source, any_size = observation.server.source, sizes.named is None
    if source in SNAPSHOTS:
        _check_executor(executor, evidence)
    observation.check_whole()
    if source in SNAPSHOTS:
        return _from_snapshots(observation.evidence, sizes_blocks, seed, any_size=any_size, asked=asked)
    if source != "trace":
        raise EvidenceError(
            f"`{evidence}` comes from the source `{source}`, which this version cannot predict from",
            hint="record with --source sql, peek or trace",
        )
    from pgsweep.sizing.traces.model import TraceModel
    from pgsweep.sizing.traces.shared_replays import ReplayPlan

    model = TraceModel(observation, ReplayPlan(seed=seed, executor=executor))
    return model.at(sizes_blocks, any_size=any_size)


def predict_window(
    evidence: JoinedEvidence,
    *,
    sizes_bytes: Sequence[int] | None = None,
    memory_sizes_bytes: list[int] | None = None,
    seed: int = 0,
) -> PredictResult:
    """Predict from a window over recordings of snapshots.

    Args:
        evidence: the window.
        sizes_bytes: sizes to predict; without, an eighth to eight times today's.
        memory_sizes_bytes: those at which disk reads are predicted, where the evidence says how much memory
            there is; all by default.
        seed: as for `predict`.

    Raises:
        EvidenceError: it holds no access.
    """
    check_threads()
    sizes = SizesAsked.of(sizes_bytes).or_around(evidence.meta.shared_buffers_blocks)
    prediction = _from_snapshots(evidence, sizes, seed, any_size=sizes_bytes is None)
    if MemoryFacts.of(evidence.meta) is None:
        # Nobody can name it with --ram here.
        return prediction.record()
    return forecast(prediction, sizes_bytes=memory_sizes_bytes, seed=seed)


def _warnings(evidence: TraceTables | JoinedEvidence) -> list[str]:
    meta = evidence.meta
    known = (beyond_tested(meta.server_version_num), unsettled(meta))
    return [*(one for one in known if one), *evidence.warnings]


def _from_foreign_trace(
    path: Path, sizes: SizesAsked, executor: Executor | str | None, seed: int
) -> Prediction:
    """Predict from a trace in oracleGeneral format."""
    from pgsweep.evidence.oracle_general import read_oracle_general
    from pgsweep.sizing.traces.foreign import ForeignTraceModel
    from pgsweep.sizing.traces.shared_replays import ReplayPlan

    model = ForeignTraceModel(read_oracle_general(path), ReplayPlan(seed=seed, executor=executor))
    return model.at(sizes.or_else(model.usual_sizes_blocks))


def _from_snapshots(
    evidence: TraceTables,
    sizes_blocks: tuple[int, ...],
    seed: int,
    *,
    any_size: bool,
    asked: Sequence[Asked] = (),
) -> Prediction:
    """Predict from snapshots; `any_size`: nobody asked for these sizes, so that others may be added."""
    from pgsweep.evidence.sampling import BlockSample
    from pgsweep.sizing.estimate import refused
    from pgsweep.sizing.ring_limits import of_snapshots
    from pgsweep.sizing.snapshots.fit import estimate
    from pgsweep.sizing.snapshots.totals import read_totals
    from pgsweep.sizing.snapshots.unfilled import estimate_unfilled, filled_up, unfilled
    from pgsweep.sizing.snapshots.used_snapshots import used_snapshots
    from pgsweep.sizing.what_if.changed_rates import changes_of

    meta = evidence.meta
    check_server(meta)
    relations = evidence.table("relations")
    changes = changes_of(asked, relations, meta) if any(one.of_load for one in asked) else None
    counters = evidence.table("counters")
    columns = ["snapshot", "frame", "spc", "db", "rel", "fork", "block", "usage_count", "dirty"]
    rate = BlockSample.from_meta(meta.sampling).rate
    snapshots = evidence.table("snapshots", columns)
    check_usage_counts(meta, snapshots["usage_count"])
    seen = used_snapshots(
        snapshots,
        evidence.table("snapshot_times"),
        counters,
        pool_blocks=meta.shared_buffers_blocks,
        rate=rate,
    )
    totals = read_totals(counters, relations, meta.database)
    if meta.settings.get("track_counts") == "off":
        return Prediction(
            observation=Observation(evidence),
            estimate=refused(Doubt("refused", reasons.counters_off())),
            observed=_observed(meta, 0.0, 0, totals.seconds),
            warnings=_warnings(evidence),
        )
    accesses = totals.hits + totals.misses
    if accesses <= 0 or totals.seconds <= 0 or not len(seen.snapshots["snapshot"]):
        raise nothing_seen(evidence)
    observed = _observed(meta, totals.misses / accesses, round(accesses), totals.seconds)
    warnings = [*seen.warnings, *_warnings(evidence)]
    calm = unfilled(
        seen.used_blocks,
        seen.hand_buffers,
        counters,
        relations,
        totals,
        database_oid=meta.database_oid,
        server_version_num=meta.server_version_num,
        pool_blocks=meta.shared_buffers_blocks,
    )
    if calm is not None:
        if any_size:
            sizes_blocks = tuple(sorted({*sizes_blocks, whole_megabytes(calm.known_from_blocks)}))
        return Prediction(
            observation=Observation(evidence),
            estimate=estimate_unfilled(calm, totals, sizes_blocks),
            observed=observed,
            warnings=warnings,
            no_eviction=_no_eviction(calm, sizes_blocks, meta.shared_buffers_blocks),
        )
    scans = of_snapshots(totals, relations, meta.database_oid)
    if any_size:
        sizes_blocks = with_ring_limits(sizes_blocks, scans)
    found = estimate(
        seen.snapshots,
        relations,
        totals,
        database_oid=meta.database_oid,
        server_version_num=meta.server_version_num,
        pool_blocks=meta.shared_buffers_blocks,
        sizes_blocks=sizes_blocks,
        sampling_rate=rate,
        hand_buffers=seen.hand_buffers,
        loads_seen=seen.loads,
        rules=rules_of(meta),
        changes=changes,
        seed=seed,
    )
    filling = filled_up(seen.used_blocks, meta.shared_buffers_blocks)
    doubts = [
        *([] if filling is None else [Doubt("refused", filling)]),
        *_server_doubts(meta),
        *(Doubt(found.level, reason) for reason in found.reasons),
    ]
    level, said = judged(doubts)
    return Prediction(
        observation=Observation(evidence),
        estimate=replace(found, level=level, reasons=said),
        observed=observed,
        warnings=warnings,
        scans=scans,
    )


def _no_eviction(calm: Unfilled, sizes_blocks: tuple[int, ...], pool_blocks: int) -> NoEviction:
    below = calm.known_below_blocks
    removable = max(pool_blocks - calm.known_from_blocks, 0) if calm.usable else 0
    return NoEviction(
        used_bytes=calm.used_blocks * BLOCK_BYTES,
        removable_bytes=removable * BLOCK_BYTES,
        known_from_bytes=calm.known_from_blocks * BLOCK_BYTES,
        known_below_bytes=None if below is None else below * BLOCK_BYTES,
        filling_bytes=calm.filling_blocks * BLOCK_BYTES,
        unknown_bytes=[size * BLOCK_BYTES for size in sizes_blocks if not calm.knows(size)],
    )


def _server_doubts(meta: EvidenceMeta) -> list[Doubt]:
    """Return what a server does that its counters do not show."""
    from pgsweep.evidence.endings import WENT_AWAY

    doubts = []
    if meta.settings.get("in_hot_standby") == "on":
        doubts.append(Doubt("rough", reasons.standby()))
    if meta.ended_by == "server":
        doubts.append(Doubt("rough", reasons.server_went_away()))
    elif meta.ended_by in WENT_AWAY:
        doubts.append(Doubt("rough", reasons.session_lost()))
    return doubts


def _observed(meta: EvidenceMeta, miss_ratio: float, accesses: int, seconds: float) -> Observed:
    return Observed(
        shared_buffers_bytes=meta.shared_buffers_blocks * meta.block_size_bytes,
        miss_ratio=miss_ratio,
        accesses=accesses,
        seconds=seconds,
    )


def _check_executor(executor: Executor | str | None, evidence: Path) -> None:
    if executor is not None:
        raise UsageError(
            f"`{evidence}` is not replayed by other processes",
            cause="it is made of snapshots, and only traces are replayed",
            hint="leave out --executor",
        )
