"""Hot reads beside a flood, with `pgsweep warm keep` and without: hit ratios, times, and what it costs.

A table with its index, a tenth of shared_buffers, is read by Zipf's law at a steady rate. The flood is
clients that count ranges of a log almost five times shared_buffers by its index, which no ring confines. The
hit ratio is that of the hot statement itself, by pg_stat_statements: what `keep` touches is not part of it.
Times are those of pgbench's log.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.keeping import keeping
from pgsweep.lab.protocols.scaled import NO_LIMIT_BYTES, Protocol, Scaled, Step, kilobytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.warm_keep import WarmKeepResult
from pgsweep.testbed.cold import drop_files
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database
from pgsweep.testbed.steps import run_sql
from pgsweep.testbed.workloads import Script, Workload
from pgsweep.warm.keep.keep import KeepOptions

_SHORT: Final = "page cache short"
_ALONE, _KEPT = "alone", "flood, kept"
_LAST_SECONDS: Final = 1.0
"""Time after the measurement in which pgbench writes its log."""

_HOT: Final = (
    "\\set rank random_zipfian(1, {rows}, 1.05)\n"
    "\\set id 1 + permute(:rank - 1, {rows}, 7)\n"
    "SELECT length(payload) FROM hot WHERE id = :id;\n"
)
_FLOOD: Final = (
    "\\set first random(1, {most})\n"
    "SELECT count(payload) FROM log WHERE id BETWEEN :first AND :first + {range};\n"
)
_COUNTS: Final = """
SELECT coalesce(sum(shared_blks_hit), 0)::float8, coalesce(sum(shared_blks_read), 0)::float8
FROM pg_stat_statements WHERE query LIKE '%FROM {table} WHERE id%'
"""


def _settings(model: Scaled) -> Mapping[str, str]:
    return {
        "shared_buffers": kilobytes(model.size_bytes("shared_buffers")),
        "max_connections": "30",
        "autovacuum": "off",
        "max_parallel_workers_per_gather": "0",
        "shared_preload_libraries": "pg_stat_statements",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "jit": "off",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    with Cluster.create(place.bindir, _settings(model), NO_LIMIT_BYTES, work_dir=place.work_dir) as cluster:
        create_database(cluster, 0)
        cluster.create_extensions(DATABASE, "pg_stat_statements")
        _make_tables(cluster, model)

        def step(job: str, seed: int) -> Done:
            memory, _, phase = job.partition(": ")
            begin = time.monotonic()
            cluster.stop()
            drop_files(cluster)
            cluster.set_memory_limit(model.memory_bytes if memory == _SHORT else NO_LIMIT_BYTES)
            cluster.start()
            # An ample page cache has all of the log; of a short one nothing would be left.
            read = () if memory == _SHORT else ("log", "log_pkey")
            run_sql(
                cluster,
                DATABASE,
                *(f"SELECT pg_prewarm('{relation}', 'read')" for relation in read),
                *(f"SELECT pg_prewarm('{relation}')" for relation in ("hot", "hot_pkey")),
            )
            setup_seconds = time.monotonic() - begin
            values, raw = _measured(cluster, model, phase, seed)
            warm_up = model.parameter("warm_up_seconds")
            elapsed = time.monotonic() - begin
            return Done(
                {f"{job}: {name}": value for name, value in values.items()},
                {f"{job}: {name}": each for name, each in raw.items()},
                setup_seconds=setup_seconds,
                warm_up_seconds=warm_up,
                measure_seconds=elapsed - setup_seconds - warm_up,
            )

        yield step


def _make_tables(cluster: Cluster, model: Scaled) -> None:
    statements = []
    for table, letter, width in (("hot", "h", 850), ("log", "l", 900)):
        rows = model.number(f"{table}_rows")
        statements += [
            f"CREATE TABLE {table} (id int PRIMARY KEY, payload text)",
            f"INSERT INTO {table} SELECT g, repeat('{letter}', {width}) FROM generate_series(1, {rows}) AS g",
        ]
    run_sql(cluster, DATABASE, *statements, "VACUUM ANALYZE", "CHECKPOINT")


def _measured(
    cluster: Cluster, model: Scaled, phase: str, seed: int
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Return the figures of the hot reads, of the flood, and of what keeping costs; and times of reads."""
    seconds = model.parameter("measured_seconds")
    longest = model.parameter("warm_up_seconds") + seconds + 120.0
    hot, flood = _workloads(model)
    kept: list[WarmKeepResult] = []
    with ExitStack() as running:
        reads = running.enter_context(
            RunningWorkload(
                cluster,
                hot,
                seed=seed,
                longest_seconds=longest,
                rate_per_second=model.parameter("reads_per_second"),
                logged=True,
            )
        )
        if phase != _ALONE:
            running.enter_context(RunningWorkload(cluster, flood, seed=seed, longest_seconds=longest))
        if phase == _KEPT:
            options = KeepOptions(names=["hot"], indexes=True)
            kept = running.enter_context(keeping(cluster.conninfo(DATABASE), options))
        time.sleep(model.parameter("warm_up_seconds"))
        run_sql(cluster, DATABASE, "SELECT pg_stat_statements_reset()")
        begin = time.time()
        time.sleep(seconds)
        end = time.time()
        [[hits, misses]] = run_sql(cluster, DATABASE, _COUNTS.format(table="hot"))
        [flooded] = run_sql(cluster, DATABASE, _COUNTS.format(table="log"))
        reads.check()
        time.sleep(_LAST_SECONDS)
    times = sorted(reads.latencies(begin, end))
    values = {
        "hit ratio": hits / max(1.0, hits + misses),
        "reads a second": len(times) / (end - begin),
    }
    if times:
        values |= {"median": _quantile(times, 0.5), "95% below": _quantile(times, 0.95)}
    if phase != _ALONE:
        values["flood"] = sum(flooded) / (end - begin)
    for result in kept:
        values["time of a backend"] = result.statement_seconds / result.seconds
        values["resident"] = result.resident_share_mean or 0.0
        if result.other_accesses is not None:
            ours = result.touched_blocks + result.read_blocks
            values["of all accesses"] = ours / max(1, ours + result.other_accesses)
    # The percentiles of some two thousand times: a small file from which the figures can be computed again.
    hundredths = [round(_quantile(times, part / 100), 6) for part in range(101)] if times else []
    return values, {"median": hundredths}


def _workloads(model: Scaled) -> tuple[Workload, Workload]:
    """Return the hot reads, and the flood."""
    log, counted = model.number("log_rows"), model.number("range_rows")
    hot = Script(_HOT.format(rows=model.number("hot_rows")))
    ranges = Script(_FLOOD.format(most=max(1, log - counted), range=counted))
    return (
        Workload("hot", "point reads, Zipf 1.05", (hot,), clients=2, needs_pgbench_tables=False),
        Workload("flood", "ranges of a log by its index", (ranges,), clients=2, needs_pgbench_tables=False),
    )


def _quantile(ordered: list[float], part: float) -> float:
    """Return the value below which that part of the ordered values lies."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


PROTOCOL = Protocol(_settings, _opened, uses_pgbench=True)
