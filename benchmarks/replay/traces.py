"""Zipf traces, the same at every run, made in little memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 20


def zipf_trace(accesses: int, pages: int, *, exponent: float = 1.0, seed: int = 1) -> NDArray[np.uint32]:
    """Draw pages with probability ~ 1 / rank^exponent; ranks are scattered over the ids."""
    rng = np.random.default_rng(seed)
    cumulative = np.cumsum(np.arange(1, pages + 1, dtype=np.float64) ** -exponent)
    cumulative /= cumulative[-1]
    ids = rng.permutation(pages).astype(np.uint32)
    trace = np.empty(accesses, dtype=np.uint32)
    for begin in range(0, accesses, CHUNK):
        chunk = trace[begin : begin + CHUNK]
        chunk[:] = ids[np.searchsorted(cumulative, rng.random(chunk.size))]
    return trace


def write_oracle_general(trace: NDArray[np.uint32], path: Path) -> None:
    """Write a trace as libCacheSim reads it: u32 time, u64 object, u32 size, i64 next access or -1."""
    record = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.zeros(trace.size, dtype=record)
    records["object"] = trace
    records["size"] = 1
    records["next"] = -1
    records.tofile(path)
