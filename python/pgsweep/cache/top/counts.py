"""The buffer pool counted by relation, read again and again by whichever way is open.

By peek the native module counts while it reads: about a millisecond for each GB of the pool's size in one of
our threads, nothing in the server. By SQL the server counts: one pass of pg_buffercache in one backend.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.pg.catalog.buffercache import count_by_relation, grant_memory, hand_position
from pgsweep.pg.session.refusals import explained
from pgsweep.residency.access import Access, server_gone


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Used buffers by relation file (or fork of one); arrays are parallel.

    Attributes:
        usage_counts: buffers at usage_count 0 to 5, shape (n, 6).
        buffers: of the pool, used or not.
        hand_buffers: buffers that the clock hand has passed since the server started, where it can be seen.
        seconds: what reading took.
    """

    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    usage_counts: NDArray[np.int64]
    dirty: NDArray[np.int64]
    pinned: NDArray[np.int64]
    buffers: int
    hand_buffers: int | None
    seconds: float


def read_counts(access: Access) -> PoolCounts:
    """Count the pool's buffers now."""
    return _peeked(access) if access.pool_source == "peek" else _asked(access)


def prepare_counts(access: Access) -> None:
    """Give the session the memory that one pass by SQL needs, so that the server writes no temporary file."""
    if access.pool_source == "sql":
        with explained():
            grant_memory(access.connection, access.server.shared_buffers_blocks)


def _peeked(access: Access) -> PoolCounts:
    assert access.memory is not None
    begin = time.monotonic()
    try:
        found = access.memory.relations()
    except (OSError, RuntimeError) as error:
        raise server_gone() from error
    return PoolCounts(
        spc=found["spc"],
        db=found["db"],
        rel=found["rel"],
        usage_counts=found["usage_counts"],
        dirty=found["dirty"],
        pinned=found["pinned"],
        buffers=found["buffers"],
        hand_buffers=hand_position(found["hand"], found["buffers"]),
        seconds=time.monotonic() - begin,
    )


def _asked(access: Access) -> PoolCounts:
    assert access.buffercache is not None
    begin = time.monotonic()
    with explained():
        rows = count_by_relation(access.connection, access.buffercache)
    seconds = time.monotonic() - begin
    return PoolCounts(
        spc=rows[:, 0].astype(np.uint32),
        db=rows[:, 1].astype(np.uint32),
        rel=rows[:, 2].astype(np.uint32),
        usage_counts=rows[:, 3:9],
        dirty=rows[:, 9],
        pinned=rows[:, 10],
        buffers=access.server.shared_buffers_blocks,
        hand_buffers=None,
        seconds=seconds,
    )
