"""Replays a sequence of page accesses through the buffer pool of a real, private PostgreSQL.

The pages are blocks of two tables whose files are holes: made by extending the empty files while the server
is down, so that they cost no disk and no time. A block of zeros is a valid, empty page, checksums or not. An
access is a fetch by TID: the server pins that one block through shared_buffers as for any other read, finds
no row on it and goes on. A nested loop over an array of TIDs keeps their order. What was a hit and what a
miss is counted by the server itself, per table and transaction (pg_stat_get_xact_blocks_fetched and _hit).

Why two tables: accesses whose outcome must not be counted (other databases', warming up) still move the pool.

Cannot be reproduced this way: rings. Accesses by a sequential scan, a bulk load or vacuum are plain ones
here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import psycopg
from numpy.typing import NDArray

from pgsweep.errors import ClusterError
from pgsweep.host.machine import memory_bytes
from pgsweep.pg.private.cluster import Cluster
from pgsweep.regular import open_of
from pgsweep.units import BLOCK_BYTES, format_bytes

Pages = NDArray[np.uint32] | NDArray[np.int64]

_SEGMENT_BLOCKS = 131_072  # a relation's file is divided at 1 GB (RELSEG_SIZE)
_BATCH_ACCESSES = 50_000
_LARGEST_SHARE_OF_MEMORY = 0.75
_SETTINGS = {
    "max_connections": "10",
    "autovacuum": "off",
    "huge_pages": "off",
    "max_parallel_workers": "0",
    "jit": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
}
_COUNTED_ONLY = "SELECT count(*) FROM unnest(%s::tid[]) AS a(tid) JOIN counted ON counted.ctid = a.tid"
_BOTH = (
    "SELECT count(*) FROM unnest(%s::tid[], %s::bool[]) AS a(tid, counts) CROSS JOIN LATERAL ("
    " SELECT 1 FROM counted WHERE a.counts AND counted.ctid = a.tid"
    " UNION ALL SELECT 1 FROM other WHERE NOT a.counts AND other.ctid = a.tid) AS page"
)
_OWN = "SELECT bufferid - 1, usagecount FROM pg_buffercache WHERE relfilenode IS NOT NULL ORDER BY bufferid"
_COUNTS = "SELECT pg_stat_get_xact_blocks_fetched(oid), pg_stat_get_xact_blocks_hit(oid) FROM pg_class"


@dataclass(frozen=True, slots=True)
class ReplayCounts:
    """The result of a replay.

    Attributes:
        misses: of the counted accesses, as the server says.
        accesses: the counted accesses, as the server says.
        own_buffers: buffers (from 0) that held pages of the server's own catalogs before the first access.
        own_usage_counts: their usage counts.
    """

    misses: int
    accesses: int
    own_buffers: NDArray[np.uint32]
    own_usage_counts: NDArray[np.uint8]


class ReplayServer:
    """A private server with pages to be accessed; a context.

    Args:
        counted_pages: for every page, whether accesses to it count.
        bindir: the server's bin folder; the wheel's by default.
        work_dir: where the data directory is made.

    Raises:
        ClusterError: no server, or it does not start.
    """

    def __init__(
        self, counted_pages: NDArray[np.bool_], *, bindir: Path | None = None, work_dir: Path | None = None
    ) -> None:
        self._counted_pages = counted_pages
        self._cluster = Cluster.create(bindir, _SETTINGS, work_dir=work_dir)
        try:
            self._make_tables(len(counted_pages))
        except BaseException:
            self._cluster.close()
            raise

    @property
    def version(self) -> str:
        """Return the server's version in words."""
        return self._cluster.binaries.version

    @property
    def version_num(self) -> int:
        """Return the server's version."""
        return self._cluster.version_num

    @property
    def page_count(self) -> int:
        """Return how many pages there are to be accessed."""
        return len(self._counted_pages)

    def replay(
        self,
        blocks: int,
        warm: Pages,
        accesses: Pages,
        done: Callable[[int], None] = lambda _accesses: None,
    ) -> ReplayCounts:
        """Restart with a pool size, warm the pool, replay.

        Args:
            blocks: shared_buffers.
            warm: pages accessed first, not counted.
            accesses: the pages accessed then, in order.
            done: called with the number of accesses done so far, warming included.

        Raises:
            ClusterError: the size is too large for this machine, or the server does not start with it.
        """
        check_size(blocks * BLOCK_BYTES)
        self._cluster.restart({"shared_buffers": f"{blocks * BLOCK_BYTES // 1024}kB"})
        with psycopg.connect(self._cluster.conninfo()) as connection:
            # Planning reads catalog pages: once before the pool is looked at, so that none come later.
            connection.execute(_COUNTED_ONLY, ("{}",))
            connection.execute(_BOTH, ("{}", []))
            _counts(connection)
            connection.execute(_OWN)
            own = np.array(connection.execute(_OWN).fetchall(), dtype=np.int64).reshape(-1, 2)
            self._run(connection, warm, done, 0)
            before = _counts(connection)
            self._run(connection, accesses, done, len(warm))
            after = _counts(connection)
        fetched, hit = after[0] - before[0], after[1] - before[1]
        made = int(self._counted_pages[accesses].sum())
        if fetched != made:
            raise ClusterError(
                f"the server counted {fetched} accesses, {made} were made",
                cause="this server plans the accesses in another way than known",
                hint="use the PostgreSQL 18 that comes with pgsweep: leave out --pg-bindir",
            )
        return ReplayCounts(
            misses=fetched - hit,
            accesses=fetched,
            own_buffers=own[:, 0].astype(np.uint32),
            own_usage_counts=own[:, 1].astype(np.uint8),
        )

    def close(self) -> None:
        """End the server and remove it."""
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        connection: psycopg.Connection,
        pages: Pages,
        done: Callable[[int], None],
        done_before: int,
    ) -> None:
        for begin in range(0, len(pages), _BATCH_ACCESSES):
            part = pages[begin : begin + _BATCH_ACCESSES]
            tids = "{" + ",".join(f'"({page},1)"' for page in part.tolist()) + "}"
            counts = self._counted_pages[part]
            if counts.all():
                connection.execute(_COUNTED_ONLY, (tids,))
            else:
                connection.execute(_BOTH, (tids, counts.tolist()))
            done(done_before + begin + len(part))

    def _make_tables(self, pages: int) -> None:
        paths = []
        self._cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(self._cluster.conninfo(), autocommit=True) as connection:
            for table in ("counted", "other"):
                connection.execute(f"CREATE TABLE {table} ()".encode())
                row = connection.execute("SELECT pg_relation_filepath(%s::regclass)", (table,)).fetchone()
                assert row is not None
                paths.append(self._cluster.data_directory / row[0])
        self._cluster.stop()
        for path in paths:
            _extend_with_holes(path, pages)
        self._cluster.start()


