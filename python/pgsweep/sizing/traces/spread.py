"""How far a replayed miss ratio may be off because another stretch of the same workload differs.

Most of a trace is many small things; how much they vary shows from window to window. But a scan, a vacuum or
a bulk load makes thousands of accesses at once, and a trace holds a few of them. Drawing windows again would
take scans that come every four seconds for scans at random times, or not include them at all. So such events
are taken out of the windows, and vary by themselves: in their number, by the gaps between them, and in what
each of them misses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.traces.accesses import BULKREAD, STRATEGY, Trace
from pgsweep.units import Z90

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WINDOWS = 24
_COARSER = (1, 2, 4)
"""Windows are also joined by twos and fours: what lasts longer than one varies more between longer ones."""

_EVENT_ACCESSES = 64
_MEETING = 1.2
"""Accesses a page of a scan, or of scans that overlap, from which on several sessions read the same."""

_MANY_EVENTS = 200
"""If there are more events of a kind, the windows show how they vary."""

_T90 = {5: 2.015, 11: 1.796, 23: 1.714}


@dataclass(frozen=True, kw_only=True)
class Events:
    """Scans, vacuums and bulk loads, where a trace has few of them.

    Attributes:
        of_owned: event of each row in `owner_access`, -1 where it is part of none.
        kind: kind of each event: the same relation and strategy.
        begin_seconds: when each begins.
        sharing: for each row in `owner_access`, by which part its misses may change because scans by several
            sessions meet more often or less often in a pool of another size.
    """

    of_owned: Ints
    kind: Ints
    begin_seconds: Floats
    sharing: Floats

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self.kind)


def find_events(trace: Trace) -> Events:
    """Join the rings of processes that scan a table together; leave out what is small or common."""
    rows = trace.owner_access.astype(np.int64)
    if not len(rows):
        none = np.zeros(0, dtype=np.int64)
        return Events(of_owned=none, kind=none, begin_seconds=np.zeros(0), sharing=np.zeros(0))
    owners = int(trace.owner.max()) + 1
    owner = trace.owner.astype(np.int64)
    first = np.full(owners, np.iinfo(np.int64).max)
    last = np.zeros(owners, dtype=np.int64)
    np.minimum.at(first, owner, rows)
    np.maximum.at(last, owner, rows)
    kind_of = trace.page_group[trace.pages[first]] * 8 + (trace.flags[first] & STRATEGY)
    order = np.lexsort((first, kind_of))
    event_of_owner = np.empty(owners, dtype=np.int64)
    events: list[tuple[int, int]] = []  # kind, first row
    end = -1
    for one in order.tolist():
        if not events or events[-1][0] != kind_of[one] or first[one] > end:
            events.append((int(kind_of[one]), int(first[one])))
            end = -1
        end = max(end, int(last[one]))
        event_of_owner[one] = len(events) - 1
    of_owned = event_of_owner[owner]
    kind = np.array([event[0] for event in events])
    large = np.bincount(of_owned, minlength=len(events)) >= _EVENT_ACCESSES
    kinds, which, many = np.unique(kind[large], return_inverse=True, return_counts=True)
    del kinds
    kept = np.flatnonzero(large)[many[which] <= _MANY_EVENTS]
    number = np.full(len(events), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    begin = np.array([event[1] for event in events])
    return Events(
        of_owned=number[of_owned],
        kind=kind[kept],
        begin_seconds=trace.seconds[begin[kept]],
        sharing=_sharing(trace, kind_of, trace.seconds[last] - trace.seconds[first], of_owned),
    )


def _sharing(trace: Trace, kind_of: Ints, seconds: Floats, event: Ints) -> Floats:
    """Return for each row with a ring by which part its misses may change as scans meet more or less often.

    A scan that begins while another session scans the same table begins where that one is (syncscan.c), and
    finds in the pool what the other has just read. How often they meet follows from how long they last, which
    changes with the size of the pool, and which a replay cannot change. Processes that share one scan are
    recognized by their pages: no page is read by two of them.
    """
    rows = trace.owner_access.astype(np.int64)
    kinds, kind = np.unique(kind_of, return_inverse=True)
    of_row = kind[trace.owner.astype(np.int64)]
    scans = (trace.flags[rows] & STRATEGY) == BULKREAD
    accesses = np.bincount(of_row[scans], minlength=len(kinds))
    seen = np.unique(event[scans] * len(trace.page_group) + trace.pages[rows[scans]], return_index=True)[1]
    distinct = np.bincount(of_row[scans][seen], minlength=len(kinds))
    meets = accesses > _MEETING * np.maximum(distinct, 1)
    busy = np.bincount(kind, weights=seconds, minlength=len(kinds)) / max(trace.duration_seconds, 1e-9)
    # Of what two or more sessions scan all the time, one may find half of what the others bring.
    part = np.where(meets, np.minimum(busy / 4, 0.5), 0.0)
    return np.where(scans, part[of_row], 0.0)


class Stretch:
    """The accesses of a trace, and how the ratio of misses to them varies between stretches like it.

    Args:
        trace: what was replayed.
        counted: which rows count as accesses.
    """

    def __init__(self, trace: Trace, counted: NDArray[np.bool_]) -> None:
        self._counted = counted
        self._events = find_events(trace)
        self._owned = self._rows = trace.owner_access.astype(np.int64)
        inside = self._events.of_owned >= 0
        self._rows = self._rows[inside]
        self._event = self._events.of_owned[inside]
        edges = np.linspace(0.0, max(trace.duration_seconds, 1e-9), _WINDOWS + 1)
        bounds = np.searchsorted(trace.seconds, edges[:-1])
        self._bounds = np.maximum.accumulate(np.minimum(bounds, max(len(trace.seconds) - 1, 0)))
        self._window_of_event_row = np.searchsorted(self._bounds, self._rows, side="right") - 1
        self._accesses = self._parts(counted)
        self.total = float(np.count_nonzero(counted))

    def _parts(self, chosen: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return how many chosen rows lie in each window outside events, and in each event."""
        windows = np.add.reduceat(chosen.astype(np.float64), self._bounds)
        # An empty window yields its first row (numpy's reduceat); windows are empty in tiny traces only.
        windows[np.append(np.diff(self._bounds) == 0, False)] = 0.0
        of_events = chosen[self._rows].astype(np.float64)
        windows -= np.bincount(self._window_of_event_row, weights=of_events, minlength=_WINDOWS)
        by_event = np.bincount(self._event, weights=of_events, minlength=self._events.count)
        return windows.astype(np.float64), by_event.astype(np.float64)

    def deviation(self, missed: NDArray[np.bool_]) -> float:
        """Return half the width of the 90% interval of misses / accesses."""
        misses, event_misses = self._parts(missed & self._counted)
        accesses, event_accesses = self._accesses
        ratio = (misses.sum() + event_misses.sum()) / max(self.total, 1.0)
        small = 0.0
        # What is left of a window when the ratio is taken out: the numerator of a ratio estimate's variance.
        left = misses - ratio * accesses
        left -= left.mean()
        for joined in _COARSER:
            sums = left.reshape(-1, joined).sum(axis=1)
            variance = float((sums**2).sum()) * len(sums) / (len(sums) - 1)
            small = max(small, variance * _T90[len(sums) - 1] ** 2)
        large = 0.0
        event_left = event_misses - ratio * event_accesses
        for kind in np.unique(self._events.kind):
            large += self._kind_variance(kind, event_left)
        return float(np.sqrt(small + large * Z90**2) / max(self.total, 1.0))

    def _kind_variance(self, kind: int, left: Floats) -> float:
        """Return the variance that the events of a kind add, by their number and by their differences."""
        mine = self._events.kind == kind
        count = int(mine.sum())
        left = left[mine][np.argsort(self._events.begin_seconds[mine])]
        # The first and the last may be cut by the ends of the trace, which `count_variance` allows for.
        whole = left[1:-1] if count >= 4 else left
        effect = float(whole.mean())
        between = float(whole.var(ddof=1)) if count > 1 else effect**2
        return count * between + effect**2 * count_variance(np.sort(self._events.begin_seconds[mine]))

    def meetings(self, missed: NDArray[np.bool_]) -> float:
        """Return by how much the ratio may change because scans meet more often or less often."""
        rows = self._owned
        return float(self._events.sharing[(missed & self._counted)[rows]].sum()) / max(self.total, 1.0)

    @property
    def rare(self) -> Ints:
        """Return how many events of each kind there are."""
        return np.asarray(np.unique(self._events.kind, return_counts=True)[1])


def count_variance(begins: Floats) -> float:
    """Return the variance of the number of events in a stretch of this length.

    Of a renewal process it is the number times the squared coefficient of variation of the gaps, and a sixth
    for where the stretch begins and ends. From less than three gaps no regularity can be read: Poisson.
    """
    count = len(begins)
    if count < 4:
        return float(count)
    gaps = np.diff(begins)
    spread = float(gaps.var(ddof=1)) / max(float(gaps.mean()) ** 2, 1e-12)
    return count * min(spread, 4.0) + 1 / 6
