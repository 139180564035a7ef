"""What is known of the kept relations from one snapshot to the next, and of the clock hand."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pgsweep.evidence.clock_passes import PassClock
from pgsweep.pg.catalog.buffercache import Snapshot
from pgsweep.pg.catalog.server import MAIN_FORK
from pgsweep.pg.keep import Place
from pgsweep.records.warm_keep import WarmKeepRelation
from pgsweep.warm.keep.choice import BlockHeat
from pgsweep.warm.keep.session import Kept

_WINDOW_LOOKS: Final = 8


class HandSpeed:
    """The speed of the clock hand, measured over the last few snapshots.

    Where the hand itself is not seen the speed is a lower bound (see `evidence.passes`).

    Args:
        pool_buffers: in the whole pool.
    """

    def __init__(self, pool_buffers: int) -> None:
        self._pool_buffers = pool_buffers
        self._looks: deque[tuple[float, int, int, float, int | None]] = deque(maxlen=_WINDOW_LOOKS)
        self.hand: int | None = None

    def add(self, seconds: float, pool: Snapshot, allocations: float) -> None:
        """Add one snapshot: its time, its contents, and the server's cumulative buffers_alloc."""
        self._looks.append((seconds, pool.zero_buffers, pool.used_buffers, allocations, pool.hand_buffers))
        self.hand = None if pool.hand_buffers is None else pool.hand_buffers % self._pool_buffers

    @property
    def looks(self) -> int:
        """The number of recent snapshots that the speed is measured over."""
        return len(self._looks)

    @property
    def buffers_per_second(self) -> float:
        """Buffers that the hand passes in a second: since the last snapshot or over several, the larger."""
        return max(self._speed(2), self._speed(len(self._looks)))

    @property
    def pass_seconds(self) -> float:
        """The time of one clock pass at that speed; infinite where the hand stands still."""
        speed = self.buffers_per_second
        return self._pool_buffers / speed if speed > 0 else math.inf

    def _speed(self, looks: int) -> float:
        clock = PassClock(self._pool_buffers)
        for seconds, zero, used, allocations, hand in list(self._looks)[-looks:]:
            clock.add(
                seconds, zero_buffers=zero, used_buffers=used, allocations=allocations, hand_buffers=hand
            )
        pass_seconds = clock.pass_seconds
        return 0.0 if math.isinf(pass_seconds) else self._pool_buffers / pass_seconds


@dataclass
class Tracked:
    """One kept relation: what was seen of it and done to it.

    Attributes:
        chosen: by block, whether it is to be kept.
        expected: by block, whether it was resident when last seen or touched.
        buffers, blocks, usage_counts: of its resident blocks in the last snapshot, parallel, by block.
        share: of its chosen blocks, those resident in the last snapshot; None if none is chosen.
        trouble: why it is not kept; `enable` what would allow it.
        rest_until: it is not touched until then, because another session holds a lock on it.
        dropped: it exists no more.
    """

    kept: Kept
    place: Place
    heat: BlockHeat = field(init=False)
    chosen: NDArray[np.bool_] = field(init=False)
    expected: NDArray[np.bool_] = field(init=False)
    buffers: NDArray[np.int64] = field(init=False)
    blocks: NDArray[np.int64] = field(init=False)
    usage_counts: NDArray[np.uint8] = field(init=False)
    share: float | None = None
    share_before: float | None = None
    share_seconds: float = 0.0
    shared_seconds: float = 0.0
    touched_blocks: int = 0
    read_blocks: int = 0
    trouble: str | None = None
    enable: str | None = None
    rest_until: float = 0.0
    dropped: bool = False

    def __post_init__(self) -> None:
        self._forget(self.place.blocks or 0)

    def _forget(self, blocks: int) -> None:
        self.heat = BlockHeat(blocks)
        self.chosen = np.zeros(blocks, dtype=np.bool_)
        self.expected = np.zeros(blocks, dtype=np.bool_)
        self.buffers = self.blocks = np.zeros(0, dtype=np.int64)
        self.usage_counts = np.zeros(0, dtype=np.uint8)

    @property
    def active(self) -> bool:
        """Whether it can be kept at all."""
        return not self.dropped and self.trouble is None

    @property
    def share_mean(self) -> float | None:
        """The share of its chosen blocks that was resident, over time."""
        return self.shared_seconds / self.share_seconds if self.share_seconds > 0 else self.share

    def move(self, place: Place) -> None:
        """Record the relation's present file: after a rewrite all its blocks are new."""
        blocks = len(self.chosen) if place.blocks is None else place.blocks
        if place.file != self.place.file:
            self._forget(blocks)
        elif blocks != len(self.chosen):
            self.heat.resize(blocks)
            self.chosen, self.expected = _resized(self.chosen, blocks), _resized(self.expected, blocks)
        self.place = place

    def see(self, pool: Snapshot, seconds: float) -> None:
        """Find its buffers in a snapshot."""
        tablespace, database, filenode = self.place.file
        mine = np.flatnonzero(pool.rel == filenode)
        mine = mine[
            (pool.db[mine] == database) & (pool.spc[mine] == tablespace) & (pool.fork[mine] == MAIN_FORK)
        ]
        # A snapshot is not taken at one instant: a block that moved meanwhile may be seen twice.
        numbers, first = np.unique(pool.block[mine].astype(np.int64), return_index=True)
        inside = numbers < len(self.chosen)
        self.blocks, mine = numbers[inside], mine[first[inside]]
        self.buffers = pool.buffer[mine].astype(np.int64) - 1
        self.usage_counts = pool.usage_count[mine]
        self.heat.see(self.blocks, self.usage_counts, seconds)

    def count(self, seconds: float) -> int:
        """Measure the share that is resident; return how many blocks were lost since the last snapshot."""
        resident = np.zeros(len(self.chosen), dtype=np.bool_)
        resident[self.blocks] = True
        wanted = int(self.chosen.sum())
        lost = int((self.chosen & self.expected & ~resident).sum())
        self.expected = resident
        self.share = int((self.chosen & resident).sum()) / wanted if wanted else None
        if self.share is not None:
            if self.share_before is None:
                self.share_before = self.share
            self.share_seconds += seconds
            self.shared_seconds += self.share * seconds
        return lost

    def absent(self, seconds: float) -> None:
        """Count none of its chosen blocks as resident for the given time."""
        if self.active and self.share is not None:
            self.share_seconds += seconds

    def missing(self) -> NDArray[np.int64]:
        """Return the blocks that are to be kept and were not resident in the last snapshot."""
        return np.flatnonzero(self.chosen & ~self.expected)

    def record(self, block_bytes: int) -> WarmKeepRelation:
        """Return the record of this relation; of what is not kept any more, nothing is known at the end."""
        blocks = 0 if self.dropped else len(self.chosen)
        kept = int(self.chosen.sum()) if self.active else 0
        return WarmKeepRelation(
            schema=self.kept.schema,
            relation=self.kept.name,
            kind=self.kept.kind,
            size_bytes=blocks * block_bytes,
            kept_bytes=kept * block_bytes,
            resident_share_before=self.share_before,
            resident_share_after=self.share if self.active else None,
            resident_share_mean=self.share_mean,
            touched_blocks=self.touched_blocks,
            read_blocks=self.read_blocks,
            trouble=self.trouble,
            table_schema=self.kept.table[0],
            table=self.kept.table[1],
        )


def _resized(mask: NDArray[np.bool_], blocks: int) -> NDArray[np.bool_]:
    if blocks <= len(mask):
        return mask[:blocks].copy()
    return np.concatenate([mask, np.zeros(blocks - len(mask), dtype=np.bool_)])
