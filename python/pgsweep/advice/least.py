"""The least memory whose throughput is still near today's: pool, page cache and sessions as one budget.

People pay for memory, not for miss ratios. For each memory the best size of shared_buffers is looked for;
today's throughput is that of today's size with today's memory. The throughput does not fall with more
memory, so a memory is found by halving the range. A memory counts only where the low end of its 90% interval
is near enough.

Assumed: the load and the sessions are as they were recorded, other programs take what they took, and what
`sizing/forecast.py` assumes of another memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pgsweep.advice.candidates import LEAST_ADVISED_BYTES, MOST_OF_MEMORY
from pgsweep.advice.shared_buffers import Decision, undo_of
from pgsweep.advice.situation import MB, rounded_down
from pgsweep.errors import UsageError
from pgsweep.records.advice import AdvisedSetting, LeastMemory
from pgsweep.records.budget import BudgetResult
from pgsweep.records.prediction import PredictResult, ThroughputPoint
from pgsweep.sizing.page_cache.memory_shares import MemoryFacts
from pgsweep.units import as_setting, format_bytes, format_percent

DEFAULT_LOSS: Final = 0.02
"""A loss that nobody notices; assumed."""

STEP: Final = 1.15
"""Between two memories that are considered: within that the answer is known."""

ROUGH_STEP: Final = 1.5
"""The same where nobody waits for the answer, and it costs the watched host processor time."""

_MORE: Final = (1.25, 1.5, 2.0, 4.0)
"""Times the memory, to see whether more would pay; the last first, as no less pays where it does not."""

_ASSUMED: Final = (
    "the load and the sessions are those of the recording, and other programs take what they took then",
    "a memory is used as the simulation of the page cache says; nothing was tried with less memory",
)

_BY_WAITING: Final = (
    "the throughput is not predicted here: what sessions wait more for the disk in a second is taken as lost "
    "by one session that is always at work"
)

Predict = Callable[[int, Sequence[int]], PredictResult]
"""Predicts with a memory in bytes, at sizes of shared_buffers."""


@dataclass(frozen=True)
class _Found:
    """The best size with a memory.

    Attributes:
        memory_bytes: that memory.
        point: the throughput at the best size, as a ratio to today's.
    """

    memory_bytes: int
    point: ThroughputPoint


def pool_sizes(memory_bytes: int, today_bytes: int) -> list[int]:
    """Return the sizes of shared_buffers that are considered, in ascending order, today's among them.

    Args:
        memory_bytes: the most memory.
        today_bytes: shared_buffers now.
    """
    found = {today_bytes}
    size = rounded_down(round(memory_bytes * MOST_OF_MEMORY))
    while size >= LEAST_ADVISED_BYTES:
        found.add(size)
        size = rounded_down(size // 2)
    return sorted(found)


def least_memory(
    predict: Predict,
    facts: MemoryFacts,
    today_bytes: int,
    *,
    loss: float = DEFAULT_LOSS,
    sessions_bytes: int = 0,
    step: float = STEP,
) -> LeastMemory:
    """Return the least memory with a throughput within `loss` of today's, and one that would pay.

    Args:
        predict: the forecast.
        facts: how today's memory is used.
        today_bytes: shared_buffers now.
        loss: of the throughput, as a ratio.
        sessions_bytes: what sessions take at max_connections more than now; set aside besides.
        step: between two memories that are considered, as a factor.
    """
    apart = 0 if facts.held_by_shared_bytes else facts.shared_bytes
    now = facts.memory_bytes
    search = _Search(predict, facts, today_bytes, 1 - loss, step)
    today = search.at(now)
    if today is None:
        return unknown_least(loss, search.why, now + apart)
    floor = max(facts.held_by_shared_bytes, facts.other_bytes) + LEAST_ADVISED_BYTES
    certain = search.least(floor, now, lambda one: one.point.low >= 1 - loss) or today
    possible = search.least(floor, certain.memory_bytes, lambda one: one.point.high >= 1 - loss) or certain
    memory = min(certain.memory_bytes + sessions_bytes, now)
    more = _more(search, now, loss)
    point = certain.point
    return LeastMemory(
        loss_ratio=loss,
        today_bytes=now + apart,
        memory_bytes=memory + apart,
        low_bytes=min(possible.memory_bytes, memory) + apart,
        reclaim_bytes=now - memory,
        shared_buffers_bytes=point.shared_buffers_bytes if memory < now else today_bytes,
        throughput_ratio=point.ratio,
        throughput_low=point.low,
        throughput_high=point.high,
        reason=_reason(certain, now, memory, loss, sessions_bytes),
        assumed=[*([_BY_WAITING] if search.by == "waiting" else []), *_ASSUMED],
        by=search.by,
        pays_bytes=None if more is None else more.memory_bytes - now,
        pays_ratio=None if more is None else more.point.ratio,
        pays_low=None if more is None else more.point.low,
        pays_high=None if more is None else more.point.high,
    )


def _more(search: _Search, now: int, loss: float) -> _Found | None:
    """Return the least of more memory that raises the throughput for certain; None where none does."""
    if search.by == "waiting" or not _pays(search.at(now * round(_MORE[-1])), loss):
        return None
    return next(one for factor in _MORE if (one := search.at(round(now * factor))) and _pays(one, loss))


def _pays(one: _Found | None, loss: float) -> bool:
    return one is not None and one.point.low >= 1 + loss


def _reason(found: _Found, now: int, memory: int, loss: float, sessions: int) -> str:
    if memory >= now:
        return (
            f"with less than the {format_bytes(now)} of today it is not certain that the throughput stays "
            f"within {format_percent(loss, 1)}"
        )
    apart = f", and {format_bytes(sessions)} more for sessions up to max_connections" if sessions else ""
    point = found.point
    return (
        f"with {format_bytes(found.memory_bytes)} and shared_buffers of "
        f"{format_bytes(point.shared_buffers_bytes)} the throughput is {format_percent(point.ratio, 1)} of "
        f"today's ({format_percent(point.low, 1)} to {format_percent(point.high, 1)}){apart}"
    )


def sessions_to_come(budget: BudgetResult | None) -> int:
    """Return what sessions like today's take at max_connections more than those of now; 0 where unknown."""
    if budget is None:
        return 0
    parts = [one for one in budget.parts if one.name in ("page tables", "connections")]
    return max(0, sum(one.low_bytes - one.now_bytes for one in parts))


