"""A curve from snapshots of the pool: sightings, rates, curve, with intervals and a verdict.

Snapshots of one residence tell the same thing twice: a page loaded once is seen as long as it lies there,
and would be taken for a warm one. So the snapshots are dealt out in turn to subsets whose members lie
several laps apart, each subset is fitted alone, and the fits are averaged. Where the clock hand was seen, the
likelihood of whole paths is taken instead (paths.py), which needs no such care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.inference.consistency import Tally, doubts
from pgsweep.inference.curve import Curve, Flow
from pgsweep.inference.estimate import STATISTICS_RESET, Doubt, Estimate, judged
from pgsweep.inference.hand import follow_hand
from pgsweep.inference.parallel import map_in_threads
from pgsweep.inference.paths import loaded_batch, path_likelihoods
from pgsweep.inference.rates import (
    GRID,
    SINGLE,
    Rates,
    fit_batch,
    fit_rates,
    fit_weights,
    likelihoods,
    resample,
    temper,
)
from pgsweep.inference.scan_counts import scanned_blocks
from pgsweep.inference.self_consistency import Part, part_doubts, shift_doubts, stranger_doubts, today_doubts
from pgsweep.inference.sightings import Group, Sightings, Table, gather, page_numbers

Floats = NDArray[np.float64]

LAPS_APART = 7.0
"""Snapshots of one subset lie at least this many laps apart, where enough of them remain."""

_LEAST_SNAPSHOTS = 4
_PASSES_OF_PATHS, _PASSES_OF_STATES = (1.0, 12.0), (15.0, 45.0)
"""Clock passes below which nothing is predicted, and below which a prediction is rough. The states of
snapshots are taken for independent, which takes many passes; paths are followed where the hand is known."""

_SHORT_PATHS, _SHORT_STATES = 0.06, 16.0
"""Error of the miss ratio for each doubling of the size in a recording of one clock pass, from simulated
recordings; it falls with the number of passes, and where only states are seen with its square."""

_MANY_SCANS = 0.1
_SETTLED_SECONDS = 120.0

_FEWEST_SNAPSHOTS = 10
_MOST_SNAPSHOTS = 1000
_REPLICATES = 40
_PARTS = 8
_SAME_BATCH = 0.01
_OWN_GROUP_SHARE = 0.002
_CONFIDENCE = 0.90

MODEL_ERROR_RATIO = 0.002
MODEL_ERROR_PER_OCTAVE_DOWN = 0.004
MODEL_ERROR_PER_OCTAVE_UP = 0.002
MODEL_ERROR_OF_SCANS = 0.08
"""What the model itself adds to the interval, in miss ratio: found by comparing predictions with measured
truth on workloads outside the package (docs/concepts/prediction.md)."""


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


def read_totals(counters: Table, relations: Table, database: str) -> Totals:
    """Reduce the evidence's counters to what happened between the first and the last sample.

    A sample lists only what changed since the one before; a counter not in the first sample began at 0.
    """
    # Where the clock hand stands is told at other moments than the server's counters.
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
    total = {"blks_hit": _gained(hits[: last + 1]), "blks_read": _gained(reads[: last + 1])}
    gained = _relations_gained(series, last, sum(total.values()))

    def rate(oid: int, name: str) -> float:
        return gained.get((str(oid), name), 0.0) / span if span > 0 else 0.0

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
        found = [(oid in listed, value) for (oid, name), value in gained.items() if name in names]
        return Tally(
            kind=kind,
            database=sum(total[name] for name in names),
            relations=sum(value for known, value in found if known),
            temporary=sum(value for known, value in found if not known),
        )

    tallies = [tally("misses", "blks_read"), tally("accesses", "blks_read", "blks_hit")]
    pg_class = {str(o) for o in relations["oid"][relations["name"] == "pg_class"]}
    dropped = sum(value for (oid, name), value in gained.items() if name == "tup_deleted" and oid in pg_class)
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
        hits=_gained(hits),
        misses=_gained(reads),
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
        allocations=_gained(allocations) / span if allocations is not None and span > 0 else 0.0,
        miss_ratio_error=_ratio_error(seconds, reads, hits),
    )


def _gained(values: Floats) -> float:
    """Return by how much a counter rose in all, also where it was reset or its object dropped meanwhile."""
    rises = np.diff(values)
    return float(np.where(rises < 0, values[1:], rises).sum())


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
    gained = {key: _gained(values) for key, values in of_relations.items() if key[1] in wanted}
    first: dict[str, int] = {}
    for (oid, _), values in of_relations.items():
        seen = int(np.argmax(values > 0)) if values[last] > 0 else 0
        first[oid] = min(first.get(oid, last), seen)
    new = {oid for oid, at in first.items() if at == last > 0}
    blocks = {key: value for key, value in gained.items() if key[1] in {"blks_read", "blks_hit"}}
    of_new = sum(value for (oid, _), value in blocks.items() if oid in new)
    left = max(accesses - sum(value for (oid, _), value in blocks.items() if oid not in new), 0.0)
    if of_new > left:
        share = left / of_new
        gained.update({key: value * share for key, value in gained.items() if key[0] in new})
    return gained


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
    # Of a ratio of sums: by what the misses of each part differ from what its accesses let expect.
    rest = missed - accesses * float(missed.sum()) / total
    return float(np.sqrt((rest**2).sum() * _PARTS / (_PARTS - 1))) / total


def estimate(
    snapshots: Table,
    relations: Table,
    totals: Totals,
    *,
    database_oid: int,
    server_version_num: int,
    pool_blocks: int,
    sizes_blocks: Sequence[int],
    sampling_rate: float = 1.0,
    hand_frames: NDArray[np.int64] | None = None,
    rules: _native.Rules | None = None,
    seed: int = 0,
) -> Estimate:
    """Predict the miss ratio of the database at each size from snapshots of a pool of `pool_blocks`.

    Args:
        rules: the server's; those of its version with the usual settings by default.
        hand_frames: by number of the snapshot, how many buffers the clock hand had passed, where it was seen.

    Raises:
        ValueError: no snapshot, or not a single access or miss was counted.
    """
    if totals.hits + totals.misses <= 0 or not len(snapshots["snapshot"]):
        raise ValueError("nothing was observed")
    rules = rules or _native.Rules(min(max(server_version_num // 10000, 12), 20))
    accesses_per_second = (totals.hits + totals.misses) / totals.seconds
    share = np.maximum(
        totals.relation_accesses / max(totals.relation_accesses.sum(), 1e-9),
        totals.relation_misses / max(totals.relation_misses.sum(), 1e-9),
    )
    important = (share > _OWN_GROUP_SHARE) & (relations["db"] == database_oid)
    if hand_frames is None or not len(hand_frames):
        hand_frames = follow_hand(snapshots, page_numbers(snapshots, relations), pool_blocks)
    seen = gather(
        snapshots,
        relations,
        database_oid,
        important,
        sampling_rate,
        hand_frames=np.zeros(0, np.int64) if hand_frames is None else hand_frames,
        pool_frames=pool_blocks,
    )
    flows = [_flow(group, relations, totals, server_version_num, sampling_rate) for group in seen.groups]
    pool = round(pool_blocks * sampling_rate)
    loads = _loads(totals, flows, pool, sampling_rate, server_version_num)

    rough = [_rough(seen, g) for g in range(len(seen.groups))]
    lap_seconds = sum(r.loads_per_lap() for r in rough) / max(loads, 1e-9)
    apart_laps = _apart_laps(seen, totals.seconds / max(lap_seconds, 1e-9))
    step = int(np.clip(np.ceil(LAPS_APART / apart_laps), 1, max(seen.snapshots // _FEWEST_SNAPSHOTS, 1)))
    step = max(step, -(-seen.snapshots // _MOST_SNAPSHOTS))
    subsets = [np.arange(offset, seen.snapshots, step) for offset in range(step)]

    by_paths = len(seen.hand_frames) > 0
    groups = range(len(seen.groups))
    batches = map_in_threads(_batch, repeat(seen), groups, repeat(subsets[0]), repeat(seed))
    fit: Callable[[Sightings, int, NDArray[np.int64], Floats], _Fit] = _fit_states
    if by_paths:
        step, subsets = 1, [np.arange(seen.snapshots)]
        fit = partial(_fit_paths, seed=seed)
    fits = [map_in_threads(fit, repeat(seen), groups, repeat(subset), batches) for subset in subsets]
    rates = [
        Rates(
            batch=np.asarray(np.mean([fit[g].rates.batch for fit in fits], axis=0)),
            hot_batch=np.asarray(np.mean([fit[g].rates.batch for fit in fits], axis=0)),
            pages=np.asarray(np.mean([fit[g].rates.pages for fit in fits], axis=0)),
        )
        for g in range(len(seen.groups))
    ]
    lap_seconds = sum(r.loads_per_lap() for r in rates) / max(loads, 1e-9)
    rates = [
        temper(r, float(totals.relation_accesses[list(g.relations)].sum()) * sampling_rate * lap_seconds)
        if g.relations
        else r
        for g, r in zip(seen.groups, rates, strict=True)
    ]
    lap_seconds = sum(r.loads_per_lap() for r in rates) / max(loads, 1e-9)
    # Counters of relations miss what was dropped and lag behind those of the database: make the sums agree.
    # A difference that such reasons do not explain is among the doubts.
    counted = sum(f.misses for f in flows) / sampling_rate
    agree = (totals.misses - totals.temporary_misses) / totals.seconds / counted if counted > 0 else 0.0
    elsewhere = totals.temporary_misses / (totals.hits + totals.misses)

    def ratios(curve: Curve, pages: list[Floats]) -> Floats:
        return np.minimum(raw(curve, pages, sizes_blocks), 1.0)

    def raw(curve: Curve, pages: list[Floats], sizes: Sequence[int]) -> Floats:
        scaled = [curve.miss_rate(pages, round(size * sampling_rate)) for size in sizes]
        return np.array(scaled) * agree / sampling_rate / accesses_per_second + elsewhere

    pages = [r.pages for r in rates]
    make = partial(
        Curve,
        flows=flows,
        observed_blocks=pool,
        lap_seconds=lap_seconds,
        seconds=totals.seconds,
        ring_blocks=lambda blocks: round(
            rules.ring_buffers(1, round(blocks / sampling_rate)) * sampling_rate
        ),
        settled_seconds=_SETTLED_SECONDS,
    )
    curve = make(rates)
    point = ratios(curve, pages)
    # How many accesses a visit brings to pages that never leave is bounded, not seen: try both bounds.
    others = [
        make([replace(r, hot_batch=hot(r)) for r in rates]) for hot in (lambda r: r.batch, lambda _: SINGLE)
    ]
    if any(flow.scans > 0 for flow in flows):
        # Nor is it seen how regularly scans come, and for how long their rings have gathered in a pool.
        others += [make(rates, loops=False)]
        others += [make(rates, settled_seconds=seconds) for seconds in (0.0, np.inf)]
    bounds = [ratios(other, pages) - point for other in others]
    spread = _replicates(fits, np.random.default_rng(seed), partial(ratios, curve))
    passes = totals.seconds / lap_seconds if lap_seconds > 0 else 0.0
    low, high = _interval(
        point,
        spread,
        bounds,
        np.asarray(sizes_blocks) / pool_blocks,
        _Beside(
            noise=totals.miss_ratio_error,
            short=_SHORT_PATHS / max(passes, 1.0) if by_paths else _SHORT_STATES / max(passes, 4.0) ** 2,
            scans=_scan_share(totals),
        ),
    )
    expected = curve.expected_misses(pages)
    resident = seen.resident()
    parts = [
        Part(
            name=group.name,
            counted_misses=(flows[g].misses - flows[g].extensions) / sampling_rate,
            # What others miss is counted by nobody here.
            expected_misses=expected[g] / sampling_rate if group.relations else 0.0,
            seen_resident=float(resident[g]),
            expected_resident=rates[g].resident(),
        )
        for g, group in enumerate(seen.groups)
    ]
    [today] = raw(curve, pages, [pool_blocks])
    level, reasons = judged(
        [
            *totals.doubts,
            *_length_doubts(totals, seen.snapshots, lap_seconds, by_paths=by_paths),
            *_load_doubts(totals, relations),
            *today_doubts(
                float(today), totals.misses / (totals.hits + totals.misses), totals.miss_ratio_error
            ),
            *part_doubts(parts, pool, seconds=totals.seconds * sampling_rate),
            *stranger_doubts(float(resident[-1]) / pool, seen.unknown / pool),
            *_scan_doubts(totals),
        ]
    )
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=low,
        high=high,
        lap_seconds=lap_seconds,
        level=level,
        reasons=reasons,
    )


def _loads(totals: Totals, flows: list[Flow], pool: int, rate: float, version: int) -> float:
    """Return pages loaded per second into buffers that the clock hand gave.

    The server counts these buffers (StrategyGetBuffer, freelist.c), those of rings left out and those of all
    databases included. Without the counter it is the misses of this database, less what scans read in rings.
    """
    if totals.allocations > 0:
        return totals.allocations * rate
    loads = sum(f.misses - (min(f.scan_accesses, f.misses) if f.ringed(pool) else 0.0) for f in flows)
    return loads + (float(totals.relation_growth_blocks.sum()) * rate if version >= 160000 else 0.0)


def _flow(group: Group, relations: Table, totals: Totals, version: int, sampling_rate: float) -> Flow:
    members = list(group.relations)
    if not members:
        return Flow(misses=0.0)
    growth = float(totals.relation_growth_blocks[members].sum()) if version < 160000 else 0.0
    misses = float(totals.relation_misses[members].sum())
    alone = len(members) == 1
    blocks = float(relations["blocks_end"][members[0]]) if alone else 0.0
    scanned = float(totals.relation_scanned_blocks[members[0]]) if blocks > 0 else 0.0
    return Flow(
        misses=misses * sampling_rate,
        accesses=float(totals.relation_accesses[members].sum()) * sampling_rate,
        extensions=min(growth, misses) * sampling_rate,
        scans=scanned / blocks if blocks > 0 else 0.0,
        scanned_blocks=blocks * sampling_rate,
        participants=max(float(totals.relation_scans[members[0]]) * blocks / scanned, 1.0)
        if scanned > 0
        else 1.0,
    )


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Rates, and what they were fitted to: likelihoods of what pages showed, and how many showed it."""

    rates: Rates
    like: Floats
    pages: Floats


