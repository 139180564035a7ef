"""The curve of a recording of less than one clock pass: what one look at the pool allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.look import STATES, Look, LookBounds
from pgsweep.sizing.snapshots.fit import Fit
from pgsweep.sizing.snapshots.interval import model_error
from pgsweep.sizing.snapshots.load import Load
from pgsweep.sizing.snapshots.observations import ABSENT_AND_COUNTERS, Observations
from pgsweep.sizing.snapshots.paths import whole_batch
from pgsweep.units import Z90

Floats = NDArray[np.float64]

_LATE: Final = 1.05
"""Accesses of pages loaded long ago, relative to those of the visit that loaded them, from which on they may
all belong to it."""


def look_of(seen: Observations, batches: Sequence[Floats]) -> Look:
    """Return what the snapshots of less than one clock pass show on average."""
    counts = np.bincount(
        seen.page_group[seen.page] * (ABSENT_AND_COUNTERS - 1) + seen.usage_count,
        minlength=len(seen.groups) * (STATES - 1),
    ).reshape(len(seen.groups), -1)
    there = counts / seen.snapshots
    all_pages = np.array([group.pages for group in seen.groups])
    absent = np.maximum(all_pages - there.sum(axis=1), 0.0)
    return Look.of(np.column_stack([absent, there]), batches, seen.clock)


def look_bounds(load: Load, fit: Fit) -> list[LookBounds]:
    """Return what the look allows, at any size; `fit` is asked for the batches of accesses.

    Where pages are accessed more often the longer ago they were loaded, nobody knows in so short a time which
    of these accesses belong to the visit that loaded them: both answers are possible.
    """
    batches = [one.batch for one in fit.rates]
    late = [whole_batch(load.seen, group, rates) for group, rates in enumerate(fit.rates)]
    whole = [
        own if one is None or _mean(one) < _mean(own) else one for one, own in zip(late, batches, strict=True)
    ]
    found = [batches]
    if any(_mean(one) > _LATE * _mean(own) for one, own in zip(whole, batches, strict=True)):
        found.append(whole)
    return [LookBounds(look_of(load.seen, each), load.pool.blocks) for each in found]


def _mean(batch: Floats) -> float:
    return float(batch @ np.arange(1.0, len(batch) + 1))


def one_look(
    load: Load, bounds: Sequence[LookBounds], sizes_blocks: Sequence[int], changed: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Return the miss ratio at each size by the states of the pages alone, and its interval.

    Args:
        load: that was observed.
        bounds: of its look, for each law of batches that is possible.
        sizes_blocks: of the pool.
        changed: the curve of a changed load by the fitted rates; its bounds are as far away, in proportion,
            as those of the load as it is.

    Returns:
        Where nothing is known of a size its interval is from 0 to 1.
    """
    rate, totals = load.pool.sampling_rate, load.totals
    each = np.array([one.interval([round(size * rate) for size in sizes_blocks]) for one in bounds])
    found = (each[:, 0].mean(axis=0), each[:, 1].min(axis=0), each[:, 2].max(axis=0))
    known = np.isfinite(found[0])
    relative = [np.where(known, bound, 1.0) for bound in found]
    today = totals.miss_ratio - load.temporary_ratio
    point, low, high = (load.temporary_ratio + today * ratio for ratio in relative)
    # Today's misses are known to so much; what is in proportion to them, too.
    noise = Z90 * totals.miss_ratio_error * relative[0]
    noise += model_error(point, np.asarray(sizes_blocks) / load.server.pool_blocks)
    low, high = low - noise, high + noise
    if changed is not None:
        low, high = (changed * bound / np.maximum(point, 1e-9) for bound in (low, high))
        point = changed
    low, high = np.where(known, np.clip((low, high), 0.0, 1.0), [[0.0], [1.0]])
    return np.where(known, np.minimum(point, 1.0), 1.0), low, high
