"""Check that a server's counters agree with each other, before a prediction uses them.

The database's counters are the sum over its relations: whenever a session reports a relation's counters, it
adds the same numbers to those of the relation's database (pgstat_relation.c, pgstat_relation_flush_cb; before
15 pgstat.c, pgstat_recv_tabstat). So a difference has one of these reasons:

- Shared catalogs are counted for no database. Their relations are not in the sum either.
- Temporary relations are the database's, but lie outside shared_buffers. A recording reads them too.
- A relation created meanwhile is read from the next reading of the catalog on (evidence/relations.py), with
  all that was counted since its creation. A dropped one takes its counters with it: what was counted since
  the last sample is missing, and all of it for one created and dropped between two readings.
- The parts of one report may arrive apart where others hold a lock, up to the next report.
- The counter does not mean what is assumed. From 20 on, for one, the functions for tables return 0 for an
  index (72a6dad1c9), which looks like an index that nobody uses. No version is asked for here, so that the
  next such change is noticed as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

from pgsweep.records import reasons
from pgsweep.records.prediction import Level
from pgsweep.sizing.verdict import MISSES_OF_ACCESSES, Doubt

REPORT_SECONDS: Final = 1.0
"""The shortest time between two reports of a session (pgstat.c, PGSTAT_MIN_INTERVAL)."""

_NOISE_RATIO: Final = 0.03
_NOISE_BLOCKS: Final = 100.0
_DROPPED_RATIO: Final = 0.25
"""Where relations that were dropped took more of a database's counters, too little is known of its load."""
_WORTH_SAYING_RATIO: Final = 0.03


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Events of one kind, counted in two ways over the same time.

    Attributes:
        kind: in the plural, for sentences.
        database: as the counter of the database has them.
        relations: the sum over its relations.
        temporary: the sum over its temporary relations.
    """

    kind: str
    database: float
    relations: float
    temporary: float


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """What relations did that were dropped, and took their counters with them, as shares of all accesses."""

    misses: float
    hits: float


NONE_DROPPED: Final = Dropped(misses=0.0, hits=0.0)


def dropped_shares(misses: Tally, accesses: Tally, *, seconds: float, changed_relations: float) -> Dropped:
    """Return what relations that were dropped did; nothing where it may be chance.

    Args:
        misses, accesses, seconds, changed_relations: as of `tally_doubts`.
    """
    if changed_relations <= 0:
        return NONE_DROPPED
    counts = ((_missing(tally), _noise(tally, seconds)) for tally in (misses, accesses))
    missed, accessed = (missing if missing > noise else 0.0 for missing, noise in counts)
    of_all = max(accesses.database, 1.0)
    return Dropped(misses=missed / of_all, hits=max(accessed - missed, 0.0) / of_all)


def tally_doubts(tallies: list[Tally], *, seconds: float, changed_relations: float) -> list[Doubt]:
    """Return what does not agree, or is to be known about it.

    Args:
        tallies: of the same observation.
        seconds: how long was counted.
        changed_relations: how many relations were made and dropped meanwhile, temporary ones too.
    """
    wrong = [tally for tally in tallies if abs(_missing(tally)) > _noise(tally, seconds)]
    grave = [tally for tally in wrong if changed_relations <= 0 or _missing(tally) < 0]
    found = []
    if grave:
        found.append(Doubt("refused", reasons.counters_contradict(_counts(grave))))
    elif wrong:
        many = any(_missing(t) > _noise(t, seconds) + _DROPPED_RATIO * t.database for t in wrong)
        reason = reasons.counters_of_dropped(_counts(wrong), changed_relations)
        missed = max((_missing(t) for t in wrong if t.kind == "misses"), default=0.0)
        matters = MISSES_OF_ACCESSES.level(missed / max(t.database for t in tallies)) is not None
        level: Level = "refused" if many else "rough" if matters else "reliable"
        found.append(Doubt(level, reason))
    for tally in tallies:
        if not wrong and tally.temporary > _WORTH_SAYING_RATIO * tally.database > 0:
            share = tally.temporary / tally.database
            found.append(Doubt("reliable", reasons.temporary_relations(share, tally.kind)))
    return found


def _missing(tally: Tally) -> float:
    return tally.database - tally.relations - tally.temporary


def _noise(tally: Tally, seconds: float) -> float:
    most = max(tally.database, tally.relations + tally.temporary)
    late = most * REPORT_SECONDS / max(seconds, REPORT_SECONDS)
    return _NOISE_RATIO * most + late + 4 * sqrt(most) + _NOISE_BLOCKS


def _counts(tallies: list[Tally]) -> list[tuple[str, float, float]]:
    return [(tally.kind, tally.relations + tally.temporary, tally.database) for tally in tallies]
