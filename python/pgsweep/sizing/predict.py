"""A curve of miss ratios over sizes of shared_buffers, from evidence of either kind or from a foreign trace.

Snapshots (`record --source sql` or `peek`) are inverted through the law of the clock, traces (`record
--source trace`) are replayed through the exact pool. Both give an interval and a verdict. The method is
described in docs/concepts/prediction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.records.prediction import Observed, PredictResult
from pgsweep.sizing.forecast import forecast
from pgsweep.sizing.model import SNAPSHOTS, Prediction
from pgsweep.sizing.nothing_seen import nothing_seen
from pgsweep.sizing.observed import Observation, observe
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.parallel import check_threads
from pgsweep.sizing.rules import check_server, check_usage_counts, rules_of, unsettled
from pgsweep.sizing.sizes import blocks_of, check_sizes
from pgsweep.units import BLOCK_BYTES
from pgsweep.versions import NEWEST_TESTED_MAJOR, beyond_tested

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.joined import JoinedEvidence
    from pgsweep.evidence.store import EvidenceMeta
    from pgsweep.sizing.traces.accesses import Trace
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
    if sizes_bytes is not None:
        check_sizes(sizes_bytes)
    check_threads()
    observation = observe(evidence)
    if memory_bytes is not None and _knows_memory(observation):
        check_memory(asked)
    prediction = _predicted(observation, evidence, sizes_bytes, asked, executor, seed)
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
    if sizes_bytes is not None:
        check_sizes(sizes_bytes)
    check_threads()
    return _predicted(observe(evidence), evidence, sizes_bytes, (), None, seed)


def _predicted(
    observation: Observation | None,
    evidence: Path,
    sizes_bytes: Sequence[int] | None,
    asked: Sequence[Asked],
    executor: Executor | str | None,
    seed: int,
) -> Prediction:
    """Choose the model, and return its curve."""
    if observation is None:
        return _from_foreign_trace(evidence, sizes_bytes, asked, executor, seed)
    sizes = blocks_of(sizes_bytes, observation.server.pool_blocks, asked)
    source, any_size = observation.server.source, sizes_bytes is None
    if source in SNAPSHOTS:
        _check_executor(executor, evidence)
    observation.check_whole()
    if source in SNAPSHOTS:
        from pgsweep.sizing.snapshots.model import snapshot_model

        return snapshot_model(observation, asked, seed=seed).at(sizes, any_size=any_size)
    if source != "trace":
        raise EvidenceError(
            f"`{evidence}` comes from the source `{source}`, which this version cannot predict from",
            hint="record with --source sql, peek or trace",
        )
    return _from_trace(observation.evidence, sizes, seed, executor, any_size=any_size)


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
    from pgsweep.sizing.snapshots.model import snapshot_model

    check_threads()
    sizes = blocks_of(sizes_bytes, evidence.meta.shared_buffers_blocks)
    prediction = snapshot_model(Observation(evidence), seed=seed).at(sizes, any_size=sizes_bytes is None)
    if MemoryFacts.of(evidence.meta) is None:
        # Nobody can name it with --ram here.
        return prediction.record()
    return forecast(prediction, sizes_bytes=memory_sizes_bytes, seed=seed)


def _warnings(evidence: TraceTables | JoinedEvidence) -> list[str]:
    meta = evidence.meta
    known = (beyond_tested(meta.server_version_num), unsettled(meta))
    return [*(one for one in known if one), *evidence.warnings]


def _from_foreign_trace(
    path: Path,
    sizes_bytes: Sequence[int] | None,
    asked: Sequence[Asked],
    executor: Executor | str | None,
    seed: int,
) -> Prediction:
    """Predict from a trace in oracleGeneral format; without sizes, a 64th of its pages to all of them."""
    from pgsweep.evidence.oracle_general import read_oracle_general
    from pgsweep.sizing.traces.curve import estimate_cold

    trace = read_oracle_general(path)
    sizes = (
        blocks_of(sizes_bytes, 0, asked)
        if sizes_bytes is not None
        else blocks_of([max(trace.objects >> shift, 16) * BLOCK_BYTES for shift in range(7)], 0, asked)
    )
    # A trace that never saw PostgreSQL is replayed by the newest rules there are.
    estimate = estimate_cold(
        trace.pages,
        trace.objects,
        sizes_blocks=sizes,
        version=NEWEST_TESTED_MAJOR,
        executor=executor,
        seed=seed,
    )
    observed = Observed(
        shared_buffers_bytes=0, miss_ratio=0.0, accesses=len(trace.pages), seconds=trace.seconds
    )
    return Prediction(observation=None, estimate=estimate, observed=observed, warnings=trace.warnings)


def _from_trace(
    evidence: TraceTables,
    sizes_blocks: tuple[int, ...],
    seed: int,
    executor: Executor | str | None,
    *,
    any_size: bool,
) -> Prediction:
    from pgsweep.sizing.ring_limits import sizes_with_ring_limits, trace_ring_limits
    from pgsweep.sizing.traces.curve import estimate

    meta = evidence.meta
    check_server(meta)
    check_usage_counts(meta, evidence.table("snapshots")["usage_count"])
    trace = trace_of(evidence)
    if not trace.counted.any():
        raise nothing_seen(evidence)
    scans = trace_ring_limits(trace)
    if any_size:
        sizes_blocks = sizes_with_ring_limits(sizes_blocks, scans)
    extensions_are_reads = meta.server_version_num < 160000
    found = estimate(
        trace,
        pool_blocks=meta.shared_buffers_blocks,
        sizes_blocks=sizes_blocks,
        make_rules=partial(rules_of, meta),
        extensions_are_reads=extensions_are_reads,
        lost_events=meta.lost_events,
        seed=seed,
        executor=executor,
    )
    misses, counted = server_misses(trace, extensions_are_reads=extensions_are_reads)
    observed = _observed(meta, misses / max(counted, 1), counted, trace.duration_seconds)
    return Prediction(
        observation=Observation(evidence),
        estimate=found,
        observed=observed,
        warnings=_warnings(evidence),
        trace=trace,
        scans=scans,
    )


def trace_of(evidence: TraceTables) -> Trace:
    """Return the accesses of recorded evidence as the simulator takes them.

    Raises:
        EvidenceError: a table cannot be read.
    """
    import numpy as np

    from pgsweep.sizing.traces.accesses import from_evidence

    meta = evidence.meta
    recovery = meta.host.get("recovery_pid")
    snapshots, hand = evidence.table("snapshots"), None
    first = snapshots["snapshot"] == 0
    counters = evidence.table("counters")
    hands = np.flatnonzero((counters["scope"] == "pool") & (counters["name"] == "next_victim"))
    if len(hands):
        hand = int(counters["value"][hands[0]])
    return from_evidence(
        evidence.table("accesses"),
        evidence.table("relations"),
        meta.database_oid,
        # A limit of events ends what is known with the last of them.
        seconds=0.0 if meta.ended_by == "limit" else meta.seconds,
        recovery_pid=None if recovery is None else int(recovery),
        pool_blocks=meta.shared_buffers_blocks,
        drops=evidence.table("drops"),
        snapshot={name: column[first] for name, column in snapshots.items()},
        hand=hand,
    )


def server_misses(trace: Trace, *, extensions_are_reads: bool) -> tuple[int, int]:
    """Return misses and accesses of the database as the server itself counts them."""
    from pgsweep._native import EXTENSION

    extends = (trace.flags & EXTENSION) > 0
    reads = trace.counted & ~extends
    misses, accesses = int((trace.missed & reads).sum()), int(reads.sum())
    if extensions_are_reads:
        new = int((trace.counted & extends).sum())
        return misses + new, accesses + new
    return misses, accesses


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
