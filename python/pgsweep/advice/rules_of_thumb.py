"""What rules of thumb say of shared_buffers, and what following them would gain or cost here.

As the decision (shared_buffers.py) they are judged by the throughput where that is predicted, else by the
time that sessions wait for reads.

25% of the memory     PostgreSQL's manual, "shared_buffers": a reasonable starting value
40% of the memory     the same place: more is unlikely to work better
PGTune                 a quarter of the memory, for every kind of load but desktops (le0pard/pgtune)
hit ratio over 99%    blks_hit / (blks_hit + blks_read) of pg_stat_database; grow until it is so
usage counts 4 and 5   as much as such buffers take in pg_buffercache
"""

from __future__ import annotations

from typing import Final

from pgsweep.advice.reads import Basis, best_gain_of
from pgsweep.advice.situation import GB, Situation, rounded_down
from pgsweep.records.advice import Gain, ReadsPoint, RuleOfThumb
from pgsweep.sizing.sizes import SMALLEST_BYTES
from pgsweep.units import format_bytes, format_percent

_GOOD_RATIO: Final = 0.99
_SAME: Final = 1.12
"""Candidates closer than this stand for each other (candidates.py)."""


def quarter_and_two_fifths(memory_bytes: int) -> tuple[int, int]:
    """Return 25% and 40% of the memory as people set them."""
    return rounded_down(round(memory_bytes * 0.25)), rounded_down(round(memory_bytes * 0.4))


def rules_of_thumb(situation: Situation, points: list[ReadsPoint], basis: Basis) -> list[RuleOfThumb]:
    """Return the rules, each with what it would gain, negative where it costs."""
    found = []
    memory = situation.memory_bytes
    if memory is None:
        found.append(
            RuleOfThumb(
                name="25% and 40% of the memory, PGTune",
                shared_buffers_bytes=None,
                says="the memory is not known",
                gain=None,
            )
        )
    else:
        quarter, most = quarter_and_two_fifths(memory)
        found += [
            _rule("25% of the memory", quarter, situation, points, basis),
            _rule("40% of the memory", most, situation, points, basis),
            _rule("PGTune", quarter, situation, points, basis, more=_pgtune(memory)),
        ]
    found.append(_hit_ratio(situation, points, basis))
    found.append(_usage_counts(situation, points, basis))
    return found


def _pgtune(memory: int) -> str:
    cache = memory // 4 * 3
    huge = "try" if memory >= 32 * GB else "off"
    return f", effective_cache_size {format_bytes(cache)}, huge_pages {huge}"


def _rule(
    name: str,
    size: int,
    situation: Situation,
    points: list[ReadsPoint],
    basis: Basis,
    *,
    more: str = "",
) -> RuleOfThumb:
    return RuleOfThumb(
        name=name,
        shared_buffers_bytes=size,
        says=format_bytes(size) + more,
        gain=_gain(size, situation, points, basis),
    )


def _gain(size: int, situation: Situation, points: list[ReadsPoint], basis: Basis) -> Gain | None:
    now = next((p for p in points if p.shared_buffers_bytes == situation.today_bytes), None)
    if now is None or basis == "unknown":
        return None
    near = min(points, key=lambda p: max(p.shared_buffers_bytes, size) / min(p.shared_buffers_bytes, size))
    nearest = near.shared_buffers_bytes
    if near is now or max(nearest, size) / min(nearest, size) > _SAME:
        return None
    return best_gain_of(now, near)


def _hit_ratio(situation: Situation, points: list[ReadsPoint], basis: Basis) -> RuleOfThumb:
    name = "hit ratio over 99%"
    observed = situation.prediction.observed
    if observed.miss_ratio <= 1 - _GOOD_RATIO:
        return RuleOfThumb(
            name=name,
            shared_buffers_bytes=situation.today_bytes,
            says=f"{format_percent(1 - observed.miss_ratio, 2)} today: large enough",
            gain=None,
        )
    enough = [
        point.shared_buffers_bytes
        for point in situation.prediction.points
        if point.miss_ratio <= 1 - _GOOD_RATIO and point.shared_buffers_bytes in situation.candidates
    ]
    if not situation.prediction.points:
        says = f"{format_percent(1 - observed.miss_ratio, 2)} today: grow, by how much is not known"
        return RuleOfThumb(name=name, shared_buffers_bytes=None, says=says, gain=None)
    if not enough:
        return RuleOfThumb(
            name=name,
            shared_buffers_bytes=None,
            says=f"{format_percent(1 - observed.miss_ratio, 2)} today, and at no size considered over 99%",
            gain=None,
        )
    size = min(enough)
    return RuleOfThumb(
        name=name,
        shared_buffers_bytes=size,
        says=f"{format_percent(1 - observed.miss_ratio, 2)} today: grow to {format_bytes(size)}",
        gain=_gain(size, situation, points, basis),
    )


def _usage_counts(situation: Situation, points: list[ReadsPoint], basis: Basis) -> RuleOfThumb:
    name = "usage counts of 4 and 5"
    contents = situation.contents
    size = 0 if contents is None else contents.often_used_bytes
    if not size:
        return RuleOfThumb(
            name=name, shared_buffers_bytes=None, says="no buffer has such a usage count", gain=None
        )
    says = f"{format_bytes(size)} have them"
    if size < SMALLEST_BYTES:
        size = SMALLEST_BYTES
        says += f"; {format_bytes(size)} are the least"
    return RuleOfThumb(
        name=name, shared_buffers_bytes=size, says=says, gain=_gain(size, situation, points, basis)
    )
