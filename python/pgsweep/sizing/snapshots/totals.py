"""What the counters of a recording of snapshots say over its whole length, and over its halves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.observed import gained, risen
from pgsweep.sizing.snapshots.consistency import NONE_DROPPED, Dropped, Tally, dropped_shares, tally_doubts
from pgsweep.sizing.snapshots.observations import Table
from pgsweep.sizing.snapshots.scan_counts import scanned_blocks, vacuumed_blocks
from pgsweep.sizing.snapshots.temporary import hidden_hits, temporary_hits
from pgsweep.sizing.verdict import Doubt
from pgsweep.units import BLOCK_BYTES

Floats = NDArray[np.float64]

_PARTS, _FEWEST_PARTS = 8, 4

_OWN_SHARE = 0.95
"""From this share of the server's accesses on, pg_stat_io, which has no databases, counts as this one's."""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the counters say over the whole observation.

    Attributes:
        misses: reads of the database, extensions included where the server counts them (before 16).
        relation_misses, relation_accesses: per relation of the evidence, per second.
        relation_scans: sequential scans begun, by each process that takes part, per second.
        relation_scanned_blocks: read by sequential scans, per second.
        relation_growth_blocks: blocks added per second.
        relation_vacuumed_blocks: visited by VACUUM at most, per second.
        relation_vacuums: by hand and by autovacuum, per second.
        temporary_misses: those misses that are of temporary relations, which do not use the pool.
        dropped: what relations did whose counters went with them.
        doubts: where the counters disagree with themselves.
        first_half_accesses, second_half_accesses: of each relation, in blocks.
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
    dropped: Dropped = NONE_DROPPED
    doubts: list[Doubt] = field(default_factory=list)
    first_half_accesses: Floats = field(default_factory=lambda: np.zeros(0))
    second_half_accesses: Floats = field(default_factory=lambda: np.zeros(0))
    was_reset: bool = False
    allocations: float = 0.0
    miss_ratio_error: float = 0.0
    ring_accesses: float | None = None
    relation_vacuumed_blocks: Floats = field(default_factory=lambda: np.zeros(0))
    relation_vacuums: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        """Take it that nothing was vacuumed where nothing else is said."""
        for name in ("relation_vacuumed_blocks", "relation_vacuums"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self.relation_misses)))

    @property
    def accesses(self) -> float:
        """Of the database."""
        return self.hits + self.misses

    @property
    def miss_ratio(self) -> float:
        """Of the database; 0 without an access."""
        return self.misses / self.accesses if self.accesses > 0 else 0.0

    @property
    def scan_share(self) -> float:
        """Share of sequential scans among the accesses."""
        return float(self.relation_scanned_blocks.sum()) / max(self.accesses / self.seconds, 1e-9)


def read_totals(counters: Table, relations: Table, database: str) -> Totals:
    """Reduce the evidence's counters to what happened between the first and the last sample."""
    # The position of the clock hand is read at other times than the server's counters.
    counters = {name: column[counters["scope"] != "pool"] for name, column in counters.items()}
    seconds, sampled, series = _series(counters)
    last = int(sampled.max(initial=0)) if len(sampled) else len(seconds) - 1
    span = float(seconds[-1] - seconds[0]) if len(seconds) > 1 else 0.0
    none = np.zeros(max(len(seconds), 1))
    hits, reads = (series.get(("database", database, name), none) for name in ("blks_hit", "blks_read"))
    total = {"blks_hit": gained(hits[: last + 1]), "blks_read": gained(reads[: last + 1])}
    # While it is recorded, and where it was cut, relations were counted until an earlier time: what the
    # database did later is taken to be of the same relations.
    known = sum(total.values())
    later = (gained(hits) + gained(reads)) / known if known > 0 else 1.0
    _remove_inherited(series, database, len(seconds))
    gains = {key[1:]: gained(values) for key, values in series.items() if key[0] == "relation"}
    oids = [str(int(oid)) for oid in relations["oid"]]
    shares = _file_shares(relations)

    def rates(name: str) -> Floats:
        gained_by = np.array([gains.get((oid, name), 0.0) for oid in oids])
        return gained_by * shares * later / span if span > 0 else np.zeros(len(oids))

    vacuums = with_indexes(rates("vacuum_count") + rates("autovacuum_count"), relations)
    misses, is_table = rates("blks_read"), np.isin(relations["kind"], ["r", "m", "t"])
    # The counter of an index is that of index scans, and they have no ring.
    scans = np.where(is_table, rates("scans"), 0.0)
    accesses = misses + rates("blks_hit")
    scanned = scanned_blocks(
        relations,
        scans=scans,
        returned=rates("tup_returned"),
        fetched=rates("tup_fetched"),
        accesses=accesses,
    )
    # The nearest: around the middle there may be a hole, which is in one half or the other.
    middle = int(np.argmin(np.abs(seconds - (seconds[0] + seconds[-1]) / 2))) if len(seconds) > 2 else 0
    halves = ((0, middle), (middle, len(seconds) - 1))
    ratios = [_ratio(reads, hits, *half) for half in halves]
    half_accesses = [_relation_accesses(series, oids, *half) * shares for half in halves]
    tallies = [
        _tally(kind, {name: total[name] for name in names}, gains, set(oids))
        for kind, names in (("misses", ("blks_read",)), ("accesses", ("blks_read", "blks_hit")))
    ]
    pg_class = {str(oid) for oid in relations["oid"][relations["name"] == "pg_class"]}
    # What a session did last is reported ten seconds later where it is idle (PGSTAT_IDLE_INTERVAL): that it
    # dropped a table may not be counted yet, and that it made it is, with what it accessed.
    changes = ("tup_inserted", "tup_deleted")
    changed = sum(value for (oid, name), value in gains.items() if name in changes and oid in pg_class)
    counted_seconds = float(seconds[last] - seconds[0]) if len(seconds) else 0.0
    allocations = series.get(("bgwriter", "", "buffers_alloc"))
    # Where the table of relations is lost, those that it does not list are not temporary.
    unlisted_hits = tallies[1].temporary - tallies[0].temporary if oids else 0.0
    temporary = temporary_hits(series, database, unlisted_hits)
    return Totals(
        seconds=span,
        hits=gained(hits) - temporary,
        misses=gained(reads),
        relation_misses=misses,
        relation_accesses=accesses,
        relation_scans=scans,
        relation_scanned_blocks=scanned,
        relation_growth_blocks=np.maximum(relations["blocks_end"] - relations["blocks_begin"], 0)
        / max(span, 1e-9),
        first_half_miss_ratio=ratios[0],
        second_half_miss_ratio=ratios[1],
        temporary_misses=tallies[0].temporary,
        dropped=dropped_shares(*tallies, seconds=counted_seconds, changed_relations=changed),
        doubts=[
            *tally_doubts(tallies, seconds=counted_seconds, changed_relations=changed),
            *hidden_hits(temporary, gained(hits) - temporary, span),
        ],
        first_half_accesses=half_accesses[0],
        second_half_accesses=half_accesses[1],
        was_reset=bool((np.diff(reads) < 0).any() or (np.diff(hits) < 0).any()),
        allocations=gained(allocations) / span if allocations is not None and span > 0 else 0.0,
        miss_ratio_error=_ratio_error(seconds, reads, hits),
        ring_accesses=_ring_accesses(series, database, span, "bulkread"),
        relation_vacuumed_blocks=vacuumed_blocks(
            relations,
            vacuums=vacuums,
            accesses=accesses,
            through_rings=_ring_accesses(series, database, span, "vacuum"),
        ),
        relation_vacuums=vacuums,
    )


