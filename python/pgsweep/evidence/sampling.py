"""A random sample of blocks, the same in every snapshot, drawn from the sizes of the relations.

Every relation is divided into stretches of `modulus` blocks; of each stretch the blocks at the same
randomly drawn offsets are taken, shifted by the relation's number. Otherwise the first blocks of all
relations (often the hottest) are taken or left out together. The rule is short enough to stand in the WHERE
of a query, so that other blocks are not even transferred, and the size of the sample is known for each
relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

MODULUS: Final = 1009
"""A prime, so that no stride of blocks falls into step with it."""


def drawing_order(seed: int) -> list[int]:
    """Return all offsets in the order in which samples drawn with a seed take them."""
    return [int(offset) for offset in np.random.default_rng(seed).permutation(MODULUS)]


class BlockSample(msgspec.Struct, frozen=True, kw_only=True):
    """Which blocks are taken: those with (block + relfilenode) modulo `modulus` among `offsets`."""

    modulus: int
    offsets: tuple[int, ...]

    @property
    def rate(self) -> float:
        """Return the share of blocks taken."""
        return len(self.offsets) / self.modulus

    @classmethod
    def everything(cls) -> BlockSample:
        """Take all blocks."""
        return cls(modulus=1, offsets=(0,))

    @classmethod
    def draw(cls, rate: float, seed: int) -> BlockSample:
        """Draw the offsets for a rate between 0 and 1; the same seed gives the same sample."""
        if rate >= 1:
            return cls.everything()
        count = min(MODULUS, max(1, round(rate * MODULUS)))
        return cls(modulus=MODULUS, offsets=tuple(sorted(drawing_order(seed)[:count])))

    @classmethod
    def from_meta(cls, sampling: Mapping[str, float]) -> BlockSample:
        """Return the sample that evidence was taken with, from its `sampling`."""
        if "snapshots" not in sampling:
            return cls.everything()
        return cls.draw(sampling["snapshots"], int(sampling["block_seed"]))

    def to_meta(self, seed: int) -> dict[str, float]:
        """Return what evidence keeps of the seed, and of the sample that was drawn with it."""
        drawn = {} if self.modulus == 1 else {"snapshots": self.rate, "block_seed": float(seed)}
        return {"seed": float(seed), **drawn}

    def contains(self, rel: NDArray[Any], block: NDArray[Any]) -> NDArray[np.bool_]:
        """Return for each block whether it is in the sample."""
        taken = np.zeros(self.modulus, dtype=np.bool_)
        taken[list(self.offsets)] = True
        position = (block.astype(np.int64) + rel.astype(np.int64)) % self.modulus
        return np.asarray(taken[position])

    def rows(self, table: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the rows of a table with the columns `rel` and `block` whose blocks are in the sample."""
        kept = self.contains(table["rel"], table["block"])
        return {name: column[kept] for name, column in table.items()}

    def count(self, rel: int, blocks: int) -> int:
        """Return how many of the first `blocks` blocks of a relation are in the sample."""
        whole, rest = divmod(blocks, self.modulus)
        first = rel % self.modulus
        tail = sum(1 for offset in self.offsets if (offset - first) % self.modulus < rest)
        return whole * len(self.offsets) + tail
