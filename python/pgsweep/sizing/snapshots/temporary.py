"""Hits of temporary tables: a database counts them with its own, but they are no accesses of shared_buffers.

From 16 on pg_stat_io has them, for the whole server: they are the observed database's where nearly all
accesses are. Otherwise those of the temporary relations are known that were there when counters were read.

A database counts what its relations report, and one that is dropped in the transaction that made it reports
nothing (pgstat_drop_entry): a table of ON COMMIT DROP, the copy of REFRESH MATERIALIZED VIEW CONCURRENTLY.
So no more of its hits are temporary than pg_stat_io leaves of them to shared_buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.records import reasons
from pgsweep.sizing.observed import gained
from pgsweep.sizing.snapshots.consistency import REPORT_SECONDS
from pgsweep.sizing.verdict import REFUSED, Doubt

_OWN_SHARE: Final = 0.95


def hidden_hits(temporary: float, hits: float, seconds: float) -> list[Doubt]:
    """Return whether the hits of shared_buffers are known: all hits less those of temporary relations.

    Both are reported together, but read by two statements, and of a report a part may come with the next. So
    they may be a report apart.

    Args:
        temporary: hits of temporary relations.
        hits: of shared_buffers, which are all others.
        seconds: how long both were counted.
    """
    late = temporary * REPORT_SECONDS / max(seconds, REPORT_SECONDS)
    return [Doubt(REFUSED, reasons.temporary_hide_hits(temporary, hits))] if late > hits else []


def temporary_hits(
    series: Mapping[tuple[str, str, str], NDArray[np.float64]], database: str, of_relations: float
) -> float:
    """Return hits in temporary tables, no more than the database has.

    Args:
        series: the values of each counter, by scope, object and name.
        database: the observed one.
        of_relations: hits of the temporary relations that were there when counters were read.
    """
    own = everybody = own_hits = other_hits = temporary = shared = 0.0
    for (scope, what, name), values in series.items():
        if scope == "database" and name in {"blks_hit", "blks_read"}:
            count = gained(values)
            hits = count if name == "blks_hit" else 0.0
            everybody += count
            if what == database:
                own, own_hits = own + count, own_hits + hits
            else:
                other_hits += hits
        elif scope == "io" and name == "hits":
            if "/temp relation/" in what:
                temporary += gained(values)
            else:
                shared += gained(values)
    left = own_hits - max(shared - other_hits, 0.0)
    least = min(temporary, left) if own >= _OWN_SHARE * everybody else 0.0
    return min(max(least, of_relations), own_hits)
