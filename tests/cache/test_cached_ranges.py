"""Which blocks the page cache holds: in evidence of a real server, and set against its pool."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep.errors import MissingAbility
from pgsweep.evidence.block_residency import NOT_RECORDED, twice_share
from pgsweep.evidence.record import record
from pgsweep.evidence.schema import TWICE
from pgsweep.evidence.store import Evidence
from pgsweep.host import cached_ranges as module
from pgsweep.host.cached_ranges import cached_ranges
from pgsweep.host.datafiles import DataFiles
from pgsweep.pg.private.cluster import Cluster
from pgsweep.testbed.cold import drop_from_page_cache
from tests.fix_trace import database, fill

WHOLE = 8192 // mmap.PAGESIZE


def path_of(cluster: Cluster, connection: psycopg.Connection[Any], relation: str) -> Path:
    row = connection.execute("SELECT pg_relation_filepath(%s)", (relation,)).fetchone()
    assert row is not None
    return Path(cluster.data_directory, row[0])


def oids(connection: psycopg.Connection[Any], relation: str) -> tuple[int, int]:
    row = connection.execute(
        "SELECT (SELECT oid FROM pg_database WHERE datname = current_database()), pg_relation_filenode(%s)",
        (relation,),
    ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def ranges_of(server: Cluster, db: int, rel: int) -> list[tuple[int, int, int]]:
    """Return first block, blocks and pages of what is cached of a relation's main fork."""
    assert server.postmaster_pid is not None
    found = cached_ranges(
        server.postmaster_pid, server.version_num, db, block_bytes=8192, segment_blocks=131072
    )
    own = (found.rel == rel) & (found.fork == 0) & (found.db == db)
    rows = zip(found.first_block[own], found.blocks[own], found.pages[own], strict=True)
    return sorted((int(first), int(blocks), int(pages)) for first, blocks, pages in rows)


