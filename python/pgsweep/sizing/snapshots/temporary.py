"""Hits of temporary tables: a database counts them with its own, but they are no accesses of shared_buffers.

From 16 on pg_stat_io has them, for the whole server: they are the observed database's where nearly all
accesses are. Otherwise those of the temporary relations are known that were there when counters were read.
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
    own = everybody = temporary = 0.0
    known = False
    for (scope, what, name), values in series.items():
        if scope == "database" and name in {"blks_hit", "blks_read"}:
            everybody += gained(values)
            own += gained(values) if what == database else 0.0
        elif scope == "io" and "/temp relation/" in what and name == "hits":
            known, temporary = True, temporary + gained(values)
    hits = series.get(("database", database, "blks_hit"))
    least = temporary if known and own >= _OWN_SHARE * everybody else 0.0
    return min(max(least, of_relations), 0.0 if hits is None else gained(hits))