def _apart_laps(seen: Sightings, laps: float) -> float:
    """Return how many laps lie between snapshots: as the hand tells, else of those estimated for all."""
    if len(seen.hand_frames) > 1:
        return float(np.diff(seen.hand_frames).mean()) / seen.pool_frames
    return laps / seen.snapshots


def _rough(seen: Sightings, group: int) -> Rates:
    classes, pages = seen.classes(group, np.arange(seen.snapshots))
    if pages.sum() <= 0:
        return Rates(batch=SINGLE, hot_batch=SINGLE, pages=np.zeros(len(GRID)))
    weights, _ = fit_weights(classes, pages, SINGLE, steps=60)
    return Rates(batch=SINGLE, hot_batch=SINGLE, pages=weights * pages.sum())


def _fit_states(seen: Sightings, group: int, chosen: NDArray[np.int64], batch: Floats) -> _Fit:
    """Fit to the states in which each page was seen, taken for independent."""
    classes, pages = seen.classes(group, chosen)
    like, _ = likelihoods(classes, batch)
    return _Fit(rates=fit_rates(like, pages, batch), like=like, pages=pages)


def _fit_paths(seen: Sightings, group: int, chosen: NDArray[np.int64], batch: Floats, *, seed: int) -> _Fit:
    """Fit to the paths of the pages from state to state; batches follow from how pages are first seen."""

    def fit(batch: Floats) -> _Fit:
        like, pages = path_likelihoods(seen, group, chosen, batch, np.random.default_rng([seed, group]))
        return _Fit(rates=fit_rates(like, pages, batch), like=like, pages=pages)

    first = loaded_batch(seen, group)
    found = fit(batch if first is None else first)
    better = None if first is None else loaded_batch(seen, group, found.rates)
    if first is not None and better is not None and np.abs(better - first).max() > _SAME_BATCH:
        found = fit(better)
    return found


