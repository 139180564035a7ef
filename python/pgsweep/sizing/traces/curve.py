"""The curve of a trace: replays into warm pools of each size, and the interval around what they give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pgsweep.records import trace_reasons
from pgsweep.sizing.estimate import Estimate
from pgsweep.sizing.traces.accesses import Floats, Trace
from pgsweep.sizing.traces.doubts import doubts_of_replays
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.shared_replays import ReplayPlan, replay_sizes_of
from pgsweep.sizing.traces.short import between, short_trace
from pgsweep.sizing.traces.today import TodayCheck
from pgsweep.sizing.traces.visits import count_visits
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.sizing.verdict import RELIABLE, ROUGH, Doubt, judged

if TYPE_CHECKING:
    from pgsweep.sizing.observed import Server, Steps

_SMALLEST_BLOCKS = 16


class TraceCurve:
    """Predicts the miss ratio of the database at any size by replaying a trace.

    Args:
        trace: of a recording, or what it would be under another load.
        server: that it was recorded on.
        plan: how it is replayed.
        as_recorded: what the server itself missed is known; of a changed trace nobody knows it.
        steps: that are known of the recording.

    Attributes:
        replay, pools: of the trace.
        short: what it shows where it covers few clock passes.

    Raises:
        ValueError: the trace holds no access of the database.
    """

    def __init__(
        self,
        trace: Trace,
        server: Server,
        plan: ReplayPlan | None = None,
        *,
        as_recorded: bool = True,
        steps: Steps | None = None,
    ) -> None:
        if not trace.counted.any():
            raise ValueError("the trace holds no access of the database")
        self._server = server
        self._plan = plan or ReplayPlan()
        self._as_recorded = as_recorded
        self._steps = steps
        rules = server.rules
        visits = count_visits(trace)
        self.short = short_trace(trace, visits, server) if as_recorded else None
        if self.short is not None:
            trace = replace(trace, began=self.short.states)
            visits = count_visits(trace)
        self.replay = Replay(
            trace,
            server.pool_blocks,
            rules,
            np.random.default_rng(self._plan.seed),
            extensions_are_reads=server.extensions_are_reads,
        )
        known = as_recorded and self.short is None
        self.pools = WarmPools(trace, visits, rules, start_blocks=server.pool_blocks if known else 0)

    def at(self, sizes_blocks: Sequence[int]) -> Estimate:
        """Return the curve at these sizes.

        Raises:
            UsageError: a size is too large for so short a trace.
            EvidenceError: that of its own pool is.
            MissingAbility: there is no such executor.
        """
        pool_blocks = self._server.pool_blocks
        by_size = self._replayed(sizes_blocks)
        check = TodayCheck.of(
            self.replay, self.pools, pool_blocks if self._as_recorded else 0, by_size, self._plan.seed
        )
        exact = check.exact
        today = np.array([exact is not None and size == pool_blocks for size in sizes_blocks])
        replayed = [
            exact if exact is not None and size == pool_blocks else by_size[size] for size in sizes_blocks
        ]
        point, low, high = _interval(replayed, today, check)
        # He who reads it sets a size for tomorrow, not for the stretch that was recorded.
        another = np.array([one.another_stretch for one in replayed])
        doubts = doubts_of_replays(self.replay, self.pools, check, self._server, sizes_blocks, replayed)
        if self.short is not None:
            passes, seconds = self.short.passes, self.replay.trace.duration_seconds
            # From a whole pass on, what today's size gives by replay tests the rates.
            level = ROUGH if passes < 1 else RELIABLE
            doubts.append(Doubt(level, trace_reasons.short_trace(passes, seconds)))
        level, reasons = judged(doubts)
        return Estimate(
            sizes_blocks=tuple(sizes_blocks),
            miss_ratio=point,
            low=np.clip(point - np.hypot(point - low, another), 0, 1),
            high=np.clip(point + np.hypot(high - point, another), 0, 1),
            of_stretch=np.clip([low, high], 0, 1),
            pass_seconds=self._pass_seconds,
            level=level,
            reasons=reasons,
            replayed_today=None if exact is None else exact.ratio,
            off_today=float(np.hypot(check.drawn_error, check.exact_error)),
            is_bounded=self.short is not None,
        )

    @property
    def _pass_seconds(self) -> float:
        if self.short is not None:
            return self.short.states.pass_seconds
        blocks = self._server.pool_blocks
        return float(self.pools.pass_seconds(blocks)) if blocks else float("nan")

    def _replayed(self, sizes_blocks: Sequence[int]) -> dict[int, Replayed]:
        """Return the replay at each size."""
        pages = int(self.pools.most_resident) + len(self.replay.trace.page_group)
        # A pool with four times as many buffers as there are pages evicts nothing, and no scan has a ring.
        most = max(4 * pages, self._server.pool_blocks, _SMALLEST_BLOCKS)
        sizes = sorted({min(size, most) for size in sizes_blocks})
        found = {}
        if self.short is not None:
            missed = self.replay.measured_misses
            measured, noise = self.replay.ratio(missed), self.replay.stretch.deviation(missed)
            # Today's size is replayed, for what it shows of the rates.
            beyond = [s for s in sizes if s != self._server.pool_blocks and self.short.answers(s)]
            found = {size: self.short.at(size, measured, noise) for size in beyond}
        left = [size for size in sizes if size not in found]

        def replayed(sizes: list[int]) -> dict[int, Replayed]:
            return replay_sizes_of(self.replay, self.pools, self._server, sizes, self._plan)

        if self._steps is None:
            found |= replayed(left)
        else:
            found |= self._steps.steps(f"replayed {self._plan.seed}", Replayed, left, replayed)
        if self.short is not None:
            # A larger pool misses no more than a smaller one, and the server has counted today's misses.
            pool = self._server.pool_blocks
            for size in beyond:
                smaller = [found[other].high for other in left if other < size and other != pool]
                at_most = min([*smaller, measured + noise if size > pool else 1.0])
                least = measured - noise if size < pool else 0.0
                found[size] = between(found[size], least, at_most)
        return found | {size: found[most] for size in sizes_blocks if size > most}


def _interval(
    replayed: Sequence[Replayed], today: np.ndarray, check: TodayCheck
) -> tuple[Floats, Floats, Floats]:
    """Return the miss ratios and the bounds of their intervals, of the stretch that was recorded.

    At today's size the server has counted: that ratio needs no replay. What the replay gives there is
    compared with it (`doubts.py`), and widens all intervals.

    Args:
        today: which of the sizes is today's, if what it replays was seen.
    """
    ratio = np.array([one.ratio for one in replayed])
    beside = np.where(today, check.exact_error, np.hypot(check.drawn_error, check.exact_error))
    point = np.where(today, check.measured, ratio)
    low = point - np.hypot(ratio - np.array([one.low for one in replayed]), beside)
    high = point + np.hypot(np.array([one.high for one in replayed]) - ratio, beside)
    return point, low, high
