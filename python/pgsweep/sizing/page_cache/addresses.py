"""Where the pages of a trace lie in files, so that readahead and neighbours are as they are on disk.

All blocks of all forks that the trace names get an address, one file after the other, visited or not. A file
is a segment of 1 GB (RELSEG_SIZE).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.errors import UsageError
from pgsweep.sizing.snapshots.observations import Table
from pgsweep.sizing.traces.accesses import Trace

SEGMENT_BLOCKS: Final = 131_072
MOST_BLOCKS: Final = 1 << 25
"""256 GB; all that is kept of a block takes some 90 bytes."""

_BLOCKS_ANYWAY: Final = 1 << 21
_BLOCKS_A_ROW: Final = 1024
"""Fewer are taken of a trace of few rows, whatever it says of the sizes of its relations."""

NOWHERE: Final = 2**32 - 1
EXTENT_BLOCKS: Final = 32
"""Blocks that are kept or left out together in a sample, so that readahead finds neighbours: twice as many as
are read ahead by default (128 kB)."""

_FORK: Final = ("spc", "db", "rel", "fork")
_PAGE: Final = (*_FORK, "block")


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The forks one after the other.

    Attributes:
        of_page: address of each page of the trace; NOWHERE for those that nothing names.
        begins: first address of each fork, and where the last ends.
        group: of each fork, as the trace numbers them.
        files: first address of each file, and where the last ends.
    """

    of_page: NDArray[np.uint32]
    begins: NDArray[np.int64]
    group: NDArray[np.int64]
    files: NDArray[np.uint32]

    @property
    def blocks(self) -> int:
        """Return how many blocks there are."""
        return int(self.begins[-1])

    def fork_of(self, address: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the number of the fork that each address lies in."""
        return np.searchsorted(self.begins, address, side="right") - 1

    def sampled(self, accesses: NDArray[np.int64], halvings: int, random: np.random.Generator) -> Addresses:
        """Return addresses of one block of 2^halvings; all others are nowhere.

        Of the extents of each fork in the order of their number of accesses every second, fourth, and so on
        is kept, as of the pages in pgsweep.sizing.traces.sampled.

        Args:
            accesses: to each block.
            halvings: 0 keeps all.
            random: for where to begin.
        """
        if not halvings:
            return self
        sizes = np.diff(self.begins)
        extents = -(-sizes // EXTENT_BLOCKS)
        fork = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(self.blocks) - self.begins[fork]
        extent = np.append(0, np.cumsum(extents))[fork] + within // EXTENT_BLOCKS
        count = np.bincount(extent, weights=accesses, minlength=int(extents.sum()))
        order = np.lexsort((random.random(len(count)), count, np.repeat(np.arange(len(sizes)), extents)))
        kept = np.zeros(len(count), dtype=bool)
        kept[order[int(random.integers(2**halvings)) :: 2**halvings]] = True
        there = kept[extent]
        edges = np.append(0, np.cumsum(there))
        named = np.flatnonzero(self.of_page != NOWHERE)
        named = named[there[self.of_page[named]]]
        of_page = np.full(len(self.of_page), NOWHERE, dtype=np.uint32)
        of_page[named] = edges[self.of_page[named]]
        return Addresses(
            of_page=of_page,
            begins=edges[self.begins],
            group=self.group,
            files=edges[self.files].astype(np.uint32),
        )


def lay_out(accesses: Table, snapshot: Table, relations: Table, trace: Trace) -> Addresses:
    """Return the addresses.

    Args:
        accesses, snapshot, relations: the tables that the trace was made of
        (pgsweep.sizing.traces.accesses). trace: made of them.

    Raises:
        UsageError: there are more blocks than can be simulated.
    """
    columns = [np.concatenate([accesses[name], snapshot[name]]) for name in _PAGE]
    _, names = _native.dense_ids(*columns)
    anywhere = np.zeros(len(names["block"]), dtype=np.uint32)
    appeared, forks = _native.dense_ids(names["spc"], names["db"], names["rel"], names["fork"], anywhere)
    # The files of a relation lie side by side, whichever of them was visited first.
    order = np.lexsort([forks[name] for name in reversed(_FORK)])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    fork = place[appeared]
    named = np.stack([forks[name][order].astype(np.int64) for name in _FORK], axis=1)
    block = names["block"].astype(np.int64)
    size = np.zeros(len(named), dtype=np.int64)
    np.maximum.at(size, fork, block + 1)
    blocks = np.maximum(relations["blocks_begin"], relations["blocks_end"])
    known = {
        (int(spc), int(db), int(rel)): int(count)
        for spc, db, rel, count in zip(
            relations["spc"], relations["db"], relations["rel"], blocks, strict=True
        )
    }
    for number, (spc, db, rel, kind) in enumerate(named.tolist()):
        if kind == 0:
            size[number] = max(size[number], known.get((spc, db, rel), 0))
    begins = np.append(0, np.cumsum(size))
    most = min(MOST_BLOCKS, max(_BLOCKS_ANYWAY, _BLOCKS_A_ROW * len(accesses["block"])))
    if begins[-1] > most:
        raise UsageError(
            f"the relations of this trace have {int(begins[-1])} blocks, too many to simulate the page cache",
            cause=f"{most} blocks are possible",
        )
    group = np.zeros(len(named), dtype=np.int64)
    group[fork] = trace.page_group[: len(fork)]
    files = [np.arange(begin, end, SEGMENT_BLOCKS) for begin, end in pairwise(begins)]
    of_page = np.full(len(trace.page_group), NOWHERE, dtype=np.uint32)
    of_page[: len(fork)] = begins[fork] + block
    return Addresses(
        of_page=of_page,
        begins=begins,
        group=group,
        files=np.append(np.concatenate(files), begins[-1]).astype(np.uint32),
    )
