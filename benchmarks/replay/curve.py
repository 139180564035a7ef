"""Measure a curve of 64 sizes over 100 million accesses, alone in a process so that its memory is seen."""

from __future__ import annotations

import json
import resource
import time

import numpy as np

from benchmarks.replay.traces import zipf_trace
from pgsweep._native import Rules, replay

ACCESSES = 100_000_000
PAGES = 1_000_000
SIZES = 64
THREADS = 2
REPEATS = 3


def main() -> None:
    """Print the samples as one JSON object."""
    trace = zipf_trace(ACCESSES, PAGES)
    sizes = [int(size) for size in np.geomspace(PAGES / 100, PAGES, SIZES)]
    seconds, processor_seconds = [], []
    mean_miss_ratio = 0.0
    for _ in range(REPEATS):
        begin, processor_begin = time.perf_counter(), time.process_time()
        counts = replay(trace, sizes, Rules(18), threads=THREADS)
        seconds.append(time.perf_counter() - begin)
        processor_seconds.append(time.process_time() - processor_begin)
        mean_miss_ratio = float(counts["misses"].mean() / ACCESSES)
    result = {
        "accesses": ACCESSES,
        "pages": PAGES,
        "sizes_blocks": sizes,
        "threads": THREADS,
        "mean_miss_ratio": mean_miss_ratio,
        "seconds": seconds,
        "processor_seconds": processor_seconds,
        # Linux counts ru_maxrss in kB. The trace is in it.
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
