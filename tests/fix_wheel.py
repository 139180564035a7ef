"""The wheel, built once a session."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reference import ROOT


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    # For this machine only: `make wheel` makes those for others, which takes a second build of everything.
    with Path(__file__).open() as lock:
        # Two builds at a time in one checkout remove each other's files in target/maturin.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run(
            [Path(sys.executable).with_name("maturin"), "build", "--release", "--quiet", "--out", folder],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            check=False,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made
