"""The history in both of its stores: levels, limits, kill -9, a full disk and a database that is away."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pgsweep.errors import PgsweepError
from pgsweep.pg.history_store import PostgresStore
from pgsweep.pg.private.cluster import Cluster
from pgsweep.records.prediction import CurvePoint, Observed, PredictResult, Verdict
from pgsweep.records.serve import ServeCurve, ServeVerification
from pgsweep.records.verification import VerifyResult
from pgsweep.serve import history as module
from pgsweep.serve.consumers import total_key
from pgsweep.serve.export import export_history
from pgsweep.serve.history import (
    Gap,
    History,
    Interval,
    Item,
    KeptCurve,
    KeptVerification,
    Sample,
    roll_up,
    sqlite_store,
)
from pgsweep.serve.history_reads import level_for, read_curves, read_series, read_verification, sample_rows
from pgsweep.serve.holding import hold_folder
from pgsweep.serve.storage import HistoryError, SqliteStore, Store
from tests.fix_cli import run
from tests.fix_process import Patience
from tests.fix_serve import rows_of, serving


def filled(store: Store, items: list[Item], most_bytes: int = 1 << 30) -> None:
    kept = History(store, most_bytes=most_bytes)
    kept.start()
    for item in items:
        kept.add(item)
    assert kept.stop(patience_seconds=120)
    assert kept.trouble is None


def test_coarser_levels_add_up_sums_and_average_the_rest(store: Store) -> None:
    end = int(time.time()) // 900 * 900
    values = {"covered_seconds": 10.0, "hits": 100.0, "reads": 7.0}
    filled(
        store, [Sample("shop", end - 10 * n, {**values, "used_bytes": float(n)}) for n in reversed(range(90))]
    )
    fine = read_series(store, "shop", end - 899, end)
    assert fine.step_seconds == 10
    assert (len(fine.at), sum(filter(None, fine.columns["hits"]))) == (90, 9000.0)
    assert fine.columns["disk_read_bytes"] == [None] * 90
    rows = rows_of(store, "SELECT level, at, hits, used_bytes, disk_read_bytes FROM main.samples")
    minutes = [row for row in rows if row[0] == 60]
    quarters = [row for row in rows if row[0] == 900]
    assert len(minutes) == 15
    assert all(row[2] == 600.0 for row in minutes)
    assert quarters == [(900, end, 9000.0, pytest.approx(44.5), None)]


def test_rolling_up_goes_on_where_it_stopped_and_drops_what_is_old(store: Store) -> None:
    now = int(time.time()) // 900 * 900
    old, new = now - 3 * 86_400, now - 900
    filled(store, [Sample("s", at, {"covered_seconds": 10.0, "hits": 1.0}) for at in (old, new, new + 10)])
    assert rows_of(store, "SELECT count(*) FROM main.samples WHERE level = 10") == [(2,)]
    assert rows_of(store, "SELECT sum(hits) FROM main.samples WHERE level = 60") == [(3.0,)]
    with store.writing() as session:
        [(server,)] = session.execute("SELECT id FROM main.servers")
        session.execute(
            "INSERT INTO main.samples (level, server, at, hits) VALUES (10, ?, ?, 5)", [server, new + 20]
        )
        roll_up(session, now)
    assert rows_of(store, "SELECT sum(hits) FROM main.samples WHERE level = 60") == [(8.0,)]
    assert rows_of(store, "SELECT sum(hits) FROM main.samples WHERE level = 900") == [(8.0,)]


def test_a_clock_that_was_years_ahead_costs_no_history(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is ahead nothing is dropped; when it is right again, levels are made again."""
    # A level is made of what is over for some time: what is right before now would not be in it yet.
    now = int(time.time()) // 900 * 900 - 900
    ahead = now + 10 * 365 * 86_400
    values = {"covered_seconds": 10.0, "hits": 1.0}
    kept = History(store, most_bytes=1 << 30)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10 * 365 * 86_400)
    kept.add(Sample("s", now - 900, values))
    kept.add(Sample("s", ahead, values))
    kept.start()
    kept.stop()
    monkeypatch.undo()
    assert rows_of(store, "SELECT at FROM main.samples WHERE level = 10 ORDER BY at") == [
        (now - 900,),
        (ahead,),
    ]
    filled(store, [Sample("s", now - 300, values)])
    assert (now - 300,) in rows_of(store, "SELECT at FROM main.samples WHERE level = 60")


