"""The history: levels, limits, kill -9 and a full disk."""

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

from pgsweep.records.serve import ServeCurve
from pgsweep.serve import history as module
from pgsweep.serve.export import export_history
from pgsweep.serve.history import (
    Gap,
    History,
    HistoryError,
    KeptCurve,
    Sample,
    level_for,
    read_curves,
    read_series,
    roll_up,
)


def filled(path: Path, samples: list[Sample]) -> History:
    kept = History(path, most_bytes=1 << 30)
    kept.start()
    for sample in samples:
        kept.add(sample)
    kept.stop()
    return kept


def test_coarser_levels_add_up_sums_and_average_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    end = int(time.time()) // 900 * 900
    values = {"covered_seconds": 10.0, "hits": 100.0, "reads": 7.0}
    samples = [Sample("shop", end - 10 * n, {**values, "used_bytes": float(n)}) for n in reversed(range(90))]
    filled(path, samples)
    fine = read_series(path, "shop", end - 899, end)
    assert fine.step_seconds == 10
    assert (len(fine.at), sum(filter(None, fine.columns["hits"]))) == (90, 9000.0)
    assert fine.columns["disk_read_bytes"] == [None] * 90
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT level, at, hits, used_bytes, disk_read_bytes FROM samples"
        ).fetchall()
    minutes = [row for row in rows if row[0] == 60]
    quarters = [row for row in rows if row[0] == 900]
    assert len(minutes) == 15
    assert all(row[2] == 600.0 for row in minutes)
    assert quarters == [(900, end, 9000.0, pytest.approx(44.5), None)]


