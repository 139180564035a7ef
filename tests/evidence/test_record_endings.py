"""Whatever ends a recording of snapshots, by SQL or from memory, what was seen until then is evidence."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgsweep.errors import EvidenceError
from pgsweep.evidence import writer
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.schema import SERVER_ENDED
from pgsweep.evidence.sql import record_sql
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import Connection, connect
from pgsweep.ui.views.record import ending as ending_text
from tests.fix_page import load_running
from tests.fix_process import Patience, wait_until
from tests.fix_recording import RECORDERS, Recorder, WhenRecording, a_snapshot_seconds
from tests.fix_trace import can_trace

EVERY_RECORDER = pytest.mark.parametrize(
    "record", [record_sql, record_peek, pytest.param(record_trace, marks=can_trace)]
)


@RECORDERS
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_lost_server_leaves_valid_evidence(record: Recorder, how: str, tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with Cluster.create(None, {"shared_buffers": "4MB", "max_connections": "10"}) as cluster:
        with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
            connection.execute("CREATE EXTENSION pg_buffercache")
        loss = WhenRecording(
            cluster.restart if how == "restart" else lambda: cluster.stop(immediately=True),
            after_seconds=a_snapshot_seconds(),
        )
        result = record(cluster.conninfo(), path, seconds=60, progress=loss)
        loss.join()
    assert result.ended_by == "server"
    assert SERVER_ENDED in result.warnings
    evidence = Evidence.open(path)
    assert evidence.complete
    assert evidence.meta.ended_by == "server"
    assert evidence.has("snapshots")
    assert evidence.has("relations")
    assert len(evidence.table("snapshot_times")["snapshot"]) == result.snapshots
    # As long as something was counted, not until the loss was noticed.
    counters = evidence.table("counters")
    counted_seconds = counters["seconds"][counters["scope"] != "pool"].max()
    assert 0 < evidence.meta.seconds == result.seconds == counted_seconds < 55


@EVERY_RECORDER
@pytest.mark.parametrize("how", ["terminate", "drop"])
def test_a_session_that_is_ended_is_no_lost_server(
    record: Recorder, how: str, wheel18: Cluster, tmp_path: Path
) -> None:
    path, trace = tmp_path / "a.evidence", record is record_trace

    def end() -> None:
        with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
            if how == "drop":
                connection.execute("DROP DATABASE goes WITH (FORCE)")
            else:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'pgsweep' AND datname = 'goes'"
                )

    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS goes")
        connection.execute("CREATE DATABASE goes")
        with psycopg.connect(wheel18.conninfo("goes"), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
        ending = WhenRecording(end, after_seconds=0.0 if trace else a_snapshot_seconds())
        result = record(wheel18.conninfo("goes"), path, seconds=60, progress=ending)
        ending.join()
        connection.execute("DROP DATABASE IF EXISTS goes")
    evidence = Evidence.open(path)
    assert evidence.complete
    assert result.ended_by == evidence.meta.ended_by == {"terminate": "session", "drop": "dropped"}[how]
    said = " ".join([ending_text(result.ended_by), *result.warnings])
    assert {"terminate": "an administrator ended", "drop": "the database was dropped"}[how] in said
    assert "crashed" not in said
    assert result.seconds < 55


def test_a_connection_that_breaks_is_no_lost_server(wheel18: Cluster, tmp_path: Path) -> None:
    sockets: list[socket.socket] = []

    def connected(*arguments: Any, **options: Any) -> Connection:
        connection = connect(*arguments, **options)
        sockets.append(socket.socket(fileno=os.dup(connection.pgconn.socket)))
        return connection

    breaking = WhenRecording(
        lambda: sockets[0].shutdown(socket.SHUT_RDWR), after_seconds=a_snapshot_seconds()
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pgsweep.evidence.observe.connect", connected)
        result = record_sql(wheel18.conninfo(), tmp_path / "a.evidence", seconds=60, progress=breaking)
    breaking.join()
    for one in sockets:
        one.close()
    assert result.ended_by == "connection"


def test_a_full_disk_is_reported_and_keeps_what_was_complete(
    server: Cluster, database: str, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_disk / "a.evidence"
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 0.3)  # so that the disk is full soon
    (small_disk / "ballast").write_bytes(bytes((2 << 20) - (80 << 10)))
    with load_running(server, database), pytest.raises(EvidenceError) as caught:
        record_sql(server.conninfo(database), path, seconds=300)
    assert caught.value.cause == "the file system is full"
    assert caught.value.exit_code == 1
    evidence = Evidence.open(path)
    assert not evidence.complete
    assert evidence.has("snapshots")
    assert evidence.has("relations")
    assert evidence.meta.ended_by == "disk"
    assert 1 < evidence.meta.seconds < 300


@RECORDERS
def test_stop_ends_early_with_valid_evidence(record: Recorder, wheel18: Cluster, tmp_path: Path) -> None:
    stop = threading.Event()
    ending = WhenRecording(stop.set, after_seconds=a_snapshot_seconds())
    result = record(wheel18.conninfo(), tmp_path / "a.evidence", seconds=60, stop=stop, progress=ending)
    ending.join()
    assert result.ended_by == "interrupt"
    assert result.seconds < 55
    assert Evidence.open(tmp_path / "a.evidence").complete
    with pytest.raises(KeyboardInterrupt):
        record(wheel18.conninfo(), tmp_path / "b.evidence", seconds=60, stop=stop)
    assert not (tmp_path / "b.evidence").exists()


def test_a_cancelled_statement_ends_with_valid_evidence(wheel18: Cluster, tmp_path: Path) -> None:
    def cancel() -> None:
        """A snapshot that waits for a lock is there to be cancelled, however busy the machine is."""
        with psycopg.connect(wheel18.conninfo()) as locking:
            locking.execute("LOCK TABLE pg_buffercache IN ACCESS EXCLUSIVE MODE")
            with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
                wait_until(
                    lambda: (
                        connection.execute(
                            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
                            "WHERE application_name = 'pgsweep' AND wait_event_type = 'Lock'"
                        ).rowcount
                    )
                )

    cancelling = WhenRecording(cancel, after_seconds=a_snapshot_seconds())
    result = record_sql(wheel18.conninfo(), tmp_path / "a.evidence", seconds=60, progress=cancelling)
    cancelling.join()
    assert result.ended_by == "cancelled"
    assert Evidence.open(tmp_path / "a.evidence").has("snapshots")


@pytest.mark.parametrize("how", ["DROP EXTENSION pg_buffercache", "REVOKE pg_monitor FROM watcher"])
def test_what_was_gathered_stays_when_the_extension_goes(
    server: Cluster, database: str, tmp_path: Path, how: str
) -> None:
    def act() -> None:
        with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
            connection.execute(how.encode())

    with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_buffercache")
        connection.execute("CREATE ROLE watcher LOGIN IN ROLE pg_monitor")
    try:
        acting = WhenRecording(act, after_seconds=a_snapshot_seconds())
        conninfo = psycopg.conninfo.make_conninfo(server.conninfo(database), user="watcher")
        result = record_sql(conninfo, tmp_path / "a.evidence", seconds=60, progress=acting)
        acting.join()
    finally:
        with psycopg.connect(server.conninfo(database), autocommit=True) as connection:
            connection.execute("DROP ROLE watcher")
    assert result.ended_by == "refused"
    assert any(
        "was pg_buffercache dropped, or a privilege revoked?" in warning for warning in result.warnings
    )
    evidence = Evidence.open(tmp_path / "a.evidence")
    assert evidence.complete
    assert len(evidence.table("snapshot_times")["snapshot"]) == result.snapshots > 0


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
        from pgsweep.evidence import writer
        from {record.__module__} import {record.__name__} as record
        writer.FLUSH_SECONDS = 1.0
        print(record({wheel18.conninfo()!r}, Path({str(path)!r}), seconds=60).ended_by)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PGAPPNAME": "to be killed"},
    )
    give_up = Patience(60)
    wait_until((path / "snapshots/part-00001.parquet").exists)
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
        ends = [("snapshot_times", "end_seconds"), ("counters", "seconds")]
        last_seconds = max(evidence.table(table)[column].max() for table, column in ends)
        assert evidence.meta.seconds == pytest.approx(last_seconds)
        assert last_seconds > 0
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        alive = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'to be killed'"
        while connection.execute(alive).fetchone() != (0,):
            assert give_up.left() > 0
            time.sleep(0.1)
