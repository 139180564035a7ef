"""Predict changes of a load from one recording, then really change the load and count its misses.

Run by `make bench NAME=what_if`; as root it records a trace too. A private server runs point reads of three
tables at a set pace, and is recorded at one size of shared_buffers. Each what-if is predicted from that
recording. Then the load is changed, and its miss ratio is counted at each size after the pool has settled.
`now` is the load without a change: what the method itself is off. Where the pool did not settle in time, or
the machine was too busy to keep the pace of the load, the figure is kept but not in the summary (`left_out`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.evidence.record import Source, record
from pgsweep.pg.cluster import Cluster
from pgsweep.sizing.predict import predict

HERE = Path(__file__).parent
MB = 1 << 20
OBSERVED_BYTES = 16 * MB
SIZES_BYTES = [8 * MB, 16 * MB, 32 * MB]
ROWS = {"items": 16_000, "orders": 12_000, "log": 2_400}
PER_SECOND = {"items": 300, "orders": 250, "log": 100}
LEAST_SETTLE_SECONDS, MOST_SETTLE_SECONDS, COUNT_SECONDS = 5.0, 120.0, 15.0
TURNOVERS = 4.0
PACE = 0.9
ASKED: dict[str, dict[str, Any]] = {
    "": {},
    "without orders": {"without": "orders"},
    "orders grows 2x": {"grown": 2},
    "scan log every 1s": {"scan_seconds": 1.0},
    "insert into orders 300 rows/s": {"inserts": 300},
    "connections 2x": {"sessions": 2},
}


def run_sql(cluster: Cluster, *statements: str) -> None:
    """Run statements."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def fill(cluster: Cluster, name: str, rows: int) -> None:
    """Make a table with four rows to a block."""
    run_sql(
        cluster,
        f"DROP TABLE IF EXISTS {name}",
        f"CREATE TABLE {name} (id int, filler text)",
        f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN",
        f"INSERT INTO {name} SELECT g, repeat('x', 1900) FROM generate_series(1, {rows}) g",
        f"CREATE INDEX ON {name} (id)",
        f"VACUUM ANALYZE {name}",
        "CHECKPOINT",
    )


@contextmanager
def load(cluster: Cluster, folder: Path, changed: dict[str, Any]) -> Iterator[None]:
    """Run the load, changed or not, until the block ends."""
    rates = {name: rate for name, rate in PER_SECOND.items() if name != changed.get("without")}
    scripts: list[str] = []
    for name, rate in rates.items():
        rows = ROWS[name] * (changed.get("grown", 1) if name == "orders" else 1)
        draw = f"random(1, {rows})"
        if name == "items":
            draw = f"permute(random_zipfian(1, {rows}, 1.05), {rows})"
        path = folder / f"{name}.sql"
        path.write_text(f"\\set id {draw}\nSELECT length(filler) FROM {name} WHERE id = :id;\n")
        scripts += ["-f", f"{path}@{rate}"]
    sessions = changed.get("sessions", 1)
    running = [_pgbench(cluster, scripts, 2 * sessions, sum(rates.values()) * sessions)]
    if "inserts" in changed:
        path = folder / "insert.sql"
        path.write_text("INSERT INTO orders VALUES (:client_id + 1000000, repeat('x', 1900));\n")
        running.append(_pgbench(cluster, ["-f", str(path)], 1, changed["inserts"]))
    over = threading.Event()
    scanner = threading.Thread(target=_scan, args=(cluster, changed.get("scan_seconds"), over))
    scanner.start()
    try:
        yield
    finally:
        over.set()
        for one in running:
            one.terminate()
            one.wait()
        scanner.join()


