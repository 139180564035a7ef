"""Inputs of some kB that ask for gigabytes, or for minutes: refused in words, in little memory and time.

They are those that fuzzing begins with (tests/fuzz/bombs.py). Each is read in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.targets import SEEDS

MOST_BYTES = 500 << 20
MOST_SECONDS = 60.0
BOMBS = sorted(SEEDS.glob("*/bomb-*"))

_READ = """
import resource, sys, tempfile, time
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from pgsweep.errors import PgsweepError
from tests.fuzz.targets import load, seed
target, data = load(sys.argv[1]), seed(Path(sys.argv[2]))
with tempfile.TemporaryDirectory() as workdir:
    try:
        said = target.run_one(data, Path(workdir))
    except PgsweepError as error:
        said = f"refused: {error.message}; {error.cause}"
print(said)
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(int(peak) << 10, time.process_time())
"""


def read(path: Path) -> tuple[str, int, float]:
    """Return what reading an input says, and what the process takes in all: bytes, seconds of a processor."""
    command = [sys.executable, "-c", _READ, path.parent.name, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    *said, numbers = done.stdout.splitlines()
    peak_bytes, seconds = numbers.split()
    return "\n".join(said), int(peak_bytes), float(seconds)


@pytest.mark.parametrize("path", BOMBS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_small_file_takes_little(path: Path) -> None:
    said, peak_bytes, seconds = read(path)
    assert peak_bytes < MOST_BYTES and seconds < MOST_SECONDS, (said, peak_bytes >> 20, seconds)
    assert not said.startswith("refused") or not said.endswith("; None"), said
