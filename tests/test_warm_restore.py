"""Heat saved on one server and brought back: on the same, rewritten, with a smaller pool, on a stand-by."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from msgspec.structs import replace as replace_struct

from pgsweep.caches.access import opened
from pgsweep.errors import PgsweepError
from pgsweep.lab.cold import empty_caches
from pgsweep.pg.cluster import Cluster
from pgsweep.records.heat import HeatRelation, WarmCheckResult, WarmRestoreResult
from pgsweep.ui.numbers import count, format_bytes
from pgsweep.ui.results import read_result
from pgsweep.ui.terminal import Terminal
from pgsweep.ui.warm_restore import restore_text
from pgsweep.warm.check import check
from pgsweep.warm.heat import NOT_IN_POOL, Heat, read_heat
from pgsweep.warm.restore import restore
from pgsweep.warm.restore_plan import RestoreOptions, plan_restore, touches_left
from pgsweep.warm.save import save
from tests.fix_cluster import DEBIAN_BINDIR
from tests.fix_standby import PRIMARY, standby_of
from tests.fix_warm import evict_all
from tests.test_cli import PGSWEEP, run
from tests.test_cluster import wait_until

BLOCK = 8192
SETTINGS = {"shared_buffers": "16MB", "autovacuum": "off"}
SETUP = """
CREATE TABLE hot (id int PRIMARY KEY, filler text);
ALTER TABLE hot ALTER filler SET STORAGE PLAIN;
INSERT INTO hot SELECT g, repeat('x', 4000) FROM generate_series(1, 1600) g;
CREATE TABLE cold (id int, filler text);
INSERT INTO cold SELECT g, repeat('y', 1000) FROM generate_series(1, 3000) g;
CREATE TABLE long (id int, body text);
ALTER TABLE long ALTER body SET STORAGE EXTERNAL;
INSERT INTO long SELECT g, repeat('z', 9000) FROM generate_series(1, 60) g;
VACUUM;
"""
_USAGE = """
SELECT relblocknumber, usagecount FROM pg_buffercache
WHERE relfilenode = pg_relation_filenode(%s) AND relforknumber = 0
  AND reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def make_shop(cluster: Cluster, name: str = "shop") -> str:
    """Make a database with a few relations; return its conninfo."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    with psycopg.connect(cluster.conninfo(name), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm")
        for statement in SETUP.strip().splitlines():
            connection.execute(statement.encode())
        connection.execute("CHECKPOINT")
    return cluster.conninfo(name)


def touch(conninfo: str, relation: str, blocks: range, times: int = 1) -> None:
    """Access blocks of a relation."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for _ in range(times):
            connection.execute(
                "SELECT sum(pg_prewarm(%s, 'buffer', 'main', b, b)) FROM unnest(%s::int8[]) AS b",
                [relation, list(blocks)],
            )


def heat_up(conninfo: str) -> None:
    """Give some blocks usage counts from 1 to 5: scattered, in stretches, an index, TOAST."""
    touch(conninfo, "hot", range(0, 200, 2), 5)
    touch(conninfo, "hot", range(200, 300), 3)
    touch(conninfo, "hot", range(400, 800, 7), 1)
    touch(conninfo, "hot_pkey", range(5), 4)
    touch(conninfo, "cold", range(50, 60), 2)
    with psycopg.connect(conninfo) as connection:
        connection.execute("SELECT sum(length(body)) FROM long WHERE id <= 30")


def usage(conninfo: str, relation: str) -> dict[int, int]:
    """Return the usage counts of a relation's resident blocks."""
    with psycopg.connect(conninfo) as connection:
        return dict(connection.execute(_USAGE, [relation]).fetchall())


def saved(conninfo: str, path: Path) -> Heat:
    with opened(conninfo) as access:
        assert save(access, path).skipped is None
    return read_heat(path)


def restored(conninfo: str, path: Path, **options: Any) -> WarmRestoreResult:
    return restore(
        conninfo,
        path,
        read_heat(path),
        RestoreOptions(**options),
        stop=threading.Event(),
    )


def checked(conninfo: str, path: Path) -> WarmCheckResult:
    with opened(conninfo) as access:
        return check(access, path, read_heat(path))


def row(rows: list[HeatRelation], name: str, fork: str = "main") -> HeatRelation:
    return next(r for r in rows if r.relation == name and r.fork == fork)


@pytest.fixture(scope="module")
def heated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str, Path]]:
    """A server of 18, the conninfo of its shop, and the heat that was saved of it."""
    with Cluster.create(settings=SETTINGS) as cluster:
        conninfo = make_shop(cluster)
        empty_caches(cluster)
        heat_up(conninfo)
        path = tmp_path_factory.mktemp("heat") / "shop.heat"
        saved(conninfo, path)
        yield cluster, conninfo, path


