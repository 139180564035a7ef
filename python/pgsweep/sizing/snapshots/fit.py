"""Fit rates to a load: how often the pages of each group are visited, by the snapshots and the counters.

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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.evidence.schema import PASSES_OF_PATHS
from pgsweep.sizing.parallel import map_in_threads
from pgsweep.sizing.snapshots.load import Load
from pgsweep.sizing.snapshots.observations import Observations
from pgsweep.sizing.snapshots.paths import loaded_batch, path_likelihoods
from pgsweep.sizing.snapshots.rates import (
    GRID,
    SINGLE,
    STEPS,
    Rates,
    cap_to_counters,
    fit_batch,
    fit_rates,
    likelihoods,
    resample,
)
from pgsweep.sizing.verdict import LEAST_SNAPSHOTS

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_PASSES_APART: Final = 7.0
"""Snapshots of one subset lie at least this many clock passes apart, where enough of them remain."""

_FEWEST_SNAPSHOTS: Final = 10
_MOST_SNAPSHOTS: Final = 1000
_REPLICATES: Final = 40
FEW_DRAWS: Final = 4
"""Of a subset, at least; as many show how the page cache depends on which pages were seen."""

_SAME_BATCH: Final = 0.01
_ROUGH_STEPS: Final = 60


@dataclass(frozen=True, kw_only=True)
class GroupFit:
    """Rates of a group, and what they were fitted to: likelihoods of what pages showed, and how many did."""

    rates: Rates
    like: Floats
    pages: Floats


@dataclass(frozen=True, kw_only=True)
class Resampled:
    """Rates of a group, and its pages fitted to pages that were drawn again, shape (draws, grid)."""

    rates: Rates
    drawn: Floats


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Rates of a load.

    Attributes:
        rates: of each group: the mean over subsets, no more than the counters allow.
        pass_seconds: time of a clock pass of the pool under observation.
        subsets: fits to each subset of the snapshots, by group.
        halves: rates of each group from the snapshots of one half of the recording alone, with the time of a
            clock pass by them; none where a half is too short.
        by_paths: fitted to paths, not to states.
    """

    rates: list[Rates]
    pass_seconds: float
    subsets: list[list[Resampled]]
    halves: list[tuple[list[Rates], float]]
    by_paths: bool

    def is_one_look(self, seconds: float) -> bool:
        """Return whether less than a clock pass was observed: all snapshots show the same residences."""
        return self.by_paths and 0 < self.passes(seconds) < PASSES_OF_PATHS[1]

    def in_short(self) -> Fit:
        """Return it with a few draws of the first subset: all but the spread of a curve follows from them."""
        first = [replace(own, drawn=own.drawn[:FEW_DRAWS]) for own in self.subsets[0]]
        return replace(self, subsets=[first])

    def passes(self, seconds: float) -> float:
        """Return how many clock passes were observed."""
        return seconds / self.pass_seconds if self.pass_seconds > 0 else 0.0


