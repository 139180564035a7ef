from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psycopg
import pytest

from pgsweep.errors import ConnectionFailed, EvidenceError, MissingAbility
from pgsweep.evidence.laps import LapClock
from pgsweep.evidence.pace import LEAST_SECONDS, Pace
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.buffercache import SnapshotReader
from pgsweep.pg.catalog import read_relations, read_server, require_buffercache
from pgsweep.pg.cluster import Cluster
from pgsweep.pg.connect import connect
from pgsweep.pg.counters import CounterReader
from pgsweep.pg.queries import load
from pgsweep.records.prediction import RecordResult
from tests.fix_page import load_running

Recorder = Callable[..., RecordResult]
RECORDERS = pytest.mark.parametrize("record", [record_sql, record_peek])


class Heard:
    """Keeps what a recording says."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.stages: list[str] = []
        self.done_seconds = 0.0

    def stage(self, title: str, total_seconds: float | None = None) -> None:
        self.stages.append(title)

    def advance(self, done_seconds: float) -> None:
        self.done_seconds = done_seconds

    def note(self, text: str) -> None:
        self.notes.append(text)


def counter_change(evidence: Evidence, scope: str, label: str, name: str) -> float:
    table = evidence.table("counters")
    rows = (table["scope"] == scope) & (table["object"] == label) & (table["name"] == name)
    values = table["value"][rows]
    return float(values[-1] - values[0]) if len(values) else 0.0


def test_a_recording_holds_what_the_server_did(server: Cluster, database: str, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    heard = Heard()
    with load_running(server, database):
        time.sleep(2)
        result = record_sql(server.conninfo(database), path, seconds=8, rng_seed=1, progress=heard)
    assert result.ended_by == "time"
    assert result.source == "sql"
    assert result.shared_buffers_bytes == 16 << 20
    assert result.snapshots >= 6
    assert any("expected cost" in note for note in heard.notes)
    assert heard.done_seconds == pytest.approx(8, abs=1)

    evidence = Evidence.open(path)
    assert evidence.complete
    meta = evidence.meta
    assert (meta.database, meta.shared_buffers_blocks, meta.block_size_bytes) == (database, 2048, 8192)
    assert meta.server_version_num == server.version_num
    assert meta.settings["shared_buffers"] == "2048"
    assert meta.sampling == {"seed": 1.0}

    times = evidence.table("snapshot_times")
    assert len(times["snapshot"]) == result.snapshots
    assert np.all(np.diff(times["begin_seconds"]) > 0)
    assert np.std(np.diff(times["begin_seconds"])) > 0.05
    snapshots = evidence.table("snapshots")
    for number, used in zip(times["snapshot"], times["used_frames"], strict=True):
        rows = snapshots["snapshot"] == number
        assert np.count_nonzero(rows) == used
        assert len(np.unique(snapshots["frame"][rows])) == used
        assert snapshots["frame"][rows].min() >= 1
        assert snapshots["frame"][rows].max() <= 2048
    assert snapshots["usage_count"].max() == 5

    relations = evidence.table("relations")
    page = int(np.flatnonzero(relations["name"] == "page")[0])
    key = int(np.flatnonzero(relations["name"] == "page_pkey")[0])
    assert relations["kind"][page] == "r"
    assert relations["blocks_begin"][page] == relations["blocks_end"][page] >= 3000
    assert relations["fsm_blocks"][page] > 0
    assert relations["vm_blocks"][page] > 0
    assert relations["table_oid"][key] == relations["oid"][page]
    toast = relations["name"] == f"pg_toast_{relations['oid'][page]}"
    assert relations["table_oid"][toast] == relations["oid"][page]
    catalogs = set(relations["name"][relations["schema"] == "pg_catalog"])
    assert {"pg_class", "pg_database", "pg_class_oid_index"} <= catalogs
    shared = relations["name"] == "pg_database"
    assert relations["db"][shared] == 0
    assert relations["spc"][shared] == 1664
    # Most buffers of our database can be named, and most of the pool is its table.
    ours = (snapshots["db"] == relations["db"][page]) & (snapshots["spc"] == relations["spc"][page])
    named = np.isin(snapshots["rel"], relations["rel"])
    assert np.all(named[ours])
    of_page = ours & (snapshots["rel"] == relations["rel"][page]) & (snapshots["fork"] == 0)
    assert np.count_nonzero(of_page) > 0.5 * len(of_page)
    assert snapshots["block"][of_page].max() < relations["blocks_end"][page]

    reads = counter_change(evidence, "database", database, "blks_read")
    hits = counter_change(evidence, "database", database, "blks_hit")
    assert result.accesses == reads + hits
    assert reads > 100
    of_relations = sum(
        counter_change(evidence, "relation", str(relations["oid"][number]), name)
        for number in (page, key)
        for name in ("blks_hit", "blks_read")
    )
    assert of_relations == pytest.approx(reads + hits, rel=0.1)
    assert counter_change(evidence, "bgwriter", "", "buffers_alloc") == pytest.approx(reads, rel=0.3)
    has_io = np.any(evidence.table("counters")["scope"] == "io")
    assert has_io == (server.version_num >= 160000)


def counters_that_changed(evidence: Evidence) -> list[tuple[float, str, str, str, float]]:
    """Return moment, scope, object, name and new value of every change after the first sample."""
    table = evidence.table("counters")
    later = table["sample"] > 0
    names = ("seconds", "scope", "object", "name", "value")
    return list(zip(*(table[name][later].tolist() for name in names), strict=True))


@RECORDERS
def test_the_recorder_leaves_no_accesses_of_its_own(
    record: Recorder, server: Cluster, database: str, tmp_path: Path
) -> None:
    result = record(server.conninfo(database), tmp_path / "a.evidence", seconds=6)
    assert result.accesses <= 10, counters_that_changed(Evidence.open(tmp_path / "a.evidence"))
    assert any("evicted" in warning or "not full" in warning for warning in result.warnings)


def test_a_snapshot_agrees_with_the_view(server: Cluster) -> None:
    with connect(server.conninfo()) as connection:
        schema = require_buffercache(connection)
        whole = SnapshotReader(connection, schema, 2048).take()
        rows = connection.execute(
            "SELECT bufferid, reltablespace, reldatabase, relfilenode, relforknumber, relblocknumber, "
            "usagecount FROM pg_buffercache WHERE relfilenode IS NOT NULL"
        ).fetchall()
        taken = zip(
            *(
                column.tolist()
                for column in (
                    whole.frame, whole.spc, whole.db, whole.rel, whole.fork, whole.block, whole.usage_count
                )
            ),
            strict=True,
        )  # fmt: skip
        ours, theirs = set(taken), set(rows)
        # The catalogs that the second statement looked at may have gained a use.
        assert len(ours & theirs) > 0.9 * len(theirs)
        assert {row[:6] for row in ours} & {row[:6] for row in theirs} == {row[:6] for row in ours}
        assert whole.used_frames == len(whole.frame)

        sample = BlockSample.draw(0.3, 7)
        part = SnapshotReader(connection, schema, 2048, modulus=sample.modulus, offsets=sample.offsets).take()
        assert part.used_frames == pytest.approx(whole.used_frames, abs=20)
        assert np.all(sample.contains(part.rel, part.block))
        inside = sample.contains(whole.rel, whole.block)
        assert len(part.frame) == pytest.approx(np.count_nonzero(inside), abs=20)


@RECORDERS
def test_a_sample_of_blocks_is_recorded_as_such(
    record: Recorder, server: Cluster, database: str, tmp_path: Path
) -> None:
    heard = Heard()
    record(
        server.conninfo(database),
        tmp_path / "a.evidence",
        seconds=2,
        rng_seed=5,
        sample_blocks=500,
        progress=heard,
    )
    evidence = Evidence.open(tmp_path / "a.evidence")
    sample = BlockSample.from_meta(evidence.meta.sampling)
    assert sample.rate == pytest.approx(500 / 2048, abs=0.001)
    snapshots, times = evidence.table("snapshots"), evidence.table("snapshot_times")
    assert np.all(sample.contains(snapshots["rel"], snapshots["block"]))
    assert len(snapshots["frame"]) < 0.5 * times["used_frames"].sum()
    assert any("drawn at random" in note for note in heard.notes)


def test_what_a_sample_contains_can_be_counted() -> None:
    sample = BlockSample.draw(0.1, 3)
    assert sample.rate == pytest.approx(0.1, abs=0.001)
    assert sample == BlockSample.draw(0.1, 3)
    assert sample != BlockSample.draw(0.1, 4)
    for rel, blocks in ((1, 0), (16384, 1), (99999, 5000), (2**31 + 5, 123456)):
        every = np.arange(blocks)
        assert sample.count(rel, blocks) == np.count_nonzero(sample.contains(np.full(blocks, rel), every))
    assert BlockSample.draw(1.5, 3) == BlockSample.everything() == BlockSample.from_meta({})
    assert BlockSample.everything().count(5, 77) == 77


def test_missing_extension_names_the_command(server: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bare")
        try:
            with pytest.raises(MissingAbility) as caught:
                record_sql(server.conninfo("bare"), tmp_path / "a.evidence", seconds=1)
        finally:
            connection.execute("DROP DATABASE bare")
    assert caught.value.exit_code == 4
    assert "psql -d bare -c 'CREATE EXTENSION pg_buffercache'" in str(caught.value.hint)
    assert not (tmp_path / "a.evidence").exists()


def test_missing_privilege_names_the_grant(server: Cluster, tmp_path: Path) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        connection.execute('CREATE ROLE "o\'Brien" LOGIN')
        conninfo = server.conninfo() + " user='o\\'Brien'"
        try:
            with pytest.raises(MissingAbility) as caught:
                record_sql(conninfo, tmp_path / "a.evidence", seconds=1)
            assert "GRANT pg_monitor TO" in str(caught.value.hint)
            assert not (tmp_path / "a.evidence").exists()
            connection.execute('GRANT pg_monitor TO "o\'Brien"')
            result = record_sql(conninfo, tmp_path / "a.evidence", seconds=1)
            assert result.snapshots >= 1
        finally:
            connection.execute('DROP ROLE "o\'Brien"')


@RECORDERS
def test_no_server(record: Recorder, tmp_path: Path) -> None:
    with pytest.raises(ConnectionFailed):
        record(f"host={tmp_path} dbname=x", tmp_path / "a.evidence", seconds=1)
    assert not (tmp_path / "a.evidence").exists()


def later(seconds: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, action)
    timer.start()
    return timer


@RECORDERS
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_lost_server_leaves_valid_evidence(record: Recorder, how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with Cluster.create(None, {"shared_buffers": "4MB", "max_connections": "10"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
        timer = later(3, cluster.restart if how == "restart" else lambda: cluster.stop(immediately=True))
        result = record(cluster.conninfo(), path, seconds=60)
        timer.join()
    assert result.ended_by == "server"
    assert any(
        "connection to the server was lost" in warning or "stopped, restarted or crashed" in warning
        for warning in result.warnings
    )
    evidence = Evidence.open(path)
    assert evidence.complete
    assert evidence.meta.ended_by == "server"
    assert evidence.has("snapshots")
    assert evidence.has("relations")
    assert len(evidence.table("snapshot_times")["snapshot"]) == result.snapshots
    assert 1 < evidence.meta.seconds < 20


def test_a_full_disk_is_told_and_keeps_what_was_complete(
    server: Cluster, database: str, small_disk: Path
) -> None:
    path = small_disk / "a.evidence"
    (small_disk / "ballast").write_bytes(bytes((2 << 20) - (112 << 10)))
    with load_running(server, database), pytest.raises(EvidenceError) as caught:
        record_sql(server.conninfo(database), path, seconds=300)
    assert caught.value.cause == "the file system is full"
    assert caught.value.exit_code == 1
    evidence = Evidence.open(path)
    assert not evidence.complete
    assert evidence.has("snapshots")
    assert evidence.has("relations")
    # The first meta.json stays where the disk has no room left for the last one.
    assert evidence.meta.ended_by in ("disk", "")
    assert evidence.meta.ended_by == "" or 1 < evidence.meta.seconds < 300


@RECORDERS
def test_stop_ends_early_with_valid_evidence(record: Recorder, wheel18: Cluster, tmp_path: Path) -> None:
    stop = threading.Event()
    timer = later(2.5, stop.set)
    result = record(wheel18.conninfo(), tmp_path / "a.evidence", seconds=60, stop=stop)
    timer.join()
    assert result.ended_by == "interrupt"
    assert result.seconds < 10
    assert Evidence.open(tmp_path / "a.evidence").complete
    with pytest.raises(KeyboardInterrupt):
        record(wheel18.conninfo(), tmp_path / "b.evidence", seconds=60, stop=stop)
    assert not (tmp_path / "b.evidence").exists()


def test_a_cancelled_statement_ends_with_valid_evidence(wheel18: Cluster, tmp_path: Path) -> None:
    over = threading.Event()

    def cancel() -> None:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
            while not over.is_set():
                connection.execute(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'pgsweep' AND state = 'active'"
                )

    thread = threading.Timer(3, cancel)
    thread.start()
    try:
        result = record_sql(wheel18.conninfo(), tmp_path / "a.evidence", seconds=60)
    finally:
        over.set()
        thread.join()
    assert result.ended_by == "cancelled"
    assert Evidence.open(tmp_path / "a.evidence").has("snapshots")


@RECORDERS
def test_max_snapshots_ends(record: Recorder, wheel18: Cluster, tmp_path: Path) -> None:
    result = record(wheel18.conninfo(), tmp_path / "a.evidence", seconds=60, max_snapshots=3)
    assert (result.snapshots, result.ended_by) == (3, "limit")


def test_existing_evidence_is_not_overwritten_unless_asked(wheel18: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    record_sql(wheel18.conninfo(), path, seconds=1)
    with pytest.raises(EvidenceError, match="already holds evidence"):
        record_sql(wheel18.conninfo(), path, seconds=1)
    record_sql(wheel18.conninfo(), path, seconds=1, overwrite=True)


@RECORDERS
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_signals_leave_readable_evidence_and_no_session(
    record: Recorder, wheel18: Cluster, tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "a.evidence"
    code = f"""
        from pathlib import Path
        from {record.__module__} import {record.__name__} as record
        print(record({wheel18.conninfo()!r}, Path({str(path)!r}), seconds=60).ended_by)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PGAPPNAME": "to be killed"},
    )
    give_up = time.monotonic() + 60
    while not list(path.glob("snapshots/*.parquet")) and time.monotonic() < give_up:
        time.sleep(0.1)
    process.send_signal(how)
    output, _ = process.communicate(timeout=30)
    evidence = Evidence.open(path)
    assert evidence.has("snapshots")
    assert evidence.has("relations")
    if how == signal.SIGINT:
        assert output.strip() == "interrupt"
        assert evidence.complete
    else:
        assert not evidence.complete
        assert evidence.meta.seconds > 1
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        alive = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'to be killed'"
        while connection.execute(alive).fetchone() != (0,):
            assert time.monotonic() < give_up
            time.sleep(0.1)


