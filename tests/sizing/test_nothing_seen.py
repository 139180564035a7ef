"""Evidence that is damaged or was cut short is not taken for that of a database in which nothing happened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pgsweep.errors import EvidenceError
from pgsweep.evidence.store import Evidence, EvidenceWriter
from pgsweep.evidence.writer import holds_nothing
from pgsweep.sizing.predict import predict
from tests.fix_disk import fill_disk
from tests.fix_what_if import Load
from tests.fix_written import META, accesses, write_trace

LOAD = Load()


def said(path: Path) -> str:
    """Return the error of a prediction."""
    with pytest.raises(EvidenceError) as caught:
        predict(path)
    error = caught.value
    assert "nothing happened" not in str(error)
    assert error.hint
    return f"{error}; {error.cause}; {error.hint}"


def test_accesses_that_are_damaged(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.evidence", accesses=20_000)
    part = path / "accesses" / "part-00000.parquet"
    os.truncate(part, part.stat().st_size - 1000)
    found = said(path)
    assert "damaged" in found
    assert "accesses: part-00000.parquet is cut short or damaged; 0 of 1 parts are used" in found
    assert "pgsweep record --source trace" in found


@pytest.mark.parametrize("older", [False, True], ids=["", "of an older pgsweep"])
@pytest.mark.parametrize("table", ["counters", "snapshots", "snapshot_times"])
def test_tables_that_were_removed(tmp_path: Path, table: str, *, older: bool) -> None:
    path = tmp_path / "a.evidence"
    LOAD.write_snapshots(path, 20_000, 4)
    if older:
        forget_parts(path)
    shutil.rmtree(path / table)
    assert f"{table}: part-00000.parquet is missing" in said(path)


def test_accesses_that_were_removed(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.evidence", accesses=20_000)
    shutil.rmtree(path / "accesses")
    assert "accesses: part-00000.parquet is missing; 0 of 1 parts are used" in said(path)


def forget_parts(path: Path) -> None:
    meta = json.loads((path / "meta.json").read_text())
    assert meta.pop("parts")["counters"] == 1
    (path / "meta.json").write_text(json.dumps(meta))


def test_the_last_part_removed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, META) as writer:
        for number in range(3):
            writer.append("accesses", accesses(1000, begin=number * 1000))
            writer.flush()
    (path / "accesses" / "part-00002.parquet").unlink()
    evidence = Evidence.open(path)
    assert not evidence.complete
    assert "accesses: part-00002.parquet is missing; 2 of 3 parts are used" in evidence.warnings


def test_a_trace_whose_accesses_are_damaged_lasts_to_the_last_one_left(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    counter: dict[str, Any] = {
        "sample": [0],
        "scope": ["database"],
        "object": ["d"],
        "name": ["blks_hit"],
        "value": [1.0],
    }
    with EvidenceWriter(path, META) as writer:
        writer.append("accesses", accesses(1000))
        writer.flush()
        writer.append("accesses", accesses(1000, begin=1000))
        writer.append("counters", {**counter, "seconds": [60.0]})
        writer.close(msgspec.structs.replace(META, seconds=60.0))
    (path / "accesses" / "part-00001.parquet").write_bytes(b"")
    evidence = Evidence.open(path)
    assert evidence.meta.seconds == pytest.approx(float(evidence.table("accesses")["time_ns"].max()) / 1e9)


def test_a_disk_that_is_full_before_the_first_access_leaves_nothing_and_promises_nothing(
    small_disk: Path,
) -> None:
    path = small_disk / "a.evidence"
    with pytest.raises(EvidenceError) as caught, EvidenceWriter(path, META) as writer:
        writer.append("drops", one_drop())
        writer.flush()
        fill_disk(small_disk)
        writer.append("accesses", accesses(200_000))
        writer.flush()
    assert caught.value.cause == "the file system is full"
    assert "readable" not in str(caught.value.hint)
    assert not path.exists()


def one_drop() -> dict[str, list[int]]:
    names = ("time_ns", "row", "pid", "spc", "db", "rel", "fork", "first_block")
    return {name: [0] for name in names}


def test_a_trace_killed_before_its_first_access_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    code = f"""
        import os, signal, msgspec
        from pathlib import Path
        from pgsweep.evidence.store import EvidenceWriter
        from tests.fix_written import META, accesses
        writer = EvidenceWriter(Path({str(path)!r}), msgspec.structs.replace(META, shared_buffers_blocks=100))
        writer.append("accesses", accesses(1000))
        os.kill(os.getpid(), signal.SIGKILL)
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert "no accesses had been written when the recording ended: it was killed" in said(path)
    assert holds_nothing(path)


def test_a_trace_whose_first_access_is_not_written_yet(tmp_path: Path) -> None:
    path = tmp_path / "a.evidence"
    with EvidenceWriter(path, msgspec.structs.replace(META, shared_buffers_blocks=100)) as writer:
        writer.append("accesses", accesses(1000))
        assert "no accesses had been written yet: the recording is still under way" in said(path)
        assert not holds_nothing(path)


def test_snapshots_that_end_before_the_counters_were_read_again(tmp_path: Path) -> None:
    whole = Evidence.open(LOAD.write_snapshots(tmp_path / "a.evidence", 20_000, 4))
    path = tmp_path / "b.evidence"
    with pytest.raises(KeyboardInterrupt), EvidenceWriter(path, whole.meta) as writer:
        for table in ("relations", "counters", "snapshots", "snapshot_times"):
            rows = whole.table(table)
            first = rows["sample"] == 0 if table == "counters" else slice(None)
            writer.append(table, {name: column[first] for name, column in rows.items()})
        raise KeyboardInterrupt
    assert "no second sample of the counters had been written" in said(path)


def test_the_first_parts_are_written_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one, two and four seconds, then every five, later on at every fiftieth of the recording."""
    clock = [1000.0]
    monkeypatch.setattr("pgsweep.evidence.writer.time.monotonic", lambda: clock[0])
    path, times = tmp_path / "a.evidence", []
    with EvidenceWriter(path, META) as writer:
        for tick in range(4000):
            clock[0] = 1000.1 + tick / 10
            before = len(list(path.glob("accesses/*")))
            writer.append("accesses", accesses(1, begin=tick))
            if len(list(path.glob("accesses/*"))) > before:
                times.append(tick / 10)
    assert times[:5] == pytest.approx([1, 2, 4, 8, 13], rel=0.2)
    assert times[-1] - times[-2] == pytest.approx(7.8, abs=0.3)
