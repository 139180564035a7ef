"""Predict a curve from snapshots of the pool: observations, rates, curve, with intervals and a verdict.

Snapshots of one residence show the same thing twice: a page loaded once is seen as long as it lies there,
and would be taken for a warm one. So the snapshots are assigned in turn to subsets whose members lie
several clock passes apart, each subset is fitted alone, and the fits are averaged. Where the clock hand was
seen, the likelihood of whole paths is taken instead (paths.py), which needs no such care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.clock import Clock
from pgsweep.sizing.estimate import (
    Estimate,
)
from pgsweep.sizing.parallel import map_in_threads
from pgsweep.sizing.snapshots.curve import Curve, Flow
from pgsweep.sizing.snapshots.fitted import Fit, Fitted, dirty_by_group, fits_drawn_again
from pgsweep.sizing.snapshots.hand import follow_hand
from pgsweep.sizing.snapshots.interval import Beside, corrected, interval, short_error
from pgsweep.sizing.snapshots.observations import Group, Observations, Table, gather, page_numbers
from pgsweep.sizing.snapshots.paths import late_accesses, loaded_batch, path_likelihoods
from pgsweep.sizing.snapshots.rates import (
    GRID,
    SINGLE,
    Rates,
    cap_to_counters,
    fit_batch,
    fit_rates,
    fit_weights,
    likelihoods,
    resample,
)
from pgsweep.sizing.snapshots.recording_doubts import (
    length_doubts,
    load_doubts,
    scan_doubts,
    scan_share,
)
from pgsweep.sizing.snapshots.self_consistency import (
    Part,
    drift_doubts,
    order_doubts,
    part_doubts,
    stranger_doubts,
    today_doubts,
    together_doubts,
    width_doubts,
)
from pgsweep.sizing.snapshots.sequences import in_order, together
from pgsweep.sizing.snapshots.totals import Totals, with_rings
from pgsweep.sizing.verdict import (
    BRIEF_PASS_SECONDS,
    KEPT_ROOM,
    LEAST_SNAPSHOTS,
    SEVERAL_ACCESSES,
    UNSEEN_PASSES,
    judged,
)
from pgsweep.sizing.what_if.changed_curve import ChangedCurve, Changes

Floats = NDArray[np.float64]

PASSES_APART = 7.0
"""Snapshots of one subset lie at least this many clock passes apart, where enough of them remain."""

_SETTLED_SECONDS = 120.0

_FEWEST_SNAPSHOTS = 10
_MOST_SNAPSHOTS = 1000
_REPLICATES = 40
_SAME_BATCH = 0.01
_OWN_GROUP_SHARE = 0.002
_TOGETHER = 0.2
"""Share of common variation from which on pages are taken to be visited one after the other."""

_COUNTED_FOLLOWERS = 0.5
"""Accesses of a visit beside the first, from which on those that were counted stand for those shown."""

_GROWTH = 0.02
"""New blocks of a relation for each miss that is expected of it, from which on it counts as growing."""


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
    hand_buffers: NDArray[np.int64] | None = None,
    loads_seen: Floats | None = None,
    rules: _native.Rules | None = None,
    changes: Changes | None = None,
    seed: int = 0,
) -> Estimate:
    """Predict the miss ratio of the database at each size from snapshots of a pool of `pool_blocks`.

    Args:
        changes: of the load; the curve with them is the estimate's `changed`.
        rules: the server's; those of its version with the usual settings by default.
        hand_buffers: by number of the snapshot, how many buffers the hand had passed, where it was seen.
        loads_seen: pages loaded until each snapshot, where the hand was not seen.

    Raises:
        ValueError: no snapshot, or not a single access or miss was counted.
    """
    if totals.hits + totals.misses <= 0 or not len(snapshots["snapshot"]):
        raise ValueError("nothing was observed")
    rules = rules or _native.Rules(server_version_num // 10000)
    clock = Clock.of(rules)
    accesses_per_second = (totals.hits + totals.misses) / totals.seconds
    share = np.maximum(
        totals.relation_accesses / max(totals.relation_accesses.sum(), 1e-9),
        totals.relation_misses / max(totals.relation_misses.sum(), 1e-9),
    )
    important = (share > _OWN_GROUP_SHARE) & (relations["db"] == database_oid)
    if changes is not None:
        important[list(changes.relations)] = True
    if hand_buffers is None or not len(hand_buffers):
        followed = follow_hand(snapshots, page_numbers(snapshots, relations), pool_blocks, loads_seen)
        if followed is not None:
            hand_buffers = followed.buffers
            kept = followed.known[snapshots["snapshot"]]
            snapshots = {name: column[kept] for name, column in snapshots.items()}
    seen = gather(
        snapshots,
        relations,
        database_oid,
        important,
        sampling_rate,
        hand_buffers=np.zeros(0, np.int64) if hand_buffers is None else hand_buffers,
        pool_buffers=pool_blocks,
        clock=clock,
    )
    totals = with_rings(totals, relations, pool_blocks)
    flows = [_flow(group, relations, totals, server_version_num, sampling_rate) for group in seen.groups]
    pool = round(pool_blocks * sampling_rate)
    loads = _loads(totals, flows, pool, sampling_rate, server_version_num)

    rough = [_rough(seen, g) for g in range(len(seen.groups))]
    pass_seconds = sum(r.loads_per_pass() for r in rough) / max(loads, 1e-9)
    apart_passes = _passes_apart(seen, totals.seconds / max(pass_seconds, 1e-9))
    step = int(np.clip(np.ceil(PASSES_APART / apart_passes), 1, max(seen.snapshots // _FEWEST_SNAPSHOTS, 1)))
    step = max(step, -(-seen.snapshots // _MOST_SNAPSHOTS))
    subsets = [np.arange(offset, seen.snapshots, step) for offset in range(step)]

    by_paths = len(seen.hand_buffers) > 0
    groups = range(len(seen.groups))
    batches = map_in_threads(_batch, repeat(seen), groups, repeat(subsets[0]), repeat(seed))
    fit: Callable[[Observations, int, NDArray[np.int64], Floats], _Fit] = _fit_states
    if by_paths:
        step, subsets = 1, [np.arange(seen.snapshots)]
        fit = partial(_fit_paths, seed=seed)
    fits = [map_in_threads(fit, repeat(seen), groups, repeat(subset), batches) for subset in subsets]
    rates = [
        Rates(
            batch=np.asarray(np.mean([fit[g].rates.batch for fit in fits], axis=0)),
            hot_batch=np.asarray(np.mean([fit[g].rates.batch for fit in fits], axis=0)),
            pages=np.asarray(np.mean([fit[g].rates.pages for fit in fits], axis=0)),
            clock=clock,
        )
        for g in range(len(seen.groups))
    ]
    pass_seconds = sum(r.loads_per_pass() for r in rates) / max(loads, 1e-9)
    rates = [
        cap_to_counters(
            r, float(totals.relation_accesses[list(g.relations)].sum()) * sampling_rate * pass_seconds
        )
        if g.relations
        else r
        for g, r in zip(seen.groups, rates, strict=True)
    ]
    pass_seconds = sum(r.loads_per_pass() for r in rates) / max(loads, 1e-9)
    # Counters of relations miss what was dropped and lag behind those of the database: make the sums agree.
    # A difference that such reasons do not explain is among the doubts.
    counted = sum(f.misses for f in flows) / sampling_rate
    agree = (totals.misses - totals.temporary_misses) / totals.seconds / counted if counted > 0 else 0.0
    elsewhere = totals.temporary_misses / (totals.hits + totals.misses)

    # Half and twice today's size are computed in any case, for what they show about the load.
    looked_at = (*sizes_blocks, max(pool_blocks // 2, 1), 2 * pool_blocks)

    def ratios(curve: Curve, pages: list[Floats]) -> Floats:
        return np.minimum(raw(curve, pages, looked_at), 1.0)

    def raw(curve: Curve, pages: list[Floats], sizes: Sequence[int]) -> Floats:
        scaled = curve.miss_rates(pages, [round(size * sampling_rate) for size in sizes])
        missed = np.array(scaled) * agree / sampling_rate
        if changes is None or not isinstance(curve, ChangedCurve):
            return missed / accesses_per_second + elsewhere
        return (missed + elsewhere * accesses_per_second * changes.load) / max(changed_accesses, 1e-9)

    changed_accesses = accesses_per_second
    if changes is not None:
        changed_accesses = changes.accesses_per_second(accesses_per_second, seen.groups, flows, sampling_rate)

    pages = [r.pages for r in rates]
    make = partial(
        Curve,
        flows=flows,
        observed_blocks=pool,
        pass_seconds=pass_seconds,
        seconds=totals.seconds,
        ring_blocks=lambda blocks: round(
            rules.ring_buffers(1, round(blocks / sampling_rate)) * sampling_rate
        ),
        settled_seconds=_SETTLED_SECONDS,
    )
    curve = make(rates)
    scanned_now = any(flow.scans > 0 for flow in flows)
    added_scans = changes is not None and any(one.scans_per_second for one in changes.relations.values())

    def half_rates(which: int) -> list[Rates] | None:
        """Return the rates from the snapshots of one half of the recording alone."""
        middle = seen.snapshots // 2
        chosen = [subset[(subset < middle) == (which == 0)] for subset in subsets]
        longest = max(chosen, key=len)
        if len(longest) < LEAST_SNAPSHOTS:
            return None
        return [f.rates for f in map_in_threads(fit, repeat(seen), groups, repeat(longest), batches)]

    halves_rates = [own for which in (0, 1) if (own := half_rates(which)) is not None]

    def halved(make: Callable[..., Curve], own: list[Rates]) -> Fit:
        own_pass_seconds = sum(r.loads_per_pass() for r in own) / max(loads, 1e-9)
        return Fit(curve=make(own, pass_seconds=own_pass_seconds), rates=own, pages=[r.pages for r in own])

    def drawn(make: Callable[..., Curve], *, scans: bool) -> _Drawn:
        curve = make(rates)
        point = ratios(curve, pages)
        # How many accesses a visit brings to pages that never leave is bounded, not seen: try both bounds.
        others = [
            make([replace(r, hot_batch=hot(r)) for r in rates])
            for hot in (lambda r: r.batch, lambda _: SINGLE)
        ]
        if scans:
            # Nor is it seen how regularly scans come, and for how long their rings have gathered in a pool.
            others += [make(rates, regularity=regularity) for regularity in (0.0, 1.0)]
            others += [make(rates, settled_seconds=seconds) for seconds in (0.0, np.inf)]
        return _Drawn(
            point=point,
            bounds=[ratios(other, pages) - point for other in others],
            halves=[ratios(half.curve, half.pages) for half in map(partial(halved, make), halves_rates)],
            spread=_replicates(fits, np.random.default_rng(seed), partial(ratios, curve)),
        )

    now = drawn(make, scans=scanned_now)
    point, halves, spread = now.point, now.halves, now.spread
    passes = totals.seconds / pass_seconds if pass_seconds > 0 else 0.0
    scanned = np.array([flow.scan_accesses for flow in flows])
    missed = np.array([flow.misses - flow.extensions for flow in flows])
    growth = totals.relation_growth_blocks * totals.seconds * sampling_rate
    in_runs = in_order(seen, np.array([float(growth[list(group.relations)].sum()) for group in seen.groups]))
    ordered = float((in_runs * np.maximum(missed - scanned, 0)).sum() / max(float(missed.sum()), 1e-9))
    followers = np.array([followers_of(r, f, pass_seconds) for r, f in zip(rates, flows, strict=True)])
    late = np.array([late_accesses(seen, g, rates[g]) if by_paths else 0.0 for g in groups])
    relative_size = np.asarray(looked_at) / pool_blocks
    beside = Beside(
        noise=totals.miss_ratio_error,
        short=short_error(passes, by_paths=by_paths),
        scans=scan_share(totals),
        halves=halves,
        ordered=ordered,
        late=float((late * missed).sum() / max(float(missed.sum()), 1e-9)),
    )
    low, high = interval(point, spread, now.bounds, relative_size, beside)

    def grown(group: Group) -> float:
        """Return new blocks per second."""
        return float(totals.relation_growth_blocks[list(group.relations)].sum())

    def new_blocks(group: Group) -> float:
        """Return blocks per second that came into the pool without being read, nor counted as such (16+)."""
        return grown(group) if server_version_num >= 160000 else 0.0

    expected = curve.expected_misses(pages)
    resident = seen.resident()
    parts = [
        Part(
            name=group.name,
            counted_misses=(flows[g].misses - flows[g].extensions) / sampling_rate,
            # Misses of groups without relations (other databases, for example) are not counted here.
            expected_misses=max(expected[g] / sampling_rate - new_blocks(group), 0.0)
            if group.relations
            else 0.0,
            seen_resident=float(resident[g]),
            expected_resident=rates[g].resident(),
            grows=grown(group) > _GROWTH * expected[g] / sampling_rate,
        )
        for g, group in enumerate(seen.groups)
    ]
    [today] = raw(curve, pages, [pool_blocks])
    unseen_at = partial(
        _unseen,
        sizes_blocks,
        pool_blocks=pool_blocks,
        today=float(today),
        pass_seconds=pass_seconds,
        followers=float((followers * missed).sum() / max(float(missed.sum()), 1e-9)),
    )
    unseen = unseen_at(raw(curve, pages, sizes_blocks))
    known = np.flatnonzero(~np.isin(sizes_blocks, unseen))
    known_sizes = [sizes_blocks[at] for at in known.tolist()]
    length = length_doubts(totals, seen.snapshots, pass_seconds, by_paths=by_paths)
    level, said = judged(
        [
            *totals.doubts,
            # One sentence on length: a short recording's interval is wide as well.
            *(length or width_doubts(known_sizes, low[known], high[known])),
            *load_doubts(totals, relations),
            *today_doubts(
                float(today), totals.misses / (totals.hits + totals.misses), totals.miss_ratio_error
            ),
            *part_doubts(
                parts,
                pool,
                seconds=totals.seconds * sampling_rate,
                miss_ratio=totals.misses / (totals.hits + totals.misses),
            ),
            *stranger_doubts(float(resident[-1]) / pool, seen.unknown / pool),
            *scan_doubts(totals, relations, (pool_blocks, *sizes_blocks)),
            *(order_doubts(ordered) or together_doubts(_in_loops(seen, flows, grown))),
            *drift_doubts(
                point[-2:], [curve_of_half[-2:] for curve_of_half in halves], spread[:, -2:].std(axis=0)
            ),
        ]
    )
    count = len(sizes_blocks)
    fitted = Fitted(
        best=Fit(curve=curve, rates=rates, pages=pages),
        halves=[halved(make, own) for own in halves_rates],
        drawn=fits_drawn_again(
            curve, [(f.rates, f.like, f.pages) for f in fits[0]], np.random.default_rng([seed, 1])
        ),
        groups=seen.groups,
        dirty=dirty_by_group(seen, snapshots),
        growth=np.array([grown(group) for group in seen.groups]) * sampling_rate,
        extensions_are_reads=server_version_num < 160000,
        sampling_rate=sampling_rate,
        seconds=totals.seconds,
        short=beside.short,
    )
    found = Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=corrected(point, halves, relative_size)[:count],
        low=low[:count],
        high=high[:count],
        pass_seconds=pass_seconds,
        level=level,
        reasons=said,
        unseen_blocks=unseen,
        fitted=fitted,
    )
    if changes is None:
        return found
    of = [changes.of(group) for group in seen.groups]

    def change(rates: list[Rates], **others: Any) -> ChangedCurve:
        return ChangedCurve(
            rates,
            **{**make.keywords, **others},
            changes=of,
            load=changes.load,
            sampling_rate=sampling_rate,
            extensions_are_reads=changes.extensions_are_reads,
        )

    then = drawn(change, scans=scanned_now or added_scans)
    scanning = changes.scan_share(
        scan_share(totals), accesses_per_second, changed_accesses, seen.groups, flows
    )
    beside = replace(beside, halves=then.halves, scans=scanning)
    low, high = interval(then.point, then.spread, then.bounds, relative_size, beside)
    changed_curve = change(rates)
    kept_blocks = changed_curve.kept_blocks(pages) / sampling_rate
    # As many misses for each of today's accesses: that is how fast the hand goes.
    hand = raw(changed_curve, pages, sizes_blocks) * changed_accesses / accesses_per_second
    return replace(
        found,
        changed=replace(
            found,
            fitted=fitted.changed(changes, change),
            miss_ratio=corrected(then.point, then.halves, relative_size)[:count],
            low=low[:count],
            high=high[:count],
            unseen_blocks=unseen_at(hand),
            too_small_blocks=tuple(size for size in sizes_blocks if size < kept_blocks * KEPT_ROOM),
            accesses_per_second=changed_accesses,
        ),
    )


def _in_loops(
    seen: Observations, flows: list[Flow], grown: Callable[[Group], float]
) -> list[tuple[str, float]]:
    """Return relations whose pages are visited in order, and their share of the accesses, scans left out.

    What grows is visited where it grows, which is another place in each snapshot as well.
    """
    total = sum(flow.accesses for flow in flows if np.isfinite(flow.accesses))
    return [
        (group.name, max(flow.accesses - flow.scan_accesses, 0.0) / max(total, 1e-9))
        for group, flow, common in zip(seen.groups, flows, together(seen).tolist(), strict=True)
        if len(group.relations) == 1 and common > _TOGETHER and grown(group) <= 0
    ]


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """A curve, and all that it might be as well.

    Attributes:
        point: the curve.
        bounds: of what is not seen, minus the curve.
        halves: curves from each half of the recording alone.
        spread: curves from pages drawn again, minus the curve.
    """

    point: Floats
    bounds: list[Floats]
    halves: list[Floats]
    spread: Floats


def _unseen(
    sizes_blocks: Sequence[int],
    miss_ratio: Floats,
    *,
    pool_blocks: int,
    today: float,
    pass_seconds: float,
    followers: float,
) -> tuple[int, ...]:
    """Return the smaller sizes that snapshots do not show (`UNSEEN_PASSES`, `BRIEF_PASS_SECONDS`).

    A pass takes as long as it takes to load the pool's pages: it is shorter by the size and by the misses.

    Args:
        miss_ratio: at each size; `today` at the pool's own.
        pass_seconds: of a clock pass of the pool.
        followers: accesses for each first one of a visit.
    """
    found = []
    for size, ratio in zip(sizes_blocks, miss_ratio.tolist(), strict=True):
        passes = pool_blocks * ratio / max(size * today, 1e-12)
        brief = pass_seconds < BRIEF_PASS_SECONDS * passes and followers >= SEVERAL_ACCESSES
        if size < pool_blocks and (passes > UNSEEN_PASSES or brief):
            found.append(size)
    return tuple(found)


def followers_of(rates: Rates, flow: Flow, pass_seconds: float) -> float:
    """Return how many accesses each visit brings beside its first one: as counts show, and as were counted.

    Those that find the page pinned, or at the highest count, are only counted. A few more than counts show
    may as well be an error of the rates.
    """
    shown = float(rates.batch @ np.arange(len(rates.batch)))
    visits = float(rates.pages @ GRID)
    counted = (flow.accesses - flow.scan_accesses) * pass_seconds
    if not np.isfinite(counted) or visits <= 0:
        return shown
    more = counted / visits - 1
    return max(shown, more if more >= _COUNTED_FOLLOWERS else 0.0)


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


def _passes_apart(seen: Observations, passes: float) -> float:
    """Return how many clock passes lie between snapshots: by the hand, else by the estimate for all."""
    if len(seen.hand_buffers) > 1:
        return float(np.diff(seen.hand_buffers).mean()) / seen.pool_buffers
    return passes / seen.snapshots


def _rough(seen: Observations, group: int) -> Rates:
    classes, pages = seen.classes(group, np.arange(seen.snapshots))
    if pages.sum() <= 0:
        return Rates(batch=SINGLE, hot_batch=SINGLE, pages=np.zeros(len(GRID)), clock=seen.clock)
    weights, _ = fit_weights(classes, pages, SINGLE, seen.clock, steps=60)
    return Rates(batch=SINGLE, hot_batch=SINGLE, pages=weights * pages.sum(), clock=seen.clock)


def _fit_states(seen: Observations, group: int, chosen: NDArray[np.int64], batch: Floats) -> _Fit:
    """Fit to the states in which each page was seen, taken for independent."""
    classes, pages = seen.classes(group, chosen)
    like, _ = likelihoods(classes, batch, seen.clock)
    return _Fit(rates=fit_rates(like, pages, batch, seen.clock), like=like, pages=pages)


def _fit_paths(
    seen: Observations, group: int, chosen: NDArray[np.int64], batch: Floats, *, seed: int
) -> _Fit:
    """Fit to the paths of the pages from state to state; batches follow from how pages are first seen."""

    def fit(batch: Floats) -> _Fit:
        like, pages = path_likelihoods(seen, group, chosen, batch, np.random.default_rng([seed, group]))
        return _Fit(rates=fit_rates(like, pages, batch, seen.clock), like=like, pages=pages)

    first = loaded_batch(seen, group)
    found = fit(batch if first is None else first)
    better = None if first is None else loaded_batch(seen, group, found.rates)
    if first is not None and better is not None and np.abs(better - first).max() > _SAME_BATCH:
        found = fit(better)
    return found


def _batch(seen: Observations, group: int, chosen: NDArray[np.int64], seed: int) -> Floats:
    classes, pages = seen.classes(group, chosen)
    if pages.sum() <= 0:
        return SINGLE
    return fit_batch(classes, pages, np.random.default_rng([seed, group]), seen.clock)


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
