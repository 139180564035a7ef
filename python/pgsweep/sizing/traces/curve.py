"""A curve from a trace: replay into warm pools, compared with what was counted, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.errors import EvidenceError, UsageError
from pgsweep.records import trace_reasons as reasons
from pgsweep.records.reasons import Reason
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.traces.accesses import Trace
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.sampled import LONG_TRACE_ACCESSES, replay_sizes
from pgsweep.sizing.traces.shared_replays import MakeRules, generator, replay_sizes_of
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.sizing.verdict import (
    RELIABLE,
    ROUGH,
    TODAY,
    TRACE_ACCESSES,
    TRACE_DRIFT,
    TRACE_LOST,
    TRACE_RELATIONS,
    TRACE_WIDE,
    Doubt,
    judged,
)
from pgsweep.units import BLOCK_BYTES, format_bytes

_Z90 = 1.645
_SMALLEST_BLOCKS = 16
_OFF_TODAY = TODAY.rough
_WIDE = TRACE_WIDE.rough


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
    level, said = judged(_doubts(replay, pools, check, pool_blocks, sizes_blocks, found, lost_events))
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(low, 0, 1),
        high=np.clip(high, 0, 1),
        pass_seconds=pools.pass_seconds(pool_blocks) if pool_blocks else float("nan"),
        level=level,
        reasons=said,
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
    said = [reasons.first_accesses(first)]
    if sampled:
        said.append(reasons.foreign_pages_sampled())
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(point - width - first, 0, 1),
        high=np.clip(point + width, 0, 1),
        pass_seconds=float("nan"),
        level=RELIABLE if first <= _OFF_TODAY else ROUGH,
        reasons=said,
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
    few, too_few = TRACE_ACCESSES
    if accesses < few:
        doubts.append(Doubt("refused" if accesses < too_few else "rough", reasons.few_accesses(accesses)))
    if lost_events:
        share = lost_events / (len(trace.pages) + lost_events)
        level = TRACE_LOST.level(share) or RELIABLE
        doubts.append(Doubt(level, reasons.events_lost(lost_events, share)))
    doubts += _today_doubts(check)
    others = [(s, one) for s, one in zip(sizes_blocks, found, strict=True) if s != pool_blocks]
    meetings = max((one.meetings for _, one in others), default=0.0)
    if meetings > _WIDE / 2:
        doubts.append(Doubt("rough", reasons.scans_meet(meetings)))
    for size, one in others:
        if one.moves:
            doubts.append(Doubt("rough", _lingering(trace, pools, size, one)))
            break
    unknown = [(size, one.unknown_scans) for size, one in others if one.unknown_scans > _WIDE]
    if unknown:
        size, share = max(unknown, key=lambda pair: pair[1])
        doubts.append(Doubt("rough", reasons.scans_seen_once(size * BLOCK_BYTES, share)))
    doubts += _unsteady_doubts(trace, pools, others)
    wide = [(size, one.half_width) for size, one in others if one.half_width > _WIDE]
    if wide:
        size, width = max(wide, key=lambda pair: pair[1])
        doubts.append(Doubt("rough", reasons.order_decides(size * BLOCK_BYTES, width)))
    return [*doubts, *(Doubt("reliable", note) for note in _notes(replay, pools, sizes_blocks, found))]


def _unsteady_doubts(trace: Trace, pools: WarmPools, others: Sequence[tuple[int, Replayed]]) -> list[Doubt]:
    """Return doubts because the load moves, or visits pages in turn where that widens an interval."""
    steadiness = pools.steadiness
    size, found = max(others, key=lambda pair: pair[1].unsteady, default=(0, None))
    bounds = None
    if found is not None and found.unsteady > _OFF_TODAY:
        bounds = (max(found.low, 0.0), min(found.high, 1.0))
    doubts = []
    if steadiness.together > 0:
        doubts.append(Doubt("rough", reasons.visits_move(steadiness.together, size * BLOCK_BYTES, bounds)))
    if steadiness.in_turn.any() and bounds is not None:
        names = trace.group_names
        relation = names[steadiness.in_turn_group] if names else ""
        reason = reasons.visits_in_turn(steadiness.in_turn_share, relation, size * BLOCK_BYTES, bounds)
        doubts.append(Doubt("rough", reason))
    return doubts


def _today_doubts(check: _Check) -> list[Doubt]:
    """Return where today's size does not come out as it was counted."""
    doubts: list[Doubt] = []
    exact, drawn = check.exact, check.drawn
    of_worst = (check.worst, check.replayed, check.counted)
    if exact is not None:
        noise = exact.half_width
        if level := TODAY.level(check.exact_error, noise):
            doubts.append(Doubt(level, reasons.replay_off_today(exact.ratio, check.measured, *of_worst)))
        elif level := TRACE_RELATIONS.level(check.apart, 2 * noise):
            doubts.append(Doubt(level, reasons.relations_off_today(check.apart, *of_worst)))
    if drawn is not None and (level := TODAY.level(check.drawn_error, drawn.half_width)):
        start = None if exact is None else exact.ratio
        doubts.append(Doubt(level, reasons.start_decides(drawn.ratio, start, check.measured)))
    return doubts


def _size(blocks: int) -> str:
    return format_bytes(blocks * BLOCK_BYTES)


def _notes(
    replay: Replay, pools: WarmPools, sizes_blocks: Sequence[int], found: Sequence[Replayed]
) -> list[Reason]:
    """Return remarks that do not lower the verdict."""
    trace, seconds = replay.trace, replay.trace.duration_seconds
    notes: list[Reason] = []
    early, late = _halves(replay)
    sampled = [one.sampling for one in found if one.sampling]
    if sampled:
        notes.append(reasons.pages_sampled(max(sampled)))
    drifted = abs(late - early) > max(TRACE_DRIFT, 0.1 * (late + early), 2 * _noise(replay))
    if drifted and replay.measured_misses.any():
        notes.append(reasons.halves_differ(early, late))
    width = [one.another_stretch for one in found]
    widest = int(np.argmax(width))
    if width[widest] > _WIDE:
        longer = trace.duration_seconds * (width[widest] / _WIDE) ** 2
        rare = replay.stretch.rare
        scans = int(rare.min()) if len(rare) else None
        size_bytes = sizes_blocks[widest] * BLOCK_BYTES
        notes.append(reasons.another_stretch(size_bytes, seconds, width[widest], scans, longer, _WIDE))
    beyond = [
        size
        for size in sizes_blocks
        if np.isfinite(pass_seconds := pools.pass_seconds(size)) and 2 * pass_seconds > seconds
    ]
    if beyond:
        notes.append(reasons.beyond_the_trace(min(beyond) * BLOCK_BYTES, seconds))
    return notes


def _lingering(trace: Trace, pools: WarmPools, blocks: int, found: Replayed) -> Reason:
    """Return the reason that a ratio depends on how long the server has run, and why."""
    lingering = pools.lingering(blocks)
    group = max(lingering, key=lambda one: len(lingering[one].pages))
    name = trace.group_names[group]
    return reasons.scans_linger(blocks * BLOCK_BYTES, name, found.fresh, found.ratio, found.settled)


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
