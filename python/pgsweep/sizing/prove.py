"""Proves a prediction: the traced accesses, through a real PostgreSQL, at other sizes.

For each size a private server is restarted with that shared_buffers, its pool is brought into a state drawn
from the model of the steady workload (the same kind of state that the prediction starts from), and the
accesses of the trace are made again, one by one, in their order. The server counts its own hits and misses.
Beside that stand the prediction and the simulator, the latter from the very same state: where simulator and
server differ, the rules are wrong; where both differ from the prediction, the drawn state decides and the
trace is too short for the size.

A server cannot be made to use rings (see testbed.replay_server) or to drop pages at a given time. So the
simulator runs once more with both: what that changes is what the proof leaves out. Where it is much, the
replay checks the simulator alone. A block that a backend
accesses while it has it pinned is a hit without effect on any server; such accesses are counted and not made.

What no replay of accesses can show is what the workload itself would do at another size: a faster server
runs more transactions, and its sessions interleave differently. The prediction and the proof are of the
accesses that were recorded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.commands import on_server
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.store import Evidence
from pgsweep.host.machine import describe_machine
from pgsweep.plain import shell_word
from pgsweep.progress import NullListener, Progress
from pgsweep.records import trace_reasons as reasons
from pgsweep.records.prediction import CurvePoint, PredictResult, Verdict
from pgsweep.records.proof import ProveResult, ProveRow
from pgsweep.sizing.accuracy import Accuracy, interval_of
from pgsweep.sizing.observed import Observation, Server
from pgsweep.sizing.predict import predict
from pgsweep.sizing.traces.accesses import DROP, EXTEND, REPEAT, STRATEGY, Trace, first_accesses
from pgsweep.sizing.traces.curve import TraceCurve
from pgsweep.sizing.traces.recorded import read_trace
from pgsweep.sizing.traces.shared_replays import ReplayPlan
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.testbed.replay_server import ReplayCounts, ReplayServer, can_try, check_size
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count, format_percent

MAX_ACCESSES = 1_000_000
"""More are rarely worth the time: a million accesses determine a miss ratio to 0.0005."""

_MOST_LEFT_OUT = 0.005
"""By how much rings and drops may change the miss ratio where the replay is compared with the prediction."""

_SECONDS_PER_ACCESS = 8e-6
_RESTART_SECONDS = 1.5


def prove(
    evidence: Path,
    *,
    sizes_bytes: Sequence[int] | None = None,
    max_accesses: int = MAX_ACCESSES,
    bindir: Path | None = None,
    work_dir: Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> ProveResult:
    """Replay a trace through a real server at other sizes and compare with the prediction.

    Args:
        evidence: a folder written by `record --source trace`.
        sizes_bytes: sizes to try; without, an eighth to eight times the size at which it was recorded.
        max_accesses: the largest number of accesses of the trace, from its beginning.
        bindir: the bin folder of the server to try; the wheel's PostgreSQL 18 by default.
        work_dir: where the server's data directory is made.
        progress: called with every size.
        seed: of the drawn states.

    Raises:
        UsageError: the evidence holds no trace.
        EvidenceError: it cannot be read, or holds no access.
        ClusterError: no server, or a size that this machine has no memory for.
    """
    listener = progress or NullListener()
    started = time.monotonic()
    evidence_of_trace = _open_trace(evidence)
    observation = Observation(evidence_of_trace)
    for size in sizes_bytes or ():
        check_size(size)
    listener.stage("predicting from the trace")
    predicted = _predict(evidence, sizes_bytes, seed)
    whole = read_trace(observation)
    part = _Part.of(first_accesses(whole, max_accesses), observation.server)
    curve = TraceCurve(part.trace, observation.server, ReplayPlan(seed=seed))
    points = predicted.points if part.trace is whole else _predict_part(curve, predicted.points)
    tried = [point for point in points if can_try(point.shared_buffers_bytes)]
    if not tried:
        check_size(points[0].shared_buffers_bytes)
    states = _draw_states(curve.pools, tried, seed)
    with ReplayServer(_counted_pages(part, states), bindir=bindir, work_dir=work_dir) as server:
        rows = _replay(server, part, tried, states, listener)
        version, version_num = server.version, server.version_num
    notes = [*_notes(whole, part), *_left_out(part, rows)]
    if len(tried) < len(points):
        largest = format_bytes(points[-1].shared_buffers_bytes)
        notes.insert(0, f"sizes up to {largest} were left out: this machine has no memory for them")
    meta = evidence_of_trace.meta
    if version_num // 10000 != meta.server_version_num // 10000:
        notes.append(f"recorded on PostgreSQL {meta.server_version}, replayed on {version}")
    accuracy = Accuracy.of([(row.measured_miss_ratio, row.predicted) for row in rows if row.comparable])
    return ProveResult(
        evidence=str(evidence),
        observed_shared_buffers_bytes=observation.server.pool_bytes,
        server_version=version,
        machine=describe_machine(),
        seconds=time.monotonic() - started,
        notes=notes,
        rows=rows,
        mean_abs_error=accuracy.mean,
        max_abs_error=accuracy.largest,
        simulator_max_abs_error=max(abs(row.simulated_miss_ratio - row.measured_miss_ratio) for row in rows),
        within_interval_ratio=accuracy.within,
        verdict=_verdict(predicted.verdict, rows, observation.server.pool_bytes),
    )


def _verdict(predicted: Verdict, rows: Sequence[ProveRow], today_bytes: int) -> Verdict:
    """Return the verdict on the prediction, at best rough where the proof of today's size contradicts it."""
    today = next((row for row in rows if row.shared_buffers_bytes == today_bytes and row.comparable), None)
    if today is None or today.predicted.low <= today.measured_miss_ratio <= today.predicted.high:
        return predicted
    said = reasons.proof_outside_today(today.measured_miss_ratio, today.predicted.low, today.predicted.high)
    level = "rough" if predicted.level == "reliable" else predicted.level
    return msgspec.structs.replace(predicted, level=level, reasons=[said, *predicted.reasons])


