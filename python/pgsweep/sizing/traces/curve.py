"""A curve from a trace: replay into warm pools, compared with what was counted, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.records.prediction import Level
from pgsweep.sizing.estimate import RELIABLE, ROUGH, Doubt, Estimate, judged
from pgsweep.sizing.traces.accesses import Trace
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.sampled import LONG_TRACE_ACCESSES, replay_sizes
from pgsweep.sizing.traces.shared_replays import MakeRules, generator, replay_sizes_of
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count, format_minutes, format_percent

_Z90 = 1.645
_SMALLEST_BLOCKS = 16
_FEW_ACCESSES, _TOO_FEW_ACCESSES = 10_000, 1_000
_SOME_LOST, _TOO_MANY_LOST = 0.001, 0.02
_WRONG_TODAY, _VERY_WRONG_TODAY = 0.003, 0.03
_WRONG_RELATION = 0.01
_DRIFT = 0.01
_WIDE = 0.02
"""Thresholds of the verdict, miss ratios and shares."""


def estimate(
    trace: Trace,
    *,
    pool_blocks: int,
    sizes_blocks: Sequence[int],
    make_rules: MakeRules,
    extensions_are_reads: bool,
    lost_events: int = 0,
    seed: int = 0,
    as_recorded: bool = True,
    executor: Executor | str | None = None,
    long_trace_accesses: int = LONG_TRACE_ACCESSES,
) -> Estimate:
    """Predict the miss ratio of the database at each size by replaying the trace.

    Args:
        pool_blocks: the pool that the trace was taken on.
        extensions_are_reads: the server counts a new block as a read (before 16).
        make_rules: makes the rules of the server, also in another process.
        as_recorded: what the server itself missed is known; of a changed trace nobody knows it.
        executor: where the sizes are replayed; None is this process.
        long_trace_accesses: from which length on pages are sampled.

    Raises:
        ValueError: the trace holds no access of the database.
        MissingAbility: there is no such executor.
    """
    if not trace.counted.any():
        raise ValueError("the trace holds no access of the database")
    rules = make_rules()
    replay = Replay(
        trace, pool_blocks, rules, np.random.default_rng(seed), extensions_are_reads=extensions_are_reads
    )
    pools = WarmPools(trace, count_visits(trace), rules)
    # A pool with four times the buffers that there are pages evicts nothing, and no scan of it has a ring.
    most = max(4 * (int(pools.most_resident) + len(trace.page_group)), pool_blocks, _SMALLEST_BLOCKS)
    checked_blocks = pool_blocks if as_recorded else 0
    simulated = replay_sizes_of(
        replay,
        pools,
        sorted({min(size, most) for size in sizes_blocks}),
        pool_blocks=pool_blocks,
        make_rules=make_rules,
        extensions_are_reads=extensions_are_reads,
        seed=seed,
        executor=executor,
        long_trace_accesses=long_trace_accesses,
    )
    found = [simulated[min(size, most)] for size in sizes_blocks]
    check = _Check.of(replay, pools, checked_blocks, simulated, seed)
    exact = check.exact
    if exact is not None:
        found = [exact if size == pool_blocks else one for size, one in zip(sizes_blocks, found, strict=True)]
    replayed = np.array([one.ratio for one in found])
    known = np.array([exact is not None and size == pool_blocks for size in sizes_blocks])
    beside = np.where(known, check.exact_error, np.hypot(check.drawn_error, check.exact_error))
    # At today's size the server has counted: that ratio needs no replay. What the replay gives there is
    # compared with it (`_of_today`), and widens all intervals.
    point = np.where(known, check.measured, replayed)
    low = point - np.hypot(replayed - np.array([one.low for one in found]), beside)
    high = point + np.hypot(np.array([one.high for one in found]) - replayed, beside)
    level, reasons = judged(_doubts(replay, pools, check, pool_blocks, sizes_blocks, found, lost_events))
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(low, 0, 1),
        high=np.clip(high, 0, 1),
        pass_seconds=pools.pass_seconds(pool_blocks) if pool_blocks else float("nan"),
        level=level,
        reasons=reasons,
        replayed_today=None if exact is None else exact.ratio,
        off_today=float(np.hypot(check.drawn_error, check.exact_error)),
    )


def estimate_cold(
    pages: NDArray[np.uint32],
    objects: int,
    *,
    sizes_blocks: Sequence[int],
    version: int,
    executor: Executor | str | None = None,
    seed: int = 0,
    long_trace_accesses: int = LONG_TRACE_ACCESSES,
) -> Estimate:
    """Replay a foreign trace from empty pools; first accesses count, and the lower bound leaves them out.

    Args:
        version: of PostgreSQL, whose rules hold.
        executor: where the sizes are replayed; None is this process.
        long_trace_accesses: from which length on pages are sampled.

    Raises:
        ValueError: the trace holds no access.
        MissingAbility: there is no such executor.
    """
    if not len(pages):
        raise ValueError("the trace holds no access")
    edges = np.unique(np.linspace(0, len(pages), 25).astype(np.int64))
    sampled = len(pages) >= long_trace_accesses
    found = replay_sizes(
        pages, objects, sizes_blocks, version, edges, sampled=sampled, executor=executor, seed=seed
    )
    total = len(pages)
    misses = np.array([one.misses for one in found])
    point = misses.sum(axis=1) / total
    left = misses - point[:, None] * np.diff(edges)
    width = _Z90 * np.sqrt((left**2).sum(axis=1) + np.array([one.error for one in found]) ** 2) / total
    first = objects / len(pages)
    reasons = [
        f"counted from an empty pool: {_percent(first)} of the accesses are first ones, and count as misses; "
        f"in a server that has run for long they need not miss, and the lower bounds leave them out"
    ]
    if sampled:
        reasons.append("replayed by samples of the pages, each in a pool that is smaller in proportion")
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(point - width - first, 0, 1),
        high=np.clip(point + width, 0, 1),
        pass_seconds=float("nan"),
        level=RELIABLE if first <= _WRONG_TODAY else ROUGH,
        reasons=reasons,
    )


@dataclass(frozen=True, kw_only=True)
class _Check:
    """How today's size comes out, where the server's own hits and misses are known.

    Attributes:
        measured: by the server.
        exact: replayed from the pool's contents, where they were seen.
        drawn: replayed from drawn states.
        worst: the relation whose replayed misses are furthest from those counted; `replayed` and `counted`
            are its misses.
        apart: by how much the misses of all relations differ, added up, relative to all accesses.
    """

    measured: float
    exact: Replayed | None
    drawn: Replayed | None
    worst: str = ""
    replayed: int = 0
    counted: int = 0
    apart: float = 0.0

    @classmethod
    def of(
        cls,
        replay: Replay,
        pools: WarmPools,
        pool_blocks: int,
        simulated: dict[int, Replayed],
        seed: int,
    ) -> _Check:
        measured = replay.ratio(replay.measured_misses)
        if not pool_blocks or not (replay.measured_misses.any() or replay.trace.start is not None):
            return cls(measured=measured, exact=None, drawn=None)
        drawn = simulated.get(pool_blocks) or _today(replay, pools, pool_blocks, seed)
        if replay.trace.start is None or pool_blocks > pools.most_buffers:
            return cls(measured=measured, exact=None, drawn=drawn)
        exact, misses = replay.from_start(pool_blocks)
        expected, counted = replay.by_group(misses), replay.by_group(replay.measured_misses)
        away = np.abs(expected - counted)
        worst = int(np.argmax(away))
        names = replay.trace.group_names
        return cls(
            measured=measured,
            exact=exact,
            drawn=drawn,
            worst=names[worst] if worst < len(names) else "",
            replayed=int(expected[worst]),
            counted=int(counted[worst]),
            apart=float(away.sum()) / max(replay.stretch.total, 1.0),
        )

    @property
    def exact_error(self) -> float:
        """Return by how much the replay from the pool's own contents misses the mark."""
        return 0.0 if self.exact is None else abs(self.exact.ratio - self.measured)

    @property
    def drawn_error(self) -> float:
        """Return by how much drawn states miss the mark, from wherever rings may have brought the pool."""
        if self.drawn is None:
            return 0.0
        mark = self.measured if self.exact is None else self.exact.ratio
        ends = (self.drawn.ratio, self.drawn.fresh, self.drawn.settled)
        return max(min(ends) - mark, mark - max(ends), 0.0)


