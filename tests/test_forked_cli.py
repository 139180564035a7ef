"""A command that is forked is as one that is started: arguments, streams, environment, exit code, end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from pgsweep.ui.results import to_json
from tests.fix_cli import run, run_code, start
from tests.fix_results import predict_result


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["--version"], ""),
        (["nonsense", b"\xff\xfe"], ""),
        (["report", "-", "--csv"], to_json(predict_result())),
        (["report", "here.json"], ""),
        (["report", "absent.json"], ""),
        (["cache", "-h", "/nowhere"], ""),
        (["warm", "restore", "tëxt"], ""),
    ],
)
def test_it_gives_what_the_program_gives(arguments: list[str | bytes], stdin: str, tmp_path: Path) -> None:
    (tmp_path / "here.json").write_text(to_json(predict_result()))
    env = {"COLUMNS": "60", "PGPORT": "1", "NO_COLOR": "1"}
    ours, its = (each(*arguments, cwd=tmp_path, env=env, stdin=stdin) for each in (run, start))
    assert (ours.returncode, ours.stdout, ours.stderr) == (its.returncode, its.stdout, its.stderr)
    assert ours.stdout + ours.stderr


def test_each_begins_anew() -> None:
    code = """
import os, sys
assert not hasattr(sys, "leftover")
sys.leftover = 1
print(sys.argv, os.getpid(), sorted(os.environ))
"""
    first, second = (run_code(code, "a b") for _ in range(2))
    assert first.stderr == second.stderr == ""
    assert first.stdout.startswith("['-c', 'a b'] ")
    assert first.stdout.split()[3] != second.stdout.split()[3]
    assert "PYTHON" not in first.stdout


def test_its_end_is_reported() -> None:
    assert run_code("import os; os.kill(os.getpid(), 9)").returncode == -signal.SIGKILL
    failed = run_code("import atexit; atexit.register(print, 'at the end'); raise ValueError('x')")
    assert (failed.returncode, failed.stdout) == (1, "at the end\n")
    assert failed.stderr.endswith("ValueError: x\n")
    with pytest.raises(subprocess.TimeoutExpired):
        run("top", "-h", "/nowhere", "--once", timeout_seconds=1e-6)
