"""Whether pages are visited at random times, as the law of visits assumes.

Where the hot pages change (drift), or where a page is visited several times within a while and then no more
(clusters), the visits of a page lie together. Where pages are read in turn (a loop), they lie apart. In both
cases what was visited in a trace says less, or other things, about the time before it than at random times.

Together: at random times each visit of a page falls into either half of the trace, as coins fall. So of the
pages with k visits 2^(1 - k) have all of them in one half. More are counted where visits lie together. How
far that number varies by chance, where whole ranges of pages are visited at once, shows from other divisions
of the trace into two halves, each of slices drawn at random.

Apart: of the gaps between the k visits of a page, 1 - (1 - 1/2k)^k are shorter than half the mean gap at
random times, some four in ten, and none in a loop. Pages that a loop visits once in the trace show it by
those that were visited twice: there are far fewer than pages visited once and never make likely.

Time is counted in visits of all pages, as a load may be busier at one time than at another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pgsweep.sizing.traces.accesses import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CLOCK_STEPS: Final = 4096
_SLICES: Final = 16
_SPLITS: Final = 100

_LEAST_TOGETHER: Final = 0.15
_LEAST_MISSES: Final = 0.001
_LEAST_DEVIATIONS: Final = 4.0
"""Visits lie together if of the pages first visited in the second half, and visited several times, this share
is more than chance, and their misses a thousandth of the accesses. Pages that were visited once show nothing.
In recordings of loads that do not move (benchmarks/jobs) the share is .08 at most, and 4 deviations are not
reached; a hot set that moves has .2 to .99. A smaller share beyond 4 deviations moves no curve, but widens
its interval."""

_FEWEST_GAPS: Final = 30
_FEWER_SHORT_GAPS: Final = 0.3
_SHORTEST_GAP_SECONDS: Final = 0.05
"""Pages that are visited more often are hot at every size. And as accesses that are close together are one
visit, the gaps of such pages are regular anyway."""

_ONCE_SHARE: Final = 0.005
_FEWER_TWICE: Final = 0.25
_IN_TURN_SHARE: Final = 0.01

_RANGES: Final = 64
"""More than the powers of 2 that numbers of visits reach."""


@dataclass(frozen=True, kw_only=True)
class Steadiness:
    """How far visits are not those of random times.

    Attributes:
        together: of the pages first visited in the second half of the trace and visited several times, the
            share that is more than chance; 0 where it is little.
        drift: the same, also where it is little; 0 where it may be chance.
        in_turn: which pages are visited in turn, shape (pages,); none where these are few accesses.
        in_turn_share: of the accesses, visits of such pages.
        in_turn_group: the group with most of them.
        seldom: which of those pages were visited once to three times, so that a round takes a third of the
            trace or more, and by no scan.
    """

    together: float
    drift: float
    in_turn: NDArray[np.bool_]
    in_turn_share: float
    in_turn_group: int
    seldom: NDArray[np.bool_]

    @property
    def steady(self) -> bool:
        """Return whether nothing speaks against random times."""
        return self.drift <= 0 and not self.in_turn.any()


def examine(trace: Trace, page: Ints, seconds: Floats, scanned: Ints) -> Steadiness:
    """Examine the visits of pages that are there during the whole trace.

    Args:
        page, seconds: the visits outside scans, sorted by page and then by time.
        scanned: pages that scans visit, each any number of times.
    """
    pages = len(trace.page_group)
    accesses = max(int(np.count_nonzero(trace.counted)), 1)
    clock = _clock(seconds, trace.duration_seconds)
    visits = np.bincount(page, minlength=pages)
    drift = _drift(page, clock, visits, accesses)
    in_turn = _in_turn(trace, page, clock, visits) | _once(trace, visits, accesses)
    of_group = np.bincount(trace.page_group, weights=visits * in_turn, minlength=len(trace.group_pages))
    share = float(of_group.sum()) / accesses
    if share < _IN_TURN_SHARE:
        in_turn = np.zeros(pages, dtype=bool)
    seldom = in_turn & (visits < 4)
    seldom[scanned] = False
    return Steadiness(
        together=drift if drift >= _LEAST_TOGETHER else 0.0,
        drift=drift,
        in_turn=in_turn,
        in_turn_share=share,
        in_turn_group=int(np.argmax(of_group)) if len(of_group) else 0,
        seldom=seldom,
    )


def _clock(seconds: Floats, duration_seconds: float) -> Floats:
    """Return times from 0 to 1 in which visits come evenly."""
    counts, edges = np.histogram(seconds, _CLOCK_STEPS, (0.0, max(duration_seconds, 1e-9)))
    passed = np.append(0.0, np.cumsum(counts)) / max(len(seconds), 1)
    return np.asarray(np.interp(seconds, edges, passed))


def _drift(page: Ints, clock: Floats, visits: Ints, accesses: int) -> float:
    """Return the share of the pages first visited in the second half that is more than chance.

    Of pages that were visited several times, as the others lie in one half in any case; 0 where it may be
    chance.
    """
    late = np.bincount(page[clock >= 0.5], minlength=len(visits))
    several = visits >= 2
    chance = np.where(several, 2.0 ** (1 - np.minimum(visits, 60)), 0.0)
    in_one_half = int(np.count_nonzero(several & ((late == 0) | (late == visits))))
    # As many in the first half as in the second.
    more = (in_one_half - float(chance.sum())) / 2
    if more < _LEAST_MISSES * accesses / 2:
        return 0.0
    deviation = max(float(np.sqrt((chance * (1 - chance)).sum())), _split_deviation(page, clock), 1.0) / 2
    first_late = int(np.count_nonzero(several & (late == visits)))
    return min(more / max(first_late, 1), 1.0) if more > _LEAST_DEVIATIONS * deviation else 0.0


def _split_deviation(page: Ints, clock: Floats) -> float:
    """Return how much the number of pages with all visits in one half varies between random halves."""
    slices = np.minimum((clock * _SLICES).astype(np.int64), _SLICES - 1)
    cells = np.unique(page * _SLICES + slices)
    begins = np.flatnonzero(np.diff(cells // _SLICES, prepend=-1))
    masks = np.bitwise_or.reduceat(np.left_shift(1, cells % _SLICES), begins)
    mask, count = np.unique(masks, return_counts=True)
    random = np.random.default_rng(0)
    found = []
    for _ in range(_SPLITS):
        half = int(np.left_shift(1, random.permutation(_SLICES)[: _SLICES // 2]).sum())
        found.append(int(count[((mask & half) == 0) | ((mask & ~half) == 0)].sum()))
    return float(np.std(found, ddof=1))


def _in_turn(trace: Trace, page: Ints, clock: Floats, visits: Ints) -> NDArray[np.bool_]:
    """Return the pages of those groups, and of those numbers of visits, that have hardly a short gap."""
    gaps = np.diff(clock, prepend=0.0)
    again = np.append(False, page[1:] == page[:-1])
    short = again & (gaps < 0.5 / np.maximum(visits, 1)[page])
    shorts = np.bincount(page[short], minlength=len(visits))
    expected = (visits - 1) * (1 - (1 - 0.5 / np.maximum(visits, 1)) ** visits)
    fits = (visits >= 1) & ((visits == 1) | (visits * _SHORTEST_GAP_SECONDS < trace.duration_seconds))
    chosen = np.flatnonzero(fits)
    ranges = np.log2(visits[chosen]).astype(np.int64)
    # As there may be far more groups than visits, only cells with pages have a place.
    cells, cell = np.unique(trace.page_group[chosen] * _RANGES + ranges, return_inverse=True)
    wanted = np.bincount(cell, weights=expected[chosen], minlength=len(cells))
    there = np.bincount(cell, weights=shorts[chosen], minlength=len(cells))
    loops = (wanted >= _FEWEST_GAPS) & (there < _FEWER_SHORT_GAPS * wanted)
    # What comes round twice or three times in the trace comes round once where it was just missed.
    once = np.flatnonzero((cells[:-1] % _RANGES == 0) & (cells[1:] == cells[:-1] + 1))
    loops[once] = loops[once + 1]
    found = np.zeros(len(visits), dtype=bool)
    found[chosen] = loops[cell.ravel()]
    return found


def _once(trace: Trace, visits: Ints, accesses: int) -> NDArray[np.bool_]:
    """Return the pages visited once, of groups where hardly any is visited twice.

    At random times, with n0 pages never visited and n1 visited once, n1^2 / 2 n0 or more are visited twice,
    however the rates differ from page to page (Cauchy and Schwarz).
    """
    groups = len(trace.group_pages)
    kept = ~trace.new_page
    # The pages of a trace include those that it only saw in the pool.
    seen = np.bincount(trace.page_group[~kept | (visits > 0)], minlength=groups)
    once = np.bincount(trace.page_group[kept & (visits == 1)], minlength=groups).astype(np.float64)
    twice = np.bincount(trace.page_group[kept & (visits == 2)], minlength=groups)
    never = np.maximum(trace.group_pages - seen, 0.0)
    likely = np.minimum(once**2 / (2 * np.maximum(never, 1.0)), once)
    found = (once >= _ONCE_SHARE * accesses) & (likely >= _FEWEST_GAPS) & (twice < _FEWER_TWICE * likely)
    # How many pages there are besides is not known of relations without a name.
    found[-1:] &= never[-1:] > 0
    return np.asarray(kept & (visits == 1) & found[trace.page_group])
