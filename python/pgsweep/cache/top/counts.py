"""The buffer pool counted by relation, read again and again by whichever way is open.

By peek the native module counts while it reads: about a millisecond for each GB of the pool's size in one of
our threads, nothing in the server. By SQL the server counts: one pass of pg_buffercache in one backend.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pgsweep.pg.answers import decoded
from pgsweep.pg.buffercache import memory_query
from pgsweep.pg.connect import explained
from pgsweep.pg.queries import load
from pgsweep.pg.shapes import OID_MAX
from pgsweep.residency.access import Access, server_gone


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Used buffers by relation file (or fork of one); arrays are parallel.

    Attributes:
        usage_counts: buffers at usage_count 0 to 5, shape (n, 6).
        buffers: of the pool, used or not.
        hand_frames: buffers that the clock hand has passed since the server started, where it can be seen.
        seconds: what reading took.
    """

    spc: NDArray[np.uint32]
    db: NDArray[np.uint32]
    rel: NDArray[np.uint32]
    usage_counts: NDArray[np.int64]
    dirty: NDArray[np.int64]
    pinned: NDArray[np.int64]
    buffers: int
    hand_frames: int | None
    seconds: float


def read_counts(access: Access) -> PoolCounts:
    """Count the pool's buffers now.

    Raises:
        ConnectionFailed: the server has gone.
    """
    return _peeked(access) if access.pool_source == "peek" else _asked(access)


def prepare_counts(access: Access) -> None:
    """Give the session the memory that one pass by SQL needs, lest the server writes it to a file."""
    if access.pool_source == "sql":
        version_num = access.server.version_num
        with explained():
            access.connection.execute(memory_query(version_num, access.server.shared_buffers_blocks).encode())


def _peeked(access: Access) -> PoolCounts:
    assert access.memory is not None
    begin = time.monotonic()
    try:
        found = access.memory.relations()
    except (OSError, RuntimeError) as error:
        raise server_gone() from error
    hand = found["hand"]
    return PoolCounts(
        spc=found["spc"],
        db=found["db"],
        rel=found["rel"],
        usage_counts=found["usage_counts"],
        dirty=found["dirty"],
        pinned=found["pinned"],
        buffers=found["buffers"],
        hand_frames=None if hand is None else hand[1] * found["buffers"] + hand[0],
        seconds=time.monotonic() - begin,
    )


def _asked(access: Access) -> PoolCounts:
    assert access.buffercache is not None
    text = load("pool_relations", access.server.version_num).format(schema=access.buffercache)
    begin = time.monotonic()
    with explained(), access.connection.cursor(binary=True) as cursor:
        cursor.execute(text.encode(), prepare=True)
        result = cursor.pgresult
        assert result is not None
        cells = b"".join(
            result.get_value(row, column) or b"" for row in range(result.ntuples) for column in range(11)
        )
    seconds = time.monotonic() - begin
    with decoded(access.connection, "the relations of pg_buffercache"):
        rows = np.frombuffer(cells, dtype=">i8").astype(np.int64).reshape(-1, 11)
        if (rows < 0).any() or (rows[:, :3] > OID_MAX).any() or (rows[:, 3:] >= 2**30).any():
            raise ValueError("a relation or a number of buffers out of range")
    return PoolCounts(
        spc=rows[:, 0].astype(np.uint32),
        db=rows[:, 1].astype(np.uint32),
        rel=rows[:, 2].astype(np.uint32),
        usage_counts=rows[:, 3:9],
        dirty=rows[:, 9],
        pinned=rows[:, 10],
        buffers=access.server.shared_buffers_blocks,
        hand_frames=None,
        seconds=seconds,
    )
