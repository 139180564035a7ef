"""Heat saved on one server and brought back: on the same, rewritten, with a smaller pool, on a standby."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.heat import WarmRestoreResult
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import empty_caches
from pgsweep.warm.heat.file import read_heat
from pgsweep.warm.heat.restore_plan import RestoreOptions, plan_restore, touches_left
from tests.fix_cluster import DEBIAN_BINDIR
from tests.fix_heated import (
    SETTINGS,
    altered,
    checked,
    heat_up,
    make_shop,
    restored,
    row,
    saved,
    touch,
    usage,
)
from tests.fix_process import wait_until
from tests.fix_standby import PRIMARY, standby_of
from tests.fix_warm import evict_all


@pytest.mark.parametrize("bin_folder", [None, DEBIAN_BINDIR], ids=["wheel18", "debian15"])
def test_usage_counts_come_back_after_a_restart(bin_folder: Path | None, tmp_path: Path) -> None:
    if bin_folder is not None and not bin_folder.exists():
        pytest.skip("needs Debian's PostgreSQL 15")
    with Cluster.create(bin_folder, SETTINGS) as cluster:
        conninfo = make_shop(cluster)
        empty_caches(cluster)
        heat_up(conninfo)
        before = {name: usage(conninfo, name) for name in ("hot", "hot_pkey", "cold")}
        assert set(before["hot"].values()) == {1, 3, 5}
        path = tmp_path / "shop.heat"
        heat = saved(conninfo, path)
        assert path.stat().st_size < 8192 + 2 * len(heat.block), "the columns' descriptions, and the blocks"
        for options in ({}, {"source": "sql", "into": "pool", "connections": 1}):
            empty_caches(cluster)
            assert row(checked(conninfo, path).relations, "hot").resident_bytes == 0
            result = restored(conninfo, path, **options)
            assert result.same_cluster
            assert result.after is not None
            assert result.after.resident == 1.0
            assert result.after.usage_reached == 1.0
            after = {name: usage(conninfo, name) for name in before}
            assert after == before, "every block has the usage count it had"
        again = restored(conninfo, path)
        assert again.to_pool_bytes == 0
        assert again.touches == 0, "what is there is not read again"
        empty_caches(cluster)
        assert set(usage(conninfo, "hot").values()) == set()
        restored(conninfo, path, heat=False, into="pool")
        assert set(usage(conninfo, "hot").values()) == {1}


def test_the_page_cache_comes_back(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, conninfo, _ = heated
    empty_caches(cluster)
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT pg_prewarm('cold', 'read')")
    path = tmp_path / "x.heat"
    heat = saved(conninfo, path)
    assert heat.meta.sees_page_cache
    empty_caches(cluster)
    assert row(checked(conninfo, path).relations, "cold").page_cache_resident_bytes == 0
    result = restored(conninfo, path, into="page-cache")
    assert result.to_pool_bytes == 0
    found = row(result.relations, "cold")
    assert found.page_cache_resident_bytes == found.page_cache_saved_bytes
    assert usage(conninfo, "cold") == {}


def test_dropped_truncated_rewritten_and_renamed(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, _, _ = heated
    with altered(cluster, "shop2") as conninfo:
        heat_up(conninfo)
        path = tmp_path / "x.heat"
        saved(conninfo, path)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("DROP TABLE cold")
            connection.execute("DELETE FROM hot WHERE id > 1000; ")
            connection.execute("VACUUM hot")  # cuts the file short: 500 blocks are left
            connection.execute("REINDEX INDEX hot_pkey")
            connection.execute("ALTER TABLE long RENAME TO tall")
        empty_caches(cluster)
        result = restored(conninfo, path)
        assert result.after is not None
        assert result.after.resident == 1.0
        assert result.after.matched < 1.0
        assert row(result.relations, "cold").match == "dropped"
        hot = row(result.relations, "hot")
        assert hot.match == "resized"
        assert set(usage(conninfo, "hot")) == {*range(0, 200, 2), *range(200, 300), *range(400, 500, 7)}
        assert row(result.relations, "hot_pkey").resident_bytes > 0
        assert row(result.relations, "long").match == "same blocks", "found again by its file"
        toast = next(r for r in result.relations if r.kind == "TOAST table" and r.database == "shop2")
        assert toast.resident_bytes == toast.saved_bytes > 0


def test_a_rewritten_table_gets_the_same_share(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, _, _ = heated
    with altered(cluster, "shop3") as conninfo:
        touch(conninfo, "hot", range(400), 4)
        path = tmp_path / "x.heat"
        saved(conninfo, path)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("DELETE FROM hot WHERE id % 2 = 0")
            connection.execute("VACUUM FULL hot")
            connection.execute("VACUUM FULL long")
        empty_caches(cluster)
        result = restored(conninfo, path)
        hot = row(result.relations, "hot")
        assert hot.match == "by share"
        assert hot.resident_bytes == hot.target_bytes
        # 400 of 800 blocks were hot; half of the 400 that are left are, and they are the first.
        assert set(usage(conninfo, "hot")) == set(range(200))
        assert set(usage(conninfo, "hot").values()) == {4}


def test_a_rewritten_table_of_the_same_size_is_not_the_same_file(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, _, _ = heated
    with altered(cluster, "shop5") as conninfo:
        touch(conninfo, "hot", range(0, 800, 3), 4)
        path = tmp_path / "x.heat"
        saved(conninfo, path)
        assert row(checked(conninfo, path).relations, "hot").match == "same blocks"
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("VACUUM FULL hot")
        empty_caches(cluster)
        assert row(checked(conninfo, path).relations, "hot").match == "by share"
        result = restored(conninfo, path)
        assert row(result.relations, "hot").match == "by share"
        assert set(usage(conninfo, "hot")) == set(range(0, 800, 3))


def test_another_server_is_matched_by_name(
    heated: tuple[Cluster, str, Path], shared_cluster: object, wheel18: Cluster
) -> None:
    _, _, path = heated
    conninfo = make_shop(wheel18)
    was = next(part.filenode for part in read_heat(path).parts if part.relation == "hot")
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            if connection.execute("SELECT pg_relation_filenode('hot')").fetchone() == (was,):
                connection.execute("VACUUM FULL hot")
        result = restored(conninfo, path)
        assert not result.same_cluster
        # The file has as many blocks as the saved one, and nobody knows whether the same rows lie in them.
        assert row(result.relations, "hot").match == "same size"
        assert row(result.relations, "hot").resident_bytes > 0.9 * row(result.relations, "hot").saved_bytes
        toast = next(r for r in result.relations if r.kind == "TOAST table" and r.database == "shop")
        assert toast.resident_bytes > 0, "pg_toast_NNN has another name there"
    finally:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
            connection.execute("DROP DATABASE shop WITH (FORCE)")


def test_a_smaller_pool_gets_the_hottest_and_no_more_than_it_holds(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    empty_caches(cluster)
    touch(conninfo, "hot", range(800))
    touch(conninfo, "cold", range(400))
    touch(conninfo, "hot", range(0, 200, 2), 4)
    path = tmp_path / "x.heat"
    saved(conninfo, path)
    cluster.settings["shared_buffers"] = "8MB"
    try:
        empty_caches(cluster)
        result = restored(conninfo, path, into="pool")
        assert result.to_pool_bytes < 8 << 20
        assert result.left_out_bytes > 4 << 20
        assert len(set(usage(conninfo, "hot")) & set(range(0, 200, 2))) > 90
    finally:
        cluster.settings["shared_buffers"] = "16MB"
        empty_caches(cluster)


def test_a_full_pool_ends_with_the_hottest_resident(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    cluster.settings["shared_buffers"] = "8MB"
    try:
        empty_caches(cluster)
        with psycopg.connect(conninfo) as connection:
            connection.execute("SELECT pg_prewarm('hot', 'buffer', 'main', 300, 799), pg_prewarm('cold')")
        result = restored(conninfo, path, into="pool")
        assert result.after is not None
        # Catalogs that pgsweep's own sessions read take some of so small a pool.
        assert result.after.resident_hot > 0.9
    finally:
        cluster.settings["shared_buffers"] = "16MB"
        empty_caches(cluster)


def test_touching_is_left_to_queries_that_push_out_what_was_read(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    with opened(conninfo) as access:
        plan = plan_restore(access, read_heat(path), RestoreOptions(into="pool"))
        assert not plan.touches_at_once
        restored(conninfo, path, into="pool", heat=False)
        left = touches_left(plan, access)
        assert left is not None
        calls, touches = left
        assert touches == sum(call.blocks for call in calls)
        lacking = 4 * 100 + 2 * 100
        assert lacking <= touches <= plan.sums.touches, "catalogs have been used since the plan was made"
        evict_all(conninfo)
        assert touches_left(plan, access) is None


def test_what_may_not_be_read_is_reported_and_the_rest_restored(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CREATE ROLE warmer LOGIN; GRANT pg_monitor TO warmer")
        connection.execute("GRANT SELECT ON hot TO warmer")
    empty_caches(cluster)
    result = restored(f"{conninfo} user=warmer", path, into="pool", source="sql")
    assert row(result.relations, "hot").resident_bytes == row(result.relations, "hot").target_bytes
    assert row(result.relations, "hot").error is None
    assert "may not read" in (row(result.relations, "cold").error or "")
    assert usage(conninfo, "cold") == {}


def test_a_standby_is_warmed_from_its_primarys_heat(tmp_path: Path) -> None:
    with Cluster.create(settings=PRIMARY) as primary:
        conninfo = make_shop(primary)
        with standby_of(primary) as standby:
            empty_caches(primary)
            heat_up(conninfo)
            path = tmp_path / "primary.heat"
            saved(conninfo, path)
            empty_caches(standby)
            there = standby.conninfo("shop")
            writing = threading.Event()

            def write() -> None:
                with psycopg.connect(conninfo, autocommit=True) as connection:
                    while not writing.wait(0.01):
                        connection.execute("UPDATE cold SET id = -id WHERE id = 7 OR id = -7")

            writer = threading.Thread(target=write)
            writer.start()
            try:
                result = restored(there, path)
            finally:
                writing.set()
                writer.join()
            assert result.same_cluster
            assert result.after is not None
            assert result.after.resident > 0.99
            assert set(usage(there, "hot")) >= set(usage(conninfo, "hot"))
            assert row(result.relations, "hot").match == "same blocks"

            # Promoted half way: the sessions live on, and the restore ends as if nothing had happened.
            empty_caches(standby)
            results: list[WarmRestoreResult] = []
            thread = threading.Thread(
                target=lambda: results.append(restored(there, path, rate_bytes_per_second=1 << 20))
            )
            thread.start()
            wait_until(lambda: len(usage(there, "hot")) > 40)
            with psycopg.connect(standby.conninfo(), autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            thread.join()
            assert results[0].after is not None
            assert results[0].after.resident > 0.99
