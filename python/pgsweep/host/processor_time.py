"""Processor time of a server's processes and of the host, and what a copy out of the page cache takes."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from pgsweep.host.procfile import PROC
from pgsweep.host.procmem import read_family

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_BLOCK_BYTES: Final = 8192
_COPIES: Final = 400
_ROUNDS: Final = 7
_MOST_BYTES: Final = 8 << 20


def server_seconds(postmaster_pid: int, proc: Path = PROC) -> float | None:
    """Return the processor time of the server's processes so far; None if it cannot be read.

    A process that ends adds its time to its parent (kernel/exit.c), so the sum never falls.
    """
    total = 0
    try:
        for process in read_family(postmaster_pid, proc):
            with suppress(FileNotFoundError, ProcessLookupError):
                words = (proc / str(process.pid) / "stat").read_text().rpartition(")")[2].split()
                # Fields 14 and 15 of proc_pid_stat(5), and 16 and 17 of the postmaster's children that ended.
                own = words[11:15] if process.pid == postmaster_pid else words[11:13]
                total += sum(map(int, own))
    except (OSError, ValueError):
        return None
    return total / _TICKS


def host_seconds(proc: Path = PROC) -> float | None:
    """Return the time that all processors together were not idle so far; None if it cannot be read."""
    try:
        user, nice, system, _, _, irq, softirq, steal = map(
            int, (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + softirq + steal) / _TICKS


def copy_seconds(file: Path) -> float | None:
    """Return what one read of 8 kB from the page cache takes on this host; None if it cannot be measured.

    Some thousand reads of a file that is cached, some milliseconds in all: the median of the rounds, so that
    waiting for a processor does not count.

    Args:
        file: one that is in use, such as a program that runs.
    """
    try:
        descriptor = os.open(file, os.O_RDONLY)
    except OSError:
        return None
    try:
        blocks = min(os.fstat(descriptor).st_size, _MOST_BYTES) // _BLOCK_BYTES
        if not blocks:
            return None
        buffers = [bytearray(_BLOCK_BYTES)]
        for block in range(blocks):
            os.preadv(descriptor, buffers, block * _BLOCK_BYTES)
        rounds = []
        for number in range(_ROUNDS):
            begin = time.perf_counter()
            for index in range(_COPIES):
                os.preadv(descriptor, buffers, (number + index * 7919) % blocks * _BLOCK_BYTES)
            rounds.append((time.perf_counter() - begin) / _COPIES)
        return statistics.median(rounds)
    except OSError:
        return None
    finally:
        os.close(descriptor)
