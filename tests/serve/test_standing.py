"""How a server stands with its host: huge pages, the room below a limit, settings that wait for a restart."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psycopg
import pytest

from pgsweep.host.hugepages import HugePages, read_huge_pages
from pgsweep.memory.processes import look, opened
from pgsweep.pg.catalog.manager import Source
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.memory import MemoryResult
from pgsweep.records.serve import ServeStanding
from pgsweep.serve.standing import pages_missing, pages_wanted, standing_of
from tests.fix_process import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.create(None, {"shared_buffers": "24MB", "huge_pages": "try"}) as found:
        yield found


def _seen(cluster: Cluster) -> MemoryResult:
    with opened(cluster.conninfo()) as local:
        return look(local)


def _standing(cluster: Cluster, seen: MemoryResult | None) -> ServeStanding:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        return standing_of(session, seen)


def test_settings_that_wait_for_a_restart_are_named(cluster: Cluster) -> None:
    assert _standing(cluster, None).pending_restart == []
    with psycopg.connect(cluster.conninfo(), autocommit=True) as session:
        try:
            session.execute("ALTER SYSTEM SET shared_buffers = '32MB'")
            session.execute("ALTER SYSTEM SET max_connections = 33")
            session.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: _standing(cluster, None).pending_restart == ["max_connections", "shared_buffers"],
                30,
                "the new values are not seen",
            )
        finally:
            session.execute("ALTER SYSTEM RESET ALL")
            session.execute("SELECT pg_reload_conf()")
    wait_until(lambda: not _standing(cluster, None).pending_restart, 30, "they wait still")


def test_huge_pages_are_counted_by_the_server_and_by_the_kernel(cluster: Cluster) -> None:
    pool = read_huge_pages()
    if pool is None:
        pytest.skip("the kernel has no huge pages")
    with psycopg.connect(cluster.conninfo()) as session:
        row = session.execute("SHOW shared_memory_size_in_huge_pages").fetchone()
    assert row is not None
    seen = _seen(cluster)
    found = _standing(cluster, seen)
    assert found.huge_pages_wanted == int(row[0]) > 12
    if seen.huge_pages:
        assert (found.huge_pages_used, found.huge_pages_missing) == (found.huge_pages_wanted, 0)
    else:
        assert found.huge_pages_used == 0
        # Others may take or give back pages meanwhile.
        assert found.huge_pages_missing is not None
        if pool.total == 0:
            # `try` without any set aside is how a server comes: that is no alert.
            assert found.huge_pages_missing == 0
    elsewhere = _standing(cluster, None)
    assert (elsewhere.huge_pages_used, elsewhere.huge_pages_missing) == (None, None)


def test_a_server_that_wants_none_lacks_none() -> None:
    def sources(**values: str) -> dict[str, Source]:
        return {name: Source(value, "default", None, False) for name, value in values.items()}

    number = {"shared_memory_size_in_huge_pages": "70"}
    assert pages_wanted(sources(huge_pages="try", **number)) == 70
    assert pages_wanted(sources(huge_pages="off", **number)) == 0
    assert pages_wanted(sources(huge_pages="on", shared_memory_type="sysv", **number)) == 0
    assert pages_wanted(sources(huge_pages="try")) is None
    # With another size than is built in (arm64, some sizes) it says -1.
    assert pages_wanted(sources(huge_pages="try", shared_memory_size_in_huge_pages="-1")) is None


@pytest.mark.parametrize(
    ("setting", "total", "free", "missing"),
    [("try", 0, 0, 0), ("on", 0, 0, 70), ("try", 40, 30, 40), ("try", 40, -5, 70), ("try", 90, 80, 0)],
)
def test_pages_are_missing_where_some_are_meant(setting: str, total: int, free: int, missing: int) -> None:
    sources = {"huge_pages": Source(setting, "default", None, False)}
    assert pages_missing(sources, 70, HugePages(total, free, 2 << 20), pays=True) == missing
    sized = sources | {"huge_page_size": Source("1048576", "configuration file", None, False)}
    assert pages_missing(sized, 70, HugePages(total, free, 2 << 20), pays=True) == 70
    for given in (sources, sized):
        few = pages_missing(given, 70, HugePages(total, free, 2 << 20), pays=False)
        assert few == (0 if setting == "try" else missing if given is sources else 70)


@pytest.mark.skipif(os.geteuid() != 0, reason="memory cgroups need root")
def test_the_room_below_the_limit_is_what_the_kernel_leaves() -> None:
    try:
        limited = Cluster.create(None, {"shared_buffers": "16MB"}, memory_limit_bytes=300 << 20)
    except Exception as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    with limited:
        found = _standing(limited, _seen(limited))
    assert found.memory_limit_bytes == 300 << 20
    assert found.memory_room_bytes is not None
    assert 100 << 20 < found.memory_room_bytes < 300 << 20
