"""For how long pages were away before they came again, and so which of their misses another pool has too.

A page that is not in the pool is not visited. So when it comes again, the time since it left bounds the time
since its last visit, whatever law its visits follow. In a pool whose clock passes take longer it would have
left later, and by how much follows from its usage count. Was it away for longer than that, it misses there
too; was it away for much less, it does not.

All times are in clock passes of the observed pool, which the position of the hand gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.sizing.snapshots.observations import Observations

Floats = NDArray[np.float64]

_FEWEST: Final = 30
"""Arrivals below which a share of them says nothing."""


@dataclass(frozen=True, kw_only=True)
class Absences:
    """Every time that a page came into the pool, but for blocks that were created.

    Attributes:
        group: of the page.
        least: for how long it was away at least; since the first snapshot if it was not seen before.
        most: at most; infinite if it was not seen before.
        since: how long after the first snapshot it came, at least.
        highest: no usage count of it was higher before it left.
        lowest: the usage count of a page just read.
    """

    group: NDArray[np.int64]
    least: Floats
    most: Floats
    since: Floats
    highest: Floats
    lowest: int = 1

    @classmethod
    def of(cls, seen: Observations) -> Absences:
        """Return those that snapshots show; none where the position of the hand is not known."""
        none = np.zeros(0)
        if len(seen.hand_buffers) != seen.snapshots or seen.snapshots < 2:
            return cls(group=none.astype(np.int64), least=none, most=none, since=none, highest=none)
        passes = (seen.hand_buffers - seen.hand_buffers[0]) / seen.pool_buffers
        order = np.lexsort((seen.snapshot, seen.page))
        page, snapshot = seen.page[order], seen.snapshot[order]
        known = np.concatenate([[False], page[1:] == page[:-1]])
        before = np.concatenate([[0], snapshot[:-1]])
        begins = ~known | (snapshot != before + 1)
        # The highest count of a stay, and one for each begun pass between snapshots that may have hidden it.
        stay = np.cumsum(begins) - 1
        highest = np.zeros(int(stay[-1]) + 1 if len(stay) else 0)
        np.maximum.at(highest, stay, seen.usage_count[order])
        highest = np.minimum(highest + np.ceil(np.diff(passes).max()), seen.clock.usage_cap)
        came = np.flatnonzero(begins & (snapshot > 0) & (known | ~seen.created[page]))
        at, again, left = snapshot[came], known[came], before[came]
        gone = np.where(again, passes[np.minimum(left + 1, at - 1)], 0.0)
        return cls(
            group=seen.page_group[page[came]].astype(np.int64),
            least=passes[at - 1] - gone,
            most=np.where(again, passes[at] - passes[left], np.inf),
            since=passes[at - 1],
            highest=np.where(again, highest[stay[came] - 1], seen.clock.usage_cap),
            lowest=seen.clock.admission,
        )

    def certain(self, group: int, longest: float, shortest: float) -> tuple[float, float, int]:
        """Return which share of a group's arrivals misses in a larger pool too, which hits, and their number.

        Args:
            group: the group.
            longest: time of a clock pass of that pool, at most.
            shortest: at least.
        """
        own = self.group == group
        count = int(np.count_nonzero(own))
        # A count of n takes more than n passes to go, and n + 1 at most.
        missed = self.least > self.highest * (longest - 1) + longest
        highest = float(self.highest[own].max(initial=0.0))
        # What came early may have been there shortly before the first snapshot.
        late = own & (self.since > highest * (longest - 1) + longest)
        looked_at = int(np.count_nonzero(late))
        misses = float(np.count_nonzero(missed & late)) / looked_at if looked_at >= _FEWEST else 0.0
        soon = self.most < self.lowest * (shortest - 1) - 1
        hits = float(np.count_nonzero(own & soon)) / max(count, 1)
        return misses, hits if count >= _FEWEST else 0.0, count
