"""`pgsweep prove` as a command; what it measures is tested in test_prove.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fix_cli import PGSWEEP, run
from tests.fix_process import wait_until
from tests.fix_results import MB
from tests.fix_written import write_trace


@pytest.mark.slow
def test_a_small_trace_in_every_form(tmp_path: Path) -> None:
    write_trace(tmp_path / "shop.evidence", accesses=20_000)
    done = run(
        "prove",
        "shop.evidence",
        "--sizes",
        "2MB,8MB",
        "-o",
        "p.json",
        "-o",
        "p.html",
        "-o",
        "p.csv",
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "replaying at 2 MB (1 of 2)" in done.stderr
    for words in (
        "measured",
        "simulated",
        "90% interval",
        "today 8 MB",
        "measured within the predicted interval at ",
        "The prediction",
    ):
        assert words in done.stdout
    result = json.loads((tmp_path / "p.json").read_text())
    assert result["schema"] == "pgsweep.prove/1"
    assert result["observed_shared_buffers_bytes"] == 8 * MB
    assert result["provenance"]["command"].startswith("pgsweep prove shop.evidence --sizes 2MB,8MB")
    assert [row["shared_buffers_bytes"] for row in result["rows"]] == [2 * MB, 8 * MB]
    assert result["simulator_max_abs_error"] < 0.002
    assert (tmp_path / "p.html").read_text().count("<svg") == 2
    again = run("report", "--from", "p.html", "--csv", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, (tmp_path / "p.csv").read_text())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["absent.evidence"], 2, "there is no evidence `absent.evidence`"),
        (["sql.evidence"], 2, "pgsweep record --source trace"),
        (["sql.evidence", "--sizes", "64kB"], 2, "PostgreSQL accepts 16 blocks at least"),
        (["sql.evidence", "--max-accesses", "5"], 2, "--max-accesses"),
        (["trace.evidence", "--sizes", "4TB"], 1, "leave that size out: --sizes"),
        (["empty.evidence"], 2, "error: "),
    ],
)
def test_mistakes(arguments: list[str], code: int, words: str, tmp_path: Path) -> None:
    write_trace(tmp_path / "sql.evidence", accesses=100, source="sql")
    write_trace(tmp_path / "trace.evidence", accesses=2000)
    (tmp_path / "empty.evidence").mkdir()
    before = sorted(tmp_path.iterdir())
    done = run("prove", *arguments, "-o", "x.html", cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path, own_tmpdir: Path) -> None:
    write_trace(tmp_path / "shop.evidence")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(own_tmpdir)}
    # On SIGABRT it shows where it is.
    env["PYTHONFAULTHANDLER"] = "1"
    process = subprocess.Popen(
        [PGSWEEP, "prove", "shop.evidence", "-o", "x.json"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    seen = ""
    while "replaying at 2 MB" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line

    def where_it_is() -> str:
        left = sorted(str(path) for path in own_tmpdir.glob("*/*/*"))
        tree = subprocess.run(
            ["ps", "-eo", "pid,ppid,stat,wchan:20,args"], capture_output=True, text=True, check=True
        )
        process.send_signal(signal.SIGABRT)
        return f"{left}\n{tree.stdout}\n{process.communicate(timeout=60)[1]}"

    wait_until(lambda: any(own_tmpdir.rglob("postmaster.pid")) or process.poll() is not None, why=where_it_is)
    assert process.poll() is None, "it is at work"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert (out, "interrupted" in err, "Traceback" in err) == ("", True, False)
    assert [path.name for path in tmp_path.iterdir() if path != own_tmpdir] == ["shop.evidence"]
    assert not list(own_tmpdir.rglob("PG_VERSION"))
