"""tools/cross where its tools are missing: a check may be left out and says so, a test or a wheel fails."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "cross"
NEEDED = ("bash", "env", "dirname", "uname")
APT = ("apt-get", "apt-cache", "dpkg")


def cross(folder: Path, *words: str, tools: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    """Run the script with what it needs to begin, and with programs of these names that do nothing."""
    for name in NEEDED:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    for name in tools:
        (folder / name).write_text("#!/bin/sh\nexit 99\n")
        (folder / name).chmod(0o755)
    command = [str(folder / "bash"), str(SCRIPT), *words]
    return subprocess.run(
        command, env={"PATH": str(folder)}, capture_output=True, text=True, check=False, timeout=20
    )


@pytest.mark.parametrize(
    ("verb", "system", "code"),
    [
        ("check", "arm64", 0),
        ("check", "macos", 0),
        ("test", "arm64", 1),
        ("wheel", "arm64", 1),
        ("wheel", "macos", 1),
        ("wheel", "macos-x86-64", 1),
    ],
)
@pytest.mark.parametrize("tools", [(), APT[:2], APT[1:]], ids=["none", "no dpkg", "no apt-get"])
def test_without_apt_only_a_check_is_left_out(
    tmp_path: Path, verb: str, system: str, code: int, tools: Sequence[str]
) -> None:
    done = cross(tmp_path, verb, system, tools=tools)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"{system}: not checked; that takes x86-64 Linux with apt-get\n"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere the script ends before")
def test_a_test_without_compiler_or_emulator_names_them(tmp_path: Path) -> None:
    done = cross(tmp_path, "test", "arm64", tools=APT)
    assert done.returncode == 1
    assert "not tested; missing: aarch64-linux-gnu-gcc, qemu-aarch64-static\n" in done.stderr
    assert "hint: apt-get install gcc-aarch64-linux-gnu qemu-user-static" in done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere the script ends before")
def test_a_test_without_emulator_alone_fails(tmp_path: Path) -> None:
    done = cross(tmp_path, "test", "arm64", tools=(*APT, "aarch64-linux-gnu-gcc"))
    assert done.returncode == 1
    assert "missing: qemu-aarch64-static\n" in done.stderr


@pytest.mark.parametrize(
    "words", [(), ("cheque", "arm64"), ("check",), ("check", "amiga"), ("test", "macos")], ids=" ".join
)
def test_wrong_words_are_a_mistake_of_usage(tmp_path: Path, words: Sequence[str]) -> None:
    done = cross(tmp_path, *words, tools=APT)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: tools/cross ")