@pytest.mark.skipif(os.geteuid() != 0, reason="the page cache of another user's files is shown to root only")
def test_ranges_are_what_was_read(server: Cluster) -> None:
    with database(server, "ranges") as connection:
        fill(connection)
        connection.execute("CHECKPOINT")
        path, (db, rel) = path_of(server, connection, "t"), oids(connection, "t")
        size = path.stat().st_size
        with path.open("rb") as file:
            # As by the server's random reads: what is asked for, and nothing ahead.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            drop_from_page_cache(path)
            assert ranges_of(server, db, rel) == []
            for first, blocks in ((3, 4), (100, 1), (size // 8192 - 2, 2)):
                os.pread(file.fileno(), blocks * 8192, first * 8192)
            os.pread(file.fileno(), 100, 200 * 8192)
            seen = ranges_of(server, db, rel)
            assert (3, 4, WHOLE) in seen
            assert (100, 1, WHOLE) in seen
            assert (size // 8192 - 2, 2, WHOLE) in seen
            assert [blocks for first, blocks, _ in seen if first == 200] == [1], (
                "a block may be there in part"
            )
            assert sum(blocks for _, blocks, _ in seen) == 8
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_NORMAL)
            while file.read(1 << 20):
                pass
            assert ranges_of(server, db, rel) == [(0, size // 8192, WHOLE)]


def test_blocks_in_several_segments_are_numbered_through(monkeypatch: Any) -> None:
    """Two segments of four blocks: of the first the last two are cached, of the second all."""
    files = DataFiles(
        forks=[(1663, 5, 16384, 0)] * 2 + [(1663, 5, 16385, 2)], segments=[0, 1, 0], paths=["a", "b", "c"]
    )

    def pages(paths: list[str], *, maps: bool, block_bytes: int) -> dict[str, Any]:
        assert block_bytes == 8192
        if not maps:
            return {
                "size_bytes": np.array([32768, 32768, 16384]),
                "cached_bytes": np.array([16384, 32768, 4096]),
                "error": np.zeros(3, np.int32),
            }
        assert paths == ["a", "c"]
        return {"first_block": np.array([0, 4, 6]), "cached_pages": np.array([0, 0, 2, 2, 1, 0], np.uint8)}

    monkeypatch.setattr(module, "find_data_files", lambda *_: files)
    monkeypatch.setattr(module, "page_cache", pages)
    found = cached_ranges(1, 180000, 5, block_bytes=8192, segment_blocks=4)
    rows = zip(found.rel, found.fork, found.first_block, found.blocks, found.pages, strict=True)
    assert sorted(tuple(map(int, row)) for row in rows) == [
        (16384, 0, 2, 2, 2),
        (16384, 0, 4, 4, WHOLE),
        (16385, 2, 0, 1, 1),
    ]
    monkeypatch.setattr(module, "MOST_BYTES", 40_000)
    with pytest.raises(MissingAbility, match="48 kB of files are cached in part"):
        cached_ranges(1, 180000, 5, block_bytes=8192, segment_blocks=4)


@pytest.mark.one_server
@pytest.mark.parametrize("source", ["peek", "trace"])
@pytest.mark.skipif(os.geteuid() != 0, reason="looking into another user's process needs root")
def test_evidence_has_both_caches_block_by_block(server: Cluster, tmp_path: Path, source: Any) -> None:
    with database(server, "two_caches") as connection:
        fill(connection)
        connection.execute("CHECKPOINT")
        connection.execute("SELECT count(*) FROM t")
        db, rel = oids(connection, "t")
        record(server.conninfo("two_caches"), tmp_path / "x.evidence", source=source, seconds=2.0)
        expected = ranges_of(server, db, rel)
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert NOT_RECORDED not in evidence.meta.host
    cached = evidence.table("page_cache")
    assert np.unique(cached["sample"]).tolist() == [0, 1]
    end = (cached["sample"] == 1) & (cached["rel"] == rel) & (cached["fork"] == 0)
    columns = (cached[name][end].tolist() for name in ("first_block", "blocks", "pages"))
    assert sorted(zip(*columns, strict=True)) == expected
    # All has been written or read through the page cache, and nothing was dropped from it.
    twice = int(evidence.meta.host[TWICE])
    used = int(evidence.table("snapshot_times")["used_frames"][-1]) * 8192
    assert 0.9 * used <= twice <= used


@pytest.mark.skipif(os.geteuid() != 0, reason="looking into another user's process needs root")
def test_what_may_not_be_looked_at_is_said(server: Cluster, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pgsweep.host.cached_ranges.MOST_RANGES", 0)
    with database(server, "few") as connection:
        fill(connection)
        record(server.conninfo("few"), tmp_path / "x.evidence", source="peek", seconds=2.0)
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert "too many to keep" in evidence.meta.host[NOT_RECORDED]
    assert not evidence.has("page_cache")
    assert TWICE not in evidence.meta.host


def test_what_both_caches_hold_is_held_twice() -> None:
    one = {"spc": 1663, "db": 5, "rel": 16384, "fork": 0}
    blocks = np.array([10, 11, 12, 20, 30], np.uint32)
    pool: dict[str, Any] = {name: np.full(5, value) for name, value in one.items()}
    pool["block"] = blocks

    def share(*ranges: tuple[int, int, int], db: int = 5, rel: int = 16384) -> float | None:
        columns = np.array(ranges, np.uint32).reshape(-1, 3).T
        found: dict[str, Any] = {name: np.full(len(ranges), value) for name, value in one.items()}
        found |= {"rel": np.full(len(ranges), rel), "first_block": columns[0]}
        found |= {"blocks": columns[1], "pages": columns[2]}
        return twice_share(pool, found, db, 2)

    assert share((11, 2, 2), (20, 1, 1), (25, 6, 2), (90, 5, 2)) == pytest.approx(3 / 5), (
        "20 is there in part"
    )
    assert share((0, 10, 2), (13, 7, 2), (21, 9, 2)) == 0
    assert share((0, 100, 2), rel=16385) == 0
    assert share() == 0
    assert share((0, 100, 2), db=6) is None, "nothing of the database is in the pool"
