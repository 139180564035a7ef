"""What speaks against a curve of snapshots; the thresholds are in sizing/verdict.py.

The recording may be too short, and the load may have changed or be of a kind that snapshots do not show. And
what was inferred must agree with what was counted, before any of it is shown. A model that explains today's
pool must give back today's misses, relation by relation, and the pages that were seen in the pool; otherwise
what it says of other sizes rests on the factor that makes it fit. What was seen in the first half must be
what was seen in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.evidence.schema import PASSES_OF_PATHS, PASSES_OF_STATES, STATISTICS_RESET, wanted_passes
from pgsweep.records import reasons
from pgsweep.records.prediction import Level
from pgsweep.sizing import verdict
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.rules import most_blocks_without_ring
from pgsweep.sizing.snapshots.ensemble import LoadCurves
from pgsweep.sizing.snapshots.interval import Ensemble
from pgsweep.sizing.snapshots.observations import Table, main_fork_blocks
from pgsweep.sizing.snapshots.together import Bounds
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.verdict import Doubt
from pgsweep.units import BLOCK_BYTES, longer_seconds

Floats = NDArray[np.float64]

_GROWTH: Final = 0.02
"""New blocks of a relation for each miss that is expected of it, from which on it counts as growing."""

_CERTAIN_ERROR: Final = 0.0003
"""An error of the miss ratio that is there in any case."""

_OF_SHORT: Final = 0.5
"""By how much of the error of a short recording of paths, for a doubling of the size, its halves differ from
the whole where nothing moves."""


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
        bounded: its pages stay or go together, so that it is not its rates that say what it may miss.
    """

    name: str
    counted_misses: float
    expected_misses: float
    seen_resident: float
    expected_resident: float
    grows: bool = False
    bounded: bool = False


def curve_doubts(
    curves: LoadCurves, found: Estimate, ensemble: Ensemble, ordered: float, together: Sequence[int] = ()
) -> list[Doubt]:
    """Return what speaks against a curve, and what else must be known of it.

    Args:
        curves: of the load, without a change.
        found: the curve at the sizes asked for.
        ensemble: at these sizes, and at half and twice today's.
        ordered: share of the misses on pages that come in the order of their blocks, those of relations
            left out whose pages are known to stay or go together.
        together: groups whose pages stay or go together.
    """
    load, fit, totals = curves.load, curves.fit, curves.load.totals
    pool, resident = load.pool.blocks, load.seen.resident()
    # Of a width that comes from what stays or goes together another sentence tells.
    known = np.flatnonzero(~np.isin(found.sizes_blocks, (*found.unseen_blocks, *found.in_order_blocks)))
    known_sizes = [found.sizes_blocks[at] for at in known.tolist()]
    length = length_doubts(totals, load.seen.snapshots, fit.pass_seconds, by_paths=fit.by_paths)
    return [
        *totals.doubts,
        # One sentence on length: a short recording's interval is wide as well.
        *(length or width_doubts(known_sizes, found.low[known], found.high[known])),
        *load_doubts(totals, load.relations),
        *today_doubts(curves.today, totals.miss_ratio, totals.miss_ratio_error),
        *part_doubts(
            _parts(curves, together),
            pool,
            seconds=totals.seconds * load.pool.sampling_rate,
            miss_ratio=totals.miss_ratio,
            uncounted=load.replayed_misses,
        ),
        *stranger_doubts(float(resident[-1]) / pool, load.seen.unknown / pool),
        *scan_doubts(totals, load.relations, (load.server.pool_blocks, *found.sizes_blocks)),
        *order_doubts(ordered),
        # Both halves of one look show the same residences: they say nothing of a load that moves.
        *([] if fit.is_one_look(totals.seconds) else _movement_doubts(curves, ensemble, together)),
    ]


