"""A curve of miss ratios over sizes of shared_buffers, from evidence of either kind or from a foreign trace.

Snapshots (`record --source sql` or `peek`) are inverted through the law of the clock, traces (`record
--source trace`) are replayed through the exact pool. Both give an interval and a verdict. The method is
described in docs/concepts/prediction.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.kept import Question, Steps, answered
from pgsweep.records.prediction import PredictResult

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pgsweep.evidence.joined import JoinedEvidence
    from pgsweep.sizing.forecast import Watch
    from pgsweep.sizing.model import Prediction
    from pgsweep.sizing.observed import Observation
    from pgsweep.sizing.sizes import SizesAsked
    from pgsweep.sizing.what_if.grammar import Asked

__all__ = ["WindowModel", "predict"]

_REPLAY_SECONDS: Final = 2e-6
"""For an access, at seven sizes, on one processor (benchmarks/answers); only to say how long it takes."""


def predict(
    evidence: Path,
    *,
    sizes_bytes: Sequence[int] | None = None,
    memory_bytes: int | None = None,
    what_if: Sequence[str] = (),
    executor: Executor | str | None = None,
    seed: int = 0,
    kept: bool = False,
    watch: Watch | None = None,
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
        kept: take the answer that is kept beside the evidence, and keep this one (evidence/kept.py).
        watch: gets the curve as soon as it is known; not where the answer is kept.

    Raises:
        EvidenceError: the evidence cannot be read, or holds no access.
        UsageError: a size is too small, a memory is given for evidence that says nothing of the page cache,
            a what-if cannot be read or answered, or an executor is given for snapshots.
        MissingAbility: there is no such executor here, or its workers die again and again.
    """

    def made(steps: Steps) -> PredictResult:
        return _made(evidence, sizes_bytes, memory_bytes, what_if, executor, seed, watch, steps)

    if not kept or executor is not None:
        return made(Steps())
    question = Question(
        command="predict",
        sizes_bytes=None if sizes_bytes is None else list(sizes_bytes),
        memory_bytes=memory_bytes,
        what_if=list(what_if),
        seed=seed,
    )
    return answered(evidence, question, PredictResult, made)


def _made(
    evidence: Path,
    sizes_bytes: Sequence[int] | None,
    memory_bytes: int | None,
    what_if: Sequence[str],
    executor: Executor | str | None,
    seed: int,
    watch: Watch | None,
    steps: Steps,
) -> PredictResult:
    """Predict; the arguments are those of `predict`, and steps that are known."""
    from pgsweep.sizing.forecast import forecast
    from pgsweep.sizing.observed import observe
    from pgsweep.sizing.parallel import check_threads
    from pgsweep.sizing.sizes import SizesAsked
    from pgsweep.sizing.what_if.grammar import check_memory, parse

    asked = parse(what_if)
    sizes = SizesAsked.of(sizes_bytes, asked)
    check_threads()
    observation = observe(evidence, steps)
    if memory_bytes is not None and _knows_memory(observation):
        check_memory(asked)
    prediction = _predicted(observation, evidence, sizes, asked, executor, seed, watch)
    result = forecast(prediction, memory_bytes=memory_bytes, seed=seed, watch=watch)
    if not asked:
        return result
    from pgsweep.sizing.what_if.predicted import with_what_if

    if watch is not None:
        watch.begins("predicting with the what-ifs")
    return with_what_if(prediction, result, asked, memory_bytes=memory_bytes, seed=seed)


def _knows_memory(observation: Observation | None) -> bool:
    """Return whether it says how much memory its server's host has; true for a trace of others."""
    from pgsweep.sizing.model import SNAPSHOTS
    from pgsweep.sizing.page_cache.memory_shares import MemoryFacts

    return (
        observation is None
        or observation.server.source not in SNAPSHOTS
        or MemoryFacts.of(observation.server) is not None
    )


def judge(
    evidence: Path,
    *,
    sizes_bytes: Sequence[int] | None = None,
    seed: int = 0,
    watch: Watch | None = None,
    steps: Steps | None = None,
) -> Prediction:
    """Return the curve as `predict` does, with what is not shown: refused curves, and sizes that are unknown.

    It is for judging the method (benchmarks/calibration).
    """
    from pgsweep.sizing.observed import observe
    from pgsweep.sizing.parallel import check_threads
    from pgsweep.sizing.sizes import SizesAsked

    sizes = SizesAsked.of(sizes_bytes)
    check_threads()
    return _predicted(observe(evidence, steps), evidence, sizes, (), None, seed, watch)