@contextmanager
def altered(cluster: Cluster, name: str, *statements: str) -> Iterator[str]:
    """Give a copy of the shop in which the statements were executed, cold; it is dropped at the end."""
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE shop".encode())
        with psycopg.connect(cluster.conninfo(name), autocommit=True) as inside:
            for statement in statements:
                inside.execute(statement.encode())
        empty_caches(cluster)
    yield cluster.conninfo(name)
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


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


def test_another_server_is_matched_by_name(
    heated: tuple[Cluster, str, Path], shared_cluster: object, wheel18: Cluster
) -> None:
    _, _, path = heated
    conninfo = make_shop(wheel18)
    try:
        result = restored(conninfo, path)
        assert not result.same_cluster
        assert row(result.relations, "hot").match in ("same blocks", "by share")
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
        assert result.after.resident_hot > 0.95
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


def test_what_may_not_be_read_is_told_and_the_rest_restored(heated: tuple[Cluster, str, Path]) -> None:
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


def test_the_server_restarts_half_way(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    results: list[WarmRestoreResult] = []
    thread = threading.Thread(
        target=lambda: results.append(
            restored(conninfo, path, rate_bytes_per_second=2 << 20, into="pool", connections=2)
        )
    )
    thread.start()
    wait_until(lambda: len(usage(conninfo, "hot")) > 40, 20)
    cluster.stop(immediately=True)
    cluster.start()
    thread.join()
    [result] = results
    assert result.restarts >= 1
    assert result.after is not None
    assert result.after.resident == 1.0


def test_ctrl_c_keeps_what_was_read_and_the_same_command_goes_on(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    command = [PGSWEEP, "warm", "restore", str(path), conninfo, "--into", "pool", "--json"]
    with subprocess.Popen(
        [*command, "--rate", "1MB"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len(usage(conninfo, "hot")) > 20, 20)
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command reads what is missing" in told
    first = json.loads(said)
    assert first["stopped"]
    assert 0 < first["after"]["resident"] < 1
    again = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert again["to_pool_bytes"] < first["to_pool_bytes"]
    assert again["after"]["resident"] == 1.0


def test_what_a_pool_in_use_pushes_out_again_is_told(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    result = restored(conninfo, path)
    assert "pushed out again" not in restore_text(result, Terminal())
    assert result.after is not None
    half = result.after.resident_bytes // 2
    less = replace_struct(result, after=replace_struct(result.after, resident_bytes=half))
    failed = sum(row.target_bytes - row.resident_bytes for row in result.relations if row.error)
    gone = format_bytes(result.after.target_bytes - half - result.left_out_bytes - failed)
    assert f"{gone} were pushed out again" in restore_text(less, Terminal())
    assert "pushed out again" not in restore_text(replace_struct(less, stopped=True), Terminal())


def test_a_pool_that_was_not_asked_for_has_pushed_nothing_out(
    heated: tuple[Cluster, str, Path],
) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    result = restored(conninfo, path, into="page-cache")
    assert result.after is not None
    assert result.to_pool_bytes == 0
    assert result.after.resident < 0.9
    assert "pushed out" not in restore_text(result, Terminal())


def test_what_many_files_share_is_told_once_a_database(heated: tuple[Cluster, str, Path]) -> None:
    _, conninfo, path = heated
    result = restored(conninfo, path)
    why = "the extension pg_prewarm does not exist"
    rows = [replace_struct(row, database="elsewhere", error=why) for row in result.relations] * 10
    text = restore_text(replace_struct(result, relations=rows), Terminal())
    assert f"not read: elsewhere: {count(len(rows))} files: {why}" in text
    assert text.count("not read:") == 1


def test_where_most_is_there_what_cannot_be_read_is_no_failure(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    path = tmp_path / "all.heat"
    empty_caches(cluster)
    touch(conninfo, "hot", range(400))
    with psycopg.connect(cluster.conninfo("template1")) as connection:
        connection.execute("SELECT count(*) FROM pg_attribute")
    heat = saved(conninfo, path)
    # Of two relations, all resident, that in a database without pg_prewarm lacks accesses.
    lacking = np.array([part.database == "template1" for part in heat.parts])[heat.part] & heat.pooled
    there = np.array([part.relation == "hot" for part in heat.parts])[heat.part] & heat.pooled
    lacking[np.flatnonzero(lacking)[10:]] = False  # so few of all that they are touched before the rest
    assert 0 < np.count_nonzero(lacking) <= 0.2 * np.count_nonzero(there)
    counts = np.where(lacking, 5, np.where(there, 0, NOT_IN_POOL)).astype(np.uint8)
    heat = replace(heat, usage_count=counts, page_cache=np.zeros_like(heat.page_cache))
    result = restore(conninfo, path, heat, RestoreOptions(), stop=threading.Event())
    assert result.after is not None
    assert result.after.resident > 0.9
    errors = {row.database: row.error for row in result.relations if row.error}
    assert list(errors) == ["template1"]
    assert "pg_prewarm does not exist" in errors["template1"]


def test_a_dry_run_shows_the_statements_and_reads_nothing(heated: tuple[Cluster, str, Path]) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    done = run("warm", "restore", str(path), conninfo, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert "nothing was read" in done.stderr
    assert usage(conninfo, "hot") == {}
    assert plan["after"] is None
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in plan["statements"]:
            if not statement.startswith(("posix_fadvise(", "sendfile(")):
                connection.execute(statement.encode())
    assert len(usage(conninfo, "hot")) == 100 + 100 + len(range(400, 800, 7)), "they are what it says"


def test_check_is_a_gate(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, conninfo, path = heated
    empty_caches(cluster)
    cold = run("warm", "check", str(path), conninfo, "--fail-if", "resident<90%", "--fail-if", "matched<0.1")
    assert cold.returncode == 5
    assert "resident<90%: resident is 0." in cold.stderr
    assert "matched<0.1:" not in cold.stderr
    assert re.search(r"^shop: hot +table +same blocks .*MB +0 +0.00 %", cold.stdout, re.MULTILINE)
    assert "(system catalogs: " in cold.stdout
    assert usage(conninfo, "hot") == {}, "nothing is read by asking"
    restored(conninfo, path)
    warm = run("warm", "check", str(path), conninfo, "--fail-if", "resident<90%", "--json")
    assert warm.returncode == 0, warm.stderr
    assert json.loads(warm.stdout)["state"]["resident"] == 1.0
    files = [str(tmp_path / f"x.{suffix}") for suffix in ("html", "csv", "json")]
    done = run("warm", "check", str(path), conninfo, *(word for file in files for word in ("-o", file)))
    assert done.returncode == 0, done.stderr
    assert isinstance(read_result(tmp_path / "x.html"), WarmCheckResult)
    assert read_result(tmp_path / "x.html") == read_result(tmp_path / "x.json")
    assert (tmp_path / "x.csv").read_text().startswith("database,schema,relation,")
    wrong = run("warm", "check", str(path), conninfo, "--fail-if", "residnet<1")
    assert wrong.returncode == 2
    assert run("warm", "check", str(path) + ".no", conninfo).returncode == 1


def test_save_every_keeps_some_and_stops_when_told(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    _, conninfo, _ = heated
    path = tmp_path / "x.heat"
    command = [PGSWEEP, "warm", "save", str(path), conninfo, "--every", "200ms", "--keep", "3", "-q"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        wait_until((tmp_path / "x.heat.2").exists, 30)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=20)
    assert process.returncode == 0, told
    assert {file.name for file in tmp_path.iterdir()} == {"x.heat", "x.heat.1", "x.heat.2"}
    for file in tmp_path.iterdir():
        assert read_heat(file).meta.pool_blocks > 0


def test_a_pool_that_is_still_cold_does_not_replace_the_file(
    heated: tuple[Cluster, str, Path], tmp_path: Path
) -> None:
    cluster, conninfo, _ = heated
    empty_caches(cluster)
    touch(conninfo, "hot", range(800))
    touch(conninfo, "cold", range(400))
    mine = tmp_path / "x.heat"
    heat = saved(conninfo, mine)
    cluster.restart()
    with opened(conninfo) as access:
        result = save(access, mine)
    assert "was restarted" in (result.skipped or "")
    assert np.array_equal(read_heat(mine).block, heat.block)


def test_without_pg_prewarm_it_says_how_to_get_it(heated: tuple[Cluster, str, Path], tmp_path: Path) -> None:
    cluster, _, _ = heated
    with altered(cluster, "bare", "DROP EXTENSION pg_prewarm") as conninfo:
        with psycopg.connect(conninfo) as connection:
            connection.execute("SELECT count(*) FROM cold")
        saved(conninfo, tmp_path / "x.heat")
        empty_caches(cluster)
        with pytest.raises(PgsweepError, match="nothing could be read") as caught:
            restored(conninfo, tmp_path / "x.heat", into="pool")
    assert "pg_prewarm does not exist in database `bare`" in (caught.value.cause or "")
    assert "CREATE EXTENSION pg_prewarm" in (caught.value.hint or "")


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
                target=lambda: results.append(restored(there, path, rate_bytes_per_second=2 << 20))
            )
            thread.start()
            wait_until(lambda: len(usage(there, "hot")) > 40, 20)
            with psycopg.connect(standby.conninfo(), autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            thread.join()
            assert results[0].after is not None
            assert results[0].after.resident > 0.99
