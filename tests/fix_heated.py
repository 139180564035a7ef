"""A shop whose heat was saved: relations of several kinds, blocks at all usage counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.heat import HeatRelation, WarmCheckResult, WarmRestoreResult
from pgsweep.residency.access import opened
from pgsweep.testbed.cold import empty_caches
from pgsweep.warm.heat.check import check
from pgsweep.warm.heat.file import SavedHeat, read_heat
from pgsweep.warm.heat.restore import restore
from pgsweep.warm.heat.restore_plan import RestoreOptions
from pgsweep.warm.heat.save import save

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


def saved(conninfo: str, path: Path) -> SavedHeat:
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
