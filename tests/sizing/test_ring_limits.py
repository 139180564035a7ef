"""From which size of the pool on scans use no ring: as predicted, and as a real server does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from pgsweep.evidence.record import record
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import PredictResult
from pgsweep.sizing.predict import judge, predict
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import to_text
from tests.fix_written import MIB, PAGES, write_trace

BLOCK = 8192


def blocks_in_pool(cluster: Cluster, buffers: int) -> tuple[int, int]:
    """Return the blocks of a table, and how many are in the pool after one scan, with so many buffers."""
    cluster.restart({"shared_buffers": f"{buffers * 8}kB"})
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        session.execute("SELECT count(*) FROM scanned")
        row = session.execute(
            "SELECT pg_relation_size('scanned') / 8192, count(*) FROM pg_buffercache"
            " WHERE relfilenode = pg_relation_filenode('scanned') AND relforknumber = 0"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def fill(session: psycopg.Connection, blocks: int) -> None:
    session.execute("CREATE TABLE scanned (id int, filler text)")
    session.execute("ALTER TABLE scanned ALTER filler SET STORAGE PLAIN")
    session.execute(f"INSERT INTO scanned SELECT g, repeat('x', 7000) FROM generate_series(1, {blocks}) g")


def test_a_server_uses_a_ring_up_to_one_buffer_less_than_four_times_the_table(bindir: Path | None) -> None:
    settings = {"autovacuum": "off", "max_parallel_workers_per_gather": "0"}
    with Cluster.create(bindir, settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            fill(session, 500)
            session.execute("VACUUM scanned")
            session.execute("CHECKPOINT")
        blocks, there = blocks_in_pool(cluster, 4 * 500)
        assert (blocks, there) == (500, 500)
        _, there = blocks_in_pool(cluster, 4 * 500 - 1)
        assert there <= 40, "a ring has 32 buffers"


@contextmanager
def scanning(cluster: Cluster) -> Iterator[None]:
    """Scan a table again and again, and read another, until the block ends."""
    over = threading.Event()

    def work() -> None:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            while not over.wait(0.02):
                session.execute("SELECT count(*) FROM scanned")
                for first in range(0, 3000, 60):
                    session.execute(
                        "SELECT sum(octet_length(filler)) FROM kept WHERE id BETWEEN %s AND %s",
                        [first, first + 5],
                    )

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_snapshots_name_what_is_scanned_and_the_size(tmp_path: Path) -> None:
    settings = {"shared_buffers": "2MB", "autovacuum": "off", "max_parallel_workers_per_gather": "0"}
    with Cluster.create(None, settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
            fill(session, 300)
            session.execute(
                "CREATE TABLE kept AS SELECT g AS id, repeat('x', 700) AS filler"
                " FROM generate_series(1, 3000) g"
            )
            session.execute("CREATE INDEX ON kept (id)")
            session.execute("VACUUM ANALYZE")
        with scanning(cluster):
            record(cluster.conninfo(), tmp_path / "x.evidence", source="sql", seconds=4.0)
    result = predict(tmp_path / "x.evidence")
    scan = {one.name: one for one in result.scans}["scanned"]
    assert scan.relation_bytes == 300 * BLOCK
    assert scan.ring_below_bytes == 1200 * BLOCK
    assert 0.3 < scan.access_share < 0.95
    assert "kept" not in {one.name for one in result.scans}
    # 9.4 MB, in whole megabytes, is among the sizes up to eight times that of the pool.
    assert 10 * MIB // BLOCK in judge(tmp_path / "x.evidence").estimate.sizes_blocks


@pytest.fixture(scope="module")
def of_trace(tmp_path_factory: pytest.TempPathFactory) -> PredictResult:
    return predict(write_trace(tmp_path_factory.mktemp("trace") / "x.evidence", scanned=True))


def test_a_trace_names_them_too(of_trace: PredictResult) -> None:
    [scan] = of_trace.scans
    assert scan.access_share == pytest.approx(0.2, abs=0.03)
    assert PAGES * BLOCK <= scan.relation_bytes < 1.2 * PAGES * BLOCK
    assert scan.ring_below_bytes == 4 * scan.relation_bytes
    assert len(of_trace.points) == 7, "it is larger than the largest"


def test_sizes_that_were_asked_for_are_those_predicted(tmp_path: Path) -> None:
    asked = [8 * MIB, 16 * MIB]
    result = predict(write_trace(tmp_path / "x.evidence", accesses=20_000, scanned=True), sizes_bytes=asked)
    assert [point.shared_buffers_bytes for point in result.points] == asked
    assert result.scans


def test_without_scans_none_is_named(tmp_path: Path) -> None:
    result = predict(write_trace(tmp_path / "x.evidence", accesses=20_000))
    assert not result.scans
    assert len(result.points) == 7


def test_it_is_said_in_a_sentence(of_trace: PredictResult) -> None:
    text = " ".join(to_text(of_trace, Terminal()).split())
    assert "go through a ring below" in text
    assert "from there on they displace other pages" in text


def test_a_ring_below_all_sizes_shown_is_not_named(of_trace: PredictResult) -> None:
    smallest = min(point.shared_buffers_bytes for point in of_trace.points)
    [scan] = of_trace.scans
    for limit, said in ((smallest, False), (smallest + 1, True)):
        result = replace(of_trace, scans=[replace(scan, ring_below_bytes=limit)])
        assert ("go through a ring" in to_text(result, Terminal())) == said
