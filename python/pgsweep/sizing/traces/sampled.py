"""Replay a long trace at many sizes by samples of its pages, each in a pool that is smaller in proportion.

Of the pages in the order of their number of accesses, every second, fourth, and so on is kept (a systematic
sample), so a sample has the same share of the pages of each popularity, the most popular included. A draw by
a hash of the page may hold one more or one less of the few that have a large part of all accesses, and is off
by percents for that alone. Misses are counted in the sample and multiplied; accesses are known.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.parallel import map_in_threads

if TYPE_CHECKING:
    from concurrent.futures import Executor

Floats = NDArray[np.float64]
Pages = NDArray[np.uint32]

LONG_TRACE_ACCESSES: Final = 50_000_000
"""From this length on a trace is replayed by samples."""

_LEAST_BLOCKS: Final = 1024
"""Buffers of the pool that a sample is replayed in: in smaller ones it matters how many of them there are."""

_LEAST_ACCESSES: Final = 400_000
_MOST_HALVINGS: Final = 8
"""One page of 256 is kept at least."""

PARTS: Final = 16
"""Every 16th page of a sample is a smaller sample of its kind."""
_SIZES_OF_TASK: Final = 4

_PIECE_ACCESSES: Final = 1 << 18
"""Of a trace, looked through at a time: what numpy makes of a piece stays in a processor's cache."""

_ACCESSES_A_COUNT: Final = 4
"""Least accesses per page and thread: with fewer, adding up the threads' counts would not pay."""


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
    wanted = [halvings_of(size, len(pages)) if sampled else 0 for size in sizes_blocks]
    samples = {0: Sample(halvings=0, pages=pages, objects=objects, edges=edges)}
    if max(wanted):
        samples |= _samples(pages, objects, edges, set(wanted) - {0}, np.random.default_rng(seed))
    tasks, numbers = [], []
    for halvings, sample in samples.items():
        own = [number for number, one in enumerate(wanted) if one == halvings]
        for begin in range(0, len(own), _SIZES_OF_TASK):
            part = own[begin : begin + _SIZES_OF_TASK]
            blocks = [max(round(sizes_blocks[number] / 2**halvings), 16) for number in part]
            tasks.append((sample, blocks, version))
            numbers += part
    if executor is None:
        parts = map_in_threads(replay_sample, *zip(*tasks, strict=True))
    else:
        from pgsweep.workers import run_tasks

        parts = run_tasks(executor, replay_sample, tasks)
    found = [one for part in parts for one in part]
    return [one for _, one in sorted(zip(numbers, found, strict=True), key=lambda pair: pair[0])]


def replay_sample(sample: Sample, sizes_blocks: Sequence[int], version: int) -> list[SampledMisses]:
    """Replay a sample in pools that are as many times smaller; runs in a worker."""
    counts = _native.replay(
        # What came over a network may lie at any address.
        np.require(sample.pages, requirements=("C_CONTIGUOUS", "ALIGNED")),
        list(sizes_blocks),
        _native.Rules(version),
        windows=sample.edges.astype(np.uint64),
        groups=np.arange(sample.objects, dtype=np.uint32) % PARTS if sample.halvings else None,
        threads=1,
    )
    weight = 2.0**sample.halvings
    misses = weight * counts["misses"].astype(np.float64)
    if not sample.halvings:
        return [SampledMisses(misses=row, error=0.0) for row in misses]
    parts = counts["group_misses"].astype(np.float64)
    errors = weight * np.sqrt(PARTS * parts.var(axis=1, ddof=1) * (1 - 1 / weight))
    return [
        SampledMisses(misses=row, error=error) for row, error in zip(misses, errors.tolist(), strict=True)
    ]


def halvings_of(blocks: int, accesses: int) -> int:
    """Return how often the pages may be halved for a size."""
    most = min(blocks / _LEAST_BLOCKS, accesses / _LEAST_ACCESSES)
    return int(np.clip(np.floor(np.log2(max(most, 1.0))), 0, _MOST_HALVINGS))


def _samples(
    pages: Pages, objects: int, edges: NDArray[np.int64], wanted: set[int], random: np.random.Generator
) -> dict[int, Sample]:
    """Return a sample for each number of halvings; those of more halvings lie in those of fewer."""
    count = count_accesses(pages, objects)
    # Pages of equal numbers in a random order: blocks that lie side by side are used at the same time.
    order = np.argsort(random.random(objects) - count)
    begin = int(random.integers(0, 2**_MOST_HALVINGS))
    place = np.empty(objects, dtype=np.uint32)
    place[order] = np.arange(objects, dtype=np.uint32)
    # How many halvings of the sample each page survives.
    level = np.zeros(objects, dtype=np.uint8)
    for halvings in range(1, max(wanted) + 1):
        level[order[begin % 2**halvings :: 2**halvings]] = halvings
    samples: dict[int, Sample] = {}
    for halvings in sorted(wanted):
        pages, edges = _outlasting(pages, edges, level, halvings)
        step = 2**halvings
        own = len(range(begin % step, objects, step))
        samples[halvings] = Sample(halvings=halvings, pages=place[pages] // step, objects=own, edges=edges)
    return samples


def count_accesses(pages: Pages, objects: int) -> NDArray[np.int64]:
    """Return the number of accesses of each page."""
    most = len(pages) // (_ACCESSES_A_COUNT * max(objects, 1))
    parts = np.array_split(pages, max(min(os.cpu_count() or 1, most), 1))
    counts = map_in_threads(lambda part: np.bincount(part, minlength=objects), parts)
    total = counts[0]
    for count in counts[1:]:
        total += count
    return total


def _outlasting(
    pages: Pages, edges: NDArray[np.int64], level: NDArray[np.uint8], halvings: int
) -> tuple[Pages, NDArray[np.int64]]:
    """Return the accesses of pages that outlast a number of halvings, and the edges of windows among them."""

    def look(begin: int) -> tuple[Pages, NDArray[np.int64]]:
        piece = pages[begin : begin + _PIECE_ACCESSES]
        kept = level.take(piece) >= halvings
        inside = np.clip(edges - begin, 0, len(piece)).tolist()
        counts = [np.count_nonzero(kept[start:end]) for start, end in pairwise(inside)]
        return piece[kept], np.array(counts, dtype=np.int64)

    found = map_in_threads(look, range(0, len(pages), _PIECE_ACCESSES))
    counts = np.sum([count for _, count in found], axis=0)
    return np.concatenate([piece for piece, _ in found]), np.concatenate([[0], np.cumsum(counts)])