def test_the_level_suits_the_range() -> None:
    now = time.time()
    assert level_for(now - 3600, now, now) == 10
    assert level_for(now - 86_400, now, now) == 60
    assert level_for(now - 7 * 86_400, now, now) == 900
    assert level_for(now - 40 * 86_400, now - 40 * 86_400 + 3600, now) == 900


def test_the_oldest_go_where_it_would_grow_beyond_its_limit(store: Store) -> None:
    now = int(time.time())
    every = dict.fromkeys(module.COLUMNS, 1.1)
    filled(store, [Sample("s", at, every) for at in range(now - 80_000, now, 10)], most_bytes=500_000)
    assert store.size_bytes(500_000) <= 500_000
    [(first, last)] = rows_of(store, "SELECT min(at), max(at) FROM main.samples WHERE level = 10")
    assert first > now - 80_000
    assert last >= now - 20
    [(minutes,)] = rows_of(store, "SELECT count(*) FROM main.samples WHERE level = 60")
    assert minutes >= 500, "the finest level goes first"


def verified(at: float, changed_at: float) -> ServeVerification:
    result = VerifyResult(
        server_version="18.0",
        database="shop",
        before="a",
        after="b",
        shared_buffers_before=1 << 24,
        shared_buffers_after=1 << 25,
        verdict="as predicted",
        reasons=[],
        values=[],
        workload=[],
    )
    return ServeVerification(at=at, changed_at=changed_at, result=result)


def curve_of(at: float, covered: float, ratio: float = 0.1) -> ServeCurve:
    size = 16 << 20
    result = PredictResult(
        source="peek",
        observed=Observed(shared_buffers_bytes=size, miss_ratio=ratio, accesses=1, seconds=1.0),
        points=[CurvePoint(shared_buffers_bytes=size, miss_ratio=ratio, low=0.0, high=0.2)],
        verdict=Verdict(level="rough", reasons=[]),
    )
    return ServeCurve(
        window_seconds=3600,
        covered_seconds=covered,
        at=at,
        result=result,
        advised_bytes=size,
        advice="Leave it",
    )


def test_gaps_curves_and_verifications_come_back(store: Store) -> None:
    now = time.time()
    items: list[Item] = [
        Gap("s", 100.0, 200.0, "it was away"),
        KeptCurve("s", curve_of(7200.0, 3500.0)),
        KeptCurve("s", curve_of(now, 1.0)),
        Gap("s", now - 50, now, "it was away again"),
        KeptVerification("s", verified(now - 5, now - 900)),
        KeptVerification("s", verified(now, now - 900)),
        KeptVerification("s", verified(now - 8000, now - 9000)),
    ]
    filled(store, items)
    assert [gap.why for gap in read_series(store, "s", now - 100, now).gaps] == ["it was away again"]
    assert [c.covered_seconds for c in read_curves(store, "s", now - 10, now + 10)] == [1.0]
    found = read_verification(store, "s")
    assert found is not None
    assert found.at == now, "the last, of the last change"
    assert read_verification(store, "other") is None


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(HistoryError, match="cannot be opened"):
        History(sqlite_store(tmp_path / "history.sqlite"), most_bytes=1 << 30)
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(HistoryError, match="newer pgsweep"):
        History(sqlite_store(newer), most_bytes=1 << 30)


def test_of_many_curves_some_are_read(store: Store) -> None:
    """Those of two years would be a hundred megabytes: every n-th hour to the last one stands for them."""
    last = time.time() // 3600 * 3600
    for first in range(0, 1700, 500):  # as many as may wait
        hours = range(first, min(first + 500, 1700))
        filled(store, [KeptCurve("s", curve_of(last - 3600 * hour, 3600.0)) for hour in hours])
    found = [curve.at for curve in read_curves(store, "s", 0, last)]
    assert found == [last - 3600 * hour for hour in range(1696, -1, -4)]
    assert len(read_curves(store, "s", last - 3600 * 400, last)) == 401


