"""A curve from a trace: replay into warm pools, windows for the spread, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.inference.accesses import Trace, Visits, WarmPools, count_visits
from pgsweep.inference.estimate import Estimate

Floats = NDArray[np.float64]

_WINDOWS = 24
_WARM_UP_SHARE = 0.05
_DRAWS = 3
_LONG_TRACE_ACCESSES = 20_000_000
_REPLICATES = 400
_TAIL = 0.05

MODEL_ERROR_RATIO = 0.002
FIRST_VISIT_ERROR_SHARE = 0.08
"""Added to the interval: a floor, and a share of the misses at first visits, which rest on the drawn warm
state and not on the trace (docs/concepts/prediction.md)."""


def estimate(
    trace: Trace,
    *,
    pool_blocks: int,
    sizes_blocks: Sequence[int],
    rules: _native.Rules,
    extensions_are_reads: bool,
    lost_events: int = 0,
    seed: int = 0,
) -> Estimate:
    """Predict the miss ratio of the database at each size by replaying the trace.

    Args:
        pool_blocks: the pool that the trace was taken on.
        extensions_are_reads: the server counts a new block as a read (before 16).

    Raises:
        ValueError: the trace holds no access of the database.
    """
    if not trace.counted.any():
        raise ValueError("the trace holds no access of the database")
    visits = count_visits(trace)
    pools = WarmPools(trace, visits)
    random = np.random.default_rng(seed)
    edges = _edges(len(trace.pages), _WARM_UP_SHARE)
    draws = 1 if len(trace.pages) > _LONG_TRACE_ACCESSES else _DRAWS
    misses: list[Floats] = []
    for _ in range(draws):
        warm = [pools.draw(size, random) for size in sizes_blocks]
        missed, accesses = _replay(trace, sizes_blocks, rules, warm, edges, extensions_are_reads)
        misses.append(missed)
    mean = np.mean(misses, axis=0)
    point, low, high = _spread(mean, np.std(misses, axis=0).sum(axis=1), accesses, random)
    first = _first_visit_misses(trace, visits, pools, sizes_blocks) / max(accesses.sum(), 1)
    model = MODEL_ERROR_RATIO + FIRST_VISIT_ERROR_SHARE * first
    model = np.minimum(model, 0.3 * point + 0.0005)
    laps = [pools.lap_seconds(size) for size in sizes_blocks]
    reasons, usable = _verdict(trace, sizes_blocks, laps, lost_events)
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(point - np.hypot(point - low, model), 0, 1),
        high=np.clip(point + np.hypot(high - point, model), 0, 1),
        lap_seconds=pools.lap_seconds(pool_blocks),
        level="reliable" if usable else "refused",
        reasons=reasons,
    )


def estimate_cold(
    pages: NDArray[np.uint32], objects: int, *, sizes_blocks: Sequence[int], rules: _native.Rules
) -> Estimate:
    """Replay a foreign trace from empty pools and count every access, first ones included.

    Raises:
        ValueError: the trace holds no access.
    """
    if not len(pages):
        raise ValueError("the trace holds no access")
    counts = _native.replay(pages, list(sizes_blocks), rules, windows=_edges(len(pages), 0.0))
    misses, accesses = counts["misses"].astype(np.float64), counts["accesses"].astype(np.float64)
    point, low, high = _spread(misses, np.zeros(len(sizes_blocks)), accesses, np.random.default_rng(0))
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=low,
        high=high,
        lap_seconds=float("nan"),
        level="reliable",
        reasons=[f"counted from an empty pool: {objects / len(pages):.4f} of the accesses are first ones"],
    )


def _edges(accesses: int, warm_up: float) -> NDArray[np.uint64]:
    begin = int(accesses * warm_up)
    windows = max(min(_WINDOWS, accesses - begin), 1)
    return np.unique(np.linspace(begin, accesses, windows + 1).astype(np.uint64))


def _replay(
    trace: Trace,
    sizes_blocks: Sequence[int],
    rules: _native.Rules,
    warm: list[_native.PoolContents],
    edges: NDArray[np.uint64],
    extensions_are_reads: bool,
) -> tuple[Floats, Floats]:
    """Return misses (sizes, windows) and accesses (windows) as the server would count them."""
    ringed = len(trace.owner_access) > 0
    counts = _native.replay(
        trace.pages,
        list(sizes_blocks),
        rules,
        flags=trace.flags,
        owner_access=trace.owner_access if ringed else None,
        owner=trace.owner if ringed else None,
        owner_blocks=trace.owner_blocks if ringed else None,
        windows=edges,
        warm=warm,
    )
    misses = counts["misses"].astype(np.float64)
    accesses = counts["accesses"].astype(np.float64)
    if extensions_are_reads:
        extensions = counts["extensions"].astype(np.float64)
        return misses + extensions, accesses + extensions
    return misses, accesses


def _spread(
    misses: Floats, between_draws: Floats, accesses: Floats, random: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Return the ratio and its 90 % bounds by drawing the windows again (block bootstrap)."""
    total = max(float(accesses.sum()), 1.0)
    point = misses.sum(axis=1) / total
    picks = random.integers(0, len(accesses), (_REPLICATES, len(accesses)))
    ratios = misses[:, picks].sum(axis=2) / np.maximum(accesses[picks].sum(axis=1), 1.0)
    noise = ratios - point[:, None]
    noise += random.standard_normal(noise.shape) * (between_draws / total)[:, None]
    low, high = np.quantile(noise, [_TAIL, 1 - _TAIL], axis=1)
    return point, point + low, point + high


def _first_visit_misses(
    trace: Trace, visits: Visits, pools: WarmPools, sizes_blocks: Sequence[int]
) -> Floats:
    """Return about how many misses at each size fall on the first visit of a page in the trace."""
    old_pages = int((~trace.new_page & (visits.of_page > 0)).sum())
    seen = np.array([min(1.0, size / max(pools.most_resident, 1.0)) for size in sizes_blocks])
    return np.asarray(old_pages * (1 - seen))


def _verdict(
    trace: Trace, sizes_blocks: Sequence[int], laps: list[float], lost_events: int
) -> tuple[list[str], bool]:
    reasons = []
    usable = True
    seconds = trace.duration_seconds
    counted = int(trace.counted.sum())
    if counted < 10_000:
        reasons.append(f"only {counted} accesses of the database: record for longer")
        usable = counted >= 1_000
    beyond = [
        size for size, lap in zip(sizes_blocks, laps, strict=True) if np.isfinite(lap) and 2 * lap > seconds
    ]
    if beyond:
        reasons.append(
            f"from {min(beyond) * 8 // 1024} MB on, a page outstays the {seconds:.0f} s of the trace: "
            "those sizes rest on estimated rates, not on replay alone"
        )
    if lost_events:
        share = lost_events / (len(trace.pages) + lost_events)
        reasons.append(f"{lost_events} events were lost ({share:.2%})")
        usable = usable and share < 0.02
    return reasons, usable
