"""How often pages are visited: at random by sessions, and in turn by scans.

Visits outside scans and rings are taken for a Poisson process, whose rate differs from page to page; how far
they are one is examined (pgsweep.sizing.traces.steadiness). Visits by scans of a large table are not: they
come once in each scan, at the same distance for all its pages. And where a scan uses a ring, its visits leave
nothing in the pool. So the two kinds are kept apart, and which of the scans have a ring is decided for each
size of the pool (pgsweep.sizing.traces.warm_start).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.sizing.look import STATES
from pgsweep.sizing.traces.accesses import (
    BULKREAD,
    DROP,
    REPEAT,
    STRATEGY,
    PageStates,
    Trace,
    stable_order,
)
from pgsweep.sizing.traces.steadiness import Steadiness, examine

Floats = NDArray[np.float64]

VISIT_GAP_SECONDS = 0.005
"""Accesses to a page closer than this belong to one visit (an index descent again, a row updated and read
back)."""

SCANNED_FROM_BLOCKS = 64
"""Scans of smaller tables count as visits like any other: they are no more than an access of a few pages."""

_GRID_POINTS = 120
_COLD_VISITS = 5
_MOST_GAPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """The pages of a group that scans without certain rings visit.

    Attributes:
        pages: dense ids.
        first_seconds: when each was first visited by a scan.
        gaps_seconds: from one such visit of a page to the next, ascending; of a sample of the pages.
        rounds: how often a page was visited so, on average.
        blocks: size of the table, at the middle one of these visits.
        participants: processes that share a scan, on average.
        last_begin_seconds: when a scan of them last began.
    """

    pages: NDArray[np.int64]
    first_seconds: Floats
    gaps_seconds: Floats
    rounds: float
    blocks: int
    participants: float
    last_begin_seconds: float


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Pages that a group gained during the trace and that were not dropped again.

    Attributes:
        pages_per_second: how many.
        usage_counts: probabilities that such a page ends at usage_count 0 to 5 when it is left alone.
    """

    pages_per_second: float
    usage_counts: Floats


