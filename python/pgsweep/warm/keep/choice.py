"""Which blocks to keep, which of them to touch, which to read again: arithmetic, without a server.

A buffer leaves the pool when the clock hand finds it with usage_count 0 and no pin (StrategyGetBuffer,
freelist.c); a visit before takes 1 off, an access puts 1 on, up to 5 (PinBuffer, bufmgr.c). So a buffer with
usage_count u survives u visits, and what is to survive v of them needs v - u touches now.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pgsweep.pg.catalog.agreement import MAX_USAGE_COUNT

HALF_LIFE_SECONDS = 60.0
"""The time in which the heat of a block that nobody uses falls by half."""

_KEPT_BEFORE = 1.2
"""A kept block stays until another is hotter by this factor, so that equally hot blocks do not alternate."""


def visits(
    buffers: NDArray[np.int64], hand: int | None, ahead_buffers: float, pool_buffers: int
) -> NDArray[np.int64]:
    """Return how often the hand visits each buffer while it passes a number of buffers.

    Args:
        buffers: from 0.
        hand: the buffer that it examines next; None if that is not seen, and the worst case is assumed.
        ahead_buffers: how many buffers it passes.
        pool_buffers: in the whole pool.
    """
    if hand is None:
        return np.full(len(buffers), int(np.ceil(ahead_buffers / pool_buffers)), dtype=np.int64)
    distance = (buffers - hand) % pool_buffers
    return np.maximum(0, np.ceil((ahead_buffers - distance) / pool_buffers)).astype(np.int64)


def touches(usage_counts: NDArray[np.uint8], due: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often each buffer must be touched to survive these visits, as far as that is possible."""
    counts = usage_counts.astype(np.int64)
    needed: NDArray[np.int64] = np.minimum(np.maximum(due - counts, 0), MAX_USAGE_COUNT - counts)
    return needed


class BlockHeat:
    """How much others use the blocks of one relation, as usage_counts show it; our own touches are taken off.

    Attributes:
        heat: by block, a mean over the last minute or so of the usage_count that others gave it; from 0 to 5.
    """

    def __init__(self, blocks: int) -> None:
        self.heat = np.zeros(blocks, dtype=np.float32)
        self._ours = np.zeros(blocks, dtype=np.uint8)
        self._looked = False

    def resize(self, blocks: int) -> None:
        """Adapt to a relation that has grown or was truncated."""
        old = len(self.heat)
        if blocks < old:
            self.heat, self._ours = self.heat[:blocks].copy(), self._ours[:blocks].copy()
        elif blocks > old:
            more = blocks - old
            self.heat = np.concatenate([self.heat, np.zeros(more, dtype=np.float32)])
            self._ours = np.concatenate([self._ours, np.zeros(more, dtype=np.uint8)])

    def see(self, blocks: NDArray[np.int64], usage_counts: NDArray[np.uint8], seconds: float) -> None:
        """Update the heat from one snapshot.

        Args:
            blocks: those that are resident, no block twice.
            usage_counts: of these.
            seconds: since the snapshot before.
        """
        # What the hand has subtracted may have been counts of our own touches. So use by others is estimated
        # too low, never too high.
        self._ours[blocks] = np.minimum(self._ours[blocks], usage_counts)
        theirs = np.zeros(len(self.heat), dtype=np.float32)
        theirs[blocks] = usage_counts - self._ours[blocks]
        gone = np.ones(len(self.heat), dtype=np.bool_)
        gone[blocks] = False
        self._ours[gone] = 0
        kept = 0.5 ** (seconds / HALF_LIFE_SECONDS) if self._looked else 0.0
        self.heat = self.heat * np.float32(kept) + theirs * np.float32(1.0 - kept)
        self._looked = True

    def touched(self, blocks: NDArray[np.int64], times: NDArray[np.int64] | int) -> None:
        """Record our own touches; reading a block again is one."""
        self._ours[blocks] = np.minimum(MAX_USAGE_COUNT, self._ours[blocks] + times)


def choose(
    heats: Sequence[NDArray[np.float32]], before: Sequence[NDArray[np.bool_]], budget_blocks: int
) -> list[NDArray[np.bool_]]:
    """Return which blocks of each relation are kept.

    All, where they fit into the budget; else the hottest of those that anybody uses, as many as fit.

    Args:
        heats: by block, one array a relation.
        before: the choice before this one, of the same shape.
        budget_blocks: for all relations together.
    """
    total = sum(len(heat) for heat in heats)
    if total <= budget_blocks:
        return [np.ones(len(heat), dtype=np.bool_) for heat in heats]
    weights = np.concatenate(heats)
    weights[np.concatenate(before)] *= np.float32(_KEPT_BEFORE)
    chosen = np.zeros(total, dtype=np.bool_)
    if budget_blocks > 0:
        hottest = np.argpartition(weights, total - budget_blocks)[total - budget_blocks :]
        chosen[hottest] = weights[hottest] > 0
    edges = np.cumsum([len(heat) for heat in heats])[:-1]
    return np.split(chosen, edges)


def hottest(
    heats: Sequence[NDArray[np.float32]], missing: Sequence[NDArray[np.int64]], blocks: int
) -> list[NDArray[np.int64]]:
    """Return the hottest missing blocks of all relations, up to a number, by relation and in block order."""
    if sum(len(numbers) for numbers in missing) <= blocks:
        return list(missing)
    weights = np.concatenate([heat[numbers] for heat, numbers in zip(heats, missing, strict=True)])
    # Stable, so that blocks of one heat come in their order and make long stretches.
    taken = np.zeros(len(weights), dtype=np.bool_)
    taken[np.argsort(-weights, kind="stable")[: max(0, blocks)]] = True
    edges = np.cumsum([len(numbers) for numbers in missing])[:-1]
    return [numbers[part] for numbers, part in zip(missing, np.split(taken, edges), strict=True)]


def stretches(blocks: NDArray[np.int64], times: NDArray[np.int64] | None = None) -> list[tuple[int, int]]:
    """Return the blocks as stretches, first and last block; what is to be touched twice comes twice.

    Args:
        blocks: in ascending order, no block twice.
        times: how often each is to be touched; once where not given.
    """
    found: list[tuple[int, int]] = []
    most = 1 if times is None or not len(times) else int(times.max())
    for level in range(most):
        part = blocks if times is None else blocks[times > level]
        if not len(part):
            continue
        ends = np.flatnonzero(np.diff(part) != 1)
        firsts = part[np.concatenate([[0], ends + 1])]
        lasts = part[np.concatenate([ends, [len(part) - 1]])]
        found += list(zip(firsts.tolist(), lasts.tolist(), strict=True))
    return found
