"""Looks into the server's memory: what they see, against what the server says and what was done to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pytest

from pgsweep._native import PoolReader
from pgsweep.errors import MissingAbility
from pgsweep.evidence import peek
from pgsweep.evidence.peek import PeekView, record_peek
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.store import Evidence
from pgsweep.host.postmaster import find_postmaster
from pgsweep.pg.catalog.agreement import disagreement
from pgsweep.pg.catalog.buffercache import SnapshotReader
from pgsweep.pg.catalog.server import read_databases, read_relations, read_server, require_buffercache
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.queries import load
from pgsweep.pg.session.connect import connect
from pgsweep.sizing.predict import predict
from tests.fix_cluster import recorded_by_nobody
from tests.fix_page import load_running, make_page, wait_for_pages

PAGES = 12000 // 4
"""Of the table `page`, at least: four rows are on a page."""


LONG_SECONDS = 0.3
"""Between two looks, so that it matters little how long each took."""


def reader_of(connection: psycopg.Connection[Any], version_num: int) -> PoolReader:
    row = connection.execute(load("postmaster", version_num)).fetchone()
    assert row is not None
    return PoolReader(find_postmaster(*row), version_num)


def test_a_recording_holds_what_the_server_did(server: Cluster, database: str, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with load_running(server, database):
        wait_for_pages(server, database)
        result = record_peek(server.conninfo(database), path, seconds=10, rng_seed=1)
    assert (result.source, result.ended_by) == ("peek", "time")
    # How far the load comes in that time is the machine's matter.
    assert all(warning.startswith("short: ") for warning in result.warnings), result.warnings
    assert result.shared_buffers_bytes == 16 << 20
    evidence = Evidence.open(path)
    assert evidence.complete
    assert evidence.meta.overhead["own_processor_share"] < 0.2

    snapshots, times = evidence.table("snapshots"), evidence.table("snapshot_times")
    assert 10 <= len(times["snapshot"]) == result.snapshots <= 20
    for number, used in zip(times["snapshot"], times["used_frames"], strict=True):
        buffers = snapshots["frame"][snapshots["snapshot"] == number]
        assert len(np.unique(buffers)) == len(buffers) == used
    assert snapshots["usage_count"].max() == 5

    counters = evidence.table("counters")
    hand = counters["value"][counters["scope"] == "pool"]
    assert len(hand) == result.snapshots
    passes = (hand[-1] - hand[0]) / 2048
    assert passes > 2
    assert evidence.meta.overhead["laps"] == pytest.approx(passes, rel=0.1)

    found = predict(path)
    assert found.source == "peek"
    today = [point.miss_ratio for point in found.points if point.shared_buffers_bytes == 16 << 20]
    if today:
        assert today == [pytest.approx(found.observed.miss_ratio, rel=0.05)]
    else:
        # Few passes in that time: then it says that it does not know, and why.
        assert found.verdict.level == "refused" or 16 << 20 in found.unknown_bytes
        assert found.verdict.reasons


def test_a_look_agrees_with_the_view(bindir: Path | None) -> None:
    """The background writer, which cleans buffers, does nothing between the two looks."""
    settings = {"shared_buffers": "16MB", "autovacuum": "off", "bgwriter_lru_maxpages": "0"}
    with (
        Cluster.create(bindir, settings) as cluster,
        psycopg.connect(cluster.conninfo(), autocommit=True) as filling,
    ):
        make_page(filling)
        with connect(cluster.conninfo()) as connection:
            by_sql = SnapshotReader(connection, require_buffercache(connection), 2048)
            by_sql.take()
            view = PeekView(connection, read_server(connection), BlockSample.everything())
            view.check(read_relations(connection), read_databases(connection))
            theirs, ours = by_sql.take(), view.take()
    names = ("buffer", "spc", "db", "rel", "fork", "block", "usage_count", "dirty", "pinned")
    assert len(theirs.buffer) == 2048, "the table is larger than the pool"
    order = np.argsort(theirs.buffer)
    for name in names:
        assert np.array_equal(getattr(theirs, name)[order], getattr(ours, name)), name
    assert (ours.used_buffers, ours.zero_buffers) == (theirs.used_buffers, theirs.zero_buffers)


def test_what_disagrees_is_not_believed(server: Cluster, database: str) -> None:
    with connect(server.conninfo(database)) as connection:
        by_the_server = read_server(connection)
        relations, databases = read_relations(connection), read_databases(connection)
        connection.execute("SELECT count(*) FROM public.page")
        pool = reader_of(connection, server.version_num).read()
        assert disagreement(pool, by_the_server, None, None) is None
        assert peek._unknown_names(pool, by_the_server, relations, databases) is None
        other_size = msgspec.structs.replace(by_the_server, shared_buffers_blocks=4096)
        reported = disagreement(pool, other_size, None, None)
        assert reported == "the pool has 2 048 buffers there, shared_buffers is 4 096"
        assert "databases" in str(peek._unknown_names(pool, by_the_server, relations, {7: "other"}))
        shifted: Any = {**pool, "rel": pool["rel"] + np.uint32(100000)}
        assert "relations" in str(peek._unknown_names(shifted, by_the_server, relations, databases))
        impossible: Any = {**pool, "usage_count": pool["usage_count"] + np.uint8(9)}
        assert "impossible" in str(disagreement(impossible, by_the_server, None, None))
        columns = {name: value[:0] for name, value in pool.items() if isinstance(value, np.ndarray)}
        empty: Any = {**pool, **columns, "used": 0}
        assert disagreement(empty, by_the_server, None, None) == "not a single buffer holds a page there"


def test_the_servers_own_count_must_agree(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peek, "used_buffers", lambda _connection: 100_000)
    with pytest.raises(MissingAbility, match="does not show what the server says") as caught:
        record_peek(wheel18.conninfo(), tmp_path / "a.evidence", seconds=1)
    assert "the server counts 100 000" in str(caught.value.cause)
    assert "--source sql" in str(caught.value.hint)
    assert not (tmp_path / "a.evidence").exists()


def test_no_extension_and_no_privilege_is_needed(server: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
        connection.execute("CREATE ROLE nothing LOGIN")
        try:
            conninfo = server.conninfo("bare") + " user=nothing"
            result = record_peek(conninfo, tmp_path / "a.evidence", seconds=2)
        finally:
            connection.execute("DROP DATABASE bare")
            connection.execute("DROP ROLE nothing")
    assert result.snapshots >= 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_learns_what_to_do(server: Cluster, tmp_path: Path) -> None:
    reported = recorded_by_nobody(server, "peek", tmp_path / "a.evidence")
    assert "may not be read" in reported
    assert "sudo pgsweep" in reported
    assert "--source sql" in reported
    assert not (tmp_path / "a.evidence").exists()
