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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.evidence.store import Evidence
from pgsweep.host.machine import describe_machine
from pgsweep.plain import shell_word
from pgsweep.progress import NullListener, Progress
from pgsweep.records.prediction import CurvePoint
from pgsweep.records.proof import Interval, ProveResult, ProveRow
from pgsweep.sizing.predict import predict, trace_of
from pgsweep.sizing.rules import rules_of
from pgsweep.sizing.traces.accesses import DROP, EXTEND, REPEAT, STRATEGY, Trace, first_accesses
from pgsweep.sizing.traces.curve import estimate
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.testbed.replay_server import ReplayCounts, ReplayServer, can_try, check_size
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count, format_percent

MAX_ACCESSES = 1_000_000
"""More are rarely worth the time: a million accesses determine a miss ratio to 0.0005."""

_MOST_LEFT_OUT = 0.005
"""By how much rings and drops may change the miss ratio where the replay is compared with the prediction."""

_SECONDS_PER_ACCESS = 8e-6
_RESTART_SECONDS = 1.5
_EXTENSIONS_ARE_READS_BEFORE = 160000


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
    opened = Evidence.open(evidence)
    if opened.meta.source != "trace":
        raise UsageError(
            f"`{evidence}` holds no accesses to replay, it was recorded with --source {opened.meta.source}",
            hint="pgsweep record --source trace",
        )
    for size in sizes_bytes or ():
        check_size(size)
    listener.stage("predicting from the trace")
    predicted = predict(evidence, sizes_bytes=sizes_bytes, seed=seed)
    if predicted.verdict.level == "refused":
        raise EvidenceError(
            f"`{evidence}` allows no prediction that could be proved",
            cause="; ".join(predicted.verdict.sentences),
            hint=f"pgsweep predict {shell_word(str(evidence))}",
        )
    whole = trace_of(opened)
    trace = first_accesses(whole, max_accesses)
    points = predicted.points
    if trace is not whole:
        points = _predict_part(opened, trace, points, seed)
    tried = [point for point in points if can_try(point.shared_buffers_bytes)]
    notes = []
    if not tried:
        check_size(points[0].shared_buffers_bytes)
    if len(tried) < len(points):
        largest = format_bytes(points[-1].shared_buffers_bytes)
        notes.append(f"sizes up to {largest} were left out: this machine has no memory for them")
    part = _Part.of(trace)
    accesses = (trace.flags & DROP) == 0
    if trace is not whole:
        made = int(((whole.flags & DROP) == 0).sum())
        notes.append(
            f"the first {format_count(part.length)} of {format_count(made)} accesses were predicted "
            "and replayed"
        )
    dropped = len(accesses) - int(accesses.sum())
    if dropped:
        notes.append(
            f"{format_count(dropped)} pages dropped during the trace stay in the pool until the hand "
            "takes them"
        )
    ringed = int(((part.flags & STRATEGY) > 0).sum())
    if ringed:
        share = format_percent(ringed / part.length, 1)
        notes.append(f"{share} of the accesses may use rings; they are plain ones here")
    rules = rules_of(opened.meta)
    pools = WarmPools(trace, count_visits(trace), rules)
    reads = opened.meta.server_version_num < _EXTENSIONS_ARE_READS_BEFORE
    random = np.random.default_rng(seed)
    states = [_State.draw(pools, point.shared_buffers_bytes // BLOCK_BYTES, random) for point in tried]
    # Pages behind the trace's are those of its database that it never visits.
    page_count = max([len(trace.page_group), *(state.first_free_page for state in states)])
    counted_pages = np.ones(page_count, dtype=bool)
    counted_pages[trace.pages[accesses]] = trace.counted[accesses]
    rows = []
    with ReplayServer(counted_pages, bindir=bindir, work_dir=work_dir) as server:
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
            simulate = partial(
                part.simulate, blocks, counts, state, page_count, rules, extensions_are_reads=reads
            )
            simulated, as_predicted = simulate(), simulate(trace=trace)
            rows.append(
                ProveRow(
                    shared_buffers_bytes=point.shared_buffers_bytes,
                    measured_miss_ratio=part.ratio(counts, extensions_are_reads=reads),
                    simulated_miss_ratio=simulated,
                    as_predicted_miss_ratio=as_predicted,
                    comparable=abs(as_predicted - simulated) <= _MOST_LEFT_OUT,
                    predicted=Interval(miss_ratio=point.miss_ratio, low=point.low, high=point.high),
                    accesses=part.count(counts, extensions_are_reads=reads),
                )
            )
        version, version_num = server.version, server.version_num
    if dropped or ringed:
        notes.append(_left_out(rows))
    if version_num // 10000 != opened.meta.server_version_num // 10000:
        notes.append(f"recorded on PostgreSQL {opened.meta.server_version}, replayed on {version}")
    compared = [row for row in rows if row.comparable]
    errors = [abs(row.predicted.miss_ratio - row.measured_miss_ratio) for row in compared]
    simulator_errors = [abs(row.simulated_miss_ratio - row.measured_miss_ratio) for row in rows]
    within = [row.predicted.low <= row.measured_miss_ratio <= row.predicted.high for row in compared]
    return ProveResult(
        evidence=str(evidence),
        observed_shared_buffers_bytes=opened.meta.shared_buffers_blocks * BLOCK_BYTES,
        server_version=version,
        machine=describe_machine(),
        seconds=time.monotonic() - started,
        notes=notes,
        rows=rows,
        mean_abs_error=sum(errors) / len(errors) if errors else None,
        max_abs_error=max(errors, default=None),
        simulator_max_abs_error=max(simulator_errors),
        within_interval_ratio=sum(within) / len(within) if within else None,
        verdict=predicted.verdict,
    )


def _left_out(rows: Sequence[ProveRow]) -> str:
    """Return in words what rings and drops change, which the server did not make."""
    changes = [(row.as_predicted_miss_ratio or 0.0) - row.simulated_miss_ratio for row in rows]
    worst = int(np.argmax(np.abs(changes)))
    change = format_percent(changes[worst], 2, sign=True)
    return (
        f"with rings and drops the simulator's miss ratio changes by {change} at "
        f"{format_bytes(rows[worst].shared_buffers_bytes)}, less elsewhere: so much of a difference between "
        "measured and predicted comes from what the proof leaves out"
    )


def _predict_part(
    evidence: Evidence, trace: Trace, points: Sequence[CurvePoint], seed: int
) -> list[CurvePoint]:
    """Return the prediction of a part of the trace, at the sizes of the points."""
    meta = evidence.meta
    found = estimate(
        trace,
        pool_blocks=meta.shared_buffers_blocks,
        sizes_blocks=[point.shared_buffers_bytes // BLOCK_BYTES for point in points],
        make_rules=partial(rules_of, meta),
        extensions_are_reads=meta.server_version_num < _EXTENSIONS_ARE_READS_BEFORE,
        seed=seed,
    )
    return [
        CurvePoint(
            shared_buffers_bytes=point.shared_buffers_bytes,
            miss_ratio=float(ratio),
            low=float(low),
            high=float(high),
        )
        for point, ratio, low, high in zip(points, found.miss_ratio, found.low, found.high, strict=True)
    ]


@dataclass(frozen=True)
class _Part:
    """The part of the trace that is replayed.

    Attributes:
        length: the number of its accesses; drops do not count.
        pages, flags: of these.
        accesses: what is accessed, repeats left out.
        repeats: accesses of the database that are hits without effect.
        extensions: accesses of the database that make a page.
    """

    length: int
    pages: NDArray[np.uint32]
    flags: NDArray[np.uint8]
    accesses: NDArray[np.int64]
    repeats: int
    extensions: int

    @classmethod
    def of(cls, trace: Trace) -> _Part:
        rows = np.flatnonzero((trace.flags & DROP) == 0)
        pages, flags, counted = trace.pages[rows], trace.flags[rows], trace.counted[rows]
        made = (flags & REPEAT) == 0
        return cls(
            length=len(rows),
            pages=pages,
            flags=flags,
            accesses=pages[made].astype(np.int64),
            repeats=int((~made & counted).sum()),
            extensions=int(((flags & EXTEND > 0) & counted).sum()),
        )

    def count(self, counts: ReplayCounts, *, extensions_are_reads: bool) -> int:
        """Return how many accesses the observed server would count: a new page is none from version 16 on."""
        return counts.accesses + self.repeats - (0 if extensions_are_reads else self.extensions)

    def ratio(self, counts: ReplayCounts, *, extensions_are_reads: bool) -> float:
        """Return the miss ratio as the observed server counts; here a new page is always a miss."""
        misses = counts.misses - (0 if extensions_are_reads else self.extensions)
        return misses / max(self.count(counts, extensions_are_reads=extensions_are_reads), 1)

    def simulate(
        self,
        blocks: int,
        server: ReplayCounts,
        state: _State,
        page_count: int,
        rules: _native.Rules,
        *,
        extensions_are_reads: bool,
        trace: Trace | None = None,
    ) -> float:
        """Return the simulator's miss ratio of the very same accesses from the very same pool.

        Args:
            trace: also its rings and drops, which the server does not make.
        """
        own = np.arange(page_count, page_count + len(server.own_buffers), dtype=np.uint32)
        begin = _native.PoolContents(own, server.own_usage_counts, buffers=server.own_buffers)
        warm = state.accesses
        pages, flags = self.pages, (self.flags & ~np.uint8(STRATEGY)).astype(np.uint8)
        owners: dict[str, Any] = {}
        if trace is not None:
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
            rules,
            flags=np.concatenate([np.zeros(len(warm), dtype=np.uint8), flags]),
            windows=np.array([0, len(pages)], dtype=np.uint64) + np.uint64(len(warm)),
            warm=[begin],
            **owners,
        )
        misses, accesses = int(counts["misses"].sum()), int(counts["accesses"].sum())
        extensions = int(counts["extensions"].sum()) if extensions_are_reads else 0
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
