from __future__ import annotations

import mmap
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgsweep._native import PoolReader, page_cache
from pgsweep.cache.footprint import footprint
from pgsweep.cache.inspect import look
from pgsweep.errors import ConnectionFailed, MissingAbility, UsageError
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.cache import CacheRelation, CacheResult
from pgsweep.records.rollup import BY, is_catalog, roll_up
from pgsweep.residency.access import Access, opened
from pgsweep.residency.names import Names, read_names
from pgsweep.testbed.cold import drop_from_page_cache
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import to_text
from pgsweep.ui.views.cache import cache_page, cache_text
from pgsweep.units import format_count
from tests.fix_cli import PGSWEEP, run
from tests.fix_cluster import answers, own_database
from tests.fix_process import needs_root, wait_until
from tests.fix_results import cache_relation, cache_result
from tests.fix_screen import screen_of
from tests.fix_standby import PRIMARY, standby_of

BLOCK = 8192
ODD = 'Ünïcode "q.uote"\nnew line 表'

_TRUTH = """
SELECT n.nspname, c.relname, count(*), count(*) FILTER (WHERE b.isdirty),
       array[count(*) FILTER (WHERE usagecount = 0), count(*) FILTER (WHERE usagecount = 1),
             count(*) FILTER (WHERE usagecount = 2), count(*) FILTER (WHERE usagecount = 3),
             count(*) FILTER (WHERE usagecount = 4), count(*) FILTER (WHERE usagecount = 5)]
FROM pg_buffercache AS b
JOIN pg_class AS c ON pg_relation_filenode(c.oid) = b.relfilenode
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND n.nspname NOT IN ('pg_catalog', 'information_schema')
GROUP BY 1, 2
"""


@pytest.fixture
def shop(server: Cluster) -> Iterator[str]:
    """A database with every kind of relation, in which nothing happens any more."""
    with own_database(server, "cached") as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache; CREATE EXTENSION pg_prewarm")
            inside.execute("CREATE TABLE plain (id int PRIMARY KEY, filler text)")
            inside.execute("INSERT INTO plain SELECT g, repeat('x', 500) FROM generate_series(1, 8000) g")
            inside.execute("CREATE TABLE long (id int, body text)")
            inside.execute("ALTER TABLE long ALTER body SET STORAGE EXTERNAL")
            inside.execute("INSERT INTO long SELECT g, repeat('y', 9000) FROM generate_series(1, 50) g")
            inside.execute("CREATE TABLE parts (at int) PARTITION BY RANGE (at)")
            inside.execute("CREATE TABLE parts_a PARTITION OF parts FOR VALUES FROM (0) TO (5000)")
            inside.execute("CREATE TABLE parts_b PARTITION OF parts FOR VALUES FROM (5000) TO (9999)")
            inside.execute("CREATE INDEX ON parts (at); INSERT INTO parts SELECT generate_series(1, 9000)")
            inside.execute("CREATE UNLOGGED TABLE unlogged AS SELECT generate_series(1, 3000) AS n")
            inside.execute("CREATE TABLE empty (n int)")
            inside.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(ODD)))
            inside.execute(
                sql.SQL("CREATE TABLE {} AS SELECT generate_series(1, 3000) AS n").format(
                    sql.Identifier(ODD, ODD)
                )
            )
            inside.execute("VACUUM ANALYZE")
            inside.execute("CHECKPOINT")
            # Some clean, some dirty, some hot.
            inside.execute("UPDATE plain SET filler = repeat('z', 500) WHERE id < 100")
            for _ in range(4):
                inside.execute("SELECT count(*) FROM parts_a").fetchone()
        yield conninfo


def looked(conninfo: str, *, source: str = "auto", **arguments: object) -> CacheResult:
    with opened(conninfo, source) as access:  # type: ignore[arg-type]
        return look(access, **arguments)  # type: ignore[arg-type]


def by_name(result: CacheResult) -> dict[tuple[str, str], CacheRelation]:
    return {(row.schema, row.relation): row for row in result.relations if row.database == result.database}