def test_a_locked_relation_does_not_hold_up_the_catalog(server: Cluster, database: str) -> None:
    with (
        psycopg.connect(server.conninfo(database)) as holder,
        connect(server.conninfo(database)) as connection,
    ):
        holder.execute("LOCK TABLE page IN ACCESS EXCLUSIVE MODE")
        begin = time.monotonic()
        relations = {relation.name: relation for relation in read_relations(connection)}
        assert time.monotonic() - begin < 2
        holder.rollback()
    assert not relations["page"].measured
    assert relations["page"].main_blocks >= 3000
    assert relations["page_pkey"].measured


def test_names_of_any_encoding_are_read(server: Cluster) -> None:
    with psycopg.connect(server.conninfo(), autocommit=True) as connection:
        for encoding, column in (("SQL_ASCII", b'"\xff\xe9"'), ("LATIN1", b'"\xe9t\xe9"')):
            name = encoding.lower()
            connection.execute(
                f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            )
            try:
                with psycopg.connect(server.conninfo(name), autocommit=True) as inside:
                    inside.execute(f"SET client_encoding = '{encoding}'")
                    inside.execute(b"CREATE TABLE " + column + b" (i int)")
                with connect(server.conninfo(name)) as session:
                    names = {relation.name for relation in read_relations(session)}
                    assert read_server(session).database == name
                assert ("\\xff\\xe9" if encoding == "SQL_ASCII" else "été") in names
            finally:
                connection.execute(f"DROP DATABASE {name}")


