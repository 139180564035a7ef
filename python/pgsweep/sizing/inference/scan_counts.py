"""Sequential scans: how many blocks they read, and what a pool makes of pages that come round and round.

The counter of sequential scans counts every process that takes part (heapam.c, initscan), three for one
statement with two workers, and a scan may end early. So scans are measured by what they returned: tuples
over tuples per block, and never more than the relation's accesses.

A scan of a relation larger than a quarter of the pool goes through a ring (heapam.c, initscan). The pages of
a smaller one are visited together, at intervals, not at random: with the interval shorter than a clock pass
they stay, and with the interval twice as long they are gone each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_JITTER: Floats = np.geomspace(0.8, 1.25, 7)
"""Nobody scans by the clock: the law of a loop is averaged over intervals around the mean."""


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
        scans: sequential scans begun, by each process that takes part.
        returned: tuples that they returned.
        fetched: tuples fetched by index and bitmap scans.
        accesses: to blocks, of any kind.
    """
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"]).astype(np.float64)
    most = np.minimum(scans * blocks, accesses)
    density = relations.get("tuples_per_block")
    # Without tuples per block: a fetched tuple is one access at most, the rest may be scans.
    found = np.minimum(most, np.maximum(accesses - fetched, 0.0))
    if density is not None:
        known = density > 0
        found[known] = np.minimum(most[known], returned[known] / density[known])
    is_table = np.isin(relations["kind"], ["r", "m", "t"])
    return np.where(is_table, found, 0.0)


def by_rings(
    scanned: Floats, accesses: Floats, blocks: Floats, *, pool_blocks: int, measured: float
) -> Floats:
    """Return what sequential scans read of each relation, such that rings have the accesses measured.

    A relation larger than a quarter of the pool is scanned through a ring, and pg_stat_io counts what goes
    through rings by itself.

    Args:
        scanned: blocks by sequential scans, as the relations' counters let expect.
        accesses: of each relation, which bound it.
        blocks: size of each relation.
        measured: accesses through rings of scans, in the same unit of time.
    """
    ringed = blocks > pool_blocks / 4
    expected = float(scanned[ringed].sum())
    if expected <= 0:
        return scanned
    return np.where(ringed, np.minimum(scanned * measured / expected, accesses), scanned)


def loop_absent(scans_per_pass: Floats) -> tuple[Floats, Floats]:
    """Return how often a scan misses a page that nothing else visits, and its share of the time absent.

    A load leaves the usage count at 1, a clock pass lowers it or evicts, a scan raises it. Where P is the
    interval between scans and T the time of a clock pass: for P <= T the count never falls. For T < P < 2 T
    one or two passes come between two scans, and two evict. For P >= 2 T every scan misses; the page then
    stays for one and a half passes.
    """
    rates = np.maximum(scans_per_pass, 1e-12)[..., None] * _JITTER
    interval = 1 / rates
    hit = np.clip(2 - interval, 0.0, 1.0)
    short = hit + (1 - hit) * np.minimum((1 + rates) / 2, 1.0)
    resident = np.where(rates >= 1, 1.0, np.where(rates > 0.5, short, 1.5 * rates))
    return 1 - hit.mean(axis=-1), 1 - resident.mean(axis=-1)