def can_try(shared_buffers_bytes: int) -> bool:
    """Return whether this machine has memory for a server of that size: it takes up to three quarters."""
    return shared_buffers_bytes <= _LARGEST_SHARE_OF_MEMORY * memory_bytes()


def check_size(shared_buffers_bytes: int) -> None:
    """Refuse a size that this machine has no memory for.

    Raises:
        ClusterError: it is more than three quarters of the memory.
    """
    if not can_try(shared_buffers_bytes):
        raise ClusterError(
            f"shared_buffers of {format_bytes(shared_buffers_bytes)} cannot be tried on this machine",
            cause=f"it has {format_bytes(memory_bytes())} of memory",
            hint="leave that size out: --sizes",
        )


def _counts(connection: psycopg.Connection[Any]) -> tuple[int, int]:
    """Return accesses and hits of the counted table in this transaction."""
    row = connection.execute(_COUNTS + " WHERE oid = 'counted'::regclass").fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _extend_with_holes(path: Path, blocks: int) -> None:
    """Extend a relation's empty file to a number of blocks; all segments belong to the same user."""
    owner = path.parent.stat()
    for number in range((blocks + _SEGMENT_BLOCKS - 1) // _SEGMENT_BLOCKS):
        if number == 0:
            descriptor = open_of(path, owner.st_uid, os.O_WRONLY)
        else:
            new = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(path.with_name(f"{path.name}.{number}"), new, 0o600)
        try:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
            os.ftruncate(descriptor, min(_SEGMENT_BLOCKS, blocks - number * _SEGMENT_BLOCKS) * BLOCK_BYTES)
        finally:
            os.close(descriptor)