def test_queries_are_chosen_by_version() -> None:
    assert "op_bytes" in load("count_io", 170004)
    assert "read_bytes" in load("count_io", 190000)
    assert load("count_writers", 160011) != load("count_writers", 170000)
    with pytest.raises(LookupError):
        load("count_io", 150000)


def steady_clock(snapshots: int, *, lap_seconds: float, interval_seconds: float) -> LapClock:
    clock = LapClock(1000)
    for number in range(snapshots):
        seconds = number * interval_seconds
        clock.add(seconds, zero_frames=400, used_frames=1000, allocations=400 * seconds / lap_seconds)
    return clock


def test_laps_are_estimated_from_allocations() -> None:
    clock = steady_clock(21, lap_seconds=2.0, interval_seconds=1.0)
    assert clock.lap_seconds == pytest.approx(2.0)
    assert clock.laps == pytest.approx(10.0)
    assert clock.effective_snapshots == pytest.approx(1 + 20 * (1 - np.exp(-0.5)))
    assert not clock.suffices
    assert clock.wanted_seconds(1.0) == pytest.approx(11 / (1 - np.exp(-0.5)))
    assert steady_clock(31, lap_seconds=2.0, interval_seconds=1.0).suffices
    still = LapClock(1000)
    for number in range(10):
        still.add(number, zero_frames=10, used_frames=500, allocations=number * 50)
    assert np.isinf(still.lap_seconds)
    assert not still.pool_is_full
    assert still.effective_snapshots == 1.0