def test_an_older_history_gets_the_columns_that_it_lacks(store: Store) -> None:
    """It can be read before it is opened to be written, and what it has stays."""
    last = int(time.time())
    filled(store, [Sample("s", last - 20, {"hits": 7.0})])
    store.open()
    with store.writing() as session:
        for name in ("split_seconds", "disk_reads"):
            session.execute(f"ALTER TABLE main.samples DROP COLUMN {name}")
    assert read_series(store, "s", last - 30, last).columns["disk_reads"] == [None]
    assert next(rows[0][4] for rows in sample_rows(store)) == 7.0
    store.close()
    filled(store, [Sample("s", last - 10, {"disk_reads": 3.0})])
    found = read_series(store, "s", last - 30, last).columns
    assert (found["hits"], found["disk_reads"]) == ([7.0, None], [None, 3.0])


def test_export_has_every_level_the_consumers_and_the_curves(store: Store, tmp_path: Path) -> None:
    now = int(time.time())
    rows = {total_key(): {"reads": 4.0}, ("user", "ann", "", ""): {"reads": 4.0, "calls": 1.0}}
    items: list[Item] = [
        Sample("shop", now - 10, {"covered_seconds": 10.0, "hits": 3.0}),
        Interval("shop", now - 60, 60.0, rows),
        KeptCurve("shop", curve_of(now - 60, 3000.0)),
    ]
    filled(store, items)
    count = export_history(store, tmp_path / "all.parquet")
    assert list(count.values()) == [3, 2, 1]
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert {row["step_seconds"] for row in table} == {10, 60, 900}
    assert [(row["server"], row["hits"], row["evictions"]) for row in table] == [("shop", 3.0, None)] * 3
    consumers = {row["kind"]: row for row in pq.read_table(tmp_path / "all-consumers.parquet").to_pylist()}
    assert (consumers["total"]["covered_seconds"], consumers["total"]["reads"]) == (60.0, 4.0)
    assert (consumers["user"]["user"], consumers["user"]["calls"], consumers["user"]["hits"]) == (
        "ann",
        1.0,
        None,
    )
    [point] = pq.read_table(tmp_path / "all-curves.parquet").to_pylist()
    assert (point["server"], point["miss_ratio"], point["advised_bytes"]) == ("shop", 0.1, 16 << 20)


_WRITERS = """
import os, sys, time
from pathlib import Path
from pgsweep.serve import history
history._SWEEP_SECONDS = 0.01
place = sys.argv[1]

def write(at, said):
    store = history.sqlite_store(Path(place)) if place.startswith("/") else history.postgres_store(place)
    kept = history.History(store, most_bytes=1 << 30)
    kept.start()
    os.write(said, b"ready\\n")
    while True:
        at += 10
        kept.add(history.Sample("s", at, {"covered_seconds": 10.0, "hits": float(at)}))
        while kept._held or not kept._waiting.empty():
            time.sleep(0.0002)
        os.write(said, b"%d\\n" % at)

# One process that has imported everything forks each writer: fifty of them take seconds.
for line in sys.stdin:
    at, path = line.split()
    writer = os.fork()
    if not writer:
        write(int(at), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    print(writer, flush=True)
    os.waitpid(writer, 0)
    print("ended", flush=True)
"""


