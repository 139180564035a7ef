"""What the counters of a recording of snapshots say over its whole length, and over its halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pgsweep.evidence.temporary import temporary_hits
from pgsweep.sizing.inference.consistency import Tally, doubts
from pgsweep.sizing.inference.estimate import Doubt
from pgsweep.sizing.inference.observations import Table
from pgsweep.sizing.inference.scan_counts import by_rings, scanned_blocks
from pgsweep.units import BLOCK_BYTES

if TYPE_CHECKING:
    from pgsweep.evidence.exported import TraceTables
    from pgsweep.evidence.schema import EvidenceMeta

Floats = NDArray[np.float64]
Rate = Callable[[str, str, str], float | None]
"""Returns the growth per second of a counter, by scope, object and name; None where it is not there."""

_PARTS = 8

_NOT_REPORTED = ("host", "pool")
"""Scopes of counters that the recorder reads itself."""

_MOST_DELAY_SECONDS = 1.5
"""Most seconds by which the statistics lag at one end of a recording."""

_OWN_SHARE = 0.95
"""From this share of the server's accesses on, pg_stat_io, which has no databases, counts as this one's."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the counters say over the whole observation.

    Attributes:
        misses: reads of the database, extensions included where the server counts them (before 16).
        relation_misses: per relation of the evidence, per second.
        relation_accesses: likewise.
        relation_scans: sequential scans begun, by each process that takes part, per second.
        relation_scanned_blocks: read by sequential scans, per second.
        relation_growth_blocks: blocks added per second.
        temporary_misses: those misses that are of temporary relations, which do not use the pool.
        doubts: where the counters disagree with themselves.
        first_half_accesses: of each relation, in blocks.
        second_half_accesses: likewise.
        was_reset: the statistics were reset meanwhile.
        allocations: buffers that were taken for a page, rings' own left out, of all databases, per second; 0
            where the counter is not known.
        miss_ratio_error: standard error of the miss ratio, from its variation over the observation.
        ring_accesses: by sequential scans through rings, per second, as pg_stat_io has them (from 16 on);
            None if it is not known, or if other databases have a part in them.
    """

    seconds: float
    hits: float
    misses: float
    relation_misses: Floats
    relation_accesses: Floats
    relation_scans: Floats
    relation_scanned_blocks: Floats
    relation_growth_blocks: Floats
    first_half_miss_ratio: float
    second_half_miss_ratio: float
    temporary_misses: float = 0.0
    doubts: list[Doubt] = field(default_factory=list)
    first_half_accesses: Floats = field(default_factory=lambda: np.zeros(0))
    second_half_accesses: Floats = field(default_factory=lambda: np.zeros(0))
    was_reset: bool = False
    allocations: float = 0.0
    miss_ratio_error: float = 0.0
    ring_accesses: float | None = None


def read_totals(counters: Table, relations: Table, database: str) -> Totals:
    """Reduce the evidence's counters to what happened between the first and the last sample.

    A sample lists only what changed since the one before; a counter not in the first sample began at 0.
    """
    # The position of the clock hand is read at other times than the server's counters.
    counters = {name: column[counters["scope"] != "pool"] for name, column in counters.items()}
    seconds = np.unique(counters["seconds"])
    span = float(seconds[-1] - seconds[0]) if len(seconds) > 1 else 0.0
    sample = np.searchsorted(seconds, counters["seconds"])
    series: dict[tuple[str, str, str], Floats] = {}
    keys = zip(counters["scope"], counters["object"], counters["name"], strict=True)
    for at, key, value in zip(sample, keys, counters["value"], strict=True):
        series.setdefault(key, np.zeros(len(seconds)))[at:] = value

    def of_database(name: str) -> Floats:
        return series.get(("database", database, name), np.zeros(max(len(seconds), 1)))

    hits, reads = of_database("blks_hit"), of_database("blks_read")

    def ratio(begin: int, end: int) -> float:
        missed, hit = reads[end] - reads[begin], hits[end] - hits[begin]
        return float(missed / (missed + hit)) if missed + hit > 0 else 0.0

    middle = int(np.searchsorted(seconds, (seconds[0] + seconds[-1]) / 2)) if len(seconds) > 2 else 0
    # Relations are sampled less often, so a recording that was cut knows of them up to here.
    of_relations = sample[counters["scope"] == "relation"]
    last = int(of_relations.max(initial=0)) or len(seconds) - 1
    total = {"blks_hit": gained(hits[: last + 1]), "blks_read": gained(reads[: last + 1])}
    gains = _relations_gained(series, last, sum(total.values()))

    def rate(oid: int, name: str) -> float:
        return gains.get((str(oid), name), 0.0) / span if span > 0 else 0.0

    def accesses_between(begin: int, end: int) -> Floats:
        found = np.zeros(len(relations["oid"]))
        for place, oid in enumerate(relations["oid"]):
            for name in ("blks_read", "blks_hit"):
                values = series.get(("relation", str(int(oid)), name))
                if values is not None:
                    found[place] += max(float(values[end] - values[begin]), 0.0)
        return found

    oids = [int(o) for o in relations["oid"]]
    listed = {str(o) for o in oids}

    def tally(kind: str, *names: str) -> Tally:
        found = [(oid in listed, value) for (oid, name), value in gains.items() if name in names]
        return Tally(
            kind=kind,
            database=sum(total[name] for name in names),
            relations=sum(value for known, value in found if known),
            temporary=sum(value for known, value in found if not known),
        )

    tallies = [tally("misses", "blks_read"), tally("accesses", "blks_read", "blks_hit")]
    pg_class = {str(o) for o in relations["oid"][relations["name"] == "pg_class"]}
    dropped = sum(value for (oid, name), value in gains.items() if name == "tup_deleted" and oid in pg_class)
    misses = np.array([rate(o, "blks_read") for o in oids])
    accesses = misses + np.array([rate(o, "blks_hit") for o in oids])
    scans = np.array([rate(o, "scans") for o in oids])
    scanned = scanned_blocks(
        relations,
        scans=scans,
        returned=np.array([rate(o, "tup_returned") for o in oids]),
        fetched=np.array([rate(o, "tup_fetched") for o in oids]),
        accesses=accesses,
    )
    allocations = series.get(("bgwriter", "", "buffers_alloc"))
    growth = np.maximum(relations["blocks_end"] - relations["blocks_begin"], 0) / max(span, 1e-9)
    return Totals(
        seconds=span,
        hits=gained(hits) - temporary_hits(series, database, tallies[1].temporary - tallies[0].temporary),
        misses=gained(reads),
        relation_misses=misses,
        relation_accesses=accesses,
        relation_scans=scans,
        relation_scanned_blocks=scanned,
        relation_growth_blocks=growth,
        first_half_miss_ratio=ratio(0, middle),
        second_half_miss_ratio=ratio(middle, -1),
        temporary_misses=tallies[0].temporary,
        doubts=doubts(
            tallies,
            seconds=float(seconds[last] - seconds[0]) if len(seconds) else 0.0,
            dropped_relations=dropped,
        ),
        first_half_accesses=accesses_between(0, middle),
        second_half_accesses=accesses_between(middle, -1),
        was_reset=bool((np.diff(reads) < 0).any() or (np.diff(hits) < 0).any()),
        allocations=gained(allocations) / span if allocations is not None and span > 0 else 0.0,
        miss_ratio_error=_ratio_error(seconds, reads, hits),
        ring_accesses=_ring_accesses(series, database, span),
    )


def _ring_accesses(series: dict[tuple[str, str, str], Floats], database: str, span: float) -> float | None:
    """Return blocks per second through rings of sequential scans, if nearly all are of this database."""
    known = any(scope == "io" and name == "hits" for scope, _, name in series)
    of_all = of_this = found = 0.0
    for (scope, what, name), values in series.items():
        if scope == "database" and name in {"blks_hit", "blks_read"}:
            of_all += gained(values)
            of_this += gained(values) if what == database else 0.0
        elif scope == "io" and what.endswith("/relation/bulkread"):
            found += gained(values) if name == "hits" else 0.0
            found += gained(values) / BLOCK_BYTES if name == "read_bytes" else 0.0
    if not known or span <= 0 or of_this < _OWN_SHARE * of_all:
        return None
    return found / span


def series_of(counters: Table, scope: str, named: str, name: str) -> Floats:
    """Return the values of one counter, from the first sample of its scope on; none where it is not there.

    A counter that is not in the first sample was 0 there.
    """
    kind = counters["scope"] == scope
    rows = np.flatnonzero(kind & (counters["object"] == named) & (counters["name"] == name))
    values = counters["value"][rows].astype(np.float64)
    if len(rows) and counters["seconds"][rows[0]] > counters["seconds"][kind].min():
        return np.concatenate([np.zeros(1), values])
    return values


def gained(values: Floats) -> float:
    """Return by how much a counter rose in all, also where it was reset or its object dropped meanwhile.

    What was counted between the last sample and the reset is not in it.
    """
    rises = np.diff(values)
    return float(np.where(rises < 0, values[1:], rises).sum())


def rates_of(evidence: TraceTables) -> Rate:
    """Return what gives the growth per second of a counter of a recording; None where it is not there."""
    counters = evidence.table("counters")
    return counter_rates(counters, statistics_factor(evidence.meta, counters))


def statistics_factor(meta: EvidenceMeta, counters: Table) -> float:
    """Return how many times as much happened in a second as the server's statistics say; 1 where not known.

    Sessions report what they did once a second (src/backend/utils/activity/pgstat.c, PGSTAT_MIN_INTERVAL),
    each at times of its own. So up to a second of what each did before a recording is counted in it, and as
    much is not counted at its end: of eight seconds with four sessions 2 to 8%. A trace has seen all accesses
    at their time. What else a session did is reported together with them.
    """
    counted = counter_rates(counters)
    names = ("blks_hit", "blks_read")
    accesses = sum(counted("database", meta.database, name) or 0.0 for name in names)
    if accesses <= 0 or not 0 < meta.accesses_per_second < math.inf:
        return 1.0
    factor = meta.accesses_per_second / accesses
    # More than that is no delay: then the trace and the statistics are not of the same accesses.
    return factor if abs(factor - 1) * max(meta.seconds, 1.0) <= _MOST_DELAY_SECONDS else 1.0


def counter_rates(counters: Table, factor: float = 1.0) -> Rate:
    """Return what gives the growth per second of a counter; None where it is not there.

    Args:
        counters: of a recording.
        factor: by which the rates of the server's statistics are multiplied (`statistics_factor`).
    """

    def rate(scope: str, named: str, name: str) -> float | None:
        values = series_of(counters, scope, named, name)
        if not len(values):
            return None
        seconds = counters["seconds"][counters["scope"] == scope]
        span = float(seconds.max() - seconds.min())
        # What is read of the host is no counter that is reset, but a sum over processes, of which some end.
        grown = float(values[-1] - values[0]) if scope == "host" else gained(values)
        if span <= 0 or grown < 0:
            return None
        return grown / span * (1.0 if scope in _NOT_REPORTED else factor)

    return rate


def _relations_gained(
    series: dict[tuple[str, str, str], Floats], last: int, accesses: float
) -> dict[tuple[str, str], float]:
    """Return by how much each counter of a relation rose, by oid and name.

    A relation first seen in the last sample began at 0, except an index that was rebuilt concurrently: it
    takes over the counters of its predecessor (index.c, index_concurrently_swap). So all such relations
    together get no more than what the others leave of the database's accesses.

    Args:
        last: number of the last sample of relations.
        accesses: of the database up to there.
    """
    wanted = {"blks_read", "blks_hit", "scans", "tup_deleted", "tup_returned", "tup_fetched"}
    of_relations = {key[1:]: values for key, values in series.items() if key[0] == "relation"}
    gains = {key: gained(values) for key, values in of_relations.items() if key[1] in wanted}
    first: dict[str, int] = {}
    for (oid, _), values in of_relations.items():
        seen = int(np.argmax(values > 0)) if values[last] > 0 else 0
        first[oid] = min(first.get(oid, last), seen)
    new = {oid for oid, at in first.items() if at == last > 0}
    blocks = {key: value for key, value in gains.items() if key[1] in {"blks_read", "blks_hit"}}
    of_new = sum(value for (oid, _), value in blocks.items() if oid in new)
    left = max(accesses - sum(value for (oid, _), value in blocks.items() if oid not in new), 0.0)
    if of_new > left:
        share = left / of_new
        gains.update({key: value * share for key, value in gains.items() if key[0] in new})
    return gains


def _ratio_error(seconds: Floats, reads: Floats, hits: Floats) -> float:
    """Return the standard error of misses / accesses, from parts of the observation of equal length."""
    if len(seconds) < 2 * _PARTS:
        return 0.0
    edges = np.searchsorted(seconds, np.linspace(seconds[0], seconds[-1], _PARTS + 1))
    missed, hit = np.diff(reads[edges]), np.diff(hits[edges])
    accesses = missed + hit
    total = float(accesses.sum())
    if total <= 0:
        return 0.0
    # Of a ratio of sums: by what the misses of each part differ from those expected from its accesses.
    rest = missed - accesses * float(missed.sum()) / total
    return float(np.sqrt((rest**2).sum() * _PARTS / (_PARTS - 1))) / total


def with_rings(totals: Totals, relations: Table, pool_blocks: int) -> Totals:
    """Return totals whose scans through rings are those that pg_stat_io measured, where it did."""
    if totals.ring_accesses is None:
        return totals
    scanned = by_rings(
        totals.relation_scanned_blocks,
        totals.relation_accesses,
        np.maximum(relations["blocks_begin"], relations["blocks_end"]).astype(np.float64),
        pool_blocks=pool_blocks,
        measured=totals.ring_accesses,
    )
    return replace(totals, relation_scanned_blocks=scanned)
