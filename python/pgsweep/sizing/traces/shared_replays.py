"""Replays of a recorded trace at many sizes: here or on other workers, and by samples if it is long.

All draws at a size come from a generator of their own, which the size seeds. So the numbers depend neither on
who replays what, nor on which other sizes are asked for. Workers get the trace, and count its visits again.

Of a long trace the pages are sampled as those of a foreign one (pgsweep.sizing.traces.sampled). What a
replay counts is then divided by the accesses that the sample stands for, not by its own: a page that has a
large part of all accesses is in the sample or not, but hardly ever misses. By how much misses would differ
had other pages been drawn is in the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pgsweep.sizing.traces.accesses import STRATEGY, Trace
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.sampled import LONG_TRACE_ACCESSES, halvings_of
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pgsweep.sizing.observed import Server

_SIZES_OF_TASK: Final = 2

_FEW_RINGED: Final = 0.01
"""A ring has the same number of buffers in a smaller pool. Where more of the accesses go through rings, all
pages are replayed."""


@dataclass(frozen=True, kw_only=True)
class ReplayPlan:
    """How a trace is replayed.

    Attributes:
        seed: of all draws.
        executor: where the sizes are replayed; None is this process.
        long_trace_accesses: from which number of rows on pages are sampled.
    """

    seed: int = 0
    executor: Executor | str | None = None
    long_trace_accesses: int = LONG_TRACE_ACCESSES


@dataclass(frozen=True, kw_only=True)
class SizesToReplay:
    """A task: a trace, or a sample of its pages, and the sizes to replay it at.

    Attributes:
        trace: of the pages that were kept.
        server: that the whole trace was taken on.
        halvings: one page of 2^halvings was kept.
        accesses: of the database, in the whole trace.
        sizes_blocks: of the whole pool.
    """

    trace: Trace
    server: Server
    halvings: int
    accesses: float
    sizes_blocks: tuple[int, ...]
    seed: int


def replay_sizes_of(
    replay: Replay, pools: WarmPools, server: Server, sizes_blocks: Sequence[int], plan: ReplayPlan
) -> dict[int, Replayed]:
    """Return what a trace does at each size; the same numbers with any executor.

    Args:
        replay, pools: of the whole trace; `server` that it was taken on.
    """
    trace, rows = replay.trace, len(replay.trace.pages)
    sampled = (
        rows >= plan.long_trace_accesses and np.count_nonzero(trace.flags & STRATEGY) <= _FEW_RINGED * rows
    )
    by_halvings: dict[int, list[int]] = {}
    for size in sizes_blocks:
        by_halvings.setdefault(halvings_of(size, rows) if sampled else 0, []).append(size)
    found: dict[int, Replayed] = {}
    if plan.executor is None and 0 in by_halvings:
        for size in by_halvings.pop(0):
            found[size] = replay.at(size, pools, generator(plan.seed, size))
    tasks = []
    for halvings, own in by_halvings.items():
        kept = sample_pages(trace, halvings, plan.seed) if halvings else trace
        step = _SIZES_OF_TASK if plan.executor is not None else len(own)
        tasks += [
            SizesToReplay(
                trace=kept,
                server=server,
                halvings=halvings,
                accesses=replay.stretch.total,
                sizes_blocks=tuple(own[begin : begin + step]),
                seed=plan.seed,
            )
            for begin in range(0, len(own), step)
        ]
    if plan.executor is None:
        parts = [replay_task(task) for task in tasks]
    else:
        from pgsweep.workers import run_tasks

        parts = run_tasks(plan.executor, replay_task, [(task,) for task in tasks])
    for part in parts:
        found |= part
    return found


def replay_task(task: SizesToReplay) -> dict[int, Replayed]:
    """Replay a trace at some sizes; runs in a worker."""
    # What came over a network may lie at any address.
    arrays = {name: value for name, value in vars(task.trace).items() if isinstance(value, np.ndarray)}
    laid: dict[str, Any] = {name: np.require(one, requirements=("C", "A")) for name, one in arrays.items()}
    trace = replace(task.trace, **laid)
    rules, step = task.server.rules, 2**task.halvings
    replay = Replay(
        trace,
        task.server.pool_blocks // step,
        rules,
        np.random.default_rng(task.seed),
        extensions_are_reads=task.server.extensions_are_reads,
        halvings=task.halvings,
    )
    if task.halvings:
        replay.stretch.total = task.accesses / step
    pools = WarmPools(trace, count_visits(trace), rules)
    return {
        size: replay.at(round(size / step), pools, generator(task.seed, size)) for size in task.sizes_blocks
    }


def generator(seed: int, blocks: int) -> np.random.Generator:
    """Return the generator of all draws at a size."""
    return np.random.default_rng([seed, blocks])


def sample_pages(trace: Trace, halvings: int, seed: int) -> Trace:
    """Return the trace of one page of 2^halvings, as many of each popularity; pages are numbered by it."""
    step, objects = 2**halvings, len(trace.page_group)
    count = np.bincount(trace.pages, minlength=objects)
    # Pages of equal numbers in a random order: blocks that lie side by side are used at the same time.
    order = np.argsort(np.random.default_rng(seed).random(objects) - count)
    # From the middle of the first step: as many pages are more popular than a kept one as it stands for.
    chosen = order[step // 2 :: step]
    number = np.full(objects, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    kept = number[trace.pages] >= 0
    position = np.cumsum(kept) - 1
    owned = kept[trace.owner_access.astype(np.int64)]
    owners, owner = np.unique(trace.owner[owned], return_inverse=True)
    page_group = trace.page_group[chosen]
    seen = np.bincount(page_group, minlength=len(trace.group_pages))
    return replace(
        trace,
        **trace.of_rows(kept) | {"pages": number[trace.pages[kept]].astype(np.uint32)},
        owner_access=position[trace.owner_access.astype(np.int64)[owned]].astype(np.uint64),
        owner=owner.ravel().astype(np.uint32),
        owner_blocks=np.maximum(trace.owner_blocks[owners] // step, 1).astype(np.uint32),
        page_group=page_group,
        group_pages=np.maximum(trace.group_pages / step, seen),
        new_page=trace.new_page[chosen],
        start=None,
        began=None if trace.began is None else replace(trace.began, states=trace.began.states[chosen]),
    )
