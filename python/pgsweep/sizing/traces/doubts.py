"""What speaks against the curve of a trace, and what is to be known about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgsweep.records import trace_reasons as reasons
from pgsweep.records.reasons import Reason
from pgsweep.sizing.traces.accesses import Trace
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.today import TodayCheck
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.sizing.verdict import (
    RELIABLE,
    TODAY,
    TRACE_ACCESSES,
    TRACE_DRIFT,
    TRACE_LOST,
    TRACE_RELATIONS,
    TRACE_WIDE,
    Doubt,
)
from pgsweep.units import BLOCK_BYTES, Z90, longer_seconds

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Server

_OFF_TODAY = TODAY.rough
_WIDE = TRACE_WIDE.rough
_LONGER, _LEAST_SECONDS = 3.0, 120.0
"""How many times as long to trace where the start decides, and at least how long; assumed."""


def doubts_of_replays(
    replay: Replay,
    pools: WarmPools,
    check: TodayCheck,
    server: Server,
    sizes_blocks: Sequence[int],
    found: Sequence[Replayed],
) -> list[Doubt]:
    """Return what speaks against the curve, and what is to be known about it."""
    pool_blocks, lost_events = server.pool_blocks, server.lost_events
    trace, accesses = replay.trace, int(replay.stretch.total)
    doubts = [Doubt("rough", note) for note in trace.notes]
    few, too_few = TRACE_ACCESSES
    if accesses < few:
        doubts.append(Doubt("refused" if accesses < too_few else "rough", reasons.few_accesses(accesses)))
    if lost_events:
        share = lost_events / (len(trace.pages) + lost_events)
        level = TRACE_LOST.level(share) or RELIABLE
        doubts.append(Doubt(level, reasons.events_lost(lost_events, share)))
    doubts += _today_doubts(check, trace.duration_seconds)
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
    vacuumed = [(one.vacuums, size, one) for size, one in others if one.vacuums > _OFF_TODAY]
    if vacuumed:
        _, size, one = max(vacuumed, key=lambda found: found[0])
        name = trace.group_names[replay.most_vacuumed]
        doubts.append(Doubt("rough", reasons.vacuums_linger(size * BLOCK_BYTES, name, one.low, one.high)))
    doubts += _unsteady_doubts(trace, pools, others)
    doubts += _stretch_doubts(replay, sizes_blocks, found)
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
    if steadiness.together > 0 or (steadiness.drift > 0 and bounds is not None):
        doubts.append(Doubt("rough", reasons.visits_move(steadiness.drift, size * BLOCK_BYTES, bounds)))
    if steadiness.in_turn.any() and bounds is not None:
        names = trace.group_names
        relation = names[steadiness.in_turn_group] if names else ""
        reason = reasons.visits_in_turn(steadiness.in_turn_share, relation, size * BLOCK_BYTES, bounds)
        doubts.append(Doubt("rough", reason))
    return doubts


def _stretch_doubts(replay: Replay, sizes_blocks: Sequence[int], found: Sequence[Replayed]) -> list[Doubt]:
    """Return whether another stretch of the same load may differ by much: the verdict is of any."""
    width = [one.another_stretch for one in found]
    widest = int(np.argmax(width))
    if width[widest] <= _WIDE:
        return []
    seconds, rare = replay.trace.duration_seconds, replay.stretch.rare
    longer = longer_seconds(seconds * (width[widest] / _WIDE) ** 2, seconds)
    scans = int(rare.min()) if len(rare) else None
    size_bytes = sizes_blocks[widest] * BLOCK_BYTES
    reason = reasons.another_stretch(size_bytes, seconds, width[widest], scans, longer, _WIDE)
    return [Doubt("rough", reason)]


def _today_doubts(check: TodayCheck, seconds: float) -> list[Doubt]:
    """Return where today's size does not come out as it was counted, in a trace of so many seconds."""
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
        other = check.measured if exact is None else exact.ratio
        longer = max(_LEAST_SECONDS, _LONGER * seconds)
        doubts.append(Doubt(level, reasons.start_decides(drawn.ratio, other, longer)))
    return doubts


def _notes(
    replay: Replay, pools: WarmPools, sizes_blocks: Sequence[int], found: Sequence[Replayed]
) -> list[Reason]:
    """Return remarks that do not lower the verdict."""
    seconds = replay.trace.duration_seconds
    notes: list[Reason] = []
    early, late = _halves(replay)
    sampled = [one.sampling for one in found if one.sampling]
    if sampled:
        notes.append(reasons.pages_sampled(max(sampled)))
    drifted = abs(late - early) > max(TRACE_DRIFT, 0.1 * (late + early), 2 * _noise(replay))
    if drifted and replay.measured_misses.any():
        notes.append(reasons.halves_differ(early, late))
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
    return 2 * replay.stretch.deviation(replay.measured_misses) / Z90
