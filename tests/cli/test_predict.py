"""`pgsweep predict` on evidence of a real server, and on traces that never saw one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from pgsweep.evidence.script import record_script
from pgsweep.pg.gather_script import MAGIC
from pgsweep.pg.private.cluster import Cluster
from tests.fix_cli import run
from tests.fix_results import MB
from tests.fix_shop import shop_under_load


@pytest.fixture(scope="module")
def evidence(wheel18: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give evidence of twenty seconds of pgbench in a pool too small for it."""
    folder = tmp_path_factory.mktemp("predict")
    with shop_under_load(wheel18) as conninfo:
        # On a busy machine the load may come in bursts, and the prediction is refused.
        for attempt in range(3):
            path = folder / f"{attempt}.evidence"
            done = run("record", conninfo, "--source", "sql", "--for", "20s", "-o", str(path))
            assert done.returncode == 0, done.stderr
            if run("predict", str(path), "--sizes", "16MB", "--fail-if", "verdict=refused").returncode == 0:
                break
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Give a trace of 40 000 accesses to 2000 objects, popular as by Zipf."""
    rng = np.random.default_rng(1)
    weights = 1 / np.arange(1, 2001)
    objects = rng.choice(2000, 40_000, p=weights / weights.sum())
    record = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
    records = np.zeros(len(objects), record)
    records["time"], records["object"], records["size"] = np.arange(len(objects)) // 1000, objects, 4096
    last: dict[int, int] = {}
    records["next"] = -1
    for index, name in enumerate(objects.tolist()):
        if name in last:
            records["next"][last[name]] = index
        last[name] = index
    path = tmp_path / "zipf.oracleGeneral"
    records.tofile(path)
    return path


def test_json_of_a_real_recording(evidence: Path) -> None:
    done = run("predict", str(evidence), "--sizes", "8MB,16MB,32MB,64MB", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == "pgsweep.predict/1"
    assert result["source"] == "sql"
    assert result["observed"]["shared_buffers_bytes"] == 16 * MB
    # On a busy machine the load comes in bursts, and the clock may pass 8 MB faster than snapshots can show.
    sizes = [point["shared_buffers_bytes"] for point in result["points"]]
    assert sizes[-3:] == [n * MB for n in (16, 32, 64)]
    assert result["unknown_bytes"] + sizes == [n * MB for n in (8, 16, 32, 64)]
    assert all("at 8 MB" in str(result["verdict"]["reasons"]) for _ in result["unknown_bytes"])
    for point in result["points"]:
        assert 0 <= point["low"] <= point["miss_ratio"] <= point["high"] <= 1
    ratios = [point["miss_ratio"] for point in result["points"]]
    assert ratios == sorted(ratios, reverse=True)
    assert result["verdict"]["level"] in {"reliable", "rough"}


def test_a_condition_on_the_verdict_decides_the_exit_code(evidence: Path) -> None:
    plain = run("predict", str(evidence), "--json")
    level = json.loads(plain.stdout)["verdict"]["level"]
    held = run("predict", str(evidence), "--fail-if", f"verdict={level}", "--fail-if", "verdict=refused")
    assert held.returncode == 5, held.stderr
    assert f"verdict={level} holds: verdict is {level}" in held.stderr
    assert "90% interval" in held.stdout
    assert run("predict", str(evidence), "--fail-if", f"verdict!={level}").returncode == 0


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("verdict<reliable", "is not a condition"),
        ("verdict=good", "is one of: reliable, rough, refused"),
        ("miss_ratio=1", "known are: verdict"),
    ],
)
def test_what_is_no_condition_on_a_verdict(trace: Path, condition: str, words: str) -> None:
    done = run("predict", str(trace), "--fail-if", condition)
    assert done.returncode == 2
    assert words in done.stderr


def test_text_and_files_of_a_real_recording(evidence: Path, tmp_path: Path) -> None:
    done = run("predict", str(evidence), "-o", "x.html", "-o", "x.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "today" in done.stdout
    assert "90% interval" in done.stdout
    assert "The prediction" in done.stdout
    rows = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    sizes = [int(row["shared_buffers_bytes"]) for row in rows]
    unknown = [n * MB for n in (2, 4, 8) if n * MB not in sizes]
    assert unknown + sizes == [n * MB for n in (2, 4, 8, 16, 32, 64, 128)], "an eighth to eight times today's"
    assert done.stdout.count("not known") >= len(unknown)
    assert "<svg" in (tmp_path / "x.html").read_text()


def test_trace_that_never_saw_a_server(trace: Path) -> None:
    done = run("predict", str(trace), "--sizes", "1MB,4MB,8MB", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["source"] == "import"
    assert result["observed"]["accesses"] == 40_000
    ratios = [point["miss_ratio"] for point in result["points"]]
    assert ratios == sorted(ratios, reverse=True)
    text = run("predict", str(trace)).stdout
    assert "an imported trace" in text
    assert "today" not in text


def test_more_than_the_machine_has_is_warned_of(trace: Path) -> None:
    done = run("predict", str(trace), "--sizes", "1MB,4TB", "--json")
    assert done.returncode == 0, done.stderr
    assert "warning: 4TB is more than this machine's memory" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent.evidence"], 2, "there is no evidence `absent.evidence`"),
        (["zipf.oracleGeneral", "--sizes", "64kB"], 2, "128 kB"),
        (["zipf.oracleGeneral", "--sizes", "9TB"], 2, "too large"),
        (["zipf.oracleGeneral", "--sizes", "many"], 2, "not a size"),
        (["empty.oracleGeneral"], 1, "error: "),
        (["cut.oracleGeneral"], 1, "error: "),
        (["empty.evidence"], 2, "error: "),
        (["zipf.oracleGenral"], 2, "did you mean zipf.oracleGeneral?"),
        (["point.sql"], 2, "`point.sql` is neither evidence nor a trace"),
        (["old.json"], 2, "pgsweep report old.json"),
        (["gather.sql"], 2, "psql -X -d DBNAME -f gather.sql"),
        (["gathered"], 2, "pgsweep import gathered"),
    ],
)
def test_mistakes(arguments: list[str], code: int, words: str, trace: Path) -> None:
    folder = trace.parent
    (folder / "empty.oracleGeneral").touch()
    (folder / "cut.oracleGeneral").write_bytes(trace.read_bytes()[:1001])
    (folder / "empty.evidence").mkdir()
    (folder / "point.sql").write_text("SELECT 1;\n")
    (folder / "old.json").write_text("{}\n")
    (folder / "gather.sql").write_text(record_script(5))
    (folder / "gathered").write_text(f"{MAGIC}\n")
    before = sorted(folder.iterdir())
    done = run("predict", *arguments, "-o", "x.html", cwd=folder)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert sorted(folder.iterdir()) == before