def least_words(least: LeastMemory) -> tuple[str, list[str]]:
    """Return the least memory as the begin of a sentence, and what must be known of it."""
    if least.memory_bytes is None or least.today_bytes is None or least.low_bytes is None:
        return f"The least memory is not known: {least.reason}", []
    loss = format_percent(least.loss_ratio, 1)
    words = f"Of {format_bytes(least.today_bytes)} of memory "
    if least.reclaim_bytes:
        words += (
            f"{format_bytes(least.memory_bytes)} suffice for a throughput within {loss} of today's (90%; it "
            f"may be as little as {format_bytes(least.low_bytes)}): {format_bytes(least.reclaim_bytes)} can "
            "be reclaimed"
        )
    else:
        words += f"nothing can be reclaimed for certain: {least.reason}"
    remarks = [f"the least memory: {least.reason}"] if least.reclaim_bytes else []
    if least.pays_bytes is not None:
        low, high = (
            format_percent((ratio or 1) - 1, sign=True) for ratio in (least.pays_low, least.pays_high)
        )
        remarks.append(
            f"{format_bytes(least.pays_bytes)} more would pay: the throughput is expected to change by "
            f"{format_percent((least.pays_ratio or 1) - 1, sign=True)} ({low} to {high})"
        )
    return words, [*remarks, *(f"assumed of the least memory: {one}" for one in least.assumed)]


def for_least(least: LeastMemory, today_bytes: int) -> Decision | None:
    """Return the size of shared_buffers for the least memory; None where that decides nothing.

    Args:
        least: the memory, and the size with it.
        today_bytes: shared_buffers now.
    """
    size = least.shared_buffers_bytes
    if size is None or not least.reclaim_bytes:
        return None
    today = as_setting(today_bytes)
    changed = size != today_bytes
    return Decision(
        size_bytes=size,
        advice=AdvisedSetting(
            name="shared_buffers",
            where="server",
            today=today,
            value=as_setting(size) if changed else None,
            action="set" if changed else "leave",
            kind="predicted",
            reason=least.reason,
            purpose=f"{format_bytes(least.reclaim_bytes)} of memory are not needed for today's throughput",
            takes_effect="restart" if changed else "",
            undo=undo_of("shared_buffers", today) if changed else "",
        ),
    )


