"""How a replay of today's size comes out, where the server's own hits and misses are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from pgsweep.commands import recording
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.sizing.traces.replays import Replay, Replayed
from pgsweep.sizing.traces.shared_replays import generator
from pgsweep.sizing.traces.warm_start import WarmPools
from pgsweep.units import BLOCK_BYTES, format_bytes


@dataclass(frozen=True, kw_only=True)
class TodayCheck:
    """What was counted at today's size, and what replays give there.

    Attributes:
        measured: by the server.
        exact: replayed from the pool's contents, where they were seen.
        drawn: replayed from drawn states.
        worst: the relation whose replayed misses are furthest from those counted; `replayed` and `counted`
            are its misses.
        apart: by how much the misses of all relations differ, added up, relative to all accesses.
    """

    measured: float
    exact: Replayed | None
    drawn: Replayed | None
    worst: str = ""
    replayed: int = 0
    counted: int = 0
    apart: float = 0.0

    @classmethod
    def of(
        cls,
        replay: Replay,
        pools: WarmPools,
        pool_blocks: int,
        simulated: dict[int, Replayed],
        seed: int,
    ) -> Self:
        """Compare replays of today's size with what was counted.

        Args:
            replay, pools: of the trace.
            pool_blocks: today's size; 0 where nobody knows what was missed.
            simulated: from drawn states, by size.
            seed: of the draws.

        Raises:
            EvidenceError: today's size is too large for so short a trace.
        """
        measured = replay.ratio(replay.measured_misses)
        if not pool_blocks or not (replay.measured_misses.any() or replay.trace.start is not None):
            return cls(measured=measured, exact=None, drawn=None)
        drawn = simulated.get(pool_blocks) or _today(replay, pools, pool_blocks, seed)
        if replay.trace.start is None or pool_blocks > pools.most_buffers:
            return cls(measured=measured, exact=None, drawn=drawn)
        exact, misses = replay.replay_start(pool_blocks)
        expected, counted = replay.by_group(misses), replay.by_group(replay.measured_misses)
        away = np.abs(expected - counted)
        worst = int(np.argmax(away))
        names = replay.trace.group_names
        return cls(
            measured=measured,
            exact=exact,
            drawn=drawn,
            worst=names[worst] if worst < len(names) else "",
            replayed=int(expected[worst]),
            counted=int(counted[worst]),
            apart=float(away.sum()) / max(replay.stretch.total, 1.0),
        )

    @property
    def exact_error(self) -> float:
        """Return by how much the replay from the pool's own contents misses the mark."""
        return 0.0 if self.exact is None else abs(self.exact.ratio - self.measured)

    @property
    def drawn_error(self) -> float:
        """Return by how much drawn states miss the mark, from wherever rings may have brought the pool."""
        if self.drawn is None:
            return 0.0
        mark = self.measured if self.exact is None else self.exact.ratio
        ends = (self.drawn.ratio, self.drawn.fresh, self.drawn.settled)
        return max(min(ends) - mark, mark - max(ends), 0.0)


def _today(replay: Replay, pools: WarmPools, pool_blocks: int, seed: int) -> Replayed:
    """Replay at the size of the trace's own pool.

    Raises:
        EvidenceError: that is too large for so short a trace.
    """
    try:
        return replay.at(pool_blocks, pools, generator(seed, pool_blocks))
    except UsageError as error:
        size = format_bytes(pool_blocks * BLOCK_BYTES)
        raise EvidenceError(
            f"the trace is too short for the pool that it was taken on, {size}",
            cause=error.cause,
            hint="record for longer: " + recording("--source trace --for 5min"),
        ) from error
