"""What a pool holds, and the filling of an empty one with what is likely to lie there.

Only blocks of main forks of the workload's own database: the catalogs come by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import psycopg
from numpy.typing import NDArray

from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.pgbench import DATABASE
from pgsweep.units import BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class PoolContent:
    """Blocks of main forks that a pool held: what to fill the next, larger pool with first.

    Attributes:
        blocks: block numbers by relation (schema-qualified name).
        usage_counts: theirs, in the same order.
    """

    blocks: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    usage_counts: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def count(self) -> int:
        """Return how many blocks they are."""
        return sum(len(blocks) for blocks in self.blocks.values())


def unused_buffers(connection: psycopg.Connection) -> int:
    """Return how many buffers hold nothing (the session's database has pg_buffercache)."""
    row = connection.execute("SELECT count(*) FROM pg_buffercache WHERE relfilenode IS NULL").fetchone()
    assert row is not None
    return int(row[0])


def pool_content(cluster: Cluster) -> PoolContent:
    """Return which blocks of the workload's tables and indexes are in the pool, and how often used."""
    with psycopg.connect(cluster.conninfo(DATABASE)) as connection:
        rows = connection.execute(
            "SELECT format('%I.%I', n.nspname, c.relname),"
            "   array_agg(b.relblocknumber ORDER BY b.bufferid), array_agg(b.usagecount ORDER BY b.bufferid)"
            " FROM pg_buffercache b"
            " JOIN pg_class c ON b.relfilenode = pg_relation_filenode(c.oid)"
            " JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE b.relforknumber = 0 AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
            "   AND b.reldatabase = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " GROUP BY 1"
        ).fetchall()
    return PoolContent(
        blocks={name: np.array(blocks, dtype=np.int64) for name, blocks, _ in rows},
        usage_counts={name: np.array(counts, dtype=np.int64) for name, _, counts in rows},
    )


def fill_pool(
    cluster: Cluster,
    blocks: int,
    carried: PoolContent,
    seed: int,
    *,
    not_drawn: Callable[[str], bool] | None = None,
) -> None:
    """Fill an empty pool: carried blocks first, the rest with blocks drawn from the whole database.

    A carried block is loaded as often as its usage count says (once at least), a drawn one once.

    Args:
        cluster: just started.
        blocks: size of the pool.
        carried: what to load for certain, as far as it fits.
        seed: of the draw.
        not_drawn: says of a relation's name whether its blocks are carried only; without, all are drawn from.
    """
    random = np.random.default_rng(seed)
    with psycopg.connect(cluster.conninfo(DATABASE), autocommit=True) as connection:
        relations = connection.execute(
            "SELECT format('%%I.%%I', n.nspname, c.relname), pg_relation_size(c.oid) / %s"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'i', 'm', 't') AND c.relpersistence = 'p'"
            "   AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1",
            (BLOCK_BYTES,),
        ).fetchall()
        names = [str(name) for name, _ in relations]
        sizes = np.array([int(size) for _, size in relations], dtype=np.int64)
        # Every block of the database gets a number: its relation's first number and the block.
        first = np.concatenate([[0], np.cumsum(sizes)])
        absent = np.ones(first[-1], dtype=bool)
        loads = np.zeros(first[-1], dtype=np.int64)
        for number, name in enumerate(names):
            held = carried.blocks.get(name, np.zeros(0, dtype=np.int64))
            inside = held < sizes[number]
            absent[first[number] + held[inside]] = False
            if inside.any():
                loads[first[number] + held[inside]] = np.maximum(carried.usage_counts[name][inside], 1)
        for number, name in enumerate(names):
            if not_drawn is not None and not_drawn(name):
                absent[first[number] : first[number + 1]] = False
        rest = np.flatnonzero(absent)
        room = min(max(blocks - int((loads > 0).sum()), 0), len(rest))
        loads[random.choice(rest, room, replace=False)] = 1
        for number, name in enumerate(names):
            wanted = loads[first[number] : first[number + 1]]
            for times in range(1, int(wanted.max(initial=0)) + 1):
                chosen = np.flatnonzero(wanted >= times).tolist()
                connection.execute(
                    "SELECT sum(pg_prewarm(%s::regclass, 'buffer', 'main', b, b))"
                    " FROM unnest(%s::bigint[]) AS b",
                    (name, chosen),
                )