def _today(replay: Replay, pools: WarmPools, pool_blocks: int, seed: int) -> Replayed:
    """Replay at the size of the trace's own pool.

    Raises:
        EvidenceError: that is too large for so short a trace.
    """
    try:
        return replay.at(pool_blocks, pools, generator(seed, pool_blocks))
    except UsageError as error:
        raise EvidenceError(
            f"the trace is too short for the pool that it was taken on, {_size(pool_blocks)}",
            cause=error.cause,
            hint="record for longer: pgsweep record --source trace --for 5min -o NAME.evidence",
        ) from error


def _doubts(
    replay: Replay,
    pools: WarmPools,
    check: _Check,
    pool_blocks: int,
    sizes_blocks: Sequence[int],
    found: Sequence[Replayed],
    lost_events: int,
) -> list[Doubt]:
    """Return what speaks against the curve, and what is to be known about it."""
    trace, accesses = replay.trace, int(replay.stretch.total)
    doubts = [Doubt("rough", note) for note in trace.notes]
    if accesses < _FEW_ACCESSES:
        level: Level = "refused" if accesses < _TOO_FEW_ACCESSES else "rough"
        text = f"only {format_count(accesses)} accesses of the database: record for longer"
        doubts.append(Doubt(level, text))
    if lost_events:
        share = lost_events / (len(trace.pages) + lost_events)
        level = "refused" if share >= _TOO_MANY_LOST else "rough" if share >= _SOME_LOST else "reliable"
        doubts.append(Doubt(level, f"{format_count(lost_events)} events were lost ({_percent(share)})"))
    doubts += _of_today(check)
    others = [(s, one) for s, one in zip(sizes_blocks, found, strict=True) if s != pool_blocks]
    meetings = max((one.meetings for _, one in others), default=0.0)
    if meetings > _WIDE / 2:
        text = (
            "several sessions scan the same table at the same time and read for one another; how often they "
            f"meet changes with the size: by up to {_percent(meetings)} of the accesses"
        )
        doubts.append(Doubt("rough", text))
    for size, one in others:
        if one.moves:
            doubts.append(Doubt("rough", _lingers(trace, pools, size, one)))
            break
    unknown = [(size, one.unknown_scans) for size, one in others if one.unknown_scans > _WIDE]
    if unknown:
        size, share = max(unknown, key=lambda pair: pair[1])
        text = (
            f"at {_size(size)} it is not known whether tables that were scanned once are still there at the "
            f"next scan ({_percent(share)} of the accesses): record for longer than scans are apart"
        )
        doubts.append(Doubt("rough", text))
    doubts += _of_unsteady(trace, pools, others)
    wide = [(size, one.half_width) for size, one in others if one.half_width > _WIDE]
    if wide:
        size, width = max(wide, key=lambda pair: pair[1])
        of = _percent(width)
        text = f"at {_size(size)} the order of sessions and vacuums changes the miss ratio by ±{of}"
        doubts.append(Doubt("rough", text))
    return [*doubts, *(Doubt("reliable", note) for note in _notes(replay, pools, sizes_blocks, found))]


