"""Find whether pages are visited in the order of their blocks, as loops and long ranges visit them.

Pages that are loaded one after the other lie in buffers one after the other, behind the clock hand. Where a
relation is read again and again from end to end by other means than a sequential scan, all pages that are new
in a snapshot stand in the order of their blocks. Such pages do not come at random times, as the law of a
page assumes: pages that are loaded together stay or are evicted together.

In a small pool, or between two snapshots that follow closely, too few come for a long run. There a loop shows
by where its new pages lie: in one window of blocks, another in each snapshot.

Ranges of an index lie at random places, and are visits of neighbours: the law of a page holds for each of
theirs. A loop goes on where it was at the last snapshot, and a range does not; nor does it leave out pages
until it has visited all others.

A loop that the pool holds brings no new pages. It shows by the usage counts: blocks that lie close to each
other were visited last at the same time, so their counts rise and fall together.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.load import Load
from pgsweep.sizing.snapshots.observations import Observations

Floats = NDArray[np.float64]

_SHORTEST_RUN: Final = 64
"""Pages that follow each other in fewer are not looked at: ranges of an index at random times."""

_GAP: Final = 8
_NEIGHBOURHOOD: Final = 1.5
_GOES_ON: Final = 0.25
_FEWEST_SEGMENTS: Final = 12.0
"""Runs are ranges at random places if fewer than this share of them, beyond chance, begins behind one of the
snapshot before; and where so many of them could have shown it. Behind is within one and a half times the
length of a run. Pages that are less than nine apart lie in one run."""

_LEAST_DISPERSION: Final = 0.5
"""Nor may the numbers of times that each page came in runs be too equal: of random places their variance is
about their mean (less by the time that a page stays), of a loop it is far less once it has come round."""

_FARTHEST_APART: Final = 2.0
"""Clock passes after which a page that was visited once has left the pool. A loop is then not seen to go on
from where it was at the snapshot before."""

_LEAST_SHARE: Final = 0.75
_STEP, _LOOK_BACK = 3, 8
"""A page follows another if it is one of the next three, and among the next eight to come: several sessions
may read at once, and some of the pages were there already."""


_FEWEST_IN_WINDOW: Final = 16
_WINDOW_SHARE: Final = 0.75
_WINDOW_LENGTH: Final = 1.5
_LEAST_WINDOWS: Final = 4
"""A window holds three quarters of a group's new pages within one and a half times as many of its blocks.
Ranges that are read at random times lie in several places, but for a snapshot here and there."""

_SECTIONS: Final = 16
_FEWEST_IN_SECTION: Final = 16
_MOST_IN_SECTION: Final = 512
"""In a section that is much longer than what moves through it most pages do not change when it passes.
Shorter sections would show ranges that are read at random times."""

_FEWEST_SECTIONS: Final = 4
_FEWEST_SNAPSHOTS: Final = 4


_TOGETHER: Final = 0.2
"""Share of common variation from which on pages are taken to be visited one after the other."""

_IN_ORDER: Final = 0.2
"""Share of its misses on pages that come in order from which on a relation is taken to be visited so."""

_MOSTLY_RANGES: Final = 0.5
"""Share of a group's visited pages that came in runs from which on these say how all of them come."""

_ONLY_SCANS: Final = 0.9


def ordered_shares(load: Load, pass_seconds: float) -> Floats:
    """Return which share of each group's misses is on pages that come in the order of their blocks.

    Scans are left out.

    Args:
        load: the load.
        pass_seconds: time of a clock pass.
    """
    missed, totals = load.group_misses, load.totals
    scanned = np.array([flow.scan_accesses for flow in load.pool.flows])
    growth = totals.relation_growth_blocks * totals.seconds * load.pool.sampling_rate
    appended = np.array([float(growth[list(group.relations)].sum()) for group in load.groups])
    shares = ordered_pages(load.seen, appended, _pass_loads(load, pass_seconds))
    return np.asarray(shares * np.maximum(missed - scanned, 0) / np.maximum(missed, 1e-9))


