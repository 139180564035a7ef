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

from pgsweep.sizing.estimate import UNKNOWN_WIDTH, Doubt
from pgsweep.sizing.snapshots.interval import RELIABLE_WIDTH
from pgsweep.units import BLOCK_BYTES, format_bytes, format_count, format_percent

Floats = NDArray[np.float64]

_TODAY_ROUGH, _TODAY_REFUSED = 0.003, 0.03
"""By how much the miss ratio predicted at today's size may differ from the measured one, beside its noise."""

_MISSES_ROUGH, _MISSES_REFUSED = 0.25, 0.8
_MISS_RATIO_ROUGH, _MISS_RATIO_REFUSED = 0.002, 0.01
"""Misses that relations have too many or too few: of all misses, and of all accesses."""

_RESIDENT_ROUGH, _RESIDENT_REFUSED = 0.05, 0.09
"""Of the pool."""

_FOREIGN_ROUGH, _FOREIGN_REFUSED = 0.1, 0.8
_UNKNOWN_ROUGH, _UNKNOWN_REFUSED = 0.05, 0.3
"""Of the pool: pages of other databases, and of relations that the catalog does not name."""

_SHIFT_ROUGH = 0.25
"""Of the accesses: those that fall on another relation in the second half than in the first."""

_ORDER_ROUGH, _ORDER_REFUSED = 0.05, 0.2
"""Of the misses: those on pages that come in the order of their blocks."""

_TOGETHER_ROUGH, _TOGETHER_REFUSED = 0.05, 0.2
"""Of the accesses: those on relations whose neighbouring pages rise and fall together."""

_DRIFT_ROUGH, _DRIFT_MATTERS, _CERTAIN_ERROR = 1.2, 0.002, 0.0003
"""By how much halves of the recording differ from the whole, in standard errors, and in miss ratio; and an
error that is there in any case."""

_DRIFT_REFUSED: Final = 0.01
"""The product of both. On simulated loads (benchmarks/calibration, even seeds) it separates those that move,
with errors of up to tens of points, from others."""


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
    off = abs(predicted - measured)
    if off <= _TODAY_ROUGH + 2 * noise:
        return []
    return [
        Doubt(
            "refused" if off > _TODAY_REFUSED + 2 * noise else "rough",
            f"for today's size the method gives a miss ratio of {format_percent(predicted, 1)} where "
            f"{format_percent(measured, 1)} was measured: it does not explain this load",
        )
    ]


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
    if share > _MISSES_ROUGH or share * miss_ratio > _MISS_RATIO_ROUGH:
        worst = parts[int(np.argmax(off))]
        far = share > _MISSES_REFUSED or wrong > _MISS_RATIO_REFUSED
        doubts.append(
            Doubt(
                "refused" if far else "rough",
                f"by the usage counts `{worst.name}` should have {format_count(worst.expected_misses)} "
                f"misses a second, but the server counted {format_count(worst.counted_misses)}: its "
                "pages are not visited as the method assumes (scans, bulk operations, or relations that "
                "come and go)",
            )
        )
    apart = sum(abs(p.seen_resident - p.expected_resident) for p in parts) / max(pool, 1.0)
    if apart > _RESIDENT_ROUGH:
        worst = max(parts, key=lambda p: abs(p.seen_resident - p.expected_resident))
        doubts.append(
            Doubt(
                "refused" if apart > _RESIDENT_REFUSED else "rough",
                f"by its rates `{worst.name}` should have {format_count(worst.expected_resident)} "
                f"pages in the pool, but {format_count(worst.seen_resident)} were seen",
            )
        )
    return doubts


def stranger_doubts(other_databases: float, unknown: float) -> list[Doubt]:
    """Return what speaks against a curve of a pool that holds pages of others.

    Args:
        other_databases: share of the pool that holds their pages.
        unknown: share that holds pages of this database that belong to no relation of the catalog.
    """
    doubts = []
    if other_databases > _FOREIGN_ROUGH:
        doubts.append(
            Doubt(
                "refused" if other_databases > _FOREIGN_REFUSED else "rough",
                f"{format_percent(other_databases)} of the pool holds pages of other databases, which take "
                "their part of any other size too; how much they would take is not known",
            )
        )
    if unknown > _UNKNOWN_ROUGH:
        doubts.append(
            Doubt(
                "refused" if unknown > _UNKNOWN_REFUSED else "rough",
                f"{format_percent(unknown)} of the pool holds pages of relations that were created, "
                "rewritten or dropped during the recording: their sizes are not known",
            )
        )
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
    if shift <= _SHIFT_ROUGH:
        return []
    worst = int(np.argmax(np.abs(before - after)))
    return [
        Doubt(
            "rough",
            f"the load changed: `{names[worst]}` had {format_percent(before[worst])} of the accesses in the "
            f"first half of the recording, {format_percent(after[worst])} in the second",
        )
    ]


def order_doubts(share: float) -> list[Doubt]:
    """Return what speaks against a curve of pages that are read in order, again and again.

    Args:
        share: of the misses.
    """
    if share <= _ORDER_ROUGH:
        return []
    return [
        Doubt(
            "refused" if share > _ORDER_REFUSED else "rough",
            f"{format_percent(share)} of the misses read relations from end to end: pages that come round "
            "together stay or go together, which snapshots do not show; take a trace (record --source "
            "trace)",
        )
    ]


def together_doubts(shares: Sequence[tuple[str, float]]) -> list[Doubt]:
    """Return what speaks against a curve of relations whose pages are visited one after the other.

    Args:
        shares: such relations, and their share of the accesses.
    """
    share = sum(own for _, own in shares)
    if share <= _TOGETHER_ROUGH:
        return []
    worst = max(shares, key=lambda one: one[1])[0]
    return [
        Doubt(
            "refused" if share > _TOGETHER_REFUSED else "rough",
            f"{format_percent(share)} of the accesses visit pages one after the other, most of them in "
            f"`{worst}`: they stay or go together, which snapshots do not show; take a trace (record "
            "--source trace)",
        )
    ]


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
        return [
            Doubt(
                "rough",
                "there are too few snapshots to compare the halves of the recording, and so to see whether "
                "the load moves: record for longer",
            )
        ]
    apart = whole - np.mean(halves, axis=0)
    halved = float(np.mean([half[1] for half in halves]))
    chance = error + _CERTAIN_ERROR
    drift = float(min(-apart[0] / chance[0], apart[1] / chance[1]))
    most = float(np.abs(apart).max())
    if drift <= _DRIFT_ROUGH or most < _DRIFT_MATTERS:
        return []
    return [
        Doubt(
            "refused" if drift * most > _DRIFT_REFUSED else "rough",
            "the load moves, or was recorded for too short a time: each half of the recording shows fewer "
            "pages, read more often, than the whole does (at twice the size the miss ratios predicted from "
            f"them differ by {format_percent(abs(halved - whole[1]), 1)})",
        )
    ]


def width_doubts(sizes_blocks: Sequence[int], low: Floats, high: Floats) -> list[Doubt]:
    """Return whether the interval is wide at some size that is shown nevertheless."""
    half = (high - low)[: len(sizes_blocks)] / 2
    half = np.where(half > UNKNOWN_WIDTH, 0.0, half)
    if not len(half) or half.max() <= RELIABLE_WIDTH:
        return []
    worst = int(np.argmax(half))
    return [
        Doubt(
            "rough",
            f"at {format_bytes(sizes_blocks[worst] * BLOCK_BYTES)} the miss ratio is known to ± "
            f"{format_percent(half[worst], 1)} only: record for longer, or ask for sizes nearer to today's",
        )
    ]
