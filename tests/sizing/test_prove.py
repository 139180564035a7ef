"""Proving: a real server, the simulator and the prediction on the same accesses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from pgsweep.errors import ClusterError, EvidenceError, UsageError
from pgsweep.records.prediction import Verdict
from pgsweep.records.proof import Interval, ProveResult, ProveRow
from pgsweep.sizing.prove import _verdict, prove
from pgsweep.testbed.replay_server import ReplayServer
from pgsweep.ui.kit.report import to_html
from pgsweep.ui.kit.terminal import Terminal
from pgsweep.ui.results import from_json, read_result, to_text
from tests.fix_cli import run
from tests.fix_written import MIB, write_trace


def test_the_simulator_agrees_with_a_real_server(tmp_path: Path, bindir: Path | None) -> None:
    evidence = write_trace(tmp_path / "x.evidence")
    result = prove(evidence, sizes_bytes=[4 * MIB, 8 * MIB, 24 * MIB], bindir=bindir)
    measured = [row.measured_miss_ratio for row in result.rows]
    assert measured == sorted(measured, reverse=True)
    assert 0.1 < measured[0] < 0.6
    assert result.simulator_max_abs_error < 0.0005
    assert result.mean_abs_error is not None
    assert result.mean_abs_error < 0.02
    assert result.schema == "pgsweep.prove/1"


def test_a_proof_that_contradicts_itself_is_not_reliable() -> None:
    """Today's size lay outside its own interval, under "✓ reliable"."""
    said = Verdict(level="reliable", reasons=[])
    row = ProveRow(
        shared_buffers_bytes=8 * MIB,
        measured_miss_ratio=0.2,
        simulated_miss_ratio=0.2,
        predicted=Interval(miss_ratio=0.1, low=0.09, high=0.11),
        accesses=1000,
    )
    found = _verdict(said, [row], 8 * MIB)
    assert (found.level, found.reasons[0].code) == ("rough", "proof-outside-today")
    assert "20.00% miss, outside the interval of 9.00% to 11.00%" in found.sentences[0]
    inside = msgspec.structs.replace(row, measured_miss_ratio=0.1)
    assert _verdict(said, [inside], 8 * MIB) == said
    assert _verdict(said, [msgspec.structs.replace(row, comparable=False)], 8 * MIB) == said
    assert _verdict(said, [row], 4 * MIB) == said, "another size has its own interval"


def test_a_part_of_the_trace_on_an_older_servers_count(tmp_path: Path) -> None:
    """A new page counts as a read before version 16, and the replay says so whatever it runs on."""
    evidence = write_trace(tmp_path / "old.evidence", version_num=150018)
    newer = write_trace(tmp_path / "new.evidence")
    old, new = (prove(path, sizes_bytes=[8 * MIB], max_accesses=60_000).rows[0] for path in (evidence, newer))
    assert old.accesses > new.accesses
    assert old.measured_miss_ratio > new.measured_miss_ratio
    assert abs(old.measured_miss_ratio - old.simulated_miss_ratio) < 0.0005


def test_what_rings_change_is_shown_beside_what_was_measured(tmp_path: Path) -> None:
    """Scans of a table above a quarter of the pool: the server makes plain accesses, the simulator both."""
    evidence = write_trace(tmp_path / "x.evidence", accesses=60_000, scanned=True)
    result = prove(evidence, sizes_bytes=[8 * MIB])
    row = result.rows[0]
    assert row.as_predicted_miss_ratio is not None
    assert abs(row.measured_miss_ratio - row.simulated_miss_ratio) < 0.0005
    assert abs(row.as_predicted_miss_ratio - row.simulated_miss_ratio) > 0.01
    assert abs(row.as_predicted_miss_ratio - row.predicted.miss_ratio) < 0.02
    assert any("with rings and drops" in note for note in result.notes)
    # What the server did is not what was predicted, so it says nothing of the prediction.
    assert not row.comparable
    assert (result.mean_abs_error, result.max_abs_error, result.within_interval_ratio) == (None, None, None)
    text = " ".join(to_text(result, Terminal()).split())
    assert "Not compared with the prediction: 8 MB." in text
    assert "outside the interval" not in text
    assert "prediction: not compared with the replay at any size" in text
    assert "too short for that size. Not compared with the prediction: 8 MB." in to_html(result)


def test_what_cannot_be_proved(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        prove(write_trace(tmp_path / "sql.evidence", source="sql"))
    assert "--source trace" in (caught.value.hint or "")
    with pytest.raises(EvidenceError):
        prove(write_trace(tmp_path / "empty.evidence", accesses=0))
    with pytest.raises(EvidenceError):
        prove(tmp_path / "missing.evidence")
    with pytest.raises(ClusterError, match="cannot be tried on this machine") as too_large:
        prove(write_trace(tmp_path / "x.evidence", accesses=2000), sizes_bytes=[4 * 1024**4])
    assert "--sizes" in (too_large.value.hint or "")


def test_the_server_counts_every_access(bindir: Path | None) -> None:
    counted = np.ones(1_000_000, dtype=bool)
    counted[[5, 7]] = False
    pages = np.array([1, 2, 1, 5, 999_999, 2, 7], dtype=np.int64)
    told: list[int] = []
    with ReplayServer(counted, bindir=bindir) as server:
        warm = np.array([2, 5], dtype=np.int64)
        first = server.replay(512, warm, pages, told.append)
        assert (first.misses, first.accesses) == (2, 5)
        cold = server.replay(512, warm[:0], pages[[0, 1, 2, 4]])
        assert (cold.misses, cold.accesses) == (3, 4)
    assert told[-1] == 9


@pytest.mark.server
def test_the_command(tmp_path: Path) -> None:
    """Text, JSON, CSV and a page come out; the JSON is read back."""
    evidence = write_trace(tmp_path / "x.evidence", accesses=40_000)
    files = [tmp_path / name for name in ("x.html", "x.csv", "x.txt")]
    arguments = ["prove", str(evidence), "--sizes", "4MB,8MB", "--json"]
    for file in files:
        arguments += ["-o", str(file)]
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    result = from_json(done.stdout.encode(), "stdout")
    assert isinstance(result, ProveResult)
    assert [row.shared_buffers_bytes for row in result.rows] == [4 * MIB, 8 * MIB]
    assert result.provenance is not None
    assert read_result(files[0]) == result
    assert len(files[1].read_text().splitlines()) == 3
    assert "observed here" in files[2].read_text()
    refused = run("prove", str(tmp_path / "none"))
    assert refused.returncode == 2
    assert "--source trace" in refused.stderr
