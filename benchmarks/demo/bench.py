"""The whole demo, three workloads at seven sizes, with its errors. About fifteen minutes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from benchmarks.samples import keep, refuse_debug_build
from benchmarks.steps import Steps
from pgsweep.sizing.demo import run_demo


def main() -> None:
    refuse_debug_build()
    result = run_demo(everything=True, progress=Steps())
    summary = {
        workload.name: {
            "trace_mean_abs_error": workload.trace_mean_abs_error,
            "trace_max_abs_error": workload.trace_max_abs_error,
            "trace_within_interval_ratio": workload.trace_within_interval_ratio,
            "snapshots_mean_abs_error": workload.snapshots_mean_abs_error,
            "snapshots_max_abs_error": workload.snapshots_max_abs_error,
            "snapshots_within_interval_ratio": workload.snapshots_within_interval_ratio,
        }
        for workload in result.workloads
    }
    keep(Path(__file__).parent, summary, msgspec.to_builtins(result))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
