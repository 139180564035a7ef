"""Compare a look from outside with the extensions that look from inside, at a full pool and 10 GB of files.

Run by `make bench NAME=look`; needs Debian's PostgreSQL 15 with pgfincore, 14 GB of free memory and 15 GB of
disk.

- `peek_relations` against the aggregate over pg_buffercache on a full pool of 4 GB. The query is the fastest
  of several spellings, with work_mem large enough that nothing is spilled. The peek has the executable's
  symbols to find each time, as a single command has.
- `page_cache` against `pgfincore(relation)` on the same relations, all of them cached: totals against totals,
  maps against databits. Both are also timed where nothing is cached.

Both sides run in turns and must count the same.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.samples import keep, refuse_debug_build
from pgsweep._native import drop_page_cache, page_cache, peek_relations
from pgsweep.pg.private.cluster import Cluster

HERE = Path(__file__).parent
DEBIAN_BINDIR = Path("/usr/lib/postgresql/15/bin")
WORK_DIR = Path("/var/tmp/pgsweep-look")
POOL_BYTES = 4 << 30
TABLES = 10
TABLE_BLOCKS = 131_072  # a segment of 1 GB each
ROUNDS = 11
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SETTINGS = {
    "shared_buffers": f"{POOL_BYTES >> 20}MB",
    "autovacuum": "off",
    "max_wal_size": "16GB",
    "work_mem": "256MB",
    # A page written between the two looks would be a difference that is none.
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1d",
}
BY_RELATION = (HERE / "by_relation.sql").read_text()
TOTALS = "SELECT sum(pages_mem)::int8 FROM pgfincore(%s)"
MAPS = """
SELECT sum(pages_mem)::int8, string_agg(databit::text, '' ORDER BY segment) FROM pgfincore(%s, 'main', true)
"""
#: What else the machine does may push pages out between two looks; the tests demand that all are equal.
PUSHED_OUT = 0.01


def timed(task: Callable[[], Any]) -> tuple[float, Any]:
    """Return elapsed seconds and result."""
    begin = time.perf_counter()
    result = task()
    return time.perf_counter() - begin, result


def fill(connection: psycopg.Connection[Any]) -> list[str]:
    """Make tables of 1 GB, one row a block, and return their names."""
    names = [f"filled{number}" for number in range(TABLES)]
    for name in names:
        print(f"filling {name}", flush=True)
        # Made and filled in one transaction: nothing goes to the WAL at wal_level minimal.
        with connection.transaction():
            connection.execute(f"CREATE TABLE {name} (i int, filler text)")
            connection.execute(f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN")
            connection.execute(
                f"INSERT INTO {name} SELECT i, repeat('x', 8000) FROM generate_series(1, {TABLE_BLOCKS}) i"
            )
    connection.execute("CHECKPOINT")
    return names


def fill_pool(connection: psycopg.Connection[Any], names: list[str]) -> None:
    """Fill the pool with blocks of many relations, at several usage counts, some of them dirty."""
    for name in names:
        connection.execute("SELECT pg_prewarm(%s, 'buffer', 'main', 0, 60000)", (name,))
    for turn, name in enumerate(names[-6:]):
        for _ in range(turn):
            connection.execute("SELECT pg_prewarm(%s, 'buffer', 'main', 0, 30000)", (name,))
    connection.execute(f"UPDATE {names[-1]} SET i = -i WHERE ctid < '(2000,0)'")


def peeked(cluster: Cluster) -> dict[tuple[int, ...], int]:
    """Return buffers by relation and usage count, and under -1 the dirty ones."""
    found = peek_pool(cluster)
    counts: dict[tuple[int, ...], int] = {}
    keys = np.column_stack([found["spc"], found["db"], found["rel"], found["fork"]]).tolist()
    for key, usage, dirty in zip(keys, found["usage_counts"].tolist(), found["dirty"].tolist(), strict=True):
        counts.update({(*key, count): number for count, number in enumerate(usage) if number})
        counts[*key, -1] = dirty
    return counts


def asked(rows: list[Any]) -> dict[tuple[int, ...], int]:
    """Return the same from the rows of the query."""
    counts = {tuple(row[:5]): row[5] for row in rows}
    dirty = Counter[tuple[int, ...]]()
    for row in rows:
        dirty[*row[:4], -1] += row[6]
    return {**counts, **dirty}


def compare_pool(cluster: Cluster, connection: psycopg.Connection[Any]) -> dict[str, Any]:
    """Time both ways to count the pool, in turns after a warm-up."""
    seconds: dict[str, list[float]] = {"peek": [], "pg_buffercache": []}
    loads = []
    for turn in range(ROUNDS + 1):
        loads.append(os.getloadavg()[0])
        peek_seconds, _ = timed(lambda: peek_pool(cluster))
        sql_seconds, rows = timed(lambda: connection.execute(BY_RELATION).fetchall())
        if turn == 0:
            assert peeked(cluster) == asked(connection.execute(BY_RELATION).fetchall()), "the counts differ"
            used = sum(row[5] for row in rows)
            assert used * 8192 > 0.99 * POOL_BYTES, f"only {used} buffers are used"
            continue
        seconds["peek"].append(peek_seconds)
        seconds["pg_buffercache"].append(sql_seconds)
    return {"buffers": POOL_BYTES // 8192, "seconds": seconds, "load_averages": loads}


def peek_pool(cluster: Cluster) -> Any:
    """Take one peek."""
    assert cluster.postmaster_pid is not None
    return peek_relations(cluster.postmaster_pid, cluster.version_num)


def compare_files(
    connection: psycopg.Connection[Any], names: list[str], paths: list[Path], *, cached: bool
) -> dict[str, Any]:
    """Time both ways to look at the page cache, in turns after a warm-up."""

    def inside(query: str) -> Any:
        return [connection.execute(query, (name,)).fetchone() for name in names]

    tasks: dict[str, Callable[[], Any]] = {
        "page_cache": lambda: page_cache(paths),
        "page_cache_mincore": lambda: page_cache(paths, method="mincore"),
        "page_cache_maps": lambda: page_cache(paths, maps=True),
        "page_cache_maps_mincore": lambda: page_cache(paths, maps=True, method="mincore"),
        "pgfincore": lambda: inside(TOTALS),
        "pgfincore_maps": lambda: inside(MAPS),
    }
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    results: dict[str, Any] = {}
    loads = []
    for turn in range(ROUNDS + 1):
        loads.append(os.getloadavg()[0])
        for name, task in tasks.items():
            taken, results[name] = timed(task)
            if turn > 0:
                seconds[name].append(taken)
    size = int(results["page_cache"]["size_bytes"].sum())
    bits = sum(row[1].count("1") for row in results["pgfincore_maps"])
    counts = {name: int(results[name]["cached_bytes"].sum()) for name in list(tasks)[:4]}
    counts["pgfincore_maps"] = bits * PAGE_BYTES
    counts["pgfincore"] = sum(row[0] for row in results["pgfincore"]) * PAGE_BYTES
    expected = size if cached else 0
    wrong = {name: count for name, count in counts.items() if abs(count - expected) > size * PUSHED_OUT}
    assert not wrong, f"{wrong} of {size} bytes are cached, and should be {expected}"
    return {"size_bytes": size, "cached_bytes": counts, "seconds": seconds, "load_averages": loads}


def read_files(paths: list[Path]) -> None:
    """Bring the files into the page cache."""
    buffer = bytearray(1 << 20)
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def measure() -> dict[str, Any]:
    """Return all samples."""
    WORK_DIR.mkdir(exist_ok=True)
    try:
        return measure_in(WORK_DIR)
    finally:
        WORK_DIR.rmdir()


def measure_in(work_dir: Path) -> dict[str, Any]:
    """Return all samples, of a cluster in this folder."""
    with Cluster.create(DEBIAN_BINDIR, SETTINGS, work_dir=work_dir) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache", "pg_prewarm", "pgfincore")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            names = fill(connection)
            fill_pool(connection, names)
            pool = compare_pool(cluster, connection)
            connection.execute("CHECKPOINT")
        # The page cache needs the memory now.
        cluster.restart({"shared_buffers": "128MB"})
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            paths = []
            for name in names:
                row = connection.execute("SELECT pg_relation_filepath(%s)", (name,)).fetchone()
                assert row is not None
                first = cluster.data_directory / row[0]
                paths += sorted(first.parent.glob(f"{first.name}*"))
            paths = [path for path in paths if "_" not in path.name]
            read_files(paths)
            cached = compare_files(connection, names, paths, cached=True)
            for path in paths:
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            drop_page_cache(paths)
            cold = compare_files(connection, names, paths, cached=False)
    return {"pool": pool, "cached": cached, "cold": cold}


def ratio(seconds: dict[str, list[float]], slow: str, fast: str) -> float:
    """Return how many times faster, by the medians."""
    return round(statistics.median(seconds[slow]) / statistics.median(seconds[fast]), 1)


def main() -> None:
    """Measure, keep the samples, print the summary."""
    refuse_debug_build()
    samples = measure()
    for part, values in samples.items():
        for name, seconds in values["seconds"].items():
            print(f"{part}: {name} {statistics.median(seconds) * 1e3:.2f} ms, least {min(seconds) * 1e3:.2f}")
    pool, cached, cold = (samples[part]["seconds"] for part in ("pool", "cached", "cold"))
    summary = {
        "peek_speedup": ratio(pool, "pg_buffercache", "peek"),
        "page_cache_speedup": ratio(cached, "pgfincore", "page_cache"),
        "page_cache_mincore_speedup": ratio(cached, "pgfincore", "page_cache_mincore"),
        "page_cache_maps_speedup": ratio(cached, "pgfincore_maps", "page_cache_maps"),
        "page_cache_maps_mincore_speedup": ratio(cached, "pgfincore_maps", "page_cache_maps_mincore"),
        "page_cache_cold_speedup": ratio(cold, "pgfincore", "page_cache"),
        "peek_seconds": round(statistics.median(pool["peek"]), 4),
        "page_cache_seconds": round(statistics.median(cached["page_cache"]), 4),
    }
    keep(HERE, summary, samples, packages=("psycopg",))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
