"""An assumed past of a workload before its trace: the trace itself, with other pages of the same kinds.

A page cache remembers minutes to hours, a trace lasts seconds. So the trace is repeated several times
before its beginning, each time with other pages: what sessions visited is drawn anew among all pages of the
same relation, by rates that the numbers of visits make likely; scans, vacuums and drops stay as they are; and
where relations grow, their new pages lie further back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.page_cache.addresses import NOWHERE, Addresses
from pgsweep.sizing.traces.accesses import DROP, STRATEGY, Trace
from pgsweep.sizing.traces.visits import VISIT_GAP_SECONDS, Visits, log_poisson, scaled

Floats = NDArray[np.float64]
Rows = NDArray[np.uint32]


class Earlier:
    """Draws what came before.

    Args:
        trace: the accesses.
        visits: counted from it.
        addresses: of its pages.
        random: for all draws.
    """

    def __init__(
        self, trace: Trace, visits: Visits, addresses: Addresses, random: np.random.Generator
    ) -> None:
        self._trace = trace
        self._addresses = addresses
        self._random = random
        self.rows: Rows = addresses.of_page[trace.pages]
        new = trace.new_page[trace.pages]
        plain = (trace.flags & (STRATEGY | DROP)) == 0
        drawn = np.flatnonzero(plain & ~new & (self.rows != NOWHERE))
        self._drawn = drawn
        self._visit, first = _visits_of(trace, drawn)
        self._fork_of_visit = addresses.fork_of(self.rows[first])
        self.rates = self._draw_rates(visits)
        # All forks at once, the visits of each side by side; rates are added up over all addresses.
        self._visits_by_fork = np.argsort(self._fork_of_visit, kind="stable")
        fork = self._fork_of_visit[self._visits_by_fork]
        self._below = np.cumsum(self.rates)
        self._first, self._last = addresses.begins[fork], addresses.begins[fork + 1] - 1
        self._least = np.append(0.0, self._below)[self._first]
        self._range = self._below[self._last] - self._least
        self._new = np.flatnonzero(new & (self.rows != NOWHERE))
        fork = addresses.fork_of(self.rows[self._new])
        made = np.bincount(
            addresses.fork_of(addresses.of_page[trace.new_page & (addresses.of_page != NOWHERE)]),
            minlength=len(addresses.group),
        )
        self._made, self._new_begin = made[fork], addresses.begins[fork]

    def _draw_rates(self, visits: Visits) -> Floats:
        """Draw a rate for each address, in visits per second, by how often its page was visited."""
        addresses = self._addresses
        named = addresses.of_page != NOWHERE
        count = np.zeros(addresses.blocks, dtype=np.int64)
        count[addresses.of_page[named]] = visits.of_page[named]
        new = np.zeros(addresses.blocks, dtype=bool)
        new[addresses.of_page[named & self._trace.new_page]] = True
        rates = np.zeros(addresses.blocks)
        for number, group in enumerate(addresses.group.tolist()):
            begin, end = addresses.begins[number], addresses.begins[number + 1]
            values, index = np.unique(count[begin:end], return_inverse=True)
            prior = np.log(np.maximum(visits.weights[group], 1e-300))
            posterior = scaled(log_poisson(values, visits.grid * visits.duration_seconds) + prior)
            below = np.cumsum(posterior, axis=1)
            at = self._random.random(end - begin) * below[index.ravel(), -1]
            for value in range(len(values)):
                chosen = np.flatnonzero(index.ravel() == value)
                point = np.searchsorted(below[value], at[chosen])
                rates[begin + chosen] = visits.grid[np.minimum(point, len(visits.grid) - 1)]
        rates[new] = 0.0
        return rates

    def time(self, number: int) -> Rows:
        """Return the addresses of the trace's rows, `number` times before it."""
        rows = self.rows.copy()
        of_visit = np.zeros(len(self._fork_of_visit), dtype=np.int64)
        at = self._least + self._random.random(len(of_visit)) * self._range
        found = np.searchsorted(self._below, at, side="right")
        of_visit[self._visits_by_fork] = np.clip(found, self._first, self._last)
        rows[self._drawn] = of_visit[self._visit]
        within = self.rows[self._new].astype(np.int64) - self._new_begin
        # A relation that did not exist yet: the pages that it had in the trace.
        before = within - number * self._made
        rows[self._new] = self._new_begin + np.where(before >= 0, before, within)
        return rows


def _visits_of(trace: Trace, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of the visit that each row is part of, and the first row of each visit."""
    page, at = trace.pages[rows], trace.seconds[rows]
    order = np.argsort(page, kind="stable")
    page, at = page[order], at[order]
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (page[1:] != page[:-1]) | (np.diff(at) > VISIT_GAP_SECONDS)
    visit = np.empty(len(rows), dtype=np.int64)
    visit[order] = np.cumsum(begins) - 1
    return visit, rows[order[begins]]
