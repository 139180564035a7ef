"""Recording a trace of a real server: the evidence is whole, whatever ends the recording."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psycopg
import pytest

from pgsweep._native import Tracer
from pgsweep.errors import EvidenceError, MissingAbility, PgsweepError
from pgsweep.evidence import writer
from pgsweep.evidence.processor_times import pace_of
from pgsweep.evidence.schema import STATISTICS_RESET
from pgsweep.evidence.store import Evidence
from pgsweep.evidence.trace import record_trace
from pgsweep.pg.catalog.server import Server, read_server
from pgsweep.pg.private.cluster import Cluster
from pgsweep.pg.session.connect import Connection
from pgsweep.sizing.predict import predict
from tests.fix_cli import PGSWEEP
from tests.fix_cluster import recorded_by_nobody
from tests.fix_disk import fill_disk
from tests.fix_recording import WhenRecording
from tests.fix_standby import PRIMARY, standby_of
from tests.fix_trace import EXTEND, can_trace, database, fill

pytestmark = can_trace


@pytest.fixture(autouse=True)
def _cost_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the load for a moment only, where what tracing costs is not what is tested."""
    if request.function is not test_recording_gives_evidence:
        monkeypatch.setattr("pgsweep.evidence.trace_recording.LOAD_SECONDS", 0.1)


def test_recording_gives_evidence(server: Cluster, tmp_path: Path) -> None:
    with database(server, "recorded") as connection:
        fill(connection)
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.001):
                connection.execute(
                    "SELECT filler FROM t WHERE i = %s", (1 + time.monotonic_ns() % 60_000,), prepare=True
                )

        worker = threading.Thread(target=work)
        worker.start()
        try:
            result = record_trace(server.conninfo("recorded"), tmp_path / "x.evidence", seconds=6.0)
        finally:
            stop.set()
            worker.join()
    evidence = Evidence.open(tmp_path / "x.evidence")
    accesses = evidence.table("accesses")
    assert evidence.complete
    assert result.ended_by == evidence.meta.ended_by == "time"
    # Before 16 the server counts the blocks that a relation is extended by as accesses.
    counted = (accesses["kind"] != EXTEND) | (server.version_num < 160000)
    assert result.accesses == np.count_nonzero((accesses["db"] == evidence.meta.database_oid) & counted)
    assert result.accesses > 1000
    assert result.lost_events == 0
    # The load goes on until the probes are gone.
    assert 5 < float(accesses["time_ns"].max()) / 1e9 <= 6.0
    assert result.seconds == evidence.meta.seconds == 6.0
    assert evidence.meta.accesses_per_second == pytest.approx(result.accesses / 6.0)
    assert evidence.meta.overhead["probed_seconds"] > 6.0
    observed = predict(tmp_path / "x.evidence", sizes_bytes=[16 << 20]).observed
    assert (observed.seconds, observed.accesses) == (6.0, result.accesses)
    # Six seconds of twenty rounds each, less what a processor of a busy machine lets it wait; 40 suffice.
    pace = pace_of(evidence.meta)
    assert pace is not None
    assert 0 < pace.error_seconds < pace.seconds < 1e-3
    assert result.snapshots == 2
    facts = evidence.meta.host.keys()
    assert facts & {"disk_latency_by_depth", "disk_latency_not_measured"}
    expected, measured = result.expected_overhead_ratio, result.measured_overhead_ratio
    assert expected is not None
    assert measured is not None
    # The load is paced by a thread of this process, which a busy machine lets wait.
    assert expected / 3 < measured < 3 * expected
    assert np.all(np.diff(accesses["time_ns"].astype(np.int64)) > -1_000_000)
    assert {"t", "t_i_idx"} <= set(evidence.table("relations")["name"].tolist())