_Series = dict[tuple[str, str, str], Floats]
"""The values of counters at each sample, by scope, object and name."""


def _series(counters: Table) -> tuple[Floats, NDArray[np.int64], _Series]:
    """Return the times of the samples, the numbers of those of relations, and the values at each.

    A sample lists only what changed since the one before; a counter not in the first sample began at 0.
    """
    seconds = np.unique(counters["seconds"])
    sample = np.searchsorted(seconds, counters["seconds"])
    series: _Series = {}
    keys = zip(counters["scope"], counters["object"], counters["name"], strict=True)
    for at, key, value in zip(sample, keys, counters["value"], strict=True):
        series.setdefault(key, np.zeros(len(seconds)))[at:] = value
    # Relations are sampled less often, so a recording that was cut knows of them up to here.
    return seconds, np.unique(sample[counters["scope"] == "relation"]), series


def _ratio(reads: Floats, hits: Floats, begin: int, end: int) -> float:
    missed, hit = reads[end] - reads[begin], hits[end] - hits[begin]
    return float(missed / (missed + hit)) if missed + hit > 0 else 0.0


def _relation_accesses(series: _Series, oids: list[str], begin: int, end: int) -> Floats:
    """Return the accesses to each relation between two samples."""
    found = np.zeros(len(oids))
    for place, oid in enumerate(oids):
        for name in ("blks_read", "blks_hit"):
            values = series.get(("relation", oid, name))
            if values is not None:
                found[place] += gained(values[begin : end + 1])
    return found