def unknown_least(loss: float, why: str, today_bytes: int | None = None) -> LeastMemory:
    """Return that the least memory is not known, and why."""
    return LeastMemory(
        loss_ratio=loss,
        today_bytes=today_bytes,
        memory_bytes=None,
        low_bytes=None,
        reclaim_bytes=None,
        shared_buffers_bytes=None,
        throughput_ratio=None,
        throughput_low=None,
        throughput_high=None,
        reason=why,
        assumed=list(_ASSUMED),
    )


class _Search:
    """Looks for memories; each is predicted once.

    Attributes:
        why: there is no answer, where there is none.
        by: what the throughput is known by.
    """

    def __init__(
        self, predict: Predict, facts: MemoryFacts, today_bytes: int, least_ratio: float, step: float
    ) -> None:
        self._predict = predict
        self._facts = facts
        self._today_bytes = today_bytes
        self._least_ratio = least_ratio
        self._step = step
        self._found: dict[int, _Found | None] = {}
        self._wait = 0.0
        self.by: Literal["throughput", "waiting"] = "throughput"
        self.why = "the throughput is not predicted"

    def at(self, memory_bytes: int) -> _Found | None:
        """Return the best size with a memory; None where there is none, or no throughput."""
        if memory_bytes not in self._found:
            self._found[memory_bytes] = self._best(memory_bytes)
        return self._found[memory_bytes]

    def least(self, floor: int, most: int, holds: Callable[[_Found], bool]) -> _Found | None:
        """Return the least memory for which something holds; None where not even with the most."""
        memories = [most]
        while (smaller := rounded_down(round(memories[-1] / self._step)) // MB * MB) >= floor:
            if smaller >= memories[-1]:
                break
            memories.append(smaller)
        best, low, high = None, 0, len(memories) - 1
        while low <= high:
            middle = (low + high) // 2
            found = self.at(memories[middle])
            if found is not None and holds(found):
                best, low = found, middle + 1
            else:
                high = middle - 1
        return best

    def _best(self, memory_bytes: int) -> _Found | None:
        sizes = [
            size for size in pool_sizes(memory_bytes, self._today_bytes) if self._fits(memory_bytes, size)
        ]
        if not sizes:
            return None
        try:
            result = self._predict(memory_bytes, sizes)
        except UsageError as error:
            self.why = error.message
            return None
        points = self._points(memory_bytes, result)
        if not points:
            self.why = "; ".join(result.verdict.sentences[:2]) or self.why
            return None
        today = next((one for one in points if one.shared_buffers_bytes == self._today_bytes), None)
        best = max(points, key=lambda one: (one.low, -one.shared_buffers_bytes))
        # A restart for another size must be worth it.
        if today is not None and today.low >= min(self._least_ratio, best.low):
            best = today
        return _Found(memory_bytes, best)

    def _points(self, memory_bytes: int, result: PredictResult) -> list[ThroughputPoint]:
        """Return the throughput, divided by today's; by what sessions wait where it is not predicted."""
        if result.memory is None:
            return []
        loop, costs = result.memory.throughput, result.memory.costs
        now = memory_bytes == self._facts.memory_bytes
        if now:
            self.by = "throughput" if loop is not None and loop.points else "waiting"
        if self.by == "throughput":
            return [] if loop is None else loop.points
        if costs is None:
            return []
        waits = {
            one.shared_buffers_bytes: tuple(
                reads * costs.disk_read_seconds
                for reads in (one.disk_reads_per_second, one.disk_reads_low, one.disk_reads_high)
            )
            for one in result.memory.points
        }
        if now:
            self._wait = waits.get(self._today_bytes, (0.0,))[0]
        more = {size: [max(0.0, wait - self._wait) for wait in each] for size, each in waits.items()}
        points = [
            ThroughputPoint(
                shared_buffers_bytes=size,
                ratio=1 - min(more_wait, 1.0),
                low=1 - min(most, 1.0),
                high=1 - min(fewest, 1.0),
            )
            for size, (more_wait, fewest, most) in more.items()
        ]
        if now:
            exact = ThroughputPoint(shared_buffers_bytes=self._today_bytes, ratio=1.0, low=1.0, high=1.0)
            points = [exact if one.shared_buffers_bytes == self._today_bytes else one for one in points]
        return points

    def _fits(self, memory_bytes: int, size_bytes: int) -> bool:
        if size_bytes > memory_bytes * MOST_OF_MEMORY:
            return False
        try:
            self._facts.share(memory_bytes, size_bytes, self._today_bytes)
        except UsageError:
            return size_bytes == self._today_bytes and memory_bytes == self._facts.memory_bytes
        return True
