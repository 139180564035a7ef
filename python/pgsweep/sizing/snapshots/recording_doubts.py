"""What a recording of snapshots itself gives to doubt: its length, its load, its scans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgsweep.evidence.schema import STATISTICS_RESET
from pgsweep.sizing.estimate import Doubt
from pgsweep.sizing.snapshots.observations import Table
from pgsweep.sizing.snapshots.self_consistency import shift_doubts
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.units import format_minutes, format_percent

LEAST_SNAPSHOTS = 4
_PASSES_OF_PATHS, _PASSES_OF_STATES = (1.0, 12.0), (15.0, 45.0)
"""Clock passes below which nothing is predicted, and below which a prediction is rough. The states of
snapshots are taken for independent, which takes many passes; paths are followed where the hand is known."""

_MANY_SCANS = 0.1


def length_doubts(totals: Totals, snapshots: int, pass_seconds: float, *, by_paths: bool) -> list[Doubt]:
    """Return whether the recording is too short, in one sentence."""
    if totals.misses == 0:
        return [
            Doubt(
                "refused",
                "no miss was counted: the pool holds all that is used, smaller sizes cannot be judged",
            )
        ]
    if snapshots < LEAST_SNAPSHOTS:
        found = "is only one snapshot" if snapshots == 1 else f"are only {snapshots} snapshots"
        return [Doubt("refused", f"there {found}: record for longer")]
    passes = totals.seconds / pass_seconds if pass_seconds > 0 else 0.0
    least, enough = _PASSES_OF_PATHS if by_paths else _PASSES_OF_STATES
    if passes >= enough:
        return []
    seen = f"{passes:.1f} clock passes" if passes >= 0.1 else "less than a tenth of a clock pass"
    # Where the hand hardly moved, nothing says how long a pass takes.
    how_long = f"for {format_minutes(1.25 * enough * pass_seconds)}" if passes > 0 else "for much longer"
    return [
        Doubt(
            "refused" if passes < least else "rough",
            f"the recording is short, {seen} in {snapshots} snapshots: record {how_long}",
        )
    ]


def load_doubts(totals: Totals, relations: Table) -> list[Doubt]:
    """Return whether the load was another one at the end than at the beginning."""
    doubts = shift_doubts(
        [str(name) for name in relations["name"]], totals.first_half_accesses, totals.second_half_accesses
    )
    if totals.was_reset:
        doubts.append(Doubt("rough", STATISTICS_RESET))
    first, second = totals.first_half_miss_ratio, totals.second_half_miss_ratio
    # The halves of one load differ by twice the error of the whole, and that by chance.
    if abs(first - second) > 0.1 * max(first, second) + 0.002 + 4 * totals.miss_ratio_error:
        doubts.append(
            Doubt(
                "rough",
                f"the load drifted: miss ratio {format_percent(first, 2)} in the first half, "
                f"{format_percent(second, 2)} in the second",
            )
        )
    return doubts


def scan_doubts(totals: Totals, relations: Table, sizes_blocks: Sequence[int]) -> list[Doubt]:
    """Return whether scans matter, and whether what they do would be the same at all sizes."""
    share = scan_share(totals)
    if share <= _MANY_SCANS:
        return []
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"])
    ringed = blocks > max(sizes_blocks) / 4
    small = blocks < min(sizes_blocks) / 8
    other = float(totals.relation_scanned_blocks[~ringed & ~small].sum()) / max(
        float(totals.relation_scanned_blocks.sum()), 1e-9
    )
    what = (
        f"{format_percent(share)} of the accesses are those of sequential scans, which do not come at random"
    )
    if share * other > _MANY_SCANS:
        worst = int(np.argmax(np.where(ringed | small, 0.0, totals.relation_scanned_blocks)))
        name = str(relations["name"][worst])
        return [
            Doubt(
                "refused",
                f"{what}: how much of `{name}` they find at another size depends on when they run, which "
                "snapshots do not show; take a trace (record --source trace)",
            )
        ]
    return [Doubt("rough", f"{what}: what they find at another size depends on when they run")]


def scan_share(totals: Totals) -> float:
    """Return the share of sequential scans among the accesses."""
    accesses = (totals.hits + totals.misses) / totals.seconds
    return float(totals.relation_scanned_blocks.sum()) / max(accesses, 1e-9)
