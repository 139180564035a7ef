"""`pgsweep demo` as a command; what it does is tested in test_demo.py."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pgsweep.cli import demo as command_module
from tests.fix_cli import PGSWEEP, run
from tests.fix_process import busyness, wait_until


def test_a_folder_without_a_server_is_reported(tmp_path: Path) -> None:
    done = run("demo", "--pg-bindir", str(tmp_path), cwd=tmp_path)
    assert done.returncode in (1, 2, 4)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_place_for_the_report_that_cannot_be_written_is_reported_before_the_work(tmp_path: Path) -> None:
    begin = time.monotonic()
    done = run("demo", "-o", "absent/demo.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no folder `absent`" in done.stderr
    assert time.monotonic() - begin < 10 * busyness()


def large(path: Path) -> bool:
    """Return whether a file is larger than those of an empty database, and is still there."""
    with suppress(FileNotFoundError):
        return path.stat().st_size > 16 << 20
    return False


def test_an_interrupt_leaves_nothing(tmp_path: Path, own_tmpdir: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(own_tmpdir)}
    process = subprocess.Popen(
        [PGSWEEP, "demo"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # It fills its database: the tables of pgbench are the only files that become larger than 16 MB.
    wait_until(lambda: any(large(path) for path in own_tmpdir.glob("*/*/data/base/*/*")))
    assert process.poll() is None, "it runs for minutes"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_report_has_a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_module._default_report() == tmp_path / "pgsweep-demo.html"
