"""Processor time of a server's processes and of the host, and what reads of files take."""

from __future__ import annotations

import math
import mmap
import os
import random
import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pgsweep.host.limits import processors_allowed
from pgsweep.host.procfile import PROC, read_kernel_text
from pgsweep.host.procmem import read_family

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BLOCK_BYTES: Final = 8192
COPIES: Final = 400
COPY_SECONDS: Final = 0.5
_MOST_ROUNDS: Final = 120
_ROUNDS: Final = 7
_PAUSE_SECONDS: Final = 0.02
_MOST_BYTES: Final = 8 << 20
_SPREAD_BYTES: Final = 32 << 20
"""Size of the memory that is read into: more than the processor's caches hold between two uses. Into one
buffer, which stays in the first of them, a copy takes half as long or less."""

_STEP: Final = 2039
"""Blocks from one read to the next; it has no common factor with their number."""

COLD_READS: Final = 200
_FEWEST_COLD_READS: Final = 40
_TRIES: Final = 20 * COLD_READS
_COLD_FILES: Final = 16
_COLD_SECONDS: Final = 0.25


def server_seconds(postmaster_pid: int, proc: Path = PROC) -> float | None:
    """Return the processor time of the server's processes so far; None if it cannot be read.

    A process that ends adds its time to its parent (kernel/exit.c), so the sum never falls.
    """
    total = 0
    try:
        for process in read_family(postmaster_pid, proc):
            with suppress(FileNotFoundError, ProcessLookupError):
                words = read_kernel_text(proc / str(process.pid) / "stat").rpartition(")")[2].split()
                # Fields 14 and 15 of proc_pid_stat(5), and 16 and 17 of the postmaster's children that ended.
                own = words[11:15] if process.pid == postmaster_pid else words[11:13]
                total += sum(map(int, own))
    except (OSError, ValueError):
        return None
    return total / _TICKS


