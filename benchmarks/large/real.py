"""A pool of 4 GB on a real server, against the truth by restarts: `python -m benchmarks.large.real`, as root.

The pool is filled flat out and settles; then the load is paced, so that a clock pass takes a quarter of an
hour, and recorded for ten minutes at most by each source at once, and for a minute by SQL alone. Truth: the
same data are copied, the server is started at each size and settles flat out; misses are counted in two
stretches. What is in the folder of `--keep` is not run again: a size that was counted, a recording.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.calibration.stretches import copy_data
from benchmarks.large.loads import LOADS
from benchmarks.samples import provenance
from pgsweep.pg.private.bindir import installed_servers
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.filling import PoolContent, pool_content
from pgsweep.testbed.pgbench import RunningWorkload, create_database, prepare
from pgsweep.testbed.truth import Patience, SettledWorkload, Truth
from pgsweep.testbed.workloads import Workload

HERE = Path(__file__).resolve().parent
PGSWEEP = Path(sys.executable).with_name("pgsweep")
SCALE = 800
OBSERVED_BYTES = 4 << 30
SIZES_BYTES = tuple(gigabytes << 30 for gigabytes in (4, 6, 3, 2, 8, 1))
MISSES_PER_SECOND = 400  # by commits: a script of two statements has twice as many
PATIENCE = Patience(turnovers=2, settle_limit_seconds=400, count_windows=30, count_limit_seconds=30)
SETTINGS = {
    "max_wal_size": "8GB",
    "checkpoint_timeout": "5min",
    # Flat out it is at work ten times as often for each access as it is where the load is paced.
    "autovacuum": "off",
    "maintenance_work_mem": "512MB",
}
_COSTS = ("expected_share", "measured_share", "own_processor_share", "reader_processor_seconds")
RECORDINGS = {
    "look": ("--source", "sql", "--for", "55s"),
    "sql": ("--source", "sql"),
    "peek": ("--source", "peek"),
    "trace": ("--source", "trace", "--for", "300s", "--max-bytes", "4GB"),
}


def log(*words: object) -> None:
    """Say what happens, with the time."""
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def recorded(cluster: Cluster, workload: Workload, rate: float, folder: Path) -> None:
    """Record the paced load by each source at once, until the last has ended by itself."""
    command = (str(PGSWEEP), "record", "-d", cluster.conninfo("bench"), "--json", "-q")
    with RunningWorkload(cluster, workload, seed=5, rate_per_second=rate):
        time.sleep(20)
        running = {
            name: subprocess.Popen(
                [*command, *options, "-o", str(folder / f"{name}.evidence")],
                stdout=(folder / f"{name}.json").open("w"),
                stderr=(folder / f"{name}.err").open("w"),
            )
            for name, options in RECORDINGS.items()
        }
        begun = time.monotonic()
        for name, process in running.items():
            log(name, "ended with", process.wait(), f"after {time.monotonic() - begun:.0f} s")


def predicted(evidence: Path) -> dict[str, Any]:
    """Return what `predict` says of a recording: points, verdict, seconds of a processor."""
    sizes = ",".join(f"{size >> 30}GB" for size in sorted(SIZES_BYTES))
    done = subprocess.run(
        [PGSWEEP, "predict", str(evidence), "--sizes", sizes, "--json", "--fresh"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def counted(
    cluster: Cluster, workload: Workload, size_bytes: int, carried: PoolContent
) -> tuple[list[Truth], PoolContent]:
    """Return the truth at a size in two stretches, and what the pool holds then."""
    with SettledWorkload(
        cluster, workload, size_bytes, seed=7, carried=carried, patience=PATIENCE
    ) as settled:
        settled.settle()
        truths = [settled.count(), settled.count()]
        return truths, pool_content(cluster) if size_bytes == OBSERVED_BYTES else PoolContent()


def prepared(workload: Workload, bindir: Path | None, folder: Path) -> Path:
    """Return the data directory of a stopped server with the load's tables; made once, and kept."""
    data = folder / "data"
    if not data.exists():
        log("make", workload.name)
        with Cluster.create(bindir, SETTINGS, work_dir=folder) as cluster:
            create_database(cluster, SCALE if workload.needs_pgbench_tables else 0, timeout_seconds=3600)
            prepare(cluster, workload)
            cluster.stop()
            cluster.data_directory.rename(data)
    return data


