"""Read blocks of a file in a given order in a memory cgroup, and keep what the kernel had cached of each.

Run as a process of its own by `kernel.py`: `python -m benchmarks.page_cache.reader FILE BLOCKS OUT PROCS
ADVICE`. Before each read cachestat(2) says how many pages of the block are cached; it touches none of them.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

import numpy as np

BLOCK_BYTES = 8192
CACHESTAT = 451
"""The system call's number, the same on x86-64 and arm64."""

GATHER_SECONDS = 2.0


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
    """Read all blocks, then write what was cached of each and when 2 s had passed."""
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
    due = time.monotonic() + GATHER_SECONDS / 2
    for k, block in enumerate(order):
        where.offset = block * BLOCK_BYTES
        if system_call(CACHESTAT, descriptor, at, into, 0) != 0:
            raise OSError(ctypes.get_errno(), "cachestat")
        cached[k] = found.cached
        os.preadv(descriptor, buffer, block * BLOCK_BYTES)
        if k % 64 == 0 and time.monotonic() > due:
            gathered.append(k)
            due += GATHER_SECONDS
    stat = dict(line.split(" ", 1) for line in Path(procs).with_name("memory.stat").read_text().splitlines())
    size = sum(int(stat[name]) for name in ("inactive_file", "active_file"))
    np.savez(out, cached=np.frombuffer(bytes(cached), np.uint8), gathered=gathered, file_bytes=size)


if __name__ == "__main__":
    main(*sys.argv[1:])
