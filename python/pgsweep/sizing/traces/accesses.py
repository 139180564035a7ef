"""A trace in the form that the simulator takes: numbered pages, flags, rings, drops, the pool at first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pgsweep import _native
from pgsweep.records.reasons import Reason
from pgsweep.sizing.clock import Clock

Floats = NDArray[np.float64]

HIT, MISS, EXTENSION = range(3)
"""Kinds of accesses in the evidence, and outcomes of a replay."""

STRATEGY, REPEAT, EXTEND = _native.STRATEGY_MASK, _native.REPEAT, _native.EXTENSION
DROP, UNCOUNTED = _native.DROP, _native.UNCOUNTED
"""Bits of the simulator's flags (core/src/trace.rs)."""

BULKREAD, VACUUM = _native.BULKREAD, _native.VACUUM
"""Access strategies, as in those flags and in the evidence."""

_ROW_COLUMNS: Final = ("pages", "seconds", "flags", "backend", "counted", "missed")


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """What the server's pool held when the trace began.

    Attributes:
        pages: dense ids.
        usage_counts: of each.
        buffers: the buffer of each, from 0.
        hand: the buffer at which the clock hand stood.
    """

    pages: NDArray[np.uint32]
    usage_counts: NDArray[np.uint8]
    buffers: NDArray[np.uint32]
    hand: int


@dataclass(frozen=True, kw_only=True)
class PageStates:
    """The state of each page of a trace when it began.

    Attributes:
        states: 0 for absent, or 1 + usage_count, shape (pages,).
        pass_seconds: time of a clock pass then.
        clock: the policy of the pool.
    """

    states: NDArray[np.uint8]
    pass_seconds: float
    clock: Clock


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Accesses in the form that the simulator takes.

    A row is an access, or a page that is dropped (flag 32).

    Attributes:
        pages: dense ids, shape (rows,).
        seconds: time of each row from the beginning.
        duration_seconds: how long was watched, also where nothing happened before or after the accesses.
        flags: the simulator's (strategy, repeat, extension, drop, not counted).
        backend: the process that made each access; 0 for drops.
        owner_access, owner, owner_blocks: rings, as the simulator takes them.
        page_group: group of each page, shape (pages,).
        group_pages: how many pages each group has, visited or not.
        group_names: name of each group, for words; may be empty.
        counted: which rows are accesses of the database.
        missed: which accesses the server missed itself.
        new_page: which pages were created during the trace.
        start: the pool at the beginning, where it was seen.
        began: the states of the pages then, where they say more of the rates than the visits do.
        notes: what was left out, for the verdict.
    """

    pages: NDArray[np.uint32]
    seconds: Floats
    duration_seconds: float
    flags: NDArray[np.uint8]
    backend: NDArray[np.uint32]
    owner_access: NDArray[np.uint64]
    owner: NDArray[np.uint32]
    owner_blocks: NDArray[np.uint32]
    page_group: NDArray[np.int64]
    group_pages: Floats
    group_names: tuple[str, ...] = ()
    counted: NDArray[np.bool_]
    missed: NDArray[np.bool_]
    new_page: NDArray[np.bool_]
    start: PoolState | None = None
    began: PageStates | None = None
    notes: tuple[Reason, ...] = ()

    @property
    def is_within_a_pass(self) -> bool:
        """Whether it is shorter than a clock pass, as far as that is known."""
        return self.began is not None and self.duration_seconds < self.began.pass_seconds

    def of_rows(self, rows: NDArray[Any] | slice) -> dict[str, Any]:
        """Return the columns that have a value for each row, of some rows."""
        return {name: getattr(self, name)[rows] for name in _ROW_COLUMNS}


def first_accesses(trace: Trace, count: int) -> Trace:
    """Return the trace up to a number of accesses, with the drops among them; pages keep their numbers."""
    accesses = np.flatnonzero((trace.flags & DROP) == 0)
    if len(accesses) <= count:
        return trace
    rows = int(accesses[count]) if count else 0
    owned = int(np.searchsorted(trace.owner_access, rows))
    return replace(
        trace,
        **trace.of_rows(slice(rows)),
        duration_seconds=float(trace.seconds[rows]),
        owner_access=trace.owner_access[:owned],
        owner=trace.owner[:owned],
    )


def stable_order(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Return the order of values, equal ones as they come; numpy's stable sort takes several times longer."""
    rows = np.arange(len(values), dtype=np.uint64)
    together = np.sort(values.astype(np.uint64) << np.uint64(32) | rows)
    return (together & np.uint64(2**32 - 1)).astype(np.int64)
