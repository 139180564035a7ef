"""`predict` on a pool from which nothing was evicted: what fits, what can be taken away, and no more."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.schema import EvidenceMeta
from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.observed import Server
from pgsweep.sizing.predict import predict
from pgsweep.sizing.snapshots.recording import filled_up
from pgsweep.sizing.snapshots.totals import Totals
from pgsweep.sizing.snapshots.unfilled import unfilled
from pgsweep.sizing.snapshots.used_snapshots import UsedSnapshots
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, to_csv, to_json, to_text
from tests.fix_cli import run
from tests.fix_process import wait_until
from tests.fix_results import MB
from tests.fuzz.make_seeds import snapshots

ROWS = 5000
"""Of `page`; four are on a block, so that it has 1250 blocks or 10 MB."""

Record = Callable[..., Any]


@pytest.fixture
def roomy(bindir: Path | None) -> Iterator[Cluster]:
    """Give a server with 64 MB of shared_buffers and a table of 10 MB."""
    with Cluster.create(bindir, {"shared_buffers": "64MB", "autovacuum": "off"}) as cluster:
        cluster.create_extensions("postgres", "pg_buffercache")
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE TABLE page (id int PRIMARY KEY, filler text)")
            connection.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            connection.execute(
                "INSERT INTO page SELECT g, repeat('x', 1800) FROM generate_series(1, %s) g", [ROWS]
            )
            connection.execute("VACUUM ANALYZE page")
        yield cluster


def read_every_row(cluster: Cluster) -> None:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        connection.execute(
            "SELECT sum((SELECT octet_length(filler) FROM page WHERE id = i)) FROM generate_series(1, %s) i",
            [ROWS],
        )
        session = connection.info.backend_pid
    # A backend reports its last counts when it ends, which is some time after its client left.
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        ended = "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s"
        wait_until(lambda: connection.execute(ended, [session]).fetchone() == (True,))


@contextmanager
def reading(cluster: Cluster) -> Iterator[None]:
    """Have a session read every row again and again until the block ends."""
    over = threading.Event()

    def work() -> None:
        # The pauses leave processors to other tests.
        while not over.wait(0.5):
            read_every_row(cluster)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def blocks_read(cluster: Cluster) -> int:
    with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
        row = connection.execute(
            "SELECT heap_blks_read + idx_blks_read FROM pg_statio_user_tables WHERE relname = 'page'"
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(
            record_peek, marks=pytest.mark.skipif(os.geteuid() != 0, reason="needs root"), id="peek"
        ),
        pytest.param(record_sql, id="sql"),
    ],
)
def test_what_can_be_taken_away_from_a_server_is_not_missed(
    roomy: Cluster, record: Record, tmp_path: Path
) -> None:
    path = tmp_path / "a.evidence"
    read_every_row(roomy)
    with reading(roomy):
        record(roomy.conninfo(), path, seconds=8, rng_seed=1)
    done = run("predict", str(path), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    room = result["no_eviction"]
    assert result["verdict"]["level"] == "reliable", result["verdict"]
    # The table has 10 MB, the catalogs some more.
    assert 10 * MB < room["used_bytes"] <= room["known_from_bytes"] < 24 * MB
    assert room["removable_bytes"] == 64 * MB - room["known_from_bytes"]
    assert room["known_below_bytes"] is None
    assert room["unknown_bytes"] == [size * MB for size in (8, 16) if size * MB < room["known_from_bytes"]]
    sizes = [point["shared_buffers_bytes"] for point in result["points"]]
    assert min(sizes) >= room["known_from_bytes"]
    assert {64 * MB, 512 * MB} <= set(sizes)
    for point in result["points"]:
        assert point["miss_ratio"] == result["observed"]["miss_ratio"] < 0.01
    assert "nothing is known" in str(result["verdict"]["reasons"])

    # And so it is: restarted at that size, the load misses each page once and never again.
    roomy.restart({"shared_buffers": f"{min(sizes) // 1024}kB"})
    read_every_row(roomy)
    once = blocks_read(roomy)
    assert once >= ROWS // 4
    read_every_row(roomy)
    read_every_row(roomy)
    assert blocks_read(roomy) == once


@pytest.mark.parametrize("source", ["sql", "peek"])
def test_nothing_is_said_of_sizes_that_are_not_known(source: str, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    snapshots(path, source, used=20)
    result = predict(path, sizes_bytes=[128 << 10, 152 << 10, 160 << 10, 1 << 20])
    assert result.no_eviction is not None
    assert result.no_eviction.unknown_bytes == [128 << 10, 152 << 10]
    assert result.no_eviction.used_bytes == result.no_eviction.known_from_bytes == 160 << 10
    assert result.no_eviction.removable_bytes == (512 - 160) << 10
    assert [point.shared_buffers_bytes for point in result.points] == [160 << 10, 1 << 20]
    assert from_json(to_json(result).encode(), "x") == result
    text = to_text(result, Terminal(width=100))
    assert text.count("not known") == 2
    assert "At least 352 kB can be taken away without a further miss" in text
    page = to_html(result)
    assert page.count("<td>not known</td>") == 2
    assert "352 kB can be taken away" in page
    assert len(to_csv(result).splitlines()) == 3

    alone = predict(path, sizes_bytes=[128 << 10])
    assert not alone.points
    assert "not known" in to_text(alone, Terminal()) and "not known" in to_html(alone)


def found_for(used: list[int], **changes: Any) -> Any:
    """Return what is known of a pool of 1000 blocks, of one relation that is scanned."""
    seconds = np.arange(float(len(used)))
    relations = {
        "db": np.array([5]), "name": np.array(["t"], object),
        "blocks_begin": np.array([changes.get("blocks", 10)]), "blocks_end": np.array([0]),
    }  # fmt: skip
    evicted = np.array(changes.get("evictions", []), float)
    counters = {
        "scope": np.full(len(evicted), "io", object),
        "object": np.full(len(evicted), "client backend/relation/normal", object),
        "name": np.full(len(evicted), "evictions", object),
        "value": evicted,
        "seconds": seconds[: len(evicted)],
    }
    one = np.ones(1)
    totals = Totals(
        seconds=changes.get("seconds", 60.0), hits=90.0, misses=10.0,
        relation_misses=one, relation_accesses=one,
        relation_scans=one * changes.get("scans", 0.0), relation_growth_blocks=one,
        relation_scanned_blocks=one * changes.get("scans", 0.0),
        first_half_miss_ratio=0.15, second_half_miss_ratio=0.05,
    )  # fmt: skip
    meta = EvidenceMeta(
        source="sql",
        server_version_num=changes.get("version", 180000),
        shared_buffers_blocks=changes.get("pool", 1000),
        database_oid=5,
    )
    return unfilled(used_of(used, changes.get("hand", [])), counters, relations, totals, Server.of(meta))


def used_of(used: list[int], hand: Sequence[int] = ()) -> UsedSnapshots:
    return UsedSnapshots(
        snapshots={},
        used_blocks=np.array(used),
        hand_buffers=np.array(hand, np.int64),
        loads=None,
        warnings=(),
    )


def test_a_table_that_would_be_scanned_through_a_ring_bounds_what_is_known() -> None:
    """initscan, heapam.c: a table larger than a quarter of the pool."""
    plain = found_for([100] * 8, scans=1.0, blocks=200)
    assert (plain.known_from_blocks, plain.known_below_blocks) == (800, None)
    ringed = found_for([100] * 8, scans=1.0, blocks=300)
    assert (ringed.known_from_blocks, ringed.known_below_blocks) == (100, 1200)
    assert [ringed.knows(size) for size in (99, 100, 1199, 1200)] == [False, True, True, False]
    assert "scans of t go through a ring" in str(ringed.reasons)


def test_a_pool_that_is_still_filling_is_not_relied_on() -> None:
    filling = found_for([100, 120, 140, 160, 180, 200])
    assert not filling.usable
    assert filling.filling_blocks == 60
    said = str(filling.reasons)
    assert "still filling" in said
    assert "fits into that" not in said, "it will hold more"
    assert "set shared_buffers" not in said
    assert filling.known_from_blocks == 1000
    assert found_for([100, 190, 200, 200, 200, 200]).usable


def test_a_pool_that_still_grows_a_little_keeps_room_for_it() -> None:
    """Of a pool that gained 5 MB in a minute it was said that all in use fits into what it held."""
    grows = found_for([10_000, 10_000, 10_000, 10_000, 10_020, 10_040], pool=100_000, seconds=600.0)
    assert grows.usable
    assert grows.known_from_blocks == 10_040 + 40 * 12
    assert "still grows, by 320 kB in the last 300 s" in str(grows.reasons)
    soon_full = found_for([10_000, 10_000, 10_000, 10_000, 10_020, 10_040], pool=10_400, seconds=600.0)
    assert (soon_full.usable, soon_full.filling_blocks) == (False, 40)


def test_evictions_between_snapshots_are_believed_rather_than_the_snapshots() -> None:
    evicting = found_for([900] * 8, evictions=[5, 900])
    assert not evicting.usable
    assert evicting.known_from_blocks == 1000
    moving = found_for([900] * 8, hand=list(range(0, 800, 100)))
    assert not moving.usable
    # From 19 on the hand moves over free buffers as well (freelist.c).
    assert found_for([900] * 8, hand=list(range(0, 800, 100)), version=190000).usable


def test_a_full_pool_whose_hand_stands_still_is_known_from_its_own_size_on() -> None:
    still = found_for([1000] * 8, hand=[7000] * 8)
    assert still.known_from_blocks == 1000
    assert found_for([1000] * 8, hand=list(range(0, 800, 100))) is None
    assert found_for([1000] * 8) is None


def test_a_pool_that_filled_up_while_it_was_recorded_gives_a_reason() -> None:
    assert filled_up(np.array([100, 500, 1000, 1000]), 1000) is not None
    assert filled_up(np.array([1000] * 20 + [980]), 1000) is None
