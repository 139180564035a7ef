"""A command that is forked is as one that is started: arguments, streams, environment, exit code, end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pgsweep.ui.results import to_json
from tests.fix_cli import launch, run, run_code, start
from tests.fix_process import wait_until
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


def test_it_is_watched_signalled_and_waited_for(tmp_path: Path) -> None:
    with launch("report", "-", stdin=subprocess.PIPE, cwd=tmp_path) as running:
        wait_until(lambda: Path(f"/proc/{running.pid}/cwd").readlink() == tmp_path)
        assert running.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.01)
        running.kill()
        running.wait()
        assert running.communicate(timeout=60) == ("", "")
    assert running.poll() == running.wait() == -signal.SIGKILL
    running.terminate()  # of one that has ended: nothing
    with (tmp_path / "said").open("w") as said:
        assert launch("nonsense", stdout=subprocess.DEVNULL, stderr=said).wait(60) == 2
    assert "no such command" in (tmp_path / "said").read_text()


def test_a_terminal_is_that_of_a_session_of_its_own() -> None:
    master, slave = os.openpty()
    with launch("report", "-", stdin=slave, stdout=slave, stderr=slave, terminal=True) as shown:
        os.close(slave)
        wait_until(lambda: os.tcgetpgrp(master) == shown.pid)
        os.write(master, b"\x04")  # the end of its input
        assert shown.wait(60) == 2
    os.close(master)
