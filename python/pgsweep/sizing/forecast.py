"""What follows from a curve: disk reads, what sessions wait for them, and the throughput.

This is the one composition of curve, page cache and throughput. `predict`, `advise`, `serve` and `verify` use
it; a what-if is a `Change`, a value that goes through it with the curve of the changed load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from pgsweep.commands import recording, sudo
from pgsweep.errors import UsageError
from pgsweep.records import reasons
from pgsweep.records.prediction import MemoryPrediction, PredictResult, Throughput
from pgsweep.sizing.page_cache.disk_reads import DiskReads, Inputs, NotPredicted
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.sizing.throughput.prediction import ReadLoad, predict_throughput
from pgsweep.sizing.throughput.read_costs import read_costs, with_savings
from pgsweep.sizing.throughput.read_times import costs_by_times
from pgsweep.units import format_bytes

if TYPE_CHECKING:
    from pgsweep.records.prediction import ReadCosts
    from pgsweep.sizing.model import Prediction
    from pgsweep.sizing.observed import Observation
    from pgsweep.sizing.snapshots.ensemble import LoadCurves

_NOT_LOOKED_AT: Final = Throughput(
    points=[],
    reasons=["throughput is not predicted: the processors of the server's host were not looked at"],
)


class Watch(Protocol):
    """Watches an answer while it is computed."""

    def begins(self, what: str, about_seconds: float | None = None) -> None:
        """Hear what is computed now, and how long it takes where that can be said."""

    def curve(self, result: PredictResult) -> None:
        """Receive the curve, before what follows from it is computed."""

    def simulated(self, share: float) -> None:
        """Receive the share of the sizes whose page cache has been simulated, from 0 to 1; in any thread."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """What differs from what was recorded (pgsweep.sizing.what_if).

    Attributes:
        before: the whole prediction without the change.
        of_load: the load differs, not only the memory.
        same_transactions: each session does what one of today does, however many there are.
        huge_pages: None as they are.
        sessions_factor: this many times the sessions.
        kept_blocks: of the pool, held by what is kept in it.
        memory_bytes: what pool and page cache share today, where that was named (--ram).
        fitted: the load as it is, where it is known as rates.
    """

    before: PredictResult
    of_load: bool
    same_transactions: bool
    huge_pages: bool | None = None
    sessions_factor: float = 1.0
    kept_blocks: int = 0
    memory_bytes: int | None = None
    fitted: LoadCurves | None = None


def no_memory(what: str) -> UsageError:
    """Return the error for a question about the memory that a trace of others cannot answer."""
    return UsageError(
        f"a trace recorded by others does not say what comes from disk, so {what} is not possible",
        hint=f"record a trace on the server's host: {sudo()}" + recording("--source trace"),
    )


def forecast(
    prediction: Prediction,
    *,
    memory_bytes: int | None = None,
    sizes_bytes: Sequence[int] | None = None,
    seed: int = 0,
    change: Change | None = None,
    watch: Watch | None = None,
) -> PredictResult:
    """Return the record of a curve with all that follows from it, as far as the evidence allows.

    Args:
        prediction: the curve; of the changed load, where there is a change of it.
        memory_bytes: what pool and page cache share; what the evidence says by default.
        sizes_bytes: disk reads only at these; at all sizes of the curve by default.
        seed: of all draws.
        change: what differs from what was recorded.
        watch: gets the curve at once.

    Raises:
        EvidenceError: what the evidence says of its host cannot be.
        UsageError: a memory or a change is asked for that the evidence cannot answer.
    """
    result, observation = prediction.record(), prediction.observation
    if observation is None:
        if memory_bytes is not None:
            raise no_memory("--ram")
        return result
    measured = MemoryFacts.of(observation.server)
    if prediction.pools is not None and measured is None:
        if memory_bytes is None and (change is None or change.huge_pages is None):
            return result
        if change is None or result.points:
            raise UsageError(
                "the evidence does not say how the memory of its server's host is used",
                cause="it was recorded by an earlier pgsweep, or cut short",
                hint=f"record again: {recording('--source trace')}",
            )
    if not result.points:
        return result
    if measured is None and change is not None and change.huge_pages is not None:
        raise UsageError(
            "what huge pages change is not known: the evidence does not say what page tables take on the "
            "server's host",
            hint="record on the server's host: " + recording("--source peek"),
        )
    if watch is not None:
        watch.curve(result)
    done = None if watch is None else watch.simulated
    composition = _Composition(prediction, observation, measured, seed, done)
    try:
        return composition.result(result, memory_bytes, sizes_bytes, change)
    except NotPredicted as why:
        reason = reasons.disk_reads_not_predicted(str(why))
        verdict = msgspec.structs.replace(result.verdict, reasons=[*result.verdict.reasons, reason])
        return msgspec.structs.replace(result, verdict=verdict)


class _Composition:
    """Composes what follows from one curve.

    Args:
        prediction: the curve.
        observation: that it was made of.
        measured: what the evidence says of the memory.
        seed: of all draws.
        done: hears the share of the sizes that have been simulated.
    """

    def __init__(
        self,
        prediction: Prediction,
        observation: Observation,
        measured: MemoryFacts | None,
        seed: int,
        done: Callable[[float], None] | None = None,
    ) -> None:
        self._prediction = prediction
        self._observation = observation
        self._measured = measured
        self._seed = seed
        self._done = done

    def result(
        self,
        result: PredictResult,
        memory_bytes: int | None,
        sizes_bytes: Sequence[int] | None = None,
        change: Change | None = None,
    ) -> PredictResult:
        """Return the record of a curve with disk reads, what they cost, and the throughput.

        Raises:
            NotPredicted: there are no disk reads.
            UsageError: a memory is asked for that is impossible.
        """
        facts = self._facts(result, memory_bytes, change)
        inputs, unknown = self._inputs(result, facts, memory_bytes, change)
        if sizes_bytes is not None:
            wanted = [point for point in result.points if point.shared_buffers_bytes in sizes_bytes]
            inputs = replace(inputs, result=msgspec.structs.replace(result, points=wanted))
        memory = self._disk_reads(inputs, facts, change).predict()
        use = None if facts.assumed else facts.use
        memory = msgspec.structs.replace(memory, use=use, reasons=[*memory.reasons, *unknown])
        before = None if change is None else change.before
        if before is None and facts.is_another(memory_bytes):
            before = self._today(result)
        throughput = _NOT_LOOKED_AT if facts.assumed else self._throughput(result, memory, before, change)
        costs = self._costs(result, memory, throughput, before)
        memory = with_savings(memory, result.points, result.observed, costs)
        return msgspec.structs.replace(result, memory=msgspec.structs.replace(memory, throughput=throughput))

    def _facts(self, result: PredictResult, memory_bytes: int | None, change: Change | None) -> MemoryFacts:
        """Return what is known of today's memory."""
        facts = self._measured
        if self._prediction.pools is None:
            from pgsweep.sizing.page_cache.snapshot_disk_reads import memory_facts

            named = memory_bytes if change is None else change.memory_bytes or memory_bytes
            today_bytes = result.observed.shared_buffers_bytes
            facts = memory_facts(facts, self._prediction.estimate.fitted, named, today_bytes)
        assert facts is not None
        facts.check_asked(memory_bytes)
        if facts.not_simulated:
            raise NotPredicted(facts.not_simulated)
        return facts

    def _inputs(
        self, result: PredictResult, facts: MemoryFacts, memory_bytes: int | None, change: Change | None
    ) -> tuple[Inputs, list[str]]:
        """Return what disk reads are predicted from, with the change, and what of that is not known."""
        inputs = Inputs(
            observation=self._observation,
            result=result,
            facts=facts,
            memory_bytes=memory_bytes,
            seed=self._seed,
            done=self._done,
        )
        if change is None:
            return inputs, []
        inputs = replace(inputs, changed=True, recorded=change.before.memory, kept_blocks=change.kept_blocks)
        factor = change.sessions_factor
        if facts.assumed and factor != 1:
            connected = self._observation.counters.rate(
                "database", self._observation.server.database, "session_time"
            )
            if connected is None:
                why = "how many sessions there are is not known, so what more of them take is left out"
                return inputs, [why]
            facts = facts.with_sessions(connected / 1000)
        return replace(inputs, facts=facts.changed(huge_pages=change.huge_pages, sessions_factor=factor)), []

    def _disk_reads(self, inputs: Inputs, facts: MemoryFacts, change: Change | None) -> DiskReads:
        """Return what predicts disk reads.

        Args:
            inputs: with the change.
            facts: without it.
            change: if there is one.
        """
        pools = self._prediction.pools
        if pools is None:
            from pgsweep.sizing.page_cache.snapshot_disk_reads import SnapshotDiskReads, disk_share_today

            fitted = self._prediction.estimate.fitted
            assert fitted is not None
            today = None if change is None else disk_share_today(replace(inputs, facts=facts), change.fitted)
            return SnapshotDiskReads(inputs, fitted, today)
        from pgsweep.sizing.page_cache.trace_disk_reads import TraceDiskReads

        return TraceDiskReads(inputs, pools)

    def _today(self, result: PredictResult) -> PredictResult:
        """Return the prediction at today's size alone, with today's memory."""
        size = result.observed.shared_buffers_bytes
        today = [point for point in result.points if point.shared_buffers_bytes == size]
        result = msgspec.structs.replace(result, points=today)
        return self.result(result, None) if today else result

    def _throughput(
        self,
        result: PredictResult,
        memory: MemoryPrediction,
        before: PredictResult | None,
        change: Change | None,
    ) -> Throughput:
        """Return the throughput; with a change or another memory as a ratio to today's without."""
        then = ReadLoad(curve=result.points, memory=memory)
        if before is None:
            return predict_throughput(self._observation, result.observed, then)
        if change is not None and change.of_load and not change.same_transactions:
            why = "throughput is not predicted for another load than the one that was recorded"
            return Throughput(points=[], reasons=[why])
        if before.memory is None:
            why = "throughput is not predicted: what comes from disk today is not"
            return Throughput(points=[], reasons=[why])
        now = ReadLoad(curve=before.points, memory=before.memory)
        then = replace(then, sessions_factor=1.0 if change is None else change.sessions_factor)
        found = predict_throughput(self._observation, before.observed, now, then)
        today_bytes = before.memory.memory_bytes
        if found.points and memory.memory_bytes != today_bytes:
            said = f"throughput is a ratio to that of today's size with {format_bytes(today_bytes)} of memory"
            found = msgspec.structs.replace(found, reasons=[said, *found.reasons])
        return found

    def _costs(
        self,
        result: PredictResult,
        memory: MemoryPrediction,
        throughput: Throughput,
        before: PredictResult | None,
    ) -> ReadCosts:
        """Return what a read takes, which is known from the load and the memory that were recorded."""
        if before is not None:
            known = None if before.memory is None else before.memory.costs
            return known or read_costs(self._observation.server.copy_seconds)
        by_loop = read_costs(self._observation.server.copy_seconds, throughput)
        if self._prediction.pools is not None and by_loop.disk_read_kind == "measured":
            return by_loop
        return costs_by_times(self._observation, memory, result.observed.shared_buffers_bytes)
