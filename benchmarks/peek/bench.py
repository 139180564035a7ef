"""How far predictions from looks into the server's memory are off, on the demo's workloads: 12 minutes.

Each workload is recorded at 64 MB by peeks and, for comparison, by SQL; both are predicted from, and the
truth is measured at 8 to 512 MB.

Environment: PGSWEEP_BINDIR names another server's bin folder, PEEK_WORKLOADS picks workloads (zipf,mix,tpcb,
and those of benchmarks/unseen: ranges,updates,joins), PEEK_EVIDENCE a folder in which the evidence is kept.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.samples import keep, refuse_debug_build
from benchmarks.steps import Steps
from benchmarks.unseen.workloads import UNSEEN
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.demo import EVERYTHING
from pgsweep.sizing.predict import predict
from pgsweep.testbed.filling import PoolContent
from pgsweep.testbed.pgbench import DATABASE, create_database, prepare
from pgsweep.testbed.truth import SettledWorkload, Truth, measure
from pgsweep.testbed.workloads import WORKLOADS, Workload

SETTINGS = {"shared_buffers": "64MB", "autovacuum": "off"}
RECORDERS = {"peek": record_peek, "sql": record_sql}


def run(cluster: Cluster, workload: Workload, folder: Path, seed: int = 1) -> dict[str, Any]:
    """Record a workload by both ways, then measure it at all sizes."""
    steps = Steps()
    steps.stage(workload.name)
    prepare(cluster, workload)
    paths = {source: folder / f"{workload.name}-{source}.evidence" for source in RECORDERS}
    overhead = {}
    with SettledWorkload(cluster, workload, EVERYTHING.observed_bytes, seed=seed) as running:
        settled = running.settle()
        for source, record in RECORDERS.items():
            done = record(
                cluster.conninfo(DATABASE),
                paths[source],
                seconds=EVERYTHING.snapshots_seconds,
                rng_seed=seed,
                progress=steps,
                overwrite=True,
            )
            overhead[source] = done.measured_overhead_ratio
            running.check()
    truths: list[Truth] = []
    content = PoolContent()
    for number, size in enumerate(EVERYTHING.sizes_bytes, start=1):
        truth, content = measure(cluster, workload, size, seed=seed + number, carried=content)
        truths.append(truth)
    predicted = {source: predict(path, sizes_bytes=EVERYTHING.sizes_bytes) for source, path in paths.items()}
    rows = [
        {
            "shared_buffers_bytes": truth.shared_buffers_bytes,
            "measured_miss_ratio": truth.miss_ratio,
            "measured_standard_error": truth.standard_error,
            "measured_settled": truth.settled,
            **{
                source: {
                    "miss_ratio": p.points[at].miss_ratio,
                    "low": p.points[at].low,
                    "high": p.points[at].high,
                }
                for source, p in predicted.items()
            },
        }
        for at, truth in enumerate(truths)
    ]
    return {
        "name": workload.name,
        "settled": settled,
        "overhead": overhead,
        "verdicts": {source: p.verdict.sentences for source, p in predicted.items()},
        "rows": rows,
    }


def errors(rows: list[dict[str, Any]], source: str) -> dict[str, float]:
    """Return how far one source was off."""
    off = [abs(row[source]["miss_ratio"] - row["measured_miss_ratio"]) for row in rows]
    inside = [row[source]["low"] <= row["measured_miss_ratio"] <= row[source]["high"] for row in rows]
    return {
        "mean_abs_error": sum(off) / len(off),
        "max_abs_error": max(off),
        "within_interval_ratio": sum(inside) / len(inside),
    }


def main() -> None:
    refuse_debug_build()
    known = {workload.name: workload for workload in (*WORKLOADS, *UNSEEN)}
    wanted = os.environ.get("PEEK_WORKLOADS", ",".join(w.name for w in WORKLOADS)).split(",")
    bindir = Path(os.environ["PGSWEEP_BINDIR"]) if "PGSWEEP_BINDIR" in os.environ else None
    folder = Path(os.environ.get("PEEK_EVIDENCE") or tempfile.mkdtemp(prefix="pgsweep-bench-"))
    results = []
    print(f"load average before: {os.getloadavg()}", file=sys.stderr)
    for name in wanted:
        workload = known[name]
        with Cluster.create(bindir, SETTINGS) as cluster:
            create_database(cluster, EVERYTHING.scale if workload.needs_pgbench_tables else 0)
            results.append(run(cluster, workload, folder))
            version = cluster.version_num
    summary = {
        result["name"]: {source: errors(result["rows"], source) for source in RECORDERS} for result in results
    }
    keep(Path(__file__).parent, summary, {"server_version_num": version, "workloads": results})
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
