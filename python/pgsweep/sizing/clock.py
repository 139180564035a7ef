"""The replacement policy as the inference takes it: what a page's usage count can be, and the law of it.

The policy is the server's (`Rules`, core/src/rules.rs). Here only two of its four parts matter: the highest
usage count, and that of a page just read. The number of hands does not: each page is passed by one of them,
once a clock pass. A free list matters to dropped buffers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native

Floats = NDArray[np.float64]

COUNTS: Final = 6
"""The usage counts that tables have columns for: 0 to 5. Those above a lower cap have probability 0."""


@dataclass(frozen=True)
class Clock:
    """What decides the usage count of a page.

    Attributes:
        usage_cap: the highest usage count, 1 to 5; 1 is a clock with one second-chance bit.
        admission: the usage count of a page just read.
    """

    usage_cap: int = COUNTS - 1
    admission: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.usage_cap < COUNTS or not 0 <= self.admission <= self.usage_cap:
            raise ValueError(
                f"no rates can be inferred from usage counts up to {self.usage_cap} that begin at "
                f"{self.admission}"
            )

    @classmethod
    def of(cls, rules: _native.Rules) -> Clock:
        """Return the part of a server's rules that matters here."""
        return cls(rules.usage_cap, rules.admission)

    def law(self, visits_per_pass: Floats, batch: Floats) -> Floats:
        """Return the probabilities of absent and usage_count 0 to 5 at each rate, shape (rates, 7)."""
        found = _native.clock_law(visits_per_pass, batch, usage_cap=self.usage_cap, admission=self.admission)
        missing = COUNTS - 1 - self.usage_cap
        return np.pad(found, ((0, 0), (0, missing))) if missing else found

    def loaded(self, batch: Floats) -> Floats:
        """Return the probabilities of usage_count 0 to 5 right after the visit that loads a page."""
        counts = np.zeros(COUNTS)
        for more, share in enumerate(batch):
            counts[min(self.admission + more, self.usage_cap)] += share
        return counts

    def capped(self, counts: Floats) -> Floats:
        """Return a distribution over usage_count 0 to 5 with what is above the cap at the cap."""
        found = counts.copy()
        found[self.usage_cap] += found[self.usage_cap + 1 :].sum()
        found[self.usage_cap + 1 :] = 0.0
        return found


USUAL: Final = Clock()
"""Of every released server."""