def _file_shares(relations: Table) -> Floats:
    """Return which share of its relation's accesses each row has: one that was rewritten has several files.

    When each was replaced is not known; so those of the beginning and of the end have a part by their size.
    """
    _, which = np.unique(relations["oid"], return_inverse=True)
    sizes = np.maximum(relations["blocks_begin"], relations["blocks_end"]).astype(np.float64)
    sizes = np.where(np.bincount(which, sizes)[which] > 0, sizes, 1.0)
    shares: Floats = sizes / np.bincount(which, sizes)[which]
    return shares


def _tally(
    kind: str, total: dict[str, float], gains: dict[tuple[str, str], float], listed: set[str]
) -> Tally:
    """Return counters of the database, and the same of its relations, those not listed being temporary."""
    found = [(oid in listed, value) for (oid, name), value in gains.items() if name in total]
    return Tally(
        kind=kind,
        database=sum(total.values()),
        relations=sum(value for known, value in found if known),
        temporary=sum(value for known, value in found if not known),
    )


def with_indexes(vacuums: Floats, relations: Table) -> Floats:
    """Return the number of vacuums of each relation: VACUUM of a table reads its indexes as well."""
    of_table = dict(zip(relations["oid"].tolist(), vacuums.tolist(), strict=True))
    indexes = np.array(
        [of_table.get(oid, 0.0) for oid in relations.get("table_oid", relations["oid"]).tolist()]
    )
    return np.where(np.asarray(relations["kind"]) == "i", indexes, vacuums)


def _ring_accesses(series: _Series, database: str, span: float, context: str) -> float | None:
    """Return blocks per second through rings of a context, if nearly all are of this database."""
    known = any(scope == "io" and name == "hits" for scope, _, name in series)
    of_all = of_this = found = 0.0
    for (scope, what, name), values in series.items():
        if scope == "database" and name in {"blks_hit", "blks_read"}:
            of_all += gained(values)
            of_this += gained(values) if what == database else 0.0
        elif scope == "io" and what.endswith(f"/relation/{context}"):
            found += gained(values) if name == "hits" else 0.0
            found += gained(values) / BLOCK_BYTES if name == "read_bytes" else 0.0
    if not known or span <= 0 or of_this < _OWN_SHARE * of_all:
        return None
    return found / span


def _remove_inherited(series: _Series, database: str, samples: int) -> None:
    """Take from the counters of relations what those of others were before.

    A relation that is first seen in a later sample began at 0, except an index that was rebuilt concurrently:
    it takes over the counters of its predecessor (index.c, index_concurrently_swap). So all relations that
    are new in a sample together get no more than what the others leave of the database's accesses so far.

    Args:
        series: is changed.
        database: whose counters bound those of its relations.
        samples: their number.
    """
    blocks = {"blks_read", "blks_hit"}
    of_relations: dict[str, dict[str, Floats]] = {}
    for (scope, oid, name), values in series.items():
        if scope == "relation":
            of_relations.setdefault(oid, {})[name] = values
    new: dict[int, list[dict[str, Floats]]] = {}
    for counters in of_relations.values():
        first = min((int(np.argmax(values > 0)) for values in counters.values() if values.any()), default=0)
        if first > 0:
            new.setdefault(first, []).append(counters)
    if not new:
        return
    none = np.zeros(samples)
    accesses = sum((risen(series.get(("database", database, name), none)) for name in blocks), none)
    counted = sum(
        (
            risen(values)
            for counters in of_relations.values()
            for name, values in counters.items()
            if name in blocks
        ),
        none,
    )
    for first, made in sorted(new.items()):
        begun = sum(counters[name][first] for counters in made for name in blocks & counters.keys())
        left = max(float(accesses[first] - counted[first]) + begun, 0.0)
        if begun <= left:
            continue
        counted[first:] -= begun - left
        for counters in made:
            for values in counters.values():
                values[first:] = np.maximum(values[first:] - values[first] * (1 - left / begun), 0.0)


def _ratio_error(seconds: Floats, reads: Floats, hits: Floats) -> float:
    """Return the standard error of misses / accesses, from parts of the observation of equal length."""
    parts = min(_PARTS, len(seconds) // 2)
    if parts < _FEWEST_PARTS:
        return 0.0
    edges = np.searchsorted(seconds, np.linspace(seconds[0], seconds[-1], parts + 1))
    missed, hit = np.diff(reads[edges]), np.diff(hits[edges])
    accesses = missed + hit
    total = float(accesses.sum())
    if total <= 0:
        return 0.0
    # Of a ratio of sums: by what the misses of each part differ from those expected from its accesses.
    rest = missed - accesses * float(missed.sum()) / total
    return float(np.sqrt((rest**2).sum() * parts / (parts - 1))) / total