def together_groups(load: Load, ordered: Floats, pass_seconds: float) -> list[int]:
    """Return the groups whose neighbouring pages are visited together: one relation each.

    Long ranges at random places are visits of neighbours as well, but the law of a page holds for each of
    theirs.

    A relation that grows is one of them if it is visited where it grows. One that only sequential scans
    visit, through rings, is none: what these leave is known.
    """
    common, flows = common_variation(load.seen) > _TOGETHER, load.pool.flows
    if common.any():
        common &= ~visited_at_random(load.seen, _pass_loads(load, pass_seconds))
    together = (common | (ordered > _IN_ORDER)).tolist()
    return [
        number
        for number, (group, flow) in enumerate(zip(load.groups, flows, strict=True))
        if len(group.relations) == 1
        and together[number]
        and not (flow.ringed(load.pool.blocks) and flow.scan_accesses > _ONLY_SCANS * flow.accesses)
    ]


def _pass_loads(load: Load, pass_seconds: float) -> float:
    return load.loads_per_second * pass_seconds / load.pool.sampling_rate


def common_variation(seen: Observations) -> Floats:
    """Return which share of the variation of a page's usage count its neighbours have in common, by group.

    It is the intraclass correlation of the pages of a section, a sixteenth of the group's blocks or 512 pages
    if that is less, after the mean of each section over time and of all sections at each time was taken away:
    near 0 where pages are visited at random, whatever their popularity, and 0 where there is too little to
    see. On simulated loads (benchmarks/calibration, even seeds) loops and moving windows have .27 to .95,
    others .03 at most.
    """
    groups = len(seen.groups)
    if seen.snapshots < _FEWEST_SNAPSHOTS:
        return np.zeros(groups)
    rank, size = _ranks(seen.page_group.astype(np.int64), groups)
    sections = np.minimum(np.maximum(_SECTIONS, size // _MOST_IN_SECTION), size // _FEWEST_IN_SECTION)
    begins = np.concatenate([[0], np.cumsum(np.maximum(sections, 1))])
    place = rank * sections[seen.page_group] // np.maximum(size[seen.page_group], 1)
    place += begins[seen.page_group]
    # Absent pages stand for 0.
    value = seen.usage_count + 1.0
    cells = int(begins[-1])
    members = np.bincount(place, minlength=cells)
    sums = np.bincount(
        seen.snapshot * cells + place[seen.page], value, minlength=seen.snapshots * cells
    ).reshape(seen.snapshots, cells)
    pages = len(seen.page_group)
    mean = np.bincount(seen.page, value, minlength=pages) / seen.snapshots
    variance = np.bincount(seen.page, value**2, minlength=pages) / seen.snapshots - mean**2
    of_pages = np.bincount(seen.page_group, variance, minlength=groups) / np.maximum(size, 1)
    of_pages *= seen.snapshots / (seen.snapshots - 1)
    found = np.zeros(groups)
    for group in np.flatnonzero((sections >= _FEWEST_SECTIONS) & (of_pages > 0)).tolist():
        count, own = int(sections[group]), slice(int(begins[group]), int(begins[group + 1]))
        means = sums[:, own] / members[own]
        means -= means.mean(axis=0)
        means -= means.mean(axis=1, keepdims=True)
        between = float((means**2).sum()) / ((seen.snapshots - 1) * (count - 1))
        by_chance = of_pages[group] / float(members[own].mean())
        found[group] = max(between - by_chance, 0.0) / of_pages[group]
    return found


def ordered_pages(seen: Observations, appended: Floats, pass_loads: float = 0.0) -> Floats:
    """Return which share of each group's new pages came in runs of ascending blocks, or window by window.

    Runs at random places are ranges, and do not count.

    Args:
        seen: the snapshots.
        appended: blocks by which each group grew meanwhile, which come in order and are not read.
        pass_loads: pages loaded in a clock pass; 0 where that is not known.
    """
    new = np.zeros(len(seen.groups))
    ordered = np.zeros(len(seen.groups))
    order = np.lexsort((seen.buffer, seen.snapshot))
    edges = np.searchsorted(seen.snapshot[order], np.arange(seen.snapshots + 1))
    before = np.zeros(len(seen.page_group), dtype=bool)
    windows = [_Windows() for _ in seen.groups]
    runs, follow = [_Runs() for _ in seen.groups], _follow(seen, pass_loads)
    rank, size = _ranks(seen.page_group.astype(np.int64), len(seen.groups))
    for number in range(seen.snapshots):
        page = seen.page[order[edges[number] : edges[number + 1]]]
        if number:
            fresh = page[~before[page]]
            group = seen.page_group[fresh]
            for own in np.unique(group).tolist():
                mine = fresh[group == own]
                new[own] += len(mine)
                inside = rank[mine[_in_runs(mine)]]
                ordered[own] += len(inside)
                runs[own].add(inside, int(size[own]), follows=bool(follow[number]))
                windows[own].add(np.sort(rank[mine]), int(size[own]))
        before[:] = False
        before[page] = True
    ordered = np.maximum(ordered, [window.pages for window in windows])
    for own, one in enumerate(seen.groups):
        # A single range before each snapshot is a window too.
        if runs[own].at_random(one.pages):
            ordered[own] = 0.0
    return np.asarray(np.maximum(ordered - appended, 0.0) / np.maximum(new - appended, 1.0))


def visited_at_random(seen: Observations, pass_loads: float = 0.0) -> NDArray[np.bool_]:
    """Return of each group whether most of its pages are visited in ranges at random places.

    A page was visited if its usage count rose, or if it is new.

    Args:
        seen: the snapshots.
        pass_loads: as for `ordered_pages`.
    """
    runs, follow = [_Runs() for _ in seen.groups], _follow(seen, pass_loads)
    visits, in_runs = np.zeros(len(seen.groups)), np.zeros(len(seen.groups))
    rank, size = _ranks(seen.page_group.astype(np.int64), len(seen.groups))
    order = np.lexsort((seen.page, seen.snapshot))
    edges = np.searchsorted(seen.snapshot[order], np.arange(seen.snapshots + 1))
    before = np.full(len(seen.page_group), -1, dtype=np.int64)
    for number in range(seen.snapshots):
        at = order[edges[number] : edges[number + 1]]
        page, count = seen.page[at], seen.usage_count[at]
        visited = page[count > before[page]]
        before[:] = -1
        before[page] = count
        if number:
            for own in np.unique(seen.page_group[visited]).tolist():
                mine = visited[seen.page_group[visited] == own]
                inside = rank[mine[_in_runs(mine)]]
                visits[own] += len(mine)
                in_runs[own] += len(inside)
                runs[own].add(inside, int(size[own]), follows=bool(follow[number]))
    random = np.array([run.at_random(one.pages) for run, one in zip(runs, seen.groups, strict=True)])
    return np.asarray(random & (in_runs > _MOSTLY_RANGES * visits))


def _follow(seen: Observations, pass_loads: float) -> NDArray[np.bool_]:
    """Return which snapshots come so soon after the one before that nothing was lost.

    The hand says how many passes lie between them, or where it was lost the number of pages loaded.
    """
    if len(seen.hand_buffers) == seen.snapshots:
        passes = np.diff(seen.hand_buffers) / seen.pool_buffers
    elif len(seen.loads) == seen.snapshots and pass_loads > 0:
        passes = np.diff(seen.loads) / pass_loads
    else:
        return np.zeros(seen.snapshots, dtype=bool)
    return np.concatenate([[False], passes < _FARTHEST_APART])


class _Runs:
    """Tells runs that go on from snapshot to snapshot, and come round, from those at random places."""

    def __init__(self) -> None:
        self._before = np.zeros(0, dtype=bool)
        self._times = np.zeros(0)
        self._segments = self._behind = self._by_chance = 0.0

    def add(self, ranks: NDArray[np.int64], size: int, *, follows: bool) -> None:
        """Take in the pages of a snapshot that came in runs.

        Args:
            ranks: which of the group's pages they are.
            size: pages of the group.
            follows: nothing that came since the snapshot before is gone.
        """
        if not len(self._times):
            self._times, self._before = np.zeros(size), np.zeros(size, dtype=bool)
        self._times[ranks] += 1
        there = np.zeros(size, dtype=bool)
        there[ranks] = True
        if follows and len(ranks) and self._before.any():
            ascending = np.flatnonzero(there)
            begins = ascending[np.diff(ascending, prepend=-_GAP - 2) > _GAP]
            reach = min(round(_NEIGHBOURHOOD * len(ascending) / len(begins)), size - 1)
            around = np.concatenate([self._before[-reach:], self._before]).astype(np.int64)
            sums = np.concatenate([[0], np.cumsum(around)])
            behind = sums[reach : reach + size] > sums[:size]
            self._segments += len(begins)
            self._behind += float(behind[begins].sum())
            self._by_chance += len(begins) * float(behind.mean())
        self._before = there

    def at_random(self, pages: float) -> bool:
        """Return whether the runs are ranges at random places, as far as there are enough to tell.

        Args:
            pages: of the group, seen or not.
        """
        could = self._segments - self._by_chance
        if could < _FEWEST_SEGMENTS or self._behind - self._by_chance > _GOES_ON * could:
            return False
        mean = float(self._times.sum()) / max(pages, 1.0)
        variance = float((self._times**2).sum()) / max(pages, 1.0) - mean**2
        # A loop that has not come round yet visits each page once or not at all.
        return variance > _LEAST_DISPERSION * mean


class _Windows:
    """Counts in how many snapshots the new pages of a group lie in one window of its blocks."""

    def __init__(self) -> None:
        self._looked = self._found = self._inside = 0

    @property
    def pages(self) -> int:
        """The new pages inside windows, where nearly all that could be judged form one."""
        regular = self._found >= max(_LEAST_WINDOWS, _WINDOW_SHARE * self._looked)
        return self._inside if regular else 0

    def add(self, ranks: NDArray[np.int64], size: int) -> None:
        """Take in the new pages of a snapshot.

        Args:
            ranks: which of the group's pages they are, ascending.
            size: pages of the group.
        """
        inside = int(np.ceil(_WINDOW_SHARE * len(ranks)))
        # Half of all pages lie close together wherever they are.
        if len(ranks) < _FEWEST_IN_WINDOW or _WINDOW_LENGTH * inside > size / 2:
            return
        self._looked += 1
        around = np.concatenate([ranks, ranks + size])
        shortest = int((around[inside - 1 : inside - 1 + len(ranks)] - ranks).min()) + 1
        if shortest <= _WINDOW_LENGTH * inside:
            self._found += 1
            self._inside += len(ranks)


def _ranks(page_group: NDArray[np.int64], groups: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of each page among those of its group, and how many each group has."""
    size = np.bincount(page_group, minlength=groups)
    begins = np.concatenate([[0], np.cumsum(size)[:-1]])
    order = np.argsort(page_group, kind="stable")
    rank = np.empty(len(page_group), dtype=np.int64)
    rank[order] = np.arange(len(page_group)) - begins[page_group[order]]
    return rank, size


def _in_runs(pages: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which pages stand in long runs; numbers of pages ascend with their blocks."""
    if len(pages) < _SHORTEST_RUN:
        return np.zeros(len(pages), dtype=bool)
    follows = np.zeros(len(pages), dtype=bool)
    for back in range(1, _LOOK_BACK + 1):
        ahead = pages[back:] - pages[:-back]
        follows[back:] |= (ahead >= 1) & (ahead <= _STEP)
    # Some lie among them that came another time.
    sums = np.concatenate([[0], np.cumsum(follows)])
    dense = np.flatnonzero(sums[_SHORTEST_RUN:] - sums[:-_SHORTEST_RUN] >= _LEAST_SHARE * _SHORTEST_RUN)
    inside = np.zeros(len(pages) + 1, dtype=np.int64)
    np.add.at(inside, dense, 1)
    np.add.at(inside, dense + _SHORTEST_RUN, -1)
    return np.cumsum(inside)[:-1] > 0
