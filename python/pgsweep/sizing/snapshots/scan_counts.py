"""Sequential scans: how many blocks they read, and what a pool makes of pages that come round and round.

The counter of sequential scans counts every process that takes part (heapam.c, initscan), three for one
statement with two workers, and a scan may end early. So scans are measured by what they returned: tuples
over tuples per block, and never more than the relation's accesses.

A scan of a large relation goes through a ring (rules.py). The pages of a smaller one are visited together, at
intervals, not at random: with the interval shorter than a clock pass they stay, and with one of two passes
they are gone each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.rules import most_blocks_without_ring
from pgsweep.sizing.snapshots.observations import main_fork_blocks

Floats = NDArray[np.float64]

_JITTER: Floats = np.geomspace(0.85, 1 / 0.85, 9)
"""Scans are never exactly periodic: the law of a loop is averaged over intervals around the mean."""


def scanned_blocks(
    relations: Mapping[str, NDArray[Any]],
    *,
    scans: Floats,
    returned: Floats,
    fetched: Floats,
    accesses: Floats,
) -> Floats:
    """Return how many blocks sequential scans read of each relation, in the unit of time of the counters.

    Args:
        relations: the evidence's table.
        scans: sequential scans begun, by each process that takes part; none of an index.
        returned: tuples that they returned.
        fetched: tuples fetched by index and bitmap scans.
        accesses: to blocks, of any kind.
    """
    blocks = main_fork_blocks(relations).astype(np.float64)
    most = np.minimum(scans * blocks, accesses)
    density = relations.get("tuples_per_block")
    # Without tuples per block: a fetched tuple is one access at most, the rest may be scans.
    found = np.minimum(most, np.maximum(accesses - fetched, 0.0))
    if density is not None:
        known = density > 0
        found[known] = np.minimum(most[known], returned[known] / density[known])
    return found


def vacuumed_blocks(
    relations: Mapping[str, NDArray[Any]], *, vacuums: Floats, accesses: Floats, through_rings: float | None
) -> Floats:
    """Return how many blocks VACUUM visits of each relation at most, in the unit of time of the counters.

    It skips runs of 32 pages and more that are all visible (vacuumlazy.c, SKIP_PAGES_THRESHOLD). Indexes it
    reads as a whole, or not at all where few rows are dead (BYPASS_THRESHOLD_PAGES).

    Args:
        relations: the evidence's table.
        vacuums: of each, by hand and by autovacuum.
        accesses: to blocks, of any kind.
        through_rings: what went through VACUUM's rings, by pg_stat_io (from 16 on); None if it is not known.
    """
    most = np.minimum(vacuums * main_fork_blocks(relations), accesses)
    return most if through_rings is None else most * min(through_rings / max(float(most.sum()), 1e-9), 1.0)


def measured_scans(
    scanned: Floats, accesses: Floats, blocks: NDArray[Any], *, pool_blocks: int, through_rings: float | None
) -> Floats:
    """Return what sequential scans read of each relation, such that rings have the accesses measured.

    pg_stat_io counts what goes through rings by itself.

    Args:
        scanned: blocks by sequential scans, as estimated from the relations' counters.
        accesses: of each relation, which bound it.
        blocks: size of each relation.
        pool_blocks: of the pool.
        through_rings: accesses of scans, in the same unit of time; None where they were not measured.
    """
    ringed = blocks > most_blocks_without_ring(pool_blocks)
    expected = float(scanned[ringed].sum())
    if through_rings is None or expected <= 0:
        return scanned
    return np.where(ringed, np.minimum(scanned * through_rings / expected, accesses), scanned)


def loop_absent(scans_per_pass: Floats) -> tuple[Floats, Floats]:
    """Return how often a scan misses a page that nothing else visits, and its share of the time absent.

    A load leaves usage count 1 just behind the hand (bufmgr.c, BufferAlloc), so the hand comes after each
    whole clock pass T: it lowers the count, or takes the buffer at 0 (freelist.c, StrategyGetBuffer). A scan
    after each interval P raises the count. For P <= T it never falls to 0. Else the page goes at the first
    visit of the hand before which there were no more scans, the load among them, than visits. This is visit
    m + 1, where m is P / (P - T) rounded down, and so one of m scans misses. For P >= 2 T each does, and the
    page stays for two passes.
    """
    rates = np.maximum(scans_per_pass, 1e-12)[..., None] * _JITTER
    with np.errstate(divide="ignore"):
        of_scans = np.where(rates < 1, np.floor(1 / np.maximum(1 - rates, 1e-12)), np.inf)
    resident = np.minimum((1 + 1 / of_scans) * np.minimum(rates, 1.0), 1.0)
    return (1 / of_scans).mean(axis=-1), 1 - resident.mean(axis=-1)
