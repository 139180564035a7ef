"""Look-ups in an index before and after a scan of its table, by shared_buffers and huge pages.

Each run begins with both caches empty, then the table and the index are read by pg_prewarm, in this order.
The look-ups read the index alone (index-only scans), so that their time is that of the index.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pgsweep.host.hugepages import shared_memory
from pgsweep.lab.protocol import Done, Place
from pgsweep.lab.protocols.held import Held, held
from pgsweep.lab.protocols.scaled import PROCESSES_BYTES, Protocol, Scaled, Step, kilobytes
from pgsweep.memory.hugepages.inspect import examine
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.private.sharedmemory import ScratchServer
from pgsweep.testbed.cold import drop_files
from pgsweep.testbed.huge import huge_pages_for
from pgsweep.testbed.steps import explain, run_sql

_DATABASE: Final = "postgres"
_WAL_SEGMENT_BYTES: Final = 16 << 20
_WARM_UP_AT_ONCE: Final = 1000
_SMALL_POOL_BYTES: Final = 2 << 20
"""Holds the upper pages of the index, and few of its leaves."""

_PAGES_JOB: Final = "huge pages"
_LOOK_UPS: Final = """
CREATE FUNCTION look_ups(wanted int) RETURNS float8[] LANGUAGE plpgsql AS $$
DECLARE
  begin_at timestamptz;
  x real;
  seconds float8[] := '{}';
BEGIN
  FOR i IN 1..wanted LOOP
    x := random();
    begin_at := clock_timestamp();
    PERFORM random FROM random WHERE random >= x ORDER BY random LIMIT 1;
    seconds := seconds || extract(epoch FROM clock_timestamp() - begin_at)::float8;
  END LOOP;
  RETURN seconds;