def backend_seconds(pid: int, postmaster_pid: int, proc: Path = PROC) -> float | None:
    """Return the processor time of a server's process so far, to the microsecond; None if it cannot be read.

    Args:
        pid: as the server says. Where its numbers are not those of this host, the process has another parent.
        postmaster_pid: its parent, as seen from here.
        proc: the file system of processes.
    """
    try:
        words = read_kernel_text(proc / str(pid) / "stat").rpartition(")")[2].split()
        if int(words[1]) != postmaster_pid:
            return None
        # First the time on a processor in nanoseconds (Documentation/scheduler/sched-stats.rst).
        return int(read_kernel_text(proc / str(pid) / "schedstat").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return None


def host_seconds(proc: Path = PROC) -> float | None:
    """Return the time that all processors together were not idle so far; None if it cannot be read."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / _TICKS


def server_processors(postmaster_pid: int, proc: Path = PROC) -> float:
    """Return how many processors a server may use: its affinity mask, cpusets in it, and cgroups' quotas.

    Raises:
        OSError: it has gone.
    """
    mask = float(len(os.sched_getaffinity(postmaster_pid)))
    quota = processors_allowed(postmaster_pid, proc)
    return mask if quota is None else min(mask, quota)


@dataclass
class Spacing:
    """Rounds at equal intervals, of which a limited number is kept.

    When there are as many, every other one is dropped and the interval doubles. So a long recording is timed
    as evenly as a short one, and costs less.

    Attributes:
        seconds: the interval.
        most: the number of rounds that are kept.
        due_seconds: when the next round is due.
    """

    seconds: float
    most: int
    due_seconds: float = -math.inf
    _kept: int = field(default=0, init=False)

    def begin_if_due(self, now: float) -> bool:
        """Return whether a round is due; if so, it counts as made.

        Args:
            now: in seconds of any clock.
        """
        if now < self.due_seconds:
            return False
        self.due_seconds = now + self.seconds
        self._kept += 1
        return True

    def thin_if_full(self, *values: list[float]) -> None:
        """Drop every other one of the values that the rounds gave, in each list, if there are too many."""
        if self._kept >= self.most:
            self._kept //= 2
            self.seconds *= 2
            for each in values:
                del each[1::2]


class CopyTimer:
    """Times reads of 8 kB from the page cache, in rounds of 400: less than a millisecond each.

    The rounds of one second show how fast the host was in it. On a host that is shared with others the next
    second may differ by a third. So a recording times a round every half second. The interval doubles after
    one minute, after two, and so on.

    As a server reads into a buffer that was not used for long, each read goes to another place of 32 MB in
    pages of 4 kB.

    Args:
        file: one that is in use, such as a program that runs.
    """

    def __init__(self, file: Path) -> None:
        self._rounds: list[float] = []
        self._spacing = Spacing(seconds=COPY_SECONDS, most=_MOST_ROUNDS)
        self._memory = mmap.mmap(-1, _SPREAD_BYTES)
        self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, _SPREAD_BYTES, mmap.PAGESIZE):
            self._memory[at] = 1
        self._descriptor: int | None = None
        self._blocks = 0
        with suppress(OSError):
            self._descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            self._blocks = min(os.fstat(self._descriptor).st_size, _MOST_BYTES) // _BLOCK_BYTES
            buffers = [bytearray(_BLOCK_BYTES)]
            for block in range(self._blocks):
                os.preadv(self._descriptor, buffers, block * _BLOCK_BYTES)

    def time_if_due(self, now: float) -> None:
        """Time a round if the last one began long enough ago; `now` in seconds of any clock."""
        if self._spacing.begin_if_due(now):
            self.time_round()
            self._spacing.thin_if_full(self._rounds)

    def time_round(self) -> None:
        """Time one round; nothing where the file cannot be read."""
        if self._descriptor is None or not self._blocks:
            return
        first, places = len(self._rounds) * COPIES, _SPREAD_BYTES // _BLOCK_BYTES
        with suppress(OSError), memoryview(self._memory) as memory:
            offsets = [(first + index * 7919) % self._blocks * _BLOCK_BYTES for index in range(COPIES)]
            starts = [(first + index) * _STEP % places * _BLOCK_BYTES for index in range(COPIES)]
            buffers = [[memory[start : start + _BLOCK_BYTES]] for start in starts]
            begin = time.thread_time()
            for buffer, offset in zip(buffers, offsets, strict=True):
                os.preadv(self._descriptor, buffer, offset)
            taken = time.thread_time() - begin
            for [place] in buffers:
                place.release()
            self._rounds.append(taken / COPIES)

    @property
    def seconds(self) -> float | None:
        """The processor time of one read, the median of the rounds; None if it could not be measured."""
        return statistics.median(self._rounds) if self._rounds else None

    def close(self) -> None:
        """Close the file, and give the memory back."""
        self._memory.close()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def copy_seconds(file: Path) -> float | None:
    """Return the processor time of one read of 8 kB from the page cache; None if it cannot be measured.

    The median of a few rounds: some thousand reads, some milliseconds in all, with pauses in which others use
    the processor's caches as they do between the server's reads.

    Args:
        file: one that is in use, such as a program that runs.
    """
    timer = CopyTimer(file)
    try:
        for _ in range(_ROUNDS):
            timer.time_round()
            time.sleep(_PAUSE_SECONDS)
        return timer.seconds
    finally:
        timer.close()


def cold_read_seconds(files: Sequence[str]) -> float | None:
    """Return the processor time that one read of 8 kB from disk takes; None if it cannot be measured.

    It is what the reading process needs to ask for the block, to be switched away and back, and to copy it.
    What the interrupt at its end takes is not in it. At most 200 blocks are read, in a quarter of a second,
    that are not in the page cache, and dropped from it again.

    Args:
        files: of relations; blocks of the largest few are read.
    """
    sizes = {path: size for path in files if (size := _size(path)) >= _BLOCK_BYTES}
    chosen = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_COLD_FILES]
    descriptors: list[tuple[int, int]] = []
    try:
        for path in chosen:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            descriptors.append((descriptor, sizes[path] // _BLOCK_BYTES))
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return _cold_seconds(descriptors)
    except OSError:
        return None
    finally:
        for descriptor, _ in descriptors:
            os.close(descriptor)


def _cold_seconds(descriptors: Sequence[tuple[int, int]]) -> float | None:
    """Read random blocks that are not cached; return the mean processor time of this thread for one.

    Args:
        descriptors: of files, with the blocks that each has.
    """
    if not descriptors:
        return None
    drawn, buffers = random.Random(0), [bytearray(_BLOCK_BYTES)]  # noqa: S311 - no secret
    spent, reads, end = 0.0, 0, time.monotonic() + _COLD_SECONDS
    weights = [blocks for _, blocks in descriptors]
    for descriptor, blocks in drawn.choices(descriptors, weights, k=_TRIES):
        if reads == COLD_READS or time.monotonic() > end:
            break
        offset = drawn.randrange(blocks) * _BLOCK_BYTES
        asked, begin = _blocks_asked(), time.thread_time()
        os.preadv(descriptor, buffers, offset)
        taken = time.thread_time() - begin
        if _blocks_asked() > asked:
            spent += taken
            reads += 1
            os.posix_fadvise(descriptor, offset, _BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
    return spent / reads if reads >= _FEWEST_COLD_READS else None


def _blocks_asked() -> int:
    """Return how much this thread has asked of disks so far (include/linux/task_io_accounting_ops.h).

    A read with RWF_NOWAIT would not do: it says that nothing is there, and begins to read (mm/filemap.c:
    `filemap_get_pages`).
    """
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def _size(path: str) -> int:
    """Return the size of a file; 0 where there is none."""
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
