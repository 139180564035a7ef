"""Measuring the truth: on workloads whose miss ratio is known without any model."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import psycopg
import pytest

from pgsweep.errors import ClusterError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.filling import pool_content
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database, prepare
from pgsweep.testbed.truth import Patience, is_steady, measure
from pgsweep.testbed.workloads import WORKLOADS, Script, Workload
from tests.fix_demo import paced

BLOCKS = 3000
QUICK = Patience(
    settle_windows=4, settle_limit_seconds=90, count_windows=3, count_error=0.003, count_limit_seconds=5
)
BRIEF = Patience(settle_limit_seconds=1, count_windows=1, count_limit_seconds=1)

# One row a page, fetched by its place: one access a transaction, uniform, so that the chance of a hit is the
# part of the table that the pool holds, whatever the replacement.
UNIFORM = Workload(
    name="uniform",
    title="uniform reads by TID",
    scripts=(
        Script(
            "\\sleep 200 us\n"  # it leaves processors to other tests
            f"\\set block random(0, {BLOCKS - 1})\n"
            "SELECT filler FROM wide WHERE ctid = format('(%s,1)', :block::int)::tid;\n"
        ),
    ),
    clients=2,
    setup=(
        "CREATE TABLE wide (filler text STORAGE PLAIN)",
        f"INSERT INTO wide SELECT repeat('x', 5000) FROM generate_series(1, {BLOCKS})",
        "VACUUM ANALYZE wide",
    ),
    needs_pgbench_tables=False,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.create(settings={"shared_buffers": "8MB", "autovacuum": "off"}) as cluster:
        create_database(cluster, 2)
        yield cluster


def test_pgbench_that_takes_too_long_is_reported() -> None:
    with Cluster.create(settings={"shared_buffers": "8MB"}) as cluster:
        with pytest.raises(ClusterError, match=r"did not fill its tables within 0\.01 s") as caught:
            create_database(cluster, 100, timeout_seconds=0.01)
        assert "busy" in (caught.value.cause or "")
        assert caught.value.hint


def test_a_uniform_workload_misses_what_the_pool_cannot_hold(cluster: Cluster) -> None:
    prepare(cluster, UNIFORM)
    truth, content = measure(cluster, UNIFORM, 12 * 1024**2, seed=1, patience=QUICK)
    assert truth.settled
    assert truth.transactions > 1000
    assert len(content.blocks["public.wide"]) <= 1536
    # All 1536 buffers hold pages of the table, as nothing else is read once the plans are cached; on a busy
    # machine, where the count is short, a few dozen may hold catalogs yet.
    chance = 3 * (0.25 / truth.accesses) ** 0.5
    assert truth.misses / truth.accesses == pytest.approx(1 - 1536 / BLOCKS, abs=0.015 + chance)
    larger, _ = measure(cluster, UNIFORM, 64 * 1024**2, seed=2, carried=content, patience=QUICK)
    assert larger.settled
    assert larger.misses < larger.transactions // 1000


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_the_workloads_run(cluster: Cluster, workload: Workload) -> None:
    if not workload.scripts[0].text.startswith("builtin:"):
        workload = paced(workload, 2000)
    truth, _ = measure(cluster, workload, 8 * 1024**2, seed=3, patience=BRIEF)
    assert truth.transactions > 100
    assert 0 < truth.miss_ratio < 0.6
    assert truth.shared_buffers_bytes == 8 * 1024**2


def test_hot_accounts_are_scattered(cluster: Cluster) -> None:
    """The hottest pages of a Zipf workload are not neighbours."""
    zipf = WORKLOADS[0]
    measure(cluster, zipf, 4 * 1024**2, seed=4, patience=BRIEF)
    blocks = pool_content(cluster).blocks["public.pgbench_accounts"]
    assert np.quantile(blocks, 0.9) - np.quantile(blocks, 0.1) > 2000


def test_a_workload_that_fails_says_why(cluster: Cluster) -> None:
    wrong = Workload(name="wrong", title="wrong", scripts=(Script("SELECT no_such_function();\n"),))
    with RunningWorkload(cluster, wrong, seed=1) as running, pytest.raises(ClusterError) as caught:
        for _ in range(200):
            running.check()
            with psycopg.connect(cluster.conninfo(DATABASE)) as connection:
                connection.execute("SELECT pg_sleep(0.05)")
    assert "no_such_function" in (caught.value.cause or "")


def test_steadiness_is_seen() -> None:
    noise = random.Random(5)
    still = [0.2 + noise.gauss(0, 0.001) for _ in range(12)]
    falling = [0.2 - 0.004 * second + noise.gauss(0, 0.001) for second in range(12)]
    wild = [0.2 + noise.gauss(0, 0.05) for _ in range(8)]
    assert is_steady(still, Patience())
    assert not is_steady(falling, Patience())
    assert not is_steady(wild, Patience())
    assert not is_steady(still[:5], Patience())
