"""Measure what recording a trace costs: pgbench -S -M prepared, probed against unprobed, in turns.

Run by `make bench NAME=tracing`. Probed means the whole of what a user pays: probes, the thread that reads
them, and the evidence being compressed and written, all on the same processors as server and clients.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.private.bindir import find_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.progress import NullListener

HERE = Path(__file__).parent
DEBIAN_BINDIR = Path("/usr/lib/postgresql/15/bin")
SETTINGS = {"shared_buffers": "64MB", "autovacuum": "off", "max_wal_size": "4GB"}
SCALE = 20
CLIENTS = 2
ROUNDS = 11
RUN_SECONDS = 3


class Started(NullListener):
    """Notes when the recording has begun."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        if title == "recording page accesses":
            self.event.set()


def pgbench(cluster: Cluster) -> float:
    """Return the transactions a second of one run."""
    command = ["pgbench", "-S", "-M", "prepared", "-n", "-c", str(CLIENTS), "-T", str(RUN_SECONDS)]
    ended = subprocess.run(
        [cluster.bindir / command[0], *command[1:], cluster.conninfo()],
        check=True,
        capture_output=True,
        text=True,
    )
    found = re.search(r"tps = ([\d.]+) \(without", ended.stdout)
    assert found, ended.stdout
    return float(found.group(1))


def probed(cluster: Cluster, folder: Path) -> dict[str, Any]:
    """Return one run under a recording, and what the recording says."""
    started, stop = Started(), threading.Event()
    results: list[Any] = []

    def record() -> None:
        results.append(record_trace(cluster.conninfo(), folder, progress=started, stop=stop, overwrite=True))

    thread = threading.Thread(target=record)
    thread.start()
    started.event.wait(60)
    tps = pgbench(cluster)
    stop.set()
    thread.join()
    (result,) = results
    return {
        "tps": tps,
        "accesses": result.accesses,
        "lost_events": result.lost_events,
        "measured_overhead_ratio": result.measured_overhead_ratio,
        "bytes_written": result.bytes_written,
    }


def measure(bindir: Path | None) -> dict[str, Any]:
    """Return all samples of one server."""
    with Cluster.create(bindir, SETTINGS) as cluster, tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [cluster.bindir / "pgbench", "-i", "-q", "-s", str(SCALE), cluster.conninfo()],
            check=True,
            capture_output=True,
        )
        pgbench(cluster)
        # Plain and probed runs in turns, each probed one between two plain ones: what else the machine does,
        # and the slow drift of its speed, then weigh on both.
        plain = [pgbench(cluster)]
        traced = []
        for _ in range(ROUNDS):
            traced.append(probed(cluster, Path(folder) / "x.evidence"))
            plain.append(pgbench(cluster))
    ratios = [run["tps"] * 2 / (plain[i] + plain[i + 1]) for i, run in enumerate(traced)]
    return {
        "version": find_server(bindir).version,
        "median_ratio": statistics.median(ratios),
        "least_ratio": min(ratios),
        "greatest_ratio": max(ratios),
        "lost_events": sum(run["lost_events"] for run in traced),
        "ratios": ratios,
        "unprobed_tps": plain,
        "probed": traced,
    }


def main() -> None:
    """Measure both servers, keep the samples, print the summary."""
    refuse_debug_build()
    servers = {"debian15": measure(DEBIAN_BINDIR), "wheel18": measure(None)}
    for name, server in servers.items():
        print(
            f"{name}: median {server['median_ratio']:.3f}, from {server['least_ratio']:.3f} "
            f"to {server['greatest_ratio']:.3f} in {ROUNDS} rounds"
        )
    summary = {
        "debian15_tps_ratio": round(servers["debian15"]["median_ratio"], 4),
        "wheel18_tps_ratio": round(servers["wheel18"]["median_ratio"], 4),
        "lost_events": sum(server["lost_events"] for server in servers.values()),
    }
    conditions = {"scale": SCALE, "clients": CLIENTS, "run_seconds": RUN_SECONDS, "settings": SETTINGS}
    keep(HERE, summary, {"conditions": conditions, "servers": servers})
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