def _pgbench(cluster: Cluster, scripts: list[str], clients: int, per_second: int) -> subprocess.Popen[bytes]:
    command = [str(cluster.bindir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-T", "600"]
    return subprocess.Popen(
        [*command, "-R", str(per_second), *scripts, cluster.conninfo()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _scan(cluster: Cluster, every_seconds: float | None, over: threading.Event) -> None:
    if every_seconds is None:
        return
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        due = time.monotonic()
        while not over.wait(max(due - time.monotonic(), 0.0)):
            connection.execute("SELECT count(filler) FROM log")
            due += every_seconds


def counted(cluster: Cluster) -> tuple[int, int]:
    """Return misses and accesses so far."""
    with psycopg.connect(cluster.conninfo("template1"), autocommit=True) as connection:
        row = connection.execute(
            "SELECT blks_read, blks_read + blks_hit FROM pg_stat_database WHERE datname = 'postgres'"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def settle(cluster: Cluster, size_bytes: int) -> bool:
    """Wait until the pool has been read anew, or for so long; return whether it was."""
    begun, first = time.monotonic(), counted(cluster)[0]
    while (seconds := time.monotonic() - begun) < MOST_SETTLE_SECONDS:
        enough = (counted(cluster)[0] - first) * 8192 >= TURNOVERS * size_bytes
        if enough and seconds >= LEAST_SETTLE_SECONDS:
            return True
        time.sleep(0.5)
    return False


def measure(cluster: Cluster, folder: Path, size_bytes: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Return the miss ratio and the accesses per second of the load at a size, once it has settled."""
    cluster.restart({"shared_buffers": f"{size_bytes // 1024}kB"})
    with load(cluster, folder, changed):
        settled = settle(cluster, size_bytes)
        before, begun = counted(cluster), time.monotonic()
        time.sleep(COUNT_SECONDS)
        after, seconds = counted(cluster), time.monotonic() - begun
    misses, accesses = (last - first for first, last in zip(before, after, strict=True))
    return {
        "miss_ratio": misses / accesses,
        "accesses_per_second": accesses / seconds,
        "settled": settled,
    }


def record_load(cluster: Cluster, folder: Path) -> dict[str, Path]:
    """Record the load without a change."""
    cluster.restart({"shared_buffers": f"{OBSERVED_BYTES // 1024}kB"})
    sources: list[Source] = ["trace", "sql"] if os.geteuid() == 0 else ["sql"]
    found: dict[str, Path] = {}
    with load(cluster, folder, {}):
        settle(cluster, OBSERVED_BYTES)
        for source in sources:
            found[source] = folder / f"{source}.evidence"
            seconds = 20.0 if source == "trace" else 40.0
            record(cluster.conninfo(), found[source], source=source, seconds=seconds)
    return found


def predicted(path: Path, asked: str) -> dict[str, Any]:
    """Return what is predicted."""
    found = predict(path, sizes_bytes=SIZES_BYTES, what_if=[asked] if asked else [])
    curve = found.changed or found
    return {
        "verdict": curve.verdict.level,
        "pace": found.changed.accesses_per_second
        if found.changed
        else found.observed.accesses / found.observed.seconds,
        "points": {
            point.shared_buffers_bytes: (point.miss_ratio, point.low, point.high) for point in curve.points
        },
    }


def main() -> None:
    """Record, predict, change, measure; print a line for each size and a summary as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="name the steps and do nothing")
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[size // MB for size in SIZES_BYTES])
    parser.add_argument("--only", choices=list(ASKED), nargs="+", default=list(ASKED))
    options = parser.parse_args()
    if options.dry_run:
        print(json.dumps({"asked": options.only, "sizes_mb": options.sizes_mb}))
        return
    refuse_debug_build()
    samples = []
    settings = {"max_connections": "30", "autovacuum": "off", "fsync": "off", "jit": "off"}
    with tempfile.TemporaryDirectory() as name, Cluster.create(None, settings) as cluster:
        folder = Path(name)
        for table, rows in ROWS.items():
            fill(cluster, table, rows)
        run_sql(cluster, "CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        evidence = record_load(cluster, folder)
        for asked in options.only:
            changed = ASKED[asked]
            answers = {source: predicted(path, asked) for source, path in evidence.items()}
            if "grown" in changed:
                fill(cluster, "orders", ROWS["orders"] * changed["grown"])
            for size in [mb * MB for mb in options.sizes_mb]:
                truth = measure(cluster, folder, size, changed)
                line: dict[str, Any] = {"asked": asked or "now", "size_bytes": size, **truth}
                # A busy machine is slower than the load asks for: then scans and inserts are too many.
                line["kept_pace"] = (
                    truth["accesses_per_second"] >= PACE * answers[next(iter(answers))]["pace"]
                )
                for source, one in answers.items():
                    line[source] = one["points"].get(size)
                    line[f"{source}_verdict"] = one["verdict"]
                samples.append(line)
                print(json.dumps(line), flush=True)
            if "grown" in changed or "inserts" in changed:
                fill(cluster, "orders", ROWS["orders"])
    summary: dict[str, Any] = {}
    for source in evidence:
        pairs = [
            (line[source], line["miss_ratio"], line["asked"])
            for line in samples
            if line[source] and line["settled"] and line["kept_pace"]
        ]
        for kind in (True, False):
            errors = [abs(p[0] - right) for p, right, asked in pairs if (asked == "now") is kind]
            word = "now" if kind else "what_if"
            if errors:
                summary[f"{source}_{word}_mean"] = round(statistics.mean(errors), 4)
                summary[f"{source}_{word}_max"] = round(max(errors), 4)
        inside = [p[1] <= right <= p[2] for p, right, asked in pairs if asked != "now"]
        summary[f"{source}_coverage"] = round(sum(inside) / max(len(inside), 1), 3)
    summary["left_out"] = sum(not (line["settled"] and line["kept_pace"]) for line in samples)
    keep(HERE, summary, samples)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