def _of_unsteady(trace: Trace, pools: WarmPools, others: Sequence[tuple[int, Replayed]]) -> list[Doubt]:
    """Return doubts because the load moves, or visits pages in turn where that widens an interval."""
    steadiness = pools.steadiness
    size, found = max(others, key=lambda pair: pair[1].unsteady, default=(0, None))
    wider = found is not None and found.unsteady > _WRONG_TODAY
    there = ""
    if found is not None and wider:
        low, high = _percent(max(found.low, 0.0)), _percent(min(found.high, 1.0))
        there = f"; at {_size(size)} between {low} and {high} may miss"
    doubts = []
    if steadiness.together > 0:
        text = (
            "the load moves from page to page, or visits a page several times and then no more: of the "
            f"pages first visited in the second half of the trace {format_percent(steadiness.together)} "
            f"would have been visited before, if visits came at random times{there}: record for longer"
        )
        doubts.append(Doubt("rough", text))
    if steadiness.in_turn.any() and wider:
        names = trace.group_names
        of = f", most of them of {names[steadiness.in_turn_group]}" if names else ""
        text = (
            f"{format_percent(steadiness.in_turn_share)} of the accesses visit pages in turn, as a loop "
            f"does{of}: which of them stay depends on what the pool held before{there}"
        )
        doubts.append(Doubt("rough", text))
    return doubts