END $$
"""
_COUNTERS: Final = ("heap_blks_read", "heap_blks_hit", "idx_blks_read", "idx_blks_hit")


@dataclass(frozen=True, slots=True)
class _Costs:
    """Seconds of a look-up whose leaf page is in the pool, in the page cache, or on disk only."""

    pool: float
    page_cache: float
    disk: float

    def of(self, index: Held) -> float:
        """Return the seconds of a look-up of a random key, by where the index lies."""
        cached = max(0.0, (index.page_cache or 0.0) - index.both)
        on_disk = max(0.0, 1 - index.pool - cached)
        return index.pool * self.pool + cached * self.page_cache + on_disk * self.disk


def _settings(model: Scaled) -> Mapping[str, str]:
    # Those of making the tables must fit into the limited memory too.
    return {
        "shared_buffers": kilobytes(model.scaled_bytes("1GB")),
        "maintenance_work_mem": "16MB",
        "autovacuum": "off",
        "max_connections": "20",
    }


@contextmanager
def _opened(model: Scaled, place: Place) -> Iterator[Step]:
    memory_bytes = model.memory_bytes
    sizes = next(cell.each["shared_buffers"] for cell in model.experiment.cell if cell.figure == "idx1")
    largest = max(model.scaled_bytes(size) for size in sizes)
    with (
        huge_pages_for(
            place.bindir, {**_settings(model), "shared_buffers": kilobytes(largest)}
        ) as huge_pages,
        Cluster.create(place.bindir, _settings(model), memory_bytes, work_dir=place.work_dir) as cluster,
    ):
        _make_tables(cluster, model.number("rows"))
        base = dict(cluster.settings)
        costs = _costs_of(cluster, base, model)

        def step(job: str, seed: int) -> Done:
            if job == _PAGES_JOB:
                _start(cluster, base, memory_bytes)
                return _exact_pages(cluster, sizes)
            size, _, state = job.partition(", huge pages ")
            begin = time.monotonic()
            wanted = {"shared_buffers": kilobytes(model.scaled_bytes(size)), **huge_pages(state)}
            _start(cluster, {**base, **wanted}, memory_bytes)
            draws = random.Random(seed)  # noqa: S311
            run_sql(cluster, _DATABASE, "SELECT pg_prewarm('random')", "SELECT pg_prewarm('random_index')")
            warmed_at = time.monotonic()
            while time.monotonic() - warmed_at < model.seconds("warm_up_seconds"):
                _look_ups(cluster, _WARM_UP_AT_ONCE, draws)
            setup_seconds = time.monotonic() - begin
            values, raw = _measured(cluster, int(model.parameter("look_ups")), draws, costs)
            elapsed = time.monotonic() - begin
            return Done(
                {f"{job}: {name}": value for name, value in values.items()},
                {f"{job}: {name}": each for name, each in raw.items()},
                setup_seconds=setup_seconds,
                measure_seconds=elapsed - setup_seconds,
            )

        yield step


def _make_tables(cluster: Cluster, rows: int) -> None:
    numbers = ", ".join(["random()"] * 20)
    cluster.create_extensions(_DATABASE, "pg_prewarm", "pg_buffercache")
    run_sql(
        cluster,
        _DATABASE,
        "CREATE TABLE random (random real, data float8[20])",
        f"INSERT INTO random SELECT random(), ARRAY[{numbers}] FROM generate_series(1, {rows})",
        "CREATE INDEX random_index ON random (random)",
        "VACUUM (FREEZE, ANALYZE) random",
        _LOOK_UPS,
        "CHECKPOINT",
    )


def _start(cluster: Cluster, settings: dict[str, str], memory_bytes: int) -> None:
    """Start with empty caches; the memory of huge pages is not counted by the cgroup, so it is taken off."""
    cluster.stop()
    drop_files(cluster)
    cluster.settings = settings
    cluster.set_memory_limit(memory_bytes)
    cluster.start()
    assert cluster.postmaster_pid is not None
    segment = shared_memory(cluster.postmaster_pid)
    if segment is not None and segment.huge:
        cluster.set_memory_limit(max(PROCESSES_BYTES, memory_bytes - segment.size_bytes))


def _look_ups(cluster: Cluster, count: int, draws: random.Random) -> list[float]:
    """Return the seconds of look-ups of random keys."""
    seeding = f"SELECT setseed({draws.uniform(-1, 1):.6f})"
    # The first one plans the statement, which is not part of a look-up.
    before = ("SET enable_seqscan = off", seeding, "SELECT look_ups(1)")
    [[seconds]] = run_sql(cluster, _DATABASE, *before, f"SELECT look_ups({count})")
    return [float(each) for each in seconds]


def _costs_of(cluster: Cluster, base: dict[str, str], model: Scaled) -> _Costs:
    """Measure look-ups with the index in the pool, in the page cache, and on disk."""
    draws, count = random.Random(1), int(model.parameter("look_ups"))  # noqa: S311
    [[size]] = run_sql(cluster, _DATABASE, "SELECT pg_relation_size('random_index')")
    found: list[float] = []
    for pool_bytes, mode in ((2 * int(size), "buffer"), (_SMALL_POOL_BYTES, "read"), (_SMALL_POOL_BYTES, "")):
        settings = {**base, "shared_buffers": kilobytes(max(_SMALL_POOL_BYTES, pool_bytes))}
        _start(cluster, settings, model.memory_bytes)
        if mode:
            run_sql(cluster, _DATABASE, f"SELECT pg_prewarm('random_index', '{mode}')")
            _look_ups(cluster, count, draws)
        seconds = _look_ups(cluster, count, draws)
        found.append(sum(seconds) / len(seconds))
    return _Costs(*found)


def _measured(
    cluster: Cluster, count: int, draws: random.Random, costs: _Costs
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Look up, scan, look up again; return the figures, and what they were made of."""
    run_sql(cluster, _DATABASE, "SELECT pg_stat_reset()")
    before = held(cluster, _DATABASE, "random_index")
    first = _look_ups(cluster, count, draws)
    scan = explain(cluster, _DATABASE, "SELECT count(data) FROM random")
    after = held(cluster, _DATABASE, "random_index")
    second = _look_ups(cluster, count, draws)
    columns = ", ".join(f"coalesce({name}, 0)" for name in _COUNTERS)
    [counters] = run_sql(
        cluster, _DATABASE, f"SELECT {columns} FROM pg_statio_user_tables WHERE relname = 'random'"
    )
    values = {
        "idx1": sum(first) / len(first),
        "seq": float(scan["seconds"]),
        "idx2": sum(second) / len(second),
        "index in shared_buffers": after.pool,
    }
    for number, when, place in ((1, "before", before), (2, "after", after)):
        if place.page_cache is not None:
            values[f"index in the page cache {when}"] = place.page_cache
            values[f"idx{number} predicted"] = costs.of(place)
    raw = {name: [float(value)] for name, value in zip(_COUNTERS, counters, strict=True)}
    raw |= {"idx1": [round(each, 7) for each in first], "idx2": [round(each, 7) for each in second]}
    return values, raw


def _exact_pages(cluster: Cluster, sizes: list[str]) -> Done:
    """Return the number of huge pages for the article's own settings, of a server that is never started."""
    begin = time.monotonic()
    values = {}
    with ScratchServer(cluster.binaries, wal_segment_bytes=_WAL_SEGMENT_BYTES) as scratch:
        for size in sizes:
            found = examine(cluster.conninfo(), settings={"shared_buffers": size}, scratch=scratch)
            if found.huge_pages_needed is not None:
                values[f"{size}: huge pages needed"] = float(found.huge_pages_needed)
    return Done(values, measure_seconds=time.monotonic() - begin)


PROTOCOL = Protocol(_settings, _opened)