def _open_trace(path: Path) -> Evidence:
    """Open the evidence, and refuse what holds no accesses."""
    opened = Evidence.open(path)
    if opened.meta.source != "trace":
        raise UsageError(
            f"`{path}` holds no accesses to replay, it was recorded with --source {opened.meta.source}",
            hint=on_server("pgsweep record", "--source trace"),
        )
    return opened


def _predict(evidence: Path, sizes_bytes: Sequence[int] | None, seed: int) -> PredictResult:
    """Predict from the whole trace, and refuse what cannot be proved."""
    predicted = predict(evidence, sizes_bytes=sizes_bytes, seed=seed)
    if predicted.verdict.level == "refused":
        raise EvidenceError(
            f"`{evidence}` allows no prediction that could be proved",
            cause="; ".join(predicted.verdict.sentences),
            hint=f"pgsweep predict {shell_word(str(evidence))}",
        )
    return predicted


def _predict_part(curve: TraceCurve, points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Return the prediction of a part of the trace, at the sizes of the points."""
    found = curve.at([point.shared_buffers_bytes // BLOCK_BYTES for point in points])
    ratios = (found.miss_ratio.tolist(), found.low.tolist(), found.high.tolist())
    return [
        msgspec.structs.replace(point, miss_ratio=ratio, low=low, high=high)
        for point, ratio, low, high in zip(points, *ratios, strict=True)
    ]


def _notes(whole: Trace, part: _Part) -> list[str]:
    """Return what of the trace is not replayed, or in another way."""
    notes = []
    if part.trace is not whole:
        made = int(((whole.flags & DROP) == 0).sum())
        notes.append(
            f"the first {format_count(part.length)} of {format_count(made)} accesses, of all databases, were "
            "predicted and replayed"
        )
    if part.dropped:
        notes.append(
            f"{format_count(part.dropped)} pages dropped during the trace stay in the pool until the hand "
            "takes them"
        )
    if part.ringed:
        share = format_percent(part.ringed / part.length, 1)
        notes.append(f"{share} of the accesses may use rings; they are plain ones here")
    return notes


def _left_out(part: _Part, rows: Sequence[ProveRow]) -> list[str]:
    """Return in words what rings and drops change, which the server did not make."""
    if not part.dropped and not part.ringed:
        return []
    changes = [(row.as_predicted_miss_ratio or 0.0) - row.simulated_miss_ratio for row in rows]
    worst = int(np.argmax(np.abs(changes)))
    change = format_percent(changes[worst], 2, sign=True)
    return [
        f"with rings and drops the simulator's miss ratio changes by {change} at "
        f"{format_bytes(rows[worst].shared_buffers_bytes)}, less elsewhere: so much of a difference between "
        "measured and predicted comes from what the proof leaves out"
    ]


def _draw_states(pools: WarmPools, tried: Sequence[CurvePoint], seed: int) -> list[_State]:
    random = np.random.default_rng(seed)
    return [_State.draw(pools, point.shared_buffers_bytes // BLOCK_BYTES, random) for point in tried]


def _counted_pages(part: _Part, states: Sequence[_State]) -> NDArray[np.bool_]:
    """Return for every page whether accesses to it count.

    Pages behind the trace's are those of its database that it never visits.
    """
    trace, accesses = part.trace, (part.trace.flags & DROP) == 0
    pages = max([len(trace.page_group), *(state.first_free_page for state in states)])
    counted = np.ones(pages, dtype=bool)
    counted[trace.pages[accesses]] = trace.counted[accesses]
    return counted


def _replay(
    server: ReplayServer,
    part: _Part,
    tried: Sequence[CurvePoint],
    states: Sequence[_State],
    listener: Progress,
) -> list[ProveRow]:
    """Replay at each size, on the server and in the simulator."""
    rows = []
    for number, (point, state) in enumerate(zip(tried, states, strict=True), start=1):
        work = len(part.accesses) + len(state.accesses)
        listener.stage(
            f"replaying at {format_bytes(point.shared_buffers_bytes)} ({number} of {len(states)})",
            _RESTART_SECONDS + work * _SECONDS_PER_ACCESS,
        )
        begun = time.monotonic()

        def done(_accesses: int, begun: float = begun) -> None:
            listener.advance(time.monotonic() - begun)

        blocks = point.shared_buffers_bytes // BLOCK_BYTES
        counts = server.replay(blocks, state.accesses, part.accesses, done)
        simulated = part.simulate(blocks, counts, state, server.page_count)
        as_predicted = part.simulate(blocks, counts, state, server.page_count, left_out=True)
        rows.append(
            ProveRow(
                shared_buffers_bytes=point.shared_buffers_bytes,
                measured_miss_ratio=part.ratio(counts),
                simulated_miss_ratio=simulated,
                as_predicted_miss_ratio=as_predicted,
                comparable=abs(as_predicted - simulated) <= _MOST_LEFT_OUT,
                predicted=interval_of(point),
                accesses=part.count(counts),
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The part of the trace that is replayed.

    Attributes:
        trace: with its drops; `server` that it was recorded on.
        pages, flags: of the accesses; drops are none.
        accesses: what is accessed, repeats left out.
        repeats: accesses of the database that are hits without effect.
        uncounted: accesses of the database that make a page, where the observed server counts none of these.
    """

    trace: Trace
    server: Server
    pages: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    accesses: NDArray[np.int64]
    repeats: int
    uncounted: int

    @classmethod
    def of(cls, trace: Trace, server: Server) -> Self:
        rows = np.flatnonzero((trace.flags & DROP) == 0)
        pages, flags, counted = trace.pages[rows], trace.flags[rows], trace.counted[rows]
        made = (flags & REPEAT) == 0
        return cls(
            trace=trace,
            server=server,
            pages=pages,
            flags=flags,
            accesses=pages[made].astype(np.int64),
            repeats=int((~made & counted).sum()),
            uncounted=0 if server.extensions_are_reads else int(((flags & EXTEND > 0) & counted).sum()),
        )

    @property
    def length(self) -> int:
        """The number of accesses."""
        return len(self.pages)

    @property
    def dropped(self) -> int:
        """How many pages are dropped."""
        return len(self.trace.pages) - self.length

    @property
    def ringed(self) -> int:
        """How many accesses may use rings."""
        return int(((self.flags & STRATEGY) > 0).sum())

    def count(self, counts: ReplayCounts) -> int:
        """Return how many accesses the observed server would count: a new page is none from version 16 on."""
        return counts.accesses + self.repeats - self.uncounted

    def ratio(self, counts: ReplayCounts) -> float:
        """Return the miss ratio as the observed server counts; here a new page is always a miss."""
        return (counts.misses - self.uncounted) / max(self.count(counts), 1)

    def simulate(
        self, blocks: int, server: ReplayCounts, state: _State, page_count: int, *, left_out: bool = False
    ) -> float:
        """Return the simulator's miss ratio of the very same accesses from the very same pool.

        Args:
            left_out: also the trace's rings and drops, which the server does not make.
        """
        own = np.arange(page_count, page_count + len(server.own_buffers), dtype=np.uint32)
        begin = _native.PoolContents(own, server.own_usage_counts, buffers=server.own_buffers)
        warm, trace = state.accesses, self.trace
        pages, flags = self.pages, (self.flags & ~np.uint8(STRATEGY)).astype(np.uint8)
        owners: dict[str, Any] = {}
        if left_out:
            pages, flags = trace.pages, trace.flags
            if len(trace.owner_access):
                owners = {
                    "owner_access": trace.owner_access + np.uint64(len(warm)),
                    "owner": trace.owner,
                    "owner_blocks": trace.owner_blocks,
                }
        counts = _native.replay(
            np.concatenate([warm, pages]),
            [blocks],
            self.server.rules,
            flags=np.concatenate([np.zeros(len(warm), dtype=np.uint8), flags]),
            windows=np.array([0, len(pages)], dtype=np.uint64) + np.uint64(len(warm)),
            warm=[begin],
            **owners,
        )
        misses, accesses = int(counts["misses"].sum()), int(counts["accesses"].sum())
        extensions = int(counts["extensions"].sum()) if self.server.extensions_are_reads else 0
        return (misses + extensions) / max(accesses + extensions, 1)


@dataclass(frozen=True)
class _State:
    """What a pool holds when the replay begins.

    Attributes:
        pages: in the order of their buffers.
        usage_counts: 1 to 5.
    """

    pages: NDArray[np.uint32]
    usage_counts: NDArray[np.uint8]

    @classmethod
    def draw(cls, pools: WarmPools, blocks: int, random: np.random.Generator) -> _State:
        """Draw a state; usage count 0 becomes 1, which is what loading a page leaves behind."""
        pages, usage_counts = pools.draw_pages(blocks, random)
        return cls(pages, np.maximum(usage_counts, 1))

    @property
    def first_free_page(self) -> int:
        return int(self.pages.max()) + 1 if len(self.pages) else 0

    @property
    def accesses(self) -> NDArray[np.uint32]:
        """Return accesses that bring an empty pool into this state: each page as often as its usage count."""
        return np.repeat(self.pages, self.usage_counts)