def run_load(workload: Workload, bindir: Path | None, folder: Path) -> None:
    """Run one load: record at 4 GB, then count at each size; a line of `truth.jsonl` for each."""
    folder.mkdir(parents=True, exist_ok=True)
    data = prepared(workload, bindir, folder)
    done = {line["gigabytes"] for line in truths_in(folder)}
    carried = PoolContent()
    with Cluster.create(bindir, SETTINGS, work_dir=folder, start=False) as cluster:
        for size in SIZES_BYTES:
            if size >> 30 in done:
                continue
            log("count at", size >> 30, "GB")
            if cluster.postmaster_pid is not None:
                cluster.stop()
            copy_data(data, cluster)
            cluster.settings = {**cluster.settings, "shared_buffers": f"{size >> 20}MB"}
            cluster.start()
            truths, content = counted(cluster, workload, size, carried)
            line = {
                "gigabytes": size >> 30,
                "miss_ratio": [round(one.miss_ratio, 5) for one in truths],
                "error": [round(one.standard_error, 5) for one in truths],
                "settled": truths[0].settled,
                "settle_seconds": round(truths[0].settle_seconds),
            }
            log(line)
            with (folder / "truth.jsonl").open("a") as out:
                print(json.dumps(line), file=out)
            if size == OBSERVED_BYTES:
                carried = content
                misses = truths[1].misses / truths[1].transactions
                rate = max(MISSES_PER_SECOND / misses, 0.5)
                flat_out = truths[1].misses / truths[1].seconds
                log(f"misses a transaction {misses:.1f}, flat out {flat_out:.0f}/s, paced to {rate:.1f}")
                recorded(cluster, workload, rate, folder)


def truths_in(folder: Path) -> list[dict[str, Any]]:
    """Return what was counted of a load, a line for each size."""
    lines = folder / "truth.jsonl"
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []


def answers(folder: Path) -> list[dict[str, Any]]:
    """Return what was predicted and counted of each load in the folder."""
    found = []
    for case in sorted(path.parent for path in folder.glob("*/truth.jsonl")):
        recordings = {}
        for name in RECORDINGS:
            evidence = case / f"{name}.evidence"
            if evidence.exists():
                said = predicted(evidence)
                overhead = json.loads((evidence / "meta.json").read_text())["overhead"]
                recordings[name] = {
                    "verdict": said["verdict"]["level"],
                    "reasons": [reason["code"] for reason in said["verdict"]["reasons"]],
                    "seconds": round(said["observed"]["seconds"]),
                    "observed": round(said["observed"]["miss_ratio"], 5),
                    "cost": {key: overhead[key] for key in _COSTS if key in overhead},
                    "points": {
                        str(point["shared_buffers_bytes"] >> 30): [
                            round(point[value], 5) for value in ("miss_ratio", "low", "high")
                        ]
                        for point in said["points"]
                    },
                }
        found.append({"load": case.name, "truth": truths_in(case), "predicted": recordings})
    return found


def summary(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return errors, coverage and widths of all recordings; today's size, which was counted, left out."""
    figures: dict[str, list[float]] = {}
    for case in found:
        truths = {str(line["gigabytes"]): line["miss_ratio"] for line in case["truth"]}
        for name, said in case["predicted"].items():
            kind = "look_" if name == "look" else ""
            for size, (point, low, high) in said["points"].items():
                if size not in truths or int(size) << 30 == OBSERVED_BYTES:
                    continue
                near = 0.5 <= (int(size) << 30) / OBSERVED_BYTES <= 2
                error = abs(point - sum(truths[size]) / len(truths[size]))
                inside = float(any(low <= truth <= high for truth in truths[size]))
                figures.setdefault(f"{kind}all_mean", []).append(error)
                if near:
                    figures.setdefault(f"{kind}near_mean", []).append(error)
                    figures.setdefault(f"{kind}near_width", []).append(high - low)
                figures.setdefault(f"{kind}inside", []).append(inside)
    means = {name: round(sum(values) / len(values), 4) for name, values in sorted(figures.items())}
    return means | {"values": len(figures.get("all_mean", ())), "loads": len(found)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the loads that are asked for, and print what is in the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", default="", help="names of loads; none: only predict again")
    parser.add_argument("--version", type=int, default=18)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--write", action="store_true", help="commit what was found as gigabytes.json")
    asked = parser.parse_args(arguments)
    servers = {server.major: server.bindir for server in installed_servers()}
    for load in LOADS:
        folder = asked.keep / f"{load.name}-{asked.version}"
        if load.name in asked.run.split(",") and len(truths_in(folder)) < len(SIZES_BYTES):
            run_load(load, servers[asked.version], folder)
    found = answers(asked.keep)
    kept = {**provenance(), "summary": summary(found), "samples": found}
    if asked.write:
        (HERE / "gigabytes.json").write_text(json.dumps(kept, indent=1) + "\n")
    print(json.dumps(kept["summary"]))


if __name__ == "__main__":
    main()