def test_kill_9_at_random_moments_loses_nothing_that_was_written(store: Store, tmp_path: Path) -> None:
    """What the writer said is committed is there after each of its violent ends."""
    place = str(store.path) if isinstance(store, SqliteStore) else ""
    if isinstance(store, PostgresStore):
        place = store._conninfo
    deaths = 50 if isinstance(store, SqliteStore) else 15
    store.open()
    at = int(time.time()) - 20_000
    moments = random.Random(5)
    with subprocess.Popen(
        [sys.executable, "-c", _WRITERS, place],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forker:
        assert forker.stdin is not None
        assert forker.stdout is not None
        written = 0
        for number in range(deaths):
            said = tmp_path / f"said{number}"
            forker.stdin.write(f"{at} {said}\n")
            forker.stdin.flush()
            writer = int(forker.stdout.readline())
            until = Patience(60)
            # Some are killed while they open the history, most while they write it.
            lines = moments.randrange(1, 20) if number % 10 else 0
            while lines and not (said.exists() and said.read_bytes().count(b"\n") > lines):
                assert until.left() > 0
                time.sleep(0.001)
            time.sleep(moments.uniform(0.0, 0.02))
            os.kill(writer, signal.SIGKILL)
            assert forker.stdout.readline() == "ended\n"
            if isinstance(store, SqliteStore):
                with closing(sqlite3.connect(store.path)) as connection:
                    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            kept = [int(line) for line in said.read_text().split()[1:]] if said.exists() else []
            if not kept:
                continue
            there = {row[0] for row in rows_of(store, "SELECT at FROM main.samples WHERE level = 10")}
            assert set(kept) <= there
            written += len(kept)
            at = max(there)
        forker.stdin.close()
    assert written > deaths


def test_a_full_disk_does_not_stop_it_and_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit of pages fails as a full disk does: SQLITE_FULL."""
    monkeypatch.setattr(module, "_WAITING", 50)
    store = sqlite_store(tmp_path / "history.sqlite")
    kept = History(store, most_bytes=1 << 30)
    assert store._connection is not None
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    now = int(time.time()) - 1000
    every = dict.fromkeys(module.COLUMNS, 1.1)
    kept.start()
    for n in range(100):
        kept.add(Sample("s", now + n, every))
    until = Patience(60)
    troubles: list[str] = []
    while not troubles:
        assert until.left() > 0
        kept.add(Sample("s", now + 400, every))
        time.sleep(0.05)
        troubles += filter(None, [kept.trouble])
    assert "full" in troubles[0]
    kept.add(Sample("s", now + 410, every))
    # Room again: from another thread, as the writer waits for the next item.
    store._connection.execute("PRAGMA max_page_count = 1000000")
    kept.add(Sample("s", now + 420, every))
    while kept.trouble is not None:
        assert until.left() > 0
        time.sleep(0.05)
    kept.stop()
    found = read_series(store, "s", now - 10, now + 1000)
    assert now + 420 in found.at
    assert len(found.gaps) == 1
    assert "not written" in found.gaps[0].why
    assert found.gaps[0].begin <= now + 200


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_two_do_not_write_one_history(wheel18: Cluster, tmp_path: Path, killed: bool) -> None:
    """The lock ends with its process, however that ends."""
    folder = tmp_path / "history"
    second = ("serve", wheel18.conninfo(), "--listen", "127.0.0.1:0")
    with serving(folder, wheel18.conninfo()) as first:
        # Also by another name of the folder.
        (tmp_path / "link").symlink_to(folder)
        for place in (folder, tmp_path / "link"):
            done = run(*second, "--history", str(place), timeout_seconds=30)
            assert done.returncode == 1
            assert "another `pgsweep serve` keeps its history" in done.stderr
            assert f"process {first.process.pid} holds" in done.stderr
            assert f"kill {first.process.pid}; or name another folder" in done.stderr
        # Reading is no matter of one process.
        export = ("--export", str(tmp_path / "e.parquet"))
        assert run(*second, "--history", str(folder), *export).returncode == 0
        other = run(*second, "--history", str(folder), "--export", str(tmp_path / "e.csv"))
        assert (other.returncode, "as Parquet" in other.stderr) == (2, True)
        # Another history, but the evidence of the same server in one folder.
        (tmp_path / "serve.toml").write_text(f'[serve]\nevidence = "{folder / "evidence"}"\n')
        named = ("--config", str(tmp_path / "serve.toml"), "--history", str(tmp_path / "other"))
        done = run(*second, *named, timeout_seconds=30)
        assert done.returncode == 1
        assert "or its evidence in" in done.stderr
        first.process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
        first.process.wait(20)
        with serving(folder, wheel18.conninfo()) as next_one:
            assert next_one.ask("/healthz")[0] == 200


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious\n")
    (tmp_path / "serve.lock").symlink_to(victim)
    with pytest.raises(PgsweepError, match="cannot be locked"):
        hold_folder(tmp_path)
    assert victim.read_text() == "precious\n"