class CountingTracer:
    """A tracer that counts the batches that it hands over, and their accesses."""

    batches = accesses = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = Tracer(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def poll(self, timeout_seconds: float) -> Any:
        batch = self._inner.poll(timeout_seconds)
        if batch is not None:
            CountingTracer.batches += 1
            CountingTracer.accesses += len(batch["accesses"]["kind"])
        return batch


@pytest.mark.one_server
def test_accesses_are_handed_over_some_times_a_second(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred batches a second, each a wakeup and a write, doubled what a trace of a quiet server takes."""
    monkeypatch.setattr("pgsweep.evidence.trace.Tracer", CountingTracer)
    stop = threading.Event()
    with database(server, "counted") as connection:
        fill(connection, 20_000)

        def work() -> None:
            while not stop.wait(0.005):
                connection.execute("SELECT count(filler) FROM t")

        worker = threading.Thread(target=work)
        worker.start()
        try:
            record_trace(server.conninfo("counted"), tmp_path / "x.evidence", seconds=3)
        finally:
            stop.set()
            worker.join()
    probed = Evidence.open(tmp_path / "x.evidence").meta.overhead["probed_seconds"]
    assert CountingTracer.accesses > 10_000
    # Five a second, one for each 2^18 accesses that wait, and the last ones.
    assert CountingTracer.batches <= 5 * probed + CountingTracer.accesses / (1 << 18) + 3


class FailingTracer:
    """A tracer whose thread, after some batches, fails as by a panic: the rest is unread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inner = Tracer(*arguments, **options)
        self._batches = 0
        self._unread = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def poll(self, timeout_seconds: float) -> Any:
        batch = self._inner.poll(timeout_seconds)
        if self._batches < 2:
            self._batches += batch is not None
            return batch
        self._unread += 0 if batch is None else len(batch["accesses"]["kind"])
        raise OSError("reading what the probes write has failed: an index out of bounds")

    def unread(self) -> int:
        return self._unread + 1


def test_a_trace_that_is_not_read_to_its_end_is_an_error_and_incomplete(
    server: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgsweep.evidence.trace.Tracer", FailingTracer)
    with database(server, "unread") as connection:
        fill(connection, 20_000)
        work = WhenRecording(
            lambda: connection.execute("SELECT count(filler) FROM t CROSS JOIN generate_series(1, 3)")
        )
        with pytest.raises(PgsweepError, match="the probes failed: reading what the probes write has failed"):
            record_trace(server.conninfo("unread"), tmp_path / "x.evidence", seconds=60, progress=work)
        work.join()
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert not evidence.complete
    assert evidence.meta.ended_by == "error"
    assert evidence.meta.lost_events == evidence.meta.losses["reader_failed"] > 0
    assert any("events were lost" in warning for warning in evidence.meta.warnings)
    assert len(evidence.table("accesses")["kind"]) > 0


@pytest.mark.one_server
def test_a_limit_of_events_is_kept(server: Cluster, tmp_path: Path) -> None:
    with database(server, "limited") as connection:
        fill(connection, 20_000)
        work = WhenRecording(
            lambda: connection.execute("SELECT count(filler) FROM t CROSS JOIN generate_series(1, 3)")
        )
        result = record_trace(
            server.conninfo("limited"), tmp_path / "x.evidence", seconds=30, max_events=100, progress=work
        )
        work.join()
    assert result.ended_by == "limit"
    assert len(Evidence.open(tmp_path / "x.evidence").table("accesses")["kind"]) == 100


@pytest.mark.one_server
def test_a_limit_of_events_is_kept_at_a_low_rate(server: Cluster, tmp_path: Path) -> None:
    """What a few statements a second access is handed out and written while the recording goes on."""
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.05):
            connection.execute("SELECT count(filler) FROM t")

    path = tmp_path / "x.evidence"
    with database(server, "trickle") as connection:
        fill(connection, 100)
        work = WhenRecording(trickle)
        try:
            result = record_trace(server.conninfo("trickle"), path, seconds=40, max_events=100, progress=work)
        finally:
            over.set()
            work.join()
    assert result.ended_by == "limit"
    assert result.seconds < 30
    assert len(Evidence.open(path).table("accesses")["kind"]) == 100


@pytest.mark.one_server
def test_a_limit_of_bytes_is_kept(server: Cluster, tmp_path: Path) -> None:
    """What is on disk before the first access, as of the pool, counts too."""
    over, path = threading.Event(), tmp_path / "x.evidence"

    def late() -> None:
        while not over.wait(1.0):
            connection.execute("SELECT count(filler) FROM t CROSS JOIN generate_series(1, 3)")

    with database(server, "bounded") as connection:
        fill(connection, 20_000)
        work = WhenRecording(late)
        try:
            result = record_trace(
                server.conninfo("bounded"), path, seconds=120, max_bytes=200_000, progress=work
            )
        finally:
            over.set()
            work.join()
    assert result.ended_by == "limit"
    assert 200_000 <= result.bytes_written < 1_000_000
    assert len(Evidence.open(path).table("accesses")["kind"]) > 1000


@pytest.mark.one_server
def test_tables_and_databases_that_are_dropped_are_no_damage(server: Cluster, tmp_path: Path) -> None:
    path, over = tmp_path / "x.evidence", threading.Event()
    with database(server, "shrinks") as connection:
        fill(connection, 20_000)

        def work() -> None:
            connection.execute("SELECT count(filler) FROM t")
            connection.execute(
                "CREATE DATABASE goes STRATEGY wal_log"
                if server.version_num >= 150000
                else "CREATE DATABASE goes"
            )
            connection.execute("DROP DATABASE goes")
            connection.execute("TRUNCATE t")
            connection.execute("DROP TABLE t")
            over.set()

        doing = WhenRecording(work)
        record_trace(server.conninfo("shrinks"), path, seconds=60, stop=over, progress=doing)
        doing.join()
    drops = Evidence.open(path).table("drops")
    assert 255 in drops["fork"] and 0 in drops["rel"]
    assert predict(path, sizes_bytes=[16 << 20]).source == "trace"


def test_a_quiet_time_is_part_of_the_observation(wheel18: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "x.evidence"
    with database(wheel18, "burst") as connection:
        fill(connection)
        burst = WhenRecording(lambda: connection.execute("SELECT count(filler) FROM t WHERE i > 0"), 1.0)
        record_trace(wheel18.conninfo("burst"), path, seconds=5, progress=burst)
        burst.join()
    accesses = Evidence.open(path).table("accesses")
    assert np.ptp(accesses["time_ns"]) < 3e9
    observed = predict(path, sizes_bytes=[16 << 20]).observed
    assert 5 <= observed.seconds < 7


def test_statistics_that_are_reset_are_said(wheel18: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "x.evidence"
    with database(wheel18, "again") as connection:
        fill(connection)

        def reset() -> None:
            connection.execute("SELECT pg_stat_reset()")
            # More is counted after it than before it, so no counter shows it.
            connection.execute("SELECT count(a.filler) FROM t AS a, generate_series(1, 3) AS again")
            connection.execute("SELECT pg_stat_force_next_flush()")

        doing = WhenRecording(reset)
        result = record_trace(wheel18.conninfo("again"), path, seconds=3, progress=doing)
        doing.join()
    assert STATISTICS_RESET in result.warnings
    assert STATISTICS_RESET in Evidence.open(path).meta.warnings
    assert STATISTICS_RESET in predict(path, sizes_bytes=[16 << 20]).verdict.sentences


def test_what_recovery_accesses_is_not_the_databases(tmp_path: Path) -> None:
    path, over = tmp_path / "x.evidence", threading.Event()
    with Cluster.create(settings=PRIMARY) as primary, ExitStack() as closing:
        writing = closing.enter_context(psycopg.connect(primary.conninfo(), autocommit=True))
        writing.execute("CREATE TABLE t (i int, filler text)")
        standby = closing.enter_context(standby_of(primary))

        def work() -> None:
            fill = "INSERT INTO t SELECT g, repeat('x', 200) FROM generate_series(1, 20000) AS g"
            writing.execute(fill.encode())
            row = writing.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            with psycopg.connect(standby.conninfo(), autocommit=True) as reading:
                while reading.execute("SELECT pg_last_wal_replay_lsn() < %s", row).fetchone() == (True,):
                    time.sleep(0.05)
                for _ in range(20):
                    reading.execute("SELECT count(*) FROM t")
                reading.execute("SELECT pg_stat_force_next_flush()")
            over.set()

        load = WhenRecording(work)
        result = record_trace(standby.conninfo(), path, seconds=60, stop=over, progress=load)
        load.join()
        evidence = Evidence.open(path)
    accesses, counters = evidence.table("accesses"), evidence.table("counters")
    replayed = accesses["pid"] == int(evidence.meta.host["recovery_pid"])
    assert np.count_nonzero(replayed) > result.accesses > 10_000
    counted = 0.0
    for name in ("blks_hit", "blks_read"):
        of_database = (counters["scope"] == "database") & (counters["object"] == "postgres")
        values = counters["value"][of_database & (counters["name"] == name)]
        counted += values[-1] - values[0]
    # The counters begin and end with the recorder's own look at them.
    assert result.accesses == pytest.approx(counted, abs=500)
    assert predict(path, sizes_bytes=[16 << 20]).observed.accesses == pytest.approx(counted, abs=500)


@pytest.mark.one_server
def test_a_stop_leaves_valid_evidence(server: Cluster, tmp_path: Path) -> None:
    stop = threading.Event()
    result = record_trace(
        server.conninfo(), tmp_path / "x.evidence", stop=stop, progress=WhenRecording(stop.set)
    )
    assert result.ended_by == "interrupt"
    assert Evidence.open(tmp_path / "x.evidence").complete


@pytest.mark.parametrize("immediately", [False, True])
def test_a_server_that_stops_ends_the_recording(wheel18: Cluster, tmp_path: Path, immediately: bool) -> None:
    with Cluster.create(wheel18.bindir, {"shared_buffers": "16MB"}) as cluster:
        ending = WhenRecording(lambda: cluster.stop(immediately=immediately))
        result = record_trace(cluster.conninfo(), tmp_path / "x.evidence", seconds=30, progress=ending)
        ending.join()
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert result.ended_by == evidence.meta.ended_by == "server"
    assert evidence.complete
    assert any("stopped, restarted or crashed" in text for text in result.warnings)
    assert result.seconds == evidence.meta.seconds < 30


def test_a_crash_of_a_backend_ends_the_recording(wheel18: Cluster, tmp_path: Path) -> None:
    """The postmaster lives on, but the pool is emptied: what follows is another story."""
    with (
        Cluster.create(wheel18.bindir, {"shared_buffers": "16MB"}) as cluster,
        psycopg.connect(cluster.conninfo(), autocommit=True) as victim,
    ):
        pid = victim.info.backend_pid
        crash = WhenRecording(lambda: os.kill(pid, signal.SIGKILL))
        result = record_trace(cluster.conninfo(), tmp_path / "x.evidence", seconds=30, progress=crash)
    assert result.ended_by == "server"


def test_a_server_elsewhere_cannot_be_traced(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The start time that the server says fits no process here, as with a server on another host.
    monkeypatch.setattr("pgsweep.host.postmaster.postmaster_start_time", lambda _pid: -1)
    with pytest.raises(MissingAbility, match="does not run on this host") as caught:
        record_trace(wheel18.conninfo(), tmp_path / "x.evidence", seconds=1)
    assert "pgsweep doctor" in (caught.value.hint or "")
    assert not (tmp_path / "x.evidence").exists()


def test_an_unprivileged_user_learns_to_use_root(wheel18: Cluster, tmp_path: Path) -> None:
    reported = recorded_by_nobody(wheel18, "trace", tmp_path / "x.evidence")
    assert "may not be read" in reported
    assert "sudo" in reported


def test_a_full_disk_is_reported_and_what_was_written_stays(
    wheel18: Cluster, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "FLUSH_SECONDS", 1.0)  # so that the disk is full soon
    fill_disk(small_disk, but_bytes=512 << 10)
    with database(wheel18, "disk") as connection:
        fill(connection)
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.02):
                connection.execute("SELECT count(filler) FROM t WHERE i > 0")

        worker = threading.Thread(target=work)
        worker.start()
        try:
            with pytest.raises(EvidenceError, match="cannot write evidence"):
                record_trace(wheel18.conninfo("disk"), small_disk / "x.evidence", seconds=60)
        finally:
            stop.set()
            worker.join()
    evidence = Evidence.open(small_disk / "x.evidence")
    assert not evidence.complete
    assert evidence.meta.ended_by == "disk"


def test_memory_that_contradicts_the_server_is_not_in_the_evidence(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_size(connection: Connection) -> Server:
        server = read_server(connection)
        return msgspec.structs.replace(server, shared_buffers_blocks=server.shared_buffers_blocks + 1)

    states: list[object] = []

    def tracer(*arguments: Any, **options: Any) -> Tracer:
        states.append(options["buffer_states"])
        return Tracer(*arguments, **options)

    monkeypatch.setattr("pgsweep.evidence.trace.read_server", other_size)
    monkeypatch.setattr("pgsweep.evidence.trace.Tracer", tracer)
    result = record_trace(wheel18.conninfo(), tmp_path / "x.evidence", seconds=0.5)
    assert result.snapshots == 0
    [warning] = [text for text in result.warnings if "the pool's contents are not in the evidence" in text]
    assert "buffers there, shared_buffers is" in warning
    assert warning.endswith("; the probes read no states of buffers either")
    assert states == [False]
    assert not Evidence.open(tmp_path / "x.evidence").has("snapshots")


def test_a_version_whose_layout_is_not_known_is_not_traced(
    wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pgsweep.evidence.trace.read_server",
        lambda connection: msgspec.structs.replace(read_server(connection), version_num=200000),
    )
    with pytest.raises(MissingAbility, match="tracing PostgreSQL 20 is not possible"):
        record_trace(wheel18.conninfo(), tmp_path / "x.evidence", seconds=0.5)
    assert not (tmp_path / "x.evidence").exists()


@pytest.mark.one_server
@pytest.mark.parametrize("files", [14, 40])
def test_where_no_more_files_may_be_open_that_is_said(server: Cluster, tmp_path: Path, files: int) -> None:
    """Before the evidence can be made, and when probes are placed: neither disk nor kernel is to blame."""
    words = [PGSWEEP, "record", server.conninfo(), "--source", "trace", "--for", "1s", "-o", "x.evidence"]
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *words]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "hint: ulimit -n 1024" in done.stderr, done.stderr