def test_the_lap_time_is_that_of_the_hand(server: Cluster, database: str) -> None:
    """Between two snapshots close together, the buffers that changed lie on the arc that the hand passed."""
    frames = 2048
    clock = LapClock(frames)
    with load_running(server, database, sessions=1), connect(server.conninfo(database)) as connection:
        reader = SnapshotReader(connection, require_buffercache(connection), frames)
        counters = CounterReader(connection, {}, [])
        time.sleep(2)
        before, hand, passed, moved = None, None, 0, []
        begin = time.monotonic()
        while (now := time.monotonic() - begin) < 8:
            snapshot = reader.take()
            pages = np.zeros(frames, dtype=np.uint64)
            pages[snapshot.frame - 1] = (snapshot.rel.astype(np.uint64) << np.uint64(32)) + snapshot.block
            changed = np.flatnonzero(pages != before) if before is not None else np.zeros(0, dtype=np.int64)
            if len(changed) > 1:
                # The hand stands where the longest stretch without a change begins.
                gaps = np.diff(np.append(changed, changed[0] + frames))
                at = int(changed[gaps.argmax()])
                passed += 0 if hand is None else (at - hand) % frames
                hand = at
                moved.append(now)
            before = pages
            allocations = next(c.value for c in counters.writers() if c.name == "buffers_alloc")
            clock.add(
                now,
                zero_frames=snapshot.zero_frames,
                used_frames=snapshot.used_frames,
                allocations=allocations,
            )
    seen_lap_seconds = (moved[-1] - moved[0]) / (passed / frames)
    assert 0.8 * seen_lap_seconds < clock.lap_seconds < 1.6 * seen_lap_seconds


