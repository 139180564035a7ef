"""What a few bytes of a file stand for does not fill the memory: measured on processes of their own."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgsweep.pg.private.cluster import Cluster
from tests.fix_load import ask, trouble_database

# Not ru_maxrss: a process has that of the one that it was forked from, too.
SCRIPT = """
import re, sys
from pathlib import Path
from pgsweep.errors import PgsweepError
from pgsweep.load.options import LoadOptions
from pgsweep.load.loading import load_files
said = "loaded"
try:
    load_files(sys.argv[1], [sys.argv[2]], "p", LoadOptions(max_record_bytes=int(sys.argv[3])))
except PgsweepError as error:
    said = error.message
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1], said)
"""


@pytest.fixture
def conninfo(wheel18: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with trouble_database(wheel18, "CREATE TABLE p (id int, note text)") as found:
        yield found


def peak(conninfo: str, path: Path, most: int = 1 << 30) -> tuple[int, str]:
    """Return the peak memory of a load in MB, and what it said."""
    words = [sys.executable, "-c", SCRIPT, conninfo, str(path), str(most)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    size, _, said = done.stdout.strip().partition(" ")
    return int(size) >> 10, said


@pytest.fixture(scope="module")
def usual() -> int:
    """The peak memory of a process that has all modules loaded, in MB."""
    begin, end = SCRIPT.partition("said =")[0], SCRIPT.partition("message\n")[2]
    loaded = f"{begin}\nsaid = ''\n{end}"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    return int(done.stdout) >> 10


def zeros(path: Path, megabytes: int, kind: str) -> None:
    block = b"x" * (1 << 20)
    if kind == "gz":
        with gzip.open(path, "wb", compresslevel=9) as file:
            for _ in range(megabytes):
                file.write(block)
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            for _ in range(megabytes):
                file.write(block)


@pytest.mark.parametrize("name", ["x.csv.gz", "x.csv.zst", "x.jsonl.zst", "x.tsv.gz"])
def test_a_record_of_a_compressed_file_has_a_limit(
    conninfo: str, tmp_path: Path, usual: int, name: str
) -> None:
    path = tmp_path / name
    zeros(path, 400, name.rpartition(".")[2])
    size, said = peak(conninfo, path)
    assert "a record has more than" in said
    # 64 MB and a hundred times the file, once as blocks and once joined.
    assert size - usual < 64 + 100 * (path.stat().st_size / 2**20) + 80, said


def test_a_long_record_is_refused_by_the_limit_that_was_given(
    conninfo: str, tmp_path: Path, usual: int
) -> None:
    path = tmp_path / "x.csv"
    with path.open("wb") as file:
        file.write(b'id,note\n1,"')
        file.write(b"x" * (200 << 20))
        file.write(b'"\n')
    size, said = peak(conninfo, path, 16 << 20)
    assert "line 2: a record has more than 16" in said
    assert size - usual < 100
    assert ask(conninfo, "SELECT count(*) FROM p") == [(0,)]


def test_batches_of_parquet_are_of_bytes(conninfo: str, tmp_path: Path, usual: int) -> None:
    path = tmp_path / "x.parquet"
    # One value of 100 kB for 3,000 rows is 300 MB of text, and some kB of file.
    once = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), pa.array(["x" * 100_000]))
    pq.write_table(pa.table({"id": range(3000), "note": once}), path, compression="zstd")
    assert path.stat().st_size < 40_000
    size, said = peak(conninfo, path)
    assert said == "loaded"
    assert size - usual < 150
    assert ask(conninfo, "SELECT count(*), sum(length(note)) FROM p") == [(3000, 300_000_000)]
    ask(conninfo, "TRUNCATE p")
    # The same without a dictionary, in one group of rows. A page of it has 100 MB.
    rows = pa.table({"id": range(3000), "note": pa.array(["x" * 100_000] * 3000)})
    pq.write_table(rows, path, compression="zstd", use_dictionary=False, row_group_size=3000)
    size, said = peak(conninfo, path)
    assert said == "loaded"
    assert size - usual < 250
    ask(conninfo, "TRUNCATE p")
    # Of lists, one row of which is too long.
    lists = pa.ListArray.from_arrays([0, 2, 3000], once)
    pq.write_table(pa.table({"id": [1, 2], "note": lists}), path, compression="zstd")
    size, said = peak(conninfo, path, 100 << 20)
    assert "row 2: it has 28" in said or "row 2: it has 3" in said
    assert size - usual < 150
