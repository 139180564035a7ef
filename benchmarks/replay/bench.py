"""Compare a replay with libCacheSim's Clock, and time a whole curve.

Both simulators run the same Zipf trace at one size on one processor, in turns, and must count the same
misses. libCacheSim runs tuned (hashpower 18) and with its default (24). Compared are processor seconds,
which other work on the machine disturbs least; building libCacheSim's cache and reader is not counted, all
that `replay` does is. Of several settings the one least in our favour is reported.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import libcachesim
import numpy as np
from numpy.typing import NDArray

from benchmarks.replay.traces import write_oracle_general, zipf_trace
from benchmarks.samples import keep, refuse_debug_build
from pgsweep._native import Rules, replay

HERE = Path(__file__).resolve().parent
ACCESSES = 5_000_000
#: pages, size in blocks
SETTINGS = ((1_000_000, 100_000), (100_000, 10_000), (100_000, 50_000))
ROUNDS = 7
HASHPOWERS = {"tuned": 18, "default": 24}
#: n bits with a first frequency of 1 are a highest usage count of 2^n - 1.
N_BIT_COUNTER = 3


def time_libcachesim(path: Path, size: int, hashpower: int) -> tuple[float, float]:
    """Return processor seconds and miss ratio of one run."""
    reader = libcachesim.TraceReader(
        str(path),
        libcachesim.TraceType.ORACLE_GENERAL_TRACE,
        libcachesim.ReaderInitParam(ignore_obj_size=True),
    )
    clock = libcachesim.Clock(size, hashpower=hashpower, init_freq=1, n_bit_counter=N_BIT_COUNTER)
    begin = time.process_time()
    miss_ratio, _ = clock.process_trace(reader)
    return time.process_time() - begin, float(miss_ratio)


def time_replay(trace: NDArray[np.uint32], size: int) -> tuple[float, float]:
    """Return processor seconds and miss ratio of one run."""
    rules = Rules(18, usage_cap=2**N_BIT_COUNTER - 1)
    begin = time.process_time()
    counts = replay(trace, [size], rules, threads=1)
    return time.process_time() - begin, float(counts["misses"][0, 0] / trace.size)


def compare(pages: int, size: int, folder: Path) -> dict[str, Any]:
    """Return all samples of one setting, in turns after one round to warm up."""
    trace = zipf_trace(ACCESSES, pages)
    path = folder / "trace.oracleGeneral"
    write_oracle_general(trace, path)
    seconds: dict[str, list[float]] = {"replay": [], **{name: [] for name in HASHPOWERS}}
    miss_ratios = set()
    for turn in range(ROUNDS + 1):
        runs = {"replay": time_replay(trace, size)}
        for name, hashpower in HASHPOWERS.items():
            runs[name] = time_libcachesim(path, size, hashpower)
        for name, (taken, miss_ratio) in runs.items():
            miss_ratios.add(round(miss_ratio, 5))
            if turn > 0:
                seconds[name].append(taken)
    assert len(miss_ratios) == 1, f"the simulators disagree: {miss_ratios}"
    medians = {name: statistics.median(samples) for name, samples in seconds.items()}
    return {
        "accesses": ACCESSES,
        "pages": pages,
        "size_blocks": size,
        "miss_ratio": miss_ratios.pop(),
        "processor_seconds": seconds,
        "replay_accesses_per_second": ACCESSES / medians["replay"],
        **{f"ratio_to_{name}": medians[name] / medians["replay"] for name in HASHPOWERS},
    }


def compare_all() -> list[dict[str, Any]]:
    """Run all settings on one processor."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        with tempfile.TemporaryDirectory() as folder:
            return [compare(pages, size, Path(folder)) for pages, size in SETTINGS]
    finally:
        os.sched_setaffinity(0, allowed)


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    comparisons = compare_all()
    for row in comparisons:
        print(
            f"{row['pages']} pages, {row['size_blocks']} buffers, miss ratio {row['miss_ratio']}: "
            f"{row['replay_accesses_per_second'] / 1e6:.0f} M accesses/s, "
            f"{row['ratio_to_tuned']:.1f} x tuned, {row['ratio_to_default']:.1f} x default",
            flush=True,
        )
    command = [sys.executable, "-m", "benchmarks.replay.curve"]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    curve = json.loads(ended.stdout)
    summary = {
        "ratio_to_libcachesim_tuned": round(min(row["ratio_to_tuned"] for row in comparisons), 2),
        "ratio_to_libcachesim_default": round(min(row["ratio_to_default"] for row in comparisons), 2),
        "curve64_100m_seconds": round(statistics.median(curve["seconds"]), 2),
        "peak_rss_bytes": curve["peak_rss_bytes"],
    }
    keep(HERE, summary, {"comparisons": comparisons, "curve": curve}, packages=("libcachesim",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
