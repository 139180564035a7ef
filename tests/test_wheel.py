"""The wheel: installed alone in an environment of its own, without Rust, it does the whole job."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.reference import ROOT

pytestmark = pytest.mark.slow
DEMO = """
import sys
from dataclasses import replace
from pathlib import Path
from pgsweep.sizing.demo import DemoPlan, run_demo
from pgsweep.testbed.truth import Patience
from pgsweep.testbed.workloads import MIX

MIB = 1 << 20
paced = [replace(script, text="\\\\sleep 2000 us\\n" + script.text) for script in MIX.scripts]
plan = DemoPlan(
    workloads=(replace(MIX, scripts=tuple(paced)),),
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


def test_it_holds_the_program_and_the_manual(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "-cp311-abi3-manylinux_" in wheel.name
    folder = "data/share/man/man1"
    pages = {path.name for path in (ROOT / "docs/manual" / folder).iterdir()}
    assert "pgsweep-predict.1" in pages
    assert {Path(name).name for name in names if Path(name).parent.match(f"*.data/{folder}")} == pages
    assert any(name.endswith("pgsweep/pg/queries/postmaster_140000.sql") for name in names)
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has nothing but the wheel and what it needs."""
    place = tmp_path_factory.mktemp("installed") / "environment"
    # With our own pip: to install another takes longer than all that the wheel needs.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    # Python compiles what is imported; to compile all that was installed takes most of the installation.
    install = ["install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    install += ["--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", place / "bin" / "python", *install], check=True)
    return place / "bin"


@pytest.fixture
def bare(tmp_path: Path, own_tmpdir: Path) -> dict[str, str]:
    """A user's environment without Rust."""
    found = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(own_tmpdir)}
    assert subprocess.run(["bash", "-c", "command -v cargo"], env=found, check=False).returncode != 0
    return found


def test_it_works_without_rust_and_without_a_checkout(
    installed: Path, tmp_path: Path, bare: dict[str, str]
) -> None:
    shown = subprocess.run(
        [installed / "pgsweep", "--version"],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("pgsweep ")
    done = subprocess.run(
        [installed / "python", "-c", DEMO, tmp_path / "demo"],
        env=bare,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_command_that_newcomers_begin_with(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """`pgsweep demo` as it is: three minutes or so, therefore only in `make test-wheel`."""
    if not request.config.getoption("--demo"):
        pytest.skip("takes minutes: make test-wheel runs it")
    programs: Path = request.getfixturevalue("installed")
    done = subprocess.run(
        [programs / "pgsweep", "demo", "-o", "demo.json", "-o", "demo.html"],
        env=request.getfixturevalue("bare"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo.html").stat().st_size > 10_000
    (workload,) = json.loads((tmp_path / "demo.json").read_text())["workloads"]
    assert len(workload["rows"]) == 5
    assert all(row["measured_miss_ratio"] is not None for row in workload["rows"])
    # On a quiet machine a tenth of this (benchmarks/demo); it may be a busy one.
    assert workload["snapshots_mean_abs_error"] < 0.04
