"""A traced scan through a ring on a real server, and what it says about larger pools."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pgsweep.evidence.trace import record_trace
from pgsweep.pg.cluster import Cluster
from pgsweep.sizing.predict import predict
from tests.fix_trace import can_trace

pytestmark = [*can_trace, pytest.mark.slow]

MIB = 1024**2
SETTINGS = {"max_connections": "20", "autovacuum": "off", "shared_buffers": "4MB"}
ROUNDS = 4
READS = 1_500


class Rounds(threading.Thread):
    """Point reads, then a scan of a table, over and over: the same number of accesses in each round."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.ended = threading.Event()
        self.done = 0

    def run(self) -> None:
        random = np.random.default_rng(1)
        with psycopg.connect(self._cluster.conninfo(), autocommit=True) as connection:
            while not self.ended.is_set():
                for number in (1 + random.zipf(1.3, READS) % 20_000).tolist():
                    connection.execute("SELECT f FROM points WHERE i = %s", (number,), prepare=True)
                connection.execute("SELECT count(*) FROM scanned")
                self.done += 1


def rounds(cluster: Cluster, count: int) -> float:
    """Run whole rounds, and return the miss ratio of all but the first."""

    def counts(connection: psycopg.Connection[tuple[int, int]]) -> np.ndarray:
        if cluster.version_num >= 150000:
            connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(
            "SELECT blks_read, blks_hit FROM pg_stat_database WHERE datname = 'postgres'"
        ).fetchone()
        assert row is not None
        return np.array(row, dtype=float)

    random = np.random.default_rng(2)
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        before = np.zeros(2)
        for number in range(count):
            if number == 1:
                before = counts(connection)
            for key in (1 + random.zipf(1.3, READS) % 20_000).tolist():
                connection.execute("SELECT f FROM points WHERE i = %s", (key,), prepare=True)
            connection.execute("SELECT count(*) FROM scanned")
        misses, hits = counts(connection) - before
    return float(misses / (misses + hits))


def test_a_scan_through_a_ring_misses_in_larger_pools_too(bindir: Path | None, tmp_path: Path) -> None:
    """A table of 40 MB is more than a quarter of 4 and 8 MB: it must be read again at each of them."""
    with Cluster.create(bindir, SETTINGS) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            for name, rows in (("points", 20_000), ("scanned", 45_000)):
                connection.execute(
                    f"CREATE TABLE {name} AS"
                    f" SELECT i, repeat('x', 800) AS f FROM generate_series(1, {rows}) i"
                )
            connection.execute("CREATE INDEX ON points (i)")
            connection.execute("ALTER TABLE scanned SET (parallel_workers = 2)")
            connection.execute("VACUUM ANALYZE")
        cluster.restart()
        work = Rounds(cluster)
        work.start()
        try:
            record_trace(cluster.conninfo(), tmp_path / "x.evidence", seconds=5)
        finally:
            work.ended.set()
            work.join()
        sizes = [4 * MIB, 8 * MIB, 32 * MIB]
        found = predict(tmp_path / "x.evidence", sizes_bytes=sizes)
        assert work.done >= 3
        # In a pool nearly as large as the table, rings leave more of it behind from scan to scan, and how
        # fast is not known well: such a prediction is never called reliable.
        assert found.verdict.level == "rough"
        for point in found.points[:2]:
            cluster.restart({"shared_buffers": f"{point.shared_buffers_bytes // 1024}kB"})
            truth = rounds(cluster, ROUNDS)
            # How many scans fall into the seconds of the trace is chance; that larger pools do not keep the
            # table is not.
            assert abs(point.miss_ratio - truth) < 0.08, (point, truth, found.verdict)
