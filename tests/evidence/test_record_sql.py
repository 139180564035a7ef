from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep.errors import ConnectionFailed, MissingAbility
from pgsweep.evidence import snapshots
from pgsweep.evidence.names import relation_names
from pgsweep.evidence.sampling import BlockSample
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.pg.catalog.buffercache import SnapshotReader
from pgsweep.pg.catalog.server import estimated_sizes, read_relations, read_server, require_buffercache
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.queries import load
from pgsweep.pg.session.connect import connect
from pgsweep.progress import NullListener
from tests.fix_page import load_running, wait_for_pages
from tests.fix_process import busyness, wait_until
from tests.fix_recording import RECORDERS, Heard, Recorder


def counter_change(evidence: Evidence, scope: str, label: str, name: str) -> float:
    table = evidence.table("counters")
    rows = (table["scope"] == scope) & (table["object"] == label) & (table["name"] == name)
    values = table["value"][rows]
    return float(values[-1] - values[0]) if len(values) else 0.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not count by process")
@RECORDERS
def test_the_cost_is_what_the_server_worked_not_how_long_it_waited_for_a_processor(
    server: Cluster, database: str, tmp_path: Path, record: Recorder
) -> None:
    """The recorder's process on the server runs for 5 ms of each 100, as on a host with much else to do."""
    done = threading.Event()

    def hold_back() -> None:
        query = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgsweep%'"
        with psycopg.connect(server.conninfo(), autocommit=True) as connection:
            while not done.is_set():
                pids = [pid for (pid,) in connection.execute(query)]
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, number)
                    time.sleep(0.095 if number == signal.SIGSTOP else 0.005)

    holding = threading.Thread(target=hold_back)
    holding.start()
    try:
        result = record(server.conninfo(database), tmp_path / "a.evidence", seconds=4, rng_seed=1)
    finally:
        done.set()
        holding.join()
    expected, measured = result.expected_overhead_ratio, result.measured_overhead_ratio
    assert expected is not None
    assert measured is not None
    meta = Evidence.open(tmp_path / "a.evidence").meta
    waited = meta.overhead["snapshot_seconds"] * result.snapshots / result.seconds
    if result.source == "sql":
        assert measured < 0.5 * waited, "it was stopped for most of that time"
    assert expected / 4 < measured < 4 * expected, (expected, measured)


def test_a_recording_holds_what_the_server_did(server: Cluster, database: str, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    heard = Heard()
    with load_running(server, database):
        wait_for_pages(server, database)
        result = record_sql(server.conninfo(database), path, seconds=8, rng_seed=1, progress=heard)
    assert result.ended_by == "time"
    assert result.source == "sql"
    assert result.shared_buffers_bytes == 16 << 20
    assert result.snapshots >= 3  # 8 or more, on a quiet machine
    assert any("expected cost" in note for note in heard.notes)
    assert heard.done_seconds == pytest.approx(8, abs=busyness())

    evidence = Evidence.open(path)
    assert evidence.complete
    meta = evidence.meta
    assert (meta.database, meta.shared_buffers_blocks, meta.block_size_bytes) == (database, 2048, 8192)
    assert meta.server_version_num == server.version_num
    assert meta.settings["shared_buffers"] == "2048"
    assert meta.sampling == {"seed": 1.0}
    assert meta.accesses_per_second is None, "0 is a number of accesses"

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
    names = relation_names(relations)
    assert {"public.page (TOAST)", "public.page (TOAST index)"} <= set(names)
    assert not [name for name in names if "pg_toast" in name]
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
            "usagecount FROM public.pg_buffercache WHERE relfilenode IS NOT NULL"
        ).fetchall()
        taken = zip(
            *(
                column.tolist()
                for column in (
                    whole.buffer, whole.spc, whole.db, whole.rel, whole.fork, whole.block, whole.usage_count
                )
            ),
            strict=True,
        )  # fmt: skip
        ours, theirs = set(taken), set(rows)
        # The catalogs that the second statement looked at may have gained a use.
        assert len(ours & theirs) > 0.9 * len(theirs)
        assert {row[:6] for row in ours} & {row[:6] for row in theirs} == {row[:6] for row in ours}
        assert whole.used_buffers == len(whole.buffer)

        sample = BlockSample.draw(0.3, 7)
        part = SnapshotReader(connection, schema, 2048, modulus=sample.modulus, offsets=sample.offsets).take()
        assert part.used_buffers == pytest.approx(whole.used_buffers, abs=20)
        assert np.all(sample.contains(part.rel, part.block))
        inside = sample.contains(whole.rel, whole.block)
        assert len(part.buffer) == pytest.approx(np.count_nonzero(inside), abs=20)


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
    assert "-U postgres -d bare -c 'CREATE EXTENSION pg_buffercache'" in str(caught.value.hint)
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


def test_a_locked_relation_does_not_hold_up_the_catalog(server: Cluster, database: str) -> None:
    with (
        psycopg.connect(server.conninfo(database)) as holder,
        connect(server.conninfo(database)) as connection,
    ):
        holder.execute("LOCK TABLE page IN ACCESS EXCLUSIVE MODE")
        begin = time.monotonic()
        relations = {relation.name: relation for relation in read_relations(connection)}
        assert time.monotonic() - begin < 2 * busyness()
        holder.rollback()
    assert not relations["page"].measured
    assert relations["page"].main_blocks >= 3000
    assert relations["page_pkey"].measured


def test_a_queued_alter_table_costs_no_other_relation_its_size(server: Cluster, database: str) -> None:
    """It waits for a reader; whoever comes after it waits too. Which sizes are estimates is said."""
    with (
        psycopg.connect(server.conninfo(database)) as reader,
        psycopg.connect(server.conninfo(database), autocommit=True) as alters,
        connect(server.conninfo(database)) as connection,
    ):
        reader.execute("SELECT FROM page LIMIT 1")
        waiting = threading.Thread(target=refused, args=(alters, "ALTER TABLE page ADD COLUMN more int"))
        waiting.start()
        asked = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"
        wait_until(lambda: connection.execute(asked).fetchone() == (1,))
        relations = read_relations(connection)
        alters.cancel()
        waiting.join()
    assert [relation.name for relation in relations if not relation.measured] == ["page"]
    assert "page is an estimate" in (estimated_sizes(relations) or "")
    with connect(server.conninfo(database)) as connection:
        assert estimated_sizes(read_relations(connection)) is None


def refused(session: psycopg.Connection[Any], statement: str) -> None:
    """Execute a statement that is cancelled."""
    with contextlib.suppress(psycopg.errors.QueryCanceled):
        session.execute(statement.encode())


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


def test_progress_says_from_the_start_what_ends_a_recording_without_a_time(
    server: Cluster, database: str, tmp_path: Path
) -> None:
    stop = threading.Event()
    stop.set()
    heard = Heard()
    path = tmp_path / "e.evidence"
    with pytest.raises(KeyboardInterrupt):
        record_sql(server.conninfo(database), path, seconds=None, progress=heard, stop=stop)
    assert "recording snapshots until there is enough data" in heard.stages


@RECORDERS
def test_a_hole_is_in_the_evidence(
    record: Recorder, server: Cluster, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "COUNTER_SECONDS", 0.5)
    path = tmp_path / "x.evidence"

    class HeldUp(NullListener):
        held = False

        def advance(self, done_seconds: float) -> None:
            if done_seconds > 1 and not self.held:
                self.held = True
                time.sleep(2)

    record(server.conninfo(database), path, seconds=4, progress=HeldUp())
    said = [text for text in Evidence.open(path).warnings if text.startswith("nothing was sampled for ")]
    assert len(said) == 1