def test_the_pace_keeps_its_duty_and_ends() -> None:
    rng = np.random.default_rng(1)
    clock = steady_clock(100, lap_seconds=0.5, interval_seconds=1.0)
    pace = Pace(0.1, seconds=None, max_snapshots=None, clock=clock, rng=rng)
    assert pace.share <= 0.025
    assert pace.reason_to_end(LEAST_SECONDS + 1) == "enough"
    assert pace.reason_to_end(LEAST_SECONDS - 1) is None
    assert Pace(1.0, seconds=10, max_snapshots=None, clock=LapClock(8192), rng=rng).interval_seconds == 10
    assert Pace(0.2, seconds=10, max_snapshots=None, clock=LapClock(8192), rng=rng).interval_seconds == 2.5
    pace = Pace(0.004, seconds=40, max_snapshots=None, clock=LapClock(8192), rng=rng)
    times = []
    while pace.due_seconds < 40:
        times.append(pace.due_seconds)
        pace.choose_next(pace.due_seconds)
    assert 40 <= len(times) <= 62
    assert pace.reason_to_end(39.9) is None
    assert pace.reason_to_end(40.0) == "time"
    slow = steady_clock(6, lap_seconds=100.0, interval_seconds=1.0)
    pace = Pace(0.004, seconds=None, max_snapshots=None, clock=slow, rng=rng)
    pace.choose_next(6.0)
    assert pace.interval_seconds == 10.0
    assert pace.reason_to_end(600) is None
    assert (
        Pace(0.1, seconds=None, max_snapshots=None, clock=LapClock(5), rng=rng).reason_to_end(61) == "still"
    )
