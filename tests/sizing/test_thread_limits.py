"""A limit of threads is not taken for a damaged file, and changes no result."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fix_seeds import evidence
from tests.fuzz.targets import SEEDS

_FEW_THREADS = """
import os, resource, sys
from pathlib import Path
import numpy.random, pyarrow.compute, pyarrow.parquet
import pgsweep.evidence.store
from pgsweep.errors import PgsweepError
from pgsweep.evidence.store import Evidence
from pgsweep.sizing import forecast, observed, parallel
from pgsweep.sizing.predict import predict
os.setgid(65533)
os.setuid(65533)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
print(len(Evidence.open(Path(sys.argv[1])).table("snapshots")["frame"]))
try:
    predict(Path(sys.argv[1]))
except PgsweepError as error:
    print(error.message, error.hint)
"""


_FEWER_THREADS_LATER = """
import os, resource, sys, threading
from pathlib import Path
import numpy.random, pyarrow.compute, pyarrow.parquet, scipy.optimize
import pgsweep.evidence.store, pgsweep.evidence.oracle_general, pgsweep.sizing.snapshots.fit
import pgsweep.sizing.traces.curve, pgsweep.sizing.snapshots.unfilled
import pgsweep.sizing.snapshots.used_snapshots, pgsweep.sizing.predict
import pgsweep.sizing.forecast, pgsweep.sizing.observed, pgsweep.sizing.parallel
from pgsweep.ui.results import to_json
look = pgsweep.sizing.parallel.check_threads
def look_and_be_limited():
    look()
    if sys.argv[2] == "limited":
        os.setgid(65533)
        os.setuid(65533)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
        try:
            threading.Thread(target=print).start()
        except RuntimeError:
            pass
        else:
            sys.exit("a thread could be started")
pgsweep.sizing.parallel.check_threads = look_and_be_limited
print(to_json(pgsweep.sizing.predict.predict(Path(sys.argv[1]), sizes_bytes=[128 << 10, 1 << 20, 8 << 20])))
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Return a folder that others may enter; another run of pytest takes that from all those of pytest."""
    with tempfile.TemporaryDirectory(prefix="pgsweep-threads-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def let_anybody_read(path: Path) -> None:
    for each in (path, *path.rglob("*")):
        each.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
def test_a_limit_of_threads_is_not_taken_for_damage(place: Path) -> None:
    folder = evidence(place, "sql")
    let_anybody_read(folder)
    done = subprocess.run(
        [sys.executable, "-c", _FEW_THREADS, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows, said = done.stdout.splitlines()
    assert int(rows) == 12 * 64
    assert "no further thread could be started" in said and "remove" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become another user")
@pytest.mark.parametrize("seed", ["sql", "peek", "oracle_general"])
def test_a_limit_of_threads_that_is_reached_later_changes_no_result(seed: str, place: Path) -> None:
    """The limit is reached after predict has looked whether there are threads."""
    if seed == "oracle_general":
        path = place / "x.oracleGeneral"
        path.write_bytes((SEEDS / "oracle_general" / "plain").read_bytes())
    else:
        path = evidence(place, seed)
    let_anybody_read(path)
    said = []
    for limit in ("none", "limited"):
        done = subprocess.run(
            [sys.executable, "-c", _FEWER_THREADS_LATER, str(path), limit],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]
