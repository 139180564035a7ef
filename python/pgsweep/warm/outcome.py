"""The options of the work, its state, and its outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from pgsweep.errors import MissingAbility, PgsweepError
from pgsweep.pg.session.retry import PATIENCE_SECONDS
from pgsweep.records.warm import WarmTrouble
from pgsweep.warm.block_ranges import CALL_BYTES
from pgsweep.warm.session import LOCKED, Failed

_CALLS_A_SECOND = 4
"""The least number of calls a second of a throttled run: smaller calls avoid bursts."""

_TROUBLES_KEPT = 1000

GONE_SHARE = 0.01
"""The share of what was read that may be evicted again: by catalogs, and by what queries read meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How to work.

    Attributes:
        block_bytes: PostgreSQL's block size.
        connections: how many calls at once.
        rate_bytes_per_second: not faster than this; None for no limit.
        max_latency_seconds: pause while a probe takes longer; None for never.
        pool: what is read lies in the buffer pool, and is lost when the server restarts.
        patience_seconds: how long to wait for a server that went away.
        spares_processors: pause while this host has no idle processor (`ProcessorPauses`).
    """

    block_bytes: int = 8192
    connections: int = 3
    rate_bytes_per_second: float | None = None
    max_latency_seconds: float | None = None
    pool: bool = True
    patience_seconds: float = PATIENCE_SECONDS
    spares_processors: bool = False

    @property
    def call_blocks(self) -> int:
        """The largest number of blocks of a call."""
        size = float(CALL_BYTES)
        if self.rate_bytes_per_second is not None:
            size = min(size, self.rate_bytes_per_second / _CALLS_A_SECOND)
        return max(1, int(size) // self.block_bytes)


@dataclass(frozen=True, slots=True)
class WorkState:
    """How far the work is.

    Attributes:
        done_bytes: of calls that are done, also where parts of them failed.
        rate_bytes_per_second: over the last seconds; 0 at the beginning and in a pause.
        left_seconds: at that rate; None where there is no rate.
        paused: the server answers late.
        waiting: the server is away.
    """

    done_bytes: int
    total_bytes: int
    seconds: float
    rate_bytes_per_second: float
    left_seconds: float | None
    paused: bool
    waiting: bool


@dataclass(slots=True)
class WorkOutcome:
    """The outcome of the work.

    Attributes:
        asked_blocks: of all calls.
        read_blocks: the server or the kernel said it read (or found) them.
        calls: done; `calls_left` were not, because of the stop.
        again_calls: done once more because the server lost its pool.
        troubles: one a relation and reason.
    """

    asked_blocks: int = 0
    read_blocks: int = 0
    calls: int = 0
    calls_left: int = 0
    again_calls: int = 0
    again_blocks: int = 0
    reconnects: int = 0
    seconds: float = 0.0
    pauses: int = 0
    paused_seconds: float = 0.0
    stopped: bool = False
    troubles: list[WarmTrouble] = field(default_factory=list)

    def add(self, other: WorkOutcome) -> None:
        """Add the outcome of work that was done after this."""
        self.asked_blocks += other.asked_blocks
        self.read_blocks += other.read_blocks
        self.calls += other.calls
        self.calls_left += other.calls_left
        self.again_calls += other.again_calls
        self.again_blocks += other.again_blocks
        self.reconnects += other.reconnects
        self.seconds += other.seconds
        self.pauses += other.pauses
        self.paused_seconds += other.paused_seconds
        self.stopped |= other.stopped
        self.troubles += other.troubles


def troubles_of(failed: Iterable[Failed]) -> list[WarmTrouble]:
    """Return the failures by relation and reason, those with most blocks first."""
    sums: dict[tuple[str, str, str, str, str | None], int] = {}
    for piece, why, enable in failed:
        key = (piece.database, piece.schema, piece.relation, why, enable)
        sums[key] = sums.get(key, 0) + piece.blocks
    rows = sorted(sums.items(), key=lambda item: (-item[1], item[0][:3]))
    return [
        WarmTrouble(database=key[0], schema=key[1], relation=key[2], why=key[3], enable=key[4], blocks=blocks)
        for key, blocks in rows[:_TROUBLES_KEPT]
    ]


def nothing_at_all(outcome: WorkOutcome, apart: Collection[str] = ()) -> PgsweepError | None:
    """Return the error to raise where no block could be read, though some were asked for.

    Args:
        outcome: of the work.
        apart: databases where it is no failure if nothing can be read.
    """
    troubles = [trouble for trouble in outcome.troubles if trouble.database not in apart]
    if outcome.read_blocks or not troubles or outcome.stopped:
        return None
    first = troubles[0]
    # What is to be allowed or created is an ability; a lock is not, nor is a relation that has gone.
    kind = MissingAbility if first.enable and first.why != LOCKED else PgsweepError
    return kind(
        "nothing could be read",
        cause=f"{first.schema}.{first.relation}: {first.why}",
        hint=first.enable,
    )