def fit_load(load: Load, *, seed: int = 0) -> Fit:
    """Fit rates to a load.

    Args:
        load: the load.
        seed: of the pages that are drawn where there are very many.
    """
    seen, by_paths = load.seen, len(load.seen.hand_buffers) > 0
    subsets = _subsets(load)
    groups = range(len(seen.groups))
    # Where many pages are seen as they are first loaded, they show their batches, and nothing is searched.
    loaded = [loaded_batch(seen, group) if by_paths else None for group in groups]
    unknown = [group for group in groups if loaded[group] is None]
    searched = iter(map_in_threads(_batch, repeat(seen), unknown, repeat(subsets[0]), repeat(seed)))
    batches = [next(searched) if own is None else own for own in loaded]
    fit_group: _FitGroup = _fit_states
    if by_paths:
        subsets = [np.arange(seen.snapshots)]
        fit_group = partial(_fit_paths, seed=seed, searched=frozenset(unknown))

    # Group by group: fits to the same batches share what is computed of these.
    every = [*subsets, *_halves(subsets, seen.snapshots)]
    jobs = [(seen, group, chosen, batches[group]) for group in groups for chosen in every]
    found = map_in_threads(fit_group, *zip(*jobs, strict=True))
    fits = [found[number :: len(every)] for number in range(len(every))]
    fits, of_halves = fits[: len(subsets)], fits[len(subsets) :]
    rates = _capped(_mean([[one.rates for one in subset] for subset in fits]), load)
    halves = [[one.rates for one in half] for half in of_halves]
    random = np.random.default_rng(seed)
    draws = max(_REPLICATES // len(fits), FEW_DRAWS)
    resampled = [
        [
            Resampled(rates=own.rates, drawn=resample(own.like, own.pages, own.rates, draws, random))
            for own in subset
        ]
        for subset in fits
    ]
    return Fit(
        rates=rates,
        pass_seconds=_pass_seconds(rates, load),
        subsets=resampled,
        halves=[(half, _pass_seconds(half, load)) for half in halves],
        by_paths=by_paths,
    )


_FitGroup = Callable[[Observations, int, Integers, Floats], GroupFit]


def _pass_seconds(rates: Sequence[Rates], load: Load) -> float:
    """Return the time of a clock pass: in it as many pages are loaded as the rates say."""
    return sum(own.loads_per_pass() for own in rates) / max(load.loads_per_second, 1e-9)


def _subsets(load: Load) -> list[Integers]:
    """Return subsets of the snapshots whose members lie several clock passes apart."""
    seen = load.seen
    every = np.arange(seen.snapshots)
    rough = [_fit_states(seen, group, every, SINGLE, steps=_ROUGH_STEPS) for group in range(len(seen.groups))]
    passes = load.totals.seconds / max(_pass_seconds([own.rates for own in rough], load), 1e-9)
    apart = _passes_apart(seen, passes)
    step = int(np.clip(np.ceil(_PASSES_APART / apart), 1, max(seen.snapshots // _FEWEST_SNAPSHOTS, 1)))
    step = max(step, -(-seen.snapshots // _MOST_SNAPSHOTS))
    return [np.arange(offset, seen.snapshots, step) for offset in range(step)]


def _halves(subsets: list[Integers], snapshots: int) -> list[Integers]:
    """Return the largest subset's snapshots in each half of the recording; none where they are too few."""
    middle, halves = snapshots // 2, []
    for first in (True, False):
        longest = max((subset[(subset < middle) == first] for subset in subsets), key=len)
        if len(longest) >= LEAST_SNAPSHOTS:
            halves.append(longest)
    return halves


def _mean(fits: list[list[Rates]]) -> list[Rates]:
    """Return the mean of the rates of each group."""
    return [
        Rates(
            batch=np.asarray(np.mean([own.batch for own in group], axis=0)),
            hot_batch=np.asarray(np.mean([own.batch for own in group], axis=0)),
            pages=np.asarray(np.mean([own.pages for own in group], axis=0)),
            clock=group[0].clock,
        )
        for group in zip(*fits, strict=True)
    ]


def _capped(rates: list[Rates], load: Load) -> list[Rates]:
    """Return the rates with no more accesses than were counted."""
    pass_seconds = _pass_seconds(rates, load)
    counted, rate = load.totals.relation_accesses, load.pool.sampling_rate
    return [
        cap_to_counters(own, float(counted[list(group.relations)].sum()) * rate * pass_seconds)
        if group.relations
        else own
        for group, own in zip(load.groups, rates, strict=True)
    ]


def _passes_apart(seen: Observations, passes: float) -> float:
    """Return how many clock passes lie between snapshots: by the hand, else by the estimate for all."""
    if len(seen.hand_buffers) > 1:
        return float(np.diff(seen.hand_buffers).mean()) / seen.pool_buffers
    return passes / seen.snapshots


def _fit_states(
    seen: Observations, group: int, chosen: Integers, batch: Floats, *, steps: int = STEPS
) -> GroupFit:
    """Fit to the states in which each page was seen, taken for independent."""
    classes, pages = seen.classes(group, chosen)
    like, _ = likelihoods(classes, batch, seen.clock)
    return GroupFit(rates=fit_rates(like, pages, batch, seen.clock, steps=steps), like=like, pages=pages)


def _fit_paths(
    seen: Observations, group: int, chosen: Integers, batch: Floats, *, seed: int, searched: frozenset[int]
) -> GroupFit:
    """Fit to the paths of the pages from state to state.

    Unless the batches were `searched` for, they follow from how pages are first seen, and are known better
    once the rates are.
    """
    if seen.groups[group].pages <= 0:
        none = np.zeros((1, len(GRID)))
        return GroupFit(rates=fit_rates(none, none[:, 0], batch, seen.clock), like=none, pages=none[:, 0])

    def fit(batch: Floats) -> GroupFit:
        like, pages = path_likelihoods(seen, group, chosen, batch, np.random.default_rng([seed, group]))
        return GroupFit(rates=fit_rates(like, pages, batch, seen.clock), like=like, pages=pages)

    found = fit(batch)
    better = None if group in searched else loaded_batch(seen, group, found.rates)
    if better is not None and np.abs(better - batch).max() > _SAME_BATCH:
        found = fit(better)
    return found


def _batch(seen: Observations, group: int, chosen: Integers, seed: int) -> Floats:
    classes, pages = seen.classes(group, chosen)
    if pages.sum() <= 0:
        return SINGLE
    return fit_batch(classes, pages, np.random.default_rng([seed, group]), seen.clock)
