"""A database to warm: tables with indexes and TOAST, partitions, and a role that owns nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.cold import drop_from_page_cache
from pgsweep.warm.block_ranges import BlockRange, calls_of
from pgsweep.warm.heat.file import HeatMeta
from pgsweep.warm.outcome import WorkOptions, WorkOutcome, WorkState
from pgsweep.warm.readers import PrewarmReader
from pgsweep.warm.work import Work
from tests.fix_cluster import own_database

BLOCK_BYTES = 8192


@contextmanager
def database_to_warm(cluster: Cluster, name: str = "towarm") -> Iterator[str]:
    """Make the database and a role NAME_reader, and drop both; gives the superuser's conninfo."""
    reader = f"{name}_reader"
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(reader)))
    with own_database(cluster, name) as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_prewarm; CREATE EXTENSION pg_buffercache")
            connection.execute("CREATE TABLE orders (id int PRIMARY KEY, filler text)")
            connection.execute(
                "INSERT INTO orders SELECT g, repeat('x', 500) FROM generate_series(1, 5000) g"
            )
            connection.execute("CREATE TABLE notes (id int, body text)")
            connection.execute("ALTER TABLE notes ALTER body SET STORAGE EXTERNAL")
            connection.execute("INSERT INTO notes SELECT g, repeat('y', 9000) FROM generate_series(1, 40) g")
            connection.execute("CREATE TABLE parts (at int) PARTITION BY RANGE (at)")
            connection.execute("CREATE TABLE parts_a PARTITION OF parts FOR VALUES FROM (0) TO (5000)")
            connection.execute("CREATE TABLE parts_b PARTITION OF parts FOR VALUES FROM (5000) TO (9999)")
            connection.execute(
                "CREATE INDEX ON parts (at); INSERT INTO parts SELECT generate_series(1, 9000)"
            )
            connection.execute("CREATE UNLOGGED TABLE scratch AS SELECT generate_series(1, 3000) AS n")
            connection.execute("CREATE TABLE secret AS SELECT generate_series(1, 3000) AS n")
            connection.execute("CREATE TABLE nothing (n int)")
            connection.execute("VACUUM ANALYZE")
            connection.execute(
                sql.SQL("GRANT SELECT ON orders, notes, parts, parts_a, parts_b TO {}").format(
                    sql.Identifier(reader)
                )
            )
        yield conninfo
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(reader)))


@pytest.fixture(scope="module")
def warm_databases() -> Iterator[Callable[[Cluster], str]]:
    """Gives the database of a cluster that the tests of a module share: none may change it."""
    made: dict[int, str] = {}
    with ExitStack() as closing:

        def conninfo_of(cluster: Cluster) -> str:
            if id(cluster) not in made:
                made[id(cluster)] = closing.enter_context(database_to_warm(cluster))
            return made[id(cluster)]

        yield conninfo_of


@pytest.fixture
def towarm(server: Cluster, warm_databases: Callable[[Cluster], str]) -> str:
    """The shared database of each server in turn."""
    return warm_databases(server)


@pytest.fixture
def fresh(server: Cluster) -> Iterator[str]:
    """A database of its own on each server in turn, to be changed."""
    with database_to_warm(server, "fresh") as conninfo:
        yield conninfo


def as_reader(conninfo: str) -> str:
    """Return the conninfo of the role that owns nothing."""
    return make_conninfo(conninfo, user=f"{conninfo_to_dict(conninfo)['dbname']}_reader")


def piece_of(conninfo: str, name: str, *, fork: str = "main") -> BlockRange:
    """Return the whole main fork of a relation as one piece."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT c.oid::int8, n.nspname, c.relname, current_database(),"
            " pg_relation_size(c.oid, %s) / 8192, c.relkind::text"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s::regclass",
            [fork, name],
        ).fetchone()
    assert row is not None
    oid, schema, relation, database, blocks, kind = row
    return BlockRange(
        database=database,
        oid=oid,
        schema=schema,
        relation=relation,
        kind="index" if kind == "i" else "table",
        fork=fork,
        first_block=0,
        blocks=blocks,
    )


def heat_meta(*, pool_blocks: int = 0, page_cache_blocks: int = 0) -> HeatMeta:
    """Return what a heat file of a server of 18 with a pool of 1 GB says of itself."""
    return HeatMeta(
        pgsweep_version="0.1.0",
        at="2026-01-01T00:00:00.000+00:00",
        server_version_num=180000,
        server_version="18.0",
        system_identifier="7",
        in_recovery=False,
        block_size_bytes=BLOCK_BYTES,
        shared_buffers_blocks=1 << 17,
        pool_source="peek",
        sees_page_cache=True,
        pool_blocks=pool_blocks,
        page_cache_blocks=page_cache_blocks,
        nameless_blocks=0,
    )


def evict_all(conninfo: str) -> None:
    """Empty the buffer pool of everything that is not pinned, by reading through it other pages twice."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT setting::int FROM pg_settings WHERE name = 'shared_buffers'"
        ).fetchone()
        assert row is not None
        connection.execute("DROP TABLE IF EXISTS flood; CREATE TABLE flood (n int, filler text)")
        connection.execute("ALTER TABLE flood SET (fillfactor = 10)")
        connection.execute(
            "INSERT INTO flood SELECT g, repeat('f', 700) FROM generate_series(1, %s::int) g", row
        )
        connection.execute("CHECKPOINT")
        for _ in range(7):
            connection.execute("SELECT pg_prewarm('flood')")
        connection.execute("DROP TABLE flood")


def resident_blocks(conninfo: str, name: str) -> int:
    """Return how many blocks of a relation's main fork are in the pool."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_buffercache WHERE relfilenode = pg_relation_filenode(%s::regclass)"
            " AND relforknumber = 0",
            [name],
        ).fetchone()
    assert row is not None
    return int(row[0])


def drop_files(cluster: Cluster, conninfo: str, *names: str) -> None:
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        for name in names:
            row = connection.execute("SELECT pg_relation_filepath(%s::regclass)", [name]).fetchone()
            assert row is not None
            drop_from_page_cache(Path(cluster.data_directory) / row[0])


def carry_out(
    conninfo: str,
    pieces: list[BlockRange],
    *,
    stop: threading.Event | None = None,
    progress: Callable[[WorkState], None] | None = None,
    **options: float,
) -> WorkOutcome:
    chosen = msgspec.convert(options, WorkOptions)
    work = Work(
        calls_of(pieces, chosen.call_blocks),
        lambda: PrewarmReader(conninfo, "buffer", server_started=work.server_started),
        chosen,
    )
    return work.run(stop or threading.Event(), progress)
