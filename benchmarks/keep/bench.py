"""Experiment 8 in a scale model: does `pgsweep warm keep` protect hot tables from a flood, and at what price?

Run by `make bench NAME=keep`; about five minutes, on the wheel's PostgreSQL 18. A table with its index, a
tenth of shared_buffers, is read by Zipf's law at a steady rate of transactions; the flood is clients that
count large ranges of a log table almost five times shared_buffers by its index, which no ring confines.
Phases are interleaved: the hot reads alone, with the flood, with the flood and keep. Twice: in a memory
cgroup so small that what leaves the pool soon leaves the page cache too, and without a limit, where the page
cache holds all.

Hit ratios are those of the hot statement itself, by pg_stat_statements: touches by keep are none of it.
Latencies are those of pgbench's log, per transaction, without the time that pgbench itself was late.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep.pg.cluster import Cluster
from pgsweep.records.warm_keep import WarmKeepResult
from pgsweep.warm.keep.keep import Keeper, KeepOptions

POOL_MB = 256
HOT_ROWS = 30_000
LOG_ROWS = 1_200_000
RANGE_ROWS = 40_000
HOT_RATE = 300
HOT_CLIENTS = 2
FLOOD_CLIENTS = 2
SETTLE_SECONDS = 3.0
MEASURE_SECONDS = 7.0
MEMORY_LIMIT_BYTES = (POOL_MB + 112) << 20
ROUNDS = {"page cache short": 4, "page cache ample": 3}
PHASES = ("alone", "flood", "flood_keep")
SETTINGS = {
    "shared_buffers": f"{POOL_MB}MB",
    "max_connections": "30",
    "autovacuum": "off",
    "max_parallel_workers_per_gather": "0",
    "shared_preload_libraries": "pg_stat_statements",
    "track_io_timing": "on",
    "jit": "off",
}
SETUP = (
    "CREATE TABLE hot (id int PRIMARY KEY, payload text)",
    f"INSERT INTO hot SELECT g, repeat('h', 850) FROM generate_series(1, {HOT_ROWS}) g",
    "CREATE TABLE log (id int PRIMARY KEY, payload text)",
    f"INSERT INTO log SELECT g, repeat('l', 900) FROM generate_series(1, {LOG_ROWS}) g",
    "VACUUM ANALYZE",
    "CHECKPOINT",
)
HOT = f"""\\set rank random_zipfian(1, {HOT_ROWS}, 1.05)
\\set id 1 + permute(:rank - 1, {HOT_ROWS}, 7)
SELECT length(payload) FROM hot WHERE id = :id;
"""
FLOOD = f"""\\set first random(1, {LOG_ROWS - RANGE_ROWS})
SELECT count(payload) FROM log WHERE id BETWEEN :first AND :first + {RANGE_ROWS};
"""
COUNTS = """
SELECT sum(calls)::float8, sum(shared_blks_hit)::float8, sum(shared_blks_read)::float8,
       sum(shared_blk_read_time)::float8 / 1000
FROM pg_stat_statements WHERE query LIKE %s
"""


@contextmanager
def pgbench(cluster: Cluster, folder: Path, name: str, script: str, *options: str) -> Iterator[None]:
    """Run a script by pgbench; its transactions end in `folder/NAME.*`."""
    path = folder / f"{name}.sql"
    path.write_text(script)
    command = [
        *(str(cluster.binaries.program("pgbench")), "--no-vacuum", "--protocol=prepared", f"--file={path}"),
        *("--log", f"--log-prefix={folder / name}", "--time=3600", "--jobs=1", *options, cluster.conninfo()),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@contextmanager
def keeping(conninfo: str) -> Iterator[list[WarmKeepResult]]:
    """Keep the hot table and its index; gives the record at the end."""
    stop = threading.Event()
    found: list[WarmKeepResult] = []
    keeper = Keeper(conninfo, KeepOptions(names=["hot"], indexes=True))
    thread = threading.Thread(target=lambda: found.append(keeper.run(stop=stop)))
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def latencies(folder: Path, begin: float, end: float) -> list[float]:
    """Return the seconds of the hot transactions that ended between two times, without pgbench's own lag."""
    found = []
    for path in folder.glob("hot.[0-9]*"):
        for line in path.read_text().splitlines():
            # client, transaction, time, script, epoch, microseconds, lag (pgbench's documentation)
            fields = line.split()
            with suppress(ValueError, IndexError):
                at = int(fields[4]) + int(fields[5]) / 1e6
                if begin <= at < end:
                    found.append((int(fields[2]) - int(fields[6])) / 1e6)
    return found