@pytest.mark.parametrize("source", ["peek", "sql"])
def test_the_pool_is_what_pg_buffercache_says(shop: str, source: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        before = {tuple(row[:2]): row[3] for row in connection.execute(_TRUTH).fetchall()}
        result = looked(shop, source=source)
        assert result.pool_source == source
        rows = connection.execute(_TRUTH).fetchall()
        [buffers] = connection.execute("SELECT count(*) FROM pg_buffercache").fetchone() or (0,)
    found = by_name(result)
    assert len(rows) > 10
    for schema, relation, count, dirty, usage_counts in rows:
        row = found[schema, relation]
        assert row.shared_buffers_bytes == count * BLOCK, relation
        # The server may write pages at any time, and reading them may set hint bits.
        fewest, most = sorted((before.get((schema, relation), 0), dirty))
        assert fewest * BLOCK <= row.dirty_bytes <= most * BLOCK, relation
        assert row.usage_counts == usage_counts, relation
    assert (ODD, ODD) in found
    assert sum(row.dirty_bytes for row in found.values()) > 0
    assert result.pool.size_bytes == buffers * BLOCK
    assert result.pool.used_bytes + result.pool.unused_bytes == result.pool.size_bytes
    assert sum(result.pool.usage_counts) * BLOCK == result.pool.used_bytes
    assert result.total.shared_buffers_bytes == result.pool.used_bytes


def test_all_bytes_are_somewhere_and_the_overlap_is_exact(shop: str, server: Cluster) -> None:
    if not os.access(server.data_directory, os.R_OK | os.X_OK):
        pytest.skip("needs the server's user or root")
    with psycopg.connect(shop, autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_relation_filepath('plain'), pg_relation_size('plain') / 8192"
        ).fetchone()
        assert row is not None
        path, blocks = server.data_directory / row[0], row[1]
        connection.execute("CHECKPOINT")
        drop_from_page_cache(path)
        # Reading every third stretch of 11 blocks through the operating system; readahead may add to it.
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            for first in range(0, blocks, 33):
                os.pread(file.fileno(), 11 * BLOCK + 4096, first * BLOCK)
        # A kernel short of memory may take a page between two looks; then both are taken again.
        for _ in range(5):
            seen = page_cache([str(path)], maps=True)["cached_pages"]
            before = pooled_blocks(connection)
            result = looked(shop)
            after = pooled_blocks(connection)
            block_map = looked(shop, map_of="plain", map_cells=blocks).map
            later = pooled_blocks(connection)
            if np.array_equal(seen, page_cache([str(path)], maps=True)["cached_pages"]):
                break
    plain = by_name(result)["public", "plain"]
    assert result.page_cache_method is not None
    assert plain.page_cache_bytes is not None
    assert plain.both_bytes is not None
    assert plain.neither_bytes is not None
    resident = {block for block, pages in enumerate(seen.tolist()) if pages == 2}
    half = {block for block, pages in enumerate(seen.tolist()) if pages == 1}
    assert half, "no block is resident by half: the test shows less than it should"
    assert 0 < len(resident) < blocks
    # The other forks are small, and wholly in the page cache; they may lie in the pool or not.
    forks_bytes = (plain.size_bytes or 0) - blocks * BLOCK
    assert plain.page_cache_bytes == int(seen.sum()) * mmap.PAGESIZE + forks_bytes
    # Looking reads catalogs, for which the full pool gives up blocks of the table now and then.
    always, ever = before & after, before | after
    assert len(ever) - len(always) <= 10
    assert len(always & resident) * BLOCK <= plain.both_bytes <= len(ever & resident) * BLOCK + forks_bytes
    pages = [
        sum(2 - int(seen[block]) for block in range(blocks) if block not in pool) for pool in (ever, always)
    ]
    assert pages[0] * mmap.PAGESIZE <= plain.neither_bytes <= pages[1] * mmap.PAGESIZE

    assert block_map is not None
    always, ever = after & later, after | later
    both = {block for block, count in enumerate(block_map.both) if count}
    assert always & resident <= both <= ever & resident
    pool_only = {block for block, count in enumerate(block_map.pool_only) if count}
    assert always - resident <= pool_only <= ever - resident
    page_cache_only = {block for block, count in enumerate(block_map.page_cache_only) if count}
    assert resident - ever <= page_cache_only <= resident - always
    assert blocks - len(ever | resident) <= sum(block_map.neither) <= blocks - len(always | resident)


def pooled_blocks(connection: psycopg.Connection) -> set[int]:
    rows = connection.execute(
        "SELECT relblocknumber FROM pg_buffercache"
        " WHERE relforknumber = 0 AND relfilenode = pg_relation_filenode('plain')"
    )
    return {block for (block,) in rows}


@pytest.mark.parametrize("by", BY)
def test_rolled_up_rows_have_the_same_sums(shop: str, by: str) -> None:
    result = looked(shop)
    rows = roll_up(result.relations, by)
    for field in ("size_bytes", "shared_buffers_bytes", "page_cache_bytes", "both_bytes", "dirty_bytes"):
        assert sum(getattr(row, field) for row in rows) == getattr(result.total, field)
    assert sum(row.relations for row in rows) == result.total.relations
    names = {(row.schema, row.relation) for row in rows if row.database == "cached"}
    if by == "table":
        assert ("public", "plain") in names
        assert ("public", "plain_pkey") not in names
        assert not [name for name in names if name[0] == "pg_toast"]
        long = next(row for row in rows if row.relation == "long")
        assert (long.size_bytes or 0) > 50 * 9000
    if by == "partition-root":
        assert ("public", "parts") in names
        assert ("public", "parts_a") not in names
    if by == "index":
        assert ("public", "plain_pkey") in names
        assert ("public", "plain") not in names


def test_what_a_role_may_not_enter_keeps_its_buffers_without_names(shop: str, server: Cluster) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE ROLE one_only LOGIN IN ROLE pg_monitor")
        connection.execute("REVOKE CONNECT ON DATABASE cached FROM PUBLIC")
        try:
            conninfo = psycopg.conninfo.make_conninfo(server.conninfo("postgres"), user="one_only")
            result = looked(conninfo, source="sql")
        finally:
            connection.execute("DROP ROLE one_only")
    [row] = [row for row in result.relations if row.database == "cached"]
    assert row.kind == "unknown"
    assert row.shared_buffers_bytes > 100 * BLOCK
    assert any("cached" in entry.what and "may not connect" in entry.why for entry in result.missing)


def test_a_relation_made_after_the_names_were_read_is_named(
    shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rewrite_after(access: Access, wanted: list[int], *, sizes: bool) -> Names:
        names = read_names(access, wanted, sizes=sizes)
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute("VACUUM FULL plain")
            connection.execute("DROP TABLE unlogged")
        return names

    monkeypatch.setattr("pgsweep.cache.inspect.read_names", rewrite_after)
    result = looked(shop)
    assert by_name(result)["public", "plain"].shared_buffers_bytes > 0
    assert by_name(result)["public", "plain"].size_bytes
    # Its first file is there until the next checkpoint, empty.
    assert ("public", "unlogged") not in by_name(result)


def test_empty_files_of_dropped_tables_are_no_row(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CREATE TABLE gone AS SELECT 1 AS id")
        # Its file stays until the next checkpoint.
        connection.execute("DROP TABLE gone")
    unknown = [row for row in looked(shop).relations if row.kind == "unknown"]
    assert all(row.size_bytes or row.shared_buffers_bytes for row in unknown)


def test_the_largest_rows_and_all_catalogs_in_one_with_their_whole_sum(shop: str) -> None:
    with opened(shop) as access:
        every, few = look(access), look(access, top=2)
    catalogs = [row for row in every.relations if is_catalog(row)]
    assert len(few.relations) == 3
    folded = few.relations[-1]
    assert folded.relation == f"(system catalogs: {format_count(len(catalogs))} relations)"
    assert folded.size_bytes == sum(row.size_bytes or 0 for row in catalogs)
    assert few.relations_found == len(every.relations) - len(catalogs) + 1
    text = to_text(few, Terminal())
    assert f"... and {few.relations_found - 3} rows more" in text


def test_names_and_rows_are_for_people(shop: str) -> None:
    def said(*arguments: str) -> str:
        done = run("cache", shop, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = said("--all")
    assert "\nlong (TOAST) " in text
    assert "pg_toast_" not in text
    by_index = said("--by", "index", "--all")
    assert "\nlong (TOAST index) " in by_index
    assert "\n(all but indexes) " in by_index
    assert by_index.count("\n(all but indexes) (shared by all databases) ") == 1
    assert "pg_toast_" not in by_index
    names = [line.split("  ")[0] for line in said("--by", "schema", "--all").splitlines()]
    assert names.count("pg_catalog") == 1
    assert "pg_toast" not in names, "TOAST belongs to the schema of its table"
    assert "pg_catalog (shared by all databases)" in names
    with psycopg.connect(shop, autocommit=True) as connection:
        toast = connection.execute(
            "SELECT reltoastrelid::regclass::text FROM pg_class WHERE oid = 'long'::regclass"
        ).fetchone()
    assert toast is not None
    assert "\nlong (TOAST): " in said("--map", toast[0])
    blocks = said("--map", "plain")
    [about] = re.findall(r"plain: [\d ]+ blocks, the first on the left, (.*) a character", blocks)
    assert about in ("one", "about 1", "about 2"), about


def test_on_a_narrow_terminal_the_bytes_stay() -> None:
    rows = [cache_relation(f"customer_orders_2024_{month:02}_partition_of_europe") for month in range(1, 31)]
    result = cache_result(rows)
    text = to_text(result, Terminal(width=60, interactive=True))
    table = text.split("\n\n")[2].splitlines()
    assert all(len(line) <= 60 for line in table), table
    head = " ".join(table[:2])
    for word in ("in shared", "in page", "size"):
        assert word in head
    names = [line.split("  ")[0] for line in table[3:23]]
    assert len(set(names)) == 20, "no two look the same"
    assert "... and 10 rows more; all of them: --all" in text


def test_a_map_needs_a_relation_with_blocks(shop: str) -> None:
    with pytest.raises(UsageError, match="no relation `nothing`"):
        looked(shop, map_of="nothing")
    with pytest.raises(UsageError, match="no blocks of its own"):
        looked(shop, map_of="parts")
    empty = looked(shop, map_of="empty").map
    assert empty is not None
    assert (empty.blocks, empty.both) == (0, [])
    odd = looked(shop, map_of='"{0}"."{0}"'.format(ODD.replace('"', '""'))).map
    assert odd is not None
    assert odd.relation == ODD


def test_tablespaces_and_the_smallest_pool(tmp_path: Path) -> None:
    with Cluster.create(settings={"shared_buffers": "16MB", "autovacuum": "off"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        place = cluster.run_directory / "elsewhere"
        place.mkdir()
        os.chown(place, *(getattr(cluster.data_directory.stat(), name) for name in ("st_uid", "st_gid")))
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE elsewhere LOCATION '{place}'".encode())
            connection.execute("CREATE TABLE moved TABLESPACE elsewhere AS SELECT generate_series(1, 9000)")
            connection.execute("CHECKPOINT")
            [size] = connection.execute("SELECT pg_table_size('moved')").fetchone() or (0,)
        cluster.restart({"shared_buffers": "128kB"})
        for source in ("peek", "sql"):
            result = looked(cluster.conninfo(), source=source)
            assert result.pool.size_bytes == 16 * BLOCK
            moved = by_name(result)["public", "moved"]
            assert moved.size_bytes == size
            assert moved.page_cache_bytes is not None
            assert moved.page_cache_bytes + (moved.neither_bytes or 0) >= size - 16 * BLOCK
        cluster.stop()
        with pytest.raises(ConnectionFailed):
            looked(cluster.conninfo())


def test_from_elsewhere_only_the_pool_is_seen(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    settings = {"shared_buffers": "16MB", "autovacuum": "off", "listen_addresses": "127.0.0.45"}
    with Cluster.create(settings=settings) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        said = subprocess.run(
            [
                *("setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"),
                *(PGSWEEP, "cache", "--json"),
                *("-h", "127.0.0.45", "-U", "postgres", "-d", "postgres"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, said.stderr
        result = msgspec.json.decode(said.stdout, type=CacheResult)
        assert result.pool_source == "sql"
        assert result.page_cache_method is None
        assert result.total.page_cache_bytes is None
        assert result.total.both_bytes is None
        assert [entry.what for entry in result.missing if "database" not in entry.what] == ["page cache"]
        assert result.pool.used_bytes > 0


@pytest.mark.parametrize("damage", ["names", "half", "nothing"])
def test_a_damaged_snapshot_is_not_believed(
    wheel18: Cluster, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """As of a server whose descriptors have their numbers where they were, and another state beside."""

    class Damaged:
        def __init__(self, postmaster_pid: int, version_num: int, *, start_time: int | None) -> None:
            self._reader = PoolReader(postmaster_pid, version_num, start_time=start_time)

        def read(self) -> object:
            pool = self._reader.read()
            if damage == "names":
                return {**pool, "db": np.full(len(pool["db"]), 123456789, dtype=np.uint32)}
            kept = len(pool["frame"]) // 2 if damage == "half" else 0
            columns = {name: v[:kept] for name, v in pool.items() if isinstance(v, np.ndarray)}
            return {**pool, **columns, "used": kept}

    with psycopg.connect(wheel18.conninfo()) as connection:
        # So much that half of it is less than the server counts, for all that is going on.
        connection.execute("CREATE TABLE filling AS SELECT repeat('x', 1800) FROM generate_series(1, 4000)")
        connection.execute("SELECT count(*) FROM filling")
    monkeypatch.setattr("pgsweep.residency.access.PoolReader", Damaged)
    with pytest.raises(MissingAbility, match="does not show what the server says"):
        looked(wheel18.conninfo(), source="peek")
    result = looked(wheel18.conninfo(), source="auto")
    assert result.pool_source == "sql"
    assert [entry for entry in result.missing if entry.what == "peek"]
    with psycopg.connect(wheel18.conninfo()) as connection:
        connection.execute("DROP TABLE filling")


def test_a_standby_in_recovery() -> None:
    with Cluster.create(settings=PRIMARY) as primary:
        with psycopg.connect(primary.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
            connection.execute("CREATE TABLE copied AS SELECT generate_series(1, 20000)")
        with standby_of(primary) as standby:
            with psycopg.connect(standby.conninfo(), autocommit=True) as connection:
                [size] = connection.execute("SELECT pg_table_size('copied')").fetchone() or (0,)
                connection.execute("SELECT count(*) FROM copied").fetchone()
            for source in ("peek", "sql"):
                result = looked(standby.conninfo(), source=source)
                copied = by_name(result)["public", "copied"]
                assert copied.size_bytes == size
                assert copied.shared_buffers_bytes > 0
                assert copied.page_cache_bytes
            with pytest.raises(MissingAbility, match="the server is a standby"):
                footprint(standby.conninfo(), "SELECT 1", allow_writes=True)


def test_a_server_in_a_container() -> None:
    """Other mount and process namespaces: other paths, other process ids, the same answer."""
    if os.geteuid() != 0:
        pytest.skip("making namespaces needs root")
    if subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False).returncode:
        pytest.skip("this kernel lets nobody make namespaces")
    with Cluster.create(settings={"shared_buffers": "16MB", "autovacuum": "off"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            place = cluster.run_directory / "elsewhere"
            place.mkdir()
            owner = cluster.data_directory.stat()
            os.chown(place, owner.st_uid, owner.st_gid)
            connection.execute(f"CREATE TABLESPACE elsewhere LOCATION '{place}'".encode())
            connection.execute("CREATE TABLE far TABLESPACE elsewhere AS SELECT generate_series(1, 9000)")
            connection.execute("CREATE TABLE near AS SELECT generate_series(1, 9000)")
        cluster.stop()
        # Inside, the data directory and the tablespace have names that do not exist, or lie empty, outside.
        inside = cluster.run_directory / "inside"
        inside.mkdir()
        link = next((cluster.data_directory / "pg_tblspc").iterdir())
        target = link.readlink()
        link.unlink()
        link.symlink_to(inside / "space")
        os.chown(link, owner.st_uid, owner.st_gid, follow_symlinks=False)
        script = (
            f"mount -t tmpfs -o mode=755 tmpfs {inside} && mkdir {inside}/data {inside}/space && "
            f"mount --bind {cluster.data_directory} {inside}/data && mount --bind {target} {inside}/space && "
            f"exec setpriv --reuid={owner.st_uid} --regid={owner.st_gid} --clear-groups "
            f"{cluster.bindir}/postgres -D {inside}/data"
        )
        server = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: answers(cluster.conninfo()), seconds=20)
            result = looked(cluster.conninfo(), source="peek")
        finally:
            server.kill()
            server.wait()
        found = by_name(result)
        assert not [entry for entry in result.missing if "database" not in entry.what]
        for name in ("near", "far"):
            assert (found["public", name].size_bytes or 0) > 9000 * 28
            assert found["public", name].page_cache_bytes


@needs_root
def test_a_relation_is_evicted_from_both_caches_on_request(shop: str, server: Cluster) -> None:
    def of_plain(*arguments: str) -> tuple[int, str, int, int]:
        done = run("cache", shop, "--json", "--this-database", *arguments)
        if done.returncode:
            return done.returncode, done.stderr, 0, 0
        result = msgspec.json.decode(done.stdout, type=CacheResult)
        [row] = [row for row in result.relations if (row.schema, row.relation) == ("public", "plain")]
        return 0, done.stderr, row.shared_buffers_bytes, row.page_cache_bytes or 0

    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        connection.execute("SELECT pg_prewarm('plain')")
    assert min(of_plain()[2:]) > 1 << 20
    code, err, _, _ = of_plain("--evict", "plain")
    assert code == 2, "nobody is there to be asked"
    assert "--yes" in err
    assert run("cache", shop, "--dry-run").returncode == 2
    plan = run("cache", shop, "--evict", "plain", "--dry-run")
    if server.version_num >= 170000:
        statement, *calls = plan.stdout.rstrip("\n").split("\nposix_fadvise(")
        assert "pg_buffercache_evict" in statement
        assert statement.endswith(";")
        assert len(calls) >= 3
        assert all(call.endswith(", 0, 0, POSIX_FADV_DONTNEED)") for call in calls)
        with psycopg.connect(shop) as connection:
            connection.execute(f"EXPLAIN {statement}".encode())
    else:
        note, *calls = plan.stdout.splitlines()
        assert re.fullmatch(
            r"-- PostgreSQL \d+ cannot evict a relation from shared_buffers: its buffers stay", note
        )
        assert len(calls) >= 3
    assert min(of_plain()[2:]) > 1 << 20, "a dry run changes nothing"
    if server.version_num >= 170000:
        with screen_of("cache", shop, "--this-database", "--evict", "plain", columns=200) as screen:
            screen.wait_for("Evict `plain` from the caches of the server at ")
            screen.press("n\n")
            assert screen.wait_end() == 130
        assert min(of_plain()[2:]) > 1 << 20, "the answer was no"
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute("CREATE ROLE looker LOGIN IN ROLE pg_monitor")
            try:
                refused = run("cache", make_conninfo(shop, user="looker"), "--evict", "plain", "--yes")
            finally:
                connection.execute("DROP ROLE looker")
        assert refused.returncode == 4
        assert "connect as a superuser: -U postgres" in refused.stderr
        assert "ALTER EXTENSION" not in refused.stderr
    code, err, pooled, cached = of_plain("--evict", "plain", "--yes")
    assert code == 0, err
    if server.version_num < 170000:
        # What is possible is done, and the rest named.
        assert "`plain`: its buffers stay in shared_buffers, as PostgreSQL" in err
        assert re.search(r"; the page cache was asked to drop [3-9] files", err), err
        assert pooled > 1 << 20
        assert cached < 1 << 16
        return
    assert re.search(r"evicted `plain`: \d+ buffers; the page cache was asked to drop [3-9] files", err), err
    assert pooled == 0
    # A page of the files' maps may be read again by whoever comes by.
    assert cached < 1 << 16
    assert of_plain("--evict", "absent", "--yes")[0] == 2


def test_a_map_comes_first(shop: str) -> None:
    """It is what was asked for; the table of all relations may be long."""
    result = looked(shop, map_of="plain", map_cells=16)
    text = cache_text(result, Terminal())
    assert text.index("the first on the left") < text.index("shared_buffers ") < text.index("total")
    assert cache_page(result).sections[0].ident == "map"
