"""The wheel, built once a session."""

from __future__ import annotations

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
    subprocess.run(
        [Path(sys.executable).with_name("maturin"), "build", "--release", "--quiet", "--out", folder],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
    )
    (made,) = folder.glob("*.whl")
    return made