def _movement_doubts(curves: LoadCurves, ensemble: Ensemble, together: Sequence[int]) -> list[Doubt]:
    """Return whether the load moves; what stays or goes together has bounds of its own."""
    pool = curves.load.server.pool_blocks
    sizes = (max(pool // 2, 1), 2 * pool)
    own = [curves.part_of(one, sizes, together) for one in (curves.best, *curves.halves)]
    whole, *halves = (ratios[-2:] for ratios in (ensemble.point, *ensemble.halves))
    error = ensemble.spread[:, -2:].std(axis=0)
    rest = [half - out for half, out in zip(halves, own[1:], strict=True)]
    return drift_doubts(whole - own[0], rest, error, short=curves.short if curves.fit.by_paths else 0.0)


def _parts(curves: LoadCurves, together: Sequence[int] = ()) -> list[Part]:
    """Return each group, as it was counted and as the model has it today."""
    load, best, rate = curves.load, curves.best, curves.load.pool.sampling_rate
    resident, counted, growth = load.seen.resident(), load.group_misses, load.growth
    parts = []
    for g, (group, expected) in enumerate(
        zip(load.groups, best.curve.expected_misses(best.pages), strict=True)
    ):
        # What came into the pool without being read is not counted as a miss from 16 on.
        unread = 0.0 if load.pool.extensions_are_reads else float(growth[g])
        parts.append(
            Part(
                name=group.label,
                counted_misses=float(counted[g]) / rate,
                # Misses of groups without relations (other databases, for example) are not counted here.
                expected_misses=max(expected / rate - unread, 0.0) if group.relations else 0.0,
                seen_resident=float(resident[g]),
                expected_resident=best.rates[g].resident(),
                grows=float(growth[g]) > _GROWTH * expected / rate,
                bounded=g in together,
            )
        )
    return parts


def length_doubts(totals: Totals, snapshots: int, pass_seconds: float, *, by_paths: bool) -> list[Doubt]:
    """Return whether the recording is too short, in one sentence."""
    if totals.misses == 0:
        return [Doubt("refused", reasons.no_miss())]
    if snapshots < verdict.LEAST_SNAPSHOTS:
        return [Doubt("refused", reasons.few_snapshots(snapshots))]
    passes = totals.seconds / pass_seconds if pass_seconds > 0 else 0.0
    enough, least = PASSES_OF_PATHS if by_paths else PASSES_OF_STATES
    if passes >= enough:
        return []
    # Where the hand hardly moved, nothing says how long a pass takes.
    long = wanted_passes(hand_seen=by_paths) * pass_seconds
    wanted = longer_seconds(long, totals.seconds) if passes > 0 else None
    if by_paths and wanted is not None and passes < least:
        return [Doubt("rough", reasons.one_look(passes, wanted))]
    return [
        Doubt("refused" if passes < least else "rough", reasons.short_recording(passes, snapshots, wanted))
    ]


def load_doubts(totals: Totals, relations: Table) -> list[Doubt]:
    """Return whether the load was another one at the end than at the beginning."""
    doubts = shift_doubts(
        [str(name) for name in relations["name"]], totals.first_half_accesses, totals.second_half_accesses
    )
    if totals.was_reset:
        doubts.append(Doubt("rough", reasons.statistics_reset(STATISTICS_RESET)))
    first, second = totals.first_half_miss_ratio, totals.second_half_miss_ratio
    # The halves of one load differ by twice the error of the whole, and that by chance.
    if abs(first - second) > 0.1 * max(first, second) + 0.002 + 4 * totals.miss_ratio_error:
        doubts.append(Doubt("rough", reasons.load_drifted(first, second)))
    return doubts


def scan_doubts(totals: Totals, relations: Table, sizes_blocks: Sequence[int]) -> list[Doubt]:
    """Return whether scans matter, and whether what they do would be the same at all sizes."""
    share = totals.scan_share
    if verdict.MANY_SCANS.level(share) is None:
        return []
    blocks = main_fork_blocks(relations)
    ringed = blocks > most_blocks_without_ring(max(sizes_blocks))
    small = blocks < min(sizes_blocks) / 8
    other = float(totals.relation_scanned_blocks[~ringed & ~small].sum()) / max(
        float(totals.relation_scanned_blocks.sum()), 1e-9
    )
    if verdict.MANY_SCANS.level(share * other):
        worst = int(np.argmax(np.where(ringed | small, 0.0, totals.relation_scanned_blocks)))
        return [Doubt("refused", reasons.scans_not_known(share, str(relations["name"][worst])))]
    return [Doubt("rough", reasons.scans(share))]


def today_doubts(predicted: float, measured: float, noise: float) -> list[Doubt]:
    """Return what speaks against a curve by its own value at today's size.

    Args:
        noise: standard error of the measured miss ratio.
    """
    level = verdict.TODAY.level(abs(predicted - measured), 2 * noise)
    return [] if level is None else [Doubt(level, reasons.today_not_explained(predicted, measured))]


def part_doubts(
    parts: Sequence[Part], pool: float, *, seconds: float, miss_ratio: float, uncounted: float = 0.0
) -> list[Doubt]:
    """Return what speaks against the parts that a curve is made of.

    Args:
        pool: buffers, of those that were looked at.
        seconds: for how long misses were counted.
        miss_ratio: of the database, as counted.
        uncounted: misses per second that the server does not count as such, but whose buffers it does.
    """
    doubts = []
    off, wrong = _unexplained(parts, seconds, uncounted)
    share = sum(off) / max(sum(part.counted_misses for part in parts), 1e-9)
    if verdict.MISSES.level(share) or _level_of_misses(share, miss_ratio):
        worst = parts[int(np.argmax(off))]
        far = "refused" in (verdict.MISSES.level(share), _level_of_misses(wrong, miss_ratio))
        reason = reasons.misses_not_explained(worst.name, worst.expected_misses, worst.counted_misses)
        doubts.append(Doubt("refused" if far else "rough", reason))
    of_rates = [part for part in parts if not part.bounded]
    apart = sum(abs(p.seen_resident - p.expected_resident) for p in of_rates) / max(pool, 1.0)
    if level := verdict.CONTENTS.level(apart):
        worst = max(of_rates, key=lambda p: abs(p.seen_resident - p.expected_resident))
        reason = reasons.contents_not_explained(worst.name, worst.expected_resident, worst.seen_resident)
        doubts.append(Doubt(level, reason))
    return doubts


def unexplained_misses(curves: LoadCurves, together: Sequence[int]) -> float:
    """Return which share of the accesses are misses that nothing explains, where it is much of the accesses.

    Where most accesses miss, that refuses no curve: it widens the interval instead.

    Args:
        together: groups whose pages stay or go together, whose misses have bounds of their own.
    """
    load = curves.load
    seconds = load.totals.seconds * load.pool.sampling_rate
    _, wrong = _unexplained(_parts(curves, together), seconds, load.replayed_misses)
    found = wrong * load.totals.miss_ratio
    return found if verdict.MISSES_OF_ACCESSES.level(found) == "refused" else 0.0


def _unexplained(parts: Sequence[Part], seconds: float, uncounted: float) -> tuple[list[float], float]:
    """Return by how many misses per second each part is off, and the share of the misses that matters.

    Args:
        seconds, uncounted: as of `part_doubts`.
    """
    total = max(sum(part.counted_misses for part in parts), 1e-9)
    more = sum(max(part.expected_misses - part.counted_misses, 0.0) for part in parts)
    explained = min(uncounted / more, 1.0) if more > 0 else 0.0
    off = []
    for part in parts:
        apart = 0.0 if part.bounded else part.expected_misses - part.counted_misses
        # With few misses a difference may be chance: three standard errors are taken off.
        chance = 3 * float(np.sqrt(max(part.counted_misses, 0) / seconds))
        off.append(max(abs(apart) - max(apart, 0.0) * explained - chance, 0.0))
    # That too many misses are expected of a growing relation is known, and says nothing about the others.
    each = zip(parts, off, strict=True)
    matters = [misses for p, misses in each if not (p.grows and p.expected_misses > p.counted_misses)]
    return off, sum(matters) / total


def _level_of_misses(share: float, miss_ratio: float) -> Level | None:
    """Return what a share of the misses allows: where most accesses miss, a hundredth of them is little."""
    level = verdict.MISSES_OF_ACCESSES.level(share * miss_ratio)
    return "rough" if level == "refused" and verdict.MISSES_RELATIVE.level(share) == "rough" else level


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


def together_doubts(found: Estimate, pool_blocks: int, bounds: Bounds, names: Sequence[str]) -> list[Doubt]:
    """Return what speaks against a curve of relations whose pages stay or go together.

    Args:
        found: the curve.
        pool_blocks: today's size.
        bounds: by how much the misses of these relations may be off, at the sizes of the curve first.
        names: of the relations.
    """
    sizes = np.array(found.sizes_blocks)
    half = (bounds.above - bounds.below)[: len(sizes)] / 2
    if not len(sizes) or verdict.TOGETHER.level(float(half.max())) is None:
        return []
    worst = int(np.argmax(half.round(6)))  # the first, where several are equally far off
    others = sizes != pool_blocks
    wide = (found.high - found.low) / 2 > (verdict.HALF_WIDTH.refused or 0.0)
    unseen = np.isin(sizes, found.unseen_blocks)
    # Nothing but today's size is left to show.
    level: Level = "refused" if others.any() and (wide | unseen)[others].all() else "rough"
    return [Doubt(level, reasons.one_after_the_other(names, sizes[worst] * BLOCK_BYTES, float(half[worst])))]


def drift_doubts(
    whole: Floats, halves: Sequence[Floats], error: Floats, *, short: float = 0.0
) -> list[Doubt]:
    """Return what speaks against a curve of a load that moves from page to page.

    What moves shows few pages that are read often in each half, and many that are read seldom in the whole:
    the whole recording then predicts fewer misses for a smaller pool, and more for a larger one, than both
    its halves.

    Args:
        whole: miss ratios at half and twice today's size.
        halves: the same from each half of the recording; none where they are too short.
        error: standard errors of `whole`.
        short: by how much more the curve errs for each doubling of the size, since the recording is short.
            Its halves find rare pages rarer than the whole does, whether or not the load moves.
    """
    if len(halves) < 2:
        return [Doubt("rough", reasons.halves_not_compared())]
    apart = whole - np.mean(halves, axis=0)
    halved = float(np.mean([half[1] for half in halves]))
    chance = error + _CERTAIN_ERROR + _OF_SHORT * short
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
    worst = int(np.argmax(half.round(6)))
    return [Doubt("rough", reasons.wide_interval(sizes_blocks[worst] * BLOCK_BYTES, float(half[worst])))]
