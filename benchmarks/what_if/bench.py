"""Predict changes of a load or a memory from one recording, then really change it and count.

Run by `make bench NAME=what_if`; as root it records a trace too. A private server runs point reads of three
tables at a set pace, and is recorded at one size of shared_buffers. Each what-if is predicted from that
recording. Then the load is changed, and its miss ratio is counted at each size after the pool has settled.
Where memory cgroups are available the server has a memory limit, and what its processes read from disk for
each access is predicted and counted too (`disk`). `connections 2x closed` is a load without a pace: from a
trace the throughput is predicted, as a ratio to that of half the sessions (`throughput`). Huge pages are not
among the forms: a memory cgroup does not charge them, so what they free cannot be measured behind its limit.
`now` is the load without a change: what the method itself is off. Where the pool did not settle in time, or
the machine was too busy to keep the pace of the load, the figure is kept but not in the summary (`left_out`);
nor are disk reads of a page cache that had not settled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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
from pgsweep.errors import MissingAbility
from pgsweep.evidence.record import Source, record
from pgsweep.host.server_memory import disk_read_bytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.predict import predict

HERE = Path(__file__).parent
MB = 1 << 20
OBSERVED_BYTES = 16 * MB
SIZES_BYTES = [8 * MB, 16 * MB, 32 * MB]
ROWS = {"items": 16_000, "orders": 12_000, "log": 2_400}
PER_SECOND = {"items": 300, "orders": 250, "log": 100}
LEAST_SETTLE_SECONDS, MOST_SETTLE_SECONDS, COUNT_SECONDS = 5.0, 120.0, 15.0
TURNOVERS = 4.0
NO_DISK, DRY_SECONDS = 0.002, 20.0
_Z90 = 1.645
PACE = 0.9
KEEP_SECONDS = 0.25
MEMORY_BYTES = 76 * MB
MORE_MEMORY_BYTES = 84 * MB
CLOSED_CLIENTS, PAUSE_MS = 6, 2
CLOSED = "connections 2x closed"
ASKED: dict[str, dict[str, Any]] = {
    "": {},
    "without orders": {"without": "orders"},
    "orders grows 2x": {"grown": 2},
    "scan log every 1s": {"scan_seconds": 1.0},
    "insert into orders 300 rows/s": {"inserts": 300},
    "connections 2x": {"sessions": 2},
    "keep log warm": {"kept": "log"},
    f"ram {MORE_MEMORY_BYTES // MB}MB": {"memory_bytes": MORE_MEMORY_BYTES},
    CLOSED: {"sessions": 2, "closed": True},
}


def run_sql(cluster: Cluster, *statements: str) -> None:
    """Run statements."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def fill(cluster: Cluster, name: str, rows: int) -> None:
    """Make a table with four rows to a block.

    ANALYZE copies the rows of its sample: 30 000 of these would not fit beside the pool in the memory limit.
    """
    run_sql(
        cluster,
        "SET default_statistics_target = 10",
        f"DROP TABLE IF EXISTS {name}",
        f"CREATE TABLE {name} (id int, filler text)",
        f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN",
        f"INSERT INTO {name} SELECT g, repeat('x', 1900) FROM generate_series(1, {rows}) g",
        f"CREATE INDEX ON {name} (id)",
        f"VACUUM ANALYZE {name}",
        "CHECKPOINT",
    )


class Keeper(threading.Thread):
    """Reads a table and its index into the pool again and again.

    Attributes:
        accesses: that this has made, which are not the load's.
    """

    def __init__(self, cluster: Cluster, name: str | None, over: threading.Event) -> None:
        super().__init__()
        self.accesses = 0
        self._cluster, self._name, self._over = cluster, name, over

    def run(self) -> None:
        """Read until all is over."""
        if self._name is None:
            return
        with psycopg.connect(self._cluster.conninfo(), autocommit=True) as connection:
            while not self._over.wait(KEEP_SECONDS):
                row = connection.execute(
                    "SELECT pg_prewarm(%s) + pg_prewarm(%s)", [self._name, f"{self._name}_id_idx"]
                ).fetchone()
                assert row is not None
                self.accesses += int(row[0])


