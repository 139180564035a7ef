"""A curve from a trace: replay into warm pools, the spread between stretches, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import EvidenceError, UsageError
from pgsweep.inference.accesses import DROP, EXTEND, EXTENSION, MISS, UNCOUNTED, Trace
from pgsweep.inference.estimate import REFUSED, RELIABLE, ROUGH, Estimate
from pgsweep.inference.spread import Stretch
from pgsweep.inference.visits import count_visits
from pgsweep.inference.warm import PoolPages, WarmPools
from pgsweep.records.prediction import Level

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]

_DRAWS = 3
_LONG_TRACE_ROWS = 20_000_000
_Z90 = 1.645

UPTIME_SECONDS = 60.0
"""A prediction is for a server that has run for so long with the size, as a measurement after a restart would
find it. What rings leave behind takes minutes to days to gather, and the interval holds its end too."""

MODEL_ERROR_RATIO = 0.002
FIRST_VISIT_ERROR_SHARE = 0.1
"""Added to the interval: a floor, and a share of what depends on the drawn warm state and not on the trace:
first visits that hit or miss by the draw (docs/concepts/prediction.md)."""

_SMALLEST_BLOCKS = 16
_FEW_ACCESSES, _TOO_FEW_ACCESSES = 10_000, 1_000
_SOME_LOST, _TOO_MANY_LOST = 0.001, 0.02
_WRONG_TODAY, _VERY_WRONG_TODAY = 0.003, 0.03
_DRIFT = 0.01
_WIDE = 0.02
"""Thresholds of the verdict, miss ratios and shares."""


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
    replay = _Replay(trace, pool_blocks, rules, extensions_are_reads=extensions_are_reads)
    pools = WarmPools(trace, count_visits(trace), rules)
    random = np.random.default_rng(seed)
    draws = 1 if len(trace.pages) > _LONG_TRACE_ROWS else _DRAWS
    # A pool with four times the buffers that there are pages evicts nothing, and no scan of it has a ring.
    most = max(4 * (int(pools.most_resident) + len(trace.page_group)), pool_blocks, _SMALLEST_BLOCKS)
    simulated = {
        size: replay.at(size, pools, draws, random) for size in sorted({min(s, most) for s in sizes_blocks})
    }
    found = [simulated[min(size, most)] for size in sizes_blocks]
    today = _today(replay, pool_blocks, pools, draws, random) if pool_blocks else None
    exact = None
    if trace.start is not None and 0 < pool_blocks <= pools.most_frames:
        exact = replay.from_start(pool_blocks)
        found = [exact if size == pool_blocks else one for size, one in zip(sizes_blocks, found, strict=True)]
    check = _Check.of(replay, today, exact)
    point = np.array([one.ratio for one in found])
    known = np.array([exact is not None and size == pool_blocks for size in sizes_blocks])
    beside = np.where(known, 0.0, check.state_error)
    low = point - np.hypot(point - np.array([one.low for one in found]), beside)
    high = point + np.hypot(np.array([one.high for one in found]) - point, beside)
    level, reasons = _verdict(replay, pools, check, pool_blocks, sizes_blocks, found, lost_events)
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(low, 0, 1),
        high=np.clip(high, 0, 1),
        lap_seconds=pools.lap_seconds(pool_blocks) if pool_blocks else float("nan"),
        level=level,
        reasons=reasons,
    )


def estimate_cold(
    pages: NDArray[np.uint32], objects: int, *, sizes_blocks: Sequence[int], rules: _native.Rules
) -> Estimate:
    """Replay a foreign trace from empty pools; first accesses count, and the lower bound leaves them out.

    Raises:
        ValueError: the trace holds no access.
    """
    if not len(pages):
        raise ValueError("the trace holds no access")
    windows = np.unique(np.linspace(0, len(pages), 25).astype(np.uint64))
    counts = _native.replay(pages, list(sizes_blocks), rules, windows=windows)
    misses, accesses = counts["misses"].astype(np.float64), counts["accesses"].astype(np.float64)
    total = accesses.sum()
    point = misses.sum(axis=1) / total
    left = misses - point[:, None] * accesses
    width = _Z90 * np.sqrt((left**2).sum(axis=1)) / total
    first = objects / len(pages)
    reason = (
        f"counted from an empty pool: {first:.4f} of the accesses are first ones, and count as misses; in a "
        f"server that has run for long they need not miss, and the lower bounds leave them out"
    )
    return Estimate(
        sizes_blocks=tuple(sizes_blocks),
        miss_ratio=point,
        low=np.clip(point - width - first, 0, 1),
        high=np.clip(point + width, 0, 1),
        lap_seconds=float("nan"),
        level=RELIABLE if first <= _WRONG_TODAY else ROUGH,
        reasons=[reason],
    )


@dataclass(frozen=True, kw_only=True)
class _Replayed:
    """What the replay at one size came to.

    Attributes:
        ratio: misses / accesses.
        low, high: bounds of its 90 % interval.
        half_width: of the interval around the ratio, before it is made to hold what follows.
        meetings: by how much it may be off because scans of a table meet more often or less often.
        fresh, settled: the ratio just after a restart and long after it, where rings leave pages behind.
    """

    ratio: float
    low: float
    high: float
    half_width: float
    meetings: float
    fresh: float
    settled: float

    @property
    def moves(self) -> bool:
        """Return whether the ratio depends on how long the server has run."""
        return abs(self.settled - self.fresh) > max(self.half_width, _WRONG_TODAY)


class _Replay:
    """Replays of one trace, counted as the server counts.

    Args:
        trace: what is replayed.
        pool_blocks: the pool that it was taken on.
        rules: of the server.
        extensions_are_reads: whether a new block counts as a read.
    """

    def __init__(
        self, trace: Trace, pool_blocks: int, rules: _native.Rules, *, extensions_are_reads: bool
    ) -> None:
        self.trace = trace
        self._pool_blocks = pool_blocks
        self._rules = rules
        extends = (trace.flags & EXTEND) > 0
        self._new_reads = extends if extensions_are_reads else np.zeros(len(extends), dtype=bool)
        apart = (trace.flags & (DROP | UNCOUNTED)) > 0
        self.counted = trace.counted & ~apart & (~extends | self._new_reads)
        self.measured_misses = self.counted & (trace.missed | self._new_reads)
        self.stretch = Stretch(trace, self.counted)
        _, first = np.unique(trace.pages, return_index=True)
        first = first[~trace.new_page[trace.pages[first]]]
        self._first = first[self.counted[first]]

    def ratio(self, misses: Rows) -> float:
        """Return misses / accesses."""
        return float(np.count_nonzero(misses)) / max(self.stretch.total, 1.0)

    def at(self, blocks: int, pools: WarmPools, draws: int, random: np.random.Generator) -> _Replayed:
        """Replay into drawn states of a pool of that size."""
        part = pools.gathered(blocks, UPTIME_SECONDS)
        ratios, first_misses, width, meetings = [], [], 0.0, 0.0
        for number in range(draws):
            misses = self._from(self._warm(blocks, pools, part, random), blocks)
            ratios.append(self.ratio(misses))
            first_misses.append(np.count_nonzero(misses[self._first]))
            if number == 0:
                width, meetings = self.stretch.deviation(misses), self.stretch.meetings(misses)
        ratio = float(np.mean(ratios))
        undecided = min(float(np.mean(first_misses)), len(self._first) - float(np.mean(first_misses)))
        model = MODEL_ERROR_RATIO + FIRST_VISIT_ERROR_SHARE * undecided / max(self.stretch.total, 1.0)
        model = min(model, 0.3 * ratio + 0.0005)
        half = float(np.sqrt(width**2 + (_Z90 * np.std(ratios)) ** 2 + model**2))
        fresh = settled = ratio
        if pools.lingering(blocks):
            fresh, settled = (
                self.ratio(self._from(_contents(pools.draw_pages(blocks, random, gathered=share)), blocks))
                for share in (0.0, 1.0)
            )
        return _Replayed(
            ratio=ratio,
            low=min(ratio, fresh, settled) - half - (meetings if blocks < self._pool_blocks else 0.0),
            high=max(ratio, fresh, settled) + half + (meetings if blocks > self._pool_blocks else 0.0),
            half_width=half,
            meetings=meetings,
            fresh=fresh,
            settled=settled,
        )

    def from_start(self, blocks: int) -> _Replayed:
        """Replay into the pool as it was when the trace began."""
        start = self.trace.start
        assert start is not None
        contents = _native.PoolContents(
            start.pages, start.usage_counts, frames=start.frames, hand=start.hand % blocks
        )
        misses = self._from(contents, blocks)
        ratio, half = self.ratio(misses), float(np.hypot(self.stretch.deviation(misses), 0.0005))
        return _Replayed(
            ratio=ratio,
            low=ratio - half,
            high=ratio + half,
            half_width=half,
            meetings=0.0,
            fresh=ratio,
            settled=ratio,
        )

    def _warm(
        self, blocks: int, pools: WarmPools, part: float, random: np.random.Generator
    ) -> _native.PoolContents:
        """Draw a state; scanned pages as they stand after the scans of the trace have gone over it once."""
        drawn = pools.draw_pages(blocks, random, gathered=part)
        row = pools.repeated_row
        if row is None or part > 0 or blocks > pools.most_frames:
            return _contents(drawn)
        later = self._replay(blocks, _contents(drawn), until=row)
        return pools.with_scanned_of(drawn, later, blocks, random)

    def _replay(
        self, blocks: int, warm: _native.PoolContents, until: int | None = None
    ) -> _native.ReplayOutcomes:
        """Replay the trace, or its rows before `until`."""
        trace = self.trace
        owned = len(trace.owner_access)
        if until is not None:
            owned = int(np.searchsorted(trace.owner_access, until))
        return _native.replay_outcomes(
            trace.pages[:until],
            blocks,
            self._rules,
            flags=trace.flags[:until],
            owner_access=trace.owner_access[:owned] if owned else None,
            owner=trace.owner[:owned] if owned else None,
            owner_blocks=trace.owner_blocks if owned else None,
            warm=warm,
        )

    def _from(self, warm: _native.PoolContents, blocks: int) -> Rows:
        """Return which accesses miss in a replay from a state."""
        outcome = self._replay(blocks, warm)["outcomes"]
        return np.asarray(((outcome == MISS) | ((outcome == EXTENSION) & self._new_reads)) & self.counted)


def _today(
    replay: _Replay, pool_blocks: int, pools: WarmPools, draws: int, random: np.random.Generator
) -> _Replayed:
    """Replay at the size of the trace's own pool.

    Raises:
        EvidenceError: that is too large for so short a trace.
    """
    try:
        return replay.at(pool_blocks, pools, draws, random)
    except UsageError as error:
        raise EvidenceError(
            f"the trace is too short for the pool that it was taken on, {_mib(pool_blocks)}",
            cause=error.cause,
            hint="record for longer: pgsweep record --source trace --for 5min -o NAME.evidence",
        ) from error


def _contents(state: PoolPages) -> _native.PoolContents:
    return _native.PoolContents(state[0], state[1])


@dataclass(frozen=True, kw_only=True)
class _Check:
    """How today's size comes out, where the server's own hits and misses are known.

    Attributes:
        measured: by the server.
        exact: replayed from the pool's contents, where they were seen.
        drawn: replayed from drawn states.
        state_error: by how much drawn states miss the mark today.
    """

    measured: float
    exact: float | None
    drawn: float | None

    @classmethod
    def of(cls, replay: _Replay, today: _Replayed | None, exact: _Replayed | None) -> _Check:
        knows = replay.measured_misses.any() or exact is not None
        return cls(
            measured=replay.ratio(replay.measured_misses),
            exact=None if exact is None else exact.ratio,
            drawn=today.ratio if today is not None and knows else None,
        )

    @property
    def state_error(self) -> float:
        """Return by how much drawn states miss the mark today, as far as it is no rounding."""
        if self.drawn is None:
            return 0.0
        return abs(self.drawn - (self.measured if self.exact is None else self.exact))


def _verdict(
    replay: _Replay,
    pools: WarmPools,
    check: _Check,
    pool_blocks: int,
    sizes_blocks: Sequence[int],
    found: Sequence[_Replayed],
    lost_events: int,
) -> tuple[Level, list[str]]:
    """Return the level, and every reason for caution."""
    refused: list[str] = []
    rough: list[str] = list(replay.trace.notes)
    trace, accesses = replay.trace, int(replay.stretch.total)
    if accesses < _FEW_ACCESSES:
        (refused if accesses < _TOO_FEW_ACCESSES else rough).append(
            f"only {accesses} accesses of the database: record for longer"
        )
    if lost_events:
        share = lost_events / (len(trace.pages) + lost_events)
        words = f"{lost_events} events were lost ({share:.2%})"
        (refused if share >= _TOO_MANY_LOST else rough if share >= _SOME_LOST else []).append(words)
    for ratio, what in (
        (check.exact, "the accesses replayed from the pool's own contents"),
        (check.drawn, "the warm state that is drawn for the beginning"),
    ):
        if ratio is None:
            continue
        error = abs(ratio - check.measured)
        if error > _WRONG_TODAY:
            (refused if error > _VERY_WRONG_TODAY else rough).append(
                f"{what}: {ratio:.4f} at today's size, where {check.measured:.4f} was measured"
            )
    early, late = _halves(replay)
    if abs(late - early) > max(_DRIFT, 0.1 * (late + early), 2 * _noise(replay)):
        rough.append(f"the miss ratio went from {early:.4f} in the first half to {late:.4f} in the second")
    width = [one.half_width for one in found]
    widest = int(np.argmax(width))
    if width[widest] > _WIDE:
        longer = trace.duration_seconds * (width[widest] / _WIDE) ** 2
        few = (
            f": only {replay.stretch.rare.min()} scans of one kind were seen"
            if len(replay.stretch.rare)
            else ""
        )
        rough.append(
            f"at {_mib(sizes_blocks[widest])} the interval is ±{width[widest]:.3f}{few}; "
            f"record for about {longer:.0f} s"
        )
    meetings = [one.meetings for size, one in zip(sizes_blocks, found, strict=True) if size != pool_blocks]
    if max(meetings, default=0.0) > _WIDE / 2:
        rough.append(
            "several sessions scan the same table at the same time and read for one another; how often they "
            f"meet changes with the size: by up to {max(meetings):.3f} of the accesses"
        )
    for size, one in zip(sizes_blocks, found, strict=True):
        if one.moves:
            rough.append(_lingers(trace, pools, size, one))
            break
    beyond = [
        size
        for size in sizes_blocks
        if np.isfinite(lap := pools.lap_seconds(size)) and 2 * lap > trace.duration_seconds
    ]
    notes = []
    if beyond:
        notes.append(
            f"from {_mib(min(beyond))} on, a page outstays the {trace.duration_seconds:.0f} s of the trace: "
            "those sizes rest on estimated rates, not on replay alone"
        )
    return REFUSED if refused else ROUGH if rough else RELIABLE, [*refused, *rough, *notes]


def _lingers(trace: Trace, pools: WarmPools, blocks: int, found: _Replayed) -> str:
    """Return in words that a ratio depends on how long the server has run, and on what."""
    lingering = pools.lingering(blocks)
    group = max(lingering, key=lambda one: len(lingering[one].pages))
    scans = len(lingering[group].pages) / pools.left_behind(group, blocks)
    minutes = scans * float(np.median(lingering[group].gaps_seconds)) / 60
    return (
        f"from {_mib(blocks)} on, scans of {trace.group_names[group]} leave pages behind that the next scan "
        f"still finds: {found.fresh:.4f} holds just after a restart, {found.settled:.4f} from about "
        f"{max(minutes, 1):.0f} minutes on"
    )


def _halves(replay: _Replay) -> tuple[float, float]:
    """Return the miss ratio measured in either half of the trace."""
    middle = int(np.searchsorted(replay.trace.seconds, replay.trace.duration_seconds / 2))

    def ratio(part: slice) -> float:
        accesses = np.count_nonzero(replay.counted[part])
        return float(np.count_nonzero(replay.measured_misses[part])) / max(float(accesses), 1.0)

    return ratio(slice(None, middle)), ratio(slice(middle, None))


def _noise(replay: _Replay) -> float:
    """Return how much the difference of two halves varies by chance: the half of each is half a stretch."""
    return 2 * replay.stretch.deviation(replay.measured_misses) / _Z90


def _mib(blocks: int) -> str:
    return f"{blocks * 8 // 1024} MB" if blocks >= 128 else f"{blocks * 8} kB"