def _predicted(
    observation: Observation | None,
    evidence: Path,
    sizes: SizesAsked,
    asked: Sequence[Asked],
    executor: Executor | str | None,
    seed: int,
    watch: Watch | None = None,
) -> Prediction:
    """Choose the model, and return its curve."""
    from pgsweep.sizing.model import SNAPSHOTS

    if observation is None:
        return _from_foreign_trace(evidence, sizes, executor, seed)
    sizes_blocks = sizes.or_around(observation.server.pool_blocks)
    source, any_size = observation.server.source, sizes.named is None
    if source in SNAPSHOTS:
        _check_executor(executor, evidence)
    observation.check_whole()
    if source in SNAPSHOTS:
        from pgsweep.sizing.snapshots.model import snapshot_model

        if watch is not None:
            watch.begins("fitting how often pages are accessed")
        return snapshot_model(observation, asked, seed=seed).at(sizes_blocks, any_size=any_size)
    if source != "trace":
        raise EvidenceError(
            f"`{evidence}` comes from the source `{source}`, which this version cannot predict from",
            hint="record with --source sql, peek or trace",
        )
    from pgsweep.sizing.traces.model import TraceModel
    from pgsweep.sizing.traces.shared_replays import ReplayPlan

    if watch is not None:
        accesses = round(observation.server.accesses_per_second * observation.server.seconds)
        watch.begins("replaying the trace", accesses * _REPLAY_SECONDS or None)
    model = TraceModel(observation, ReplayPlan(seed=seed, executor=executor))
    return model.at(sizes_blocks, any_size=any_size)


class WindowModel:
    """The load in a window over recordings of snapshots, fitted once for all that is asked of it.

    Args:
        evidence: the window.
        seed: as for `predict`.

    Raises:
        EvidenceError: it holds no access.
    """

    def __init__(self, evidence: JoinedEvidence, *, seed: int = 0) -> None:
        from pgsweep.sizing.observed import Observation
        from pgsweep.sizing.parallel import check_threads
        from pgsweep.sizing.snapshots.model import snapshot_model

        check_threads()
        self.evidence = evidence
        self.seed = seed
        self._model = snapshot_model(Observation(evidence), seed=seed)

    def judge(self, sizes_bytes: Sequence[int] | None = None) -> Prediction:
        """Return the curve, as `judge` does of evidence."""
        from pgsweep.sizing.sizes import SizesAsked

        sizes = SizesAsked.of(sizes_bytes).or_around(self.evidence.meta.shared_buffers_blocks)
        return self._model.at(sizes, any_size=sizes_bytes is None)

    def predict(
        self, sizes_bytes: Sequence[int] | None = None, memory_sizes_bytes: list[int] | None = None
    ) -> PredictResult:
        """Predict.

        Args:
            sizes_bytes: sizes to predict; without, an eighth to eight times today's.
            memory_sizes_bytes: those at which disk reads are predicted, where the evidence says how much
                memory there is; all by default.
        """
        from pgsweep.sizing.forecast import forecast
        from pgsweep.sizing.page_cache.memory_shares import MemoryFacts

        prediction = self.judge(sizes_bytes)
        if MemoryFacts.of(self.evidence.meta) is None:
            # Nobody can name it with --ram here.
            return prediction.record()
        return forecast(prediction, sizes_bytes=memory_sizes_bytes, seed=self.seed)


def _from_foreign_trace(
    path: Path, sizes: SizesAsked, executor: Executor | str | None, seed: int
) -> Prediction:
    """Predict from a trace in oracleGeneral format."""
    from pgsweep.evidence.oracle_general import read_oracle_general
    from pgsweep.sizing.traces.foreign import ForeignTraceModel
    from pgsweep.sizing.traces.shared_replays import ReplayPlan

    model = ForeignTraceModel(read_oracle_general(path), ReplayPlan(seed=seed, executor=executor))
    return model.at(sizes.or_else(model.usual_sizes_blocks))


def _check_executor(executor: Executor | str | None, evidence: Path) -> None:
    if executor is not None:
        raise UsageError(
            f"`{evidence}` is not replayed by other processes",
            cause="it is made of snapshots, and only traces are replayed",
            hint="leave out --executor",
        )
