"""How long reads take, timed by probes in a real server: against what the server itself says of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest

from pgsweep._native import ReadTimer
from pgsweep.errors import MissingAbility, UsageError
from pgsweep.evidence.peek import record_peek
from pgsweep.evidence.read_timing import TIMED_SECONDS, Columns, ReadTiming
from pgsweep.evidence.record import plan_record, record
from pgsweep.evidence.store import Evidence
from pgsweep.pg.private.cluster import Cluster
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.throughput.measured_loop import Refused, measure_loop
from pgsweep.sizing.throughput.read_times import read_times
from pgsweep.sizing.throughput.timed_reads import timed_reads, waited_per_second
from pgsweep.testbed.pgbench import DATABASE, RunningWorkload, create_database
from pgsweep.testbed.workloads import ZIPF
from tests.fix_process import wait_until
from tests.fix_trace import can_trace, database, fill

pytestmark = can_trace


def counts(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Return the blocks that this session's database has read, and the milliseconds that it took."""
    connection.execute(
        "SELECT pg_stat_force_next_flush()" if connection.info.server_version >= 150000 else ""
    )
    row = connection.execute(
        "SELECT blks_read, blk_read_time FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return float(row[0]), float(row[1])


ROWS = 150_000
"""So many that the pool of 16 MB never holds the table: a scan does not always stay in its ring."""


def read_all(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Read the table `t`, which is larger than the pool; return the blocks and the seconds."""
    before = counts(connection)
    connection.execute("SELECT count(filler) FROM t")
    after = counts(connection)
    return after[0] - before[0], (after[1] - before[1]) / 1000


@pytest.mark.parametrize("attachment", ["link", "perf_event"])
def test_reads_are_timed_as_the_server_times_them(server: Cluster, attachment: str) -> None:
    assert server.postmaster_pid is not None
    timer = ReadTimer(server.postmaster_pid, attachment=attachment)
    with database(server, "timed") as connection:
        fill(connection, ROWS)
        connection.execute("SET track_io_timing = on")
        connection.execute("SET max_parallel_workers_per_gather = 0")
        read_all(connection)
        assert timer.histogram()["reads"].sum() == 0, "nothing is timed before the probes are attached"
        timer.attach()
        timer.attach()
        begin = time.monotonic()
        blocks, seconds = read_all(connection)
        taken = time.monotonic() - begin
        timer.detach()
        seen = timer.histogram()
        read_all(connection)
        assert timer.histogram()["reads"].sum() == seen["reads"].sum(), "nor after they are gone"
    reads, timed = int(seen["reads"].sum()), float(seen["nanoseconds"].sum()) / 1e9
    assert blocks > 100
    if server.version_num < 170000:
        # Besides, the session may have read a few blocks of catalogs.
        assert blocks <= reads <= blocks + 50
        # What the probes take is in the server's time of a read, and a part of it in theirs.
        assert timed == pytest.approx(seconds, rel=0.5, abs=0.05)
    else:
        # A read is of up to 32 blocks.
        assert blocks / 32 <= reads <= blocks + 50
    assert 0 < timed < taken
    inside = seen["reads"] > 0
    mean = seen["nanoseconds"][inside] / seen["reads"][inside]
    assert ((seen["from_ns"][inside] <= mean) & (mean < seen["below_ns"][inside])).all()


def test_reads_of_another_cluster_are_not_timed(server: Cluster) -> None:
    with Cluster.create(server.bindir, {"shared_buffers": "16MB", "autovacuum": "off"}) as other:
        assert other.postmaster_pid is not None
        timer = ReadTimer(other.postmaster_pid)
        with database(server, "others") as connection:
            fill(connection, ROWS)
            timer.attach()
            assert read_all(connection)[0] > 100
            timer.detach()
        assert timer.histogram()["reads"].sum() == 0


def test_what_timing_adds_is_measured(server: Cluster) -> None:
    assert server.postmaster_pid is not None
    added, cost = ReadTimer(server.postmaster_pid).own_seconds
    assert 1e-8 < added < cost < 1e-3


def test_a_stretch_without_reads_is_known_too(server: Cluster) -> None:
    assert server.postmaster_pid is not None
    timer = ReadTimer(server.postmaster_pid)
    taken: list[Columns] = []

    def has_ended() -> bool:
        taken.append(timing.take())
        return len(taken[-1]["reads"]) > 0

    with ReadTiming(timer, time.monotonic()) as timing:
        wait_until(has_ended, why=lambda: timing.failure)
    rows = taken[-1]
    assert timing.failure == ""
    assert (rows["reads"].tolist(), rows["stretch"].tolist()) == ([0], [0])
    assert rows["end_seconds"][0] - rows["begin_seconds"][0] >= TIMED_SECONDS
    assert len(timing.take()["reads"]) == 0, "each row is given once"


def test_throughput_is_predicted_where_the_server_times_nothing(bindir: Path | None, tmp_path: Path) -> None:
    """The same load twice: timed by the server, then by probes alone."""
    settings = {"shared_buffers": "8MB", "autovacuum": "off", "track_io_timing": "on"}
    with Cluster.create(bindir, settings) as cluster:
        create_database(cluster, 4)
        # At full speed it would take all of two processors.
        with RunningWorkload(cluster, ZIPF, seed=1, scale=4, rate_per_second=700):
            record_peek(cluster.conninfo(DATABASE), tmp_path / "on.evidence", seconds=7, time_reads=True)
            with psycopg.connect(cluster.conninfo(), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET track_io_timing = off")
                connection.execute("SELECT pg_reload_conf()")
            record_peek(cluster.conninfo(DATABASE), tmp_path / "off.evidence", seconds=7, time_reads=True)
            record_peek(cluster.conninfo(DATABASE), tmp_path / "not.evidence", seconds=3)
    both, off, unknown = (
        Observation(Evidence.open(tmp_path / f"{name}.evidence")) for name in ("on", "off", "not")
    )
    rate = both.counters.rate
    by_server, by_probes = rate("database", DATABASE, "blk_read_time"), waited_per_second(both)
    assert by_server is not None
    assert by_probes is not None
    # One second in seven was timed: the load need not be the same in the others.
    assert 1 / 3 < by_probes / (by_server / 1000) < 3
    assert off.server.settings["track_io_timing"] == "off"
    waited, found = waited_per_second(off), read_times(off)
    blocks = off.counters.rate("database", DATABASE, "blks_read")
    assert found is not None
    assert waited is not None
    assert blocks is not None
    assert found.mean_seconds == pytest.approx(waited / blocks)
    timed = timed_reads(off)
    assert timed is not None
    assert timed.reads > 100
    assert 0 < timed.median_seconds <= timed.p90_seconds <= timed.p99_seconds <= timed.p999_seconds
    assert off.server.overhead["timed_reads"] == timed.reads
    with pytest.raises(Refused, match="pgsweep record --time-reads"):
        measure_loop(unknown)
    # Where other programs use the processors it is refused for that, and no more for want of times.
    try:
        assert measure_loop(off).read_seconds == waited
    except Refused as refused:
        assert "--time-reads" not in str(refused)


def test_a_trace_times_reads_by_itself(server: Cluster, tmp_path: Path) -> None:
    with database(server, "traced") as connection:
        fill(connection)
        record(server.conninfo("traced"), tmp_path / "x.evidence", source="trace", seconds=1.0)
    evidence = Evidence.open(tmp_path / "x.evidence")
    assert evidence.meta.host["read_times_function"] == (
        "mdread" if server.version_num < 170000 else "WaitReadBuffers"
    )
    rows = evidence.table("read_times")
    assert np.unique(rows["stretch"]).tolist() == [0]
    assert 0 < rows["end_seconds"][0] - rows["begin_seconds"][0] < 1.0


def test_what_is_not_possible_is_refused(server: Cluster, tmp_path: Path, monkeypatch: Any) -> None:
    out = tmp_path / "x.evidence"
    with pytest.raises(UsageError, match="--source sql has none"):
        record(server.conninfo(), out, source="sql", time_reads=True)
    with pytest.raises(UsageError, match="--source sql has none"):
        plan_record(server.conninfo(), out, source="sql", time_reads=True)

    def refuse(*_: Any, **__: Any) -> ReadTimer:
        raise PermissionError(1, "the kernel does not let us make an eBPF array")

    monkeypatch.setattr("pgsweep.evidence.read_timing.ReadTimer", refuse)
    with pytest.raises(MissingAbility, match="reads cannot be timed") as refused:
        record(server.conninfo(), out, source="peek", time_reads=True)
    assert refused.value.cause == "the kernel does not let us make an eBPF array"
    assert not out.exists()


def test_a_dry_run_shows_the_probes(server: Cluster, tmp_path: Path) -> None:
    plans = {
        asked: plan_record(server.conninfo(), tmp_path / "x.evidence", source="peek", time_reads=asked)
        for asked in (True, False)
    }
    shown = {asked: [step for step in plan.steps if "mdread" in step.text] for asked, plan in plans.items()}
    assert [len(steps) for steps in shown.values()] == [1, 0]
    assert shown[True][0].when.startswith("for 0.5 s in every 5 s")