def _of_today(check: _Check) -> list[Doubt]:
    """Return where today's size does not come out as it was counted."""
    doubts: list[Doubt] = []
    level: Level
    exact, drawn = check.exact, check.drawn
    if exact is not None:
        noise = exact.half_width
        if check.exact_error > _WRONG_TODAY + noise:
            level = "refused" if check.exact_error > _VERY_WRONG_TODAY + noise else "rough"
            text = (
                f"the accesses replayed from the pool's own contents miss {_percent(exact.ratio)} at today's "
                f"size, where {_percent(check.measured)} was counted{_most_of_it(check)}"
            )
            doubts.append(Doubt(level, text))
        elif check.apart > _WRONG_RELATION + 2 * noise:
            text = (
                f"relations do not miss as they were counted ({_percent(check.apart)} of the accesses at "
                f"today's size){_most_of_it(check)}"
            )
            doubts.append(Doubt("rough", text))
    if drawn is not None:
        noise = drawn.half_width
        if check.drawn_error > _WRONG_TODAY + noise:
            level = "refused" if check.drawn_error > _VERY_WRONG_TODAY + noise else "rough"
            mark = f"{_percent(check.measured)} was measured"
            if exact is not None:
                mark = f"one that begins with the pool's own contents gives {_percent(exact.ratio)}"
            text = (
                f"a replay that begins with a drawn warm state gives {_percent(drawn.ratio)} at today's "
                f"size, but {mark}"
            )
            doubts.append(Doubt(level, text))
    return doubts


def _size(blocks: int) -> str:
    return format_bytes(blocks * BLOCK_BYTES)


def _percent(ratio: float) -> str:
    return format_percent(ratio, 2)


def _most_of_it(check: _Check) -> str:
    if not check.worst:
        return ""
    counts = f"{format_count(check.replayed)} misses instead of {format_count(check.counted)}"
    return f"; most of it by {check.worst}: {counts}"


def _notes(
    replay: Replay, pools: WarmPools, sizes_blocks: Sequence[int], found: Sequence[Replayed]
) -> list[str]:
    """Return what is to be known of this stretch, and is nothing against its prediction."""
    trace, length = replay.trace, format_minutes(replay.trace.duration_seconds)
    notes: list[str] = []
    early, late = _halves(replay)
    sampled = [one.sampling for one in found if one.sampling]
    if sampled:
        notes.append(
            "the trace is long: replayed by samples of its pages, each in a pool that is smaller in "
            f"proportion; the intervals include the sampling error, up to ±{_percent(max(sampled))}"
        )
    drifted = abs(late - early) > max(_DRIFT, 0.1 * (late + early), 2 * _noise(replay))
    if drifted and replay.measured_misses.any():
        notes.append(
            f"the miss ratio went from {_percent(early)} in the first half to {_percent(late)} in the second"
        )
    width = [one.another_stretch for one in found]
    widest = int(np.argmax(width))
    if width[widest] > _WIDE:
        longer = trace.duration_seconds * (width[widest] / _WIDE) ** 2
        rare = replay.stretch.rare
        few = f" ({rare.min()} scans of one kind were seen)" if len(rare) else ""
        notes.append(
            f"another stretch of {length} may differ by ±{_percent(width[widest])} at "
            f"{_size(sizes_blocks[widest])}{few}; record for about {format_minutes(longer)} to have it "
            f"within ±{format_percent(_WIDE)}"
        )
    beyond = [
        size
        for size in sizes_blocks
        if np.isfinite(pass_seconds := pools.pass_seconds(size)) and 2 * pass_seconds > trace.duration_seconds
    ]
    if beyond:
        notes.append(
            f"from {_size(min(beyond))} on, a page stays for longer than the {length} of the trace: "
            "those sizes rest on estimated rates, not on replay alone"
        )
    return notes


def _lingers(trace: Trace, pools: WarmPools, blocks: int, found: Replayed) -> str:
    """Return the sentence that a ratio depends on how long the server has run, and why."""
    lingering = pools.lingering(blocks)
    group = max(lingering, key=lambda one: len(lingering[one].pages))
    return (
        f"from {_size(blocks)} on, scans of {trace.group_names[group]} leave pages behind that the next scan "
        f"still finds: {_percent(found.fresh)} holds just after a restart, {_percent(found.ratio)} a minute "
        f"later, {_percent(found.settled)} after a long time"
    )


def _halves(replay: Replay) -> tuple[float, float]:
    """Return the miss ratio measured in either half of the trace."""
    middle = int(np.searchsorted(replay.trace.seconds, replay.trace.duration_seconds / 2))

    def ratio(part: slice) -> float:
        accesses = np.count_nonzero(replay.counted[part])
        return float(np.count_nonzero(replay.measured_misses[part])) / max(float(accesses), 1.0)

    return ratio(slice(None, middle)), ratio(slice(middle, None))


def _noise(replay: Replay) -> float:
    """Return how much the difference of two halves varies by chance: the half of each is half a stretch."""
    return 2 * replay.stretch.deviation(replay.measured_misses) / _Z90
