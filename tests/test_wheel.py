"""The wheel: installed alone in an environment of its own, without Rust, it does the whole job."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.reference import ROOT

pytestmark = pytest.mark.slow
DEMO = """
import sys
from pathlib import Path
from pgsweep.sizing.demo import DemoPlan, run_demo
from pgsweep.testbed.truth import Patience

MIB = 1 << 20
plan = DemoPlan(
    scale=1,
    observed_bytes=4 * MIB,
    sizes_bytes=(2 * MIB, 4 * MIB, 16 * MIB),
    snapshots_seconds=4,
    trace_seconds=2,
    patience=Patience(settle_limit_seconds=2, count_windows=1, count_limit_seconds=1),
)
result = run_demo(plan=plan, output=Path(sys.argv[1]))
rows = result.workloads[0].rows
assert len(rows) == 3 and all(row.measured_miss_ratio is not None for row in rows), rows
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_it_holds_the_program_and_the_manual(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "-cp311-abi3-manylinux_" in wheel.name
    assert any(name.endswith("data/share/man/man1/pgsweep-predict.1") for name in names)
    assert any(name.endswith("pgsweep/pg/queries/setting.sql") or "/queries/" in name for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_it_works_without_rust_and_without_a_checkout(wheel: Path, tmp_path: Path, own_tmpdir: Path) -> None:
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    install: list[str | Path] = [place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--constraint", ROOT / "constraints.txt", wheel], check=True)
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(own_tmpdir)}
    assert subprocess.run(["bash", "-c", "command -v cargo"], env=bare, check=False).returncode != 0
    shown = subprocess.run(
        [place / "bin" / "pgsweep", "--version"],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("pgsweep ")
    told = subprocess.run(
        [place / "bin" / "python", "-c", DEMO, tmp_path / "demo"],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
