"""Sequential scans: how much they read, what a pool makes of them, and a prediction beside them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pgsweep._native import Rules, replay
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.predict import predict
from pgsweep.sizing.snapshots.curve import Curve
from pgsweep.sizing.snapshots.load import Flow, SampledPool
from pgsweep.sizing.snapshots.rates import GRID, SINGLE, Rates
from pgsweep.sizing.snapshots.scan_counts import loop_absent, scanned_blocks, vacuumed_blocks
from pgsweep.sizing.snapshots.totals import read_totals

TABLE = {
    "kind": np.array(["r", "i"]),
    "blocks_begin": np.array([1000, 1000]),
    "blocks_end": np.array([1000, 1000]),
    "tuples_per_block": np.array([50.0, 0.0]),
}


def read_blocks(relations: dict[str, np.ndarray], returned: float, fetched: float) -> float:
    """Return what is taken for scanned where 39 scans were counted and 14,000 accesses."""
    found = scanned_blocks(
        relations,
        scans=np.array([39.0, 0.0]),
        returned=np.array([returned, returned]),
        fetched=np.array([fetched, fetched]),
        accesses=np.array([14_000.0, 14_000.0]),
    )
    return float(found[0])


def test_scans_of_an_index_are_not_sequential() -> None:
    """The server counts both by one function (pg_stat_get_numscans); a large index would have a ring."""
    relations = TABLE | {
        "oid": np.array([7, 8]), "rel": np.array([7, 8]), "name": np.array(["t", "t_pkey"], object),
    }  # fmt: skip
    counted = [(oid, name, second) for second in (0, 10) for oid in "78" for name in ("scans", "blks_hit")]
    counters = {
        "seconds": np.array([float(second) for *_, second in counted]),
        "scope": np.full(len(counted), "relation", object),
        "object": np.array([oid for oid, *_ in counted], object),
        "name": np.array([name for _, name, _ in counted], object),
        "value": np.array([100.0 * (1 + second) for *_, second in counted]),
    }
    totals = read_totals(counters, relations, "shop")
    assert totals.relation_accesses.tolist() == [100, 100]
    assert totals.relation_scans.tolist() == [100, 0]
    assert totals.relation_scanned_blocks[1] == 0


def test_workers_of_a_parallel_scan_are_no_scans() -> None:
    assert read_blocks(TABLE, 13 * 1000 * 50.0, 0.0) == 13_000


def test_scans_of_a_table_never_analyzed_are_what_indexes_leave_of_its_accesses() -> None:
    unknown = {**TABLE, "tuples_per_block": np.zeros(2)}
    assert read_blocks(unknown, 13 * 1000 * 50.0, 1_500.0) == 12_500


@pytest.mark.parametrize(("through_rings", "expected"), [(None, 3000.0), (1200.0, 1200.0), (9000.0, 3000.0)])
def test_vacuum_visits_each_block_once_at_most(through_rings: float | None, expected: float) -> None:
    counted = {"vacuums": np.array([3.0, 0.0]), "accesses": np.array([14_000.0, 14_000.0])}
    assert vacuumed_blocks(TABLE, **counted, through_rings=through_rings).tolist() == [expected, 0]
    few = counted | {"accesses": np.array([500.0, 0.0])}
    assert vacuumed_blocks(TABLE, **few, through_rings=None).tolist() == [500, 0]


def test_a_loop_is_all_or_nothing() -> None:
    missed, absent = loop_absent(np.array([0.1, 0.3, 0.75, 1.5, 5.0]))
    assert missed[:2] == pytest.approx(1.0)
    assert 0.2 < missed[2] < 0.5
    assert missed[3:] == pytest.approx(0.0)
    assert absent[0] == pytest.approx(0.8, abs=0.01), "a page that is loaded stays for two passes"
    assert absent[4] == 0


@pytest.mark.parametrize("size_blocks", [6_000, 8_000, 10_000, 12_000, 14_000])
def test_scans_of_a_loop_miss_as_often_as_in_a_simulated_pool(size_blocks: int) -> None:
    """Beside reads by Zipf's law a table is scanned, at intervals between 0.7 and 1.3 of their mean."""
    rng = np.random.default_rng(7)
    popularity = np.cumsum(1 / np.arange(1, 80_001) ** 1.05)
    reads = np.searchsorted(popularity, rng.random(1_500_000) * popularity[-1]).astype(np.uint32)
    table = np.arange(80_000, 82_000, dtype=np.uint32)
    ends = np.cumsum(16_000 * rng.uniform(0.7, 1.3, 80))
    parts = np.split(reads, ends.astype(np.int64))[:-1]
    trace = np.concatenate([np.r_[part, table] for part in parts])
    half = sum(len(part) + len(table) for part in parts[: len(parts) // 2])
    is_scanned = (np.arange(82_000) >= 80_000).astype(np.uint32)
    windows = np.array([half, len(trace)], dtype=np.uint64)
    whole = replay(trace, [size_blocks], Rules(18), windows=windows, groups=is_scanned, threads=1)
    before = replay(trace[:half], [size_blocks], Rules(18), threads=1)
    passes = float(whole["passes"][0]) - float(before["passes"][0])
    missed, _ = loop_absent(np.array([(len(parts) - len(parts) // 2) / passes]))
    simulated = whole["group_misses"][0, 1] / whole["group_accesses"][1]
    assert missed[0] == pytest.approx(simulated, abs=0.08)


def test_rings_gather_where_scans_come_more_often_than_the_hand() -> None:
    """Each scan leaves its ring in the pool, and the next one keeps what it finds there."""
    cold = np.zeros(len(GRID))
    cold[40] = 20_000
    hot = np.zeros(len(GRID))
    hot[0] = 2_000
    rates = [Rates(pages=pages, batch=SINGLE, hot_batch=SINGLE) for pages in (cold, hot)]
    flows = [
        Flow(misses=float(cold @ GRID) / 2, accesses=float(cold @ GRID)),
        Flow(misses=0.0, accesses=4_000, scans=2.0, scanned_blocks=2_000),
    ]

    pool = SampledPool(blocks=8_400, seconds=60.0, flows=flows, ring_blocks=lambda _: 87)

    def misses(settled_seconds: float) -> float:
        curve = Curve(rates, 2.0, pool, settled_seconds=settled_seconds)
        with_hot, without = (curve.miss_rates([cold, one], [7_000])[0] for one in (hot, np.zeros(len(GRID))))
        return with_hot - without

    assert misses(0.0) > 3_000
    assert misses(float("inf")) < misses(0.0) / 2


@contextmanager
def reads_beside_scans(cluster: Cluster, folder: Path) -> Iterator[str]:
    """Run point reads beside a client that scans 40 MB in parallel, pauses, and so on."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE scans")
    conninfo = cluster.conninfo("scans")
    pgbench = str(cluster.bindir / "pgbench")
    loads = []
    try:
        subprocess.run([pgbench, "-i", "-q", "-s", "3", conninfo], check=True, capture_output=True)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
            connection.execute(
                "CREATE TABLE big AS SELECT g, repeat('x', 900) AS t FROM generate_series(1, 41000) AS g"
            )
            connection.execute("VACUUM ANALYZE big")
            connection.execute("ALTER TABLE big SET (parallel_workers = 2)")
            for setting in ("min_parallel_table_scan_size", "parallel_setup_cost", "parallel_tuple_cost"):
                connection.execute(f"ALTER DATABASE scans SET {setting} = 0")
        (folder / "scan.sql").write_text("SELECT count(*) FROM big;\n\\sleep 400 ms\n")
        (folder / "read.sql").write_text(
            "\\set r random_zipfian(1, 300000, 1.05)\n\\set a 1 + permute(:r - 1, 300000, 3)\n"
            "SELECT abalance FROM pgbench_accounts WHERE aid = :a;\n"
        )
        with ExitStack() as closing:
            for script, rate in (("scan", ()), ("read", ("-R", "1000"))):
                load = subprocess.Popen(
                    [
                        pgbench,
                        "-n",
                        "-M",
                        "prepared",
                        "-T",
                        "600",
                        *rate,
                        "-f",
                        f"{folder}/{script}.sql",
                        conninfo,
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                loads.append(load)
                closing.callback(load.wait)
                closing.callback(load.kill)
            yield conninfo
    finally:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE scans WITH (FORCE)")


@pytest.mark.slow
def test_today_comes_out_as_measured_beside_parallel_scans(wheel18: Cluster, tmp_path: Path) -> None:
    """It was predicted at 95% where 32% had been measured."""
    output = tmp_path / "scans.evidence"
    with reads_beside_scans(wheel18, tmp_path) as conninfo:
        # A short warm-up: the evidence must see a full pool.
        record_sql(conninfo, tmp_path / "before.evidence", seconds=5)
        record_sql(conninfo, output, seconds=15, rng_seed=1)
    evidence = Evidence.open(output)
    relations = evidence.table("relations")
    totals = read_totals(evidence.table("counters"), relations, evidence.meta.database)
    big = int(np.flatnonzero(relations["name"] == "big")[0])
    accesses = float(totals.relation_accesses[big])
    assert totals.relation_scanned_blocks[big] == pytest.approx(accesses, rel=0.02)
    assert totals.relation_scans[big] * relations["blocks_end"][big] > 1.5 * accesses, "each worker counts"
    found = predict(output, sizes_bytes=[evidence.meta.shared_buffers_blocks * 8192])
    assert found.verdict.level in {"rough", "refused"}
    for point in found.points:
        assert point.miss_ratio == pytest.approx(found.observed.miss_ratio, abs=0.005)
