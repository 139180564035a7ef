"""One comparison: the same blocks read from a file in a memory cgroup, and from the simulated cache."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.page_cache.reader import BLOCK_BYTES, CACHESTAT
from pgsweep import _native
from pgsweep.host.cgroup import find_parent, plan
from pgsweep.host.page_cache_rules import read_page_cache_rules

ROOT = Path(__file__).resolve().parents[2]
PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is read, through how large a cache.

    Attributes:
        blocks: of the file.
        limit_bytes: of the memory cgroup.
        exponent: of the Zipf law of the blocks, scattered over the file.
        reads: of single blocks.
        scan_every: after that number of reads a sixth of the file is read from the beginning; 0: never.
        advice: `normal`, or `random`: without readahead (POSIX_FADV_RANDOM).
    """

    blocks: int
    limit_bytes: int
    exponent: float
    reads: int
    scan_every: int = 0
    advice: str = "normal"

    def order(self) -> NDArray[np.int64]:
        """Return the blocks in the order in which they are read."""
        random = np.random.default_rng(self.blocks)
        weights = np.arange(1, self.blocks + 1) ** -self.exponent
        chosen = np.searchsorted(np.cumsum(weights / weights.sum()), random.random(self.reads))
        read = random.permutation(self.blocks)[np.minimum(chosen, self.blocks - 1)]
        if not self.scan_every:
            return read
        scan = np.arange(self.blocks // 6)
        parts = [
            np.append(read[k : k + self.scan_every], scan) for k in range(0, self.reads, self.scan_every)
        ]
        return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Hit ratios of the blocks read in the second half: as the kernel had them cached, and as simulated."""

    kernel: float
    simulated: float
    fifo: float
    clock: float
    cache_pages: int


def obstacle(folder: Path) -> str | None:
    """Return why nothing can be compared here, or None if it can."""
    if os.geteuid() != 0 or find_parent() is None:
        return "making a memory cgroup needs root, and memory cgroups mounted"
    rules = read_page_cache_rules(folder)
    if rules.mglru:
        return "the multi-generational LRU is enabled: the kernel does not keep two lists"
    system_call = ctypes.CDLL(None, use_errno=True).syscall
    system_call(CACHESTAT, -1, None, None, 0)
    if ctypes.get_errno() == 38:
        return "the kernel has no cachestat (before 6.5)"
    return None


def compare(setting: Setting, folder: Path) -> Compared:
    """Read and simulate.

    Args:
        setting: what to read.
        folder: where the file is made, on the file system that is tested.
    """
    file, blocks, out = folder / "data", folder / "blocks.npy", folder / "cached.npz"
    if not file.exists() or file.stat().st_size != setting.blocks * BLOCK_BYTES:
        with file.open("wb") as made:
            for _ in range(setting.blocks // 128):
                made.write(os.urandom(128 * BLOCK_BYTES))
            made.flush()
            os.fsync(made.fileno())
    order = setting.order()
    np.save(blocks, order)
    group = plan()
    group.make(setting.limit_bytes)
    command = [sys.executable, "-m", "benchmarks.page_cache.reader", str(file), str(blocks), str(out)]
    try:
        subprocess.run([*command, str(group.procs_file), setting.advice], cwd=ROOT, check=True)
    finally:
        group.remove()
    with closing(np.load(out)) as found:
        cached, gathered, size = found["cached"], found["gathered"], int(found["file_bytes"])
    rules = read_page_cache_rules(folder)
    half = len(order) // 2
    ratios = {}
    for policy in ("two-lists", "fifo", "clock"):
        simulated = _native.access_files(
            order.astype(np.uint32),
            np.array([0, setting.blocks], np.uint32),
            capacity_pages=size // PAGE_BYTES,
            readahead_pages=0 if setting.advice == "random" else rules.readahead_bytes // PAGE_BYTES,
            folio_order=rules.folio_order,
            policy=policy,
            gathered=gathered.astype(np.uint64),
        )
        ratios[policy] = float((simulated["missing_pages"][half:] == 0).mean())
    return Compared(
        kernel=float((cached[half:] == BLOCK_BYTES // PAGE_BYTES).mean()),
        simulated=ratios["two-lists"],
        fifo=ratios["fifo"],
        clock=ratios["clock"],
        cache_pages=size // PAGE_BYTES,
    )
