"""Evidence in pieces, joined to a window."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pgsweep.errors import EvidenceError
from pgsweep.evidence.joined import JoinedEvidence
from pgsweep.evidence.reader import Evidence
from pgsweep.evidence.sql import record_sql
from pgsweep.pg.private.cluster import Cluster
from pgsweep.serve.forecast import Request, predict_pieces
from pgsweep.serve.recording import keep_to, pieces_of
from pgsweep.sizing.observed import Observation
from pgsweep.sizing.predict import WindowModel, predict
from tests.fix_page import load_running
from tests.fix_process import Patience


@pytest.fixture(scope="module")
def pieces(wheel18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three pieces of a few seconds, one after the other, of a database under load."""
    import psycopg

    folder = tmp_path_factory.mktemp("pieces")
    with psycopg.connect(wheel18.conninfo(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE joined")
        with psycopg.connect(wheel18.conninfo("joined"), autocommit=True) as inside:
            inside.execute("CREATE EXTENSION pg_buffercache")
            inside.execute("CREATE TABLE page (id int PRIMARY KEY, filler text)")
            inside.execute("ALTER TABLE page ALTER filler SET STORAGE PLAIN")
            inside.execute("INSERT INTO page SELECT g, repeat('x', 1800) FROM generate_series(1, 12000) g")
            inside.execute("VACUUM ANALYZE")
        with load_running(wheel18, "joined"):
            for number in range(3):
                path = folder / f"{time.time() + number:.0f}.evidence"
                record_sql(wheel18.conninfo("joined"), path, seconds=3, rng_seed=1)
        connection.execute("DROP DATABASE joined WITH (FORCE)")
    return pieces_of(folder)


def reads(evidence: Evidence | JoinedEvidence) -> list[float]:
    table = evidence.table("counters")
    rows = (table["scope"] == "database") & (table["object"] == "joined") & (table["name"] == "blks_read")
    return [float(value) for value in table["value"][rows]]


def test_all_pieces_make_one_window(pieces: list[Path]) -> None:
    opened = [Evidence.open(piece) for piece in pieces]
    joined = JoinedEvidence.of(pieces, 3600)
    assert reads(joined)[0] == reads(opened[0])[0]
    assert reads(joined)[-1] == reads(opened[-1])[-1]
    times = joined.table("snapshot_times")
    assert len(times["snapshot"]) == sum(each.rows("snapshot_times") for each in opened)
    assert (np.diff(times["begin_seconds"]) > 0).all()
    assert (np.diff(joined.table("counters")["seconds"]) >= 0).all()
    assert joined.meta.seconds > 8
    snapshots = joined.table("snapshots")
    last = opened[-1].table("snapshots")
    number = int(times["snapshot"][-1])
    there = last["snapshot"] == last["snapshot"].max()
    assert (snapshots["snapshot"] == number).sum() == there.sum()
    assert np.array_equal(snapshots["block"][snapshots["snapshot"] == number], last["block"][there])


def test_a_short_window_has_the_newest_only_and_a_limit_of_snapshots(pieces: list[Path]) -> None:
    assert JoinedEvidence.of(pieces, 1.0).meta.seconds < 4
    few = JoinedEvidence.of(pieces, 3600, most_snapshots=4, most_samples=5)
    assert len(few.table("snapshot_times")["snapshot"]) == 4
    assert len(np.unique(few.table("counters")["seconds"])) <= 5
    assert reads(few)[-1] == reads(Evidence.open(pieces[-1]))[-1]


def test_what_does_not_fit_is_not_joined(pieces: list[Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copytree(piece, tmp_path / piece.name)) for piece in pieces]
    meta = msgspec.json.decode((copies[0] / "meta.json").read_bytes())
    meta["shared_buffers_blocks"] += 16
    (copies[0] / "meta.json").write_bytes(msgspec.json.encode(meta))
    whole = JoinedEvidence.of(pieces, 3600).table("snapshot_times")["snapshot"]
    rest = JoinedEvidence.of(copies, 3600).table("snapshot_times")["snapshot"]
    assert len(rest) == len(whole) - Evidence.open(pieces[0]).rows("snapshot_times")
    # A clock that was set back: what seems newer than the newest is left out.
    meta = msgspec.json.decode((copies[1] / "meta.json").read_bytes())
    ahead = datetime.datetime.fromisoformat(meta["started_at"]) + datetime.timedelta(days=1)
    meta["started_at"] = ahead.isoformat()
    (copies[1] / "meta.json").write_bytes(msgspec.json.encode(meta))
    # Within one boot another clock tells the order and the distance.
    stepped = JoinedEvidence.of(copies, 3600)
    assert len(stepped.table("snapshot_times")["snapshot"]) == len(rest)
    assert stepped.meta.seconds == pytest.approx(JoinedEvidence.of(pieces[1:], 3600).meta.seconds, abs=0.01)
    del meta["host"]["boot_id"]
    (copies[1] / "meta.json").write_bytes(msgspec.json.encode(meta))
    alone = JoinedEvidence.of(copies, 3600).table("snapshot_times")["snapshot"]
    assert len(alone) == Evidence.open(pieces[2]).rows("snapshot_times")
    # Set back by less than a recording: they seem to overlap.
    behind = Evidence.open(pieces[2]).meta.started_at
    meta["started_at"] = (
        datetime.datetime.fromisoformat(behind) - datetime.timedelta(seconds=1.5)
    ).isoformat()
    (copies[1] / "meta.json").write_bytes(msgspec.json.encode(meta))
    alone = JoinedEvidence.of(copies, 3600).table("snapshot_times")["snapshot"]
    assert len(alone) == Evidence.open(pieces[2]).rows("snapshot_times")
    with pytest.raises(EvidenceError, match="no evidence"):
        JoinedEvidence.of([], 3600)


def test_it_is_evidence_and_can_be_predicted_from(pieces: list[Path], tmp_path: Path) -> None:
    JoinedEvidence.of(pieces, 3600).write(tmp_path / "joined.evidence")
    opened = Evidence.open(tmp_path / "joined.evidence")
    assert opened.complete
    # What a window says is what the command line predicts from the same evidence.
    alone, window = predict(tmp_path / "joined.evidence"), WindowModel(JoinedEvidence.of(pieces, 3600))
    found = window.predict()
    assert found.observed.shared_buffers_bytes == 16 << 20
    assert (found.points, found.memory) == (alone.points, alone.memory)
    assert found.memory is not None or alone.verdict.level == "refused"
    answer = predict_pieces(pieces, 3600)
    assert answer.covered_seconds > 8
    if answer.early:
        assert answer.result is None
    else:
        assert answer.result is not None
        assert (answer.result.points, answer.result.memory) == (alone.points, None)
    assert predict_pieces([], 900).why is not None


def test_what_happens_between_two_pieces_is_not_taken_for_other_programs(
    pieces: list[Path], tmp_path: Path
) -> None:
    """The server uses 1 processor, others 0.5; between the pieces the recorder computes on 30 more."""
    changed = []
    for number, piece in enumerate(pieces):
        evidence = Evidence.open(piece)
        counters = evidence.table("counters")
        ours = counters["scope"] == "host"
        seconds = counters["seconds"][ours]
        last = seconds == seconds.max()
        began = datetime.datetime.fromisoformat(evidence.meta.started_at).timestamp()
        for name, rate in (("server_cpu_seconds", 1.0), ("host_cpu_seconds", 1.5)):
            more = 100.0 * number if name == "host_cpu_seconds" else 0.0
            rows = ours & (counters["name"] == name)
            assert rows.sum() == 2, "at both ends of a recording"
            counters["value"][rows] = (
                began * rate + more + np.where(last[rows[ours]], seconds.max(), 0) * rate
            )
        tables = {name: evidence.table(name) for name in ("snapshots", "snapshot_times", "relations")}
        times = {"stretch": [0, 0, 1], "begin_seconds": [0.5, 0.5, 2.0], "end_seconds": [1.0, 1.0, 2.5]}
        times |= {"from_ns": [0, 8, 0], "below_ns": [8, 16, 8], "reads": [1, 2, 3], "nanoseconds": [4, 24, 9]}
        read_times = {name: np.array(column) for name, column in times.items()}
        path = tmp_path / piece.name
        JoinedEvidence(evidence.meta, {**tables, "counters": counters, "read_times": read_times}, []).write(
            path
        )
        changed.append(path)
    joined = JoinedEvidence.of(changed, 3600)
    rate_of = Observation(joined).counters.rate
    assert rate_of("host", "", "server_cpu_seconds") == pytest.approx(1.0, abs=0.02)
    assert rate_of("host", "", "host_cpu_seconds") == pytest.approx(1.5, abs=0.03)
    timed = joined.table("read_times")
    assert timed["stretch"].tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5]
    assert (np.diff(timed["begin_seconds"]) >= 0).all()
    assert timed["end_seconds"][-1] > 8
    assert timed["reads"].sum() == 18


def test_a_prediction_keeps_no_memory(pieces: list[Path], tmp_path: Path) -> None:
    """After a window of two million rows the process holds little more than after one of ten."""
    joined = JoinedEvidence.of(pieces, 3600, most_snapshots=3)
    tables = {name: joined.table(name) for name in ("snapshots", "snapshot_times", "counters", "relations")}
    requests = []
    for name, rows in (("small", 10), ("large", 2_000_000)):
        (tmp_path / name).mkdir()
        snapshots = {n: np.resize(column, rows) for n, column in tables["snapshots"].items()}
        # A buffer that the pool has not: the window is read, which is what is tested, and not predicted from.
        snapshots["frame"][-1] = 1 << 20
        JoinedEvidence(joined.meta, {**tables, "snapshots": snapshots}, []).write(
            tmp_path / name / "1000.evidence"
        )
        requests.append(msgspec.json.encode(Request(str(tmp_path / name), 3600)) + b"\n")

    def resident() -> int:
        return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096

    command = [sys.executable, "-P", "-m", "pgsweep.serve.forecast"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        held = []
        for request in requests:
            process.stdin.write(request)
            process.stdin.flush()
            assert b'"early":true' in process.stdout.readline()
            held.append(resident())
        # An answer is written before its memory is returned.
        until = Patience(30)
        while resident() - held[0] > 50 << 20:
            assert until.left() > 0, (held, resident())
            time.sleep(0.1)
        process.stdin.close()


def test_old_pieces_are_thinned_and_the_oldest_removed(pieces: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "evidence"
    for number, piece in enumerate(pieces):
        shutil.copytree(piece, folder / f"{1000 + number}.evidence")
    # What a process that was killed while it thinned left behind.
    shutil.copytree(pieces[0], folder / "1001.evidence.thin")
    keep_to(folder, 1 << 30, now=1_000_000.0)
    found = pieces_of(folder)
    assert [path.name for path in found] == ["1000.evidence", "1001.evidence", "1002.evidence"]
    assert [(path / "thin").exists() for path in found] == [True, True, False]
    assert Evidence.open(found[0]).rows("snapshot_times") <= 6
    assert reads(Evidence.open(found[0]))[-1] == reads(Evidence.open(pieces[0]))[-1]
    keep_to(folder, 1, now=1_000_000.0)
    assert [path.name for path in pieces_of(folder)] == ["1002.evidence"], "the newest stays"
