"""Check that what was inferred agrees with what was counted, before any of it is shown.

A model that explains today's pool must give back today's misses, relation by relation, and the pages that
were seen in the pool; otherwise what it says of other sizes rests on the factor that makes it fit. What was
seen in the first half must be what was seen in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.records import reasons
from pgsweep.records.prediction import Level
from pgsweep.sizing import verdict
from pgsweep.sizing.verdict import Doubt
from pgsweep.units import BLOCK_BYTES

Floats = NDArray[np.float64]

_CERTAIN_ERROR: Final = 0.0003
"""An error of the miss ratio that is there in any case."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A group of pages, as it was counted and as the model has it today.

    Attributes:
        counted_misses: per second.
        expected_misses: per second, by the fitted rates and scans alone.
        seen_resident: mean number of its pages in a snapshot.
        expected_resident: by the fitted rates.
        grows: new blocks are written to its end. Each is visited many times and then no more, which the rates
            show as many pages that come and go.
    """

    name: str
    counted_misses: float
    expected_misses: float
    seen_resident: float
    expected_resident: float
    grows: bool = False


def today_doubts(predicted: float, measured: float, noise: float) -> list[Doubt]:
    """Return what speaks against a curve by its own value at today's size.

    Args:
        noise: standard error of the measured miss ratio.
    """
    level = verdict.TODAY.level(abs(predicted - measured), 2 * noise)
    return [] if level is None else [Doubt(level, reasons.today_not_explained(predicted, measured))]


def part_doubts(parts: Sequence[Part], pool: float, *, seconds: float, miss_ratio: float) -> list[Doubt]:
    """Return what speaks against the parts that a curve is made of.

    Args:
        pool: buffers, of those that were looked at.
        seconds: for how long misses were counted.
        miss_ratio: of the database, as counted.
    """
    doubts = []
    total = max(sum(part.counted_misses for part in parts), 1e-9)
    # With few misses a difference may be chance: three standard errors are taken off.
    off = [
        max(abs(p.counted_misses - p.expected_misses) - 3 * np.sqrt(max(p.counted_misses, 0) / seconds), 0.0)
        for p in parts
    ]
    share = sum(off) / total
    # That too many misses are expected of a growing relation is known, and says nothing about the others.
    matters = [
        0.0 if p.grows and p.expected_misses > p.counted_misses else misses
        for p, misses in zip(parts, off, strict=True)
    ]
    wrong = sum(matters) / total * miss_ratio
    if verdict.MISSES.level(share) or verdict.MISSES_OF_ACCESSES.level(share * miss_ratio):
        worst = parts[int(np.argmax(off))]
        far = "refused" in (verdict.MISSES.level(share), verdict.MISSES_OF_ACCESSES.level(wrong))
        reason = reasons.misses_not_explained(worst.name, worst.expected_misses, worst.counted_misses)
        doubts.append(Doubt("refused" if far else "rough", reason))
    apart = sum(abs(p.seen_resident - p.expected_resident) for p in parts) / max(pool, 1.0)
    if level := verdict.CONTENTS.level(apart):
        worst = max(parts, key=lambda p: abs(p.seen_resident - p.expected_resident))
        reason = reasons.contents_not_explained(worst.name, worst.expected_resident, worst.seen_resident)
        doubts.append(Doubt(level, reason))
    return doubts


def stranger_doubts(other_databases: float, unknown: float) -> list[Doubt]:
    """Return what speaks against a curve of a pool that holds pages of others.

    Args:
        other_databases: share of the pool that holds their pages.
        unknown: share that holds pages of this database that belong to no relation of the catalog.
    """
    doubts = []
    if level := verdict.OTHER_DATABASES.level(other_databases):
        doubts.append(Doubt(level, reasons.other_databases(other_databases)))
    if level := verdict.UNKNOWN_RELATIONS.level(unknown):
        doubts.append(Doubt(level, reasons.unknown_relations(unknown)))
    return doubts


def shift_doubts(names: Sequence[str], first: Floats, second: Floats) -> list[Doubt]:
    """Return what speaks against a curve whose load moved from relation to relation.

    Args:
        names: of relations.
        first: their accesses in the first half.
        second: the same in the second half.
    """
    if first.sum() <= 0 or second.sum() <= 0:
        return []
    before, after = first / first.sum(), second / second.sum()
    shift = float(np.abs(before - after).sum() / 2)
    if (level := verdict.SHIFT.level(shift)) is None:
        return []
    worst = int(np.argmax(np.abs(before - after)))
    return [Doubt(level, reasons.load_shifted(names[worst], float(before[worst]), float(after[worst])))]


def order_doubts(share: float) -> list[Doubt]:
    """Return what speaks against a curve of pages that are read in order, again and again.

    Args:
        share: of the misses.
    """
    level = verdict.IN_ORDER.level(share)
    return [] if level is None else [Doubt(level, reasons.in_order(share))]


def together_doubts(shares: Sequence[tuple[str, float]]) -> list[Doubt]:
    """Return what speaks against a curve of relations whose pages are visited one after the other.

    Args:
        shares: such relations, and their share of the accesses.
    """
    share = sum(own for _, own in shares)
    if (level := verdict.ONE_AFTER_THE_OTHER.level(share)) is None:
        return []
    worst = max(shares, key=lambda one: one[1])[0]
    return [Doubt(level, reasons.one_after_the_other(share, worst))]


def drift_doubts(whole: Floats, halves: Sequence[Floats], error: Floats) -> list[Doubt]:
    """Return what speaks against a curve of a load that moves from page to page.

    What moves shows few pages that are read often in each half, and many that are read seldom in the whole:
    the whole recording then predicts fewer misses for a smaller pool, and more for a larger one, than both
    its halves.

    Args:
        whole: miss ratios at half and twice today's size.
        halves: the same from each half of the recording; none where they are too short.
        error: standard errors of `whole`.
    """
    if len(halves) < 2:
        return [Doubt("rough", reasons.halves_not_compared())]
    apart = whole - np.mean(halves, axis=0)
    halved = float(np.mean([half[1] for half in halves]))
    chance = error + _CERTAIN_ERROR
    drift = float(min(-apart[0] / chance[0], apart[1] / chance[1]))
    most = float(np.abs(apart).max())
    if verdict.DRIFT_DEVIATIONS.level(drift) is None or most < verdict.DRIFT_MATTERS:
        return []
    level: Level = "refused" if drift * most > verdict.DRIFT_REFUSED else "rough"
    return [Doubt(level, reasons.load_moves(float(abs(halved - whole[1]))))]


def width_doubts(sizes_blocks: Sequence[int], low: Floats, high: Floats) -> list[Doubt]:
    """Return whether the interval is wide at some size that is shown nevertheless."""
    half = (high - low)[: len(sizes_blocks)] / 2
    half = np.where(half > (verdict.HALF_WIDTH.refused or 0.0), 0.0, half)
    if not len(half) or half.max() <= verdict.HALF_WIDTH.rough:
        return []
    worst = int(np.argmax(half))
    return [Doubt("rough", reasons.wide_interval(sizes_blocks[worst] * BLOCK_BYTES, float(half[worst])))]
