"""How long a disk takes for random reads while 1, 2, 4, ... of them are in flight: the depth.

Blocks of relations that are not in the page cache are read past it (O_DIRECT): nothing is brought into it,
and no dirty page has to be written first, which the kernel does for a direct read of one. No block is read
twice, since the device, or the host of a virtual machine, would have it in a cache of its own.

The server's own reads go on meanwhile: what is measured is the latency with these in flight besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pgsweep._native import page_cache, timed_reads
from pgsweep.records.prediction import DiskLatency

DEPTHS: Final = (1, 2, 4, 8, 16, 32)
MOST_READS: Final = 2000
"""At each depth."""

ROUNDS: Final = 3
_MOST_SECONDS: Final = 0.05
"""Most seconds at each depth in each round; all of them together take 0.9 s."""

SLOWER: Final = 3.0
"""How much longer than one alone reads may take before no greater depth is tried."""

_SATURATED: Final = 2.0
_GROWTH: Final = 1.1
"""Where reads take twice as long and are not a tenth more per second, the device is saturated."""

_BLOCK_BYTES: Final = 8192
_FEWEST_BLOCKS: Final = 600
_FEWEST_READS: Final = 3
_FILES: Final = 16
_SLICES: Final = 4
"""Of a round."""

Reader: TypeAlias = Callable[[NDArray[np.int64], int], NDArray[np.float64]]
"""Reads blocks, by their numbers, at a depth, and returns the seconds of each, in the order of time."""


def disk_latencies(paths: Sequence[str]) -> tuple[list[DiskLatency], str]:
    """Return the latency at each depth, and what was not measured and why.

    Args:
        paths: of the files of relations; blocks of the largest few of the device that holds most are read.
    """
    chosen = _largest_of_device(paths)
    seen = page_cache(chosen, maps=True, block_bytes=_BLOCK_BYTES)
    # A file that was dropped meanwhile, or whose pages the kernel does not show us, has an error.
    first, whole = seen["first_block"], np.where(seen["error"] == 0, seen["size_bytes"] // _BLOCK_BYTES, 0)
    files, blocks = [], []
    for index, count in enumerate(whole.tolist()):
        free = np.flatnonzero(seen["cached_pages"][first[index] : first[index + 1]][:count] == 0)
        files.append(np.full(len(free), index, np.int64))
        blocks.append(free)
    file, block = (np.concatenate([np.empty(0, np.int64), *each]) for each in (files, blocks))
    if len(file) < _FEWEST_BLOCKS:
        return [], f"all: fewer than {_FEWEST_BLOCKS} blocks of relations are not in the page cache"

    def read(numbers: NDArray[np.int64], depth: int) -> NDArray[np.float64]:
        return timed_reads(
            chosen,
            file[numbers].tolist(),
            (block[numbers] * _BLOCK_BYTES).tolist(),
            block_bytes=_BLOCK_BYTES,
            depth=depth,
            seconds=_MOST_SECONDS,
        )

    try:
        return measured(read, len(file))
    except OSError as error:
        return [], f"all: reads past the page cache (O_DIRECT) failed: {error}"


def measured(read: Reader, blocks: int) -> tuple[list[DiskLatency], str]:
    """Return the latency at each depth until the device is saturated, and why not at the others.

    Each depth is measured in rounds, so that what changes meanwhile is in the error and not in one depth.

    Args:
        read: reads blocks.
        blocks: their number; each is read once at most.

    Raises:
        OSError: of `read`.
    """
    share = min(MOST_READS // ROUNDS, blocks // (len(DEPTHS) * ROUNDS))
    order = np.random.default_rng(0).choice(blocks, share * len(DEPTHS) * ROUNDS, replace=False)
    parts = iter(np.split(order.astype(np.int64), len(DEPTHS) * ROUNDS))
    found: list[DiskLatency] = []
    rounds: list[list[NDArray[np.float64]]] = []
    lacking = ""
    for index, depth in enumerate(DEPTHS):
        seconds = read(next(parts), depth)
        if len(seconds) < _FEWEST_READS:
            lacking = f"depth {depth} and more: fewer than {_FEWEST_READS} reads came back in time"
            break
        rounds.append([seconds])
        found.append(_latency(depth, [seconds]))
        why = None if depth == DEPTHS[-1] else _enough(found)
        if why is not None:
            lacking = f"depth {DEPTHS[index + 1]} and more: {why}"
            break
    for _ in range(1, ROUNDS):
        for depth, taken in zip(DEPTHS, rounds, strict=False):
            taken.append(read(next(parts), depth))
    return [_latency(depth, taken) for depth, taken in zip(DEPTHS, rounds, strict=False)], lacking


def _enough(found: Sequence[DiskLatency]) -> str | None:
    """Return why no greater depth is tried; None where one is."""
    last = found[-1]
    slower = last.seconds / found[0].seconds
    if slower > SLOWER:
        return f"at {last.depth} reads took {slower:.1f} times as long as one alone"
    if len(found) < 2 or slower < _SATURATED:
        return None
    before = found[-2]
    if last.depth / last.seconds > _GROWTH * before.depth / before.seconds:
        return None
    return f"at {last.depth} reads took {slower:.1f} times as long as one alone, and were no more per second"


def _latency(depth: int, rounds: Sequence[NDArray[np.float64]]) -> DiskLatency:
    """Return the mean and its standard error, by slices of time: reads that follow each other are alike."""
    taken = [seconds for seconds in rounds if len(seconds)]
    slices = [float(part.mean()) for one in taken for part in np.array_split(one, min(_SLICES, len(one)))]
    seconds = np.concatenate(taken)
    return DiskLatency(
        depth=depth,
        seconds=float(seconds.mean()),
        error_seconds=float(np.std(slices, ddof=1)) / math.sqrt(len(slices)),
        reads=len(seconds),
    )


def _largest_of_device(paths: Sequence[str]) -> list[str]:
    """Return the largest few files of the device that holds most of them."""
    by_device: dict[int, list[tuple[int, str]]] = {}
    for path in paths:
        try:
            known = Path(path).stat()
        except OSError:
            continue  # it was dropped
        by_device.setdefault(known.st_dev, []).append((known.st_size, path))
    most = max(by_device.values(), key=lambda files: sum(size for size, _ in files), default=[])
    return [path for _, path in sorted(most, reverse=True)[:_FILES]]
