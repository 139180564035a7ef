"""How far predictions are off on workloads outside the package.

Each workload gets fresh tables on a private server, is recorded at 64 MB by snapshots and by trace, and is
measured at 8 to 512 MB. About twelve minutes a workload; raw results in a folder for each.

Longer than the demo in both: where one transaction in nine makes most of the accesses, as in `graph`, their
number in 15 seconds alone varies by so much that the miss ratio of such a stretch is known to 0.003 only.

Environment: UNSEEN=ranges,joins picks workloads; PGSWEEP_BINDIR names another server's bin folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.samples import keep, refuse_debug_build
from benchmarks.steps import Steps
from benchmarks.unseen.blind import BLIND
from benchmarks.unseen.workloads import UNSEEN
from pgsweep.records.proof import DemoRow
from pgsweep.sizing.demo import EVERYTHING, DemoPlan, run_demo
from pgsweep.testbed.truth import Patience

RECORDED_SECONDS = 40.0
COUNTED_SECONDS = 45.0


def errors(rows: list[DemoRow], source: str, today_bytes: int) -> dict[str, float]:
    """Return the errors of one source over all sizes, and from today's size upward."""
    pairs = [(row, getattr(row, source)) for row in rows if getattr(row, source) is not None]
    off = [abs(interval.miss_ratio - row.measured_miss_ratio) for row, interval in pairs]
    upward = [e for e, (row, _) in zip(off, pairs, strict=True) if row.shared_buffers_bytes >= today_bytes]
    inside = [interval.low <= row.measured_miss_ratio <= interval.high for row, interval in pairs]
    return {
        "mean_abs_error": sum(off) / len(off),
        "max_abs_error": max(off),
        "mean_abs_error_upward": sum(upward) / len(upward),
        "within_interval_ratio": sum(inside) / len(inside),
    }


def main() -> None:
    refuse_debug_build()
    wanted = os.environ.get("UNSEEN", ",".join(w.name for w in (*UNSEEN, *BLIND))).split(",")
    bindir = Path(os.environ["PGSWEEP_BINDIR"]) if "PGSWEEP_BINDIR" in os.environ else None
    folder = Path(__file__).parent
    summary: dict[str, Any] = {}
    for workload in (w for w in (*UNSEEN, *BLIND) if w.name in wanted):
        plan = DemoPlan(
            workloads=(workload,),
            scale=0,
            sizes_bytes=EVERYTHING.sizes_bytes,
            snapshots_seconds=RECORDED_SECONDS,
            trace_seconds=RECORDED_SECONDS,
            patience=Patience(count_limit_seconds=COUNTED_SECONDS),
        )
        result = run_demo(plan=plan, bindir=bindir, progress=Steps())
        [found] = result.workloads
        summary[workload.name] = {
            source: errors(found.rows, source, plan.observed_bytes) for source in ("trace", "snapshots")
        }
        kept = folder / workload.name
        kept.mkdir(exist_ok=True)
        keep(kept, summary[workload.name], msgspec.to_builtins(result))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