@contextmanager
def load(cluster: Cluster, folder: Path, changed: dict[str, Any]) -> Iterator[Keeper]:
    """Run the load, changed or not, until the block ends; give what keeps a table in the pool."""
    rates = {name: rate for name, rate in PER_SECOND.items() if name != changed.get("without")}
    scripts: list[str] = []
    for name, rate in rates.items():
        rows = ROWS[name] * (changed.get("grown", 1) if name == "orders" else 1)
        draw = f"random(1, {rows})"
        if name == "items":
            draw = f"permute(random_zipfian(1, {rows}, 1.05), {rows})"
        path = folder / f"{name}.sql"
        # Without a pace sessions pause, else pgbench itself would take the processors.
        pause = f"\\sleep {PAUSE_MS} ms\n" if changed.get("closed") else ""
        path.write_text(f"\\set id {draw}\nSELECT length(filler) FROM {name} WHERE id = :id;\n{pause}")
        scripts += ["-f", f"{path}@{rate}"]
    sessions = changed.get("sessions", 1)
    pace = None if changed.get("closed") else sum(rates.values()) * sessions
    clients = CLOSED_CLIENTS if changed.get("closed") else 2
    running = [_pgbench(cluster, scripts, clients * sessions, pace)]
    if "inserts" in changed:
        path = folder / "insert.sql"
        path.write_text("INSERT INTO orders VALUES (:client_id + 1000000, repeat('x', 1900));\n")
        running.append(_pgbench(cluster, ["-f", str(path)], 1, changed["inserts"]))
    over = threading.Event()
    scanner = threading.Thread(target=_scan, args=(cluster, changed.get("scan_seconds"), over))
    keeper = Keeper(cluster, changed.get("kept"), over)
    scanner.start()
    keeper.start()
    try:
        yield keeper
    finally:
        over.set()
        for one in running:
            one.terminate()
            one.wait()
        scanner.join()
        keeper.join()