def _batch(seen: Sightings, group: int, chosen: NDArray[np.int64], seed: int) -> Floats:
    classes, pages = seen.classes(group, chosen)
    return fit_batch(classes, pages, np.random.default_rng([seed, group])) if pages.sum() > 0 else SINGLE


def _replicates(
    fits: list[list[_Fit]], random: np.random.Generator, ratios: Callable[[list[Floats]], Floats]
) -> Floats:
    """Return curves from pages drawn again, minus the curve of the subset that they were drawn from.

    Shape (replicates, sizes). With several subsets their own differences are in it as well, each divided as
    the mean over subsets divides it.
    """
    per_subset = max(_REPLICATES // len(fits), 4)
    rows: list[Floats] = []
    centres: list[Floats] = []
    for fit in fits:
        centre = ratios([f.rates.pages for f in fit])
        centres.append(centre)
        drawn = [resample(f.like, f.pages, f.rates, per_subset, random) for f in fit]
        rows.extend(ratios([d[k] for d in drawn]) - centre for k in range(per_subset))
    noise = np.array(rows)
    if len(fits) > 1:
        between = np.array(centres) - np.mean(centres, axis=0)
        picks = random.integers(0, len(fits), len(noise))
        noise = noise + between[picks] / np.sqrt(len(fits))
    return noise


@dataclass(frozen=True, kw_only=True)
class _Beside:
    """What widens an interval beside the spread of the pages.

    Attributes:
        noise: standard error of the measured miss ratio.
        short: by how much more the model errs for each doubling of the size, since the recording is short.
        scans: share of accesses that are those of sequential scans.
    """

    noise: float
    short: float
    scans: float


def _interval(
    point: Floats, spread: Floats, bounds: list[Floats], relative_size: Floats, beside: _Beside
) -> tuple[Floats, Floats]:
    """Return bounds of the 90 % interval: spread, what is not seen, and the model's own error, as squares."""
    tail = (1 - _CONFIDENCE) / 2
    unseen_below = np.maximum(-np.min(bounds, axis=0), 0)
    unseen_above = np.maximum(np.max(bounds, axis=0), 0)
    below = np.hypot(np.maximum(-np.quantile(spread, tail, axis=0), 0), unseen_below)
    above = np.hypot(np.maximum(np.quantile(spread, 1 - tail, axis=0), 0), unseen_above)
    octaves = np.log2(relative_size)
    up, down = np.maximum(octaves, 0), np.maximum(-octaves, 0)
    model = MODEL_ERROR_RATIO + down * MODEL_ERROR_PER_OCTAVE_DOWN + up * MODEL_ERROR_PER_OCTAVE_UP
    model = model + beside.scans * MODEL_ERROR_OF_SCANS * np.minimum(up + down, 1)
    # Nothing can be off by more than there is: towards zero misses the model's error fades.
    model = np.minimum(model, 0.35 * point + 0.0008)
    noise = np.minimum(1.64 * beside.noise, 0.5 * point)
    below, above = np.hypot(below, np.hypot(model, noise)), np.hypot(above, np.hypot(model, noise))
    # A page that comes less often than once in the recording is not told from one that never comes: what
    # larger pools would miss is found too small, hardly ever too large.
    rare = beside.short * up * np.sqrt(np.maximum(up, 1.0))
    above = np.hypot(above, np.minimum(rare, 1 - point))
    below = np.hypot(below, np.minimum(rare / 4, 0.5 * point))
    below = np.hypot(below, np.minimum(beside.short / 4 * down, 0.5 * point))
    above = np.hypot(above, beside.short / 4 * down)
    return np.clip(point - below, 0, 1), np.clip(point + above, 0, 1)


def _length_doubts(totals: Totals, snapshots: int, lap_seconds: float, *, by_paths: bool) -> list[Doubt]:
    """Return whether the recording is too short, in one sentence."""
    if totals.misses == 0:
        return [
            Doubt(
                "refused",
                "no miss was counted: the pool holds all that is used, smaller sizes cannot be judged",
            )
        ]
    if snapshots < _LEAST_SNAPSHOTS:
        return [Doubt("refused", f"there are only {snapshots} snapshots: record for longer")]
    passes = totals.seconds / lap_seconds if lap_seconds > 0 else 0.0
    least, enough = _PASSES_OF_PATHS if by_paths else _PASSES_OF_STATES
    if passes >= enough:
        return []
    wanted = 1.25 * totals.seconds * enough / max(passes, 0.1)
    return [
        Doubt(
            "refused" if passes < least else "rough",
            f"the recording is short, {passes:.1f} clock passes in {snapshots} snapshots: "
            f"record for {wanted:.0f} s",
        )
    ]


def _load_doubts(totals: Totals, relations: Table) -> list[Doubt]:
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
                f"the load drifted: miss ratio {first:.3f} in the first half, {second:.3f} in the second",
            )
        )
    return doubts


def _scan_doubts(totals: Totals) -> list[Doubt]:
    share = _scan_share(totals)
    if share <= _MANY_SCANS:
        return []
    return [
        Doubt(
            "rough",
            f"{share:.0%} of the accesses are those of sequential scans, which do not come at random: what "
            "they find at another size depends on when they run",
        )
    ]


def _scan_share(totals: Totals) -> float:
    accesses = (totals.hits + totals.misses) / totals.seconds
    return float(totals.relation_scanned_blocks.sum()) / max(accesses, 1e-9)
