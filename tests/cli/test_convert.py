"""`pgsweep report` of evidence: written by hand, out as a trace of other simulators."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from pgsweep.evidence.store import EvidenceMeta, EvidenceWriter
from tests.fix_cli import run


def write_trace(path: Path) -> None:
    meta = EvidenceMeta(source="trace", shared_buffers_blocks=2048, server_version_num=180000, database_oid=5)
    n = 6
    with EvidenceWriter(path, meta) as writer:
        writer.append(
            "accesses",
            {
                "time_ns": np.arange(n, dtype=np.uint64) * 1_000_000_000,
                "pid": np.full(n, 7, np.uint32),
                "spc": np.full(n, 1663, np.uint32),
                "db": np.full(n, 5, np.uint32),
                "rel": np.full(n, 16384, np.uint32),
                "fork": np.zeros(n, np.uint8),
                "block": np.array([0, 1, 0, 2, 1, 0], np.uint32),
                "kind": np.array([1, 1, 0, 1, 0, 0], np.uint8),
                "strategy": np.zeros(n, np.uint8),
                "flags": np.zeros(n, np.uint8),
                "scan": np.zeros(n, np.uint32),
            },
        )
        writer.close(meta)


def test_convert(tmp_path: Path) -> None:
    write_trace(tmp_path / "x.evidence")
    done = run("convert", "x.evidence", "x.oracleGeneral", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accesses  6" in done.stdout
    assert "objects   3" in done.stdout
    record = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.fromfile(tmp_path / "x.oracleGeneral", dtype=record)
    assert records["next"].tolist() == [2, 4, 5, -1, -1, -1]
    again = run("convert", "x.evidence", "x.oracleGeneral", cwd=tmp_path)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    reported = run("convert", "x.evidence", "y.oracleGeneral", "--json", cwd=tmp_path)
    assert json.loads(reported.stdout)["schema"] == "pgsweep.export/1"
    assert "this is now: pgsweep report x.evidence -o y.oracleGeneral" in reported.stderr


def test_report_of_evidence(tmp_path: Path) -> None:
    write_trace(tmp_path / "x.evidence")
    done = run("report", "x.evidence", "-o", "x.oracleGeneral", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "accesses  6" in done.stdout
    assert (tmp_path / "x.oracleGeneral.relations.csv").exists()
    again = run("report", "x.evidence", "-o", "y.oracleGeneral", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["schema"] == "pgsweep.export/1"
    for wrong in ((), ("-o", "x.html"), ("--json",)):
        refused = run("report", "x.evidence", *wrong, cwd=tmp_path)
        assert refused.returncode == 2
        assert "`x.evidence` is a folder, a result is a file" in refused.stderr


def test_convert_of_nothing(tmp_path: Path) -> None:
    done = run("convert", "absent.evidence", "x.oracleGeneral", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no evidence `absent.evidence`" in done.stderr
    (tmp_path / "empty.evidence").mkdir()
    done = run("convert", "empty.evidence", "x.oracleGeneral", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("x.*"))