def _pgbench(
    cluster: Cluster, scripts: list[str], clients: int, per_second: int | None
) -> subprocess.Popen[bytes]:
    command = [str(cluster.bindir / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-T", "600"]
    return subprocess.Popen(
        [*command, *([] if per_second is None else ["-R", str(per_second)]), *scripts, cluster.conninfo()],
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


def counted(cluster: Cluster) -> dict[str, float]:
    """Return misses, accesses and transactions so far, and the bytes read from disk."""
    with psycopg.connect(cluster.conninfo("template1"), autocommit=True) as connection:
        row = connection.execute(
            "SELECT blks_read, blks_read + blks_hit, xact_commit FROM pg_stat_database "
            "WHERE datname = 'postgres'"
        ).fetchone()
    assert row is not None
    assert cluster.postmaster_pid is not None
    misses, accesses, commits = map(float, row)
    read = disk_read_bytes(cluster.postmaster_pid) or 0
    return {"misses": misses, "accesses": accesses, "commits": commits, "bytes": float(read)}


def settle(cluster: Cluster, size_bytes: int, memory_bytes: int) -> tuple[bool, bool]:
    """Wait until both caches have been read anew; return whether the pool was, and whether both were.

    The page cache was where hardly anything comes from disk, or as much came as there is memory for it.
    """
    begun, first = time.monotonic(), counted(cluster)
    pool = cache = False
    while (seconds := time.monotonic() - begun) < MOST_SETTLE_SECONDS:
        now = counted(cluster)
        gained = {name: now[name] - first[name] for name in now}
        pool = gained["misses"] * 8192 >= TURNOVERS * size_bytes and seconds >= LEAST_SETTLE_SECONDS
        dry = gained["bytes"] < NO_DISK * 8192 * gained["accesses"] and seconds >= DRY_SECONDS
        cache = pool and (dry or gained["bytes"] >= memory_bytes - size_bytes)
        if cache or (pool and cluster.memory_cgroup is None):
            break
        time.sleep(0.5)
    return pool, cache


def measure(cluster: Cluster, folder: Path, size_bytes: int, changed: dict[str, Any]) -> dict[str, Any]:
    """Return what the load does at a size for each access and in a second, once it has settled."""
    memory_bytes = changed.get("memory_bytes", MEMORY_BYTES)
    if cluster.memory_cgroup is not None:
        cluster.set_memory_limit(memory_bytes)
    cluster.restart({"shared_buffers": f"{size_bytes // 1024}kB"})
    with load(cluster, folder, changed) as keeper:
        settled, cache_settled = settle(cluster, size_bytes, memory_bytes)
        before, kept, begun = counted(cluster), keeper.accesses, time.monotonic()
        time.sleep(COUNT_SECONDS)
        after, kept, seconds = counted(cluster), keeper.accesses - kept, time.monotonic() - begun
    gained = {name: after[name] - before[name] for name in before}
    accesses = gained["accesses"] - kept
    return {
        "miss_ratio": gained["misses"] / accesses,
        "accesses_per_second": accesses / seconds,
        "transactions_per_second": gained["commits"] / seconds,
        "disk": gained["bytes"] / 8192 / accesses if cluster.memory_cgroup is not None else None,
        "settled": settled,
        "cache_settled": cache_settled,
    }


def record_load(cluster: Cluster, folder: Path, changed: dict[str, Any], seconds: float) -> dict[str, Path]:
    """Record the load without a change, with a pace or not, for so long; a trace for half of it."""
    if cluster.memory_cgroup is not None:
        cluster.set_memory_limit(MEMORY_BYTES)
    cluster.restart({"shared_buffers": f"{OBSERVED_BYTES // 1024}kB"})
    sources: list[Source] = ["trace", "sql"] if os.geteuid() == 0 else ["sql"]
    found: dict[str, Path] = {}
    with load(cluster, folder, changed):
        settle(cluster, OBSERVED_BYTES, MEMORY_BYTES)
        for source in sources:
            found[source] = folder / f"{source}{len(changed)}.evidence"
            long = seconds / 2 if source == "trace" else seconds
            record(cluster.conninfo(), found[source], source=source, seconds=long)
    return found


def predicted(path: Path, asked: str) -> dict[str, Any]:
    """Return what is predicted."""
    found = predict(path, sizes_bytes=SIZES_BYTES, what_if=[asked.removesuffix(" closed")] if asked else [])
    curve = found.changed or found
    pace = found.observed.accesses / found.observed.seconds
    pace = found.changed.accesses_per_second if found.changed else pace
    memory = curve.memory
    loop = None if memory is None else memory.throughput
    return {
        "verdict": curve.verdict.level,
        "reasons": [
            *curve.verdict.sentences,
            *([] if memory is None else memory.reasons),
            *([] if loop is None else loop.reasons),
        ],
        "pace": pace,
        "points": {
            point.shared_buffers_bytes: (point.miss_ratio, point.low, point.high) for point in curve.points
        },
        "disk": {
            point.shared_buffers_bytes: tuple(
                value / 8192 / pace
                for value in (point.disk_bytes_per_second, point.disk_bytes_low, point.disk_bytes_high)
            )
            for point in ([] if memory is None else memory.points)
        },
        "throughput": {
            point.shared_buffers_bytes: (point.ratio, point.low, point.high)
            for point in ([] if loop is None else loop.points)
        },
    }


def private_server() -> Cluster:
    """Return a server with a limit of its memory, where that is possible."""
    settings = {
        "max_connections": "30", "autovacuum": "off", "fsync": "off", "jit": "off", "huge_pages": "off",
        "track_io_timing": "on", "shared_buffers": f"{OBSERVED_BYTES // 1024}kB",
    }  # fmt: skip
    with contextlib.suppress(MissingAbility):
        return Cluster.create(None, settings, memory_limit_bytes=MEMORY_BYTES)
    return Cluster.create(None, settings)


def compared(
    line: dict[str, Any], source: str, what: str
) -> tuple[tuple[float, float, float], float, float] | None:
    """Return what was predicted from a source, what was counted, and by how much that is off by chance.

    By chance to 90%: some thousand misses are in each count. Returns None where one of them is not known.
    """
    name, counted_name = {
        "miss_ratio": (source, "miss_ratio"),
        "disk": (f"{source}_disk", "disk"),
        "throughput": (f"{source}_throughput", "throughput"),
    }[what]
    found, right = line.get(name), line.get(counted_name)
    if found is None or right is None or (what == "disk" and not line["cache_settled"]):
        return None
    chance = 0.0
    if what == "miss_ratio":
        chance = _Z90 * math.sqrt(right * (1 - right) / (line["accesses_per_second"] * COUNT_SECONDS))
    return found, right, chance


def summarized(samples: list[dict[str, Any]], sources: list[str]) -> dict[str, Any]:
    """Return the errors of all predictions, with and without a change, and how often the intervals held."""
    summary: dict[str, Any] = {}
    good = [line for line in samples if line["settled"] and line["kept_pace"]]
    for source in sources:
        for what in ("miss_ratio", "disk", "throughput"):
            key = source if what == "miss_ratio" else f"{source}_{what}"
            held = []
            for word in ("now", "what_if"):
                lines = [line for line in good if (line["asked"] == "now") == (word == "now")]
                pairs = [pair for line in lines if (pair := compared(line, source, what)) is not None]
                errors = [abs(found[0] - right) for found, right, _ in pairs]
                if errors:
                    summary[f"{key}_{word}_mean"] = round(statistics.mean(errors), 4)
                    summary[f"{key}_{word}_max"] = round(max(errors), 4)
                if word == "what_if":
                    held = [found[1] - off <= right <= found[2] + off for found, right, off in pairs]
            if held:
                summary[f"{key}_coverage"] = round(sum(held) / len(held), 3)
    summary["left_out"] = len(samples) - len(good)
    return summary


def main() -> None:
    """Record, predict, change, measure; print a line for each size and a summary as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="name the steps and do nothing")
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[size // MB for size in SIZES_BYTES])
    parser.add_argument("--only", choices=list(ASKED), nargs="+", default=list(ASKED))
    parser.add_argument("--seconds", type=float, default=40.0, help="of a recording of snapshots")
    parser.add_argument("--samples", type=Path, default=HERE, help="folder for the samples")
    options = parser.parse_args()
    if options.dry_run:
        print(json.dumps({"asked": options.only, "sizes_mb": options.sizes_mb}))
        return
    refuse_debug_build()
    samples = []
    sizes = [mb * MB for mb in options.sizes_mb]
    with tempfile.TemporaryDirectory() as name, private_server() as cluster:
        folder = Path(name)
        for table, rows in ROWS.items():
            fill(cluster, table, rows)
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm")
        evidence: dict[str, dict[str, Path]] = {}
        for asked in options.only:
            changed = ASKED[asked]
            base = {"closed": True} if changed.get("closed") else {}
            kind = "closed" if base else "paced"
            if kind not in evidence:
                evidence[kind] = record_load(cluster, folder, base, options.seconds)
            answers = {source: predicted(path, asked) for source, path in evidence[kind].items()}
            # The throughput is compared with that of the load without the change at the recorded size.
            before = measure(cluster, folder, OBSERVED_BYTES, base) if base else None
            if "grown" in changed:
                fill(cluster, "orders", ROWS["orders"] * changed["grown"])
            for size in sizes:
                truth = measure(cluster, folder, size, changed)
                line: dict[str, Any] = {"asked": asked or "now", "size_bytes": size, **truth}
                pace = next(iter(answers.values()))["pace"]
                # A busy machine is slower than the load asks for: then scans and inserts are too many.
                line["kept_pace"] = bool(base) or truth["accesses_per_second"] >= PACE * pace
                if before is not None:
                    line["throughput"] = truth["transactions_per_second"] / before["transactions_per_second"]
                for source, one in answers.items():
                    line[source] = one["points"].get(size)
                    line[f"{source}_disk"] = one["disk"].get(size)
                    line[f"{source}_throughput"] = one["throughput"].get(size)
                    line[f"{source}_verdict"] = one["verdict"]
                    line[f"{source}_reasons"] = one["reasons"]
                samples.append(line)
                print(json.dumps(line), flush=True)
            if "grown" in changed or "inserts" in changed:
                fill(cluster, "orders", ROWS["orders"])
    sources = sorted({source for found in evidence.values() for source in found})
    summary = summarized(samples, sources)
    keep(options.samples, summary, samples)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
