"""Read again what a pool in use has evicted while the rest was read.

What is read comes with usage_count 1. What sessions have used several times has up to 5, and the clock sweep
lowers all alike, so it evicts first what was read last (StrategyGetBuffer, freelist.c). If the end of a plan
needs room, it evicts the beginning of the same plan, and reading that again evicts other parts of it. So all
of it is read and touched again, each call several times in a row, until its usage counts match the rest.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pgsweep.pg.session.retry import patiently
from pgsweep.warm.block_ranges import Call
from pgsweep.warm.files import Owner
from pgsweep.warm.outcome import GONE_SHARE, WorkOutcome, WorkState
from pgsweep.warm.readers import LatencyProbe, PrewarmReader
from pgsweep.warm.run.prepare import Planned
from pgsweep.warm.run.rows import ReadBlocks
from pgsweep.warm.run.verify import Resident, look
from pgsweep.warm.session import Read
from pgsweep.warm.work import Work

_TOUCHES = (2, 5, 5)
"""How often each block is accessed, round by round; usage_count ends at 5 (BM_MAX_USAGE_COUNT)."""


@dataclass(slots=True)
class Back:
    """The outcome.

    Attributes:
        after: what is in the caches at the end.
        pushed_out_bytes: what was missing before.
        seconds: the time that the reading and touching took.
    """

    after: Resident
    pushed_out_bytes: int = 0
    seconds: float = 0.0


def reread_evicted(
    planned: Planned,
    outcome: WorkOutcome,
    after: Resident,
    stop: threading.Event,
    progress: Callable[[WorkState], None],
    read: ReadBlocks,
) -> Back:
    """Read and touch a plan until the pool keeps it, three times at most.

    With a rate that must be kept it is left alone: to touch all of a plan takes as long as to read it.

    Args:
        planned: what was read.
        outcome: of the reading.
        after: what was in the caches then.
        stop: ends it.
        progress: called with the state.
        read: what was read of each relation.

    Raises:
        ConnectionFailed: the server went away.
    """
    back = Back(after)
    asked_bytes = sum(piece.blocks for piece in planned.pool) * planned.block_bytes
    unread_bytes = (outcome.asked_blocks - outcome.read_blocks) * planned.block_bytes

    def pushed_out_bytes() -> int:
        there = back.after.pool_bytes
        gone_bytes = read_and_gone_bytes(planned, back.after, read)
        return 0 if there is None else max(0, asked_bytes - there - unread_bytes - gone_bytes)

    if outcome.stopped or planned.options.rate_bytes_per_second is not None:
        return back
    for touches in _TOUCHES:
        gone = pushed_out_bytes()
        if gone <= GONE_SHARE * asked_bytes or stop.is_set():
            break
        back.pushed_out_bytes = back.pushed_out_bytes or gone
        back.seconds += _touch(planned, touches, stop, progress)
        back.after = look_again(planned, stop)
    return back


def read_and_gone_bytes(planned: Planned, after: Resident, read: ReadBlocks) -> int:
    """Return how much was read into the pool and no longer exists: it was dropped, truncated or rewritten."""
    asked: Counter[Owner] = Counter()
    for piece in planned.pool:
        asked[piece.database, piece.oid] += piece.blocks * planned.block_bytes
    return sum(
        max(0, gone - (asked[owner] - read.into_pool(owner) * planned.block_bytes))
        for owner, gone in after.gone.items()
    )


def look_again(planned: Planned, stop: threading.Event) -> Resident:
    """Look at both caches after work; a server that restarts at its end is waited for.

    Raises:
        ConnectionFailed: it did not come back.
    """
    found, options = planned.found, planned.options
    return patiently(
        lambda: look(
            planned.conninfo, planned.pool, planned.page_cache, found.places, options.source, find_gone=True
        ),
        options.wait_seconds,
        stop,
    )


class _Toucher(PrewarmReader):
    """Reads each call several times in a row."""

    touches = 1

    def read(self, call: Call) -> Read:
        read = super().read(call)
        for _ in range(self.touches - 1):
            super().read(call)
        return read


def _touch(
    planned: Planned, touches: int, stop: threading.Event, progress: Callable[[WorkState], None]
) -> float:
    def reader() -> _Toucher:
        made = _Toucher(planned.conninfo, "buffer", server_started=work.server_started)
        made.touches = touches
        return made

    probe = LatencyProbe(planned.conninfo)
    work = Work(planned.calls()[0], reader, planned.options.work(planned.block_bytes, pool=True), probe=probe)
    try:
        return work.run(stop, progress).seconds
    finally:
        probe.close()