def phase(cluster: Cluster, name: str) -> dict[str, Any]:
    """Run one phase; both caches begin with the hot table in the pool."""
    with (
        tempfile.TemporaryDirectory() as made,
        psycopg.connect(cluster.conninfo(), autocommit=True) as connection,
    ):
        folder = Path(made)
        for relation in ("hot", "hot_pkey"):
            connection.execute("SELECT pg_prewarm(%s)", [relation]).fetchone()
        records: list[WarmKeepResult] = []
        hot_options = (f"--rate={HOT_RATE}", f"--client={HOT_CLIENTS}")
        with pgbench(cluster, folder, "hot", HOT, *hot_options):
            flood = pgbench(cluster, folder, "flood", FLOOD, f"--client={FLOOD_CLIENTS}")
            with flood if name != "alone" else tempfile.TemporaryDirectory():
                kept = keeping(cluster.conninfo()) if name == "flood_keep" else None
                records = kept.__enter__() if kept is not None else []
                time.sleep(SETTLE_SECONDS)
                connection.execute("SELECT pg_stat_statements_reset()")
                begin = time.time()
                time.sleep(MEASURE_SECONDS)
                end = time.time()
                hot = connection.execute(COUNTS, ["%FROM hot WHERE id%"]).fetchone()
                log = connection.execute(COUNTS, ["%FROM log WHERE id%"]).fetchone()
                if kept is not None:
                    kept.__exit__(None, None, None)
        assert hot is not None
        assert log is not None
        seconds = sorted(latencies(folder, begin, end))
    calls, hits, reads, read_seconds = (value or 0.0 for value in hot)
    elapsed = end - begin
    return {
        "phase": name,
        "hot_transactions_per_second": len(seconds) / elapsed,
        "hot_hit_ratio": hits / max(1.0, hits + reads),
        "hot_read_seconds_per_block": read_seconds / reads if reads else None,
        "hot_median_seconds": quantile(seconds, 0.5),
        "hot_p95_seconds": quantile(seconds, 0.95),
        "hot_p99_seconds": quantile(seconds, 0.99),
        "flood_blocks_per_second": ((log[1] or 0.0) + (log[2] or 0.0)) / elapsed,
        "flood_queries_per_second": (log[0] or 0.0) / elapsed,
        "keep": msgspec.to_builtins(records[0]) if records else None,
        "hot_calls": calls,
    }


def quantile(ordered: list[float], share: float) -> float:
    """Return the value below which that share of the ordered values lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def model(name: str, memory_limit_bytes: int | None) -> list[dict[str, Any]]:
    """Return the phases of all rounds in one setting of memory."""
    found: list[dict[str, Any]] = []
    with Cluster.create(settings=SETTINGS, memory_limit_bytes=memory_limit_bytes) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm", "pg_stat_statements")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            for statement in SETUP:
                connection.execute(statement.encode())
            connection.execute("ALTER DATABASE postgres SET enable_seqscan = off")
            connection.execute("ALTER DATABASE postgres SET enable_bitmapscan = off")
        for number in range(ROUNDS[name]):
            # The order turns, so that none is always the one after the flood.
            for offset in range(len(PHASES)):
                sample = phase(cluster, PHASES[(number + offset) % len(PHASES)])
                found.append({"memory": name, "round": number, **sample})
                print(
                    f"{name}, round {number + 1}, {sample['phase']}: hits {sample['hot_hit_ratio']:.4f}, "
                    f"p95 {sample['hot_p95_seconds'] * 1e3:.2f} ms, "
                    f"{sample['hot_transactions_per_second']:.0f} TPS, "
                    f"flood {sample['flood_blocks_per_second']:.0f} blocks/s",
                    flush=True,
                )
    return found


def middle(samples: list[dict[str, Any]], memory: str, name: str, key: str) -> float:
    """Return the median over the rounds."""
    return float(statistics.median(s[key] for s in samples if s["memory"] == memory and s["phase"] == name))


def main() -> None:
    refuse_debug_build()
    short, ample = ROUNDS
    samples = model(short, MEMORY_LIMIT_BYTES) + model(ample, None)
    for memory in ROUNDS:
        for name in PHASES:
            print(
                f"{memory}, {name}: hit ratio {middle(samples, memory, name, 'hot_hit_ratio'):.4f}, median "
                f"{middle(samples, memory, name, 'hot_median_seconds') * 1e3:.2f} ms, "
                f"p95 {middle(samples, memory, name, 'hot_p95_seconds') * 1e3:.2f} ms, "
                f"flood {middle(samples, memory, name, 'flood_blocks_per_second'):.0f} blocks/s"
            )
    summary = {
        **{f"hot_hit_ratio_{name}": middle(samples, short, name, "hot_hit_ratio") for name in PHASES},
        **{f"p95_seconds_{name}": middle(samples, short, name, "hot_p95_seconds") for name in PHASES},
    }
    keep(Path(__file__).parent, summary, samples)
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
