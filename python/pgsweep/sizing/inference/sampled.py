"""Replay a long trace at many sizes by samples of its pages, each in a pool that is smaller in proportion.

Of the pages in the order of their number of accesses, every second, fourth, and so on is kept (a systematic
sample), so a sample has the same share of the pages of each popularity, the most popular included. A draw by
a hash of the page may hold one more or one less of the few that have a large part of all accesses, and is off
by percents for that alone. Misses are counted in the sample and multiplied; accesses are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.inference.accesses import MISS
from pgsweep.workers import run_tasks

Floats = NDArray[np.float64]
Pages = NDArray[np.uint32]

LONG_TRACE_ACCESSES: Final = 50_000_000
"""From this length on a trace is replayed by samples."""

_LEAST_BLOCKS: Final = 1024
"""Buffers of the pool that a sample is replayed in: in smaller ones it matters how many of them there are."""

_LEAST_ACCESSES: Final = 400_000
_MOST_HALVINGS: Final = 8
"""One page of 256 is kept at least."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Accesses of one page of 2^halvings.

    Attributes:
        pages: of each access, numbered in the order of their number of accesses in the whole trace.
        objects: how many pages there are.
        edges: where windows begin, and where the last ends.
    """

    halvings: int
    pages: Pages
    objects: int
    edges: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SampledMisses:
    """Misses of the whole trace, as a sample has them.

    Attributes:
        misses: in each window.
        error: standard error of their sum, since other pages might have been drawn.
    """

    misses: Floats
    error: float


def replay_sizes(
    pages: Pages,
    objects: int,
    sizes_blocks: Sequence[int],
    version: int,
    edges: NDArray[np.int64],
    *,
    sampled: bool,
    executor: Executor | str | None = None,
    seed: int = 0,
) -> list[SampledMisses]:
    """Return the misses at each size, in an empty pool at first; the same numbers with any executor.

    Args:
        pages: of each access, dense ids below `objects`.
        version: of PostgreSQL, whose rules hold.
        edges: where windows of the trace begin, and where the last ends.
        sampled: by samples of the pages; else by all of them.
        executor: where sizes are replayed; None is threads of this process.
        seed: of the draw.
    """
    wanted = [_halvings(size, len(pages)) if sampled else 0 for size in sizes_blocks]
    samples = {0: Sample(halvings=0, pages=pages, objects=objects, edges=edges)}
    if max(wanted):
        samples |= _samples(pages, objects, edges, set(wanted) - {0}, np.random.default_rng(seed))
    tasks = [
        (samples[halvings], max(round(size / 2**halvings), 16), version)
        for size, halvings in zip(sizes_blocks, wanted, strict=True)
    ]
    return run_tasks(executor, replay_sample, tasks)


def replay_sample(sample: Sample, blocks: int, version: int) -> SampledMisses:
    """Replay a sample in a pool that is as many times smaller; runs in a worker."""
    rules = _native.Rules(version)
    if not sample.halvings:
        windows = sample.edges.astype(np.uint64)
        counts = _native.replay(sample.pages, [blocks], rules, windows=windows, threads=1)
        return SampledMisses(misses=counts["misses"][0].astype(np.float64), error=0.0)
    outcome = _native.replay_outcomes(sample.pages, blocks, rules)["outcomes"]
    missed = np.flatnonzero(outcome == MISS)
    weight = 2.0**sample.halvings
    by_page = np.bincount(sample.pages[missed], minlength=sample.objects).astype(np.float64)
    # Neighbours are alike, so their differences show what another draw would change.
    variance = float((np.diff(by_page) ** 2).sum()) / 2 * (1 - 1 / weight)
    return SampledMisses(
        misses=weight * np.diff(np.searchsorted(missed, sample.edges)).astype(np.float64),
        error=weight * variance**0.5,
    )


def _halvings(blocks: int, accesses: int) -> int:
    """Return how often the pages may be halved for a size."""
    most = min(blocks / _LEAST_BLOCKS, accesses / _LEAST_ACCESSES)
    return int(np.clip(np.floor(np.log2(max(most, 1.0))), 0, _MOST_HALVINGS))


def _samples(
    pages: Pages, objects: int, edges: NDArray[np.int64], wanted: set[int], random: np.random.Generator
) -> dict[int, Sample]:
    """Return a sample for each number of halvings; those of more halvings lie in those of fewer."""
    count = np.bincount(pages, minlength=objects)
    # Pages of equal numbers in a random order: blocks that lie side by side are used at the same time.
    order = np.argsort(random.random(objects) - count)
    place = np.empty(objects, dtype=np.uint32)
    place[order] = np.arange(objects, dtype=np.uint32)
    begin = int(random.integers(0, 2**_MOST_HALVINGS))
    samples: dict[int, Sample] = {}
    at = place[pages]
    for halvings in range(max(wanted) + 1):
        step = 2**halvings
        if halvings:
            kept = (at & (step - 1)) == begin % step
            edges = np.concatenate([[0], np.cumsum(np.add.reduceat(kept, edges[:-1], dtype=np.int64))])
            at = at[kept]
        if halvings in wanted:
            own = len(range(begin % step, objects, step))
            samples[halvings] = Sample(halvings=halvings, pages=at // step, objects=own, edges=edges)
    return samples