@dataclass(frozen=True, kw_only=True)
class Visits:
    """How often each page was visited, and what that says about rates.

    Attributes:
        grid: rates in visits per second.
        weights: expected number of pages at each grid point, shape (groups, grid); all pages, visited or not.
        batches: batch law of each group, shape (groups, 5).
        of_page: number of visits of each page, those by scans and through rings left out.
        began: the states of the pages when the trace began, where they are part of the fit.
        duration_seconds: of the trace.
        scanned: the scanned pages of each group that has any.
        growth: by group, where there is any.
        steadiness: how far the visits outside scans and rings come at random times.
    """

    grid: Floats
    weights: Floats
    batches: Floats
    of_page: NDArray[np.int64]
    began: PageStates | None
    duration_seconds: float
    scanned: dict[int, Scanned]
    growth: dict[int, Growth]
    steadiness: Steadiness

    def seen(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a number for what was seen of each page, its visits and its state; 0 is nothing at all."""
        states = 0 if self.began is None else self.began.states[pages]
        return np.asarray(self.of_page[pages] * STATES + states)

    def log_likelihood(self, seen: NDArray[np.int64], group: int) -> Floats:
        """Return log P(seen | rate) but for a constant of each row, by what was seen (rows) and rate."""
        logs = log_poisson(seen // STATES, self.grid * self.duration_seconds)
        if self.began is None:
            return logs
        law = self.began.clock.law(self.grid * self.began.pass_seconds, self.batches[group])
        return logs + np.log(np.maximum(law.T, 1e-300))[seen % STATES]


def count_visits(trace: Trace) -> Visits:
    """Fold accesses into visits and fit the distribution of rates of every group."""
    duration = max(trace.duration_seconds, 1e-3)
    page_count = len(trace.page_group)
    scans, outside = _kinds(trace)
    pages, flags, seconds = trace.pages[outside], trace.flags[outside], trace.seconds[outside]
    order = stable_order(pages)
    page, at = pages[order], seconds[order]
    pinned = (flags[order] & REPEAT) > 0
    begins = _visit_begins(page, at)
    of_page = np.bincount(page[begins], minlength=page_count)
    visit = np.cumsum(begins) - 1
    size = np.bincount(visit[~pinned], minlength=int(begins.sum()))
    size = np.clip(size, 1, 5)
    visit_page = page[begins]
    stays = ~trace.new_page
    stays[trace.pages[(trace.flags & DROP) > 0]] = False
    whole = begins & stays[page] & trace.counted[outside][order]

    groups = len(trace.group_pages)
    cold = of_page[visit_page] <= _COLD_VISITS
    batches = np.zeros((groups, 5))
    np.add.at(batches, (trace.page_group[visit_page[cold]], size[cold] - 1), 1.0)
    batches[:, 0] += 1.0
    batches /= batches.sum(axis=1, keepdims=True)

    visits = Visits(
        grid=np.geomspace(1e-4, 2e4, _GRID_POINTS) / duration,
        weights=np.zeros((groups, _GRID_POINTS)),
        batches=batches,
        of_page=of_page,
        began=trace.began,
        duration_seconds=duration,
        scanned=_scanned(trace, scans),
        growth=_growth(trace, duration),
        steadiness=examine(
            trace, page[whole].astype(np.int64), at[whole], trace.pages[scans].astype(np.int64)
        ),
    )
    for group, named in by_group(trace):
        members = named[~trace.new_page[named]]
        never = max(trace.group_pages[group] - len(named), 0.0)
        seen, counted = np.unique(visits.seen(members), return_counts=True)
        counts = np.append(counted.astype(np.float64), never)
        like = scaled(visits.log_likelihood(np.append(seen, 0), group))
        fitted, _ = _native.mixture_weights(like, counts, steps=400, gain=1e-2)
        visits.weights[group] = fitted * counts.sum()
    return visits


def by_group(trace: Trace) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the pages of each group that has any in the trace."""
    order = np.argsort(trace.page_group, kind="stable")
    groups, begins = np.unique(trace.page_group[order], return_index=True)
    return [(int(g), pages) for g, pages in zip(groups, np.split(order, begins[1:]), strict=True)]


def log_poisson(values: NDArray[np.int64], means: Floats) -> Floats:
    """Return log P(N = value) but for a constant of each row, for every value (rows) and mean (columns)."""
    return np.asarray(values[:, None] * np.log(means)[None, :] - means[None, :])


def scaled(logs: Floats) -> Floats:
    """Return the exponentials, rows scaled to a largest entry of 1."""
    return np.ascontiguousarray(np.exp(logs - logs.max(axis=1, keepdims=True)))


def _kinds(trace: Trace) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that scans of large tables make, and those that neither scans nor rings make."""
    strategy = trace.flags & STRATEGY
    owned = trace.owner_access.astype(np.int64)
    small = (strategy[owned] == BULKREAD) & (trace.owner_blocks[trace.owner] < SCANNED_FROM_BLOCKS)
    strategy[owned[small]] = 0
    apart = (trace.flags & DROP) > 0
    return np.flatnonzero((strategy == BULKREAD) & ~apart), np.flatnonzero((strategy == 0) & ~apart)


def _visit_begins(page: NDArray[np.uint32], at: Floats) -> NDArray[np.bool_]:
    """Return which accesses, sorted by page and time, begin a visit."""
    begins = np.empty(len(page), dtype=bool)
    if len(page):
        begins[0] = True
        begins[1:] = (page[1:] != page[:-1]) | (np.diff(at) > VISIT_GAP_SECONDS)
        # A page that is never left alone for so long has a visit in each such stretch of time.
        since = at - at[begins][np.cumsum(begins) - 1]
        stretch = np.floor(since / VISIT_GAP_SECONDS)
        begins[1:] |= np.diff(stretch) > 0
    return begins


def _scanned(trace: Trace, scans: NDArray[np.int64]) -> dict[int, Scanned]:
    """Gather the visits of scans by group."""
    if not len(scans):
        return {}
    blocks_of_row = np.zeros(len(trace.pages), dtype=np.int64)
    blocks_of_row[trace.owner_access.astype(np.int64)] = trace.owner_blocks[trace.owner]
    owner_of_row = np.zeros(len(trace.pages), dtype=np.int64)
    owner_of_row[trace.owner_access.astype(np.int64)] = trace.owner
    scans = scans[~trace.new_page[trace.pages[scans]]]
    scans = scans[np.argsort(trace.pages[scans], kind="stable")]
    begins = _visit_begins(trace.pages[scans], trace.seconds[scans])
    scans = scans[begins]
    page, at = trace.pages[scans].astype(np.int64), trace.seconds[scans]
    group = trace.page_group[page]
    same = np.append(False, page[1:] == page[:-1])
    found = {}
    for one in np.unique(group).tolist():
        mine = np.flatnonzero(group == one)
        firsts = mine[~same[mine]]
        again = mine[same[mine]]
        gaps = np.sort(at[again] - at[again - 1])
        rounds = len(mine) / len(firsts)
        # Where the page that was visited first is visited for the last time, the last scan began.
        begun = int(page[mine[np.argmin(at[mine])]])
        found[one] = Scanned(
            pages=page[firsts],
            first_seconds=at[firsts],
            gaps_seconds=gaps[:: max(len(gaps) // _MOST_GAPS, 1)],
            rounds=rounds,
            blocks=int(np.median(blocks_of_row[scans[mine]])),
            participants=max(len(np.unique(owner_of_row[scans[mine]])) / rounds, 1.0),
            last_begin_seconds=float(at[mine[page[mine] == begun]].max()),
        )
    return found


def _growth(trace: Trace, duration: float) -> dict[int, Growth]:
    """Return how fast groups grow, and how used their new pages are when they are left alone."""
    kept = trace.new_page.copy()
    kept[trace.pages[(trace.flags & DROP) > 0]] = False
    new = np.flatnonzero(kept)
    if not len(new):
        return {}
    accesses = np.bincount(trace.pages[(trace.flags & (DROP | REPEAT)) == 0], minlength=len(kept))
    used = np.clip(accesses[new], 1, 5)
    found = {}
    for one in np.unique(trace.page_group[new]).tolist():
        mine = used[trace.page_group[new] == one]
        found[one] = Growth(
            pages_per_second=len(mine) / duration,
            usage_counts=np.bincount(mine, minlength=6)[:6] / len(mine),
        )
    return found
