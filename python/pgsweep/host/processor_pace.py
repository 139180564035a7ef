"""How fast the processors are while something is recorded: the same work, timed again and again on each."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from pgsweep.host.processor_time import Spacing

ROUND_READS: Final = 40
ROUND_SECONDS: Final = 0.05
_BLOCK_BYTES: Final = 8192
_MOST_BYTES: Final = 4 << 20
_FEWEST_ROUNDS: Final = 40
_MOST_ROUNDS: Final = 600


@dataclass(frozen=True)
class Pace:
    """What the same work took of a processor on average.

    Attributes:
        seconds: the mean; half as fast a processor takes twice as long.
        error_seconds: its standard error.
    """

    seconds: float
    error_seconds: float


class PaceTimer:
    """Times rounds of 40 reads of 8 kB from the page cache into one buffer, on one processor after the other.

    On a host that is shared with others a processor may run at half its speed for some seconds, and the next
    one at full speed. So the thread binds itself to each of them in turn, twenty times a second in all, and
    afterwards to all that it had. Twenty rounds a second take about 1% of a processor, so the interval
    doubles after half a minute, after a minute, and so on. A round takes a tenth of a millisecond. On a
    virtual machine the throughput of eight seconds varied by 10%. With the mean of these times it varied
    together to 1.7%; where the thread ran wherever the kernel let it, to 4.8%.

    Args:
        file: one that is in use, such as a program that runs.
        processors: numbers of those that matter; others than this thread may use are left out.
    """

    def __init__(self, file: Path, processors: Collection[int]) -> None:
        self._own = os.sched_getaffinity(0)
        self._times: dict[int, list[float]] = {one: [] for one in sorted(self._own & set(processors))}
        self._turns = list(self._times)
        self._spacing = Spacing(seconds=ROUND_SECONDS, most=_MOST_ROUNDS)
        self._buffers = [bytearray(_BLOCK_BYTES)]
        self._drawn = random.Random(0)  # noqa: S311 - no secret
        self._descriptor: int | None = None
        self._blocks = 0
        with suppress(OSError):
            self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            self._blocks = min(os.fstat(self._descriptor).st_size, _MOST_BYTES) // _BLOCK_BYTES
            for block in range(self._blocks):
                os.preadv(self._descriptor, self._buffers, block * _BLOCK_BYTES)

    def time_if_due(self, now: float) -> float:
        """Time a round if the last one began long enough ago; return when the next one is due.

        Args:
            now: in seconds of any clock.
        """
        if self._spacing.begin_if_due(now) and self._blocks and self._turns:
            self._turns.append(self._turns.pop(0))
            self._time_round(self._turns[-1])
            self._spacing.thin_if_full(*self._times.values())
        return self._spacing.due_seconds

    def _time_round(self, processor: int) -> None:
        assert self._descriptor is not None
        offsets = [self._drawn.randrange(self._blocks) * _BLOCK_BYTES for _ in range(ROUND_READS)]
        try:
            os.sched_setaffinity(0, {processor})
        except OSError:
            # It was taken away from us, or offline.
            self._turns.remove(processor)
            return
        try:
            begin = time.thread_time()
            for offset in offsets:
                os.preadv(self._descriptor, self._buffers, offset)
            self._times[processor].append((time.thread_time() - begin) / ROUND_READS)
        except OSError:
            self._turns.clear()
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, self._own)

    @property
    def pace(self) -> Pace | None:
        """The processor time of one read on average; None where too few were timed.

        Its error follows from how much two rounds on the same processor differ, one after the other: what
        changes slowly is what is measured.
        """
        known = [times for times in self._times.values() if len(times) > 1]
        if sum(map(len, known)) < _FEWEST_ROUNDS:
            return None
        means = [_mean(times) for times in known]
        errors = [
            math.sqrt(_mean([(b - a) ** 2 for a, b in pairwise(times)]) / 2 / len(times)) for times in known
        ]
        return Pace(_mean(means), math.hypot(*errors) / len(known))

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            self._blocks = 0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
