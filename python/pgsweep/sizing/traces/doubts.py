"""What speaks against the curve of a trace, and what is to be known about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pgsweep.records.prediction import Level
from pgsweep.sizing.estimate import Doubt
from pgsweep.sizing.traces.accesses import Trace
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.today import TodayCheck
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.units import BLOCK_BYTES, Z90, format_bytes, format_count, format_minutes, format_percent

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Server

_FEW_ACCESSES, _TOO_FEW_ACCESSES = 10_000, 1_000
_SOME_LOST, _TOO_MANY_LOST = 0.001, 0.02
_WRONG_TODAY, _VERY_WRONG_TODAY = 0.003, 0.03
_WRONG_RELATION = 0.01
_DRIFT = 0.01
_WIDE = 0.02
"""Thresholds of the verdict, miss ratios and shares."""


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


def _of_today(check: TodayCheck) -> list[Doubt]:
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


def _most_of_it(check: TodayCheck) -> str:
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
    return 2 * replay.stretch.deviation(replay.measured_misses) / Z90