def test_rolling_up_goes_on_where_it_stopped_and_drops_what_is_old(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    now = int(time.time()) // 900 * 900
    old, new = now - 3 * 86_400, now - 900
    filled(path, [Sample("s", at, {"covered_seconds": 10.0, "hits": 1.0}) for at in (old, new, new + 10)])
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM samples WHERE level = 10").fetchone() == (2,)
        assert connection.execute("SELECT sum(hits) FROM samples WHERE level = 60").fetchone() == (3.0,)
        connection.execute("INSERT INTO samples (level, server, at, hits) VALUES (10, 1, ?, 5)", [new + 20])
        connection.commit()
        roll_up(connection, now)
        assert connection.execute("SELECT sum(hits) FROM samples WHERE level = 60").fetchone() == (8.0,)
        assert connection.execute("SELECT sum(hits) FROM samples WHERE level = 900").fetchone() == (8.0,)


def test_a_clock_that_was_years_ahead_costs_no_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is ahead nothing is dropped; when it is right again, levels are made again."""
    path = tmp_path / "history.sqlite"
    now = int(time.time()) // 900 * 900
    ahead = now + 10 * 365 * 86_400
    values = {"covered_seconds": 10.0, "hits": 1.0}
    kept = History(path, most_bytes=1 << 30)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10 * 365 * 86_400)
    kept.add(Sample("s", now - 900, values))
    kept.add(Sample("s", ahead, values))
    kept.start()
    kept.stop()
    monkeypatch.undo()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT at FROM samples WHERE level = 10").fetchall() == [
            (now - 900,),
            (ahead,),
        ]
    filled(path, [Sample("s", now - 300, values)])
    with sqlite3.connect(path) as connection:
        minutes = connection.execute("SELECT at FROM samples WHERE level = 60 ORDER BY at").fetchall()
    assert (now - 300,) in minutes


def test_the_level_suits_the_range() -> None:
    now = time.time()
    assert level_for(now - 3600, now, now) == 10
    assert level_for(now - 86_400, now, now) == 60
    assert level_for(now - 7 * 86_400, now, now) == 900
    assert level_for(now - 40 * 86_400, now - 40 * 86_400 + 3600, now) == 900


def test_the_oldest_go_where_the_file_would_grow_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    now = int(time.time())
    kept = History(path, most_bytes=400_000)
    kept.start()
    every = dict.fromkeys(module.COLUMNS, 1.1)
    for at in range(now - 80_000, now, 10):
        kept.add(Sample("s", at, every))
    kept.stop()
    with sqlite3.connect(path) as connection:
        pages, free = (
            connection.execute(f"PRAGMA {n}").fetchone()[0] for n in ("page_count", "freelist_count")
        )
        assert (pages - free) * 4096 <= 400_000
        first, last = connection.execute("SELECT min(at), max(at) FROM samples WHERE level = 10").fetchone()
    assert first > now - 80_000
    assert last >= now - 20


def test_gaps_and_curves_come_back(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    kept = History(path, most_bytes=1 << 30)
    kept.start()
    kept.add(Gap("s", 100.0, 200.0, "it was away"))
    curve = ServeCurve(window_seconds=3600, covered_seconds=3500.0, at=7200.0, result=None, why="no")
    kept.add(KeptCurve("s", curve))
    now = time.time()
    kept.add(KeptCurve("s", ServeCurve(window_seconds=3600, covered_seconds=1.0, at=now, result=None)))
    kept.add(Gap("s", now - 50, now, "it was away again"))
    kept.stop()
    assert [gap.why for gap in read_series(path, "s", now - 100, now).gaps] == ["it was away again"]
    assert [c.covered_seconds for c in read_curves(path, "s", now - 10, now + 10)] == [1.0]


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(HistoryError, match="cannot be opened"):
        History(tmp_path / "history.sqlite", most_bytes=1 << 30)
    newer = tmp_path / "newer.sqlite"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(HistoryError, match="newer pgsweep"):
        History(newer, most_bytes=1 << 30)


def test_export_has_every_level(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    now = int(time.time())
    filled(path, [Sample("shop", now - 10, {"covered_seconds": 10.0, "hits": 3.0})])
    count = export_history(path, tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert count == len(table) == 3
    assert {row["step_seconds"] for row in table} == {10, 60, 900}
    assert [(row["server"], row["hits"], row["evictions"]) for row in table] == [("shop", 3.0, None)] * 3


_WRITERS = """
import os, sys, time
from pathlib import Path
from pgsweep.serve import history
history._SWEEP_SECONDS = 0.01

def write(at, said):
    kept = history.History(Path(sys.argv[1]), most_bytes=1 << 30)
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


def test_kill_9_at_random_moments_loses_nothing_that_was_written(tmp_path: Path) -> None:
    """What the writer said is committed is there after each of its 50 violent ends."""
    path = tmp_path / "history.sqlite"
    at = int(time.time()) - 20_000
    moments = random.Random(5)
    with subprocess.Popen(
        [sys.executable, "-c", _WRITERS, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forker:
        assert forker.stdin is not None
        assert forker.stdout is not None
        written = 0
        for number in range(50):
            said = tmp_path / f"said{number}"
            forker.stdin.write(f"{at} {said}\n")
            forker.stdin.flush()
            writer = int(forker.stdout.readline())
            until = time.monotonic() + 60
            # Some are killed while they open the history, most while they write it.
            lines = moments.randrange(1, 20) if number % 10 else 0
            while lines and not (said.exists() and said.read_bytes().count(b"\n") > lines):
                assert time.monotonic() < until
                time.sleep(0.001)
            time.sleep(moments.uniform(0.0, 0.02))
            os.kill(writer, signal.SIGKILL)
            assert forker.stdout.readline() == "ended\n"
            if not path.exists():
                continue
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                kept = [int(line) for line in said.read_text().split()[1:]] if said.exists() else []
                if not kept:
                    continue
                rows = connection.execute("SELECT at FROM samples WHERE level = 10").fetchall()
            there = {row[0] for row in rows}
            assert set(kept) <= there
            written += len(kept)
            at = max(there)
        forker.stdin.close()
    assert written > 50


def test_a_full_disk_does_not_stop_it_and_leaves_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite's own limit of pages fails as a full disk does: SQLITE_FULL."""
    monkeypatch.setattr(module, "_WAITING", 50)
    path = tmp_path / "history.sqlite"
    kept = History(path, most_bytes=1 << 30)
    pages = kept._connection.execute("PRAGMA page_count").fetchone()[0]
    kept._connection.execute(f"PRAGMA max_page_count = {pages}")
    now = int(time.time()) - 1000
    every = dict.fromkeys(module.COLUMNS, 1.1)
    kept.start()
    for n in range(100):
        kept.add(Sample("s", now + n, every))
    until = time.monotonic() + 60
    troubles: list[str] = []
    while not troubles:
        assert time.monotonic() < until
        kept.add(Sample("s", now + 400, every))
        time.sleep(0.05)
        troubles += filter(None, [kept.trouble])
    assert "full" in troubles[0]
    kept.add(Sample("s", now + 410, every))
    # Room again: from another thread, as the writer waits for the next item.
    kept._connection.execute("PRAGMA max_page_count = 1000000")
    kept.add(Sample("s", now + 420, every))
    while kept.trouble is not None:
        assert time.monotonic() < until
        time.sleep(0.05)
    kept.stop()
    found = read_series(path, "s", now - 10, now + 1000)
    assert now + 420 in found.at
    assert len(found.gaps) == 1
    assert "not written" in found.gaps[0].why
    assert found.gaps[0].begin <= now + 200
