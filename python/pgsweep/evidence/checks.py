"""The values that a column of evidence can have: a part with any other is damaged, or no recorder wrote it.

The recorder never writes a missing value or a NaN. What a part may take in memory is bounded by what it takes
on the disk (pgsweep.decoded).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pgsweep.evidence.meta import MOST_BUFFERS, MOST_COUNT, MOST_SECONDS
from pgsweep.evidence.schema import TABLES
from pgsweep.units import format_exact

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_TEXT_BYTES: Final = 1024
"""A name has at most 63 bytes (NAMEDATALEN, pg_config_manual.h), a counter's is made of three."""

_MOST_BLOCKS: Final = 2**32 - 2
"""MaxBlockNumber is 0xFFFFFFFE (block.h)."""

_MOST_USAGE: Final = 15
"""What the four bits of a buffer's state can hold (buf_internals.h); what a server's policy allows is checked
where evidence is used (sizing/rules.py)."""

_ALL_FORKS: Final = 255
"""What a drop of a whole relation or database has as its fork (probe/src/columns.rs, Drops)."""

_FREE_LIST_HEAD: Final = "first_free"

_Range = tuple[float, float]

_ANYWHERE: Final[dict[str, _Range]] = {
    "fork": (0, 3),
    "usage_count": (0, _MOST_USAGE),
    "strategy": (0, 3),
    "snapshot": (0, 2**31 - 1),
    "frame": (1, MOST_BUFFERS),
    "used_frames": (0, MOST_BUFFERS),
    "seconds": (0, MOST_SECONDS),
    "begin_seconds": (0, MOST_SECONDS),
    "end_seconds": (0, MOST_SECONDS),
    "interval_seconds": (0, MOST_SECONDS),
    "time_ns": (0, MOST_SECONDS * 1e9),
    "stretch": (0, 2**31 - 1),
    "sample": (0, 2**31 - 1),
    "blocks": (1, _MOST_BLOCKS + 1),
    "pages": (1, 64),
    "reads": (0, MOST_COUNT),
    "nanoseconds": (0, MOST_SECONDS * 1e9),
    "block": (0, _MOST_BLOCKS),
    "blocks_begin": (0, _MOST_BLOCKS + 1),
    "blocks_end": (0, _MOST_BLOCKS + 1),
    "fsm_blocks": (0, _MOST_BLOCKS + 1),
    "vm_blocks": (0, _MOST_BLOCKS + 1),
    "value": (0, MOST_COUNT),
}


_OF_TABLE: Final[dict[tuple[str, str], _Range]] = {
    ("accesses", "kind"): (0, 2),
    # A trace reads its first counters before it begins.
    ("counters", "seconds"): (-MOST_SECONDS, MOST_SECONDS),
    # The head of the free list is -1 when it is empty (buf_internals.h, FREENEXT_END_OF_LIST); counters never
    # are (`trouble_in_counters`).
    ("counters", "value"): (-1, MOST_COUNT),
}


def trouble_in(table: str, column: str, values: NDArray[Any]) -> str | None:
    """Return what is wrong with the values of a column, or nothing."""
    bounds = _OF_TABLE.get((table, column), _ANYWHERE.get(column))
    if bounds is None or TABLES[table][column] == "str" or not len(values):
        return None
    if (table, column) == ("drops", "fork"):
        values = values[values != _ALL_FORKS]
        if not len(values):
            return None
    low, high = float(values.min()), float(values.max())
    # Written so that it is false for NaN, for which every comparison is false.
    if low >= bounds[0] and high <= bounds[1]:
        return None
    possible = f"{format_exact(bounds[0])} to {format_exact(bounds[1])}"
    return f"{column} goes from {format_exact(low)} to {format_exact(high)}; the possible range is {possible}"


def trouble_in_counters(names: NDArray[Any], values: NDArray[np.float64]) -> str | None:
    """Return which counter has a value that only the head of the free list can have, or nothing."""
    below = (values < 0) & (names != _FREE_LIST_HEAD)
    if not below.any():
        return None
    first = int(np.argmax(below))
    return (
        f"the counter {str(names[first])[:60]!a} is {format_exact(values[first])}, and no counter is negative"
    )
