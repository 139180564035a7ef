"""Read blocks of a file in a given order in a memory cgroup, and keep what the kernel had cached of each.

Run as a process of its own by `kernel.py`: `python -m benchmarks.page_cache.reader FILE BLOCKS OUT PROCS
ADVICE`. Before each read cachestat(2) says how many pages of the block are cached; it touches none of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np

BLOCK_BYTES = 8192
CACHESTAT = 451
"""The system call's number, the same on x86-64 and arm64."""

GATHER_READS = 500
"""Reads between two gatherings of the cgroup's counters.

The kernel decides about a page read again by counters that it gathers every 2 s at a moment of its own
(memcontrol.c, flush_memcg_stats_dwork), or when memory.stat is read. Reading it often makes known when.
"""


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cached(ctypes.Structure):
    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


def main(file: str, blocks: str, out: str, procs: str, advice: str) -> None:
    """Read all blocks, then write what was cached of each and when counters were gathered."""
    order = np.load(blocks).tolist()
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    where, found = _Range(0, BLOCK_BYTES), _Cached()
    at, into = ctypes.byref(where), ctypes.byref(found)
    buffer = [bytearray(BLOCK_BYTES)]
    cached = bytearray(len(order))
    gathered = []
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    if advice == "random":
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    Path(procs).write_text("0")
    statistics = Path(procs).with_name("memory.stat")
    for k, block in enumerate(order):
        where.offset = block * BLOCK_BYTES
        if system_call(CACHESTAT, descriptor, at, into, 0) != 0:
            raise OSError(ctypes.get_errno(), "cachestat")
        cached[k] = found.cached
        os.preadv(descriptor, buffer, block * BLOCK_BYTES)
        if k % GATHER_READS == GATHER_READS - 1:
            statistics.read_text()
            gathered.append(k)
    stat = dict(line.split(" ", 1) for line in statistics.read_text().splitlines())
    size = sum(int(stat[name]) for name in ("inactive_file", "active_file"))
    np.savez(out, cached=np.frombuffer(bytes(cached), np.uint8), gathered=gathered, file_bytes=size)


if __name__ == "__main__":
    main(*sys.argv[1:])
