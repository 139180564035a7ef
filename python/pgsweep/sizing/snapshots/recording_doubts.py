"""What a recording of snapshots itself gives to doubt: its length, its load, its scans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgsweep.evidence.schema import STATISTICS_RESET
from pgsweep.records import reasons
from pgsweep.sizing.snapshots.observations import Table
from pgsweep.sizing.snapshots.self_consistency import shift_doubts
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.verdict import (
    LEAST_SNAPSHOTS,
    MANY_SCANS,
    PASSES_OF_PATHS,
    PASSES_OF_STATES,
    Doubt,
)


def length_doubts(totals: Totals, snapshots: int, pass_seconds: float, *, by_paths: bool) -> list[Doubt]:
    """Return whether the recording is too short, in one sentence."""
    if totals.misses == 0:
        return [Doubt("refused", reasons.no_miss())]
    if snapshots < LEAST_SNAPSHOTS:
        return [Doubt("refused", reasons.few_snapshots(snapshots))]
    passes = totals.seconds / pass_seconds if pass_seconds > 0 else 0.0
    enough, least = PASSES_OF_PATHS if by_paths else PASSES_OF_STATES
    if passes >= enough:
        return []
    # Where the hand hardly moved, nothing says how long a pass takes.
    longer = 1.25 * enough * pass_seconds if passes > 0 else None
    return [
        Doubt("refused" if passes < least else "rough", reasons.short_recording(passes, snapshots, longer))
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
    share = scan_share(totals)
    if MANY_SCANS.level(share) is None:
        return []
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"])
    ringed = blocks > max(sizes_blocks) / 4
    small = blocks < min(sizes_blocks) / 8
    other = float(totals.relation_scanned_blocks[~ringed & ~small].sum()) / max(
        float(totals.relation_scanned_blocks.sum()), 1e-9
    )
    if MANY_SCANS.level(share * other):
        worst = int(np.argmax(np.where(ringed | small, 0.0, totals.relation_scanned_blocks)))
        return [Doubt("refused", reasons.scans_not_known(share, str(relations["name"][worst])))]
    return [Doubt("rough", reasons.scans(share))]


def scan_share(totals: Totals) -> float:
    """Return the share of sequential scans among the accesses."""
    accesses = (totals.hits + totals.misses) / totals.seconds
    return float(totals.relation_scanned_blocks.sum()) / max(accesses, 1e-9)
