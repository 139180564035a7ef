"""Whether a restore into a pool in use goes another round.

What is read lowers the usage counts of all that lies in the pool, by one each time that the clock hand comes
around (StrategyGetBuffer, freelist.c): of what the pool held before, and of what was just read. If the
blocks held before have higher usage counts than those saved, the hand evicts some of the restored blocks
first. In the next round the counts of the former are lower, by up to five, and evicted blocks are read again.
After a few rounds all restored blocks stay, with their saved usage counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgsweep.warm.outcome import GONE_SHARE

MOST_ROUNDS = 5
"""After the first, as many as a usage count has steps (BM_MAX_USAGE_COUNT)."""

OWN_BLOCKS = 256
"""The number of blocks that catalogs read by our own sessions may have evicted."""

_LACKING_SHARE = 0.05
"""The share of the saved accesses that may be missing where all blocks are resident."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a round has left to do.

    Attributes:
        gone_blocks: that can be read, and are not resident.
        touches: that resident blocks lack to their saved usage counts.
    """

    gone_blocks: int
    touches: int


def much_is_gone(gone_blocks: int, wanted_blocks: int) -> bool:
    """Return whether more has left the pool than a few other blocks account for."""
    return gone_blocks > GONE_SHARE * wanted_blocks + OWN_BLOCKS


def another_round(left: Sequence[Remaining], wanted_blocks: int, accesses: int) -> bool:
    """Return whether one more round is worth its work.

    Not where queries keep the rest of the pool in use: there two rounds bring nothing.

    Args:
        left: by each of the rounds until now.
        wanted_blocks: that are to be resident.
        accesses: the sum of their saved usage counts.
    """
    if not left or len(left) > MOST_ROUNDS:
        return False
    now = left[-1]
    if much_is_gone(now.gone_blocks, wanted_blocks):
        return len(left) < 3 or now.gone_blocks < left[-3].gone_blocks
    if now.touches <= _LACKING_SHARE * accesses:
        return False
    if len(left) == 1 or much_is_gone(left[-2].gone_blocks, wanted_blocks):
        return True
    return 2 * now.touches < left[-2].touches
